"""The page: whole, safe, and every number back to the record."""

import re
from typing import Any

import pytest
from tests.report.reader import Reader, read_whole
from tests.report.sides import party_record

from lessvfl import report
from lessvfl.errors import RecordError
from lessvfl.report import measures, sentences, tables
from lessvfl.report.page import NO_CURVE
from lessvfl.report.verdicts import NOT_NEEDED_SCOPE, reasons_by_party, verdicts

HOSTILE = '<script>alert("x")</script>'


def test_every_page_is_whole_and_refers_to_nothing_outside(odd_records, pages):
    for text in map(pages.__getitem__, odd_records):
        read_whole(text)


def test_policy_forbids_connections_and_names_the_script(pages):
    policy = next(
        attrs["content"]
        for tag, attrs in Reader(pages["ordinary"]).tags
        if tag == "meta" and "http-equiv" in attrs
    )
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy


def look_up(record, path):
    """Follow a path of the page by hand, `*` adding or counting what is below."""
    value: Any = {"runs": record.runs}
    names = path.split(".")
    for i, name in enumerate(names):
        if name == "*":
            parts = [look_up_in(v, names[i + 1 :]) for v in value.values()]
            return sum(parts)
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


def look_up_in(value, names):
    for i, name in enumerate(names):
        if name == "*":
            return sum(look_up_in(v, names[i + 1 :]) for v in value.values())
        value = value[name]
    return len(value) if isinstance(value, list) else value


@pytest.mark.parametrize("case", ["ordinary", "regression", "plain", "target missed"])
def test_every_number_of_every_seed_walks_back_to_the_record(odd_records, pages, case):
    record, n_cells = odd_records[case], 0
    kinds = {m.path: m.kind for m in measures.measures(record.runs)}
    for attrs, words in Reader(pages[case]).cells:
        if "data-path" not in attrs:
            continue
        n_cells += 1
        path = attrs["data-path"]
        truth = look_up(record, path)
        if truth is None:
            assert "data-value" not in attrs
            assert words == ["–"]
            continue
        assert attrs["data-value"] == repr(truth)
        kind = kinds[path.split(".", 2)[2]]
        assert words == [tables.value_text(truth, kind)]
    assert n_cells == 3 * len(kinds) > 60


def test_means_of_the_seed_table_walk_back_too(odd_records, pages):
    record = odd_records["ordinary"]
    means = {
        attrs["data-mean"]: "".join(words)
        for attrs, words in Reader(pages["ordinary"]).cells
        if "data-mean" in attrs
    }
    finals = [run["accuracy"]["final"] for run in record.runs]
    assert means["accuracy.final"].startswith(f"{sum(finals) / 3:.3f} ± ")
    assert means["seconds.total"] == "13.25 ± 1.00"


def test_every_feature_is_listed_once(odd_records, pages):
    record = odd_records["many parties"]
    rows = [a for tag, a in Reader(pages["many parties"]).tags if "data-state" in a]
    assert len(rows) == 32 * 62
    planted = [row for row in rows if row["data-kind"] == "planted"]
    assert len(planted) == record.runs[0]["spurious"]["planted"]


def test_every_feature_says_why_it_stayed_or_went(odd_records, pages):
    rows = Reader(pages["shadows"]).rows
    said = {(row[0], row[1]): row for attrs, row in rows if "data-state" in attrs}
    for one in verdicts(odd_records["shadows"]):
        assert {one.words, one.verdict} <= set(said[one.party, one.feature])
    assert f"Not needed: {NOT_NEEDED_SCOPE}." in Reader(pages["shadows"]).words


def recommended_rows(text):
    """Return the words of every row of the table of recommendations."""
    start = text.index('<table class="recommended">')
    table = text[start : text.index("</table>", start) + len("</table>")]
    return [words for _, words in Reader(table).rows[1:]]


def test_what_the_seeds_recommend_comes_first(odd_records, pages):
    record, text = odd_records["ordinary"], pages["ordinary"]
    rows = recommended_rows(text)
    assert [row[0] for row in rows] == list(record.consensus)
    reasons = reasons_by_party(record)
    for (party, count, names, why), one in zip(
        rows, record.consensus.values(), strict=True
    ):
        assert why == reasons[party]
        assert count == f"{len(one['recommended'])} of 15"
        words = [
            name + f" ({round(3 * one['share'][name])} of 3)" * (one["share"][name] < 1)
            for name in one["recommended"]
        ]
        assert names == ", ".join(words)
    assert "Kept in at least half of the 3 runs" in text
    assert text.index("Recommended features") < text.index("Every feature")


