"""Records of a benchmark: one file a finished chunk, so that a killed run resumes.

``records/<data>-<scene>-<program>-<digest>.npz`` holds the arrays of a chunk (see
:mod:`~lessvfl.bench.paper.grid`) and, as JSON under ``meta``, what was run. Files are
written atomically; a record is found again by what was run, not by its name.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lessvfl import __version__
from lessvfl.bench.paper.scene import Spec
from lessvfl.bench.paper.stages import Arrays
from lessvfl.errors import ConfigError, RecordError
from lessvfl.run.record import write_atomically

FORMAT = 1
FOLDER = "records"


@dataclass(frozen=True)
class Place:
    """Where the runs of one setting are: arrays, the place in them, the file."""

    arrays: Arrays
    index: int
    file: str


class Store:
    """The records of one benchmark, in a folder or in memory alone.

    Parameters
    ----------
    folder : Path or None
        Where to write; None keeps records in memory.
    resume : bool
        Read what an earlier run left in the folder; without it, such a folder is
        refused.
    """

    def __init__(self, folder: Path | None, resume: bool = False) -> None:
        self.folder = None if folder is None else folder / FOLDER
        self._places: dict[tuple[str, Spec], Place] = {}
        self.devices: set[str] = set()
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        found = sorted(self.folder.glob("*.npz"))
        if found and not resume:
            raise ConfigError(
                f"The '--out' folder must not hold records of an earlier benchmark, "
                f"or --resume must be given. Got {len(found)} records in "
                f"'{self.folder}'."
            )
        for path in found:
            self._read(path)

    def find(self, scene: str, spec: Spec) -> Place | None:
        """Return where the runs of a setting are, None where they were not run."""
        return self._places.get((scene, spec))

    def add(
        self,
        scene: str,
        specs: Sequence[Spec],
        arrays: Arrays,
        about: Mapping[str, Any],
        name: str,
    ) -> None:
        """Keep the arrays of a finished chunk."""
        meta = {
            "format": FORMAT,
            "lessvfl": __version__,
            "scene": scene,
            "specs": [asdict(spec) for spec in specs],
            **about,
        }
        text = json.dumps(meta, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        file = f"{name}-{digest}.npz"
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
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
                meta = json.loads(str(found["meta"]))
                arrays = {k: found[k] for k in found.files if k != "meta"}
            if meta["format"] != FORMAT or meta["lessvfl"] != __version__:
                raise ValueError(f"a record of lessvfl {meta['lessvfl']}")
            self._take(meta, arrays, path.name)
        except (
            ValueError,
            KeyError,
            TypeError,
            EOFError,
            OSError,
            zipfile.BadZipFile,
        ) as error:
            raise RecordError(
                f"'{path}' must be a record of a benchmark of lessvfl {__version__}; "
                f"remove it to run its part again. Got {type(error).__name__}: {error}."
            ) from None


def scene_key(**about: Any) -> str:
    """Return a name for everything that the runs of a scene depend on.

    >>> scene_key(data="phishing", seeds=[0]) == scene_key(seeds=[0], data="phishing")
    True
    """
    return json.dumps(about, sort_keys=True)
