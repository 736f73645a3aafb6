"""A party that dials: what it says while there is no server."""

from __future__ import annotations

import itertools
import re

import pytest

from lessvfl.errors import PartyLostError
from lessvfl.wire import dial, flight
from lessvfl.wire.connection import GoneError
from lessvfl.wire.control import Hello
from lessvfl.wire.due import NotDueError

HELLO = Hello("clinic", 1, "cpu", {})
ADDRESS = flight.Address("10.1.2.3:8815", None)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(dial, "time", clock)
    return clock


def serve(clock, monkeypatch, answer) -> list[str]:
    """Dial with a connection of our making, for at most ten minutes without one.

    Returns when it came and went.
    """
    told: list[str] = []
    listener = dial.Listener(lambda: told.append("came"), lambda: told.append("went"))
    monkeypatch.setattr(dial, "_converse", answer)
    dial.serve(
        ADDRESS,
        HELLO,
        lambda message: message,
        patience=600,
        sleep=clock.sleep,
        listener=listener,
    )
    return told


def test_a_server_that_is_not_there_is_a_line_at_once_and_one_a_minute(
    clock, monkeypatch, caplog
):
    def refuse(*args):
        raise GoneError("connection refused: nobody listens there")

    with caplog.at_level("INFO"), pytest.raises(PartyLostError) as ending:
        serve(clock, monkeypatch, refuse)
    first, *later = caplog.messages
    why = "(connection refused: nobody listens there)"
    assert first == (
        f"The server 10.1.2.3:8815 does not answer yet {why}; trying again, for up to "
        "10 min"
    )
    assert later[0].startswith("The server 10.1.2.3:8815 has not answered for 1 min ")
    assert re.search(r"\); trying again, for another 8 min \d+ s$", later[0])
    assert len(later) == 9
    assert str(ending.value) == (
        f"The server 10.1.2.3:8815 is missing: no answer for 10 min {why}."
    )


def test_a_connection_that_breaks_is_told_and_so_is_the_next(
    clock, monkeypatch, caplog
):
    """Every break is a line, and the patience begins anew with every message."""
    turns = iter(["message", "nobody", "nobody", "message", "farewell"])

    def answer(address, hello, handle, due, beat, carried):
        turn = next(turns)
        if turn == "nobody":
            raise GoneError("nobody")
        if turn == "message":
            handle("hello")
            raise GoneError("the connection broke")

    with caplog.at_level("INFO"):
        told = serve(clock, monkeypatch, answer)
    assert told == ["came", "went", "came", "went"]
    gone = (
        "The server 10.1.2.3:8815 is gone (the connection broke); trying again, for up "
        "to 10 min"
    )
    assert caplog.messages == [gone, gone]


def test_a_server_of_another_command_is_dialled_more_and_more_slowly(
    clock, monkeypatch, caplog
):
    """What is not due keeps no party from waiting, and from giving up."""
    dialled = []

    def answer(address, hello, handle, due, beat, carried):
        dialled.append(clock.now)
        handle(NotDueError("It trains."))
        raise GoneError("no proper reply")

    monkeypatch.setattr(dial, "_converse", answer)
    with caplog.at_level("INFO"), pytest.raises(PartyLostError, match="for 10 min"):
        dial.serve(
            ADDRESS,
            HELLO,
            lambda message: message,
            patience=600,
            decline=str,
            sleep=clock.sleep,
        )
    pauses = [b - a for a, b in itertools.pairwise(dialled)]
    assert pauses[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0])
    assert min(pauses[5:]) == pytest.approx(2.0)
    assert len(caplog.messages) == 10  # one at once, then one a minute


# What the engine says, as of pyarrow 26, and what a reader is told.
SAID = {
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:8997: "
    "Failed to connect to remote host: Connection refused": "nobody listens there",
    "errors resolving nosuchhost.invalid:8997: [field:hostname lookup error:address "
    "lookup failed for nosuchhost.invalid:8997: Domain name not found]": "host name",
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:8996: "
    "Peer name other is not in peer certificate": "not of 'server_name'",
    "last error: UNKNOWN: ipv4:127.0.0.1:8996: Ssl handshake failed "
    "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:0A000086:SSL routines::certificate "
    "verify failed: self-signed certificate": "not of the CA in 'ca'",
    "SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong version number": "not speak TLS",
    "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:8996: "
    "Socket closed": "another CA",
    "INTERNAL: ipv4:127.0.0.1:8994: Failed parsing HTTP/2": "no server of lessvfl",
    "Stream removed (Socket closed)": "the connection broke",
    "Could not write metadata to stream": "the connection broke",
}


@pytest.mark.parametrize("said", SAID)
def test_nobody_reads_what_the_engine_says(said):
    error = OSError(f"Flight returned unavailable error, with message: {said}. gRPC")
    reason = flight.reason_of(error)
    assert SAID[said] in reason
    assert not re.search("gRPC|ipv4|Flight|SSL_|metadata", reason)
