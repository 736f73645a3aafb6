"""Synthetic data whose significant features are known.

After the paper's Assumptions 4.1 and 4.2: y = f(Θ*; x) + ε with x of a positive
continuous density and f a random analytic network. Each party's significant features
pass through Linear, tanh and Linear to a few embedding components, and a linear fusion
adds the components of all parties up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl import settings
from lessvfl.data.frame import Dataset, DatasetInfo, Floats, Frame
from lessvfl.settings import a_float, an_int, one_of, setting
from lessvfl.terms import stream_seed

N_COMPONENTS = 3  # embedding components of each party's generating network
LEAST_EFFECT = 0.7  # of a significant feature, as a share of its party's mean effect


@dataclass(frozen=True)
class SyntheticConfig(settings.Section):
    """What the generated data look like."""

    n_samples: int = setting(an_int(2), 20000, "training rows")
    n_test: int = setting(an_int(1), 5000, "test rows")
    n_parties: int = setting(an_int(1), 4, "parties")
    n_significant: int = setting(an_int(1), 5, "significant features of each party")
    n_noise: int = setting(an_int(0), 15, "non-significant features of each party")
    sigma: float = setting(
        a_float(0.0), 0.1, "standard deviation of the noise in the label"
    )
    task: str = setting(one_of("regression", "binary"), "regression", "kind of label")
    hidden: int = setting(
        an_int(1), 8, "hidden width of each party's generating network"
    )
    correlation: float = setting(
        a_float(0.0, 0.99), 0.0, "correlation of any two features"
    )
    seed: int = setting(an_int(0), 0, "seed of data and network")


def load(options: Mapping[str, Any]) -> Dataset:
    """Generate the synthetic data set; `options` are fields of `SyntheticConfig`."""
    known = settings.fields_of([SyntheticConfig])
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise settings.unknown("option of the data set 'synthetic'", name, known)
        is_text = isinstance(value, str)
        values[name] = settings.read(value, known[name]) if is_text else value
    config = SyntheticConfig(**values)
    significant = _significant(config)
    X = _features(config)
    f = _generate(config, X, significant)
    train = slice(0, config.n_samples)
    f = (f - f[train].mean()) / f[train].std()
    noise = np.random.default_rng(stream_seed(config.seed, "noise"))
    y: NDArray[Any] = f + config.sigma * noise.standard_normal(len(f))
    if config.task == "binary":
        y = (y > np.median(y[train])).astype(np.int64)
    width = config.n_significant + config.n_noise
    names = tuple(f"x{m}_{j}" for m in range(config.n_parties) for j in range(width))
    return Dataset(
        name="synthetic",
        X=Frame.of_numbers(names, X[train]),
        y=y[train],
        task="binary" if config.task == "binary" else "regression",
        label_names=("0", "1") if config.task == "binary" else (),
        X_test=Frame.of_numbers(names, X[config.n_samples :]),
        y_test=y[config.n_samples :],
        n_parties=config.n_parties,
        scale="none",
        significant=significant.ravel(),
    )


def _significant(config: SyntheticConfig) -> NDArray[np.bool_]:
    """Return which columns of each party matter, mixed at random; (M, d)."""
    mask = np.zeros(
        (config.n_parties, config.n_significant + config.n_noise), dtype=bool
    )
    mask[:, : config.n_significant] = True
    rng = np.random.default_rng(stream_seed(config.seed, "columns"))
    return rng.permuted(mask, axis=1)


def _features(config: SyntheticConfig) -> Floats:
    """Draw standard normal features (N, M·d), any two with the same correlation."""
    rng = np.random.default_rng(stream_seed(config.seed, "features"))
    n = config.n_samples + config.n_test
    d = config.n_parties * (config.n_significant + config.n_noise)
    alone = rng.standard_normal((n, d))
    shared = rng.standard_normal((n, 1))
    rho = config.correlation
    return np.asarray(np.sqrt(1.0 - rho) * alone + np.sqrt(rho) * shared)


def _generate(
    config: SyntheticConfig, X: Floats, significant: NDArray[np.bool_]
) -> Floats:
    """Return f(Θ*; x), the networks drawn until every significant feature matters."""
    width = significant.shape[1]
    f = np.zeros(len(X))
    for m in range(config.n_parties):
        rng = np.random.default_rng(stream_seed(config.seed, "network", m))
        x = X[:, m * width : (m + 1) * width][:, significant[m]]  # (n, s)
        while True:
            W = rng.standard_normal((config.hidden, config.n_significant))
            W /= np.linalg.norm(W, axis=0)  # a feature enters with norm 1
            b = 0.5 * rng.standard_normal(config.hidden)
            V = _away_from_zero(rng, (N_COMPONENTS, config.hidden))
            a = _away_from_zero(rng, (N_COMPONENTS,))
            v = a @ V / np.sqrt(N_COMPONENTS * config.hidden)  # (hidden,)
            slope = 1.0 - np.tanh(x[:1000] @ W.T + b) ** 2
            gradient = (slope * v) @ W  # (rows, s)
            effect = np.sqrt((gradient**2).mean(axis=0))
            if effect.min() >= LEAST_EFFECT * effect.mean():
                break
        part = np.tanh(x @ W.T + b) @ v
        f += (part - part.mean()) / part.std()  # every party matters alike
    return f


def _away_from_zero(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Draw weights of either sign and of size 0.5 to 1.5."""
    sign = rng.choice([-1.0, 1.0], size=shape)
    return np.asarray(sign * rng.uniform(0.5, 1.5, size=shape))


INFO = DatasetInfo(
    lambda folder, options: load(options),
    "random network over all parties' significant features, with noise columns",
    "Generated; the paper's Assumptions 4.1 and 4.2. No licence needed.",
    "built in",
    *(25000, 80, 0),
    takes_options=True,
)
