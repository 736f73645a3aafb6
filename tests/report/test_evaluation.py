"""The page of an evaluation: whole, with the figures that its rows have."""

from __future__ import annotations

import pytest
from tests.report.evaluations import evaluations
from tests.report.reader import read_whole

from lessvfl.report.evaluation import evaluation_page

FIGURES = {
    "all": {"roc", "precision", "lift", "calibration", "cost"},
    "rate": {"roc", "precision", "lift", "calibration"},
    "plain": {"roc", "precision", "lift", "calibration"},
    "one class": {"calibration"},
    "classes": {"calibration"},
    "numbers": {"calibration"},
}


@pytest.fixture(scope="module")
def cases():
    return evaluations()


@pytest.mark.parametrize("case", FIGURES)
def test_a_page_is_whole_and_has_its_figures(cases, case):
    found = cases[case]
    page = read_whole(evaluation_page(found))
    drawn = {
        attrs["class"].removeprefix("card ")
        for tag, attrs in page.tags
        if tag == "figure"
    }
    assert drawn == FIGURES[case]
    assert [tag for tag, _ in page.tags].count("script") == 1
    words = " ".join(page.words)
    for sentence in (*found["notes"], *found["warnings"]):
        assert sentence in words


def test_numbers_of_the_page_are_those_of_the_evaluation(cases):
    found = cases["all"]
    page = read_whole(evaluation_page(found))
    cells = ["".join(text) for _, text in page.cells]
    cut = found["cut_off"]
    for value in (cut["tp"], cut["fp"], cut["fn"]):
        assert f"{value:,}" in cells
    assert f"{cut['recall']:.3f}" in cells
    assert f"{found['recalibration']['after']['brier']:.3f}" in cells
    for line in found["groups"]["groups"]:
        assert {line["group"], f"{line['auc']:.3f}"} <= set(cells)
    assert f"{found['lift'][0]['lift']:.2f}" in cells
    words = " ".join(page.words)
    assert f"at a cost of about {cut['cost']:,g} instead of" in words
