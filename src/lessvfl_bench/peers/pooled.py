"""Feature selection on pooled data: what one would use if tables could be moved.

Every reference sees training rows alone. Where a penalty has to be chosen, one rule
serves all of them and all data sets: the strongest penalty whose accuracy on rows held
out of training lies within one standard error of the best.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.multiclass import OneVsRestClassifier

from lessvfl.data import Problem
from lessvfl.errors import DataError
from lessvfl.terms import stream_seed
from lessvfl_bench.peers import stg

Mask = NDArray[np.bool_]
Classes = NDArray[np.int64]

EXTRA = "peers"  # of pyproject.toml
VALIDATION_SHARE = 0.2  # of the training rows, for LassoNet and STG
N_FOLDS = 3  # of cross-validation, for logistic regression
LEAST_ROWS = 5  # of every class, so that each part has some
LASSONET_HIDDEN = (64,)
LASSONET_BATCH = 256
LASSONET_START = 1.0  # its own search for a first lambda takes longer than the path
LASSONET_PATH = 1.2  # from one lambda to the next
LASSONET_EPOCHS = 5  # at every lambda
LASSONET_STEPS = 50  # at least, where those epochs have fewer
LASSONET_DENSE = 20  # times as many epochs at most without a penalty
LEAST_WEIGHT = 1e-5  # of a column that logistic regression keeps
LOGISTIC_C = tuple(10.0 ** (-k / 2) for k in range(7))  # 1 to 0.001
STG_PLAN = stg.Plan(lams=tuple(10.0 ** (-4 + k / 4) for k in range(11)))
N_TREES = 100
BORUTA_ROUNDS = 20
BORUTA_DEPTH = 5  # its authors: 3 to 7
BORUTA_ROWS = 2000  # drawn anew for every tree


@dataclass(frozen=True)
class Pooled:
    """The tables of all parties side by side."""

    X_train: NDArray[np.float64]
    y_train: Classes
    X_test: NDArray[np.float64]
    groups: NDArray[np.int64]  # (columns,), the feature of each column
    n_classes: int
    seed: int
    device: torch.device

    @property
    def n_features(self) -> int:
        """Return the number of features."""
        return int(self.groups.max()) + 1

    @property
    def random_state(self) -> int:
        """Return the seed as scikit-learn takes one."""
        return stream_seed(self.seed, "peers") % 2**32

    def features(self, columns: Mask) -> Mask:
        """Return the features of which any column is marked."""
        kept = np.zeros(self.n_features, dtype=bool)
        kept[self.groups[columns]] = True
        return kept


def pool(problem: Problem, seed: int, device: torch.device) -> Pooled:
    """Put the tables of all parties side by side, if every class has enough rows."""
    counts = np.bincount(problem.y_train, minlength=problem.n_classes)
    if counts.min() < LEAST_ROWS:
        scarce = problem.label_names[int(counts.argmin())]
        raise DataError(
            f"Every class of '{problem.name}' must have {LEAST_ROWS} training rows or "
            f"more, to hold some out. Got {counts.min()} of class '{scarce}'."
        )
    groups, n_features = [], 0
    for party in problem.parties:
        groups.append(party.groups + n_features)
        n_features += len(party.features)
    X_train = np.hstack([party.X_train for party in problem.parties])
    X_test = np.hstack([party.X_test for party in problem.parties])
    about = (np.concatenate(groups), problem.n_classes, seed, device)
    return Pooled(X_train, problem.y_train, X_test, *about)


@dataclass(frozen=True)
class Selection:
    """Features kept, the method's own classes of the test rows, and what it chose."""

    kept: Mask
    predicted: Classes
    setting: Mapping[str, float] = field(default_factory=dict)


def enough(best: int, n_rows: int) -> float:
    """Return the rows to predict right, of `n_rows`, to be as good as the best.

    That is the best less one standard error √(n p (1 - p)), p = (best + 2) / (n + 4),
    which is not 0 where all are right.

    >>> round(enough(95, 100), 2)
    92.49
    """
    p = (best + 2) / (n_rows + 4)
    return best - math.sqrt(n_rows * p * (1 - p))


def strongest(n_right: NDArray[Any], n_rows: int) -> int:
    """Return the strongest penalty that is as good as the best.

    Penalties are in rising order; `n_right` of the `n_rows` held out were right.

    >>> strongest(np.array([92, 95, 93, 80]), 100)
    2
    """
    least = enough(int(np.max(n_right)), n_rows)
    return int(np.flatnonzero(np.asarray(n_right) >= least)[-1])


