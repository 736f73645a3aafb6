"""The record of a run: everything it leaves behind, as JSON lines.

``record.jsonl`` in a run folder holds one line with ``"kind": "header"`` (schema,
side, version, data, method, profile, config, versions, device), per seed one ``"run"``
and its ``"point"`` lines (the curve), and one ``"end"`` with the ``consensus`` of all
seeds, the scores of their ``ensemble`` and a ``status``: ``complete``, ``interrupted``
or ``failed``. Reports read records and nothing else.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import stat
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lessvfl.errors import ConfigError, LessVFLError, RecordError
from lessvfl.terms import listed

FILE_NAME = "record.jsonl"
OWN = "own"  # in a server's run folder: that of the party that its own columns are
NETWORK_FILES = "networks*/seed-*/*/network.safetensors"
JOURNAL = "predictions.jsonl"  # of a party: a line for each request to predict
TOLD = "reasons told"  # there: a request whose answer named features
EFFECTS = "effects.json"  # of a party: curves by the slopes that reasons brought
NO_FILES = (errno.EMFILE, errno.ENFILE)  # want of descriptors, which may pass
# What reading an arbitrary file may raise; the last where it is nested too deeply.
FAULTS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
FILES_SECONDS = 30.0  # for how long a write is tried again then
SCHEMA = 3  # of run folders; 1 had no sides, 2 other reasons of features

log = logging.getLogger(__name__)

# The settings that decide how much a run sends: runs that agree in these can be
# compared in bytes.
TRANSPORT = (
    "embedding_size",
    "components_per_column",
    "bits",
    "batch_size",
    "learning_rate",
    "optimizer",
    "weight_decay",
    "schedule",
    "pretrain_epochs",
    "pretrain_batch_size",
    "train_epochs",
)

# What every header says; `--json` prints these and the runs.
_HEADER = ("lessvfl", "data", "method", "profile", "config")

# And what that of one side says besides.
_SIDES = {
    "server": ("run", "networks", "parties"),
    "party": ("run", "networks", "parties", "party"),
}


def write_atomically(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file so that a crash leaves the old or the new one, never half of one.

    `mode` are the file's permissions where they must not be the usual ones. Where no
    file descriptor is free, writing is tried again for a while.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    end = time.monotonic() + FILES_SECONDS
    while True:
        try:
            with open(partial, "wb") as stream:
                if mode is not None:
                    os.fchmod(stream.fileno(), mode)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            return os.replace(partial, path)
        except BaseException as error:
            partial.unlink(missing_ok=True)
            is_full = isinstance(error, OSError) and error.errno in NO_FILES
            if not is_full or time.monotonic() > end:
                raise
        time.sleep(0.1)


def read_private(path: Path, what: str) -> bytes:
    """Return the content of a file with a secret, which others may not open."""
    with open(path, "rb") as stream:
        check_private(os.fstat(stream.fileno()).st_mode, path, what)
        return stream.read()


def check_private(mode: int, path: Path, what: str) -> None:
    """Refuse a file that others may open; of one that its group may open, warn."""
    mode = stat.S_IMODE(mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ConfigError(
            f"The {what} '{path}' must be readable by its owner alone, as after "
            f"chmod 600. Got mode {mode:04o}, which lets others in."
        )
    if mode & (stat.S_IRGRP | stat.S_IWGRP):
        log.warning(
            "the %s '%s' has mode %04o, which lets its group in; chmod 600 does not",
            what,
            path,
            mode,
        )


def dumps(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, or refuse it and say which part is no JSON, as NaN is."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent)
    except (TypeError, ValueError):
        misfits: dict[str, str] = {}
        _plain(value, "", misfits)
        where, got = next(iter(misfits.items()))
        raise RecordError(
            "A record must hold finite numbers, words, and lists and objects of them. "
            f"Got {got} at '{where}'."
        ) from None


def _plain(value: Any, where: str, misfits: dict[str, str]) -> Any:
    """Return a value with null for every part that JSON cannot hold.

    These are written into `misfits`, by their place.
    """
    if isinstance(value, Mapping | list | tuple):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        plain = {
            str(key): _plain(part, f"{where}.{key}".lstrip("."), misfits)
            for key, part in parts
        }
        return plain if isinstance(value, Mapping) else [*plain.values()]
    is_number = isinstance(value, int | float) and math.isfinite(value)
    if value is None or is_number or isinstance(value, str):
        return value
    misfits[where] = repr(value)
    return None


def write_json(path: Path, value: Any, mode: int | None = None) -> None:
    """Write one object of a run folder, atomically.

    What is no JSON is refused, once the rest of it is beside the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        text = dumps(value, indent=1)
    except RecordError as error:
        beside = path.with_suffix(".partial.json")
        text = dumps(_plain(value, "", {}), indent=1)
        write_atomically(beside, text.encode(), mode)
        raise RecordError(f"{error} All the rest is in '{beside}'.") from None
    write_atomically(path, text.encode(), mode)


