"""Server and parties over Flight: the simulator's numbers, faults, refusals."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import until
from tests.report import real
from tests.report.sides import party_record, server_record

from lessvfl import data, report, settings
from lessvfl.core import ending, plans
from lessvfl.data import stored
from lessvfl.errors import (
    AlignmentError,
    ConfigError,
    DataError,
    LessVFLError,
    PartyLostError,
    ProtocolError,
    RecordError,
)
from lessvfl.methods import METHODS
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.config import PartyConfig, ServerConfig
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.policy import LEAST, LIMITS, REFUSED, Policy
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.server_folder import known_form, note_offers
from lessvfl.remote.tables import NOT_THE_SERVERS, LabelTable
from lessvfl.run import profiles, simulate, verdicts
from lessvfl.run.folder import load
from lessvfl.run.record import RunRecord
from lessvfl.status import Status
from lessvfl.wire import dial
from lessvfl.wire.control import Agreed, Align, Finish, Hello, Prepare, Welcome
from lessvfl.wire.flight import Address, FlightHub
from lessvfl.wire.line import HubRules
from lessvfl.wire.messages import Begin, Block, Descend, Done, Embedding, Query, Select

# Aligned by their number alone: the point of other tests.
pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")

SHORT: dict[str, Any] = {  # each method takes what it reads
    "trees": 2,
    "select_trees": 3,
    "tree_depth": 2,
    "particles": 2,
    "swarm_rounds": 2,
    "particle_trees": 2,
    "least_rows": 5,
    "copies": 20,
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
    ("local-lasso", "default"): None,
    ("group-lasso", "default"): 11.5,
}


def own_settings(method: str, profile: str = "default") -> dict[str, Any]:
    known = settings.fields_of(profiles.sections(method))
    own = SHORT | {"lam_party": LAMBDAS.get((method, profile), 4.0)}
    return {name: value for name, value in own.items() if name in known}


@functools.cache
def simulated(
    method: str,
    profile: str = "default",
    seed: int = 0,
    weighted: bool = False,
    row_order: str | None = None,
):
    own = own_settings(method, profile) | (WEIGHTED if weighted else {})
    own |= {} if row_order is None else {"row_order": row_order}
    resolved = profiles.resolve(method, profile, a_dataset(), own)
    dataset = replace(a_dataset(), weight=ROWS_WEIGH if weighted else None)
    job = simulate.Job(dataset, resolved, parties=HELD, device="cpu")
    return simulate.simulate(job, [seed])[0].numbers


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


def told(values):
    """Return what of these settings is the server's to say."""
    return {k: v for k, v in values.items() if k not in NOT_THE_SERVERS}


def server_config(out: Path, method="less-vfl", profile="default", **more):
    own: dict[str, Any] = {"settings": told(own_settings(method, profile))}
    own |= {"wait": 20.0, "save_every": 3, "tell_share": True, "evaluation": "epochs"}
    own |= {"seed_private": "shared"}
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
            dial.serve(
                address,
                self.party.hello(),
                self.party.handle,
                patience=self.patience,
                due=self.party.due,
                is_over=lambda: self.party.has_finished,
                listener=self.party.listener(),
            )
        except BaseException as error:
            self.error = error
        finally:
            self.party.close()


def start(hub, *parties: PartyProcess, patience: float = 20.0) -> list[Side]:
    """Have parties take part, each in a thread."""
    sides = [Side(party, hub.port, patience) for party in parties]
    for side in sides:
        side.start()
    return sides


@contextlib.contextmanager
def a_hub(**more):
    hub = FlightHub("127.0.0.1:0", tuple(HELD), None, **{"silence": 20.0} | more)
    try:
        yield hub
    finally:
        hub.close()


def a_status():
    return Status("run", "less-vfl", "numbers", tuple(HELD))


ANYTHING = Policy(  # what these small runs need
    methods=tuple(METHODS),
    components_per_column=9,
    evaluation="epochs",
    values=100_000,
    limits=dict.fromkeys({**LIMITS, **LEAST, **REFUSED}),
)


def party_config(name: str, out: Path, **more):
    """Return the config of a party that does as the simulator does."""
    own: dict[str, Any] = {"reveal": "counts", "scale": "none", "policy": ANYTHING}
    own |= {"seed_private": "shared"}
    return PartyConfig(out=str(out / name), **own | more)


def a_party(name: str, out: Path, rows=slice(None), ids=None, **more):
    config = party_config(name, out, **more)
    return PartyProcess(name, config, a_table(name, rows), ids)


class Death(BaseException):
    """A process is gone."""


class Mortal(PartyProcess):
    """A party that dies before it answers once more."""

    left = 10**9

    def handle(self, message):
        self.left -= 1
        if self.left < 0:
            raise Death
        return super().handle(message)


def lives(port: int, make: Callable[[], PartyProcess]) -> Side:
    """Start a party again whenever it dies; return its last life."""
    while True:
        side = Side(make(), port)
        side.start()
        side.join()
        if not isinstance(side.error, Death):
            return side


def run_all(
    tmp_path,
    method="less-vfl",
    profile="default",
    status=None,
    table=None,
    own=None,
    seeds=(0,),
    evaluation="epochs",
    dies_at=None,
    table_of=a_table,
    server=None,
    **more,
):
    """Run to the end; return the server's record and what the parties wrote.

    `dies_at` says after how many messages a party dies, once.
    """
    left = dict(dies_at or {})
    ended = []

    def make(name):
        config = party_config(name, tmp_path, **more)
        party = Mortal(name, config, table_of(name))
        party.left = left.pop(name, 10**9)
        return party

    with a_hub() as hub:
        threads = [
            threading.Thread(
                target=lambda name=name: ended.append(
                    lives(hub.port, lambda: make(name))
                ),
                daemon=True,
            )
            for name in HELD
        ]
        for thread in threads:
            thread.start()
        values = own_settings(method, profile) | (own or {})
        config = server_config(
            tmp_path,
            method,
            profile,
            settings=told(values),
            seeds=seeds,
            evaluation=evaluation,
            **(server or {}),
        )
        process = ServerProcess(config, table or labels(), hub, status or a_status())
        try:
            record = process.run()
        finally:
            process.close()
    for thread in threads:
        thread.join(20)
    assert [side.error for side in ended] == [None] * len(HELD)
    return record, written(tmp_path)


@dataclass(frozen=True)
class Whole:
    """A run that is over, for several tests to look at."""

    folder: Path
    record: RunRecord
    own: dict[str, RunRecord]
    status: Status


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function that runs to the end, or gives the run that it made before."""

    @functools.cache
    def run(method="less-vfl", profile="default", seeds=(0,)):
        folder, status = tmp_path_factory.mktemp("whole"), a_status()
        record, own = run_all(folder, method, profile, status=status, seeds=seeds)
        return Whole(folder, record, own, status)

    return run


def written(folder):
    """Return what every party wrote into its run folder."""
    return {name: RunRecord.read(folder / name) for name in HELD}


def compare(record, own, *expected):
    """Compare every seed with the simulator's run of it."""
    assert len(record.runs) == len(expected)
    for place, (numbers, right) in enumerate(zip(record.runs, expected, strict=True)):
        compare_one(numbers, {n: of.runs[place] for n, of in own.items()}, right)
    agreed = verdicts.agreed(expected)
    assert {name: of.consensus[name] for name, of in own.items()} == agreed


