"""``lessvfl bench``: the paper, its theory, its rivals, and studies.

The fields of a dataclass are the options of its command.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from lessvfl.cli import options
from lessvfl.errors import ConfigError


class Benchmark(NamedTuple):
    """Where a benchmark's options are, and what it is about.

    One that has a page gives results in JSON; its module has a function ``run``.
    """

    options: str
    help: str
    page: str = ""
    show: str = ""  # in the terminal


# By name; each is loaded when it is needed.
BENCHMARKS = {
    "paper": Benchmark(
        "paper.run:Options",
        "Reproduce the paper's tables and figures, its numbers beside ours.",
        "pages.paper.page:build_bench",
        "terminal:show_paper",
    ),
    "theory": Benchmark(
        "theory.run:Programme",
        "Check the theory: weights, recovery and distance against N.",
        "pages.theory:build_theory",
        "terminal:show_theory",
    ),
    "peers": Benchmark(
        "peers.run:Comparison",
        "Compare with feature selection on pooled data: LassoNet, Boruta and others.",
        "pages.peers:build_peers",
        "terminal:show_peers",
    ),
    "equal": Benchmark(
        "equal.run:Contest",
        "Compare all methods under the same components, bits, steps and epochs.",
        "pages.equal:build_equal",
        "terminal:show_equal",
    ),
    "rivals": Benchmark(
        "rivals.run:Rivals",
        "Compare all methods of selection across parties, the rivals' among them.",
        "pages.rivals:build_rivals",
        "terminal:show_rivals",
    ),
    "shapes": Benchmark("shapes.run:Shapes", "Selection where the truth is known."),
    "support": Benchmark(
        "shapes.support:Support", "Support recovery beside other selectors."
    ),
    "verdicts": Benchmark(
        "studies.verdicts:Verdicts", "Needed or not, and with ten times the rows."
    ),
    "joint": Benchmark(
        "studies.joint:JointModel", "The joint model beside others on its columns."
    ),
    "trees": Benchmark(
        "studies.trees:TreeComparison", "Boosted trees beside scikit-learn's, pooled."
    ),
    "alignment": Benchmark(
        "studies.alignment:Alignment", "Bytes and seconds of aligning rows."
    ),
    "paths": Benchmark(
        "studies.paths:Paths", "Bytes and milliseconds of hidden paths in trees."
    ),
    "how-many": Benchmark(
        "studies.how_many:HowMany", "How many rows, and how many parties."
    ),
    "privacy": Benchmark(
        "privacy.study:Privacy", "What messages tell, beside what is known without."
    ),
    "splits": Benchmark(
        "studies.splits:SplitComparison", "Test rows drawn with labels and without."
    ),
    "rows": Benchmark(
        "studies.rows:AlikeRows", "Rows that are alike: what is said, and who is told."
    ),
    "epsilon": Benchmark(
        "studies.epsilon:Epsilon", "Selection behind noise that spends an epsilon."
    ),
    "missed": Benchmark(
        "studies.how_many:Missed", "Who would be missed, said and measured."
    ),
}
STUDIES = [name for name, about in BENCHMARKS.items() if not about.page]

TYPES: dict[str, Any] = {  # of a field, and of its option
    "NumberList": str,
    "NameList": str,
    "NameList | None": str,
    "Repeated": list[str],
    "NoiseShare": str,
    "Path | None": Path | None,
    "str | None": str | None,
    "float | None": float | None,
    "bool": bool,
    "int": int,
    "str": str,
}

Smoke = Annotated[
    bool, typer.Option("--smoke", help="The smallest size: seconds, no data set.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Processes at a time.")]
COMMON = {"out": (options.Out, None), "resume": (options.Resume, False)}
COMMON |= {"quiet": (options.Quiet, False)}
OF_STUDIES = {"smoke": (Smoke, False), "jobs": (Jobs, 1)}
OF_RESULTS = {"as_json": (options.AsJson, False)}


class _Commands(TyperGroup):
    """Every benchmark as a command."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name in BENCHMARKS:
            self.add_command(_Command(name))


