"""scikit-learn estimators: a selector and a predictor in one, parties simulated.

``LessVFLClassifier`` and ``LessVFLRegressor`` split the columns of one table among
parties, run a method between them in this process, and keep the features and networks
that are left.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from lessvfl.errors import ConfigError
from lessvfl.estimator.base import PARAMETERS, CodedLabels, LessVFLEstimator
from lessvfl.terms import Task, written


class LessVFLClassifier(ClassifierMixin, LessVFLEstimator):  # type: ignore[misc]
    """Select features across parties and classify with what is left."""

    __doc__ += (
        PARAMETERS
        + """    classes_ : ndarray
        The classes.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LessVFLClassifier(parties=3, train_epochs=20, random_state=0)
    >>> model = model.fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> model.transform(X).shape[1] == int(model.get_support().sum())
    True
    """
    )

    def _code(self, y: NDArray[Any]) -> CodedLabels:
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ConfigError(
                "The labels must hold at least 2 classes. Got 1 class: "
                f"{written(self.classes_[0])}."
            )
        task: Task = "binary" if len(self.classes_) == 2 else "multiclass"
        names = {name: str(name) for name in self.classes_}
        return CodedLabels(codes.astype(np.int64), task, names)

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return what decides on a class: (n,) for two classes, (n, C) for more.

        The logits; with ``threshold=balanced`` less those of the threshold.
        """
        check_is_fitted(self)
        z = self.model_.moved(self.model_.decide(self._frame(X, reset=False)))
        return z[:, 0] if len(self.classes_) == 2 else z

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of every class, (n, C)."""
        check_is_fitted(self)
        return self.model_.predict_proba(self._frame(X, reset=False))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of every row."""
        z = self.decision_function(X)
        codes = (z > 0).astype(int) if z.ndim == 1 else z.argmax(axis=1)
        return np.asarray(self.classes_[codes])


class LessVFLRegressor(RegressorMixin, LessVFLEstimator):  # type: ignore[misc]
    """Select features across parties and predict a number with what is left."""

    __doc__ += (
        PARAMETERS
        + """
    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> X, y = make_regression(200, 6, n_informative=2, random_state=0)
    >>> model = LessVFLRegressor(train_epochs=200, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    """
    )

    def _code(self, y: NDArray[Any]) -> CodedLabels:
        if y.dtype.kind not in "iufb":
            raise ConfigError("The labels y must be numbers to regress on. Got texts.")
        y = y.astype(np.float64)
        if not np.isfinite(y).all():
            raise ConfigError(
                "The labels must be finite numbers. Got NaN or infinity in y."
            )
        return CodedLabels(y, "regression", {})

    def predict(self, X: Any) -> NDArray[Any]:
        """Return a number for every row."""
        check_is_fitted(self)
        return self.model_.predict(self._frame(X, reset=False))