def compare_one(numbers, own, expected):
    for name in ("seed", "accuracy", "balanced_accuracy", "without", "components"):
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
        assert own[name]["seed"] == expected["seed"]
        for which in ("features", "importance", "components"):
            assert own[name][which] == {name: expected[which][name]}
        selection = own[name].get("selection", {})
        assert selection.get(name) == (expected["selection"] or {}).get(name)
        mine = [line for line in numbers["bill"] if line["party"] == name]
        assert sorted(own[name]["bill"], key=str) == sorted(mine, key=str)


@pytest.mark.parametrize(
    ("method", "profile"),
    [
        ("less-vfl-auto", "default"),
        ("less-vfl", "default"),
        ("less-vfl", "official-code"),
        ("local-lasso", "paper"),
        ("group-lasso", "default"),
        ("plain", "default"),
        ("mmvfl", "default"),
        ("counterfactual", "default"),
        ("dual-gates", "default"),
        ("vflfs", "default"),
        ("iv-filter", "default"),
        ("vertical-boost", "default"),
        ("vertical-forest", "default"),
        ("pso-trees", "default"),
        ("vprf", "default"),
        ("auto-boost", "default"),
        ("gini-filter", "default"),
    ],
)
def test_the_same_bits_and_the_same_bill(whole, method, profile):
    record, own = (run := whole(method, profile)).record, run.own
    compare(record, own, simulated(method, profile))
    shows_the_bill(run.status, record.runs[0], method)
    runs = [party.runs[0]["features"][name] for name, party in own.items()]
    assert any(run["kept"] for run in runs)
    assert any(run["removed"] for run in runs) == (method != "plain")
    bill = record.runs[0]["communication"]
    for way in ("up", "down"):
        assert bill["wire_bytes"][way] > bill["payload_bytes"][way]
        frames = sum(both[way] for both in bill["frames"].values())
        assert bill["wire_bytes"][way] == frames
        for stage, paid in bill["by_stage"].items():
            assert bill["socket"][stage][way] > bill["frames"][stage][way] > paid[way]
    assert {"align", "around"} <= bill["socket"].keys()
    assert bill["resent_bytes"] == 0


def test_sums_of_trees_are_not_counted(whole):
    """A party's count has what its splits say where they are scored, and no more."""
    run = whole("vertical-boost")
    for name, party in run.own.items():
        (own,) = party.runs
        n_splits = own["components"][name]["kept"]
        n_passes = len(own["shown"]["scored"])
        assert n_passes == 2
        answers = [line for line in own["bill"] if line["kind"] == "answer"]
        assert sum(line["payload_bytes"] for line in answers) > 1000
        assert own["shown"]["values"] == n_passes * n_splits


@pytest.mark.parametrize("secret", ["sharing", "none"])
def test_rows_held_out_say_the_same_between_machines(tmp_path, secret):
    """Also how every party rated its features, after a break, and in no other place."""
    own = {"how_many": "held-out", "secret": secret}
    record, wrote = run_all(tmp_path, "iv-filter", own=own, dies_at={"clinic": 16})
    given = own_settings("iv-filter") | own
    resolved = profiles.resolve("iv-filter", "default", a_dataset(), given)
    job = simulate.Job(a_dataset(), resolved, parties=HELD, device="cpu")
    (expected,) = simulate.simulate(job, [0])
    compare(record, wrote, expected.numbers)
    for name, party in wrote.items():
        assert party.runs[0]["ratings"] == {name: expected.ratings[name]}


@pytest.mark.parametrize("method", ["vertical-boost", "vertical-forest"])
def test_trees_under_sharing_are_the_same_between_machines(tmp_path, method):
    """Also after a break, in which keys are made anew; and as in the clear."""
    own = {"secret": "sharing"}
    record, wrote = run_all(tmp_path, method, own=own, dies_at={"clinic": 20})
    given = own_settings(method) | own
    resolved = profiles.resolve(method, "default", a_dataset(), given)
    job = simulate.Job(a_dataset(), resolved, parties=HELD, device="cpu")
    (expected,) = simulate.simulate(job, [0])
    compare(record, wrote, expected.numbers)
    assert record.runs[0]["communication"]["resent_bytes"] > 0
    clear = simulated(method)
    assert expected.numbers["features"] == clear["features"]
    assert expected.numbers["accuracy"] == clear["accuracy"]


def test_rates_stay_with_their_owner(whole):
    """The server's folder has no bin and no rate, another party's has no bin."""
    run = whole("iv-filter")
    for name, party in run.own.items():
        features = party.runs[0]["ratings"][name]["features"]
        lines = [line for one in features for line in one["bins"]]
        bins = {line["bin"] for line in lines if len(line["bin"]) > 6}
        rates = {str(x) for line in lines for x in (*line["woe"], line["part"])}
        rates |= {str(one["score"]) for one in features}
        assert min(len(bins), len(rates)) > 20
        folder = run.folder / name
        report.build(folder)
        of_owner = (folder / "record.jsonl").read_text()
        assert all(text in of_owner for text in bins | rates)
        assert all(one in (folder / "ratings.csv").read_text() for one in bins)
        for path in run.folder.rglob("*"):
            if path.is_dir() or folder in path.parents:
                continue
            secret = bins | rates if run.folder / "server" in path.parents else bins
            found = path.read_bytes()
            assert not any(text.encode() in found for text in secret), path
    report.build(run.folder / "server")
    assert not list((run.folder / "server").rglob("ratings.csv"))
    assert "ratings" not in run.record.runs[0]


def test_parties_know_the_share_of_positives_only_where_the_server_tells(
    whole, tmp_path
):
    told = whole("less-vfl-auto").own
    _, untold = run_all(tmp_path, "less-vfl-auto", server={"tell_share": False})
    found = {
        tells: own["clinic"].runs[0]["selection"]["clinic"]
        for tells, own in ((True, told), (False, untold))
    }
    assert found[True]["power"]["auc"] == 0.55
    assert found[False]["power"]["auc"] is None
    assert found[False]["power"]["correlation"] == 0.1
    assert found[True]["at_most"] == found[False]["at_most"]


