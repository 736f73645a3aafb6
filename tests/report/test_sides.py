"""What each side of a run between machines reads: the operator's page, the server's."""

import csv
import io
from collections import Counter

import pytest
from tests.report.reader import Reader, read_whole
from tests.report.sides import party_record, server_record

from lessvfl import report
from lessvfl.errors import ConfigError
from lessvfl.report import bill, operator, parts, sentences, server, tables
from lessvfl.report.verdicts import (
    NOT_NEEDED_SCOPE,
    features_csv,
    reasons_by_party,
    verdicts,
)
from lessvfl.run.record import RunRecord
from lessvfl.run.verdicts import agreed


@pytest.fixture(scope="module")
def whole(odd_records):
    return odd_records["shadows"]


@pytest.fixture(scope="module")
def own(whole):
    return party_record(whole)


def words_of(record):
    return "|".join(Reader(report.page(record)).words)


def one_run(record, kept, removed, why=None, **unsure):
    """Return a party's record of one run with these features.

    `unsure` are correlations that features may have; of others it is next to nothing.
    """
    found = party_record(record)
    found.runs = found.runs[:1]
    (run,) = found.runs
    run["features"]["bank"] = {"kept": kept, "removed": removed}
    run["importance"] = {"bank": dict.fromkeys(kept, 0.25)}
    run.pop("selection", None)
    if why is not None:
        scores = dict.fromkeys(kept, 2.0) | dict.fromkeys(removed, 0.5)
        how = {"scores": scores, "why": why, "pairs": [], "false_share": None}
        at_most = dict.fromkeys([*kept, *removed], 0.02) | unsure
        how |= {"at_most": at_most, "signs": dict.fromkeys(at_most, 0.5)}
        power = {"auc": None, "correlation": 0.1, "finds": 0.97}
        run["selection"] = {"bank": {**how, "power": power}}
    found.consensus = agreed(found.runs)
    return found


# ------------------------------------------------------------------------- the verdicts


def test_every_feature_has_a_verdict_and_a_reason(own):
    found = verdicts(own)
    assert len(found) == 15
    for one in found:
        kept = [one.feature in run["features"]["bank"]["kept"] for run in own.runs]
        assert (one.n_kept, one.n_runs) == (sum(kept), 2)
        assert one.is_kept == (one.feature in own.consensus["bank"]["recommended"])
        strengths = [
            run["selection"]["bank"]["scores"][one.feature] for run in own.runs
        ]
        assert one.strength == pytest.approx(sum(strengths) / 2)
        whys = [
            run["selection"]["bank"]["why"][one.feature]
            for run, stays in zip(own.runs, kept, strict=True)
            if stays == one.is_kept
        ]
        assert one.why in whys
    assert {one.why for one in found} >= {"strength", "weak", "pair"}


def test_a_pair_names_its_partner_and_the_strength_of_both(own):
    pairs = [run["selection"]["bank"]["pairs"] for run in own.runs]
    (a, b, strength) = max((pair for (pair,) in pairs), key=lambda pair: pair[2])
    by_name = {one.feature: one for one in verdicts(own)}
    assert by_name[a].pair == (b, strength)
    assert by_name[a].decisive == strength
    alone = by_name[a].strength
    assert by_name[a].words == f"matters together with {b} (alone: {alone:.2f})"
    squared = by_name[a]._replace(pair=(a, 2.0))
    assert squared.words.startswith("matters squared")


def test_methods_without_shadows_speak_of_weights(make_record):
    record = make_record(method="less-vfl", n_seeds=1, importance=True)
    kept, gone = verdicts(record)[0], verdicts(record)[14]
    assert kept.is_kept > gone.is_kept
    assert kept.why == gone.why == "group lasso"
    assert kept.strength is None
    assert kept.words == f"the group lasso kept its weights (norm {kept.norm:.3f})"
    assert gone.words == "the group lasso set its weights to zero"
    plain = verdicts(make_record(method="plain", n_seeds=1))
    assert {one.words for one in plain} == {"the method removes nothing"}


def test_a_server_does_not_make_up_why_a_party_removed_a_feature(whole):
    told = verdicts(server_record(whole, {"bank": "features"}))
    assert {one.party for one in told} == {"bank"}
    assert {one.why for one in told} == {"not revealed"}
    assert {one.words for one in told} == {"its party knows why, and the verdict"}
    assert {one.verdict for one in told if not one.n_kept} == {"removed"}


