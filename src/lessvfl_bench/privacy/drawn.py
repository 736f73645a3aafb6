"""Labels from the rows that a party is told to train and to test with.

Test rows that are drawn class by class, from a seed that everybody knows, tell labels:
an attacker who knows how many rows each class has repeats the draw. Where lists come as
they were shuffled, it undoes the shuffle and sees the rows of each class ascend. Of
sorted lists it knows for each row of each class whether the draw took it, and follows
the rows of the table through all ways in which their classes may take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lessvfl.data import Places
from lessvfl.data.split import draw_counts
from lessvfl.terms import stream_seed
from lessvfl_bench.privacy.labels import Judge
from lessvfl_bench.privacy.traffic import AnyArray

TOLD = "labels by the rows that it is told"
MOST_STATES = 2 * 10**7  # rows by ways to have had classes: of more, lists stay unread
DOUBT = 1e-6  # how likely a row was drawn otherwise than the attacker thinks


@dataclass(frozen=True)
class ToldRows:
    """The rows of one seed, as a party was told them."""

    seed: int
    train: Places
    test: Places

    @property
    def n_rows(self) -> int:
        """Return how many rows there are."""
        return len(self.train) + len(self.test)


def guesses(
    told: Sequence[ToldRows], counts: Sequence[int], n_folds: int = 1
) -> Iterator[Places]:
    """Yield the labels of all rows, as each attack reads them.

    `counts` are the rows of each class. With folds the seeds are those of all folds.
    """
    for rows in told:
        undone = undo_shuffles(rows, counts)
        if undone is not None:
            yield undone
    if n_folds > 1:
        yield from_folds(told, counts, n_folds)
    else:
        yield from_lists(told, counts)


def measure(told: ToldRows, y: AnyArray, seed: int) -> dict[str, float]:
    """Attack the training rows' labels by which rows they are, before any gradient.

    `y` are those of all rows, whose counts the attacker knows. It guesses nothing where
    lists are sorted and classes or rows too many for it.
    """
    counts = np.bincount(y.astype(int))
    guess = undo_shuffles(told, counts.tolist())
    n_states = len(y) * len(counts) * int(np.prod(counts[:-1] + 1.0))
    if guess is None and n_states <= MOST_STATES:
        guess = from_lists([told], counts.tolist())
    scores = np.zeros((len(told.train), len(counts)))
    if guess is not None:
        scores[np.arange(len(scores)), guess[told.train]] = 1
    every = np.ones(len(scores), dtype=bool)
    return Judge.of(every, y[told.train], len(counts), seed).guessed(scores)


def undo_shuffles(told: ToldRows, counts: Sequence[int]) -> Places | None:
    """Return the labels where lists are as a draw by class shuffled them, or None."""
    n_train, members = len(told.train), _shuffled_members(told, counts)
    drawn = [own[:n] for own, n in zip(members.shuffled, members.n_train, strict=True)]
    left = [own[n:] for own, n in zip(members.shuffled, members.n_train, strict=True)]
    found = [np.empty(count, dtype=np.int64) for count in counts]
    lists = (
        (told.train, drawn, members.state.permutation(n_train)),
        (told.test, left, members.state.permutation(len(told.test))),
    )
    for rows, of_class, order in lists:
        straight = np.empty_like(rows)
        straight[order] = rows
        for own, places in zip(found, of_class, strict=True):
            own[places], straight = straight[: len(places)], straight[len(places) :]
    if any((np.diff(own) < 0).any() for own in found):
        return None
    labels = np.empty(told.n_rows, dtype=np.int64)
    for label, own in enumerate(found):
        labels[own] = label
    return labels


def from_lists(told: Sequence[ToldRows], counts: Sequence[int]) -> Places:
    """Return the likeliest labels by which rows each seed tests with."""
    seen = np.zeros(told[0].n_rows, dtype=np.int64)
    expected = [np.zeros(count, dtype=np.int64) for count in counts]
    for place, rows in enumerate(told):
        seen[rows.test] |= 1 << place
        members = _shuffled_members(rows, counts)
        whole = zip(expected, members.shuffled, members.n_train, strict=True)
        for own, shuffled, n in whole:
            own[shuffled[n:]] |= 1 << place
    return likeliest(seen, expected)


def from_folds(told: Sequence[ToldRows], counts: Sequence[int], n_folds: int) -> Places:
    """Return the likeliest labels by which fold each row is in."""
    fold_of = np.zeros(told[0].n_rows, dtype=np.int64)
    for rows in told:
        fold_of[rows.test] = rows.seed % n_folds
    rng = np.random.default_rng(stream_seed(told[0].seed // n_folds, "folds"))
    order = rng.permutation(told[0].n_rows)
    starts = np.cumsum([0, *counts[:-1]])
    expected = [
        (start + np.arange(count)) % n_folds
        for start, count in zip(starts, counts, strict=True)
    ]
    labels = np.empty(len(order), dtype=np.int64)
    labels[order] = likeliest(fold_of[order], expected)
    return labels


def likeliest(seen: Places, expected: Sequence[Places]) -> Places:
    """Return the likeliest class of every row, where classes take turns.

    Row after row shows what is `seen` (n,); the a-th row of class c ought to show
    ``expected[c][a]``. All orders of the classes are alike before anything is seen.
    """
    n, n_classes = len(seen), len(expected)
    shape = tuple(len(own) + 1 for own in expected[:-1])
    taken = np.indices(shape)  # rows of each class so far, but of the last one
    chances = np.zeros((n, n_classes, *shape))  # that the next row is of a class
    ahead = np.zeros((n + 1, *shape))
    ahead[(0,) + (0,) * len(shape)] = 1
    for i in range(n):
        for c, own in enumerate(expected):
            at = taken[c] if c < len(shape) else i - taken.sum(axis=0)
            is_open = (at >= 0) & (at < len(own))
            fits = own[np.clip(at, 0, len(own) - 1)] == seen[i]
            likely = np.where(fits, 1 - DOUBT, DOUBT) * (len(own) - at)
            chances[i, c] = np.where(is_open, likely, 0)
            ahead[i + 1] += _moved(ahead[i] * chances[i, c], c, by=1)
        ahead[i + 1] /= ahead[i + 1].sum()
    behind = np.zeros(shape)
    behind[tuple(len(own) for own in expected[:-1])] = 1
    found = np.empty(n, dtype=np.int64)
    for i in reversed(range(n)):
        ways = [chances[i, c] * _moved(behind, c, by=-1) for c in range(n_classes)]
        found[i] = int(np.argmax([(ahead[i] * way).sum() for way in ways]))
        behind = np.sum(ways, axis=0)
        behind /= behind.sum()
    return found


@dataclass(frozen=True)
class _Members:
    """Places within each class, as a draw by class shuffles them."""

    shuffled: list[Places]
    n_train: Places  # of each class, how many of them are for training
    state: np.random.RandomState  # after these draws


def _shuffled_members(told: ToldRows, counts: Sequence[int]) -> _Members:
    """Repeat the draw of a seed, of classes of these sizes."""
    state = np.random.RandomState(stream_seed(told.seed, "split") % 2**32)
    all_of = np.asarray(counts, dtype=np.int64)
    n_train = draw_counts(all_of, len(told.train), state)
    draw_counts(all_of - n_train, len(told.test), state)
    return _Members([state.permutation(count) for count in counts], n_train, state)


def _moved(values: NDArray[np.float64], axis: int, by: int) -> NDArray[np.float64]:
    """Move values along the axis of a class; the last class has none."""
    if axis == values.ndim:
        return values
    moved = np.zeros_like(values)
    source, target = [slice(None)] * values.ndim, [slice(None)] * values.ndim
    source[axis] = slice(None, -1) if by > 0 else slice(1, None)
    target[axis] = slice(1, None) if by > 0 else slice(None, -1)
    moved[tuple(target)] = values[tuple(source)]
    return moved
