"""The commands of ``lessvfl bench``: the paper, its theory, its peers, its bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lessvfl.cli import options
from lessvfl.errors import ConfigError

HELP = "Benchmarks: the paper, its theory, its peers, methods at equal transport."
app = typer.Typer(no_args_is_help=True, help=HELP)

PUBLIC = "phishing,sylva_train,gina_reconstruction,activity_time265"

DataNames = Annotated[str, typer.Option(help="By name or file: phishing,digits.")]


def _speak(quiet: bool) -> Callable[[str], None]:
    """Return a function that tells what is being run, or nothing."""
    return lambda line: None if quiet else typer.echo(line, err=True)


def _finish(
    results: dict[str, Any],
    out: Path | None,
    as_json: bool,
    show: Callable[[dict[str, Any]], None],
    build: Callable[[dict[str, Any], Path], Path],
) -> None:
    """Print results, as JSON or as tables, and write their page."""
    if as_json:
        typer.echo(json.dumps(results, allow_nan=False))
    else:
        show(results)
    if out is not None:
        page = build(results, out)
        if not as_json:
            typer.echo(f"Report: {page}")


@app.command()
def paper(
    data: Annotated[
        str | None, typer.Option(help="By name or file: phishing,digits; else all.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="real (unless --data is given), or stand-in: of Gina, Sylva, Activity."
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option(help="official-code or paper.")
    ] = "official-code",
    settings: Annotated[
        str, typer.Option(help="published, or grid: run it whole and choose.")
    ] = "published",
    tables: Annotated[
        str | None,
        typer.Option(help="2,3,5,6,7,8; all, or none where --figures is given alone."),
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option(help="2,3,4,5,6; all, or none where --tables is given alone."),
    ] = None,
    seeds: options.SeedsText = "0,1,2,3,4",
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    out: options.Out = None,
    resume: options.Resume = False,
    memory: Annotated[
        float | None,
        typer.Option(help="GiB a chunk of runs may take; else asked of the device."),
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Reproduce the paper's tables and figures, its numbers beside ours."""
    from lessvfl_bench.pages.paper.page import build_bench
    from lessvfl_bench.paper import run

    chosen = run.options_of(
        data=None if data is None else options.read_names(data),
        source=source,
        profile=profile,
        settings=settings,
        tables=None if tables is None else options.read_numbers(tables, "--tables"),
        figures=None if figures is None else options.read_numbers(figures, "--figures"),
        seeds=options.read_numbers(seeds, "--seeds"),
        device=device,
        data_dir=data_dir,
        memory=memory,
    )
    results = run.run(chosen, out, resume, _speak(quiet))
    _finish(results, out, as_json, _print_paper, build_bench)


# The measure of every table that stands for it in the terminal.
HEADLINES = ("cost_mib", "total_mib", "train_accuracy_percent", "removed_percent")


def _print_paper(results: dict[str, Any]) -> None:
    """Show the numbers that the paper prints beside ours."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lessvfl_bench.pages.paper import entries

    console = Console()
    for fact in results["data"]:
        if fact.get("note"):
            console.print(f"{fact['name']}: {fact['note']}", highlight=False)
    heads = ("data", "method", "settings", "measure", "paper", "ours", "hits")
    for number, found in entries.read(results).items():
        title = Text(f"Table {number}. {entries.origins_text(found)}")
        table = Table(*heads, title=title, title_justify="left")
        for entry in found:
            if entry.measure not in HEADLINES or None in (entry.paper, entry.ours):
                continue
            if entry.settings.get("target") == "80 % absolute":
                continue  # the released script's; it is on the page
            table.add_row(
                entry.data,
                entry.method,
                _short(entry.settings),
                entries.measure_title(entry.measure),
                entries.pair_text(entry.paper, entry.kind),
                entries.ours_text(entry),
                f"{entry.count('hits')} of {entry.count('seeds')}",
            )
        if table.row_count:
            console.print(table)
    total = results["seconds"]["total"]
    console.print(f"{total:.1f} s on {results['device']}", highlight=False)


def _short(settings: Mapping[str, Any]) -> str:
    """Write the settings of an entry in few letters."""
    names = {"pretrain_epochs": "E", "lam_party": "λm", "lam_server": "λs"}
    parts = [f"{names[key]}={settings[key]:g}" for key in names if key in settings]
    if settings["choice"] not in ("published", "grid"):
        parts.append(f"({settings['choice']})")
    return " ".join(parts)


@app.command()
def theory(
    n: Annotated[
        str, typer.Option(help="Sample sizes.")
    ] = "1000,3000,10000,30000,100000,300000,1000000",
    parties: Annotated[str, typer.Option(help="Numbers of parties.")] = "1,2,4,8",
    seeds: options.SeedsText = "0,1,2,3,4,5,6,7,8,9",
    network: Annotated[
        str, typer.Option(help="linear, deep-linear, or tanh (slow for large N).")
    ] = "linear",
    device: options.Device = "auto",
    out: options.Out = None,
    resume: options.Resume = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Check the theory: weights, recovery and distance against N."""
    from lessvfl_bench.pages.theory import build_theory
    from lessvfl_bench.theory import run

    sizes = tuple(options.read_numbers(n, "--n"))
    counts = tuple(options.read_numbers(parties, "--parties"))
    numbers = tuple(options.read_numbers(seeds, "--seeds"))
    programme = run.Programme(sizes, counts, numbers, network, device)
    results = run.run(programme, out, resume, _speak(quiet))
    _finish(results, out, as_json, _print_theory, build_theory)


