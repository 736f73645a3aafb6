"""Hidden paths: predictions as in the clear, and what each side sees says nothing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lessvfl.core import hidden_paths
from lessvfl.core.hidden_paths import HiddenPaths, PathParty, PathStep
from lessvfl.core.trees.leaves import LeafOrder, LeafSplits, LeafTable
from lessvfl.core.trees.networks import TreeSum
from lessvfl.errors import ConfigError, ProtocolError

TOLERANCE = 1e-4  # of a logit


def some_trees(
    sizes: Mapping[str, int],
    n_outputs: int = 1,
    shares: int = 0,
    depth: int = 4,
    seed: int = 0,
) -> TreeSum:
    """Return complete trees whose splits are those of parties, in random order.

    `sizes` are the splits of each party, together a multiple of those of a tree.
    """
    random = np.random.default_rng(seed)
    n_inner = 2**depth - 1
    order, n_nodes = random.permutation(sum(sizes.values())), 2 * n_inner + 1
    n_trees = len(order) // n_inner
    children, components, values = [], [], []
    for tree in range(n_trees):
        first = tree * n_nodes
        for node in range(n_nodes):
            is_leaf = node >= n_inner
            below = (node, node) if is_leaf else (2 * node + 1, 2 * node + 2)
            children.append([first + b for b in below])
            components.append(0 if is_leaf else order[tree * n_inner + node])
            own = np.zeros(n_outputs)
            if is_leaf and shares:
                own = random.dirichlet(np.ones(max(2, n_outputs)))[:n_outputs]
            elif is_leaf:
                own[tree % n_outputs] = random.normal()
            values.append(own)
    return TreeSum(
        torch.tensor(children),
        torch.tensor(np.array(components)),
        torch.tensor(np.array(values)),
        torch.arange(n_trees) * n_nodes,
        torch.linspace(-1, 1, n_outputs).double(),
        torch.tensor(shares),
        torch.zeros(1, len(order), dtype=torch.float64),
    )


class Watched:
    """Parties in one process; every array that travels is noted."""

    def __init__(self, sizes: Mapping[str, int], says_left: Tensor) -> None:
        parts = torch.split(says_left, list(sizes.values()))
        self.parties = {
            name: PathParty(name, part.numpy())
            for name, part in zip(sizes, parts, strict=True)
        }
        self.steps: list[PathStep] = []
        self.up: list[tuple[str, PathStep, Any]] = []
        self.down: list[tuple[str, PathStep, Any]] = []

    def __call__(self, step: PathStep, arrays: Any, expects: Any) -> Any:
        self.steps.append(step)
        found = {}
        for name, own in arrays.items():
            self.down.append((name, step, own))
            found[name] = self.parties[name].answer(step, own)
            formats = [(array.dtype, tuple(array.shape)) for array in found[name]]
            assert formats == list(expects[name])
            self.up.append((name, step, found[name]))
        return found


def answers(n_splits: int, n_rows: int, seed: int = 0) -> Tensor:
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.random((n_splits, n_rows)) < 0.5)


@pytest.mark.parametrize("shape", [(1, 0), (3, 0), (1, 1), (3, 1), (1, 2)])
@pytest.mark.parametrize("sizes", [(150, 150), (120, 0, 90, 90), (60,) * 5])
def test_predictions_are_those_in_the_clear(
    shape: tuple[int, int], sizes: tuple[int, ...]
) -> None:
    """A party without splits is left out."""
    named = {f"party{m}": size for m, size in enumerate(sizes)}
    trees = some_trees(named, *shape)
    for n_rows in (1, 13):
        said = answers(300, n_rows)
        clear = trees(said.T.double())
        paths, ask = HiddenPaths.of(trees, named), Watched(named, said)
        found = paths.predict(n_rows, ask)
        assert float((found - clear).abs().max()) < TOLERANCE
        n_parties = sum(size > 0 for size in sizes)
        assert len(ask.steps) == n_parties + 2
    assert clear.unique().numel() > 10


def test_rounding_is_bounded_by_half_a_unit_for_each_tree() -> None:
    named = {"a": 300, "b": 300}
    trees, said = some_trees(named), answers(600, 200)
    paths = HiddenPaths.of(trees, named)
    off = paths.predict(200, Watched(named, said)) - trees(said.T.double())
    assert 0 < float(off.abs().max()) <= 40 * paths.unit / 2
    assert paths.unit < 1e-6


def test_leaves_that_nobody_rules_out_are_those_that_are_reached() -> None:
    named = {"a": 20, "b": 25}
    trees, said = some_trees(named), answers(45, 50)
    table = LeafTable.of(trees, (20, 25))
    parts = torch.split(said, [20, 25])
    left = [
        own.candidates(part.numpy())
        for own, part in zip(table.splits, parts, strict=True)
    ]
    both = left[0] & left[1]
    per_tree = np.add.reduceat(both.astype(int), table.order.starts)
    assert (per_tree == 1).all()
    expected = trees(said.T.double()).numpy()
    np.testing.assert_allclose(both.T @ table.values - 1, expected)
    assert min(own.sum() for own in left) > both.sum()


@pytest.mark.parametrize("said", [True, False])
def test_what_travels_is_uniform_whatever_the_rows_are(said: bool) -> None:
    """Chi-squared over the values of a byte, of every array but sizes and keys."""
    named = {"a": 50, "b": 50, "c": 50}
    trees = some_trees(named)
    ask = Watched(named, torch.full((150, 3000), said))
    HiddenPaths.of(trees, named).predict(3000, ask)
    n_seen = 0
    for _, step, arrays in [*ask.up, *ask.down]:
        if step is PathStep.KEYS:
            continue
        for array in arrays:
            if array.numel() < 3000:  # keys and seeds
                continue
            n_seen += 1
            seen = np.bincount(array.numpy().view(np.uint8).flatten(), minlength=256)
            assert stats.chisquare(seen).pvalue > 1e-8, step
    assert n_seen == 10


def test_masks_never_repeat() -> None:
    """The same rows again, and rows that are alike, are under other masks."""
    named = {"a": 50, "b": 50, "c": 50}
    paths = HiddenPaths.of(some_trees(named), named)
    seen: list[Any] = []
    for _ in range(2):
        ask = Watched(named, torch.ones((150, 64), dtype=torch.bool))
        paths.predict(64, ask)
        arrays = [a for _, step, own in ask.up + ask.down if step for a in own]
        seen += [array.numpy().tobytes() for array in arrays if array.numel() > 100]
    assert len(set(seen)) == len(seen)
    # In one batch: 160 leaves of 64 rows that are alike, of two arrays.
    bits = np.frombuffer(seen[0], dtype=np.uint8)
    assert len({part.tobytes() for part in bits.reshape(320, 8)}) == 320


def test_the_sum_alone_is_revealed_to_the_server() -> None:
    """Two rows of equal sums: the server's view of each is as that of the other."""
    named = {"a": 75, "b": 75}
    trees, said = some_trees(named), answers(150, 1)
    paths = HiddenPaths.of(trees, named)
    views = []
    for _ in range(300):
        ask = Watched(named, said)
        paths.predict(1, ask)
        last = [own for _, step, own in ask.up if step is PathStep.SUM]
        dealt = next(own for _, step, own in ask.up if step is PathStep.MASK)
        views.append((int(last[0][0]), int(dealt[2])))
    assert len({sum(view) % 2**32 for view in views}) > 290  # less weights that are on
    for each in zip(*views, strict=True):
        high = np.bincount(np.array(each) >> 29 & 7, minlength=8)
        assert stats.chisquare(high).pvalue > 1e-8


