"""The commands of ``lessvfl bench``: the paper, its theory, its peers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lessvfl.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True, help="Benchmarks: the paper, its theory, its peers."
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def _numbers(text: str | None, option: str) -> list[int] | None:
    """Read whole numbers as in 2,3; None where the option was not given."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(
            f"The '{option}' option must be whole numbers as in 2,3. Got {text!r}."
        ) from None


def _names(text: str) -> list[str]:
    """Read names as in phishing,digits."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _speak(quiet: bool) -> Callable[[str], None]:
    """Return a function that tells what is being run, or nothing."""
    return lambda line: None if quiet else typer.echo(line, err=True)


@app.command()
def paper(
    data: Annotated[
        str, typer.Option(help="Names of data sets: phishing,sylva_train.")
    ] = "phishing,sylva_train,gina_reconstruction,activity_time265,mimic3",
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
    seeds: Annotated[
        str, typer.Option(help="One run of every setting each.")
    ] = "0,1,2,3,4",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of local data sets (LESSVFL_DATA).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for records, tables, figures, page.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the records in --out.")
    ] = False,
    memory: Annotated[
        float | None,
        typer.Option(help="GiB a chunk of runs may take; else asked of the device."),
    ] = None,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="Matrix products on CUDA in TF32.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce the paper's tables and figures, its numbers beside ours."""
    from lessvfl import report
    from lessvfl.bench.paper import run as room

    options = room.options_of(
        data=_names(data),
        profile=profile,
        settings=settings,
        tables=_numbers(tables, "--tables"),
        figures=_numbers(figures, "--figures"),
        seeds=_numbers(seeds, "--seeds"),
        device=device,
        data_dir=data_dir,
        memory=memory,
        tf32=tf32,
    )
    results = room.run(options, out, resume, _speak(quiet))
    if as_json:
        typer.echo(json.dumps(results, allow_nan=False))
    else:
        _print_tables(results)
    if out is not None:
        page = report.build_bench(results, out)
        if not as_json:
            typer.echo(f"Report: {page}")


# The measure of every table that stands for it in the terminal.
HEADLINES = (
    "cost_mib",
    "total_mib",
    "train_accuracy_percent",
    "removed_percent",
)


def _print_tables(results: dict[str, Any]) -> None:
    """Show the numbers that the paper prints beside ours."""
    from rich.console import Console
    from rich.table import Table

    from lessvfl.report.paper import entries

    console = Console()
    for fact in results["data"]:
        if fact.get("note"):
            console.print(f"{fact['name']}: {fact['note']}", highlight=False)
    for number, found in entries.read(results).items():
        table = Table(title=f"Table {number}", title_justify="left")
        heads = ("data", "method", "settings", "measure", "paper", "ours", "hits")
        for head in heads:
            table.add_column(head)
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
    text = " ".join(
        f"{name}={settings[key]:g}" for key, name in names.items() if key in settings
    )
    choice = settings["choice"]
    return text if choice in ("published", "grid") else f"{text} ({choice})"


@app.command()
def theory(
    n: Annotated[
        str, typer.Option(help="Sample sizes.")
    ] = "1000,3000,10000,30000,100000,300000,1000000",
    parties: Annotated[str, typer.Option(help="Numbers of parties.")] = "1,2,4,8",
    seeds: Annotated[
        str, typer.Option(help="One data set and one run each.")
    ] = "0,1,2,3,4,5,6,7,8,9",
    network: Annotated[
        str, typer.Option(help="linear, deep-linear, or tanh (slow for large N).")
    ] = "linear",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Folder for numbers, figures and page.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the records in --out.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Check the theory: weights, recovery and distance against N."""
    from lessvfl.bench.theory import run as room
    from lessvfl.report.theory import build_theory

    programme = room.Programme(
        tuple(_numbers(n, "--n") or ()),
        tuple(_numbers(parties, "--parties") or ()),
        tuple(_numbers(seeds, "--seeds") or ()),
        network,
        device,
    )
    results = room.run(programme, out, resume, _speak(quiet))
    if as_json:
        typer.echo(json.dumps(results, allow_nan=False))
    else:
        _print_theory(results)
    if out is not None:
        page = build_theory(results, out)
        if not as_json:
            typer.echo(f"Report: {page}")


def _print_theory(results: dict[str, Any]) -> None:
    """Show exact recovery and norms by N, then the verdict."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="Exact recovery, and the norm of non-significant weights")
    table.add_column("method")
    table.add_column("M", justify="right")
    for size in results["n"]:
        table.add_column(f"N = {size:,}", justify="right")
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
    data: Annotated[
        str, typer.Option(help="Names of data sets with classes, or files.")
    ] = "phishing,sylva_train,gina_reconstruction,activity_time265,synthetic",
    methods: Annotated[
        str | None,
        typer.Option(help="As in less-vfl,stg; all that are installed unless given."),
    ] = None,
    spurious: Annotated[
        str, typer.Option(help="Planted noise, a share of every party's columns.")
    ] = "0.5",
    seeds: Annotated[
        str, typer.Option(help="One run of every method each.")
    ] = "0,1,2,3,4",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of local data sets (LESSVFL_DATA).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for numbers, tables and page.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the runs in --out.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Compare with feature selection on pooled data: LassoNet, Boruta and others."""
    from lessvfl.bench.peers import run as room
    from lessvfl.report.peers import build_peers

    try:
        share = float(spurious)
    except ValueError:
        raise ConfigError(
            f"The '--spurious' option must be a share as in 0.5. Got {spurious!r}."
        ) from None
    comparison = room.Comparison(
        data=_names(data),
        methods=None if methods is None else _names(methods),
        spurious=share,
        seeds=_numbers(seeds, "--seeds") or [],
        device=device,
        data_dir=data_dir,
    )
    results = room.run(comparison, out, resume, _speak(quiet))
    if as_json:
        typer.echo(json.dumps(results, allow_nan=False))
    else:
        _print_peers(results)
    if out is not None:
        page = build_peers(results, out)
        if not as_json:
            typer.echo(f"Report: {page}")


def _print_peers(results: dict[str, Any]) -> None:
    """Show one table a data set."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from lessvfl.report import peers as page

    console = Console()
    for name in results["data"]:
        table = Table(title=name, title_justify="left", box=box.SIMPLE, padding=0)
        table.add_column("method", no_wrap=True)
        for _, _, head, _ in page.COLUMNS:
            table.add_column(head, justify="right")
        for row in page.rows_of(results, name):
            table.add_row(*page.cells(row, narrow=True))
        console.print(table)
        for note in results["notes"][name]:
            console.print(f"Note: {note}", highlight=False, style="dim")
    console.print(page.NARROW_LEGEND, highlight=False, style="dim")
    console.print(f"{results['seconds']:.1f} s on {results['device']}", highlight=False)
