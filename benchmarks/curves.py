"""What the default method makes of columns that act by lines and by curves.

    python benchmarks/curves.py                     # five tables, five seeds each
    git worktree add ../before v0.1 && python benchmarks/curves.py --before ../before

Two parties of 10 columns, 4,000 rows. Of each some act on the odds of a class.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

N_ROWS, N_COLUMNS = 4000, 10  # of each party
HERE = Path(__file__).parents[1]
Floats = NDArray[np.float64]
Curve = Callable[[Floats], Any]
CURVES: Mapping[str, Curve] = {
    "lines": lambda x: x,
    "waves": lambda x: x / 2 + 2 * np.sin(3 * x),
    "spikes": lambda x: x / 2 + 4.0 * (np.abs(x - 0.5) < 0.15),
    "seasons": lambda x: x / 500 + 2 * np.cos(2 * np.pi * x / 365.25),
    "distance and square of t3": np.abs,
}


def table_of(name: str, seed: int) -> tuple[pyarrow.Table, NDArray[Any], list[str]]:
    """Return columns, labels and the names of the columns that act."""
    rng = np.random.default_rng(seed)
    size = (N_ROWS, 2 * N_COLUMNS)
    X = rng.standard_t(3, size) if "t3" in name else rng.standard_normal(size)
    names = [f"{'ab'[i // N_COLUMNS]}{i % N_COLUMNS}" for i in range(size[1])]
    columns: dict[str, Any] = dict(zip(names, X.T, strict=True))
    of_each = {"seasons": 1, "distance and square of t3": 4}.get(name, 2)
    acting = [one for one in names if int(one[1:]) < of_each]
    odds = np.zeros(N_ROWS)
    for place, one in enumerate(acting):
        x = columns[one]
        if name == "seasons":
            x = rng.integers(0, 1000, N_ROWS)
            columns[one] = np.datetime64("2022-01-01") + x
        effect = CURVES[name](x)
        if "t3" in name:
            effect = np.minimum(x**2, 25) / 4 if place % 2 else effect
        odds += effect - effect.mean()
    label = rng.random(N_ROWS) < 1 / (1 + np.exp(-odds))
    return pyarrow.table(columns), np.where(label, "yes", "no"), acting


def measure(name: str, seed: int) -> list[float]:
    """Run the method; return AUC, acting columns kept, others kept and bytes."""
    from lessvfl import data
    from lessvfl.run import profiles, simulate

    X, y, acting = table_of(name, seed)
    dataset = data.from_arrays(X, y)
    settings = profiles.resolve("less-vfl-auto", "default", dataset, {})
    job = simulate.Job(dataset, settings, parties=[N_COLUMNS, N_COLUMNS])
    (run,) = simulate.simulate(job, [seed])
    kept = {one for p in run.numbers["features"].values() for one in p["kept"]}
    n_bytes = sum(run.numbers["communication"]["payload_bytes"].values())
    n_acting = len(kept & set(acting))
    return [run.numbers["auc"]["final"], n_acting, len(kept) - n_acting, n_bytes]


def main() -> None:
    """Print the means of every table, of every version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="folder of another version")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        name, seed = asked.measure
        print(json.dumps(measure(name, int(seed))))
        return
    versions = {"this version": HERE}
    if asked.before:
        versions = {"before": asked.before} | versions
    print("table                      version       AUC    acting  others  KiB")
    for name in CURVES:
        for version, place in versions.items():
            path = str(place.resolve() / "src")
            given = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            found = []
            for seed in range(asked.seeds):
                command = [sys.executable, __file__, "--measure", name, str(seed)]
                out = subprocess.run(
                    command, env=given, stdout=subprocess.PIPE, check=True
                )
                found.append(json.loads(out.stdout))
            auc, acting, others, n_bytes = map(fmean, zip(*found, strict=True))
            print(
                f"{name:<27}{version:<13}{auc:6.3f}{acting:8.1f}{others:8.1f}"
                f"{n_bytes / 1024:7.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
