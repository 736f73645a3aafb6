"""What filters share: classes counted by bin, under sharing or in the clear.

A filter scores every feature by how the classes fall into its bins (``core/binning``)
and keeps those that score well; then training goes on with what is left. The counts
are of the party's bins and the server's labels. With ``secret=sharing`` (Beaver's
triples, ``core/sharing``; another party deals them) the server learns nothing but how
many bins a party has, and a party the counts of its own bins. With ``secret=none`` a
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

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lessvfl import algorithm, settings
from lessvfl.core import binning, sharing
from lessvfl.core.binning import Bins
from lessvfl.core.chance import keep_beyond_chance
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import PartyPlan, QueryPlan, stream
from lessvfl.core.protocol import Arrays, Holder, Selected
from lessvfl.core.sharing import KeyPair, Ring
from lessvfl.core.stage import run_once
from lessvfl.errors import ConfigError
from lessvfl.methods.base import Joint
from lessvfl.terms import Observer, Stage
from lessvfl.wire.parties import Parties

STAGE: Stage = "select_features"
SEED_BYTES = 32
Score = Callable[[Tensor, Tensor, int], Tensor]  # counts, owner of bins, n features


@dataclass(frozen=True)
class FilterConfig(Joint):
    """Settings of filters."""

    bins: int = settings.setting(
        settings.an_int(2), 10, "bins of a number; up to as many values have one each"
    )
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


class FilterParty:
    """A party in the stage of a filter."""

    def __init__(self, score: Score, config: FilterConfig, own: Holder) -> None:
        self.own, self.config, self._score = own, config, score
        groups, n_groups = own.features.column_groups, own.features.n_groups
        self.bins = [
            binning.bin_features(own.columns(r), groups, n_groups, config.bins)
            for r in range(own.n_replicas)
        ]
        self._width = max(bins.n_bins for bins in self.bins)
        self._ring = Ring.for_counts(own.X.shape[1])
        self._key = KeyPair()
        self._seeds: list[bytes] = []  # shared with the dealer
        self._masked: list[Tensor] = []  # labels less their mask

    def answer(self, step: int, arrays: Arrays) -> Arrays | Selected:
        """Answer one query."""
        if self.config.secret == "none":
            (labels,) = arrays
            return self._select([self._counted(r, y) for r, y in enumerate(labels)])
        match step:
            case 0:
                R = self.own.n_replicas
                width = torch.full((R, 1), self._width, dtype=torch.int32)
                return sharing.from_bytes(self._key.public, R), width
            case 1:
                return self._deal(*arrays)
            case 2:
                return (self._mask(*arrays),)
        return self._select(self._add_up(arrays[0]))

    def _counted(self, replica: int, y: Tensor) -> Tensor:
        classes = y.long()
        return self.bins[replica].counts(classes, int(classes.max()) + 1)

    def _deal(self, key: Tensor, sizes: Tensor) -> Arrays:
        """Draw masks for another party and the server; return what the server gets."""
        n_rows, ring, R = self.own.X.shape[1], self._ring, self.own.n_replicas
        n_bins, n_classes = sizes[0].tolist()
        seed = secrets.token_bytes(SEED_BYTES)
        shares = [
            sharing.deal(
                ring,
                self._key.secret(sharing.to_bytes(key), r),
                seed + bytes([r]),
                n_rows,
                n_bins,
                n_classes,
            )
            for r in range(R)
        ]
        return sharing.from_bytes(seed, R), ring.pack(torch.stack(shares))

    def _mask(self, key: Tensor, labels: Tensor) -> Tensor:
        """Take labels less their mask; return the bins of every row less theirs."""
        R, ring = self.own.n_replicas, self._ring
        other = sharing.to_bytes(key)
        self._seeds = [self._key.secret(other, r) for r in range(R)]
        self._masked = [ring.unpack(own) for own in labels]
        return torch.stack(
            [
                ring.pack(sharing.masked(ring, seed, self._indicators(bins)))
                for seed, bins in zip(self._seeds, self.bins, strict=True)
            ]
        )

    def _indicators(self, bins: Bins) -> Tensor:
        """Return which bins every row is in, (N, width), bins of no row at the end."""
        found = bins.indicators(torch.int64)
        return torch.nn.functional.pad(found, (0, self._width - found.shape[1]))

    def _add_up(self, shares: Tensor) -> list[Tensor]:
        """Return the counts of classes by bin, of every replica."""
        ring, found = self._ring, []
        for bins, seed, masked, share in zip(
            self.bins, self._seeds, self._masked, shares, strict=True
        ):
            own = sharing.share_of_left(ring, seed, masked, self._width)
            counts = ring.reduce(own + ring.unpack(share))[: bins.n_bins]
            sizes = torch.bincount(bins.codes.flatten(), minlength=bins.n_bins)
            last = sizes - counts.sum(dim=1)  # the class that was not sent
            found.append(torch.cat([counts, last.unsqueeze(1)], dim=1))
        return found

    def _select(self, counts: list[Tensor]) -> Selected:
        """Keep the features that score best, or beyond what scrambled labels do."""
        kept, reports = [], []
        must = self.own.features.groups_of(self.own.must_keep)
        for r, (bins, table) in enumerate(zip(self.bins, counts, strict=True)):
            n = len(bins.sizes)
            scores = self._score(table, bins.owner, n)
            if self.config.keep is not None:
                chosen, share = scores.new_zeros(n, dtype=torch.bool), None
                chosen[scores.topk(min(n, self.config.keep)).indices] = True
            else:
                chosen, share = self._beyond_chance(r, table, scores)
            kept.append(chosen | must)
            reports.append({"scores": scores.tolist(), "false_share": share})
        return Selected(torch.stack(kept), tuple(reports))

    def _beyond_chance(
        self, r: int, table: Tensor, scores: Tensor
    ) -> tuple[Tensor, float]:
        bins, own = self.bins[r], self.own
        total = table[bins.owner == 0].sum(dim=0)
        classes = torch.arange(len(total)).repeat_interleave(total.cpu())
        random = stream(own.private[r], "scrambled labels", own.party)

        def scramble() -> Tensor:
            order = torch.randperm(len(classes), generator=random)
            y = classes[order].to(bins.codes.device)
            counts = bins.counts(y, len(total))
            return self._score(counts, bins.owner, len(bins.sizes))

        config = self.config
        return keep_beyond_chance(scores, scramble, config.copies, config.false_share)


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: FilterConfig,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Have classes counted by bin; every party selects; train on what is left."""
    if config.secret == "sharing" and len(parties.names) < 2:
        raise ConfigError(
            "The 'secret' setting must be none with one party: sharing takes another "
            f"party to deal masks. Got '{config.secret}'."
        )
    count = _count_shared if config.secret == "sharing" else _send_labels
    run_once(STAGE, 1, lambda: count(parties, labels), fusion, observe, keeper)
    plan = config.plan("train", config.train_epochs)
    algorithm.train_jointly(parties, fusion, labels, plan, observe, keeper)
    return fusion


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
    nothing: dict[str, Arrays] = dict.fromkeys(names, ())
    first = parties.query(STAGE, 0, nothing, dict.fromkeys(names, key_and_width))
    keys = {name: key for name, (key, _) in first.items()}
    widths = {name: int(width[0, 0]) for name, (_, width) in first.items()}

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


def _one_hot(labels: Labels, replica: int) -> Tensor:
    y, n_classes = binning.classes_of(labels, replica)
    return torch.nn.functional.one_hot(y, n_classes).cpu()