def test_who_would_be_missed_is_on_the_page(odd_records, pages):
    for case, words in (("ordinary", "Accuracy"), ("regression", "R²")):
        text = pages[case]
        start = text.index('<table class="missed">')
        table = text[start : text.index("</table>", start) + len("</table>")]
        (_, heads), *rows = Reader(table).rows
        assert heads == ["Party", f"{words} without it"]
        found = tables.missed(odd_records[case])
        assert [row[0] for _, row in rows] == list(found)
        assert [row[1] for _, row in rows] == [
            f"{without:.3f} instead of {whole:.3f}"
            + ", overstated 1.3 to 10 times where measured"
            * (round(whole - without, 3) > 0)
            for without, whole in found.values()
        ]
    assert "Who would be missed" in pages["no test rows"]
    assert "over the training rows; mean of 3 seeds." in pages["ordinary"]
    assert "mean of" not in "".join(Reader(pages["one seed"]).words)
    assert "Who would be missed" not in pages["no seed"]


def test_every_feature_says_in_how_many_runs_and_whether_recommended(
    odd_records, pages
):
    record = odd_records["ordinary"]
    n_marked = 0
    for attrs, words in Reader(pages["ordinary"]).rows:
        if "data-state" not in attrs:
            continue
        party, name, often = words[:3]
        n_kept = sum(name in run["features"][party]["kept"] for run in record.runs)
        assert often == f"{n_kept} of 3 runs"
        is_so = name in record.consensus[party]["recommended"]
        assert ("recommended" in words) == is_so == (n_kept >= 2)
        n_marked += is_so
    assert n_marked == sum(len(one["recommended"]) for one in record.consensus.values())


def test_one_run_recommends_what_it_kept_and_no_selection_nothing(odd_records, pages):
    rows = recommended_rows(pages["one seed"])
    for row, party in zip(
        rows, odd_records["one seed"].runs[0]["features"].values(), strict=True
    ):
        assert row[2] == ", ".join(party["kept"])
    assert "run more seeds to see how stable" in pages["one seed"]
    assert "|Recommended|Norm|" not in "|".join(Reader(pages["one seed"]).words)
    assert "Recommended features" not in pages["plain"]
    assert "Recommended features" not in pages["no seed"]


def test_long_lists_of_recommended_features_are_cut(pages, make_record):
    rows = recommended_rows(
        report.page(make_record(n_seeds=1, n_real=50, kept_share=1.0, n_planted=0))
    )
    assert all(row[2].endswith("_39 and 10 more") for row in rows)
    rows = recommended_rows(pages["nothing kept"])
    assert {tuple(row[1:3]) for row in rows} == {("0 of 15", "none")}


def test_strings_of_the_record_are_escaped(pages):
    text = pages["odd names"]
    assert "<script>alert" not in text
    assert [tag for tag, _ in Reader(text).tags].count("script") == 1
    assert HOSTILE in "".join(Reader(text).words)
    assert "$x_1$ cost" in text


def test_banner_only_where_not_complete(pages):
    assert 'class="banner"' not in pages["ordinary"]
    assert "This run is not complete: interrupted." in pages["interrupted"]
    assert "failed. Numbers are of 0 finished seeds. Loss was NaN." in pages["no seed"]


def test_notes_and_settings_are_shown(pages):
    words = "|".join(Reader(pages["ordinary"]).words)
    assert "The official code was followed." in words
    assert "|lam_party|0.1|" in words
    assert "|version of torch|2.6.0|" in words
    assert "|hidden|64|" in words


def test_cards_say_target_and_cost(pages):
    words = "|".join(Reader(pages["ordinary"]).words)
    assert "|Target 0.9 reached|3 of 3|seeds, after 2.1 MB|" in words
    assert "|MB both ways|" in words
    missed = "|".join(Reader(pages["target missed"]).words)
    assert "|Target 0.999 reached|0 of 3|seeds|" in missed


def test_every_figure_has_words_for_it(pages):
    for tag, attrs in Reader(pages["ordinary"]).tags:
        if attrs.get("role") == "img":
            assert len(attrs["aria-label"]) > 20
        if tag == "svg":
            assert attrs["aria-hidden"] == "true"


