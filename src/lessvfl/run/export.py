"""Export: the networks of a fitted model as files that other programs read.

``partyN.onnx`` or ``partyN.safetensors`` for the N-th party, whatever its name, and
``fusion.onnx`` or ``fusion.safetensors`` for the server. Each file is made of one
side's part alone, so that either side can make its own between machines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lessvfl import __version__
from lessvfl.core.network import Network
from lessvfl.errors import ConfigError
from lessvfl.run import onnx_graphs
from lessvfl.run.fitted import FittedModel, FittedParty
from lessvfl.run.record import write_atomically
from lessvfl.settings import refuse
from lessvfl.terms import PartyId

FORMATS = ("onnx", "safetensors")


def export_model(model: FittedModel, folder: Path, format: str) -> dict[str, Path]:
    """Write every party's network and the server's into a folder.

    Parameters
    ----------
    model : FittedModel
        As :func:`lessvfl.load` returns it.
    folder : Path
        Where to; it is made if need be.
    format : {"onnx", "safetensors"}
        Graphs that take raw rows, or tensors with the encoding in their metadata.

    Returns
    -------
    dict
        Whose file is where: ``party 'bank'``, ..., ``the server``.
    """
    check_format(format)
    files = {
        f"party '{party.name}'": (f"party{index}.{format}", party_file(party, format))
        for index, party in enumerate(model.parties)
    }
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
        raise refuse("format", "option", " or ".join(FORMATS), format)


def party_file(party: FittedParty, format: str) -> bytes:
    """Return the file of one party alone: its network and its encoding."""
    if format == "onnx":
        return onnx_graphs.party_graph(party)
    about = {
        "party": party.name,
        "kept": party.kept,
        "removed": party.removed,
        "encoding": party.encoding.to_json(),
        "shape": vars(party.shape),
    }
    return _tensors(party.net, about, constant=party.constant)


def fusion_file(
    model: FittedModel, format: str, widths: Mapping[PartyId, int] | None = None
) -> bytes:
    """Return the file of the server alone: its network and what its output means.

    `widths` are the components of every party, in order, where the model holds the
    server's part alone.
    """
    if widths is None:
        widths = {party.name: party.net.n_outputs for party in model.parties}
    if format == "onnx":
        return onnx_graphs.fusion_graph(model, widths)
    about = {
        "task": model.task,
        "label_names": model.label_names,
        "label_shift": model.label_shift,
        "label_scale": model.label_scale,
        "threshold": model.threshold,
        "components": widths,
        "shape": vars(model.fusion_shape),
    }
    return _tensors(model.fusion, about)


def _tensors(net: Network, about: Mapping[str, Any], **more: Any) -> bytes:
    """Return a safetensors file, every entry of its metadata as JSON."""
    from safetensors.torch import save

    found = net.state() | {name: t for name, t in more.items() if t is not None}
    tensors = {name: t.detach().cpu().contiguous() for name, t in found.items()}
    facts = {"lessvfl": __version__, **about}
    metadata = {name: json.dumps(value) for name, value in facts.items()}
    return bytes(save(tensors, metadata=metadata))
