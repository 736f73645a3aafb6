"""Tables as they come end right, or in one sentence; a share of them in every test run.

All of them: ``pytest -m slow tests/corpus``, or ``python -m tests.corpus``, which
prints the summary.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.corpus import metamorphic
from tests.corpus.judge import Case, cases_of, judge
from tests.corpus.metamorphic import Agreement, Change, jaccard
from tests.corpus.tables import KINDS, WAYS, Spec, all_specs

# Known misses of ``less-vfl-auto``, all of them of power on 300 rows: a category whose
# columns two parties hold is half at each, and neither half passes the mark; copied
# rows weigh more, so that 20 people say less beside 150 others.
MISSED = (
    *(f"nested_across/classes/{seed}" for seed in (1, 2, 3)),
    *(f"one_hot_across/classes/{seed}" for seed in (1, 2)),
    "oversampled/classes/0",
)
BY_COMMAND = ("no_data_marks", "few_rows", "odd_names")


def share() -> list[Case]:
    """Return a case of every sixth kind, fitted, and some runs of the command line.

    A fit takes half a second, a run with its page four times as long.
    """
    first = {name: Spec(name, kind.tasks[-1], 0) for name, kind in KINDS.items()}
    fits = [Case(spec, "less-vfl-auto", "estimator") for spec in first.values()]
    return fits[1::6] + [cases_of(first[kind])[0] for kind in BY_COMMAND]


@pytest.mark.parametrize("case", share(), ids=lambda case: case.name)
def test_some_tables_end_right_or_in_one_sentence(case):
    found = judge(case)
    assert not found.is_wrong, f"{found.verdict}: {found.why}"


@pytest.mark.slow
@pytest.mark.parametrize("spec", list(all_specs()), ids=lambda spec: spec.name)
def test_all_tables_end_right_or_in_one_sentence(spec):
    found = {case.name: judge(case) for case in cases_of(spec)}
    wrong = {
        name: f"{one.verdict}: {one.why}" for name, one in found.items() if one.is_wrong
    }
    if spec.name in MISSED and all("of its twin" in why for why in wrong.values()):
        pytest.xfail(str(wrong))
    assert not wrong


@pytest.mark.slow
def test_what_says_nothing_new_changes_no_selection():
    found = list(metamorphic.agreements())
    wrong = [(one.change.name, one.mean) for one in found if one.is_violated]
    assert not wrong


def test_some_that_say_nothing_new_change_no_selection():
    table = Spec("clean", "numbers", 0).make()
    before = metamorphic.selected(table)
    for change in metamorphic.CHANGES:
        changed = change.apply(table, np.random.default_rng(1))
        index = jaccard(before, metamorphic.selected(changed))
        assert not Agreement(change, (index,)).is_violated, change.name


# ------------------------------------------------------------------- the corpus itself


def test_the_corpus_is_large_and_sees_every_method_in_every_way():
    specs = list(all_specs())
    assert len({spec.name for spec in specs}) == len(specs) >= 300
    seen = {(case.method, case.way) for spec in specs for case in cases_of(spec)}
    assert len(seen) == 5 * len(WAYS)


def test_a_planted_feature_that_is_lost_is_seen(monkeypatch):
    """As is a table that must be refused, and is not."""
    spec = Spec("far_from_zero", "numbers", 0)
    case = Case(spec, "less-vfl-auto", "estimator")
    assert judge(case).verdict == "right"
    table = spec.make()
    shuffled = table.X.assign(a0=table.X["a0"].to_numpy()[::-1])
    lost = replace(table, X=shuffled)
    monkeypatch.setattr(Spec, "make", lambda self: lost if self is spec else table)
    assert judge(case).verdict == "nonsense"
    lost = replace(table, must_refuse=True)
    assert judge(case).why == "it must be refused"


def test_a_change_of_one_bit_of_the_selection_is_seen():
    exact = Change("x", lambda table, rng: table, moves=False)
    assert Agreement(exact, (1.0, 0.99)).is_violated
    drawn = Change("x", lambda table, rng: table, moves=True)
    assert not Agreement(drawn, (1.0, 0.8)).is_violated
    assert Agreement(drawn, (1.0, 0.7)).is_violated
    assert jaccard(frozenset(), frozenset()) == 1