def _print_theory(results: dict[str, Any]) -> None:
    """Show exact recovery and norms by N, then the verdict."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="Exact recovery, and the norm of non-significant weights")
    table.add_column("method")
    for head in ("M", *(f"N = {size:,}" for size in results["n"])):
        table.add_column(head, justify="right")
    rows: dict[tuple[str, int], list[str]] = {}
    for entry in results["results"]:
        mean = sum(entry["norm"]) / len(entry["norm"])
        cell = f"{entry['recovery']['mean']:.0%}, {mean:.2g}"
        rows.setdefault((entry["method"], entry["parties"]), []).append(cell)
    for (method, n_parties), cells in sorted(rows.items()):
        table.add_row(method, str(n_parties), *cells)
    console.print(table)
    for sentence in results["verdict"]:
        console.print(sentence, highlight=False)
    console.print(f"{results['seconds']:.1f} s on {results['device']}")


@app.command()
def peers(
    data: DataNames = f"{PUBLIC},synthetic",
    methods: Annotated[
        str | None,
        typer.Option(help="As in plain,stg; all that are installed unless given."),
    ] = None,
    spurious: Annotated[
        str, typer.Option(help="Planted noise, a share of every party's columns.")
    ] = "0.5",
    seeds: options.SeedsText = "0,1,2,3,4",
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    out: options.Out = None,
    resume: options.Resume = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare with feature selection on pooled data: LassoNet, Boruta and others."""
    from lessvfl_bench.pages.peers import build_peers
    from lessvfl_bench.peers import run

    try:
        share = float(spurious)
    except ValueError:
        raise ConfigError(
            f"The '--spurious' option must be a share as in 0.5. Got {spurious!r}."
        ) from None
    comparison = run.Comparison(
        data=options.read_names(data),
        methods=None if methods is None else options.read_names(methods),
        spurious=share,
        seeds=options.read_numbers(seeds, "--seeds"),
        device=device,
        data_dir=data_dir,
    )
    results = run.run(comparison, out, resume, _speak(quiet))
    _finish(results, out, as_json, _print_peers, build_peers)


def _print_peers(results: dict[str, Any]) -> None:
    """Show one table a data set."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from lessvfl_bench.pages.peers import COLUMNS, NARROW_LEGEND, cells, rows_of

    console = Console()
    for name in results["data"]:
        table = Table(title=name, title_justify="left", box=box.SIMPLE, padding=0)
        table.add_column("method", no_wrap=True)
        for _, _, head, _ in COLUMNS:
            table.add_column(head, justify="right")
        for row in rows_of(results, name):
            table.add_row(*cells(row, narrow=True))
        console.print(table)
        for note in results["notes"][name]:
            console.print(f"Note: {note}", highlight=False, style="dim")
    console.print(NARROW_LEGEND, highlight=False, style="dim")
    console.print(f"{results['seconds']:.1f} s on {results['device']}", highlight=False)


@app.command()
def equal(
    data: DataNames = f"{PUBLIC},isolet1,pcmac,rosmap,mfeat,credit",
    transports: Annotated[
        str, typer.Option(help="Of paper,ours; the breakdown needs both.")
    ] = "paper,ours",
    methods: Annotated[
        str, typer.Option(help="As in plain,less-vfl,less-vfl-auto.")
    ] = "plain,group-lasso,local-lasso,less-vfl,less-vfl-auto",
    seeds: options.SeedsText = "0,1,2,3,4",
    device: Annotated[
        str, typer.Option(help="Where lambdas are tried; runs are on the CPU.")
    ] = "cpu",
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 1,
    data_dir: options.DataDir = None,
    out: options.Out = None,
    resume: options.Resume = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare all methods under the same components, bits, steps and epochs."""
    from lessvfl_bench.equal import run
    from lessvfl_bench.pages.equal import build_equal

    contest = run.Contest(
        data=options.read_names(data),
        transports=options.read_names(transports),
        methods=options.read_names(methods),
        seeds=options.read_numbers(seeds, "--seeds"),
        data_dir=data_dir,
        device=device,
        jobs=jobs,
    )
    results = run.run(contest, out, resume, _speak(quiet))
    _finish(results, out, as_json, _print_equal, build_equal)


# What of a row stands in the terminal; the page has the rest.
NARROW = ("method", "lambdas by", "hits", "MiB", "noise removed", "accuracy", "ahead")


def _print_equal(results: dict[str, Any]) -> None:
    """Show a table a transport and data set, then what they say."""
    from rich.console import Console
    from rich.table import Table

    from lessvfl_bench.pages import equal

    console = Console()
    for transport in equal.transports(results):
        rows = equal.shown(results, transport)
        for name in results["data"]:
            title = f"{name}: {equal.TITLES[transport].lower()}"
            table = Table(*NARROW, title=title, title_justify="left")
            for row in rows:
                if row["data"] == name:
                    table.add_row(*(row[head].strip("*") for head in NARROW))
            console.print(table)
    for sentence in equal.sentences(results):
        console.print(sentence, highlight=False)
    for row in equal.factors(results):
        console.print(", ".join(f"{k} {v}" for k, v in row.items() if v))
    console.print(f"{results['seconds']:.1f} s, {results['jobs']} at a time")