@pytest.mark.parametrize(
    ("method", "profile", "row_order"),
    [
        ("less-vfl-auto", "default", "blocks"),
        ("less-vfl", "paper", "shuffle"),
        ("less-vfl", "official-code", "file"),
        ("group-lasso", "default", "blocks"),
    ],
)
def test_rows_on_disk_give_the_same_bits_and_the_same_bill(
    tmp_path, method, profile, row_order, monkeypatch
):
    """Also where a party dies, and where rows are sent and scored in many parts."""
    monkeypatch.setattr(plans, "CHUNK", 16)
    monkeypatch.setattr(plans, "PART", 50)
    monkeypatch.setattr(stored, "AT_ONCE", 200)

    def on_disk(name):
        path = tmp_path / f"{name}.parquet"
        data.write_columns(path, a_table(name), np.arange(150))
        found, _ = data.open_columns(path, "row", "disk")
        assert isinstance(found, data.StoredTable)
        return found

    own = {"row_order": row_order}
    dies_at = {"clinic": 16}
    record, wrote = run_all(
        tmp_path, method, profile, own=own, dies_at=dies_at, table_of=on_disk
    )
    afresh = simulated.__wrapped__  # in blocks and parts of these sizes
    compare(record, wrote, afresh(method, profile, row_order=row_order))
    assert not list(tmp_path.rglob("rows-*"))


@pytest.mark.parametrize("method", ["less-vfl-auto", "group-lasso"])
def test_the_same_bits_where_rows_belong_together(tmp_path, method, monkeypatch):
    """Also where rows held out tell the end, and where a party dies."""
    monkeypatch.setattr(plans, "FEWEST_HELD_OUT", 10)
    monkeypatch.setattr(ending, "LOOK_EVERY", 2)
    monkeypatch.setattr(ending, "PATIENCE", 3)
    people = np.arange(150) // 4
    said: list[Prepare] = []
    prepared = PartyProcess._prepare

    def listen(self, message):
        said.append(message)
        return prepared(self, message)

    monkeypatch.setattr(PartyProcess, "_prepare", listen)
    own = own_settings(method) | {"train_epochs": 12}
    resolved = profiles.resolve(method, "default", a_dataset(), own)
    dataset = replace(a_dataset(), units=people)
    job = simulate.Job(dataset, resolved, parties=HELD, device="cpu")
    (expected,) = simulate.simulate(job, [0])
    table = labels()
    table = replace(table, dataset=replace(table.dataset, units=people))
    record, wrote = run_all(
        tmp_path,
        method,
        table=table,
        own={"train_epochs": 12},
        dies_at={"clinic": 16},
    )
    compare(record, wrote, expected.numbers)
    assert record.header["data"]["n_blocks"] == 38
    train, test = (np.concatenate([*said[0].places(of)]) for of in ("train", "test"))
    blocks: Any = said[0].blocks
    assert blocks.tolist() == data.blocks.in_order(people[train]).tolist()
    assert not set(people[train]) & set(people[test])


def test_a_party_says_that_rows_equal_each_other_of_which_nobody_told_it(
    tmp_path, caplog
):
    rows = np.r_[np.arange(75), np.arange(75)]
    run_all(tmp_path, "plain", table_of=lambda name: a_table(name, rows))
    said = [one.getMessage() for one in caplog.records if "equal another" in str(one)]
    assert len(said) == len(HELD)
    assert "100 % of the rows here" in said[0]
    assert "the label holder should name 'group_column'" in said[0]


WEIGHTED = {"class_weight": {"1": 3.0}}
ROWS_WEIGH = np.arange(150) % 4 + 1.0


@pytest.mark.parametrize("method", ["less-vfl-auto", "group-lasso"])
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
    record, wrote = run_all(tmp_path, method, table=table, own=own)
    expected = simulated(method, weighted=True)
    compare(record, wrote, expected)
    (numbers,) = record.runs
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


def shows_the_bill(status, numbers, method):
    """Check it by party, direction and stage, the components of stage 2 included."""
    shown, bill = status.snapshot(), numbers["bill"]
    has_stage_2 = "less" in method or method == "auto-boost"
    assert any(line["kind"] == "components" for line in bill) == has_stage_2
    billed = {line["stage"] for line in bill}
    for name, party in shown["parties"].items():
        for way in ("up", "down"):
            assert party["traffic"]["payload_bytes"][way] == paid(numbers, name, way)
            for stage in billed | set(party["by_stage"]):
                asked = party["by_stage"].get(stage)  # one that kept nothing is not
                found = 0 if asked is None else asked["payload_bytes"][way]
                assert found == paid(numbers, name, way, stage)
    total = numbers["communication"]["payload_bytes"]
    assert shown["traffic"]["payload_bytes"] == total
    assert shown["traffic"]["rounds"] == numbers["communication"]["rounds"]


def said(status):
    """Return what a status noted of its run."""
    return [event["text"] for event in status.snapshot()["events"]]


def test_a_party_shows_stage_steps_bytes_and_what_is_left_of_its_budget(tmp_path):
    with a_hub() as hub:
        parties = {name: a_party(name, tmp_path) for name in HELD}
        sides = start(hub, *parties.values())
        config = server_config(tmp_path, "less-vfl-auto")
        (numbers,) = ServerProcess(config, labels(), hub, a_status()).run().runs
    for side in sides:
        side.join(20)
        assert side.error is None
    for name, party in parties.items():
        own = party.status.snapshot()["parties"]["server"]["traffic"]
        for way in ("up", "down"):
            assert own["payload_bytes"][way] == paid(numbers, name, way)
            assert own["wire_bytes"][way] > own["payload_bytes"][way]
    shown = parties["clinic"].status.snapshot()
    assert (shown["side"], shown["method"]) == ("clinic", "less-vfl-auto")
    assert shown["stage"] == "train"
    assert shown["step"] == shown["steps"]["train"] > 0
    budget = parties["clinic"].budget
    policy = parties["clinic"].config.policy
    assert shown["allowance"]["rounds"] == policy.rounds - budget.counts["rounds"]
    told = said(parties["clinic"].status)
    stages = [text for text in told if "ended" not in text]
    assert [text.partition(":")[0] for text in stages][-6:] == [
        "pre-training",
        "embeddings",
        "parties select features",
        "first training",
        "parties select again",
        "training",
    ]
    assert shown["score"] is None  # scores are the server's


def test_a_party_that_kept_nothing_says_so_and_costs_no_more(tmp_path):
    """A constant would tell as much; the documents say that the server knows."""
    record, own = run_all(tmp_path, "group-lasso", reveal="nothing")
    (numbers,) = record.runs
    kept = {n: party.runs[0]["features"][n]["kept"] for n, party in own.items()}
    (empty,) = [name for name, names in kept.items() if not names]
    assert paid(numbers, empty, "up", "train") == 0
    assert paid(numbers, empty, "down", "train") == 0
    assert numbers["features"] == dict.fromkeys(HELD)
    assert numbers["counts"] == {}


# -------------------------------------------------------------------------------- seeds


def both(method):
    """Return the simulator's runs of two seeds, each alone."""
    return [simulated(method, seed=seed) for seed in (3, 1)]


