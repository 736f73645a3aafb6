"""How long a run on a large .csv file takes, and its memory, beside another version.

    python benchmarks/reading.py                      # 500,000 rows of 60 columns
    git worktree add ../before v0.1 && python benchmarks/reading.py --before ../before

Seven of the columns act. Versions run one after the other, on one thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import csv

N_ACTING = 7
HERE = Path(__file__).parents[1]
READ = "import sys, lessvfl.data as d; d.load(sys.argv[1], label='label')"
COMMAND = "from lessvfl.cli import main; main()"


def main() -> None:
    """Print seconds, memory and the columns that were kept, of every version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--columns", type=int, default=60)
    parser.add_argument("--before", type=Path, help="folder of another version")
    asked = parser.parse_args()
    versions = {"this version": HERE}
    if asked.before:
        versions = {"before": asked.before} | versions
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.csv"
        write(file, asked.rows, asked.columns)
        print(f"{file.stat().st_size / 2**20:,.0f} MiB")
        for name, place in versions.items():
            timed(f"{name}: read", place, ["-c", READ, str(file)])
            words = ["run", str(file), "--label", "label", "--json", "--quiet"]
            out = timed(f"{name}: run", place, ["-c", COMMAND, *words])
            (run,) = json.loads(out)["runs"]
            kept = [one for p in run["features"].values() for one in p["kept"]]
            acting = sum(int(one[1:]) < N_ACTING for one in kept)
            print(
                f"  kept {acting} of {N_ACTING} that act, {len(kept) - acting} others"
            )


def write(file: Path, n_rows: int, n_columns: int) -> None:
    """Write normal columns with four decimals, and a label by the first seven."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, n_columns)).round(4)
    odds = X[:, :N_ACTING].sum(axis=1) / 2
    label = np.where(rng.random(n_rows) < 1 / (1 + np.exp(-odds)), "yes", "no")
    table = {f"c{i}": column for i, column in enumerate(X.T)} | {"label": label}
    csv.write_csv(pyarrow.table(table), file)


def timed(what: str, place: Path, words: list[str]) -> bytes:
    """Run Python with a version, print what it took, and return what it printed."""
    path = str(place.resolve() / "src")
    given = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    running = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, env=given
    )
    assert running.stdout is not None
    out = running.stdout.read()
    _, status, used = os.wait4(running.pid, 0)
    if status:
        raise SystemExit(f"{what} failed")
    seconds, core = time.perf_counter() - start, used.ru_utime + used.ru_stime
    memory = used.ru_maxrss / 2**20
    print(
        f"{what:<20}{seconds:6.1f} s, {core:.1f} s of a core, {memory:.2f} GiB",
        flush=True,
    )
    return out


if __name__ == "__main__":
    main()