def test_the_list_of_features_as_csv(own):
    rows = list(csv.DictReader(io.StringIO(features_csv(own))))
    for row, one in zip(rows, verdicts(own), strict=True):
        assert list(row) == "party feature verdict kept why strength pair share".split()
        assert row["verdict"] == one.verdict
        assert (row["party"], row["feature"]) == ("bank", one.feature)
        assert row["kept"] == ("true" if one.is_kept else "false")
        assert row["why"] == one.why
        assert float(row["strength"]) == pytest.approx(one.strength, rel=1e-3)
        assert row["pair"] == (one.pair[0] if one.pair else "")
        assert float(row["share"]) == one.n_kept / 2


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=HYPERLINK(A1)", "'=HYPERLINK(A1)"),
        ("+1+cmd", "'+1+cmd"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        (" =1", "' =1"),
        ("\t=1", "' =1"),
        ("\r=1", "' =1"),
        ("b\r\n=1", "b  =1"),
    ],
)
def test_no_spreadsheet_computes_a_name_of_another_party(whole, name, cell):
    """Names come from parties; a cell that begins so would be a formula."""
    text = features_csv(one_run(whole, ["a", name], []))
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["feature"] for row in rows] == ["a", cell]


def test_numbers_below_zero_stay_numbers():
    line = parts.csv_text([(-1.5, "-1.5", "-1e3", "a=b", None)])
    assert line == "-1.5,-1.5,-1e3,a=b,\n"


def test_the_csv_goes_where_a_record_names_no_feature_any_more(tmp_path, whole):
    whole.write(tmp_path)
    report.build(tmp_path)
    lines = (tmp_path / "features.csv").read_text().splitlines()
    assert len(lines) == 1 + 45
    server_record(whole).write(tmp_path)
    report.build(tmp_path)
    assert not (tmp_path / "features.csv").exists()


def test_a_servers_own_columns_have_one_verdict(tmp_path, whole):
    """It is told no evidence; the verdict of its party is in the folder of that."""
    server_record(whole, {"bank": "features"}).write(tmp_path)
    party_record(whole).write(tmp_path / "own")
    for folder in (tmp_path, tmp_path / "own"):
        report.build(folder)
    found = [
        {
            row["feature"]: row["verdict"]
            for row in csv.DictReader(
                (folder / "features.csv").read_text().splitlines()
            )
        }
        for folder in (tmp_path, tmp_path / "own")
    ]
    assert found[0] == found[1]
    assert set(found[0].values()) == {"needed", "not needed", "undecided"}
    assert "not revealed" not in (tmp_path / "features.csv").read_text()
    gone = [
        one
        for one in verdicts(RunRecord.read(tmp_path))
        if (one.verdict, one.is_kept) == ("undecided", False)
    ]
    page = "".join(read_whole((tmp_path / "report.html").read_text()).words)
    assert f"({len(gone)} of them undecided)" in page
    other = party_record(whole, run="1" * 32)  # of an earlier run in that folder
    other.write(tmp_path / "own")
    assert "not needed" not in features_csv(RunRecord.read(tmp_path))


# ------------------------------------------------------------------ the operator's page


def test_the_page_of_a_party_says_what_its_noise_spent(own):
    assert "<h2>Privacy</h2>" not in report.page(own)
    spent = {
        "mechanism": "noise on embeddings",
        "epsilon": 3.0,
        "delta": 1e-5,
        "each": 1.5,
        "releases": 4,
        "adjacency": "what one row is computed from is another row's",
        "covers": "what a row's own numbers tell of it",
    }
    for run in own.runs:
        run["privacy"] = {"labels": None, "columns": {"bank": spent}, "unpriced": []}
        run["privacy"]["all_runs"] = 3.0
    page = report.page(own)
    assert "All runs so far" not in page
    assert "<h2>Privacy</h2>" in page
    assert "This run spends epsilon 3 (delta 1e-05) of every row at bank." in page
    assert "2.7 for 1, 20 for 3" in page
    own.runs[0]["privacy"]["all_runs"] = 4.5
    page = report.page(own)
    assert "All runs so far have spent epsilon 4.5 of every row at bank." in page


