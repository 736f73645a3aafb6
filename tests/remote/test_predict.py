"""Joint prediction over Flight and HTTP: in-process numbers, faults, refusals."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import re
import secrets
import shutil
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.conftest import decode, until

from lessvfl import data, load, report
from lessvfl.errors import (
    AlignmentError,
    ConfigError,
    DataError,
    PartyLostError,
    PolicyError,
    ProtocolError,
    RecordError,
)
from lessvfl.remote.align import Aligner
from lessvfl.remote.config import PartyConfig, ServerConfig
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.policy import Policy
from lessvfl.remote.predict import PredictingParty, Predictor, texts_in_training
from lessvfl.remote.predict import models as predict_models
from lessvfl.remote.predict import party as predict_party
from lessvfl.remote.predict import server as predict_server
from lessvfl.remote.predict.journal import Journal
from lessvfl.remote.predict.service import Pending, PredictionSite, Service, Worker
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.tables import LabelTable
from lessvfl.run.record import write_atomically
from lessvfl.status import Status
from lessvfl.web import limits
from lessvfl.web.tokens import Right, Tokens, prepare
from lessvfl.wire import codec, dial
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.control import Agreed, Align, Ask, Declined, Open, Welcome
from lessvfl.wire.due import NotDueError
from lessvfl.wire.flight import Address, FlightHub
from lessvfl.wire.messages import Block

N = 240
IDS = np.array([f"person-{i}" for i in range(N)])
HELD = {"clinic": ("age", "town", "smokes"), "bank": ("income", "noise")}
TOKEN = "a-token-of-the-tests.2999-12-31"
ADMIN = {"Authorization": "Bearer the-administrators-token.2999-12-31"}
WIDE = Policy(components_per_column=9, limits={"bits": None})


def a_frame(name: str) -> data.Frame:
    """Return a party's table: numbers, categories, truth values, missing cells."""
    rng = np.random.default_rng(3)
    columns: dict[str, Any] = {
        "age": rng.normal(50, 15, N),
        "town": rng.choice(["Ulm", "Bonn", "Jena"], N).astype(object),
        "smokes": rng.random(N) > 0.7,
        "income": rng.standard_t(2, N) * 1000,
        "noise": rng.normal(size=N),
    }
    columns["age"][::17] = np.nan
    columns["town"][5::19] = None
    import pandas

    return data.frame_of(pandas.DataFrame({k: columns[k] for k in HELD[name]}))


def the_labels() -> Any:
    clinic, bank = a_frame("clinic"), a_frame("bank")
    age = np.nan_to_num(clinic.numeric[:, 0], nan=50.0)
    score = (age - 50) / 15 + np.clip(bank.numeric[:, 0] / 1000, -2, 2)
    y = np.where(score > 0, "ill", "well")
    return data.from_arrays(np.zeros((N, 1)), y, name="people")


def order(name: str) -> Any:
    """Return the rows of a party's own table, shuffled, some of them not there."""
    rng = np.random.default_rng(len(name))
    return rng.permutation(N)[: N - 10]


def party_config(name: str, out: Path, **more: Any) -> PartyConfig:
    own: dict[str, Any] = {"align": "psi", "id": "id", "policy": WIDE}
    return PartyConfig(out=str(out / name), **own | more)


def server_config(out: Path, **more: Any) -> ServerConfig:
    own: dict[str, Any] = {"align": "psi", "id": "id", "wait": 20.0}
    settings = {"train_epochs": 4.0, "batch_size": 64, "second_look": 0}
    own |= {"settings": settings, "seeds": (0, 4)}
    return ServerConfig(parties=tuple(HELD), out=str(out / "server"), **own | more)


class Side(threading.Thread):
    """One party in a thread, and how it ended."""

    def __init__(self, party: Any, port: int) -> None:
        super().__init__(daemon=True)
        self.party, self.port = party, port
        self.error: BaseException | None = None
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        address, party = Address(f"127.0.0.1:{self.port}", None), self.party
        how: dict[str, Any] = {"patience": 20.0, "sleep": self._pause}
        how["due"] = party.due
        if isinstance(party, PredictingParty):
            how["decline"] = party.decline
        try:
            dial.serve(address, party.hello(), party.handle, **how)
        except BaseException as error:
            self.error = error
        finally:
            self.party.close()

    def _pause(self, seconds: float) -> None:
        """Wait before it dials again; at the end of a test it does not."""
        if self._over.wait(seconds):
            raise InterruptedError

    def dial_no_more(self) -> None:
        """Keep the connection that there is, and make no other."""
        self._over.set()

    def end(self) -> None:
        """Have it dial no more, and let go of its folder."""
        self.dial_no_more()
        self.join(10)


@contextlib.contextmanager
def a_hub(names=HELD):
    hub = FlightHub("127.0.0.1:0", tuple(names), None, silence=20.0)
    try:
        yield hub
    finally:
        hub.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a run of two seeds, every side in it."""
    return train(tmp_path_factory.mktemp("trained"))


def train(
    out: Path,
    policy: Policy = WIDE,
    labels: Any = None,
    columns: Any = None,
    **more: Any,
) -> Path:
    """Run a method between all sides; `more` is of the server's config.

    `columns` is of the parties'.
    """
    own = server_config(out, **{"align": "plain"} | more)
    sides = []
    with a_hub() as hub:
        for name in HELD:
            rows = order(name)
            frame = a_frame(name).take(rows)
            how = {"align": "plain", "policy": policy} | (columns or {})
            config = party_config(name, out, **how)
            sides.append(Side(PartyProcess(name, config, frame, IDS[rows]), hub.port))
        status = Status("run", own.method, "people", tuple(HELD))
        table = LabelTable(the_labels() if labels is None else labels, ids=IDS)
        server = ServerProcess(own, table, hub, status)
        server.run()
        server.close()
    for side in sides:
        side.end()
    return out


@pytest.fixture
def folder(trained, tmp_path):
    """Return a copy of it that a test may spoil."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_texts_of_training_are_read_by_the_model(trained, tmp_path, monkeypatch):
    """Alone, '1.234' would be a number; where it was a text, the model decides."""
    encoding = data.Encoding.fit("clinic", a_frame("clinic"), HELD["clinic"])
    model = SimpleNamespace(encoding=encoding)
    monkeypatch.setattr(predict_models, "_fitted", lambda config, seed: model)
    assert texts_in_training(party_config("clinic", trained)) == {"town"}
    assert texts_in_training(party_config("server", trained)) == set()
    path = tmp_path / "later.csv"
    path.write_text("id,town,age\n1,1.234,50\n")
    frame, _ = data.load_columns(path, "id", {"town"})
    assert frame.texts(0).tolist() == ["1.234"]
    assert frame.numeric[0, 1] == 50.0


