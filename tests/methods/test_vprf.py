"""A forest of trees at one party each: right, stored, counted without who leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import torch
from tests.methods.test_trees import _bits

from lessvfl import data
from lessvfl.core.trees.votes import Votes, VoteSum
from lessvfl.core.votes import VotingParty, count_votes
from lessvfl.data import Dataset
from lessvfl.errors import ConfigError, PolicyError, ProtocolError, RecordError
from lessvfl.methods.tree_queries import Phase, TreeQuery
from lessvfl.methods.vprf import share_of
from lessvfl.party import Party
from lessvfl.remote.policy import Policy, PolicyChecker
from lessvfl.run import fitted, profiles, simulate
from lessvfl.run.build import Builder
from lessvfl.wire import control, messages

SMALL = {"trees": 12, "select_trees": 6}


def ran(dataset: Dataset, parties: int = 3, **settings: Any) -> simulate.Run:
    own = profiles.resolve("vprf", "default", dataset, SMALL | settings)
    (run,) = simulate.simulate(simulate.Job(dataset, own, parties=parties), [0])
    return run


def of_sklearn(name: str) -> Dataset:
    X, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    return data.from_arrays(X, y)


def votes_of(run: simulate.Run) -> list[Any]:
    """Return every party's votes for the test rows, (n, K)."""
    found = []
    for party, table in zip(run.model.parties, run.problem.parties, strict=True):
        kept = set(party.kept)
        used = [table.features[group] in kept for group in table.groups]
        x = torch.as_tensor(table.X_test[:, used], dtype=torch.float32)
        found.append(party.net(x))
    return found


@pytest.mark.parametrize("name", ["breast_cancer", "wine", "diabetes"])
def test_scores_under_masks_are_those_in_the_clear(name: str) -> None:
    masked = ran(of_sklearn(name))
    clear = ran(of_sklearn(name), secret="none")
    lead = masked.numbers["score"]
    assert masked.numbers[lead]["final"] == pytest.approx(clear.numbers[lead]["final"])
    assert masked.numbers["features"] == clear.numbers["features"]
    assert masked.numbers[lead]["final"] > (0.3 if name == "diabetes" else 0.85)


def test_nobody_s_part_of_a_score_is_known() -> None:
    """Without masks a run says who would be missed; with them it cannot."""
    stages = [ran(data.load("breast-cancer"), secret=s) for s in ("sharing", "none")]
    masked, clear = (run.numbers["communication"]["by_stage"] for run in stages)
    assert "evaluate" not in masked
    without = [run.numbers["without"] for run in stages]
    assert without[0] is None
    assert without[1] is not None
    assert clear.keys() >= {"train"}


def test_every_tree_lies_at_one_party() -> None:
    model = ran(data.load("breast-cancer"), select_trees=0).model
    assert isinstance(model.fusion, VoteSum)
    assert model.fusion.counts.tolist() == [4, 4, 4]
    for party in model.parties:
        assert isinstance(party.net, Votes)
        assert len(party.net.trees.roots) == 4
        assert party.net.trees.weights.shape[1] == len(party.net.splits.rules)


def test_trees_are_shared_out() -> None:
    for n_trees, n_parties in ((100, 3), (7, 7), (10, 4)):
        shares = [share_of(n_trees, place, n_parties) for place in range(n_parties)]
        assert sum(shares) == n_trees
    assert share_of(2, 4, 5) == 1


def test_one_party_alone_has_nobody_to_mask_votes_with() -> None:
    with pytest.raises(ConfigError, match="must be none with one party"):
        ran(data.load("breast-cancer"), parties=1)


def test_who_leaves_takes_its_trees_along() -> None:
    """The others' votes are counted, and scores fall a little or not at all."""
    run = ran(data.load("breast-cancer"), parties=4, trees=40, select_trees=0)
    votes, fusion, y = votes_of(run), run.model.fusion, run.problem.y_test
    assert isinstance(fusion, VoteSum)
    names = run.model.party_names

    def accuracy(places: list[int]) -> float:
        parties = {names[m]: VotingParty(votes[m]) for m in places}

        def take(step: Any, arrays: Any, expects: Any) -> Any:
            return {m: parties[m].answer(step, own) for m, own in arrays.items()}

        z = fusion.counted(count_votes(list(parties), 1, take), places)
        return float(((z[:, 0].numpy() > 0) == y).mean())

    whole = accuracy([0, 1, 2, 3])
    assert whole == pytest.approx(run.numbers["accuracy"]["final"])
    for gone in range(4):
        left = [m for m in range(4) if m != gone]
        assert accuracy(left) >= whole - 0.06
    assert accuracy([2, 3]) > 0.85


def test_planted_noise_goes() -> None:
    dataset = data.load("breast-cancer")
    own = profiles.resolve("vprf", "default", dataset, SMALL)
    job = simulate.Job(dataset, own, parties=3, spurious=0.5)
    (run,) = simulate.simulate(job, [0])
    assert run.numbers["spurious"]["removed_share"] >= 0.9
    assert run.numbers["spurious"]["real_kept_share"] > 0.1


def test_a_party_of_noise_alone_keeps_nothing_and_has_no_trees() -> None:
    X, y = sklearn.datasets.load_breast_cancer(return_X_y=True)
    noise = np.random.default_rng(0).normal(size=(len(X), 10))
    dataset = data.from_arrays(np.concatenate([X[:, 20:30], noise], axis=1), y)
    run = ran(dataset, parties=2, trees=20, select_trees=10)
    fusion: Any = run.model.fusion
    kept = [len(party.kept) for party in run.model.parties]
    assert kept[0] > 0 == kept[1]
    assert fusion.counts.tolist()[1] == 0
    assert run.numbers["accuracy"]["final"] > 0.85


