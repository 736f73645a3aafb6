"""Server and parties over Flight: the simulator's numbers, faults, refusals."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lessvfl import data, settings
from lessvfl.errors import ConfigError, LessVFLError, PartyLostError, ProtocolError
from lessvfl.remote.checkpoint import read_state
from lessvfl.remote.config import PartyConfig, ServerConfig
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.server import LabelTable, ServerProcess
from lessvfl.run import profiles, simulate
from lessvfl.status import Status
from lessvfl.wire import flight
from lessvfl.wire.control import Agreed, Align, Hello, Welcome
from lessvfl.wire.flight import Address, Hub
from lessvfl.wire.messages import Block, Descend, Done

# Aligned by their number alone: the point of other tests.
pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")

SHORT: dict[str, Any] = {  # each method takes what it reads
    "scale": "none",
    "batch_size": 40,
    "train_epochs": 3,
    "party_epochs": 8,
    "server_epochs": 8,
    "joint_epochs": 4,
    "pretrain_epochs": 2,
    "lam_server": 0.2,
    "server_rows": 40,
    "hidden": 8,
    "embedding_size": 4,
}


@functools.cache
def a_dataset():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(150, 9))
    names = [f"x{i}" for i in range(9)]
    y = (X[:, 0] + X[:, 4] > 0).astype(int)
    return data.from_arrays(X, y, name="numbers", feature_names=names)


HELD = {"clinic": ("x0", "x1", "x2"), "bank": ("x3", "x4", "x5", "x6", "x7", "x8")}


LAMBDAS = {  # that keep something and remove something; 4 elsewhere
    ("less-vfl", "default"): 0.5,
    ("group-lasso", "default"): 11.5,
}


def own_settings(method: str, profile: str = "default") -> dict[str, Any]:
    known = settings.fields_of(profiles.sections(method))
    own = SHORT | {"lam_party": LAMBDAS.get((method, profile), 4.0)}
    return {name: value for name, value in own.items() if name in known}


@functools.cache
def simulated(method: str, profile: str = "default", weighted: bool = False):
    own = own_settings(method, profile) | (WEIGHTED if weighted else {})
    resolved = profiles.resolve(method, profile, a_dataset(), own)
    dataset = replace(a_dataset(), weight=ROWS_WEIGH if weighted else None)
    job = simulate.Job(dataset, resolved, parties=HELD, device="cpu")
    return simulate.simulate(job, [0])[0].numbers


def a_table(name: str, rows=slice(None)):
    dataset = a_dataset()
    columns = [dataset.X.names.index(column) for column in HELD[name]]
    return data.frame_of(dataset.X.numeric[rows][:, columns], list(HELD[name]))


def labels(rows=slice(None), ids=None):
    dataset = a_dataset()
    y = dataset.y[rows]
    nothing = data.from_arrays(np.zeros((len(y), 1)), y, name="numbers")
    nothing = replace(nothing, scale=dataset.scale, split=dataset.split)
    return LabelTable(nothing, ids=ids)


def server_config(out: Path, method="less-vfl", profile="default", **more):
    own: dict[str, Any] = {"settings": own_settings(method, profile)}
    own |= {"wait": 20.0, "save_every": 3}
    return ServerConfig(
        parties=tuple(HELD),
        method=method,
        profile=profile,
        out=str(out / "server"),
        **own | more,
    )


class Side(threading.Thread):
    """One party in a thread, and how it ended."""

    def __init__(self, party: PartyProcess, port: int, patience: float = 20.0) -> None:
        super().__init__(daemon=True)
        self.party, self.port, self.patience = party, port, patience
        self.error: BaseException | None = None

    def run(self) -> None:
        address = Address(f"127.0.0.1:{self.port}", None)
        try:
            flight.serve(
                address, self.party.hello(), self.party.handle, patience=self.patience
            )
        except BaseException as error:
            self.error = error


@contextlib.contextmanager
def a_hub(**more):
    hub = Hub("127.0.0.1:0", tuple(HELD), None, **{"patience": 20.0} | more)
    try:
        yield hub
    finally:
        hub.close()


def a_status():
    return Status("run", "less-vfl", "numbers", tuple(HELD))


def a_party(name: str, out: Path, rows=slice(None), ids=None, **more):
    config = PartyConfig(out=str(out / name), **{"reveal": "counts"} | more)
    return PartyProcess(name, config, a_table(name, rows), ids)


def run_all(
    tmp_path,
    method="less-vfl",
    profile="default",
    status=None,
    table=None,
    own=None,
    **more,
):
    """Run to the end; return the server's result and what the parties wrote."""
    with a_hub() as hub:
        sides = [Side(a_party(name, tmp_path, **more), hub.port) for name in HELD]
        for side in sides:
            side.start()
        values = own_settings(method, profile) | (own or {})
        config = server_config(tmp_path, method, profile, settings=values)
        server = ServerProcess(config, table or labels(), hub, status or a_status())
        result = server.run()
    for side in sides:
        side.join(20)
        assert side.error is None
    return result, written(tmp_path)


