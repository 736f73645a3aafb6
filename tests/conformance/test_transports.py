"""One suite over every transport: same bits, same bill, and what may go wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.conformance.networks import NETWORKS, Cell, Flare, Network
from tests.conftest import until
from tests.remote import test_remote
from tests.wire.test_parties import SELECT, make_party, train

from lessvfl.core.state import split_state
from lessvfl.errors import ConfigError, PartyLostError, PolicyError, ProtocolError
from lessvfl.remote.server import ServerProcess
from lessvfl.wire import codec, dial, shorthand
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.connection import GoneError
from lessvfl.wire.control import Agreed, Busy, Hello, Save
from lessvfl.wire.due import ANYTHING_SMALL, Bound, Due
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.line import HubRules
from lessvfl.wire.messages import Block, Descend, Embedding, Transport
from lessvfl.wire.parties import Parties

HELD = test_remote.HELD

pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")


@pytest.fixture(params=NETWORKS)
def network(request, monkeypatch) -> Iterator[Network]:
    if request.param == "nvflare":
        pytest.importorskip("nvflare")
        from lessvfl.wire import nvflare

        monkeypatch.setattr(nvflare, "ASK_SECONDS", 0.1)
    made = NETWORKS[request.param]()
    yield made
    made.close()


class Side(threading.Thread):
    """A party that answers with one function, and how it ended."""

    def __init__(self, network, name, handle, hello=None, **more):
        super().__init__(daemon=True)
        self.hello = hello or Hello(name, 1, "cpu", {})
        self.server, self.handle = network.server(name), handle
        self.more = {"patience": 10.0} | more
        self.error: BaseException | None = None
        self.start()

    def run(self):
        try:
            dial.serve(self.server, self.hello, self.handle, **self.more)
        except BaseException as error:
            self.error = error

    def ended(self):
        """Return how it ended."""
        self.join(10)
        assert not self.is_alive()
        return self.error


@contextlib.contextmanager
def connected(network, handlers, due=ANYTHING_SMALL, **more):
    """Have parties answer with these functions; give the hub and the parties."""
    hub = network.hub(tuple(handlers), **{"silence": 10.0} | more)
    hub.rules = replace(hub.rules, due=lambda party, request: due)
    sides = {
        name: Side(network, name, handle, due=lambda: due)
        for name, handle in handlers.items()
    }
    try:
        hub.wait(10)
        yield hub, sides
    finally:
        hub.close()


def agree(message):
    return Agreed()


# -------------------------------------------------------------------------- same bits


def test_the_same_bits_and_the_same_bill_as_in_one_process(network):
    def results(transport: Transport):
        ledger = Ledger()
        parties = Parties(transport, ["a", "b"], ledger)
        train(parties)
        kept = torch.tensor([True, True, False, False, True, False])
        parties.select_features(kept, dataclasses.replace(SELECT, lam=1.0))
        h = parties.embed("embed", "train")
        masks = [mask.tolist() for mask in parties.components.values()]
        return h, masks, split_state(parties.state)[1], ledger.lines()

    local = {name: make_party(name).handle for name in "ab"}
    h, *rest = results(InProcess(local))
    with connected(network, {n: make_party(n).handle for n in "ab"}) as (hub, _):
        h_far, *rest_far = results(hub)
        assert hub.bytes.by_part()["frames", "embed", "up"] > 0
    assert rest_far == rest
    for mine, theirs in zip(h, h_far, strict=True):
        assert torch.equal(mine, theirs)


def whole_run(network, folder, ids=None, align="none", **more):
    """Run server and parties as between machines; return the record."""
    hub = network.hub(tuple(HELD), silence=20.0)
    key = None if ids is None else "who"
    own = more | {"align": align, "id": key}
    parties = {n: test_remote.a_party(n, folder, ids=ids, **own) for n in HELD}
    sides = [
        Side(
            network,
            name,
            party.handle,
            party.hello(),
            due=party.due,
            is_over=lambda party=party: party.has_finished,
        )
        for name, party in parties.items()
    ]
    config = test_remote.server_config(folder, align=align, id=key)
    table = test_remote.labels(ids=ids)
    process = ServerProcess(config, table, hub, test_remote.a_status())
    error = None
    try:
        return process.run()
    except BaseException as raised:
        error = raised
        raise
    finally:
        hub.close(error)
        for closing in (process, *parties.values()):
            closing.close()
        if error is None:
            assert [side.ended() for side in sides] == [None] * len(sides)


def test_a_whole_run_is_the_simulators(network, tmp_path):
    record = whole_run(network, tmp_path)
    own = test_remote.written(tmp_path)
    test_remote.compare(record, own, test_remote.simulated("less-vfl", "default"))


def test_rows_are_aligned_privately(network, tmp_path, monkeypatch):
    monkeypatch.setattr("lessvfl.remote.align.messages.PAD_TO", 8)
    ids = np.random.default_rng(0).permutation(150) + 1000
    whole_run(network, tmp_path, ids, "psi", seed_private="own")
    assert (tmp_path / "server" / "rows.safetensors").is_file()


def test_a_policy_ends_the_run_and_says_why(network, tmp_path):
    policy = replace(test_remote.ANYTHING, evaluation="end")
    with pytest.raises(ProtocolError, match=r"stops.*allows evaluation at the end"):
        whole_run(network, tmp_path, policy=policy)


# ------------------------------------------------------------------- all, or an error


def test_every_reply_comes_back_whatever_its_size(network):
    """Frames of all sizes, in the order they were sent."""

    def answer(message):
        return Embedding(message.stage, message.gradient)

    large = Due({Embedding: Bound(8 << 20), Descend: Bound(8 << 20)})
    with connected(network, dict.fromkeys("ab", answer), large) as (hub, _):
        for rows in (1, 40_000, 3, 70_000, 200_000, 2):
            values = torch.randn(rows, 4)
            request = Descend("train", Block(values))
            replies = hub.exchange(dict.fromkeys("ab", request))
            assert replies.keys() == set("ab")
            for reply in replies.values():
                assert torch.equal(reply.block.values, values)


def test_one_that_is_not_there_is_named(network):
    with connected(network, {"a": agree}) as (hub, _):
        hub.parties = ("a", "b")
        with pytest.raises(PartyLostError, match="'b' is missing: not connected"):
            hub.send(dict.fromkeys("ab", Save("train-1")))


def test_a_party_that_dies_is_named_and_may_come_back(network):
    died = threading.Event()

    def die(message):
        if not died.is_set():
            died.set()
            raise SystemExit  # no word to the server
        return Agreed()

    with connected(network, {"a": agree, "b": die}) as (hub, sides):
        with pytest.raises(PartyLostError, match="'b' is missing"):
            hub.send(dict.fromkeys("ab", Save("train-1")))
        sides["b"].join(10)
        Side(network, "b", die)
        hub.wait(10)
        assert hub.send(dict.fromkeys("ab", Save("train-2"))).keys() == set("ab")


def test_a_late_reply_is_dropped(network):
    """It answers an exchange that was given up, never the next one."""
    slow = threading.Event()

    def answer(message):
        if message == Save("train-1"):
            slow.wait(10)
        return Agreed({"tag": message.tag})

    with connected(network, {"a": answer}, silence=0.3) as (hub, _):
        with pytest.raises(PartyLostError, match=r"no sign of life for 0\.3 seconds"):
            hub.send({"a": Save("train-1")})
        assert hub.connected == ()
        hub.silence = 20.0  # a busy machine answers late, too
        slow.set()
        hub.wait(10)
        for tag in ("train-2", "train-3"):
            assert hub.send({"a": Save(tag)})["a"].revealed == {"tag": tag}


def test_who_computes_for_long_is_not_silent(network, monkeypatch):
    """Much longer than the server bears silence, by a clock that the party moves."""
    now = 1000.0

    def answer(message):
        nonlocal now
        for _ in range(4):
            now += 6.0
            until(lambda: hub._lines["a"].heard == clock.monotonic())  # a sign of life
        return Agreed()

    clock = SimpleNamespace(monotonic=lambda: now)
    for module in ("hub", "line"):
        monkeypatch.setattr(f"lessvfl.wire.{module}.time", clock)
    monkeypatch.setattr("lessvfl.wire.hub.FREE_BEATS", 10**6)
    hub = network.hub(("a",), silence=10.0)
    Side(network, "a", answer, beat=0.05)
    until(lambda: hub.connected)
    assert hub.send({"a": Save("train-1")}) == {"a": Agreed()}
    beats = hub.bytes.by_part()["frames", "alive", "up"]
    one = len(codec.encode(WireFrame(Busy(), 1)))
    assert (beats - one) % shorthand.HEAD.size == 0
    assert beats > one
    monkeypatch.undo()
    hub.close()


# ------------------------------------------------------------------- who, and how long


def test_a_farewell_ends_every_party(network):
    with connected(network, dict.fromkeys("ab", agree)) as (hub, sides):
        hub.send(dict.fromkeys("ab", Save("train-1")))
        assert hub.close()
        assert [side.ended() for side in sides.values()] == [None, None]
        assert hub.connected == ()


def test_who_dials_after_the_end_hears_that_it_is_over(network):
    if not isinstance(network, Flare):
        pytest.skip("a server of Flight stops listening at the end")
    with connected(network, {"a": agree}) as (hub, sides):
        hub.close()
        sides["a"].ended()
        assert Side(network, "a", agree).ended() is None


def test_why_a_run_ends_is_told(network):
    with connected(network, {"a": agree}) as (hub, sides):
        hub.close(PartyLostError(["b"], "away"))
        error = sides["a"].ended()
    assert isinstance(error, ConfigError)
    assert str(error) == "The server says no (lost): A party stays away."


@pytest.mark.parametrize("change", ["stranger", "version"])
def test_who_does_not_fit_is_refused(network, change):
    def admit(hello):
        return None if hello.versions else "Both must have the same versions."

    told: list[tuple[str, str]] = []
    hub = network.hub(
        ("a",), rules=HubRules(admit=admit, refused=lambda *what: told.append(what))
    )
    name = "x" if change == "stranger" else "a"
    error = Side(network, name, agree).ended()
    words = "does not expect 'x'" if change == "stranger" else "the same versions"
    assert isinstance(error, ConfigError)
    assert words in str(error)
    assert [who for who, _ in told] == [name]
    hub.close()


def test_what_a_party_may_not_tell_stays_with_it(network):
    def refuse(message):
        raise ConfigError("The column 'salary' is missing.")

    with connected(network, {"a": refuse}) as (hub, sides):
        with pytest.raises(ProtocolError, match=r"Party 'a' stops \(config\)") as error:
            hub.send({"a": Save("train-1")})
        assert "salary" not in str(error.value)
        assert "salary" in str(sides["a"].ended())


def test_what_a_policy_says_is_told(network):
    def refuse(message):
        raise PolicyError("Party 'a' allows 3 rounds.")

    with connected(network, {"a": refuse}) as (hub, sides):
        with pytest.raises(ProtocolError, match="allows 3 rounds"):
            hub.send({"a": Save("train-1")})
        assert isinstance(sides["a"].ended(), PolicyError)


# -------------------------------------------------------------------------- FLARE alone


@pytest.fixture
def flare(monkeypatch) -> Iterator[Flare]:
    pytest.importorskip("nvflare")
    from lessvfl.wire import nvflare

    monkeypatch.setattr(nvflare, "ASK_SECONDS", 0.1)
    made = Flare()
    yield made
    made.close()


def test_a_site_cannot_go_by_another_name(flare):
    """What FLARE has proven counts, not what the greeting says."""
    hub = flare.hub(("a", "b"))
    error = Side(flare, "b", agree, Hello("a", 1, "cpu", {})).ended()
    assert "must go by the name in its startup kit, 'b'" in str(error)
    assert hub.connected == ()
    until(lambda: hub._streams._streams == {})  # nothing is left of it
    hub.close()


@pytest.mark.parametrize("origin", ["b.job", "a.job"], ids=["own", "of the party"])
def test_a_message_of_another_site_is_not_taken_for_a_party(flare, origin):
    """Not even where it knows the id of the stream, or forges where it comes from."""
    from nvflare.fuel.f3.message import Message

    from lessvfl.wire import nvflare

    with connected(flare, {"a": agree}) as (hub, _):
        (key,) = hub._streams._streams
        other = Cell(flare.cells, "b.job")
        other.name = origin
        forged = {nvflare.STREAM: key[1], nvflare.PLACE: 1, nvflare.LAST: True}
        to_server = (nvflare.CHANNEL, nvflare.FRAME, "server.job")
        for _ in range(3):
            other.fire_and_forget(*to_server, Message(forged), True)
        time.sleep(0.1)
        asked = (nvflare.CHANNEL, nvflare.ASK, "server.job", Message(forged), 1, True)
        assert other.send_request(*asked).get_header(nvflare.SENT) is None
        assert hub.send({"a": Save("train-1")}) == {"a": Agreed()}


TOKEN = "f3b1c0de-0000-4000-8000-00000000000a"


@pytest.mark.parametrize(
    ("origin", "name", "token"),
    [
        ("clinic.job", None, TOKEN),
        ("clinic.job", "bank", TOKEN),
        ("clinic.job", "clinic", None),
        # FLARE signs name and token as one text: that of ("clinic0", TOKEN), too.
        ("clinic.job", "clinic", "0" + TOKEN),
        ("clinic.job", "clinic", TOKEN[1:]),
        ("clinic.job", "clinic", TOKEN.upper()),
        ("clinic.job", "clinic", TOKEN.replace("-", "")),
        ("clinic.job", "clinic", f"{{{TOKEN}}}"),
        ("clinic.job", "clinic", 3),
        ("clinic0.clinic", "clinic", TOKEN),
        ("relay.clinic.job", "clinic", TOKEN),
        ("clinic.job.more", "clinic", TOKEN),
        ("clinic.other", "clinic", TOKEN),
        ("clinic", "clinic", TOKEN),
        (None, "clinic", TOKEN),
    ],
)
def test_a_message_without_a_proven_site_is_refused(origin, name, token):
    pytest.importorskip("nvflare")
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.message import Message
    from nvflare.private.defs import CellMessageHeaderKeys

    from lessvfl.wire.nvflare import site_of

    keys = (
        MessageHeaderKey.ORIGIN,
        CellMessageHeaderKeys.CLIENT_NAME,
        CellMessageHeaderKeys.TOKEN,
    )
    proven = Message(dict(zip(keys, ("clinic.job", "clinic", TOKEN), strict=True)))
    assert site_of(proven, "job") == "clinic"
    given = dict(zip(keys, (origin, name, token), strict=True))
    with pytest.raises(ProtocolError, match="must be of a site of this FLARE job"):
        site_of(Message({k: v for k, v in given.items() if v is not None}), "job")


def test_a_site_whose_name_begins_with_a_partys_cannot_take_its_place(flare):
    """What FLARE's signature holds for does not suffice; its stream is refused."""

    from lessvfl.wire.nvflare import FlareServer

    told: list[tuple[str, str]] = []
    handlers = {"site-1": agree}
    rules = HubRules(refused=lambda *what: told.append(what))
    with connected(flare, handlers, rules=rules) as (hub, _):
        cell = Cell(flare.cells, "site-10.site-1")
        cell.site, cell.token = "site-1", "0" + cell.token
        error = refused_at(FlareServer(cell, "server.job"), "site-1")
        assert "must be of a site of this FLARE job" in str(error)
        assert [who for who, _ in told] == ["somebody"]
        assert hub.send({"site-1": Save("train-1")}) == {"site-1": Agreed()}


