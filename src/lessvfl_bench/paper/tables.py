"""The paper's tables and figures from curves: its numbers beside ours.

An entry is one number of a table, a panel one data set of a figure; docs/benchmarks.md
describes both.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lessvfl.data.frame import Floats
from lessvfl.run.target import REMOVED_SHARE, first_hit
from lessvfl_bench.paper import plan, printed
from lessvfl_bench.paper.curves import Curve, Ending
from lessvfl_bench.paper.scene import Spec

TITLES = {
    "group-lasso": "Group lasso",
    "local-lasso": "Local lasso",
    "less-vfl": "LESS-VFL",
}
SHARE_OF_BASELINE = "90 % of VFL (Original)"
ABSOLUTE = "80 % absolute"
PUBLISHED = "published"  # a choice of settings
BAR_EPOCHS = (1, 2, 3, 5, 10, 25, 50, 100, 150)
COST_EPOCHS = {4: 100, 6: 50}  # of the figures' axes
TABLE_EPOCH = 51  # after selection: where the released tables read training accuracy

Entry = dict[str, Any]
Sides = dict[str, Any]  # our side of an entry, by measure
Panel = dict[str, Any]


@dataclass(frozen=True)
class Findings:
    """What was run on one data set: the curves of every setting, one per seed."""

    data: str
    profile: str
    majority: float  # share of the most frequent class in the test rows
    n_classes: int
    original: Sequence[Curve]
    spurious: Sequence[Curve]
    even: Mapping[Spec, Sequence[Curve]]  # with even noise
    uneven: Mapping[Spec, Sequence[Curve]]
    uneven_shares: Sequence[float]
    choices: Mapping[str, Mapping[str, Spec | None]]  # choice -> method -> setting
    by_epochs: Mapping[str, Sequence[Spec]]  # choice -> settings of Table 5
    figures: Mapping[str, Mapping[str, Spec]]  # removal, accuracy

    @property
    def strict(self) -> bool:
        """Tell whether the target must be exceeded, as in the released code."""
        return self.profile == "official-code"

    def threshold(self, target: str, score: str) -> float:
        """Return the score to reach."""
        if target == ABSOLUTE:
            return 0.8
        return 0.9 * max(float(getattr(c, score).max()) for c in self.original)

    def is_degenerate(self, target: str, score: str) -> bool:
        """Tell whether a constant prediction reaches the target."""
        constant = self.majority if score == "accuracy" else 1 / self.n_classes
        return self.threshold(target, score) <= constant

    def hits(
        self, curves: Sequence[Curve], target: str
    ) -> Iterator[tuple[str, list[int], bool]]:
        """Yield, by either accuracy, where curves hit and whether a constant does."""
        for suffix, score in (("", "accuracy"), ("_balanced", "balanced_accuracy")):
            goal = self.threshold(target, score)
            found = [
                first_hit(getattr(curve, score), curve.removed, goal, self.strict)
                for curve in curves
            ]
            yield suffix, found, self.is_degenerate(target, score)

    def entries(
        self, table: int, method: str, settings: Entry, sides: Sides, **at: float
    ) -> list[Entry]:
        """Return an entry of every measure; the paper prints its number `at` these."""
        made = []
        for measure, side in sides.items():
            name = plan.paper_name(self.data)
            row = printed.find(table, name, method, measure, **at)
            one = {"data": self.data, "method": method, "measure": measure}
            paper = None if row is None else {"mean": row.mean, "std": row.std}
            made.append({**one, "settings": settings, "paper": paper, "ours": side})
        return made


def settings_of(spec: Spec, **more: Any) -> dict[str, Any]:
    """Return the settings of an entry."""
    found: dict[str, Any] = {"lam_party": spec.lam_party}
    if spec.method == "less-vfl":
        found["lam_server"] = spec.lam_server
    if spec.method != "group-lasso":
        found["pretrain_epochs"] = spec.pretrain_epochs
    return found | more


def ours(
    curves: Sequence[Curve], values: Sequence[float | None], degenerate: bool = False
) -> dict[str, Any]:
    """Return our side of an entry: mean ± std of the seeds that hit."""
    kept = [
        None if value is None or curve.diverged else float(value)
        for value, curve in zip(values, curves, strict=True)
    ]
    found = [v for v in kept if v is not None]
    empty = [c.n_kept == 0 for v, c in zip(kept, curves, strict=True) if v is not None]
    return {
        "mean": statistics.fmean(found) if found else None,
        "std": statistics.stdev(found) if len(found) > 1 else None,
        "hits": len(found),
        "seeds": len(curves),
        "by_seed": kept,
        "unsupported": sum(empty),
        "degenerate": degenerate,
        "diverged": sum(curve.diverged for curve in curves),
        "records": [curve.record for curve in curves],
    }


def choose(
    runs: Mapping[Spec, Sequence[Ending]], method: str, specs: Sequence[Spec]
) -> Spec | None:
    """Choose as the paper says: the best score with 80 % of planted features removed.

    Means over seeds; None where no setting removes enough.
    """
    best, best_score = None, -1.0
    for spec in specs:
        if spec.method != method or any(one.diverged for one in runs[spec]):
            continue
        removed = statistics.fmean(one.removed for one in runs[spec])
        score = statistics.fmean(one.score for one in runs[spec])
        if removed >= REMOVED_SHARE and score > best_score:
            best, best_score = spec, score
    return best


def table_accuracy(curve: Curve, profile: str, name: str = "train_accuracy") -> float:
    """Return the training accuracy that the lambda tables print."""
    values: Floats = getattr(curve, name)
    if profile == "official-code":
        n_before = len([s for s in curve.stages if s != "train"])
        return float(values[min(n_before - 1 + TABLE_EPOCH, len(values) - 1)])
    return float(values[-1])


def training_ending(curve: Curve, profile: str) -> Ending:
    """Return what the paper chooses settings by: training accuracy, as tabled."""
    score = table_accuracy(curve, profile)
    return Ending(score, float(curve.removed[-1]), curve.diverged)


# ------------------------------------------------------------------------------- tables


def cost_table(number: int, found: Findings) -> list[Entry]:
    """Return Table 2 (even noise) or Table 3 (uneven noise) of one data set."""
    runs = found.even if number == 2 else found.uneven
    shares = plan.EVEN if number == 2 else list(found.uneven_shares)
    entries = []
    for choice, by_method in found.choices.items():
        common = {"choice": choice, "spurious": shares, "target": SHARE_OF_BASELINE}
        for method, spec in by_method.items():
            if spec is None or spec not in runs:
                note = "no setting of the grid removed 80 % of the planted features"
                settings, sides = common | {"note": note}, {"cost_mib": None}
            else:
                settings = settings_of(spec, **common)
                sides = _cost_sides(found, runs[spec])
            entries += found.entries(number, method, settings, sides)
    return entries


def _cost_sides(found: Findings, curves: Sequence[Curve]) -> Sides:
    """Return our side of every measure of Tables 2 and 3."""
    sides = {}
    for suffix, hits, low in found.hits(curves, SHARE_OF_BASELINE):
        pairs = list(zip(curves, hits, strict=True))
        for measure, cost in (
            ("cost_mib", "paper_mib"),
            ("payload_mib", "payload_mib"),
        ):
            values = [None if at < 0 else getattr(c, cost)[at] for c, at in pairs]
            sides[measure + suffix] = ours(curves, values, low)
    sides["removed_share"] = ours(curves, [c.removed[-1] for c in curves])
    sides["real_kept_share"] = ours(curves, [c.real_kept for c in curves])
    for score in ("accuracy", "balanced_accuracy"):
        sides[score] = ours(curves, [getattr(c, score)[-1] for c in curves])
    return sides


def epochs_table(found: Findings) -> list[Entry]:
    """Return Table 5 of one data set: cost by length of pre-training."""
    entries = []
    for choice, specs in found.by_epochs.items():
        for spec, target in itertools.product(specs, (SHARE_OF_BASELINE, ABSOLUTE)):
            more = {"choice": choice, "target": target, "spurious": plan.EVEN}
            settings, epochs = settings_of(spec, **more), spec.pretrain_epochs
            sides = _epoch_sides(found, epochs, found.even[spec], target)
            entries += found.entries(
                5, spec.method, settings, sides, pretrain_epochs=epochs
            )
    return entries


def _epoch_sides(
    found: Findings, epochs: int, curves: Sequence[Curve], target: str
) -> Sides:
    """Return our side of every measure of Table 5."""
    sides = {}
    for suffix, hits, low in found.hits(curves, target):
        parts: dict[str, list[float | None]] = {"pretrain": [], "post": [], "total": []}
        for curve, hit in zip(curves, hits, strict=True):
            start = float(curve.paper_mib[epochs])
            total = None if hit < 0 else float(curve.paper_mib[hit])
            parts["pretrain"].append(None if total is None else start)
            parts["post"].append(None if total is None else total - start)
            parts["total"].append(total)
        for part, values in parts.items():
            sides[f"{part}_mib{suffix}"] = ours(curves, values, low)
    return sides


def lambda_table(
    number: int, found: Findings, pairs: Sequence[tuple[float, float]]
) -> list[Entry]:
    """Return Table 6, 7 or 8 of one data set: accuracy and removal by lambda."""
    entries = []
    for pair, method in itertools.product(pairs, plan.METHODS):
        spec = plan.lambda_spec(found.choices[PUBLISHED][method], pair)
        if spec not in found.even:
            continue
        more = {"choice": "grid", "spurious": plan.EVEN, "lam_server": pair[1]}
        curves, sides = found.even[spec], {}
        for name in ("train_accuracy", "train_balanced_accuracy"):
            shares = [table_accuracy(curve, found.profile, name) for curve in curves]
            sides[f"{name}_percent"] = ours(curves, [100 * share for share in shares])
        gone = [100 * float(curve.removed[-1]) for curve in curves]
        sides["removed_percent"] = ours(curves, gone)
        lams = dict(zip(("lam_party", "lam_server"), pair, strict=True))
        settings = settings_of(spec, **more)
        entries += found.entries(number, method, settings, sides, **lams)
    return entries


# ------------------------------------------------------------------------------ figures


def _series(name: str, x: Any, y: Sequence[Floats]) -> dict[str, Any]:
    """Return a line: the mean over seeds and the sample standard deviation."""
    table = np.stack(y)
    std = table.std(axis=0, ddof=1) if len(y) > 1 else np.zeros(table.shape[1])
    return {
        "name": name,
        "x": np.asarray(x, dtype=float).tolist(),
        "mean": table.mean(axis=0).tolist(),
        "std": std.tolist(),
        "seeds": len(y),
    }


def _panel(found: Findings, x: str, y: str, kind: str, use: str | None) -> Panel:
    panel: Panel = {"data": found.data, "x": x, "y": y, "kind": kind, "series": []}
    if use is not None:
        specs = found.figures[use]
        panel["settings"] = {TITLES[m]: settings_of(s) for m, s in specs.items()}
    return panel


def hurt_panel(found: Findings) -> Panel:
    """Return Figure 2: spurious features hurt."""
    panel = _panel(found, "epochs", "test accuracy", "line", None)
    plain = {"VFL (Original)": found.original, "VFL (Spurious)": found.spurious}
    for name, curves in plain.items():
        y = [curve.accuracy for curve in curves]
        panel["series"].append(_series(name, curves[0].epochs, y))
    return panel


def removal_panel(found: Findings) -> Panel:
    """Return Figures 3 and 5: planted features removed over communication epochs."""
    words = ("communication epochs", "spurious features removed")
    panel = _panel(found, *words, "bar", "removal")
    for method, spec in found.figures["removal"].items():
        curves = found.even[spec]
        at = [min(n, len(curves[0].stages)) - 1 for n in BAR_EPOCHS]
        y = [curve.removed[at] for curve in curves]
        panel["series"].append(_series(TITLES[method], BAR_EPOCHS, y))
    return panel


def cost_panel(found: Findings, n_epochs: int) -> Panel:
    """Return Figures 4 and 6: accuracy against cost, up to that of some epochs."""
    panel = _panel(found, "MiB", "test accuracy", "line", "accuracy")
    limit = n_epochs * float(found.original[0].paper_mib[0])
    lines = {"VFL (Original)": found.original, "VFL (Spurious)": found.spurious}
    for method, spec in found.figures["accuracy"].items():
        lines[TITLES[method]] = found.even[spec]
    for name, curves in lines.items():
        x = np.stack([curve.paper_mib for curve in curves]).mean(axis=0)
        y = [curve.accuracy[x <= limit] for curve in curves]
        panel["series"].append(_series(name, x[x <= limit], y))
    return panel
