"""scikit-learn's own checks of an estimator."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from lessvfl import LessVFLClassifier, LessVFLRegressor

CHECKED: dict[str, Any] = {  # the default, cheaper: it is fitted a few hundred times
    "train_epochs": 8,
    "batch_size": 32,
    "learning_rate": 0.03,
    "random_state": 0,
    "settings": {"shadows": 20, "second_look": 0, "refit_epochs": 1},
}


pytestmark = pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")


@pytest.mark.filterwarnings("ignore:No features were selected")  # some have none
@parametrize_with_checks(
    [LessVFLClassifier(**CHECKED), LessVFLRegressor(**CHECKED)],
    expected_failed_checks=lambda _: {
        f"check_sample_weight_equivalence_on_{kind}_data": (
            "batches, shadows and rows held out are drawn by the number of a row"
        )
        for kind in ("dense", "sparse")
    },
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
