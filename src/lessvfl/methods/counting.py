"""Classes counted by bin, under sharing or in the clear: both sides.

The counts are of a party's bins (``core/binning``) and the server's labels. With
``secret=sharing`` (Beaver's triples, ``core/sharing``; another party deals them) a
server that carries keys as they are learns nothing but how many bins a party has, and a
party the counts of its own bins, whose rows are its own choice. With ``secret=none`` a
party is sent the labels.

==== ======================================== =========================================
step down                                     up
==== ======================================== =========================================
0    nothing                                  a public key; how many bins
1    key and number of bins of whom it deals  the seed of the server's mask, a share of
     for, number of classes                   the product of the masks
2    the dealer's key, labels less their mask bins of every row less their mask
3    the server's share of the counts         nothing: the party selects
==== ======================================== =========================================

In the clear step 0 has the labels, and a party selects at once.
"""

from __future__ import annotations

import abc
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lessvfl.core import binning, limits, sharing
from lessvfl.core.binning import Bins
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import PartyPlan, QueryPlan
from lessvfl.core.protocol import Holder, QueryArrays, Selected, expect
from lessvfl.core.sharing import KEY_BYTES, SEED_BYTES, KeyPair, Ring
from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.methods.base import Joint
from lessvfl.settings import an_int, one_of, setting
from lessvfl.terms import PartyId, Stage
from lessvfl.wire.parties import Parties

STAGE: Stage = "select_features"
MOST_CELLS = 1 << 28  # of a side's table: rows x bins, rows or bins x classes
MOST_CLASSES = 1024
N_COUNTING = {"sharing": 4, "none": 1}  # queries until a party has its counts


@dataclass(frozen=True)
class Counted(Joint):
    """Settings of whoever counts classes by bin."""

    bins: int = setting(
        an_int(2), 10, "bins of a number; up to as many values have one each"
    )
    secret: Literal["sharing", "none"] = setting(
        one_of("sharing", "none"),
        "sharing",
        "how classes are counted by bin: under additive sharing, or by a party that is "
        "sent the labels",
    )

    @property
    def holds_out(self) -> bool:
        """Tell whether some rows are not counted, by which something is decided."""
        return False

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        n_queries = N_COUNTING[self.secret] + 2 * self.holds_out
        shows = self.holds_out and self.secret == "none"
        count = QueryPlan(STAGE, n_queries, limits.N_VALUES if shows else 0)
        return count, *super().plans(n_parties)


def select(parties: Parties, fusion: Network, labels: Labels, config: Counted) -> None:
    """Have classes counted by bin; every party selects by its counts."""
    y, n_classes = classes_of(labels)
    sent = count(parties, y, n_classes, config.secret)
    parties.query_last(STAGE, N_COUNTING[config.secret] - 1, sent)


def classes_of(labels: Labels) -> tuple[Tensor, int]:
    """Return the classes of all rows, (N,), and how many there are."""
    y, n_classes = binning.classes_of(labels)
    return y.cpu(), n_classes


def count(
    parties: Parties, y: Tensor, n_classes: int, secret: str
) -> dict[str, QueryArrays]:
    """Return what tells every party the counts of its bins, for rows of classes y."""
    if secret == "none":
        return dict.fromkeys(parties.names, (y.to(torch.int32),))
    check_dealers(parties.names, secret)
    return _count_shared(parties, torch.nn.functional.one_hot(y, n_classes))


def check_dealers(names: Sequence[PartyId], secret: str) -> None:
    """Raise ConfigError if `names` is one party alone: sharing needs a second one."""
    if len(names) == 1:
        raise ConfigError(
            "The 'secret' setting must be none with one party: sharing takes another "
            f"party to deal masks. Got '{secret}'."
        )


def _count_shared(parties: Parties, labels: Tensor) -> dict[str, QueryArrays]:
    """Lead every party and its dealer, the next one, to the server's shares of counts.

    `labels` (n, C) are 1 in the class of a row; the last follows from the others.
    """
    names, Y = parties.names, labels[:, :-1]
    n_rows, n_classes = Y.shape
    ring = Ring.for_counts(n_rows)
    dealer = dict(zip(names, [*names[1:], names[0]], strict=True))
    client = {other: name for name, other in dealer.items()}

    key_and_width = ((torch.uint8, (SEED_BYTES,)), (torch.int32, (1,)))
    nothing: dict[str, QueryArrays] = dict.fromkeys(names, ())
    first = parties.query(STAGE, 0, nothing, dict.fromkeys(names, key_and_width))
    keys = {name: key for name, (key, _) in first.items()}
    sharing.check_keys(keys)
    widths = {name: _width(name, size, n_rows) for name, (_, size) in first.items()}

    sizes = {n: torch.tensor([widths[n], n_classes]).int() for n in names}
    dealt = parties.query(
        STAGE,
        1,
        {name: (keys[client[name]], sizes[client[name]]) for name in names},
        {
            name: (
                (torch.uint8, (SEED_BYTES,)),
                (ring.dtype, (widths[client[name]], n_classes)),
            )
            for name in names
        },
    )

    seeds = {name: sharing.to_bytes(dealt[dealer[name]][0]) for name in names}
    sent = {
        name: ring.pack(sharing.masked(ring, seed, Y)) for name, seed in seeds.items()
    }
    rows = parties.query(
        STAGE,
        2,
        {name: (keys[dealer[name]], sent[name]) for name in names},
        {name: ((ring.dtype, (n_rows, widths[name])),) for name in names},
    )

    shares: dict[str, QueryArrays] = {}
    for name in names:
        part, left = ring.unpack(dealt[dealer[name]][1]), ring.unpack(rows[name][0])
        shares[name] = (ring.pack(sharing.share_of_right(ring, part, left, Y)),)
    return shares