def a_party(name: str, out: Path, rows=None, frame=None, **more: Any):
    rows = order(name) if rows is None else rows
    frame = a_frame(name).take(rows) if frame is None else frame
    return PredictingParty(name, party_config(name, out, **more), frame, IDS[rows])


@contextlib.contextmanager
def a_session(out: Path, ids: Any = IDS, parties=None, align="plain", **more: Any):
    """Have a predictor with its parties, rows aligned."""
    sides: dict[str, Side] = {}
    with a_hub() as hub:
        for name in HELD:
            party = a_party(name, out, align=align, **(parties or {}).get(name, {}))
            sides[name] = Side(party, hub.port)
        predictor = Predictor(server_config(out, align=align), ids, hub, **more)
        try:
            predictor.begin()
            yield predictor, sides
        finally:
            predictor.close()
            hub.close()
            for side in sides.values():
                side.end()


def in_process(out: Path, rows: Any, seed: int = 0) -> Any:
    """Return what the parts of all sides say of rows, in this process."""
    server = load(out / "server", seed)
    blocks = [load(out / n, seed).embed(a_frame(n).take(rows)) for n in HELD]
    return server.fuse(blocks, len(rows))


def alike(found: Any, right: Any) -> bool:
    """Tell whether values are the same up to single precision.

    Embeddings that came over the wire lie elsewhere in memory, and a product of the
    same numbers may then be rounded otherwise: by a share of what was added up, of
    which a sum near zero says nothing.
    """
    found, right = np.asarray(found), np.asarray(right)
    near = 1e-5 * max(1.0, np.abs(right).max())
    return found.shape == right.shape and np.allclose(found, right, rtol=0, atol=near)


def common() -> list[int]:
    both: list[int] = np.intersect1d(order("clinic"), order("bank")).tolist()
    return both


def everybody(predictor: Predictor) -> Any:
    """Return the places of all common rows."""
    places, missing = predictor.places([str(name) for name in IDS[common()]])
    assert missing == []
    return places


def policy(**allowed: Any) -> dict[str, Any]:
    """Return the config of a party that allows this and no more."""
    return {"policy": dataclasses.replace(WIDE, **allowed)}


ONCE = dict.fromkeys(HELD, policy(predict_alignments=1))


# -------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize(("seed", "align"), [(0, "psi"), (4, "plain")])
def test_answers_are_those_of_the_parts_in_one_process(folder, seed, align):
    """Shuffled rows, psi, categories and missing cells, batch by batch."""
    with a_session(folder, seed=seed, align=align) as (predictor, _):
        places = everybody(predictor)
        found = predictor.predict(places)
        assert alike(found.z, in_process(folder, common(), seed))
        assert not found.partial
        alone = predictor.predict(places[:1])
        assert alike(alone.z, found.z[:1])


def test_long_requests_go_in_several_exchanges(folder, monkeypatch):
    monkeypatch.setattr(predict_server, "MOST_ROWS", 50)
    with a_session(folder) as (predictor, _):
        places = everybody(predictor)
        found = predictor.predict(places).z
        share = predictor.model.probabilities
        right = share(in_process(folder, common()))
        assert alike(share(found), right)


def test_a_table_of_answers_is_in_the_order_of_its_ids(folder):
    away = sorted(set(range(N)) - set(common()))
    asked = IDS[[common()[1], away[0], common()[0]]]
    with a_session(folder) as (predictor, _):
        table, found, missing = predictor.answer(asked.tolist())
    assert table["id"] == asked.tolist()
    assert missing == [1]
    shares = in_process(folder, [common()[1], common()[0]])
    server = load(folder / "server")
    assert [table["prediction"][i] for i in (0, 2)] == server.answers(shares).tolist()
    assert table["prediction"][1] is table["probability_ill"][1] is None
    assert table["partial"] == [False, None, False]
    assert not found.partial


def test_a_party_sends_kept_components_and_nothing_else(folder):
    with a_session(folder) as (predictor, _):
        sizes = {name: load(folder / name).n_components for name in HELD}
        assert dict(zip(HELD, predictor.model.sizes, strict=True)) == sizes
        rules = predictor.hub.rules
        sent: Counter[str] = Counter()

        def carried(party, request, n_up, n_down):
            sent[party] += n_up
            rules.carried(party, request, n_up, n_down)

        predictor.hub.rules = dataclasses.replace(rules, carried=carried)
        places = everybody(predictor)
        predictor.predict(places)
        for name, size in sizes.items():
            n_values = size * len(places)
            assert 4 * n_values <= sent[name] < 4 * n_values + 400


# -------------------------------------------------------------------------- the session


def test_a_session_goes_on_after_a_restart_of_anybody(folder):
    """Rows are aligned once; the party's policy counts it."""
    for _ in range(2):
        with a_session(folder, parties=ONCE) as (predictor, _):
            places = everybody(predictor)
            found = predictor.predict(places).z
            assert alike(found, in_process(folder, common()))
    with (
        pytest.raises(PolicyError, match=r"1 alignments .*predict_alignments"),
        a_session(folder, ids=IDS[:50], parties=ONCE),
    ):
        pass


def test_a_party_that_comes_back_is_asked_again(folder):
    with a_session(folder) as (predictor, sides):
        places = everybody(predictor)
        right = predictor.predict(places).z
        predictor.hub.hang_up("bank")
        until(lambda: "bank" in predictor.hub.connected)
        assert alike(predictor.predict(places).z, right)
        assert sides["bank"].error is None


def test_a_party_says_that_its_server_does_something_else(folder, caplog):
    """Once, however often that server asks."""
    own = dataclasses.replace(party_config("clinic", folder), server="10.0.0.1:8815")
    predicting = PredictingParty("clinic", own, a_frame("clinic"), IDS)
    with contextlib.closing(predicting):
        for _ in range(3):
            with pytest.raises(NotDueError) as caught:
                predicting.due().accept(Welcome, None, ())
            predicting.decline(caught.value)
    sentence = (
        "The server at 10.0.0.1:8815 must predict, by 'lessvfl predict server'. Got "
        "one that trains."
    )
    assert [line for line in caplog.messages if "10.0.0.1" in line] == [sentence]
    own = dataclasses.replace(own, out=str(folder / "another"))
    training = PartyProcess("clinic", own, a_frame("clinic"), IDS)
    with contextlib.closing(training), pytest.raises(NotDueError) as caught:
        training.due().accept(Open, None, ())
    assert str(caught.value) == (
        "The server at 10.0.0.1:8815 must train, by 'lessvfl server'. Got one that "
        "predicts."
    )


