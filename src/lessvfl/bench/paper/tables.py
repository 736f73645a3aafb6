"""The paper's tables and figures from curves: its numbers beside ours.

An entry is one number of a table, a panel one data set of a figure; docs/benchmarks.md
describes both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lessvfl.bench.paper import plan, printed
from lessvfl.bench.paper.curves import REMOVED_SHARE, Curve, Ending, Floats, first_hit
from lessvfl.bench.paper.scene import Spec

TITLES = {
    "group-lasso": "Group lasso",
    "local-lasso": "Local lasso",
    "less-vfl": "LESS-VFL",
}
SHARE_OF_BASELINE = "90 % of VFL (Original)"
ABSOLUTE = "80 % absolute"
BAR_EPOCHS = (1, 2, 3, 5, 10, 25, 50, 100, 150)
FIRST_EPOCHS = 50  # of Figure 6's axis
TABLE_EPOCH = 51  # after selection: where the released tables read training accuracy

Entry = dict[str, Any]
Panel = dict[str, Any]


@dataclass(frozen=True)
class Findings:
    """What was run on one data set.

    `even` and `uneven` are the curves (one a seed) of every setting with even and with
    uneven noise.
    """

    data: str
    profile: str
    majority: float  # share of the most frequent class in the test rows
    n_classes: int
    original: Sequence[Curve]
    spurious: Sequence[Curve]
    even: Mapping[Spec, Sequence[Curve]]
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


def settings_of(spec: Spec, **more: Any) -> dict[str, Any]:
    """Return the settings of an entry."""
    found: dict[str, Any] = {"lam_party": spec.lam_party}
    if spec.method == "less-vfl":
        found["lam_server"] = spec.lam_server
    if spec.method != "group-lasso":
        found["pretrain_epochs"] = spec.pretrain_epochs
    return found | more


def ours(
    curves: Sequence[Curve],
    values: Sequence[float | None],
    degenerate: bool = False,
) -> dict[str, Any]:
    """Return our side of an entry: mean ± std of the seeds that hit."""
    kept = [
        None if v is None or curve.diverged else float(v)
        for v, curve in zip(values, curves, strict=True)
    ]
    found = [v for v in kept if v is not None]
    return {
        "mean": statistics.fmean(found) if found else None,
        "std": statistics.stdev(found) if len(found) > 1 else None,
        "hits": len(found),
        "seeds": len(curves),
        "by_seed": kept,
        "unsupported": sum(
            v is not None and curve.n_kept == 0
            for v, curve in zip(kept, curves, strict=True)
        ),
        "degenerate": degenerate,
        "diverged": sum(curve.diverged for curve in curves),
        "records": [curve.record for curve in curves],
    }


def paper_side(
    table: int, data: str, method: str, measure: str, **settings: float
) -> dict[str, float | None] | None:
    """Return the printed number, None where there is none."""
    found = printed.find(table, plan.paper_name(data), method, measure, **settings)
    return None if found is None else {"mean": found.mean, "std": found.std}


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
        for method, spec in by_method.items():
            common: dict[str, Any] = {"choice": choice, "spurious": shares}
            common["target"] = SHARE_OF_BASELINE
            if spec is None or spec not in runs:
                note = "no setting of the grid removed 80 % of the planted features"
                entries += [
                    _entry(found, number, method, "cost_mib", common | {"note": note})
                ]
                continue
            settings = settings_of(spec, **common)
            for measure, side in _cost_sides(found, runs[spec]).items():
                entries.append(_entry(found, number, method, measure, settings, side))
    return entries


def _entry(
    found: Findings,
    table: int,
    method: str,
    measure: str,
    settings: dict[str, Any],
    side: dict[str, Any] | None = None,
    **printed_settings: float,
) -> Entry:
    paper = paper_side(table, found.data, method, measure, **printed_settings)
    return {
        "data": found.data,
        "method": method,
        "measure": measure,
        "settings": settings,
        "paper": paper,
        "ours": side,
    }


def _cost_sides(found: Findings, curves: Sequence[Curve]) -> dict[str, dict[str, Any]]:
    """Return our side of every measure of Tables 2 and 3."""
    sides = {}
    for suffix, score in (("", "accuracy"), ("_balanced", "balanced_accuracy")):
        goal = found.threshold(SHARE_OF_BASELINE, score)
        low = found.is_degenerate(SHARE_OF_BASELINE, score)
        hits = [
            first_hit(getattr(c, score), c.removed, goal, found.strict) for c in curves
        ]
        measured = [("cost_mib", "paper_mib"), ("payload_mib", "payload_mib")]
        for measure, cost in measured:
            values = [
                None if hit < 0 else getattr(c, cost)[hit]
                for c, hit in zip(curves, hits, strict=True)
            ]
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
        for spec in specs:
            curves = found.even[spec]
            for target in (SHARE_OF_BASELINE, ABSOLUTE):
                settings = settings_of(
                    spec, choice=choice, target=target, spurious=plan.EVEN
                )
                for measure, side in _epoch_sides(found, spec, curves, target).items():
                    entries.append(
                        _entry(
                            found,
                            5,
                            spec.method,
                            measure,
                            settings,
                            side,
                            pretrain_epochs=spec.pretrain_epochs,
                        )
                    )
    return entries


def _epoch_sides(
    found: Findings, spec: Spec, curves: Sequence[Curve], target: str
) -> dict[str, dict[str, Any]]:
    sides = {}
    for suffix, score in (("", "accuracy"), ("_balanced", "balanced_accuracy")):
        goal = found.threshold(target, score)
        low = found.is_degenerate(target, score)
        parts: dict[str, list[float | None]] = {"pretrain": [], "post": [], "total": []}
        for curve in curves:
            hit = first_hit(getattr(curve, score), curve.removed, goal, found.strict)
            start = float(curve.paper_mib[spec.pretrain_epochs])
            total = None if hit < 0 else float(curve.paper_mib[hit])
            parts["pretrain"].append(None if total is None else start)
            parts["post"].append(None if total is None else total - start)
            parts["total"].append(total)
        for part, values in parts.items():
            sides[f"{part}_mib{suffix}"] = ours(curves, values, low)
    return sides


def lambda_table(
    number: int,
    found: Findings,
    pairs: Sequence[tuple[float, float]],
    spec_of: Callable[[str, tuple[float, float]], Spec],
) -> list[Entry]:
    """Return Table 6, 7 or 8 of one data set: accuracy and removal by lambda."""
    entries = []
    for pair in pairs:
        for method in plan.METHODS:
            spec = spec_of(method, pair)
            if spec not in found.even:
                continue
            curves = found.even[spec]
            settings = settings_of(spec, choice="grid", spurious=plan.EVEN)
            settings["lam_server"] = pair[1]
            for measure, values in _lambda_values(found, curves).items():
                side = ours(curves, [100 * v for v in values])
                entries.append(
                    _entry(
                        found,
                        number,
                        method,
                        measure,
                        settings,
                        side,
                        lam_party=pair[0],
                        lam_server=pair[1],
                    )
                )
    return entries


def _lambda_values(found: Findings, curves: Sequence[Curve]) -> dict[str, list[float]]:
    """Return the shares that Tables 6 to 8 print in per cent."""
    values = {
        f"{name}_percent": [table_accuracy(c, found.profile, name) for c in curves]
        for name in ("train_accuracy", "train_balanced_accuracy")
    }
    return values | {"removed_percent": [float(c.removed[-1]) for c in curves]}


# ------------------------------------------------------------------------------ figures


def _series(name: str, x: Any, y: Floats) -> dict[str, Any]:
    """Return a line: the mean over seeds and the sample standard deviation."""
    std = y.std(axis=0, ddof=1) if len(y) > 1 else np.zeros(y.shape[1])
    return {
        "name": name,
        "x": np.asarray(x, dtype=float).tolist(),
        "mean": y.mean(axis=0).tolist(),
        "std": std.tolist(),
        "seeds": len(y),
    }


def _panel(found: Findings, x: str, y: str, kind: str, series: list[Any]) -> Panel:
    return {"data": found.data, "x": x, "y": y, "kind": kind, "series": series}


def hurt_panel(found: Findings) -> Panel:
    """Return Figure 2: spurious features hurt."""
    series = [
        _series(name, curves[0].epochs, np.stack([c.accuracy for c in curves]))
        for name, curves in (
            ("VFL (Original)", found.original),
            ("VFL (Spurious)", found.spurious),
        )
    ]
    return _panel(found, "epochs", "test accuracy", "line", series)


def removal_panel(found: Findings) -> Panel:
    """Return Figures 3 and 5: planted features removed over communication epochs."""
    series = []
    specs = found.figures["removal"]
    for method, spec in specs.items():
        curves = found.even[spec]
        at = [min(n, len(curves[0].stages)) - 1 for n in BAR_EPOCHS]
        y = np.stack([curve.removed[at] for curve in curves])
        series.append(_series(TITLES[method], BAR_EPOCHS, y))
    panel = _panel(
        found, "communication epochs", "spurious features removed", "bar", series
    )
    return panel | {"settings": {TITLES[m]: settings_of(s) for m, s in specs.items()}}


def cost_panel(found: Findings, first_epochs: int | None) -> Panel:
    """Return Figures 4 and 6: accuracy against cost, up to some epochs' cost."""
    full = float(found.original[0].paper_mib[0])
    limit = (first_epochs or 2 * FIRST_EPOCHS) * full
    specs = found.figures["accuracy"]
    lines: dict[str, Sequence[Curve]] = {
        "VFL (Original)": found.original,
        "VFL (Spurious)": found.spurious,
    }
    lines |= {TITLES[method]: found.even[spec] for method, spec in specs.items()}
    series = []
    for name, curves in lines.items():
        x = np.stack([c.paper_mib for c in curves]).mean(axis=0)
        shown = x <= limit
        y = np.stack([c.accuracy for c in curves])
        series.append(_series(name, x[shown], y[:, shown]))
    panel = _panel(found, "MiB", "test accuracy", "line", series)
    return panel | {"settings": {TITLES[m]: settings_of(s) for m, s in specs.items()}}
