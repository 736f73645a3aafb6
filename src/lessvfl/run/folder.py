"""Run folders: what a run leaves behind on disk.

A run folder holds ``record.jsonl``, ``report.html`` and ``features.csv`` (both written
by the report room) and ``networks-<id>/seed-<seed>/``, in it ``server/`` and
``party0/``, ``party1/`` and so on with everybody's part. Between machines every side
has a run folder of its own with its part alone, in ``networks/``. Networks are written
first and the record last, each atomically: a crash leaves the old run or the new one,
and an error while they are written loses nothing that can be written.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import uuid
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from lessvfl.core.lifted import Factory
from lessvfl.errors import ConfigError, RecordError
from lessvfl.run import verdicts
from lessvfl.run.decide.kept import DECISION_NAME, KeptDecision, read_decision
from lessvfl.run.ensemble import merge_models, merge_servers
from lessvfl.run.fitted import (
    FittedServer,
    digest_of,
    load_model,
    load_party,
    load_server,
)
from lessvfl.run.record import FILE_NAME, RunRecord, unwritten, write_atomically
from lessvfl.run.simulate import Run
from lessvfl.terms import listed

# What a run that was killed leaves without a record, and what others hide anywhere.
KILLED = (".*", "networks-*", "tensorboard")
SIDES = {"server": "a server", "party": "a party"}  # between machines
STATE = "side.safetensors"  # what a side between machines has from its first moment


def claim_new(
    folder: Path,
    overwrite: bool | None = None,
    what: str = "run folder",
    known: Sequence[str] = (),
) -> None:
    """Make a folder, or refuse one that holds another run or other files.

    A run that ended without results may be replaced, and any other with `overwrite`,
    which is None where no such option exists; the run of one side between machines
    never. Files with names in `known` may be there; `what` names the folder in errors.
    """
    names = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []
    others = [n for n in names if not any(fnmatch(n, k) for k in (*KILLED, *known))]
    held = listed([f"'{name}'" for name in others], 3)
    try:
        record = RunRecord.read(folder)
        side = SIDES.get(record.side)
    except RecordError:  # it has none yet, or one that is damaged
        record, side = None, "a side" if (folder / STATE).is_file() else None
    if side is not None:
        held = f"the run of {side} between machines, which nothing replaces"
    elif FILE_NAME in names:
        held = f"a run{': --overwrite replaces it' * (overwrite is not None)}"
        is_empty = record is not None and not record.runs  # it ended before its first
        others = [] if overwrite or is_empty else others
    if others:
        raise ConfigError(
            f"The {what} '{folder}' must be new or empty. Got one that holds {held}."
        )
    claim(folder, what)


def claim(folder: Path, what: str = "run folder") -> None:
    """Make a run folder or another one, or refuse one that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / ".claim", b"")
        (folder / ".claim").unlink()
    except OSError as error:
        raise ConfigError(
            f"The {what} '{folder}' must be a folder that can be written to. "
            f"Got this: {error.strerror}."
        ) from None


def save(folder: Path, record: RunRecord, runs: Sequence[Run]) -> None:
    """Write networks and record into a run folder.

    Whatever fails, all that can be written is, and the error says what is there: the
    networks of other seeds, and the record, as that of a run that failed. Networks of
    an earlier run go once everything is written.
    """
    name = f"networks-{uuid.uuid4().hex[:8]}"
    failed = None
    for run in runs:
        place = folder / name / f"seed-{run.numbers['seed']}"
        try:
            run.model.save(place)
        except BaseException as error:
            failed = error
            shutil.rmtree(place, ignore_errors=True)  # a part of it is of no use
            if not isinstance(error, Exception):
                break
    if any((folder / name).glob("*")):
        record.header["networks"] = name
    else:
        shutil.rmtree(folder / name, ignore_errors=True)
    if failed is not None:
        record.status, record.message = _ended(failed), str(failed)
    try:
        record.write(folder)
    except OSError as error:
        raise unwritten(folder, "The record", error) from error
    if isinstance(failed, Exception):
        raise unwritten(folder, "A network", failed) from failed
    if failed is not None:
        raise failed
    for old in folder.glob("networks-*"):
        if old.name != name:
            shutil.rmtree(old, ignore_errors=True)


def unfinished(
    header: Mapping[str, Any], ending: BaseException, runs: Sequence[dict[str, Any]]
) -> RunRecord:
    """Return the record of a run that ended early, with the runs that were over."""
    agreed = verdicts.agreed(runs)
    return RunRecord(dict(header), list(runs), _ended(ending), str(ending), agreed)


def kept_words(folder: Path, seeds: Sequence[int]) -> str:
    """Say which seeds of a run that ends early are kept."""
    many = "Seed" if len(seeds) == 1 else "Seeds"
    numbers = listed([str(seed) for seed in seeds], 20)
    return f"{many} {numbers} had finished: kept in '{folder}'."


def _ended(ending: BaseException) -> str:
    """Return the status of a run that ended early."""
    return "interrupted" if isinstance(ending, KeyboardInterrupt) else "failed"


def save_unfinished(
    folder: Path,
    header: Mapping[str, Any],
    ending: BaseException,
    runs: Sequence[Run] = (),
) -> None:
    """Write into a run folder that its run was interrupted, or how it failed.

    The `runs` that were over by then are kept.
    """
    record = unfinished(header, ending, [run.numbers for run in runs])
    for name in ("report.html", "features.csv"):  # they were of an earlier run
        (folder / name).unlink(missing_ok=True)
    save(folder, record, runs)


