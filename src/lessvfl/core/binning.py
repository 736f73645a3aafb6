"""Features in bins, and what the counts of classes by bin say about them.

A number with many values has bins of about equally many rows; every category, and a
missing cell, is a bin of its own. A feature of several encoded columns (a category, or
a number with a mark where it is missing) has the bins that these make together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lessvfl.core.losses import Labels

SMOOTHING = 0.5  # rows that every bin has beyond its own in each class
TARGET_BINS = 4  # of amounts, which have no classes


@dataclass(frozen=True)
class Bins:
    """The bin of every row in every feature, bins numbered over all features.

    A bin is a range of each encoded column of its feature: from a value on and below
    another, or one value alone, where both are equal.
    """

    codes: Tensor  # (G, N), int64
    sizes: Tensor  # (G,), how many bins each feature has
    ranges: tuple[Tensor, ...]  # of every feature (bins, its columns, 2)

    @property
    def n_bins(self) -> int:
        """Return how many bins there are in all."""
        return int(self.sizes.sum())

    @property
    def owner(self) -> Tensor:
        """Return the feature of every bin, (n_bins,)."""
        features = torch.arange(len(self.sizes), device=self.sizes.device)
        return features.repeat_interleave(self.sizes)

    def take(self, rows: Tensor) -> Bins:
        """Return the same bins of some rows (n,)."""
        return replace(self, codes=self.codes[:, rows])

    def counts(self, y: Tensor, n_classes: int) -> Tensor:
        """Return the rows of every class (N,) in every bin, (n_bins, C)."""
        both = (self.codes * n_classes + y).flatten()
        counts = torch.bincount(both, minlength=self.n_bins * n_classes)
        return counts.view(self.n_bins, n_classes)

    def indicators(self, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Return which bins every row is in, (N, n_bins) of 0 and 1."""
        shape, device = (self.codes.shape[1], self.n_bins), self.codes.device
        return torch.zeros(shape, dtype=dtype, device=device).scatter_(
            1, self.codes.T, 1
        )


def bin_features(X: Tensor, groups: Tensor, n_groups: int, most: int) -> Bins:
    """Put the columns (N, columns) of every group (columns,) into bins.

    A column with up to `most` values has a bin for each.
    """
    codes, sizes, ranges, before = [], [], [], 0
    for group in range(n_groups):
        code = torch.zeros(X.shape[0], dtype=torch.long, device=X.device)
        columns = {}  # and the ranges of their bins
        for column in (groups == group).nonzero().flatten().tolist():
            bins, columns[column] = _codes(X[:, column].contiguous(), most)
            code = code * (int(bins.max()) + 1) + bins
            _, code = torch.unique(code, return_inverse=True)
        size = int(code.max()) + 1
        any_row = torch.empty(size, dtype=torch.long, device=X.device)
        any_row[code] = torch.arange(len(code), device=X.device)
        codes.append(code + before)
        sizes.append(size)
        held = []
        for column, of_bins in columns.items():
            starts = of_bins[:, 0].contiguous()
            values = X[any_row, column].contiguous()
            held.append(of_bins[torch.searchsorted(starts, values, right=True) - 1])
        ranges.append(torch.stack(held, dim=1))
        before += size
    counted = torch.tensor(sizes, device=X.device)
    return Bins(torch.stack(codes), counted, tuple(ranges))


