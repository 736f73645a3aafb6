"""Trees under sharing: the same trees, and what each side sees of it."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from tests.methods.test_trees import _bits, _mixed, ask, ran

from lessvfl import data
from lessvfl.core.sharing import KeyPair, Ring
from lessvfl.core.trees import shared
from lessvfl.data import Dataset
from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.methods.tree_party import TreeParty
from lessvfl.methods.tree_queries import Phase, TreeQuery
from lessvfl.methods.tree_sums import SharedSums
from lessvfl.party import Party
from lessvfl.run import profiles, simulate
from lessvfl.run.build import Builder
from lessvfl.wire import messages

SMALL = {"trees": 3, "select_trees": 3, "leaves": 8, "tree_depth": 3}
N_ROWS = 40


def load(name: str) -> Dataset:
    """Return a table: of two classes, of three, of amounts, or of mixed columns."""
    if name == "mixed":
        return data.from_arrays(*_mixed())
    import sklearn.datasets

    return data.from_arrays(*getattr(sklearn.datasets, f"load_{name}")(return_X_y=True))


# ---------------------------------------------------------------------- the same trees


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("breast_cancer", {}),
        ("breast_cancer", {"column_share": 0.5, "row_share": 0.6}),
        ("breast_cancer", {"gradient_bits": 32}),
        ("breast_cancer", {"gradient_bits": 8, "order": "gain"}),
        ("wine", {}),
        ("diabetes", {}),
        ("mixed", {}),
    ],
)
@pytest.mark.parametrize("method", ["vertical-boost", "vertical-forest"])
def test_sharing_changes_no_tree(name: str, method: str, more: dict[str, Any]) -> None:
    """The selection before them is another: it goes by rows parted, not by gain."""
    dataset, own = load(name), SMALL | {"select_trees": 0} | more
    clear, hidden = (
        ran(dataset, method, **own, secret=secret) for secret in ("none", "sharing")
    )
    assert hidden.numbers["features"] == clear.numbers["features"]
    one, other = clear.model.fusion.state(), hidden.model.fusion.state()
    assert one.keys() == other.keys()
    for key in one:
        assert torch.equal(one[key], other[key]), key
    said, same = (run.model.decide(dataset.X) for run in (clear, hidden))
    np.testing.assert_array_equal(said, same)
    assert len(np.unique(said)) > 3
    bills = [
        run.numbers["communication"]["by_stage"]["train"] for run in (clear, hidden)
    ]
    assert bills[1]["rounds"] == bills[0]["rounds"] + 1
    assert bills[1]["up"] > bills[0]["up"]


def test_a_plan_has_room_for_the_queries_of_masks() -> None:
    dataset = load("breast_cancer")
    n_queries = [
        profiles.resolve("vertical-boost", "default", dataset, {"secret": secret})
        .config.plans(3)[0]
        .n_queries  # type: ignore[union-attr]
        for secret in ("none", "sharing")
    ]
    assert n_queries[1] == n_queries[0] + 2


# ----------------------------------------------------------------- what each side sees


@pytest.fixture
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make keys and seeds the same in every run of a test, each another."""
    from cryptography.hazmat.primitives.asymmetric import x25519

    numbers = itertools.count()

    def draw(n_bytes: int = 32) -> bytes:
        return hashlib.shake_256(next(numbers).to_bytes(4)).digest(n_bytes)

    def make(pair: Any) -> None:
        pair._private = x25519.X25519PrivateKey.from_private_bytes(draw())
        pair._read = x25519.X25519PublicKey.from_public_bytes

    monkeypatch.setattr(KeyPair, "__init__", make)
    monkeypatch.setattr("lessvfl.methods.tree_sums.secrets.token_bytes", draw)


