"""Synthetic data: the truth is where the mask says."""

import numpy as np
import pytest

from lessvfl.data import DataConfig, load, prepare
from lessvfl.errors import ConfigError


def make(**options):
    return load("synthetic", options={"n_samples": 2000, "n_test": 500} | options)


def test_default_shape():
    data = make()
    assert data.X.numeric.shape == (2000, 80)
    assert data.X_test.numeric.shape == (500, 80)
    assert data.X.names[:2] == ("x0_0", "x0_1")
    assert data.X.names[20] == "x1_0"
    assert data.significant.reshape(4, 20).sum(axis=1).tolist() == [5] * 4
    assert data.significant[:5].sum() < 5  # not simply the first columns


def test_blocks_recover_the_parties():
    problem = prepare(make(n_parties=3), DataConfig())
    for m, party in enumerate(problem.parties):
        assert {name.split("_")[0] for name in party.features} == {f"x{m}"}
        assert party.significant is not None
        assert party.significant.sum() == 5


def test_label_is_unit_signal_plus_noise():
    clean, noisy = make(sigma=0.0), make(sigma=0.5)
    assert clean.y.std() == pytest.approx(1.0)
    assert (noisy.y - clean.y).std() == pytest.approx(0.5, rel=0.1)
    assert clean.y_test.std() == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_significant_features_matter_and_others_do_not(seed):
    """Partial correlations in a linear fit tell the two kinds apart."""
    data = make(sigma=0.0, n_samples=4000, n_parties=2, seed=seed)
    X = data.X.numeric - data.X.numeric.mean(axis=0)
    weights = np.abs(np.linalg.lstsq(X, data.y, rcond=None)[0])
    assert weights[~data.significant].max() < 0.1
    assert np.median(weights[data.significant]) > 0.1
    assert weights[data.significant].mean() > 5 * weights[~data.significant].mean()


def test_every_significant_feature_moves_f():
    from lessvfl.data.sets import synthetic

    config = synthetic.SyntheticConfig(n_samples=500, n_test=1, n_noise=2)
    mask = synthetic._significant(config)
    X = synthetic._features(config)
    base = synthetic._generate(config, X, mask)
    for column, matters in enumerate(mask.ravel()):
        moved = X.copy()
        moved[:, column] += 0.01  # the networks drawn are the same: the effect is large
        change = np.sqrt(
            ((synthetic._generate(config, moved, mask) - base) ** 2).mean()
        )
        assert (change > 0.01 * 0.1) == matters


def test_binary_classes_are_balanced():
    data = make(task="binary")
    assert data.task == "binary"
    assert data.label_names == ("0", "1")
    assert np.bincount(data.y).tolist() == [1000, 1000]
    assert 0.4 < data.y_test.mean() < 0.6


def test_correlation():
    X = make(correlation=0.6, n_samples=5000).X.numeric[:, :6]
    corr = np.corrcoef(X.T)
    np.testing.assert_allclose(corr[np.triu_indices(6, 1)], 0.6, atol=0.05)
    np.testing.assert_allclose(X.std(axis=0), 1, atol=0.05)


def test_seed():
    np.testing.assert_array_equal(make().y, make().y)
    assert not np.array_equal(make().y, make(seed=1).y)


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"n_sample": 5}, "Unknown option of the data set 'synthetic' 'n_sample'"),
        ({"sigma": -1}, "'sigma' setting must be a float in \\[0, inf\\). Got -1"),
        ({"task": "multiclass"}, "one of regression, binary"),
        ({"n_significant": 0}, "a whole number >= 1. Got 0"),
        ({"correlation": 1.0}, "'correlation' setting must be"),
    ],
)
def test_refused_options(options, fragment):
    with pytest.raises(ConfigError, match=fragment):
        load("synthetic", options=options)
