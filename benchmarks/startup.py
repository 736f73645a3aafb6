"""Time the start of an estimator beyond the start of PyTorch and scikit-learn.

Every number is of fresh processes, taken in turn: importing torch and scikit-learn as
any estimator must; the same and making a `LessVFLClassifier`; the same and fitting a
table of 60 rows, once for what a first fit costs and once more for what a second one
in the same process does. Medians, in seconds.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

BASE = "import torch, sklearn.base, sklearn.feature_selection, sklearn.utils.validation"
MAKE = "from lessvfl import LessVFLClassifier; model = LessVFLClassifier({options})"
FIT = """
import warnings, numpy
warnings.simplefilter("ignore")
X = numpy.random.default_rng(0).normal(size=(60, 6))
y = X[:, 0] > 0
model.fit(X, y)
"""
TIMED = """
import time
start = time.perf_counter()
{work}
print(time.perf_counter() - start)
"""


def seconds(work: str) -> float:
    """Return the time of some lines in a fresh process."""
    command = [sys.executable, "-c", TIMED.format(work=work)]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(said.stdout)


def main() -> None:
    """Print one JSON object a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--options", default="", help="of the estimator, as in Python")
    args = parser.parse_args()
    made = "\n".join([BASE, MAKE.format(options=args.options)])
    works = {"base": BASE, "make": made, "fit": made + FIT, "refit": made + FIT * 2}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(args.repeats):
        for name, work in works.items():
            times[name].append(seconds(work))
    found = {name: statistics.median(values) for name, values in times.items()}
    line = {
        "torch and scikit-learn": found["base"],
        "an estimator beyond": found["make"] - found["base"],
        "a first fit beyond": found["fit"] - found["make"],
        "a second fit beyond": found["refit"] - found["fit"],
    }
    print(json.dumps({name: round(value, 2) for name, value in line.items()}))


if __name__ == "__main__":
    main()
