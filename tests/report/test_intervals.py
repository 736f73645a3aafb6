"""Intervals over the runs of a record, in numbers, words and on the page."""

import math

import pytest

from lessvfl.report import intervals, sentences, tables
from lessvfl.run.record import RunRecord


def run(seed, final, below, above, loss=0.1):
    return {
        "seed": seed,
        "score": "auc",
        "auc": {"final": final},
        "intervals": {"auc": {"low": final - below, "high": final + above}},
        "missed": {"bank": {"loss": loss, "low": loss - below, "high": loss + above}},
        "without": {"bank": {"auc": final - loss}},
    }


def record(*runs, folds=1, **data):
    header = {"data": {"score": "auc", **data}, "config": {"folds": folds}}
    return RunRecord(header | {"method": "plain"}, list(runs), "complete")


def test_one_run_has_its_own_interval():
    one = record(run(0, 0.8, 0.05, 0.04))
    found = intervals.of_score(one, "auc")
    assert found == pytest.approx((0.8, 0.75, 0.84))
    assert intervals.leading_words(one, "auc", "") == " (0.750 to 0.840)"
    assert intervals.loss_words(one, "bank") == "0.100 (0.050 to 0.140), overstated"
    assert intervals.bias(one, "bank") == f", {intervals.OVERSTATED}"
    assert "test AUC 0.800 (95 %: 0.750 to 0.840)" in sentences.headline(one)


def test_a_loss_that_may_be_none_is_not_overstated():
    none = record(run(0, 0.8, 0.0, 0.0, loss=0.0))
    assert intervals.loss_words(none, "bank") == "0.000 (0.000 to 0.000)"
    assert intervals.bias(none, "bank") == ""
    little = record(run(0, 0.8, 0.05, 0.04, loss=0.01))
    assert intervals.loss_words(little, "bank") == "0.010 (-0.040 to 0.050)"
    for loss, said in ((0.0, ""), (-0.01, ""), (0.01, f", {intervals.OVERSTATED}")):
        plain = record(run(0, 0.8, 0.0, 0.0, loss=loss))
        plain.runs[0]["missed"] = None
        assert intervals.bias(plain, "bank") == said


def test_seeds_share_a_table_and_their_mean_is_as_uncertain_as_one():
    found = intervals.of_score(
        record(run(0, 0.8, 0.04, 0.02), run(1, 0.7, 0.08, 0.04)), "auc"
    )
    assert found == pytest.approx((0.75, 0.69, 0.78))


def test_folds_are_of_different_rows_and_their_mean_is_less_uncertain():
    runs = [run(seed, 0.8, 0.06, 0.04) for seed in range(4)]
    found = intervals.of_score(record(*runs, folds=4), "auc")
    assert found == pytest.approx((0.8, 0.77, 0.82))
    twice = [run(seed, 0.8, 0.06, 0.04) for seed in range(8)]
    again = intervals.of_score(record(*twice, folds=4), "auc")
    assert again == pytest.approx((0.8, 0.77, 0.82))
    uneven = record(run(0, 0.8, 0.06, 0.02), run(1, 0.8, 0.08, 0.02), folds=2)
    low = 0.8 - math.hypot(0.06, 0.08) / 2
    assert intervals.of_score(uneven, "auc") == pytest.approx(
        (0.8, low, 0.8 + 0.02 / math.sqrt(2))
    )


def test_without_an_interval_nothing_is_said():
    for missing in ({}, {"intervals": None, "missed": None}):
        one = record({"seed": 0, "auc": {"final": 0.8}, **missing})
        assert intervals.of_score(one, "auc") is None
        assert intervals.leading_words(one, "auc", "") == ""
        assert intervals.loss_words(one, "bank") == tables.MISSING
        assert intervals.note(one) == ""
    assert intervals.of_score(record(), "auc") is None


def test_folds_are_called_folds():
    runs = [run(seed, 0.8, 0.06, 0.04) for seed in range(4)]
    assert tables.runs_words(record(*runs)) == "4 seeds"
    assert tables.runs_words(record(*runs, folds=4)) == "4 folds"
    assert tables.runs_words(record(*runs, folds=2)) == "4 folds of 2 seeds"
    assert sentences.headline(record(*runs, folds=4)).endswith("(mean of 4 folds)")


def test_what_was_drawn_is_said():
    one = run(0, 0.8, 0.05, 0.04)
    said = intervals.note(record(one, n_train=80, n_test=20, n_blocks=100))
    assert "resamples of rows)," in said
    said = intervals.note(record(one, n_train=80, n_test=20, n_blocks=30))
    assert "resamples of rows that belong together" in said
    said = intervals.note(record(one, folds=2))
    assert "are of the mean of all folds" in said