def refused_at(server, name):
    """Return how the server refuses who dials it so."""
    with pytest.raises(ConfigError) as error:
        dial.serve(server, Hello(name, 1, "cpu", {}), agree, patience=5.0)
    return error.value


@pytest.mark.parametrize("sender", ["server.job", "a.job"])
def test_a_message_that_is_lost_ends_the_stream_and_nothing_else(flare, sender):
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey

    from lessvfl.wire import nvflare

    lost: list[int] = []

    def lose(message):
        place = message.get_header(nvflare.PLACE)
        is_hit = message.get_header(MessageHeaderKey.ORIGIN) == sender and place == 2
        if is_hit and not lost:
            lost.append(place)
            return True
        return False

    flare.cells.lose = lose
    with connected(flare, {"a": agree}, silence=5.0) as (hub, _):
        done = 0
        for _ in range(6):
            try:
                hub.send({"a": Save("train-1")})
                done += 1
            except PartyLostError:
                hub.wait(10)
    assert lost == [2]
    assert done == 5


@pytest.mark.parametrize("first", [1, 2], ids=["in order", "with a gap"])
def test_a_site_cannot_fill_the_servers_memory(flare, first):
    """A stream ends when too much waits in it, whoever reads."""
    from lessvfl.wire.nvflare import MOST_FRAMES

    with connected(flare, {"a": agree}) as (hub, _):
        (stream,) = hub._streams._streams.values()
        for place in range(first, first + 2 * MOST_FRAMES):
            stream.take(place, memoryview(b"more"))
        assert hub._streams._streams == {}
        with pytest.raises(PartyLostError, match="'a' is missing"):
            hub.send({"a": Save("train-1")})
        hub.wait(10)  # it dials again
        assert hub.send({"a": Save("train-2")}) == {"a": Agreed()}


