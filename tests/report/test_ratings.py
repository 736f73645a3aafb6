"""How a party's features were rated: the card of its page, and its file."""

import copy
import csv
import io

import pytest
from tests.report.reader import Reader
from tests.report.sides import rated_record, server_record

from lessvfl import report
from lessvfl.report import ratings
from lessvfl.report.ratings import rating_card, ratings_csv


@pytest.fixture
def rated(odd_records):
    return rated_record(odd_records["shadows"])


def card_of(record):
    card = rating_card(record)
    assert card is not None
    return card


def words_of(record):
    return "|".join(Reader(report.page(record)).words)


def test_the_page_has_every_bin_of_a_feature(rated):
    card = card_of(rated)
    assert card["title"] == "Information value of your features"
    assert card["sentences"][0].startswith("Of seed 0. No message tells these numbers")
    first = card["features"][0]
    assert (first["feature"], first["score"], first["is_kept"]) == (
        "age",
        "0.412",
        True,
    )
    assert first["bins"][0] == {
        "bin": "[18.0, 25.0)",
        "rows": "1,200",
        "class 0": "1,000",
        "class 1": "200",
        "WOE": "-0.251",
        "part": "0.012",
    }
    told = words_of(rated)
    assert "[18.0, 25.0)" in told
    assert "missing" in told
    assert "About 12 % of what was kept may be useless" in told


def test_of_more_classes_every_one_has_a_column(odd_records):
    record = rated_record(odd_records["shadows"], n_classes=3)
    line = card_of(record)["features"][0]["bins"][0]
    assert [name for name in line if name.startswith("WOE")] == [
        "WOE 0",
        "WOE 1",
        "WOE 2",
    ]


def test_rates_without_bins_are_a_list(odd_records):
    record = rated_record(odd_records["shadows"], bins=False)
    assert "age|kept|0.412" in words_of(record)
    rows = list(csv.DictReader(io.StringIO(ratings_csv(record))))
    assert list(rows[0]) == ["seed", "feature", "kept", "information_value"]
    assert rows[0]["information_value"] == "0.4123"


def test_the_file_has_a_line_for_every_bin_of_every_run(rated):
    rows = list(csv.DictReader(io.StringIO(ratings_csv(rated))))
    heads = "seed feature kept information_value bin rows class_0 class_1 woe part"
    assert list(rows[0]) == heads.split()
    expected = [
        (str(run["seed"]), one["feature"], line["bin"], str(line["rows"]))
        for run in rated.runs
        for one in run["ratings"]["bank"]["features"]
        for line in one["bins"]
    ]
    found = [(r["seed"], r["feature"], r["bin"], r["rows"]) for r in rows]
    assert found == expected
    assert {r["kept"] for r in rows} == {"true", "false"}
    assert float(rows[0]["woe"]) == pytest.approx(-0.2513)


def test_no_spreadsheet_computes_the_name_of_a_category(odd_records):
    record = rated_record(odd_records["shadows"])
    bins = record.runs[0]["ratings"]["bank"]["features"][1]["bins"]
    bins[0]["bin"] = "=HYPERLINK(A1)"
    rows = list(csv.DictReader(io.StringIO(ratings_csv(record))))
    assert "'=HYPERLINK(A1)" in [row["bin"] for row in rows]


def test_what_the_page_has_no_room_for_is_in_the_file(rated, monkeypatch):
    monkeypatch.setattr(ratings, "MOST_FEATURES", 1)
    monkeypatch.setattr(ratings, "MOST_BINS", 1)
    card = card_of(rated)
    assert [one["feature"] for one in card["features"]] == ["age"]
    assert card["features"][0]["n_more"] == 1
    assert card["sentences"][-1].endswith("has all of them, also of 1 more feature.")
    assert "1 more in the file." in words_of(rated)


def test_files_are_beside_the_page_of_their_owner_alone(tmp_path, rated, odd_records):
    rated.write(tmp_path)
    report.build(tmp_path)
    assert (tmp_path / "ratings.csv").read_text() == ratings_csv(rated)
    others = server_record(odd_records["shadows"])
    others.write(tmp_path)
    report.build(tmp_path)
    assert not (tmp_path / "ratings.csv").exists()
    whole = copy.deepcopy(odd_records["shadows"])
    assert rating_card(whole) is None
    assert ratings_csv(whole) == ""


def test_a_rival_has_a_rule_of_its_own(rated):
    rated.header["method"] = "iv-filter"
    for run in rated.runs:
        del run["selection"]
    told = words_of(rated)
    assert "kept by the method's own rule" in told
    assert "below what the method keeps" in told
    assert "group lasso" not in told
    line = {"direction": "up", "stage": "select_features", "kind": "answer"}
    rated.runs[0]["bill"].append({"party": "bank", **line, "payload_bytes": 2000})
    told = words_of(rated)
    assert "to the method's selection: answers in its own protocol, 2.0 kB" in told
    assert "of the selection: nothing else" in told