@pytest.mark.parametrize(
    ("kept", "removed", "why", "sentence"),
    [
        (
            ["a"],
            ["b"],
            {"a": "strength", "b": "weak"},
            "Not needed by this model: 1 of your 2 features (SCOPE): it is no stronger "
            "than chance beside those kept",
        ),
        (
            ["a"],
            ["b", "c"],
            {"a": "strength", "b": "weak", "c": "says nothing beside the others"},
            "Not needed by this model: 2 of your 3 features (SCOPE): 1 is no stronger "
            "than chance beside those kept and 1 adds nothing to those kept",
        ),
        (
            [],
            ["a", "b"],
            {"a": "chance", "b": "chance"},
            "Not needed by this model: both of your features (SCOPE): they are no "
            "stronger than chance",
        ),
        (
            ["a"],
            ["b"],
            {"a": "strength", "b": "most"},
            "The model needs 1 of your 2 features; 1 is undecided",
        ),
        (["a"], [], {"a": "strength"}, "Go on collecting your only feature: "),
        (["a", "b"], [], None, "Go on collecting both of your features: "),
        (
            ["a"],
            ["b", "c"],
            None,
            "Removed from this model: 2 of your 3 features (nothing bounds their "
            "effects): they are below what the method keeps",
        ),
    ],
)
def test_the_first_sentence_says_what_may_go_and_why(
    whole, kept, removed, why, sentence
):
    record = one_run(whole, kept, removed, why)
    said = operator.headline(record)
    assert said.startswith(sentence.replace("SCOPE", NOT_NEEDED_SCOPE))
    assert said in words_of(record)


def test_what_nothing_is_known_of_is_undecided(whole):
    """Few rows or positives: a column that was removed may be real."""
    chance, weak = (dict.fromkeys("abc", word) for word in ("chance", "weak"))
    none = one_run(whole, [], ["a", "b", "c"], chance, a=0.3, b=0.2, c=0.11)
    assert operator.headline(none) == "Undecided: all your 3 features"
    some = one_run(whole, [], ["a", "b", "c"], chance, a=0.3)
    said = operator.headline(some)
    assert said.startswith("Not needed by this model: 2 of your 3 features (little")
    assert said.endswith("; 1 is undecided")
    kept = one_run(whole, ["a"], ["b", "c"], weak | {"a": "strength"}, b=0.3, c=0.3)
    assert operator.headline(kept) == (
        "The model needs 1 of your 3 features; 2 are undecided"
    )
    for record in (none, some, kept):
        page = report.page(record)
        assert "stop collecting" not in page
        assert "found here in 97 of 100 runs" in page
        if not record.runs[0]["features"]["bank"]["kept"]:
            assert "beside those kept" not in page


def test_a_choice_that_is_not_stable_is_undecided(own):
    found = verdicts(own)
    for one in found:
        if one.n_kept == 1:  # of two runs
            assert one.verdict == "undecided"
        elif one.n_kept == 0:
            assert one.at_most is not None
            assert one.signs is not None
            (little,) = {
                run["selection"]["bank"]["power"]["correlation"] for run in own.runs
            }
            is_little = one.at_most <= little and one.signs < 1
            assert one.verdict == ("not needed" if is_little else "undecided")
        else:
            assert one.verdict == "needed"
    assert {one.verdict for one in found} == {"needed", "not needed", "undecided"}


def test_what_no_more_were_allowed_of_is_undecided_and_not_for_want_of_data(whole):
    """It is stronger than chance; a larger limit may keep it."""
    why = {"a": "strength", "b": "most", "c": "weak"}
    record = one_run(whole, ["a"], ["b", "c"], why, c=0.3)
    by_name = {one.feature: one for one in verdicts(record)}
    assert by_name["b"].verdict == by_name["c"].verdict == "undecided"
    assert by_name["b"].words == "stronger than chance, but no more were allowed"
    assert reasons_by_party(record) == {
        "bank": "1 is stronger than chance, but no more were allowed and 1 is no "
        "stronger than chance beside those kept (all of them undecided)"
    }
    advice = "a larger 'most' keeps more."
    assert advice in " ".join(operator.cautions(record))
    other = one_run(whole, ["a"], ["c"], why, c=0.3)
    assert advice not in " ".join(operator.cautions(other))


def test_plain_vfl_removes_nothing(make_record):
    record = party_record(make_record(method="plain"))
    assert operator.headline(record) == (
        "Plain VFL removes nothing: it used all your 15 features"
    )


