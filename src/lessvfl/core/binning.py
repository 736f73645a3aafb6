"""Features in bins, and what the counts of classes by bin say about them.

A number with many values has bins of about equally many rows; every category, and a
missing cell, is a bin of its own. A feature of several encoded columns (a category, or
a number with a mark where it is missing) has the bins that these make together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.losses import Labels

SMOOTHING = 0.5  # rows that every bin has beyond its own in each class
TARGET_BINS = 4  # of amounts, which have no classes


@dataclass(frozen=True)
class Bins:
    """The bin of every row in every feature, bins numbered over all features."""

    codes: Tensor  # (G, N), int64
    sizes: Tensor  # (G,), how many bins each feature has

    @property
    def n_bins(self) -> int:
        """Return how many bins there are in all."""
        return int(self.sizes.sum())

    @property
    def owner(self) -> Tensor:
        """Return the feature of every bin, (n_bins,)."""
        features = torch.arange(len(self.sizes), device=self.sizes.device)
        return features.repeat_interleave(self.sizes)

    def counts(self, y: Tensor, n_classes: int) -> Tensor:
        """Return the rows of every class (N,) in every bin, (n_bins, C)."""
        both = (self.codes * n_classes + y).flatten()
        found = torch.bincount(both, minlength=self.n_bins * n_classes)
        return found.view(self.n_bins, n_classes)

    def indicators(self, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Return which bins every row is in, (N, n_bins) of 0 and 1."""
        n_rows = self.codes.shape[1]
        found = torch.zeros(n_rows, self.n_bins, dtype=dtype, device=self.codes.device)
        return found.scatter_(1, self.codes.T, 1)


def bin_features(X: Tensor, groups: Tensor, n_groups: int, most: int) -> Bins:
    """Put the columns (N, columns) of every group (columns,) into bins.

    A column with up to `most` values has a bin for each.
    """
    codes, sizes, before = [], [], 0
    for group in range(n_groups):
        code = torch.zeros(X.shape[0], dtype=torch.long, device=X.device)
        for column in (groups == group).nonzero().flatten().tolist():
            own = _codes(X[:, column].contiguous(), most)
            code = code * (int(own.max()) + 1) + own
            _, code = torch.unique(code, return_inverse=True)
        codes.append(code + before)
        sizes.append(int(code.max()) + 1)
        before += sizes[-1]
    return Bins(torch.stack(codes), torch.tensor(sizes, device=X.device))


def _codes(x: Tensor, most: int) -> Tensor:
    """Return the bin of every value of a column, (N,), from 0 on without gaps."""
    code: Tensor
    values, code = torch.unique(x, return_inverse=True)
    if len(values) > most:
        shares = torch.arange(1, most, device=x.device) / most
        ends = torch.unique(x.sort().values[(shares * len(x)).long()])
        parts = torch.bucketize(x, ends, right=True)
        _, code = torch.unique(parts, return_inverse=True)
    return code


def classes_of(labels: Labels, replica: int) -> tuple[Tensor, int]:
    """Return the class of every row (N,) and how many there are; amounts in bins."""
    y = labels.of(replica).y[0]
    if labels.task == "regression":
        y = _codes(y, TARGET_BINS)
        return y, int(y.max()) + 1
    y = y.long()
    return y, 2 if labels.task == "binary" else int(labels.y.max()) + 1


def impurity(counts: Tensor, owner: Tensor, n_features: int) -> Tensor:
    """Return the mean Gini impurity of the bins of each feature, (..., n_features).

    `counts` (..., n_bins, C) are the rows of every class in every bin.
    """
    sizes = counts.sum(dim=-1)  # (..., n_bins)
    squares = counts.double().square().sum(dim=-1) / sizes.clamp_min(1)
    n_rows = _by_feature(sizes, owner, n_features)
    return _by_feature(sizes - squares, owner, n_features) / n_rows


def impurity_removed(counts: Tensor, owner: Tensor, n_features: int) -> Tensor:
    """Return the share of Gini impurity that the bins of each feature remove.

    0 where classes are as mixed within bins as they are in all, 1 where every bin has
    one class.
    """
    total = _by_feature(counts.double(), owner, n_features, dim=-2)  # (..., G, C)
    shares = total / total.sum(dim=-1, keepdim=True)
    before = 1 - shares.square().sum(dim=-1)
    return 1 - impurity(counts, owner, n_features) / before.clamp_min(1e-12)


def information_value(counts: Tensor, owner: Tensor, n_features: int) -> Tensor:
    """Return the information value of each feature, (..., n_features).

    Of two classes it is the sum over bins of (share of events - share of non-events) x
    WOE. Of more it is the mean of each class against the others, by their shares.
    """
    woe, gap = weight_of_evidence(counts, owner, n_features)
    values = _by_feature(woe * gap, owner, n_features, dim=-2)  # (..., G, C)
    if counts.shape[-1] == 2:
        return values[..., 1]
    total = _by_feature(counts.double(), owner, n_features, dim=-2)
    shares = total / total.sum(dim=-1, keepdim=True)
    return (values * shares).sum(dim=-1)


def weight_of_evidence(
    counts: Tensor, owner: Tensor, n_features: int
) -> tuple[Tensor, Tensor]:
    """Return WOE of every bin and class, and the difference of shares, (..., B, C).

    WOE = ln(share of the class's rows in the bin / share of the others'), counts a
    little larger than they are, so that an empty one has a logarithm.
    """
    own = counts.double() + SMOOTHING
    others = own.sum(dim=-1, keepdim=True) - own
    total = _by_feature(own, owner, n_features, dim=-2)[..., owner, :]
    rest = _by_feature(others, owner, n_features, dim=-2)[..., owner, :]
    share, other = own / total, others / rest
    return (share / other).log(), share - other


def _by_feature(values: Tensor, owner: Tensor, n: int, dim: int = -1) -> Tensor:
    """Add up what bins have, by feature, along one axis."""
    shape = list(values.shape)
    shape[dim] = n
    return values.new_zeros(shape).index_add(dim, owner, values)