def written(folder):
    """Return what every party wrote into its run folder."""
    return {
        name: json.loads((folder / name / "party.json").read_text()) for name in HELD
    }


def compare(numbers, own, expected):
    for name in ("accuracy", "balanced_accuracy", "components"):
        assert numbers[name] == expected[name]
    for mine, theirs in zip(numbers["curve"], expected["curve"], strict=True):
        ignored = {"removed_share"}
        assert {k: v for k, v in mine.items() if k not in ignored} == {
            k: v for k, v in theirs.items() if k not in ignored
        }
    bill = numbers["communication"]
    for name, value in expected["communication"].items():
        assert bill[name] == value
    for name in HELD:
        assert own[name]["kept"] == expected["features"][name]["kept"]
        assert own[name]["removed"] == expected["features"][name]["removed"]
        assert own[name]["importance"] == expected["importance"][name]
        assert own[name]["selection"] == (expected["selection"] or {}).get(name)


@pytest.mark.parametrize(
    ("method", "profile"),
    [
        ("less-vfl-auto", "default"),
        ("less-vfl", "default"),
        ("less-vfl", "official-code"),
        ("local-lasso", "paper"),
        ("group-lasso", "default"),
        ("plain", "default"),
    ],
)
def test_the_same_bits_and_the_same_bill(tmp_path, method, profile):
    numbers, own = run_all(tmp_path, method, profile)
    compare(numbers, own, simulated(method, profile))
    assert any(party["kept"] for party in own.values())
    assert any(party["removed"] for party in own.values()) == (method != "plain")
    bill = numbers["communication"]
    for way in ("up", "down"):
        assert bill["wire_bytes"][way] > bill["payload_bytes"][way]
    assert bill["resent_bytes"] == 0


WEIGHTED = {"class_weight": {"1": 3.0}}
ROWS_WEIGH = np.arange(150) % 4 + 1.0


@pytest.mark.parametrize("method", ["less-vfl-auto", "less-vfl", "group-lasso"])
def test_the_same_bits_with_weights_of_which_no_party_hears(
    tmp_path, method, monkeypatch
):
    said: list[Welcome] = []
    welcomed = PartyProcess._welcomed

    def listen(self, message):
        said.append(message)
        return welcomed(self, message)

    monkeypatch.setattr(PartyProcess, "_welcomed", listen)
    table = labels()
    table = replace(table, dataset=replace(table.dataset, weight=ROWS_WEIGH))
    own = {"class_weight": {1: 3.0}}  # as YAML reads it
    numbers, wrote = run_all(tmp_path, method, table=table, own=own)
    expected = simulated(method, weighted=True)
    compare(numbers, wrote, expected)
    assert numbers["curve"] != simulated(method)["curve"]
    (first, *_) = said
    assert not set(first.settings) & set(settings.fields_of([data.LabelConfig]))
    bill = simulated(method)["communication"]["by_stage"]["train"]
    if method == "group-lasso":  # what others keep may differ
        assert numbers["communication"]["by_stage"]["train"] == bill


def test_a_run_knows_its_weights_by_class_again(tmp_path):
    """Numbers that name classes in YAML are texts in what is read back."""
    config = server_config(tmp_path, settings={"class_weight": {1: 3.0}})
    with a_hub() as hub:
        server = ServerProcess(config, labels(), hub, a_status())
        assert server._run_id() == server._run_id()


def test_labels_that_cannot_be_weighed_so_are_refused_before_parties_come(tmp_path):
    config = server_config(tmp_path, settings={"class_weight": {"2": 3.0}})
    with a_hub() as hub, pytest.raises(ConfigError, match="Got '2'"):
        ServerProcess(config, labels(), hub, a_status())


