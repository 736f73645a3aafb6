"""The confounds of the published comparison, one measured line each.

Every line changes one thing of profile ``official-code`` and runs Table 2 again with
its published settings. Prints the table of docs/reproduction.md:

    python benchmarks/confounds.py --data-dir DIR [--data phishing] [--seeds 0,1,2,3,4]
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import Any

from lessvfl import data
from lessvfl.bench import paper, plan
from lessvfl.bench.curves import first_hit, plain_curve, selection_curve
from lessvfl.bench.run import Bench
from lessvfl.bench.store import Store
from lessvfl.types import resolve_device

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


def main() -> None:
    """Run every variant and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="phishing")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    options = paper.Options(
        data=(given.data,),
        tables=(2,),
        figures=(),
        seeds=seeds,
        device=given.device,
        data_dir=given.data_dir,
    )
    print("| change | " + " | ".join(METHODS) + " |")
    print("|---" * (1 + len(METHODS)) + "|")
    for name, overrides in VARIANTS.items():
        changed = dataclasses.replace(options, overrides=overrides)
        entries = paper.run(changed)["tables"]["2"]
        cells = [describe(entries, method) for method in METHODS]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(f"\n{averaged(options)}")


def side(entries: list[dict[str, Any]], method: str, measure: str) -> dict[str, Any]:
    """Return our side of one entry."""
    found: dict[str, Any] = next(
        entry["ours"]
        for entry in entries
        if (entry["method"], entry["measure"]) == (method, measure)
    )
    return found


def describe(entries: list[dict[str, Any]], method: str) -> str:
    """Return cost, hits, cost both ways, noise removed and real features kept."""
    cost, paid = (side(entries, method, m) for m in ("cost_mib", "payload_mib"))
    removed = side(entries, method, "removed_share")["mean"]
    kept = side(entries, method, "real_kept_share")["mean"]
    shares = f"noise removed {removed:.2f}, real kept {kept:.2f}"
    if cost["mean"] is None:
        return f"missed by all; {shares}"
    return (
        f"{cost['mean']:.2f} MiB up, {paid['mean']:.2f} both ways, {cost['hits']} of "
        f"{cost['seeds']} seeds; {shares}"
    )


def averaged(options: paper.Options) -> str:
    """Return LESS-VFL's cost beside that of the released plots' reckoning.

    They scale the epochs after selection by (64 - removed components) / 64, whatever
    number the parties have, averaged over all seeds; ours is each run's own share.
    """
    dataset = data.load(options.data[0], data_dir=options.data_dir)
    device = resolve_device(options.device).type
    bench = Bench(options.profile, tuple(options.seeds), device, Store(None))
    bare, scene = bench.scene(dataset, 0.0), bench.scene(dataset, plan.EVEN)
    spec = plan.communication(options.profile, dataset)["less-vfl"]
    place = bench.selections(scene, [spec])[spec]
    baseline = bench.baseline(bare, "original")
    n_seeds = range(len(options.seeds))
    best = max(plain_curve(bare, baseline, s).accuracy.max() for s in n_seeds)
    kept = place.arrays["components"][:, :, place.index].sum(axis=(0, 2))
    n_components = len(scene.tables.widths) * scene.n_components
    theirs = statistics.fmean((64 - (n_components - n)) / 64 for n in kept)
    own, reckoned = [], []
    for s in n_seeds:
        curve = selection_curve(scene, spec, place, s)
        hit = first_hit(curve.accuracy, curve.removed, 0.9 * best, strict=True)
        if hit >= 0:
            start = curve.paper_mib[spec.pretrain_epochs]
            epochs = hit - spec.pretrain_epochs
            own.append(curve.paper_mib[hit])
            reckoned.append(start + epochs * theirs * curve.paper_mib[0])
    return (
        f"LESS-VFL {statistics.fmean(own):.2f} MiB by each run's own components, "
        f"{statistics.fmean(reckoned):.2f} MiB as the released plots reckon it"
    )


if __name__ == "__main__":
    main()