@pytest.mark.parametrize("method", ["less-vfl", "plain"])
def test_several_seeds_are_the_runs_of_each(whole, method):
    """One after the other, over the same connection, each split by its own seed."""
    run = whole(method, seeds=(3, 1))
    record = run.record
    compare(record, run.own, *both(method))
    shown = run.status.snapshot()
    # One may have come before the status was there to be told.
    assert max(party["connections"] for party in shown["parties"].values()) <= 1
    assert (shown["seed"], shown["seed_number"], shown["n_seeds"]) == (1, 2, 2)
    total = {way: paid_by_all(record, way) for way in ("up", "down")}
    assert shown["traffic"]["payload_bytes"] == total
    assert any(
        event["text"].startswith("seed 1 (2 of 2), ") for event in shown["events"]
    )
    assert [run["communication"]["resent_bytes"] for run in record.runs] == [0, 0]
    wire = [run["communication"]["wire_bytes"]["up"] for run in record.runs]
    assert 0.5 * wire[0] < wire[1] < 1.2 * wire[0]  # its own, not those of both
    assert ["align" in run["communication"]["socket"] for run in record.runs] == [
        True,
        False,
    ]


def paid_by_all(record, way):
    return sum(run["communication"]["payload_bytes"][way] for run in record.runs)


def test_seeds_of_one_run_differ():
    """Else the test above could not tell them apart."""
    first, second = both("less-vfl")
    assert first["features"] != second["features"]
    assert first["curve"] != second["curve"]


def test_what_seeds_recommend_is_known_to_the_party_alone(tmp_path):
    record, own = run_all(tmp_path, reveal="nothing", seeds=(3, 1))
    assert record.consensus == {}
    assert [run["features"] for run in record.runs] == [dict.fromkeys(HELD)] * 2
    for name, party in own.items():
        assert (party.side, party.header["party"]) == ("party", name)
        for seed, run in zip((3, 1), party.runs, strict=True):
            assert load(tmp_path / name, seed).kept == tuple(
                run["features"][name]["kept"]
            )
            assert run["seed"] == seed
    everything = b"".join(
        path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file()
    )
    assert b"x4" in (tmp_path / "bank" / "record.jsonl").read_bytes()
    assert b"x4" not in everything


def test_records_of_sides_that_tests_make_up_have_only_fields_of_real_ones(whole):
    run, simulation = whole("less-vfl-auto"), real.shadows()
    made = server_record(simulation, {"bank": "counts"})
    assert not real.strange_fields(made, run.record)
    assert not real.strange_fields(party_record(simulation), run.own["bank"])


@pytest.mark.parametrize("reveal", ["counts", "features"])
def test_what_parties_reveal_is_in_the_record(whole, tmp_path, reveal):
    if reveal == "counts":
        run = whole(seeds=(3, 1))
        folder, record, own = run.folder, run.record, run.own
    else:
        folder = tmp_path
        record, own = run_all(tmp_path, reveal=reveal, seeds=(3, 1))
    for run, right in zip(record.runs, both("less-vfl"), strict=True):
        names = right["features"]
        if reveal == "features":
            assert run["features"] == names
            assert run["counts"] == {}
        else:
            assert run["features"] == dict.fromkeys(HELD)
            assert run["counts"] == {
                name: {
                    "n_kept": len(names[name]["kept"]),
                    "n_removed": len(names[name]["removed"]),
                }
                for name in HELD
            }
    assert set(record.consensus) == (set(own) if reveal == "features" else set())
    for name, one in record.consensus.items():
        right = own[name].consensus[name]
        assert one | {"verdicts": right["verdicts"]} == right
        for feature, verdict in one["verdicts"].items():  # none of it contradicts
            assert verdict in ("removed", right["verdicts"][feature])
    assert RunRecord.read(folder / "server") == record
    page = report.build(folder / "server").read_text()
    assert ("Recommended features" in page) == (reveal == "features")
    assert record.header["data"]["n_parties"] == 2
    assert record.header["data"]["n_features"] is None


@pytest.mark.parametrize(
    "revealed",
    [
        {},
        {"kept": ["x0"]},
        {"kept": ["x0"], "removed": "x1"},
        {"kept": [["x0"]], "removed": []},
        {"n_kept": 1, "n_removed": -1},
        {"n_kept": True, "n_removed": 1},
        {"n_kept": 1, "n_removed": 1, "kept": []},
    ],
)
def test_a_revelation_of_another_form_is_none(revealed):
    model = {"model": "a" * 64}
    assert known_form(model | revealed) == model


@pytest.mark.parametrize("told", [{}, {"model": "x" * 64}, {"model": 3}])
def test_a_party_says_which_network_it_ends_with(told):
    with pytest.raises(ProtocolError, match="a digest of its network"):
        known_form(told)


def test_exchanges_are_counted_over_all_seeds(whole, tmp_path):
    """What would do for one seed ends the second."""
    spent = read_state(whole().folder / "clinic" / "spent.safetensors").values
    limit = spent["rounds"] + 5
    few = replace(ANYTHING, rounds=limit)
    with a_hub() as hub:
        start(hub, a_party("clinic", tmp_path, policy=few), a_party("bank", tmp_path))
        config = server_config(tmp_path, seeds=(3, 1))
        process = ServerProcess(config, labels(), hub, a_status())
        with pytest.raises(
            ProtocolError, match=f"'clinic' stops.*allows {limit} rounds"
        ):
            process.run()
        assert process.status.snapshot()["seed"] == 1


def test_runs_of_another_session_do_not_count(tmp_path):
    """A party's folder may hold seeds of a run that was given up."""
    for name in HELD:
        place = tmp_path / name / "seed-1"
        place.mkdir(parents=True)
        other = {"run": "another", "numbers": {"kept": [], "removed": []}}
        (place / "numbers.json").write_text(json.dumps(other))
    status, over = a_status(), []
    begin = status.begin_seed

    def look(*place):
        over.append((tmp_path / "clinic" / "record.jsonl").exists())
        begin(*place)

    status.begin_seed = look
    record, own = run_all(tmp_path, status=status, seeds=(3, 1))
    compare(record, own, *both("less-vfl"))
    assert over == [False, False]  # the party is done after the second seed alone


def test_a_party_says_how_many_cells_it_filled_in(tmp_path, caplog):
    def with_gaps(name):
        frame = a_table(name)
        frame.numeric[3:10, 0] = np.nan
        return frame

    with caplog.at_level("INFO", logger="lessvfl.remote"):
        run_all(tmp_path, "less-vfl", table_of=with_gaps, evaluation="end")
    said = [line for line in caplog.messages if "missing cells were filled in" in line]
    assert [line.split()[0] for line in said] == ["7"] * len(HELD)


def test_a_seed_that_was_not_told_is_refused(tmp_path):
    party = a_party("clinic", tmp_path)
    rows = Prepare.of(5, np.arange(1), np.arange(1, 3))
    with pytest.raises(ProtocolError, match="must be told all seeds"):
        party.handle(rows)
    net = {"embedding_size": 2}
    party.handle(Welcome("r", (0, 1), "less-vfl", net, ("clinic",), "none"))
    with pytest.raises(ProtocolError, match="must be told all seeds"):
        party.handle(rows)


# ------------------------------------------------------------------------------- faults


class Cut(Exception):
    """The server is gone."""


def seed_at_hand(folder):
    """Return the seed whose run has begun and is not over; None: none."""
    for place in folder.glob("seed-*"):
        if not (place / "numbers.json").is_file():
            return place.name
    return None


