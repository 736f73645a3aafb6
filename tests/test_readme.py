"""What README.md and examples/ show runs as written, with what scripts/demo installs.

The environment holds lessvfl, its run-time dependencies and theirs, linked from the one
that runs the tests: pandas, polars or pytest cannot be imported there. One process of
it is forked for every command (tests/forked.py).
"""

from __future__ import annotations

import csv
import os
import random
import re
import shlex
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.forked import Forks

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
SECONDS = 300  # for one command; ten times what the slowest needs on an idle core

# Blocks that are not run here, by how they begin.
NOT_RUN = {
    "scripts/demo": "sets up an environment of its own, and runs this suite",
    "lessvfl bench paper": "needs a data set of the paper, and minutes",
}


def blocks(language: str) -> list[str]:
    """Return the code of every fenced block of that language."""
    fence = rf"^```{language}\n(.*?)^```$"
    return re.findall(fence, README, re.MULTILINE | re.DOTALL)


def shell_blocks() -> list[str]:
    return [code for code in blocks("bash") if not code.startswith(tuple(NOT_RUN))]


def required(*more: str) -> dict[str, metadata.Distribution]:
    """Return what pip installs for the run-time dependencies, by name.

    With `more`, what it installs for these besides; extras as in ``lessvfl[onnx]``.
    """
    found: dict[str, metadata.Distribution] = {}
    seen = set()
    asked = [Requirement(line) for line in (*PROJECT["dependencies"], *more)]
    for own in (one for one in asked if one.name == PROJECT["name"]):
        for extra in own.extras:
            asked += map(Requirement, PROJECT["optional-dependencies"][extra])
    waiting = [(one, "") for one in asked if one.name != PROJECT["name"]]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in {"", *requirement.extras}:
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                found[name] = metadata.distribution(name)
                lines = found[name].requires or []
                waiting += [(Requirement(line), wanted) for line in lines]
    return found


def tops(distribution: metadata.Distribution) -> Iterator[Path]:
    """Yield the files and folders that a distribution has in site-packages."""
    assert distribution.files
    for name in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
        yield Path(str(distribution.locate_file(name)))


@pytest.fixture(scope="session")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the environment and return the folder of its commands."""
    base = tmp_path_factory.mktemp("demo") / ".venv"
    venv.create(base, symlinks=True)
    paths = {
        kind: Path(sysconfig.get_path(kind, "venv", {"base": base, "platbase": base}))
        for kind in ("purelib", "scripts")
    }
    for distribution in required().values():
        for top in tops(distribution):
            link = paths["purelib"] / top.name
            if not link.exists():  # two of them may share a folder
                link.symlink_to(top)
    (paths["purelib"] / "lessvfl.pth").write_text(f"{ROOT / 'src'}\n")
    return paths["scripts"]


@pytest.fixture(scope="session")
def demo_forks(
    bin_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Forks]:
    """Return what starts commands and code there; PyTorch is imported once."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("PYTHON"):
                patch.delenv(name)
        python = str(bin_folder / "python")
        forks = Forks(tmp_path_factory.mktemp("demo-forks"), python)
    yield forks
    forks.close()


@pytest.fixture
def run(demo_forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a command there and returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LESSVFL_DATA", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sides = {"sys.executable": str(demo_forks.script(tmp_path / "lessvfl"))}

    def run(*words: str) -> str:
        process = demo_forks.start(*words, changed=sides)
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, f"{out}\n{err}"
        return out

    return run


def write_patients(folder: Path) -> None:
    """Write the files of "Your own table": a made-up table, and YAML for it."""
    rng = random.Random(0)
    (parties,) = blocks("yaml")
    (folder / "parties.yaml").write_text(parties, encoding="utf-8")
    (folder / "groups.yaml").write_text('region: ["region_*"]\n', encoding="utf-8")
    with (folder / "patients.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        numbers = ["age", "lab_iron", "lab_zinc", "claims"]
        regions = ["region_north", "region_south"]
        writer.writerow([*numbers, *regions, "plan", "risk"])
        for _ in range(200):
            age, iron, zinc, claims = (round(rng.gauss(0, 1), 3) for _ in range(4))
            plan = rng.choice(["basic", "full"])
            risk = "high" if age + claims + (plan == "full") > 0.5 else "low"
            north = rng.randint(0, 1)
            writer.writerow([age, iron, zinc, claims, north, 1 - north, plan, risk])


def test_environment_is_that_of_the_demo(run, tmp_path: Path) -> None:
    """It holds the run-time dependencies alone, and scripts/demo installs no more."""
    demo = (ROOT / "scripts" / "demo").read_text(encoding="utf-8")
    assert re.findall("^install .*", demo, re.MULTILINE) == ["install demo -e ."]
    code = "import importlib.metadata as m; print(*[d.name for d in m.distributions()])"
    (tmp_path / "names.py").write_text(code)
    held = {canonicalize_name(name) for name in run("names.py").split()}
    assert held == set(required())
    assert not held & {"pandas", "polars", "pytest", "hypothesis"}


def test_every_exception_is_still_needed() -> None:
    for start in NOT_RUN:
        assert any(code.startswith(start) for code in blocks("bash")), start


@pytest.mark.parametrize("code", shell_blocks(), ids=lambda code: code.splitlines()[0])
def test_commands_run(code: str, run, tmp_path: Path) -> None:
    write_patients(tmp_path)
    for line in code.splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program in PROJECT["scripts"]
        assert run(*words)
    for folder in re.findall(r"--out (\S+)", code):
        assert (tmp_path / folder / "report.html").stat().st_size > 0


NEED_MORE = {"prepare_with_duckdb.py"}  # than lessvfl


def test_python_runs(run, tmp_path: Path) -> None:
    """The blocks; of the examples the imports, tests/test_examples.py runs them."""
    found = (ROOT / "examples").glob("*.py")
    examples = sorted(str(path) for path in found if path.name not in NEED_MORE)
    assert examples
    code = f"from runpy import run_path\nfor path in {examples}: run_path(path)\n"
    (tmp_path / "readme.py").write_text("\n".join([code, *blocks("python")]), "utf-8")
    assert run("readme.py")
