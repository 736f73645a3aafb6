"""Fed-EINI under sharing: what trees say of a row, and to nobody how it came about.

After Chen et al., 2021 (arXiv 2105.09540): a party says of every leaf whether its own
splits leave it possible, a vector of bits; over all parties one leaf of each tree is
left, and its weights are summed up. The paper encrypts weights; here bits are shared.

Parties stand in an order 0, ..., M - 1. Party m and the next one (of the last: the
first) have a key that nobody else has, anew for every batch of rows, from which they
draw bits: r(m), a(m) and c(m). Of the product of the vectors of parties 0 to m the
server has one share, and r(m) is the other. Party m multiplies by Beaver's triples,
which the next party deals: a(m) masks its vector, b(m) of the server's seed the
server's share, and c(m) hides a(m) b(m). So M - 1 rounds later the last party and its
dealer, party 0, have bits r, and the server s, of which the sum is 1 at the leaf of
each tree. With weights w the server needs the sum of w (s + (1 - 2 s) r): it sends
(1 - 2 s) w less a mask of the dealer's, and the last party answers with what its bits
leave of it, plus a mask that the dealer's answer takes off.

========= ================================== =========================================
step      down                               up
========= ================================== =========================================
KEYS      leaves of every tree, the outputs  a public key
          they add to; places of own splits
MASK      keys of all parties                own vector less its mask; as a dealer a
                                             seed for the server, and c + a b; party 0
                                             also what masks of weights come to
MULTIPLY  to each but party 0 in turn: the   own share less r
          server's share less its mask
SUM       to the last party: weights less    by output what they come to, and a mask
          their mask
========= ================================== =========================================

Whatever travels is uniformly random to its reader, but for the end: the server learns
the sum of each output, as of one number. A party learns in which trees its splits are,
below which of them, and how many leaves there are: growing the trees told it so. Sides
follow this and are curious, and no two of them tell each other: the server and a dealer
would know the vector of the party it deals for, a party and its dealer the product
until then. Who carries keys must not swap them; and a server with weights of its own
choice reads leaves off their sums.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core.network import Network
from lessvfl.core.protocol import QueryArrays, expect
from lessvfl.core.sharing import SUMS, KeyPair, check_keys
from lessvfl.core.trees.holders import Truths
from lessvfl.core.trees.leaves import LeafOrder, LeafSplits, LeafTable
from lessvfl.core.trees.networks import TreeSum
from lessvfl.errors import ConfigError
from lessvfl.terms import PartyId

PackedBits = NDArray[np.uint8]  # packed, leaf after leaf, in each row after row
AnswerFormats = Sequence[tuple[torch.dtype, tuple[int, ...]]]
Inference = Literal["clear", "fed-eini"]  # how trees predict
INFERENCES: tuple[Inference, ...] = get_args(Inference)

KEY_BYTES = 32
N_FACTS = 3  # beside sizes and outputs of trees: place, parties, outputs in all
LEAST_PARTIES, MOST_PARTIES = 2, 1 << 10
LEAST_COMPLEXITY = 10**9  # as FATE 1.11 demands (consts.EINI_TREE_COMPLEXITY)
LEAST_SUM = 1e-300  # where all weights are 0
SUM_BITS = 30  # of a sum, so that it and its sign fit 32
MOST_TERMS = 1 << 22  # rows x weights of one batch


class PathStep(enum.IntEnum):
    """What a party is asked for, in this order, each once at most."""

    KEYS = 0
    MASK = 1
    MULTIPLY = 2
    SUM = 3


# Takes a step of the protocol with some parties, given what each is sent and the
# formats of its answer; returns their answers.
TakeStep = Callable[
    [PathStep, Mapping[PartyId, QueryArrays], Mapping[PartyId, AnswerFormats]],
    Mapping[PartyId, QueryArrays],
]


def _drawn(seed: bytes, what: str, n_bytes: int) -> PackedBits:
    data = hashlib.shake_256(seed + what.encode()).digest(n_bytes)
    return np.frombuffer(data, dtype=np.uint8)


def _tensor(bits: PackedBits) -> Tensor:
    """Return bits as they travel."""
    return torch.from_numpy(np.array(bits))


def check_complexity(party: PartyId, splits: LeafSplits) -> None:
    """Refuse trees so small that a sum of weights may tell leaves."""
    if splits.complexity < LEAST_COMPLEXITY:
        raise ConfigError(
            f"Paths are hidden where rows can pass in {LEAST_COMPLEXITY:,} ways or "
            f"more through the trees with splits of a party. Got "
            f"{splits.complexity:,} at party '{party}'; more trees have more, and "
            f"inference 'clear' hides no path."
        )


@dataclass(frozen=True)
class Batch:
    """Leaves, and how many rows they are of."""

    order: LeafOrder
    n_rows: int

    @property
    def n_bytes(self) -> int:
        """Return the bytes of a bit for every leaf and row."""
        return -(-self.order.n_leaves * self.n_rows // 8)

    @property
    def sums(self) -> tuple[int, int]:
        """Return the shape of sums by output and row."""
        return self.order.n_outputs, self.n_rows

    @property
    def terms(self) -> tuple[int, int]:
        """Return the shape of weights by leaf, output and row."""
        return self.order.n_terms, self.n_rows

    def bits(self, seed: bytes, what: str) -> PackedBits:
        """Return a bit for every leaf and row, drawn by who knows the seed."""
        return _drawn(seed, what, self.n_bytes)

    def unpacked(self, bits: PackedBits) -> Truths:
        """Return bits as truth values, (leaves, n)."""
        n_leaves = self.order.n_leaves
        flat = np.unpackbits(bits, count=n_leaves * self.n_rows)
        return flat.reshape(n_leaves, -1).astype(np.bool_)

    def add(self, on: Truths, weights: Tensor) -> Tensor:
        """Return by output the sum of weights (terms, n) of the leaves that are on."""
        terms = self.order.terms
        parts = torch.split(weights, [len(leaves) for leaves in terms])
        sums = [
            (part * torch.from_numpy(on[leaves])).sum(dim=0, dtype=torch.int32)
            for part, leaves in zip(parts, terms, strict=True)
        ]
        return torch.stack(sums)


class PathParty:
    """A party's side of one batch of rows: it answers each step once.

    `says_left` (components, n) is what its splits say of the rows, in order.
    """

    def __init__(self, name: PartyId, says_left: Truths) -> None:
        self._name, self._says_left = name, says_left
        self._key = KeyPair()
        self._place, self._n_parties = 0, 1
        self._steps = [PathStep.KEYS]  # to come

    @property
    def n_sums(self) -> int:
        """Return how many sums a row has by the server's word, once it has begun."""
        return self._batch.order.n_outputs

    def answer(self, step: int, arrays: QueryArrays) -> tuple[Tensor, ...]:
        """Answer one query."""
        if not self._steps or step != self._steps[0]:
            raise ValueError("a step that is over, or not yet due")
        left, self._steps = self._steps[1:], []  # none after one that fails
        match PathStep(step):
            case PathStep.KEYS:
                return self._begin(arrays)
            case PathStep.MASK:
                answer = self._mask(arrays)
            case PathStep.MULTIPLY:
                answer = self._multiply(arrays)
            case PathStep.SUM:
                answer = self._sum(arrays)
        self._steps = left
        return answer

    def _begin(self, arrays: QueryArrays) -> tuple[Tensor, ...]:
        """Learn about the trees; return a key."""
        n_components, n_rows = self._says_left.shape
        expect(arrays, (-1,), (n_components, 3))
        numbers, places = (array.long().numpy() for array in arrays)
        if len(numbers) < N_FACTS or (len(numbers) - N_FACTS) % 2:
            raise ValueError(f"{len(numbers)} numbers about trees")
        place, n_parties, n_outputs = numbers[:N_FACTS]
        sizes, outputs = numbers[N_FACTS:].reshape(2, -1)
        if not 0 <= place < n_parties or not LEAST_PARTIES <= n_parties <= MOST_PARTIES:
            raise ValueError(f"place {place} of {n_parties} parties")
        self._place, self._n_parties = int(place), int(n_parties)
        order = LeafOrder(sizes, outputs, int(n_outputs))
        self._batch = Batch(order, n_rows)
        if n_rows > 1 and n_rows * order.n_terms > MOST_TERMS:
            raise ValueError(f"{n_rows} rows at a time")
        splits = LeafSplits(order, places)
        check_complexity(self._name, splits)
        self._vector = np.packbits(splits.candidates(self._says_left))
        self._steps = [PathStep.MASK]
        if self._place > 0:
            self._steps.append(PathStep.MULTIPLY)
        if self._place == self._n_parties - 1:
            self._steps.append(PathStep.SUM)
        return (_tensor(np.frombuffer(self._key.public, dtype=np.uint8)),)

    def _mask(self, arrays: QueryArrays) -> tuple[Tensor, ...]:
        """Return the own vector under its mask, and what it deals for the one before.

        Party 0 has nothing to multiply: it masks by the share that is the next one's.
        """
        expect(arrays, (self._n_parties, KEY_BYTES))
        keys = [bytes(key.tolist()) for key in arrays[0].to(torch.uint8)]
        if keys[self._place] != self._key.public:
            raise ValueError("another key in the place of its own")
        if len(set(keys)) < len(keys):
            raise ValueError("one key of two parties")
        before = (self._place - 1) % self._n_parties
        self._before = self._pair_seed(keys, before)
        self._after = self._pair_seed(keys, self._place)
        batch = self._batch
        masked = self._vector ^ batch.bits(
            self._after, "mask" if self._place else "share"
        )
        if before == 0:
            return (_tensor(masked[None]),)
        seed = secrets.token_bytes(KEY_BYTES)
        product = batch.bits(self._before, "mask") & batch.bits(seed, "mask")
        product ^= batch.bits(self._before, "product")
        both = _tensor(np.stack([masked, product]))
        dealt = _tensor(np.frombuffer(seed, dtype=np.uint8))
        if self._place:
            return both, dealt
        on = batch.unpacked(batch.bits(self._before, "share"))
        sums = batch.add(on, SUMS.draw_packed(seed, "weights", *batch.terms))
        return both, dealt, sums - SUMS.draw_packed(self._before, "sums", *batch.sums)

    def _pair_seed(self, keys: Sequence[bytes], first: int) -> bytes:
        """Return what party `first` and the next one share, of which this is one."""
        both = keys[first], keys[(first + 1) % self._n_parties]
        other = both[1] if first == self._place else both[0]
        return self._key.secret(other, first, *both)

    def _multiply(self, arrays: QueryArrays) -> tuple[Tensor, ...]:
        """Return its share of the product with the own vector, less a mask."""
        batch = self._batch
        expect(arrays, (batch.n_bytes,))
        masked = arrays[0].to(torch.uint8).numpy()
        product = batch.bits(self._after, "mask") & masked
        product ^= batch.bits(self._after, "product")
        product ^= batch.bits(self._before, "share") & self._vector
        return (_tensor(product ^ batch.bits(self._after, "share")),)

    def _sum(self, arrays: QueryArrays) -> tuple[Tensor, ...]:
        """Return by output what masked weights come to, plus a mask."""
        batch = self._batch
        expect(arrays, batch.terms)
        on = batch.unpacked(batch.bits(self._after, "share"))
        sums = batch.add(on, arrays[0].to(torch.int32))
        return (sums + SUMS.draw_packed(self._after, "sums", *batch.sums),)


