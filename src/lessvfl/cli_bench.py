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
    from lessvfl.bench import paper as room

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

    from lessvfl.report import bench_entries

    console = Console()
    for fact in results["data"]:
        if fact.get("note"):
            console.print(f"{fact['name']}: {fact['note']}", highlight=False)
    for number, entries in bench_entries.read(results).items():
        table = Table(title=f"Table {number}", title_justify="left")
        heads = ("data", "method", "settings", "measure", "paper", "ours", "hits")
        for head in heads:
            table.add_column(head)
        for entry in entries:
            if entry.measure not in HEADLINES or None in (entry.paper, entry.ours):
                continue
            if entry.settings.get("target") == "80 % absolute":
                continue  # the released script's; it is on the page
            table.add_row(
                entry.data,
                entry.method,
                _short(entry.settings),
                bench_entries.measure_title(entry.measure),
                bench_entries.pair_text(entry.paper, entry.kind),
                bench_entries.ours_text(entry),
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
