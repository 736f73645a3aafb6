"""The command line: thin commands over the rooms of the library."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from lessvfl import __version__
from lessvfl.cli import bench, kit, remote
from lessvfl.errors import (
    ConfigError,
    DivergenceError,
    LessVFLError,
    LessVFLWarning,
    ProtocolError,
)

if TYPE_CHECKING:
    from lessvfl.run.record import RunRecord
    from lessvfl.run.simulate import Job
    from lessvfl.terms import Event


class _Interrupted(Exception):
    """Ctrl-C, under a name that typer does not answer in its own way."""


class _Commands(TyperGroup):
    """All commands; whoever is interrupted says so in :func:`main`."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _Interrupted from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Find out together, without sharing data, which features matter: LESS-VFL.",
)
data_app = typer.Typer(no_args_is_help=True, help="Data sets: list, show.")
app.add_typer(data_app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(kit.app, name="kit")
remote.register(app)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def main() -> None:
    """Run the command line; errors of ours become one line and exit code 2."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", LessVFLWarning)
        warnings.showwarning = _show_each_once()
        try:
            app(prog_name="lessvfl")
        except LessVFLError as error:
            _stop(str(error), 2)
        except OSError as error:
            what = f"'{error.filename}'" if error.filename else "A file"
            _stop(f"{what} cannot be read or written: {error.strerror}.", 2)
        except (_Interrupted, KeyboardInterrupt):
            _stop("interrupted", 130)


def _stop(sentence: str, code: int) -> NoReturn:
    """End with one line, whatever a message inside the sentence looks like."""
    typer.echo(f"lessvfl: {' '.join(sentence.split())}", err=True)
    sys.exit(code)


def _show_each_once() -> Callable[..., None]:
    """Return a function that shows a warning of ours the first time it is given."""
    shown: set[str] = set()

    def show(
        message: Warning | str, category: type[Warning], *where: Any, **more: Any
    ) -> None:
        text = " ".join(str(message).split())
        if issubclass(category, LessVFLWarning) and text not in shown:
            shown.add(text)
            # sys.stderr of the moment: a progress bar on it makes room for the line.
            sys.stderr.write(f"lessvfl: warning: {text}\n")

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


# ----------------------------------------------------------------------------- progress


def n_epochs(job: Job) -> int:
    """Return how many times a job's progress will be reported, at most."""
    config = job.settings.flat()
    n_parties = job.parties if isinstance(job.parties, int) else job.dataset.n_parties
    if job.parties is not None and not isinstance(job.parties, int):
        n_parties = len(job.parties)
    count: int = sum(
        math.ceil(config.get(name, 0))
        for name in ("pretrain_epochs", "joint_epochs", "train_epochs")
    )
    match config.get("server_selector"):
        case "network":
            count += 1 + config["server_epochs"]  # the embeddings of all rows
        case "path":
            count += 2
    if "party_epochs" in config:
        alone = config.get("selector", "network") == "network"
        count += alone * config["party_epochs"] * n_parties + 1
        looks_again = 0 < config.get("second_look", 0) < config["train_epochs"]
        count += looks_again and not alone
    return count


@contextlib.contextmanager
def _progress(quiet: bool, total: int) -> Iterator[Callable[[Event], None]]:
    """Show bars with an ETA on a terminal, plain lines elsewhere, nothing if quiet."""
    if quiet:
        yield lambda event: None
    elif sys.stderr.isatty():
        with _bars(total) as show:
            yield show
    else:
        yield _lines()


@contextlib.contextmanager
def _bars(total: int) -> Iterator[Callable[[Event], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("pretrain", total=total)

        def show(event: Event) -> None:
            bars.update(task, advance=1, description=event.stage.replace("_", " "))

        yield show


def _lines(every: float = 5.0) -> Callable[[Event], None]:
    last: dict[str, Any] = {"stage": "", "time": 0.0}

    def show(event: Event) -> None:
        now = time.monotonic()
        if event.stage != last["stage"] or now - last["time"] >= every:
            epochs = f"{event.epoch:g} of {event.n_epochs:g}"
            typer.echo(f"{event.stage}: epoch {epochs}", err=True)
            last.update(stage=event.stage, time=now)

    return show


# ------------------------------------------------------------------------------ reading


def _read_numbers(text: str) -> list[int] | None:
    """Read whole numbers as in 0,1,2; None where the text is something else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return None


def _read_seeds(text: str) -> list[int]:
    seeds = _read_numbers(text)
    if seeds is None:
        raise ConfigError(
            f"The '--seeds' option must be whole numbers as in 0,1,2. Got {text!r}."
        )
    return seeds


def _read_parties(text: str | None) -> Any:
    """Read a number, sizes as in 10,20, or a YAML file of party name -> columns."""
    from lessvfl import data

    if text is None:
        return None
    numbers = _read_numbers(text)
    if numbers is not None:
        return numbers[0] if len(numbers) == 1 else numbers
    if text.endswith((".yaml", ".yml")):
        return data.read_parties(text)
    raise ConfigError(
        "The '--parties' option must be a number, sizes as in 10,20, or a .yaml file "
        f"of party name -> columns. Got {text!r}."
    )


def _read_spurious(text: str) -> Any:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            "The '--spurious' option must be a share as in 0.5, or one a party as in "
            f"0.8,0.25,0.1,0. Got {text!r}."
        ) from None
    return shares[0] if len(shares) == 1 else shares


def _read_settings(pairs: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split KEY=VALUE pairs into settings and (``data.KEY``) options of a data set."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"'--set' must be given as KEY=VALUE. Got {pair!r}.")
        found[name.strip()] = value.strip()
    options = {k[5:]: v for k, v in found.items() if k.startswith("data.")}
    return {k: v for k, v in found.items() if not k.startswith("data.")}, options


# ----------------------------------------------------------------------------- commands


Data = Annotated[str, typer.Argument(help="A data set's name, or a file.")]
MethodName = Annotated[str, typer.Option("--method", help="See 'lessvfl methods'.")]
Profile = Annotated[str, typer.Option(help="default, paper or official-code.")]
PartiesText = Annotated[
    str | None,
    typer.Option("--parties", help="How many; sizes as in 10,20; or a YAML file."),
]
Spurious = Annotated[
    str, typer.Option(help="Planted noise: 0.5, or one a party 0.8,0.25,0.1,0.")
]
Seeds = Annotated[str, typer.Option(help="One run each: 0,1,2.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of local data sets (LESSVFL_DATA).")
]
Label = Annotated[str | None, typer.Option(help="Label column of a file.")]
Groups = Annotated[
    Path | None,
    typer.Option(help="YAML file of feature name -> columns that are one feature."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting: KEY=VALUE; 'data.KEY' for synthetic."),
]
Target = Annotated[
    str | None, typer.Option(help="'paper': also give the cost to its target.")
]
Out = Annotated[Path | None, typer.Option(help="Run folder: record, networks, report.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else.")
]


def _read_job(
    data: str,
    method: str,
    profile: str,
    parties: str | None,
    spurious: str,
    device: str,
    data_dir: Path | None,
    label: str | None,
    groups: Path | None,
    pairs: list[str] | None,
) -> tuple[Job, dict[str, str]]:
    """Read what is to be run, and the options of its data set."""
    from lessvfl import data as rooms
    from lessvfl.run import profiles, simulate

    overrides, options = _read_settings(pairs or [])
    dataset = rooms.load(data, data_dir=data_dir, label=label, options=options or None)
    job = simulate.Job(
        dataset,
        profiles.resolve(method, profile, dataset, overrides),
        parties=_read_parties(parties),
        spurious=_read_spurious(spurious),
        groups=None if groups is None else rooms.read_parties(groups, of="feature"),
        device=device,
    )
    return job, options


def _check_target(target: str | None) -> bool:
    if target not in (None, "paper"):
        raise ConfigError(f"The '--target' option must be paper. Got {target!r}.")
    return target is not None


def _say(record: RunRecord, out: Path | None, as_json: bool) -> None:
    """Print a record, and make the page of its run folder."""
    from lessvfl import report

    if as_json:
        typer.echo(json.dumps(record.to_json(), allow_nan=False))
    else:
        _print_summary([record])
    if out is not None:
        page = report.build(out)
        if not as_json:
            typer.echo(f"Report: {page}")


@app.command()
def run(
    data: Data,
    method: MethodName = "less-vfl",
    profile: Profile = "default",
    parties: PartiesText = None,
    spurious: Spurious = "0",
    seeds: Seeds = "0",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    data_dir: DataDir = None,
    label: Label = None,
    groups: Groups = None,
    set_: Set = None,
    target: Target = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a method on a data set or on a table of your own."""
    with_target = _check_target(target)
    job, options = _read_job(
        data,
        method,
        profile,
        parties,
        spurious,
        device,
        data_dir,
        label,
        groups,
        set_,
    )
    record = _run_and_save(job, _read_seeds(seeds), options, with_target, out, quiet)
    _say(record, out, as_json)


@app.command("try")
def try_(
    data: Data,
    method: MethodName = "less-vfl",
    profile: Profile = "default",
    parties: PartiesText = None,
    spurious: Spurious = "0",
    seeds: Seeds = "0",
    data_dir: DataDir = None,
    label: Label = None,
    groups: Groups = None,
    set_: Set = None,
    target: Target = None,
    out: Out = None,
    port: Annotated[int, typer.Option(help="The server's; 0: a free one.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a method between real processes on this machine, with mutual TLS."""
    from lessvfl.remote import localhost

    with_target = _check_target(target)
    job, options = _read_job(
        data,
        method,
        profile,
        parties,
        spurious,
        "cpu",
        data_dir,
        label,
        groups,
        set_,
    )

    def tell(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    record = localhost.run_all(
        job, _read_seeds(seeds), options, with_target, out, port, tell
    )
    _say(record, out, as_json)


def _run_and_save(
    job: Job,
    seeds: list[int],
    options: dict[str, str],
    target: bool,
    out: Path | None,
    quiet: bool,
) -> RunRecord:
    """Run a job; once it has begun, the run folder says how it ended."""
    from lessvfl.run import experiment

    if out is not None:
        experiment.claim(out)  # before the hours, not after them
    total = n_epochs(job)
    if target:
        total += n_epochs(experiment.original(job))
    try:
        with _progress(quiet, total) as show:
            record, runs = experiment.run(
                job, seeds, options=options, target=target, progress=show
            )
        if out is not None:
            experiment.save(out, record, runs)
    except (KeyboardInterrupt, DivergenceError, ProtocolError) as ending:
        if out is not None:
            experiment.save_unfinished(out, job, options, ending)
        raise
    return record


def _print_summary(records: list[RunRecord]) -> None:
    from rich.console import Console
    from rich.table import Table

    from lessvfl.report import tables

    console = Console()
    for record in records:
        console.print(tables.headline(record), highlight=False)
        for note in record.header["notes"]:
            console.print(f"Note: {note}", highlight=False, style="dim")
    heads, rows = tables.summary_rows(records)
    table = Table(show_header=False)
    for head, *cells in zip(heads, *rows, strict=True):
        table.add_row(head, *cells)
    console.print(table)


# Settings of the demo: weights at which most of the planted noise goes, and no more
# epochs than half a minute holds.
DEMO: dict[str, Any] = {
    "batch_size": 100,
    "lam_party": 12.0,
    "lam_server": 0.1,
    "server_epochs": 60,
    "party_epochs": 60,
    "train_epochs": 50,
}


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path(
        "lessvfl-demo"
    ),
    quiet: Quiet = False,
) -> None:
    """Compare LESS-VFL with plain VFL on built-in data with planted noise."""
    # So small networks gain little from a second thread, and lose much by one where
    # the machine has other work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from lessvfl import data, report
    from lessvfl.run import profiles, simulate
    from lessvfl.settings import fields_of

    dataset = data.load("digits")
    records = []
    for method in ("less-vfl", "plain"):
        known = fields_of(profiles.sections(method))
        own = {name: value for name, value in DEMO.items() if name in known}
        settings = profiles.resolve(method, "default", dataset, own)
        job = simulate.Job(dataset, settings, spurious=0.5)
        records.append(_run_and_save(job, [0, 1, 2], {}, False, out / method, quiet))
        report.build(out / method)
    _print_summary(records)
    page = report.compare([out / "less-vfl", out / "plain"], out / "report.html")
    typer.echo(f"Report: {page}")


@app.command()
def methods() -> None:
    """List the methods and their settings."""
    import dataclasses

    from lessvfl import methods as room
    from lessvfl.settings import kind_of

    for method in room.METHODS.values():
        typer.echo(f"{method.name}: {method.summary} ({method.reference})")
        for field in dataclasses.fields(method.config):
            typer.echo(
                f"    {field.name} = {field.default}: {field.metadata['help']} "
                f"[{kind_of(field).allowed}]"
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


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
) -> None:
    """Rebuild the report of a run folder from its record."""
    from lessvfl import report as room

    typer.echo(f"Report: {room.build(folder)}")


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path(
        "compare.html"
    ),
) -> None:
    """Put several runs on one page."""
    from lessvfl import report as room

    typer.echo(f"Report: {room.compare(folders, out)}")


if __name__ == "__main__":
    main()
