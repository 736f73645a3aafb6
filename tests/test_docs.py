"""The documentation is true: its code runs, its names exist, its tables match the code.

Every fenced block of ``bash`` or ``python`` in docs/ is run, page by page and in order,
unless the line above its fence is ``<!-- not run: why -->``. Those of README.md, here
and on other pages, are run by tests/test_readme.py; two pages have tests of their own.
What is run here finds run-time dependencies alone, and what the page says to install.
``python -m tests.test_docs`` counts them. A table that no longer fits the code fails
here, the settings with the table that should be there.

A table of figures has the commit and command that made it in the line above, and what
it measures with the number that this had then (`tests/methods/test_behaviour.py`):
``<!-- measured: commit 1234567, behaviour plain=1 wire=2, command: python ... -->``.
Where such a number was raised since, the line before says ``*Stale: made before ...*``.
Figures that nobody measured say so: ``<!-- not measured: why -->``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import re
import shlex
import sys
import textwrap
import types
from collections import Counter
from collections.abc import Collection, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from packaging.utils import canonicalize_name
from tests.methods.test_behaviour import NUMBERS
from tests.test_readme import NOT_RUN, required, write_patients
from typer.testing import CliRunner

from lessvfl import data, methods, settings
from lessvfl.cli import app
from lessvfl.core.network import NetConfig
from lessvfl.data import DataConfig, LabelConfig
from lessvfl.data.sets.published import FACTS
from lessvfl.data.sets.recipes import RECIPES
from lessvfl.data.sets.synthetic import SyntheticConfig
from lessvfl.methods import (
    counterfactual,
    counting,
    dual_gates,
    filters,
    group_lasso,
    less_vfl,
    less_vfl_auto,
    mmvfl,
    pso_trees,
    trees,
    vertical_boost,
    vertical_forest,
    vflfs,
    vprf,
)
from lessvfl.methods.base import Joint, PartySelection
from lessvfl.remote.config import Common, PartyConfig, ServerConfig
from lessvfl.run import profiles
from lessvfl.wire import control, messages
from lessvfl.wire.parties import Parties

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
README_TEST = "tests/test_readme.py"
# The commands of these pages need several terminals at a time.
RUN_BY = {
    "machines.md": "tests/remote/test_kit.py",
    "predict.md": "tests/remote/test_predict_docs.py",
}

pages_of_docs = pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
INSTALL = re.compile(r"pip install '?(lessvfl\[[\w,]+\]|onnxruntime)")
# What runs the tests, and is looked up while they run.
RUNNER = {"_pytest", "coverage", "pluggy", "pytest"}


def read(name: str) -> str:
    """Return a page of docs/."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of ``bash`` or ``python``, and where it is run."""

    language: str
    line: int
    code: str
    where: str  # "here", "nowhere", or the file of a test
    installed: tuple[str, ...]  # what the page says to install above it

    def commands(self) -> list[list[str]]:
        """Return the words of every command."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that can be run."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match["language"] in ("bash", "python"):
            before = text[: match.start()].splitlines()
            code = textwrap.dedent(match["code"])
            where = "here"
            if re.fullmatch(r" *<!-- not run: .+ -->", before[-1]):
                where = "nowhere"
            elif match["language"] == "bash":
                in_readme = page.name != "README.md" and code in README
                where = README_TEST if in_readme else RUN_BY.get(page.name, "here")
            installed = INSTALL.findall(text[: match.start()])
            yield Block(match["language"], len(before) + 1, code, where, (*installed,))


def without_fences(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def rows(text: str) -> list[list[str]]:
    """Return the cells of every table row of a text, without the separator lines."""
    found = []
    for line in text.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|\-: ]+", line):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def named_rows(text: str) -> dict[str, list[str]]:
    """Return the rows whose first cell is one name in code font, by that name."""
    table = {}
    for first, *others in rows(text):
        if re.fullmatch(r"`[\w.-]+`", first):
            table[first.strip("`")] = others
    return table


# --------------------------------------------------------------------------------- code


class Refusing:
    """An import hook that finds no module but those of some distributions."""

    def __init__(self, installed: Collection[str]) -> None:
        self.refused = {
            module
            for module, names in metadata.packages_distributions().items()
            if not {canonicalize_name(name) for name in names} & {*installed}
        } - RUNNER

    def refuses(self, name: str) -> bool:
        return name.partition(".")[0] in self.refused

    def find_spec(self, name: str, *where: object) -> None:
        if self.refuses(name):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


@contextlib.contextmanager
def only(installed: Collection[str]) -> Iterator[None]:
    """Hide all modules but those of some distributions, and of Python itself."""
    with pytest.MonkeyPatch.context() as patch:
        refusing = Refusing(installed)
        patch.setattr(sys, "meta_path", [refusing, *sys.meta_path])
        for name in filter(refusing.refuses, [*sys.modules]):
            patch.delitem(sys.modules, name)
        yield


def test_only_what_is_installed_can_be_imported() -> None:
    import pandas

    with only(required()):
        with pytest.raises(ModuleNotFoundError, match="'pandas'"):
            importlib.import_module("pandas")
        importlib.import_module("sklearn.base")
    assert sys.modules["pandas"] is pandas


@pages_of_docs
def test_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Any
) -> None:
    """Commands and code of a page, in order, in one folder that has a user's files."""
    monkeypatch.chdir(tmp_path)
    write_patients(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    module = types.ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page):
        with only(required(*block.installed)):
            if block.language == "python":
                code = "\n" * block.line + block.code
                compiled = compile(code, str(page), "exec", dont_inherit=True)
                if block.where == "here":
                    exec(compiled, vars(module))
            elif block.where == "here":
                for words in block.commands():
                    assert words[0] == "lessvfl", (page.name, words)
                    result = run_cli(*words[1:])
                    assert result.code == 0, (words, result.err)


