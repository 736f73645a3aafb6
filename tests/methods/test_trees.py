"""Trees over messages: what they are in one process, on disk, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import torch
from tests.conftest import decode
from tests.core.test_trees import raw

from lessvfl import data
from lessvfl.core.trees.cells import CellColumns
from lessvfl.core.trees.columns import ColumnHolder, LocalHolders
from lessvfl.core.trees.ensemble import EnsembleGrower, TreeSettings, fit
from lessvfl.core.trees.grow import GrowthLimits
from lessvfl.core.trees.targets import TreeTargets
from lessvfl.data import Dataset
from lessvfl.errors import ConfigError, ProtocolError, RecordError
from lessvfl.methods.tree_party import TreeParty
from lessvfl.methods.tree_queries import Phase, TreeQuery
from lessvfl.party import Party
from lessvfl.run import fitted, profiles, simulate
from lessvfl.run.build import Builder
from lessvfl.wire import codec, messages

SMALL = {"trees": 4, "select_trees": 0, "leaves": 8, "tree_depth": 4}


def ran(dataset: Dataset, method: str, **settings: Any) -> simulate.Run:
    own = profiles.resolve(method, "default", dataset, settings)
    (run,) = simulate.simulate(simulate.Job(dataset, own, parties=3), [0])
    return run


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("breast_cancer", "vertical-boost"),
        ("breast_cancer", "vertical-forest"),
        ("wine", "vertical-boost"),
        ("wine", "vertical-forest"),
        ("diabetes", "vertical-boost"),
        ("diabetes", "vertical-forest"),
    ],
)
def test_messages_change_nothing(name: str, method: str) -> None:
    """Against the same trees grown by parties that are asked without messages."""
    X, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    dataset = data.from_arrays(X, y)
    run = ran(dataset, method, **SMALL)
    problem = run.problem
    config: Any = profiles.resolve(method, "default", dataset, SMALL).config
    train = [p.X_train.astype(np.float32) for p in problem.parties]
    test = [p.X_test.astype(np.float32) for p in problem.parties]
    cells = [
        CellColumns.fit(X, p.groups)
        for X, p in zip(train, problem.parties, strict=True)
    ]
    tables = [c.cells(X) for c, X in zip(cells, train, strict=True)]
    holders = LocalHolders([ColumnHolder.of(table, config.bins) for table in tables])
    targets = TreeTargets.of(problem.y_train, problem.task, problem.weight)
    growth = config.growth(Phase.TRAIN, 0)
    is_forest = method == "vertical-forest"
    trees = fit(EnsembleGrower(holders, targets, growth, forest=is_forest))
    tables = [c.cells(X) for c, X in zip(cells, test, strict=True)]
    expected = raw(trees, holders, np.hstack(tables)).T
    if is_forest and problem.task != "regression":
        expected = expected.clip(1e-6, 1 - 1e-6)
        odds = expected / (1 - expected) if problem.task == "binary" else expected
        expected = np.log(odds)
    model = run.model
    blocks = [
        party.net(torch.from_numpy(X[:, _columns(party, own)]))
        for party, own, X in zip(model.parties, problem.parties, test, strict=True)
    ]
    found = model.fuse(blocks, len(problem.y_test))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.unique(found).size > 10


def _columns(party: Any, table: Any) -> list[int]:
    kept = set(party.kept)
    return [i for i, g in enumerate(table.groups) if table.features[g] in kept]


@pytest.mark.parametrize("method", ["vertical-boost", "vertical-forest"])
def test_trees_come_back_from_disk(method: str, tmp_path: Path) -> None:
    X, y = _mixed()
    model = ran(data.from_arrays(X, y), method, **SMALL).model
    model.save(tmp_path)
    again = fitted.load_model(tmp_path)
    np.testing.assert_array_equal(again.decide(X), model.decide(X))
    assert again.features == model.features


def test_another_number_format_sends_no_row_another_way() -> None:
    """An estimator computes in double, and a bin may end at a training cell."""
    X = np.random.default_rng(0).normal(size=(600, 6))
    y = (X[:, 0] + X[:, 3] > 0).astype(int)
    model = ran(data.from_arrays(X, y), "vertical-boost", **SMALL).model
    double = model.astype(torch.float64).decide(X)
    np.testing.assert_allclose(double, model.decide(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("side", "name", "value"),
    [
        ("server", "children", 0),
        ("server", "components", 10_000),
        ("server", "roots", -1),
        ("party0", "columns", 99),
        ("party0", "n_left", 1),
        ("party0", "sources", 99),
    ],
)
def test_trees_that_do_not_fit_together_are_refused(
    side: str, name: str, value: int, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    ran(data.load("breast-cancer"), "vertical-boost", **SMALL).model.save(tmp_path)
    path = tmp_path / side / "network.safetensors"
    tensors = load_file(path)
    tensors[name] = torch.full_like(tensors[name], value)
    save_file(tensors, path)
    with pytest.raises(RecordError, match="do not fit together"):
        fitted.load_model(tmp_path)


def test_what_is_kept_is_what_splits_use() -> None:
    run = ran(data.load("breast-cancer"), "vertical-boost", trees=5, select_trees=10)
    for party in run.model.parties:
        net: Any = party.net
        asked = {int(rule.column) for rule in net.rules}
        assert len(asked) == len(party.kept)
    assert sum(len(party.kept) for party in run.model.parties) > 0


def test_rows_held_out_say_when_to_stop() -> None:
    X = np.random.default_rng(0).normal(size=(200, 4))
    y = (X[:, 0] + np.random.default_rng(1).normal(size=200) > 0).astype(int)
    own = {"trees": 60, "select_trees": 0, "shrinkage": 0.5, "least_rows": 5}
    n_trees = []
    for more in ({"held_out": 0.3, "patience": 3}, {}):
        run = ran(data.from_arrays(X, y), "vertical-boost", **own, **more)
        fusion: Any = run.model.fusion
        n_trees.append(len(fusion.roots))
    assert n_trees[0] < 20
    assert n_trees[1] == 60


def test_the_leaf_that_gains_most_is_split_first() -> None:
    """By level a tree of 4 leaves splits both children of its root."""
    X = np.random.default_rng(0).normal(size=(400, 3))
    signs = np.sign(X).T
    y = np.where(X[:, 0] < 0, 20 + signs[1] / 9, np.where(X[:, 1] < 0, 0, 3 * signs[2]))
    own = {"trees": 1, "select_trees": 0, "leaves": 4, "tree_depth": 3}
    depth = {}
    for order in ("depth", "gain"):
        run = ran(data.from_arrays(X, y), "vertical-boost", **own, order=order)
        fusion: Any = run.model.fusion
        below = fusion.children.numpy()
        assert np.sum(below[:, 0] == np.arange(len(below))) == 4
        depth[order] = _depth(below, 0)
    assert depth == {"depth": 2, "gain": 3}


def _depth(children: Any, node: int) -> int:
    left, right = children[node]
    if left == node:
        return 0
    return 1 + max(_depth(children, left), _depth(children, right))


def test_the_only_useful_feature_of_a_party_stays() -> None:
    X = np.random.default_rng(0).normal(size=(400, 2))
    dataset = data.from_arrays(X, (X.sum(axis=1) > 0).astype(int))
    own = profiles.resolve("vertical-boost", "default", dataset)
    (run,) = simulate.simulate(simulate.Job(dataset, own, parties=2), [0])
    assert [len(party.kept) for party in run.model.parties] == [1, 1]


def test_planted_noise_goes() -> None:
    dataset = data.load("breast-cancer")
    own = profiles.resolve("vertical-boost", "default", dataset, {"trees": 2})
    job = simulate.Job(dataset, own, parties=2, spurious=0.5)
    (run,) = simulate.simulate(job, [0])
    assert run.numbers["spurious"]["removed_share"] >= 0.9
    assert run.numbers["spurious"]["real_kept_share"] > 0


def _mixed() -> tuple[Any, Any]:
    """Return a table with a category, missing cells and a number, and its labels."""
    import pandas as pd

    random = np.random.default_rng(0)
    n = 300
    amount = random.normal(size=n)
    colour = random.choice(["red", "green", "blue"], n)
    y = (amount + 2 * (colour == "green") + random.normal(size=n) / 4 > 1).astype(int)
    amount[random.random(n) < 0.2] = np.nan
    frame = pd.DataFrame(
        {"amount": amount, "colour": colour, "noise": random.normal(size=n)}
    )
    return frame, y


# -------------------------------------------------------------- encoded columns, cells


def test_a_category_and_missing_cells_come_back_from_encoded_columns() -> None:
    one_hot = np.eye(3)[[0, 1, 2, 1]]
    number = np.array([[0.5, 0], [0, 1], [-1, 0], [0, 1.0]])  # the second: missing
    X = np.concatenate([one_hot, number, np.array([[1], [2], [3], [4]])], axis=1)
    cells = CellColumns.fit(X, np.array([0, 0, 0, 1, 1, 2]))
    np.testing.assert_array_equal(cells.groups, [0, 1, 2])
    np.testing.assert_array_equal(cells.categorical, [True, False, False])
    expected = [[0, 0.5, 1], [1, np.nan, 2], [2, -1, 3], [1, np.nan, 4]]
    np.testing.assert_array_equal(cells.cells(X), expected)
    none = X[:1] * 0
    assert np.isnan(cells.cells(none)[0, 0]), "a category never seen"


def test_columns_that_are_cut_leave_the_others_as_they_are() -> None:
    X = np.array([[1, 0, 5.0, 7], [0, 1, 6, 8], [0, 0, 7, 9]])
    cells = CellColumns.fit(X, np.array([0, 0, 1, 2]))
    left = np.array([True, True, False, True])
    cut, whole = cells.only(left)
    np.testing.assert_array_equal(whole, [True, False, True])
    np.testing.assert_array_equal(cut.cells(X[:, left]), cells.cells(X)[:, whole])


# -------------------------------------------------------------------- what is refused


def test_bins_beyond_those_of_a_code_are_refused_at_once() -> None:
    dataset = data.load("breast-cancer")
    profiles.resolve("vertical-boost", "default", dataset, {"bins": 255})
    with pytest.raises(ConfigError, match=r"'bins' .* from 2 to 255\. Got 256 instead"):
        profiles.resolve("vertical-boost", "default", dataset, {"bins": 256})


N_ROWS = 40


def a_party() -> Party:
    dataset = data.from_arrays(torch.randn(N_ROWS, 4).numpy(), [0, 1] * (N_ROWS // 2))
    own = profiles.resolve("vertical-boost", "default", dataset)
    X = torch.randn(N_ROWS, 4, generator=torch.Generator().manual_seed(0))
    groups = torch.arange(4).numpy()
    return Builder(own, 0, "cpu").party("clinic", (X, X[:0]), groups, list("abcd"))


def ask(party: Party, step: int, numbers: list[int], *rest: torch.Tensor) -> Any:
    arrays = (torch.tensor(numbers, dtype=torch.int32), *rest)
    query = messages.Query("train", step, arrays)
    frame = decode(codec.encode(codec.WireFrame(query, 1)))  # as it arrives
    return party.handle(frame.message)


def a_growing_party() -> Party:
    """Return a party that has been sent gradients of one tree."""
    party = a_party()
    ask(party, 0, [TreeQuery.START, Phase.TRAIN])
    ask(party, 1, [TreeQuery.LAYOUT])
    values = torch.randint(100, (1, 2, N_ROWS)).to(torch.uint8) + 128
    ask(party, 2, [TreeQuery.BEGIN, 0, 0], _bits(N_ROWS + 4), values)
    return party


def _bits(n: int) -> torch.Tensor:
    return torch.from_numpy(np.packbits(np.ones(n, dtype=bool)))


def test_sums_beyond_32_bits_travel() -> None:
    party = a_party()
    ask(party, 0, [TreeQuery.START, Phase.TRAIN])
    ask(party, 1, [TreeQuery.LAYOUT])
    values = torch.full((1, 2, N_ROWS), 2**30, dtype=torch.int32)
    reply = ask(party, 2, [TreeQuery.BEGIN, 0, 0], _bits(N_ROWS + 4), values)
    frame = decode(codec.encode(codec.WireFrame(reply, 1)))
    (sums,) = frame.message.arrays
    assert sums[0, 0, :N_ROWS].sum() == N_ROWS * 2**30


def test_gains_are_by_row() -> None:
    """So that no number of rows makes them too large to travel."""
    X = np.random.default_rng(0).normal(size=(100, 2))
    y = (X[:, 0] > np.random.default_rng(1).normal(size=100)).astype(int)
    growth = TreeSettings(n_trees=1, limits=GrowthLimits(max_leaf_nodes=2))
    gains = []
    for times in (1, 4):
        holders = LocalHolders([ColumnHolder.of(np.tile(X, (times, 1)))])
        targets = TreeTargets.of(np.tile(y, times), "binary")
        ((tree,),) = fit(EnsembleGrower(holders, targets, growth)).trees
        gains.append(tree.gain)
    np.testing.assert_allclose(gains[1], gains[0], rtol=1e-3)
    assert gains[0].max() > 0


@pytest.mark.parametrize(
    ("numbers", "rest", "why"),
    [
        ([], (), "not a valid TreeQuery"),
        ([17], (), "not a valid TreeQuery"),
        ([TreeQuery.START, 5], (), "not a valid Phase"),
        ([TreeQuery.START], (), "unpack"),
        ([TreeQuery.SUMS, 0, 0, 3], (_bits(0),), "not there"),
        ([TreeQuery.SUMS, 0, 0], (_bits(0),), "rows of 2"),
        ([TreeQuery.SUMS, 0, 0, 0], (_bits(9),), "bytes of 0 flags"),
        ([TreeQuery.SUMS, 1, 0, 0, 1, 2, 0, 1], (_bits(8),), "bytes of 40 flags"),
        ([TreeQuery.SPLIT, 0, 0, 0, 4], (_bits(8),), "not there"),
        ([TreeQuery.SPLIT, 0, 0, 0, -1], (_bits(8),), "below 0"),
        ([TreeQuery.SPLIT, 0, 0, 0, 0], (_bits(8),), "flags"),
        ([TreeQuery.SPLIT, 0, 7, 0, 0], (_bits(41),), "not there"),
        ([TreeQuery.END, 3], (_bits(0), torch.ones(1)), "not there"),
        ([TreeQuery.END, 3, 3], (_bits(0), torch.ones(2)), "or one twice"),
        ([TreeQuery.END, 3], (_bits(0), torch.zeros(1)), "that gain nothing"),
        ([TreeQuery.END, 3], (_bits(0), -torch.ones(1)), "that gain nothing"),
        ([TreeQuery.SUMS, -1, 0, 0, 1, 2], (_bits(0),), "-1 splits"),
        ([TreeQuery.SUMS, 0, 0, 0, 0, 0], (_bits(0),), "one node twice"),
        ([TreeQuery.SPLIT, *[0, 0, 0, 0] * 2], (_bits(82),), "one node twice"),
        ([TreeQuery.SUMS, 1, 0, 0, 1, 1], (_bits(40),), "are there already"),
        ([TreeQuery.SUMS, 1, 0, 0, 0, 1], (_bits(40),), "are there already"),
        ([TreeQuery.END], (_bits(0), torch.ones(1)), "shapes"),
    ],
)
def test_a_query_that_does_not_fit_is_one_sentence(
    numbers: list[int], rest: tuple[torch.Tensor, ...], why: str
) -> None:
    with pytest.raises(ProtocolError, match=why):
        ask(a_growing_party(), 3, numbers, *rest)


def test_a_node_that_was_split_is_not_there_any_more() -> None:
    """A row is in one node of a tree, so that no number of them fills memory."""
    party = a_growing_party()
    ask(party, 3, [TreeQuery.SUMS, 1, 0, 0, 1, 2, 0, 1, 0, 2], _bits(40))
    with pytest.raises(ProtocolError, match="not there"):
        ask(party, 4, [TreeQuery.SUMS, 0, 0, 0], _bits(0))


def test_more_sums_than_there_is_memory_for_are_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    party = a_growing_party()
    ask(party, 3, [TreeQuery.SUMS, 1, 0, 0, 1, 2, 0, 1], _bits(40))
    monkeypatch.setattr("lessvfl.core.trees.sums.MOST_CELLS", 3 * 160)
    ask(party, 4, [TreeQuery.SUMS, 0, 0, 1], _bits(0))
    with pytest.raises(ProtocolError, match="3 sums of 2 nodes and 160 bins"):
        ask(party, 5, [TreeQuery.SUMS, 0, 0, 1, 0, 2], _bits(0))


@pytest.mark.parametrize("n_columns", [-1, (1 << 20) + 1, 2**31 - 1])
def test_a_party_whose_columns_cannot_be_is_named(
    n_columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = TreeParty._start

    def wrong(party: TreeParty, *more: Any) -> Any:
        found = start(party, *more)
        told = (torch.tensor([n_columns], dtype=torch.int32),)
        return told if party.inputs.party == "party1" else found

    monkeypatch.setattr(TreeParty, "_start", wrong)
    with pytest.raises(ProtocolError, match="'party1' must have 0 to 1,048,576 col"):
        ran(data.load("breast-cancer"), "vertical-boost", trees=2, select_trees=0)


def test_nothing_is_answered_before_the_start() -> None:
    with pytest.raises(ProtocolError, match="before the start"):
        ask(a_party(), 0, [TreeQuery.LAYOUT])
