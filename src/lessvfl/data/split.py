"""Who holds which columns, which rows are for test, and the file of party columns."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import DataConfig, Dataset, Places
from lessvfl.errors import ConfigError, DataError, warn
from lessvfl.settings import near, refuse
from lessvfl.terms import listed, plural, stream_seed

MANY_ROWS = 1 << 20  # from here on test rows are drawn block by block
BLOCK = 1 << 16
MOST_DRAWN = 10**9  # rows from which numpy cannot draw without replacement

# How many parties, how many columns each has, or the columns (names, globs) of each.
PartySpec = int | Sequence[int] | Mapping[str, Sequence[str]]


def deal_columns(
    names: Sequence[str],
    parties: PartySpec,
    config: DataConfig,
    seed: int,
    unused: Collection[str] = (),
) -> dict[str, list[str]]:
    """Say which party holds which columns; a number of parties deals no `unused`."""
    if isinstance(parties, Mapping):
        return _deal_by_name(names, parties)
    if isinstance(parties, int | np.integer):
        names = [name for name in names if name not in unused]
    sizes = _sizes(len(names), parties, config.uneven, len(unused))
    order = list(names)
    if config.columns == "random":
        rng = np.random.default_rng(stream_seed(seed, "columns"))
        order = [order[i] for i in rng.permutation(len(order))]
    ends = np.cumsum(sizes)
    return {
        f"party{i}": order[end - size : end]
        for i, (size, end) in enumerate(zip(sizes, ends, strict=True))
    }


def _sizes(
    n_columns: int, parties: int | Sequence[int], uneven: str, n_unused: int
) -> list[int]:
    """Return how many columns each party gets."""
    allowed = "a whole number >= 1, sizes such as [10, 20], or names with their columns"
    if isinstance(parties, int | np.integer):
        if not _is_count(parties):
            raise refuse("parties", "argument", allowed, parties)
        if parties > n_columns:
            more = f"; {n_unused} more {'is' if n_unused == 1 else 'are'} left out"
            raise ConfigError(
                f"Every party must hold a feature of its own. Got {parties} parties "
                f"for n_features = {n_columns}{more * bool(n_unused)}."
            )
        share, rest = divmod(n_columns, int(parties))
        extra = rest if uneven == "spread" else 0
        return [share + (i < extra) for i in range(parties)]
    sizes = list(parties) if isinstance(parties, list | tuple) else []
    if not sizes or not all(_is_count(size) for size in sizes):
        raise refuse("parties", "argument", allowed, parties)
    if sum(sizes) != n_columns:
        raise ConfigError(
            f"The sizes of the parties must add up to the number of columns, "
            f"{n_columns}. Got {sizes}, which add up to {sum(sizes)}."
        )
    return sizes


def _is_count(size: Any) -> bool:
    whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
    return whole and size >= 1


def _deal_by_name(
    names: Sequence[str], parties: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return the columns that each party names, and warn of those nobody names."""
    if not parties:
        raise ConfigError("The parties must be one or more. Got none.")
    held: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for party, patterns in parties.items():
        held[party] = match_columns(names, patterns, f"party '{party}'")
        for column in held[party]:
            if column in owner:
                raise ConfigError(
                    f"Column '{column}' must belong to one party. "
                    f"Got '{owner[column]}' and '{party}'."
                )
            owner[column] = party
    excluded = excluded_columns(names, parties)
    left = [name for name in names if name not in owner and name not in excluded]
    if left:
        warn(
            f"{plural(len(left), 'column belongs', 'columns belong')} to no party and "
            f"{'is' if len(left) == 1 else 'are'} left out: {listed(left)}."
        )
    return held


GLOB = re.compile(r"[*?\[]")
EXCEPT = "!"  # before what is excluded; \\! for a name that begins with it


def match_columns(
    names: Sequence[str], patterns: Sequence[str] | str, owner: str
) -> list[str]:
    """Return the columns that names or globs stand for, each once, in order.

    Those after a ``!`` are left out of the others, or of all where there are no others.
    """
    return _matched_and_excluded(names, patterns, owner)[0]


Names = Mapping[str, None]  # of columns, in order


def _matched_and_excluded(
    names: Sequence[str], patterns: Sequence[str] | str, owner: str
) -> tuple[list[str], list[str]]:
    """Return the columns that patterns stand for, and those that they leave out."""
    known = dict.fromkeys(names)
    wanted, unwanted = [], []
    for pattern in [patterns] if isinstance(patterns, str) else map(str, patterns):
        if pattern.startswith(EXCEPT) and pattern not in known:
            unwanted.append(pattern.removeprefix(EXCEPT))
        else:  # a column's own name is no mark
            wanted.append(pattern)
    if not wanted and not unwanted:
        raise ConfigError(f"The columns of {owner} must be one or more. Got none.")
    matched = [name for pattern in wanted for name in _matches(known, pattern, owner)]
    excluded = [
        name for pattern in unwanted for name in _matches(known, pattern, owner, EXCEPT)
    ]
    left = dict.fromkeys(matched if wanted else known)
    for name in excluded:
        left.pop(name, None)
    if not left:
        marked = listed([f"'{EXCEPT}{pattern}'" for pattern in unwanted])
        raise ConfigError(
            f"The columns of {owner} must be one or more. Got none after {marked}."
        )
    return list(left), excluded


