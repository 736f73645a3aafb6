"""What runs, attacks and defences are worth, as rows of tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lessvfl.remote.align import Mode
from lessvfl_bench.privacy import counts
from lessvfl_bench.study import mean, number

NOTHING = "none"
BETA = 0.5  # the weight of the main task in the Defence Capability Score, as VFLAIR's
PARTS = ("score", "control", "shuffled")
ALIGNED: tuple[Mode, ...] = ("psi", "plain")  # modes that tell of ids
WORTH = {
    "balanced_accuracy": "balanced accuracy",
    "noise": "noise removed",
    "real": "real kept",
    "megabytes": "MB both ways",
}

RunKey = tuple[str, str, str]  # data set, method and defence
DefendedRuns = dict[RunKey, list[dict[str, Any]]]  # of all seeds
Cells = dict[str, str]


def by_defence(found: Mapping[Any, Any]) -> DefendedRuns:
    """Return the runs of all seeds together, but for those that were left out."""
    runs: DefendedRuns = {}
    for (name, method, defence, *_), one in found.items():
        if "skipped" not in one:
            runs.setdefault((name, method, defence), []).append(one)
    return runs


def skipped(found: Mapping[Any, Any]) -> list[str]:
    """Say which defences cannot be had where, and why."""
    left_out = {
        f"{name}, {method}, {defence}: {one['skipped']}": None
        for (name, method, defence, *_), one in found.items()
        if "skipped" in one
    }
    return list(left_out)


def _heads(key: RunKey) -> Cells:
    return dict(zip(("data", "method", "defence"), key, strict=True))


def run_rows(runs: DefendedRuns) -> list[Cells]:
    """Return what runs are worth, means over seeds."""
    return [
        _heads(key) | {head: number(mean(some, what)) for what, head in WORTH.items()}
        for key, some in runs.items()
    ]


def spreads(
    some: Sequence[Mapping[str, Any]], attack: str
) -> dict[str, dict[str, float]]:
    """Return mean and deviation over seeds of what an attack gave."""
    found = {}
    for part in PARTS:
        each = [run["attacks"][attack][part] for run in some]
        std = statistics.stdev(each) if len(each) > 1 else 0.0
        found[part] = {"mean": statistics.fmean(each), "std": std}
    return found


def attacks_of(some: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the attacks that all of these runs had."""
    first, *others = (run["attacks"] for run in some)
    return [name for name in first if all(name in other for other in others)]


def attack_rows(runs: DefendedRuns) -> list[Cells]:
    """Return a row for every attack: means over seeds, the leak and DCS."""
    rows = []
    for key, some in runs.items():
        best = runs.get((*key[:2], NOTHING), some)
        worth, undefended = (
            statistics.fmean(run["balanced_accuracy"] for run in own)
            for own in (some, best)
        )
        chance = 1 / some[0]["n_classes"]
        for attack in attacks_of(some):
            found = spreads(some, attack)
            score, control = (found[part]["mean"] for part in ("score", "control"))
            above = max(0.0, score - control) / max(1 - control, 1e-9)
            main = [(value - chance) / (1 - chance) for value in (worth, undefended)]
            rows.append(
                _heads(key)
                | {"attack": attack}
                | {part: f"{found[part]['mean']:.3f}" for part in PARTS}
                | {
                    "leak": f"{score - control:+.3f}",
                    "DCS": f"{capability(score, worth, undefended):.3f}",
                    "DCS above chance": f"{capability(above, *main):.3f}",
                }
            )
    return rows


def capability(attack: float, worth: float, undefended: float) -> float:
    """Return the Defence Capability Score (Zou et al., VFLAIR, 2023, Eq. 1).

    1 / (1 + D), D the distance to the ideal: an attack that finds nothing, and a main
    task as without any defence.
    """
    lost = undefended - worth
    return 1 / (1 + math.sqrt((1 - BETA) * attack**2 + BETA * lost**2))


def kept_rows(runs: DefendedRuns) -> list[Cells]:
    """Return a row for every kind of count that tells how much parties kept."""
    rows = []
    for key, some in runs.items():
        seen = [party for run in some for party in run["parties"]]
        for name, one in counts.told_of_kept(seen).items():
            told = {part: f"{one[part]:.3f}" for part in PARTS}
            rows.append(_heads(key) | {"told by": name} | told)
    return rows


def member_rows() -> list[Cells]:
    """Return what alignment tells each side of its own ids."""
    return [
        {"alignment": mode, "who": side}
        | {part: f"{one[part]:.3f}" for part in ("score", "control")}
        for mode in ALIGNED
        for side, one in counts.membership(mode).items()
    ]


def tables(found: Mapping[Any, Any]) -> dict[str, list[Cells]]:
    """Return every table by its title, those that have rows."""
    runs = by_defence(found)
    every = {
        "Runs": run_rows(runs),
        "Attacks": attack_rows(runs),
        "The share of features that a party kept, by R2": kept_rows(runs),
        "Whether another side has an id of one's own, by AUC": member_rows(),
    }
    return {title: rows for title, rows in every.items() if rows}