def test_the_lists_come_first_with_reason_and_strength(own):
    text = report.page(own)
    reader = read_whole(text)
    for one in verdicts(own):
        assert [row for _, row in reader.rows if row[:2] == [one.feature, one.words]]
    counts = Counter(one.verdict for one in verdicts(own))
    assert f"Not needed by this model ({counts['not needed']})" in text
    assert f"Undecided ({counts['undecided']})" in text
    order = ["Not needed by this model", "Undecided", "Needed", "What was revealed"]
    places = [text.index(f"<h2>{title}") for title in order]
    assert places == sorted(places)
    assert "planted" not in "".join(reader.words)


def test_cautions_are_those_of_the_run(own, whole):
    for run in own.runs:
        run["selection"]["bank"]["false_share"] = 0.1
    said = " ".join(operator.cautions(own))
    n_kept = sum(one.is_kept for one in verdicts(own))
    assert f"About 10 % of what was kept may be useless ({n_kept / 10:.1f} of" in said
    assert "at least half of the runs" in said
    assert "This comes from one run" not in said
    one = one_run(whole, [], ["a"], {"a": "chance"})
    said = " ".join(operator.cautions(one))
    assert "the model does without your columns" in said
    assert "may be useless" not in said
    assert "This comes from one run" in said


def test_what_was_sent_by_stage(own):
    rows = {row.title: row for row in operator.sent(own)}
    bills = [run["communication"]["by_stage"] for run in own.runs]
    assert rows["training"].up == sum(bill["train"]["up"] for bill in bills)
    assert rows["evaluation"].up == sum(bill["evaluate"]["up"] for bill in bills)
    total = rows.pop("all stages")
    assert total.up == sum(row.up for row in rows.values())
    assert total.down == sum(row.down for row in rows.values())
    assert "|all stages|" in words_of(own)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({}, "of the selection: nothing"),
        ({"reveal": "counts"}, "how many features were kept and removed in every run"),
        ({"reveal": "features"}, "the names of the features kept and removed"),
        ({"align": "psi"}, "by the alignment: which of its own ids you hold"),
        ({"align": "plain"}, "by the alignment: a digest of each of your ids"),
        ({"align": "none"}, "whether your ids are its own"),
        ({}, "embeddings of 7,352 training rows, 16 numbers a row, 4 bits a number"),
        ({"config": {}}, "16 numbers a row, 32 bits a number, 40.0 kB in 2 runs"),
        ({"config": {"dtype": "float64"}}, "a row, 64 bits a number"),
        ({}, "of 7,352 training rows and 2,947 test rows, 32 bits a number, 1.4 MB"),
    ],
)
def test_what_was_revealed_to_the_server(whole, header, told):
    record = party_record(whole, **header)
    for run in record.runs:
        run["components"]["bank"] = {"kept": 16, "of": 16}
    found = operator.revealed(record)
    assert any(told in what for whom, what in found if whom == "the server")
    assert found[-1][0] == "other parties"
    assert found[-1][1].startswith("nothing from you")
    assert told in words_of(record)


def test_fewer_components_in_the_end_and_a_party_that_falls_silent(whole):
    record = party_record(whole)
    for n_kept, run in zip((3, 2), record.runs, strict=True):
        run["components"]["bank"] = {"kept": n_kept, "of": 16}
    told = " ".join(what for _, what in operator.revealed(record))
    assert "16 numbers a row at first and 2 to 3 in the end" in told
    assert "that none of your features was kept" not in told
    run["features"]["bank"]["kept"] = []
    told = " ".join(what for _, what in operator.revealed(record))
    assert "that none of your features was kept in 1 of 2 runs" in told
    assert "of the selection: nothing else" in told


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"bits": 8}, "of 7,352 training rows, 8 bits a number, 3.0 kB in 2 runs"),
        ({"bits": 8, "server_rows": 512}, "of 512 training rows, 8 bits a number"),
    ],
)
def test_the_choice_of_components_has_rows_and_bits_of_its_own(whole, config, told):
    record = party_record(whole, config=config)
    for run in record.runs:
        run["bill"].append(run["bill"][0] | {"stage": "embed", "payload_bytes": 1500})
    found = [what for _, what in operator.revealed(record)]
    assert any(f"to choose components: embeddings {told}" in what for what in found)


def test_a_party_without_a_finished_seed_has_a_page(own):
    record = party_record(own)
    record.runs, record.status = [], "failed"
    assert "no seed has finished" in words_of(record)
    assert operator.revealed(record) == []


def test_names_of_columns_are_escaped(whole):
    hostile = '<script>alert("x")</script>'
    record = one_run(whole, [hostile], ["b"], {hostile: "strength", "b": "weak"})
    assert "<script>alert" not in report.page(record)