def test_a_step_is_answered_once() -> None:
    named = {"a": 75, "b": 75}
    said = answers(150, 5)
    ask = Watched(named, said)
    HiddenPaths.of(some_trees(named), named).predict(5, ask)
    for (name, _, own), again in itertools.product(ask.down, range(4)):
        with pytest.raises(ValueError, match="a step that is over"):
            ask.parties[name].answer(again, own)


def test_no_step_comes_after_one_that_failed() -> None:
    named = {"a": 75, "b": 75}
    ask = Watched(named, answers(150, 5))
    HiddenPaths.of(some_trees(named), named).predict(5, ask)
    again = Watched(named, answers(150, 5)).parties["b"]
    down = {step: own for name, step, own in ask.down if name == "b"}
    again.answer(PathStep.KEYS, down[PathStep.KEYS])
    with pytest.raises(ValueError, match="another key"):
        again.answer(PathStep.MASK, down[PathStep.MASK])
    for step, own in down.items():
        with pytest.raises(ValueError, match="a step that is over"):
            again.answer(step, own)


def test_another_key_in_the_place_of_its_own_is_refused() -> None:
    named = {"a": 75, "b": 75}
    ask = Watched(named, answers(150, 5))

    def swapped(step: PathStep, arrays: Any, expects: Any) -> Any:
        if step is PathStep.MASK:
            arrays = {name: (own[0].flip(0),) for name, own in arrays.items()}
        return ask(step, arrays, expects)

    with pytest.raises(ValueError, match="another key"):
        HiddenPaths.of(some_trees(named), named).predict(5, swapped)


