"""What a party that only follows the protocol learns of labels before training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.remote.test_remote import ANYTHING, a_status

from lessvfl import data
from lessvfl.data import DataConfig, split_rows
from lessvfl.errors import ConfigError, DataError
from lessvfl.remote.config import PartyConfig, ServerConfig
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.tables import LabelTable
from lessvfl.wire import control
from lessvfl.wire.flight import FlightHub
from lessvfl.wire.line import LocalParty
from lessvfl_bench.privacy.drawn import ToldRows, guesses

pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")

NOISE = np.random.default_rng(8)


def cancer() -> data.Dataset:
    return data.load("breast-cancer")


def three_classes() -> data.Dataset:
    counts = (71, 59, 48)
    y = np.random.default_rng(4).permutation(np.repeat([0, 1, 2], counts))
    return data.from_arrays(np.zeros((len(y), 1)), y, name="three")


def told_rows(tmp_path, dataset, method, seeds, folds, settings) -> list[ToldRows]:
    """Have a server tell two parties of noise the rows of every seed; train nothing."""
    names, heard = ("bank", "clinic"), []
    labels = data.from_arrays(np.zeros((len(dataset.y), 1)), dataset.y, name="labels")

    def party(name: str) -> LocalParty:
        config = PartyConfig(out=str(tmp_path / name), policy=ANYTHING)
        noise = data.frame_of(NOISE.normal(size=(len(labels.y), 2)), ["a", "b"])
        side = PartyProcess(name, config, noise)

        def handle(message: Any) -> Any:
            if isinstance(message, control.Prepare) and name == "clinic":
                heard.append(message)
            return side.handle(message)

        return LocalParty(side.hello(), handle, side.due)

    config = ServerConfig(
        parties=names,
        method=method,
        out=str(tmp_path / "server"),
        seeds=seeds,
        folds=folds,
        settings=settings,
    )
    hub = FlightHub("127.0.0.1:0", names, None)
    try:
        process = ServerProcess(config, LabelTable(labels), hub, a_status())
        for name in names:
            hub.join(party(name))
        for seed in process.seeds:
            process._agree(seed)
        process.close()
    finally:
        hub.close()
    return [
        ToldRows(
            m.seed,
            np.concatenate([*m.places("train")]),
            np.concatenate([*m.places("test")]),
        )
        for m in heard
    ]


def share_read(told, y, n_folds=1) -> float:
    """Return the share of labels that the best attack reads, knowing class counts."""
    found = guesses(told, np.bincount(y).tolist(), n_folds)
    return max(float((labels == y).mean()) for labels in found)


@pytest.mark.parametrize(
    ("table", "method", "seeds", "folds", "settings"),
    [
        (cancer, "less-vfl-auto", (0,), 1, {}),
        (cancer, "less-vfl-auto", (0,), 1, {"gradient_defence": "marvell"}),
        (cancer, "less-vfl-auto", (0,), 1, {"gradient_defence": "gaussian"}),
        (cancer, "iv-filter", (0,), 1, {"secret": "sharing"}),
        (cancer, "less-vfl-auto", (0, 1, 2, 3, 4), 1, {"row_order": "blocks"}),
        (cancer, "less-vfl-auto", (0,), 5, {}),
        (three_classes, "less-vfl-auto", (0,), 1, {}),
    ],
    ids=["default", "marvell", "gaussian", "sharing", "blocks", "folds", "three"],
)
def test_rows_tell_no_labels(tmp_path, table, method, seeds, folds, settings):
    dataset = table()
    y = dataset.y
    told = told_rows(tmp_path, dataset, method, seeds, folds, settings)
    majority = float((np.bincount(y) / len(y)).max())
    error = float(np.sqrt(majority * (1 - majority) / len(y)))
    read = share_read(told, y, folds)
    assert read <= majority + 2 * error


@pytest.mark.parametrize(
    ("in_order", "seeds", "folds", "least"),
    [(False, (0,), 1, 1.0), (True, (0, 1, 2, 3, 4), 1, 0.9), (True, range(5), 5, 0.7)],
    ids=["shuffled", "sorted", "folds"],
)
def test_the_attacks_read_a_draw_by_class_from_a_public_seed(
    in_order, seeds, folds, least
):
    dataset = cancer()
    config = DataConfig(split="stratified", folds=folds)
    told = [
        ToldRows(seed, *split_rows(dataset, config, seed, in_order)) for seed in seeds
    ]
    assert share_read(told, dataset.y, folds) >= least


# ------------------------------------------------------------------ a draw by class


STRATIFIED: dict[str, Any] = {"split": "stratified"}


def server_of(tmp_path, dataset, method="less-vfl-auto", **more) -> ServerProcess:
    config = ServerConfig(parties=("clinic",), method=method, out=str(tmp_path), **more)
    hub = FlightHub("127.0.0.1:0", ("clinic",), None)
    try:
        return ServerProcess(config, LabelTable(dataset), hub, a_status())
    finally:
        hub.close()


def test_a_draw_by_class_is_the_label_holders_secret(tmp_path, caplog):
    dataset, seeds = cancer(), (0, 1)
    public = [
        split_rows(dataset, DataConfig(split="stratified"), seed, in_order=True)[
            1
        ].tolist()
        for seed in seeds
    ]
    with caplog.at_level("WARNING", logger="lessvfl.remote.server"):
        one, other = (
            told_rows(tmp_path / n, dataset, "less-vfl-auto", seeds, 1, STRATIFIED)
            for n in ("one", "other")
        )
    assert sum("drawn class by class" in line for line in caplog.messages) == 2
    drawn = [rows.test.tolist() for rows in (*one, *other)]
    for place, test in enumerate(drawn):
        assert test not in (*public, *drawn[:place])
        assert test == sorted(test)
        assert abs(dataset.y[test].mean() - dataset.y.mean()) < 0.01
    majority = max(dataset.y.mean(), 1 - dataset.y.mean())
    assert share_read(one, dataset.y) <= majority + 2 * 0.0203


def test_a_server_that_restarts_draws_by_class_as_before(tmp_path):
    config: dict[str, Any] = {"settings": STRATIFIED, "seeds": (0, 3)}

    def drawn() -> list[list[int]]:
        process = server_of(tmp_path, cancer(), **config)
        try:
            rows = [
                process.table.split(process.settings, s, process.home.seed)
                for s in (0, 3)
            ]
        finally:
            process.close()
        return [test.tolist() for _, test in rows]

    first = drawn()
    assert first == drawn()
    assert first[0] != first[1]


def test_nothing_is_said_of_a_draw_without_labels(tmp_path, caplog):
    with caplog.at_level("INFO", logger="lessvfl.remote.server"):
        server_of(tmp_path, cancer()).close()
    assert not any("class" in line for line in caplog.messages)


def test_the_last_of_aligned_rows_are_no_test(tmp_path):
    allowed = r"must be random or stratified: .*Got 'first'"
    with pytest.raises(ConfigError, match=allowed):
        server_of(tmp_path, cancer(), align="psi", settings={"split": "first"})


def test_under_sharing_no_draw_by_class(tmp_path):
    own: dict[str, Any] = {"method": "gini-filter"}
    own["settings"] = {"secret": "sharing", **STRATIFIED}
    with pytest.raises(ConfigError, match=r"Under sharing.*must be random.*Got 'strat"):
        server_of(tmp_path, cancer(), **own)
    own["settings"] = {"secret": "none", **STRATIFIED}
    server_of(tmp_path / "open", cancer(), **own).close()
    own["settings"] = {"secret": "sharing", "label_epsilon": 1.0, **STRATIFIED}
    server_of(tmp_path / "randomised", cancer(), **own).close()


def test_rows_without_a_class_are_refused_before_any_are_told(tmp_path):
    """Also where only a later seed of the run draws them so."""
    y = np.r_[np.zeros(94, dtype=int), np.ones(6, dtype=int)]
    dataset, config = data.from_arrays(np.zeros((100, 1)), y), DataConfig()

    def is_whole(seed: int) -> bool:
        try:
            split_rows(dataset, config, seed)
        except DataError:
            return False
        return True

    good = next(seed for seed in range(100) if is_whole(seed))
    bad = next(seed for seed in range(100) if not is_whole(seed))
    with pytest.raises(DataError, match="none of class '1'; name test rows by test_id"):
        told_rows(tmp_path / "bad", dataset, "less-vfl-auto", (good, bad), 1, {})
    assert not [*tmp_path.glob("bad/clinic/seed-*")]
    told = told_rows(tmp_path / "good", dataset, "less-vfl-auto", (good,), 1, {})
    assert [rows.seed for rows in told] == [good]
