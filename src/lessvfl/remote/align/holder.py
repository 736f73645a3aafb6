"""The label holder's side of alignment."""

from __future__ import annotations

import hashlib
import math
import secrets

import numpy as np
from numpy.typing import NDArray

from lessvfl import settings
from lessvfl.errors import AlignmentError
from lessvfl.remote.align import messages, psi
from lessvfl.remote.align.ids import DIGEST_BYTES, TYPES, Ids
from lessvfl.remote.align.messages import KEY_BYTES, AlignReader, Mode
from lessvfl.terms import PartyId


class Aligner:
    """The label holder's side.

    Send :meth:`hello` to every party, give every answer to :meth:`take_offer`, send
    what :meth:`finish` returns, then take :attr:`rows`. Fewer common ids than
    `min_common`, or than `min_share` of the smallest table, are refused; `seed` fixes
    the common order of the same ids, never the keys.
    """

    def __init__(
        self,
        mode: Mode,
        ids: Ids | None,
        n_rows: int,
        *,
        min_common: int = 50,
        min_share: float = 0.01,
        seed: int | None = None,
    ) -> None:
        messages.check_table(mode, ids, n_rows)
        for name, kind, value in (
            ("min_common", settings.an_int(1), min_common),
            ("min_share", settings.a_float(0, 1), min_share),
            ("seed", settings.or_none(settings.an_int()), seed),
        ):
            if not kind.accepts(value):
                raise settings.refuse(name, "of alignment", kind.allowed, value)
        self.matched: dict[PartyId, int] = {}  # ids shared with each, for us alone
        self._mode: Mode = mode
        self._ids = ids
        self._common = np.ones(n_rows, dtype=bool)
        self._smallest = n_rows
        self._min_common, self._min_share = min_common, min_share
        self._run = secrets.token_bytes(messages.RUN_BYTES)
        self._key = secrets.token_bytes(KEY_BYTES)
        self._order_key = (
            secrets.token_bytes(KEY_BYTES)
            if seed is None
            else hashlib.sha256(f"lessvfl/align/{seed}".encode()).digest()
        )
        self._hello: bytes | None = None
        self._question: psi.Question | None = None
        self._rows: NDArray[np.int64] | None = None

    def hello(self) -> bytes:
        """Return the message to every party, the same for all."""
        if self._hello is None:
            id_type = "absent" if self._ids is None else self._ids.type
            parts = [bytes([TYPES.index(id_type)]), self._key]
            if self._mode == "psi":
                assert self._ids is not None
                self._question = psi.Question(messages.padded_items(self._ids))
                parts.append(messages.block(self._question.points))
            self._hello = self._seal(messages.HELLO, *parts)
        return self._hello

    def take_offer(self, party: PartyId, offer: bytes) -> None:
        """Take a party's answer to the hello."""
        reader = messages.open_message(offer, messages.OFFER, f"party {party!r}")
        if reader.mode != self._mode:
            raise messages.other_mode(self._mode, reader.mode)
        if reader.run != self._run or self._hello is None:
            raise reader.error("answers the hello of another run")
        if party in self.matched or self._rows is not None:
            raise reader.error("comes after its offer was taken")
        if self._mode == "none":
            self._compare(reader)
            self.matched[party] = len(self._common)
            return
        n_rows = len(self._common)
        found = np.zeros(n_rows, dtype=bool)
        if self._mode == "psi":
            assert self._question is not None
            theirs = reader.block(psi.POINT_BYTES)
            answered = reader.block(psi.POINT_BYTES)
            reader.end()
            try:
                shared = self._question.shared(theirs, answered)
            except ValueError as error:
                raise reader.error(str(error)) from None
            if any(index >= n_rows for index in shared):
                raise reader.error("claims to share padding")
            found[shared] = True
        else:
            assert self._ids is not None
            theirs = reader.block(DIGEST_BYTES)
            reader.end()
            offered = set(theirs)
            found[:] = [one in offered for one in self._ids.digests(self._key)]
        # What the party has at the least: its padding is part of what it sent.
        smaller = min(n_rows, max(1, len(theirs) - messages.PAD_TO + 1))
        self._check_size(f"party {party!r}", int(found.sum()), smaller)
        self.matched[party] = int(found.sum())
        self._common &= found
        self._smallest = min(self._smallest, smaller)

    def _compare(self, reader: AlignReader) -> None:
        """Check that a party's table has our rows already (mode none)."""
        n_rows, digests = reader.count(), reader.block(DIGEST_BYTES)
        reader.end()
        if n_rows != len(self._common):
            raise AlignmentError(
                f"With mode 'none' both sides must have the same rows, but the label "
                f"holder has {len(self._common)} and {reader.who} has {n_rows}."
            )
        if self._ids is None or not digests:
            messages.warn_unchecked(reader.who)
        elif digests != [self._ids.digest(self._key)]:
            raise AlignmentError(
                "With mode 'none' both sides must have the same ids in the same order, "
                f"but those of {reader.who} differ from the label holder's."
            )

    def _check_size(self, who: str, n_common: int, smallest: int) -> None:
        """Refuse a tiny intersection; the sentence does not tell how tiny."""
        needed = max(self._min_common, math.ceil(self._min_share * smallest))
        if n_common >= needed:
            return
        have = "no id" if n_common == 0 else f"fewer than {needed} ids"
        raise AlignmentError(
            f"The label holder and {who} have {have} in common; at least {needed} are "
            f"needed (min_common={self._min_common}, min_share={self._min_share:g}). "
            "Do the columns hold the same kind of id, written in the same way?"
        )

    def finish(self) -> dict[PartyId, bytes]:
        """Fix the common order, and return the last message to each party."""
        if not self.matched:
            raise AlignmentError("No party has made an offer, so nothing is aligned.")
        if self._mode == "none":
            self._rows = np.arange(len(self._common))
            final = self._seal(messages.FINAL, messages.COUNT.pack(len(self._rows)))
        else:
            assert self._ids is not None
            self._check_size("all parties", int(self._common.sum()), self._smallest)
            common = np.flatnonzero(self._common).tolist()
            places = self._ids.digests(self._order_key, common)
            ordered = [row for _, row in sorted(zip(places, common, strict=True))]
            self._rows = np.array(ordered, dtype=np.int64)
            key = secrets.token_bytes(KEY_BYTES)
            names = self._ids.digests(key, ordered)
            final = self._seal(messages.FINAL, key, messages.block(names))
        return dict.fromkeys(self.matched, final)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The label holder's rows in the common order, once finished."""
        if self._rows is None:
            raise AlignmentError("The label holder's rows are not aligned yet.")
        return self._rows

    def _seal(self, kind: int, *parts: bytes) -> bytes:
        return messages.seal(kind, self._mode, self._run, *parts)