@pytest.mark.parametrize(
    ("method", "seeds"),
    [
        ("local-lasso", (0,)),
        ("group-lasso", (0,)),
        ("less-vfl", (3, 1)),
        ("less-vfl-auto", (3, 1)),
        ("dual-gates", (0,)),
        ("counterfactual", (0,)),
        ("vflfs", (0,)),
        ("vertical-boost", (0,)),
        ("pso-trees", (0,)),
        ("vprf", (0,)),
        ("auto-boost", (0,)),
    ],
)
def test_a_server_that_dies_at_any_exchange_goes_on(tmp_path, method, seeds):
    """Killed after every few exchanges: bits and bill of an undisturbed run."""
    with a_hub() as hub:
        sides = start(hub, *(a_party(name, tmp_path) for name in HELD))
        config = server_config(tmp_path, method, save_every=2, seeds=seeds)
        original, budget, deaths, died_in = hub.send, 9, 0, set()

        def send(requests, greeted=None):
            nonlocal budget
            budget -= 1
            if budget < 0:
                raise Cut
            return original(requests, greeted)

        hub.send = send
        while True:
            try:
                process = ServerProcess(
                    config, labels(), hub, a_status(), resume=deaths > 0
                )
                result = process.run()
                break
            except Cut:
                process.close()
                deaths += 1
                budget = 9 + 4 * deaths
                died_in.add(seed_at_hand(tmp_path / "server"))
    assert deaths >= 2
    assert died_in >= {f"seed-{seed}" for seed in seeds}
    for side in sides:
        side.join(20)
    right = [simulated(method, seed=seed) for seed in seeds]
    compare(result, written(tmp_path), *right)


@pytest.mark.parametrize(
    ("method", "at"),
    [("vertical-boost", 30), ("vertical-forest", 16), ("auto-boost", 50)],
)
def test_trees_that_have_grown_do_not_grow_again(tmp_path, method, at, monkeypatch):
    """After a break late in the run the first query is not asked again."""
    asked: list[tuple[str, int]] = []
    handle = Mortal.handle

    def count(party, message):
        if isinstance(message, Query):
            asked.append((party.name, message.step))
        return handle(party, message)

    monkeypatch.setattr(Mortal, "handle", count)
    often = {"save_every": 2}
    record, own = run_all(tmp_path, method, server=often, dies_at={"clinic": at})
    compare(record, own, simulated(method))
    steps = [step for party, step in asked if party == "bank"]
    n_again = len(steps) - len(set(steps))
    assert steps.count(0) == 1
    assert 0 < n_again <= max(steps) / 2


@pytest.mark.parametrize("leaves", [False, True])
def test_the_end_is_told_in_short_to_who_stayed(tmp_path, leaves, monkeypatch, caplog):
    """Its rows are not named again; who came anew since then learns of it all.

    Who is away then is waited for, and the operator reads so at once.
    """
    caplog.set_level("INFO", "lessvfl")
    told: list[tuple[str, str]] = []
    finish = ServerProcess._finish

    def hang_up_first(process, files):
        caplog.clear()
        if leaves:
            process.hub.hang_up("clinic")
        original = process.hub.send

        def send(requests, greeted=None):
            told.extend((p, type(m).__name__) for p, m in requests.items())
            return original(requests, greeted)

        process.hub.send = send
        finish(process, files)

    monkeypatch.setattr(ServerProcess, "_finish", hang_up_first)
    record, own = run_all(tmp_path, "plain")
    compare(record, own, simulated("plain"))
    for name in HELD:
        said = [kind for party, kind in told if party == name]
        again = ["Welcome", "Prepare"] if leaves and name == "clinic" else []
        assert said[-2 - len(again) :] == [*again, "Restore", "Finish"]
        assert ("Prepare" in said) == bool(again)
    waits = [line for line in caplog.messages if line.startswith("waiting for clinic")]
    whole = ["waiting for clinic, for up to 20 s; Ctrl-C ends the wait"]
    assert waits == whole * leaves


@pytest.mark.parametrize(
    ("method", "seeds"),
    [
        ("less-vfl-auto", (0,)),
        ("group-lasso", (0,)),
        ("less-vfl", (3, 1)),
        ("dual-gates", (0,)),
        ("counterfactual", (0,)),
        ("vflfs", (0,)),
        ("vertical-boost", (0,)),
        ("pso-trees", (0,)),
        ("vprf", (0,)),
        ("auto-boost", (0,)),
    ],
)
def test_a_party_that_dies_comes_back(tmp_path, method, seeds):
    """Its process is gone, and with it everything that was not written down."""
    with a_hub() as hub:
        start(hub, a_party("bank", tmp_path))
        deaths, died_in = 0, set()

        def make():
            nonlocal deaths
            own = party_config("clinic", tmp_path)
            party = Mortal("clinic", own, a_table("clinic"))
            party.left = 12 + (3 if method != "vprf" else 8) * deaths  # votes: 2 ways
            if seed_at_hand(tmp_path / "server"):
                died_in.add(seed_at_hand(tmp_path / "server"))
            deaths += 1
            return party

        mortal = threading.Thread(target=lives, args=(hub.port, make), daemon=True)
        mortal.start()
        config = server_config(tmp_path, method, save_every=2, seeds=seeds)
        result = ServerProcess(config, labels(), hub, a_status()).run()
    mortal.join(20)
    assert deaths > 2
    assert died_in >= {f"seed-{seed}" for seed in seeds}
    right = [simulated(method, seed=seed) for seed in seeds]
    compare(result, written(tmp_path), *right)
    for run in result.runs:
        assert run["communication"]["resent_bytes"] > 0


def test_a_party_killed_behind_its_record_answers_again(
    tmp_path, run_cli, caplog, monkeypatch
):
    """The server has not heard that it finished; when it has, all is over at once."""

    class Killed(PartyProcess):
        def handle(self, message):
            reply = super().handle(message)
            if isinstance(message, Finish):
                raise Death
            return reply

    monkeypatch.setattr("lessvfl.cli.ending.threads_hang", lambda hang: None)
    frame = a_table("clinic")
    file, path = tmp_path / "clinic.csv", tmp_path / "party.yaml"
    rows = [frame.names, *frame.numeric.tolist()]
    file.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    with a_hub() as hub:
        where = {"server": f"127.0.0.1:{hub.port}", "data": str(file), "wait": 20.0}
        own = replace(party_config("clinic", tmp_path, **where), name="clinic")
        path.write_text(json.dumps(asdict(own)))
        command = ("party", "--config", path, "--insecure", "--quiet")
        killed = Killed.load("clinic", own, Status("", "", "", ["server"]))
        sides = start(hub, killed, a_party("bank", tmp_path))
        config = server_config(tmp_path, "plain")
        process = ServerProcess(config, labels(), hub, a_status())
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(process.run)
            until(lambda: not sides[0].is_alive(), 60)
            assert isinstance(sides[0].error, Death), sides[0].error
            before = RunRecord.read(tmp_path / "clinic")
            farewell = pool.submit(lambda: (running.result(), hub.close()))
            told = run_cli(*command)
            farewell.result()
        process.close()
    assert told.code == 0, told.err
    assert "is over; another" not in told.out
    record = running.result()
    assert RunRecord.read(tmp_path / "clinic") == before
    assert record.runs[0]["models"]["clinic"] == before.runs[0]["models"]["clinic"]
    told = run_cli(*command)  # nobody is dialled: there is no server
    assert told.code == 0, told.err
    assert "is over; another needs another 'out'" in told.out
    # Where that is not known, the server is looked for, and its absence is no error.
    (tmp_path / "clinic" / "over.json").unlink()
    path.write_text(json.dumps(asdict(replace(own, wait=0.3))))
    assert run_cli(*command).code == 0
    assert "if the server still waits for it, start the server again" in caplog.text


