"""A swarm around trees: what travels, what is kept, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import decode

from lessvfl import data
from lessvfl.core.plans import QueryPlan
from lessvfl.core.swarm import Swarm
from lessvfl.core.trees.targets import TreeTargets
from lessvfl.errors import LessVFLWarning, ProtocolError
from lessvfl.methods.pso_trees import Config
from lessvfl.methods.tree_queries import Phase, TreeQuery
from lessvfl.party import Party
from lessvfl.run import profiles, simulate
from lessvfl.run.build import Builder
from lessvfl.wire import codec, messages
from lessvfl.wire.parties import Parties

SMALL = {
    "trees": 6,
    "select_trees": 3,
    "particles": 3,
    "swarm_rounds": 4,
    "particle_trees": 2,
    "leaves": 6,
    "tree_depth": 3,
}


def ran(seed: int = 0, **more: Any) -> simulate.Run:
    dataset = data.load("breast-cancer")
    own = profiles.resolve("pso-trees", "default", dataset, SMALL | more)
    job = simulate.Job(dataset, own, parties=3, spurious=0.5)
    (run,) = simulate.simulate(job, [seed])
    return run


class Wire:
    """What passed between both sides: queries by kind, and losses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: Counter[TreeQuery] = Counter()
        self.losses: list[list[float]] = []
        self.columns: list[list[int]] = []  # of all parties, at every start
        query, last = Parties.query, Parties.query_last

        def watched(parties: Parties, stage: Any, step: int, arrays: Any, expects: Any):
            found = query(parties, stage, step, arrays, expects)
            sent = [own for own in arrays.values()]
            kind = self._count(sent)
            if kind is TreeQuery.LOSSES:
                assert [len(own) for own in sent] == [2] * len(sent)
                (told,) = {tuple(own[1].tolist()) for own in sent}
                self.losses.append(list(told))
                assert not any(found.values()), "nothing comes up"
            elif kind is TreeQuery.START:
                self.columns.append([int(own[0]) for own in found.values()])
            return found

        def watched_last(parties: Parties, stage: Any, step: int, arrays: Any) -> None:
            self._count(list(arrays.values()))
            last(parties, stage, step, arrays)

        monkeypatch.setattr(Parties, "query", watched)
        monkeypatch.setattr(Parties, "query_last", watched_last)

    def _count(self, sent: list[Any]) -> TreeQuery:
        (kind,) = {TreeQuery(int(own[0][0])) for own in sent}
        self.kinds[kind] += 1
        return kind


def test_losses_are_all_that_travels_beside_trees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire = Wire(monkeypatch)
    run = ran()
    n_phases = 2 + 3 * 4  # ranking, every particle in every round, what stays
    n_trees = 3 + 3 * 4 * 2 + 6
    assert wire.kinds[TreeQuery.START] == wire.kinds[TreeQuery.LAYOUT] == n_phases
    assert wire.kinds[TreeQuery.LOSSES] == 4
    assert wire.kinds[TreeQuery.END] == 2
    assert wire.kinds[TreeQuery.BEGIN] == n_trees
    assert wire.kinds[TreeQuery.SPLIT] >= wire.kinds[TreeQuery.SUMS] > 0
    assert np.shape(wire.losses) == (4, 3)
    model: Any = run.model.fusion
    assert len(model.roots) == 6, "grown to full size"


