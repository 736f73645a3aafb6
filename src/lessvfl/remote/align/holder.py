"""The label holder's side of alignment."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from lessvfl.data.id_kinds import KINDS
from lessvfl.errors import AlignmentError
from lessvfl.remote.align import keys, messages, psi
from lessvfl.remote.align.entries import COUNT, Entries, Positions
from lessvfl.remote.align.ids import DIGEST_BYTES
from lessvfl.remote.align.messages import AlignReader
from lessvfl.terms import PartyId


@dataclass
class Echo:
    """What a party's points became under our key, in the order they were sent back."""

    points: Entries
    order: Positions  # the place of each in its offer
    proofs: Entries | None = None  # of our rows that it has


@dataclass(eq=False, repr=False)
class Aligner(messages.Side):
    """The label holder's side.

    Send :meth:`hello` to every party, pass every answer to :meth:`take` and send what
    it returns; once it returns None for all, send what :meth:`finish` returns, then
    read :attr:`rows`. Fewer common ids than `min_common`, or than `min_share` of the
    smallest table, are refused.
    """

    min_common: int = 50
    min_share: float = 0.01

    def __post_init__(self) -> None:
        """Derive all that is random from the secret."""
        super().__post_init__()
        self._smallest = self.n_rows
        secret = keys.derive(self.secret, "label holder")
        self._run = keys.derive(secret, "run")[: messages.RUN_BYTES]
        self._key = keys.derive(secret, "digests")
        self._scalar = psi.Key(keys.derive(secret, "scalar"))
        self._order_key = keys.derive(secret, "order")
        self._padding_key = keys.derive(secret, "padding")
        # Where each of our rows is in what a party offered; -1: it lacks the row.
        self._places: dict[PartyId, Positions] = {}
        self._echoes: dict[PartyId, Echo] = {}  # psi: who was sent its points back
        self._asked: dict[PartyId, bytes] = {}  # plain: by which key rows are proven
        self._order = np.zeros(0, dtype=np.int64)  # psi: the row at each place of hello
        self._hello: bytes | None = None

    def hello(self) -> bytes:
        """Return the first message of alignment, the same for every party."""
        if self._hello is None:
            kind = "absent" if self.ids is None else self.ids.kind
            if self.mode == "psi":
                assert self.ids is not None
                items = messages.padded_items(self._padding_key, self.ids)
                total = messages.padded(self.n_rows)
                count = self._counter("hiding our ids", total)
                points = self._scalar.hide(items, count)
                self._order = points.sort()
                part: bytes | memoryview = points.block
            else:
                part = self._key
            head = bytes([KINDS.index(kind)])
            self._hello = self._seal(messages.HELLO, [head, part])
        return self._hello

    def take(self, party: PartyId, message: bytes) -> bytes | None:
        """Take a party's next message; return the next one to it, None: all is said.

        A party's first message is its offer. In mode psi it is sent its points back and
        then answers, once it has counted.
        """
        echo = None if party in self._places else self._echoes.get(party)
        kind = messages.OFFER if echo is None else messages.ANSWER
        reader = messages.open_message(message, kind, f"party {party!r}")
        if reader.mode != self.mode:
            raise messages.other_mode(self.mode, reader.mode)
        if reader.run != self._run:
            raise reader.error("answers the hello of another run")
        if party in self._places or self._rows is not None:
            raise reader.error("comes after its offer was taken")
        if self.mode == "none":
            self._compare(reader)
            self._places[party] = np.arange(self.n_rows)
            return None
        if self.mode == "psi" and echo is None:
            return self._echo(party, reader)
        if echo is not None:
            places, n_theirs = self._match_points(reader, echo), len(echo.points)
        else:
            assert self.ids is not None
            theirs = reader.sorted_block(DIGEST_BYTES)
            ours = Entries.of(self.ids.digests(self._key), DIGEST_BYTES)
            places, n_theirs = theirs.find(ours), len(theirs)
            self._asked[party] = reader.take(messages.KEY_BYTES)
            reader.end()
        # What the party has at the least: its padding is part of what it sent.
        smaller = min(self.n_rows, max(1, n_theirs - messages.PAD_TO + 1))
        self._check_size(f"party {party!r}", int((places >= 0).sum()), smaller)
        self._places[party] = places
        self._smallest = min(self._smallest, smaller)
        return None

    def _echo(self, party: PartyId, reader: AlignReader) -> bytes:
        """Return both lists of an offer under our key, each in an order of its own."""
        firsts, seconds = (reader.sorted_block(psi.POINT_BYTES) for _ in range(2))
        reader.end()
        if len(firsts) != len(seconds):
            raise reader.error("holds two lists of different lengths")
        what = f"comparing with the ids of {reader.who}"
        count = self._counter(what, len(firsts))
        points = reader.multiplied(self._scalar, firsts, count)
        n_bytes, order = len(points.block), points.sort()
        # One point a row: otherwise knowing one id would be enough to claim all rows.
        if not points.are_sorted:
            raise reader.error("holds one point twice")

        def lists() -> Iterator[memoryview]:
            nonlocal points
            yield points.block
            del points  # they are in the message
            again = reader.multiplied(self._scalar, seconds)
            again.sort()
            yield again.block

        echo = self._seal(messages.ECHO, lists())
        block = echo[messages.HEAD.size : messages.HEAD.size + n_bytes]
        self._echoes[party] = Echo(Entries(block, psi.POINT_BYTES), order)
        return echo

    def _match_points(self, reader: AlignReader, echo: Echo) -> Positions:
        """Return the place of each of our rows in a party's offer of points."""
        answered = reader.block(psi.POINT_BYTES)
        proofs = reader.block(psi.POINT_BYTES)
        reader.end()
        n_all = messages.padded(self.n_rows)
        if (len(answered), len(proofs)) != (n_all, len(echo.points)):
            raise reader.error("answers another number of points than it was asked")
        reader.check_points(answered)
        if len(np.unique(answered.array)) < len(answered):
            raise reader.error("holds one point twice")
        ranks = echo.points.find(answered)
        places = np.full(n_all, -1)
        places[self._order[ranks >= 0]] = echo.order[ranks[ranks >= 0]]
        if (places[self.n_rows :] >= 0).any():
            raise reader.error("claims to share padding")
        shared = Entries.of((proofs[at] for at in places if at >= 0), psi.POINT_BYTES)
        echo.proofs = reader.multiplied(self._scalar, shared)
        return places[: self.n_rows]

    def _compare(self, reader: AlignReader) -> None:
        """Check that a party's table has our rows already (mode none)."""
        n_rows, digests = reader.count(), reader.block(DIGEST_BYTES)
        reader.end()
        if n_rows != self.n_rows:
            raise AlignmentError(
                f"With mode 'none' both sides must have the same rows, but the label "
                f"holder has {self.n_rows} and {reader.who} has {n_rows}.",
                public="With mode 'none' all sides must have the same rows.",
            )
        if self.ids is None or not digests:
            messages.warn_unchecked(reader.who)
        elif [*digests] != [self.ids.digest(self._key)]:
            raise AlignmentError(
                "With mode 'none' both sides must have the same ids in the same order, "
                f"but those of {reader.who} differ from the label holder's.",
                public="With mode 'none' all sides must have the same ids in the same "
                "order.",
            )

    def _check_size(self, who: str, n_common: int, smallest: int) -> None:
        """Refuse a tiny intersection, without telling how tiny it is."""
        needed = max(self.min_common, math.ceil(self.min_share * smallest))
        if n_common >= needed:
            return
        have = "no id" if n_common == 0 else f"fewer than {needed} ids"
        kind = "" if self.ids is None else f" The label holder's are {self.ids.kind}."
        raise AlignmentError(
            f"The label holder and {who} have {have} in common; at least {needed} are "
            f"needed (min_common={self.min_common}, min_share={self.min_share:g}). "
            f"Do the columns hold the same kind of id, written in the same way?{kind}"
        )

    def finish(self) -> dict[PartyId, bytes]:
        """Fix the common order, and return the last message to each party."""
        if not self._places:
            raise AlignmentError("No party has made an offer, so nothing is aligned.")
        if self.mode == "none":
            self._rows = np.arange(self.n_rows)
            final = self._seal(messages.FINAL, [COUNT.pack(self.n_rows)])
            return dict.fromkeys(self._places, final)
        shared = np.logical_and.reduce([p >= 0 for p in self._places.values()])
        common = np.flatnonzero(shared)
        self._check_size("all parties", len(common), self._smallest)
        places = (COUNT.pack(row) for row in common.tolist())
        # What rows are sorted by does not depend on their ids.
        ranks = Entries.of(
            (keys.derive(self._order_key, "row", place) for place in places),
            keys.SECRET_BYTES,
        )
        self._rows = rows = common[ranks.sort()]
        del ranks
        return {
            party: self._seal(messages.FINAL, self._named(party, rows))
            for party in self._places
        }

    def _named(self, party: PartyId, rows: Positions) -> list[bytes | memoryview]:
        """Return rows by their places at a party, each proven to be common."""
        places = self._places[party]
        parts: list[bytes | memoryview] = [messages.positions(places[rows])]
        if self.mode == "psi":
            echo = self._echoes[party]
            assert echo.proofs is not None
            of_rows = (places >= 0).cumsum()[rows] - 1  # the place of each row's proof
            proofs: Iterable[bytes] = map(echo.proofs.__getitem__, of_rows)
            ranks = np.argsort(echo.order)
            parts.append(messages.positions(ranks[places[rows]]))
        else:
            assert self.ids is not None
            proofs = messages.names(self._asked[party], self.ids, rows)
        return [*parts, Entries.of(proofs, keys.SECRET_BYTES).block]

    def _seal(self, kind: int, parts: Iterable[bytes | memoryview]) -> bytes:
        return messages.seal(kind, self.mode, self._run, parts)
