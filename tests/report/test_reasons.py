"""One word for each reason: core says it, and JSON, pages, CSV and documents have it.

And what other tests of reports make up has no field that a real record has not.
"""

import re
from pathlib import Path
from typing import get_args

import pytest
from tests.report import real

from lessvfl.report.reasons import REASONS, RULES, Unmeasured
from lessvfl.report.verdicts import verdicts
from lessvfl.terms import Reason, SelectionRule

DOCS = Path(__file__).parents[2] / "docs"
EVERY_REASON, RULE, UNMEASURED = (
    set(get_args(words)) for words in (Reason, SelectionRule, Unmeasured)
)


def test_real_runs_have_every_reason(shadows):
    hows = [how for run in shadows.runs for how in run["selection"].values()]
    assert {why for how in hows for why in how["why"].values()} == EVERY_REASON
    assert {how["rule"] for how in hows} <= RULE


def test_every_reason_and_rule_has_its_sentence():
    assert set(REASONS) == EVERY_REASON | UNMEASURED
    assert set(RULES) == RULE
    assert all(said.words for said in REASONS.values())


def test_a_reason_to_remove_has_sentences_of_one_and_of_several(shadows):
    stay = {one.why for one in verdicts(shadows) if one.is_kept} | {"no selection"}
    assert stay == {why for why, said in REASONS.items() if not said.one}
    assert stay == {why for why, said in REASONS.items() if not said.many}


@pytest.mark.parametrize(
    ("page", "field", "words"),
    [
        ("json", "selection.PARTY.why", EVERY_REASON),
        ("json", "selection.PARTY.rule", RULE),
        ("estimator", "why", EVERY_REASON | UNMEASURED - {"not revealed"}),
        ("machines", "why", UNMEASURED),
    ],
)
def test_documents_have_exactly_these_words(page, field, words):
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| `{re.escape(field)}` \|(.*)$", text, re.MULTILINE)
    assert set(re.findall(r'"([^"]+)"', row)) == words


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_made_up_records_have_only_fields_of_real_ones(make_record, task):
    is_scored = task != "regression"
    table = real.a_table(120, task)
    found = real.run(table, "less-vfl", [0], target=is_scored, **real.QUICK)
    made = make_record(task=task, target=0.9 if is_scored else None, importance=True)
    assert not real.strange_fields(made, found)
    assert made.header["config"].keys() <= found.header["config"].keys()
    stages = made.runs[0]["communication"]["by_stage"].keys()
    assert stages <= {*found.runs[0]["seconds"]}
