"""The commands for a model of a run folder: ``lessvfl export`` and ``evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lessvfl.cli.options import AsJson, InferenceName, read_inference
from lessvfl.terms import SCORE_TEXTS, plural

if TYPE_CHECKING:
    from lessvfl.run.record import RunRecord

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run folder of 'lessvfl run --out'.")
]
AnyFolder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A run folder: of 'lessvfl run', a server or a party."
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Whose run; the first one unless given.")
]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the network code that the folder names."),
]

SCORES = {
    **SCORE_TEXTS,
    "calibration_error": "calibration error",
    "brier": "Brier score",
    "mae": "mean absolute error",
}
CELLS = {
    "imputed": "missing cells that were filled in",
    "unseen": "cells of a category that no training row has",
}


def export(
    folder: AnyFolder,
    format: Annotated[
        str,
        typer.Option(help="onnx: graphs of raw rows; safetensors; json: trees."),
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
    from lessvfl.status import words

    check_format(format)
    record = RunRecord.read(folder)
    model = load(folder, seed, trust_code=trust_code)
    out = out or folder / "export"
    files = export_model(model, out, format)
    for owner, path in files.items():
        typer.echo(words.printable(f"{path}: {owner}"))
    names = {owner: path.name for owner, path in files.items()}
    changed = profiles.changed(record.header)
    card = report.write_card(out, record, _seed(record, seed), changed, names)
    typer.echo(f"{card}: what the model is, and is not")


def evaluate(
    folder: Folder,
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A .csv, .parquet, .npz or Excel file."),
    ],
    label: Annotated[str | None, typer.Option(help="Label column of the file.")] = None,
    seed: Seed = None,
    inference: InferenceName = "clear",
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Score the model of a run on another table."""
    from lessvfl import __version__
    from lessvfl.data import load_rows
    from lessvfl.errors import ConfigError
    from lessvfl.run.folder import load
    from lessvfl.run.record import RunRecord
    from lessvfl.run.scores import score_rows

    record = RunRecord.read(folder)
    if record.side != "all":
        raise ConfigError(
            "To score a table a folder must hold all sides, as 'lessvfl run --out' "
            f"writes it. Got the side of {record.header.get('party', 'the server')}; "
            "'lessvfl predict server' predicts with the parties."
        )
    how = read_inference(inference)
    model = load(folder, seed, trust_code=trust_code).inferring(how)
    frame, labels, names = load_rows(
        data.expanduser(), model.columns, label, model.texts
    )
    found = score_rows(model, frame, labels, name=data.stem, label_names=names)
    if as_json:
        about = {
            "lessvfl": __version__,
            "data": {"name": data.stem, "n_rows": frame.n_rows},
            "model": {
                "data": record.header["data"]["name"],
                "method": record.header["method"],
                "seed": _seed(record, seed),
            },
        }
        typer.echo(json.dumps(about | found, allow_nan=False))
        return
    typer.echo(f"{plural(frame.n_rows, 'row')} of '{data.stem}'")
    for name, words in SCORES.items():
        if name in found:
            value = found[name]
            text = f"not defined: {found['undefined'].get(name)}"
            if value is not None:
                plain = value == 0 or 1e-3 <= abs(value) < 1e9
                text = f"{value:.4f}" if plain else f"{value:.4g}"
            typer.echo(f"{words}: {text}")
    if (level := found["baseline"].get("accuracy")) is not None:
        typer.echo(f"accuracy of always the most frequent class: {level:.4f}")
    for name, words in CELLS.items():
        if found[name]:
            typer.echo(f"{words}: {found[name]:,}")


def _seed(record: RunRecord, asked: int | None) -> int:
    """Return the seed whose model is loaded."""
    first: int = record.runs[0]["seed"]
    return first if asked is None else asked
