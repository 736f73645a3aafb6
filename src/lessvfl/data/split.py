"""Which rows are for training and which for testing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import DataConfig, Dataset, Places
from lessvfl.errors import ConfigError, DataError
from lessvfl.terms import plural, stream_seed

BEHAVIOUR = 2  # 2: rows are drawn without labels; raised by hand, as a method's is
MANY_ROWS = 1 << 20  # from here on test rows are drawn block by block
BLOCK = 1 << 16
CHANGE = "change test_share or split"
BY_CLASS = "or in one process set split=stratified"
MOST_DRAWN = 10**9  # rows from which numpy cannot draw without replacement

SecretSeed = Callable[[str, int], int]  # from a purpose and the seed that all know


def is_drawn_by_class(dataset: Dataset, config: DataConfig) -> bool:
    """Tell whether test rows are drawn class by class, so that labels decide on it."""
    is_named = dataset.is_test is not None or dataset.times is not None
    brings_some = is_named or dataset.X_test is not None
    is_empty = config.folds == 1 and config.test_share == 0
    has_classes = dataset.task != "regression"
    by_class = config.split == "stratified" and has_classes
    return by_class and not brings_some and not is_empty


def split_rows(
    dataset: Dataset,
    config: DataConfig,
    seed: int,
    in_order: bool = False,
    blocks: Places | None = None,
    secret: SecretSeed | None = None,
) -> tuple[Places, Places]:
    """Return the places of rows to train on and of rows to test on, each sorted.

    With split=stratified few rows come in random order in one process, as published
    results had them, unless `in_order`. Rows with the same number in `blocks` (N,) are
    on one side: with split=first on that of the first of them. Test rows that the data
    set marks are taken as marked. A draw by class, and no other, uses `secret` if
    given.
    """
    assert dataset.times is None, "`settle_test_rows` has marked the latest"
    if dataset.is_test is not None:
        return np.flatnonzero(~dataset.is_test), np.flatnonzero(dataset.is_test)
    by_class = is_drawn_by_class(dataset, config)
    secret = secret if by_class else None
    if config.folds > 1:
        is_test = _is_in_fold(dataset, config, seed, blocks, secret)
        train, test = _both_sides(dataset, is_test, "change folds")
    else:
        n = len(dataset.y)
        n_train = int(n * (1.0 - config.test_share) + 1e-9)
        if n_train < 1:
            raise DataError(
                f"The data set '{dataset.name}' must leave a row to train on. "
                f"Got {n} rows and test_share = {config.test_share:g}."
            )
        n_test = n - n_train
        if not n_test:
            return np.arange(n), np.arange(0)
        if config.split == "first":
            is_test = np.arange(n) >= n - n_test
            if blocks is not None:
                is_test = ~np.isin(blocks, blocks[~is_test])
            return _both_sides(dataset, is_test)
        classes = dataset.training_labels if by_class else None
        if by_class:
            _refuse_rare_classes(dataset, n_test)
        is_few = blocks is None and n < MANY_ROWS
        if config.split == "stratified" and is_few and secret is None:
            state = np.random.RandomState(stream_seed(seed, "split") % 2**32)
            train, test = _shuffle_split(n, n_train, classes, state)
            return (np.sort(train), np.sort(test)) if in_order else (train, test)
        rng = _generator(seed, "split", secret)
        if blocks is None:
            is_test = _draw_test_rows(n, n_test, classes, rng)
        else:
            is_test = _draw_test_blocks(blocks, n_test, classes, rng)
        train, test = _both_sides(dataset, is_test)
    if dataset.task != "regression" and not by_class:
        _refuse_missing_classes(dataset, train, test, config.folds)
    return train, test


def _generator(
    seed: int, purpose: str, secret: SecretSeed | None
) -> np.random.Generator:
    """Return what rows are drawn by: the seed, which all know, or also a secret."""
    drawn_by = stream_seed(seed, purpose) if secret is None else secret(purpose, seed)
    return np.random.default_rng(drawn_by)


def fold_seeds(seeds: Sequence[int], folds: int) -> list[int]:
    """Return a seed for every fold of every seed: those of seed s are s * folds + f.

    >>> fold_seeds([0, 7], 3)
    [0, 1, 2, 21, 22, 23]
    """
    numbers = [seed * folds + fold for seed in seeds for fold in range(folds)]
    if folds > 1 and numbers and max(numbers) >= 2**63:
        raise ConfigError(
            f"With {folds} folds every seed must be below {2**63 // folds}. Got "
            f"{max(seeds)}."
        )
    return numbers


def ensemble_rows(seeds: Sequence[int], given: Mapping[str, Any]) -> dict[str, int]:
    """Return the setting by which the seeds of an ensemble share their rows."""
    if len(seeds) < 2:
        raise ConfigError(
            "An ensemble must have two seeds or more, as in 0,1,2,3,4. Got "
            f"{', '.join(map(str, seeds))}."
        )
    if "split_seed" in given:
        raise ConfigError(
            "The seeds of an ensemble share the rows of the first: 'split_seed' must "
            f"be left out. Got {given['split_seed']}."
        )
    return {"split_seed": seeds[0]}


def _is_in_fold(
    dataset: Dataset,
    config: DataConfig,
    seed: int,
    blocks: Places | None,
    secret: SecretSeed | None,
) -> NDArray[np.bool_]:
    """Tell which rows are of the fold of a seed.

    The seed is one of `fold_seeds`: it says by which one rows are divided, and which
    fold this is.
    """
    first, fold = divmod(seed, config.folds)
    n = len(dataset.y)
    classes = dataset.training_labels if is_drawn_by_class(dataset, config) else None
    if config.folds > n:
        raise DataError(
            f"The folds of '{dataset.name}' must be as many as its rows or fewer. Got "
            f"{config.folds} for {plural(n, 'row')}."
        )
    if classes is not None:
        _refuse_rare_classes(dataset, n // config.folds)
    block_of = np.arange(n) if blocks is None else blocks
    rng = _generator(first, "folds", secret)
    kinds = _classes_of(block_of, classes)
    in_fold = _folds_of(block_of, kinds, config.folds, rng) == fold
    return np.asarray(in_fold[block_of])


def _folds_of(
    blocks: Places, kinds: Places, n_folds: int, rng: np.random.Generator
) -> Places:
    """Return the fold of every block; each has about as many rows of every class.

    Blocks are taken in random order, large ones first, each for the fold that has the
    fewest rows of its class so far, and then the fewest in all.
    """
    sizes = np.bincount(blocks)
    order = rng.permutation(len(sizes))
    order = order[np.lexsort((kinds[order], -sizes[order]))]
    if sizes.max() == 1:  # the same, at once
        folds = np.empty(len(sizes), dtype=np.int64)
        folds[order] = np.arange(len(sizes)) % n_folds
        return folds
    folds = np.zeros(len(sizes), dtype=np.int64)
    of_class = [[0] * n_folds for _ in range(int(kinds.max()) + 1)]
    of_all = [0] * n_folds
    for block in order.tolist():
        size, kind = int(sizes[block]), int(kinds[block])
        fold = min(range(n_folds), key=lambda f: (of_class[kind][f], of_all[f]))
        folds[block] = fold
        of_class[kind][fold] += size
        of_all[fold] += size
    return folds


def common_rows(n_rows: int, overlap: float, seed: int) -> tuple[Places, Places]:
    """Return which training rows all parties have, and which each has alone.

    >>> common, alone = common_rows(10, 0.3, seed=0)
    >>> len(common), sorted([*common, *alone]) == [*range(10)]
    (3, True)
    """
    rng = np.random.default_rng(stream_seed(seed, "overlap"))
    order = rng.permutation(n_rows)
    n_common = max(1, round(overlap * n_rows))
    return np.sort(order[:n_common]), np.sort(order[n_common:])


def _shuffle_split(
    n: int, n_train: int, classes: Places | None, state: np.random.RandomState
) -> tuple[Places, Places]:
    """Draw rows as scikit-learn's ``train_test_split`` does, without its import."""
    if classes is None:
        order = state.permutation(n)
        return order[n - n_train :], order[: n - n_train]
    counts = np.unique(classes, return_counts=True)[1]
    members = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1])
    n_each = draw_counts(counts, n_train, state)
    draw_counts(counts - n_each, n - n_train, state)  # all that are left; it may draw
    shuffled = [rows[state.permutation(len(rows))] for rows in members]
    halves = [np.split(rows, [n]) for rows, n in zip(shuffled, n_each, strict=True)]
    train, test = (np.concatenate(half) for half in zip(*halves, strict=True))
    return state.permutation(train), state.permutation(test)


