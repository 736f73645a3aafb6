"""A messy table through `lessvfl check` and `lessvfl run` without editing it."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

import lessvfl
from lessvfl.run.record import RunRecord

SHORT = ["--set", "train_epochs=2", "--set", "batch_size=64"]
FEW = [*SHORT, "--method", "plain"]
PARTIES = """
clinic: [patient_id, age, lab, admitted, note, always, code]
insurer: [income, smoker, born, plan, plan_again, nothing]
"""
N = 160


def a_messy_table(folder):
    """Write a file as a hospital's export may be: semicolons, commas, words, dates."""
    rng = np.random.default_rng(0)
    lab, smoker = rng.normal(size=N), rng.random(N) < 0.5
    ill = lab + 2 * smoker + rng.normal(0, 0.3, N) > 1
    days = pd.Timestamp("2023-05-01") + pd.to_timedelta(rng.integers(0, 400, N), "D")
    income = [f"{value:,.2f}" for value in np.exp(rng.normal(8, 1, N))]
    table = pd.DataFrame(
        {
            "patient_id": [f"P-{i:04d}" for i in range(N)],
            "age": [None if i % 9 == 0 else 30 + i % 50 for i in range(N)],
            "lab": [f"{value:.3f}".replace(".", ",") for value in lab],
            "income": [text.translate(str.maketrans(",.", ".,")) for text in income],
            "smoker": np.where(smoker, "Yes", "no"),
            "admitted": days.strftime("%Y-%m-%d %H:%M"),
            "born": (days - pd.Timedelta(days=9999)).strftime("%d.%m.%Y"),
            "note": [f"seen; stable, sent home with advice no. {i}" for i in range(N)],
            "always": 1,
            "plan": ["basic", "full"] * (N // 2 - 1) + ["none", "gold"],
            "nothing": None,
            "code": np.where(ill, "X", "Z"),
            "unused": [f"row {i}" for i in range(N)],
            "diagnosis": np.where(ill, "ill", "healthy"),
        }
    )
    table["plan_again"] = table["plan"]
    table["nothing"] = table["nothing"].astype(object)
    table["age"] = table["age"].astype("Int64")
    table.to_csv(folder / "messy.csv", sep=";", index=False, encoding="cp1252")
    (folder / "parties.yaml").write_text(PARTIES)
    return table


@pytest.fixture
def messy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return a_messy_table(tmp_path)


OPTIONS = ["messy.csv", "--parties", "parties.yaml", "--label", "diagnosis"]


def changed(out):
    return {
        line for line in out.splitlines() if line.startswith(("Column", "The file"))
    }


def assert_stops(out: str, *fragments: str) -> list[str]:
    """Return the lines about what stops a run; each has its fragment."""
    stops = [line for line in out.splitlines() if line.startswith("Stops a run: ")]
    for line, fragment in zip(stops, fragments, strict=True):
        assert fragment in line
    return stops


def test_a_messy_table_is_run_as_check_says(messy, run_cli, tmp_path):
    said = run_cli("check", *OPTIONS)
    assert said.code == 0
    assert "A run would begin." in said.out
    ran = run_cli("run", *OPTIONS, *FEW, "--out", "here", "--quiet")
    assert ran.code == 0
    expected = {
        "The file: columns separated by a semicolon; read as such",
        "The file: numbers with ',' for decimals; read as numbers",
        "Column 'patient_id' of clinic: ids or names: most cells differ; left out",
        "Column 'income' of insurer: numbers in text, '.' for thousands, ',' for "
        "decimals; read as numbers",
        "Column 'smoker' of insurer: yes and no in words; read as truth values",
        "Column 'admitted' of clinic: dates; kept as day, month, weekday and days "
        "since the first",
        "Column 'born' of insurer: dates, day first; kept as day, month, weekday and "
        "days since the first",
        "Column 'note' of clinic: free text; left out",
        "Column 'nothing' of insurer: no value in any row; left out",
        "Column 'code' of clinic: tells the label on its own (AUC 1.000); kept; leave "
        "it out if it is known only after the label",
    }
    assert changed(ran.err) == expected
    assert changed(said.out) - expected == {
        "Column 'age' of clinic: 18 of 160 cells missing; filled in from the column's "
        "other rows",
        "Column 'always' of clinic: one value in every row; kept; it tells nothing",
        "Column 'plan' of insurer: 2 categories in fewer than 5 rows; kept; too rare "
        "to learn from",
        "Column 'plan_again' of insurer: 2 categories in fewer than 5 rows; kept; too "
        "rare to learn from",
        "Column 'plan_again' of insurer: equal to column 'plan'; kept; one of the two "
        "is enough",
        "Column 'unused': no party names it; left out",
    }
    (one,) = RunRecord.read(tmp_path / "here").runs
    seen = {
        name
        for own in one["features"].values()
        for name in own["kept"] + own["removed"]
    }
    left_out = {"patient_id", "note", "nothing", "unused", "diagnosis"}
    assert seen == {*messy.columns} - left_out


def test_a_model_predicts_raw_rows_of_the_same_file(messy, run_cli, tmp_path):
    run_cli("run", *OPTIONS, *SHORT, "--method", "plain", "--out", "here", "--quiet")
    model = lessvfl.load(tmp_path / "here")
    raw = pd.read_csv("messy.csv", sep=";", encoding="cp1252")
    assert raw["income"].dtype != float
    whole = model.predict_proba(raw)
    np.testing.assert_allclose(model.predict_proba(raw[:2]), whole[:2], atol=1e-6)
    later = raw[:1].assign(income="950", admitted="2024-02-29", born="1.2.1970")
    assert np.isfinite(model.predict_proba(later)).all()
    raw[:3].to_csv("few.csv", sep=";", index=False)
    scored = run_cli("evaluate", "here", "few.csv", "--label", "diagnosis", "--json")
    share = np.mean(model.predict(raw[:3]) == raw["diagnosis"][:3])
    assert json.loads(scored.out)["accuracy"] == pytest.approx(share)


def test_all_problems_are_said_at_once(messy, run_cli):
    rows = "".join(f"p{i},inf,{i % 3},2024-01-0{i}\n" for i in range(1, 9))
    with open("bad.csv", "w") as file:
        file.write(f"who,far,n,day\n{rows}")
    with open("two.yaml", "w") as file:
        file.write("a: [who]\nb: [far]\nc: [n]\n")
    with open("groups.yaml", "w") as file:
        file.write("g: [who, n]\n")
    options = ["--parties", "two.yaml", "--label", "day", "--groups", "groups.yaml"]
    said = run_cli("check", "bad.csv", *options)
    assert said.code == 2
    stops = assert_stops(
        said.out,
        "label 'day' must hold classes",
        "Party 'a' must have a column",
        "'a' and 'c'",
        "Column 'far' must hold finite",
    )
    assert said.out.splitlines()[-5:] == [*stops, "A run would stop."]
    assert "Traceback" not in said.err
    assert run_cli("run", "bad.csv", *options).code == 2


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (["--label", "what"], "Got 'what'"),
        (["--label", "diagnosis", "--parties", "99"], "Got 99 parties"),
        (["--label", "diagnosis", "--sample-weight", "code"], "row weights"),
        (["--label", "nothing"], "160 rows without a label"),
        (["--label", "always"], "two different values"),
    ],
)
def test_what_check_refuses_run_refuses(messy, run_cli, options, fragment):
    said = run_cli("check", "messy.csv", *options, "--json")
    assert said.code == 2
    (problem,) = json.loads(said.out)["problems"]
    assert fragment in problem
    ran = run_cli("run", "messy.csv", *options)
    assert ran.code == 2
    assert problem in " ".join(ran.err.split())


