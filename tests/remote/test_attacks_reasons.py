"""What a server or a party may try with reasons, and what becomes of it."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.remote.test_predict import HELD, a_session, common, everybody
from tests.remote.test_predict_reasons import asked_of, telling, train

from lessvfl import load
from lessvfl.errors import PolicyError
from lessvfl.remote.predict import reasons
from lessvfl.wire import codec
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.control import Agreed, Ask, Declined, Explain, Explained
from lessvfl.wire.due import Due, NotDueError

EVERY = telling(clinic="features", bank="features")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    return train(out, "plain", train_epochs=2.0, batch_size=32)


@pytest.fixture
def folder(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def meddle(predictor: Any, with_reply: Callable[[str, Any], Any]) -> None:
    """Have parties answer something else to requests for reasons."""
    send = predictor.hub.send

    def answer(requests: Any) -> Any:
        replies = send(requests)
        for party, asked in requests.items():
            if isinstance(asked, Explain):
                replies[party] = with_reply(party, replies[party])
        return replies

    predictor.hub.send = answer


# ---------------------------------------------------------------------------- a server


@pytest.fixture
def clinic(folder):
    """Return a party that tells, its rows aligned, and its folder."""
    with a_session(folder, parties=EVERY) as (_, sides):
        yield sides["clinic"].party, folder


def test_no_request_has_a_party_explain_thousands_of_rows_at_once(clinic):
    """What it takes in memory grows with the rows of one request, repeated or not."""
    party, folder = clinic
    asked = asked_of(folder, 1)
    many = Explain(
        np.repeat(asked.rows, 1001), np.repeat(asked.slopes, 1001, axis=0), 1
    )
    party.handle(Ask(asked.rows))
    reply = party.handle(many)
    assert isinstance(reply, Declined)
    assert reply.reason == "Party 'clinic' explains 1,000 rows at a time. Got 1,001."
    assert isinstance(party.handle(asked), Explained)


def test_a_party_that_kept_nothing_declines_and_is_not_charged(folder, tmp_path):
    """No honest server asks it: the constant in its place is known."""
    fitted = dataclasses.replace(
        load(folder / "clinic"),
        constant=torch.zeros(load(folder / "clinic").n_components),
    )
    with pytest.raises(PolicyError, match=r"'clinic' gives no reasons: it kept no"):
        reasons.read_parts([(fitted, tmp_path)])


def test_many_long_seeds_name_a_file_that_can_be_written(tmp_path):
    """A server chooses the seeds of a run, and a name has 255 bytes."""
    assert reasons.home_file((0, 4)) == "reasons-seed-0-4.csv"
    many = [2**62 + seed for seed in range(40)]
    names = {reasons.home_file(many), reasons.home_file(many[::-1])}
    assert len(names) == 2
    for name in names:
        (tmp_path / name).write_text("")
        assert name.startswith("reasons-seed-")


# ----------------------------------------------------------------------------- a party


def test_reasons_for_some_rows_alone_do_not_end_the_server(folder, monkeypatch):
    """A party tells of the first rows, and keeps the others at home."""
    monkeypatch.setattr(reasons, "ROWS_AT_ONCE", 50)
    heard: list[str] = []

    def first_alone(party: str, reply: Any) -> Any:
        heard.append(party)
        return reply if heard.count(party) == 1 else Agreed()

    with a_session(folder, parties=EVERY) as (predictor, _):
        meddle(predictor, first_alone)
        places = everybody(predictor)
        _, columns = predictor.explain(places, 9)
    assert heard.count("clinic") > 1
    named = columns["reason_1"]
    assert len(named) == len(places)
    assert not {"clinic: its columns", "bank: its columns"} & set(named[:50])
    assert set(named[50:]) <= {"clinic: its columns", "bank: its columns", None}


def test_who_hangs_up_instead_of_reasons_ends_nothing(folder, caplog):
    """Else all other parties would be asked, and charged, again."""
    with a_session(folder, parties=EVERY) as (predictor, _):
        send = predictor.hub.send

        def without_bank(requests: Any) -> Any:
            if any(isinstance(asked, Explain) for asked in requests.values()):
                predictor.hub.hang_up("bank")
            return send(requests)

        predictor.hub.send = without_bank
        with caplog.at_level(logging.WARNING):
            answers, columns = predictor.explain(everybody(predictor)[:5], 9)
    assert len(answers.z) == 5
    assert np.any(columns["contribution_bank"])
    named = {name for place in range(1, 10) for name in columns[f"reason_{place}"]}
    assert named & {"Your age", "clinic: town", "clinic: smokes"}
    assert not named & {"bank: income", "bank: noise"}
    assert "party 'bank' gives no reasons: Party 'bank' is missing" in caplog.text


def test_names_are_no_more_than_reasons(folder):
    asked = asked_of(folder)  # 3 rows, 2 reasons in each direction
    places, values = np.zeros((3, 4), np.int32), np.ones((3, 4), np.float32)
    names = tuple(map(str, range(13)))
    few = Explained(names[:12], ("",) * 12, places, values)
    accept = Due({Explained: reasons.reasons_due(asked)}).accept
    assert codec.decode(codec.encode(WireFrame(few, 1)), accept).message.names
    many = Explained(names, ("",) * 13, places, values)
    with pytest.raises(NotDueError, match=r"name 12 features at most\. Got 13\.$"):
        codec.decode(codec.encode(WireFrame(many, 1)), accept)


def test_other_names_in_every_answer_take_no_memory(folder, monkeypatch):
    """A table of all rows and all names that ever came would grow with both."""
    monkeypatch.setattr(reasons, "ROWS_AT_ONCE", 10)
    sizes: list[int] = []
    shares_of = reasons.shares_of

    def measured(*args: Any) -> Any:
        found = shares_of(*args)
        sizes.append(found.values.size)
        return found

    def renamed(party: str, reply: Explained) -> Explained:
        names = tuple(f"{len(sizes)} {name}" for name in reply.names)
        return dataclasses.replace(reply, names=names)

    monkeypatch.setattr("lessvfl.remote.predict.reasons.shares_of", measured)
    with a_session(folder, parties=EVERY) as (predictor, _):
        meddle(predictor, renamed)
        predictor.explain(everybody(predictor), 9)
    assert len(sizes) >= 2 * len(common()) // 10
    assert max(sizes) <= 10 * max(map(len, HELD.values()))


@pytest.mark.parametrize(
    "text", [" =1+1", "=\u00a0=1", "+ -@1", "\t =1", "\r\n=1", "\u200b=1"]
)
def test_nothing_before_a_formula_makes_it_one_in_a_table(text):
    told = Explained(
        ("a",), (text,), np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32)
    )
    (said,) = reasons.shares_of(told).texts.values()
    assert said in ("1", "1+1")
