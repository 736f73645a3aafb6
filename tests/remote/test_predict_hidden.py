"""Joint prediction with hidden paths over Flight: the same answers, and refusals."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import until
from tests.remote import test_predict
from tests.remote.test_accounts import told
from tests.remote.test_predict import (
    HELD,
    IDS,
    WIDE,
    a_service,
    a_session,
    common,
    everybody,
    in_process,
)

from lessvfl import load
from lessvfl.core.hidden_paths import PathParty, PathStep
from lessvfl.errors import ConfigError, PolicyError, ProtocolError
from lessvfl.wire import codec, messages
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.due import NotDueError

METHOD = "vertical-boost"
SETTINGS = {"trees": 30, "select_trees": 0, "leaves": 8, "tree_depth": 3}
BOTH = dataclasses.replace(
    WIDE,
    methods=(METHOD, "vprf"),
    values=10**6,
    predict_inference=("clear", "fed-eini"),
)


def allowing(**more: Any) -> dict[str, dict[str, Any]]:
    """Return the configs of parties that allow trees, and this."""
    return {name: {"policy": dataclasses.replace(BOTH, **more)} for name in HELD}


ALLOWED = allowing()


def train(out: Path, settings: dict[str, Any], method: str = METHOD) -> Path:
    how = {"method": method, "settings": settings, "seeds": (0,)}
    return test_predict.train(out, BOTH, **how)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a run with trees, every side in it."""
    return train(tmp_path_factory.mktemp("trained"), SETTINGS)