# -------------------------------------------------------------------- the server's page


def test_a_server_shows_score_curve_bill_and_components(whole):
    record = server_record(whole)
    text = report.page(record)
    words = "|".join(read_whole(text).words)
    assert sentences.headline(record).startswith(
        "less-vfl-auto with 3 parties; test acc"
    )
    assert "|Test accuracy|" in words
    assert "|bytes of frames, up|" in words
    assert "|bytes sent twice after a break|" in words
    for name in ("curve", "components", "bytes"):
        assert f'class="card {name}"' in text
    assert "bank_00" not in text
    assert "Features kept and removed" not in words
    assert "lanted" not in words
    assert "n_features" not in words


def test_a_server_is_told_by_nobody_what_was_kept_and_knows_who_kept_nothing(whole):
    page = report.page(server_record(whole))
    assert "insurer kept none of its features in 2 of 2 seeds." in page
    assert "bank kept none" not in page
    rows = {row["party"]: row for row in server.party_rows(server_record(whole))}
    assert rows["insurer"]["features"] == "none"
    assert rows["bank"]["features"] == server.UNTOLD


def test_the_whole_bill_has_every_part_and_its_share_of_payload(whole):
    record = server_record(whole)
    assert (bill.rows(record), bill.words(record)) == ([], "")
    assert "Whole bill" not in report.page(record)
    for n, run in enumerate(record.runs):
        paid = {"train": {"up": 900, "down": 100}, "pretrain": {"up": 500, "down": 500}}
        both = {"up": 1000 * n, "down": 0}
        run["communication"] |= {
            "by_stage": paid,
            "frames": {"align": both, "train": {"up": 1500, "down": 700}},
            "socket": {"align": both, "train": {"up": 2000, "down": 600}},
        }
    assert len(record.runs) == 2  # and 1000 bytes of alignment, once
    align = "1.0 kB"
    assert [list(row.values()) for row in bill.rows(record)] == [
        ["alignment", "0 bytes", align, align, ""],
        ["training", "4.0 kB", "4.4 kB", "5.2 kB", "1.30"],
        ["all", "4.0 kB", "5.4 kB", "6.2 kB", "1.55"],
    ]
    assert bill.words(record) == (
        "At the socket, both ways, all 2 runs together: 6.2 kB (alignment 1.0 kB, "
        "training 5.2 kB); training 1.30 x its payload"
    )
    page = report.page(record)
    assert "Whole bill" in page
    assert "all parties that dial the server, all 2 runs together. Frames" in page


def test_what_stays_with_the_server_is_not_missing_at_its_socket(whole):
    """Its own columns have a payload, and no wire."""
    record = server_record(whole)
    record.header["own"] = "insurer"
    record.runs = record.runs[:1]
    (run,) = record.runs
    frames = {"train": {"up": 1500, "down": 700}}
    paid = {"train": {"up": 2000, "down": 2000}}
    lines = [("bank", 1000), ("insurer", 3000)]
    names = ("party", "direction", "stage", "payload_bytes")
    run["bill"] = [
        dict(zip(names, (party, "up", "train", n_bytes), strict=True))
        for party, n_bytes in lines
    ]
    run["communication"] |= {"by_stage": paid, "frames": frames, "socket": frames}
    assert bill.words(record) == (
        "At the socket, both ways: 2.2 kB (training 2.2 kB); training 2.20 x its "
        "payload"
    )
    assert "since the server was started again" not in report.page(record)


def test_a_bill_without_the_bytes_of_a_killed_server_says_so(whole):
    record = server_record(whole)
    for run in record.runs:
        frames = {"train": {"up": 300, "down": 500}}
        paid = {"train": {"up": 500, "down": 500}}
        run["communication"] |= {"by_stage": paid, "frames": frames, "socket": frames}
    assert bill.words(record) == (
        "At the socket, both ways, all 2 runs together: 1.6 kB (training 1.6 kB); only "
        "what passed since the server was started again"
    )
    assert {row["socket / payload"] for row in bill.rows(record)} == {""}
    assert "since the server was started again" in report.page(record)


def test_a_resumed_run_that_trained_no_more_has_a_whole_bill(whole):
    record = server_record(whole)
    for run in record.runs:
        frames = {"train": {"up": 1500, "down": 500}}
        run["communication"] |= {"by_stage": {}, "frames": frames, "socket": frames}
    assert bill.words(record) == (
        "At the socket, both ways, all 2 runs together: 4.0 kB (training 4.0 kB)"
    )
    assert "Whole bill" in report.page(record)