def tally() -> Counter[str]:
    """Count commands and blocks of code of README.md and docs/, and where they run."""
    found: Counter[str] = Counter()
    for page in PAGES:
        for block in blocks(page):
            is_shell, where = block.language == "bash", block.where
            if page.name == "README.md":
                where = README_TEST
            if where == README_TEST and block.code.startswith(tuple(NOT_RUN)):
                where = "nowhere"
            n = len(block.commands()) if is_shell else 1
            found[f"{'commands' if is_shell else 'blocks of Python'}: {where}"] += n
        for table in measured_tables(page):
            found[f"measured tables: {'stale' if table.is_old else 'fresh'}"] += 1
    return found


# ------------------------------------------------------------------------ command lines


def commands(page: Path, program: str = "lessvfl") -> Iterator[list[str]]:
    """Yield the words of every command of a page that calls a program."""
    for block in blocks(page):
        if block.language == "bash":
            for words in block.commands():
                if words[0] == program:
                    yield words[1:]


def known_settings() -> set[str]:
    """Return every name that --set takes, whatever the method."""
    sections: list[type] = [DataConfig, NetConfig, LabelConfig]
    sections += [method.config for method in methods.METHODS.values()]
    options = {f"data.{name}" for name in settings.fields_of([SyntheticConfig])}
    return set(settings.fields_of(sections)) | options


def known_options() -> set[str]:
    """Return every option of every command."""
    found = set()
    waiting: list[Any] = [typer.main.get_command(app.app)]
    while waiting:
        command = waiting.pop()
        with command.make_context("lessvfl", [], resilient_parsing=True) as context:
            params = command.get_params(context)
        found |= {name for param in params for name in param.opts}
        waiting += list(getattr(command, "commands", {}).values())
    return found | {"--help"}


@each_page
def test_commands_are_understood(page: Path) -> None:
    """The command line takes every command shown: names, options and settings."""
    top: Any = typer.main.get_command(app.app)
    measured = re.findall(r"command: lessvfl (.+) -->", without_fences(page))
    for words in [*commands(page), *map(shlex.split, measured)]:
        command, rest = top, list(words)
        while hasattr(command, "commands"):
            assert rest[0] in command.commands, words
            command = command.commands[rest.pop(0)]
        with command.make_context("lessvfl", rest) as context:
            given = context.params
        if command.name not in ("run", "try"):
            continue
        method, profile = given["method"], given["profile"]
        assert profile in methods.get(method).profiles, words
        fields = settings.fields_of(profiles.sections(method))
        options = settings.fields_of([SyntheticConfig])
        for pair in given["set_"] or []:
            name, _, value = pair.partition("=")
            known = options if name.startswith("data.") else fields
            field = known[name.removeprefix("data.")]
            assert settings.kind_of(field).accepts(settings.read(value, field)), words


