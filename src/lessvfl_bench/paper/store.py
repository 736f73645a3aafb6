"""Records of the paper's benchmark: the arrays of a finished chunk in a file.

``records/<data>-<scene>-<program>-<digest>.npz`` has, as JSON under ``meta``, what was
run; a record is found again by that, not by its name.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lessvfl import __version__
from lessvfl.run.record import write_atomically
from lessvfl_bench.paper.scene import Spec
from lessvfl_bench.paper.stages import Arrays
from lessvfl_bench.store import FOLDER, reading, record_folder

FORMAT = 1


@dataclass(frozen=True)
class Place:
    """Where the runs of one setting are: arrays, the place in them, the file."""

    arrays: Arrays
    index: int
    file: str


class Store:
    """The records of one benchmark, in a folder or in memory alone."""

    def __init__(self, folder: Path | None, resume: bool = False) -> None:
        self.folder = record_folder(folder, resume)
        self._places: dict[tuple[str, Spec], Place] = {}
        self.devices: set[str] = set()
        found = [] if self.folder is None else sorted(self.folder.glob("*.npz"))
        for path in found:
            self._read(path)

    def find(self, scene: str, spec: Spec) -> Place | None:
        """Return where the runs of a setting are, None where they were not run."""
        return self._places.get((scene, spec))

    def add(
        self, about: Mapping[str, Any], specs: Sequence[Spec], arrays: Arrays, name: str
    ) -> None:
        """Keep the arrays of a finished chunk."""
        meta = {"format": FORMAT, "lessvfl": __version__, **about}
        meta["specs"] = [asdict(spec) for spec in specs]
        text = json.dumps(meta, sort_keys=True)
        file = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.npz"
        if self.folder is not None:
            buffer = io.BytesIO()
            values: dict[str, Any] = {"meta": np.array(text), **arrays}
            np.savez(buffer, **values)
            write_atomically(self.folder / file, buffer.getvalue())
        self._take(meta, arrays, file)

    def _take(self, meta: Mapping[str, Any], arrays: Arrays, file: str) -> None:
        self.devices.add(meta["device"])
        for index, spec in enumerate(meta["specs"]):
            place = Place(arrays, index, f"{FOLDER}/{file}")
            self._places[meta["scene"], Spec(**spec)] = place

    def _read(self, path: Path) -> None:
        with reading(path):
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
                arrays = dict(found)
            meta = json.loads(str(arrays.pop("meta")))
            if meta["format"] != FORMAT or meta["lessvfl"] != __version__:
                raise ValueError(f"a record of lessvfl {meta['lessvfl']}")
            self._take(meta, arrays, path.name)
