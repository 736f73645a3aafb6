"""The messages around a run: who joins, what is agreed, what is saved, how it ends.

=========== ========= =============================== ==================================
message     direction fields                          reveals
=========== ========= =============================== ==================================
Hello       up        name, threads, device, versions the party's software
Welcome     down      run, seeds, method, settings,   how the run goes, who takes part
                      parties, alignment
Align       both      bytes of the alignment          see docs/alignment.md
Prepare     down      the seed of the next run, which which common rows are for testing;
                      rows it tests with: a bit for   which training rows are of one
                      each common row; where rows     person or the like, not of whom
                      belong together, the number
                      of what each training row
                      belongs to; where the server's  the share of the rarer of two
                      config says so, share           classes
Save        down      a mark: stage and step          nothing
Restore     down      a mark, or none: from the start nothing
Open        down      run, seeds, session, digest of   that a model is used, and when
                      the fusion network, alignment
Ask         down      rows, as places in the common   for whom something is predicted
                      order
Explain     down      rows, slopes of the explained   something of the fusion network;
                      output in its components, how   of more than two classes, which
                      many features may be named      rows are predicted alike
Explained   up        names, texts and contributions  what its operator allows: which
                      of features                     features pushed most, how much
Declined    up        a sentence                      why a party does not answer this
Finish      down      a digest of the fusion network  that the run of this seed is over
Farewell    down      none                            that all know it
Agreed      up        a digest of its network; what   what its operator allows: how many
                      it reveals: nothing by default  or which features it kept
Busy        up        none                            that the party computes
Refusal     both      a kind of error, a sentence     why the other side stops
=========== ========= =============================== ==================================

They are not part of the method and not on its bill; their bytes are wire bytes.
A refusal says of an error its kind and its public sentence (:mod:`lessvfl.errors`);
the rest of what the error says stays at home.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from lessvfl.errors import LessVFLError
from lessvfl.settings import Natural, PartyName, PartyNames
from lessvfl.wire.messages import Text

Tag = Annotated[
    str, Meta(pattern=r"\A[a-z_]{1,32}-[0-9]{1,12}\Z", description="a stage and a step")
]
HexKey = Annotated[
    str, Meta(pattern=r"\A[0-9a-f]{32}\Z", description="32 hexadecimal digits")
]
Word = Annotated[str, Meta(pattern=r"\A[a-z]{1,20}\Z", description="a word")]
RareShare = Annotated[float, Meta(gt=0, le=0.5, description="a float in (0, 0.5]")]

AT_ONCE = 1 << 16  # rows whose places are in memory together; a multiple of 8


@dataclass(frozen=True)
class Hello:
    """A party joins."""

    party: PartyName
    threads: Natural
    device: Text
    versions: Mapping[Text, Text]


@dataclass(frozen=True)
class Welcome:
    """The server takes a party in and says what will be run."""

    run: Text  # the run's own number
    seeds: tuple[int, ...]  # one run each, in this order
    method: Text
    settings: Mapping[str, Any]
    parties: PartyNames
    align: Text  # how common rows are found


@dataclass(frozen=True)
class Align:
    """One message of the alignment of rows."""

    data: bytes


@dataclass(frozen=True)
class Prepare:
    """A run begins: its seed, and which common rows are for training and testing.

    `rows` has a bit for each row in the common order: whether it is for testing. So
    no order in which rows were drawn is told. `blocks` number what training rows belong
    to, where rows belong together. `share` is that of the rarer of two classes, where
    the server's config tells it.
    """

    seed: Natural
    n_train: Natural
    n_test: Natural
    rows: NDArray[np.uint8]  # bits, eight in each
    blocks: NDArray[np.int32] | None = None  # (n_train,)
    share: RareShare | None = None

    @classmethod
    def of(
        cls,
        seed: int,
        train: NDArray[np.int64],
        test: NDArray[np.int64],
        blocks: NDArray[np.int64] | None = None,
        share: float | None = None,
    ) -> Prepare:
        """Name rows, each of the common ones once."""
        is_test = np.zeros(len(train) + len(test), dtype=np.bool_)
        is_test[test] = True
        return cls(
            seed=seed,
            n_train=len(train),
            n_test=len(test),
            rows=np.packbits(is_test),
            blocks=None if blocks is None else blocks.astype(np.int32),
            share=share,
        )

    @property
    def n_rows(self) -> int:
        """Return the number of rows in all."""
        return self.n_train + self.n_test

    def digest(self) -> str:
        """Return a digest of these rows."""
        digest = hashlib.sha256(f"{self.n_train} {self.n_test} ".encode())
        digest.update(self.rows.data)
        if self.blocks is not None:
            digest.update(np.ascontiguousarray(self.blocks).data)
        return digest.hexdigest()

    def places(self, of: Literal["train", "test"]) -> Iterator[NDArray[np.int64]]:
        """Yield the places of training or test rows, many at a time."""
        for start in range(0, self.n_rows, AT_ONCE):
            some = self.rows[start // 8 : (start + AT_ONCE) // 8]
            is_test = np.unpackbits(some, count=min(AT_ONCE, self.n_rows - start))
            yield start + np.flatnonzero(is_test == (of == "test"))


@dataclass(frozen=True)
class Save:
    """Save the state under this mark, as in ``train-150``."""

    tag: Tag


@dataclass(frozen=True)
class Restore:
    """Go back to the state of this mark; None: to the start."""

    tag: Tag | None


@dataclass(frozen=True)
class Finish:
    """The run of this seed is over: save it, with the fusion network it belongs to."""

    model: Text  # a digest


@dataclass(frozen=True)
class Open:
    """Use the model of one seed, or of several as one, with the rows of a session."""

    run: Text
    seeds: tuple[Natural, ...]
    session: HexKey  # rows are aligned once a session
    model: Text  # a digest of the fusion network
    align: Text


@dataclass(frozen=True)
class Ask:
    """Send the embeddings of these rows; places in the common order."""

    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Explain:
    """Split your share of these rows among your features.

    The share of a row is the product of its slopes and what its embedding differs by
    from your mean. Up to `most` features are named in each direction.
    """

    rows: NDArray[np.int64]  # (n,), places in the common order
    slopes: NDArray[np.float32]  # (n, components)
    most: Natural


@dataclass(frozen=True)
class Explained:
    """The features of every row that added most, in each direction."""

    names: tuple[Text, ...]
    texts: tuple[Text, ...]  # one for each name, empty where there is none
    places: NDArray[np.int32]  # (n, k), of names; -1: no more
    values: NDArray[np.float32]  # (n, k)


@dataclass(frozen=True)
class Declined:
    """No to this request, and why; the next one may be answered."""

    reason: Text


@dataclass(frozen=True)
class Farewell:
    """The run is over for everybody."""


@dataclass(frozen=True)
class Agreed:
    """Done as asked, with what the party is willing to reveal."""

    revealed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Busy:
    """A sign of life: the reply of this exchange is being computed."""


@dataclass(frozen=True)
class Refusal:
    """No, and why; `final` where it is no use to try again."""

    kind: Word
    reason: Text
    final: bool = True

    @classmethod
    def of(cls, error: BaseException) -> Refusal:
        """Return what another side may know of an error."""
        if isinstance(error, KeyboardInterrupt):
            return cls("interrupted", "That side was interrupted.")
        if not isinstance(error, LessVFLError):
            return cls(LessVFLError.kind, LessVFLError.public)
        return cls(error.kind, printable(error.public))


def printable(text: str, limit: int = 2000) -> str:
    """Return a text of another side as it may be shown."""
    return "".join(c if c.isprintable() else " " for c in text[:limit])
