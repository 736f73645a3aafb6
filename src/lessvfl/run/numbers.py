"""The JSON contract (docs/json.md): its numbers are made here and nowhere else.

A run's numbers are the server's (:func:`server_numbers`) and every party's own
(:func:`party_numbers`), put together by :func:`join_numbers` wherever both are known:
in the simulator, and where all sides run on one machine. What several runs recommend is
in :mod:`lessvfl.run.verdicts`.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessvfl import __version__
from lessvfl.core import metrics
from lessvfl.core.device import resolve_device
from lessvfl.core.metrics import support_f1
from lessvfl.core.network import Network
from lessvfl.core.party_data import Outcome
from lessvfl.core.trees.networks import TreeSum
from lessvfl.core.trees.votes import VoteSum
from lessvfl.data import PartyTable, Problem, class_counts
from lessvfl.run.accounting import Spend, finite
from lessvfl.run.profiles import Settings
from lessvfl.select.power import Sight, correlation_of
from lessvfl.terms import MEASURES, Event, PartyId, Task
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import Parties

Scores = dict[str, float | None]  # by measure; None where it is undefined

Masks = Sequence[np.ndarray[Any, Any]]  # features kept, one mask for each party

LITTLE, LITTLE_AUC = 0.1, 0.55  # of a column: as much as is of consequence
MARK = 7.0  # that shadows usually set, as a chi-square of one degree: 6.2 to 7.7
# What only the server knows; the order of the fields of a run is that of the contract.
_LAST = ("components", "silent", "communication", "curve", "seconds")


def bare_header(
    settings: Settings, data: str, device: str, options: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """Return what can be said of a run before its data are prepared."""
    return {
        "lessvfl": __version__,
        "data": {"name": data},
        "method": settings.method,
        "profile": settings.profile,
        "config": settings.flat() | {f"data.{k}": v for k, v in options.items()},
        "versions": {
            "lessvfl": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "device": device,
        **more,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "notes": [],
    }


def header(
    bare: Mapping[str, Any], problem: Problem, n_parties: int | None = None
) -> dict[str, Any]:
    """Return the first line of a record: what was run, on what, with which versions.

    With `n_parties` the problem is the server's, who knows nobody's columns.
    """
    known, n_train = n_parties is None, len(problem.y_train)
    n_rows = n_train + len(problem.y_test)
    by_rows = None
    if not known and problem.task != "multiclass":  # of which a party's shadows know
        sight = {"n_rows": n_train, "dimension": 1.0, "mark": MARK}
        by_rows = power(sight, class_share(problem))
    return {
        **bare,
        "data": {
            "name": bare["data"]["name"],
            "n_train": n_train,
            "n_test": len(problem.y_test),
            "n_features": problem.n_features if known else None,
            "n_real": problem.n_real if known else None,
            "n_missing": problem.imputed if known else None,
            "n_flagged": problem.flagged if known else None,
            "n_parties": len(problem.parties) if n_parties is None else n_parties,
            "n_classes": problem.n_classes,
            "n_blocks": n_rows if problem.n_blocks is None else problem.n_blocks,
            "n_equal_rows": problem.n_equal,
            "split": problem.split,
            "task": problem.task,
            "task_reason": problem.task_reason or None,
            "classes": rows_by_class(problem),
            "power": by_rows,
            "score": problem.score,
            "score_reason": problem.score_reason or None,
        },
        "device": str(resolve_device(bare["device"], problem.largest_table)),
        "notes": list(problem.notes),
    }


def rows_by_class(problem: Problem) -> dict[str, int] | None:
    """Return how many rows each class has, training and test; None for amounts."""
    if problem.task == "regression":
        return None
    counts = class_counts(problem.y_train, problem.y_test, problem.n_classes)
    return dict(zip(problem.label_names, counts.tolist(), strict=True))


def _score_names(task: Task) -> tuple[str, ...]:
    """Return the scores of a record: two always, null where a task has none."""
    always = metrics.DECIDED
    return (*always, *(name for name in MEASURES[task] if name not in always))


def curve_point(
    event: Event,
    task: Task,
    score: str,
    test: Mapping[str, float | None],
    train: Mapping[str, float | None],
    removed: float | None,
) -> dict[str, Any]:
    """Return one point of a run's curve: scores of test and training rows.

    `score` is the one that leads; of training rows there is it and accuracy.
    """
    return {
        "stage": event.stage,
        "epoch": event.epoch,
        **{name: test.get(name) for name in _score_names(task)},
        "train_accuracy": train.get("accuracy"),
        f"train_{score}": train.get(score),
        "removed_share": removed,
    }


def costs(ledger: Ledger) -> dict[str, Any]:
    """Return what a run has cost so far, for a point of its curve."""
    return {
        "payload_bytes": ledger.payload_bytes,
        "rounds": ledger.n_rounds,
        "paper_mib": ledger.paper_mib,
    }


def scores(curve: Sequence[Mapping[str, Any]], task: Task) -> dict[str, Any]:
    """Return every score after stages 1 and 3, at the end, and at best.

    A stage that a method lacks is None, and so is a score that the task lacks.
    """
    last = {point["stage"]: point for point in curve}
    moments = {
        "pretrained": last.get("pretrain", {}),
        "selected": last.get("select_features") or last.get("joint_lasso", {}),
        "final": curve[-1] if curve else {},
    }
    by_score: dict[str, Any] = dict.fromkeys(_score_names(task))
    for name in MEASURES[task]:
        values = {moment: point.get(name) for moment, point in moments.items()}
        known = [point[name] for point in curve if point[name] is not None]
        by_score[name] = values | {"best": max(known, default=None)}
    return by_score


def undefined(problem: Problem, evaluation: str) -> dict[str, str]:
    """Return by score why it is null, as far as the task has it."""
    if evaluation == "nothing":
        return dict.fromkeys(MEASURES[problem.task], "the run evaluates nothing")
    of_train = metrics.undefined(problem.y_train, problem.task, "training rows")
    return metrics.undefined(problem.y_test, problem.task, "test rows") | {
        f"train_{name}": why for name, why in of_train.items() if name == problem.score
    }


def baseline(problem: Problem) -> dict[str, float | None]:
    """Return the scores of one prediction for all test rows: see `metrics.constant`."""
    y_train, y_test = (torch.as_tensor(y) for y in (problem.y_train, problem.y_test))
    if not len(y_test):
        return dict.fromkeys(MEASURES[problem.task])
    level = metrics.constant(
        y_train, y_test, problem.task, problem.n_classes, problem.positive
    )
    return {name: metrics.defined(float(value)) for name, value in level.items()}


@dataclass
class Recorded:
    """What was recorded of a run so far."""

    curve: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # by stage
    means: dict[PartyId, Tensor] = field(default_factory=dict)  # (E_m,), at the end
    without: dict[PartyId, Scores] | None = None  # by the party that is missed
    predicted: list[float] | None = None  # of test rows, by class
    intervals: dict[str, Any] | None = None  # of scores
    missed: dict[PartyId, Any] | None = None  # by how much, and its interval


def server_numbers(
    seed: int,
    server: Parties,
    problem: Problem,
    recorded: Recorded,
    *,
    evaluation: str,
    **communication: Any,
) -> dict[str, Any]:
    """Return what the server knows of one run; `communication` adds to its bill.

    `evaluation` says when test rows were scored.
    """
    seconds, leading = recorded.seconds, problem.score
    by_score, levels = scores(recorded.curve, problem.task), baseline(problem)
    final, level = by_score[leading]["final"], levels[leading]
    is_above = None
    if final is not None and level is not None:  # what guesses is less in 39 of 40 runs
        error = metrics.chance_error(leading, problem.y_test, level)
        is_above = final > level + 2 * error
    return {
        "seed": seed,
        "score": leading,
        **by_score,
        "baseline": levels,
        "above_baseline": is_above,
        "undefined": undefined(problem, evaluation),
        "threshold": by_class(problem, problem.threshold),
        "predicted": by_class(problem, recorded.predicted),
        "without": recorded.without,
        "intervals": recorded.intervals,
        "missed": recorded.missed,
        "components": {
            name: {"kept": kept, "of": len(server.components[name])}
            for name, kept in server.sizes.items()
        },
        "silent": server.silent(),
        "communication": bill_of(server.ledger) | communication,
        "curve": recorded.curve,
        "seconds": seconds | {"total": sum(seconds.values())},
    }


def trees_of(net: Network, server: Parties) -> dict[str, Any]:
    """Return how many trees, leaves and splits the server has; empty for a network."""
    if isinstance(net, TreeSum):
        sizes = [server.sizes[name] for name in server.names]
        n_trees, splits = len(net.roots), net.splits_of(sizes)
    elif isinstance(net, VoteSum):
        n_trees, splits = int(net.counts.sum()), net.splits.tolist()
    else:
        return {}
    return {
        "trees": {
            "count": n_trees,
            "leaves": sum(splits) + n_trees,
            "splits": dict(zip(server.names, splits, strict=True)),
        }
    }


def bill_of(ledger: Ledger) -> dict[str, Any]:
    """Return what a run has cost: the server's bill, or a party's own."""
    return {
        "payload_bytes": {
            "up": ledger.direction_bytes("up"),
            "down": ledger.direction_bytes("down"),
        },
        "rounds": ledger.n_rounds,
        "paper_mib": ledger.paper_mib,
        "by_stage": ledger.by_stage(),
    }


def privacy(
    labels: Spend | None,
    columns: Mapping[PartyId, Spend | None],
    unpriced: Sequence[str],
    all_runs: float | None = None,
) -> dict[str, Any]:
    """Return what a run spends, by side, as an entry of its numbers.

    `unpriced` are the defences that have no epsilon; `all_runs` is the epsilon of every
    run so far, where a side counts them. Nothing where no defence is on.
    """
    if labels is None and not unpriced and not any(columns.values()):
        return {}
    spent: dict[str, Any] = {
        "labels": None if labels is None else labels.numbers(),
        "columns": {
            name: None if spend is None else spend.numbers()
            for name, spend in columns.items()
        },
        "unpriced": list(unpriced),
    }
    if all_runs is not None:
        spent["all_runs"] = finite(all_runs)
    return {"privacy": spent}


def class_share(problem: Problem) -> float | None:
    """Return the share of the rarer of two classes; None where there are not two.

    A server may tell it to parties. Where labels are randomised it is of training rows
    alone: labels of test rows are true ones, and other seeds train on these rows.
    """
    if problem.n_classes != 2:
        return None
    y_test = problem.y_test[:0] if problem.is_randomised else problem.y_test
    counts = class_counts(problem.y_train, y_test, 2)
    return float(counts.min() / counts.sum()) if counts.min() else None


def by_class(
    problem: Problem, values: Sequence[float] | None
) -> dict[str, float] | None:
    """Return values by the name of their class, None where there are none."""
    if values is None:
        return None
    return dict(zip(problem.label_names, values, strict=True))


def power(sight: Mapping[str, float], share: float | None) -> dict[str, float | None]:
    """Return how often a column of little effect would be found, by a party's shadows.

    Little is an AUC of 0.55, where the `share` of one of two classes is known, or else
    a correlation of 0.1 with what the labels ask for.
    """
    little = LITTLE if share is None else correlation_of(LITTLE_AUC, share)
    return {
        "auc": None if share is None else LITTLE_AUC,
        "correlation": little,
        "finds": Sight(**sight).finds(little),
    }


def party_numbers(
    features: Sequence[str], outcome: Outcome, share: float | None = None
) -> dict[str, Any]:
    """Return what a party knows of its own selection, features by name.

    `share` is that of one of two classes, where the party may know it.
    """
    marked = list(zip(features, outcome.kept, strict=True))
    norms = zip(features, outcome.importance, strict=True)
    how = outcome.selection
    if how is not None:
        how = dict(how)
        for key in ("scores", "why", "at_most", "signs"):
            if key in how:  # a run that an older version began has no signs
                how[key] = dict(zip(features, how[key], strict=True))
        how["pairs"] = [[features[a], features[b], v] for a, b, v in how["pairs"]]
        how["power"] = power(how["sight"], share)
    return {
        "kept": [name for name, stays in marked if stays],
        "removed": [name for name, stays in marked if not stays],
        "importance": {name: norm for name, norm in norms if norm > 0},
        "selection": how,
    }


def alone(party: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a party's own numbers of a run in the form that a run of all sides has."""
    by_party = ("importance", "selection", "ratings", "components")
    rest = ("kept", "removed", *by_party)
    lists = {"kept": numbers["kept"], "removed": numbers["removed"]}
    return {
        "seed": numbers["seed"],
        "features": {party: lists},
        **{k: {party: numbers[k]} for k in by_party if numbers[k] is not None},
        **{key: value for key, value in numbers.items() if key not in rest},
        "curve": [],
    }


