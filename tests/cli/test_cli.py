"""The command line: its commands, warnings, progress, run folders and endings."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import pytest
from tests.conftest import until
from tests.report.conftest import fake_record

import lessvfl
from lessvfl import data, methods
from lessvfl.cli import app, start
from lessvfl.errors import LessVFLWarning
from lessvfl.report import pixels
from lessvfl.report.finding import finding
from lessvfl.run import profiles
from lessvfl.run.bundles import BUNDLES, Bundle
from lessvfl.run.folder import load
from lessvfl.run.record import RunRecord

SHORT = {
    "train_epochs": 2,
    "party_epochs": 3,
    "server_epochs": 3,
    "batch_size": 100,
    "lam_party": 0.1,
    "lam_server": 0.01,
    "pretrain_epochs": 1,
}


def run_of(data="breast-cancer", *options, **settings):
    """Return a short command line of the method that most can be said about."""
    pairs = [f"{key}={value}" for key, value in (SHORT | settings).items()]
    sets = [word for pair in pairs for word in ("--set", pair)]
    return ["run", data, "--method", "less-vfl", *options, *sets]


# ------------------------------------------------------------------- small commands


def test_version(run_cli):
    result = run_cli("--version")
    assert (result.code, result.out) == (0, f"lessvfl {lessvfl.__version__}\n")


def test_a_bundle_of_defences_is_said_and_can_be_changed(
    run_cli, tmp_path, monkeypatch
):
    mine = Bundle({"label_epsilon": 2.0, "gradient_defence": "marvell"}, "It costs.")
    monkeypatch.setattr("lessvfl.run.bundles.BUNDLES", {"mine": mine})
    out = tmp_path / "run"
    asked = ("--set", "train_epochs=1", "--set", "label_epsilon=3", "--quiet")
    where = ("--privacy", "mine", "--out", str(out))
    result = run_cli("run", "breast-cancer", *asked, *where)
    assert result.code == 0, result.err
    assert "--privacy mine sets label_epsilon=2.0, gradient_defence=marvell" in (
        " ".join(result.err.split())
    )
    assert "It costs." in result.err
    assert "privacy: this run would spend epsilon 3 (delta 0) of every label" in (
        result.err
    )
    assert "privacy: marvell has no epsilon" in result.err
    assert "Privacy: this run spends epsilon 3 (delta 0) of every label." in result.out
    record = RunRecord.read(out)
    assert record.header["privacy_bundle"] == "mine"
    assert record.header["config"]["label_epsilon"] == 3.0
    assert record.runs[0]["privacy"]["unpriced"] == ["marvell"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h2>Privacy</h2>" in page
    assert "Chosen by --privacy mine; --set changes it: label_epsilon=3.0." in page
    assert "the label of one row is another" in page
    again = run_cli("run", "--config", str(out / "run.yaml"), "--quiet")
    assert "privacy: marvell has no epsilon" in again.err


def test_what_changes_a_bundle_is_said(run_cli):
    asked = ("--set", "train_epochs=1", "--set", "label_epsilon=none", "--quiet")
    noise = ("--set", "embedding_epsilon=2")
    result = run_cli("run", "breast-cancer", "--privacy", "strict", *asked, *noise)
    assert result.code == 0, result.err
    said = "--set changes it: label_epsilon=none, embedding_epsilon=2.0; what was"
    assert said in " ".join(result.err.split())


def test_a_bundle_that_was_set_to_nothing_is_on_the_page(run_cli, tmp_path):
    out = tmp_path / "run"
    asked = ("--set", "train_epochs=1", "--set", "label_epsilon=none", "--quiet")
    where = ("--privacy", "label-bound", "--out", str(out))
    assert run_cli("run", "breast-cancer", *asked, *where).code == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    said = "Chosen by --privacy label-bound; --set changes it: label_epsilon=none."
    assert f"{said} Labels have no epsilon. Columns have no epsilon." in page


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ("gradient_noise=2", "The 'gradient_noise' setting changes nothing without"),
        ("noise_at=first-layer", "The 'noise_at' setting changes nothing without"),
        ("embedding_noise=1 embedding_epsilon=2", "'embedding_epsilon' at none"),
        ("embedding_clip=2 embedding_epsilon=2", ""),
        ("gradient_defence=marvell gradient_noise=2", ""),
    ],
)
def test_noise_that_is_not_there_has_no_settings(run_cli, pairs, sentence):
    given = [word for pair in pairs.split() for word in ("--set", pair)]
    short = ("--set", "train_epochs=1", "--quiet")
    result = run_cli("run", "breast-cancer", "--parties", "2", *short, *given)
    assert result.code == 0, result.err
    said = " ".join(result.err.split())
    assert sentence in said
    assert ("changes nothing" in said) == bool(sentence)


@pytest.mark.parametrize("name", ["none", "standard"])
def test_an_unknown_bundle_is_refused(run_cli, name):
    result = run_cli("run", "breast-cancer", "--privacy", name, "--quiet")
    assert result.code == 2
    assert f"Unknown privacy '{name}'. Known: label-bound, strict." in result.err


def test_a_plain_run_says_nothing_of_privacy(run_cli):
    result = run_cli("run", "breast-cancer", "--set", "train_epochs=1", "--quiet")
    assert "rivacy" not in result.out + result.err


@pytest.mark.parametrize("command", [[], ["run"], ["data"], ["report"], ["compare"]])
def test_help(run_cli, command):
    result = run_cli(*command, "--help")
    assert result.code == 0
    assert "Usage: lessvfl" in result.out


def test_methods(run_cli):
    result = run_cli("methods")
    assert result.code == 0
    known, _, defences = result.out.partition("\n\nDefences")
    names = [line.split(":")[0] for line in known.splitlines()]
    assert "gradient_defence=marvell: " in defences
    assert all(f"--privacy {name} sets " in defences for name in BUNDLES)
    assert names[:3] == ["less-vfl-auto", "less-vfl", "local-lasso"]
    assert names == list(methods.METHODS)


def listed(result):
    """Return the settings that a method's list shows, as text."""
    assert result.code == 0, result.err
    heads = [line.partition(": ")[0] for line in result.out.splitlines()]
    return dict(head.split(" = ") for head in heads)