def paid(numbers, name, way, *stages):
    """Return the bytes of one party on the bill, of all stages but evaluation."""
    return sum(
        line["payload_bytes"]
        for line in numbers["bill"]
        if (line["party"], line["direction"]) == (name, way)
        and (line["stage"] in stages if stages else line["stage"] != "evaluate")
    )


@pytest.mark.parametrize("method", ["less-vfl-auto", "less-vfl", "group-lasso"])
def test_the_status_shows_the_bill(tmp_path, method):
    """By party, direction and stage, the components of stage 2 included."""
    status = a_status()
    numbers, _ = run_all(tmp_path, method, status=status)
    shown, bill = status.snapshot(), numbers["bill"]
    assert any(line["kind"] == "components" for line in bill) == ("less" in method)
    billed = {line["stage"] for line in bill}
    for name, party in shown["parties"].items():
        for way in ("up", "down"):
            assert party["traffic"]["payload_bytes"][way] == paid(numbers, name, way)
            for stage in billed | set(party["by_stage"]):
                found = party["by_stage"][stage]["payload_bytes"][way]
                assert found == paid(numbers, name, way, stage)
    total = numbers["communication"]["payload_bytes"]
    assert shown["traffic"]["payload_bytes"] == total


def test_by_default_nothing_is_revealed(tmp_path):
    """A party that kept nothing goes on sending its constant, billed."""
    quiet, own = run_all(tmp_path / "quiet", "group-lasso", reveal="nothing")
    told, _ = run_all(tmp_path / "told", "group-lasso", reveal="counts")
    assert quiet["accuracy"] == told["accuracy"]
    (empty,) = [name for name, party in own.items() if not party["kept"]]
    constant = 4 * SHORT["embedding_size"]
    blocks = 120 * SHORT["train_epochs"] * constant  # of the training rows
    for way, saved in (("up", blocks - constant), ("down", blocks)):
        more, less = (paid(numbers, empty, way) for numbers in (quiet, told))
        assert more - less == saved


# ------------------------------------------------------------------------------- faults


class Cut(Exception):
    """The server is gone."""


@pytest.mark.parametrize("method", ["less-vfl", "local-lasso", "group-lasso"])
def test_a_server_that_dies_at_any_exchange_goes_on(tmp_path, method):
    """Killed after every few exchanges: bits and bill of an undisturbed run."""
    with a_hub() as hub:
        sides = [Side(a_party(name, tmp_path), hub.port) for name in HELD]
        for side in sides:
            side.start()
        config = server_config(tmp_path, method, save_every=2)
        original, budget, deaths = hub.send, 9, 0

        def send(requests):
            nonlocal budget
            budget -= 1
            if budget < 0:
                raise Cut
            return original(requests)

        hub.send = send
        while True:
            try:
                server = ServerProcess(
                    config, labels(), hub, a_status(), resume=deaths > 0
                )
                result = server.run()
                break
            except Cut:
                deaths += 1
                budget = 9 + 2 * deaths
    assert deaths >= 2
    for side in sides:
        side.join(20)
    compare(result, written(tmp_path), simulated(method))


@pytest.mark.parametrize("method", ["less-vfl-auto", "less-vfl", "group-lasso"])
def test_a_party_that_dies_comes_back(tmp_path, method):
    """Its process is gone, and with it everything that was not written down."""

    class Death(BaseException):
        pass

    class Mortal(PartyProcess):
        left = 12

        def handle(self, message):
            self.left -= 1
            if self.left < 0:
                raise Death
            return super().handle(message)

    with a_hub() as hub:
        steady = Side(a_party("bank", tmp_path), hub.port)
        steady.start()
        deaths = 0

        def lives():
            nonlocal deaths
            while True:
                config = PartyConfig(out=str(tmp_path / "clinic"), reveal="counts")
                party = Mortal("clinic", config, a_table("clinic"))
                party.left = 12 + 3 * deaths
                side = Side(party, hub.port)
                side.start()
                side.join()
                if not isinstance(side.error, Death):
                    return
                deaths += 1

        mortal = threading.Thread(target=lives, daemon=True)
        mortal.start()
        config = server_config(tmp_path, method, save_every=2)
        result = ServerProcess(config, labels(), hub, a_status()).run()
    mortal.join(20)
    assert deaths >= 2
    compare(result, written(tmp_path), simulated(method))
    assert result["communication"]["resent_bytes"] > 0


def shorter(block):
    return Block(block.values[:, :-1], block.widths)


