"""What server and party say at their end, on a terminal and in a log."""

import dataclasses
import re

import pytest
from tests.report import real
from tests.report.sides import party_record, server_record

from lessvfl.cli import app, results
from lessvfl.errors import LessVFLWarning
from lessvfl.report import intervals, operator, sentences, tables
from lessvfl.report.verdicts import NOT_NEEDED_SCOPE, reasons_by_party, verdicts
from lessvfl.terms import bytes_text


@pytest.fixture(scope="module")
def whole():
    return real.shadows()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")


def test_a_run_says_on_the_terminal_why_the_others_went(whole, capsys, terminal):
    results.print_recommended(whole)
    text = " ".join(capsys.readouterr().out.split())  # lines are broken by words
    said = reasons_by_party(whole)
    assert set(said) == {"bank", "insurer", "hospital"}
    assert "no stronger than chance beside those kept" in said["bank"]
    for party, why in said.items():
        assert re.search(rf"{party}\b[^:]* removed [^:]*: {re.escape(why)}\.", text)
    assert text.count(" removed ") == len(set(said.values()))


def test_paper_mib_are_explained_wherever_they_stand(whole, capsys):
    results.print_summary([whole])
    assert sentences.PAPER_MIB in " ".join(capsys.readouterr().out.split())


def test_a_party_says_in_a_log_what_may_go(whole, capsys):
    record = party_record(whole)
    results.tell_party(record)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{operator.headline(record)}."
    order = ("not needed", "undecided", "needed")
    for line, verdict in zip(lines[1:4], order, strict=True):
        own = [one.feature for one in verdicts(record) if one.verdict == verdict]
        more = f" and {len(own) - 8} more" * (len(own) > 8)
        scope = f" ({NOT_NEEDED_SCOPE})" * (verdict == "not needed")
        assert line == f"{verdict.capitalize()}{scope}: {', '.join(own[:8])}{more}"
    assert lines[4].startswith("Sent to the server: ")
    (row,) = [row for row in operator.sent(record) if row.title == "evaluation"]
    assert f"evaluation {bytes_text(row.up)}" in lines[4]
    assert len(lines) == 5


def test_a_party_says_on_a_terminal_why_and_what_was_revealed(
    whole, capsys, terminal, monkeypatch
):
    monkeypatch.setattr(results, "MOST_ROWS", 2)
    record = party_record(whole)
    results.tell_party(record)
    text = capsys.readouterr().out
    first = verdicts(record)[0]
    assert f"{first.feature} " in text
    assert first.words in text
    assert f" {first.strength:.2f} " in text
    n_needed = sum(one.verdict == "needed" for one in verdicts(record))
    assert f"and {n_needed - 2} more" in text
    assert "of the selection: nothing" in text
    assert "nothing from you; the server tells them your name" in text


def test_names_cannot_do_anything_to_the_terminal(whole, capsys):
    record = party_record(whole)
    for run in record.runs:
        run["features"]["bank"] = {"kept": ["a\x1b[2Jb"], "removed": []}
        del run["selection"]
    results.tell_party(record)
    assert "\x1b[2J" not in capsys.readouterr().out