@dataclass(frozen=True)
class HiddenPaths:
    """The server's side: trees by their leaves, weights as whole numbers."""

    trees: TreeSum
    order: LeafOrder
    splits: Mapping[PartyId, LeafSplits]  # of parties that have some, in their order
    weights: Tensor  # (terms, 1), of leaves by output, in units, int32
    unit: float

    @classmethod
    def of(cls, net: Network, sizes: Mapping[PartyId, int]) -> HiddenPaths:
        """Take over trees, or refuse them; `sizes` are every party's components."""
        if not isinstance(net, TreeSum):
            raise ConfigError(
                "Paths are hidden in trees of several parties: of vertical-boost, "
                "vertical-forest, auto-boost or pso-trees. Got another model."
            )
        table = LeafTable.of(net, tuple(sizes.values()))
        both = zip(sizes, table.splits, strict=True)
        splits = {name: some for name, some in both if some.places.any()}
        if len(splits) < LEAST_PARTIES:
            raise ConfigError(
                f"Paths are hidden between {LEAST_PARTIES} parties or more that have "
                f"splits. Got {len(splits)}."
            )
        for name, party_splits in splits.items():
            check_complexity(name, party_splits)
        order, most = table.order, np.abs(table.values).max(axis=1)
        largest = np.maximum.reduceat(most, order.starts).sum()
        unit = float(2.0 ** (np.ceil(np.log2(max(largest, LEAST_SUM))) - SUM_BITS))
        whole = np.round(table.values / unit).astype(np.int32)
        weights = [whole[leaves, k] for k, leaves in enumerate(order.terms)]
        by_leaf = torch.from_numpy(np.concatenate(weights)).unsqueeze(1)
        return cls(net, order, splits, by_leaf, unit)

    @property
    def rows_at_once(self) -> int:
        """Return how many rows a batch may have."""
        return max(1, MOST_TERMS // self.order.n_terms)

    def predict(self, n_rows: int, take: TakeStep) -> Tensor:
        """Lead the parties through a batch; return raw predictions, (n, K)."""
        names, batch = list(self.splits), Batch(self.order, n_rows)
        key, bits, sums = (
            (torch.uint8, (KEY_BYTES,)),
            (torch.uint8, (batch.n_bytes,)),
            (torch.int32, batch.sums),
        )
        order, trees = self.order, {}
        for m, (name, splits) in enumerate(self.splits.items()):
            facts = [m, len(names), order.n_outputs]
            numbers = np.concatenate([facts, order.sizes, order.outputs])
            both = numbers, splits.places
            trees[name] = tuple(torch.from_numpy(values).int() for values in both)
        keys = take(PathStep.KEYS, trees, dict.fromkeys(names, (key,)))
        check_keys({name: key for name, (key,) in keys.items()})
        every = torch.stack([keys[name][0] for name in names])
        one, two = ((torch.uint8, (n, batch.n_bytes)) for n in (1, 2))
        expects: dict[PartyId, AnswerFormats] = dict.fromkeys(names, (two, key))
        expects |= {names[1]: (one,), names[0]: (two, key, sums)}
        answers = take(PathStep.MASK, dict.fromkeys(names, (every,)), expects)
        share, seed = answers[names[0]][0][0].numpy(), b""
        for name, dealer in zip(names[1:], [*names[2:], names[0]], strict=True):
            masked, product = answers[name][0][0], answers[dealer][0][1]
            seed = bytes(answers[dealer][1].tolist())
            sent = _tensor(share ^ _drawn(seed, "mask", batch.n_bytes))
            (answer,) = take(PathStep.MULTIPLY, {name: (sent,)}, {name: [bits]})[name]
            share = (masked.numpy() & share) ^ product.numpy() ^ answer.numpy()
        on, last = batch.unpacked(share), names[-1]
        is_on = torch.from_numpy(on[np.concatenate(order.terms)])
        turned = torch.where(is_on, -self.weights, self.weights)
        sent = turned - SUMS.draw_packed(seed, "weights", *batch.terms)
        (answer,) = take(PathStep.SUM, {last: (sent,)}, {last: [sums]})[last]
        total = answer + answers[names[0]][2]
        total += batch.add(on, self.weights.expand(is_on.shape))
        z = total.double().T * self.unit
        start = self.trees.start
        return self.trees.finished(start + z.to(start.device))