def draw_counts(counts: Places, n: int, state: np.random.RandomState) -> Places:
    """Share out `n` by the counts of classes, what remains to the largest remainders.

    Of classes with equal remainders some are drawn.
    """
    shares = counts / counts.sum() * n
    n_each: Places = np.floor(shares).astype(np.int64)
    remainders = shares - n_each
    for remainder in np.unique(remainders)[::-1]:
        if not (n_left := int(n - n_each.sum())):
            break
        equal = np.flatnonzero(remainders == remainder)
        n_each[state.choice(equal, min(len(equal), n_left), replace=False)] += 1
    return n_each


def _both_sides(
    dataset: Dataset, is_test: NDArray[np.bool_], advice: str = CHANGE
) -> tuple[Places, Places]:
    """Return training and test rows; refuse blocks so large that one side has none."""
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if not len(train) or not len(test):
        raise DataError(
            f"Rows of '{dataset.name}' that equal each other, or are of one group, are "
            f"for training or for testing together. Got {plural(len(train), 'row')} "
            f"and {len(test)}; {advice}."
        )
    return train, test


def _classes_of(blocks: Places, classes: Places | None) -> Places:
    """Return of every block the class that most of its rows have, 0 without classes."""
    kind = np.zeros(int(blocks.max()) + 1, dtype=np.int64)
    if classes is not None:
        n_classes = int(classes.max()) + 1
        pairs, counts = np.unique(blocks * n_classes + classes, return_counts=True)
        most = np.lexsort((counts, pairs // n_classes))  # the last of a block
        kind[pairs[most] // n_classes] = pairs[most] % n_classes
    return kind


def _draw_test_blocks(
    blocks: Places,
    n_test: int,
    classes: NDArray[np.int64] | None,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Return a mask (N,) of test rows: whole blocks with about `n_test` rows in all.

    Each class has its share, about; a block counts for the class that most of its rows
    have. Of each class blocks are taken in random order, as near to its share as they
    get; what is missing or too much there is made up for by the next class.
    """
    sizes, kind = np.bincount(blocks), _classes_of(blocks, classes)
    is_test = np.zeros(len(sizes), dtype=np.bool_)
    share, owed = n_test / len(blocks), 0.0
    for number in rng.permutation(np.unique(kind)):
        some = rng.permutation(np.flatnonzero(kind == number))
        wanted = share * sizes[some].sum() + owed
        some = some[np.argsort(sizes[some] > wanted, kind="stable")]  # too large: last
        totals = np.concatenate([[0], np.cumsum(sizes[some])])
        taken = int(np.abs(totals[:-1] - wanted).argmin())  # one stays to train on
        is_test[some[:taken]] = True
        owed = wanted - totals[taken]
    if not is_test.any():
        is_test[sizes.argmin()] = True
    return is_test[blocks]


def _draw_test_rows(
    n_rows: int,
    n_test: int,
    classes: NDArray[np.int64] | None,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Return a mask (N,) of `n_test` test rows of very many, each class in proportion.

    Rows are drawn part by part, and each part has of each class as many as would fall
    to it if all rows were drawn from at once; memory is a byte a row.
    """
    n_of = np.array([n_rows]) if classes is None else np.bincount(classes)
    shares = float(n_test) * n_of / n_rows  # whole numbers would overflow
    wanted = np.floor(shares).astype(np.int64)
    most_left = np.argsort(wanted - shares, kind="stable")
    wanted[most_left[: n_test - wanted.sum()]] += 1
    is_test = np.zeros(n_rows, dtype=np.bool_)
    for start in range(0, n_rows, BLOCK):
        size = min(BLOCK, n_rows - start)
        kind_of = (
            np.zeros(size, np.int64) if classes is None else classes[start:][:size]
        )
        for number in np.unique(kind_of):
            members = start + np.flatnonzero(kind_of == number)
            good, rest = wanted[number], n_of[number] - wanted[number]
            if n_of[number] < MOST_DRAWN:
                k = rng.hypergeometric(good, rest, len(members))
            else:  # a block is so small a part that it makes no difference
                k = rng.binomial(len(members), good / n_of[number])
                k = np.clip(k, len(members) - rest, good)
            is_test[rng.choice(members, k, replace=False, shuffle=False)] = True
            n_of[number] -= len(members)
            wanted[number] -= k
    return is_test


def _refuse_rare_classes(dataset: Dataset, n_test: int) -> None:
    """Refuse to draw `n_test` rows by class where a class or part has too few rows."""
    counts = np.bincount(dataset.training_labels, minlength=len(dataset.label_names))
    if counts.min() < 2:
        rare = dataset.label_names[int(counts.argmin())]
        raise DataError(
            f"Every class of '{dataset.name}' must have 2 rows or more to be "
            f"stratified. Got {counts.min()} of class '{rare}'."
        )
    least = min(n_test, len(dataset.y) - n_test)
    if least < len(counts):
        raise DataError(
            f"Train and test rows of '{dataset.name}' must be as many as its "
            f"{len(counts)} classes. Got {least}; change test_share or split."
        )


def _refuse_missing_classes(
    dataset: Dataset, train: Places, test: Places, folds: int
) -> None:
    """Refuse rows that were drawn without labels, where a part lacks a class."""
    y, n_classes = dataset.training_labels, len(dataset.label_names)
    in_all = np.bincount(y, minlength=n_classes)
    for rows, what in ((train, "train"), (test, "test")):
        counts = np.bincount(y[rows], minlength=n_classes)
        if counts.all():
            continue
        number = int(counts.argmin())
        missing = f"class '{dataset.label_names[number]}'"
        got = f"{plural(len(rows), f'{what} row')}, drawn without labels, and none of "
        if (n := int(in_all[number])) < 2:  # no draw has it on both sides
            got = f"{plural(n, 'row')} of {missing} in all; leave the class out"
        elif folds > 1:
            got += f"{missing}; take fewer folds, {BY_CLASS}"
        else:
            got += f"{missing}; name test rows by test_ids, {BY_CLASS}"
        raise DataError(
            f"Train and test rows of '{dataset.name}' must have every class. Got {got}."
        )