def test_later_rows_named_rows_and_folds(messy, run_cli):
    """Columns that say which rows are the test are no features."""
    messy[["patient_id"]].iloc[::4].to_csv("held_out.csv", index=False)
    base = ["messy.csv", "--label", "diagnosis", "--parties", "2"]
    for options, seeds, column in (
        (["--time-column", "admitted", "--set", "gap=20"], [0], "admitted"),
        (["--test-ids", "held_out.csv"], [0], "patient_id"),
        (["--folds", "3", "--seeds", "1"], [3, 4, 5], None),
    ):
        checked = [one for one in options if not one.startswith(("--set", "gap"))]
        if column is not None:
            assert run_cli("check", *base, *checked).code == 0
        result = run_cli("run", *base, *FEW, *options, "--json")
        found = json.loads(result.out)
        assert [run["seed"] for run in found["runs"]] == seeds
        held = [n for own in found["runs"][0]["features"].values() for n in own["kept"]]
        assert column not in held
    assert found["config"]["folds"] == 3


def test_folds_are_said_once(messy, run_cli):
    both = ("--folds", "3", "--set", "folds=2")
    result = run_cli("run", "messy.csv", "--label", "diagnosis", *both)
    assert result.code == 2
    assert "'--folds' or by '--set folds=...'. Got both" in result.err