class _Command(TyperCommand):
    """A command whose options are loaded when they are asked for."""

    def __init__(self, name: str) -> None:
        self.about = BENCHMARKS[name]
        super().__init__(name, help=self.about.help, callback=self.call)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the benchmark, and those that several have."""
        made = _load(self.about.options)
        fields = {f.name: (_option(f), None) for f in _fields(made)}
        more = OF_RESULTS if self.about.page else OF_STUDIES
        if not self.about.page:
            paragraphs = (inspect.getdoc(made) or "").split("\n\n")
            self.help = "\n\n".join(" ".join(one.split()) for one in paragraphs)
        alone = typer.Typer(add_completion=False)
        alone.command()(_function({**fields, **COMMON, **more}))
        return [*typer.main.get_command(alone).params, *super().get_params(ctx)]

    def call(
        self,
        *,
        out: Path | None,
        resume: bool,
        quiet: bool,
        as_json: bool = False,
        **given: Any,
    ) -> None:
        """Read the options, run the benchmark, print and write what came of it."""
        out = None if out is None else Path(out)  # old releases of Typer leave a text
        made, module = _load(self.about.options), self.about.options.partition(":")[0]
        chosen = {
            field.name: _read(field, given[field.name])
            for field in _fields(made)
            if given[field.name] not in (None, [], ())
        }
        say = (lambda line: None) if quiet else partial(typer.echo, err=True)
        if not self.about.page:
            smallest = made.smallest if given["smoke"] else {}
            study = made(**{**smallest, **chosen})
            measured = _load("study:run")(study, given["jobs"], out, resume, say)
            for line in study.lines(measured):
                typer.echo(line)
            written = None if out is None else study.page(measured, out)
            if written is not None:
                typer.echo(f"Report: {written}")
            return
        asked = getattr(made, "of", made)(**chosen)
        results = _load(f"{module}:run")(asked, out, resume, say)
        if as_json:
            typer.echo(json.dumps(results, allow_nan=False))
        else:
            _load(self.about.show)(results)
        if out is not None:
            page = _load(self.about.page)(results, out)
            if not as_json:
                typer.echo(f"Report: {page}")


def _load(place: str) -> Any:
    """Return what is at a place, as in study:run."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"lessvfl_bench.{module}"), name)


def _fields(made: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields that are options."""
    return [field for field in dataclasses.fields(made) if "help" in field.metadata]


def _read(field: dataclasses.Field[Any], value: Any) -> Any:
    """Return an option as its field has it."""
    if field.type == "NumberList":
        return tuple(options.read_numbers(value, f"--{field.name}"))
    if field.type in ("NameList", "NameList | None"):
        return tuple(options.read_names(value))
    if field.type == "Path | None":
        return Path(value)
    if field.type == "NoiseShare":
        try:
            return float(value)
        except ValueError:
            raise ConfigError(
                f"The '--{field.name}' option must be a share as in 0.5. Got {value!r}."
            ) from None
    return tuple(value) if field.type == "Repeated" else value


def _option(field: dataclasses.Field[Any]) -> Any:
    """Return a field as the type of a parameter that may be left out."""
    kind, default = TYPES[str(field.type)] | None, field.default
    words = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    shown = words if words and default not in (None, False) else False
    about: dict[str, Any] = {"help": field.metadata["help"], "show_default": shown}
    about |= {"min": 1} if field.name == "jobs" else {}
    if field.metadata["positional"]:
        return Annotated[kind, typer.Argument(**about)]
    flag = field.name.strip("_").replace("_", "-")
    return Annotated[kind, typer.Option(f"--{flag}", **about)]


def _function(given: dict[str, tuple[Any, Any]]) -> Any:
    """Return a function with these parameters: their types and defaults."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword, default=default, annotation=kind)
        for name, (kind, default) in given.items()
    ]

    def command() -> None: ...

    signed: Any = command
    signed.__signature__ = inspect.Signature(parameters)
    signed.__annotations__ = {name: kind for name, (kind, _) in given.items()}
    return signed


HELP = "Benchmarks: the paper, its theory, its peers, and studies."
app = typer.Typer(cls=_Commands, no_args_is_help=True, help=HELP)


@app.callback()
def _bench() -> None:
    pass