def test_a_server_goes_on_with_the_labels_it_began_with(whole):
    table = labels()
    flipped = replace(table.dataset, y=1 - table.dataset.y)
    weighed = replace(table.dataset, weight=ROWS_WEIGH)
    config = server_config(whole().folder)
    with a_hub() as hub:
        for other, what in (
            (replace(table, dataset=flipped), "labels"),
            (replace(table, dataset=weighed), "weights"),
            (replace(table, ids=np.arange(150)), "ids"),
            (table.take(np.arange(100)), "cells"),
        ):
            with pytest.raises(RecordError, match=f"Got other {what}"):
                ServerProcess(config, other, hub, a_status(), resume=True)
        ServerProcess(config, table, hub, a_status(), resume=True).close()


def test_two_servers_on_one_run_folder_are_refused(tmp_path):
    config = server_config(tmp_path)
    with a_hub() as hub:
        first = ServerProcess(config, labels(), hub, a_status())
        with pytest.raises(ConfigError, match="must be of one process at a time"):
            ServerProcess(config, labels(), hub, a_status())
        first.close()
        ServerProcess(config, labels(), hub, a_status()).close()


def test_a_side_that_cannot_begin_lets_go_of_its_run_folder(tmp_path):
    config = server_config(tmp_path, align="psi")
    with a_hub() as hub:
        with pytest.raises(AlignmentError, match="a column of ids") as of_server:
            ServerProcess(config, labels(), hub, a_status())
        ServerProcess(server_config(tmp_path), labels(), hub, a_status()).close()
    with pytest.raises(ConfigError, match="nobody") as of_party:
        a_party("clinic", tmp_path, must_keep="nobody")
    a_party("clinic", tmp_path).close()
    del of_server, of_party  # they keep what failed in memory, as a log may


@pytest.mark.parametrize("when", ["end", "nothing"])
def test_a_run_may_score_less(tmp_path, when):
    """With a policy that allows no more."""
    policy = replace(ANYTHING, evaluation=when)
    record, own = run_all(tmp_path, policy=policy, evaluation=when)
    (numbers,) = record.runs
    right = simulated("less-vfl")
    assert len(numbers["curve"]) == (when == "end")
    final = right["accuracy"]["final"] if when == "end" else None
    assert numbers["accuracy"]["final"] == final
    for name in HELD:
        assert own[name].runs[0]["features"][name] == right["features"][name]
    bill = numbers["communication"]["by_stage"]
    assert ("evaluate" in bill) == (when == "end")
    for name in HELD if when == "end" else ():  # 30 test rows
        lines = [
            b for b in numbers["bill"] if (b["stage"], b["party"]) == ("evaluate", name)
        ]
        kept = numbers["components"][name]["kept"]
        n_bytes = sum(b["payload_bytes"] for b in lines)
        assert 30 * kept < n_bytes < 30 * kept + 16  # at 8 bits, and their range
        assert numbers["without"][name]["accuracy"] is not None


def test_a_party_with_its_own_secret_goes_on_to_the_bit(tmp_path):
    """Other numbers than with shared seeds, and the same ones after its death."""
    first, own = run_all(tmp_path / "calm", seed_private="own")
    assert first.runs[0]["curve"] != simulated("less-vfl")["curve"]
    for name in ("server", *HELD):  # the same secrets for another run
        state = read_state(tmp_path / "calm" / name / "side.safetensors")
        fresh = State(state.tensors, {"facts": None}, state.secret)
        write_state(tmp_path / "broken" / name / "side.safetensors", fresh)
    second, again = run_all(
        tmp_path / "broken", seed_private="own", dies_at={"clinic": 15}
    )
    (calm,), (broken,) = first.runs, second.runs
    assert broken["curve"] == calm["curve"]
    for name in HELD:
        (one,), (other,) = own[name].runs, again[name].runs
        assert one == other


def test_a_party_that_lost_its_folder_cannot_go_on(tmp_path):
    """The first seed is over, and what it kept then is gone with the folder."""
    with a_hub() as hub:
        start(hub, *(a_party(name, tmp_path) for name in HELD))
        config = server_config(tmp_path, seeds=(3, 1))
        process = ServerProcess(config, labels(), hub, a_status())
        send = hub.send

        def lose(requests, greeted=None):
            if process.status.snapshot()["seed"] == 1:
                shutil.rmtree(tmp_path / "clinic")
                hub.send = send
            return send(requests, greeted)

        hub.send = lose
        with pytest.raises(ConfigError, match="Party 'clinic' must use its run"):
            process.run()


def shorter(block):
    return Block(block.values[:-1])


def stretched(block, factor):
    """Return a block whose levels are so many times as far apart."""
    return replace(block, coded=replace(block.coded, step=block.coded.step * factor))


FAULTS = {  # by what is said of them
    "A reply must be Embedding. Got Agreed": lambda reply: Agreed(),
    "A block must be of shape": lambda reply: replace(
        reply, block=shorter(reply.block)
    ),
    "float64": lambda reply: replace(reply, block=Block(reply.block.values.double())),
    "values that are not finite": lambda reply: replace(
        reply, block=stretched(reply.block, np.inf)
    ),
    "above 1e+06": lambda reply: replace(reply, block=stretched(reply.block, 1e30)),
    "must be in 8 bits a value. Got 32": lambda reply: replace(
        reply, block=Block(reply.block.values)
    ),
    "A reply must be of stage": lambda reply: replace(reply, stage="joint_lasso"),
    "A reply must be Embedding. Got Done": lambda reply: Done(reply.stage),
    "must be of the next step": lambda reply: replace(reply, ahead=not reply.ahead),
}


class Faulty(PartyProcess):
    """A party that answers some batches wrongly, each time in another way."""

    left: list[str]
    every = 2
    n_seen = 0

    def handle(self, message):
        reply = super().handle(message)
        if not isinstance(message, Descend) or not isinstance(reply, Embedding):
            return reply
        self.n_seen += 1
        if self.n_seen < 5 or self.n_seen % self.every or not self.left:
            return reply
        fault, *self.left = self.left
        return FAULTS[fault](reply)


def a_faulty(out, due):
    party = Faulty("clinic", party_config("clinic", out), a_table("clinic"))
    party.left = due
    return party