def test_files_that_cannot_be_read(messy, run_cli):
    for name, sentence in (
        ("absent.csv", "must exist. Got no such file."),
        ("digits", "A data file must end in .npz, .csv"),
        ("messy.npz", "must exist"),
    ):
        said = run_cli("check", name)
        assert said.code == 2
        assert said.out.splitlines()[-2].startswith("Stops a run: ")
        assert sentence in said.out


def test_a_file_of_arrays(run_cli, tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, X=np.random.default_rng(0).normal(size=(60, 4)), y=[0, 1] * 30)
    said = run_cli("check", path)
    assert (said.code, changed(said.out)) == (0, set())
    assert (
        "60 rows; label 'y' (binary: 0, 1); columns in use: 4 of numbers." in said.out
    )


def test_json(messy, run_cli):
    found = json.loads(run_cli("check", *OPTIONS, "--json").out)
    assert found["data"] == {"name": "messy", "n_rows": N}
    assert (found["label"], found["task"]) == ("diagnosis", "binary")
    assert found["label_names"] == ["healthy", "ill"]
    assert found["columns"] == {
        "numbers": 4,
        "truth values": 1,
        "dates": 2,
        "categories": 3,
    }
    assert found["problems"] == []
    assert {
        "column": "smoker",
        "party": "insurer",
        "what": "yes and no in words",
        "done": "read as truth values",
        "level": "changed",
    } in found["findings"]


def test_built_in_data_and_plain_tables_print_nothing_of_columns(run_cli, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 3)), columns=list("abc"))
    table.assign(label=[0, 1] * 30).to_csv(tmp_path / "t.csv", index=False)
    for name in ("breast-cancer", tmp_path / "t.csv"):
        ran = run_cli("run", name, *FEW, "--parties", "2", "--quiet")
        assert ran.code == 0
        assert changed(ran.err) == set()


def test_names_do_nothing_to_the_terminal_and_long_lists_are_cut(run_cli, tmp_path):
    names = [f"\x1b[2Jc{i}{'x' * 60}" for i in range(25)]
    table = pd.DataFrame({name: ["yes", "no"] * 20 for name in names})
    path = tmp_path / "t.csv"
    table.assign(label=[0, 1, 1, 0] * 10).to_csv(path, index=False)
    ran = run_cli("run", path, *FEW, "--parties", "2", "--quiet")
    lines = ran.err.splitlines()
    assert sum(line.startswith("Column") for line in lines) == 20
    assert f"and 5 more: lessvfl check {path}" in ran.err
    assert "\x1b" not in ran.err
    assert max(len(line) for line in lines if line.startswith("Column")) < 120