def test_selection_by_shadows_is_told_in_words_and_figures(odd_records, pages):
    words = "|".join(Reader(pages["shadows"]).words)
    run = odd_records["shadows"].runs[0]
    for party, how in run["selection"].items():
        said = sentences.selection_words(
            party, how, len(run["features"][party]["kept"])
        )
        assert f"|{said}|" in words
    rules = {party: how["rule"] for party, how in run["selection"].items()}
    assert rules == dict.fromkeys(("bank", "insurer", "hospital"), "elimination")
    said = "Features that add nothing to those kept were removed, too."
    assert words.count(said) == 2  # the insurer kept nothing
    assert words.count("no estimate of how many of those kept may be useless.") == 1
    assert "an estimate: scrambled copies of a column stand for useless ones" in words
    assert "bank_00 and bank_01 matter together." in words
    assert 'class="card scores"' in pages["shadows"]
    assert 'class="card path"' in pages["shadows"]
    assert "How features were chosen" not in pages["ordinary"]


def test_the_automatic_method_and_its_stages_have_titles(pages):
    words = "|".join(Reader(pages["shadows"]).words)
    assert "|less-vfl-auto · profile default · on activity" in words
    assert "|less-vfl-auto kept " in words
    assert "|first training: bytes up|" in words
    assert "|parties select again: rounds|" in words


def test_scores_without_test_rows_are_of_training_and_say_so(pages):
    assert "Training accuracy (no test rows) against" in pages["no test rows"]
    assert "so nothing was scored." in pages["regression unscored"]
    assert 'class="card curve"' not in pages["regression unscored"]


def test_one_score_at_the_end_is_no_curve(make_record):
    record = make_record(n_seeds=2)
    assert 'class="card curve"' in report.page(record)
    for run in record.runs:
        run["curve"] = run["curve"][-1:]
    page = report.page(record)
    assert 'class="card curve"' not in page
    assert NO_CURVE in page


def test_the_scores_of_an_ensemble_lead(make_record):
    record = make_record(n_seeds=3)
    around = {"accuracy": {"low": 0.825, "high": 0.925}}
    scores = {"accuracy": 0.875, "balanced_accuracy": None}
    record.ensemble = {"seeds": [0, 1, 2], "scores": scores, "intervals": around}
    page = report.page(record)
    mean = tables.summary(record)["test accuracy"]
    words = " ".join(Reader(page).words)
    assert re.search(
        rf"Test accuracy\s+0\.875\s+95 %: 0\.825 to 0\.925; seeds: {re.escape(mean)}",
        words,
    )
    assert "test accuracy 0.875 of the ensemble of 3 seeds (95 %: 0.825" in words
    assert "The ensemble of 3 seeds, which predicts, has these scores." in words
    record.ensemble = None
    assert "which predicts" not in report.page(record)


def test_the_settings_say_what_split_the_rows(make_record):
    record = make_record(n_seeds=1)
    record.header["config"]["split"] = "stratified"
    assert "split|stratified" in "|".join(Reader(report.page(record)).words)
    record.header["data"]["split"] = "the latest by 'granted'"
    words = "|".join(Reader(report.page(record)).words)
    assert words.count("split|the latest by 'granted'") == 1
    assert "stratified" not in words
    party = party_record(record)
    party.header["config"]["split"] = "stratified"  # which is not told
    assert "stratified" not in report.page(party)


def test_what_is_not_recorded_is_left_out(make_record):
    record = make_record(n_seeds=1)
    record.runs[0] |= {
        "features": {"bank": None},
        "components": None,
        "communication": {"by_stage": None},
        "seconds": None,
    }
    record.consensus = {}
    record.header = {"method": "less-vfl", "data": {"name": "x", "n_classes": 2}}
    words = "|".join(Reader(report.page(record)).words)
    assert "Features kept and removed" not in words
    assert "Every feature" not in words
    assert "Settings" not in words
    record.runs[0] = {"seed": 0, "curve": []}
    assert "Key numbers" not in report.page(record)


def test_some_norms_may_be_missing(make_record):
    record = make_record(n_seeds=1, importance=True)
    del record.runs[0]["importance"]["bank"]
    words = "|".join(Reader(report.page(record)).words)
    assert "|Norm|" in words


def test_build_writes_the_report_of_a_folder(tmp_path, odd_records):
    record = odd_records["ordinary"]
    record.write(tmp_path)
    path = report.build(tmp_path)
    assert path == tmp_path / "report.html"
    assert path.read_text(encoding="utf-8") == report.page(record)
    names = ["features.csv", "record.jsonl", "report.html"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_build_stands_names_that_are_no_text(tmp_path, odd_records):
    odd_records["odd names"].write(tmp_path)
    assert report.build(tmp_path).read_text(encoding="utf-8")


def test_build_refuses_a_folder_without_record(tmp_path):
    with pytest.raises(RecordError, match="not a run folder"):
        report.build(tmp_path)
