"""The confounds of the published comparison, one measured line each.

Every line changes one thing of profile ``official-code`` and runs Table 2 again with
its published settings, and with the λ_m that the paper's rule chooses on training rows
among those that keep a feature in every run (not for tanh networks, where that takes
long). Prints the table of docs/reproduction.md:

    python benchmarks/confounds.py --data-dir DIR [--data phishing] [--seeds 0,1,2,3,4]
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import warnings
from pathlib import Path
from typing import Any

import smoke

from lessvfl import data
from lessvfl.core.device import resolve_device
from lessvfl.data import Dataset
from lessvfl.errors import LessVFLWarning
from lessvfl.run.target import first_hit
from lessvfl_bench.paper import plan, tables
from lessvfl_bench.paper.chunks import Bench
from lessvfl_bench.paper.curves import plain_curve, selection_curve
from lessvfl_bench.paper.scene import Spec
from lessvfl_bench.paper.store import Store

VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "tanh networks": {"activation": "tanh"},
    "one step size (`lam_scale=1`)": {"lam_scale": 1.0},
    "one step size of 0.01": {"lam_scale": 1.0, "party_step_size": 0.01},
    "group lasso by proximal Adam": {"optimizer": "adam"},
    "columns standardised by each party": {"scale": "standardize", "noise": "unit"},
    "a party that keeps nothing is a constant": {"empty_party": "constant"},
}
METHODS = ("less-vfl", "local-lasso", "group-lasso")
LAMBDAS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01)
CHOSEN = "training accuracy"


def main() -> None:
    """Run every variant and print two lines each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="phishing")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--device", default="auto")
    given = smoke.parse(parser, data="breast-cancer", seeds="0", device="cpu")
    warnings.simplefilter("ignore", LessVFLWarning)
    dataset = data.load(given.data, data_dir=given.data_dir)
    seeds = tuple(int(seed) for seed in given.seeds.split(","))
    device = resolve_device(given.device).type
    short = smoke.SHORT if given.smoke else {}
    print("| change | λ_m | " + " | ".join(METHODS) + " |")
    print("|---" * (2 + len(METHODS)) + "|")
    for name, overrides in VARIANTS.items():
        more = short | overrides
        bench = Bench("official-code", seeds, device, Store(None), overrides=more)
        found = run(bench, dataset, choose="activation" not in overrides)
        entries = tables.cost_table(2, found)
        for choice in found.choices:
            own = [e for e in entries if e["settings"]["choice"] == choice]
            cells = [describe(own, method) for method in METHODS]
            print(f"| {name} | {choice} | " + " | ".join(cells) + " |", flush=True)
    bench = Bench("official-code", seeds, device, Store(None), overrides=short)
    found = run(bench, dataset, choose=False)
    print(f"\n{averaged(found, dataset.n_parties)}")


def run(bench: Bench, dataset: Dataset, choose: bool) -> tables.Findings:
    """Run Table 2, and every λ_m where one is to be chosen on training rows."""
    bare, scene = bench.scene(dataset, 0.0), bench.scene(dataset, plan.EVEN)
    baseline = bench.baseline(bare, "original")
    published = plan.communication("official-code", dataset)
    specs = list(published.values())
    if choose:
        specs += [
            dataclasses.replace(spec, lam_party=lam)
            for spec in published.values()
            for lam in LAMBDAS
            if lam != spec.lam_party
        ]
    n_seeds = range(len(bench.seeds))
    even = {
        spec: [selection_curve(scene, spec, place, s) for s in n_seeds]
        for spec, place in bench.selections(scene, specs).items()
    }
    choices: dict[str, dict[str, Spec | None]] = {"published": dict(published)}
    if choose:
        endings = {
            spec: [tables.training_ending(c, "official-code") for c in curves]
            for spec, curves in even.items()
        }
        some = [spec for spec in specs if all(c.n_kept > 0 for c in even[spec])]
        choices[CHOSEN] = {m: tables.choose(endings, m, some) for m in METHODS}
    return tables.Findings(
        data=dataset.name,
        profile="official-code",
        majority=0.0,
        n_classes=scene.tables.n_classes,
        original=[plain_curve(bare, baseline, s) for s in n_seeds],
        spurious=[],
        even=even,
        uneven={},
        uneven_shares=(),
        choices=choices,
        by_epochs={},
        figures={},
    )


def side(entries: list[dict[str, Any]], method: str, measure: str) -> Any:
    """Return our side of one entry, None where no setting was chosen."""
    return next(
        entry["ours"]
        for entry in entries
        if (entry["method"], entry["measure"]) == (method, measure)
    )


def describe(entries: list[dict[str, Any]], method: str) -> str:
    """Return cost, hits, cost both ways, noise removed and real features kept."""
    cost = side(entries, method, "cost_mib")
    if cost is None:
        return "no λ_m removes 80 %"
    paid = side(entries, method, "payload_mib")
    settings = next(e["settings"] for e in entries if e["method"] == method)
    removed = side(entries, method, "removed_share")["mean"]
    kept = side(entries, method, "real_kept_share")["mean"]
    lam = f"λ_m {settings['lam_party']:g}"
    shares = f"{lam}, noise removed {removed:.2f}, real kept {kept:.2f}"
    if cost["mean"] is None:
        return f"missed by all; {shares}"
    return (
        f"{cost['mean']:.2f} MiB up, {paid['mean']:.2f} both ways, {cost['hits']} of "
        f"{cost['seeds']} seeds; {shares}"
    )


def averaged(found: tables.Findings, n_parties: int) -> str:
    """Return LESS-VFL's cost beside that of the released plots' reckoning.

    They scale the epochs after selection by (64 - removed components) / 64, whatever
    number the parties have, averaged over all seeds; ours is each run's own share.
    """
    spec = found.choices["published"]["less-vfl"]
    assert spec is not None
    curves = found.even[spec]
    E = spec.pretrain_epochs
    full = curves[0].paper_mib[0]
    n_components = 16 * n_parties
    goal = found.threshold(tables.SHARE_OF_BASELINE, "accuracy")
    shares = [(c.paper_mib[E + 1] - c.paper_mib[E]) / full for c in curves]
    theirs = statistics.fmean((64 - n_components * (1 - x)) / 64 for x in shares)
    own, reckoned = [], []
    for curve in curves:
        hit = first_hit(curve.accuracy, curve.removed, goal, strict=True)
        if hit >= 0:
            own.append(curve.paper_mib[hit])
            reckoned.append(curve.paper_mib[E] + (hit - E) * theirs * full)
    if not own:
        return "LESS-VFL misses the target with every seed"
    return (
        f"LESS-VFL {statistics.fmean(own):.2f} MiB by each run's own components, "
        f"{statistics.fmean(reckoned):.2f} MiB as the released plots reckon it"
    )


if __name__ == "__main__":
    main()