@pytest.mark.parametrize("order", ["depth", "gain"])
def test_no_query_is_beyond_those_planned(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the worst case of one split a level, or one an exchange, there is no more."""
    wire = Wire(monkeypatch)
    ran(order=order)
    dataset = data.load("breast-cancer")
    given = SMALL | {"order": order}
    own = profiles.resolve("pso-trees", "default", dataset, given)
    (plan,) = own.config.plans(3)
    assert isinstance(plan, QueryPlan)
    n_levels = 3 if order == "depth" else 5
    n_trees = 3 + 3 * 4 * 2 + 6
    assert plan.n_queries == 2 * (2 + 12) + 4 + 2 + n_trees * (1 + 2 * n_levels)
    assert 0 < wire.kinds.total() <= plan.n_queries


def test_seeds_say_everything() -> None:
    runs = [ran(seed) for seed in (0, 0, 1)]
    first, again, other = (run.numbers for run in runs)
    assert again["features"] == first["features"] != other["features"]
    assert again["accuracy"] == first["accuracy"]
    assert again["communication"] == first["communication"]


def test_the_best_particle_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many columns as the particle of the least loss had, and its settings."""
    wire, limits = Wire(monkeypatch), []
    grown_by = Config.grown_by

    def watched(config: Config, *more: Any) -> Any:
        found = grown_by(config, *more)
        limits.append(found.limits)
        return found

    monkeypatch.setattr(Config, "grown_by", watched)
    run = ran()
    *tried, last = limits
    tries = wire.columns[1:-1]
    best = int(np.argmin(np.ravel(wire.losses)))
    assert last == tried[best]
    assert len(set(tried)) > 3
    assert wire.columns[-1] == tries[best]
    assert [len(party.kept) for party in run.model.parties] == tries[best]
    assert len({tuple(own) for own in tries}) > 3


def test_what_is_tried_is_what_is_left_by_ranking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire = Wire(monkeypatch)
    at_ends = torch.ones(3, 1).double()
    monkeypatch.setattr(Swarm, "draw", lambda n, size, _: still(at_ends, size))
    run = ran(removed_first=0.25)
    first, *rest = wire.columns
    assert all(own == [n - int(n / 4) for n in first] for own in rest)
    assert run.numbers["spurious"]["removed_share"] > 0.3


def still(places: torch.Tensor, size: int) -> Swarm:
    """Return particles that stay where they are."""
    every = places.expand(-1, size)
    losses = torch.full((len(places),), torch.inf).double()
    return Swarm(every, torch.zeros_like(every), every, losses)


def test_a_particle_may_use_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trees say the share of a class; where all do so, nothing is kept."""
    wire = Wire(monkeypatch)
    places = torch.zeros(3, 1).double()
    monkeypatch.setattr(Swarm, "draw", lambda n, size, _: still(places, size))
    run = ran()
    assert wire.columns[1:] == [[0, 0, 0]] * 13
    assert [party.kept for party in run.model.parties] == [()] * 3
    losses = np.ravel(wire.losses)
    assert len(set(losses)) == 1
    y = run.problem.y_train
    targets = TreeTargets.of(y, "binary")
    rows = np.arange(len(y))
    z = np.repeat(targets.start(rows)[:, None], len(y), axis=1)
    assert losses[0] == pytest.approx(targets.loss(z, rows), abs=0.05)


# ------------------------------------------------------------- how a particle's grow


def test_coordinates_are_settings_of_trees() -> None:
    config = Config(trees=40, particle_trees=10, leaves=31, l2=1.0, held_out=0.25)
    ends = [
        config.grown_by(torch.full((3,), at), Phase.TRY, 0) for at in (0.0, 0.5, 1.0)
    ]
    assert [own.limits.max_leaf_nodes for own in ends] == [4, 11, 31]
    rates = [own.learning_rate for own in ends]
    assert rates == pytest.approx([0.2, 0.2**0.5, 1.0])
    l2 = [own.limits.split.l2 for own in ends]
    assert l2 == pytest.approx([1.01, 1 + 0.1**0.5, 11.0])
    assert {(own.n_trees, own.held_out) for own in ends} == {(10, 0.25)}
    last = config.grown_by(torch.ones(3), Phase.TRAIN, 0)
    assert (last.n_trees, last.held_out) == (40, 0.0)
    assert last.learning_rate == pytest.approx(0.25), "as much in all as when tried"
    few = Config(leaves=3).grown_by(torch.zeros(3), Phase.TRY, 0)
    assert few.limits.max_leaf_nodes == 3


# ---------------------------------------------------------------------- a party's part

N_ROWS = 40
SWARM = {"particles": 3, "swarm_rounds": 2, "removed_first": 0.4, "select_trees": 1}


def a_party(name: str = "clinic") -> Party:
    """Return a party of five columns with 2 to 6 values, by which they are known."""
    dataset = data.from_arrays(torch.randn(N_ROWS, 5).numpy(), [0, 1] * (N_ROWS // 2))
    own = profiles.resolve("pso-trees", "default", dataset, SWARM)
    X = torch.stack([torch.arange(N_ROWS) % n for n in range(2, 7)], dim=1)
    X = X.float() + torch.arange(5)
    groups = torch.arange(5).numpy()
    return Builder(own, 0, "cpu").party(name, (X, X[:0]), groups, list("abcde"))


class Asked:
    """A party and the steps that it was asked."""

    def __init__(self, name: str = "clinic") -> None:
        self.party, self.step = a_party(name), 0

    def __call__(self, kind: int, *numbers: int, rest: Any = ()) -> Any:
        arrays = (torch.tensor([kind, *numbers], dtype=torch.int32), *rest)
        query = messages.Query("train", self.step, arrays)
        frame = decode(codec.encode(codec.WireFrame(query, 1)))  # as it arrives
        reply = self.party.handle(frame.message)
        self.step += 1
        return reply

    def start(self, phase: Phase) -> list[int]:
        """Begin a phase; return the columns, by their numbers of values."""
        self(TreeQuery.START, phase)
        sizes: list[int] = self(TreeQuery.LAYOUT).arrays[0].tolist()
        return sizes

    def tell(self, *losses: float) -> None:
        self(TreeQuery.LOSSES, rest=(torch.tensor(losses).double(),))

    def rank(self, columns: list[int], gains: list[float]) -> None:
        """Grow a tree that splits its root by each of some columns, and end."""
        self.start(Phase.SELECT)
        values = torch.randint(100, (1, 2, N_ROWS)).to(torch.uint8) + 128
        self(TreeQuery.BEGIN, 0, 0, rest=(_bits(N_ROWS + 5), values))
        for rule, column in enumerate(columns):
            table = (0, 0, rule, column)
            self(TreeQuery.SPLIT, *table, rest=(_bits(column + 3),))
        told = (_bits(0), torch.tensor(gains).double())
        self(TreeQuery.END, *range(len(columns)), rest=told)


def _bits(n: int) -> torch.Tensor:
    return torch.from_numpy(np.packbits(np.ones(n, dtype=bool)))


def test_each_party_removes_its_last_by_gain_and_keeps_the_best_particles() -> None:
    asked = Asked()
    asked.rank([0, 1, 2, 2, 3, 4], [5.0, 1.0, 2.0, 2.0, 9.0, 3.0])
    first = [asked.start(Phase.TRY) for _ in range(3)]
    asked.tell(0.5, 0.3, 0.4)
    second = [asked.start(Phase.TRY) for _ in range(3)]
    asked.tell(0.6, 0.7, 0.2)
    left = {2, 4, 5}  # without the columns of 3 and of 6 values
    for own in (*first, *second):
        assert set(own) <= left
    assert first != second
    assert asked.start(Phase.TRAIN) == second[2]


def test_what_was_best_before_stays_the_best() -> None:
    asked = Asked()
    first = [asked.start(Phase.TRY) for _ in range(3)]
    asked.tell(0.5, 0.3, 0.4)
    for _ in range(3):
        asked.start(Phase.TRY)
    asked.tell(0.6, 0.3, 0.7)
    assert asked.start(Phase.TRAIN) == first[1]


def test_every_party_draws_by_itself() -> None:
    both = []
    for name in ("clinic", "bank"):
        asked = Asked(name)
        both.append([asked.start(Phase.TRY) for _ in range(3)])
    assert both[0] != both[1]


def test_particles_come_in_their_turn() -> None:
    asked = Asked()
    with pytest.raises(ProtocolError, match="before all particles"):
        asked.start(Phase.TRAIN)
    asked.start(Phase.TRY)
    with pytest.raises(ProtocolError, match="not tried"):
        asked.tell(0.1, 0.2, 0.3)
    with pytest.raises(ProtocolError, match="does not come first"):
        asked.start(Phase.SELECT)
    asked.start(Phase.TRY)
    asked.start(Phase.TRY)
    with pytest.raises(ProtocolError, match="a particle too many"):
        asked.start(Phase.TRY)
    with pytest.raises(ProtocolError, match="neither select nor stay"):
        asked(TreeQuery.END, rest=(_bits(0), torch.zeros(0)))
    with pytest.raises(ProtocolError, match="shapes"):
        asked.tell(0.1, 0.2)
    with pytest.raises(ProtocolError, match="not finite"):
        asked.tell(0.1, 0.2, float("nan"))
    asked.tell(0.1, 0.2, 0.3)
    for _ in range(3):
        asked.start(Phase.TRY)
    asked.tell(0.1, 0.2, 0.3)
    with pytest.raises(ProtocolError, match="a particle too many"):
        asked.start(Phase.TRY)
    assert asked.start(Phase.TRAIN) is not None


def test_a_column_of_one_value_is_not_kept() -> None:
    """Whatever the best particle says of it: no tree can split it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    X[:, [1, 4]] = 1.0
    dataset = data.from_arrays(X, X[:, 0] + X[:, 3] > 0, name="constants")
    given = SMALL | {"removed_first": 0.0}
    own = profiles.resolve("pso-trees", "default", dataset, given)
    with pytest.warns(LessVFLWarning, match="one value in all training rows"):
        runs = simulate.simulate(simulate.Job(dataset, own, parties=2), range(4))
    for run in runs:
        removed = [party["removed"] for party in run.numbers["features"].values()]
        assert "x1" in removed[0]
        assert "x4" in removed[1]
