"""`lessvfl check` without a label: of a table, of a party's config, of a server's."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import yaml
from tests.cli.test_check import assert_stops

N = 120


def write(path, **values):
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a folder with the tables of a party and of a server."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    ids = [f"p{i}" for i in range(N)]
    calls = rng.integers(0, 9, N)
    pd.DataFrame(
        {
            "who": ids,
            "calls": calls,
            "collection_calls": rng.integers(0, 9, N),
            "calls_twice": 2 * calls,
            "smoker": ["yes", "no"] * (N // 2),
            "code": [f"X{i}" for i in range(N)],
            "far": rng.normal(size=N),
        }
    ).to_csv(tmp_path / "own.csv", index=False)
    ill = np.where(rng.random(N) < 0.08, "ill", "well")
    pd.DataFrame({"who": ids, "state": ill}).to_csv("labels.csv", index=False)
    return tmp_path


def a_party(here, **values):
    own = {"name": "clinic", "data": "own.csv", "id": "who", "align": "psi"}
    return write(here / "party.yaml", **(own | values))


def a_server(here, **values):
    own = {"data": "labels.csv", "id": "who", "align": "psi", "parties": ["clinic"]}
    return write(here / "server.yaml", **(own | {"label": "state"} | values))


# ------------------------------------------------------------------------ without label


def test_a_table_without_a_label_is_checked_all_the_same(here, run_cli):
    said = run_cli("check", "own.csv")
    assert (said.code, said.err) == (0, "")
    assert "Column 'smoker': yes and no in words; read as truth values" in said.out
    assert said.out.splitlines()[-2:] == [
        "Nothing is said about labels: none is named; a run needs one, perhaps "
        "--label 'far'.",
        "Nothing else stops a run.",
    ]
    found = json.loads(run_cli("check", "own.csv", "--json").out)
    assert (found["label"], found["task"], found["problems"]) == (None, None, [])
    assert found["unsaid"] == [said.out.splitlines()[-2]]
    wrong = run_cli("check", "own.csv", "--label", "what")
    assert wrong.code == 2
    assert "Got 'what'" in wrong.out


def test_a_narrow_table_without_a_label_is_dealt_to_nobody(here, run_cli):
    said = run_cli("check", "labels.csv")
    assert said.code == 0
    assert "of party" not in said.out


def test_arrays_without_a_label(here, run_cli):
    np.savez("t.npz", X=np.random.default_rng(0).normal(size=(60, 4)))
    said = run_cli("check", "t.npz")
    assert said.code == 0
    assert "60 rows; no label; columns in use: 4 of numbers." in said.out
    assert "Nothing is said about labels" in said.out


def test_what_is_wrong_with_columns_is_said_without_a_label(here, run_cli):
    (here / "p.yaml").write_text('clinic: ["*", "!absent"]')
    said = run_cli("check", "own.csv", "--parties", "p.yaml")
    assert said.code == 2
    assert "Got '!absent', which matches none" in said.out


# ---------------------------------------------------------------------------- a party


def test_a_party_is_told_what_becomes_of_its_columns(here, run_cli):
    path = a_party(here, columns=["!collection_calls", "!far"])
    said = run_cli("check", "--config", path)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        "Column 'who' of clinic: ids that are texts; matched as they are written: "
        "those of the other sides must be so, too",
        "Column 'collection_calls' of clinic: excluded by its party; left out",
        "Column 'calls_twice' of clinic: column 'calls' times 2; kept; one of the two "
        "is enough",
        "Column 'smoker' of clinic: yes and no in words; read as truth values",
        "Column 'code' of clinic: ids or names: most cells differ; left out",
        "Column 'far' of clinic: excluded by its party; left out",
        "120 rows; no label; columns in use: 2 of numbers, 1 of truth values.",
        "Nothing is said about labels: the server has them.",
        "Nothing is said about certificates: none is named; a run needs them, or "
        "--insecure.",
        "Nothing else stops a run.",
    ]
    assert not (here / "run").exists()


def test_columns_that_a_party_does_not_name(here, run_cli):
    said = run_cli("check", "--config", a_party(here, columns=["calls", "smoker"]))
    assert said.code == 0
    assert "Column 'far' of clinic: not in its 'columns'; left out" in said.out


def test_all_problems_of_a_party_are_said_at_once(here, run_cli):
    table = pd.read_csv("own.csv").assign(who="p0")
    table.loc[3, "far"] = np.inf
    table.to_csv("own.csv", index=False)
    wrong = {"as_is": ["nothing"], "groups": {"g": ["none_*"]}, "scale": "global"}
    path = a_party(here, certificate="cert.pem", **wrong)
    said = run_cli("check", "--config", path)
    assert said.code == 2
    assert_stops(
        said.out,
        "must name 'certificate', 'key' and 'ca'",
        "Got 'nothing', which matches none",
        "Got 'none_*', which matches none",
        "119 duplicate ids",
        "Column 'far' must hold finite numbers",
    )
    assert said.out.splitlines()[-1] == "A run would stop."


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({"data": "absent.csv"}, "must exist. Got no such file"),
        ({"data": ""}, "The 'data' setting of party.yaml must name the table of its"),
        ({"id": "ID_COLUMN"}, "must be one of its columns"),
        ({"id": "ID_COLUMN"}, "Got 'ID_COLUMN' as 'id'."),
        ({"id": "ID_COLUMN"}, "must be filled in where it says FILL IN. The "),
        ({"columns": ["code"]}, "Party 'clinic' must have a column that can be used"),
        ({"columns": ["*", "!nobody"]}, "Got '!nobody', which matches none"),
        ({"scale": "global"}, "where no 'scale_range' is given"),
        ({"storage": "disk"}, "Got disk"),
        ({"party_net": "no.such:net"}, "no.such"),
        ({"id": None}, "id"),
    ],
)
def test_what_a_party_would_refuse_its_check_does(here, run_cli, values, fragment):
    path = a_party(here, **values)
    said = run_cli("check", "--config", path)
    assert said.code == 2
    assert fragment in said.out
    assert "Traceback" not in said.err
    ran = run_cli("party", "--config", path, "--insecure")
    assert ran.code == 2
    assert fragment in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("side", "blanks"),
    [
        ("server", ["'LABEL_COLUMN' as 'label' and 'ID_COLUMN' as 'id'"]),
        ("party", ["'data' and 'ID_COLUMN' as 'id'"]),
    ],
)
def test_all_that_a_kit_leaves_open_is_named_at_once(here, run_cli, side, blanks):
    assert run_cli("kit", "init", "kit", "--parties", "clinic").code == 0
    folder = {"server": "server", "party": "clinic"}[side]
    path = here / "kit" / folder / f"{side}.yaml"
    table = "labels.csv" if side == "server" else "columns.csv"
    words = ["where it says FILL IN. Got no file '", f"{table}' as 'data'", *blanks]
    checked = run_cli("check", "--config", path)
    ran = run_cli(side, "--config", path)
    assert checked.code == ran.code == 2
    for word in words:
        assert word in checked.out
        assert word in " ".join(ran.err.split())


def test_a_certificate_of_another_party_is_refused(here, run_cli):
    assert run_cli("kit", "init", "kit", "--parties", "clinic,insurer").code == 0
    own, other = here / "kit" / "clinic", here / "kit" / "insurer"
    shutil.copy("own.csv", own / "columns.csv")
    path = own / "party.yaml"
    path.write_text(path.read_text().replace("ID_COLUMN", "who"))
    assert run_cli("check", "--config", path).code == 0
    shutil.copy(other / "cert.pem", own)
    assert "was made for another key" in run_cli("check", "--config", path).out
    shutil.copy(other / "key.pem", own)
    words = "must be of 'clinic', as the config says by 'name'. Got one of 'insurer'."
    assert words in run_cli("check", "--config", path).out
    for command in (["party"], ["predict", "party"]):
        ran = run_cli(*command, "--config", path)
        assert ran.code == 2
        assert words in ran.err


def test_a_table_smaller_than_the_policy_allows(here, run_cli):
    path = a_party(here, policy={"min_rows": 200})
    said = run_cli("check", "--config", path)
    assert said.code == 2
    assert "must have 200 rows or more, by 'min_rows'" in said.out
    assert "Got 120." in said.out


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({"policy": {"rounds": -1}}, "'policy.rounds'"),
        ({"colums": ["*"]}, "colums"),
        ({"columns": "a"}, "'columns'"),
    ],
)
def test_what_a_config_may_not_say(here, run_cli, values, fragment):
    said = run_cli("check", "--config", a_party(here, **values))
    assert (said.code, said.out) == (2, "")
    assert fragment in said.err


def test_a_mark_without_quotes_in_a_config(here, run_cli):
    a_party(here)
    with open("party.yaml", "a") as file:
        file.write("columns: [!far]\n")
    said = run_cli("check", "--config", "party.yaml")
    assert said.code == 2
    assert 'write "!far"' in " ".join(said.err.split())


def test_a_run_folder_of_another_run_is_said(here, run_cli):
    from lessvfl.remote.config import PartyConfig, read
    from lessvfl.remote.party import PartyProcess
    from lessvfl.status import Status

    path = a_party(here, columns=["calls"])
    own = read(PartyConfig, path)
    process = PartyProcess.load("clinic", own, Status("", "", "", ["server"]))
    process.home.begin()
    process.close()
    assert run_cli("check", "--config", path).code == 0
    said = run_cli("check", "--config", a_party(here, columns=["!calls"]))
    assert said.code == 2
    assert "must go on with what it began with" in said.out


# --------------------------------------------------------------------------- a server


def test_a_server_is_told_what_its_labels_are(here, run_cli):
    path = a_server(here, settings={"class_weight": "balanced"})
    said = run_cli("check", "--config", path)
    assert (said.code, said.err) == (0, "")
    assert "label 'state' (binary: ill, well)" in said.out
    assert "The labels are classes: " in said.out
    assert "class 'ill' has " in said.out
    assert "Nothing is said about columns: the parties have them." in said.out
    assert not (here / "run").exists()


def test_rows_that_are_not_aligned_keep_their_order(here, run_cli):
    path = a_server(here, align="none", settings={"split": "first"})
    said = run_cli("check", "--config", path)
    assert said.code == 0, said.out


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({"label": "what"}, "Got 'what'"),
        ({"data": "absent.csv"}, "must exist"),
        ({"settings": {"scale": "none"}}, "every party's own"),
        ({"settings": {"equal_rows": "distinct"}}, "must be together or apart"),
        ({"settings": {"split": "first"}}, "come in a secret order"),
        ({"settings": {"loss": "huber"}}, "'loss' setting"),
        ({"method": "best"}, "best"),
        ({"id": None}, "id"),
        ({"task": "regression"}, "regress"),
    ],
)
def test_what_a_server_would_refuse_its_check_does(here, run_cli, values, fragment):
    said = run_cli("check", "--config", a_server(here, **values))
    assert said.code == 2
    assert fragment in said.out
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("time_column", "times of rows"),
        ("group_column", "groups of rows"),
        ("sample_weight", "row weights"),
    ],
)
def test_a_column_that_is_not_there_is_said_with_its_setting(
    here, run_cli, setting, what
):
    path = a_server(here, **{setting: "stat"})
    said = run_cli("check", "--config", path)
    assert said.code == 2
    problem = (
        f"The {what} of '{here / 'labels.csv'}' must be one of its columns: who, "
        f"state. Got 'stat' as '{setting}'. Did you mean 'state'?"
    )
    assert_stops(said.out, problem)
    assert "120 rows; label 'state' (binary: ill, well)" in said.out
    ran = run_cli("server", "--config", path, "--insecure")
    assert (ran.code, problem in " ".join(ran.err.split())) == (2, True)


def test_a_column_without_times_is_said_with_its_setting(here, run_cli):
    said = run_cli("check", "--config", a_server(here, time_column="who"))
    assert_stops(
        said.out,
        "The times of 'labels' by 'time_column' (column 'who') must be dates or "
        "numbers, one in each row. Got another text in row 1.",
    )


@pytest.mark.parametrize("values", [{}, {"data": ""}])
def test_a_server_whose_data_is_missing(here, run_cli, values):
    path = write(here / "server.yaml", id="who", label="state", **values)
    for said in (
        run_cli("check", "--config", path),
        run_cli("server", "--config", path, "--insecure"),
    ):
        assert said.code == 2
        told = " ".join((said.out + said.err).split())
        assert "'data' setting of server.yaml must name the table of labels" in told
        assert "'data' is missing" in told
        assert "0 rows" not in told


# --------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ([], "Got neither"),
        (["own.csv", "--config", "party.yaml"], "Got both"),
        (["--config", "party.yaml", "--label", "far"], "'--label'"),
        (["--config", "absent.yaml"], "must be readable"),
    ],
)
def test_a_table_or_a_config(here, run_cli, options, fragment):
    a_party(here)
    said = run_cli("check", *options)
    assert said.code == 2
    assert fragment in " ".join(said.err.split())


def test_what_must_be_kept_and_is_not_there_stops_a_party(here, run_cli):
    path = a_party(here, must_keep="calls, height")
    said = run_cli("check", "--config", path)
    assert said.code == 2
    assert "must name features of party 'clinic'. Got 'height'" in said.out
    ran = run_cli("party", "--config", path, "--insecure")
    assert ran.code == 2
    assert "Got 'height', which matches none." in " ".join(ran.err.split())


def test_a_column_that_gets_a_flag_is_named(here, run_cli):
    table = pd.read_csv("own.csv")
    table.loc[::3, "far"] = np.nan
    table.to_csv("own.csv", index=False)
    told = (
        "Column 'far' of clinic: 40 of 120 cells missing; filled in from the column's "
        "other "
    )
    said = run_cli("check", "--config", a_party(here))
    assert f"{told}rows, and a flag says where" in said.out
    said = run_cli("check", "--config", a_party(here, missing="fill"))
    assert f"{told}rows\n" in said.out


def test_what_a_party_is_advised_its_config_can_follow(here, run_cli):
    table = pd.read_csv("own.csv")
    table.loc[::4, "far"] = -999
    table.to_csv("own.csv", index=False)
    said = run_cli("check", "--config", a_party(here)).out
    assert "in 'missing_values' of its config, 'far=-999'" in said
    assert "--missing-values" not in said


def test_addresses_are_checked(here, run_cli):
    for path in (a_party(here, server="nohost"), a_server(here, listen="8815")):
        said = run_cli("check", "--config", path)
        assert said.code == 2
        assert "must be given as HOST:PORT" in said.out


def test_a_glob_may_exclude_nothing(here, run_cli):
    said = run_cli("check", "--config", a_party(here, columns=["!*_id"]))
    assert said.code == 0
