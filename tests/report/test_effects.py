"""Curves of effects on a party's page."""

from __future__ import annotations

import pytest
from tests.report.conftest import fake_record
from tests.report.reader import Reader
from tests.report.sides import party_record

from lessvfl import report
from lessvfl.report.effects import MOST_CURVES, effect_card

AGE = {
    "feature": "age",
    "column": "age",
    "kind": "numeric",
    "values": [20.0, 30.0, 60.0],
    "effects": [-1.0, 0.0, 3.0],
}
TOWN = {
    "feature": "home",
    "column": "town",
    "kind": "categorical",
    "values": ["Ulm", "<b>Bonn"],
    "effects": [0.25, -0.125],
}
SMOKES = {**AGE, "column": "smokes", "values": [False, True], "effects": [0.0, 0.0]}
FOUND = {"seeds": [4], "rows": 100, "slopes": [1.0], "curves": [TOWN, SMOKES, AGE]}


def test_the_largest_effect_is_first_and_a_line_follows_it():
    card = effect_card(FOUND)
    assert card is not None
    assert [one["title"] for one in card["curves"]] == [
        "age: from -1 to +3",
        "town of home: from -0.125 to +0.25",
        "smokes of age: from +0 to +0",
    ]
    line = card["curves"][0]
    assert line["points"] == "4.0,68.0 62.0,52.0 236.0,4.0"
    assert line["zero"] == "52.0"
    assert line["lines"][0] == {"value": "20", "effect": "-1"}
    assert not card["curves"][1]["points"]
    assert [one["value"] for one in card["curves"][2]["lines"]] == ["no", "yes"]
    assert "network of seed 4 by" in card["sentences"][1]
    assert "100 rows so far" in card["sentences"][1]
    card = effect_card({**FOUND, "seeds": [0, 4]})
    assert card is not None
    assert "network of seeds 0, 4 by" in card["sentences"][1]


def test_no_curves_are_no_card():
    assert effect_card({}) is None
    assert "How the output moves" not in report.page(party_record(fake_record()))


def test_the_page_shows_curves_and_escapes_what_they_say():
    page = report.page(party_record(fake_record()), None, FOUND)
    assert page.count("<polyline") == 1
    assert "<b>Bonn" not in page
    assert "<b>Bonn" in "|".join(Reader(page).words)


@pytest.mark.parametrize(
    ("n_curves", "n_more"), [(MOST_CURVES, 0), (MOST_CURVES + 2, 2)]
)
def test_very_many_curves_are_in_the_file(n_curves, n_more):
    card = effect_card({**FOUND, "curves": [AGE] * n_curves})
    assert card is not None
    assert (len(card["curves"]), card["n_more"]) == (MOST_CURVES, n_more)