@pytest.mark.parametrize(
    ("method", "profile"),
    [
        (method.name, profile)
        for method in methods.METHODS.values()
        for profile in method.profiles
    ],
)
def test_the_settings_of_a_method_are_those_of_a_run(run_cli, method, profile):
    asked = ("methods", method, "--profile", profile, "--data", "breast-cancer")
    used = profiles.resolve(method, profile, data.load("breast-cancer")).flat()
    assert listed(run_cli(*asked)) == {name: str(used[name]) for name in used}


def test_published_settings_differ_by_data_set(run_cli):
    asked = ("methods", "less-vfl", "--profile", "official-code")
    result = run_cli(*asked)
    elsewhere, images = listed(result), listed(run_cli(*asked, "--data", "digits"))
    assert elsewhere["scale"] == "standardize (differs by data, see --data)"
    assert images["scale"] == "global"
    assert images["lam_party"] == "0.1"  # of Phishing
    assert "[a float in [0, inf)]" in result.out
    lines = [line for line in result.out.splitlines() if "see --data" in line]
    assert "lam_party" in {line.split()[0] for line in lines}


def test_settings_that_differ_by_data_say_so(run_cli):
    result = run_cli("methods", "less-vfl-auto")
    lines = [line for line in result.out.splitlines() if "differs by data" in line]
    assert {line.split()[0] for line in lines} == {
        *("embedding_size", "components_per_column"),
        *("batch_size", "learning_rate", "train_epochs", "bits"),
    }
    named = run_cli("methods", "less-vfl-auto", "--data", "digits")
    assert "differs by data" not in named.out


def test_list_of_data(run_cli):
    result = run_cli("data", "list")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == list(data.names())


def test_show_data(run_cli):
    result = run_cli("data", "show", "digits")
    assert result.code == 0
    assert "rows: 1797\n" in result.out


def test_summary_on_standard_output(run_cli):
    result = run_cli(*run_of("breast-cancer", "--spurious", "0.5", "--seeds", "0,1"))
    assert result.code == 0
    assert "LESS-VFL kept 44 of 44 features at 4 parties" in result.out
    assert "test accuracy" in result.out
    assert "paper MiB" in result.out


def printed_cells(out):
    """Return the rows of the table that a run prints last, wrapped cells joined."""
    rows: list[list[str]] = []
    for line in out[out.index("Kept in at least half of the 4 runs") :].splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if cells and cells[0]:
            rows.append(cells)
        elif cells and rows:
            rows[-1] = [
                f"{a} {b}".strip() for a, b in zip(rows[-1], cells, strict=True)
            ]
    return rows[1:]


