"""NVIDIA FLARE as the engine: frames between the cells of one job.

FLARE's messages know no streams, so a stream is made here of single messages without
replies over a channel of our own: each carries the id of its stream and its place in
it, for FLARE hands messages over in threads, in any order. A side that waits asks the
other now and then whether the stream is still there, and how much was sent: a process
that died, a connection that broke and a message that was lost all end the stream, and
the party opens another.

Who a party is comes from FLARE, which lets a site's messages through only with a token
that it signed for that site; what it leaves open is checked of every message, see
:func:`site_of`. This is the fastest way that FLARE offers (its
CellNet, which all its other ways are made of); the numbers are in docs/nvflare.md.
"""

from __future__ import annotations

import queue
import secrets
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellMessageHeaderKeys

from lessvfl.errors import ProtocolError
from lessvfl.terms import PartyId
from lessvfl.wire.connection import (
    LARGEST_HELLO,
    GoneError,
    check_length,
    start_thread,
)
from lessvfl.wire.hub import Hub
from lessvfl.wire.line import ANY_PARTY, HubRules

CHANNEL = "lessvfl"
FRAME, ASK = "frame", "ask"  # topics
STREAM, PLACE, SENT = "lessvfl.stream", "lessvfl.place", "lessvfl.sent"  # headers
LAST = "lessvfl.last"  # header: the stream ends here
ASK_SECONDS = 3.0  # without a frame, before the other side is asked
MOST_FRAMES = 8  # that wait to be read; both sides speak in turn
BESIDES = 1 << 16  # bytes of signs of life that may wait besides a frame
BROKEN = "the connection broke"

StreamKey = tuple[str, str]  # the cell at the other end, and the id of a stream


class CellStream:
    """One end of a stream between two cells of FLARE."""

    def __init__(self, lines: CellStreams, peer: str, name: str) -> None:
        self.key: StreamKey = (peer, name)
        self.n_sent = 0
        self._lines = lines
        self._has_spoken = False
        self._most_bytes = LARGEST_HELLO  # that may wait to be read
        self._n_taken = self._n_bytes = 0  # frames in their order, bytes to be read
        self._early: dict[int, memoryview | None] = {}  # came before their turn
        self._frames: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over: BaseException | None = None

    def take(self, place: int, frame: memoryview | None) -> None:
        """Queue a frame in its place; None is the end.

        A side that sends more than it may ends the stream: first one short greeting,
        then, once it was answered, one frame that is due and signs of life.
        """
        size = 0 if frame is None else len(frame)
        with self._lock:
            if self._over is not None or place < self._n_taken or place in self._early:
                return
            n_waiting = len(self._early) + self._frames.qsize()
            fits = n_waiting < MOST_FRAMES
            fits &= self._n_bytes + size <= self._most_bytes
            if not self._has_spoken and frame is not None:
                fits &= place == 0 and size <= LARGEST_HELLO
            if fits:
                self._early[place] = frame
                self._n_bytes += size
            while self._n_taken in self._early:
                self._frames.put(self._early.pop(self._n_taken))
                self._n_taken += 1
        if not fits:
            self.end(GoneError("the other side sent more than it was asked for"))

    def read(self) -> memoryview:
        """Return the next frame; while waiting, ask whether the other end is there."""
        is_late = False
        while True:
            if self._over is not None:
                raise self._over
            try:
                frame = self._frames.get(timeout=ASK_SECONDS)
            except queue.Empty:
                n_sent = self._lines.ask(self.key)
                if n_sent is None or (is_late and n_sent > self._n_taken):
                    self.end(GoneError(BROKEN))
                else:  # what is on its way now must be here the next time
                    is_late = n_sent > self._n_taken
                continue
            if frame is None:
                self.end(GoneError(BROKEN))
                continue
            with self._lock:
                self._n_bytes -= len(frame)
            return frame

    def write(self, data: bytes) -> None:
        """Send a frame, given as bytes, to the other end."""
        if self._over is not None:
            raise self._over
        self._has_spoken = True
        if not self._lines.send(self.key, self.n_sent, data):
            raise GoneError(BROKEN)
        self.n_sent += 1

    def expect(self, n_bytes: int) -> None:
        """Let the other end send a frame of so many bytes, and signs of life."""
        self._most_bytes = n_bytes + BESIDES

    @property
    def passed(self) -> None:
        """Return nothing: its socket is FLARE's."""

    def end_soon(self) -> None:
        """Do nothing: it holds no connection of its own."""

    def close(self) -> None:
        """Tell the other end, if it is there, that nothing will follow."""
        if self._over is None:
            self._lines.send(self.key, self.n_sent, None)
        self.end(GoneError(BROKEN))

    def end(self, why: BaseException) -> None:
        """Have whoever reads or writes here raise this."""
        self._over = self._over or why
        self._frames.put(None)
        self._lines.forget(self.key)


