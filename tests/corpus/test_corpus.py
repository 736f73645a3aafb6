"""Tables as they come end right, or in one sentence; a share of them in every test run.

All of them: ``pytest -m slow tests/corpus``, or ``python -m tests.corpus``, which
prints the summary.
"""

from __future__ import annotations

import pytest
from tests.corpus import metamorphic
from tests.corpus.judge import Case, cases_of, judge
from tests.corpus.metamorphic import Agreement, Change, jaccard
from tests.corpus.tables import KINDS, WAYS, Spec, all_specs

FIRST = ("clean", "one_hot_across", "nested_within", "few_rows", "odd_names")


def share() -> list[Case]:
    """Return one case of every kind, the estimator's, and some runs of the CLI.

    A fit takes half a second, a run with its page four times as long.
    """
    cases = [case for kind in KINDS for case in cases_of(Spec(kind, *_first(kind)))]
    fits = {case.spec.kind: case for case in cases if case.way == "estimator"}
    runs = {case.spec.kind: case for case in cases if case.way == "run"}
    return [*fits.values()][::2] + [runs[kind] for kind in FIRST]


def _first(kind: str) -> tuple:
    return KINDS[kind].tasks[-1], 0


@pytest.mark.parametrize("case", share(), ids=lambda case: case.name)
def test_some_tables_end_right_or_in_one_sentence(case):
    found = judge(case)
    assert not found.is_wrong, f"{found.verdict}: {found.why}"


@pytest.mark.slow
@pytest.mark.parametrize("spec", all_specs(), ids=lambda spec: spec.name)
def test_all_tables_end_right_or_in_one_sentence(spec):
    found = {case.name: judge(case) for case in cases_of(spec)}
    wrong = {name: f"{one.verdict}: {one.why}" for name, one in found.items()}
    assert not any(one.is_wrong for one in found.values()), wrong


@pytest.mark.slow
def test_what_says_nothing_new_changes_no_selection():
    found = list(metamorphic.agreements())
    wrong = [(one.change.name, one.mean) for one in found if one.is_violated]
    assert not wrong


@pytest.mark.parametrize("change", metamorphic.CHANGES, ids=lambda one: one.name)
def test_some_that_say_nothing_new_change_no_selection(change):
    table = Spec("clean", "numbers", 0).make()
    changed = change.apply(table, metamorphic.np.random.default_rng(1))
    both = metamorphic.selected(table), metamorphic.selected(changed)
    assert not Agreement(change, (jaccard(*both),)).is_violated


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
    lost = metamorphic.replace(table, X=shuffled)
    monkeypatch.setattr(Spec, "make", lambda self: lost if self is spec else table)
    assert judge(case).verdict == "nonsense"
    lost = metamorphic.replace(table, must_refuse=True)
    assert judge(case).why == "it must be refused"


def test_a_change_of_one_bit_of_the_selection_is_seen():
    exact = Change("x", lambda table, rng: table, moves=False)
    assert Agreement(exact, (1.0, 0.99)).is_violated
    drawn = Change("x", lambda table, rng: table, moves=True)
    assert not Agreement(drawn, (1.0, 0.8)).is_violated
    assert Agreement(drawn, (1.0, 0.7)).is_violated
    assert jaccard(frozenset(), frozenset()) == 1