def test_a_server_knows_of_each_party_what_it_reveals(whole):
    reveals = {"bank": "features", "insurer": "counts"}
    record = server_record(whole, reveals)
    rows = {row["party"]: row for row in server.party_rows(record)}
    kept = [len(run["features"]["insurer"]["kept"]) for run in whole.runs]
    assert rows["insurer"]["features"] == f"{sum(kept) / 2:g} of 15"
    assert rows["bank"]["features"].endswith(" of 15")
    assert rows["hospital"]["features"] == "not revealed"
    assert (rows["bank"]["sent"], rows["bank"]["received"]) == ("20.0 kB", "20.0 kB")
    counts = tables.component_counts(whole.runs)["hospital"]
    components = "{:g} of {:g}".format(*counts)
    assert rows["hospital"]["components"] == components
    text = report.page(record)
    assert f"|hospital|{components}|not revealed|" in "|".join(Reader(text).words)
    assert "bank_0" in text
    assert "insu_0" not in text


def test_a_server_says_what_parties_would_find_by_its_rows(whole):
    record = server_record(whole)
    record.header["method"] = "less-vfl-auto"
    power = {"auc": 0.55, "correlation": 0.039, "finds": 0.42}
    record.header["data"] = {**record.header["data"], "power": power}
    said = server.power_words(record)
    assert said.startswith(
        "A column that has an AUC of 0.55 alone, where no other explains the labels, "
        "would be found at a party in 42 of 100 runs."
    )
    assert said.endswith(
        "That is at most, by the number of rows alone; each party's page has its own "
        "figure."
    )
    assert said in " ".join(read_whole(report.page(record)).words)
    record.header["data"]["power"] = None
    assert server.power_words(record) == ""


def test_a_run_that_scored_nothing_does_not_blame_the_rows(whole):
    record = server_record(whole)
    for run in record.runs:
        run |= {"accuracy": None, "r2": None, "curve": []}
    assert "Nothing was scored." in sentences.remarks(record)


# ------------------------------------------------------------------------------ compare


def test_runs_of_one_party_are_compared_feature_by_feature(tmp_path, whole, own):
    own.write(tmp_path / "one")
    other = one_run(whole, ["bank_00"], ["new"], {"bank_00": "strength", "new": "weak"})
    other.write(tmp_path / "two")
    folders = [tmp_path / "one", tmp_path / "two"]
    text = report.compare(folders, tmp_path / "out.html").read_text("utf-8")
    reader = read_whole(text)
    assert "2 runs of bank on columns" in text
    rows = [row for _, row in reader.rows]
    assert ["bank_00", "kept", "kept"] in rows
    assert ["new", "–", "removed"] in rows
    assert "<figure" not in text


def test_a_server_is_compared_with_whole_runs(tmp_path, whole):
    whole.write(tmp_path / "all")
    server_record(whole).write(tmp_path / "server")
    folders = [tmp_path / "all", tmp_path / "server"]
    text = report.compare(folders, tmp_path / "out.html").read_text("utf-8")
    assert text.count("<figure") == 3  # nothing is known of the server's features


@pytest.mark.parametrize("other", ["insurer", "server"])
def test_a_party_is_compared_with_nobody_else(tmp_path, whole, own, other):
    own.write(tmp_path / "bank")
    is_server = other == "server"
    record = server_record(whole) if is_server else party_record(whole, other)
    record.write(tmp_path / other)
    who = "all parties" if is_server else "party 'insurer'"
    sentence = f"Got 'bank' of party 'bank' and '{other}' of {who}."
    with pytest.raises(ConfigError, match=sentence):
        report.compare([tmp_path / "bank", tmp_path / other], tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


# ------------------------------------------------------------------ nothing was planted


def test_nothing_is_said_of_planting_where_there_is_none(tmp_path, make_record):
    record = make_record(n_planted=0)
    assert "lanted" not in words_of(record)
    assert 'id="by-kind"' not in report.page(record)
    record.write(tmp_path / "run")
    text = report.compare([tmp_path / "run"], tmp_path / "out.html").read_text("utf-8")
    assert "lanted" not in "".join(Reader(text).words)
    header, _ = tables.summary_rows([record])
    assert "spurious removed" not in header