@pytest.mark.parametrize("first", [0, 1], ids=["in order", "with a gap"])
@pytest.mark.parametrize(("size", "n"), [(4, 8), (1 << 20, 3)], ids=["many", "large"])
def test_what_waits_to_be_read_is_bounded(flare, first, size, n):
    """At either end: a reply or a request of the largest size, and little else."""

    from lessvfl.wire.nvflare import CellStreams

    for name in ("a.job", "server.job"):
        streams = CellStreams(Cell(flare.cells, name))
    stream = streams.open("a.job")
    stream.expect(3 << 20)
    stream.write(b"speak")
    for place in range(first, first + n):
        stream.take(place, memoryview(bytes(size)))
    assert list(streams._streams.values()) == [stream]
    if first == 0:
        assert len(stream.read()) == size  # makes room for another
        stream.take(n, memoryview(bytes(size)))
        n += 1
        assert list(streams._streams.values()) == [stream]
    stream.take(first + n, memoryview(bytes(size)))
    assert streams._streams == {}
    with pytest.raises(GoneError, match="more than it was asked for"):
        stream.read()


def test_who_is_not_admitted_yet_sends_a_greeting_and_nothing_else(flare):
    asked, let_in = threading.Event(), threading.Event()

    def admit(hello):
        asked.set()
        let_in.wait(10)

    hub = flare.hub(("a",), rules=HubRules(admit=admit))
    stream = flare.server("a").connect()
    stream.write(codec.encode(WireFrame(Hello("a", 1, "cpu", {}), 0)))
    assert asked.wait(10)
    assert len(hub._streams._streams) == 1
    stream.write(b"more")
    until(lambda: hub._streams._streams == {})
    let_in.set()
    hub.close()