def test_a_wrong_reply_costs_its_sender_the_connection_and_nobody_else(tmp_path):
    refused = []
    with a_hub() as hub:
        faulty = a_faulty(tmp_path, [*FAULTS])
        sides = start(hub, a_party("bank", tmp_path), faulty)
        server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        hub.rules = replace(hub.rules, refused=lambda *why: refused.append(why))
        result = server.run()
    for side in sides:
        side.join(20)
        assert side.error is None
    for (who, why), said in zip(refused, FAULTS, strict=True):
        assert who == "clinic"
        assert said in why
    compare(result, written(tmp_path), simulated("less-vfl"))


class Twice(PartyProcess):
    """A party that answers stage 3 wrongly once, and then the next stage once."""

    left: tuple[type, ...] = (Select, Begin)

    def handle(self, message):
        reply = super().handle(message)
        stage = getattr(message, "stage", None)
        if self.left and isinstance(message, self.left[0]) and stage != "pretrain":
            self.left = self.left[1:]
            return Agreed()
        return reply


@pytest.mark.parametrize("method", ["less-vfl", "less-vfl-auto", "local-lasso"])
def test_two_breaks_around_stage_3_change_nothing(tmp_path, method):
    """After the first, the server once saved its first weights in place of its last."""
    with a_hub() as hub:
        twice = Twice("clinic", party_config("clinic", tmp_path), a_table("clinic"))
        sides = start(hub, twice, a_party("bank", tmp_path))
        config = server_config(tmp_path, method)
        result = ServerProcess(config, labels(), hub, a_status()).run()
    for side in sides:
        side.join(20)
    assert twice.left == ()
    compare(result, written(tmp_path), simulated(method))


class Breaks(PartyProcess):
    """A party that answers some gradients of training wrongly, once each."""

    n_seen = 0
    left = (5, 9)

    def handle(self, message):
        reply = super().handle(message)
        if isinstance(message, Descend) and message.stage == "train":
            self.n_seen += 1
            if self.n_seen in self.left:
                return Agreed()
        return reply


def test_training_ends_by_itself_between_machines_and_after_breaks_too(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(plans, "FEWEST_HELD_OUT", 10)
    monkeypatch.setattr(ending, "LOOK_EVERY", 2)
    monkeypatch.setattr(ending, "PATIENCE", 3)
    monkeypatch.setattr(ending, "BETTER", 0.05)
    more = {"train_epochs": 30}
    own = own_settings("less-vfl-auto") | more
    resolved = profiles.resolve("less-vfl-auto", "default", a_dataset(), own)
    job = simulate.Job(a_dataset(), resolved, parties=HELD, device="cpu")
    expected = simulate.simulate(job, [0])[0].numbers
    train = expected["communication"]["by_stage"]["train"]
    assert 12 < train["rounds"] < 60  # of about 90 steps
    with a_hub() as hub:
        breaks = Breaks("clinic", party_config("clinic", tmp_path), a_table("clinic"))
        sides = start(hub, breaks, a_party("bank", tmp_path))
        config = server_config(tmp_path, "less-vfl-auto", settings=told(own))
        result = ServerProcess(config, labels(), hub, a_status()).run()
    for side in sides:
        side.join(20)
    assert breaks.n_seen > 9
    compare(result, written(tmp_path), expected)


def test_a_party_that_is_always_wrong_ends_the_run_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("lessvfl.remote.server.MAX_TRIES", 3)
    with a_hub() as hub:
        always = a_faulty(tmp_path, ["A block must be of shape"] * 1000)
        always.every = 1
        start(hub, a_party("bank", tmp_path), always)
        server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        with pytest.raises(ProtocolError, match=r"3 breaks at the same step.*'clinic'"):
            server.run()


@pytest.mark.parametrize(
    ("mode", "at", "n_sent"), [("none", 2, 5), ("psi", 2, 6), ("psi", 3, 7)]
)
def test_a_break_during_alignment_is_mended(tmp_path, monkeypatch, mode, at, n_sent):
    """The party made its offer, and is gone before it hears the common order."""
    monkeypatch.setattr("lessvfl.remote.align.messages.PAD_TO", 8)
    n_offers, ids = 0, np.arange(150 if mode == "none" else 80)
    own = {} if mode == "none" else {"align": mode, "id": "who"}
    with a_hub() as hub:
        start(hub, *(a_party(name, tmp_path, ids, ids, **own) for name in HELD))
        send = hub.send

        def cut(requests, greeted=None):
            nonlocal n_offers
            n_offers += isinstance(requests.get("clinic"), Align)
            if n_offers == at:
                n_offers += 1
                hub.hang_up("clinic")
            return send(requests, greeted)

        hub.send = cut
        config = server_config(tmp_path, **own)
        result = ServerProcess(config, labels(ids, ids), hub, a_status()).run()
    assert n_offers == n_sent
    if mode == "none":  # the same order of rows
        assert result.runs[0]["accuracy"] == simulated("less-vfl")["accuracy"]


def test_a_party_makes_few_offers_a_run(tmp_path):
    """Who breaks off and offers other ids could try them all out on the server's."""
    with a_hub() as hub:
        for made in (b"one", b"two", b"three", b"one"):
            server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
            note_offers(server.folder, {"clinic": made, "bank": b"one"}, hub.cut_off)
            server.close()  # after a restart, too
        server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        with pytest.raises(PartyLostError, match="at most 3 times"):
            note_offers(server.folder, {"clinic": b"four", "bank": b"one"}, hub.cut_off)
        server.close()


def test_a_party_that_stays_away_is_named(tmp_path):
    with a_hub() as hub:
        start(hub, a_party("bank", tmp_path), patience=1)
        until(lambda: hub.connected)
        config = server_config(tmp_path, wait=0.3)
        server = ServerProcess(config, labels(), hub, a_status())
        with pytest.raises(PartyLostError, match="Party 'clinic' is missing"):
            server.run()


def test_a_run_that_began_is_not_overwritten(whole):
    config = server_config(whole().folder)
    with a_hub() as hub, pytest.raises(ConfigError, match="--resume must be given"):
        ServerProcess(config, labels(), hub, a_status())


def test_a_run_that_is_over_is_over(whole):
    """No party has to come for it, and its record stays as it is."""
    run = whole(seeds=(3, 1))
    with a_hub() as hub:
        config = server_config(run.folder, seeds=(3, 1))
        again = ServerProcess(config, labels(), hub, a_status(), resume=True)
        assert again.run() == run.record
        again.close()


def test_another_config_does_not_resume(whole, tmp_path):
    shutil.copytree(whole().folder, tmp_path, dirs_exist_ok=True)
    with a_hub() as hub:
        start(hub, *(a_party(name, tmp_path) for name in HELD), patience=2)
        config = server_config(tmp_path, seeds=(1,))
        server = ServerProcess(config, labels(), hub, a_status(), resume=True)
        with pytest.raises(ConfigError, match="Got another 'seeds'"):
            server.run()


# ----------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"party": "stranger"},
            r"\(config\): The server does not expect 'stranger'\.$",
        ),
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
            dial.serve(address, hello, lambda message: None, patience=5)
        assert hub.connected == ()


