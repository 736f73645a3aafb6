"""A party as a process of its own: joins a run, answers requests, keeps its state.

What leaves this process are replies (``wire/messages.py``) and what the operator
allows to reveal. Features kept, networks and checkpoints stay in its run folder.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl import __version__, data, settings
from lessvfl.core.device import resolve_device
from lessvfl.core.evidence import matches, with_shadows
from lessvfl.core.lifted import Lifted, find_factory
from lessvfl.core.network import DTYPES, MLP, NetConfig, Network
from lessvfl.data import DataConfig, Encoding, Frame
from lessvfl.errors import ConfigError, ProtocolError, RecordError
from lessvfl.party import Party
from lessvfl.remote.align import Ids, PartyAligner
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.config import PartyConfig
from lessvfl.run.record import write_atomically
from lessvfl.wire.control import (
    Agreed,
    Align,
    Finish,
    Hello,
    Prepare,
    Restore,
    Save,
    Welcome,
)
from lessvfl.wire.messages import Embed

log = logging.getLogger(__name__)


def versions() -> dict[str, str]:
    """Return what must be equal for two processes to compute the same bits."""
    return {
        "lessvfl": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
    }


class Guest:
    """A party's side of a session: ``handle(message) -> reply``.

    Parameters
    ----------
    name : str
        Who this is.
    config : PartyConfig
        What its operator allows.
    frame : Frame
        Its table, in its own order.
    ids : array or None
        Whom its rows are about.
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
        self.outside: NDArray[np.int64] | None = None
        self._ids = None if ids is None else Ids(ids, config.id or "id")
        self._aligner: PartyAligner | None = None
        self.folder = Path(config.out)
        self.device = resolve_device(config.device)
        self.party: Party | None = None
        self.encoding: Encoding | None = None
        self.rounds = 0
        self.seen: list[dict[str, Any]] = []  # features in use at every evaluation
        self._welcome: Welcome | None = None
        self._rows: Prepare | None = None
        self._mark: str | None = None  # of the last checkpoint

    @property
    def has_finished(self) -> bool:
        """Tell whether the run folder holds a run that is over."""
        return (self.folder / "party.json").is_file()

    def hello(self) -> Hello:
        """Return how this party greets."""
        return Hello(
            self.name,
            self.whole.n_rows,
            self.config.threads,
            self.device.type,
            versions(),
        )

    def handle(self, message: Any) -> Any:
        """Answer one message of the server's."""
        match message:
            case Welcome():
                return Agreed({"aligned": self._welcomed(message)})
            case Align(data):
                return self._align(data)
            case Prepare():
                self._rows = message
                self.party = self._build()
                return Agreed()
            case Save(tag):
                self._save(tag)
                return Agreed()
            case Restore(tag):
                self._restore(tag)
                return Agreed()
            case Finish():
                return Agreed(self._finish())
        if self.party is None:
            raise ProtocolError(
                f"Party '{self.name}' must be told its rows before it is asked. "
                "Got a request before that."
            )
        self.rounds += 1
        limit = self.config.max_rounds
        if limit is not None and self.rounds > limit:
            raise ConfigError(
                f"Party '{self.name}' takes part in at most {limit} exchanges. "
                "Got one more."
            )
        if isinstance(message, Embed) and message.stage == "evaluate":
            self._look(message.rows)
        return self.party.handle(message)

    def _welcomed(self, message: Welcome) -> bool:
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
        self._take(state.tensors["rows"].numpy(), state.tensors["outside"].numpy())
        return True

    def _take(self, rows: NDArray[np.int64], outside: NDArray[np.int64]) -> None:
        self.frame, self.outside = self.whole.take(rows), outside

    def _align(self, data: bytes) -> Align | Agreed:
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
            return Align(self._aligner.answer(data))
        rows = self._aligner.order(data)
        outside = self._aligner.outside
        self._aligner = None
        tensors = {
            "rows": torch.from_numpy(np.ascontiguousarray(rows)),
            "outside": torch.from_numpy(np.ascontiguousarray(outside)),
        }
        known = State(tensors, {"run": self._welcome.run})
        write_state(self.folder / "rows.safetensors", known)
        self._take(rows, outside)
        return Agreed()

    # --------------------------------------------------------------------------- wiring

    def _settings(self) -> Mapping[str, Any]:
        if self._welcome is None or self._rows is None:
            raise ProtocolError("A party must be welcomed first. Got another message.")
        return self._welcome.settings

    def _build(self) -> Party:
        """Return a fresh party on its rows, as the simulator would build it."""
        flat = self._settings()
        assert self._rows is not None
        assert self._welcome is not None
        config = DataConfig(**settings.pick(DataConfig, flat))
        if config.scale == "global":
            raise ConfigError(
                "The 'scale' setting must be standardize, robust or none here: a "
                "global range would be shared. Got global."
            )
        net_config = NetConfig(**settings.pick(NetConfig, flat))
        train, test = (
            self.frame.take(self._rows.train),
            self.frame.take(self._rows.test),
        )
        names = data.match_columns(
            self.frame.names, self.config.columns, f"party '{self.name}'"
        )
        encoding = Encoding.fit(
            self.name,
            train,
            names,
            scale=config.scale,
            max_categories=config.max_categories,
        )
        dtype = DTYPES[net_config.dtype]
        X = [
            torch.as_tensor(encoding.apply(rows)[0]).to(self.device, dtype).unsqueeze(0)
            for rows in (train, test)
        ]
        self.encoding = encoding
        seeds = self._welcome.seeds
        groups = torch.as_tensor(encoding.groups).to(self.device)
        own = (X[0], X[1])
        if flat.get("selector") == "shadows":
            own, groups = with_shadows(own, groups, flat["shadows"], seeds, self.name)
        widths = net_config.party_widths(own[0].shape[2])
        net = self._network(net_config, widths, seeds, dtype)
        return Party(
            self.name,
            net,
            own,
            groups,
            seeds,
            flat.get("empty_party", "constant"),
            tell_empty=self.config.reveal != "nothing",
            X_more=self._more(encoding, dtype),
            n_shadows=int(groups.max()) + 1 - len(encoding.features),
            must_keep=matches(flat.get("must_keep"), encoding.features),
        )

    def _more(self, encoding: Encoding, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the rows outside the common ones, where they are to be used."""
        if (
            not self.config.outside_rows
            or self.outside is None
            or not len(self.outside)
        ):
            return None
        rows, _ = encoding.apply(self.whole.take(self.outside))
        return torch.as_tensor(rows).to(self.device, dtype).unsqueeze(0)

    def _network(
        self,
        config: NetConfig,
        widths: tuple[int, ...],
        seeds: tuple[int, ...],
        dtype: torch.dtype,
    ) -> Network:
        if config.party_net is None:
            return MLP.create(
                widths,
                config.activation,
                seeds,
                self.name,
                dtype,
                self.device,
                config.input_scale,
            )
        factory = find_factory(config.party_net)
        return Lifted.create(
            factory, widths[0], widths[-1], seeds, self.name, dtype, self.device
        )

    # --------------------------------------------------------------------------- states

    def _path(self, tag: str) -> Path:
        return self.folder / "checkpoints" / f"{tag}.safetensors"

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
            self.rounds, self.seen = 0, []
            assert self._welcome is not None
            torch.manual_seed(self._welcome.seeds[0])
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
        """Write the run folder; return what may be revealed."""
        assert self.party is not None
        assert self.encoding is not None
        outcome = self.party.outcome(0)
        features = self.encoding.features
        kept = [name for name, on in zip(features, outcome.kept, strict=True) if on]
        removed = [name for name in features if name not in set(kept)]
        own = {
            "party": self.name,
            "kept": kept,
            "removed": removed,
            "importance": dict(zip(features, outcome.importance, strict=True)),
            "encoding": [dataclasses.asdict(c) for c in self.encoding.columns],
            "selection": outcome.selection,
            "curve": self.seen,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = outcome.net.state()
        write_state(self.folder / "network.safetensors", State(tensors, {}))
        text = json.dumps(own, allow_nan=False, indent=1)
        write_atomically(self.folder / "party.json", text.encode())
        log.info("kept %d of %d features", len(kept), len(features))
        match self.config.reveal:
            case "features":
                return {"kept": kept, "removed": removed}
            case "counts":
                return {"n_kept": len(kept), "n_removed": len(removed)}
        return {}
