"""What filters share: classes counted by bin, under sharing or in the clear.

A filter scores every feature by how the classes fall into its bins (``core/binning``)
and keeps those that score well; then training goes on with what is left. The counts
are of the party's bins and the server's labels. With ``secret=sharing`` (Beaver's
triples, ``core/sharing``; another party deals them) a server that carries keys as they
are learns nothing but how many bins a party has, and a party the counts of its own
bins, whose rows are its own choice. With ``secret=none`` a party is sent the labels.

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

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lessvfl import settings
from lessvfl.core import binning, sharing
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import PartyPlan, QueryPlan
from lessvfl.core.protocol import QueryArrays
from lessvfl.core.sharing import Ring
from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.methods.base import Joint
from lessvfl.terms import PartyId, Stage
from lessvfl.wire.parties import Parties

STAGE: Stage = "select_features"
SEED_BYTES = 32
MOST_CELLS = (
    1 << 28
)  # of a table that a side holds: rows x bins, rows or bins x classes


@dataclass(frozen=True)
class Counted(Joint):
    """Settings of whoever counts classes by bin."""

    bins: int = settings.setting(
        settings.an_int(2), 10, "bins of a number; up to as many values have one each"
    )
    secret: Literal["sharing", "none"] = settings.setting(
        settings.one_of("sharing", "none"),
        "sharing",
        "how classes are counted by bin: under additive sharing, or by a party that is "
        "sent the labels",
    )

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        n_queries = 4 if self.secret == "sharing" else 1
        return QueryPlan(STAGE, n_queries, 0), *super().plans(n_parties)


@dataclass(frozen=True)
class FilterConfig(Counted):
    """Settings of filters."""

    keep: int | None = settings.setting(
        settings.or_none(settings.an_int(1)),
        None,
        "features that each party keeps; none: those beyond chance",
    )
    copies: int = settings.setting(
        settings.an_int(20),
        50,
        "scrambled copies of the labels that say what chance is",
    )
    false_share: float = settings.setting(
        settings.a_float(0.0, 1.0),
        0.2,
        "the largest estimated share of useless features among those kept",
    )


def select(parties: Parties, fusion: Network, labels: Labels, config: Counted) -> None:
    """Have classes counted by bin; every party selects."""
    if config.secret == "none":
        _send_labels(parties, labels)
    elif len(parties.names) > 1:
        _count_shared(parties, labels)
    else:
        raise ConfigError(
            "The 'secret' setting must be none with one party: sharing takes another "
            f"party to deal masks. Got '{config.secret}'."
        )


def _send_labels(parties: Parties, labels: Labels) -> None:
    own = [binning.classes_of(labels, r)[0] for r in range(len(labels.seeds))]
    sent = torch.stack(own).to(torch.int32)
    parties.query_last(STAGE, 0, {name: (sent,) for name in parties.names})


def _count_shared(parties: Parties, labels: Labels) -> None:
    """Lead every party and its dealer, the next one, through the protocol."""
    names, R = parties.names, len(labels.seeds)
    ring, n_rows = Ring.for_counts(parties.n_samples), parties.n_samples
    dealer = dict(zip(names, [*names[1:], names[0]], strict=True))
    client = {other: name for name, other in dealer.items()}
    Y = torch.stack([_one_hot(labels, r) for r in range(R)])[:, :, :-1]
    n_classes = Y.shape[2]

    key_and_width = ((torch.uint8, (R, SEED_BYTES)), (torch.int32, (R, 1)))
    nothing: dict[str, QueryArrays] = dict.fromkeys(names, ())
    first = parties.query(STAGE, 0, nothing, dict.fromkeys(names, key_and_width))
    keys = {name: key for name, (key, _) in first.items()}
    widths = {name: _width(name, own, n_rows) for name, (_, own) in first.items()}

    sizes = {n: torch.tensor([[widths[n], n_classes]] * R).int() for n in names}
    dealt = parties.query(
        STAGE,
        1,
        {name: (keys[client[name]], sizes[client[name]]) for name in names},
        {
            name: (
                (torch.uint8, (R, SEED_BYTES)),
                (ring.dtype, (R, widths[client[name]], n_classes)),
            )
            for name in names
        },
    )

    seeds = {name: sharing.to_bytes(dealt[dealer[name]][0]) for name in names}
    masked = {
        name: [sharing.masked(ring, seed + bytes([r]), own) for r, own in enumerate(Y)]
        for name, seed in seeds.items()
    }
    sent = {name: ring.pack(torch.stack(some)) for name, some in masked.items()}
    rows = parties.query(
        STAGE,
        2,
        {name: (keys[dealer[name]], sent[name]) for name in names},
        {name: ((ring.dtype, (R, n_rows, widths[name])),) for name in names},
    )

    shares = {}
    for name in names:
        own = [
            sharing.share_of_right(ring, ring.unpack(part), ring.unpack(left), right)
            for part, left, right in zip(
                dealt[dealer[name]][1], rows[name][0], Y, strict=True
            )
        ]
        shares[name] = (ring.pack(torch.stack(own)),)
    parties.query_last(STAGE, 3, shares)


def _width(name: PartyId, told: Tensor, n_rows: int) -> int:
    """Return how many bins a party has, if a dealer can deal masks for so many."""
    width, most = int(told[0, 0]), MOST_CELLS // n_rows
    if not 0 < width <= most:
        raise ProtocolError(
            f"Party '{name}' must have 1 to {most:,} bins in all, with {n_rows:,} rows "
            f"of each. Got {width:,}: fewer 'bins' make fewer."
        )
    return width


def _one_hot(labels: Labels, replica: int) -> Tensor:
    y, n_classes = binning.classes_of(labels, replica)
    return torch.nn.functional.one_hot(y, n_classes).cpu()
