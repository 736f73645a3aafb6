"""What a party that only follows the protocol learns of labels before training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.remote.test_remote import ANYTHING, a_status

from lessvfl import data
from lessvfl.data import DataConfig, split_rows
from lessvfl.remote.config import PartyConfig, ServerConfig
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.tables import LabelTable
from lessvfl.wire import control
from lessvfl.wire.flight import FlightHub
from lessvfl.wire.local import LocalParty
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

        return LocalParty(side.hello(), handle)

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