def _matches(known: Names, pattern: str, owner: str, mark: str = "") -> list[str]:
    """Return the columns of one name or glob, or refuse one that has none."""
    if pattern in known:
        return [pattern]
    plain = pattern.removeprefix("\\") if pattern.startswith("\\!") else pattern
    matches = [name for name in known if fnmatch.fnmatchcase(name, plain)]
    if not matches and not (mark and GLOB.search(pattern)):
        raise ConfigError(
            f"The columns of {owner} must be in the table. "
            f"Got '{mark}{pattern}', which matches none.{near(pattern, known)}"
        )
    return matches


def excluded_columns(names: Sequence[str], parties: PartySpec) -> dict[str, str]:
    """Return the columns that a party excludes and none has, with that party."""
    if not isinstance(parties, Mapping):
        return {}
    by_party: dict[str, str] = {}
    held: set[str] = set()
    for party, patterns in parties.items():
        own, excluded = _matched_and_excluded(names, patterns, f"party '{party}'")
        held.update(own)
        for name in excluded:
            by_party.setdefault(name, party)
    return {n: by_party[n] for n in names if n in by_party and n not in held}


def owners(held: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the party that holds each column."""
    return {column: party for party, columns in held.items() for column in columns}


def features_of(
    held: Mapping[str, Sequence[str]], groups: Mapping[str, Sequence[str]] | None
) -> dict[str, str]:
    """Return the feature of each column that a group names."""
    owner = owners(held)
    feature_of: dict[str, str] = {}
    for feature, patterns in (groups or {}).items():
        columns = match_columns(list(owner), patterns, f"feature '{feature}'")
        holders = sorted({owner[column] for column in columns})
        if len(holders) > 1:
            raise ConfigError(
                f"The columns of feature '{feature}' must belong to one party. "
                f"Got columns of {' and '.join(repr(party) for party in holders)}."
            )
        for column in columns:
            if column in feature_of:
                raise ConfigError(
                    f"Column '{column}' must belong to one feature. "
                    f"Got '{feature_of[column]}' and '{feature}'."
                )
            feature_of[column] = feature
    for feature in feature_of.values():
        if feature in owner and feature_of.get(feature) != feature:
            raise ConfigError(
                f"The feature '{feature}' must not be named like a column outside it. "
                f"Got a column '{feature}' of party '{owner[feature]}'."
            )
    return feature_of


UNQUOTED = re.compile(r"""^[^"'#]*?[\[,:-]\s*(![^\s,\]}"'\0]+)""", re.MULTILINE)


def yaml_problem(error: Exception) -> str:
    """Say what is wrong with a text that is not YAML, and in which line.

    An exclusion without quotes is a tag to YAML, and named where there is one.
    """
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    problem = str(getattr(error, "problem", None) or "it cannot be read")
    if unquoted := UNQUOTED.search(mark.buffer or ""):
        name = unquoted.group(1)
        return f"'{name}' without quotes; write \"{name}\""
    return f"{problem} in line {mark.line + 1}"


def read_parties(path: str | Path, of: str = "party") -> dict[str, list[str]]:
    """Read a YAML file of names with their columns: ``clinic: ["lab_*", "!lab_id"]``.

    `of` says what the names are (party or feature), for error messages.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The file of {of} names must be readable. Got '{path}' ({error})."
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(
            f"The file of {of} names '{path}' must be YAML. Got this: "
            f"{yaml_problem(error)}."
        ) from None
    if not isinstance(content, dict) or not content:
        raise ConfigError(
            f"The file '{path}' must map {of} names to columns. "
            f"Got {type(content).__name__}."
        )
    parties: dict[str, list[str]] = {}
    for party, columns in content.items():
        columns = [columns] if isinstance(columns, str) else columns
        if not isinstance(columns, list) or not columns:
            raise ConfigError(
                f"The columns of {of} '{party}' in '{path}' must be a list of names "
                f"or globs. Got {columns!r}."
            )
        parties[str(party)] = [str(column) for column in columns]
    return parties


def split_rows(
    dataset: Dataset,
    config: DataConfig,
    seed: int,
    in_order: bool = False,
    blocks: Places | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows to train on and the rows to test on, perhaps as they stand.

    Rows of one block, where `blocks` (N,) are given, are all on one side: with
    split=first on that of the first of them.
    """
    n = dataset.X.n_rows
    n_train = int(n * (1.0 - config.test_share) + 1e-9)
    if n_train < 1:
        raise DataError(
            f"The data set '{dataset.name}' must leave a row to train on. "
            f"Got {n} rows and test_share = {config.test_share:g}."
        )
    rows = np.arange(n, dtype=np.int64)
    if n_train == n or (config.split == "first" and blocks is None):
        return rows[:n_train], rows[n_train:]
    if config.split == "first":
        assert blocks is not None
        is_train = np.isin(blocks, blocks[:n_train])
        return _both_sides(dataset, rows[is_train], rows[~is_train])
    classes = None if dataset.task == "regression" else dataset.y
    if classes is not None:
        _refuse_rare_classes(dataset, n - n_train)
    if blocks is not None or n >= MANY_ROWS:
        rng = np.random.default_rng(stream_seed(seed, "split"))
        if blocks is None:
            is_test = _draw_test_rows(n, n - n_train, classes, rng)
        else:
            is_test = _draw_test_blocks(blocks, n - n_train, classes, rng)
        train, test = _both_sides(dataset, rows[~is_test], rows[is_test])
        if in_order:
            return train, test
        return rng.permutation(train), rng.permutation(test)
    state = np.random.RandomState(stream_seed(seed, "split") % 2**32)
    train, test = _shuffle_split(n, n_train, classes, state)
    return (np.sort(train), np.sort(test)) if in_order else (train, test)


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
    n_each = _draw_counts(counts, n_train, state)
    _draw_counts(counts - n_each, n - n_train, state)  # all that are left; it may draw
    shuffled = [own[state.permutation(len(own))] for own in members]
    halves = [np.split(own, [n]) for own, n in zip(shuffled, n_each, strict=True)]
    train, test = (np.concatenate(half) for half in zip(*halves, strict=True))
    return state.permutation(train), state.permutation(test)


def _draw_counts(counts: Places, n: int, state: np.random.RandomState) -> Places:
    """Share out `n` by the counts of classes, what remains to the largest remainders.

    Of classes with equal remainders some are drawn.
    """
    shares = counts / counts.sum() * n
    found: Places = np.floor(shares).astype(np.int64)
    remainders = shares - found
    for remainder in np.unique(remainders)[::-1]:
        if not (n_left := int(n - found.sum())):
            break
        equal = np.flatnonzero(remainders == remainder)
        found[state.choice(equal, min(len(equal), n_left), replace=False)] += 1
    return found


def _both_sides(dataset: Dataset, train: Places, test: Places) -> tuple[Places, Places]:
    """Refuse blocks of rows so large that one side has none."""
    if not len(train) or not len(test):
        raise DataError(
            f"Rows of '{dataset.name}' that equal each other, or are of one group, are "
            f"for training or for testing together. Got {plural(len(train), 'row')} "
            f"and {len(test)}; change test_share or split."
        )
    return train, test


def _draw_test_blocks(
    blocks: Places,
    n_test: int,
    classes: NDArray[np.int64] | None,
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Draw whole blocks with about `n_test` rows, each class about in proportion.

    A block counts for the class that most of its rows have. Of each class blocks are
    taken in random order, as near to its share as they get; what is missing or too
    much there is made up for by the next class.
    """
    sizes = np.bincount(blocks)
    kind = np.zeros(len(sizes), dtype=np.int64)
    if classes is not None:
        n_classes = int(classes.max()) + 1
        pairs, counts = np.unique(blocks * n_classes + classes, return_counts=True)
        most = np.lexsort((counts, pairs // n_classes))  # the last of a block
        kind[pairs[most] // n_classes] = pairs[most] % n_classes
    is_test = np.zeros(len(sizes), dtype=np.bool_)
    share, owed = n_test / len(blocks), 0.0
    for number in rng.permutation(np.unique(kind)):
        own = rng.permutation(np.flatnonzero(kind == number))
        wanted = share * sizes[own].sum() + owed
        own = own[np.argsort(sizes[own] > wanted, kind="stable")]  # too large: last
        totals = np.concatenate([[0], np.cumsum(sizes[own])])
        taken = int(np.abs(totals[:-1] - wanted).argmin())  # one stays to train on
        is_test[own[:taken]] = True
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
    """Draw `n_test` of very many rows, each class in proportion, block by block.

    A block has of each class as many as would fall to it if all rows were drawn from
    at once; memory is a byte a row.
    """
    n_of = np.array([n_rows]) if classes is None else np.bincount(classes)
    shares = float(n_test) * n_of / n_rows  # whole numbers would overflow
    wanted = np.floor(shares).astype(np.int64)
    most_left = np.argsort(wanted - shares, kind="stable")
    wanted[most_left[: n_test - wanted.sum()]] += 1
    is_test = np.zeros(n_rows, dtype=np.bool_)
    for start in range(0, n_rows, BLOCK):
        size = min(BLOCK, n_rows - start)
        own = np.zeros(size, np.int64) if classes is None else classes[start:][:size]
        for number in np.unique(own):
            members = start + np.flatnonzero(own == number)
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
    """Refuse what cannot be stratified: too rare a class, too small a part."""
    counts = np.bincount(dataset.y, minlength=len(dataset.label_names))
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
