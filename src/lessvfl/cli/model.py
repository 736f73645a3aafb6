"""The commands for a model of a run folder: ``lessvfl export`` and ``evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run folder of 'lessvfl run --out'.")
]
Seed = Annotated[
    int | None, typer.Option(help="Whose run; the first one unless given.")
]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the network code that the folder names."),
]


def export(
    folder: Folder,
    format: Annotated[
        str, typer.Option(help="onnx: graphs that take raw rows; or safetensors.")
    ] = "onnx",
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; DIR/export unless given.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write the networks of a run with their preparation of columns, and a card."""
    from lessvfl import report
    from lessvfl.run import profiles
    from lessvfl.run.export import check_format, export_model
    from lessvfl.run.folder import load
    from lessvfl.run.record import RunRecord

    check_format(format)
    record = RunRecord.read(folder)
    model = load(folder, seed, trust_code=trust_code)
    out = out or folder / "export"
    files = export_model(model, out, format)
    for owner, path in files.items():
        typer.echo(f"{path}: {owner}")
    names = {owner: path.name for owner, path in files.items()}
    changed = profiles.changed(record.header)
    chosen = record.runs[0]["seed"] if seed is None else seed
    card = report.write_card(out, record, chosen, changed, names)
    typer.echo(f"{card}: what the model is, and is not")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(export)