def majority(y: Classes, n_rows: int) -> Classes:
    """Return the most frequent class for every row: the prediction from nothing."""
    return np.full(n_rows, np.bincount(y).argmax())


def _hold_out(pooled: Pooled) -> list[Any]:
    """Return rows to train on and rows to choose by, then the classes of both."""
    X, y = pooled.X_train.astype(np.float32), pooled.y_train
    how = {"stratify": y, "random_state": pooled.random_state}
    parts: list[Any] = train_test_split(X, y, test_size=VALIDATION_SHARE, **how)
    return parts


# -- networks --------------------------------------------------------------------------


def lassonet(pooled: Pooled) -> Selection:
    """Follow LassoNet's path and keep its smallest good set (Lemhadri et al., 2021).

    Networks of the path are shrunk by the penalty, so that a set is judged by a network
    of its own, trained on it without any penalty, from the smallest set on.
    """
    X, X_held, y, y_held = _hold_out(pooled)
    n_right: list[int] = []

    def score(model: Any, path: Any) -> None:
        n_right.append(int((model.predict(X_held) == y_held).sum()))

    with torch.random.fork_rng(devices=[]):  # it seeds PyTorch
        net = _network(pooled, len(y), pooled.groups)
        given: dict[str, Any] = {"X_val": X_held, "y_val": y_held, "callback": score}
        # Small data may lose features at the first lambda: no warning of that.
        path = net.path(X, y, **given, disable_lambda_warning=True)
        least = enough(max(n_right), len(y_held))
        sets = {step.selected.numpy().tobytes(): step for step in path}
        for step in reversed([step for step in sets.values() if step.selected.any()]):
            columns = step.selected.numpy()
            held = X_held[:, columns]
            model = _network(pooled, len(y), pooled.groups[columns])
            model.fit(X[:, columns], y, X_val=held, y_val=y_held, dense_only=True)
            if (model.predict(held) == y_held).sum() >= least:
                break
    predicted = model.predict(pooled.X_test[:, columns].astype(np.float32))
    lam = float(step.lambda_)
    return Selection(pooled.features(columns), predicted, {"lambda": lam})


