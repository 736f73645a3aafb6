"""Joint prediction as docs/predict.md shows it, followed to the letter."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pandas as pd
import pytest
from tests.report.conftest import fake_record
from tests.test_docs import FENCE, named_rows, rows

from lessvfl.cli import app
from lessvfl.errors import PolicyError
from lessvfl.remote.policy import Policy, PolicyChecker
from lessvfl.remote.predict.server import MOST_ROWS
from lessvfl.remote.predict.service import STATUS
from lessvfl.remote.spent import PredictionBudget

PAGE = Path(__file__).parents[2] / "docs" / "predict.md"
TEXT = PAGE.read_text(encoding="utf-8")
PORTS = ("8815", "8816", "8080")  # of the kit and of the page
PATIENCE = 180.0  # seconds


def blocks(head: str) -> list[tuple[str, str]]:
    """Return language and content of every block of a section, in order."""
    section = TEXT.split(f"\n## {head}\n")[1].split("\n## ")[0]
    return [(found["language"], found["code"]) for found in FENCE.finditer(section)]


def free_ports() -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        some = [stack.enter_context(socket.socket()) for _ in PORTS]
        for one in some:
            one.bind(("127.0.0.1", 0))
        yield from [str(one.getsockname()[1]) for one in some]


class Machine:
    """A folder, the commands that run in it, and how many there were."""

    def __init__(self, folder: Path, tools: Path) -> None:
        self.folder, self.tools = folder, tools
        self.ports = dict(zip(PORTS, free_ports(), strict=True))
        url = f"http://127.0.0.1:{self.ports['8080']}"
        self.client = httpx.Client(base_url=url, timeout=30, trust_env=False)
        self.n_commands = 0
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command of the page; what it says goes to a file."""
        self.n_commands += 1
        tools = f"{self.tools}{os.pathsep}{os.environ['PATH']}"
        with open(self.folder / f"said-{self.n_commands}", "wb") as said:
            process = subprocess.Popen(
                ["bash", "-c", f"set -e; {self.moved(command)}"],
                cwd=self.folder,
                env=os.environ | {"PATH": tools, "OMP_NUM_THREADS": "1"},
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.args = f"said-{self.n_commands}"
        self._running.append(process)
        return process

    def moved(self, text: str) -> str:
        """Return a text with ports that are free here."""
        for port, free in self.ports.items():
            text = text.replace(port, free)
        return text

    def end(self, process: subprocess.Popen[bytes]) -> str:
        """Return what a command said, once it ended well."""
        code = process.wait(PATIENCE)
        said = (self.folder / str(process.args)).read_text()
        assert code == 0, said
        return said

    def run(self, command: str) -> str:
        return self.end(self.start(command))

    def wait_for(self, what: Callable[[], bool]) -> None:
        """Wait until something is so; say what all sides said where it never is."""
        end = time.monotonic() + PATIENCE
        while not what():
            if time.monotonic() > end:
                files = sorted(self.folder.glob("said-*"))
                pytest.fail("\n".join(file.read_text() for file in files))
            time.sleep(0.05)

    def health(self) -> int:
        try:
            return self.client.get("/health").status_code
        except httpx.TransportError:
            return 0

    def kill(self) -> None:
        self.client.close()
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def machine(tmp_path, forked_tools) -> Iterator[Machine]:
    one = Machine(tmp_path, forked_tools)
    try:
        yield one
    finally:
        one.kill()


def form(value: Any) -> Any:
    """Return the form of a JSON answer: its names, and what kind its values are."""
    if isinstance(value, Mapping):
        return {name: form(one) for name, one in value.items()}
    if isinstance(value, list):
        return [form(one) for one in value]
    return type(value)


def follow(machine: Machine, calls: list[tuple[str, str]]) -> list[str]:
    """Make the calls of the page; each answers in the form that the page shows."""
    answers = []
    for place, (language, code) in enumerate(calls):
        if language != "bash":
            continue
        answers.append(machine.run(code))
        kind, shown = calls[place + 1] if place + 1 < len(calls) else ("bash", "")
        if kind == "json":
            assert form(json.loads(answers[-1])) == form(json.loads(shown))
        elif kind == "text":
            assert answers[-1] == shown
    return answers


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page calls curl")
def test_the_page_works_command_by_command(machine):
    """A kit, a run, a batch and a service, and every call that the page shows."""
    made, tables, filled, *sides = blocks("A kit to try it with")
    assert (made[0], tables[0], filled[0]) == ("bash", "python", "bash")
    machine.run(made[1])
    known: dict[str, Any] = {}
    with contextlib.chdir(machine.folder):
        exec(tables[1], known)
    machine.run(filled[1])
    for config in machine.folder.glob("kit/*/*.yaml"):
        assert "COLUMN" not in config.read_text()
        config.write_text(machine.moved(config.read_text()))
    server, *parties = [machine.start(code) for _, code in sides]
    for party in parties:
        machine.end(party)
    os.killpg(server.pid, signal.SIGINT)  # its status page stays for a while
    server.wait(PATIENCE)

    batch = [machine.start(code) for _, code in blocks("A batch")]
    said, *_ = [machine.end(side) for side in batch]
    assert "100 predictions: predicted.csv" in said
    predicted = pd.read_csv(
        machine.folder / "kit/server/predicted.csv", dtype={"patient": str}
    )
    later = pd.read_csv(machine.folder / "kit/server/later.csv", dtype={"patient": str})
    assert list(predicted["patient"]) == list(later["patient"])
    probability = ["probability_benign", "probability_malignant"]
    assert [*predicted] == ["patient", "prediction", *probability, "partial", "model"]
    assert not predicted.isna().any(axis=None)
    assert not predicted["partial"].any()

    service, calls = blocks("A service")[:3], blocks("A service")[3:]
    server, clinic, insurer = [machine.start(code) for _, code in service]
    machine.wait_for(lambda: machine.health() == 200)
    answers = follow(machine, calls)
    first = json.loads(answers[1])["predictions"]
    assert [one["id"] for one in first] == ["00469", "00470"]
    for one, row in zip(first, predicted.to_dict("records"), strict=False):
        assert one["prediction"] == row["prediction"]
        close = pytest.approx(row["probability_benign"], abs=1e-5)  # another batch
        assert one["probabilities"]["benign"] == close
    paths = {"/predict", "/align", "/health", "/metrics"}
    assert set(json.loads(answers[-1])["paths"]) == paths
    lines = machine.folder / "kit" / "clinic" / "run" / "predictions.jsonl"
    written = map(json.loads, lines.read_text().splitlines())
    *_, last = [line for line in written if line["rows"]]
    assert last["rows"] == 2
    [(_, shown)] = blocks("What a party computes and sends")
    assert form(last) == form(json.loads(shown))

    token = machine.folder / "kit" / "server" / "run" / "token"
    admin = token.with_name("admin-token")
    assert token.stat().st_mode & admin.stat().st_mode & 0o777 == 0o600
    errors(machine, token, admin.read_text())
    os.killpg(insurer.pid, signal.SIGKILL)
    machine.wait_for(lambda: machine.health() == 503)
    assert ask(machine, token.read_text(), ["00469"]) in shown_errors()
    os.killpg(server.pid, signal.SIGINT)
    machine.end(server)
    machine.end(clinic)
    decide(machine, known, predicted)
    assert machine.n_commands == len(re.findall("^```bash", TEXT, re.MULTILINE))


def decide(machine: Machine, known: Any, before: pd.DataFrame) -> None:
    """Join labels, keep what is chosen, and predict again by it."""
    (_, tables), (_, evaluated), *sides = blocks("Decisions")
    with contextlib.chdir(machine.folder):
        exec(tables, known)
    said = machine.run(evaluated)
    assert "cut-off for 'malignant' by cost fp=1, fn=20: " in said
    assert "Kept for later predictions: a recalibration (platt) and a cut-off" in said
    batch = [machine.start(code) for _, code in sides]
    said, *_ = [machine.end(side) for side in batch]
    assert "applied: a recalibration (platt) and a cut-off of" in said
    after = pd.read_csv(machine.folder / "kit/server/decided.csv")
    plain = before["probability_malignant"].to_numpy()
    assert after["uncalibrated_malignant"].to_numpy() == pytest.approx(plain, abs=1e-5)
    fitted = after["probability_malignant"].to_numpy()
    in_order = fitted[np.argsort(after["uncalibrated_malignant"])]
    assert (np.diff(in_order) >= 0).all()
    assert np.abs(fitted - plain).max() > 0.001
    taken = after["prediction"] == "malignant"
    assert fitted[taken].min() > fitted[~taken].max()


def shown_errors() -> set[tuple[int, str]]:
    """Return status codes and sentences of the page's table of errors."""
    section = TEXT.split("### What can go wrong")[1].split("\n## ")[0]
    _, *table = rows(section)
    return {(int(status), said.strip("`")) for status, _, said in table}


def ask(
    machine: Machine, token: str, ids: Any, path: str = "/predict"
) -> tuple[int, str]:
    """Ask for predictions; return status code and sentence of what went wrong."""
    content = ids if isinstance(ids, str) else json.dumps({"ids": ids})
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    answer = machine.client.post(path, headers=headers, content=content)
    return answer.status_code, answer.json()["detail"]


def errors(machine: Machine, file: Path, admin: str) -> None:
    """See every error of the page that needs no further side."""
    token = file.read_text()
    too_many = [f"{row:05}" for row in range(MOST_ROWS + 1)]
    asked: list[Any] = [too_many, ["00469", "00469"], [469], ["00469", "00001"]]
    found = {ask(machine, token, ids) for ids in asked}
    found |= {ask(machine, token, "{"), ask(machine, "wrong", ["00469"])}
    found |= {
        ask(machine, admin, ["00469", "00001"]),
        ask(machine, token, [], "/align"),
    }
    over = f"{token[:-10]}2020-01-01"
    file.write_text(over)
    found.add(ask(machine, over, ["00469"]))
    file.write_text(token)
    others = {
        (code, said)
        for code, said in shown_errors()
        if code in (421, 502, 503) or "declines" in said
    }
    assert found == shown_errors() - others
    assert len(others) == 4


def test_the_page_shows_what_a_policy_says(tmp_path):
    spent = PredictionBudget(
        tmp_path / "spent.safetensors", PolicyChecker("clinic", Policy())
    )
    spent.rows(Policy().predict_rate, 0)
    with pytest.raises(PolicyError) as declined:
        spent.rows(300, 0)
    assert (403, f"Party 'clinic' declines: {declined.value}") in shown_errors()


def test_the_page_has_every_status_code():
    codes = {code for _, code in STATUS} | {401, 404, 413, 421}
    assert {status for status, _ in shown_errors()} == codes - {409}


def _shown(value: object) -> str:
    """Return a value as a YAML file has it."""
    return f"`[{', '.join(value)}]`" if isinstance(value, tuple) else str(value)


def test_the_page_has_the_policy_of_predictions():
    section = TEXT.split("## What a party computes and sends")[1].split("\n## ")[0]
    usual = {
        name: "null" if value is None else _shown(value)
        for name, value in vars(Policy()).items()
        if name.startswith("predict_")
    }
    assert {name: cells[0] for name, cells in named_rows(section).items()} == usual


@pytest.mark.parametrize("command", ["server", "party"])
def test_the_page_has_the_options_of_predictions(command):
    import typer.main

    table = TEXT.split(f"| option of `lessvfl predict {command}` |")[1].split("\n\n")[0]
    documented = set(re.findall(r"^\| `(--[\w-]+)` \|", table, re.MULTILINE))
    top: Any = typer.main.get_command(app.app)
    own = top.commands["predict"].commands[command]
    known = {name for param in own.params for name in param.opts}
    training = {"--config", "--insecure", "--log-json", "--quiet", "-q"}
    assert documented == known - training


@pytest.mark.parametrize(
    "words",
    [
        ("server", "--rows", "later.csv"),
        ("server", "--http", "127.0.0.1:0"),
        ("server", "--seed", "0"),
        ("server", "--allow-missing"),
        ("party", "--data", "later.csv"),
    ],
    ids=" ".join,
)
def test_an_option_of_predictions_starts_no_training(run_cli, tmp_path, words):
    config = tmp_path / "own.yaml"
    names = "parties: [clinic]\nlabel: y\n" if words[0] == "server" else ""
    config.write_text(f"{names}data: table.csv\nid: id\nout: run\n")
    result = run_cli(words[0], "--config", config, *words[1:])
    assert result.code == 2
    assert f"No such option: {words[1]}" in result.err


def test_a_port_in_use_is_said_at_the_start(run_cli, tmp_path):
    """Before anybody is waited for."""
    config = tmp_path / "server.yaml"
    config.write_text(
        "parties: [clinic]\nlabel: y\ndata: table.csv\nid: id\nout: run\nwait: 0.1\n"
    )
    (tmp_path / "table.csv").write_text("id,y\n1,0\n2,1\n")
    fake_record().write(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("--config", config, "--insecure", "--http", where)
        result = run_cli("predict", "server", *words)
    assert result.code == 2
    assert f"The service cannot have {where}: the port is in use." in result.err


def test_no_run_is_said_before_a_token_is_made(run_cli, tmp_path):
    config = tmp_path / "server.yaml"
    config.write_text("parties: [clinic]\nlabel: y\ndata: t.csv\nid: id\nout: run\n")
    words = ("--config", config, "--http", "127.0.0.1:0")
    result = run_cli("predict", "server", *words)
    assert result.code == 2
    assert "is not a run folder" in result.err
    assert not (tmp_path / "run").exists()
