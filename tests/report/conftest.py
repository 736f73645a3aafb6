"""Records as `lessvfl run` leaves them: made up, and by shadows of real runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from matplotlib import pyplot
from tests.report import real

from lessvfl import report
from lessvfl.run import verdicts
from lessvfl.run.record import RunRecord

MOMENTS = ("pretrained", "selected", "final", "best")
STAGES = {
    "less-vfl": ["pretrain", "embed", "select_components", "select_features", "train"],
    "local-lasso": ["pretrain", "select_features", "train"],
    "group-lasso": ["joint_lasso"],
    "plain": ["train"],
}


def fake_record(
    *,
    method: str = "less-vfl",
    name: str = "activity",
    n_seeds: int = 3,
    parties: list[str] | None = None,
    n_real: int = 8,
    n_planted: int = 7,
    kept_share: float = 0.9,
    task: str = "binary",
    scored: bool = True,
    target: float | None = None,
    importance: bool = False,
    mask_parties: str = "",
    profile: str = "official-code",
    status: str = "complete",
    message: str = "",
    notes: list[str] | None = None,
) -> RunRecord:
    """Make a record; `mask_parties` is all, first or empty: who keeps nothing."""
    parties = parties or ["bank", "insurer", "hospital"]
    columns = {
        party: [f"{party[:4]}_{i:02d}" for i in range(n_real)]
        + [f"spurious_{party}_{i}" for i in range(n_planted)]
        for party in parties
    }
    rng = random.Random(f"{name}/{method}")
    runs = []
    for seed in range(n_seeds):
        features = {}
        for i, (party, names) in enumerate(columns.items()):
            keep = kept_share
            if mask_parties == "all" or (mask_parties == "first" and i == 0):
                keep = -1.0
            noise = min(keep, 1 - kept_share)
            chances = [noise if "spurious" in n else keep for n in names]
            if method == "plain":
                chances = [1.0] * len(names)
            kept = [
                n
                for n, chance in zip(names, chances, strict=True)
                if rng.random() < chance
            ]
            features[party] = {
                "kept": kept,
                "removed": [n for n in names if n not in kept],
            }
        runs.append(
            _run(seed, method, features, rng, task=task, scored=scored)
            | ({"target": None} if target is None else {})
        )
        planted = n_planted * len(parties)
        if planted:
            n_gone = sum(
                n.startswith("spurious_")
                for f in features.values()
                for n in f["removed"]
            )
            n_kept = sum(
                not n.startswith("spurious_")
                for f in features.values()
                for n in f["kept"]
            )
            runs[-1]["spurious"] = {
                "planted": planted,
                "removed": n_gone,
                "removed_share": n_gone / planted,
                "real_kept_share": n_kept / (n_real * len(parties)),
            }
        if target is not None:
            reached = runs[-1]["accuracy"]["best"] >= target
            runs[-1]["target"] = {
                "accuracy": target,
                "reached": reached,
                "paper_mib": 2.1 + seed / 10 if reached else None,
                "payload_bytes": 2_100_000 + seed if reached else None,
                "rounds": 120 if reached else None,
            }
        runs[-1]["without"] = _without(runs[-1], task)
        if importance:
            runs[-1]["importance"] = {
                party: {n: rng.random() for n in names["kept"]}
                for party, names in features.items()
            }
    n_features = (n_real + n_planted) * len(parties)
    classes = {"binary": 2, "multiclass": 6, "regression": 0}
    header: dict[str, Any] = {
        "lessvfl": "0.1.0",
        "data": {
            "name": name,
            "n_train": 7352,
            "n_test": 2947 if scored else 0,
            "n_features": n_features,
            "n_real": n_real * len(parties),
            "n_parties": len(parties),
            "n_classes": classes[task],
        },
        "method": method,
        "profile": profile,
        "config": {
            "lam_server": 0.05,
            "lam_party": 0.1,
            "party_step_size": 0.01,
            "batch_size": 128,
            "pretrain_epochs": 5,
            "train_epochs": 20,
            "hidden": 64,
            "stepwise_removal": False,
            "class_weight": None,
        },
        "versions": {
            "python": "3.11.9",
            "torch": "2.6.0",
            "numpy": "2.1.0",
            "lessvfl": "0.1.0",
        },
        "device": "cpu",
        "started": "2025-06-01T09:30:00+00:00",
        "notes": notes or [],
    }
    agreed = verdicts.agreed(runs)
    return RunRecord(header, runs, status, message, agreed)


def _run(
    seed: int,
    method: str,
    features: dict[str, Any],
    rng: random.Random,
    *,
    task: str,
    scored: bool,
) -> dict[str, Any]:
    curve: list[dict[str, Any]] = []
    by_stage: dict[str, dict[str, int]] = {}
    sent, rounds, skill, best = (
        0,
        0,
        0.3 + 0.05 * rng.random(),
        0.92 + 0.02 * rng.random(),
    )
    is_regression = task == "regression"
    for stage in STAGES[method]:
        epochs = {"pretrain": 5, "train": 15, "joint_lasso": 20}.get(stage, 1)
        talks = stage in ("pretrain", "embed", "train_first", "train", "joint_lasso")
        up = down = 0
        for epoch in range(epochs):
            if talks:
                step = 30_000 * len(features) + rng.randrange(1000)
                up, rounds = up + step, rounds + 10
                down += 0 if stage == "embed" else step
                sent += step if stage == "embed" else 2 * step
                skill += (best - skill) * rng.uniform(0.1, 0.3)
            score = skill + rng.uniform(-0.01, 0.01)
            classified = scored and not is_regression
            curve.append(
                {
                    "stage": stage,
                    "epoch": epoch,
                    "accuracy": score if classified else None,
                    "balanced_accuracy": score - 0.02 if classified else None,
                    "train_accuracy": None if is_regression else score + 0.01,
                    "removed_share": 0.0,
                    "payload_bytes": sent,
                    "rounds": rounds,
                    "paper_mib": sent / 2**20 * 1.1,
                }
                | ({"r2": score if scored else None} if is_regression else {})
            )
        by_stage[stage] = {"up": up, "down": down, "rounds": rounds if talks else 0}
    by_stage["evaluate"] = {"up": 700_000, "down": 0, "rounds": 40}
    values: dict[str, float | None] = {
        m: skill + rng.uniform(-0.02, 0.02) for m in MOMENTS
    }
    if method in ("plain", "group-lasso"):
        values |= {"pretrained": None, "selected": None}
    nothing: dict[str, float | None] = dict.fromkeys(MOMENTS)
    classified = scored and not is_regression
    billed = [bill for stage, bill in by_stage.items() if stage != "evaluate"]
    return {
        "seed": seed,
        "accuracy": values if classified else nothing,
        "balanced_accuracy": (
            {m: v and v - 0.02 for m, v in values.items()} if classified else nothing
        ),
        "auc": {m: v and v + 0.02 for m, v in values.items()}
        if task == "binary" and scored
        else None,
        "r2": values if is_regression and scored else nothing,
        "spurious": None,
        "features": features,
        "components": {
            party: {
                "kept": rng.randint(3, 16) if method == "less-vfl" else 16,
                "of": 16,
            }
            for party in features
        },
        "communication": {
            "payload_bytes": {
                "up": sum(bill["up"] for bill in billed),
                "down": sum(bill["down"] for bill in billed),
            },
            "rounds": rounds,
            "paper_mib": sent / 2**20 * 1.1,
            "by_stage": by_stage,
        },
        "curve": curve,
        "seconds": {stage: 1.5 + seed for stage in by_stage} | {"total": 12.25 + seed},
    }


def _without(run: dict[str, Any], task: str) -> dict[str, Any]:
    """Make up the scores without each party, the later ones the more missed."""
    name, point = "r2" if task == "regression" else "accuracy", run["curve"][-1]
    whole = run[name]["final"] or point.get("train_accuracy") or 0.5
    parties = enumerate(run["features"])
    return {party: {name: whole - 0.01 * i} for i, party in parties}


@pytest.fixture(scope="session")
def make_record():
    return fake_record


@pytest.fixture
def shadows():
    """Return a record of two real runs by shadows, with every reason there is."""
    return real.shadows()


@pytest.fixture(scope="session")
def odd_records():
    """Every odd case a page must stand."""
    hostile = '<script>alert("x")</script>'
    many = [f"party{i:02d}" for i in range(32)]
    return {
        "ordinary": fake_record(
            target=0.9, importance=True, notes=["The official code was followed."]
        ),
        "one seed": fake_record(n_seeds=1),
        "no seed": fake_record(n_seeds=0, status="failed", message="Loss was NaN."),
        "interrupted": fake_record(n_seeds=1, status="interrupted"),
        "regression": fake_record(task="regression", name="prices"),
        "regression unscored": fake_record(task="regression", scored=False),
        "shadows": real.shadows(),
        "group lasso": fake_record(method="group-lasso"),
        "plain": fake_record(method="plain"),
        "many parties": fake_record(parties=many, n_real=30, n_planted=32),
        "no test rows": fake_record(scored=False),
        "empty party": fake_record(mask_parties="first"),
        "nothing kept": fake_record(mask_parties="all", n_seeds=2),
        "target missed": fake_record(target=0.999),
        "one party": fake_record(parties=["alone"], n_real=1, n_planted=0, n_seeds=1),
        "odd names": fake_record(
            parties=[
                hostile,
                "$x_1$ cost",
                "銀行",
                "a\nb\x00\ud800",
                "&amp;" + "y" * 80,
            ],
            notes=[hostile],
            name=hostile,
        ),
    }


class Pages(dict[str, str]):
    """The page of every odd case, made when it is looked at."""

    def __init__(self, records):
        self.records = records

    def __missing__(self, case):
        self[case] = report.page(self.records[case])
        return self[case]


@pytest.fixture(scope="session")
def pages(odd_records):
    return Pages(odd_records)


@pytest.fixture
def no_window() -> Iterator[None]:
    """Have pyplot draw into memory, and forget what it drew."""
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")