def join_numbers(
    server: Mapping[str, Any],
    parties: Mapping[str, Mapping[str, Any]],
    problem: Problem,
) -> dict[str, Any]:
    """Return all numbers of one run, from the server's and, by party, each party's."""
    kept = [np.isin(t.features, parties[t.name]["kept"]) for t in problem.parties]
    selection = {
        name: numbers["selection"]
        for name, numbers in parties.items()
        if numbers["selection"] is not None
    }
    return {
        **{name: value for name, value in server.items() if name not in _LAST},
        "test_rows_seen": problem.test_rows_seen,
        "spurious": spurious(problem.parties, kept),
        "truth": truth(problem.parties, kept),
        "features": {
            name: {"kept": numbers["kept"], "removed": numbers["removed"]}
            for name, numbers in parties.items()
        },
        "importance": {name: n["importance"] for name, n in parties.items()},
        "selection": selection or None,
        **{name: server[name] for name in _LAST},
    }


def removed_share(tables: Sequence[PartyTable], masks: Masks) -> float | None:
    """Return the share of planted features gone, None where none was planted."""
    if not tables:  # between machines nobody but the parties knows
        return None
    gone = [~mask[t.spurious] for mask, t in zip(masks, tables, strict=True)]
    planted = np.concatenate(gone)
    return float(planted.mean()) if len(planted) else None


def spurious(tables: Sequence[PartyTable], masks: Masks) -> dict[str, Any] | None:
    """Return how many planted features went and how many real ones stayed."""
    kept = np.concatenate(masks).astype(bool)
    planted = np.concatenate([table.spurious for table in tables])
    if not planted.any():
        return None
    removed = int((planted & ~kept).sum())
    return {
        "planted": int(planted.sum()),
        "removed": removed,
        "removed_share": removed / int(planted.sum()),
        "real_kept_share": float((kept & ~planted).sum() / (~planted).sum()),
    }


def truth(tables: Sequence[PartyTable], masks: Masks) -> dict[str, Any] | None:
    """Return how the support compares with the truth, where a data set knows it."""
    known = [t.significant for t in tables if t.significant is not None]
    if len(known) < len(tables):
        return None
    significant = np.concatenate(known)
    kept = np.concatenate(masks).astype(bool)
    return {
        "significant": int(significant.sum()),
        "significant_kept": int((significant & kept).sum()),
        "other": int((~significant).sum()),
        "other_removed": int((~significant & ~kept).sum()),
        "f1": support_f1(kept.tolist(), significant.tolist()),
    }
