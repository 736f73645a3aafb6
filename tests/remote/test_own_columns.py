"""A label holder with columns: server and party in one process, as if they were two."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime
import functools
import logging
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.remote.test_remote import ANYTHING, Death, Mortal, Side, lives

from lessvfl.data import write_table
from lessvfl.errors import ConfigError, DataError, PolicyError
from lessvfl.remote.config import HolderColumns, PartyConfig, ServerConfig, read
from lessvfl.remote.localhost import free_port
from lessvfl.remote.own_columns import party_config as party_of_server
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.predict import PredictingParty, Predictor
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.server_folder import run_number
from lessvfl.remote.tables import LabelTable, open_table
from lessvfl.report import bill as whole_bill
from lessvfl.run.record import RunRecord
from lessvfl.status import Status
from lessvfl.wire import control
from lessvfl.wire.connection import start_thread
from lessvfl.wire.flight import Address, FlightHub
from lessvfl.wire.hub import Hub
from lessvfl.wire.line import LocalParty

N = 150
IDS = [f"person-{i}" for i in range(N)]
SHORT = {
    "batch_size": 40,
    "train_epochs": 3,
    "party_epochs": 8,
    "server_epochs": 8,
    "lam_server": 0.2,
    "lam_party": 0.1,
    "hidden": 8,
    "embedding_size": 4,
}


def write_tables(folder: Path) -> None:
    """Write the label holder's table, whose columns are its own, and a clinic's."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 7))
    town = rng.choice(["Ulm", "Bonn"], N)
    risk = np.where(X[:, 0] + X[:, 3] > 0, "high", "low")
    bank = [["who", "risk", "age", "income", "noise", "town"]]
    bank += [[IDS[i], risk[i], *X[i, :3].round(6), town[i]] for i in range(N)]
    clinic = [["who", "dose", "weight", "noise1", "noise2"]]
    clinic += [[IDS[i], *X[i, 3:].round(6)] for i in range(N)]
    for name, rows in {"bank": bank, "clinic": clinic}.items():
        with open(folder / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    return folder


def server_config(tables: Path, out: Path, **more: Any) -> ServerConfig:
    """Return the config that a file says."""
    own: dict[str, Any] = {
        "parties": ["clinic"],
        "data": str(tables / "bank.csv"),
        "label": "risk",
        "id": "who",
        "align": "psi",
        "method": "less-vfl",
        "settings": SHORT,
        "evaluation": "epochs",
        "seeds": [0, 1],
        "wait": 20,
        "save_every": 3,
        "seed_private": "shared",
        "out": str(out / "server"),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "server.yaml").write_text(yaml.safe_dump(own | more))
    return read(ServerConfig, out / "server.yaml")


def party_config(name: str, tables: Path, out: Path, **more: Any) -> PartyConfig:
    own: dict[str, Any] = {"id": "who", "align": "psi", "seed_private": "shared"}
    own |= {"policy": ANYTHING, "reveal": "features"}
    data = str(tables / f"{name}.csv")
    return PartyConfig(data=data, out=str(out / name), **own | more)


@contextlib.contextmanager
def taking_part(config: ServerConfig, *parties: PartyProcess):
    """Have parties dial the hub of a server, each in a thread."""
    hub = FlightHub("127.0.0.1:0", config.parties, None, silence=20.0)
    sides = [Side(party, hub.port) for party in parties]
    for side in sides:
        side.start()
    try:
        yield hub
    finally:
        hub.close()
        for side in sides:
            side.join(20)
    assert [side.error for side in sides] == [None] * len(sides)


def a_party(name: str, tables: Path, out: Path, **more: Any) -> PartyProcess:
    status = Status("run", "", name, ["server"], side=name)
    return PartyProcess.load(name, party_config(name, tables, out, **more), status)


def run(config: ServerConfig, *parties: PartyProcess) -> RunRecord:
    with taking_part(config, *parties) as hub:
        process = ServerProcess(config, LabelTable.load(config), hub, a_status(config))
        with contextlib.closing(process):
            return process.run()


def the_columns(config: ServerConfig) -> HolderColumns:
    assert config.columns is not None
    return config.columns


def a_status(config: ServerConfig) -> Status:
    return Status("run", config.method, "bank", config.everyone)


OWN = {"name": "bank", "columns": ["*"], "seed_private": "shared"}


@pytest.fixture(scope="module")
def alone(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run whose server has columns."""
    out = tmp_path_factory.mktemp("alone")
    config = server_config(tables, out, columns=OWN)
    run(config, a_party("clinic", tables, out))
    return out


SAME = ("seed", "score", "accuracy", "auc", "features", "kept", "removed", "bill")


def without_times(record: RunRecord) -> list[dict[str, Any]]:
    """Return what runs found and what was billed, without the wire and the clock."""
    runs = []
    for one in record.runs:
        bill = {k: v for k, v in one["communication"].items() if "payload" in k}
        runs.append({k: one[k] for k in SAME if k in one} | bill)
    return runs


def test_server_and_party_in_one_process_find_what_two_find(tables, tmp_path):
    columns = ("age", "income", "noise", "town")
    found = []
    for own, out in ((OWN, tmp_path / "one"), (None, tmp_path / "two")):
        names = ["clinic", "bank"] if own is None else ["clinic"]
        how: dict[str, Any] = {"columns": own, "parties": names, "align": "none"}
        how["settings"] = SHORT | {"lam_party": 0.16}  # some of bank's columns go
        config = server_config(tables, out, **how)
        parties = [a_party("clinic", tables, out, align="none")]
        if own is None:
            bank = a_party("bank", tables, out, align="none", columns=columns)
            parties.append(bank)
        found.append(run(config, *parties))
    one, two = found
    assert without_times(one) == without_times(two)
    assert one.consensus == two.consensus
    kept = one.runs[0]["features"]["bank"]
    assert kept["kept"]
    assert kept["removed"]
    assert one.header["parties"] == ["clinic", "bank"]
    for a, b in zip(one.runs, two.runs, strict=True):
        assert a[a["score"]] == pytest.approx(b[b["score"]])
        bills = [each["communication"] for each in (a, b)]
        for way in ("up", "down"):
            few, many = (bill["wire_bytes"][way] for bill in bills)
            assert 0 < few < 0.7 * many
    for record in found:  # what stays in the server's process lacks at no socket
        assert not whole_bill.is_partial(whole_bill.sums(record))
        assert "started again" not in whole_bill.words(record)
        assert (
            0
            < whole_bill.sums(record)["training"][0]
            < whole_bill.sums(record)["training"][1]
        )
    assert sum(whole_bill.sums(one)["training"]) < 0.7 * sum(
        whole_bill.sums(two)["training"]
    )
    at_home = [
        RunRecord.read(f) for f in (tmp_path / "one/server/own", tmp_path / "two/bank")
    ]
    assert without_times(at_home[0]) == without_times(at_home[1])


def test_a_killed_process_goes_on_from_its_last_checkpoint(tables, tmp_path):
    def config(out: Path) -> ServerConfig:
        return server_config(tables, out, columns=OWN, align="none", seeds=[0])

    def party(out: Path) -> PartyProcess:
        return a_party("clinic", tables, out, align="none")

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    right = run(config(whole), party(whole))
    with taking_part(config(broken), party(broken)) as hub:
        own = config(broken)
        table, left = LabelTable.load(own), 30
        process = ServerProcess(own, table, hub, a_status(own))
        party_here = process.party_here
        assert party_here is not None

        def dies(message: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Death
            return party_here.handle(message)

        hub.join(LocalParty(party_here.hello(), dies, party_here.due))
        with contextlib.closing(process), pytest.raises(Death):
            process.run()
        assert (broken / "server" / "seed-0" / "checkpoint.safetensors").is_file()
        # The other party waits for the server, which comes back as another process.
        again = ServerProcess(own, LabelTable.load(own), hub, a_status(own), True)
        with contextlib.closing(again):
            assert without_times(again.run()) == without_times(right)
    assert (broken / "server" / "own" / "record.jsonl").is_file()


def test_the_run_goes_on_after_another_party_was_lost(tables, tmp_path):
    def found(out: Path, *lives_of: int) -> RunRecord:
        config = server_config(tables, out, columns=OWN, align="none", seeds=[0])
        left = [*lives_of, 10**9]

        def clinic() -> Mortal:
            own = party_config("clinic", tables, out, align="none")
            party = Mortal("clinic", own, *open_table(own))
            party.left = left.pop(0)
            return party

        with taking_part(config) as hub:
            threading.Thread(target=lives, args=(hub.port, clinic), daemon=True).start()
            status = a_status(config)
            process = ServerProcess(config, LabelTable.load(config), hub, status)
            with contextlib.closing(process):
                return process.run()

    broken, whole = found(tmp_path / "broken", 14, 25), found(tmp_path / "whole")
    assert without_times(broken) == without_times(whole)
    assert broken.runs[0]["communication"]["resent_bytes"] > 0


def test_an_end_that_the_server_did_not_write_down_comes_again(tables, tmp_path):
    config = server_config(tables, tmp_path, columns=OWN, align="none", seeds=[0])
    right = run(config, a_party("clinic", tables, tmp_path, align="none"))
    (tmp_path / "server" / "record.jsonl").unlink()
    (tmp_path / "server" / "seed-0" / "finished.json").unlink()
    with taking_part(config, a_party("clinic", tables, tmp_path, align="none")) as hub:
        status = a_status(config)
        again = ServerProcess(config, LabelTable.load(config), hub, status, True)
        with contextlib.closing(again):
            assert without_times(again.run()) == without_times(right)


def test_other_parties_hear_nothing_of_an_error_at_the_servers_own(tables, tmp_path):
    config = server_config(tables, tmp_path, columns=OWN)
    with contextlib.ExitStack() as stack:
        hub = FlightHub("127.0.0.1:0", config.parties, None, silence=20.0)
        side = Side(a_party("clinic", tables, tmp_path), hub.port)
        side.start()
        process = ServerProcess(config, LabelTable.load(config), hub, a_status(config))
        stack.enter_context(contextlib.closing(process))

        def fails(message: Any) -> Any:
            raise PolicyError("The column 'income' is secret.")

        hello = dataclasses.replace(side.party.hello(), party="bank")
        hub.join(LocalParty(hello, fails, side.party.due))
        with pytest.raises(PolicyError, match="income") as failed:
            process.run()
        hub.close(failed.value)
        side.join(20)
    assert "Another party has stopped the run" in str(side.error)
    assert "income" not in str(side.error)


def test_a_party_that_dials_under_the_name_of_the_servers_own_is_refused(
    tables, tmp_path
):
    config = server_config(tables, tmp_path, columns=OWN)
    hub = FlightHub("127.0.0.1:0", config.parties, None, silence=20.0)
    table = LabelTable.load(config)
    process = ServerProcess(config, table, hub, a_status(config))
    with contextlib.closing(process):
        side = Side(a_party("bank", tables, tmp_path, columns=("age",)), hub.port)
        side.start()
        side.join(20)
        assert "does not expect 'bank'" in str(side.error)
        assert hub.connected == ("bank",)
        assert not hub.bytes.by_part()
    hub.close()


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"name": "clinic"}, "another than those of 'parties'.*Got 'clinic'"),
        (["age", "risk"], "must be features. Got 'risk', its column of labels"),
        (["who"], "must be features. Got 'who', its column of ids"),
        (["agee"], "The columns of party 'label-holder'"),
        ({"policy": {}}, "Unknown setting 'policy' in 'columns'"),
        ({"missing": "drop"}, "'missing' setting must be"),
        ("age", "'columns' setting must be"),
        ({"data": "nothing.csv"}, "nothing.csv"),
    ],
)
def test_columns_that_cannot_be_used_are_refused_in_a_sentence(
    tables, tmp_path, own, words
):
    def begin() -> None:
        config = server_config(tables, tmp_path, columns=own)
        hub = Hub(config.parties)
        ServerProcess(config, LabelTable.load(config), hub, a_status(config))

    with pytest.raises((ConfigError, DataError), match=words):
        begin()


def test_a_section_is_read_as_a_partys_file_is(tables, tmp_path):
    marks = {"age": [-999], "town": [datetime.date(9999, 12, 31)]}
    own = {"data": "own.csv", "missing_values": marks, "missing": "fill"}
    config = server_config(tables, tmp_path, columns=own)
    columns = the_columns(config)
    assert columns.name == "label-holder"
    assert columns.data == str(tmp_path / "own.csv")
    assert config.everyone == ("clinic", "label-holder")
    (tmp_path / "party.yaml").write_text(yaml.safe_dump({"missing_values": marks}))
    party = read(PartyConfig, tmp_path / "party.yaml")
    assert columns.missing_values == party.missing_values
    here = party_of_server(config, columns)
    assert (here.missing, here.align, here.id) == ("fill", "psi", "who")
    first = run_number(tmp_path, config, True)
    assert run_number(tmp_path, config, True) == first
    other = server_config(tables, tmp_path, columns=["age"])
    with pytest.raises(ConfigError, match="another 'columns'"):
        run_number(tmp_path, other, True)


def test_labels_must_be_named_among_columns(tables, tmp_path):
    config = server_config(tables, tmp_path, columns=["age"], label=None)
    with pytest.raises(ConfigError, match="'label' setting must name"):
        party_of_server(config, the_columns(config))


def test_check_says_what_becomes_of_the_servers_own_columns(tables, tmp_path, run_cli):
    config = {"columns": ["*", "!noise"]}
    server_config(tables, tmp_path, **config)
    told = run_cli("check", "--config", tmp_path / "server.yaml")
    assert told.code == 0
    assert "columns in use: 2 of numbers, 1 of categories" in told.out
    assert "Column 'noise' of label-holder: excluded by its party" in told.out
    assert "Column 'risk'" not in told.out
    assert "about other columns" in told.out
    server_config(tables, tmp_path, columns=["agee"])
    told = run_cli("check", "--config", tmp_path / "server.yaml")
    assert told.code == 2
    assert "Stops a run: The columns of party 'label-holder'" in told.out


@pytest.mark.parametrize(
    "where",
    ["with the labels", "in another file", "on disk", "in the order of the labels"],
)
def test_a_column_of_the_server_that_tells_its_labels_is_named(
    where, tables, tmp_path, run_cli, caplog
):
    """By check, and in the log of a run."""
    with open(tables / "bank.csv") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["later"] = str(float(row["age"]) + 9 * (row["risk"] == "high"))
    more: dict[str, Any] = {"data": str(tmp_path / "labels.csv")}
    own: dict[str, Any] = {"columns": ["later", "noise"]}
    if where in ("in another file", "on disk"):
        own |= {"data": str(tmp_path / "own.parquet")}
        own |= {"storage": "disk"} if where == "on disk" else {}
        found = {name: [row[name] for row in rows[:10:-1]] for name in ("who", "later")}
        found["later"] = [float(cell) for cell in found["later"]]
        found["noise"] = [0.5] * len(found["who"])
        write_table(tmp_path / "own.parquet", found)
    if where == "in the order of the labels":
        more |= {"id": None, "align": "none"}
    with open(tmp_path / "labels.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    more |= {"columns": own, "wait": 0.3, "listen": "127.0.0.1:0"}
    server_config(tables, tmp_path, **more)
    line = "Column 'later' of label-holder: tells the label on its own (AUC "
    config = tmp_path / "server.yaml"
    assert line in run_cli("check", "--config", config).out
    with caplog.at_level(logging.INFO):
        told = run_cli("server", "--config", config, "--insecure")
    assert "Party 'clinic' is missing" in told.err
    assert line in caplog.text
    assert caplog.text.count("tells the label") == 1


def predictions(config: ServerConfig, *parties: PredictingParty, own=None):
    """Predict the first rows of the label holder's table."""
    hub = FlightHub("127.0.0.1:0", config.parties, None, silence=20.0)
    for party in parties:
        where = Address(f"127.0.0.1:{hub.port}", None)
        start_thread(party.name, functools.partial(answer, party, where))
    if own is not None:
        hub.join(LocalParty(own.hello(), own.handle, own.due))
    try:
        predictor = Predictor(config, np.array(IDS), hub, seed=0)
        with contextlib.closing(predictor):
            predictor.begin()
            table, _, missing = predictor.answer(IDS[:20], 2)
            return table, missing
    finally:
        hub.close()


def answer(party: PredictingParty, where: Address) -> None:
    with contextlib.closing(party):
        party.serve(where)


def test_predictions_and_reasons_in_one_process_are_those_of_two(
    alone, tables, tmp_path
):
    config = read(ServerConfig, alone / "server.yaml")
    policy = dataclasses.replace(ANYTHING, reasons="features")

    def clinic() -> PredictingParty:
        own = party_config("clinic", tables, alone, policy=policy)
        return PredictingParty.load("clinic", own, None)

    here = party_of_server(config, the_columns(config))
    own = PredictingParty.load("bank", here, None)
    with contextlib.closing(own):
        one, missing = predictions(config, clinic(), own=own)
    assert not missing
    both = dataclasses.replace(config, parties=("clinic", "bank"), columns=None)
    bank = PredictingParty.load("bank", here, None)
    two, _ = predictions(both, clinic(), bank)
    for name, cells in one.items():
        numbers = isinstance(cells[0], float)
        assert cells == (pytest.approx(two[name]) if numbers else two[name])
    told = [cell for name, cells in one.items() if "reason" in name for cell in cells]
    assert any("age" in str(cell) for cell in told)


def test_cells_that_predictions_fill_in_are_told_of_once(
    alone, tables, tmp_path, caplog
):
    """Not for each seed, and not again when a model is taken up."""
    caplog.set_level("INFO", "lessvfl")
    lines = (tables / "clinic.csv").read_text().splitlines()
    gaps = [re.sub(r",[^,]*", ",", line, count=1) for line in lines[1:3]]
    (tmp_path / "gaps.csv").write_text("\n".join([lines[0], *gaps, *lines[3:]]))
    own = party_config("clinic", tables, alone)
    party = PredictingParty.load("clinic", own, tmp_path / "gaps.csv")
    with contextlib.closing(party):
        for seed in (0, 1):
            opening = control.Open("", (seed,), "0" * 32, "", "psi")
            party.models.opened(opening, bytes(32))
    said = [line for line in caplog.messages if "missing" in line]
    assert said == ["2 missing cells filled in, as in training"]


def test_the_command_predicts_todays_rows_of_the_servers_columns(
    alone, tables, run_cli
):
    port = free_port()
    text = (alone / "server.yaml").read_text()
    path = alone / "today.yaml"
    path.write_text(f"{text}listen: 127.0.0.1:{port}\n")
    lines = (tables / "bank.csv").read_text().splitlines()[:6]
    today = alone / "today.csv"  # without labels
    cut = [",".join([line.split(",")[0], *line.split(",")[2:]]) for line in lines]
    today.write_text("\n".join(cut))
    own = party_config("clinic", tables, alone)
    party = PredictingParty.load("clinic", own, None)
    where = Address(f"127.0.0.1:{port}", None)
    start_thread("clinic", lambda: answer(party, where))
    files = ("--rows", today, "--data", today, "--out", alone / "predicted.csv")
    told = run_cli("predict", "server", "--config", path, "--insecure", *files)
    assert told.code == 0, told.err
    assert "5 predictions" in told.out
    # The table that it was trained on has none of new rows.
    later = alone / "later.csv"
    later.write_text("\n".join([lines[0].split(",")[0], "new-1", "new-2"]))
    command = ("predict", "server", "--config", path, "--insecure")
    told = run_cli(*command, "--rows", later)
    assert told.code == 2
    assert "Got none; name today's table by '--data'" in told.err
    # One that is named need not be named; ids that lost their zeros are said to have.
    told = run_cli(*command, "--rows", later, "--data", today)
    assert told.code == 2
    assert "must hold ids of '--rows'. Got none.\n" in told.err
    name = lines[0].split(",")[0]
    later.write_text("\n".join([name, "new-1", "new-1"]))
    told = run_cli(*command, "--rows", later, "--data", today)
    assert told.code == 2
    assert f"Column '{name}' has 1 duplicate id in 2 rows" in told.err
    numbered = [f"{i:04},{row.partition(',')[2]}" for i, row in enumerate(cut)]
    numbered[0] = cut[0]
    today.write_text("\n".join(numbered))
    later.write_text("\n".join([name, "1", "2"]))
    told = run_cli(*command, "--rows", later, "--data", today)
    assert told.code == 2
    assert (
        f"own columns, '{today}', must hold ids of '--rows'. Got 2 ids with other "
        "zeros before or a decimal point behind: a table has lost its zeros"
    ) in told.err
    # Without columns there is no table to name.
    values = yaml.safe_load(path.read_text()) | {"columns": None}
    path.write_text(yaml.safe_dump(values))
    told = run_cli("predict", "server", "--config", path, "--insecure", *files)
    assert told.code == 2
    assert "'--data' goes with 'columns'" in told.err
