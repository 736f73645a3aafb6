"""The score that leads: of rare labels, accuracy would say the opposite."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.report.sides import server_record

from lessvfl import report
from lessvfl.cli import results
from lessvfl.report import figures, sentences, tables, verdicts
from lessvfl.report.finding import finding
from lessvfl.status import words


def rare(record, auc, accuracy, **more):
    """Return a record of a rare label: AUC leads, and the scores are these."""
    found = copy.deepcopy(record)
    found.header["data"] |= {"classes": {"no": 9500, "yes": 500}, "score": "auc"}
    found.header |= more
    for run in found.runs:
        run["score"] = "auc"
        for name, value in (("auc", auc), ("accuracy", accuracy)):
            run[name] = {"pretrained": None, "selected": None, "final": value}
            run[name]["best"] = value
            for point in run["curve"]:
                point[name] = value
        run["baseline"] = {"accuracy": 0.95, "auc": 0.5}
        # Without the bank all rows are "no": its accuracy is the higher one.
        run["without"] = {
            "bank": {"auc": 0.55, "accuracy": 0.95},
            "insurer": {"auc": auc, "accuracy": accuracy - 0.1},
        }
    return found


@pytest.fixture
def better(make_record):
    return rare(make_record(), 0.767, 0.734)


def test_the_most_valuable_party_is_missed_most(better):
    assert list(tables.missed(better)) == ["bank", "insurer"]
    page = report.page(better)
    assert "0.550 instead of 0.767" in page
    assert "AUC without it" in page
    assert (
        "test AUC 0.767 (accuracy 0.734; always the most frequent class: 0.950)" in page
    )
    assert "Test AUC against megabytes sent" in page
    assert "10,299 rows of all sides: yes 500" in page


def test_the_server_says_what_leads(better, capsys):
    results.tell_server(server_record(better))
    said = capsys.readouterr().out
    assert "10,299 rows of all sides: yes 500" in said
    assert "without bank: AUC 0.550 instead of 0.767" in said
    assert said.index("without bank") < said.index("without insurer")


def test_the_better_model_is_called_better(better, make_record):
    worse = rare(make_record(method="plain"), 0.706, 0.921, method="plain")
    for records in ({"Ours": better, "Plain": worse}, {"Plain": worse, "Ours": better}):
        said = finding(records)
        assert "AUC" in said
        assert "accuracy" not in said
    assert tables.shared_score([better, worse]) == ("auc", "AUC")
    third = rare(make_record(), 0.6, 0.99)
    said = finding({"Ours": better, "Plain": worse, "Third": third})
    assert "Ours has the highest AUC (0.767)" in said


def test_what_only_one_record_has_is_not_compared(better, make_record):
    """A record of an earlier version has no AUC of many classes."""
    old = make_record(method="plain")
    for run in old.runs:
        run.pop("auc", None)
    assert tables.shared_score([better, old]) == ("accuracy", "accuracy")
    amounts = make_record(task="regression")
    assert tables.shared_score([better, amounts]) is None


def test_the_curve_is_that_of_the_leading_score(better):
    assert figures.score_of(better.runs) == ("auc", "test AUC")


def test_a_model_of_chance_is_remarked_on(better):
    assert sentences.chance(better) == []
    for run in better.runs:
        run["above_baseline"] = False
    (said,) = sentences.chance(better)
    assert said == (  # an AUC of 1 with one positive row, too
        "The test rows do not show that the model is better than chance in 3 of 3 "
        "seeds: its AUC there is less than two standard errors of guesses above that "
        "of predicting the same class for every row."
    )
    assert said in report.page(better)


@pytest.mark.parametrize("share", [None, 0.0, 0.009, 0.01, 0.65])
def test_test_rows_that_were_seen_are_remarked_on_where_they_are_many(better, share):
    for run in better.runs:
        run["test_rows_seen"] = share
    many = share is not None and share >= 0.01
    said = [one for one in sentences.remarks(better) if "equal a training" in one]
    assert len(said) == many
    if many:
        start = f"{100 * share:.2g} % of the test rows equal a training row in every "
        assert said[0].startswith(start)
        assert "equal_rows=distinct" in said[0]
    page = report.page(better)
    assert all(sentence in page for sentence in said)
    assert ("share that equal a training row" in page) == (share is not None)


def test_shares_of_what_is_predicted_are_said(better):
    for run in better.runs:
        run["predicted"] = {"no": 0.73, "yes": 0.27}
    assert sentences.predicted_words(better) == (
        "yes is predicted for 27 % of the test rows; 5 % of all rows are"
    )


def test_shares_of_randomised_labels_are_said_to_be_such(better):
    for run in better.runs:
        run["predicted"] = {"no": 0.73, "yes": 0.27}
    better.header["config"] = {**better.header["config"], "label_epsilon": 1.0}
    end = ", with the labels of training rows as they were randomised"
    for said in (sentences.label_words(better), sentences.predicted_words(better)):
        assert said.endswith(end)


def test_a_feature_that_dwarfs_the_others_is_warned_of(shadows):
    """At its party, which has no labels, and in the notes of the report."""
    record = shadows
    assert verdicts.dwarfing(record) == []
    for run in record.runs:
        how = run["selection"]["bank"]
        first = next(iter(how["scores"]))
        how["scores"] = dict.fromkeys(how["scores"], 1.2) | {first: 12.0}
        how["sight"] = {"n_rows": 1000.0, "dimension": 1.0, "mark": 6.6}
    said = verdicts.dwarfing(record)
    assert len(said) == 1
    assert said[0].startswith(
        f"{first} of bank is far stronger than its other features"
    )
    assert said[0] in report.page(record)


@pytest.mark.parametrize(
    ("connected", "state", "said"),
    [
        (True, "done", "connected"),
        (False, "running", "away"),
        (False, "done", "done"),
        (False, "failed", "away"),
    ],
)
def test_a_party_that_left_at_the_end_is_done(connected, state, said):
    party: Any = {"connected": connected}
    assert words.party_state(party, state) == said
