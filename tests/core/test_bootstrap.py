"""Intervals of scores by resampling, against resampling by the book."""

import numpy as np
import pytest
import torch

from lessvfl.core import bootstrap, metrics
from lessvfl.core.bootstrap import ResampledRows, score_intervals

N = 400
SETS = 600  # that are drawn by the book
SCORES = ("accuracy", "balanced_accuracy", "auc", "average_precision")


def two_classes(n=N, share=0.2, gap=1.0, seed=0):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < share).astype(int)
    return y, rng.normal(size=n) + gap * y


def by_the_book(name, y, *predicted, task="binary"):
    """Draw rows with replacement, score each set anew, and take the quantiles.

    Of two predictions the difference of their scores in the same sets.
    """
    rows = np.random.default_rng(1).integers(0, len(y), (SETS, len(y)))
    labels = torch.as_tensor(y)
    first, *others = (
        torch.stack(
            [
                metrics.measure(table[drawn], labels[drawn], task, names=[name])[name]
                for drawn in torch.from_numpy(rows)
            ]
        )
        for table in (torch.as_tensor(z).reshape(len(y), -1) for z in predicted)
    )
    values = first - others[0] if others else first
    return np.nanquantile(values.numpy(), [0.025, 0.975])


def found_intervals(y, *predicted, task="binary", lead="auc", **more):
    labels = torch.as_tensor(y)
    outputs = [torch.as_tensor(z).reshape(len(y), -1) for z in predicted]
    measured = [metrics.measure(z, labels, task) for z in outputs]
    scores = [{name: float(own) for name, own in one.items()} for one in measured]
    return scores, *score_intervals(
        ResampledRows(labels, task, **more), outputs, scores, lead
    )


def assert_near(found, ends, part=0.2):
    """Both ends are as those of a book, up to some part of the width."""
    width = ends[1] - ends[0]
    assert found["low"] == pytest.approx(ends[0], abs=part * width)
    assert found["high"] == pytest.approx(ends[1], abs=part * width)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.8])
def test_intervals_of_two_classes_are_those_of_rows_drawn_again(name, share):
    y, z = two_classes(share=share)
    scores, found, _ = found_intervals(y, z)
    assert_near(found[name], by_the_book(name, y, z))
    assert found[name]["low"] < scores[0][name] < found[name]["high"]


def test_many_rows_are_bundled_and_the_width_stays():
    """The standard error of a share is known, and that of an area by DeLong."""
    y, z = two_classes(20_000, share=0.02)
    _, found, _ = found_intervals(y, z)
    p = ((z > 0) == y).mean()
    width = 2 * 1.96 * np.sqrt(p * (1 - p) / len(y))
    own = found["accuracy"]
    assert own["high"] - own["low"] == pytest.approx(width, rel=0.12)
    of_hits = np.array([(z[y == 0] < s).mean() for s in z[y == 1]])
    of_others = np.array([(z[y == 1] > s).mean() for s in z[y == 0]])
    error = np.sqrt(of_hits.var() / len(of_hits) + of_others.var() / len(of_others))
    own = found["auc"]
    assert own["high"] - own["low"] == pytest.approx(2 * 1.96 * error, rel=0.12)


def test_rows_of_one_person_are_drawn_together():
    y, z = two_classes()
    y, z, blocks = np.tile(y, 5), np.tile(z, 5), np.tile(np.arange(N), 5)
    _, alone, _ = found_intervals(y, z)
    _, found, _ = found_intervals(y, z, blocks=blocks)
    assert_near(found["auc"], by_the_book("auc", y[:N], z[:N]))
    ratio = (found["auc"]["high"] - found["auc"]["low"]) / (
        alone["auc"]["high"] - alone["auc"]["low"]
    )
    assert ratio == pytest.approx(np.sqrt(5), rel=0.2)