def test_keys_are_of_different_parties() -> None:
    named = {"a": 75, "b": 75}
    ask = Watched(named, answers(150, 5))

    def doubled(step: PathStep, arrays: Any, expects: Any) -> Any:
        if step is PathStep.MASK:
            arrays = {"a": (arrays["a"][0][[0, 0]],)}
        return ask(step, arrays, expects)

    with pytest.raises(ValueError, match="one key of two parties"):
        HiddenPaths.of(some_trees(named), named).predict(5, doubled)


def test_who_tells_a_key_of_no_use_is_named() -> None:
    """Not the party that is handed it, which would refuse it and end."""
    named = {"a": 75, "b": 75}
    ask = Watched(named, answers(150, 5))

    def with_zero(step: PathStep, arrays: Any, expects: Any) -> Any:
        found = ask(step, arrays, expects)
        if step is PathStep.KEYS:
            found["b"] = (torch.zeros(32, dtype=torch.uint8),)
        return found

    with pytest.raises(ProtocolError, match="'b' must tell a key by which"):
        HiddenPaths.of(some_trees(named), named).predict(5, with_zero)


def test_trees_too_small_to_hide_in_are_refused() -> None:
    few = {"a": 30, "b": 30}
    with pytest.raises(ConfigError, match=r"1,000,000,000 ways or more.* 'a'"):
        HiddenPaths.of(some_trees(few), few)
    alone = {"a": 150, "b": 0}
    with pytest.raises(ConfigError, match=r"2 parties or more.*Got 1\."):
        HiddenPaths.of(some_trees(alone), alone)
    from lessvfl.core.network import MLP

    where = (0, "fusion", torch.float32, torch.device("cpu"))
    net: Any = MLP.create((2, 1), "none", *where)
    with pytest.raises(ConfigError, match="Got another model"):
        HiddenPaths.of(net, few)


def test_a_party_counts_for_itself_whether_trees_are_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = {"a": 30, "b": 30}
    monkeypatch.setattr(hidden_paths, "LEAST_COMPLEXITY", 1)
    paths = HiddenPaths.of(some_trees(named), named)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"ways or more"):
        paths.predict(5, Watched(named, answers(60, 5)))


def test_complexity_counts_leaves_below_a_party_s_splits() -> None:
    order = LeafOrder(np.array([4, 3, 5]), np.zeros(3, dtype=np.int64), 1)
    places = np.array([[0, 1, 4], [1, 2, 3], [7, 9, 10], [10, 11, 12]])
    assert LeafSplits(order, places).complexity == 4 * 5
    assert LeafSplits(order, places[:0]).complexity == 1


@pytest.mark.parametrize(
    "places", [[0, 0, 4], [2, 3, 5], [-1, 1, 2], [11, 12, 13], [3, 2, 1], [12, 13, 14]]
)
def test_places_that_no_leaves_have_are_refused(places: list[int]) -> None:
    order = LeafOrder(np.array([4, 3, 5]), np.zeros(3, dtype=np.int64), 1)
    with pytest.raises(ValueError, match="places that no leaves have"):
        LeafSplits(order, np.array([places]))


@pytest.mark.parametrize(
    ("sizes", "outputs", "n_outputs"),
    [
        ([0], [0], 1),
        ([3], [1], 1),
        ([3], [-2], 1),
        ([3], [0, 0], 1),
        ([2**30], [0], 1),
        ([2**62] * 4, [0] * 4, 1),  # of which the sum is 0 in 64 bits
        ([2**63 - 1, 2**63 - 1, 3], [0] * 3, 1),
        ([1], [0], 2**24),  # a list of leaves for each
    ],
)
def test_trees_that_cannot_be_are_refused(
    sizes: list[int], outputs: list[int], n_outputs: int
) -> None:
    with pytest.raises(ValueError, match="that no trees have"):
        LeafOrder(np.array(sizes), np.array(outputs), n_outputs)
