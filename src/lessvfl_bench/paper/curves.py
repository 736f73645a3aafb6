"""From the arrays of a record to curves: accuracy, features removed, cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Floats
from lessvfl.wire.ledger import BYTES, MIB, closed_payload
from lessvfl_bench.paper.scene import Scene, Spec
from lessvfl_bench.paper.store import Place

SCORES = {  # of a curve, and the arrays of a record that they are in
    "accuracy": "right_test",
    "balanced_accuracy": "balanced_test",
    "train_accuracy": "right_train",
    "train_balanced_accuracy": "balanced_train",
}


@dataclass(frozen=True)
class Curve:
    """One run: its points in order, and what it kept.

    The stages of points: ``pretrain``, ``select_features`` (one point) and ``train``;
    of group lasso ``joint_lasso`` and ``train``; without selection ``train`` alone.
    """

    stages: Sequence[str]
    accuracy: Floats
    balanced_accuracy: Floats
    train_accuracy: Floats
    train_balanced_accuracy: Floats
    removed: Floats  # share of planted features gone
    paper_mib: Floats
    payload_mib: Floats
    n_kept: int  # features in all
    real_kept: float  # share
    diverged: bool
    record: str

    @property
    def epochs(self) -> NDArray[np.int64]:
        """Return the communication epochs so far; the stored pass is one."""
        return np.arange(1, len(self.stages) + 1)


def selection_curve(scene: Scene, spec: Spec, place: Place, seed: int) -> Curve:
    """Return the curve of one setting and one seed (by place)."""
    tables, arrays = scene.tables, place.arrays
    at = (slice(None), seed, place.index)
    selects, joint = spec.method != "plain", spec.method == "group-lasso"
    alone = selects and not joint  # parties select on their own, after pre-training
    n_before = int(scene.config(spec.method).joint_epochs) if joint else 0
    n_before = spec.pretrain_epochs if alone else n_before
    sizes = {"right_test": tables.X_test.shape[2], "right_train": tables.X.shape[2]}
    scores = {}
    for name, source in SCORES.items():
        points = arrays[source][at]
        if alone:
            first = arrays[f"pretrain_{source}"][at][:n_before]
            points = np.concatenate([first, points])
        scores[name] = points / sizes.get(source, 1)
    n_points = len(points)
    n_train = n_points - n_before - alone
    stages = ["joint_lasso" if joint else "pretrain"] * n_before
    stages += ["select_features"] * alone + ["train"] * n_train

    features = arrays["features"][at] if selects else tables.present  # (P, D)
    planted, real = tables.planted, tables.present & ~tables.planted
    removed = np.full(n_points, float((planted & ~features).sum()))
    removed[:n_before] = arrays["planted_gone"][at] if joint else 0.0

    # Values of embeddings sent so far: by training, and once besides.
    n_rows, n_parties = tables.X.shape[2], len(tables.widths)
    components = np.full(n_parties, scene.n_components)
    silent = np.zeros(n_parties, dtype=bool)  # they send a constant, once
    if selects:
        components = arrays["components"][at].sum(axis=1)
        if scene.config(spec.method).empty_party == "constant":
            silent = ~features.any(axis=1) | (components == 0)
    full = n_rows * n_parties * scene.n_components
    live = n_rows * int(components[~silent].sum())
    before = full * np.arange(1, n_before + 1)
    later = n_before * full + live * np.arange(1 - alone, n_train + 1)
    trained = np.concatenate([before, later])
    selected = np.arange(n_points) >= n_before - joint
    stored = spec.method == "less-vfl"  # a pass, and the numbers of its components
    once = selected * (int(components[silent].sum()) + stored * full)
    listed = selected * stored * int(components.sum())
    payload = closed_payload(trained, once, listed, tables.X.element_size())
    return Curve(
        stages,
        **scores,
        removed=removed / max(planted.sum(), 1),
        paper_mib=(trained + selected * alone * full) * BYTES / MIB,
        payload_mib=payload / MIB,
        n_kept=int(features.sum()),
        real_kept=float((real & features).sum() / real.sum()),
        diverged=selects and bool(arrays["diverged"][seed, place.index]),
        record=f"{place.file}#{place.index}/{seed}",
    )


@dataclass(frozen=True)
class Ending:
    """What settings are chosen by: a score and the share of planted features gone."""

    score: float
    removed: float
    diverged: bool


def ending(scene: Scene, place: Place, seed: int) -> Ending:
    """Return how a run without a curve ended: its score on the test rows held."""
    gone = ~place.arrays["features"][:, seed, place.index]
    planted = scene.tables.planted
    right = place.arrays["right_test"][-1, seed, place.index]
    return Ending(
        float(right / scene.tables.X_test.shape[2]),
        float((planted & gone).sum() / max(planted.sum(), 1)),
        bool(place.arrays["diverged"][seed, place.index]),
    )