Seen = tuple[str, TreeQuery, messages.Query, Any]


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """Return what every party is asked and answers."""
    seen: list[Seen] = []
    answer = Party.handle

    def watched(party: Party, request: Any) -> Any:
        reply = answer(party, request)
        if isinstance(request, messages.Query):
            kind = TreeQuery(int(request.arrays[0][0]))
            seen.append((party.name, kind, request, reply))
        return reply

    monkeypatch.setattr(Party, "handle", watched)
    return seen


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Return gradients and hessians of every round, as the label holder has them."""
    seen: list[torch.Tensor] = []
    begin = SharedSums.begin

    def watched(own: Any, values: Any, *more: Any) -> Any:
        both = np.concatenate([values.gradient, values.hessian[:, None]], axis=1)
        seen.append(torch.from_numpy(both).long())
        return begin(own, values, *more)

    monkeypatch.setattr(SharedSums, "begin", watched)
    return seen


def is_uniform(arrays: list[torch.Tensor]) -> bool:
    """Test the four bytes of elements of 32 bits against chance."""
    every = torch.cat([array.flatten() for array in arrays])
    assert every.dtype == torch.int32
    assert len(every) > 2500
    for own in every.numpy().view(np.uint8).reshape(-1, 4).T:
        observed = np.bincount(own, minlength=256)
        if float(stats.chisquare(observed).pvalue) < 1e-4:
            return False
    return True


SUMMED = (TreeQuery.BEGIN, TreeQuery.SUMS)


@pytest.mark.usefixtures("fixed_keys")
@pytest.mark.parametrize("method", ["vertical-boost", "vertical-forest"])
def test_what_travels_is_uniform(
    method: str, traffic: list[Seen], rounds: list[torch.Tensor]
) -> None:
    """All that is sent but layouts, keys, rows and which of them go left."""
    ran(load("breast_cancer"), method, **SMALL, secret="sharing")
    sent = {kind: [q for _, k, q, _ in traffic if k == kind] for kind in TreeQuery}
    for kind in (TreeQuery.START, TreeQuery.LAYOUT):
        assert {len(query.arrays) for query in sent[kind]} == {1}
    for query in sent[TreeQuery.MASK]:
        assert [tuple(own.shape) for own in query.arrays] == [(2,), (64,)]
    for kind in (TreeQuery.SUMS, TreeQuery.SPLIT):  # numbers and flags alone
        assert {len(query.arrays) for query in sent[kind]} == {2}
    down = [query.arrays[2] for query in sent[TreeQuery.BEGIN]]
    assert is_uniform(down)
    assert is_uniform([one - other for one, other in itertools.pairwise(down)])
    by_round = down[::3]
    assert is_uniform([one - other for one, other in itertools.pairwise(by_round)])
    tables = [r.arrays[1] for _, k, _, r in traffic if k == TreeQuery.MASK]
    assert is_uniform(tables)
    sums = [r.arrays for _, k, _, r in traffic if k in SUMMED]
    assert is_uniform([own[0] for own in sums])
    assert is_uniform([own[2] for own in sums])
    for g, *own in zip(rounds, *[iter(down)] * 3, strict=True):
        for one in own:
            told = torch.corrcoef(torch.stack([one.flatten(), g.flatten()]).double())
            assert abs(told[0, 1]) < 5 / g.numel() ** 0.5


@pytest.mark.usefixtures("fixed_keys")
def test_the_label_holder_has_what_the_clear_run_tells_it_and_no_more(
    traffic: list[Seen], rounds: list[torch.Tensor]
) -> None:
    """Of each side's messages, by hand: gradients, and the sums of whole trees."""
    dataset, own = load("breast_cancer"), SMALL | {"select_trees": 0}
    ran(dataset, "vertical-boost", **own)
    told = [r.arrays[0] for _, kind, _, r in traffic if kind == TreeQuery.BEGIN]
    traffic.clear()
    ran(dataset, "vertical-boost", **own, secret="sharing")
    names = sorted({name for name, *_ in traffic})
    by_step = {(q.step, name): (kind, q, r.arrays) for name, kind, q, r in traffic[:-3]}
    ring, places, seeds, tables, n_seen = Ring(32), {}, {}, {}, 0
    for step, name in sorted(by_step):
        kind, query, reply = by_step[step, name]
        dealer = names[(names.index(name) + 1) % len(names)]
        if kind == TreeQuery.LAYOUT:
            last = reply[0].cumsum(dim=0) - 1
            places[name] = sorted({*range(int(last[-1]))} - {*last.tolist()})
        if kind == TreeQuery.MASK:
            seeds[name] = bytes(by_step[step, dealer][2][0].tolist())
            tables[name] = reply[1]
        if kind == TreeQuery.BEGIN:
            g = rounds[n_seen // len(names)].to(torch.int32)
            b = ring.draw_packed(seeds[name], f"gradients {step}", *g.shape)
            assert torch.equal(query.arrays[2] + b, g)
            dealt = by_step[step, dealer][2][2]
            found = reply[0] + dealt + (b[0] @ tables[name])[:, None]
            clear = told[n_seen][:, :, places[name]]
            assert torch.equal(torch.cat([found, reply[1].unsqueeze(0)]), clear)
            n_seen += 1
    assert n_seen == len(told) == len(names) * 3


@pytest.mark.parametrize("method", ["vertical-boost", "vertical-forest"])
def test_a_party_is_not_told_what_single_splits_gained(
    method: str, traffic: list[Seen]
) -> None:
    """Once, it was: 560 of 560 labels of credit, none known, fitted what they gained.

    A split of a forest gains by the classes of its rows, which its party knows.
    """
    ran(load("breast_cancer"), method, **SMALL, secret="sharing")
    told = [q.arrays[2] for _, kind, q, _ in traffic if kind == TreeQuery.END]
    assert len(told) == 2 * 3
    rows = torch.cat([own.flatten() for own in told])
    assert torch.equal(rows, rows.round())
    assert rows.max() > 100


@pytest.mark.usefixtures("fixed_keys")
def test_other_labels_look_alike_to_a_party(traffic: list[Seen]) -> None:
    """Two runs of the same columns: what comes down is as if labels were the same."""
    X, y = load("breast_cancer").X, load("breast_cancer").y
    first: list[torch.Tensor] = []
    for labels in (y, 1 - y):
        ran(
            data.from_arrays(X.numeric, labels),
            "vertical-boost",
            **SMALL,
            secret="sharing",
        )
        down = [q.arrays[2] for _, kind, q, _ in traffic if kind == TreeQuery.BEGIN]
        assert is_uniform(down)
        first.append(down[0].flatten())
        traffic.clear()
    both = torch.stack(first).double()
    assert abs(torch.corrcoef(both)[0, 1]) < 5 / both.shape[1] ** 0.5


def test_masks_of_two_runs_and_of_two_parties_differ(traffic: list[Seen]) -> None:
    seen: dict[str, list[torch.Tensor]] = {"keys": [], "seeds": [], "values": []}
    for _ in range(2):
        ran(load("breast_cancer"), "vertical-boost", **SMALL, secret="sharing")
    for _, kind, query, reply in traffic:
        if kind == TreeQuery.LAYOUT:
            seen["keys"].append(reply.arrays[2])
        if kind == TreeQuery.MASK:
            seen["seeds"].append(reply.arrays[0])
        if kind == TreeQuery.BEGIN:
            seen["values"].append(query.arrays[2])
    for own in seen.values():
        assert len(own) == len({bytes(one.numpy().tobytes()) for one in own}) >= 12


# --------------------------------------------------------------------- what is refused


def a_party(secret: str = "sharing", **more: Any) -> Party:
    X = torch.randn(N_ROWS, 4, generator=torch.Generator().manual_seed(0))
    dataset = data.from_arrays(X.numpy(), [0, 1] * (N_ROWS // 2))
    given = {"secret": secret, **more}
    own = profiles.resolve("vertical-boost", "default", dataset, given)
    groups = torch.arange(4).numpy()
    return Builder(own, 0, "cpu").party("clinic", (X, X[:0]), groups, list("abcd"))


def keys(n_bytes: int = 32) -> torch.Tensor:
    both = KeyPair().public[:n_bytes] + KeyPair().public[:n_bytes]
    return torch.tensor(list(both), dtype=torch.uint8)


N_BINS = 9  # of the party that it deals for
VALUES = torch.zeros(1, 2, N_ROWS, dtype=torch.int32)
FLAGS = _bits(N_ROWS + 4 + N_BINS)


def a_started_party(masked: bool = True, **more: Any) -> Party:
    party = a_party(**more)
    ask(party, 0, [TreeQuery.START, Phase.TRAIN])
    ask(party, 1, [TreeQuery.LAYOUT])
    if masked:
        ask(party, 2, [TreeQuery.MASK, N_BINS], keys())
    return party


def test_no_answer_has_the_mask_of_another() -> None:
    """The same sums, asked for again: all but rows are other numbers."""
    party = a_started_party()
    first = ask(party, 3, [TreeQuery.BEGIN, 0, 0], FLAGS, VALUES).arrays
    again = ask(party, 4, [TreeQuery.SUMS, 0, 0, 0], _bits(0)).arrays
    assert [tuple(own.shape) for own in first] == [(2, 1, 156), (1, 156), (2, 1, 9)]
    assert torch.equal(first[1], again[1])
    assert (first[0] != again[0]).double().mean() > 0.99
    assert (first[2] != again[2]).double().mean() > 0.9
    assert (first[0] != 0).double().mean() > 0.99, "sums of gradients that are 0"


@pytest.mark.parametrize(
    ("masked", "numbers", "rest", "why"),
    [
        (False, [TreeQuery.BEGIN, 0, 0], (FLAGS, VALUES), "gradients before keys"),
        (False, [TreeQuery.SUMS, 0], (_bits(0),), "sums before gradients"),
        (True, [TreeQuery.SUMS, 0], (_bits(0),), "sums before gradients"),
        (False, [TreeQuery.MASK, N_BINS], (keys(31),), "shapes"),
        (False, [TreeQuery.MASK, N_BINS], (), "shapes"),
        (False, [TreeQuery.MASK, N_BINS], (keys(), keys()), "shapes"),
        (False, [TreeQuery.MASK, N_BINS], (keys() * 0,), "shared key"),
        (False, [TreeQuery.MASK], (keys(),), "unpack"),
        (False, [TreeQuery.MASK, -1], (keys(),), "bins of 0 to"),
        (False, [TreeQuery.MASK, 1 << 30], (keys(),), "bins of 0 to"),
        (True, [TreeQuery.BEGIN, 0, 0], (FLAGS, VALUES.long()), "int64 instead of"),
        (True, [TreeQuery.BEGIN, 0, 0], (FLAGS, VALUES[..., 1:]), "shapes"),
        (True, [TreeQuery.BEGIN, 0, 0], (FLAGS, VALUES[:, :0]), "not there"),
        (True, [TreeQuery.BEGIN, 0, 0], (_bits(N_ROWS + 4), VALUES), "flags"),
    ],
)
def test_a_query_that_does_not_fit_is_one_sentence(
    masked: bool, numbers: list[int], rest: tuple[torch.Tensor, ...], why: str
) -> None:
    with pytest.raises(ProtocolError, match=why):
        ask(a_started_party(masked), 3, numbers, *rest)


def test_a_party_deals_for_another_than_itself() -> None:
    """Two masks would be the same, and cancel."""
    party = a_started_party(False)
    own = ask(party, 2, [TreeQuery.LAYOUT]).arrays[2]
    for both in ([own, keys()[:32]], [keys()[:32], own]):
        with pytest.raises(ProtocolError, match="its own key in the place of another"):
            ask(party, 3, [TreeQuery.MASK, N_BINS], torch.cat(both))


def test_who_tells_a_key_of_no_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the party that is handed it, which would refuse it and end."""
    tell = TreeParty._layout

    def wrong(party: TreeParty, *more: Any) -> Any:
        *rest, key = tell(party, *more)  # type: ignore[misc]
        return *rest, key * 0 if party.inputs.party == "party1" else key

    monkeypatch.setattr(TreeParty, "_layout", wrong)
    with pytest.raises(ProtocolError, match="'party1' must tell a key by which"):
        ran(load("breast_cancer"), "vertical-boost", **SMALL, secret="sharing")


def test_no_mask_comes_back_from_a_checkpoint() -> None:
    """Who goes on after a break has another key, and no gradients are taken before."""
    party, again = a_started_party(), a_party()
    key = ask(party, 3, [TreeQuery.LAYOUT]).arrays[2]
    ask(party, 4, [TreeQuery.BEGIN, 0, 0], FLAGS, VALUES)
    again.resume(party.state)
    with pytest.raises(ProtocolError, match="gradients before keys"):
        ask(again, 5, [TreeQuery.BEGIN, 0, 0], FLAGS, VALUES)
    assert not torch.equal(ask(again, 5, [TreeQuery.LAYOUT]).arrays[2], key)


def test_a_dealer_makes_no_more_sums_than_there_is_memory_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    party = a_started_party(False)
    ask(party, 2, [TreeQuery.MASK, 1000], keys())
    monkeypatch.setattr("lessvfl.core.trees.sums.MOST_CELLS", 4 * 160)
    flags = _bits(N_ROWS + 4 + 1000)
    with pytest.raises(ProtocolError, match="2 sums of 1 nodes and 1000 bins"):
        ask(party, 3, [TreeQuery.BEGIN, 0, 0], flags, VALUES)


def test_in_the_clear_there_are_no_keys() -> None:
    with pytest.raises(ProtocolError, match="keys where nothing is shared"):
        ask(a_started_party(False, secret="none"), 2, [TreeQuery.MASK, 9], keys())


def test_one_party_alone_has_nobody_to_deal() -> None:
    dataset = load("breast_cancer")
    own = profiles.resolve("vertical-boost", "default", dataset, {"secret": "sharing"})
    with pytest.raises(ConfigError, match="must be none with one party"):
        simulate.simulate(simulate.Job(dataset, own, parties=1), [0])


def test_more_bins_than_can_be_dealt_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "MOST_BYTES", 1 << 18)
    with pytest.raises(
        ProtocolError, match=r"'party0' must have at most .* or 'copies'"
    ):
        ran(load("breast_cancer"), "vertical-boost", **SMALL, secret="sharing")


@pytest.mark.parametrize("size", [0, -1, 257])
@pytest.mark.parametrize("secret", ["none", "sharing"])
def test_a_party_whose_bins_cannot_be_is_named(
    secret: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = TreeParty._layout

    def wrong(party: TreeParty, *more: Any) -> Any:
        sizes, *rest = tell(party, *more)  # type: ignore[misc]
        if party.inputs.party == "party1":
            sizes[0] = size
        return sizes, *rest

    monkeypatch.setattr(TreeParty, "_layout", wrong)
    with pytest.raises(ProtocolError, match="'party1' must have 1 to 256 bins in each"):
        ran(load("breast_cancer"), "vertical-boost", **SMALL, secret=secret)


# ------------------------------------------------------------------ what nothing stops


def test_a_server_that_swaps_keys_reads_the_bins_of_trees() -> None:
    party, pair = a_started_party(False), KeyPair()
    layout, _, key = ask(party, 2, [TreeQuery.LAYOUT]).arrays
    both = torch.tensor(list(pair.public * 2), dtype=torch.uint8)
    _, table = ask(party, 3, [TreeQuery.MASK, 0], both).arrays
    client = bytes(key.tolist())
    seed = pair.secret(client, client, pair.public)
    width = int((layout - 1).sum())
    bins = table + Ring(32).draw_packed(seed, "bins", N_ROWS, width)
    assert sorted(bins.unique().tolist()) == [0, 1]
    of_columns = bins.split((layout - 1).tolist(), dim=1)
    assert [int(own.sum()) for own in of_columns] == [N_ROWS - 1] * 4


def test_a_party_and_its_dealer_together_read_gradients(
    traffic: list[Seen], rounds: list[torch.Tensor]
) -> None:
    """The seed that a dealer tells the label holder takes the mask off."""
    ran(load("breast_cancer"), "vertical-boost", **SMALL, secret="sharing")
    (seed,) = {
        bytes(reply.arrays[0].tolist())
        for name, kind, query, reply in traffic[:9]
        if kind == TreeQuery.MASK and name == "party1"
    }
    query = next(q for n, k, q, _ in traffic if (n, k) == ("party0", TreeQuery.BEGIN))
    mask = Ring(32).draw_packed(seed, f"gradients {query.step}", *rounds[0].shape)
    assert torch.equal((query.arrays[2] + mask).long(), rounds[0])


def test_who_shares_a_node_tells_a_party_about_as_much_as_the_model_predicts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to which class is which: the first component of rows by their leaves."""
    nodes: list[dict[tuple[int, int], Any]] = []
    begin = TreeParty._begin

    def watched(party: TreeParty, *more: Any) -> Any:
        if party.inputs.party == "party0":
            nodes.append(dict(party._rows))
        return begin(party, *more)

    monkeypatch.setattr(TreeParty, "_begin", watched)
    own = {"trees": 20, "select_trees": 0, "secret": "sharing"}
    run = ran(load("breast_cancer"), "vertical-boost", **own)
    y, tables = run.problem.y_train, []
    for rows in nodes[1:]:
        leaf = np.zeros(len(y), dtype=np.int64)
        for (_, node), (own_rows, _) in sorted(rows.items()):  # children last
            leaf[own_rows] = node
        tables.append((leaf[:, None] == np.unique(leaf)).astype(float))
    table = np.concatenate(tables, axis=1)
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    first = np.linalg.svd(table, full_matrices=False)[0][:, 0]
    area = roc_auc_score(y, first)
    assert max(area, 1 - area) > 0.95


# ------------------------------------------------------------------- sums in fewer bits


def test_sums_of_fewer_bits_are_fewer_bytes_and_predict_as_well() -> None:
    dataset = load("breast_cancer")
    own = SMALL | {"trees": 20}
    runs = {
        bits: ran(dataset, "vertical-boost", **own, histogram_bits=bits)
        for bits in (8, 16, 32)
    }
    up = {
        b: run.numbers["communication"]["payload_bytes"]["up"]
        for b, run in runs.items()
    }
    auc = {bits: run.numbers["auc"]["final"] for bits, run in runs.items()}
    assert up[8] < 0.3 * up[32]
    assert up[8] < up[16] < 0.55 * up[32]
    assert min(auc.values()) > max(auc.values()) - 0.01
    said = [runs[bits].model.decide(dataset.X) for bits in (8, 32)]
    assert not np.array_equal(said[0], said[1])


def test_sums_under_sharing_are_not_rounded() -> None:
    dataset = load("breast_cancer")
    given = {"secret": "sharing", "histogram_bits": 16}
    with pytest.raises(
        ConfigError, match=r"'histogram_bits' .* must be 32 with secret"
    ):
        profiles.resolve("vertical-boost", "default", dataset, given)