def part_of(record: RunRecord, folder: Path, seed: int) -> Path:
    """Return where the part of the side that wrote a record is, of one seed.

    Of all sides in one process, where they lie side by side.
    """
    name = str(record.header["networks"])
    if Path(name).name != name or name == "..":
        raise RecordError(
            f"The networks of '{folder}' must be in a folder of its own. Got '{name}'."
        )
    path = folder / name / f"seed-{seed}"
    if record.side == "server":
        return path / "server"
    if record.side == "party":
        place = record.header["parties"].index(record.header["party"])
        return path / f"party{place}"
    return path


def model_seeds(record: RunRecord, seed: int | None) -> tuple[int, ...]:
    """Return the seeds of a model: the one asked for, all of an ensemble, or the first.

    With a party's record an ensemble is not known of.
    """
    seeds = tuple(one["seed"] for one in record.runs)
    if seed is not None and seed not in seeds:
        raise ConfigError(f"The 'seed' must be one of {[*seeds]}. Got {seed} instead.")
    if seed is not None:
        return (seed,)
    return seeds if record.ensemble is not None else seeds[:1]


def keep_decision(folder: Path, seed: int | None, decision: KeptDecision) -> Path:
    """Keep a decision beside a model, for its later predictions.

    The model is the one that :func:`load` takes by that seed.
    """
    place, servers = _server_parts(folder, seed)
    try:
        place.mkdir(parents=True, exist_ok=True)
        return decision.write(place, _model_digest(servers))
    except OSError as error:
        raise unwritten(folder, "The decision", error) from error


def kept_decision(folder: Path, seed: int | None) -> KeptDecision | None:
    """Return the decision kept beside the model of `seed`; None where none is.

    A decision that was kept for another model is refused.
    """
    place, servers = _server_parts(folder, seed)
    if not (place / DECISION_NAME).is_file():
        return None
    return read_decision(place, _model_digest(servers))


def _server_parts(folder: Path, seed: int | None) -> tuple[Path, list[Path]]:
    """Return where a decision on a model is kept, and the server's part of each seed.

    An ensemble, which is made when it is loaded, has a folder beside its seeds.
    """
    record = RunRecord.read(folder)
    paths = [part_of(record, folder, one) for one in model_seeds(record, seed)]
    if record.side != "server":
        paths = [path / "server" for path in paths]
    place = paths[0]
    if len(paths) > 1:
        place = place.parent.with_name("ensemble") / place.name
    return place, paths


def _model_digest(servers: Sequence[Path]) -> str:
    """Return a digest of server's parts of a model and of all that lie beside them."""
    digests = ""
    for server in servers:
        for part in (server, *sorted(server.parent.glob("party*"))):
            digests += digest_of(part)
    return hashlib.sha256(digests.encode()).hexdigest()


def load(
    folder: str | Path,
    seed: int | None = None,
    *,
    party_net: Factory | None = None,
    fusion_net: Factory | None = None,
    trust_code: bool = False,
    as_trained: bool = False,
) -> Any:
    """Load the model of a run folder, or the part of the side that wrote it.

    Parameters
    ----------
    folder : str or Path
        A folder written by ``lessvfl run --out``, or the 'out' of a server or a party
        whose run is over.
    seed : int, optional
        Whose run; unless given all seeds together where they are an ensemble, and the
        first one where they are not.
    party_net, fusion_net : callable, optional
        The functions that made the networks, where they were given from Python.
    trust_code : bool
        Import and call the functions that the folder names as ``FILE.py:FUNCTION``.
        A folder from somebody else can name any code of this machine.
    as_trained : bool
        Leave out the recalibration and the cut-off that ``lessvfl evaluate --keep`` put
        beside the model.

    Returns
    -------
    FittedModel, FittedServer or FittedParty
        The whole with ``predict``, ``predict_proba``, ``features`` of this seed and the
        ``consensus`` of all; a server's with ``fuse``, a party's with ``embed``.
    """
    record = RunRecord.read(Path(folder))
    if not record.runs:
        raise RecordError(
            f"'{folder}' holds no finished run: its status must be complete. "
            f"Got {record.status}."
        )
    chosen = model_seeds(record, seed)
    if "networks" not in record.header:
        raise RecordError(
            f"'{folder}' must hold the networks of its run, as written by 'lessvfl run "
            "--out', or by a side in 'sides/' of a try. Got a record that names none."
        )
    paths = [part_of(record, Path(folder), one) for one in chosen]
    if record.side == "party":
        return load_party(paths[0], party_net, trust_code)
    model: FittedServer
    if record.side == "server":
        parts = [load_server(path, fusion_net, trust_code) for path in paths]
        model = merge_servers(parts) if len(parts) > 1 else parts[0]
    else:
        models = [load_model(path, party_net, fusion_net, trust_code) for path in paths]
        whole = merge_models(models) if len(models) > 1 else models[0]
        model = dataclasses.replace(whole, consensus=record.consensus)
    decision = None if as_trained else kept_decision(Path(folder), seed)
    if decision is not None:
        decision = decision.of_classes(len(model.label_names))
    return dataclasses.replace(model, decision=decision)
