"""How far scores may be off by the choice of test rows: intervals by resampling.

A resample gives every row a weight, a Poisson number of mean 1 that stands for how
often it was drawn; the rows of one person have one weight. All scores are functions of
weighted counts, so that resamples are one matrix product.

Where there are many rows, they are put together at random into bundles with one weight
each. Rows of a bundle have nothing to do with each other, so that the variance of a sum
is the same; it is estimated from the bundles, to about two per cent.

Ranks are resolved by scores of the rarer class, of which all are told apart where there
are few. What is left of an error by this cancels: an interval is moved by the
difference of the score so computed on all rows and the score itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core.metrics import DECIDED, SMALLEST, WORST, is_right
from lessvfl.terms import MEASURES, Task, stream_seed

Values = NDArray[np.float64]  # (1 + N_RESAMPLES,), of all rows first
RowBlocks = NDArray[np.int64]
Interval = dict[str, float]  # "low" and "high" of an interval; of a "loss" with that

N_RESAMPLES = 1000
LEVEL = 0.95
MOST_UNITS = 1024  # that are drawn; more are bundled
MOST_EDGES = 50  # scores that ranks are resolved by
FEWEST_EDGES = 8
MOST_CELLS = 1500  # of all outputs and classes, for which there may be fewer edges
LOWEST = {"r2": WORST}  # of a score; of others it is 0
ROUNDING = 1e-12  # of a variance, below which labels are all equal


def _poisson_table() -> NDArray[np.float32]:
    """Return 2^16 Poisson numbers of mean 1: 16 random bits as a place draw one."""
    below, term, table = 0.0, np.exp(-1.0), np.empty(1 << 16, dtype=np.float32)
    for number in range(20):
        table[round(below * (1 << 16)) :] = number
        below += term
        term /= number + 1
    return table


POISSON = _poisson_table()
ONE = int(np.flatnonzero(POISSON == 1)[0])


@dataclass(frozen=True)
class Resamples:
    """The weights of rows in every resample."""

    of_row: RowBlocks  # (n,), the unit of each row
    weights: NDArray[np.float32]  # (units, 1 + N_RESAMPLES), the first are all 1

    @classmethod
    def draw(cls, n_rows: int, blocks: RowBlocks | None = None) -> Resamples:
        """Draw resamples of rows, or of blocks of them; the same ones every time."""
        rng = np.random.default_rng(stream_seed(0, "bootstrap"))
        of_row: RowBlocks = np.arange(n_rows)
        if blocks is not None:
            of_row = np.unique(blocks, return_inverse=True)[1].reshape(-1)
        n_units = int(of_row.max()) + 1
        if n_units > MOST_UNITS:
            of_row = rng.permutation(n_units)[of_row] % MOST_UNITS
            n_units = MOST_UNITS
        drawn = rng.integers(0, 1 << 16, (n_units, 1 + N_RESAMPLES), dtype=np.uint16)
        drawn[:, 0] = ONE
        return cls(of_row, POISSON[drawn])

    def counts(self, cells: RowBlocks, n_cells: int) -> NDArray[np.float64]:
        """Return the weight of the rows in every cell, (n_cells, 1 + N_RESAMPLES)."""
        n_units = len(self.weights)
        size = n_cells * n_units
        of_unit = np.bincount(cells * n_units + self.of_row, minlength=size)
        table = of_unit.reshape(n_cells, n_units).astype(np.float32)
        return (table @ self.weights).astype(np.float64)

    def sums(self, values: NDArray[np.float64]) -> Values:
        """Return the weighted sum of one value a row, in double precision."""
        of_unit = np.bincount(self.of_row, values, len(self.weights))
        return np.asarray(of_unit @ self.weights.astype(np.float64), dtype=np.float64)


@dataclass(frozen=True)
class ResampledRows:
    """Test rows of one run: their labels, and how a class is decided on."""

    y: Tensor  # (n,)
    task: Task
    positive: int = 1  # of two classes the one that the average precision is of
    offsets: Tensor | None = None  # (1, outputs), added to decide on a class
    blocks: RowBlocks | None = None  # (n,), rows that are drawn together


def score_intervals(
    rows: ResampledRows,
    outputs: Sequence[Tensor],
    scores: Sequence[Mapping[str, float | None]],
    lead: str,
) -> tuple[dict[str, Interval | None], list[Interval | None]]:
    """Return 95 % intervals of a model's scores, and of what each party adds to one.

    `outputs` (n, 1) or (n, C) are what the fusion network says with all parties and
    then without each; `scores` are the scores of each of these. What a party adds is
    how much the score named `lead` falls without it in the same resamples.
    """
    drawn = Resamples.draw(len(rows.y), rows.blocks)
    n_ranked = 1 if lead in DECIDED else len(outputs)
    whole = _resampled(rows, drawn, outputs[0], MEASURES[rows.task], n_ranked)
    intervals = {
        name: _interval(values, scores[0][name], LOWEST.get(name, 0.0), 1.0)
        for name, values in whole.items()
    }
    added = []
    for z, without in zip(outputs[1:], scores[1:], strict=True):
        values = _resampled(rows, drawn, z, [lead], n_ranked)[lead]
        ours, theirs = scores[0][lead], without[lead]
        loss = None if ours is None or theirs is None else ours - theirs
        ends = _interval(whole[lead] - values, loss)
        added.append(None if loss is None or ends is None else {"loss": loss} | ends)
    return intervals, added


def _interval(
    values: Values, exact: float | None, low: float = -np.inf, high: float = np.inf
) -> Interval | None:
    """Return where most resamples lie around an exact value, within bounds."""
    apart = values[1:] - values[0]
    apart = apart[np.isfinite(apart)]
    if exact is None or len(apart) < N_RESAMPLES / 2:
        return None
    ends = exact + np.quantile(apart, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return dict(zip(("low", "high"), np.clip(ends, low, high).tolist(), strict=True))


# ------------------------------------------------------------------ scores of resamples


def _resampled(
    rows: ResampledRows,
    drawn: Resamples,
    z: Tensor,
    names: Collection[str],
    n_ranked: int,
) -> dict[str, Values]:
    """Return these scores of every resample; NaN where a resample has none."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if rows.task == "regression":
            return {"r2": _r2(drawn, _array(z.squeeze(1)), _array(rows.y))}
        values: dict[str, Values] = {}
        if not set(DECIDED).isdisjoint(names):
            values |= _decided(rows, drawn, z)
        if set(names) - set(DECIDED):
            values |= _ranked(rows, drawn, z, n_ranked)
        return {name: values[name] for name in names}


