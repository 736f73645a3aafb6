"""Every study of ``lessvfl bench``, and every script, runs at its smallest size."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lessvfl.run import profiles
from lessvfl_bench.cli import STUDIES
from lessvfl_bench.studies.joint import JointModel

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]

# By command: a pattern of a line that its table has.
COMMANDS = {
    "alignment": r"\| psi \| 100 \| .+ s \|",
    "epsilon": r"\| gradients \| 3 \| \d \| .+ \|",
    "how-many parties": r"\| breast-cancer \| 4 \| .+ \|",
    "how-many rows --sizes 100": r"\| breast-cancer \| 100 \| .+ \|",
    "joint": r"\| breast-cancer \| 455 \| .+ \|",
    "paths": r"\| breast-cancer \| 2 \| 40 \| .+ \| 0 \|",
    "privacy": r"\| breast-cancer \| less-vfl-auto \| none \| labels by .+ \|",
    "missed": r'\{"data": "breast-cancer", "n": 4, "spearman": .+\}',
    "rows": r"\| made-up files \| \d of 40 \|",
    "shapes": r"\| u-shapes, 300 rows \| .+ \|",
    "shapes --calibrate 1": r"\| all \| 1 \| .+ \|",
    "splits": r"\| breast-cancer \| 2 \| .+: [+-].+ ± .+ \|",
    "support": r"\| linear \| .+ \|",
    "trees": r"\| breast-cancer \| 455 x 30 \| .+ \|",
    "verdicts": r"\| 100 \| 0.05 \| .+ \|",
    "verdicts acting": r"\| 100 \| \d+ \| .+ \|",
}


def test_every_study_is_run():
    assert {command.split()[0] for command in COMMANDS} == set(STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_quotes_it(name):
    """A study whose figures nobody reads goes."""
    pages = "".join(page.read_text("utf-8") for page in PAGES)
    assert f"lessvfl bench {name}" in pages


@pytest.mark.parametrize("command", COMMANDS)
def test_the_smallest_size_prints_its_table(command, run_cli, monkeypatch):
    resolve = profiles.resolve

    def short(method, profile, dataset, overrides=None):
        few = {"train_epochs": 2, **(overrides or {})}
        return resolve(method, profile, dataset, few)

    monkeypatch.setattr(profiles, "resolve", short)
    done = run_cli("bench", *command.split(), "--smoke")
    assert done.code == 0, done.err
    assert re.search(f"^{COMMANDS[command]}$", done.out, re.MULTILINE), done.out
    assert re.search(r"^1 of \d+: ", done.err, re.MULTILINE)


def test_records_are_kept_and_found_again(run_cli, tmp_path):
    words = ("bench", "alignment", "--smoke", "--modes", "none", "--out", tmp_path)
    first = run_cli(*words)
    assert "1 of 1: alignment, none, 100" in first.err
    (kept,) = json.loads((tmp_path / "alignment.json").read_text())
    assert kept["case"] == ["none", 100]
    again = run_cli(*words, "--resume", "--jobs", 2)
    assert again.out == first.out
    assert "of" not in again.err


# What guards the same in every run of the tests: tests/wire, and test_faults.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("fuzz.py", "--n", "60"), "ok   runs bit-identical"),
        (("leaks.py", "--smoke"), r" +4 columns, dense: honest .+"),
    ],
)
def test_scripts_run(words, line):
    command = [sys.executable, ROOT / "benchmarks" / words[0], *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(f"^{line}$", done.stdout, re.MULTILINE), done.stdout


def test_the_joint_model_of_amounts_in_a_file_stands_beside_boosting(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    y = np.sin(3 * x[:, 0]) + x[:, 2] + 0.1 * rng.normal(size=300)
    cells = np.column_stack([x, y]).astype(str)
    lines = [",".join(row) for row in [["a", "b", "c", "d", "y"], *cells.tolist()]]
    (tmp_path / "waves.csv").write_text("\n".join(lines))
    (tmp_path / "waves_parties.yaml").write_text("one: [a, b]\nother: [c, d]\n")
    study = JointModel(("waves.csv:y",), (), (0, 1), data_dir=tmp_path)
    found = {case: study.measure(case) for case in study.cases()}
    assert all(run["joint"]["leading"] > 0.5 for run in found.values())
    assert all(run["HGB by party"]["leading"] > 0.2 for run in found.values())
    table, balanced = "\n".join(study.lines(found)).split("Balanced accuracy:")
    assert "| waves.csv:y | 240 |" in table
    assert "waves" not in balanced