FAULTS = {
    "another kind": lambda reply: Agreed(),
    "a row less": lambda reply: replace(reply, block=shorter(reply.block)),
    "other numbers": lambda reply: replace(
        reply, block=Block(reply.block.values.double(), reply.block.widths)
    ),
    "other widths": lambda reply: replace(
        reply, block=Block(reply.block.values, (reply.block.widths[0] - 1,))
    ),
    "not finite": lambda reply: replace(
        reply, block=Block(reply.block.values / 0, reply.block.widths)
    ),
    "another stage": lambda reply: replace(reply, stage="joint_lasso"),
    "an early end": lambda reply: Done(reply.stage, (False,)),
    "not ahead": lambda reply: replace(reply, ahead=not reply.ahead),
}


class Faulty(PartyProcess):
    """A party that answers the fifth batch wrongly, once or always."""

    fault = "another kind"
    always = False
    n_wrong = 0
    n_seen = 0

    def handle(self, message):
        reply = super().handle(message)
        if not isinstance(message, Descend):
            return reply
        self.n_seen += 1
        if self.n_seen < 5 or (self.n_wrong and not self.always):
            return reply
        self.n_wrong += 1
        return FAULTS[self.fault](reply)


def a_faulty(out, fault, always=False):
    config = PartyConfig(out=str(out / "clinic"), reveal="counts")
    party = Faulty("clinic", config, a_table("clinic"))
    party.fault, party.always = fault, always
    return party


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_reply_costs_its_sender_the_connection_and_nobody_else(tmp_path, fault):
    refused = []
    with a_hub() as hub:
        parties = [a_party("bank", tmp_path), a_faulty(tmp_path, fault)]
        sides = [Side(party, hub.port) for party in parties]
        for side in sides:
            side.start()
        server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        hub.refused = lambda who, why: refused.append(who)
        result = server.run()
    for side in sides:
        side.join(20)
        assert side.error is None
    assert parties[1].n_wrong == 1
    assert refused == ["clinic"]
    compare(result, written(tmp_path), simulated("less-vfl"))


def test_a_party_that_is_always_wrong_ends_the_run_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("lessvfl.remote.server.MAX_TRIES", 3)
    with a_hub() as hub:
        for party in (
            a_party("bank", tmp_path),
            a_faulty(tmp_path, "a row less", True),
        ):
            Side(party, hub.port).start()
        server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        with pytest.raises(ProtocolError, match=r"3 breaks at the same step.*'clinic'"):
            server.run()


def test_a_break_during_alignment_is_mended(tmp_path):
    """The party made its offer, and is gone before it hears the common order."""
    n_offers = 0
    with a_hub() as hub:
        for name in HELD:
            Side(a_party(name, tmp_path), hub.port).start()
        send = hub.send

        def cut(requests):
            nonlocal n_offers
            n_offers += isinstance(requests.get("clinic"), Align)
            if n_offers == 2:
                n_offers += 1
                hub.hang_up("clinic")
            return send(requests)

        hub.send = cut
        result = ServerProcess(server_config(tmp_path), labels(), hub, a_status()).run()
    assert n_offers == 5
    assert result["accuracy"] == simulated("less-vfl")["accuracy"]


def test_a_party_that_stays_away_is_named(tmp_path):
    with a_hub() as hub:
        side = Side(a_party("bank", tmp_path), hub.port, patience=1)
        side.start()
        config = server_config(tmp_path, wait=0.3)
        server = ServerProcess(config, labels(), hub, a_status())
        with pytest.raises(PartyLostError, match="needs 'clinic', who is missing"):
            server.run()


def test_a_run_that_began_is_not_overwritten(tmp_path):
    run_all(tmp_path)
    with a_hub() as hub, pytest.raises(ConfigError, match="--resume must be given"):
        ServerProcess(server_config(tmp_path), labels(), hub, a_status())


def test_another_config_does_not_resume(tmp_path):
    run_all(tmp_path)
    with a_hub() as hub:
        sides = [Side(a_party(name, tmp_path), hub.port, 2) for name in HELD]
        for side in sides:
            side.start()
        config = server_config(tmp_path, seed=1)
        server = ServerProcess(config, labels(), hub, a_status(), resume=True)
        with pytest.raises(ConfigError, match="must be of the same config"):
            server.run()


# ----------------------------------------------------------------------------- refusals