def test_who_dials_again_takes_the_place_of_its_dead_connection(folder):
    """A party that was killed is not missed until something is sent to it."""
    with a_session(folder) as (predictor, sides):
        places = everybody(predictor)
        right = predictor.predict(places).z
        sides["bank"].party.close()  # its folder is free; its connection stays open
        sides["bank"].dial_no_more()
        Side(a_party("bank", folder), predictor.hub.port)
        until(lambda: "bank" not in predictor._opened)
        assert alike(predictor.predict(places).z, right)


def test_who_is_back_after_it_was_counted_takes_up_the_session(folder, monkeypatch):
    with a_session(folder) as (predictor, sides):
        places = everybody(predictor)
        right = predictor.predict(places).z
        count = predictor._away
        again: list[Side] = []

        def away():
            found = count()
            if not again:
                sides["bank"].party.close()
                again.append(Side(a_party("bank", folder), predictor.hub.port))
                until(lambda: "bank" not in predictor._opened)
            return found

        monkeypatch.setattr(predictor, "_away", away)
        assert alike(predictor.predict(places).z, right)
        assert again[0].error is None


def test_a_party_that_goes_while_a_session_begins_is_waited_for(folder, monkeypatch):
    with a_session(folder) as (predictor, _):
        places = everybody(predictor)
        right = predictor.predict(places).z
        open_all, lost = predictor._open_all, [PartyLostError(["bank"], "gone")]

        def fail_once(session):
            if lost:
                raise lost.pop()
            return open_all(session)

        monkeypatch.setattr(predictor, "_open_all", fail_once)
        assert predictor.begin() == len(common())
        assert alike(predictor.predict(places).z, right)


def test_new_ids_need_another_alignment(folder):
    with a_session(folder, ids=IDS[:100]) as (predictor, _):
        late = [i for i in common() if i >= 100]
        assert len(predictor.places(IDS[late])[1]) == len(late)
        predictor.align_again(IDS)
        places, missing = predictor.places(IDS[late])
        assert missing == []
        assert alike(predictor.predict(places).z, in_process(folder, late))


def test_a_party_that_lost_the_rows_needs_another_alignment(folder):
    """As one that comes back with another table."""
    with a_session(folder) as (predictor, _):
        places = everybody(predictor)
        shutil.rmtree(folder / "bank" / "sessions")
        predictor.hub.hang_up("bank")
        until(lambda: "bank" in predictor.hub.connected)
        with pytest.raises(PartyLostError, match="lost the rows of this session"):
            predictor.predict(places)
        predictor.align_again(None)
        places = everybody(predictor)
        found = predictor.predict(places).z
        assert alike(found, in_process(folder, common()))


def test_an_alignment_that_is_declined_leaves_the_session_as_it_was(folder):
    with a_session(folder, ids=IDS[:100], parties=ONCE) as (predictor, _):
        with pytest.raises(PolicyError, match="predict_alignments"):
            predictor.align_again(IDS)
        some = [i for i in common() if i < 100]
        places, _ = predictor.places(IDS[some])
        assert alike(predictor.predict(places).z, in_process(folder, some))


def test_who_is_missing_is_named_or_stands_for_its_mean(folder):
    with a_session(folder) as (predictor, _):
        places = everybody(predictor)
        predictor.hub.rules = dataclasses.replace(
            predictor.hub.rules, newest_stays=False, admit=lambda hello: "not now"
        )
        predictor.hub.hang_up("bank")
        with pytest.raises(PartyLostError, match="'bank'"):
            predictor.predict(places)
        predictor.allow_missing = True
        found = predictor.predict(places)
        assert found.missing == ("bank",)
        server = load(folder / "server")
        clinic = load(folder / "clinic").embed(
            a_frame("clinic").take(np.array(common()))
        )
        mean = server.means["bank"].view(1, -1)
        assert alike(found.z, server.fuse([clinic, mean], len(places)))


# ----------------------------------------------------------- alignments, what leaves


class Rude(PredictingParty):
    """A party that hangs up instead of answering, some times."""

    hub: Any = None
    times = 0

    def handle(self, message: Any) -> Any:
        if self.times and isinstance(message, Align | Ask):
            self.times -= 1
            line = self.hub._lines[self.name]
            self.hub.hang_up(self.name)
            line.replies.put(None)  # the server hears of it at once
        return super().handle(message)


@contextlib.contextmanager
def a_rude_session(folder, times, align="psi", **allowed):
    """Have a session whose bank hangs up."""
    with a_hub() as hub:
        rows = order("bank")
        config = party_config("bank", folder, align=align)
        bank = Rude("bank", config, a_frame("bank").take(rows), IDS[rows])
        bank.hub, bank.times = hub, times
        clinic = a_party("clinic", folder, align=align, **policy(**allowed))
        sides = [Side(bank, hub.port), Side(clinic, hub.port)]
        predictor = Predictor(server_config(folder, align=align), IDS, hub)
        try:
            yield predictor, bank
        finally:
            predictor.close()
            hub.close()
            for side in sides:
                side.end()


def test_a_party_that_hangs_up_in_alignment_spends_nothing_of_the_others(folder):
    """Each try is the same question: it is paid for once, whoever broke it off."""
    with a_rude_session(folder, 5, predict_alignments=1) as (predictor, bank):
        assert predictor.begin() == len(common())
        assert bank.times == 0
        places = everybody(predictor)
        assert alike(predictor.predict(places).z, in_process(folder, common()))


def test_an_alignment_that_broke_off_is_the_same_after_a_restart(folder):
    asked = []

    def sent(predictor):
        send = predictor.hub.send

        def note(requests):
            asked.append(next(iter(requests.values())))
            return send(requests)

        predictor.hub.send = note

    for times in (1, 0):
        with a_rude_session(folder, times, predict_alignments=1) as (predictor, _):
            sent(predictor)
            with contextlib.suppress(PartyLostError):
                predictor._begin()
    hellos = [one.data for one in asked if isinstance(one, Align)]
    assert len(hellos) > 2
    assert hellos[0] == hellos[1]
    assert len({one.session for one in asked if isinstance(one, Open)}) == 1