@each_page
def test_scripts_take_the_options_shown(page: Path) -> None:
    text = without_fences(page)
    spans = re.findall(r"`python ((?:benchmarks|scripts)/[^`]+)`", text)
    for words in [*commands(page, "python"), *map(shlex.split, spans)]:
        if words[0].startswith(("benchmarks/", "scripts/")):
            code = (ROOT / words[0]).read_text(encoding="utf-8")
            for option in (word for word in words if word.startswith("--")):
                assert f'"{option}"' in code, words


@each_page
def test_options_and_settings_named_in_the_text_exist(page: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`", without_fences(page))
    ours = [span for span in spans if not span.startswith("python ")]
    options = {word for span in ours for word in re.findall(r"--[a-z][\w-]*", span)}
    foreign = {"--group", "--extra-index-url", "--quick"}
    assert options - foreign <= known_options()
    text = page.read_text(encoding="utf-8")
    declared = set(
        re.findall(r"^ +(\w+): .* = settings.setting\($", text, re.MULTILINE)
    )
    for span in spans:
        pair = re.fullmatch(r"(?:--set )?([a-z_]+(?:\.[a-z_]+)?)=([\w.,:-]+)", span)
        if pair and pair[1] not in ("groups", "task"):
            assert pair[1] in known_settings() | declared, span


def anchors(page: Path) -> set[str]:
    """Return what a link may lead to on a page, as mkdocs makes it of its heads."""
    heads = re.findall(r"^#+ (.*)$", without_fences(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", head).strip().lower() for head in heads]
    named = re.findall(r'<a (?:id|name)="([\w-]+)"', page.read_text(encoding="utf-8"))
    return {re.sub(r"[-\s]+", "-", head) for head in plain} | {*named}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_fences(page)):
        name, _, anchor = target.partition("#")
        if "://" not in target:
            there = page.parent / name if name else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


# ------------------------------------------------------------------------------- tables


def shown(value: Any) -> str:
    """Return a value as --set takes it."""
    return (
        str(value).lower() if isinstance(value, bool) or value is None else str(value)
    )


def settings_table(section: type, *bases: type) -> str:
    """Return the table of the settings that a section adds to, or changes in, bases."""
    known = {f.name: f.default for b in bases for f in dataclasses.fields(b)}
    lines = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(section):
        if field.name not in known or known[field.name] != field.default:
            allowed = settings.kind_of(field).allowed.replace("|", "\\|")
            meaning = field.metadata["help"]
            default = shown(field.default)
            lines.append(f"| `{field.name}` | {default} | {allowed} | {meaning} |")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "sections",
    [
        (DataConfig,),
        (NetConfig,),
        (LabelConfig,),
        (Joint,),
        (less_vfl_auto.Config, Joint),
        (PartySelection, Joint),
        (less_vfl.Config, PartySelection),
        (group_lasso.Config, Joint),
        (vflfs.Config, group_lasso.Config),
        (mmvfl.Config, Joint),
        (counterfactual.Config, Joint),
        (counting.Counted, Joint),
        (filters.FilterConfig, counting.Counted),
        (dual_gates.Config, counting.Counted),
        (trees.GrowthConfig, Joint),
        (trees.TreeConfig, trees.GrowthConfig),
        (vertical_boost.Boosting, trees.GrowthConfig),
        (vertical_forest.Config, trees.TreeConfig),
        (vprf.Config, trees.GrowthConfig),
        (pso_trees.Config, trees.GrowthConfig),
    ],
    ids=lambda sections: f"{sections[0].__module__}.{sections[0].__qualname__}",
)
def test_settings_page_has_every_setting(sections: tuple[type, ...]) -> None:
    table = settings_table(*sections)
    assert table in read("settings.md"), f"docs/settings.md must hold\n\n{table}\n"


def test_settings_page_has_no_other_setting() -> None:
    assert set(named_rows(read("settings.md"))) == {
        name for name in known_settings() if not name.startswith("data.")
    }


def test_data_page_has_every_option_of_synthetic() -> None:
    table = {
        name: cells
        for name, cells in named_rows(read("data.md")).items()
        if name.startswith("data.")
    }
    assert table == {
        f"data.{name}": [shown(field.default), field.metadata["help"]]
        for name, field in settings.fields_of([SyntheticConfig]).items()
    }


def test_data_page_has_every_data_set() -> None:
    table = named_rows(read("data.md").split("## Data sets")[1].split("\n###")[0])
    assert set(table) == set(data.names())
    for name in data.names():
        known = data.describe(name)
        assert int(table[name][1]) == known["parties"], name
        assert ("not the paper's" in table[name][2]) == (
            known["where"] == "local folder" and not known["paper"]
        ), name


def test_data_page_has_every_recipe() -> None:
    text = read("data.md").split("### From the publisher's files")[1].split("\n###")[0]
    table = named_rows(text)
    assert list(table) == list(RECIPES)
    for name, recipe in RECIPES.items():
        _, fetched, checked = table[name]
        pages = re.findall(r"public/(\d+)/", recipe.address)
        ids = [f"OpenML {number}" for number in [FACTS[name].data_id] if number]
        assert fetched == (f"UCI {pages[0]}" if pages else "".join(ids) or "none")
        assert checked.startswith("SHA-256 of all cells") == bool(recipe.content)
        if not recipe.content:
            assert all(f"{n:,}" in checked for n in (*recipe.rows, recipe.features))


def test_protocol_page_has_every_message() -> None:
    requests, replies = (
        {message.__name__ for message in union.__args__}
        for union in (messages.Request, messages.Reply)
    )
    section = read("protocol.md").split("## Messages")[1].split("\n## ")[0]
    assert {name: cells[0] for name, cells in named_rows(section).items()} == {
        **dict.fromkeys(requests, "down"),
        **dict.fromkeys(replies, "up"),
    }


def test_protocol_page_has_every_message_around_a_run() -> None:
    """With the direction that the table of the module gives."""
    section = read("protocol.md").split("## Around a run")[1].split("\n## ")[0]
    lines = (control.__doc__ or "").splitlines()
    table = [
        line.split() for line in lines if re.match(r"[A-Z]\w+ +(up|down|both) ", line)
    ]
    assert {name: cells[0] for name, cells in named_rows(section).items()} == {
        name: direction for name, direction, *_ in table
    }
    known = [one for one in vars(control).values() if dataclasses.is_dataclass(one)]
    assert {name for name, *_ in table} == {
        one.__name__ for one in known if isinstance(one, type)
    }


BETWEEN = "lessvfl server and lessvfl party"
ALIKE = {"--config", "--insecure", "--log-json", "--quiet", "-q"}


@pytest.mark.parametrize(
    ("head", "command", "but"),
    [
        (BETWEEN, "server", set()),
        (BETWEEN, "party", set()),
        ("lessvfl predict\n", "predict server", ALIKE),
        ("lessvfl predict\n", "predict party", ALIKE),
        ("lessvfl run", "run", set()),
    ],
)
def test_command_line_page_has_every_option(
    head: str, command: str, but: set[str]
) -> None:
    section = read("cli.md").split(f"## {head}")[1].split("\n## ")[0]
    own: Any = typer.main.get_command(app.app)
    for word in command.split():
        own = own.commands[word]
    known = {name for param in own.params for name in param.opts if name[0] == "-"}
    sides = {"server", "party"} - {command.split()[-1]}
    assert known - but == {
        option
        for first, of, *_ in rows(section)
        for option in re.findall(r"-+[\w-]+", first)
        if of not in sides and not (but and of == "both")
    }


def test_the_page_of_methods_has_every_method_and_profile_in_order() -> None:
    named = [n for n in named_rows(read("which-method.md")) if not n.startswith("--")]
    assert named == [*methods.METHODS, *profiles.PROFILES]


@pytest.mark.parametrize(
    ("head", "config"),
    [
        ("in both files", Common),
        ("in `server.yaml`", ServerConfig),
        ("in `party.yaml`", PartyConfig),
    ],
)
def test_machines_page_has_every_line_of_the_configs(head: str, config: type) -> None:
    table = read("machines.md").split(f"| {head} |")[1].split("\n\n")[0]
    names = {n for first, *_ in rows(table) for n in re.findall(r"`(\w+)`", first)}
    shared = set(settings.fields_of([Common])) - {"data", "id"}  # said of each side
    known = set(settings.fields_of([config]))
    assert names == (shared if config is Common else known - shared)


def test_estimator_page_has_every_parameter() -> None:
    from lessvfl import LessVFLClassifier

    parameters = LessVFLClassifier().get_params()
    section = read("estimator.md").split("## Parameters")[1].split("\n## ")[0]
    assert set(named_rows(section)) == set(parameters)


# -------------------------------------------------------------------- measured figures

MARK = re.compile(
    r"<!-- measured: commit [0-9a-f]{7,40}, behaviour (?P<of>\S+=\d+(?: \S+=\d+)*), "
    r"command: lessvfl \S.* -->"
)
FIGURE = re.compile(r"\W*\d")


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a page, with the two lines that say where its figures come from."""

    line: int
    mark: str  # the line above it
    before: str  # the last line before the mark that says anything
    cells: list[str]  # without the first ones of rows

    @property
    def has_figures(self) -> bool:
        """Return whether at least half of its cells are figures."""
        return 2 * sum(bool(FIGURE.match(c)) for c in self.cells) >= len(self.cells) > 0

    @property
    def is_old(self) -> bool:
        """Return whether what it measures did otherwise when it was made."""
        found = MARK.fullmatch(self.mark)
        assert found is not None, self
        pairs = dict(one.split("=") for one in found["of"].split(" "))
        assert set(pairs) <= set(NUMBERS), self
        assert all(int(number) <= NUMBERS[name] for name, number in pairs.items()), self
        return any(int(number) < NUMBERS[name] for name, number in pairs.items())


def tables(text: str) -> Iterator[Table]:
    """Yield the tables of a page."""
    lines = text.splitlines()
    for number, (line, below) in enumerate(itertools.pairwise(lines)):
        if line.startswith("|") and re.fullmatch(r"\|[|\-: ]+", below):
            body = "\n".join(lines[number + 2 :]).split("\n\n")[0]
            cells = [cell for _, *others in rows(body) for cell in others]
            before = [one for one in lines[: number - 1] if one]
            yield Table(number + 1, lines[number - 1], before[-1], cells)


def measured_tables(page: Path) -> Iterator[Table]:
    """Yield the tables that somebody measured, or should have."""
    for table in tables(page.read_text(encoding="utf-8")):
        exempt = re.fullmatch(r"<!-- not measured: .+ -->", table.mark)
        marked = table.mark.startswith("<!-- measured:")
        if marked or (table.has_figures and not exempt):
            yield table


def complaint(table: Table) -> str:
    """Return what is wrong with how a table of figures is marked, or nothing."""
    if MARK.fullmatch(table.mark) is None:
        return "the line above must name commit, behaviour and command"
    if table.is_old != table.before.startswith("*Stale"):
        return "must be measured again, or marked stale" if table.is_old else "is fresh"
    return ""


@each_page
def test_measured_figures_say_what_made_them_and_whether_they_are_old(
    page: Path,
) -> None:
    for table in measured_tables(page):
        assert not (words := complaint(table)), f"{page.name}:{table.line}: {words}"


def test_a_table_without_mark_or_older_than_the_code_is_found() -> None:
    new = f"<!-- measured: commit 1234567, behaviour plain={NUMBERS['plain']}, "
    new += "command: lessvfl demo -->\n"
    old = new.replace(f"plain={NUMBERS['plain']}", "plain=0")
    stale = "*Stale: made before all.*\n\n"
    figures = "| a | b |\n|---|---|\n| x | 1.5 |\n"

    def said(text: str) -> str:
        (table,) = tables(f"# Title\n\n{text}{figures}\nmore text\n")
        assert table.has_figures
        return complaint(table)

    assert "commit" in said("")
    assert "commit" in said(new.replace("1234567", "later"))
    assert not said(new)
    assert "again" in said(old)
    assert not said(stale + old)
    assert "fresh" in said(stale + new)


# ----------------------------------------------------------------------------- profiles


def made_up(name: str, scale: str = "global", split: str = "first") -> data.Dataset:
    """Return a data set of that name; profiles look at nothing else."""
    frame = data.frame_of(np.arange(8.0).reshape(4, 2))
    y = np.array([0, 1, 0, 1])
    return data.Dataset(name, frame, y, "binary", ("0", "1"), scale=scale, split=split)


def resolved(profile: str, method: str = "less-vfl", name: str = "phishing") -> Any:
    return profiles.resolve(method, profile, made_up(name)).flat()


def test_paper_page_has_every_difference_between_the_profiles() -> None:
    section = read("paper.md").split("## The profiles")[1].split("\n## ")[0]
    flats = [resolved(profile) for profile in profiles.PROFILES]
    by_data_set = {"lam_party", "lam_server", "pretrain_epochs"}  # tables of their own
    assert named_rows(section) == {
        name: [shown(flat[name]) for flat in flats]
        for name in flats[0]
        if len({flat[name] for flat in flats}) > 1 and name not in by_data_set
    }


def test_paper_page_has_the_published_values_of_every_data_set() -> None:
    section = read("paper.md").split("## Values of the profile official-code")[1]
    table = named_rows(section.split("\n## ")[0])
    assert set(table) == {n for n in data.names() if data.describe(n)["paper"]}
    for name, cells in table.items():
        less, local, group = (
            resolved("official-code", method, name)
            for method in ("less-vfl", "local-lasso", "group-lasso")
        )
        values = [
            less["batch_size"],
            less["lam_party"],
            less["lam_server"],
            less["pretrain_epochs"],
            local["lam_party"],
            local["pretrain_epochs"],
            group["lam_party"],
            less["party_step_size"],
            less["lam_scale"],
        ]
        assert [float(cell) for cell in cells] == [float(v) for v in values], name


def test_paper_page_has_the_lambdas_of_the_other_profiles() -> None:
    section = read("paper.md").split("## Lambdas of the profile paper")[1]
    selecting = {"less-vfl", "local-lasso", "group-lasso"}
    assert {n: c for n, c in named_rows(section).items() if n in selecting} == {
        method: [
            str(resolved(profile, method).get(name, ""))
            for profile in ("paper", "default")
            for name in ("lam_party", "lam_server")
        ]
        for method in selecting
    }


def test_paper_page_names_functions_that_exist() -> None:
    import lessvfl.algorithm
    import lessvfl.party

    section = read("paper.md").split("## Algorithm 2")[1].split("## Symbols")[0]
    for name in re.findall(r"`(\w+)\(\)`", section):
        owners = (lessvfl.algorithm, lessvfl.party.Party, Parties)
        assert any(hasattr(owner, name) for owner in owners), name


# --------------------------------------------------------------------------------- JSON

RUN = ["run", "synthetic", "--json", "--quiet", "--spurious", "0.5", "--seeds", "0"]
FEW = ["data.n_samples=200", "data.n_test=50", "data.n_parties=2", "batch_size=100"]


def printed(*more: str) -> dict[str, Any]:
    words = [word for pair in FEW for word in ("--set", pair)]
    result = CliRunner().invoke(app.app, [*RUN, *words, *more])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield every field of an object as a path; names of parties are not fields."""
    if isinstance(value, list):
        for item in value:
            yield from paths(item, prefix)
    elif isinstance(value, dict):
        for key, inner in value.items():
            name = re.sub(r"^party\d+$", "PARTY", key)
            if prefix.endswith(("by_stage.", "by_stage")):
                name = "STAGE"
            path = f"{prefix}.{name}" if prefix else name
            yield path
            yield from paths(inner, path)


@pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")
def test_json_page_has_every_field() -> None:
    outputs = [
        printed(
            *("--set", "data.task=binary", "--target", "paper"),
            *("--set", "train_epochs=2"),
        ),
        printed(
            *("--method", "plain", "--set", "train_epochs=1"),
            *("--seeds", "0,1", "--ensemble"),
        ),
        printed("--method", "vertical-boost", "--set", "trees=1"),
        printed(
            *("--set", "data.task=binary", "--set", "train_epochs=1"),
            *("--privacy", "strict"),
        ),
    ]
    found: set[str] = set()
    for output in outputs:
        found |= set(output)
        found |= {f"data.{key}" for key in output["data"]}
        found |= {f"ensemble.{key}" for key in output["ensemble"] or ()}
        found |= set(paths({"consensus": output["consensus"]}))
        for run in output["runs"]:
            found |= set(paths({k: v for k, v in run.items() if k != "curve"}))
            found |= {f"curve.{key}" for point in run["curve"] for key in point}
    # What holds names of parties, stages or features, or the four moments of a score.
    inner = re.compile(
        r"importance\..+|.+\.PARTY\.(scores|share|why|at_most|signs|verdicts)\..+|seconds\..+|.+\.(pretrained|selected|final|best)"
        r"|.+\.(PARTY|STAGE)|communication\.payload_bytes|.+\.PARTY\.(power|sight)"
        r"|(baseline|predicted|intervals|data\.classes|privacy\.columns\.PARTY)\..+|trees|trees\.splits\..+"
    )
    fields = {path for path in found if not inner.fullmatch(path)} | {"curve"}
    assert fields == set(named_rows(read("json.md")))


if __name__ == "__main__":
    for what, n in sorted(tally().items()):
        sys.stdout.write(f"{n} {what}\n")
