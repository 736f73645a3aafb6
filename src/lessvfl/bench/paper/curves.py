"""From the arrays of a record to curves: accuracy, features removed, cost.

Costs are the closed forms of the bill (docs/protocol.md): the paper counts embeddings
up, and one epoch more for the stored pass; the payload is every message in both
directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.bench.paper.scene import Scene, Spec
from lessvfl.bench.paper.stages import Arrays
from lessvfl.bench.paper.store import Place
from lessvfl.wire.ledger import MIB

Floats = NDArray[np.float64]
BYTES = 4  # of a value in the paper's account, and of a component's number

REMOVED_SHARE = 0.8  # of planted features, at the paper's target


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


SCORES = ("accuracy", "balanced_accuracy", "train_accuracy", "train_balanced_accuracy")


def _scores(
    arrays: Arrays, scene: Scene, s: int, g: int, prefix: str = ""
) -> list[Floats]:
    """Return the SCORES, point by point."""
    n_test = scene.tables.X_test.shape[2]
    n_train = scene.tables.X.shape[2]
    return [
        arrays[f"{prefix}right_test"][:, s, g] / n_test,
        arrays[f"{prefix}balanced_test"][:, s, g],
        arrays[f"{prefix}right_train"][:, s, g] / n_train,
        arrays[f"{prefix}balanced_train"][:, s, g],
    ]


def _named(scores: Sequence[Floats]) -> dict[str, Any]:
    return dict(zip(SCORES, scores, strict=True))


def plain_curve(scene: Scene, place: Place, seed: int) -> Curve:
    """Return the curve of VFL without selection."""
    scores = _scores(place.arrays, scene, seed, place.index)
    n_points = len(scores[0])
    full = _full_pass(scene)
    epochs = np.arange(1, n_points + 1)
    wire = scene.tables.X.element_size() / BYTES
    tables = scene.tables
    return Curve(
        ["train"] * n_points,
        **_named(scores),
        removed=np.zeros(n_points),
        paper_mib=epochs * full / MIB,
        payload_mib=2 * epochs * full * wire / MIB,
        n_kept=int(tables.present.sum()),
        real_kept=1.0,
        diverged=False,
        record=f"{place.file}#{place.index}/{seed}",
    )


def _full_pass(scene: Scene) -> int:
    """Return the bytes of the embeddings of all rows, in the paper's account."""
    tables = scene.tables
    n_rows: int = tables.X.shape[2]
    return n_rows * len(tables.widths) * scene.n_components * BYTES


def selection_curve(scene: Scene, spec: Spec, place: Place, seed: int) -> Curve:
    """Return the curve of a run with selection: one setting, one seed (by place)."""
    tables, arrays, g = scene.tables, place.arrays, place.index
    features = arrays["features"][:, seed, g]  # (P, D)
    components = arrays["components"][:, seed, g].sum(axis=1)  # (P,)
    scores = _scores(arrays, scene, seed, g)
    planted, real = tables.planted, tables.present & ~tables.planted
    removed_share = float((planted & ~features).sum() / max(planted.sum(), 1))
    n_rows, full = tables.X.shape[2], _full_pass(scene)
    silent = np.zeros(len(components), dtype=bool)
    if scene.config(spec.method).empty_party == "constant":
        silent = ~features.any(axis=1) | (components == 0)
    live = int(components[~silent].sum()) * n_rows * BYTES  # a pass from now on
    wire = tables.X.element_size() / BYTES  # float64 doubles what is sent
    constants = int(components[silent].sum()) * BYTES * wire
    if spec.method == "group-lasso":
        n_joint = int(scene.config("group-lasso").joint_epochs)
        n_train = len(scores[0]) - n_joint
        stages = ["joint_lasso"] * n_joint + ["train"] * n_train
        gone = arrays["planted_gone"][:, seed, g] / max(planted.sum(), 1)
        removed = np.concatenate([gone, np.full(n_train, removed_share)])
        before = full * np.arange(1, n_joint + 1)
        after = before[-1] + live * np.arange(1, n_train + 1)
        paper = np.concatenate([before, after])
        payload = np.concatenate([2 * wire * before, 2 * wire * after + constants])
        payload[n_joint - 1] += constants
    else:
        E = spec.pretrain_epochs
        first = [part[:E] for part in _scores(arrays, scene, seed, g, "pretrain_")]
        n_train = len(scores[0]) - 1
        scores = [np.concatenate(pair) for pair in zip(first, scores, strict=True)]
        stages = ["pretrain"] * E + ["select_features"] + ["train"] * n_train
        removed = np.concatenate([np.zeros(E), np.full(n_train + 1, removed_share)])
        before = full * np.arange(1, E + 1)
        later = live * np.arange(n_train + 1)
        paper = np.concatenate([before, (E + 1) * full + later])
        extra = constants
        if spec.method == "less-vfl":  # the stored pass, and the components' numbers
            extra += wire * full + int(components.sum()) * BYTES
        after = 2 * wire * (E * full + later) + extra
        payload = np.concatenate([2 * wire * before, after])
    return Curve(
        stages,
        **_named(scores),
        removed=removed,
        paper_mib=paper / MIB,
        payload_mib=payload / MIB,
        n_kept=int(features.sum()),
        real_kept=float((real & features).sum() / real.sum()),
        diverged=bool(arrays["diverged"][seed, g]),
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


def first_hit(scores: Floats, removed: Floats, threshold: float, strict: bool) -> int:
    """Return the first point at the target, -1 where there is none.

    The target: a score and 80 % of planted features removed, together; `strict` where
    equality does not do (the released code).

    >>> first_hit(np.array([0.9, 0.95]), np.array([0.0, 0.8]), 0.9, strict=False)
    1
    >>> first_hit(np.array([0.9, 0.95]), np.array([0.0, 0.8]), 0.9, strict=True)
    -1
    """
    above = np.greater if strict else np.greater_equal
    hits = np.flatnonzero(above(scores, threshold) & above(removed, REMOVED_SHARE))
    return int(hits[0]) if len(hits) else -1
