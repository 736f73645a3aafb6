"""Between machines: later rows, named rows and folds, as in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.remote.test_remote import (
    ANYTHING,
    HELD,
    a_dataset,
    a_hub,
    a_party,
    a_status,
    labels,
    own_settings,
    run_all,
    server_config,
    start,
)

from lessvfl import data
from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.remote import localhost, preflight
from lessvfl.remote.config import ServerConfig, read
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.tables import LabelTable, resolve_settings
from lessvfl.run import profiles, simulate
from lessvfl.run.record import RunRecord

pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")

N = 150
WHEN = np.random.default_rng(3).permutation(N).astype(float)


def in_process(dataset, seeds, **more):
    own = own_settings("less-vfl") | more
    resolved = profiles.resolve("less-vfl", "default", dataset, own)
    job = simulate.Job(dataset, resolved, parties=HELD, device="cpu")
    return [one.numbers for one in simulate.simulate(job, seeds)]


def same(ours, theirs):
    """Scores, intervals, choices and bills are those of one process."""
    for name in ("accuracy", "auc", "without", "intervals", "missed", "components"):
        assert ours[name] == theirs[name], name
    for name in ("payload_bytes", "rounds"):
        assert ours["communication"][name] == theirs["communication"][name]


def with_rows(**more):
    table = labels()
    return replace(table, dataset=replace(table.dataset, **more))


# -------------------------------------------------------------------------------- folds


def test_folds_are_runs_of_one_alignment_also_after_a_break(tmp_path):
    record, own = run_all(tmp_path, server={"folds": 3}, dies_at={"bank": 30})
    assert [run["seed"] for run in record.runs] == [0, 1, 2]
    for ours, theirs in zip(
        record.runs, in_process(a_dataset(), [0, 1, 2], folds=3), strict=True
    ):
        same(ours, theirs)
    for party in own.values():
        assert [run["seed"] for run in party.runs] == [0, 1, 2]
        assert {run["rows"]["test"] for run in party.runs} == {50}
    assert record.header["config"]["folds"] == 3


def test_folds_of_several_seeds_each_test_every_row_once(tmp_path):
    config = server_config(tmp_path, folds=4, seeds=(0, 5))
    with a_hub() as hub:
        server = ServerProcess(config, labels(), hub, a_status())
        assert server.seeds == [0, 1, 2, 3, 20, 21, 22, 23]
        assert server._welcome().seeds == tuple(server.seeds)
        server.close()


def test_a_policy_counts_folds_as_seeds(tmp_path):
    policy = replace(ANYTHING, seeds=2)
    config = server_config(tmp_path, folds=3, wait=5.0)
    with a_hub() as hub:
        sides = start(hub, *(a_party(name, tmp_path, policy=policy) for name in HELD))
        server = ServerProcess(config, labels(), hub, a_status())
        with pytest.raises(ProtocolError, match="2 seeds"):
            server.run()
        server.close()
        hub.close()
        for side in sides:
            side.join(20)


# -------------------------------------------------------------------------- named rows


@pytest.mark.parametrize("how", ["times", "is_test"])
def test_named_rows_are_the_test_as_in_one_process(tmp_path, how):
    named = {how: WHEN if how == "times" else WHEN > 110}
    record, own = run_all(tmp_path, table=with_rows(**named))
    (theirs,) = in_process(replace(a_dataset(), **named), [0])
    same(record.runs[0], theirs)
    n_test = 30 if how == "times" else 39
    assert record.header["data"]["n_test"] == n_test
    assert own["bank"].runs[0]["rows"] == {"train": N - n_test, "test": n_test}
    if how == "times":
        (note,) = record.header["notes"]
        assert note.startswith("Test rows are the latest 30 of 150, from 120 on")


def test_rows_in_the_gap_are_not_aligned(tmp_path):
    """No party hears of them, and each trains and tests with all common rows."""
    ids = np.array([f"p{i}" for i in range(N)], dtype=object)
    table = replace(with_rows(times=WHEN), ids=ids)
    own = {"settings": server_config(tmp_path).settings | {"gap": 10}}
    config = server_config(tmp_path, align="plain", **own)
    with a_hub() as hub:
        sides = start(
            hub, *(a_party(n, tmp_path, ids=ids, align="plain") for n in HELD)
        )
        server = ServerProcess(config, table, hub, a_status())
        record = server.run()
        server.close()
    for side in sides:
        side.join(20)
        assert side.error is None
    for name in HELD:
        (own_run,) = RunRecord.read(tmp_path / name).runs
        assert own_run["rows"] == {"train": 110, "test": 30}
    assert record.header["data"]["n_train"] == 110
    assert record.header["notes"][1] == "10 rows in the gap of 10 left out."


def test_rows_of_no_side_are_refused_where_all_sides_have_the_same(tmp_path):
    more = {"settings": server_config(tmp_path).settings | {"gap": 10}}
    config = server_config(tmp_path, **more)
    with a_hub() as hub, pytest.raises(ConfigError, match="Got 10 rows in a gap or of"):
        ServerProcess(config, with_rows(times=WHEN), hub, a_status())
    of_people = with_rows(is_test=WHEN > 110, units=np.arange(N) // 2)
    with a_hub() as hub, pytest.raises(ConfigError, match="people on both sides"):
        ServerProcess(server_config(tmp_path), of_people, hub, a_status())


# ------------------------------------------------------------------------------- config


def written(folder: Path, **more) -> ServerConfig:
    rows = [f"{i},h{i // 2},2024-{1 + i // 10:02d}-03,{i % 3 % 2}" for i in range(60)]
    (folder / "t.csv").write_text("\n".join(["who,home,when,risk", *rows]))
    (folder / "ids.csv").write_text("who\n4\n9\n")
    own = {"data": "t.csv", "label": "risk", "id": "who", "parties": ["bank"]}
    (folder / "server.yaml").write_text(yaml.safe_dump(own | more))
    return read(ServerConfig, folder / "server.yaml")


def test_columns_of_the_config_are_read(tmp_path):
    table = LabelTable.load(written(tmp_path, time_column="when", group_column="home"))
    assert table.dataset.times is not None
    assert str(table.dataset.times[-1]) == "2024-06-03"
    assert table.dataset.units is not None
    table = LabelTable.load(written(tmp_path, test_ids="ids.csv"))
    assert table.dataset.is_test is not None
    assert np.flatnonzero(table.dataset.is_test).tolist() == [4, 9]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"test_ids": "ids.csv", "id": None}, "needs the column of ids, 'id'"),
        ({"test_ids": "no.csv"}, "must exist"),
        ({"time_column": "home"}, "(column 'home') must be dates or numbers"),
        ({"time_column": "day"}, "The times of rows of"),
        ({"test_ids": "ids.csv", "time_column": "when"}, "Got both"),
        ({"time_column": "when", "folds": 3}, "'folds' setting must be 1 with a time"),
        ({"folds": 100}, "as many as its rows or fewer. Got 100"),
        ({"settings": {"gap": 3}}, "'gap' setting must be 0 without a time column"),
        (
            {"time_column": "when", "settings": {"gap": 40}, "align": "none"},
            "With align none every row must be for training or for testing",
        ),
    ],
)
def test_a_check_says_what_a_run_would_refuse(tmp_path, more, said):
    report = preflight.check_server(written(tmp_path, **{"align": "psi"} | more))
    assert any(said in problem for problem in report.problems), report.problems


def test_a_check_of_later_rows_finds_nothing(tmp_path):
    own = {"time_column": "when", "settings": {"gap": 20}, "align": "psi"}
    assert preflight.check_server(written(tmp_path, **own)).problems == ()


# ---------------------------------------------------------------------------------- try


@pytest.mark.parametrize(
    ("named", "own", "n_rows"),
    [
        ({"times": WHEN}, {"gap": 10}, 140),
        ({"is_test": WHEN > 110, "units": np.arange(N) // 2}, {}, None),
        ({}, {"folds": 3}, N),
        ({}, {"split_seed": 3}, N),
    ],
)
def test_folders_of_a_try_hold_the_rows_that_stay_in_their_order(
    tmp_path, named, own, n_rows
):
    dataset = replace(a_dataset(), **named)
    settings = own_settings("less-vfl") | own
    resolved = profiles.resolve("less-vfl", "default", dataset, settings)
    job = simulate.Job(dataset, resolved, parties=HELD)
    seeds = data.fold_seeds([2], resolved.data.folds)
    localhost.write_folders(job, job.problem(seeds[0]), seeds, tmp_path / "kit", 9)
    config = read(ServerConfig, tmp_path / "kit" / "server" / "server.yaml")
    table = LabelTable.load(config)
    assert (config.seeds, config.folds) == ((2,), resolved.data.folds)
    left, rows = data.settle_test_rows(dataset, resolved.data)
    assert n_rows in (None, table.n_rows)
    assert np.array_equal(table.dataset.y, left.y)
    assert (table.dataset.is_test is None) == (left.is_test is None)
    assert table.settled(resolve_settings(config, table), "none").n_rows == len(left.y)
    frame, _ = data.load_columns(tmp_path / "kit" / "clinic" / "columns.parquet", "row")
    whole = dataset.X.select(HELD["clinic"]).numeric
    assert np.allclose(frame.numeric, whole if rows is None else whole[rows])


def test_folds_between_processes_need_tables_that_stay(tmp_path):
    own = own_settings("less-vfl") | {"folds": 3}
    resolved = profiles.resolve("less-vfl", "default", a_dataset(), own)
    job = simulate.Job(a_dataset(), resolved, parties=HELD, spurious=0.5)
    how = localhost.Between()
    what: Any = (job, [0, 1, 2], {}, False, None, 0, print, False, None, how)
    with pytest.raises(ConfigError, match="'folds' setting must be 1 with planted"):
        localhost.run_all(*what)
