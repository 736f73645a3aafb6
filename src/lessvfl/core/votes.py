"""Votes of parties, counted while none is seen: masks that cancel, and a linear tag.

Each party has a vote of real numbers for every row; the server learns their sums over
the parties that are present. Masks are those of :func:`lessvfl.core.sharing.hidden`: in
the order of the parties present each adds what it draws from a key with the next one,
and subtracts what it draws from that with the one before. Who is absent has no part in
any mask, so that the others' votes can be counted without it.

A seed that all parties know, and the server not yet, gives every vote a factor in the
field of p = 2^31 - 1. A party's tag is the sum of its votes times their factors, under
masks that cancel, too; there are two of them. Once all votes are in, each party tells
the seed. Votes are whole numbers below p / 2 in sum: if any was changed on its way, or
does not belong to its tag, each tag fits by chance alone, both with a probability of
p^-2, below 2^-61. Nobody learns whose vote it was.

======= ======================================= =======================================
step    down                                    up
======= ======================================= =======================================
KEYS    nothing                                 a public key; how many rows and votes
SEED    to the first: keys of those present     the seed for each, under their keys
VOTE    keys; the seed for it                   votes and tags under masks
CHECK   nothing                                 the seed
======= ======================================= =======================================

A party can vote as it likes: the tag says that a vote is what it sent, not that its
trees say so. One alone is not counted: its masks would cancel by themselves. The server
and both neighbours of a party could read its votes together, and so could who swaps the
keys that it carries.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lessvfl.core import sharing
from lessvfl.core.protocol import QueryArrays, expect
from lessvfl.core.sharing import KeyPair
from lessvfl.errors import ProtocolError
from lessvfl.terms import PartyId, listed

FIELD = 2**31 - 1
N_TAGS = 2
SEED_BYTES = 32
MOST_PARTIES = 1 << 10
VoteFormats = Sequence[tuple[torch.dtype, tuple[int, ...]]]
TakeVoteStep = Callable[
    ["VoteStep", Mapping[PartyId, QueryArrays], VoteFormats],
    Mapping[PartyId, QueryArrays],
]


class VoteStep(enum.IntEnum):
    """What a party is asked for, each once, in this order."""

    KEYS = 0
    SEED = 1
    VOTE = 2
    CHECK = 3


def _factors(seed: bytes, *shape: int) -> NDArray[np.int64]:
    """Return pseudo-random whole numbers below FIELD in this shape, from a seed."""
    n_bytes = 8 * int(np.prod(shape))
    data = hashlib.shake_256(seed + b"factors").digest(n_bytes)
    words = np.frombuffer(data, dtype="<u8") % FIELD
    return words.astype(np.int64).reshape(shape)


def _tags(seed: bytes, votes: Tensor) -> NDArray[np.int64]:
    """Return the tags (2,) of votes (n, K) as whole numbers, without a mask."""
    whole = (votes * sharing.FRACTION).round().long().numpy() % FIELD
    products = _factors(seed, N_TAGS, *whole.shape) * whole % FIELD
    return np.asarray(products.sum(axis=(1, 2)) % FIELD)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


class VotingParty:
    """A party's side of one count of `votes` (n, K): it answers each step once."""

    def __init__(self, votes: Tensor) -> None:
        self._votes = votes.double().cpu()
        self._key, self._seed = KeyPair(), b""
        self._due = VoteStep.KEYS

    def answer(self, step: int, arrays: QueryArrays) -> tuple[Tensor, ...]:
        """Answer the step due: keys, perhaps the seed, votes, a check; or refuse.

        Only the first party is asked for the seed.
        """
        if step != self._due and not (step == VoteStep.VOTE == self._due + 1):
            raise ValueError("a step of the count that is over, or not yet due")
        self._due = VoteStep(min(step + 1, VoteStep.CHECK))
        match VoteStep(step):
            case VoteStep.KEYS:
                expect(arrays)
                sizes = torch.tensor(self._votes.shape, dtype=torch.int32)
                return sharing.from_bytes(self._key.public), sizes
            case VoteStep.SEED:
                expect(arrays, (-1, SEED_BYTES))
                return (self._give_seed(_read_keys(arrays[0])),)
            case VoteStep.VOTE:
                expect(arrays, (-1, SEED_BYTES), (SEED_BYTES,))
                return self._vote(_read_keys(arrays[0]), sharing.to_bytes(arrays[1]))
        expect(arrays)
        if not self._seed:
            raise ValueError("a step of the count that is over, or not yet due")
        seed, self._seed = self._seed, b""
        return (sharing.from_bytes(seed),)

    def _give_seed(self, keys: Sequence[bytes]) -> Tensor:
        """Draw the seed; return it for everybody, each time under the pair's key."""
        self._seed = secrets.token_bytes(SEED_BYTES)
        first = self._key.public
        hidden = [
            _xor(self._seed, self._key.secret(key, b"seed", first, key)) for key in keys
        ]
        return torch.stack([sharing.from_bytes(seed) for seed in hidden])

    def _vote(self, keys: Sequence[bytes], hidden: bytes) -> tuple[Tensor, ...]:
        """Return votes and tags under masks that cancel over these keys."""
        key = self._key.public
        if key not in keys or len(set(keys)) < max(2, len(keys)):
            raise ValueError("keys that are not of several parties, each another")
        place = keys.index(key)
        after, before = keys[(place + 1) % len(keys)], keys[place - 1]
        more = self._key.secret(after, b"votes", key, after)
        less = self._key.secret(before, b"votes", before, key)
        seed = _xor(hidden, self._key.secret(keys[0], b"seed", keys[0], key))
        if self._seed and seed != self._seed:
            raise ValueError("another seed than it drew")
        self._seed = seed
        tags = _tags(seed, self._votes)
        tags += _factors(more, N_TAGS) - _factors(less, N_TAGS)
        masked_tags = torch.from_numpy(tags % FIELD).int()
        return sharing.hidden(self._votes, more, less), masked_tags


