"""A party as a process of its own: joins a run, answers requests, keeps its state.

What leaves this process are replies (``wire/messages.py``) and what the operator
allows to reveal. Features kept, networks and checkpoints stay in its run folder:
``party.json`` once all seeds are over, with what they recommend, and for each of them
``seed-<seed>/`` with checkpoints, network and ``numbers.json``.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl import __version__, data
from lessvfl.core.device import resolve_device
from lessvfl.data import DataConfig, Encoding, Frame
from lessvfl.errors import ConfigError, PolicyError, ProtocolError, RecordError
from lessvfl.party import Party
from lessvfl.remote.align import Ids, PartyAligner
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.config import PartyConfig
from lessvfl.run import profiles
from lessvfl.run.build import Builder
from lessvfl.run.numbers import consensus, party_numbers
from lessvfl.run.record import read_json, write_atomically
from lessvfl.wire import control, messages

log = logging.getLogger(__name__)


def versions() -> dict[str, str]:
    """Return what must be equal for two processes to compute the same bits."""
    return {
        "lessvfl": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
    }


class PartyProcess:
    """A party's side of a run: ``handle(message) -> reply``.

    `frame` is its table in its own order, `ids` whom the rows are about.
    """

    def __init__(
        self,
        name: str,
        config: PartyConfig,
        frame: Frame,
        ids: NDArray[Any] | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.whole = frame
        self.frame = frame  # of the common rows, in the common order
        self._ids = None if ids is None else Ids(ids, config.id or "id")
        self._aligner: PartyAligner | None = None
        self.folder = Path(config.out)
        self.device = resolve_device(config.device)
        self.party: Party | None = None
        self.encoding: Encoding | None = None
        self.rounds = 0
        self.seen: list[dict[str, Any]] = []  # features in use at every evaluation
        self._welcome: control.Welcome | None = None
        self._rows: control.Prepare | None = None
        self._mark: str | None = None  # of the last checkpoint

    @property
    def has_finished(self) -> bool:
        """Tell whether the run folder holds a run whose seeds are all over."""
        return (self.folder / "party.json").is_file()

    def hello(self) -> control.Hello:
        """Return how this party greets."""
        return control.Hello(
            self.name,
            self.config.threads,
            self.device.type,
            versions(),
        )

    def handle(self, message: Any) -> Any:
        """Answer one message of the server's."""
        match message:
            case control.Welcome():
                return control.Agreed({"aligned": self._welcomed(message)})
            case control.Align(data):
                return self._align(data)
            case control.Prepare():
                self._prepare(message)
                return control.Agreed()
            case control.Save(tag):
                self._save(tag)
                return control.Agreed()
            case control.Restore(tag):
                self._restore(tag)
                return control.Agreed()
            case control.Finish():
                return control.Agreed(self._finish())
        if self.party is None:
            raise ProtocolError(
                f"Party '{self.name}' must be told its rows before it is asked. "
                "Got a request before that."
            )
        self.rounds += 1
        limit = self.config.max_rounds
        if limit is not None and self.rounds > limit:
            raise PolicyError(
                f"Party '{self.name}' takes part in at most {limit} exchanges. "
                "Got one more."
            )
        if isinstance(message, messages.Embed) and message.stage == "evaluate":
            self._look(message.rows)
        return self.party.handle(message)

    def _welcomed(self, message: control.Welcome) -> bool:
        """Begin a session; tell whether the common rows of its run are known."""
        self._welcome = message
        self._aligner = None
        self.party = None
        path = self.folder / "rows.safetensors"
        if not path.is_file():
            return False
        state = read_state(path)
        if state.values["run"] != message.run:
            return False
        self.frame = self.whole.take(state.tensors["rows"].numpy())
        return True

    def _align(self, data: bytes) -> control.Align | control.Agreed:
        """Answer the label holder's greeting, then take over the common order."""
        assert self._welcome is not None
        if self._aligner is None:
            if self.config.align != self._welcome.align:
                raise ConfigError(
                    f"Server and party '{self.name}' must align alike. Got "
                    f"{self._welcome.align} and {self.config.align}."
                )
            mode: Any = self.config.align
            self._aligner = PartyAligner(mode, self._ids, self.whole.n_rows)
            return control.Align(self._aligner.answer(data))
        rows = self._aligner.order(data)
        self._aligner = None
        tensors = {"rows": torch.from_numpy(np.ascontiguousarray(rows))}
        known = State(tensors, {"run": self._welcome.run})
        write_state(self.folder / "rows.safetensors", known)
        self.frame = self.whole.take(rows)
        return control.Agreed()

    # --------------------------------------------------------------------------- wiring

    def _prepare(self, message: control.Prepare) -> None:
        """Begin the run of one seed."""
        if self._welcome is None or message.seed not in self._welcome.seeds:
            raise ProtocolError(
                f"Party '{self.name}' must be told all seeds before the first run. "
                f"Got seed {message.seed}."
            )
        self._rows = message
        self.party = self._build()

    def _build(self) -> Party:
        """Return a fresh party on its rows, as the simulator would build it."""
        welcome, rows = self._welcome, self._rows
        if welcome is None or rows is None:
            raise ProtocolError("A party must be welcomed first. Got another message.")
        settings = profiles.from_flat(welcome.method, "default", welcome.settings)
        train, test = self.frame.take(rows.train), self.frame.take(rows.test)
        encoding = self._encoding(settings.data, train)
        build = Builder(settings, [rows.seed], self.config.device)

        def encode(frame: Frame) -> Tensor:
            return build.rows([encoding.apply(frame)[0]])

        self.encoding = encoding
        return build.party(
            self.name,
            (encode(train), encode(test)),
            encoding.groups,
            encoding.features,
            tell_empty=self.config.reveal != "nothing",
        )

    def _encoding(self, config: DataConfig, train: Frame) -> Encoding:
        """Learn from its training rows how to encode its columns."""
        own = self.config
        if config.scale == "global" and own.scale_range is None:
            raise ConfigError(
                "The 'scale' setting must be standardize or none here: a "
                "global range would be shared. Got global."
            )
        where = f"party '{self.name}'"
        names = data.match_columns(train.names, own.columns, where)
        return Encoding.fit(
            self.name,
            train,
            names,
            scale=config.scale,
            bounds=own.scale_range or (0.0, 1.0),
            max_categories=config.max_categories,
            groups=data.features_of({self.name: names}, own.groups),
            as_is=data.match_columns(names, own.as_is, where) if own.as_is else (),
        )

    # --------------------------------------------------------------------------- states

    def _place(self, seed: int) -> Path:
        """Return the folder of one seed."""
        return self.folder / f"seed-{seed}"

    def _path(self, tag: str) -> Path:
        assert self._rows is not None
        return self._place(self._rows.seed) / "checkpoints" / f"{tag}.safetensors"

    def _save(self, tag: str) -> None:
        """Write the state down; this mark and the one before it are kept.

        The server may go back to the one before: it writes its own state after ours.
        """
        assert self.party is not None
        tensors, values = self.party.state()
        values |= {"rounds": self.rounds, "seen": self.seen}
        tensors["rng"] = torch.get_rng_state()
        write_state(self._path(tag), State(tensors, values))
        for path in self._path(tag).parent.glob("*.safetensors"):
            if path.stem not in (tag, self._mark):
                path.unlink(missing_ok=True)
        self._mark = tag

    def _restore(self, tag: str | None) -> None:
        self.party = self._build()
        self._mark = tag
        if tag is None:
            assert self._rows is not None
            self.rounds = max((one["rounds"] for one in self._finished()), default=0)
            self.seen = []
            torch.manual_seed(self._rows.seed)
            return
        path = self._path(tag)
        if not path.is_file():
            raise RecordError(
                f"Party '{self.name}' must have the checkpoint of {tag}. Got none in "
                f"'{path.parent}'."
            )
        state = read_state(path)
        self.party.restore(state.tensors, state.values)
        self.rounds = state.values["rounds"]
        self.seen = list(state.values["seen"])
        torch.set_rng_state(state.tensors["rng"])

    def _look(self, rows: str) -> None:
        """Remember which features are in use; once an evaluation."""
        assert self.party is not None
        if rows == "test":
            mask = self.party.features_now()[0].tolist()
            self.seen.append({"kept": [i for i, on in enumerate(mask) if on]})

    # -------------------------------------------------------------------------- the end

    def _finish(self) -> dict[str, Any]:
        """Write down the run of this seed; return what may be revealed."""
        assert self.party is not None
        assert self.encoding is not None
        assert self._welcome is not None
        assert self._rows is not None
        seed, outcome = self._rows.seed, self.party.outcome(0)
        own = {
            "seed": seed,
            **party_numbers(self.encoding.features, outcome),
            "encoding": [dataclasses.asdict(c) for c in self.encoding.columns],
            "curve": self.seen,
        }
        place = self._place(seed)
        write_state(place / "network.safetensors", State(outcome.net.state(), {}))
        run = {"run": self._welcome.run, "rounds": self.rounds, "numbers": own}
        _write(place / "numbers.json", run)
        kept, removed = own["kept"], own["removed"]
        log.info("kept %d of %d features", len(kept), len(kept) + len(removed))
        runs = [one["numbers"] for one in self._finished()]
        if len(runs) == len(self._welcome.seeds):
            self._conclude(runs)
        match self.config.reveal:
            case "features":
                return {"kept": kept, "removed": removed}
            case "counts":
                return {"n_kept": len(kept), "n_removed": len(removed)}
        return {}

    def _finished(self) -> list[dict[str, Any]]:
        """Return what was written down of the seeds of this run that are over."""
        assert self._welcome is not None
        paths = [self._place(s) / "numbers.json" for s in self._welcome.seeds]
        found = [read_json(path) for path in paths if path.is_file()]
        return [one for one in found if one["run"] == self._welcome.run]

    def _conclude(self, runs: list[dict[str, Any]]) -> None:
        """Write down what all seeds recommend; for the party's own eyes."""
        agreed = consensus([{self.name: one} for one in runs])[self.name]
        whole = {"party": self.name, "consensus": agreed, "runs": runs}
        _write(self.folder / "party.json", whole)
        if len(runs) > 1:
            n_features = len(runs[0]["kept"]) + len(runs[0]["removed"])
            counts = (len(agreed["recommended"]), n_features, len(runs))
            log.info("kept %d of %d features in at least half of %d runs", *counts)


def _write(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(values, allow_nan=False, indent=1).encode())
