"""What runs, attacks and defences are worth, as rows of tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lessvfl.remote.align import Mode
from lessvfl_bench.privacy import counts
from lessvfl_bench.study import mean, number

NOTHING = "none"
SPURIOUS = 0.5  # planted noise, a share of each party's columns
BETA = 0.5  # the weight of the main task in the Defence Capability Score, as VFLAIR's
ATTACKED = ("labels", "columns")  # what an attack's name begins with
PARTS = ("score", "control", "shuffled")
ALIGNED: tuple[Mode, ...] = ("psi", "plain")  # modes that tell of ids
WORTH = {
    "balanced_accuracy": "balanced accuracy",
    "noise": "noise removed",
    "real": "real kept",
    "megabytes": "MB both ways",
}

TASK = {key: head for key, head in WORTH.items() if key != "megabytes"}

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
                    "leak": leak_text(some, attack),
                    "DCS": f"{capability(score, worth, undefended):.3f}",
                    "DCS above chance": f"{capability(above, *main):.3f}",
                }
            )
    return rows


def worst_rows(runs: DefendedRuns) -> list[Cells]:
    """Return a row a defence: by data set the worst leaks of labels and of columns."""
    return _beside(runs, lambda s: [f"{worst(s, what):+.2f}" for what in ATTACKED])


def task_rows(runs: DefendedRuns) -> list[Cells]:
    """Return a row a defence: by data set accuracy, noise removed and real kept."""
    return _beside(runs, lambda s: [number(mean(s, what), 2) for what in TASK])


def _beside(
    runs: DefendedRuns, told: Callable[[list[dict[str, Any]]], list[str]]
) -> list[Cells]:
    """Return a row for every method and defence, a column for every data set."""
    names = dict.fromkeys(name for name, *_ in runs)
    rows = []
    for method, defence in dict.fromkeys(key[1:] for key in runs):
        row = {"method": method, "defence": defence}
        for name in names:
            some = runs.get((name, method, defence))
            row[name] = " / ".join(told(some)) if some else ""
        rows.append(row)
    return rows


def leak_tables(runs: DefendedRuns) -> dict[str, list[Cells]]:
    """Return by data set and method the leak of every attack, a row a defence."""
    places: dict[str, DefendedRuns] = {}
    for key, some in runs.items():
        places.setdefault(f"Leak on {key[0]}, {key[1]}", {})[key] = some
    found = {}
    for title, own in places.items():
        names = dict.fromkeys(
            name for some in own.values() for name in attacks_of(some)
        )
        found[title] = [
            {"defence": defence}
            | {head: number(mean(some, key)) for key, head in TASK.items()}
            | {name: leak_text(some, name) for name in names}
            for (*_, defence), some in own.items()
        ]
    return found


def leak_text(some: Sequence[Mapping[str, Any]], attack: str) -> str:
    """Write the leak of an attack, nothing where it was not there."""
    return f"{leak(some, attack):+.3f}" if attack in attacks_of(some) else ""


def leak(some: Sequence[Mapping[str, Any]], attack: str) -> float:
    """Return an attack's score less its control, a mean over seeds."""
    found = spreads(some, attack)
    return found["score"]["mean"] - found["control"]["mean"]


def worst(some: Sequence[Mapping[str, Any]], about: str) -> float:
    """Return the leak of the attack that finds most, of those on labels or columns."""
    leaks = [leak(some, name) for name in attacks_of(some) if name.startswith(about)]
    return max(leaks, default=0.0)


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
        "The worst leak of labels / of columns": worst_rows(runs),
        "Balanced accuracy / noise removed / real kept": task_rows(runs),
        "Runs": run_rows(runs),
        **leak_tables(runs),
        "Attacks": attack_rows(runs),
        "The share of features that a party kept, by R2": kept_rows(runs),
        "Whether another side has an id of one's own, by AUC": member_rows(),
    }
    return {title: rows for title, rows in every.items() if rows}
