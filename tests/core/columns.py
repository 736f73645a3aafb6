"""Columns and responses of which the first three matter, and what they say."""

from __future__ import annotations

import numpy as np
import torch

from lessvfl.select.moments import Moments


def problem(n=400, d=12, E=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d)))
    B = np.zeros((d, E))
    B[:3] = rng.normal(size=(3, E)) + 1
    Z = X @ B + rng.normal(size=(n, E))
    return torch.as_tensor(X), torch.as_tensor(Z)


def seen(X, Z, groups=None):
    groups = torch.arange(X.shape[1]) if groups is None else torch.tensor(groups)
    return Moments.of(X, Z, groups)
