"""A party's side of alignment."""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.id_kinds import APART, KINDS, MIXED
from lessvfl.errors import AlignmentError, PolicyError
from lessvfl.remote.align import keys, messages, psi
from lessvfl.remote.align.entries import COUNT, Entries
from lessvfl.remote.align.ids import DIGEST_BYTES
from lessvfl.remote.align.messages import AlignReader


@dataclass(eq=False, repr=False)
class PartyAligner(messages.Side):
    """A party's side.

    Pass every message to :meth:`answer` and send back what it returns; after the last
    one read :attr:`rows`. The party agrees to one `mode` only, and to no fewer common
    rows than `min_common`. In mode psi it counts how many of the offered ids are its
    own before it tells which: fewer than `min_common`, or than `min_share` of the
    offered ones, are refused. Answers to different hellos have nothing in common.
    """

    def __post_init__(self) -> None:
        """Wait for the first message."""
        super().__post_init__()
        self._due = messages.HELLO
        self._run = b""
        self._theirs = ""  # the kind of the label holder's ids
        self._key = b""  # what everything random is derived from, by the hello
        self._listed = np.zeros(0, dtype=np.int64)  # the row at each place of the offer
        nothing = Entries.of((), psi.POINT_BYTES)
        self._points = nothing  # of our rows, at each place of the offer
        self._answers = nothing  # the label holder's points under our key
        self._echoed = nothing  # ours under its key, in an order it alone knows
        self._are_common = np.zeros(0, dtype=bool)  # those that the label holder has

    def answer(self, message: bytes) -> bytes | None:
        """Answer the label holder's next message; None: that was the last."""
        reader = messages.open_message(message, self._due, "the label holder")
        if reader.mode != self.mode:
            raise messages.other_mode(reader.mode, self.mode)
        if self._due == messages.HELLO:
            hello = hashlib.sha256(message).digest()
            self._key = keys.derive(self.secret, "party", hello)
            parts = self._offer(reader)
            self._run = reader.run
            self._due = messages.ECHO if self.mode == "psi" else messages.FINAL
            return messages.seal(messages.OFFER, self.mode, self._run, parts)
        if reader.run != self._run:
            raise reader.error("belongs to another run")
        if self._due == messages.ECHO:
            parts = self._tell_which(reader)
            self._due = messages.FINAL
            return messages.seal(messages.ANSWER, self.mode, self._run, parts)
        self._rows = self._order(reader)
        return None

    # ------------------------------------------------------------------------ the offer

    def _offer(self, reader: AlignReader) -> list[bytes | memoryview]:
        """Return the parts of the answer to a hello."""
        number = reader.take(1)[0]
        if number >= len(KINDS) or (number == 0 and self.mode != "none"):
            raise reader.error("names no kind of ids")
        theirs = self._theirs = KINDS[number]
        mine = theirs if self.ids is None else self.ids.kind
        if (why := APART.get(frozenset({theirs, mine}))) is not None:
            raise AlignmentError(
                f"The label holder's ids are {theirs}, the party's are {mine}: {why}; "
                "write its ids out again as texts.",
                public="The ids of all sides must be written alike: with their leading "
                "zeros or none, and without a decimal point.",
            )
        if self.mode == "psi":  # our points, and them once more under another key
            assert self.ids is not None
            asked = reader.sorted_block(psi.POINT_BYTES)
            reader.end()
            self._check_count(self.n_rows, len(asked))  # no more of them can be our own
            count = self._counter("answering for the server's ids", len(asked))
            self._answers = reader.multiplied(self._derived("scalar"), asked, count)
            items = messages.padded_items(self._key, self.ids)
            count = self._counter("hiding our ids", messages.padded(self.n_rows))
            self._points = self._derived("scalar").hide(items, count)
            self._listed = self._points.sort()
            pairs = self._derived("pair").multiply(self._points)
            pairs.sort()
            return [self._points.block, pairs.block]
        key = reader.take(messages.KEY_BYTES)
        reader.end()
        if self.mode == "none":
            digests = [] if self.ids is None else [self.ids.digest(key)]
            if theirs == "absent" or not digests:
                messages.warn_unchecked("the party")
            return [COUNT.pack(self.n_rows), messages.block(digests)]
        assert self.ids is not None
        padding = messages.padding(self._key, self.n_rows)
        every = itertools.chain(self.ids.digests(key), padding)
        listed = Entries.of(every, DIGEST_BYTES)
        self._listed = listed.sort()
        return [listed.block, keys.derive(self._key, "names")]

    def _derived(self, label: str) -> psi.Key:
        """Return the secret number for one purpose."""
        return psi.Key(keys.derive(self._key, label))

    # ----------------------------------------------------------- how many, before which

    def _tell_which(self, reader: AlignReader) -> list[bytes | memoryview]:
        """Count common ids; if they are enough, answer the label holder's points.

        Both lists must come back under one key: without knowing which points are pairs,
        nobody can turn one common id into several.
        """
        self._echoed, pairs = (reader.sorted_block(psi.POINT_BYTES) for _ in range(2))
        reader.end()
        if len(self._echoed) != len(self._points):
            raise reader.error("holds another number of points than was offered")
        reader.check_points(pairs)
        again = reader.multiplied(self._derived("pair"), self._echoed)
        again.sort()
        if again.block != pairs.block:
            raise reader.error("holds points that are not all under one key")
        del again
        ranks = self._echoed.find(self._answers)
        self._are_common = np.zeros(len(self._echoed), dtype=bool)
        self._are_common[ranks[ranks >= 0]] = True
        assert self.ids is not None
        theirs, mine, kinds = self._theirs, self.ids.kind, ""
        if (theirs == "texts") != (mine == "texts"):
            kinds = f"; the label holder's ids are {theirs}, the party's are {mine}: "
            kinds += MIXED
        n_common = int(self._are_common.sum())
        self._check_count(n_common, len(self._answers), kinds)
        proofs = (
            self._derived(f"row/{place}").multiply([point])[0]
            for place, point in enumerate(self._points)
        )
        answers = self._answers.block
        return [answers, Entries.of(proofs, psi.POINT_BYTES).block]

    def _check_count(self, n_common: int, n_offered: int, why: str = "") -> None:
        """Refuse too few common ids; the sentence does not tell how few."""
        if n_common < max(self.min_common, math.ceil(self.min_share * n_offered)):
            share = f" and {self.min_share:.3g} of the ids offered"
            raise PolicyError(
                f"Party policy: at least {self.min_common} common rows"
                f"{share if self.min_share else ''} are needed. Got fewer{why}."
            )

    # ----------------------------------------------------------------- the common order

    def _order(self, reader: AlignReader) -> NDArray[np.int64]:
        """Return the party's rows in the common order, from the last message."""
        if self.mode == "none":
            n_rows = reader.count()
            reader.end()
            if n_rows != self.n_rows:
                raise reader.error("has another number of rows than was agreed")
            rows = np.arange(n_rows)
            self._check_count(len(rows), 0)
            return rows
        wrong = reader.error("names rows that the party does not have")
        unproven = reader.error("names rows that are not common")
        places = reader.positions()
        if (places >= len(self._listed)).any():
            raise wrong
        if self.mode == "psi" and not self._are_proven(reader, places):
            raise unproven
        rows = self._listed[places]
        if (rows >= self.n_rows).any() or len(np.unique(rows)) < len(rows):
            raise wrong
        if self.mode == "plain":  # the label holder must know the id of each
            assert self.ids is not None
            names = reader.block(keys.SECRET_BYTES)
            due = messages.names(keys.derive(self._key, "names"), self.ids, rows)
            if len(names) != len(rows) or not all(map(operator.eq, names, due)):
                raise unproven
        reader.end()
        self._check_count(len(rows), 0)
        return rows

    def _are_proven(self, reader: AlignReader, places: NDArray[np.int64]) -> bool:
        """Tell whether a proof says of each place which point it came back as.

        That point must be one that the label holder had offered. The proof is the
        place's point under a key of its own, which nobody else has, and the label
        holder's key: it takes a multiplication of that very point to know it.
        """
        ranks, proofs = reader.positions(), reader.block(psi.POINT_BYTES)
        if not len(places) == len(ranks) == len(proofs):
            return False
        if (ranks >= len(self._echoed)).any():
            return False
        return all(
            self._are_common[rank]
            and self._derived(f"row/{place}").multiply([self._echoed[rank]])[0] == proof
            for place, rank, proof in zip(places, ranks, proofs, strict=True)
        )
