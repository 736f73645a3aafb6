"""Time the fit of an estimator beside selectors on pooled columns, one thread.

Every selector gets the same standardised training rows: the breast cancer table with as
many columns of noise, then 2,000 rows of 100 columns of which 10 matter.
`LessVFLClassifier` comes with two parties and its defaults: it chooses by itself and
trains the networks that predict, too. Beside it: L1 logistic regression in
`SelectFromModel`, as it comes and with its C cross-validated; LassoNet by its authors,
its path with their defaults (which chooses nothing, so that it has no score), and as
`lessvfl bench peers` runs it, faster and with a choice. Selectors are fitted in turn.
Seconds are of CPU time, medians: what one thread takes on a free core. Accuracies are
of test rows: of the selector's own model, or of logistic regression on what was
selected.

    python benchmarks/sklearn_fit.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import smoke
import torch
from lassonet import LassoNetClassifier
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from lessvfl import LessVFLClassifier
from lessvfl_bench.peers import pooled

Mask = NDArray[np.bool_]
Found = tuple[Mask, NDArray[Any]] | None  # columns kept, predictions of test rows
OURS = "LessVFLClassifier"


def tables(seed: int) -> dict[str, tuple[Any, Any, Mask]]:
    """Return tables by name: columns, classes, and which columns are no noise."""
    X, y = load_breast_cancer(return_X_y=True)
    noise = np.random.default_rng(seed).normal(size=X.shape)
    made = make_classification(
        2000, 100, n_informative=10, n_redundant=0, shuffle=False, random_state=seed
    )
    return {
        "breast-cancer": (np.hstack([X, noise]), y, np.arange(60) < 30),
        "2,000 x 100": (*made, np.arange(100) < 10),
    }


class Selectors:
    """What is timed: each returns a function that gives what it found, untimed."""

    def __init__(self, X: Any, y: Any, X_test: Any, seed: int) -> None:
        self.X, self.y, self.X_test, self.seed = X, y, X_test, seed

    def fits(self) -> dict[str, Callable[[], Callable[[], Found]]]:
        """Return the selectors by name."""
        l1: dict[str, Any] = {"solver": "liblinear", "random_state": self.seed}
        plain = LogisticRegression(l1_ratio=1.0, **l1)
        cross_validated = LogisticRegressionCV(
            l1_ratios=(1.0,), scoring="accuracy", use_legacy_attributes=False, **l1
        )
        return {
            OURS: self._ours,
            "SelectFromModel(LogisticRegression)": lambda: self._logistic(plain),
            "SelectFromModel(LogisticRegressionCV)": lambda: self._logistic(
                cross_validated
            ),
            "LassoNet, path": self._path,
            "LassoNet, bench peers": self._peer,
        }

    def _ours(self) -> Callable[[], Found]:
        model = LessVFLClassifier(random_state=self.seed).fit(self.X, self.y)
        return lambda: (model.get_support(), model.predict(self.X_test))

    def _logistic(self, model: Any) -> Callable[[], Found]:
        kept = SelectFromModel(model).fit(self.X, self.y).get_support()

        def found() -> Found:
            after = LogisticRegression(max_iter=1000).fit(self.X[:, kept], self.y)
            return kept, after.predict(self.X_test[:, kept])

        return found

    def _path(self) -> Callable[[], Found]:
        net = LassoNetClassifier(verbose=0, random_state=self.seed)
        net.path(self.X.astype(np.float32), self.y)
        return lambda: None

    def _peer(self) -> Callable[[], Found]:
        groups = np.arange(self.X.shape[1])
        about = (groups, 2, self.seed, torch.device("cpu"))
        found = pooled.lassonet(pooled.Pooled(self.X, self.y, self.X_test, *about))
        return lambda: (found.kept, found.predicted)


def main() -> None:
    """Print one JSON object a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = smoke.parse(parser, repeats=1)
    few = 2 if args.smoke else None  # LassoNet takes a minute
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, (table, classes, real) in list(tables(args.seed).items())[:few]:
        X, X_test, y, y_test = train_test_split(
            table, classes, stratify=classes, random_state=args.seed
        )
        scaler = StandardScaler().fit(X)
        X, X_test = scaler.transform(X), scaler.transform(X_test)
        fits = dict(list(Selectors(X, y, X_test, args.seed).fits().items())[:few])
        seconds: dict[str, list[float]] = {what: [] for what in fits}
        results: dict[str, Found] = {}
        for _ in range(args.repeats):
            for what, fit in fits.items():
                start = time.process_time()
                found = fit()
                seconds[what].append(time.process_time() - start)
                results[what] = found()
        medians = {what: statistics.median(times) for what, times in seconds.items()}
        for what, result in results.items():
            line: dict[str, Any] = {"table": name, "selector": what}
            line["seconds"] = round(medians[what], 3)
            line["times ours"] = round(medians[what] / medians[OURS], 3)
            if result is not None:
                kept, predicted = result
                line["real kept"] = f"{kept[real].sum()} of {real.sum()}"
                line["noise kept"] = f"{kept[~real].sum()} of {(~real).sum()}"
                line["accuracy"] = round(float((predicted == y_test).mean()), 3)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