def test_it_comes_back_from_disk(tmp_path: Path) -> None:
    X, y = sklearn.datasets.load_wine(return_X_y=True)
    model = ran(data.from_arrays(X, y)).model
    model.save(tmp_path)
    again = fitted.load_model(tmp_path)
    np.testing.assert_array_equal(again.decide(X), model.decide(X))
    assert (again.predict(X).astype(int) == y).mean() > 0.9
    from safetensors.torch import load_file, save_file

    for side, name, value in (("server", "counts", -1), ("party0", "trees.roots", -1)):
        path = tmp_path / side / "network.safetensors"
        tensors = load_file(path)
        tensors[name] = torch.full_like(tensors[name], value)
        save_file(tensors, path)
        with pytest.raises(RecordError, match="do not fit together"):
            fitted.load_model(tmp_path)


def a_voting_party() -> Party:
    X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    dataset = data.from_arrays(X.numpy(), [0, 1] * 20)
    own = profiles.resolve("vprf", "default", dataset, SMALL)
    groups = torch.arange(4).numpy()
    return Builder(own, 0, "cpu").party("clinic", (X, X), groups, list("abcd"))


def asked(party: Party, step: int, kind: TreeQuery, *arrays: Any) -> Any:
    numbers, *rest = arrays or ([],)
    head = torch.tensor([kind, *numbers], dtype=torch.int32)
    return party.handle(messages.Query("train", step, (head, *rest)))


@pytest.mark.parametrize(
    ("kind", "arrays", "sentence"),
    [
        (TreeQuery.START, ([Phase.TRY],), "a phase that the method does not have"),
        (TreeQuery.TREES, ([1, 0], torch.zeros(1, 1)), "trees before their end"),
        (TreeQuery.VOTES, ([0],), "a count that has not begun"),
        (TreeQuery.DONE, (), "an end before there are trees"),
        (TreeQuery.LOSSES, (), "not there"),
    ],
)
def test_queries_out_of_order_are_refused(
    kind: TreeQuery, arrays: tuple[Any, ...], sentence: str
) -> None:
    party = a_voting_party()
    asked(party, 0, TreeQuery.START, [Phase.TRAIN])
    with pytest.raises(ProtocolError, match=sentence):
        asked(party, 1, kind, *arrays)


def grown(ask: Any, root: int = 0) -> None:
    """Have a party grow one tree of one split, on rows whose gradients are `root`."""
    ask(0, TreeQuery.START, [Phase.TRAIN])
    sizes = ask(1, TreeQuery.LAYOUT).arrays[0]
    n_rows, n_columns = ask.n_rows, len(sizes)
    values = torch.full((1, 2, n_rows), 130 + root, dtype=torch.uint8)
    ask(2, TreeQuery.BEGIN, [0, 0], _bits(n_rows + n_columns), values)
    left = np.arange(int(sizes[0]) + 1) < int(sizes[0]) // 2
    bins = torch.from_numpy(np.packbits(left))
    ask(3, TreeQuery.SPLIT, [0, 0, 0, 0], bins)
    one = torch.ones(1, dtype=torch.float64)
    ask(4, TreeQuery.END, [0], torch.zeros(0, dtype=torch.uint8), one)


class Asked:
    """Asks a party, in a process of its own or not."""

    def __init__(self, party: Any, n_rows: int = 40) -> None:
        self.party, self.n_rows = party, n_rows

    def __call__(self, step: int, kind: TreeQuery, *arrays: Any) -> Any:
        return asked(self.party, step, kind, *arrays)


STUMP = [1, 1, 0, 1, 2, 0, 1, 1, 0, 2, 2, 0]
LEAVES = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("numbers", "values", "why"),
    [
        ([1, 13, *[0] * 13, *STUMP[3:]], LEAVES, "13 trees of 3 nodes"),
        ([1, 1, 0, *[0, 0, 0] * 10**5], torch.zeros(10**5, 1), "1 trees of 100000"),
        (STUMP, torch.zeros(3, 1 << 24), "16777216 sums"),
        ([1, 1, 0, 0, *STUMP[4:]], LEAVES, "do not fit together"),
        ([1, -1], LEAVES[:0], "numbers of 0 nodes"),
    ],
)
def test_trees_that_no_settings_have_are_refused(
    numbers: list[int], values: torch.Tensor, why: str
) -> None:
    ask = Asked(a_voting_party())
    grown(ask)
    with pytest.raises(ProtocolError, match=why):
        ask(5, TreeQuery.TREES, numbers, values)


def test_a_policy_that_allows_no_scores_allows_no_votes() -> None:
    checker = PolicyChecker("bank", Policy(methods=("vprf",), evaluation="nothing"))
    words = ("run", (0,), "vprf")
    for secret in ("sharing", "none"):
        own = {"secret": secret, "train_epochs": 1, "bits": 4}
        welcome = control.Welcome(*words, own, ("bank", "clinic"), "plain")
        if secret == "none":
            checker.settings(welcome, 30)
        else:
            with pytest.raises(PolicyError, match=r"no evaluation.*policy.evaluation"):
                checker.settings(welcome, 30)


def test_trees_that_ask_for_other_splits_are_refused() -> None:
    net = ran(data.load("breast-cancer")).model.parties[0].net
    assert isinstance(net, Votes)
    trees = replace(net.trees, weights=net.trees.weights[:, :-1])
    with pytest.raises(ValueError, match="do not fit together"):
        Votes.of_state(Votes(net.splits, trees).state())
