"""Who may import whom: the design's table, checked against the source."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

import lessvfl

SOURCE = Path(lessvfl.__file__).parent

# Everyone may import these.
COMMON = {"errors", "settings", "terms"}

# Besides those, a room may import the rooms on its right.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "settings": set(),
    "terms": set(),
    "core": set(),
    "data": set(),
    "status": set(),
    "wire": {"core"},
    "algorithm": {"core", "wire"},
    "party": {"algorithm", "core", "wire"},
    "methods": {"algorithm", "core", "wire"},
    "run": {"algorithm", "core", "data", "methods", "party", "wire"},
    "report": {"run"},
    "remote": {
        "algorithm",
        "core",
        "data",
        "methods",
        "party",
        "report",
        "run",
        "status",
        "wire",
    },
    "bench": {"algorithm", "core", "data", "methods", "run", "wire"},
    "estimator": {"core", "data", "methods", "report", "run", "status"},
    "cli": {
        "bench",
        "core",
        "data",
        "methods",
        "remote",
        "report",
        "run",
        "status",
        "wire",
    },
}

# Third parties that stay in one or two rooms.
ONLY_IN: dict[str, set[str]] = {
    "sklearn": {"bench", "data", "estimator"},
    "matplotlib": {"report"},
    "private_set_intersection": {"remote"},
    "pyarrow": {"data", "wire"},
    "yaml": {"data", "remote"},
    "safetensors": {"remote", "run"},
    "cryptography": {"remote"},
    "typer": {"cli"},
    "rich": {"cli", "status"},
}

# Third parties that a room must do without.
NEVER_IN: dict[str, set[str]] = {
    "terms": {"numpy", "torch"},
    "report": {"numpy", "torch"},
    "status": {"numpy", "torch"},
    "cli": {"numpy", "torch"},
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


@pytest.mark.parametrize("path", sorted((SOURCE / "cli").glob("*.py")))
def test_the_command_line_starts_light(path: Path) -> None:
    """Rooms are imported inside the commands, so that --help is instant."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = {
        name
        for node in tree.body  # an import under TYPE_CHECKING is inside an if
        for name in imported(node)
        if name.startswith("lessvfl.")
    }
    assert {name.split(".")[1] for name in ours} <= COMMON | {"cli"}