def test_frames_of_python_are_read_alike(messy):
    X, y = messy.drop(columns="diagnosis"), messy["diagnosis"]
    model = lessvfl.LessVFLClassifier(
        method="plain", train_epochs=2, batch_size=64, random_state=0
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    assert any("are left out: 'patient_id' (ids" in str(w.message) for w in caught)
    assert len(model.support_) == X.shape[1]
    kept = {
        name for name, stays in zip(X.columns, model.support_, strict=True) if stays
    }
    assert {"income", "smoker", "admitted", "born"} <= kept
    assert not {"patient_id", "note", "nothing", "unused"} & kept
    np.testing.assert_allclose(
        model.predict_proba(X[:2]), model.predict_proba(X)[:2], atol=1e-9
    )
    few = X[["lab", "smoker", "admitted"]].to_numpy(dtype=object)
    assert model.fit(few, y).predict(few[:5]).shape == (5,)


def test_copies_of_rows_are_said(run_cli, tmp_path):
    """By check and by run, of which a warning comes once for all seeds."""
    rng = np.random.default_rng(0)
    rows = np.r_[np.arange(100), np.arange(50)]
    table = pd.DataFrame(rng.normal(size=(100, 4)), columns=list("abcd")).iloc[rows]
    table["who"] = [f"p{i % 30}" for i in range(len(rows))]
    table["label"] = (table["a"] > 0).astype(int)
    table.to_csv(tmp_path / "copies.csv", index=False)
    command = [tmp_path / "copies.csv", "--parties", "2", "--group-column", "who"]
    checked = run_cli("check", *command)
    said = "67 % of the rows equal another row"
    assert checked.code == 0, checked.err
    assert f"The file: {said}; they are split" in checked.out
    assert "'who'" not in checked.out
    ran = run_cli("run", *command, *FEW, "--seeds", "0,1", "--json")
    assert ran.err.count(said) == 1
    assert ran.json["data"]["n_equal_rows"] == 100
    assert ran.json["data"]["n_blocks"] < 30


def test_test_rows_that_equal_a_training_row_are_said(run_cli, tmp_path):
    """By check and by run, of the same split; none are left of distinct rows."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.integers(0, 3, size=(300, 4)), columns=list("abcd"))
    table["label"] = np.where(table["a"] + table["c"] > 2, "high", "low")
    table.to_csv(tmp_path / "few.csv", index=False)
    command = [tmp_path / "few.csv", "--parties", "2"]
    checked = run_cli("check", *command, "--json").json
    said = run_cli("check", *command).out
    percent = f"{100 * checked['test_rows_seen']:.2g}"
    assert f"Split by seed 0: {percent} % of the test rows equal a training" in said
    ran = run_cli("run", *command, *FEW, "--seeds", "0,1", "--json")
    first, second = (run["test_rows_seen"] for run in ran.json["runs"])
    assert first == checked["test_rows_seen"] > 0.8
    assert first != second
    only = ("--set", "equal_rows=distinct")
    distinct = run_cli("run", *command, *FEW, *only, "--out", tmp_path / "run")
    assert "equal an earlier one and are left out; 0 of them have" in distinct.out
    assert "of the test rows equal" not in distinct.out
    record = RunRecord.read(tmp_path / "run")
    assert record.runs[0]["test_rows_seen"] == 0
    n_rows = record.header["data"]["n_train"] + record.header["data"]["n_test"]
    assert n_rows == len(table.drop_duplicates(list("abcd")))
    shown = run_cli("run", *command, *FEW)
    assert f"{percent} % of the test rows equal a training row in" in shown.out


def test_distinct_rows_need_whole_rows(run_cli):
    """Which nobody sees between processes."""
    refused = run_cli("try", "breast-cancer", "--set", "equal_rows=distinct")
    assert refused.code == 2
    assert "no side sees whole rows" in refused.err


def a_table_of_counts(folder):
    """Write a table whose label is an amount in whole numbers, 17 different ones."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = np.clip(np.round(8 + 2.5 * X[:, 0] + X[:, 2]), 0, 16).astype(int)
    pd.DataFrame(X, columns=list("abcd")).assign(y=y).to_csv(
        folder / "counts.csv", index=False
    )
    return "counts.csv"


def test_whole_numbers_are_amounts_and_the_command_line_says_so(
    tmp_path, monkeypatch, run_cli
):
    monkeypatch.chdir(tmp_path)
    table = a_table_of_counts(tmp_path)
    said = "The labels are numbers to regress on: 1"
    shown = run_cli("check", table)
    assert said in shown.out
    assert "set the task to classification" in shown.out
    found = json.loads(run_cli("check", table, "--json").out)
    assert found["task"] == "regression"
    assert "different whole numbers" in found["task_reason"]
    as_classes = run_cli("check", table, "--task", "classification", "--json")
    assert json.loads(as_classes.out)["task"] == "multiclass"
    done = run_cli("run", table, *FEW, "--json", "--quiet", "--out", "here")
    assert done.err.count(said) == 1
    assert done.err.count("The labels are") == 1
    assert said in (tmp_path / "here" / "report.html").read_text()
    about = json.loads(done.out)
    assert about["data"]["task"] == "regression"
    assert about["data"]["task_reason"] == found["task_reason"]
    assert about["runs"][0]["r2"]["final"] is not None
    refused = run_cli("run", table, "--set", "task=regression")
    assert refused.code == 2
    assert "'--task', as in --task regression" in refused.err
    named = run_cli("run", "digits", "--task", "regression")
    assert named.code == 2
    assert "The 'task' must be left out for the data set 'digits'" in named.err
    unknown = run_cli("run", table, "--task", "guess")
    assert unknown.code == 2
    assert "must be one of auto, classification" in unknown.err


def test_a_column_that_nearly_tells_the_label_is_said(run_cli, tmp_path):
    """By check and by run, of rare labels and of wide tables, too."""
    rng, n_columns = np.random.default_rng(0), 260
    y = (rng.random(2_000) < 0.03).astype(int)
    X = rng.normal(size=(2_000, n_columns))
    X[:, -1] += 3.15 * y  # AUC 0.987
    table = pd.DataFrame(X, columns=[f"x{i}" for i in range(n_columns)])
    path = tmp_path / "leak.csv"
    table.assign(label=y).to_csv(path, index=False)
    said = f"Column 'x{n_columns - 1}' of party1: tells the label on its own (AUC 0.9"
    checked = run_cli("check", path, "--parties", "2")
    assert checked.code == 0
    assert [line for line in changed(checked.out) if "on its own" in line] == [
        line for line in checked.out.splitlines() if line.startswith(said)
    ]
    assert said in checked.out
    plain = ["--method", "plain", *SHORT]
    ran = run_cli("run", path, "--parties", "2", *plain, "--quiet")
    assert ran.code == 0
    assert ran.err.count(said) == 1


def test_an_excluded_column_is_used_by_nobody_and_not_forgotten(
    messy, run_cli, tmp_path
):
    """Not in a run, not in its warnings, and as such in a check."""
    options = ["messy.csv", "--parties", "few.yaml", "--label", "diagnosis"]
    (tmp_path / "few.yaml").write_text(
        'clinic: ["a*", lab, "!a?mitted"]\n'
        'insurer: ["!plan*", "!age", "!lab", "!always", "!code"]\n'
    )
    said = run_cli("check", *options)
    assert said.code == 0
    assert "Column 'code' of insurer: excluded by its party; left out" in said.out
    assert "no party names it" not in said.out
    assert "tells the label" not in said.out
    plain = [*SHORT, "--method", "plain", "--out", "here"]
    ran = run_cli("run", *options, *plain, "--json")
    assert ran.code == 0
    assert "belong" not in ran.err
    features = ran.json["runs"][0]["features"]
    assert set(features["clinic"]["kept"]) == {"age", "lab", "always"}
    assert set(features["insurer"]["kept"]) == {"income", "smoker", "admitted", "born"}
    notes = RunRecord.read(tmp_path / "here").header["notes"]
    assert "3 columns are excluded by name: plan, code, plan_again." in notes


def test_values_that_stand_for_a_missing_cell(run_cli, tmp_path, monkeypatch):
    """Named by `check`, and read as missing by `check` and `run` when asked."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(4 * N, 3)), columns=["a", "income", "c"])
    table["label"] = np.where(table["a"] + table["income"] > 0, "ill", "well")
    table.loc[::8, "income"] = -999
    table.to_csv("table.csv", index=False)
    said = run_cli("check", "table.csv", "--parties", "2")
    assert changed(said.out) == {
        "Column 'income' of party0: -999 in 80 cells, far from all others; kept; if it "
        "stands for a missing cell: --missing-values 'income=-999'"
    }
    asked = ["table.csv", "--parties", "2", "--missing-values", "*=-999"]
    said = run_cli("check", *asked)
    assert changed(said.out) == {
        "Column 'income' of party0: 80 of 640 cells missing; filled in from the "
        "column's other rows, and a flag says where"
    }
    ran = run_cli("run", *asked, *SHORT, "--method", "plain", "--json", "--quiet")
    found = json.loads(ran.out)
    assert (found["data"]["n_missing"], found["data"]["n_flagged"]) == (80, 80)
    assert found["config"]["missing_values"] == {"*": ["-999"]}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("incom=-1", "Got 'incom', which matches none. Did you mean 'income'?"),
        ("income=none", "of 'income' must be a number, as the cells are. Got 'none'."),
        ("-999", "must be a column and a value as in income=-999. Got '-999'."),
    ],
)
def test_bad_values_for_a_missing_cell(given, sentence, run_cli, tmp_path):
    path = tmp_path / "table.csv"
    cells = {"income": np.arange(60.0)[::-1], "label": np.arange(60) % 2}
    pd.DataFrame(cells).to_csv(path, index=False)
    for command in ("check", "run"):
        said = run_cli(command, path, "--parties", "1", "--missing-values", given)
        assert said.code == 2
        assert sentence in said.out + said.err
        assert "Traceback" not in said.err


def test_dummies_that_are_grouped_are_not_named(tmp_path, monkeypatch, run_cli):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    place = rng.integers(0, 3, 120)
    wide = pd.DataFrame({f"p_{k}": (place == k).astype(int) for k in range(3)})
    wide = wide.assign(x=rng.normal(size=120), y=rng.integers(0, 2, 120))
    wide.to_csv("own.csv", index=False)
    (tmp_path / "g.yaml").write_text("place: ['p_*']\n")
    line = ("check", "own.csv", "--label", "y", "--parties", "1")
    assert "dummies" in run_cli(*line).out
    assert "dummies" not in run_cli(*line, "--groups", "g.yaml").out
