"""Choose the lambdas of the profiles ``paper`` and ``default``, on training rows alone.

Runs a grid of lam_party x lam_server on ``synthetic`` (a quarter of its features
matter, and it is known which) and ``phishing`` with 50 % planted noise, all settings
and seeds as one batch, and prints for every setting the score on training rows, the
share of noise removed and the share of the other features kept. The choice follows the
paper: the best training score among the settings that remove at least 80 % of the
noise, on both data sets and on each alone. Test rows play no part.

    python benchmarks/calibrate.py --profile paper --data-dir DIR --device auto
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import warnings
from typing import Any

import smoke

from lessvfl import data
from lessvfl.errors import LessVFLWarning
from lessvfl.run import profiles, simulate

LAM_PARTY = (0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
LAM_JOINT = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
LAM_SERVER = (0.005, 0.01, 0.05)
SEEDS = (0, 1, 2)


def main() -> None:
    """Run the grid and print one line a setting, then the choice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="paper")
    parser.add_argument("--method", default="less-vfl")
    parser.add_argument("--data", default="phishing", help="beside synthetic")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    few = ["train_epochs=1", "pretrain_epochs=1", "party_epochs=2"]
    args = smoke.parse(parser, data="breast-cancer", device="cpu", set=few)
    warnings.simplefilter("ignore", LessVFLWarning)
    servers = LAM_SERVER if args.method == "less-vfl" else (None,)
    lambdas = LAM_JOINT if args.method == "group-lasso" else LAM_PARTY
    settings = list(itertools.product(lambdas, servers))[: 2 if args.smoke else None]
    scores: dict[Any, list[float]] = {key: [] for key in settings}
    removed: dict[Any, list[float]] = {key: [] for key in settings}
    overrides = dict(pair.split("=", 1) for pair in args.set)
    for name in ("synthetic", args.data):
        table = grid(name, args, settings, overrides)
        for key in settings:
            runs = table[key]
            score = statistics.mean(run["score"] for run in runs)
            gone = statistics.mean(run["removed"] for run in runs)
            kept = statistics.mean(run["kept"] for run in runs)
            scores[key].append(score)
            removed[key].append(gone)
            line = {"data": name, "lam_party": key[0], "lam_server": key[1]}
            found = {"train": score, "removed": gone, "real_kept": kept}
            print(json.dumps(line | {k: round(v, 4) for k, v in found.items()}))
    choice = {
        "both": choose(settings, scores, removed),
        "synthetic": choose(settings, *(pick(d, 0) for d in (scores, removed))),
        args.data: choose(settings, *(pick(d, 1) for d in (scores, removed))),
    }
    print(json.dumps({"profile": args.profile, "method": args.method, **choice}))


def pick(table: dict[Any, list[float]], index: int) -> dict[Any, list[float]]:
    """Return the figures of one data set."""
    return {key: [values[index]] for key, values in table.items()}


def choose(
    settings: list[Any], scores: dict[Any, list[float]], removed: dict[Any, list[float]]
) -> Any:
    """Return the best-scoring setting that removes 80 % of the noise everywhere."""
    allowed = [key for key in settings if min(removed[key]) >= 0.8]
    return max(allowed, key=lambda key: statistics.mean(scores[key]), default=None)


def grid(
    name: str, args: Any, settings: list[Any], overrides: dict[str, str]
) -> dict[Any, list[dict[str, float]]]:
    """Run every setting with every seed on one data set."""
    few = args.smoke and name == "synthetic"
    options = {"n_samples": 300, "n_test": 50} if few else {}
    dataset = data.load(name, data_dir=args.data_dir, options=options)
    resolved = profiles.resolve(args.method, args.profile, dataset, overrides)
    share = 0.0 if name == "synthetic" else 0.5
    job = simulate.Job(dataset, resolved, spurious=share, device=args.device)
    replicas = [
        simulate.Replica(seed, lam_party, lam_server)
        for (lam_party, lam_server), seed in itertools.product(settings, SEEDS)
    ]
    table: dict[Any, list[dict[str, float]]] = {key: [] for key in settings}
    for replica, run in zip(replicas, simulate.simulate(job, replicas), strict=True):
        point = run.numbers["curve"][-1]
        score = point.get("train_r2", point["train_accuracy"])
        found = {"score": score}
        if share:
            planted = run.numbers["spurious"]
            found["removed"] = planted["removed_share"]
            found["kept"] = planted["real_kept_share"]
        else:
            truth = run.numbers["truth"]
            found["removed"] = truth["other_removed"] / truth["other"]
            found["kept"] = truth["significant_kept"] / truth["significant"]
        table[replica.lam_party, replica.lam_server].append(found)
    return table


if __name__ == "__main__":
    main()
