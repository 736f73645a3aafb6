"""What is kept beside a model for later predictions: a recalibration and a cut-off.

``decision.json`` lies in the label holder's part of a model. It names the model by a
digest: beside another network it is refused.

It marks the rows that it was chosen on, to know them again, by a digest of each: of a
row's id, or of its cells and its label where rows have no ids. A digest takes 6 bytes:
among a million rows and a million others, one is taken for another once in 280 times.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data import Frame
from lessvfl.errors import RecordError
from lessvfl.run.decide.recalibration import Reals, Recalibration
from lessvfl.run.record import write_json

DECISION_NAME = "decision.json"
SIZE = 6  # bytes of a digest
# Digests of rows, without those that equal another of the same table.
RowMarks = frozenset[bytes]
# What reading an arbitrary file may raise.
FAULTS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError),
    *(OverflowError, RecursionError),
)


@dataclass(frozen=True)
class KeptDecision:
    """How predictions are fitted and decided on, instead of as the run left them."""

    recalibration: Recalibration | None = None
    # By class, as that of a run: what its probability is divided by.
    threshold: tuple[float, ...] | None = None
    # What the user is told: the cut-off and its aim, the rows they were chosen on.
    about: Mapping[str, Any] = field(default_factory=dict)
    marks: RowMarks = frozenset()  # of these rows, to know them again

    def recalibrated(self, z: Reals) -> Reals:
        """Return the outputs of the model as they are to be used."""
        return z if self.recalibration is None else self.recalibration.apply(z)

    def of_classes(self, n_classes: int) -> KeptDecision:
        """Return this decision, or refuse it if its cut-off is not of `n_classes`."""
        if self.threshold is None or len(self.threshold) == n_classes:
            return self
        raise RecordError(
            f"A cut-off that is kept must be of the {n_classes} classes of its model. "
            f"Got one of {len(self.threshold)}."
        )

    @property
    def words(self) -> str:
        """Say what is applied.

        >>> KeptDecision(threshold=(0.8, 0.2), about={"class": "ill", "cut_off": 0.2,
        ... "aim": "rate 0.1", "rows": 90, "data": "late"}).words
        "a cut-off of 0.2 for 'ill' (rate 0.1), by 90 rows of 'late'"
        """
        parts = []
        if self.recalibration is not None:
            parts.append(f"a recalibration ({self.recalibration.kind})")
        if self.threshold is not None:
            at = f"a cut-off of {self.about['cut_off']:.4g} for '{self.about['class']}'"
            parts.append(f"{at} ({self.about['aim']})")
        rows = f"{self.about['rows']:,} rows of '{self.about['data']}'"
        return f"{' and '.join(parts)}, by {rows}"

    @property
    def summary(self) -> dict[str, Any]:
        """Return it as the JSON of predictions and evaluations has it."""
        kind = None if self.recalibration is None else self.recalibration.kind
        names = ("cut_off", "class", "aim")
        return {"recalibration": kind, **{name: self.about.get(name) for name in names}}

    def write(self, folder: Path, model: str) -> Path:
        """Write this decision beside the model with digest `model`; return its path."""
        how = self.recalibration
        content = {
            "model": model,
            "recalibration": None if how is None else asdict(how),
            "threshold": self.threshold,
            "about": dict(self.about),
            "rows": base64.b64encode(b"".join(sorted(self.marks))).decode(),
        }
        write_json(folder / DECISION_NAME, content)
        return folder / DECISION_NAME


def read_decision(folder: Path, model: str) -> KeptDecision:
    """Read what is kept beside the model with this digest."""
    path = folder / DECISION_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        how, threshold = content["recalibration"], content["threshold"]
        digest = content["model"]
        kept = KeptDecision(
            None if how is None else Recalibration.from_json(how),
            None if threshold is None else tuple(map(float, threshold)),
            dict(content["about"]),
            _read_marks(content.get("rows", "")),  # none of earlier versions
        )
        if not all(0 < share < math.inf for share in kept.threshold or ()):
            raise ValueError("a threshold of 0, or without bounds")
        _ = kept.words
    except FAULTS as error:
        raise RecordError(
            f"'{path}' must be what 'lessvfl evaluate --keep' wrote. Got this: {error}."
        ) from None
    if digest != model:
        raise RecordError(
            f"'{path}' must be of the network beside it. Got one that was kept for "
            "another network: remove the file, and keep a new one with 'lessvfl "
            "evaluate --keep'."
        )
    return kept


# -------------------------------------------------------------------------------- marks


def _marks_of(keys: Iterable[bytes]) -> RowMarks:
    """Mark rows by a key of each."""
    digests = Counter(hashlib.blake2b(k, digest_size=SIZE).digest() for k in keys)
    return frozenset(digest for digest, n in digests.items() if n == 1)


def marks_of_ids(ids: Iterable[str]) -> RowMarks:
    """Mark rows by their ids."""
    return _marks_of(b"id " + text.encode("utf-8", "surrogatepass") for text in ids)


def marks_of_rows(frame: Frame, y: NDArray[Any]) -> RowMarks:
    """Mark rows by their cells and their labels.

    Numbers count to seven digits: whoever writes a file anew may change the last one.
    """
    with np.errstate(over="ignore"):
        numbers, y = (
            part.astype(np.float32) + np.float32(0) if part.dtype.kind == "f" else part
            for part in (frame.numeric, y)
        )
    numbers = np.where(np.isnan(numbers), np.float32("nan"), numbers)
    texts = [frame.text[index] for index in sorted(frame.text)]
    return _marks_of(
        row.tobytes() + json.dumps([str(label), *map(str, cells)]).encode()
        for row, label, *cells in zip(numbers, y.tolist(), *texts, strict=True)
    )


def _read_marks(text: str) -> RowMarks:
    """Return marks that were written one after the other."""
    whole = base64.b64decode(text, validate=True)
    if len(whole) % SIZE:
        raise ValueError(f"{len(whole)} bytes of rows")
    return frozenset(whole[at : at + SIZE] for at in range(0, len(whole), SIZE))
