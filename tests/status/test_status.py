"""What a run is doing: the value, its page, its JSON and its metrics."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import until

from lessvfl.errors import ConfigError
from lessvfl.status import Status, file, page, words
from lessvfl.terms import Event, Stage
from lessvfl.web import limits, prometheus
from lessvfl.web import status as web
from lessvfl.web.status import StatusServer

N_STEPS: dict[Stage, int] = {"pretrain": 100, "select_components": 50, "train": 200}
DOCS = Path(__file__).parents[2] / "docs" / "status.md"


@pytest.fixture
def status(clock) -> Status:
    return Status("r1", "less-vfl", "phishing", ["bank", "clinic"], clock=clock)


def connect_all(status: Status) -> None:
    for party in status.snapshot()["parties"]:
        status.connect(party)


def walk(status: Status, clock, stage: Stage, steps: range, pause: float):
    """Do steps of a stage, one every `pause` seconds."""
    for step in steps:
        clock.now += pause
        status.stepped(stage, step, N_STEPS[stage])


# -------------------------------------------------------------------------------- state


def test_a_run_waits_for_everybody_named_in_the_message(status) -> None:
    assert status.snapshot()["state"] == "waiting"
    assert status.snapshot()["message"] == "waiting for bank, clinic"
    status.connect("bank")
    assert status.snapshot()["message"] == "waiting for clinic"
    status.connect("clinic")
    assert (status.snapshot()["state"], status.snapshot()["message"]) == ("running", "")


def test_many_missing_parties_are_counted() -> None:
    status = Status("r", "plain", "d", [f"p{i}" for i in range(9)])
    assert status.snapshot()["message"] == "waiting for p0, p1, p2 and 6 more"


def test_a_party_that_is_away_pauses_the_run(status, clock) -> None:
    connect_all(status)
    walk(status, clock, "pretrain", range(1, 6), 0.1)
    status.lose("clinic")
    clock.now += 30
    seen = status.snapshot()
    assert (seen["state"], seen["message"]) == ("paused", "waiting for clinic")
    assert seen["steps_per_second"] is None
    assert seen["stage_seconds_left"] is None
    assert seen["parties"]["clinic"]["since_seconds"] == pytest.approx(30)
    status.connect("clinic")
    assert status.snapshot()["state"] == "running"
    walk(status, clock, "pretrain", range(6, 11), 0.1)
    rate = status.snapshot()["steps_per_second"]
    assert rate == pytest.approx(10)  # the time away is not in it
    assert status.snapshot()["parties"]["clinic"]["connections"] == 2


def test_the_server_alone_needs_nobody(status) -> None:
    connect_all(status)
    status.stepped("select_components", 1, 50)
    status.lose("bank")
    assert status.snapshot()["state"] == "running"


@pytest.mark.parametrize("message", [None, "Party 'bank' stayed away."])
def test_the_first_end_counts_and_stops_the_time(status, clock, message) -> None:
    clock.now += 60
    status.ended(message)
    clock.now += 60
    status.ended("another")
    seen = status.snapshot()
    assert seen["state"] == ("done" if message is None else "failed")
    assert seen["message"] == (message or "")
    assert seen["seconds"] == pytest.approx(60, abs=1e-3)


def test_connecting_twice_or_losing_the_absent_changes_nothing(status) -> None:
    status.lose("bank")
    status.connect("bank")
    status.connect("bank")
    seen = status.snapshot()
    assert seen["parties"]["bank"]["connections"] == 1
    assert [event["text"] for event in seen["events"]] == ["bank connected"]


def test_events_are_numbered_and_the_latest_twenty_stay(status) -> None:
    for _ in range(15):
        status.connect("bank")
        status.lose("bank")
    events = status.snapshot()["events"]
    assert [event["number"] for event in events] == list(range(11, 31))


# ------------------------------------------------------------------- rate and time left


def test_rate_and_time_left_of_a_steady_run(status, clock) -> None:
    connect_all(status)
    walk(status, clock, "pretrain", range(1, 41), 0.5)
    seen = status.snapshot()
    assert seen["steps_per_second"] == pytest.approx(2)
    assert seen["stage_seconds_left"] == pytest.approx(60 / 2)


def test_the_rate_is_of_the_last_seconds(status, clock) -> None:
    connect_all(status)
    walk(status, clock, "pretrain", range(1, 11), 5)
    walk(status, clock, "pretrain", range(11, 81), 0.2)
    assert status.snapshot()["steps_per_second"] == pytest.approx(5)


def test_the_rate_of_a_stalled_run_falls(status, clock) -> None:
    connect_all(status)
    walk(status, clock, "pretrain", range(1, 11), 1)
    clock.now += 91
    assert status.snapshot()["steps_per_second"] == pytest.approx(0.09)


def test_steps_slower_than_the_window_have_a_rate(status, clock) -> None:
    connect_all(status)
    walk(status, clock, "pretrain", range(1, 6), 30)
    assert status.snapshot()["steps_per_second"] == pytest.approx(1 / 30)


def test_a_stage_taken_up_again_starts_its_rate_anew(status, clock) -> None:
    connect_all(status)
    walk(status, clock, "pretrain", range(1, 50), 1)
    walk(status, clock, "pretrain", range(20, 30), 0.5)
    seen = status.snapshot()
    assert seen["steps_per_second"] == pytest.approx(2)
    assert (seen["step"], seen["steps"]["pretrain"]) == (29, 49)


def test_seeds_follow_each_other_and_their_steps_add_up(status, clock) -> None:
    """A method of one stage begins it anew with every seed."""
    connect_all(status)
    assert status.snapshot()["seed"] is None
    for number, seed in enumerate((7, 3), start=1):
        status.begin_seed(seed, number, 2)
        seen = status.snapshot()
        assert (seen["seed"], seen["seed_number"], seen["n_seeds"]) == (seed, number, 2)
        assert (seen["stage"], seen["step"]) == (None, None)
        walk(status, clock, "train", range(1, 11), 0.5)
    seen = status.snapshot()
    assert (seen["step"], seen["steps"]) == (10, {"train": 20})
    assert seen["steps_per_second"] == pytest.approx(2)
    assert words.place_text(seen).startswith("seed 3 (2 of 2), training: step 10 of ")
    started = [event["text"] for event in seen["events"] if "train" in event["text"]]
    assert [text.split(",")[0] for text in started] == [
        "seed 7 (1 of 2)",
        "seed 3 (2 of 2)",
    ]


def test_one_seed_needs_no_number(status) -> None:
    status.begin_seed(7, 1, 1)
    status.stepped("train", 1, 10)
    assert words.place_text(status.snapshot()) == "training: step 1 of 10"


def test_a_stage_told_by_epochs_alone_has_a_time_left(status, clock) -> None:
    connect_all(status)
    for epoch in range(1, 5):
        clock.now += 2
        status.observe(Event("select_components", epoch, 10))
    seen = status.snapshot()
    assert (seen["epoch"], seen["n_epochs"], seen["step"]) == (4, 10, None)
    assert seen["steps_per_second"] is None
    assert seen["stage_seconds_left"] == pytest.approx(12)
    assert words.place_text(seen) == "server selects components: epoch 4 of 10"


def test_steps_after_an_epoch_are_counted_as_steps(status, clock) -> None:
    connect_all(status)
    status.observe(Event("train", 1, 10))
    walk(status, clock, "train", range(21, 31), 0.5)
    status.observe(Event("train", 1.5, 10))
    assert status.snapshot()["steps_per_second"] == pytest.approx(2)
    assert status.snapshot()["epoch"] == 1.5


# ----------------------------------------------------------------------------- counting


def test_traffic_adds_up_and_evaluation_stands_apart(status) -> None:
    connect_all(status)
    status.carried("bank", wire_up=100, wire_down=50)
    status.stepped("pretrain", 1, 100)
    status.carried("bank", 10, 20, 11, 22)
    status.carried("bank", 10, 20, 11, 22)
    for _ in range(5):
        status.carried("clinic", 1, 2, 3, 4)
    status.carried("bank", 1000, 0, 1100, 0, stage="evaluate")
    seen = status.snapshot()
    bank = seen["parties"]["bank"]
    assert bank["traffic"] == {
        "rounds": 3,
        "payload_bytes": {"up": 20, "down": 40},
        "wire_bytes": {"up": 122, "down": 94},
    }
    assert list(bank["by_stage"]) == ["setup", "pretrain", "evaluate"]
    assert bank["by_stage"]["evaluate"]["payload_bytes"]["up"] == 1000
    assert seen["traffic"] == {
        "rounds": 5,
        "payload_bytes": {"up": 25, "down": 50},
        "wire_bytes": {"up": 137, "down": 114},
    }


def test_counters_cannot_be_made_to_fall(status) -> None:
    with pytest.raises(AssertionError):
        status.carried("bank", up=-1)


def test_a_party_was_last_heard_when_it_last_spoke(status, clock) -> None:
    status.carried("bank", up=1)  # while it is away
    assert status.snapshot()["parties"]["bank"]["heard"] is None
    status.connect("bank")
    clock.now += 7
    assert status.snapshot()["parties"]["bank"]["heard_seconds"] == 7
    status.carried("bank", up=1)
    assert status.snapshot()["parties"]["bank"]["heard_seconds"] == 0


def test_reasons_of_refusal_are_bounded(status) -> None:
    for i in range(100):
        status.refused(f"reason {i}")
    status.refused("reason 0")
    refused = status.snapshot()["refused"]
    assert len(refused) == 32
    assert sum(refused.values()) == 101
    assert (refused["reason 0"], refused["other"]) == (2, 69)


def test_a_score_that_is_not_finite_is_none(status) -> None:
    status.scored(0.91)
    assert status.snapshot()["score"] == {"name": "accuracy", "value": 0.91}
    status.scored(float("nan"), "r2")
    assert status.snapshot()["score"] is None


def test_threads_may_all_write_and_read(status) -> None:
    connect_all(status)
    n_threads, n_times = 8, 500
    wrong: list[str] = []

    def write() -> None:
        for step in range(n_times):
            status.stepped("pretrain", step, n_times)
            status.carried("bank", 1, 2, 3, 4)
            status.refused("foreign CA")

    def read() -> None:
        before = 0
        for _ in range(100):
            seen = status.snapshot()
            bank = seen["parties"]["bank"]["traffic"]
            up, down = bank["payload_bytes"]["up"], bank["payload_bytes"]["down"]
            if not before <= up or down != 2 * up or bank["rounds"] != up:
                wrong.append(f"{before} {bank}")
            before = up
            prometheus.render(seen)

    threads = [threading.Thread(target=write) for _ in range(n_threads)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    seen = status.snapshot()
    assert seen["parties"]["bank"]["traffic"]["rounds"] == n_threads * n_times
    assert seen["refused"] == {"foreign CA": n_threads * n_times}


# -------------------------------------------------------------------------------- words


def full(status: Status) -> Status:
    """Give a status something of everything."""
    connect_all(status)
    status.stepped("pretrain", 0, 100)
    status.stepped("pretrain", 40, 100)
    status.observe(Event("pretrain", 2, 5))
    for party in status.snapshot()["parties"]:
        status.carried(party, 4096, 2048, 4300, 2200)
    status.scored(0.9312)
    status.refused("foreign CA")
    return status


def test_headlines(status, clock) -> None:
    def headline() -> str:
        return words.headline(status.snapshot())

    assert headline() == "waiting for bank, clinic"
    connect_all(status)
    assert headline() == "starting"
    status.stepped("select_components", 1200, 4000)
    assert headline() == "server selects components: step 1,200 of 4,000"
    status.stepped("train", 1, 200)
    status.lose("bank")
    assert headline() == "paused: waiting for bank"
    clock.now += 125
    status.ended()
    assert headline() == "complete in 2 min 5 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min"), (3605, "1 h"), (90000, "1 d 1 h"), (None, "–")],
)
def test_times_in_words(seconds, text) -> None:
    assert words.left_text(seconds) == text


def said(status: Status) -> list[str]:
    return [event["text"] for event in status.snapshot()["events"]]


def test_a_stage_says_how_long_it_may_be_and_what_came_out() -> None:
    status = Status("", "less-vfl-auto", "d")
    status.begin_seed(4, 2, 3)
    status.observe(Event("pretrain", 0, 0.5))
    status.observe(Event("pretrain", 0.5, 0.5))
    status.scored(0.81)
    status.observe(Event("select_components", 0, 1))
    status.observe(Event("select_components", 1, 1))
    status.observe(Event("train", 0, 20))
    status.observe(Event("train", 1, 20))
    status.observe(Event("train", 13, 13))  # it ended by itself
    status.scored(0.979)
    status.ended()
    assert said(status) == [
        "seed 4 (2 of 3), pre-training: 0.5 epochs",
        "seed 4 (2 of 3), pre-training: done, test accuracy 0.810",
        "seed 4 (2 of 3), server selects components",
        "seed 4 (2 of 3), training: 20 epochs",
        "seed 4 (2 of 3), training: ended after 13 of at most 20 epochs, "
        "test accuracy 0.979",
        "done in 0 s",
    ]


def test_a_run_that_fails_says_nothing_of_its_stage() -> None:
    status = Status("", "plain", "d")
    status.observe(Event("train", 0, 1))
    status.scored(0.5, "r2")
    status.ended("It broke.")
    assert said(status) == ["training: 1 epoch", "failed: It broke."]


def test_what_is_done_before_the_first_stage(status) -> None:
    connect_all(status)
    status.do("alignment: 4 of 9", note=False)
    assert words.headline(status.snapshot()) == "alignment: 4 of 9"
    status.do("alignment: 7 common rows of your 9")
    status.stepped("train", 1, 10)
    assert words.headline(status.snapshot()) == "training: step 1 of 10"
    assert "alignment: 4 of 9" not in said(status)
    assert "alignment: 7 common rows of your 9" in said(status)


def test_what_parties_of_this_process_sent_is_traffic() -> None:
    status = Status("", "plain", "d")
    status.sent(3000, 2000, 7)
    traffic = status.snapshot()["traffic"]
    assert traffic["payload_bytes"] == {"up": 3000, "down": 2000}
    assert traffic["rounds"] == 7


def test_a_status_in_a_file_is_followed(tmp_path) -> None:
    status = Status("r", "plain", "d")
    follower = file.Follower(tmp_path / "s.json", Status("", "first", ""))
    assert follower.snapshot()["method"] == "first"
    with file.write(status, tmp_path / "s.json"):
        assert follower.snapshot()["method"] == "plain"
        status.stepped("train", 3, 10)
    assert follower.snapshot()["step"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
    with pytest.raises(OSError, match="No such"), file.write(status, Path("no/s")):
        pass
    with file.write(status, None):
        pass


def test_a_status_is_written_again_after_a_want_of_descriptors(tmp_path) -> None:
    status = Status("r", "plain", "d")
    real, full = status.snapshot, [OSError(errno.EMFILE, "Too many open files")]

    def snapshot() -> Any:
        if looked and full:
            raise full.pop()
        looked.append(1)
        return real()

    looked: list[int] = []
    status.snapshot = snapshot  # type: ignore[method-assign]
    with file.write(status, tmp_path / "s.json"):
        until(lambda: not full)
        status.stepped("train", 3, 10)
    assert json.loads((tmp_path / "s.json").read_text())["step"] == 3


def test_a_follower_ticks_before_there_is_a_file(tmp_path, clock) -> None:
    first = Status("", "plain", "digits", clock=clock)
    first.do("starting the server and 2 parties", note=False)
    follower = file.Follower(tmp_path / "s.json", first)
    assert follower.snapshot()["seconds"] == 0
    clock.now += 7
    early = follower.snapshot()
    assert (early["seconds"], early["events"]) == (7, [])
    assert words.headline(early) == "starting the server and 2 parties"
    status = Status("run", "plain", "labels.npz", ["bank", "lab"], clock=clock)
    with file.write(status, tmp_path / "s.json"):
        later = follower.snapshot()
        assert words.title(later) == words.title(early) == "plain on digits"
        assert (later["seconds"], later["message"]) == (7, "waiting for bank, lab")
    clock.now += 3
    with file.write(status, tmp_path / "s.json"):
        assert follower.snapshot()["seconds"] == 10


# --------------------------------------------------------------------------------- page


def test_the_page_escapes_every_name() -> None:
    evil = "<b>&\"'$x</b>"
    status = Status(evil, evil, evil, [evil])
    status.refused(evil)
    status.scored(0.5, evil)
    with StatusServer(status) as running:
        for change in (status.lose, status.connect, status.ended):
            change(evil)
            _, text = ask(running, "/")
            assert "<b>" not in text
            assert "&lt;b&gt;&amp;&#34;&#39;$x&lt;/b&gt;" in text


def test_the_page_of_every_state_says_what_is_up(status) -> None:
    assert "<h1>waiting for bank, clinic</h1>" in page.render(status.snapshot())
    full(status)
    text = page.render(status.snapshot())
    assert "<h1>pre-training: step 40 of 100</h1>" in text
    assert "2 of 2" in text
    assert "0.9312" in text
    assert "foreign CA 1" in text
    assert "<td>clinic connected</td>" in text
    assert 'class="banner" role="status" hidden' in text
    status.lose("clinic")
    text = page.render(status.snapshot())
    assert "<h1>paused: waiting for clinic</h1>" in text
    assert 'class="tag away"' in text
    assert "goes on by itself" in text
    status.ended("Party 'clinic' stayed away.")
    text = page.render(status.snapshot())
    assert "<h1>failed at pre-training: step 40 of 100</h1>" in text
    assert "Party &#39;clinic&#39; stayed away." in text


# ----------------------------------------------------------------------------- metrics

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? (\S+)')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> tuple[dict[str, str], Samples]:
    """Read the text format strictly: types by name, and every sample."""
    assert text.endswith("\n")
    types: dict[str, str] = {}
    samples: Samples = {}
    helped = ""
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            _, _, helped, meaning = line.split(" ", 3)
            assert helped not in types
            assert meaning
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == helped
            assert kind in ("counter", "gauge")
            assert name.endswith("_total") == (kind == "counter")
            types[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] == helped, "samples stand under their own type"
            labels = frozenset(
                (k, re.sub(r"\\.", lambda m: UNESCAPED[m[0]], v))
                for k, v in LABEL.findall(match[2] or "")
            )
            assert (match[1], labels) not in samples
            samples[match[1], labels] = float(match[3])
    return types, samples


def value(samples: Samples, name: str, /, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_metrics_say_what_the_snapshot_says(status) -> None:
    full(status).carried("bank", 7, 0, 8, 0, stage="evaluate")
    types, samples = parse(prometheus.render(status.snapshot()))
    assert set(types) == set(prometheus.FAMILIES)
    here = {"party": "bank", "stage": "pretrain"}
    assert value(samples, "lessvfl_rounds_total", **here) == 1
    payload, wire = "lessvfl_payload_bytes_total", "lessvfl_wire_bytes_total"
    assert value(samples, payload, direction="up", **here) == 4096
    assert value(samples, wire, direction="down", **here) == 2200
    evaluate = {"party": "bank", "stage": "evaluate", "direction": "up"}
    assert value(samples, payload, **evaluate) == 7
    assert value(samples, "lessvfl_steps_total", stage="pretrain") == 40
    assert value(samples, "lessvfl_score", name="accuracy") == 0.9312
    assert value(samples, "lessvfl_party_connected", party="clinic") == 1
    assert value(samples, "lessvfl_run_state", state="running") == 1
    assert value(samples, "lessvfl_run_state", state="failed") == 0
    assert value(samples, "lessvfl_refused_connections_total", reason="foreign CA") == 1
    began = value(samples, "lessvfl_run_start_time_seconds")
    assert abs(began - datetime.now(UTC).timestamp()) < 60


def test_metrics_of_the_unknown_have_no_sample(status) -> None:
    _, samples = parse(prometheus.render(status.snapshot()))
    names = {name for name, _ in samples}
    unknown = {"lessvfl_score", "lessvfl_stage_seconds_left", "lessvfl_steps_total"}
    assert not names & unknown


def test_labels_are_escaped() -> None:
    evil = 'a"b\\c\nd{},= \\n'
    _, samples = parse(prometheus.render(Status("r", "m", "d", [evil]).snapshot()))
    assert value(samples, "lessvfl_party_connected", party=evil) == 0


def test_counters_never_decrease(status, clock) -> None:
    """Whatever comes: a party lost, a stage taken up again, the end."""
    connect_all(status)
    status.carried("bank", 1, 1, 1, 1)
    before: Samples = {}
    for change in (
        lambda: walk(status, clock, "pretrain", range(1, 30), 0.1),
        lambda: status.lose("bank"),
        lambda: status.connect("bank"),
        lambda: walk(status, clock, "pretrain", range(10, 15), 0.1),
        lambda: status.carried("bank", 5, 5, 6, 6, stage="evaluate"),
        lambda: status.refused("foreign CA"),
        lambda: walk(status, clock, "train", range(3), 0.1),
        lambda: status.ended("No."),
    ):
        change()
        types, now = parse(prometheus.render(status.snapshot()))
        for (name, labels), was in before.items():
            if types[name] == "counter":
                assert now[name, labels] >= was, name
        before = now


# --------------------------------------------------------------------------------- HTTP


@pytest.fixture
def served(status) -> Iterator[StatusServer]:
    with StatusServer(full(status)) as running:
        yield running


@pytest.fixture(scope="module")
def standing() -> Iterator[StatusServer]:
    """Serve a run that no test changes."""
    status = Status("r1", "less-vfl", "phishing", ["bank", "clinic"])
    with StatusServer(full(status)) as running:
        yield running


def ask(
    where: StatusServer, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection(where.url[7:-1], timeout=30)
    with closing(connection):
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply, reply.read().decode()


@pytest.mark.parametrize(
    ("path", "kind", "inside"),
    [
        ("/", "text/html; charset=utf-8", "<h1>pre-training: step 40 of 100</h1>"),
        ("/?x=1", "text/html; charset=utf-8", "<h1>"),
        ("/status.json", "application/json", '"step": 40'),
        (
            "/metrics",
            prometheus.CONTENT_TYPE,
            'lessvfl_steps_total{stage="pretrain"} 40',
        ),
        ("/healthz", "text/plain; charset=utf-8", "running\n"),
    ],
)
def test_paths(standing, path, kind, inside) -> None:
    reply, text = ask(standing, path)
    assert (reply.status, reply.headers["Content-Type"]) == (200, kind)
    assert inside in text
    head, nothing = ask(standing, path, "HEAD")
    assert (head.status, head.headers["Content-Type"], nothing) == (200, kind, "")
    assert int(head.headers["Content-Length"]) > 0


def test_head_has_no_text(standing) -> None:
    with peers(standing, 1) as (peer,):
        peer.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        with peer.makefile("rb") as reply:
            assert reply.read().endswith(b"\r\n\r\n")


def test_every_reply_is_guarded(standing) -> None:
    for path in ("/", "/status.json", "/nowhere"):
        reply, _ = ask(standing, path)
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Cache-Control"] == "no-store"
        policy = reply.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert reply.headers["Server"] == "lessvfl"


def test_the_json_is_the_snapshot(served, status) -> None:
    _, text = ask(served, "/status.json")
    assert json.loads(text) == status.snapshot()


def test_the_state_of_health_is_that_of_the_run(served, status) -> None:
    status.ended("No.")
    reply, text = ask(served, "/healthz")
    assert (reply.status, text) == (503, "failed\n")
    assert ask(served, "/status.json")[0].status == 200


@pytest.mark.parametrize("path", ["/nowhere", "/page.css", "/../", "/metrics/"])
def test_nothing_else_is_there(standing, path) -> None:
    reply, text = ask(standing, path)
    assert (reply.status, text) == (404, "Not Found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_nothing_else_is_allowed(standing, method) -> None:
    reply, _ = ask(standing, "/", method)
    assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:80", 403),
        ("[", 403),
    ],
)
def test_a_foreign_name_is_not_answered(standing, host, code) -> None:
    """A page elsewhere cannot read ours by pointing its own name at this machine."""
    assert ask(standing, "/status.json", Host=host)[0].status == code


def test_a_garbled_request_is_answered_in_one_line(standing) -> None:
    with peers(standing, 1) as (peer,):
        peer.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert b"Bad" in peer.recv(4096)
    assert ask(standing, "/healthz")[0].status == 200


@contextlib.contextmanager
def peers(where: StatusServer, number: int) -> Iterator[list[socket.socket]]:
    """Connect as many peers that ask for nothing."""
    host, port = where.url[7:-1].split(":")
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            for _ in range(number)
        ]


def test_where_there_are_many_the_oldest_gives_way(status, monkeypatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 2)
    with StatusServer(status) as running, peers(running, 2) as mute:
        assert ask(running, "/healthz")[0].status == 200
        mute[0].settimeout(4)  # less than a connection may last
        assert mute[0].recv(1) == b""


def test_more_peers_than_are_answered_may_come_at_once(status) -> None:
    """They wait for a busy server to take them; none is asked to come again."""
    running = StatusServer(status)
    with peers(running, 40), running:
        assert ask(running, "/healthz")[0].status == 200


def test_a_request_has_few_bytes(status) -> None:
    """A hundred headers of 64 KiB on every connection would fill the memory."""
    with StatusServer(status) as running, peers(running, 1) as (peer,):
        many = b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(40))
        peer.settimeout(10)
        with contextlib.suppress(OSError):  # it may have hung up already
            peer.sendall(b"GET /status.json HTTP/1.0\r\n" + many + b"\r\n")
        told = b""
        with contextlib.suppress(OSError):
            told = peer.recv(100)
        assert b" 200 " not in told
        assert ask(running, "/healthz")[0].status == 200


def test_a_page_without_descriptors_comes_back(status, monkeypatch) -> None:
    """Whoever waits for an answer then gives way, and nothing spins."""
    full = [True, True]
    taken = socket.socket.accept

    def accept(door):
        if full:
            full.pop()
            raise OSError(errno.EMFILE, "Too many open files")
        return taken(door)

    with StatusServer(status) as running, peers(running, 1) as (mute,):
        until(lambda: running._server.server_state.connections)
        monkeypatch.setattr(socket.socket, "accept", accept)
        assert ask(running, "/healthz")[0].status == 200
        mute.settimeout(4)
        assert mute.recv(1) == b""


def has_ended(peer: socket.socket) -> bool:
    """Send a byte, and see whether the other side is gone."""
    try:
        peer.sendall(b"G")
        peer.settimeout(0.001)
        return peer.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_slow_peers_keep_nobody_out_and_are_let_go(status, monkeypatch) -> None:
    """Forty peers send a byte now and then, each sooner than a silent one ends."""
    monkeypatch.setattr(limits, "HEAD_SECONDS", 2.0)
    with StatusServer(status) as running, peers(running, 40) as slow:
        assert ask(running, "/healthz")[0].status == 200
        assert not has_ended(slow[-1])  # the answer did not wait for its end
        end = time.monotonic() + 20
        while slow := [peer for peer in slow if not has_ended(peer)]:
            assert time.monotonic() < end
            assert ask(running, "/healthz")[0].status == 200
            time.sleep(0.2)


def test_a_peer_who_takes_no_answers_delays_no_end(status, monkeypatch) -> None:
    """It asks for more of them than the buffers of both sides hold."""
    monkeypatch.setattr(limits, "HEAD_SECONDS", 2.0)
    asked = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    running = StatusServer(status)
    running._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with running, socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(running._listener.getsockname())
        peer.setblocking(False)
        until(lambda: running._server.server_state.connections)
        connections: Any = running._server.server_state.connections
        (stuck,) = connections
        end = time.monotonic() + 20
        while not stuck.flow.write_paused:
            assert time.monotonic() < end
            with contextlib.suppress(BlockingIOError):
                peer.send(asked * 100)
            time.sleep(0.01)
        began = time.monotonic()
        running.__exit__()
        assert time.monotonic() - began < 5


def test_names_that_are_no_text_do_not_end_it() -> None:
    """A folder may have a name of any bytes."""
    odd = b"run-\xff".decode("utf-8", "surrogateescape")
    with StatusServer(Status(odd, "m", "d", [odd])) as running:
        for path in ("/", "/status.json", "/metrics"):
            reply, text = ask(running, path)
            assert (reply.status, "run-" in text) == (200, True)


def test_the_page_shows_the_result_of_every_seed(status) -> None:
    full(status)
    status.ended(scores={3: ("accuracy", 0.9), 1: ("accuracy", 0.8)})
    text = page.render(status.snapshot())
    assert ": accuracy 0.8500 (mean of 2 seeds)</h1>" in text
    assert "<h1>complete in " in text
    assert '<th scope="row" class="name">3</th>' in text
    assert '<td class="number">0.9000</td>' in text
    status.ended("too late", {})
    assert page.render(status.snapshot()) == text


def test_a_failure_of_ours_is_logged_and_does_not_end_it(
    served, monkeypatch, caplog
) -> None:
    def fail(snapshot: object) -> str:
        raise RuntimeError("a bug")

    monkeypatch.setitem(web.PATHS, "/", ("text/html", fail))
    reply, text = ask(served, "/")
    assert (reply.status, text) == (500, "Internal Server Error\n")
    assert ask(served, "/healthz")[0].status == 200
    assert "a bug" in caplog.text


def test_leaving_the_block_frees_the_port(status) -> None:
    with StatusServer(status) as first:
        address = first.url[7:-1]
    with StatusServer(status, address) as second:
        assert ask(second, "/healthz")[0].status == 200


def test_a_port_in_use_is_said_in_one_sentence(served, status) -> None:
    address = served.url[7:-1]
    with pytest.raises(ConfigError, match=rf"{address}: the port is in use\. Give"):
        StatusServer(status, address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "example.org:80"]
)
def test_other_machines_are_kept_out(status, address) -> None:
    with pytest.raises(ConfigError, match=r"must be of this machine.*Got '"):
        StatusServer(status, address)


@pytest.mark.parametrize(
    "address", ["", "8080", "127.0.0.1", "localhost:x", "localhost:70000", "a/b:1"]
)
def test_an_address_is_host_and_port(status, address) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        StatusServer(status, address)


def test_an_address_that_cannot_be_had_is_a_sentence(status, monkeypatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(ConfigError, match=r"cannot have localhost:0: Name .+ known\."):
        StatusServer(status, "localhost:0")


def test_the_other_loopback(status) -> None:
    try:
        running = StatusServer(status, "[::1]:0")
    except ConfigError:
        pytest.skip("no IPv6 here")
    with running:
        assert running.url.startswith("http://[::1]:")
        assert ask(running, "/healthz")[0].status == 200


# -------------------------------------------------------------------- the documentation


def documented(title: str) -> dict[str, list[str]]:
    section = DOCS.read_text(encoding="utf-8").split(f"\n## {title}\n")[1]
    rows = re.findall(r"^\| `([\w./]+)` \|(.*)\|$", section.split("\n## ")[0], re.M)
    return {name: [c.strip() for c in cells.split("|")] for name, cells in rows}


def fields(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the path of every field; parties, stages and reasons are no fields."""
    for key, inner in value.items():
        name = "PARTY" if prefix == "parties." else key
        path = f"{prefix}{name}"
        if isinstance(inner, list):
            yield path
            for item in inner:
                yield from fields(item, f"{path}.")
        elif key in ("steps", "refused", "by_stage") or not isinstance(inner, dict):
            yield path
        else:
            yield path
            yield from fields(inner, f"{path}.")


def test_the_page_of_documentation_has_every_field_and_no_other(status) -> None:
    full(status).ended(scores={0: ("accuracy", 0.9)})
    status.allow(9, 1.5)
    found = set(fields(status.snapshot()))
    folded = {f for f in found if re.match(r"parties\.PARTY\.traffic\.", f)}
    between = {"parties.PARTY", "traffic.payload_bytes", "traffic.wire_bytes"}
    assert set(documented("status.json")) == found - folded - between


def test_the_page_of_documentation_has_every_metric(status, clock) -> None:
    full(status)
    walk(status, clock, "pretrain", range(41, 50), 1)
    types, samples = parse(prometheus.render(status.snapshot()))
    labels = {name: {k for k, _ in pairs} for name, pairs in samples}
    assert {
        name: (kind, set(filter(None, re.split(", *", listed))))
        for name, (kind, listed, _) in documented("Metrics").items()
    } == {name: (kind, labels[name]) for name, kind in types.items()}


def test_the_page_of_documentation_has_every_path() -> None:
    assert set(documented("On a page")) == set(web.PATHS)
