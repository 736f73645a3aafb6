"""Who may import whom: the design's table, checked against the source."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

import lessvfl

SOURCE = Path(lessvfl.__file__).parent

# Everyone may import these.
COMMON = {"errors", "types", "settings"}

# Besides those, a room may import the rooms on its right.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "types": set(),
    "settings": set(),
    "prox": set(),
    "models": set(),
    "ledger": set(),
    "metrics": set(),
    "record": set(),
    "data": set(),
    "status": set(),
    "console": {"status"},
    "align": set(),
    "coding": set(),
    "moments": set(),
    "shadows": {"algorithm", "models", "moments", "prox"},
    "protocol": {"coding", "ledger"},
    "transports": {"coding", "protocol", "session"},
    "algorithm": {"prox", "models", "protocol"},
    "methods": {"algorithm", "coding", "prox", "models", "protocol"},
    "party": {"algorithm", "prox", "models", "protocol", "shadows"},
    "profiles": {"methods", "data", "models"},
    "fitted": {"data", "models", "record"},
    "recorder": {"data", "metrics", "party", "protocol"},
    "runtime": {
        "methods",
        "party",
        "protocol",
        "transports",
        "models",
        "ledger",
        "data",
        "metrics",
        "record",
        "algorithm",
        "fitted",
        "profiles",
        "recorder",
        "shadows",
    },
    "experiment": {"profiles", "runtime", "fitted", "record", "data", "models"},
    "report": {"record"},
    "estimator": {
        "experiment",
        "runtime",
        "profiles",
        "methods",
        "data",
        "metrics",
        "report",
        "fitted",
    },
    "bench": {
        "experiment",
        "runtime",
        "profiles",
        "methods",
        "algorithm",
        "prox",
        "models",
        "ledger",
        "data",
        "metrics",
        "record",
    },
    "kit": {"record"},
    "session": set(),
    "configs": set(),
    "checkpoint": {"party", "protocol", "record", "recorder"},
    "join": {
        "align",
        "checkpoint",
        "configs",
        "data",
        "models",
        "party",
        "protocol",
        "record",
        "session",
        "shadows",
    },
    "serve": {
        "algorithm",
        "align",
        "checkpoint",
        "configs",
        "data",
        "join",
        "ledger",
        "methods",
        "models",
        "profiles",
        "protocol",
        "record",
        "recorder",
        "session",
        "status",
        "transports",
    },
    "trial": {"data", "experiment", "kit", "record", "runtime"},
    "cli_remote": {
        "configs",
        "console",
        "data",
        "join",
        "kit",
        "record",
        "serve",
        "status",
        "transports",
    },
    "cli_bench": {"bench", "report", "data"},
    "cli_kit": {"kit"},
    "cli": {
        "cli_bench",
        "cli_kit",
        "cli_remote",
        "trial",
        "experiment",
        "runtime",
        "profiles",
        "report",
        "record",
        "methods",
        "data",
    },
}

# Third parties that stay in one or two rooms.
ONLY_IN: dict[str, set[str]] = {
    "sklearn": {"bench", "data", "estimator"},
    "matplotlib": {"report"},
    "private_set_intersection": {"align"},
    "pyarrow": {"data", "transports"},
    "yaml": {"configs", "data", "trial"},
    "safetensors": {"checkpoint", "fitted"},
    "cryptography": {"kit"},
    "typer": {"cli", "cli_bench", "cli_kit", "cli_remote"},
    "rich": {"cli", "cli_bench", "console"},
}

# Third parties that a room must do without.
NEVER_IN: dict[str, set[str]] = {
    "report": {"numpy", "torch"},
    "status": {"numpy", "torch"},
    "console": {"numpy", "torch"},
    "cli": {"numpy", "torch"},
    "cli_bench": {"numpy", "torch"},
    "cli_kit": {"numpy", "torch"},
    "cli_remote": {"numpy", "torch"},
}


FILES = [
    (path.relative_to(SOURCE).parts[0].removesuffix(".py"), path)
    for path in sorted(SOURCE.rglob("*.py"))
    if path != SOURCE / "__init__.py"  # public names, from any room
]

each_file = pytest.mark.parametrize(
    ("room", "path"),
    FILES,
    ids=[str(path.relative_to(SOURCE)) for _, path in FILES],
)


def imported(node: ast.AST) -> list[str]:
    """Return the dotted modules that a statement imports; ours by their room."""
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        module = node.module or ""
        if module == "lessvfl":
            names = [alias.name for alias in node.names]
            return [f"lessvfl.{n}" for n in names if n in MAY_IMPORT]
        return [module]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return []


def imports(path: Path, *, types_too: bool = True) -> set[str]:
    """Return every module that a file imports, wherever in the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unseen: set[ast.AST] = set()
    if not types_too:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                unseen |= set(node.body)
    nodes = set(ast.walk(tree)) - unseen
    return {name for node in nodes for name in imported(node)}


def test_every_room_is_in_the_table() -> None:
    missing = {room for room, _ in FILES} - set(MAY_IMPORT)
    assert not missing, f"rooms without a row: {sorted(missing)}"


def test_the_table_runs_downhill() -> None:
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()  # a cycle is an error


@each_file
def test_imports_follow_the_table(room: str, path: Path) -> None:
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("lessvfl.")}
    allowed = MAY_IMPORT[room] | COMMON | {room}
    assert ours <= allowed, f"{room} may not import {sorted(ours - allowed)}"


@each_file
def test_third_parties_stay_in_their_rooms(room: str, path: Path) -> None:
    """What is imported for type checkers alone is loaded by nobody, and may be."""
    theirs = {name.split(".")[0] for name in imports(path, types_too=False)}
    strays = {name for name in theirs if room not in ONLY_IN.get(name, {room})}
    strays |= theirs & NEVER_IN.get(room, set())
    assert not strays, f"{room} may not import {sorted(strays)}"


@pytest.mark.parametrize(
    "name", ["cli.py", "cli_bench.py", "cli_kit.py", "cli_remote.py"]
)
def test_the_command_line_starts_light(name: str) -> None:
    """Rooms are imported inside the commands, so that --help is instant."""
    tree = ast.parse((SOURCE / name).read_text(encoding="utf-8"))
    ours = {
        name
        for node in tree.body  # an import under TYPE_CHECKING is inside an if
        for name in imported(node)
        if name.startswith("lessvfl.")
    }
    light = COMMON - {"types"} | {"cli_bench", "cli_kit", "cli_remote"}
    assert ours <= {f"lessvfl.{room}" for room in light}