class CellStreams:
    """All streams of one cell: sends their frames, and hands over what comes.

    `opened` is called with each stream that another cell opens and the name that `who`
    returns for its first message, or the error that it raises; None refuses streams.
    Later messages are dropped where `who` raises.
    """

    def __init__(
        self,
        cell: Any,
        opened: Callable[[CellStream, str | ProtocolError], None] | None = None,
        who: Callable[[Message], str] = lambda message: "",
    ) -> None:
        self._cell = getattr(cell, "core_cell", cell)  # messages as they are
        self._opened, self._who = opened, who
        self._streams: dict[StreamKey, CellStream] = {}
        self._lock = threading.Lock()
        self._cell.register_request_cb(CHANNEL, FRAME, self._came)
        self._cell.register_request_cb(CHANNEL, ASK, self._asked)

    def open(self, peer: str) -> CellStream:
        """Open a stream to another cell."""
        stream = CellStream(self, peer, secrets.token_hex(8))
        with self._lock:
            self._streams[stream.key] = stream
        return stream

    def end_all(self, why: BaseException) -> None:
        """End every stream."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.end(why)

    def forget(self, key: StreamKey) -> None:
        """Drop all further frames of a stream."""
        with self._lock:
            self._streams.pop(key, None)

    def send(self, key: StreamKey, place: int, frame: bytes | None) -> bool:
        """Send a frame, or None for the end; tell whether it is on its way."""
        peer, name = key
        headers = {STREAM: name, PLACE: place, LAST: frame is None}
        message = Message(headers, frame)
        try:
            errors = self._cell.fire_and_forget(
                CHANNEL, FRAME, peer, message, optional=True
            )
        except RuntimeError:  # the cell has stopped
            return False
        return not errors.get(peer)

    def ask(self, key: StreamKey) -> int | None:
        """Return how many frames the other end has sent; None where it is not there."""
        peer, name = key
        try:
            reply = self._cell.send_request(
                *(CHANNEL, ASK, peer, Message({STREAM: name})),
                timeout=ASK_SECONDS,
                optional=True,
            )
        except RuntimeError:
            return None
        if reply.get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK:
            return None
        sent = reply.get_header(SENT)
        return sent if isinstance(sent, int) else None

    def _proven(self, message: Message) -> str | ProtocolError:
        try:
            return self._who(message)
        except ProtocolError as error:
            return error

    def _asked(self, message: Message) -> Message:
        stream = self._streams.get(_key(message))
        if stream is None or isinstance(self._proven(message), ProtocolError):
            return make_reply(ReturnCode.INVALID_REQUEST)
        reply = make_reply(ReturnCode.OK)
        reply.set_header(SENT, stream.n_sent)
        return reply

    def _came(self, message: Message) -> None:
        key, place = _key(message), message.get_header(PLACE)
        frame: memoryview | None = None
        if not message.get_header(LAST):
            # FLARE hands over whatever the sender has had it encode.
            if not isinstance(message.payload, bytes | bytearray | memoryview):
                return
            frame = memoryview(message.payload)
        if not isinstance(place, int):
            return
        proven = self._proven(message)
        with self._lock:
            stream = self._streams.get(key)
            is_new = stream is None and place == 0 and frame is not None
            if is_new and self._opened is not None:
                stream = self._streams[key] = CellStream(self, *key)
        if stream is None:
            return  # of one that is over
        if is_new and self._opened is not None:
            try:
                check_length(len(frame or b""))
            except ProtocolError as error:
                proven = error
            self._opened(stream, proven)
        if not isinstance(proven, ProtocolError):
            stream.take(place, frame)


def _key(message: Message) -> StreamKey:
    origin = message.get_header(MessageHeaderKey.ORIGIN)
    return str(origin), str(message.get_header(STREAM))


def site_of(message: Message, job: str) -> str:
    """Return the site that a message of a job is from.

    FLARE's server lets a message through if its token is signed for the name that it
    bears. It signs both as one text, so that the signature for ("site-10", T) holds for
    ("site-1", "0" + T) as well, and it compares where a message comes from only with
    tokens that are in use. So the token must be of the one form that FLARE gives out,
    and the message from the site's own cell of the job.
    """
    name = message.get_header(CellMessageHeaderKeys.CLIENT_NAME)
    origin = message.get_header(MessageHeaderKey.ORIGIN)
    is_whole = _is_uuid(message.get_header(CellMessageHeaderKeys.TOKEN))
    if not isinstance(name, str) or not is_whole or origin != FQCN.join([name, job]):
        raise ProtocolError(
            "A message must be of a site of this FLARE job, connected to the server "
            f"without a relay. Got one of {str(origin)[:80]!r}."
        )
    return name


def _is_uuid(token: object) -> bool:
    try:
        return isinstance(token, str) and str(uuid.UUID(token)) == token
    except ValueError:
        return False


class FlareHub(Hub):
    """A hub at the server's cell of the job with the id `job`."""

    named_in = "startup kit"
    # A site has one process in a job: one that dials again has lost its stream.
    newest_stays = True

    def __init__(
        self,
        cell: Any,
        parties: Sequence[PartyId],
        *,
        job: str,
        silence: float = 60.0,
        rules: HubRules = ANY_PARTY,
    ) -> None:
        super().__init__(parties, silence=silence, rules=rules)
        self._streams = CellStreams(
            cell, self._opened, lambda message: site_of(message, job)
        )

    def _opened(self, stream: CellStream, proven: str | ProtocolError) -> None:
        def who() -> str:
            if isinstance(proven, ProtocolError):
                raise proven
            return proven

        def carry() -> None:
            self.attend(stream, who)
            stream.close()

        start_thread("lessvfl-stream", carry)

    def stop(self) -> None:
        """End what is left of the streams."""
        self._streams.end_all(GoneError(BROKEN))


class FlareServer:
    """The server as a party's cell of a job reaches it: the cell `peer`."""

    server = "of the FLARE job"

    def __init__(self, cell: Any, peer: str) -> None:
        self._streams = CellStreams(cell)
        self._peer = peer
        self._aborted: BaseException | None = None

    def connect(self) -> CellStream:
        """Open a stream."""
        if self._aborted is not None:
            raise self._aborted
        return self._streams.open(self._peer)

    def abort(self, error: BaseException) -> None:
        """Make every call to the server raise this error from now on."""
        self._aborted = error
        self._streams.end_all(error)
