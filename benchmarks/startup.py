"""Time the start of an estimator beyond the start of PyTorch and scikit-learn.

In a fresh process, one after the other: importing torch and scikit-learn as any
estimator must; making a `LessVFLClassifier`; fitting a table of 60 rows, once for what
a first fit costs and once more for what a second one in the same process does. Medians
over processes, in seconds.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys

import smoke

BASE = "import torch, sklearn.base, sklearn.feature_selection, sklearn.utils.validation"
MAKE = "from lessvfl import LessVFLClassifier; model = LessVFLClassifier({options})"
FIT = """
import warnings, numpy
warnings.simplefilter("ignore")
X = numpy.random.default_rng(0).normal(size=(60, 6))
y = X[:, 0] > 0
model.fit(X, y)
"""
CLOCK = "import time; print(time.perf_counter())"


def seconds(works: list[str]) -> list[float]:
    """Return the times of some works, one after the other in a fresh process."""
    code = "\n".join([CLOCK, *(f"{work}\n{CLOCK}" for work in works)])
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    marks = map(float, said.stdout.split())
    return [after - before for before, after in itertools.pairwise(marks)]


def main() -> None:
    """Print one JSON object a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--options", default="", help="of the estimator, as in Python")
    args = smoke.parse(parser, repeats=1)
    works = {
        "torch and scikit-learn": BASE,
        "an estimator beyond": MAKE.format(options=args.options),
        "a first fit beyond": FIT,
        "a second fit beyond": FIT,
    }
    times = [seconds(list(works.values())) for _ in range(args.repeats)]
    medians = map(statistics.median, zip(*times, strict=True))
    found = zip(works, medians, strict=True)
    print(json.dumps({name: round(value, 2) for name, value in found}))


if __name__ == "__main__":
    main()
