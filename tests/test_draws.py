"""Every draw in the product stands in docs/threat-model.md, section Draws."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lessvfl"
PAGE = ROOT / "docs" / "threat-model.md"
N_CELLS = 5

# Calls that make something random, by their last name, or by the module they are of.
DRAWS = {
    *("stream", "stream_seed", "shuffled", "sample_rows", "derive"),
    *("default_rng", "RandomState", "SeedSequence", "PCG64", "Generator"),
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal_"),
    *("uniform_", "bernoulli", "multinomial", "manual_seed", "set_rng_state"),
    *("uniforms", "normals", "block_draws", "row_draws"),
    *("uuid1", "uuid4", "urandom", "getrandom", "generate", "generate_private_key"),
}
MODULES = {"secrets", "random", "hmac"}
NO_DRAWS = {"hmac.compare_digest", "torch.random.fork_rng", "request.stream"}
SECRETS = re.compile(
    r"(^|[._])home\.(key|seed)$"
)  # of a run folder, called or handed on


def dotted(node: ast.expr) -> str:
    """Return the name of what is called, as it is written."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def is_draw(node: ast.AST) -> bool:
    """Tell whether something random comes of an expression."""
    if isinstance(node, ast.Attribute):
        return SECRETS.search(dotted(node)) is not None
    if not isinstance(node, ast.Call):
        return False
    name = dotted(node.func)
    if name in NO_DRAWS:
        return False
    *owners, last = name.split(".")
    return last in DRAWS or bool(owners and owners[-1] in MODULES)


def draws_of(tree: ast.AST, where: str = "") -> Iterator[str]:
    """Yield the functions that draw, as in ``Class.function``."""
    for node in ast.iter_child_nodes(tree):
        name = where
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{where}.{node.name}" if where else node.name
        if is_draw(node):
            yield name
        yield from draws_of(node, name)


def in_the_code() -> dict[str, set[str]]:
    """Return by file which of its functions draw."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in draws_of(ast.parse(path.read_text(encoding="utf-8"))):
            found[path.relative_to(SOURCE).as_posix()].add(name)
    return found


def lines_of_the_page() -> list[list[str]]:
    """Return the cells of the table of draws."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Draws\n")[2]
    table = section.partition("\n## ")[0].partition("**releases**")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def on_the_page() -> dict[str, set[str]]:
    """Return by file which functions the page names."""
    named: dict[str, set[str]] = defaultdict(set)
    for cells in lines_of_the_page():
        path, *functions = re.findall(r"`([^`]+)`", cells[0])
        assert not named[path] & set(functions), f"{path}: named twice"
        named[path] |= set(functions)
    return named


def test_every_draw_is_in_the_table_and_every_line_has_one() -> None:
    assert on_the_page() == in_the_code()


def test_every_line_says_whose_key_what_decides_and_who_sees() -> None:
    for cells in lines_of_the_page():
        assert len(cells) == N_CELLS, cells
        assert all(cells), cells


@pytest.mark.parametrize(
    "line",
    [
        "x = torch.rand(3)",
        "x = np.random.default_rng(0)",
        "x = secrets.token_bytes(32)",
        "x = random.choice([1, 2])",
        "x = os.urandom(3)",
        "x = self._home.seed('split', 0)",
        "f(secret=self.home.seed)",
        "x = hmac.digest(key, b'', 'sha256')",
    ],
)
def test_a_draw_that_is_new_is_seen(line: str) -> None:
    assert [*draws_of(ast.parse(f"def f(self):\n    {line}"))] in (["f"], ["f", "f"])


def test_what_draws_nothing_is_not() -> None:
    lines = "hmac.compare_digest(a, b)\nrequest.stream()\nhome.close()\nx.random"
    assert not [*draws_of(ast.parse(lines))]