@pytest.mark.parametrize("lead", ["auc", "average_precision", "accuracy"])
def test_what_a_party_adds_is_resampled_in_pairs(lead):
    y, z = two_classes()
    without = z - 0.7 * y + 0.1 * np.random.default_rng(3).normal(size=N)
    scores, _, (added,) = found_intervals(y, z, without, lead=lead)
    assert added["loss"] == scores[0][lead] - scores[1][lead]
    assert_near(added, by_the_book(lead, y, z, without))
    _, _, (nothing,) = found_intervals(y, z, z, lead=lead)
    assert nothing == {"loss": 0.0, "low": 0.0, "high": 0.0}


def test_many_classes_and_amounts():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, N)
    z = rng.normal(size=(N, 4)) + 1.5 * np.eye(4)[y]
    _, found, _ = found_intervals(y, z, task="multiclass")
    for name in ("accuracy", "balanced_accuracy", "auc"):
        assert_near(found[name], by_the_book(name, y, z, task="multiclass"))
    amounts = 1e6 + rng.normal(size=N)
    guesses = amounts + rng.normal(size=N)
    _, found, _ = found_intervals(amounts, guesses, task="regression", lead="r2")
    assert_near(found["r2"], by_the_book("r2", amounts, guesses, task="regression"))


def test_scores_that_are_decided_by_another_threshold():
    """Where hardly a row is positive, half of the errors are gone."""
    y, z = two_classes()
    offsets = torch.tensor([-2.5], dtype=torch.float64)
    labels, logits = torch.as_tensor(y), torch.as_tensor(z)[:, None]
    exact = metrics.measure(logits, labels, "binary", offsets)
    scores = {name: float(values) for name, values in exact.items()}
    rows = ResampledRows(labels, "binary", offsets=offsets)
    found, _ = score_intervals(rows, [logits], [scores], "accuracy")
    name = "balanced_accuracy"
    assert_near(found[name], by_the_book(name, y, z - 2.5))


@pytest.mark.parametrize("name", ["auc", "average_precision"])
def test_scores_that_tie(name):
    y, z = two_classes(share=0.5)
    z = np.round(z / 4)
    _, found, _ = found_intervals(y, z)
    assert_near(found[name], by_the_book(name, y, z), part=0.1)


@pytest.mark.parametrize("positive", [0, 1])
def test_the_average_precision_is_that_of_the_rarer_class(positive):
    y, z = two_classes(share=0.1)
    y, z = (y, z) if positive else (1 - y, -z)
    labels, logits = torch.as_tensor(y), torch.as_tensor(z)[:, None]
    exact = metrics.measure(logits, labels, "binary", positive=positive)
    scores = {name: float(values) for name, values in exact.items()}
    rows = ResampledRows(labels, "binary", positive)
    found, _ = score_intervals(rows, [logits], [scores], "auc")
    ends = by_the_book("average_precision", *two_classes(share=0.1))
    assert_near(found["average_precision"], ends)


def test_a_score_that_rows_cannot_have_has_no_interval():
    labels, logits = torch.zeros(9, dtype=torch.long), torch.randn(9, 1)
    scores = dict.fromkeys(("auc", "average_precision")) | dict.fromkeys(
        ("accuracy", "balanced_accuracy"), 0.5
    )
    rows = ResampledRows(labels, "binary")
    found, added = score_intervals(rows, [logits] * 2, [scores] * 2, "auc")
    assert found["auc"] is None
    assert added == [None]
    same = ResampledRows(torch.ones(9), "regression")
    found, _ = score_intervals(same, [logits], [{"r2": None}], "r2")
    assert found["r2"] is None


def test_resamples_are_the_same_every_time_and_weigh_one():
    first, second = (bootstrap.Resamples.draw(300) for _ in range(2))
    assert (first.weights == second.weights).all()
    assert (first.weights[:, 0] == 1).all()
    assert first.weights[:, 1:].mean() == pytest.approx(1, abs=0.01)
    assert first.weights[:, 1:].var() == pytest.approx(1, abs=0.02)
