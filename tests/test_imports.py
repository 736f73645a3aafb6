"""Who may import whom: the design's table, checked against the source."""

from __future__ import annotations

import ast
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import conftest

import lessvfl
import lessvfl_bench

# The benchmarks are a package of their own, here a room named bench: no other may
# import it, and the library finds it by its entry points.
SOURCES = {
    Path(lessvfl.__file__).parent: (),
    Path(lessvfl_bench.__file__).parent: ("bench",),
}

# Everyone may import these.
COMMON = {"errors", "settings", "templates", "terms"}

# Besides those, a room may import the rooms (or single modules) on its right.
MATHEMATICS = {"algorithm", "core", "privacy", "select", "wire"}
BELOW_RUN = MATHEMATICS | {"data", "explanation", "methods", "party"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "settings": set(),
    "templates": set(),
    "terms": set(),
    "privacy": set(),
    "core": {"privacy"},
    "select": {"core"},
    "data": {"privacy"},
    "explanation": {"core", "data"},
    "status": set(),
    "wire": {"core", "privacy"},
    "algorithm": {"core", "wire"},
    "party": MATHEMATICS,
    "methods": MATHEMATICS,
    "run": BELOW_RUN,
    "report": {"run.record"},
    "web": {"run.record", "status"},
    "remote": {"report", "run", "status", "web"} | BELOW_RUN,
    # Its commands take the options that those of the library do.
    "bench": {"run", "methods", "data", "report", "remote.align", "cli.options"}
    | MATHEMATICS,
    "estimator": {"data", "methods", "report", "run", "status"},
    "cli": {"remote", "report", "run", "status", "web"} | BELOW_RUN,
}

# Third parties that stay in one or two rooms.
ONLY_IN: dict[str, set[str]] = {
    # A run measures itself with tensors.
    "sklearn": {"bench", "data", "estimator", "run.decide"},
    "matplotlib": {"report", "bench.pages"},
    "pyarrow": {"data", "wire.flight"},
    "mlflow": {"report.tracking"},
    "tensorboard": {"report.tracking"},
    "nvflare": {"remote.flare_files", "remote.nvflare", "wire.nvflare"},
    "yaml": {"data", "remote"},
    "msgspec": {"core.state", "remote", "settings", "wire"},
    "safetensors": {"remote", "run"},
    "onnx": {"run.onnx_builder"},
    "prometheus_client": {"web"},
    "starlette": {"web", "remote.predict.service"},
    "uvicorn": {"web"},
    "cryptography": {"core.sharing", "privacy.draws", "remote"},
    "typer": {"cli", "bench.cli"},
    "jinja2": {"templates"},
    "markupsafe": {"templates", "report.parts"},
    "rich": {"cli", "bench.terminal", "status"},
}

# Third parties that a room must do without.
NEVER_IN: dict[str, set[str]] = {
    "terms": {"numpy", "torch"},
    "report": {"numpy", "torch"},
    "bench.pages": {"numpy", "torch"},
    "status": {"numpy", "torch"},
    "cli": {"numpy", "torch"},
}


# Modules of ours under another name, and why.
RENAMED = {
    ("cli.app", "data"): "an option of the command is named data",
    ("cli.app", "methods"): "the command is named methods",
}

# Type names that several modules define, and in which room alone.
SHARED_NAMES = {"Config": "methods"}  # the settings of a method, always this


def module_of(path: Path, source: Path) -> str:
    """Return a file's module below lessvfl, as in run.record; a room by its name."""
    parts = SOURCES[source] + path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def below(name: str) -> str | None:
    """Return a module of ours by its place below lessvfl; None for another's."""
    package, _, rest = name.partition(".")
    if package == "lessvfl_bench":
        return f"bench.{rest}" if rest else "bench"
    return rest if package == "lessvfl" and rest else None


FILES = {
    module_of(path, source): path
    for source in SOURCES
    for path in sorted(source.rglob("*.py"))
    if path != Path(lessvfl.__file__)  # public names, from any room
}
TREES = {
    module: ast.parse(path.read_text(encoding="utf-8"))
    for module, path in FILES.items()
}
each_module = pytest.mark.parametrize("module", FILES)


def room_of(module: str) -> str:
    return module.partition(".")[0]


def is_in(module: str, places: set[str]) -> bool:
    """Tell whether a module is one of these rooms or modules, or inside of one."""
    return any(f"{module}.".startswith(f"{place}.") for place in places)


def imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the dotted modules that a statement imports, and their names in it."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, alias.asname or alias.name
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if below(whole) in FILES:
                yield whole, alias.asname or alias.name
            else:
                yield node.module or "", ""