def test_both_sides_hear_why_a_run_ends(tmp_path):
    """A party that allows three exchanges ends the run, and everybody knows why."""
    with a_hub() as hub:
        few = Side(a_party("clinic", tmp_path, max_rounds=3), hub.port)
        other = Side(a_party("bank", tmp_path), hub.port)
        few.start()
        other.start()
        server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        with pytest.raises(ProtocolError, match=r"'clinic' stops.*at most 3") as caught:
            server.run()
        hub.close(str(caught.value))
        few.join(20)
        other.join(20)
    assert isinstance(few.error, ConfigError)
    assert isinstance(other.error, ConfigError)
    assert "The server says no: Party 'clinic' stops" in str(other.error)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"party": "stranger"}, "expects clinic, bank. Got 'stranger'"),
        ({"threads": 7}, "must have the same threads. Got 1 and 7"),
        ({"device": "abacus"}, "must have the same device. Got cpu and abacus"),
        ({"versions": {"torch": "0.1"}}, "must have the same versions"),
    ],
)
def test_who_does_not_fit_is_refused(tmp_path, change, reason):
    with a_hub() as hub:
        ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        hello: Any = a_party("clinic", tmp_path).hello()
        hello = replace(hello, **change)
        address = Address(f"127.0.0.1:{hub.port}", None)
        with pytest.raises(ConfigError, match=reason):
            flight.serve(address, hello, lambda message: None, patience=5)
        assert hub.connected == ()


def test_a_second_connection_under_a_name_waits_and_disturbs_nobody(tmp_path):
    refused = []
    with a_hub(refused=lambda who, why: refused.append((who, why))) as hub:
        first = Side(a_party("clinic", tmp_path), hub.port)
        first.start()
        with pytest.raises(PartyLostError):
            hub.wait(0.5)  # for the bank
        hello = Hello("clinic", 1, 1, "cpu", {})
        address = Address(f"127.0.0.1:{hub.port}", None)
        with pytest.raises(PartyLostError, match="It is connected already"):
            flight.serve(address, hello, lambda message: None, patience=0.2)
        assert hub.connected == ("clinic",)
    assert refused[0][0] == "clinic"


@pytest.mark.parametrize("address", ["10.0.0.1:8815", "example.org:80", "8815", ":1"])
def test_without_encryption_only_loopback(address):
    with pytest.raises(ConfigError, match="must be"):
        Hub(address, ("clinic",), None)


def test_a_port_in_use_is_one_sentence():
    with a_hub() as hub, pytest.raises(ConfigError, match="able to listen at"):
        Hub(f"127.0.0.1:{hub.port}", ("clinic",), None).close()


# ---------------------------------------------------------------------------- alignment


def test_rows_in_any_order_are_aligned(tmp_path):
    """Each side has its own order, and some rows that the others lack."""
    rng = np.random.default_rng(0)
    everyone = np.arange(150)
    rows = {
        name: rng.permutation(everyone)[: 140 - 5 * i] for i, name in enumerate(HELD)
    }
    mine = rng.permutation(everyone)[:145]
    common = set(mine).intersection(*rows.values())
    with a_hub() as hub:
        parties = {
            name: a_party(name, tmp_path, own, own + 1000, align="plain", id="who")
            for name, own in rows.items()
        }
        sides = [Side(party, hub.port) for party in parties.values()]
        for side in sides:
            side.start()
        config = server_config(tmp_path, align="plain", id="who")
        server = ServerProcess(config, labels(mine, mine + 1000), hub, a_status())
        result = server.run()
    for side in sides:
        side.join(20)
        assert side.error is None
    found = read_state(tmp_path / "server" / "rows.safetensors").tensors["rows"]
    order = mine[found.numpy()]
    assert sorted(order) == sorted(common)
    for name, party in parties.items():  # the rows of the same people, in that order
        assert np.array_equal(party.frame.numeric, a_table(name, order).numeric)
    assert result["accuracy"]["final"] > 0.5


def test_rows_that_are_not_aligned_end_the_run(tmp_path):
    with a_hub() as hub:
        short = Side(a_party("clinic", tmp_path, slice(0, 100)), hub.port)
        other = Side(a_party("bank", tmp_path), hub.port)
        short.start()
        other.start()
        server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        with pytest.raises(LessVFLError):
            server.run()
        hub.close("The rows differ.")
        short.join(20)
        other.join(20)
    assert short.error is not None
    assert other.error is not None