def test_a_server_says_in_a_log_what_came_out(whole, capsys):
    record = server_record(whole)
    results.tell_server(record)
    final = record.runs[1]["accuracy"]["final"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("940 rows of all sides: ")
    assert lines[1].startswith("less-vfl-auto with 3 parties; test accuracy 0.")
    assert lines[3].startswith(f"seed 1: accuracy {final:.4f}")
    without, score = tables.missed(record)["bank"]
    adds = intervals.of_loss(record, "bank")
    assert adds is not None
    is_sure = ", overstated" * (adds.low > 0)
    said = f"without bank: accuracy {without:.3f} instead of {score:.3f}{is_sure}"
    assert any(line.startswith(said) for line in lines[4:])
    assert adds.mean == pytest.approx(score - without)
    assert f"bank adds {adds.mean:.3f} ({adds.words}){is_sure}" in lines[4:]
    assert lines[-1].startswith("Intervals (95 %) are of one run")
    assert "insurer kept none of its features in 2 of 2 seeds." in lines
    assert len(lines) == 12


def test_an_ensemble_comes_before_its_seeds(whole, capsys):
    record = server_record(whole)
    scores = {"accuracy": 0.875, "balanced_accuracy": 0.75}
    around = {"accuracy": {"low": 0.825, "high": 0.925}}
    record.ensemble = {"seeds": [0, 1], "scores": scores, "intervals": around}
    results.tell_server(record)
    lines = capsys.readouterr().out.splitlines()
    mean = sum(run["accuracy"]["final"] for run in record.runs) / 2
    assert lines[1].startswith(
        "less-vfl-auto with 3 parties; test accuracy 0.875 of the ensemble of 2 seeds "
        f"(95 %: 0.825 to 0.925; mean of the seeds: {mean:.3f}; "
    )
    assert lines[1].endswith("(but for the score, mean of 2 seeds)")
    assert lines[2] == (
        "The ensemble of 2 seeds: accuracy 0.875 (95 %: 0.825 to 0.925), balanced "
        "accuracy 0.750."
    )
    assert lines[3].startswith("seed 0: accuracy")
    assert lines[-1].startswith("Intervals (95 %) are of the ensemble (of what a party")


def test_an_ensemble_leads_the_numbers_of_a_terminal(whole, capsys, terminal):
    whole = dataclasses.replace(
        whole, ensemble={"seeds": [0, 1], "scores": {"accuracy": 0.875}}
    )
    results.print_summary([whole])
    text = " ".join(capsys.readouterr().out.split())
    mean = tables.summary(whole)["test accuracy"]
    assert f"accuracy │ 0.875; seeds: {mean}" in text


def test_a_server_says_on_a_terminal_what_it_knows_of_parties(whole, capsys, terminal):
    results.tell_server(server_record(whole, {"bank": "counts"}))
    text = capsys.readouterr().out
    assert "test accuracy" in text
    assert " of 15 " in text
    assert text.count("not revealed") == 1
    assert re.search(r"insurer *│[^│]*│ none ", text)
    assert "spurious" not in text


SENTENCE = "Not the others of clinic and insurer: they are no stronger than chance."


def test_lines_break_between_words_on_a_terminal_alone(capsys, monkeypatch):
    results.say(SENTENCE)
    results.say(SENTENCE, err=True)
    assert capsys.readouterr() == (f"{SENTENCE}\n",) * 2
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    results.say(SENTENCE)
    results.say("Report: /a/path/that-is/longer-than/the-terminal\x1b[2J", err=True)
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 30
    assert out.split() == SENTENCE.split()
    path = "/a/path/that-is/longer-than/the-terminal�[2J"
    assert err.splitlines() == ["Report:", path]  # a path stays whole


@pytest.mark.parametrize("columns", ["60", "100"])
def test_no_sentence_breaks_inside_a_word(whole, capsys, monkeypatch, columns):
    record = party_record(whole)

    def tell():
        results.print_recommended(whole)
        results.tell_party(record)
        results.tell_server(server_record(whole))
        plain = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
        return set(re.findall(r"[\w.']+", plain))

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    known = tell()
    monkeypatch.setenv("COLUMNS", columns)
    assert tell() <= known


def test_the_headline_is_whole_in_a_pipe(whole, capsys):
    results.print_summary([whole])
    assert capsys.readouterr().out.splitlines()[0] == sentences.headline(whole)


def test_warnings_and_errors_break_between_words(run_cli, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    said = run_cli("run", "absent.csv").err
    app._show_each_once()(LessVFLWarning(SENTENCE), LessVFLWarning)
    for text in (said, capsys.readouterr().err):
        assert 1 < len(text.splitlines())
        assert max(map(len, text.splitlines())) <= 40
