"""The command line: thin commands over the rooms of the library."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lessvfl import __version__
from lessvfl.cli import (
    check,
    ending,
    evaluation,
    kit,
    model,
    nvflare,
    predict,
    remote,
    results,
    run,
)
from lessvfl.cli.options import DataDir, Profile
from lessvfl.errors import ConfigError, LessVFLWarning

COMMANDS = "lessvfl.commands"  # entry points of other packages: a Typer app each


class _Commands(TyperGroup):
    """All commands; whoever is interrupted says so in :func:`main`."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise ending.Interrupted from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Find out together, without sharing data, which features matter: LESS-VFL.",
)
data_app = typer.Typer(no_args_is_help=True, help="Data sets: list, show, build.")
app.add_typer(data_app, name="data")
app.add_typer(kit.app, name="kit")
app.add_typer(nvflare.app, name="nvflare")
app.add_typer(predict.app, name="predict")
for command in (
    *(check.check, run.run, run.try_, run.demo),
    *(remote.server, remote.party, model.export, evaluation.evaluate),
):
    app.command(command.__name__.strip("_"))(command)


def add_others(to: typer.Typer, commands: Iterable[EntryPoint]) -> None:
    """Add the commands of other packages; one that cannot be loaded says why."""
    for one in commands:
        try:
            to.add_typer(one.load(), name=one.name)
        except Exception as error:
            to.command(one.name)(_broken(one, error))


def _broken(command: EntryPoint, error: Exception) -> Callable[[], None]:
    why = (
        f"The command '{command.name}' must come from a package that can be imported. "
        f"Got this of '{command.value}': {error}."
    )

    def say() -> None:
        """Say why this command cannot be had."""
        raise ConfigError(why)

    return say


add_others(app, entry_points(group=COMMANDS))


def main() -> None:
    """Run the command line; errors of ours become one line and exit code 2."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", LessVFLWarning)
        warnings.showwarning = _show_each_once()
        try:
            sys.exit(app(prog_name="lessvfl", standalone_mode=False))
        except BaseException as error:
            ending.leave(error)


def _show_each_once() -> Callable[..., None]:
    """Return a function that shows a warning of ours the first time it is given."""
    shown: set[str] = set()

    def show(
        message: Warning | str, category: type[Warning], *where: Any, **more: Any
    ) -> None:
        from lessvfl.status import terminal

        text = " ".join(str(message).split())
        if issubclass(category, LessVFLWarning) and text not in shown:
            shown.add(text)
            # sys.stderr of the moment: a progress bar on it makes room for the line.
            line = terminal.folded(f"lessvfl: warning: {text}", err=True)
            sys.stderr.write(f"{line}\n")

    return show


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"lessvfl {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Version."),
    ] = False,
) -> None:
    pass


# ----------------------------------------------------------------------------- commands


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method, to see all its settings.")
    ] = None,
    profile: Profile = "default",
    data: Annotated[
        str | None, typer.Option(help="A data set: published settings differ by it.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """List the methods, or the settings that a method will use."""
    from lessvfl import data as tables
    from lessvfl import methods as registry
    from lessvfl.privacy.mechanisms import DEFENCES
    from lessvfl.run import profiles
    from lessvfl.run.bundles import BUNDLES
    from lessvfl.settings import fields_of, kind_of

    if name is None:
        for method in registry.METHODS.values():
            typer.echo(f"{method.name}: {method.summary} ({method.reference})")
        typer.echo("\nDefences, as settings of the side that is protected:")
        for defence, what in DEFENCES.items():
            typer.echo(f"{defence}: {what}")
        for title, bundle in BUNDLES.items():
            typer.echo(bundle.words(title))
        return
    if data is None:
        datasets = profiles.examples()
    else:
        datasets = [tables.load(data, data_dir=data_dir)]
    values, *others = (profiles.resolve(name, profile, d).flat() for d in datasets)
    for field in fields_of(profiles.sections(name)).values():
        value = values[field.name]
        differs = any(other[field.name] != value for other in others)
        typer.echo(
            f"{field.name} = {value}{' (differs by data, see --data)' * differs}: "
            f"{field.metadata['help']} [{kind_of(field).allowed}]"
        )


@data_app.command("list")
def list_data() -> None:
    """List the data sets."""
    from lessvfl import data

    for name in data.names():
        typer.echo(f"{name:<22}{data.describe(name)['summary']}")


@data_app.command("show")
def show_data(
    name: Annotated[str, typer.Argument(help="A data set's name.")],
) -> None:
    """Show what is known of a data set."""
    from lessvfl import data

    for key, value in data.describe(name).items():
        typer.echo(f"{key}: {value}")


@data_app.command("build")
def build_data(
    name: Annotated[
        str,
        typer.Argument(
            help="phishing, gina, sylva, activity, sylva_train, mfeat or credit."
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="The publisher's file, folder or archive; else downloaded."
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Make a data set's file of its publisher's files."""
    from lessvfl import data

    built = data.build(name, source, data_dir=data_dir)
    for file, checksum in built.files.items():
        typer.echo(f"read {file}: SHA-256 {checksum}")
    known = "as known" if built.is_known else "none is known to compare it with"
    typer.echo(f"cells and labels: SHA-256 {built.data.checksum}, {known}")
    typer.echo(f"wrote {built.path}")


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(help="A run folder, or the --out of a benchmark.")
    ],
) -> None:
    """Rebuild the report of a run or a benchmark from its record."""
    from lessvfl.report import build

    typer.echo(f"Report: {build(folder)}")


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path(
        "compare.html"
    ),
) -> None:
    """Put several runs on one page, and their numbers in the terminal."""
    from lessvfl import report
    from lessvfl.report.comparison import by_data_set
    from lessvfl.run.record import RunRecord

    page = report.compare(folders, out)
    records = {str(folder): RunRecord.read(folder) for folder in folders}
    for group in by_data_set(records).values():
        if all(record.side != "party" for record in group.values()):
            results.print_comparison(group)
    typer.echo(f"Report: {page}")