def test_a_run_of_several_seeds_ends_with_one_answer(run_cli, tmp_path):
    """Features recommended by party, how often where not always, long lists cut.

    And beside them the accuracy without the party.
    """
    more = ("--seeds", "0,1,2,3", "--parties", "2", "--spurious", "0.3", "-q")
    result = run_cli(
        *run_of("breast-cancer", *more, "--out", tmp_path, lam_party=2, hidden=8)
    )
    assert result.code == 0, result.err
    record = RunRecord.read(tmp_path)
    consensus = record.consensus
    rows = printed_cells(result.out)
    assert [row[0] for row in rows] == list(consensus) == ["party0", "party1"]
    for (party, count, missed, _, names), one in zip(
        rows, consensus.values(), strict=True
    ):
        without = [run["without"][party]["accuracy"] for run in record.runs]
        assert missed == f"{sum(without) / 4:.3f}"
        assert count == f"{len(one['recommended'])} of 19"
        shown = [
            name + f" ({round(4 * one['share'][name])} of 4)" * (one["share"][name] < 1)
            for name in one["recommended"][:8]
        ]
        n_more = len(one["recommended"]) - 8
        rest = f" and {n_more} more" if n_more > 0 else ""
        assert names == ", ".join(shown) + rest
    assert any("of 4)" in names for *_, names in rows)
    assert any("more" in names for *_, names in rows)
    assert result.out.splitlines()[-1].startswith("Report: ")


def test_notes_stand_beside_the_numbers(run_cli):
    result = run_cli(*run_of("breast-cancer", "--profile", "paper", "-q"))
    assert "Note: 2 of 30 columns do not divide evenly" in result.out


@contextlib.contextmanager
def stderr_of_processes(path):
    """Write what processes of this one have to complain about to a file."""
    before = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