def test_a_party_on_another_kind_of_processor_takes_part(tmp_path, monkeypatch):
    """It has another build of torch, and another last bit in every number."""

    class Elsewhere(PartyProcess):
        def handle(self, message):
            if isinstance(message, Descend):
                rate = math.nextafter(message.rate, 0)
                message = replace(message, rate=rate)
            reply = super().handle(message)
            if isinstance(reply, Embedding):
                values = torch.nextafter(reply.block.values, torch.tensor(9.0))
                reply = replace(reply, block=replace(reply.block, values=values))
            return reply

    with monkeypatch.context() as patch:
        patch.setattr("platform.machine", lambda: "riscv64")
        patch.setattr("torch.__version__", torch.__version__.split("+")[0] + "+other")
        other = Elsewhere("clinic", party_config("clinic", tmp_path), a_table("clinic"))
        hello = other.hello()
    monkeypatch.setattr(other, "hello", lambda: hello)
    with a_hub() as hub:
        sides = start(hub, other, a_party("bank", tmp_path))
        server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        (numbers,) = server.run().runs
    for side in sides:
        side.join(10)
        assert side.error is None
    right = simulated("less-vfl")["accuracy"]["final"]
    assert numbers["accuracy"]["final"] == pytest.approx(right, abs=0.1)


def test_a_second_connection_under_a_name_waits_and_disturbs_nobody(tmp_path):
    refused = []
    with a_hub(rules=HubRules(refused=lambda who, why: refused.append(who))) as hub:
        start(hub, a_party("clinic", tmp_path))
        until(lambda: hub.connected)
        hello = Hello("clinic", 1, "cpu", {})
        address = Address(f"127.0.0.1:{hub.port}", None)
        with pytest.raises(PartyLostError, match="It is connected already"):
            dial.serve(address, hello, lambda message: None, patience=0.5)
        assert hub.connected == ("clinic",)
    assert refused[0] == "clinic"


@pytest.mark.parametrize("address", ["10.0.0.1:8815", "example.org:80", "8815", ":1"])
def test_without_encryption_only_loopback(address):
    with pytest.raises(ConfigError, match="must be"):
        FlightHub(address, ("clinic",), None)


def test_a_port_in_use_is_one_sentence():
    with a_hub() as hub, pytest.raises(ConfigError, match="able to listen at"):
        FlightHub(f"127.0.0.1:{hub.port}", ("clinic",), None).close()


# ---------------------------------------------------------------------------- alignment


@pytest.mark.parametrize("mode", ["plain", "psi"])
def test_rows_in_any_order_are_aligned(tmp_path, monkeypatch, mode):
    """Each side has its own order, and some rows that the others lack."""
    monkeypatch.setattr("lessvfl.remote.align.messages.PAD_TO", 8)
    rng = np.random.default_rng(0)
    everyone = np.arange(150)
    rows = {
        name: rng.permutation(everyone)[: 140 - 5 * i] for i, name in enumerate(HELD)
    }
    mine = rng.permutation(everyone)[:145]
    common = set(mine).intersection(*rows.values())
    with a_hub() as hub:
        parties = {
            name: a_party(name, tmp_path, own, own + 1000, align=mode, id="who")
            for name, own in rows.items()
        }
        sides = start(hub, *parties.values())
        config = server_config(tmp_path, align=mode, id="who")
        status = a_status()
        server = ServerProcess(config, labels(mine, mine + 1000), hub, status)
        server.run()
    for side in sides:
        side.join(20)
        assert side.error is None
    told = said(status)
    assert "alignment: 145 rows here, 2 parties asked" in told
    assert "alignment: 2 of 2 parties have answered" in told
    assert f"alignment: {len(common)} common rows of your 145" in told
    for name, party in parties.items():  # and no number of another side
        told = [text for text in said(party.status) if text.startswith("alignment")]
        assert told == [
            "alignment: answering the server",
            f"alignment: {len(common)} common rows of your {len(rows[name])}",
        ]
    found = read_state(tmp_path / "server" / "rows.safetensors").tensors["rows"]
    order = mine[found.numpy()]
    assert sorted(order) == sorted(common)
    for name, party in parties.items():  # the rows of the same people, in that order
        assert np.array_equal(party.state.rows.numeric, a_table(name, order).numeric)
        run = party.state.run
        places = run.party._data.places.numpy()  # in its own file
        assert np.array_equal(rows[name][places], order[run.prepared.rows.train])
    seed_labels = server.rows.of_seed(0)
    label_of = dict(zip(mine.tolist(), server.table.dataset.y.tolist(), strict=True))
    trained_on = order[seed_labels.train].tolist()
    assert [label_of[who] for who in trained_on] == seed_labels.problem.y_train.tolist()


@pytest.mark.parametrize("method", ["vflfs", "group-lasso"])
def test_rows_outside_are_for_a_method_that_uses_them(tmp_path, method):
    """They are encoded as the common rows are, and stay where they are."""
    rows = {name: np.arange(5 * i, 140 + 5 * i) for i, name in enumerate(HELD)}
    with a_hub() as hub:
        parties = {
            name: a_party(name, tmp_path, own, own, align="plain", id="who")
            for name, own in rows.items()
        }
        sides = [Side(party, hub.port) for party in parties.values()]
        for side in sides:
            side.start()
        config = server_config(tmp_path, method, align="plain", id="who")
        ServerProcess(config, labels(ids=np.arange(150)), hub, a_status()).run()
    for side in sides:
        side.join(20)
        assert side.error is None
    for name, outside in (("clinic", slice(0, 5)), ("bank", slice(140, 145))):
        alone = parties[name].state.run.party._data.alone
        if method == "group-lasso":
            assert alone is None
            continue
        cells = np.float32(a_table(name, outside).numeric)
        assert np.array_equal(alone.numpy(), cells)


def test_the_overlap_is_found_and_not_set(tmp_path):
    config = server_config(tmp_path, settings={"overlap": 0.5})
    with a_hub() as hub, pytest.raises(ConfigError, match="found by their ids"):
        ServerProcess(config, labels(), hub, a_status())


def test_rows_that_are_not_aligned_end_the_run(tmp_path):
    with a_hub() as hub:
        few = a_party("clinic", tmp_path, slice(0, 100))
        sides = start(hub, few, a_party("bank", tmp_path))
        server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        with pytest.raises(LessVFLError) as caught:
            server.run()
        hub.close(caught.value)
    for side in sides:
        side.join(20)
        assert side.error is not None


def test_a_row_is_left_to_train_on(tmp_path):
    marked = replace(labels().dataset, is_test=np.full(150, True))
    table = LabelTable(marked)
    with a_hub() as hub:
        sides = start(hub, *(a_party(name, tmp_path) for name in HELD))
        server = ServerProcess(server_config(tmp_path), table, hub, a_status())
        with pytest.raises(DataError, match="150 common rows, all of them marked"):
            server.run()
        hub.close()
        for side in sides:
            side.join(20)