def ours(node: ast.AST) -> set[str]:
    """Return what a statement imports of ours, below lessvfl."""
    places = {below(name) for name, _ in imports(node)}
    return {place for place in places if place is not None}


def for_types_alone(tree: ast.AST) -> set[ast.AST]:
    """Return the statements that only type checkers read."""
    return {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in node.body
    }


# -------------------------------------------------------------------------- who imports


def test_every_room_is_in_the_table() -> None:
    missing = {room_of(module) for module in FILES} - MAY_IMPORT.keys()
    assert not missing, f"rooms without a row: {sorted(missing)}"


def test_the_table_names_what_exists() -> None:
    rooms = {room_of(module) for module in FILES}
    assert MAY_IMPORT.keys() == rooms
    named = set().union(*MAY_IMPORT.values())
    assert all(place in FILES or place in rooms for place in named)


def test_the_table_runs_downhill() -> None:
    table = {room: {room_of(m) for m in below} for room, below in MAY_IMPORT.items()}
    graphlib.TopologicalSorter(table).prepare()  # a cycle is an error


def test_no_modules_import_each_other() -> None:
    """Wherever in the files, for types alone or not."""
    graph = {
        module: set().union(*(ours(node) for node in ast.walk(tree))) - {module}
        for module, tree in TREES.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # a cycle is an error


def test_the_page_names_every_room() -> None:
    page = Path(__file__).parent.parent / "docs" / "architecture.md"
    rows = re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) == MAY_IMPORT.keys()


@each_module
def test_imports_follow_the_table(module: str) -> None:
    """Wherever in the file, for types alone or not."""
    room = room_of(module)
    found = set().union(*(ours(node) for node in ast.walk(TREES[module])))
    allowed = MAY_IMPORT[room] | COMMON | {room}
    strays = sorted(name for name in found if not is_in(name, allowed))
    assert not strays, f"{module} may not import {strays}"


@each_module
def test_third_parties_stay_in_their_rooms(module: str) -> None:
    """What is imported for type checkers alone is loaded by nobody, and may be."""
    nodes = set(ast.walk(TREES[module])) - for_types_alone(TREES[module])
    theirs = {name.partition(".")[0] for node in nodes for name, _ in imports(node)}
    strays = {name for name in theirs if not is_in(module, ONLY_IN.get(name, {module}))}
    for place, never in NEVER_IN.items():
        strays |= theirs & never if is_in(module, {place}) else set()
    assert not strays, f"{module} may not import {sorted(strays)}"


@pytest.mark.parametrize("module", [m for m in FILES if is_in(m, {"cli", "bench.cli"})])
def test_the_command_line_starts_light(module: str) -> None:
    """Rooms are imported inside the commands, so that --help is instant.

    What type checkers alone read is inside of an if.
    """
    found = set().union(*(ours(node) for node in TREES[module].body))
    strays = sorted(name for name in found if not is_in(name, COMMON | {"cli"}))
    assert not strays, f"{module} imports {strays} before a command is known"


# -------------------------------------------------------------------------------- names


def test_modules_go_by_their_own_names() -> None:
    renamed = {
        (module, below(name))
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        for name, called in imports(node)
        if below(name) is not None and called not in ("", name.rpartition(".")[2])
    }
    assert renamed == RENAMED.keys()


def type_names(tree: ast.Module) -> Iterator[str]:
    """Yield the public classes and aliases that a module defines."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:  # a constant is in capitals, a variable has none
            if re.match(r"[A-Z]\w*[a-z]", ast.unparse(target)):
                yield ast.unparse(target)


def test_no_two_types_have_one_name() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module, tree in TREES.items():
        for name in type_names(tree):
            homes[name].append(module)
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    for name, room in SHARED_NAMES.items():
        assert {room_of(module) for module in twice.pop(name)} == {room}
    assert not twice, f"defined more than once: {twice}"


def test_the_names_of_types_are_found() -> None:
    """The test above would pass if it found none."""
    lines = ("class ONE:\n  pass", "Two = int | str", "Three: X = 3", "FOUR = 4")
    source = "\n".join([*lines, "five = 5", "_Six = 6", "if X:\n  Seven = 7"])
    assert list(type_names(ast.parse(source))) == ["ONE", "Two", "Three"]
    assert "Party" in type_names(TREES["party"])
    assert "PartyNets" in type_names(TREES["run.build"])


def test_the_tiers_of_tests_name_files_that_exist() -> None:
    folder = Path(__file__).parent
    absent = [name for name in conftest.LONG if not (folder / f"{name}.py").is_file()]
    assert not absent
    assert set(conftest.REPEATS) <= set(conftest.LONG)
