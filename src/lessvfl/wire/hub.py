"""The server's end of a transport between machines: who may join, and every exchange.

The server sends a request, the party its reply, in turn: every frame carries the number
of its exchange. While a party computes it sends a sign of life every few seconds, so
that slow is not silent. A party that crashes may look like a normal end of its stream,
so both sides say farewell.

What carries the frames is an engine: :mod:`lessvfl.wire.flight` or
:mod:`lessvfl.wire.nvflare`. It hands each stream to :meth:`Hub.attend` in a thread of
its own, with the name that it has proved of whoever is at the other end.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from lessvfl.errors import ConfigError, LessVFLError, PartyLostError, ProtocolError
from lessvfl.terms import PartyId, listed, time_text
from lessvfl.wire import codec
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.connection import (
    CLOSE_SECONDS,
    OVER,
    GoneError,
    Stream,
    check_length,
    first_line,
    start_thread,
)
from lessvfl.wire.control import Busy, Farewell, Hello, Refusal, printable
from lessvfl.wire.due import GREETING
from lessvfl.wire.line import (
    ALIVE,
    ANY_PARTY,
    AROUND,
    ByteCount,
    HubRules,
    LocalParty,
    Order,
    PartyLine,
    part_of,
)
from lessvfl.wire.messages import Reply, Request

SMALL = 1 << 16  # what is longer is worth a thread of its own
STOPPED = "Another party has stopped the run."  # what the others hear of it
FREE_BEATS = 3  # signs of life at any pace; more must not come faster than one a second
QUIET_SECONDS = 10.0  # without a sign of life, of which there should be two by then

log = logging.getLogger(__name__)


class Hub:
    """The server's side: admits parties and exchanges frames with them.

    `silence` is how many seconds a party that owes a reply may go without a sign of
    life. An engine listens, calls :meth:`attend` and has a :meth:`stop`. New `rules`
    hold from the next exchange on.
    """

    named_in = "certificate"  # where a party's name stands
    newest_stays = False  # as in the rules, whatever these say

    def __init__(
        self,
        parties: Sequence[PartyId],
        *,
        silence: float = 60.0,
        rules: HubRules = ANY_PARTY,
    ) -> None:
        self.parties = tuple(parties)
        self.silence, self.rules = silence, rules
        self.number = 0
        self.run_id = bytes(16)
        self.bytes = ByteCount()  # so far
        self._lines: dict[PartyId, PartyLine] = {}
        self._local: dict[PartyId, LocalParty] = {}
        self._changed = threading.Condition()
        self._closing: Farewell | Refusal | None = None  # what is said at the end
        self._failure: BaseException | None = None  # in a thread of a stream
        self._stopping: threading.Thread | None = None

    def follow(self, rules: HubRules) -> None:
        """Use these `rules` from now on; hang up on parties that they do not admit."""
        with self._changed:
            self.rules = rules
            for line in [*self._lines.values()]:
                reason = rules.admit(line.hello)
                if reason is None:
                    rules.came(line.party)
                else:
                    self._hang_up(line, Refusal("config", reason[:2000]))
                    rules.refused(line.party, reason)
        for party in self._local.values():
            self._admit(party)

    def join(self, party: LocalParty) -> None:
        """Let a party of this process take part, whom nobody can dial in place of."""
        self._admit(party)
        self._local[party.hello.party] = party

    def _admit(self, party: LocalParty) -> None:
        """Tell that a party of this process is there, unless the rules refuse it."""
        reason = self.rules.admit(party.hello)
        if reason is not None:
            raise ConfigError(reason)
        self.rules.came(party.hello.party)

    # ------------------------------------------------------------- one thread a stream

    def attend(
        self, stream: Stream, who: Callable[[], str | None], greets: bool = True
    ) -> None:
        """Admit the party at the other end, and carry its frames until it goes.

        `who` returns its proven name, None where nothing proves one; `greets` is False
        where it is known not to send a greeting. An error of ours is raised in the
        server's thread: raised here, its full text would reach the party.
        """
        line: PartyLine | None = None
        try:
            line = self._greet(stream, who, greets)
            if line is not None:
                self._carry(line)
        except GoneError as error:
            log.info("party '%s' is gone: %s", line.party if line else "?", error)
        except BaseException as error:
            self.fail(error)
            alone = contextlib.nullcontext() if line is None else line.lock
            with alone, contextlib.suppress(GoneError):
                stream.write(self._frame(Refusal.of(error)))
        finally:
            if line is not None:
                self._drop(line)

    def stop(self) -> None:
        """Stop listening; the streams are over."""
        raise NotImplementedError

    def _greet(
        self, stream: Stream, who: Callable[[], str | None], greets: bool
    ) -> PartyLine | None:
        """Check who dials; return its line, or refuse it and return None."""
        proven: str | None = None
        try:
            proven = who()  # an error: a name that no party may have
            if proven is not None and proven not in self.parties:
                self._refuse(proven, _unexpected(proven), stream)
                return None
            data = stream.read()
            check_length(len(data))
            kind = codec.kind_of(data)
            if kind is not Hello or not greets:
                got = "no frame of lessvfl" if kind is None else kind.__name__
                raise ProtocolError(f"A party must greet first. Got {got}.")
            hello = codec.decode(data, GREETING.accept).message
        except (GoneError, LessVFLError) as error:  # it shows a wrong field, no more
            reason = str(error)
            if isinstance(error, GoneError):
                reason = "A party must greet first. Got nothing."
            refusal = Refusal(ProtocolError.kind, reason)
            self._refuse(proven or "somebody", refusal, stream)
            return None
        name = hello.party if proven is None else proven
        line = PartyLine(name, hello, stream)
        with self._changed:
            refused = self._objection(name, hello)
            if refused is None:
                self.rules.came(name)
                before = self._lines.get(name)
                self.bytes.add(line, AROUND, up=len(data))
                self._lines[name] = line
                self._changed.notify_all()
                if before is not None:
                    before.end(None)
                    before.replies.put(None)  # who waits for it waits no longer
        if refused is not None:
            self._refuse(name, refused, stream)
            return None
        stream.expect(0)
        return line

    def _objection(self, name: str, hello: Hello) -> Refusal | None:
        """Return why a party may not join now, without naming another party."""
        if name not in self.parties:
            return _unexpected(name)
        if hello.party != name:
            return Refusal(
                "config",
                f"A party must go by the name in its {self.named_in}, '{name}'. "
                f"Got {hello.party[:80]!r}.",
            )
        if isinstance(self._closing, Refusal):
            return self._closing
        if self._failure is not None:
            return Refusal.of(self._failure)
        if self._closing is not None:
            return OVER
        stays = self.newest_stays or self.rules.newest_stays
        if name in self._lines and not stays:
            taken = f"Party '{name}' must connect once. It is connected already."
            return Refusal("config", taken, final=False)
        reason = self.rules.admit(hello)
        return None if reason is None else Refusal("config", reason[:2000])

    def _refuse(self, who: str, refusal: Refusal, stream: Stream) -> None:
        reason = printable(refusal.reason)
        log.warning("refused '%s': %s", printable(who), reason)
        self.rules.refused(who, reason)
        with contextlib.suppress(GoneError):
            stream.write(codec.encode(WireFrame(refusal, 0, self.run_id)))

    def _carry(self, line: PartyLine) -> None:
        """Carry requests and replies until the server ends the stream."""
        while (order := line.requests.get()) is not None:
            frame, down, due = order
            line.stream.expect(due.most_bytes)
            n_down = line.say(down)
            line.heard = time.monotonic()
            part = part_of(frame.message)
            self.bytes.add(line, part, down=n_down)
            up, n_up = self._listen(line, order, part)
            if isinstance(up, ProtocolError):
                line.replies.put((order, up))
                continue
            self.rules.carried(line.party, frame.message, n_up, n_down)
            read = up if len(up) <= SMALL else self._read(order, up)
            is_over = codec.kind_of(up) is Refusal
            line.replies.put((order, read))
            del up, read  # they may be large, and the next request may take long
            if is_over:
                return
        line.say_last()

    def _listen(
        self, line: PartyLine, order: Order, part: str
    ) -> tuple[memoryview | ProtocolError, int]:
        """Return the next frame other than a heartbeat, or what is wrong with it.

        The number is that of its bytes on the wire.
        """
        asked, n_beats = line.heard, 0
        while True:
            try:
                came = line.stream.read()
                up = line.received.whole(came)
            except ProtocolError as error:
                return error, 0
            line.heard = time.monotonic()
            if codec.kind_of(up) is not Busy:
                self.bytes.add(line, part, up=len(came))
                return up, len(came)
            self.bytes.add(line, part, up=len(came), up_part=ALIVE)
            n_beats += 1
            frame = self._read(order, up)
            if isinstance(frame, ProtocolError):
                return frame, 0
            if n_beats > FREE_BEATS + line.heard - asked:
                return ProtocolError(
                    "Signs of life must not come more often than once a second. Got "
                    f"{n_beats} in {line.heard - asked:.1f} seconds."
                ), 0

    def _drop(self, line: PartyLine) -> None:
        line.replies.put(None)
        try:
            with self._changed:
                if self._lines.get(line.party) is line:
                    del self._lines[line.party]
                self._changed.notify_all()
                if line.party not in self._lines:  # else it is back already
                    self.rules.went(line.party)
        except BaseException as error:
            self.fail(error)
        finally:  # the last: the engine frees what it writes with
            with line.lock:  # what is being written is waited for
                line.ended.set()

    def fail(self, error: BaseException) -> None:
        """Raise `error`, which happened in another thread, in the server's thread."""
        log.error("a connection failed: %s", first_line(error))
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
            for line in self._lines.values():
                line.replies.put(None)

    # ------------------------------------------------------------- the server's thread

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @property
    def connected(self) -> tuple[PartyId, ...]:
        """Return who is connected now."""
        return tuple(self.hellos)

    @property
    def hellos(self) -> dict[PartyId, Hello]:
        """Return the greetings of connected parties, a new one each connection."""
        local = {name: party.hello for name, party in self._local.items()}
        with self._changed:
            return {p: line.hello for p, line in self._lines.items()} | local

    def wait(self, seconds: float, parties: Sequence[PartyId] | None = None) -> None:
        """Wait until these parties, or all, are connected; an error names the rest."""
        asked, end = parties or self.parties, time.monotonic() + seconds
        due = [party for party in asked if party not in self._local]
        with self._changed:
            self._raise_failure()
            if missing := [p for p in due if p not in self._lines]:
                say_awaited(missing, seconds)
            while missing := [p for p in due if p not in self._lines]:
                left = end - time.monotonic()
                if left <= 0:
                    raise PartyLostError(missing, f"away for {seconds:g} seconds")
                self._changed.wait(min(left, 1.0))
                self._raise_failure()

    def exchange(self, requests: Mapping[PartyId, Request]) -> dict[PartyId, Reply]:
        """Send every request, then take every reply, or raise."""
        return self.send(requests)

    def send(
        self,
        requests: Mapping[PartyId, Any],
        greeted: Mapping[PartyId, Hello] | None = None,
    ) -> dict[PartyId, Any]:
        """Exchange messages of any kind, those around a run included.

        With `greeted`, parties that have reconnected since then count as missing.
        """
        self.number += 1
        with self._changed:
            self._raise_failure()
            lines = {
                party: line
                for party in requests
                if (line := self._lines.get(party)) is not None
                and (greeted is None or line.hello is greeted.get(party))
            }
        here = {name: p for name, p in self._local.items() if name in requests}
        if missing := [p for p in requests if p not in lines and p not in here]:
            raise PartyLostError(missing, "not connected")
        later = []  # small ones are all written before the first goes out
        written: dict[int, tuple[WireFrame, bytes]] = {}  # once what goes to several
        for party, request in requests.items():
            if id(request) not in written:
                frame = WireFrame(request, self.number, self.run_id)
                written[id(request)] = (frame, codec.encode(frame))
            if party in here:
                continue
            order = (*written[id(request)], self.rules.due(party, request))
            if len(order[1]) > SMALL:  # encrypting it takes longer than to write more
                lines[party].ask(order)
            else:
                later.append((lines[party], order))
        for line, order in later:
            line.ask(order)
        replies = {  # while the others compute
            name: self._ask_here(party, *written[id(requests[name])])
            for name, party in here.items()
        }
        replies |= {party: self._reply(line) for party, line in lines.items()}
        return {party: replies[party] for party in requests}

    def _ask_here(self, party: LocalParty, sent: WireFrame, data: bytes) -> Any:
        """Return the reply of a party of this process; its errors are ours.

        It gets and sends frames as other parties do: so it computes what it would as a
        process of its own, and shares no tensor with the server.
        """
        name = party.hello.party
        order = (sent, data, self.rules.due(name, sent.message))
        try:
            asked = codec.decode(data, party.due().accept)
            reply = WireFrame(party.handle(asked.message), asked.number, asked.run)
            came = memoryview(codec.encode(reply))
        except LessVFLError as error:
            error.public = STOPPED
            raise
        self.rules.carried(name, sent.message, 0, 0)
        return self._checked(name, self._read(order, came))

    def _reply(self, line: PartyLine) -> Any:
        """Return a party's reply to this exchange; drop late replies to others."""
        party, end = line.party, time.monotonic() + self.rules.longest
        patience = min(QUIET_SECONDS, self.silence)
        while True:
            left = min(line.heard + patience, end) - time.monotonic()
            try:
                answer = line.replies.get(timeout=max(0.0, left))
            except queue.Empty:
                if min(line.heard + patience, end) > time.monotonic():
                    continue  # it gave a sign of life in the meantime
                if patience < self.silence and end > time.monotonic():
                    quiet, patience = time_text(patience), self.silence
                    given_up = f"away after {time_text(self.silence)}"
                    log.info(
                        "no sign of life from %s for %s; %s", party, quiet, given_up
                    )
                    continue
                why = f"no sign of life for {self.silence:g} seconds"
                if end <= time.monotonic():
                    why = f"no reply for {self.rules.longest:g} seconds"
                self._hang_up(line, Refusal("lost", f"Got {why}.", final=False))
                raise PartyLostError([party], why) from None
            if answer is None:
                self._raise_failure()
                raise PartyLostError([party], "connection lost")
            order, came = answer
            if order[0].number != self.number:
                continue  # late, of an exchange that was given up
            if isinstance(came, memoryview):
                came = self._read(order, came)
            return self._checked(party, came)

    def _checked(self, party: PartyId, came: WireFrame | ProtocolError) -> Any:
        """Return a reply that is as it should be."""
        if isinstance(came, ProtocolError):
            self.cut_off(party, str(came))
        reply = came.message
        if isinstance(reply, Refusal):
            why = f"({reply.kind}): {printable(reply.reason)}"
            raise ProtocolError(f"Party '{party}' stops {why}", public=STOPPED)
        return reply

    def _read(self, order: Order, data: memoryview) -> WireFrame | ProtocolError:
        """Read a reply to what was sent, or return what is wrong with it."""
        sent, _, due = order
        try:
            frame = codec.decode(data, due.accept)
        except ProtocolError as error:
            return error
        if (frame.number, frame.run) == (sent.number, sent.run):
            return frame
        return ProtocolError(
            "A reply must be of the exchange and the run that it answers. Got "
            f"exchange {frame.number} in place of {sent.number}, or another run."
        )

    def cut_off(self, party: PartyId, why: str) -> NoReturn:
        """Hang up on a party whose reply is wrong."""
        if party in self._local:  # it would say the same again
            raise ProtocolError(f"Party '{party}' stops: {why}", public=STOPPED)
        self.hang_up(party, Refusal("protocol", printable(why), final=False))
        self.rules.refused(party, why)
        log.warning("party '%s' sent no proper reply: %s", party, why)
        raise PartyLostError([party], why)

    def hang_up(self, party: PartyId, why: Refusal | None = None) -> None:
        """End the connection of a party; it may come back."""
        with self._changed:
            line = self._lines.get(party)
        if line is not None:
            self._hang_up(line, why)

    def _hang_up(self, line: PartyLine, why: Refusal | None) -> None:
        """End this connection; a newer one of the same party stays."""
        with self._changed:
            if self._lines.get(line.party) is line:
                del self._lines[line.party]
        line.end(None if why is None else self._frame(why))

    def _frame(self, message: Any) -> bytes:
        return codec.encode(WireFrame(message, self.number, self.run_id))

    def close(self, error: BaseException | None = None) -> bool:
        """Say farewell to all, or why a run ends early, and stop listening.

        A party that does not read is not waited for. Returns whether all connections
        are over; an open one keeps a thread that cannot be ended.
        """
        end = time.monotonic() + CLOSE_SECONDS
        with self._changed:
            if self._closing is None:
                self._closing = Farewell() if error is None else Refusal.of(error)
            lines = list(self._lines.values())
        for line in lines:
            line.end(self._frame(self._closing))
        for line in lines:
            # Who computes a reply has a thread here that waits for it: another speaks.
            if not line.ended.wait(min(0.1, max(0.0, end - time.monotonic()))):
                start_thread("lessvfl-farewell", line.say_last)
        for line in lines:
            line.ended.wait(max(0.0, end - time.monotonic()))
        with self._changed:  # whoever closes first: a second stop finds nothing open
            if self._stopping is None:
                self._stopping = start_thread("lessvfl-shutdown", self.stop)
            stopping = self._stopping
        if stopping is None:
            return False
        stopping.join(max(0.2, end - time.monotonic()))
        return not stopping.is_alive()


def say_awaited(parties: Sequence[PartyId], seconds: float) -> None:
    """Log who is waited for, for how long, and how that ends."""
    names, at_most = listed(parties), time_text(seconds)
    log.info("waiting for %s, for up to %s; Ctrl-C ends the wait", names, at_most)


def _unexpected(name: str) -> Refusal:
    return Refusal("config", f"The server does not expect {name[:80]!r}.")
