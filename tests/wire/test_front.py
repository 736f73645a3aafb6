"""What strangers and members may take of a server: connections, streams, bytes."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from pyarrow import flight as arrow
from tests.conftest import decode, until

from lessvfl.core.plans import SelectPlan, TrainPlan
from lessvfl.errors import ConfigError, PartyLostError, ProtocolError
from lessvfl.remote import certificates
from lessvfl.remote.align.messages import most_offered
from lessvfl.wire import codec, control, dial, flight, front, messages
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.connection import GoneError
from lessvfl.wire.control import Agreed, Align, Finish, Hello, Refusal
from lessvfl.wire.due import ENDS, TOO_MUCH, Bound, NotDueError, requests
from lessvfl.wire.due import replies as due_of
from lessvfl.wire.front import Guest, Limits
from lessvfl.wire.hub import Hub
from lessvfl.wire.replies import ReplyRules

LONG = 4 << 20  # bytes of what is too long here


@contextlib.contextmanager
def a_hub(credentials=None, **more):
    given = {"silence": 20.0} | more
    name_of = certificates.name_of_peer
    hub = flight.FlightHub("127.0.0.1:0", ["a"], credentials, name_of=name_of, **given)
    try:
        yield hub
    finally:
        hub.close()


def join(hub, handle=lambda message: Agreed(), **more):
    """Have party 'a' take part, in a thread."""
    take_part(flight.Address(f"127.0.0.1:{hub.port}", None), handle, **more)
    hub.wait(20)


def read(due, message):
    """Read a message where this is due."""
    return codec.decode(codec.encode(WireFrame(message, 1)), due.accept).message


def take_part(address, handle=lambda message: Agreed(), **more):
    def work():
        with contextlib.suppress(PartyLostError, ProtocolError, ConfigError):
            dial.serve(address, Hello("a", 1, "cpu", {}), handle, patience=20.0, **more)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def knock(hub, source="127.0.0.1"):
    """Connect, and say nothing."""
    return socket.create_connection(("127.0.0.1", hub.port), 10, (source, 0))


def has_ended(peer):
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


# -------------------------------------------------------------------------- connections

KNOCK = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
where = ("127.0.0.1", int(sys.argv[1]))
silent = [socket.create_connection(where, 10) for _ in range(250)]
print("there", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def few_files(monkeypatch):
    """Let this process open 200 files more, as one that has just begun."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = len(os.listdir("/dev/fd")) + 200
    monkeypatch.setattr(front, "open_files", lambda: 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_silent_connections_leave_a_run_its_descriptors(monkeypatch):
    """More of them than a process may have open, without a certificate."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with few_files(monkeypatch), a_hub() as hub:
        join(hub)
        command = [sys.executable, "-SE", "-c", KNOCK, str(hub.port)]
        peers: Any = subprocess.Popen(command, **pipes)
        with peers:
            assert peers.stdout.readline() == "there\n"
            time.sleep(0.5)  # for the server to take them
            for _ in range(2):
                with contextlib.ExitStack() as held:
                    for _ in range(20):
                        held.enter_context(open(os.devnull))
                    assert hub.send({"a": Finish("0" * 64)}) == {"a": Agreed()}
            peers.stdin.close()


def test_who_waits_is_few_and_another_address_keeps_its_place():
    with a_hub(limits=Limits(waiting=4)) as hub, contextlib.ExitStack() as peers:
        other = peers.enter_context(knock(hub, "127.0.0.2"))
        many = [peers.enter_context(knock(hub)) for _ in range(30)]
        until(lambda: sum(map(has_ended, many)) == 27)
        assert not has_ended(other)
        join(hub)  # one more of the address that has most
        assert hub.send({"a": Finish("0" * 64)}) == {"a": Agreed()}


def test_fewer_may_wait_where_there_are_few_descriptors(monkeypatch):
    monkeypatch.setattr(front, "open_files", lambda: 1024)
    assert Limits().within_files(4).waiting == Limits().waiting
    monkeypatch.setattr(front, "open_files", lambda: 200)
    assert Limits().within_files(2).waiting == 10
    monkeypatch.setattr(front, "open_files", lambda: 64)
    assert Limits().within_files(4).waiting == 2


@pytest.mark.parametrize("word", [b"", b"\x16\x03\x01"], ids=["silent", "one word"])
def test_who_does_not_greet_in_time_is_let_go(word):
    with a_hub(limits=Limits(seconds=0.3)) as hub, knock(hub) as peer:
        peer.sendall(word)
        until(lambda: has_ended(peer), 10)


def test_who_has_greeted_stays():
    with a_hub(limits=Limits(seconds=0.3)) as hub:
        join(hub)
        time.sleep(0.5)
        assert hub.send({"a": Finish("0" * 64)}) == {"a": Agreed()}


def test_a_limit_of_open_files_is_raised_as_far_as_allowed(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda what, both: asked.append(both))
    front.raise_open_files()
    assert asked == [(4096, 4096)]


def test_without_descriptors_a_front_ends_who_waits_and_goes_on(monkeypatch):
    with a_hub(limits=Limits(waiting=4)) as hub, knock(hub) as silent:
        until(lambda: hub._front._guests)
        real, full = hub._front._listeners[0], [True, True]

        class Listener:
            def __getattr__(self, name):
                return getattr(real, name)

            def accept(self):
                if full:
                    full.pop()
                    raise OSError(24, "Too many open files")
                return real.accept()

        let_in = hub._front._let_in
        monkeypatch.setattr(hub._front, "_let_in", lambda _: let_in(Listener()))
        join(hub)
        assert has_ended(silent)


# ------------------------------------------------------------------------------ streams


def n_threads():
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads")
def test_streams_that_never_greet_hold_no_threads():
    with a_hub() as hub:
        client = arrow.connect(f"grpc+tcp://127.0.0.1:{hub.port}")
        to = arrow.FlightDescriptor.for_command(flight.COMMAND)
        first = client.do_exchange(to)
        time.sleep(0.3)
        before = n_threads()
        for _ in range(40):
            with pytest.raises(arrow.FlightUnavailableError, match="one stream"):
                client.do_exchange(to)[1].read_chunk()
        assert n_threads() < before + 20
        join(hub)
        assert hub.send({"a": Finish("0" * 64)}) == {"a": Agreed()}
        del first


def test_a_call_of_another_kind_is_refused():
    with a_hub() as hub:
        client = arrow.connect(f"grpc+tcp://127.0.0.1:{hub.port}")
        with pytest.raises(arrow.FlightUnavailableError, match="one stream"):
            list(client.list_flights())


def test_who_comes_past_the_front_is_not_listened_to():
    """A process of the same machine may find the port of a lane."""
    with a_hub() as hub, knock(hub) as other:
        other.sendall(b"PRI")
        until(lambda: hub._lanes[0]._guest is not None)
        client = arrow.connect(f"grpc+tcp://127.0.0.1:{hub._lanes[0].port}")
        to = arrow.FlightDescriptor.for_command(flight.COMMAND)
        writer, reader = client.do_exchange(to)
        stream = flight.FlightStream(reader, writer, client)
        hello = Hello("a", 1, "cpu", {})
        with contextlib.suppress(GoneError):
            stream.write(codec.encode(WireFrame(hello, 0)))
        with pytest.raises(GoneError):
            stream.read()
        assert hub.connected == ()
        stream.close()


def test_who_dials_again_and_owes_a_reply_keeps_no_connection(monkeypatch):
    """Once, each of them stayed, with its files, until a server had none left."""
    monkeypatch.setattr(front, "CLOSE_SECONDS", 0.2)
    hello = codec.encode(WireFrame(Hello("a", 1, "cpu", {}), 0))
    streams = []
    with a_hub() as hub:
        hub.rules = replace(hub.rules, newest_stays=True)

        def ask():
            with contextlib.suppress(PartyLostError, ProtocolError):
                hub.send({"a": Finish("0" * 64)})

        asking = None
        for _ in range(4):
            stream = flight.Address(f"127.0.0.1:{hub.port}", None).connect()
            stream.write(hello)
            streams.append(stream)
            if asking is not None:
                asking.join(20)  # who waited for the one before waits no longer
            until(lambda: hub.connected == ("a",))
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            stream.read()  # and says nothing
        until(lambda: len(hub._front._guests) == 1)
        for stream in streams:
            stream.close()


def test_a_party_does_not_fall_silent_where_nothing_is_removed():
    """Once, the server had a table of one row then, and ended in a traceback."""
    rules = ReplyRules((64, 10), 4, torch.float32)
    rules.server = cast(Any, SimpleNamespace(sizes={"a": 4}))
    plan = TrainPlan("pretrain", 1, 64, "shuffle", "adam", 0.01)
    block = messages.Block(torch.zeros(64, 4))
    reply = messages.Embedding("pretrain", block, ahead=True)
    read(rules.due("a", messages.Begin(plan)), reply)
    constant = messages.Block(torch.zeros(4))
    silent = messages.Done("pretrain", True, constant)
    due = rules.due("a", messages.Descend("pretrain", block, last=True))
    with pytest.raises(NotDueError, match="must not fall silent"):
        read(due, silent)


def test_lanes_are_used_again():
    with a_hub() as hub:
        for _ in range(8):
            with knock(hub) as peer:
                peer.sendall(b"PRI")
                until(lambda: any(lane._guest for lane in hub._lanes))
            until(lambda: len(hub._free) == len(hub._lanes))
        assert len(hub._lanes) <= 2


# -------------------------------------------------------------------------------- bytes


def test_nothing_is_read_of_who_is_not_expected():
    class Stream:
        said: list[bytes] = []  # noqa: RUF012

        def read(self):
            raise AssertionError("read")

        def write(self, data):
            self.said.append(data)

        @property
        def passed(self):
            raise AssertionError("counted")

        def expect(self, n_bytes):
            raise AssertionError("expected")

        def end_soon(self):
            raise AssertionError("ended")

        def close(self):
            raise AssertionError("closed")

    hub = Hub(["a"])
    hub.attend(Stream(), lambda: "stranger")
    (told,) = Stream.said
    refusal = decode(told).message
    assert refusal == Refusal("config", "The server does not expect 'stranger'.")
    assert hub._failure is None


def credentials_of(folder, party):
    """Return those of a server and of a party, signed by one CA."""
    certificates.init(folder, ["a", "stranger"])
    return [
        flight.Credentials(at / "cert.pem", at / "key.pem", at / "ca.pem")
        for at in (folder / "server", folder / party)
    ]


@pytest.mark.parametrize("secure", [True, False])
def test_a_long_greeting_does_not_come_in(tmp_path, secure):
    """That of a certificate of our CA neither; Flight would read it before any name."""
    server, own = credentials_of(tmp_path, "stranger") if secure else (None, None)
    with a_hub(server) as hub:
        stream = flight.Address(f"127.0.0.1:{hub.port}", own).connect()
        took = []
        gate = Guest.took
        with pytest.MonkeyPatch.context() as patch:

            def count(guest, n_bytes):
                took.append(n_bytes)
                gate(guest, n_bytes)

            patch.setattr(Guest, "took", count)
            with contextlib.suppress(GoneError):
                stream.write(bytes(LONG))
            with contextlib.suppress(GoneError):
                stream.read()  # a refusal, perhaps
            with pytest.raises(GoneError):
                stream.read()
        assert took or secure  # of a stranger perhaps not a byte is read
        assert sum(took) <= Limits().greeting
        stream.close()


def test_a_frame_that_is_cut_short_is_refused_at_once():
    """Once, the server waited for the rest until the stream ended: 20 seconds."""
    whole = codec.encode(WireFrame(Hello("a", 1, "cpu", {}), 0))
    with a_hub() as hub:
        stream = flight.Address(f"127.0.0.1:{hub.port}", None).connect()
        stream.write(whole[:-1])
        start = time.monotonic()
        refusal = decode(stream.read()).message
        assert time.monotonic() - start < 5
        assert isinstance(refusal, Refusal)
        assert refusal.reason.endswith(f"{len(whole) - 1} bytes of {len(whole)}.")
        stream.close()


def test_a_reply_of_more_bytes_than_are_due_is_cut_off():
    with a_hub() as hub:
        due: dict[type, Bound] = {Align: Bound(1000)}
        hub.rules = replace(hub.rules, due=lambda party, q: due_of(q, due))
        replies = [Align(bytes(LONG)), Agreed()]
        told = []
        hub.rules = replace(hub.rules, refused=lambda who, why: told.append((who, why)))
        join(hub, lambda message: replies.pop(0))
        with pytest.raises(PartyLostError, match="no more bytes than are due"):
            hub.send({"a": Align(b"")})
        ((who, why),) = told
        assert who == "a"
        assert why.startswith(TOO_MUCH)
        hub.wait(20)  # it is back, and does better
        assert hub.send({"a": Finish("0" * 64)}) == {"a": Agreed()}


def test_a_reply_that_is_due_may_be_long():
    with a_hub() as hub:
        due: dict[type, Bound] = {Align: Bound(LONG)}
        hub.rules = replace(hub.rules, due=lambda party, q: due_of(q, due))
        join(
            hub,
            lambda message: Align(bytes(LONG)),
            due=lambda: requests("aligning a run", due),
        )
        for _ in range(3):
            reply = hub.send({"a": Align(bytes(LONG))})
            assert len(reply["a"].data) == LONG


def test_the_bytes_that_a_guest_may_send():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guest = Guest(ours, "", Limits(greeting=100, beside=50, a_second=0))
        guest.took(60)
        assert guest.room() == 40  # and no more comes back before it is admitted
        guest.gave(16_000)
        assert guest.room() == 40
        guest.expect(80)
        assert guest.room() == 50 + 90
        guest.took(100)
        assert guest.room() == 40
        guest.gave(96)  # has to be acknowledged
        assert guest.room() == 46
        guest.gave(1 << 20)
        assert guest.room() == 50
        guest.expect(800)
        guest.expect(8)  # what was due before is not any more
        assert guest.room() == 50 + 9


@pytest.mark.parametrize("secure", [True, False])
def test_the_socket_is_counted_to_the_byte(tmp_path, secure):
    """What a party's own socket sends and gets is what the server counts."""
    server, own = credentials_of(tmp_path, "a") if secure else (None, None)

    def handle(message):
        if isinstance(message, Finish):
            until(lambda: hub.bytes.by_part()["frames", "alive", "up"])
        return message if isinstance(message, Align) else Agreed()

    with a_hub(server) as hub, relay(hub.port) as (port, passed):
        address = flight.Address(f"127.0.0.1:{port}", own)
        take_part(address, handle, beat=0.25)
        hub.wait(20)
        hub.send({"a": Align(bytes(5000))})
        hub.send({"a": Finish("0" * 64)})
        hub.send({"a": control.Save("train-1")})
        found = hub.bytes.by_part()

        def total(of, way):
            return sum(n for (o, _, w), n in found.items() if (o, w) == (of, way))

        for way in ("up", "down"):
            parts = {part for of, part, to in found if (of, to) == ("socket", way)}
            assert {"align", "around"} <= parts
            frames = found["frames", "align", way]
            assert 5000 < frames < found["socket", "align", way] < 1.2 * frames + 600
        assert found["frames", "alive", "up"] > 0
        stream = hub._lines["a"].stream
        until(lambda: stream.passed == messages.Traffic(passed["up"], passed["down"]))
        # An acknowledgement after the last frame is counted with the next one.
        for way in ("up", "down"):
            assert 0 <= passed[way] - total("socket", way) < 200


@contextlib.contextmanager
def relay(port):
    """Pass bytes between a party and a server, and count them at the party's end."""
    passed = {"up": 0, "down": 0}
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pass_on(source, to, way):
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    passed[way] += len(data)
                    to.sendall(data)
                to.shutdown(socket.SHUT_WR)

        def work():
            outer, _ = listener.accept()
            inner = socket.create_connection(("127.0.0.1", port))
            with outer, inner:
                down = threading.Thread(target=pass_on, args=(inner, outer, "down"))
                down.start()
                pass_on(outer, inner, "up")
                down.join()

        threading.Thread(target=work, daemon=True).start()
        yield listener.getsockname()[1], passed


def test_what_is_due_follows_the_request():
    """Memory for a reply is that of the rows asked for, or of a batch in training."""
    rules = ReplyRules((1000, 100), 4, torch.float32, offer=LONG)
    rules.server = cast(Any, SimpleNamespace(sizes={"a": 4}))
    plan = TrainPlan("train", 1, 32, "shuffle", "adam", 0.1)
    value = 4 * 4  # bytes of a row
    select = SelectPlan("select_features", 1, 32, "shuffle", 0.1, 0.1)
    block = messages.Block(torch.zeros(32, 4))
    due: dict[Any, tuple[type, int]] = {
        messages.Describe(): (messages.Description, 0),
        control.Save("train-1"): (Agreed, 0),
        messages.Begin(plan): (messages.Embedding, ENDS + 32 * value),
        messages.Embed("train", "test"): (messages.Embedding, ENDS + 100 * value),
        messages.Embed("train", "train", 7): (messages.Embedding, ENDS + 7 * value),
        messages.Select(None, select): (messages.Done, ENDS + value),
    }
    for request, (kind, n_bytes) in due.items():
        ((due_kind, bound),) = rules.due("a", request).kinds.items()
        assert (due_kind, bound.n_bytes) == (kind, n_bytes)
    (bound,) = rules.due("a", messages.Descend("train", block)).kinds.values()
    assert bound.n_bytes == ENDS + 32 * value
    assert rules.due("a", Align(b"")).kinds[Align].n_bytes == LONG


def test_an_offer_of_more_ids_than_the_config_allows_is_cut_off():
    """What is due in the alignment is what that many ids take, not what a frame may."""
    assert most_offered("none", 10**6, 10**6) == 1024
    assert most_offered("plain", 1000, 1024) == 16 * 1024 + 1024
    n_due = most_offered("psi", 1000, 1024)
    assert n_due == 32 * (1024 + 1024) + 1024
    with a_hub() as hub:
        due: dict[type, Bound] = {Align: Bound(n_due)}
        hub.rules = replace(hub.rules, due=lambda party, q: due_of(q, due))
        offers = [bytes(n_due), bytes(LONG)]
        join(hub, lambda message: Align(offers.pop(0)))
        assert len(hub.send({"a": Align(b"")})["a"].data) == n_due
        with pytest.raises(PartyLostError, match="no more bytes than are due"):
            hub.send({"a": Align(b"")})
