"""What a server learns without any embedding: counts, sizes, times, and who has an id.

How much of its columns a party kept is its own secret. The server sees how many
components it has, how many bytes it sends, how long it takes to answer, and whether it
says that nothing is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lessvfl.remote.align import Aligner, Ids, Mode, PartyAligner
from lessvfl_bench.privacy.traffic import AnyArray, ServerView

STRENGTHS = np.logspace(-2, 4, 13)  # of the ridge's penalty, which is cross-validated
FEWEST = 6  # parties and seeds that a regression needs
N_IDS = 120  # of each side, where membership is measured
# By name: what the server sees of a party.
OBSERVED = {
    "components": ("width", "width_left"),
    "bytes": ("n_bytes",),
    "seconds": ("select_seconds", "train_seconds"),
    "silence": ("silent",),
}


def observed(
    view: ServerView, numbers: Mapping[str, Any], party: str
) -> dict[str, float]:
    """Return what a server sees of a party, and the share of features that it kept."""
    own = numbers["features"][party]
    n_kept, n_removed = len(own["kept"]), len(own["removed"])
    width, width_left = view.widths[party]
    times = view.seconds[party]
    return {
        "kept": n_kept / max(1, n_kept + n_removed),
        "width": width,
        "width_left": width_left,
        "n_bytes": view.n_bytes[party],
        "select_seconds": sum(t for stage, t in times.items() if "select" in stage),
        "train_seconds": sum(t for stage, t in times.items() if "train" in stage),
        "silent": float(view.silent[party]),
    }


def told_of_kept(seen: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return how well the share kept is told by each kind of count, and by all.

    R2 of parties and seeds left out one at a time, 0 at least; the control, their mean,
    has none. Nothing where there are too few.
    """
    if len(seen) < FEWEST:
        return {}
    kept = np.array([one["kept"] for one in seen])
    mixed = np.random.default_rng(0).permutation(kept)
    found = {}
    for name, keys in {**OBSERVED, "all": sum(OBSERVED.values(), ())}.items():
        table = np.array([[one[key] for key in keys] for one in seen])
        score, shuffled = (_left_out(table, target) for target in (kept, mixed))
        found[name] = {"score": score, "control": 0.0, "shuffled": shuffled}
    return found


def _left_out(table: AnyArray, target: AnyArray) -> float:
    """Return R2 of numbers, each by a regression on the others."""
    if target.std() == 0:
        return 0.0
    model = make_pipeline(StandardScaler(), RidgeCV(STRENGTHS))
    guess = cross_val_predict(model, table, target, cv=LeaveOneOut())
    return max(0.0, float(r2_score(target, guess)))


def membership(mode: Mode) -> dict[str, dict[str, float]]:
    """Return how well each side tells whether the other has an id of its own, by AUC.

    Label holder and party have half of their ids in common, and a second party has half
    of those. Without alignment nobody knows anything: 0.5. Of ids that are not its own
    no side learns anything.
    """
    ids = np.arange(N_IDS)
    theirs = {"party": ids + N_IDS // 2, "other": ids + 3 * N_IDS // 4}
    both, _ = _aligned(mode, ids, {"party": theirs["party"]})
    _, found = _aligned(mode, ids, theirs)
    sides = {
        "label holder": (ids, theirs["party"], ids[both]),
        "party": (theirs["party"], ids, theirs["party"][found["party"]]),
    }
    return {
        side: {
            "score": float(roc_auc_score(np.isin(own, other), np.isin(own, known))),
            "control": 0.5,
        }
        for side, (own, other, known) in sides.items()
    }


def _aligned(
    mode: Mode, ids: AnyArray, theirs: Mapping[str, AnyArray]
) -> tuple[AnyArray, dict[str, AnyArray]]:
    """Align rows; return the common rows of the label holder and of each party."""
    holder = Aligner(mode, Ids(ids), len(ids), secret=bytes(32), min_common=2)
    parties = {
        name: PartyAligner(mode, Ids(own), len(own), secret=bytes([n] * 32))
        for n, (name, own) in enumerate(theirs.items(), start=1)
    }
    hello = holder.hello()
    for name, party in parties.items():
        message: bytes | None = hello
        while message is not None:
            message = holder.take(name, party.answer(message) or b"")
    for name, final in holder.finish().items():
        parties[name].answer(final)
    return holder.rows, {name: party.rows for name, party in parties.items()}