def _width(name: PartyId, size: Tensor, n_rows: int) -> int:
    """Return how many bins a party has, if a dealer can deal masks for so many."""
    width, most = int(size), MOST_CELLS // n_rows
    if not 0 < width <= most:
        raise ProtocolError(
            f"Party '{name}' must have 1 to {most:,} bins in all, with {n_rows:,} rows "
            f"of each. Got {width:,}: fewer 'bins' make fewer."
        )
    return width


def _check_range(what: str, low: int, high: int, most: int) -> None:
    if low < 0 or high > most:
        raise ValueError(f"{what} from {low} to {high}, of 0 to {most}")


def _check_sizes(n_rows: int, n_bins: int, n_classes: int) -> None:
    """Refuse tables (rows, bins), (rows, classes) or (bins, classes) too large."""
    _check_range("bins", n_bins, n_bins, MOST_CELLS // n_rows)
    most = min(MOST_CLASSES, MOST_CELLS // max(1, n_rows, n_bins))
    _check_range("classes", n_classes, n_classes, most)


class CountingParty(abc.ABC):
    """A party in a stage in which classes are counted by bin."""

    def __init__(self, config: Counted, holder: Holder) -> None:
        self.inputs, self._secret = holder, config.secret
        features = holder.features
        self.bins = binning.bin_features(
            holder.X.cpu(), features.column_groups.cpu(), features.n_groups, config.bins
        )
        self.held_out: Bins | None = None  # the same bins of rows that are not counted
        if config.holds_out:
            held_out, counted = limits.split_rows(len(holder.X), holder.seed)
            self.held_out, self.bins = self.bins.take(held_out), self.bins.take(counted)
        self._n_rows = self.bins.codes.shape[1]
        self._ring = Ring.for_counts(self._n_rows)
        self._key = KeyPair()
        self._seed = b""  # shared with the dealer
        self._dealt = b""  # shared with whom it deals for
        self._masked: Tensor | None = None  # labels less their mask

    def answer(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Answer one query."""
        n_rows, n_bins = self._n_rows, self.bins.n_bins
        if step >= N_COUNTING[self._secret]:
            return self.go_on(step - N_COUNTING[self._secret], arrays)
        if self._secret == "none":
            expect(arrays, (n_rows,))
            (labels,) = arrays
            most = min(MOST_CLASSES, MOST_CELLS // n_bins)
            _check_range("classes", int(labels.min()), int(labels.max()), most)
            return self.counted(self.bins.counts(labels.long(), int(labels.max()) + 1))
        match step:
            case 0:
                expect(arrays)
                _check_sizes(n_rows, n_bins, 0)
                width = torch.tensor([n_bins], dtype=torch.int32)
                return sharing.from_bytes(self._key.public), width
            case 1:
                expect(arrays, (KEY_BYTES,), (2,))
                return self._deal(*arrays)
            case 2:
                expect(arrays, (KEY_BYTES,), (n_rows, -1))
                _check_sizes(n_rows, n_bins, arrays[1].shape[1])
                return (self._mask(*arrays),)
        if self._masked is None:
            raise ValueError("shares of counts before labels")
        expect(arrays, (n_bins, self._masked.shape[1]))
        return self.counted(self._add_up(self._masked, *arrays))

    def _deal(self, key: Tensor, sizes: Tensor) -> QueryArrays:
        """Draw masks for another party and the server; return what the server gets."""
        n_rows, ring = self._n_rows, self._ring
        n_bins, n_classes = sizes.tolist()
        _check_sizes(n_rows, n_bins, n_classes)
        client, dealer = sharing.to_bytes(key), self._key.public
        self._dealt = self._key.secret(client, client, dealer)
        seed = secrets.token_bytes(SEED_BYTES)
        share = sharing.deal(ring, self._dealt, seed, n_rows, n_bins, n_classes)
        return sharing.from_bytes(seed), ring.pack(share)

    def _mask(self, key: Tensor, labels: Tensor) -> Tensor:
        """Take labels less their mask; return the bins of every row less theirs."""
        ring = self._ring
        client, dealer = self._key.public, sharing.to_bytes(key)
        self._seed = self._key.secret(dealer, client, dealer)
        self._masked = ring.unpack(labels)
        indicators = self.bins.indicators(torch.int64)
        return ring.pack(sharing.masked(ring, self._seed, indicators))

    def _add_up(self, masked: Tensor, servers: Tensor) -> Tensor:
        """Return the counts of classes by bin, given the server's share of them."""
        ring, bins = self._ring, self.bins
        share = sharing.share_of_left(ring, self._seed, masked, bins.n_bins)
        counts = ring.reduce(share + ring.unpack(servers))
        sizes = torch.bincount(bins.codes.flatten(), minlength=bins.n_bins)
        last = sizes - counts.sum(dim=1)  # the class that was not sent
        if bool((last < 0).any()):
            raise ValueError("more rows of a bin than it has")
        return torch.cat([counts, last.unsqueeze(1)], dim=1)

    def hide(self, values: Tensor) -> Tensor:
        """Return real numbers as they travel: under sharing in a sum alone."""
        if self._secret == "none":
            return sharing.rounded(values).to(self.inputs.X.dtype)
        return sharing.hidden(values, self._seed, self._dealt)

    @abc.abstractmethod
    def counted(self, counts: Tensor) -> QueryArrays | Selected:
        """Go on with the rows of every class in every bin, (n_bins, C)."""

    def go_on(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Answer a query after the counts, the first of which is step 0."""
        raise ValueError("a query beyond the last")
