"""Numbers and words of a report, recomputed here from the record."""

import statistics
from typing import Any

import pytest

from lessvfl.report import page, sentences, tables
from lessvfl.run.record import RunRecord


def test_summary_rows_are_means_over_seeds(make_record):
    record = make_record()
    header, rows = tables.summary_rows([record])
    row = dict(zip(header, rows[0], strict=True))
    finals = [run["accuracy"]["final"] for run in record.runs]
    mean, std = statistics.fmean(finals), statistics.stdev(finals)
    assert row["test accuracy"] == f"{mean:.3f} ± {std:.3f}"
    removed = [100 * run["spurious"]["removed_share"] for run in record.runs]
    mean, std = statistics.fmean(removed), statistics.stdev(removed)
    assert row["spurious removed"] == f"{mean:.1f} % ± {std:.1f}"
    sent = [
        sum(run["communication"]["payload_bytes"].values()) / 1e6 for run in record.runs
    ]
    assert row["MB both ways"].startswith(f"{statistics.fmean(sent):.2f} ± ")
    assert row["seeds"] == "3"
    assert row["method"] == "less-vfl"
    assert row["data"] == "activity"
    assert row["profile"] == "official-code"
    assert row["rounds"] == str(record.runs[0]["communication"]["rounds"])
    assert row["seconds"] == "13.25 ± 1.00"


def test_summary_rows_are_rectangular_for_mixed_records(odd_records):
    header, rows = tables.summary_rows(list(odd_records.values()))
    assert {"test accuracy", "test R²"} <= set(header)
    assert all(len(row) == len(header) for row in rows)
    assert all(isinstance(cell, str) for row in rows for cell in row)


def test_summary_rows_of_regression_have_no_accuracy(odd_records):
    header, _ = tables.summary_rows([odd_records["regression"]])
    assert "test accuracy" not in header
    assert "test R²" in header


def test_unfinished_record_says_so_in_its_row(odd_records):
    _, rows = tables.summary_rows([odd_records["interrupted"]])
    assert rows[0][0] == "less-vfl (interrupted)"


@pytest.mark.parametrize(
    ("case", "start"),
    [
        ("plain", "Plain VFL used all 45 features at 3 parties; test accuracy 0."),
        ("one party", "LESS-VFL kept 1 of 1 feature at 1 party; test accuracy 0."),
        ("nothing kept", "LESS-VFL kept none of 45 features at 3 parties; "),
        ("no seed", "LESS-VFL: no seed has finished"),
    ],
)
def test_headline(odd_records, case, start):
    assert sentences.headline(odd_records[case]).startswith(start)


def test_headline_ends_with_cost_and_seeds(odd_records, make_record):
    sentence = sentences.headline(odd_records["ordinary"])
    assert sentence.endswith(" MB sent (mean of 3 seeds)")
    assert "R²" in sentences.headline(odd_records["regression"])
    assert "no test score" in sentences.headline(odd_records["no test rows"])
    private = make_record(n_seeds=1)
    private.runs[0] |= {"features": None, "communication": None}
    assert sentences.headline(private).startswith("LESS-VFL with 3 parties; test acc")
    assert "sent" not in sentences.headline(private)
    assert tables.method_title("mine") == "mine"


def test_planted_columns_are_told_by_name_and_party():
    assert tables.is_planted("a.b", "spurious_a.b_0")
    assert not tables.is_planted("a.b", "spurious_axb_0")
    assert not tables.is_planted("a", "spurious_a_x")


def test_counts_split_real_from_planted():
    run = {
        "features": {
            "a": {"kept": ["x", "spurious_a_0"], "removed": ["spurious_a_1", "y", "z"]},
            "b": None,
        }
    }
    assert tables.feature_counts(run) == {"a": tables.FeatureCounts(1, 1, 2, 1)}
    assert tables.mean_total([run]) == tables.FeatureCounts(1, 1, 2, 1)
    assert tables.mean_total([{"features": {"b": None}}]) is None
    assert tables.value_at({"features": {}}, "features.*.*") is None


def test_feature_rows_count_seeds_of_the_party_that_held_it():
    runs: list[dict[str, Any]] = [
        {"features": {"a": {"kept": ["x"], "removed": ["y"]}},
         "importance": {"a": {"x": 2.0, "y": 0.0}}},
        {"features": {"a": {"kept": [], "removed": ["x"]},
                      "b": {"kept": ["y"], "removed": []}}},
    ]  # fmt: skip
    rows = {(r.party, r.feature): r for r in tables.feature_rows(runs)}
    assert (rows["a", "x"].n_kept, rows["a", "x"].n_runs) == (1, 2)
    assert [r.state for r in rows.values()] == ["some", "removed", "kept"]
    assert rows["a", "x"].importance == 2.0
    assert rows["b", "y"].importance is None


