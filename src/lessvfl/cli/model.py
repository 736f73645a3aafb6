"""The command ``lessvfl export``: the model of a run folder, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lessvfl.cli import results, start
from lessvfl.cli.options import SeedNumber, TrustCode

AnyFolder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A run folder: of 'lessvfl run', a server or a party."
    ),
]


def export(
    folder: AnyFolder,
    format: Annotated[
        str,
        typer.Option(help="onnx: graphs of raw rows; safetensors; json: trees."),
    ] = "onnx",
    seed: SeedNumber = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; DIR/export unless given.")
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write the networks of a run with their preparation of columns, and a card."""
    start.say(f"the model of {folder}")
    from lessvfl import report
    from lessvfl.run import profiles
    from lessvfl.run.export import check_format, export_model
    from lessvfl.run.folder import kept_decision, load
    from lessvfl.run.record import RunRecord
    from lessvfl.status import words

    check_format(format)
    record = RunRecord.read(folder)
    chosen = record.runs[0]["seed"] if seed is None else seed
    model = load(folder, chosen, trust_code=trust_code, as_trained=True)
    out = out or folder / "export"
    files = export_model(model, out, format)
    for owner, path in files.items():
        typer.echo(words.printable(f"{path}: {owner}"))
    names = {owner: path.name for owner, path in files.items()}
    changed = profiles.changed(record.header)
    card = report.write_card(out, record, chosen, changed, names)
    typer.echo(f"{card}: what the model is, and is not")
    if (
        record.side != "party"
        and (decision := kept_decision(folder, chosen)) is not None
    ):
        results.say(f"not in these files: {decision.words}, as kept", err=True)