def test_tries_that_fail_leave_the_session_in_use_alone(folder):
    """A party keeps two sessions: that in use, and the one that may become it."""
    with a_rude_session(folder, 0, "plain", predict_alignments=2) as (predictor, bank):
        predictor.begin()
        for _ in range(4):
            bank.times = 1
            with pytest.raises(PartyLostError):
                predictor.align_again(IDS[:100])
            predictor.hub.wait(20, predictor.parties)
        places = everybody(predictor)
        assert alike(predictor.predict(places).z, in_process(folder, common()))


def test_a_party_that_hangs_up_at_requests_spends_nothing_of_the_others(folder):
    """A row that was answered has the same numbers again: it counts once."""
    n_rows = len(common())
    with a_rude_session(folder, 0, "plain", predict_rows=n_rows) as (predictor, bank):
        predictor.begin()
        places = everybody(predictor)
        for _ in range(3):
            bank.times = 1
            with pytest.raises(PartyLostError):
                predictor.predict(places)
            predictor.hub.wait(20, predictor.parties)
        assert alike(predictor.predict(places).z, in_process(folder, common()))
    text = (folder / "clinic" / "predictions.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["rows"] for line in lines if line["rows"]] == [n_rows]
    again = [one for one in lines if one.get("asked") == "predict again"]
    assert sum(line["requests"] for line in again) == 3


def test_the_same_question_is_paid_for_once_and_another_table_again(folder):
    with a_session(folder, parties=ONCE) as (predictor, _):
        assert predictor.align_again(IDS) == len(common())
        assert predictor.align_again(IDS) == len(common())
    fewer = {"bank": ONCE["bank"] | {"rows": order("bank")[:-1]}}
    with (
        pytest.raises(PolicyError, match=r"1 alignments .*predict_alignments"),
        a_session(folder, parties=fewer),
    ):
        pass


def test_rows_may_be_aligned_already(folder):
    whole = {name: {"rows": np.arange(N)} for name in HELD}
    with a_session(folder, parties=whole, align="none") as (one, _):
        places, _ = one.places(IDS[:20])
        assert alike(one.predict(places).z, in_process(folder, list(range(20))))


def test_ids_that_nobody_has_get_the_rows_of_nobody(folder):
    made_up = np.array([f"nobody-{i}" for i in range(256)])
    with a_session(folder, align="psi") as (predictor, sides):
        with pytest.raises(PolicyError, match="at least 1 common rows are needed"):
            predictor.align_again(made_up)
        assert all(side.error is None for side in sides.values())


@pytest.mark.parametrize("align", ["psi", "plain"])
def test_rows_that_nobody_named_do_not_leave(folder, monkeypatch, align):
    """Who knows 20 ids claims a row of the party's of which it knows none."""
    honest = Aligner._named

    def claim_another(aligner, name, rows):
        listed, places = sides[name].party.state.aligner._listed, aligner._places[name]
        theirs = np.flatnonzero(listed < len(order(name)))
        unknown = int(np.setdiff1d(theirs, places[rows])[0])
        places[rows[0]] = unknown  # proven by what is known of another place
        return honest(aligner, name, rows)

    with a_session(folder, align=align) as (predictor, sides):
        monkeypatch.setattr(Aligner, "_named", claim_another)
        known = {side.party.name: side.party.state.rows for side in sides.values()}
        with pytest.raises((PartyLostError, ProtocolError)):
            predictor.align_again(IDS[common()[:20]])
        for name, side in sides.items():
            side.join(10)
            assert "names rows that are not common" in str(side.error)
            assert getattr(side.party.state, "rows", known[name]) is known[name]
            assert (
                side.party.budget.counts["asked"] == ""
            )  # another try is paid for again


# --------------------------------------------------------------------------- the policy


@pytest.mark.parametrize(
    ("allowed", "name"),
    [({"predict_rows": 5}, "predict_rows"), ({"predict_rate": 5}, "predict_rate")],
)
def test_a_party_declines_what_its_policy_does_not_allow(folder, allowed, name):
    with a_session(folder, parties={"bank": policy(**allowed)}) as (predictor, sides):
        places = everybody(predictor)
        with pytest.raises(PolicyError, match=rf"'bank' declines: .*policy\.{name}"):
            predictor.predict(places)
        right = in_process(folder, common()[:3])
        assert alike(predictor.predict(places[:3]).z, right)
        assert sides["bank"].error is None


def test_what_was_spent_is_not_given_back_by_a_restart(folder):
    strict = {"bank": policy(predict_rows=20)}
    with a_session(folder, parties=strict) as (predictor, _):
        places = everybody(predictor)
        predictor.predict(places[:15])
    with (
        a_session(folder, parties=strict) as (predictor, _),
        pytest.raises(PolicyError, match="predict_rows"),
    ):
        predictor.predict(predictor.places(IDS[common()])[0][:6])


def test_what_was_asked_for_in_the_last_minute_counts_after_a_restart(folder):
    slow = policy(predict_rate=20)
    with a_session(folder, parties={"bank": slow}) as (predictor, _):
        places = everybody(predictor)
        predictor.predict(places[:15])
    with a_session(folder, parties={"bank": slow}) as (predictor, _):
        with pytest.raises(PolicyError, match="predict_rate"):
            predictor.predict(places[:6])
        predictor.predict(places[:5])
    journal = folder / "bank" / "predictions.jsonl"
    old = re.sub(r'"time": "20\d\d', '"time": "2019', journal.read_text())
    journal.write_text(old + '{"time": "cut sho')
    with a_session(folder, parties={"bank": slow}) as (predictor, _):
        predictor.predict(places[:20])


def test_ids_that_a_policy_does_not_name_are_not_there(folder, tmp_path):
    named = tmp_path / "allowed.csv"
    named.write_text("id\n" + "\n".join(IDS[common()[:60]]) + "\n")
    few = {"bank": policy(predict_ids=str(named))}
    with a_session(folder, parties=few) as (predictor, _):
        places, missing = predictor.places(IDS[common()])
        assert len(places) == 60
        assert missing == list(range(60, len(common())))


def test_every_request_is_written_down_at_the_party(folder):
    with a_session(folder) as (predictor, sides):
        places = everybody(predictor)
        predictor.predict(places[:7])
        predictor.ping()  # asks for nothing, and is no request
        for _ in range(3):
            with pytest.raises(PolicyError, match="answers for common rows"):
                predictor.predict(np.array([10**6]))
        assert sides["bank"].error is None
    text = (folder / "bank" / "predictions.jsonl").read_text()
    aligned, asked = [
        line for line in map(json.loads, text.splitlines()) if "session" in line
    ]
    assert (aligned["asked"], aligned["rows"]) == ("align", 0)
    assert (asked["asked"], asked["rows"], asked["seeds"]) == ("predict", 7, [0])
    declined = [
        line for line in map(json.loads, text.splitlines()) if "declined" in line
    ]
    assert [line["declined"] for line in declined] == ["ask", "ask"]  # not three lines
    assert sum(line["requests"] for line in declined) == 3
    page = report.build(folder / "bank").read_text()
    assert "to predict: embeddings of 7 rows in 1 request, the last on 20" in page


# ---------------------------------------------------------------------------- bad input


def test_another_model_is_refused(folder, trained):
    path = folder / "bank" / "networks" / "seed-0" / "party1" / "party.json"
    path.write_text(path.read_text().replace("noise", "moise"))
    with (
        pytest.raises((ProtocolError, PartyLostError, DataError)),
        a_session(folder),
    ):
        pass


def test_another_fusion_network_is_refused(folder):
    path = folder / "server" / "networks" / "seed-0" / "server" / "server.json"
    path.write_text(path.read_text() + "\n")
    sentence = "must be used with the one that its own"
    with pytest.raises(ProtocolError, match=sentence), a_session(folder):
        pass


def test_a_table_that_does_not_fit_is_refused_at_the_start(folder):
    rows = order("clinic")
    whole = a_frame("clinic").take(rows)
    kept = load(folder / "clinic").kept
    without = whole.select([n for n in whole.names if n != kept[0]])
    with pytest.raises(DataError, match=f"Got none named '{kept[0]}'"):
        a_party("clinic", folder, rows, without)
    texts = data.frame_of(np.full((len(rows), 3), "x", dtype=object), whole.names)
    with pytest.raises(DataError, match="must hold numbers, as in training"):
        a_party("clinic", folder, rows, texts)


def test_a_run_folder_of_another_side_is_refused(folder):
    with pytest.raises(ConfigError, match="must be that of party 'bank'"):
        PredictingParty("bank", party_config("clinic", folder), a_frame("bank"), IDS)
    config = dataclasses.replace(server_config(folder), out=str(folder / "bank"))
    with a_hub() as hub, pytest.raises(ConfigError, match="must be the server's"):
        Predictor(config, IDS, hub)
    with pytest.raises(RecordError, match="is not a run folder"):
        PredictingParty("bank", PartyConfig(out=str(folder)), a_frame("bank"), IDS)


def test_a_run_folder_is_for_one_process(folder):
    first = a_party("bank", folder)
    with pytest.raises(ConfigError, match="one process at a time"):
        a_party("bank", folder)
    first.close()
    a_party("bank", folder).close()


def test_ids_of_no_use_are_refused(folder):
    with a_session(folder) as (predictor, _):
        for ids, error, sentence in (
            (["person-1", "person-1"], AlignmentError, "duplicate"),
            (["person-1", ""], AlignmentError, "lacks an id"),
        ):
            with pytest.raises(error, match=sentence):
                predictor.places(ids)


def test_nothing_is_answered_before_a_model_is_opened(folder):
    party = a_party("bank", folder)
    try:
        reply = party.handle(Ask(np.array([0])))
        assert isinstance(reply, Declined)
        assert "align its rows before" in reply.reason
        with pytest.raises(ProtocolError, match="asked for predictions"):
            party.handle(Declined("?"))
    finally:
        party.close()


def test_a_model_is_taken_up_so_often_and_not_more(folder, monkeypatch):
    """Each time the whole table goes through its network."""
    monkeypatch.setattr(predict_party, "OPENS", 3)
    party = a_party("bank", folder)
    try:
        header, (run, *_) = party.record.header, party.record.runs
        wanted = Open(header["run"], (0,), "0" * 32, run["models"]["server"], "psi")
        replies = [party.handle(wanted) for _ in range(4)]
        assert [type(reply) for reply in replies] == [Agreed] * 3 + [Declined]
        assert "loads a model at most 3 times a minute" in replies[-1].reason
        monkeypatch.setattr(predict_party, "MINUTE", 0.0)
        assert isinstance(party.handle(wanted), Agreed)
    finally:
        party.close()


def test_a_server_hears_that_it_opens_too_often(folder, monkeypatch):
    monkeypatch.setattr(predict_party, "OPENS", 1)
    with a_session(folder) as (predictor, _):
        other = dataclasses.replace(predictor._session, name=secrets.token_hex(16))
        with pytest.raises(PolicyError, match="at most 1 times a minute"):
            predictor._open("bank", other)


# -------------------------------------------------------------------------- the service


def the_tokens(folder: Path) -> Tokens:
    files: dict[Right, Path] = {"predict": folder / "token", "admin": folder / "admin"}
    texts = {"predict": TOKEN, "admin": ADMIN["Authorization"].removeprefix("Bearer ")}
    for right, path in files.items():
        write_atomically(path, texts[right].encode(), mode=0o600)
    return Tokens(files)


@contextlib.contextmanager
def a_service(folder, **more):
    with (
        a_session(folder, **more) as (predictor, _),
        Worker(predictor, lambda: IDS) as worker,
        contextlib.closing(Journal(folder / "server" / "requests.jsonl")) as journal,
    ):
        client = TestClient(
            PredictionSite(worker, the_tokens(folder), journal),
            base_url="http://127.0.0.1",
            raise_server_exceptions=False,
        )
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client, predictor


def test_the_service_answers_as_the_parts_do(folder):
    rows = common()[:5]
    with a_service(folder) as (client, predictor):
        found = client.post("/predict", json={"ids": IDS[rows].tolist()})
        assert found.status_code == 200
        said = found.json()
        metrics = client.get("/metrics").text
        assert client.get("/health").json()["status"] == "ok"
        document = client.get("/openapi.json").json()
    paths = document["paths"]
    named = [("Prediction", one) for one in said["predictions"]]
    server, z = load(folder / "server"), in_process(folder, rows)
    assert [one["id"] for one in said["predictions"]] == IDS[rows].tolist()
    labels = [one["prediction"] for one in said["predictions"]]
    assert labels == server.answers(z).tolist()
    shares = [[*one["probabilities"].values()] for one in said["predictions"]]
    assert alike(shares, server.probabilities(z))
    assert (said["partial"], said["seed"], said["missing"]) == (False, 0, [])
    assert said["model"] == predictor.digest
    assert "lessvfl_predict_rows_total 5" in metrics
    assert {"/predict", "/align", "/health", "/metrics"} <= set(paths)
    for name, one in [("Predictions", said), *named]:
        schema = document["components"]["schemas"][name]
        assert set(schema["required"]) == set(schema["properties"]) == set(one)


def test_requests_that_come_together_are_asked_together(folder):
    rows = common()[:30]
    with a_service(folder) as (client, predictor):
        asked, send = [], predictor.hub.send
        hold = threading.Event()

        def slow(requests):
            asked.append(requests)
            hold.wait(10)
            return send(requests)

        predictor.hub.send = slow
        answers: dict[int, Any] = {}

        def ask(row):
            answer = client.post("/predict", json={"ids": [IDS[row]]})
            answers[row] = answer.json()["predictions"][0]["probabilities"]["ill"]

        threads = [threading.Thread(target=ask, args=(row,)) for row in rows]
        for thread in threads:
            thread.start()
        until(lambda: asked)
        time.sleep(0.5)
        hold.set()
        for thread in threads:
            thread.join()
    right = load(folder / "server").probabilities(in_process(folder, rows))[:, 0]
    assert alike([answers[row] for row in rows], right)
    assert len(asked) < len(rows) / 2


BAD_BODIES: list[tuple[Any, int, str]] = [
    ({"ids": ["nobody"]}, 404, "must be of aligned rows. Got a request with"),
    ({"ids": ["person-1", "person-1"]}, 422, "duplicate"),
    ({"ids": []}, 413, "1 to 10000 ids. Got 0"),
    ({"ids": ["x"] * 10_001}, 413, "Got 10001"),
    ({"rows": [1]}, 422, 'must be JSON: {"ids": [...]}'),
    ({"rows": [1]}, 422, "Got no 'ids'."),
    ({"ids": [["a"]]}, 422, "Got other values."),
]


def test_a_bad_request_gets_a_sentence_and_the_service_goes_on(folder):
    with a_service(folder) as (client, _):
        for body, code, sentence in BAD_BODIES:
            refused = client.post("/predict", json=body)
            assert refused.status_code == code
            assert sentence in refused.json()["detail"]
            good = client.post("/predict", json={"ids": [IDS[common()[0]]]})
            assert good.status_code == 200


def test_a_body_is_json_whatever_the_client_calls_it(folder):
    """By default curl says that what it posts is a form."""
    with a_service(folder) as (client, _):
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        body = json.dumps({"ids": [str(IDS[common()[0]])]})
        good = client.post("/predict", content=body, headers=form)
        assert good.status_code == 200
        bad = client.post("/predict", content="ids=1", headers=form)
        assert (bad.status_code, "no JSON" in bad.json()["detail"]) == (422, True)


def test_a_request_without_the_token_is_refused(folder):
    with a_service(folder) as (client, _):
        for shown in ("Bearer another", "Basic abc", ""):
            headers = {"Authorization": shown}
            for call in ("POST /predict", "POST /align", "GET /metrics"):
                body = {"ids": ["a"]}
                refused = client.request(*call.split(), headers=headers, json=body)
                assert refused.status_code == 401
                assert "must bring a token of the service" in refused.json()["detail"]
            assert client.get("/health", headers=headers).status_code == 200


def test_the_service_names_who_is_missing_and_comes_back(folder):
    wanted = {"ids": [IDS[common()[0]]]}
    with a_service(folder) as (client, predictor):
        rules = predictor.hub.rules
        predictor.hub.rules = dataclasses.replace(rules, admit=lambda hello: "not now")
        predictor.hub.hang_up("bank")
        refused = client.post("/predict", json=wanted)
        assert refused.status_code == 503
        assert "'bank'" in refused.json()["detail"]
        assert client.get("/health").status_code == 503
        predictor.allow_missing = True
        partial = client.post("/predict", json=wanted).json()
        assert (partial["partial"], partial["missing"]) == (True, ["bank"])
        predictor.hub.rules = rules


# ---------------------------------------------------------------- attacks and accidents


def test_an_alignment_in_between_does_not_mix_people_up(folder):
    """Ids become places in the thread that aligns: never before an alignment."""
    rows = [i for i in common() if i < 100][:20]
    with a_service(folder, ids=IDS[:100]) as (client, predictor):
        begun, hold, send = threading.Event(), threading.Event(), predictor.hub.send

        def slow(requests):
            begun.set()
            hold.wait(10)
            return send(requests)

        predictor.hub.send = slow
        first = threading.Thread(
            target=client.post,
            args=("/predict",),
            kwargs={"json": {"ids": [IDS[rows[0]]]}},
        )
        first.start()
        begun.wait(10)
        found: dict[str, Any] = {}

        def align():
            found["align"] = client.post("/align", headers=ADMIN).status_code

        def predict():
            wanted = {"ids": IDS[rows].tolist()}
            found["predict"] = client.post("/predict", json=wanted).json()

        threads = [threading.Thread(target=work) for work in (align, predict)]
        for thread in threads:
            thread.start()
            time.sleep(0.3)
        hold.set()
        for thread in (first, *threads):
            thread.join(30)
    right = load(folder / "server").probabilities(in_process(folder, rows))[:, 0]
    shares = [one["probabilities"]["ill"] for one in found["predict"]["predictions"]]
    assert found["align"] == 200
    assert alike(shares, right)


def test_an_alignment_that_fails_at_the_disk_mixes_nobody_up(folder, monkeypatch):
    some = [i for i in common() if i < 100]
    with a_session(folder, ids=IDS[:100]) as (predictor, _):

        def full(path, state):
            raise OSError(28, "No space left")

        monkeypatch.setattr(predict_server, "write_state", full)
        with pytest.raises(OSError, match="No space left"):
            predictor.align_again(IDS)
        places, missing = predictor.places(IDS[some])
        assert missing == []
        assert alike(predictor.predict(places).z, in_process(folder, some))


def test_a_record_cannot_name_code_for_the_server_to_run(folder, tmp_path):
    proof = tmp_path / "proof"
    code = tmp_path / "code.py"
    code.write_text(f"open({str(proof)!r}, 'w')\ndef make(i, o): ...\n")
    path = folder / "server" / "record.jsonl"
    first, rest = path.read_text().split("\n", 1)
    header = json.loads(first)
    header["config"]["fusion_net"] = f"{code}:make"
    path.write_text(json.dumps(header) + "\n" + rest)
    with a_session(folder):
        pass
    assert not proof.exists()


def test_a_party_that_is_busy_for_ever_is_away(folder, monkeypatch):
    monkeypatch.setattr(predict_server, "LONGEST", 1.0)
    with a_session(folder) as (predictor, sides):
        places = everybody(predictor)
        over = threading.Event()
        sides["bank"].party._answer = lambda rows: over.wait(60)
        with pytest.raises(PartyLostError, match="no reply for 1 seconds"):
            predictor.predict(places)
        over.set()


def test_a_party_that_goes_at_every_request_costs_the_others_little(folder):
    with a_session(folder, allow_missing=True) as (predictor, sides):
        places = everybody(predictor)

        def leave(rows):
            raise OSError("gone")

        sides["bank"].party._answer = leave
        found = predictor.predict(places)
    assert found.missing == ("bank",)
    text = (folder / "clinic" / "predictions.jsonl").read_text()
    asked = [line for line in map(json.loads, text.splitlines()) if line["rows"]]
    assert len(asked) <= 2


@pytest.mark.parametrize("change", ["float64", "width", "rows"])
def test_an_answer_of_another_form_is_refused(folder, change):
    with a_session(folder) as (predictor, sides):
        places = everybody(predictor)
        party = sides["bank"].party
        honest = party._answer

        def other(rows):
            reply = honest(rows)
            h = reply.block.values
            block = {
                "float64": Block(h.double()),
                "width": Block(h[:, :-1]),
                "rows": Block(h[:-1]),
            }[change]
            return dataclasses.replace(reply, block=block)

        party._answer = other
        with pytest.raises(PartyLostError, match=r"must be of shape \("):
            predictor.predict(places)


@pytest.mark.parametrize("session", ["../../x", "0" * 31, "G" * 32, "x" * 4000])
def test_a_session_has_a_name_of_one_form(session):
    frame = codec.encode(WireFrame(Open("r", (0,), session, "0" * 64, "psi"), 1))
    with pytest.raises(
        ProtocolError, match="'session' of Open must be 32 hexadecimal digits"
    ):
        decode(frame)


def test_who_asks_too_much_takes_nobody_along(folder):
    rows, strict = common(), {"bank": policy(predict_rows=30)}
    with a_service(folder, parties=strict) as (_, predictor):
        worker = Worker(predictor)
        few, many = Pending(IDS[rows[:3]].tolist()), Pending(IDS[rows].tolist())
        for job in (few, many, None):
            worker._jobs.put(job)
        worker._work()
        assert len(few.done.result(0).z) == 3
        with pytest.raises(PolicyError, match="predict_rows"):
            many.done.result(0)


# ------------------------------------------------------------------ tokens and journal


def test_the_token_to_predict_neither_aligns_nor_tells_who_is_known(folder):
    """Who may predict hears one sentence for the whole request."""
    wanted = {"ids": [str(IDS[common()[0]]), "nobody", "no one"]}
    with a_service(folder) as (client, predictor):
        session = predictor._session
        refused = client.post("/align")
        assert (refused.status_code, predictor._session) == (403, session)
        assert "needs the token of the administrator" in refused.json()["detail"]
        for path in ("/align%0A", "/predict%0A", "/align/", "//align"):
            assert client.post(path, json=wanted).status_code == 404
            assert predictor._session is session
        hidden = client.post("/predict", json=wanted)
        told = client.post("/predict", json=wanted, headers=ADMIN)
    assert hidden.status_code == told.status_code == 404
    assert hidden.json()["detail"] == (
        "All ids must be of aligned rows. Got a request with others."
    )
    assert "Got 2 of 3 that are not, as 'nobody'" in told.json()["detail"]


def test_a_token_is_over_after_its_day_and_another_file_is_another_token(folder):
    with a_service(folder) as (client, _):
        token = folder / "token"

        def shown(text):
            headers = {"Authorization": f"Bearer {text}"}
            return client.get("/metrics", headers=headers)

        old = TOKEN.replace("2999", "2020")
        token.write_text(old)
        assert "Got one that is over" in shown(old).json()["detail"]
        assert shown(TOKEN).status_code == 401
        token.write_text("another-token-of-the-tests.2999-12-31")
        assert shown("another-token-of-the-tests.2999-12-31").status_code == 200
        token.write_text("one without a day")
        assert shown("one without a day").status_code == 401
        token.write_text(TOKEN)
        token.chmod(0o644)
        assert shown(TOKEN).status_code == 401  # others may have read it
        token.chmod(0o600)
        assert shown(TOKEN).status_code == 200
        token.unlink()
        assert shown("another-token-of-the-tests.2999-12-31").status_code == 401
        assert client.get("/metrics", headers=ADMIN).status_code == 200


def test_tokens_are_made_for_some_time_and_made_again(tmp_path):
    path = prepare("admin", tmp_path, None)
    first = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert prepare("admin", tmp_path, None).read_text() == first
    path.write_text(first[:-10] + "2020-01-01")
    assert prepare("admin", tmp_path, None).read_text() != first[:-10] + "2020-01-01"
    assert not Tokens({"admin": path}).find(b"Bearer " + first.encode())
    for text, sentence in (
        ("short.2999-01-01", "16 characters or more before its day. Got 5"),
        ("a-secret-that-is-long", "must end in a dot and the last day"),
        ("a-secret-that-is-long.2020-01-01", "must be good today. Got one"),
    ):
        write_atomically(tmp_path / "own", text.encode(), mode=0o600)
        with pytest.raises(ConfigError, match=sentence):
            prepare("predict", tmp_path, tmp_path / "own")
    (tmp_path / "own").chmod(0o644)
    with pytest.raises(ConfigError, match=r"The token .* by its owner alone"):
        prepare("predict", tmp_path, tmp_path / "own")
    with pytest.raises(ConfigError, match="must exist"):
        prepare("predict", tmp_path, tmp_path / "none")


def test_every_request_is_in_the_journal_of_the_service(folder):
    with a_service(folder) as (client, _):
        for _ in range(2):
            client.post("/predict", json={"ids": IDS[common()[:3]].tolist()})
        client.post("/align", headers=ADMIN)
        for _ in range(50):  # a flood is a line a minute
            client.post("/predict", headers={"Authorization": "Bearer guess"})
            client.get("/somewhere/else")
    text = (folder / "server" / "requests.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    asked = {"token": "predict", "path": "/predict", "status": 200, "ids": 3}
    assert [{k: v for k, v in one.items() if k != "time"} for one in lines[:3]] == [
        asked,
        asked,
        {"token": "admin", "path": "/align", "status": 200},
    ]
    refused = [one for one in lines if one["status"] == 401]
    assert sum(one["requests"] for one in refused) == 50
    unknown = [one for one in lines if one["path"] == "another"]
    assert sum(one["requests"] for one in unknown) == 50
    assert len(lines) == 7
    assert "person" not in text


# ---------------------------------------------------------------- floods of strangers


def test_ids_of_no_use_are_refused_at_first_sight(folder):
    bodies = {
        json.dumps({"ids": [1, "a"] * 150_000}): "1 to 10000 ids. Got 300000.",
        json.dumps({"ids": [1, "a" * 150] * 5_000}): "9,998 duplicate ids",
        json.dumps({"ids": [True] * 10_000}): "Got other values.",
        '{"ids": ' + "[" * 100_000 + "]" * 100_000 + "}": "a text that is no JSON",
        '{"ids": [' + "1" * 1_000_000 + "]}": "a text that is no JSON",
        '{"ids": ["\\ud800"]}': "not valid Unicode",
    }
    with a_service(folder) as (client, _):
        for content, sentence in bodies.items():
            began = time.process_time()
            refused = client.post("/predict", content=content)
            assert time.process_time() - began < 2
            assert refused.status_code in (413, 422)
            assert sentence in refused.json()["detail"]


@contextlib.contextmanager
def a_peer(tmp_path):
    """Have the service at a port, and a connection to it."""
    with (
        a_listening_service(tmp_path) as where,
        socket.create_connection(where, timeout=20) as peer,
    ):
        yield where, peer


@contextlib.contextmanager
def a_listening_service(tmp_path):
    """Have the service at a port, with nobody behind it."""
    hub = SimpleNamespace(connected=())
    predictor: Any = SimpleNamespace(hub=hub, parties=[], ping=lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as door, Worker(predictor) as worker:
        service = Service(worker, the_tokens(tmp_path), tmp_path)
        thread = threading.Thread(target=service.run, args=([door],), daemon=True)
        thread.start()
        try:
            yield ("127.0.0.1", door.getsockname()[1])
        finally:
            service.should_exit = True
            thread.join(10)


def is_well(where: tuple[str, int]) -> bool:
    """Tell whether somebody who asks properly is answered."""
    connection = http.client.HTTPConnection(*where, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def test_silent_connections_close_the_service_for_nobody(tmp_path):
    most = limits.CONNECTIONS
    with a_listening_service(tmp_path) as where, contextlib.ExitStack() as stack:
        assert is_well(where)
        silent = []
        for _ in range(most + 50):
            one = stack.enter_context(socket.create_connection(where))
            one.setblocking(False)
            silent.append(one)
        assert is_well(where)
        newest = silent[-1]
        with pytest.raises(BlockingIOError):
            newest.recv(1)  # the oldest gave way
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""


@pytest.mark.parametrize("sent", ["nothing", "a head byte by byte", "a body, refused"])
def test_a_connection_that_asks_nothing_ends(tmp_path, monkeypatch, sent):
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.5)
    with a_peer(tmp_path) as (where, peer):
        began = time.monotonic()
        if sent == "a body, refused":  # without a token: 401, and its body goes on
            peer.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n")
            peer.sendall(b"Content-Length: 1000000\r\n\r\n")
            assert b" 401 " in peer.recv(4096)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 15:
                if sent == "nothing":
                    assert peer.recv(1) == b""
                    break
                peer.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - began < 15
        assert is_well(where)


@pytest.mark.parametrize("token", ["", f"Authorization: Bearer {TOKEN}\r\n"])
def test_no_more_is_read_of_a_refused_body_than_a_request_may_have(tmp_path, token):
    """A body of 3 GB without a token was read to 200 MiB."""
    code, n_sent, part = (b" 413 " if token else b" 401 "), 0, bytes(1 << 20)
    with a_peer(tmp_path) as (where, peer):
        peer.sendall(f"POST /predict HTTP/1.1\r\nHost: localhost\r\n{token}".encode())
        peer.sendall(b"Content-Length: 3000000000\r\n\r\n")
        assert code in peer.recv(4096)
        with contextlib.suppress(ConnectionError):
            while n_sent < 16 * limits.BODY_BYTES:
                n_sent += peer.send(part)
        assert n_sent < 8 * limits.BODY_BYTES  # those in both sides' buffers, too
        assert is_well(where)


def test_who_writes_a_whole_request_without_a_token_is_told_why(tmp_path):
    with a_peer(tmp_path) as (_, peer):
        n_bytes = limits.BODY_BYTES - (1 << 18)  # as much as may be read at once
        peer.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n")
        peer.sendall(b"Content-Length: %d\r\n\r\n" % n_bytes)
        peer.sendall(bytes(n_bytes))
        assert b" 401 " in peer.recv(4096)


def test_a_body_that_takes_for_ever_is_not_waited_for(tmp_path, monkeypatch):
    """Every part of it came in time."""
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.5)
    with a_peer(tmp_path) as (_, peer):
        began = time.monotonic()
        peer.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n")
        peer.sendall(f"Authorization: Bearer {TOKEN}\r\n".encode())
        peer.sendall(b"Content-Length: 1000000\r\n\r\n")
        peer.settimeout(0.1)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while not answer and time.monotonic() - began < 15:
                peer.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    answer = peer.recv(4096) or b"over"
        assert time.monotonic() - began < 15


def test_strangers_who_read_no_answers_keep_nobody_out(tmp_path, monkeypatch):
    """Each of them has asked for more than fits into the buffers of both sides."""
    monkeypatch.setattr(limits, "CONNECTIONS", 8)
    monkeypatch.setattr(limits, "HEAD_SECONDS", 2.0)
    asked = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    with contextlib.ExitStack() as stack:
        with a_listening_service(tmp_path) as where:
            for _ in range(8):
                peer = stack.enter_context(socket.create_connection(where))
                peer.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        peer.send(asked * 1000)
            assert is_well(where)
            assert is_well(where)
            began = time.monotonic()
        assert time.monotonic() - began < 8


def test_a_garbled_body_is_refused_without_a_line_in_the_log(tmp_path, caplog):
    sent = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked"
    with a_peer(tmp_path) as (where, peer):
        peer.sendall(sent + b"\r\n\r\nno number\r\n\r\n")
        assert b" 400 " in peer.recv(4096)
        assert is_well(where)
    assert caplog.text == ""


def test_requests_of_one_connection_are_answered_in_order(tmp_path):
    """Whoever shows a token may ask several things at once."""
    head = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    paths = ("/health", "/nowhere", "/metrics", "/predict", "/health")
    asked = "".join(f"GET {path} HTTP/1.1\r\n{head}\r\n" for path in paths)
    last = f"GET /health HTTP/1.0\r\n{head}\r\n"
    with a_peer(tmp_path) as (_, peer), peer.makefile("rb") as reply:
        peer.sendall((asked + last).encode())
        codes = re.findall(rb"HTTP/1.1 (\d+)", reply.read())
    assert codes == [b"200", b"404", b"200", b"405", b"200", b"200"]