def _read_keys(sent: Tensor) -> list[bytes]:
    if len(sent) > MOST_PARTIES:
        raise ValueError(f"keys of {len(sent)} parties")
    return [bytes(key.tolist()) for key in sent.to(torch.uint8)]


def count_votes(present: Sequence[PartyId], n_votes: int, take: TakeVoteStep) -> Tensor:
    """Return the sum of the votes of all parties present, (n, K), K of a row.

    Votes that were changed after they were made are a ProtocolError.
    """
    key = (torch.uint8, (SEED_BYTES,))
    nothing: dict[PartyId, QueryArrays] = dict.fromkeys(present, ())
    first = take(VoteStep.KEYS, nothing, (key, (torch.int32, (2,))))
    sharing.check_keys({name: first[name][0] for name in present})
    sizes = {name: tuple(first[name][1].tolist()) for name in present}
    n_rows = max(n for n, _ in sizes.values())
    if set(sizes.values()) != {(n_rows, n_votes)}:
        shapes = ", ".join(f"{size} of {name}" for name, size in sizes.items())
        raise ProtocolError(
            f"Parties must vote on the same rows, {n_votes} votes for each. Got votes "
            f"of shapes {shapes}."
        )
    keys = torch.stack([first[name][0] for name in present])
    leader, each = present[0], (torch.uint8, (len(present), SEED_BYTES))
    (seeds,) = take(VoteStep.SEED, {leader: (keys,)}, (each,))[leader]
    sent = {name: (keys, seeds[place]) for place, name in enumerate(present)}
    formats = ((torch.int32, (n_rows, n_votes)), (torch.int32, (N_TAGS,)))
    votes = take(VoteStep.VOTE, sent, formats)
    seeds_of = take(VoteStep.CHECK, nothing, (key,))
    total = sharing.revealed_sum([votes[name][0] for name in present])
    tags = torch.stack([votes[name][1].long() for name in present]).sum(dim=0)
    drawn = {sharing.to_bytes(seeds_of[name][0]) for name in present}
    most = FIELD // 2 / sharing.FRACTION
    fits = len(drawn) == 1 and bool((total.abs() < most).all())
    if not fits or not np.array_equal(_tags(drawn.pop(), total), tags.numpy() % FIELD):
        raise ProtocolError(
            f"The votes of {listed(present)} must be those that they made. Got a sum "
            "whose tag does not fit: one was changed after it was made."
        )
    return total