def test_demo(run_cli, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    resolve = profiles.resolve

    def short(method, profile, dataset, overrides=None):
        fast = {"pairs": False, "refit_epochs": 1, "second_look": 0, "shadows": 20}
        if method == "plain":  # published, or with the transport of the other
            fast = {"train_epochs": 4} | (overrides or {})
            return resolve(method, profile, dataset, fast)
        assert overrides is None  # nothing chosen by hand
        return resolve(method, profile, dataset, {"train_epochs": 2} | fast)

    monkeypatch.setattr(profiles, "resolve", short)
    whole, rows = data.load("digits"), slice(1025)  # as many as four bits are for
    few = replace(whole, X=whole.X.take(rows), y=whole.y[rows])
    monkeypatch.setattr(data, "load", lambda name: few)
    with stderr_of_processes(tmp_path / "err"):
        result = run_cli("demo", "--out", tmp_path / "demo", "--quiet")
    assert result.code == 0
    # No warning about what the demo itself chose.
    assert result.err + (tmp_path / "err").read_text() == ""
    assert "Note:" not in result.out
    page, records = (tmp_path / "demo" / "report.html").read_text(), {}
    names = {
        "less-vfl-auto": "less-vfl-auto",
        "plain": "Plain VFL",
        "plain-published": "Plain VFL, published",
    }
    for name, title in names.items():
        assert title in page
        record = RunRecord.read(tmp_path / "demo" / name)
        assert [run["seed"] for run in record.runs] == [0, 1, 2]
        assert (tmp_path / "demo" / name / "report.html").is_file()
        assert f'href="{name}/report.html"' in page
        records[title] = record
    ours, same, published = (record.transport for record in records.values())
    assert same.items() <= ours.items()
    assert published["bits"] == 32
    said = finding(records)
    assert said.startswith("less-vfl-auto found ")
    assert " bytes than plain VFL, published (4 bits a value instead of 32, " in said
    assert f"{said}." in " ".join(result.out.split())
    assert f"<h1>{said}</h1>" in page
    assert "Pixels kept and removed by less-vfl-auto" in page
    assert "same value in all training rows" in page
    lines = list(pixels.text_lines(records["less-vfl-auto"].runs))
    assert "\n".join(lines) in result.out


# ------------------------------------------------------------------------- warnings


def test_a_small_table_is_not_told_off_for_the_default_batch(run_cli, tmp_path):
    table = tmp_path / "small.csv"
    rows = "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(60))
    table.write_text(f"a,b,label\n{rows}")
    short = ("--parties", "2", "--set", "train_epochs=1")
    result = run_cli("run", table, "--method", "plain", *short)
    assert result.code == 0
    assert result.warnings == []


def test_nothing_removed(run_cli):
    result = run_cli(*run_of("breast-cancer", "--seeds", "0,1,2", lam_party=0))
    assert result.code == 0
    assert result.warnings == [
        "Selection removed nothing (seeds 0, 1, 2): a larger 'lam_party' may be needed."
    ]


@pytest.mark.parametrize("method", ["less-vfl", "local-lasso", "group-lasso"])
def test_everything_removed(run_cli, method):
    command = ["run", "breast-cancer", "--method", method, "--json"]
    epochs = "joint_epochs=3" if method == "group-lasso" else "party_epochs=3"
    for pair in (epochs, "train_epochs=2", "batch_size=100", "lam_party=1e6"):
        command += ["--set", pair]
    result = run_cli(*command)
    assert result.code == 0
    assert result.warnings == [
        "Selection removed everything (seed 0): a smaller 'lam_party' may be needed."
    ]
    (run,) = result.json["runs"]
    assert not any(party["kept"] for party in run["features"].values())
    assert run["accuracy"]["final"] is not None
    assert "train" not in run["communication"]["by_stage"]  # nobody to talk to


@pytest.mark.parametrize(
    ("method", "other"),
    [
        ("vertical-boost", "; 'shrinkage' is that of its trees"),
        ("vertical-forest", ""),
        ("auto-boost", None),
    ],
)
def test_a_learning_rate_that_changes_nothing(run_cli, method, other):
    command = ["run", "breast-cancer", "--method", method, "--parties", "2", "--json"]
    for pair in ("trees=1", "learning_rate=0.02", "train_epochs=1"):
        command += ["--set", pair]
    result = run_cli(*command)
    assert result.code == 0
    said = [one for one in result.warnings if "'learning_rate'" in one]
    assert said == [
        f"The 'learning_rate' setting is of networks and changes nothing with method "
        f"{method}{other}."
    ] * (other is not None)


def test_each_warning_is_shown_once(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = app._show_each_once()
        for text in ("one", "two", "one", "two\nlines"):
            warnings.warn(text, LessVFLWarning, stacklevel=1)
        warnings.warn("of others", UserWarning, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == [
        "lessvfl: warning: one",
        "lessvfl: warning: two",
        "lessvfl: warning: two lines",
    ]


def test_warnings_of_python_are_as_before(run_cli):
    before = warnings.showwarning
    run_cli("methods")
    assert warnings.showwarning is before


# ------------------------------------------------------------------------- progress


def test_plain_lines_where_there_is_no_terminal(run_cli):
    result = run_cli(*run_of(lam_party=1))
    *lines, last = result.err.splitlines()
    assert [re.sub(r"\d\.\d{3}$", "_", line) for line in lines] == [
        "pre-training: 1 epoch",
        "pre-training: done, test accuracy _",
        "embeddings",
        "server selects components: 3 epochs",
        "parties select features: 3 epochs",
        "parties select features: done, test accuracy _",
        "training: 2 epochs",
        "training: done, test accuracy _",
    ]
    assert re.fullmatch(r"done in \d+ s", last)


def test_seconds_count_from_the_start_of_the_process(run_cli, monkeypatch):
    monkeypatch.setattr(start, "_began", time.monotonic() - 1000)
    result = run_cli(*run_of(lam_party=1))
    assert re.fullmatch(r"done in 16 min \d+ s", result.err.splitlines()[-1])


def test_seeds_that_run_one_after_the_other_have_their_number(run_cli):
    short = ("--set", "train_epochs=1", "--set", "shadows=20")
    result = run_cli("run", "breast-cancer", "--seeds", "5,3", *short)
    lines = [line for line in result.err.splitlines() if "pre-training: " in line]
    assert [line.split(", ")[0] for line in lines] == [
        *["seed 5 (1 of 2)"] * 2,
        *["seed 3 (2 of 2)"] * 2,
    ]


def test_quiet_shows_no_progress(run_cli):
    assert run_cli(*run_of("breast-cancer", "--quiet", lam_party=1)).err == ""


def test_progress_on_a_terminal(forked_python):
    """A view with a bar, warnings on lines of their own, JSON untouched."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lessvfl.cli", "--json"]
    command[3:3] = run_of(lam_party=0, train_epochs=150)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # the terminal is closed
                break
            if not chunk:
                break
            seen += chunk
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
    os.close(ours)
    text = seen.decode()
    assert process.returncode == 0
    assert found["method"] == "less-vfl"
    assert "less-vfl on breast-cancer" in text
    assert "━" in text
    assert "\x1b[2K" in text  # it is erased
    assert "on the wire" not in text
    assert re.search(r"kB up, [\d.]+ kB down · test accuracy 0", text)
    assert "lessvfl: warning: Selection removed nothing (seed 0)" in text


# ---------------------------------------------------------------------- run folders


def test_run_folder(run_cli, tmp_path):
    """Its files; the record says what JSON says, and the report is rebuilt of it."""
    folder = tmp_path / "a folder" / "with spaces"
    asked = ("--seeds", "0,1", "--spurious", "0.5", "--out", folder, "--json")
    result = run_cli(*run_of("breast-cancer", *asked))
    assert result.out.count("\n") == 1
    names = sorted(path.name for path in folder.iterdir())
    features, networks, *others = names
    assert features == "features.csv"
    assert others == ["record.jsonl", "report.html", "run.yaml"]
    assert networks.startswith("networks-")
    assert not list(folder.rglob("*.partial"))
    record = RunRecord.read(folder)
    assert record.to_json() == result.json
    assert record.status == "complete"
    assert [run["seed"] for run in record.runs] == [0, 1]
    assert record.header["networks"] == networks
    assert record.header["device"] == "cpu"
    page = folder / "report.html"
    text = page.read_text()
    for name in ("features.csv", "report.html"):
        (folder / name).unlink()
    result = run_cli("report", folder)
    assert (result.code, result.out) == (0, f"Report: {page}\n")
    assert page.read_text() == text
    (tmp_path / "a_file").touch()
    result = run_cli("compare", folder, "--out", tmp_path / "a_file" / "page.html")
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    assert line.startswith("lessvfl: ")
    assert "a_file" in line


def test_compare(run_cli, tmp_path):
    folders = [tmp_path / method for method in ("less-vfl", "plain")]
    for folder in folders:
        fake_record(method=folder.name, n_seeds=1).write(folder)
    page = tmp_path / "both pages.html"
    result = run_cli("compare", *folders, "--out", page)
    assert result.code == 0
    assert result.out.endswith(f"Report: {page}\n")
    assert re.search(r"accuracy +│ +\d\.\d+ .*│ +\d\.\d+", result.out)
    assert page.is_file()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission(run_cli, tmp_path):
    tmp_path.chmod(0o500)
    result = run_cli(*run_of("breast-cancer", "--out", tmp_path / "run"))
    tmp_path.chmod(0o700)
    assert result.code == 2
    assert "Permission denied" in result.err


# -------------------------------------------------------------------------- endings


def test_ctrl_c(tmp_path, run_cli, forks):
    """One line, exit code 130, and a run folder that says so."""
    folder = tmp_path / "run folder"
    command = run_of("breast-cancer", "--out", str(folder), train_epochs=1_000_000)
    process = forks.start(*command)
    until(lambda: "\ntraining: " in process.said())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    _, *lines = err.partition("\ntraining: ")[2].splitlines()
    assert [line for line in lines if not line.startswith("training: ")] == [
        "lessvfl: interrupted"
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["record.jsonl"]
    record = RunRecord.read(folder)
    assert record.status == "interrupted"
    assert record.runs == []
    assert record.header["config"]["train_epochs"] == 1_000_000
    result = run_cli("report", folder)
    assert result.code == 0
    assert "interrupted" in (folder / "report.html").read_text()
    with pytest.raises(lessvfl.errors.RecordError, match="Got interrupted"):
        load(folder)


@pytest.mark.parametrize("command", [["methods"], ["data", "list"]])
def test_ctrl_c_in_any_command(run_cli, monkeypatch, command):
    def interrupt(*args, err=False):
        if not err:
            raise KeyboardInterrupt

    monkeypatch.setattr("typer.echo", interrupt)
    assert run_cli(*command).code == 130
