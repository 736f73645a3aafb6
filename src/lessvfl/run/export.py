"""Export: the networks of a fitted model as files that other programs read.

``partyN.onnx`` (or ``.safetensors``, or ``.json``) for the N-th party, whatever its
name, and ``fusion.onnx`` (likewise) for the server. Each file is made of one
side's part alone, so that either side can make its own between machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lessvfl import __version__
from lessvfl.errors import ConfigError
from lessvfl.run import onnx_graphs, tree_files
from lessvfl.run.fitted import FittedParty, FittedServer
from lessvfl.run.network_files import tensor_file
from lessvfl.run.record import dumps, write_atomically
from lessvfl.settings import refuse

FORMATS = ("onnx", "safetensors", "json")
VERSION: dict[str, Any] = {"lessvfl": __version__}


def export_model(
    model: FittedServer | FittedParty, folder: Path, format: str
) -> dict[str, Path]:
    """Write every party's network and the server's into a folder.

    Parameters
    ----------
    model : FittedModel, FittedServer or FittedParty
        As :func:`lessvfl.load` returns it: all sides, or one alone.
    folder : Path
        Where to; it is made if need be.
    format : {"onnx", "safetensors", "json"}
        Graphs that take raw rows, tensors with the encoding in their metadata, or, of
        trees alone, splits in words and numbers.

    Returns
    -------
    dict
        Whose file is where: ``party 'bank'``, ..., ``the server``.
    """
    check_format(format)
    alone = isinstance(model, FittedParty)
    parties = (model,) if alone else getattr(model, "parties", ())
    files = {}
    for index, party in enumerate(parties):
        name = f"party.{format}" if alone else f"party{index}.{format}"
        files[f"party '{party.name}'"] = (name, party_file(party, format))
    if isinstance(model, FittedServer):
        files["the server"] = (f"fusion.{format}", fusion_file(model, format))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.values():
            write_atomically(folder / name, content)
    except OSError as error:
        raise ConfigError(
            f"The folder '{folder}' for the export must be one that can be written to. "
            f"Got this: {error.strerror}."
        ) from None
    return {owner: folder / name for owner, (name, _) in files.items()}


def check_format(format: str) -> None:
    """Refuse a format that is none."""
    if format not in FORMATS:
        *first, last = FORMATS
        raise refuse("format", "option", f"{', '.join(first)} or {last}", format)


def party_file(party: FittedParty, format: str) -> bytes:
    """Return the file of one party alone: its network and its encoding."""
    if format == "onnx":
        return onnx_graphs.party_graph(party)
    if format == "json":
        return dumps(VERSION | tree_files.party_trees(party), indent=1).encode()
    about = {
        "party": party.name,
        "kept": party.kept,
        "removed": party.removed,
        "encoding": party.encoding.to_json(),
        "shape": vars(party.shape),
    }
    extra = {} if party.constant is None else {"constant": party.constant}
    return tensor_file(party.net.state() | extra, _metadata(about))


def fusion_file(model: FittedServer, format: str) -> bytes:
    """Return the file of the server alone: its network and what its output means."""
    if format == "onnx":
        return onnx_graphs.fusion_graph(model)
    if format == "json":
        return dumps(VERSION | tree_files.server_trees(model), indent=1).encode()
    about = {
        "task": model.task,
        "label_names": model.label_names,
        "label_shift": model.label_shift,
        "label_scale": model.label_scale,
        "threshold": model.threshold,
        "components": dict(zip(model.party_names, model.sizes, strict=True)),
        "shape": vars(model.fusion_shape),
    }
    return tensor_file(model.fusion.state(), _metadata(about))


def _metadata(about: Mapping[str, Any]) -> dict[str, str]:
    return {name: dumps(value) for name, value in {**VERSION, **about}.items()}