def test_a_long_greeting_is_refused_and_not_kept(network):
    hub = network.hub(("a",))
    long = Hello("a", 1, "cpu", {"torch": "2" * (1 << 16)})
    error = Side(network, "a", agree, long).ended()
    assert "A greeting must be short. Got 65" in str(error)
    hub.close()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("payload", [np.ones(3), {"a": 1}, "text", None, [b"a"]])
def test_what_is_no_bytes_is_dropped(flare, payload, place):
    """FLARE hands over whatever a sender has had it encode."""
    from nvflare.fuel.f3.message import Message

    from lessvfl.wire import nvflare

    with connected(flare, {"a": agree}) as (hub, _):
        (key,) = hub._streams._streams
        name = "another" if place == 0 else key[1]
        headers = {nvflare.STREAM: name, nvflare.PLACE: place, nvflare.LAST: False}
        message = Cell(flare.cells, "a.job")._stamped(Message(headers), nvflare.FRAME)
        message.payload = payload
        hub._streams._came(message)
        assert list(hub._streams._streams) == [key]
        assert hub.connected == ("a",)


def test_a_server_that_is_gone_is_noticed(flare):
    with connected(flare, {"a": agree}):
        stream = flare.server("b").connect()
        del flare.cells.cells["server.job"]
        with pytest.raises(GoneError):
            stream.write(b"hello")
        with pytest.raises(GoneError):
            stream.read()
