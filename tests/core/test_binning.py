"""Bins, Gini impurity, information value: definitions, and an independent one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor

from lessvfl.core import binning
from lessvfl.core.binning import Bins, bin_features
from lessvfl.core.chance import keep_beyond_chance


def table(n_rows: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return three columns, the first of which says something, and classes."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n_rows, 3, generator=generator)
    noise = torch.randn(n_rows, generator=generator)
    return X, (X[:, 0] + noise > 0).long()


def bins_of(X: Tensor, most: int = 10) -> Bins:
    return bin_features(X, torch.arange(X.shape[1]), X.shape[1], most)


def test_bins_of_a_number_have_about_equally_many_rows() -> None:
    X, _ = table()
    bins = bins_of(X)
    assert bins.sizes.tolist() == [10, 10, 10]
    sizes = torch.bincount(bins.codes.flatten())
    assert sizes.min() >= 39
    assert sizes.max() <= 41
    for code, x in zip(bins.codes, X.T, strict=True):  # in the order of the values
        assert (code[x.argsort()].diff() >= 0).all()


def test_few_values_have_a_bin_each() -> None:
    x = torch.tensor([[0.0], [2.0], [5.0], [2.0]])
    assert bins_of(x).codes.tolist() == [[0, 1, 2, 1]]


def test_categories_and_missing_cells_are_bins_of_their_own() -> None:
    """One-hot columns are one feature; so are a number and the mark of its absence."""
    one_hot = torch.eye(3)[[0, 1, 2, 1, 0, 2]]
    number = torch.tensor([-1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    missing = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    X = torch.cat([one_hot, number.view(-1, 1), missing.view(-1, 1)], dim=1)
    bins = bin_features(X, torch.tensor([0, 0, 0, 1, 1]), 2, 10)
    assert bins.sizes.tolist() == [3, 4]
    first, second = bins.codes.tolist()
    assert [first[i] == first[j] for i, j in ((0, 4), (1, 3), (2, 5))] == [True] * 3
    assert second.count(second[5]) == 1  # with the mean filled in, yet on its own
    assert second[1] == second[3] == second[4]


def test_every_row_is_within_the_ranges_of_its_bin() -> None:
    """Of many values from one on and below the next, of few the value itself."""
    X, _ = table(200)
    X[:, 1] = X[:, 1].round()
    X[:80, 2] = X[:, 2].min()  # so many that the first end is the least value
    bins = bin_features(X, torch.tensor([0, 1, 1]), 2, 8)
    for feature, columns in enumerate(([0], [1, 2])):
        codes = bins.codes[feature] - bins.codes[feature].min()
        for place, column in enumerate(columns):
            low, high = bins.ranges[feature][codes, place].T
            x = X[:, column]
            is_within = (low <= x) & ((x < high) | (low == high))
            assert is_within.all()
            assert torch.equal(low == high, torch.full_like(x, column == 1).bool())
    low, high = bins.ranges[0][:, 0].T
    assert torch.equal(low[1:], high[:-1])
    assert (low[0], high[-1]) == (-torch.inf, torch.inf)


def test_counts_are_those_of_a_loop() -> None:
    X, y = table(60)
    bins = bins_of(X, 4)
    counts = bins.counts(y, 2)
    for bin_, label in np.ndindex(*counts.shape):
        rows = (bins.codes == bin_).any(dim=0) & (y == label)
        assert counts[bin_, label] == rows.sum()
    indicators = bins.indicators(torch.int64)
    one_hot = torch.nn.functional.one_hot(y, 2)
    assert torch.equal(indicators.T @ one_hot, counts)


def test_gini_is_that_of_a_tree_with_the_same_bins() -> None:
    """Scikit-learn's tree of one one-hot feature removes the same impurity."""
    X, y = table()
    bins = bins_of(X, 4)
    parts = binning.impurity_removed(bins.counts(y, 2), bins.owner, 3)
    found = binning.by_feature(parts, bins.owner, 3)
    p = torch.bincount(y).double() / len(y)
    before = float(1 - p.square().sum())
    for feature in range(3):
        codes = bins.codes[feature] - bins.codes[feature].min()
        tree = DecisionTreeClassifier(max_leaf_nodes=None, min_samples_leaf=1)
        tree.fit(codes.view(-1, 1).numpy(), y.numpy())
        leaves = tree.tree_.children_left == -1
        sizes = tree.tree_.n_node_samples[leaves]
        after = (sizes / len(y)) @ tree.tree_.impurity[leaves]
        assert float(found[feature]) == pytest.approx(1 - after / before, abs=1e-9)