def _network(pooled: Pooled, n_rows: int, groups: NDArray[np.int64]) -> Any:
    """Return a LassoNet for these columns; those of one feature leave together."""
    from lassonet import LassoNetClassifier

    n_batches = max(1, n_rows // LASSONET_BATCH)
    n_epochs = max(LASSONET_EPOCHS, math.ceil(LASSONET_STEPS / n_batches))
    features = np.unique(groups)
    together = [np.flatnonzero(groups == feature).tolist() for feature in features]
    return LassoNetClassifier(
        hidden_dims=LASSONET_HIDDEN,
        batch_size=LASSONET_BATCH,
        n_iters=(LASSONET_DENSE * n_epochs, n_epochs),
        patience=(2 * n_epochs, None),
        lambda_start=LASSONET_START,
        path_multiplier=LASSONET_PATH,
        groups=None if len(features) == len(groups) else together,
        device=pooled.device,
        verbose=0,
        torch_seed=pooled.random_state,
    )


def stochastic_gates(pooled: Pooled) -> Selection:
    """Train stochastic gates for a path of penalties and choose one."""
    X, X_held, y, y_held = _hold_out(pooled)
    how = (pooled.n_classes, STG_PLAN, pooled.seed, pooled.device)
    gated = stg.train(X, y, pooled.groups, *how)
    n_right = (gated.predict(X_held) == y_held).sum(axis=1)
    chosen = strongest(n_right, len(y_held))
    predicted = gated.predict(pooled.X_test)[chosen]
    return Selection(gated.kept()[chosen], predicted, {"lambda": STG_PLAN.lams[chosen]})


# -- scikit-learn ----------------------------------------------------------------------


def _logistic(C: float, random_state: int) -> Any:
    """Return L1 logistic regression; more than two classes one against the rest."""
    # scikit-learn 1.8 says l1_ratio=1 for what was penalty="l1".
    old = getattr(LogisticRegression(), "penalty", "deprecated") != "deprecated"
    l1 = {"penalty": "l1"} if old else {"l1_ratio": 1.0}
    model = LogisticRegression(C=C, solver="liblinear", random_state=random_state, **l1)
    return OneVsRestClassifier(model)


def l1_logistic(pooled: Pooled) -> Selection:
    """Keep the columns with weights in L1 logistic regression, C cross-validated."""
    X, y = pooled.X_train, pooled.y_train
    state = pooled.random_state
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=state)
    n_right = np.zeros(len(LOGISTIC_C), dtype=int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # liblinear's own cap
        for train, held in folds.split(X, y):
            for index, C in enumerate(LOGISTIC_C):
                model = _logistic(C, state).fit(X[train], y[train])
                n_right[index] += int((model.predict(X[held]) == y[held]).sum())
        C = LOGISTIC_C[strongest(n_right, len(y))]
        model = _logistic(C, state).fit(X, y)
    weights = np.abs(np.vstack([one.coef_ for one in model.estimators_]))
    columns = weights.max(axis=0) >= LEAST_WEIGHT
    return Selection(pooled.features(columns), model.predict(pooled.X_test), {"C": C})


def _by_forest(pooled: Pooled, columns: Mask) -> Selection:
    """Keep the features of these columns; a new forest on them predicts."""
    kept = pooled.features(columns)
    columns = kept[pooled.groups]
    if not columns.any():
        return Selection(kept, majority(pooled.y_train, len(pooled.X_test)))
    forest = RandomForestClassifier(N_TREES, random_state=pooled.random_state)
    forest.fit(pooled.X_train[:, columns], pooled.y_train)
    return Selection(kept, forest.predict(pooled.X_test[:, columns]))


def random_forest(pooled: Pooled) -> Selection:
    """Keep the columns whose importance in a forest is above the mean."""
    forest = RandomForestClassifier(N_TREES, random_state=pooled.random_state)
    selector = SelectFromModel(forest, threshold="mean")
    selector.fit(pooled.X_train, pooled.y_train)
    return _by_forest(pooled, selector.get_support())


def boruta(pooled: Pooled) -> Selection:
    """Keep the columns that beat shuffled copies of all (Kursa and Rudnicki, 2010)."""
    from boruta import BorutaPy

    n_rows = min(BORUTA_ROWS, len(pooled.y_train))
    forest = RandomForestClassifier(
        max_depth=BORUTA_DEPTH, max_samples=n_rows, class_weight="balanced_subsample"
    )
    seed = pooled.random_state
    selector = BorutaPy(forest, N_TREES, max_iter=BORUTA_ROUNDS, random_state=seed)
    selector.fit(pooled.X_train, pooled.y_train)
    return _by_forest(pooled, selector.support_)


# -- the registry ----------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """A method on pooled data: how it selects, and the package it needs."""

    select: Callable[[Pooled], Selection]
    how: str
    module: str | None = None  # None: nothing beyond our own dependencies

    def missing(self, name: str) -> str | None:
        """Return the sentence about a package that is not installed."""
        if self.module is None or importlib.util.find_spec(self.module) is not None:
            return None
        return (
            f"The method '{name}' needs a package that is not installed: install the "
            f"extra '{EXTRA}', as in pip install 'lessvfl[{EXTRA}]'."
        )


REFERENCES: dict[str, Reference] = {
    "lassonet": Reference(
        lassonet,
        f"one hidden layer of {LASSONET_HIDDEN[0]}, batches of {LASSONET_BATCH}, "
        f"{LASSONET_EPOCHS} epochs (and {LASSONET_STEPS} steps) at every lambda of a "
        f"path from {LASSONET_START:g} on by factors of {LASSONET_PATH}, at most "
        f"{LASSONET_DENSE} times as many without a penalty; lambda by "
        "held-out rows; own model: a network trained anew on the columns kept",
        "lassonet",
    ),
    "stg": Reference(
        stochastic_gates,
        f"two hidden layers of {STG_PLAN.hidden}, batches of "
        f"{STG_PLAN.batch_size}, {STG_PLAN.n_steps} steps, {len(STG_PLAN.lams)} "
        f"lambdas from {STG_PLAN.lams[0]:g} to {STG_PLAN.lams[-1]:.2g}; lambda by "
        "held-out rows",
    ),
    "l1-logistic": Reference(
        l1_logistic,
        f"liblinear, more than two classes one against the rest, {len(LOGISTIC_C)} "
        f"values of C from {LOGISTIC_C[-1]:g} to {LOGISTIC_C[0]:g}; C by "
        f"{N_FOLDS}-fold cross-validation; own model: itself",
    ),
    "boruta": Reference(
        boruta,
        f"at most {BORUTA_ROUNDS} rounds of {N_TREES} trees of depth {BORUTA_DEPTH}, "
        f"each of {BORUTA_ROWS} rows drawn anew from all; confirmed columns are kept; "
        f"own model: a new forest of {N_TREES} trees on them",
        "boruta",
    ),
    "random-forest": Reference(
        random_forest,
        f"{N_TREES} trees, columns of more than mean importance are kept; own model: a "
        f"new forest of {N_TREES} trees on them",
    ),
}
