"""Every script of benchmarks/ runs at its smallest size, as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "benchmarks"
HELPERS = {"processes", "smoke", "transport_nvflare"}  # that others import

# By command: a pattern of a line that its table has.
COMMANDS = {
    "alignment": r"\| psi \| 100 \| .+ s \|",
    "big_table grow": r" +500 +\d.+",
    "calibrate": r'\{"profile": "paper", .*"both": .+\}',
    "compare": r"\d+ entries in both, 0 with other hits; .+",
    "confounds": r"\| as published \| published \| .+ \|",
    "efficiency": r'\{"what": "joint", .*"ours / bare": .+\}',
    "efficiency --steps": r'\{"what": "step", "case": "paper", .+\}',
    "flood": r"replies +\d+ .+",
    "fuzz": r"ok   runs bit-identical",
    "golden": r"run/plain/breast-cancer +equal .+",
    "grid_speed": r"breast-cancer train: .+ ratio .+",
    "how_many parties": r"\| breast-cancer \| 2 \| .+ \|",
    "how_many rows": r"\| breast-cancer \| 100 \| .+ \|",
    "imbalance": r"4000 +0.035 +balanced +balanced .+",
    "kill": r"1 of 1 identical",
    "kill_nvflare": r"1 of 1 identical",
    "leaks": r" +4 columns, dense: honest .+",
    "missed": r'\{"data": "breast-cancer", "n": 4, "spearman": .+\}',
    "parties": r" +2 +\d.+",
    "pictures": r".+selection\.svg",
    "predict kill": r"back: median .+",
    "predict size": r"breast-cancer +\d .+",
    "predict time": r"HTTP, 2 at once: .+",
    "scale": r"memory of a party .+",
    "scaling columns": r"cpu, 1,000 rows: slope of selection .+",
    "scaling files": r'\{"data": "breast-cancer", .+\}',
    "scaling path": r'\{"rows": 2000, .*"ours / skglm": .+\}',
    "selection": r"\| default \| .+ \|",
    "shapes": r"\| u-shapes, 300 rows \| .+ \|",
    "shapes --calibrate 1": r"\| all \| 1 \| .+ \|",
    "sklearn_fit": r'.*"table": "2,000 x 100", .*"selector": "Select.+',
    "startup": r".*\"a second fit beyond\": .+",
    "support": r"\| linear \| .+ \|",
    "threads": r"128, 60 \| .+",
    "transport": r" +4 +1 MiB ours / gRPC = .+",
    "verdicts": r"\| 100 \| 0.05 \| .+ \|",
}
NEEDS = {
    "kill_nvflare": "nvflare",
    "predict time": "grpc",
    "scaling path": "skglm",
    "sklearn_fit": "lassonet",
    "transport": "grpc",
}
SLOW = {"kill_nvflare", "predict time"}  # start a dozen processes and more


def test_every_script_is_run() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py")} - HELPERS
    assert {command.split()[0] for command in COMMANDS} == scripts
    assert set(NEEDS) <= set(COMMANDS)


@pytest.mark.parametrize("name", sorted({command.split()[0] for command in COMMANDS}))
def test_a_page_quotes_it(name: str) -> None:
    """A benchmark whose figures nobody reads goes."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"benchmarks/{name}.py" in page.read_text("utf-8") for page in pages)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else [])
        for one in COMMANDS
    ],
)
def test_the_smallest_size_prints_its_table(command: str, tmp_path: Path) -> None:
    if (needed := NEEDS.get(command)) and find_spec(needed) is None:
        pytest.skip(f"benchmarks/{command.split()[0]}.py needs {needed}")
    script, *words = command.split()
    done = subprocess.run(
        [sys.executable, FOLDER / f"{script}.py", *words, "--smoke"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(f"^{COMMANDS[command]}$", done.stdout, re.MULTILINE), done.stdout