def unwritten(folder: Path, what: str, error: BaseException) -> RecordError:
    """Return what is said where a part of a run cannot be written: what is there."""
    why = error.strerror if isinstance(error, OSError) else str(error)
    if not isinstance(error, OSError | LessVFLError):
        why = f"{type(error).__name__}: {why}"
    seeds = sorted(path.parent.parent for path in folder.glob(NETWORK_FILES))
    there = [FILE_NAME] * (folder / FILE_NAME).is_file()
    there += dict.fromkeys(f"{seed.relative_to(folder)}" for seed in seeds)
    held = f"holds {listed(there, 20)}" if there else "holds nothing of the run"
    return RecordError(
        f"{what} of '{folder}' cannot be written: {str(why).rstrip('.')}. The folder "
        f"{held}."
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read one object of a run folder."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


@dataclass
class RunRecord:
    """Header, runs (one per seed, each with its curve), how it ended, what they say."""

    header: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    status: str = "running"
    message: str = ""
    consensus: dict[str, Any] = field(default_factory=dict)  # by party, over all runs
    ensemble: dict[str, Any] | None = None  # what all seeds say together, if they do

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``lessvfl run --json`` prints."""
        return {
            **{name: self.header[name] for name in _HEADER},
            "consensus": self.consensus,
            "ensemble": self.ensemble,
            "runs": self.runs,
        }

    def lines(self) -> Iterable[dict[str, Any]]:
        """Yield the record as JSON objects, one for each line of its file."""
        yield {"kind": "header", "schema": SCHEMA, **self.header}
        for run in self.runs:
            yield {"kind": "run", **{k: v for k, v in run.items() if k != "curve"}}
            for point in run["curve"]:
                yield {"kind": "point", "seed": run["seed"], **point}
        yield {
            "kind": "end",
            "status": self.status,
            "message": self.message,
            "consensus": self.consensus,
            "ensemble": self.ensemble,
        }

    def write(self, folder: Path) -> Path:
        """Write ``record.jsonl`` into a folder, atomically.

        Where a part of it is no JSON, all the rest is written as that of a failed run.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path, error = folder / FILE_NAME, None
        try:
            text = "".join(dumps(line) + "\n" for line in self.lines())
        except RecordError as problem:
            error, self.status, self.message = problem, "failed", str(problem)
            lines = (_plain(line, "", {}) for line in self.lines())
            text = "".join(dumps(line) + "\n" for line in lines)
        write_atomically(path, text.encode())
        if error is not None:
            raise unwritten(folder, "A part of the record", error)
        return path

    @property
    def transport(self) -> dict[str, Any]:
        """Return the settings that decided how much was sent, those it read."""
        config = self.header.get("config") or {}
        return {name: config[name] for name in TRANSPORT if name in config}

    @property
    def side(self) -> str:
        """Return who wrote it: the server, a party, or all in one process."""
        return str(self.header.get("side", "all"))

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read the record of a run folder."""
        path = Path(folder) / FILE_NAME
        if not path.is_file():
            raise RecordError(
                f"'{folder}' is not a run folder: it must hold {FILE_NAME}, as written "
                "by 'lessvfl run --out', and by a server and a party at their end."
            )
        try:
            text = path.read_text(encoding="utf-8")
            lines = [json.loads(line) for line in text.splitlines()]
            schema = lines[0].pop("schema", 1) if lines else SCHEMA
            if schema != SCHEMA and "method" in lines[0]:
                raise RecordError(
                    f"The run folder '{folder}' must have format {SCHEMA} to be read. "
                    f"Got format {schema}, of another version of lessvfl: run it "
                    "again, or read it with the version that wrote it."
                )
            record = cls._parse(lines)
            if record.side == "server" and (path.parent / OWN / FILE_NAME).is_file():
                party = cls.read(path.parent / OWN)
                if party.header["run"] == record.header["run"]:
                    record._take_up(party)
            return record
        except RecordError:
            raise
        except FAULTS as problem:
            raise RecordError(
                f"'{path}' is not a record of lessvfl: every line must be one JSON "
                "object, a header first, runs with their points, and an end last. "
                f"Got {type(problem).__name__}: {problem}."
            ) from None

    def _take_up(self, party: RunRecord) -> None:
        """Add what the party of a server's own columns knows: verdicts and evidence."""
        self.consensus |= party.consensus
        evidence = {run["seed"]: run.get("selection") for run in party.runs}
        for run in self.runs:
            both = (run.get("selection") or {}) | (evidence.get(run["seed"]) or {})
            run["selection"] = both

    @classmethod
    def _parse(cls, lines: list[dict[str, Any]]) -> RunRecord:
        """Put lines together again; whatever does not fit raises."""
        header, *middle, end = lines
        for line, kind in ((header, "header"), (end, "end")):
            if line.pop("kind") != kind:
                raise ValueError(f"no {kind}")
        due = (*_HEADER, *_SIDES.get(header.get("side", "all"), ()))
        missing = [name for name in due if name not in header]
        if missing:
            raise KeyError(*missing)
        runs: dict[int, dict[str, Any]] = {}
        for line in middle:
            kind = line.pop("kind")
            if kind == "run":
                if type(line["seed"]) is not int or line["seed"] < 0:
                    raise ValueError(f"a seed {line['seed']!r}")  # it is in paths
                runs[line["seed"]] = {**line, "curve": []}
            elif kind == "point":
                runs[line.pop("seed")]["curve"].append(line)
            else:
                raise ValueError(f"a line of kind {kind!r}")
        return cls(
            header,
            list(runs.values()),
            status=end["status"],
            message=end["message"],
            consensus=end["consensus"],
            ensemble=end.get("ensemble"),
        )


def read_journal(folder: Path) -> dict[str, Any]:
    """Return what a party was asked for since its run: requests, rows, the last time.

    Nothing where it never predicted.
    """
    path, n_requests, n_rows, n_explained, last = folder / JOURNAL, 0, 0, 0, None
    if not path.is_file():
        return {}
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                if not line.endswith("\n"):  # it is being written
                    continue
                request = json.loads(line)
                n_asked = int(request["rows"])
                if str(request.get("asked")).startswith("reasons"):
                    n_explained += n_asked * (request["asked"] == TOLD)
                elif n_asked:
                    n_requests, n_rows = n_requests + 1, n_rows + n_asked
                else:  # it asks for no embedding, or gets none
                    continue
                last = str(request["time"])
    except FAULTS as problem:
        raise RecordError(
            f"'{path}' must hold one JSON object a line, as a party writes it. Got "
            f"{type(problem).__name__}: {problem}."
        ) from None
    if last is None:
        return {}
    journal = {"requests": n_requests, "rows": n_rows, "last": last}
    return journal | ({"told": n_explained} if n_explained else {})


def alike_words(whose: str, selections: Iterable[Mapping[str, Any] | None]) -> str:
    """Say that rows in a file are alike, neighbours or others; nothing where none are.

    >>> how = {"alike": {"columns": 0.973, "responses": 0.25}}
    >>> alike_words("party 'a'", [how, {}, None])[:68]
    "Rows next to each other in the file of party 'a' are alike (lag-one "
    >>> alike_words("party 'a'", [{"near_copies": 0.314}])[:62]
    "31% of the rows in the file of party 'a' have a near copy that"
    """
    known = [how for how in selections if how]
    alike = [how["alike"] for how in known if how.get("alike")]
    near = [how["near_copies"] for how in known if how.get("near_copies")]
    words = []
    if alike:
        columns = statistics.fmean(shares["columns"] for shares in alike)
        labels = statistics.fmean(shares["responses"] for shares in alike)
        words.append(
            f"Rows next to each other in the file of {whose} are alike (lag-one "
            f"correlation {columns:.2f} of columns, {labels:.2f} of what the labels "
            "ask for). Scrambled copies keep neighbours together; better name the "
            "person or the time by 'group_column'."
        )
    if near:
        words.append(
            f"{statistics.fmean(near):.0%} of the rows in the file of {whose} have a "
            "near copy that the labels treat alike. More useless features are kept "
            "then than is said; name the person by 'group_column'."
        )
    return " ".join(words)
