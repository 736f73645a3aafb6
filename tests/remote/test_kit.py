"""A kit starts as generated: docs/machines.md, followed to the letter."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lessvfl.remote import certificates
from lessvfl.remote.config import PartyConfig, read
from lessvfl.remote.policy import LIMITS, Policy
from lessvfl.run.record import RunRecord

PAGE = Path(__file__).parents[2] / "docs" / "machines.md"
N_ROWS = 180


def commands() -> list[str]:
    """Return the commands of the page's section, as they stand there."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.split("## Then, between machines")[1].split("\n## ")[0]
    return re.findall(r"```bash\n(.*?)\n```", section, re.DOTALL)


def start(command: str, folder: Path, tools: Path) -> subprocess.Popen[str]:
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def fill_in(config: Path, **values: str) -> None:
    """Fill in the lines under a FILL IN, those and no others."""
    lines = config.read_text().splitlines()
    for place, line in enumerate(lines):
        if "FILL IN" in line:
            name = lines[place + 1].split(":")[0]
            lines[place + 1] = f"{name}: {values.pop(name)}"
    assert not values
    config.write_text("\n".join(lines) + "\n")


def write_tables(kit: Path) -> None:
    """Put a table into every folder: other rows, in another order, some missing."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N_ROWS, 10))
    risk = np.where(X[:, 0] + X[:, 6] > 0, "high", "low")
    columns = {"clinic": range(5), "insurer": range(5, 10)}
    for name, held in columns.items():
        rows = rng.permutation(N_ROWS)[: N_ROWS - 10]
        lines = [",".join(["patient", *(f"{name}_{i}" for i in held)])]
        lines += [
            ",".join([f"p{row}", *(f"{X[row, i]:.4f}" for i in held)]) for row in rows
        ]
        (kit / name / "columns.csv").write_text("\n".join(lines) + "\n")
        fill_in(kit / name / "party.yaml", data="columns.csv", id="patient")
    lines = ["who,risk", *(f"p{row},{risk[row]}" for row in range(N_ROWS))]
    (kit / "server" / "labels.csv").write_text("\n".join(lines) + "\n")
    fill_in(kit / "server" / "server.yaml", data="labels.csv", label="risk", id="who")


@pytest.fixture(scope="module")
def a_kit(tmp_path_factory):
    """A kit whose places are filled in."""
    folder = tmp_path_factory.mktemp("made") / "kit"
    certificates.init(folder, ["clinic", "insurer"])
    write_tables(folder)
    return folder


def test_a_kit_starts_as_generated(tmp_path, forked_tools):
    """Private alignment, mutual TLS and the default policy, nothing else filled in."""
    make, *sides = commands()
    made = start(make, tmp_path, forked_tools)
    said = made.communicate(timeout=60)[0]
    assert made.returncode == 0, said
    write_tables(tmp_path / "kit")
    assert [side.split()[1] for side in sides] == [
        "kit/server",
        "kit/clinic",
        "kit/insurer",
    ]
    running = [start(side, tmp_path, forked_tools) for side in sides]
    try:
        for process in running[1:]:
            said = process.communicate(timeout=180)[0]
            assert process.returncode == 0, said
    finally:
        for process in running:  # the server keeps its status page up for a while
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    record = (tmp_path / "kit" / "server" / "run" / "record.jsonl").read_text()
    assert '"complete"' in record
    assert "clinic_0" not in record
    own = RunRecord.read(tmp_path / "kit" / "clinic" / "run")
    assert "clinic_0" in own.runs[0]["features"]["clinic"]["kept"]


@pytest.mark.parametrize(
    ("side", "change", "sentence"),
    [
        ("clinic", {"data": "nothing.csv"}, "must exist"),
        ("clinic", {"id": "nobody"}, "Got 'nobody'"),
        ("clinic", {"columns": ["clinic_9"]}, "clinic_9"),
        ("clinic", {"as_is": ["clinic_9"]}, "clinic_9"),
        ("clinic", {"scale": "global"}, "'scale_range'"),
        ("clinic", {"party_net": "no.py:net"}, "no.py:net"),
        ("clinic", {"policy": {"round": 3}}, "Unknown setting 'round' in 'policy'"),
        ("server", {"id": None}, "needs a column of ids"),
        ("server", {"label": "nothing"}, "Got 'nothing'"),
        ("server", {"settings": {"scale": "none"}}, "'scale' setting is every party's"),
        ("server", {"settings": {"party_net": "os:getcwd"}}, "is every party's own"),
        ("server", {"settings": {"hiden": 3}}, "Unknown setting 'hiden'"),
        ("clinic", {"reasons": {"clinic_0": "A text"}}, "mean 'reason_texts'"),
    ],
)
def test_a_side_says_at_the_start_what_is_missing(
    run_cli, tmp_path, a_kit, side, change, sentence
):
    """Before it dials anybody, and before anybody waits."""
    shutil.copytree(a_kit, tmp_path / "kit")
    command = "server" if side == "server" else "party"
    path = tmp_path / "kit" / side / f"{command}.yaml"
    own: dict[str, Any] = {"wait": 0.1}
    if side == "server":
        own |= {"listen": "127.0.0.1:0", "status": None}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change | own))
    result = run_cli(command, "--config", path)
    assert result.code == 2
    assert re.search(sentence, result.err)
    assert "missing: no connection" not in result.err
    assert "who are missing" not in result.err
    assert side == "server" or len(result.err.splitlines()) == 1


def test_the_example_of_texts_for_reasons_is_one(tmp_path, a_kit):
    text = (a_kit / "clinic" / "party.yaml").read_text()
    assert read(PartyConfig, a_kit / "clinic" / "party.yaml").reason_texts == {}
    path = tmp_path / "party.yaml"
    path.write_text(
        re.sub(r"^# (reason_texts:|  late_bills:)", r"\1", text, flags=re.M)
    )
    found = read(PartyConfig, path).reason_texts
    assert found == {"late_bills": "Bills paid late in the last year"}


def test_the_page_names_every_policy_and_its_default():
    text = PAGE.read_text(encoding="utf-8").split("## A party's policy")[1]
    text = text.split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    for field in dataclasses.fields(Policy):
        value = getattr(Policy(), field.name)
        shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else value
        shown = f"{shown:g}" if isinstance(shown, float) else str(shown)
        shown = {"None": "null", "False": "false"}.get(str(value), shown)
        assert rows.pop(field.name).strip("`") == shown
    assert not rows
    for name, most in LIMITS.items():
        assert re.search(rf"^\| {re.escape(f'{most:g}')} \|.*`{name}`", text, re.M)