def test_partly_missing_numbers_say_of_how_many_seeds(make_record):
    record = make_record()
    record.runs[0]["accuracy"]["final"] = None
    record.runs[1]["accuracy"]["final"] = float("nan")
    assert tables.summary(record)["test accuracy"].endswith("(1 of 3 seeds)")


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1234.5, "size", "1,234"),
        (123.45, "size", "123.5"),
        (0.01234, "size", "0.012"),
        (1, "flag", "yes"),
        (0, "flag", "no"),
        (0.5, "share", "50.0 %"),
        (None, "count", "–"),
        (2.5, "count", "2.5"),
        (1234567, "count", "1,234,567"),
        (0.92134, "score", "0.9213"),
        (-1.8e100, "score", "-1.8e+100"),
    ],
)
def test_value_text(value, kind, text):
    assert tables.value_text(value, kind) == text


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ([0.91, 0.93], "score", "0.920 ± 0.014"),
        ([0.5, None], "share", "50.0 % (1 of 2 seeds)"),
        ([None], "score", "–"),
    ],
)
def test_spread_text(values, kind, text):
    assert tables.spread_text(tables.spread(values), kind) == text


def test_spread_leaves_out_seeds_without_a_number():
    assert tables.spread([1.0, 3.0, None]) == (2.0, 2**0.5, 2, 3)


def test_a_path_may_end_early():
    assert tables.at({"accuracy": {"final": 0.9}}, "accuracy", "final") == 0.9
    assert tables.at({"accuracy": None}, "accuracy", "final") is None
    assert tables.value_at({"accuracy": {"final": 0.9}}, "accuracy.final") == 0.9


def test_nouns_follow_their_count():
    assert tables.plural(1, "party", "parties") == "1 party"
    assert tables.plural(2.5, "seed") == "2.5 seeds"


def test_selection_in_words():
    how: dict[str, Any] = {"scores": dict.fromkeys("axy", 0.5), "rule": "elimination"}
    how |= {"shadow_share": 0.02, "false_share": 0.04, "pairs": [["x", "y", 3.0]]}
    assert sentences.selection_words("clinic", how, 3) == (
        "clinic keeps 3 of 3 features. Of the scrambled copies of its columns 2.0 % "
        "passed the same mark; about 0.1 of those kept may be useless. Features that "
        "add nothing to those kept were removed, too. x and y matter together."
    )
    assert sentences.selection_words(
        "clinic", how | {"false_share": None}, 3
    ).startswith(
        "clinic keeps 3 of 3 features. Of the scrambled copies of its columns 2.0 % "
        "passed the same mark; no estimate of how many of those kept may be useless. "
    )


def test_flags_average_to_a_share():
    assert tables.spread_text(tables.spread([1, 0]), "flag") == "50 %"


def test_remarks(odd_records):
    assert sentences.remarks(odd_records["empty party"]) == [
        "bank kept none of its features in 3 of 3 seeds."
    ]
    assert "no test rows" in sentences.remarks(odd_records["no test rows"])[0]
    assert sentences.remarks(odd_records["no seed"]) == []


def test_scores_that_do_not_exist_are_named_with_the_reason(make_record):
    record = make_record()
    assert sentences.undefined(record) == []
    why = "the test rows are all of one class"
    record.runs[0]["undefined"] = {"auc": why}
    said = f"Test AUC is not defined in 1 of 3 seeds: {why}."
    assert sentences.undefined(record) == [said]
    assert said in page(record)


def test_components_without_numbers_are_left_out():
    run = {"components": {"a": {"kept": None, "of": 4}, "b": {"kept": 1, "of": 4}}}
    assert tables.component_counts([run]) == {"b": [1, 4]}
    assert tables.value_at(run, "components.*.of") == 4
    assert tables.value_at({"components": None}, "components.*.kept") is None
    assert tables.value_at({}, "components.*.of") is None


def test_who_would_be_missed_is_a_mean_over_seeds_the_most_missed_first():
    runs = [
        {"seed": 0, "accuracy": {"final": 0.9},
         "without": {"bank": {"accuracy": 0.88}, "telco": {"accuracy": 0.6}}},
        {"seed": 1, "accuracy": {"final": 0.8},
         "without": {"bank": {"accuracy": 0.81}, "telco": {"accuracy": 0.7}}},
        {"seed": 2, "accuracy": {"final": 0.1}, "without": None},
    ]  # fmt: skip
    record = RunRecord({"data": {"n_classes": 2}}, runs, "complete")
    found = tables.missed(record)
    assert list(found) == ["telco", "bank"]
    assert found["telco"] == pytest.approx([0.65, 0.85])
    assert found["bank"] == pytest.approx([0.845, 0.85])


def test_without_test_rows_the_training_rows_say_who_would_be_missed():
    run = {
        "r2": {"final": None},
        "curve": [{"train_r2": 0.1}, {"train_r2": 0.7}],
        "without": {"bank": {"r2": 0.2}, "clinic": {"r2": None}},
    }
    record = RunRecord({"data": {"n_classes": 0}}, [run], "complete")
    assert tables.missed(record) == {"bank": [0.2, 0.7]}
    assert tables.missed(RunRecord({}, [{"seed": 0}], "complete")) == {}