def _codes(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the bin of every value (N,), from 0 on without gaps, and their ranges."""
    code: Tensor
    values, code = torch.unique(x, return_inverse=True)
    if len(values) <= most:
        return code, torch.stack([values, values], dim=1)
    shares = torch.arange(1, most, device=x.device) / most
    ends = torch.unique(x.sort().values[(shares * len(x)).long()])
    parts, code = torch.unique(
        torch.bucketize(x, ends, right=True), return_inverse=True
    )
    beyond = ends.new_full((1,), torch.inf)
    ends = torch.cat([-beyond, ends, beyond])
    return code, torch.stack([ends[parts], ends[parts + 1]], dim=1)


def classes_of(labels: Labels) -> tuple[Tensor, int]:
    """Return the class of every row (N,) and how many there are; amounts in bins."""
    if labels.task == "regression":
        y, _ = _codes(labels.y, TARGET_BINS)
    else:
        y = labels.y.long()
    return y, 2 if labels.task == "binary" else int(y.max()) + 1


def impurity(counts: Tensor, owner: Tensor, n_features: int) -> Tensor:
    """Return the mean Gini impurity of the bins of each feature, (..., n_features).

    `counts` (..., n_bins, C) are the rows of every class in every bin.
    """
    sizes = counts.sum(dim=-1)  # (..., n_bins)
    squares = counts.double().square().sum(dim=-1) / sizes.clamp_min(1)
    n_rows = by_feature(sizes, owner, n_features)
    return by_feature(sizes - squares, owner, n_features) / n_rows


def impurity_removed(counts: Tensor, owner: Tensor, n_features: int) -> Tensor:
    """Return what every bin removes of the Gini impurity of all rows, (..., n_bins).

    Together the bins of a feature remove 0 of it where classes are as mixed within bins
    as they are in all, and 1 where every bin has one class.
    """
    sizes = counts.sum(dim=-1).double()  # (..., n_bins)
    within = 1 - (counts / sizes.clamp_min(1).unsqueeze(-1)).square().sum(dim=-1)
    total = by_feature(counts.double(), owner, n_features, dim=-2)  # (..., G, C)
    n_rows = total.sum(dim=-1)
    before = 1 - (total / n_rows.unsqueeze(-1)).square().sum(dim=-1)
    share = sizes / n_rows[..., owner]
    return share * (1 - within / before.clamp_min(1e-12)[..., owner])


def information(counts: Tensor, owner: Tensor, n_features: int) -> Tensor:
    """Return what every bin adds to the information value of its feature, (..., B).

    Of two classes it is (share of events - share of non-events) x WOE. Of more it is
    the mean of each class against the others, by their shares.
    """
    woe, gap = weight_of_evidence(counts, owner, n_features)
    parts = woe * gap  # (..., B, C)
    if counts.shape[-1] == 2:
        return parts[..., 1]
    total = by_feature(counts.double(), owner, n_features, dim=-2)
    shares = total / total.sum(dim=-1, keepdim=True)
    return (parts * shares[..., owner, :]).sum(dim=-1)


def weight_of_evidence(
    counts: Tensor, owner: Tensor, n_features: int
) -> tuple[Tensor, Tensor]:
    """Return WOE of every bin and class, and the difference of shares, (..., B, C).

    WOE = ln(share of the class's rows in the bin / share of the others'), counts a
    little larger than they are, so that an empty one has a logarithm.
    """
    of_class = counts.double() + SMOOTHING
    others = of_class.sum(dim=-1, keepdim=True) - of_class
    total = by_feature(of_class, owner, n_features, dim=-2)[..., owner, :]
    rest = by_feature(others, owner, n_features, dim=-2)[..., owner, :]
    share, other = of_class / total, others / rest
    return (share / other).log(), share - other


def log_odds(counts: Tensor, owner: Tensor, n_features: int) -> Tensor:
    """Return what being in a bin says of the class, (n_bins, C), 0 without a row.

    The logarithm of the share of the class's rows in the bin, less its mean over
    classes; of two classes the difference of both, which is WOE, (n_bins, 1).
    """
    of_class = counts.double() + SMOOTHING
    share = (of_class / by_feature(of_class, owner, n_features, dim=0)[owner]).log()
    two = counts.shape[1] == 2
    odds = share[:, 1:] - share[:, :1] if two else share - share.mean(1, keepdim=True)
    return odds * (counts.sum(dim=1, keepdim=True) > 0)


def by_feature(values: Tensor, owner: Tensor, n: int, dim: int = -1) -> Tensor:
    """Add up what bins have, by feature, along one axis."""
    shape = list(values.shape)
    shape[dim] = n
    return values.new_zeros(shape).index_add(dim, owner, values)
