"""A small job, for tests of what is done with its runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from lessvfl import data
from lessvfl.run import profiles
from lessvfl.run.simulate import Job

SHORT: dict[str, Any] = {"train_epochs": 2, "batch_size": 40, "hidden": 8}


def a_dataset():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(100, 8))
    return data.from_arrays(X, (X[:, 0] > 0).astype(int), name="numbers")


def a_job(method="plain", profile="default", spurious=0.0, **overrides):
    dataset = a_dataset()
    settings = profiles.resolve(method, profile, dataset, SHORT | overrides)
    return Job(dataset, settings, spurious=spurious)