def test_information_value_is_the_textbook_sum() -> None:
    """Events 10 and 30 of 40, non-events 40 and 20 of 60, by hand."""
    counts = torch.tensor([[40, 10], [20, 30]])
    smooth = binning.SMOOTHING
    events = torch.tensor([10, 30]).double() + smooth
    others = torch.tensor([40, 20]).double() + smooth
    share, other = events / events.sum(), others / others.sum()
    iv = ((share - other) * (share / other).log()).sum()
    owner = torch.zeros(2, dtype=torch.long)
    found = binning.information(counts, owner, 1).sum()
    assert float(found) == pytest.approx(float(iv), rel=1e-12)
    swapped = binning.information(counts.flip(1), owner, 1).sum()
    assert float(swapped) == pytest.approx(float(iv), rel=1e-12)  # it has no direction


def test_of_many_classes_it_is_each_against_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(1, 50, (5, 3), generator=generator)
    owner = torch.zeros(5, dtype=torch.long)
    total = counts.sum()
    mean = 0.0
    for c in range(3):
        others = counts.sum(dim=1) - counts[:, c] + binning.SMOOTHING
        two = torch.stack([others, counts[:, c]], dim=1)
        alone = binning.information(two, owner, 1).sum()
        mean += float(alone) * float(counts[:, c].sum() / total)
    # The sums of others differ by the little that is added to each of them.
    found = float(binning.information(counts, owner, 1).sum())
    assert found == pytest.approx(mean, rel=0.02)


def test_what_bins_say_of_a_class_by_hand() -> None:
    """Of two classes WOE; of three what a product of shares says, by Bayes."""
    counts = torch.tensor([[40, 10], [20, 30], [0, 0]])
    owner = torch.zeros(3, dtype=torch.long)
    woe, _ = binning.weight_of_evidence(counts, owner, 1)
    said = binning.log_odds(counts, owner, 1)
    assert said[:2, 0].tolist() == pytest.approx(woe[:2, 1].tolist())
    assert said[2, 0] == 0  # no row says anything of it
    three = torch.tensor([[4, 1, 2], [2, 6, 3]])
    shares = (three + 0.5) / (three + 0.5).sum(dim=0)
    found = binning.log_odds(three, owner[:2], 1).softmax(dim=1)
    expected = shares / shares.sum(dim=1, keepdim=True)
    assert torch.allclose(found, expected.double())


def test_chance_keeps_the_share_of_noise_that_it_states() -> None:
    """Of 1,000 useless features beside 20 useful ones at most the share gets in."""
    generator = torch.Generator().manual_seed(1)
    shares = []
    for _ in range(20):
        scores = torch.randn(1020, generator=generator)
        scores[:20] += 6

        def scramble() -> Tensor:
            return torch.randn(1020, generator=generator)

        kept, stated = keep_beyond_chance(scores, scramble, 50, 0.2)
        assert kept[:20].all()
        assert stated <= 0.2
        shares.append(float(kept[20:].sum() / kept.sum()))
    assert 0.08 < np.mean(shares) < 0.25


def test_chance_alone_keeps_nothing_most_of_the_time() -> None:
    generator = torch.Generator().manual_seed(2)

    def draw() -> Tensor:
        return torch.randn(200, generator=generator)

    kept = [keep_beyond_chance(draw(), draw, 50, 0.2)[0].any() for _ in range(40)]
    assert sum(kept) <= 14