def _decided(rows: ResampledRows, drawn: Resamples, z: Tensor) -> dict[str, Values]:
    """Return accuracy and balanced accuracy of fusion outputs z in every resample."""
    n_classes, y = max(2, z.shape[1]), rows.y.long()
    decided = z if rows.offsets is None else z + rows.offsets
    cells = _array(2 * y + is_right(decided.unsqueeze(1), y).squeeze(1))
    counts = drawn.counts(cells, 2 * n_classes).reshape(n_classes, 2, -1)
    sizes, hits = counts.sum(axis=1), counts[:, 1]
    return {
        "accuracy": hits.sum(axis=0) / sizes.sum(axis=0),
        "balanced_accuracy": _mean_known(np.where(sizes > 0, hits / sizes, np.nan)),
    }


def _mean_known(values: NDArray[np.float64]) -> Values:
    """Return the mean over classes of those that are known, NaN where none is."""
    known = np.isfinite(values)
    return np.asarray(np.where(known, values, 0).sum(axis=0) / known.sum(axis=0))


def _ranked(
    rows: ResampledRows, drawn: Resamples, z: Tensor, n_ranked: int
) -> dict[str, Values]:
    """Return the scores of ranks: of two classes two, of many the mean area."""
    y = _array(rows.y)
    if z.shape[1] == 1:
        scores = _array(z.squeeze(1)) * (1 if rows.positive else -1)
        hits, others = _by_rank(drawn, scores, y == rows.positive, MOST_EDGES)
        return {
            "auc": _area(hits, others),
            "average_precision": _mean_precision(hits, others),
        }
    p = _array(z.double().softmax(dim=1))
    n_classes = p.shape[1]
    n_edges = min(
        MOST_EDGES, max(FEWEST_EDGES, MOST_CELLS // (4 * n_classes * n_ranked))
    )
    areas = [
        _area(*_by_rank(drawn, p[:, k], y == k, n_edges)) for k in range(n_classes)
    ]
    return {"auc": _mean_known(np.array(areas))}


def _by_rank(
    drawn: Resamples, scores: NDArray[Any], is_hit: NDArray[np.bool_], n_edges: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the weight of hits and of others by rank, lowest first, (ranks, ...).

    A rank is a score of the rarer of the two, or lies between two such scores.
    """
    rarer = is_hit if 2 * is_hit.sum() <= len(is_hit) else ~is_hit
    edges = np.unique(scores[rarer])
    if len(edges) > n_edges:
        edges = edges[np.linspace(0, len(edges) - 1, n_edges).round().astype(np.int64)]
    rank = np.searchsorted(edges, scores) + np.searchsorted(edges, scores, side="right")
    n_ranks = 2 * len(edges) + 1
    counts = drawn.counts(rank + n_ranks * is_hit, 2 * n_ranks)
    return counts[n_ranks:], counts[:n_ranks]


def _area(hits: NDArray[np.float64], others: NDArray[np.float64]) -> Values:
    """Return the area under the ROC curve, given weights by rank; ties count half."""
    below = others.cumsum(axis=0) - others / 2
    return np.asarray(
        (hits * below).sum(axis=0) / (hits.sum(axis=0) * others.sum(axis=0))
    )


def _mean_precision(hits: NDArray[np.float64], others: NDArray[np.float64]) -> Values:
    """Return the mean over hits of the share of hits at their rank and above."""
    n_hits = hits[::-1].cumsum(axis=0)
    n_all = n_hits + others[::-1].cumsum(axis=0)
    precision = np.divide(n_hits, n_all, out=np.zeros_like(n_all), where=n_all > 0)
    mean = (hits[::-1] * precision).sum(axis=0) / n_hits[-1]
    return np.asarray(np.where(n_all[-1] > n_hits[-1], mean, np.nan))


def _r2(drawn: Resamples, predicted: NDArray[Any], y: NDArray[Any]) -> Values:
    """Return R² in every resample of predictions (n,) for labels y (n,)."""
    predicted, y = predicted.astype(np.float64), y.astype(np.float64)
    unit = max(float(np.abs(y - y.mean()).max()), SMALLEST)
    residual, y = (y - predicted) / unit, (y - y.mean()) / unit
    n, first = drawn.sums(np.ones_like(y)), drawn.sums(y)
    total = drawn.sums(np.square(y)) - np.square(first) / n
    ratio = np.where(
        total > ROUNDING * n, drawn.sums(np.square(residual)) / total, np.nan
    )
    return np.asarray(np.maximum(1 - ratio, WORST))


def _array(values: Tensor) -> NDArray[Any]:
    return values.numpy(force=True)