@pytest.fixture
def folder(trained, tmp_path):
    """Return a copy of it that a test may spoil."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_answers_are_those_in_the_clear(folder, monkeypatch):
    """Of a batch, of several, and of one row; no embedding leaves."""
    with a_session(folder, parties=ALLOWED, inference="fed-eini") as (predictor, sides):
        places = everybody(predictor)
        found = predictor.predict(places)
        right = in_process(folder, common())
        assert np.abs(found.z - right).max() < 1e-4
        assert np.unique(right).size > 50
        alone = predictor.predict(places[:1])
        assert np.abs(alone.z - right[:1]).max() < 1e-4
        monkeypatch.setattr("lessvfl.core.hidden_paths.MOST_TERMS", 30_000)
        parts = predictor.predict(places)
        assert np.abs(parts.z - right).max() < 1e-4
        for side in sides.values():
            assert not side.party.state.opening.sent.any()


def test_a_table_of_answers_is_the_same(folder):
    tables = []
    for how in ("clear", "fed-eini"):
        with a_session(folder, parties=ALLOWED, inference=how) as (predictor, _):
            tables.append(predictor.answer(IDS[common()].tolist())[0])
    assert tables[0]["prediction"] == tables[1]["prediction"]
    clear, hidden = (table["probability_ill"] for table in tables)
    assert hidden == pytest.approx(clear, abs=1e-5)


def test_the_service_hides_paths_too(folder):
    rows = common()[:5]
    how: dict[str, Any] = {"parties": ALLOWED, "inference": "fed-eini"}
    with a_service(folder, **how) as (client, _):
        said = client.post("/predict", json={"ids": IDS[rows].tolist()}).json()
    server = load(folder / "server")
    labels = [one["prediction"] for one in said["predictions"]]
    assert labels == server.answers(in_process(folder, rows)).tolist()


def test_a_policy_says_how_trees_may_predict(folder):
    usual = allowing(predict_inference=("clear",))
    with a_session(folder, parties=usual, inference="fed-eini") as (predictor, _):
        with pytest.raises(PolicyError, match=r"policy.predict_inference.*'fed-eini'"):
            predictor.predict(everybody(predictor))
    strict = allowing(predict_inference=("fed-eini",))
    with a_session(folder, parties=strict) as (predictor, _):
        predictor.ping()
        with pytest.raises(PolicyError, match=r"policy.predict_inference.*'clear'"):
            predictor.predict(everybody(predictor))


def test_rows_are_charged_for_every_time(folder):
    """The sum of the same row by other weights is another one."""
    own = allowing(predict_rows=50)
    with a_session(folder, parties=own, inference="fed-eini") as (predictor, _):
        places = everybody(predictor)
        for _ in range(2):
            predictor.predict(places[:20])
        with pytest.raises(PolicyError, match="predict_rows"):
            predictor.predict(places[:20])


def test_every_sum_that_the_server_asks_for_is_charged(folder):
    """Once, a row had one price whatever the outputs, of which it may say 65,536."""
    with a_session(folder, parties=ALLOWED, inference="fed-eini") as (predictor, sides):
        paths = predictor._paths
        assert paths is not None
        name, own = next(iter(paths.splits.items()))
        sizes = paths.order.sizes
        numbers = np.r_[0, len(paths.splits), 7, sizes, np.full(len(sizes), -1)]
        said = (everybody(predictor)[:1], numbers, own.places)
        arrays = tuple(map(torch.from_numpy, said))
        before = told(folder, name)
        sides[name].party.handle(messages.Query("predict", PathStep.KEYS, arrays))
        new = set(told(folder, name)) - set(before)
        (values, bits, n_predictions, n_rows) = max(new)
        assert (values - before[0][0], bits - before[0][1]) == (7, 7 * 32)
        assert (n_predictions, n_rows) == (1, 1)


def test_steps_that_a_policy_does_not_have_may_bring_nothing(folder):
    """Nothing of them is unpacked: once, 8 KiB for each row were."""
    usual = allowing(predict_inference=("clear",))
    with a_session(folder, parties=usual) as (_, sides):
        due = sides["bank"].party.due()
    assert due.kinds[messages.Query].n_bytes == 0
    data = codec.encode(WireFrame(messages.Query("predict", 0, (torch.ones(9),)), 1))
    with pytest.raises(NotDueError, match=r"policy.predict_inference.*'fed-eini'"):
        codec.decode(data, due.accept)


def test_a_row_that_is_there_twice_is_charged_for_twice(folder):
    """In one batch, too, each sum may be of other weights."""
    own = allowing(predict_rows=50)
    with a_session(folder, parties=own, inference="fed-eini") as (predictor, _):
        place = everybody(predictor)[:1]
        predictor.predict(np.repeat(place, 20))
        with pytest.raises(PolicyError, match="predict_rows"):
            predictor.predict(np.repeat(place, 31))


@pytest.mark.parametrize("error", [OverflowError, MemoryError, AttributeError])
def test_whatever_cannot_be_done_is_a_sentence(folder, monkeypatch, error):
    def fail(*args):
        raise error("of some kind")

    with a_session(folder, parties=ALLOWED, inference="fed-eini") as (predictor, sides):
        monkeypatch.setattr(PathParty, "answer", fail)
        rows = torch.from_numpy(everybody(predictor)[:3])
        with pytest.raises(ProtocolError, match=r"'bank' cannot do what it was asked"):
            sides["bank"].party.handle(messages.Query("predict", 0, (rows,)))


def test_a_party_that_comes_back_is_asked_again(folder):
    with a_session(folder, parties=ALLOWED, inference="fed-eini") as (predictor, sides):
        places = everybody(predictor)
        right = predictor.predict(places).z
        predictor.hub.hang_up("bank")
        until(lambda: "bank" in predictor.hub.connected)
        assert np.array_equal(predictor.predict(places).z, right)
        assert sides["bank"].error is None


def test_networks_and_small_trees_and_missing_parties_are_refused(folder, tmp_path):
    with (
        pytest.raises(ConfigError, match="'allow_missing' must be false"),
        a_session(folder, inference="fed-eini", allow_missing=True),
    ):
        pass
    small = train(tmp_path / "small", {**SETTINGS, "trees": 2})
    with (
        pytest.raises(ConfigError, match=r"1,000,000,000 ways or more"),
        a_session(small, inference="fed-eini"),
    ):
        pass
    with pytest.raises(ConfigError, match=r"1,000,000,000 ways or more"):
        load(small / "server").hidden_paths()


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_a_step_out_of_order_is_refused(folder, step):
    with a_session(folder, parties=ALLOWED, inference="fed-eini") as (predictor, sides):
        party = sides["bank"].party
        query = messages.Query("predict", step, ())
        assert "must begin a batch" in party.handle(query).reason
        predictor.predict(everybody(predictor)[:3])
        with pytest.raises(ProtocolError, match="a step that is over"):
            party.handle(query)


def test_votes_of_trees_have_no_paths_to_hide(tmp_path):
    """They are a party's own sums; nothing of a split leaves it."""
    out = train(tmp_path, {"trees": 8, "select_trees": 4}, "vprf")
    with a_session(out, parties=ALLOWED) as (predictor, _):
        places = everybody(predictor)
        assert set(predictor.model.sizes) == {1}
        right = in_process(out, common())
        np.testing.assert_array_equal(predictor.predict(places).z, right)
        assert np.unique(right).size > 10
    with pytest.raises(ConfigError, match="Got another model"):
        load(out / "server").hidden_paths()
