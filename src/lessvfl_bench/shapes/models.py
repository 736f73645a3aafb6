"""Models and selectors on pooled columns, for comparison."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LassoCV, LogisticRegression, RidgeCV
from sklearn.metrics import balanced_accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from lessvfl.data import Problem
from lessvfl_bench.peers.pooled import Mask

TINY = 1e-300  # where a probability is none


def side_by_side(
    problem: Problem, features: set[str] | None = None
) -> list[NDArray[Any]]:
    """Return training and test rows of all parties' encoded columns, or of some."""
    parts: list[list[NDArray[Any]]] = [[], []]
    for party in problem.parties:
        names = np.array(party.features)[party.groups]
        chosen = [features is None or name in features for name in names]
        for part, X in zip(parts, (party.X_train, party.X_test), strict=True):
            part.append(X[:, chosen])
    return [np.hstack(part) for part in parts]


def outputs_of(
    model: Any, problem: Problem, X: NDArray[Any], X_test: NDArray[Any]
) -> torch.Tensor:
    """Return what a fitted model says of the test rows: amounts, or logits, (n, K).

    It is fitted here, unless there is no column to fit it to.
    """
    regression = problem.task == "regression"
    several = problem.task == "multiclass"
    out = np.zeros((len(problem.y_test), problem.n_classes if several else 1))
    if X.shape[1] == 0:
        out += problem.y_train.mean() if regression else 0.0
        return torch.as_tensor(out)
    with threadpool_limits(1):
        model.fit(X, problem.y_train)
        if several:
            out += np.log(TINY)  # of classes without a training row
            shares = model.predict_proba(X_test).clip(TINY)
            out[:, model.classes_.astype(int)] = np.log(shares)
        else:
            said = model.predict if regression else model.decision_function
            out[:, 0] = said(X_test)
    return torch.as_tensor(out)


def score_of(problem: Problem, predicted: NDArray[Any]) -> float:
    """Return balanced accuracy, or R2 for regression, of the test rows."""
    measure = r2_score if problem.task == "regression" else balanced_accuracy_score
    return float(measure(problem.y_test, predicted))


def linear_score(
    problem: Problem, features: set[str] | None = None, is_rare: bool = False
) -> float:
    """Return the score of ridge or logistic regression, penalty cross-validated."""
    X, X_test = side_by_side(problem, features)
    if X.shape[1] == 0:
        return 0.0 if problem.task == "regression" else 1 / problem.n_classes
    if problem.task == "regression":
        model = RidgeCV(np.logspace(-2, 4, 13))
    else:
        weight = "balanced" if is_rare else None
        model = GridSearchCV(
            LogisticRegression(max_iter=300, class_weight=weight),
            {"C": np.logspace(-3, 1, 5)},
            scoring="balanced_accuracy",
            cv=3,
        )
    with threadpool_limits(1):
        fitted = make_pipeline(StandardScaler(), model).fit(X, problem.y_train)
        return score_of(problem, fitted.predict(X_test))


def boosting_score(problem: Problem, is_rare: bool) -> float:
    """Return the score of gradient boosting on all columns."""
    X, X_test = side_by_side(problem)
    if problem.task == "regression":
        model = HistGradientBoostingRegressor(random_state=0)
    else:
        weight = "balanced" if is_rare else None
        model = HistGradientBoostingClassifier(random_state=0, class_weight=weight)
    return score_of(problem, model.fit(X, problem.y_train).predict(X_test))


def lasso(problem: Problem) -> Mask:
    """Keep what the lasso keeps: the largest lambda within one error of the best."""
    X, _ = side_by_side(problem)
    path = LassoCV(cv=5, random_state=0).fit(X, problem.y_train)
    mean = path.mse_path_.mean(axis=1)
    errors = path.mse_path_.std(axis=1, ddof=1) / math.sqrt(path.mse_path_.shape[1])
    best = mean.argmin()
    alpha = path.alphas_[mean <= mean[best] + errors[best]].max()
    _, weights, _ = LassoCV.path(X - X.mean(axis=0), problem.y_train, alphas=[alpha])
    kept: Mask = weights[:, 0] != 0
    return kept  # numbers alone: a column is a feature
