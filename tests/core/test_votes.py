"""Votes under masks: their sum, nothing of each, and none that was changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lessvfl.core import sharing
from lessvfl.core.sharing import KeyPair
from lessvfl.core.votes import FIELD, VoteStep, VotingParty, count_votes
from lessvfl.errors import ProtocolError

Change = Callable[[str, VoteStep, list[Tensor]], None]


def some_votes(n_parties: int, n_rows: int = 40, n_votes: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(n_parties)
    return {
        f"party{m}": sharing.rounded(
            30 * torch.rand(n_rows, n_votes, generator=generator).double() - 5
        )
        for m in range(n_parties)
    }


class Counted:
    """Parties in one process; a carrier may change what they send."""

    def __init__(self, votes: dict[str, Tensor], change: Change | None = None) -> None:
        self.parties = {name: VotingParty(own) for name, own in votes.items()}
        self.change = change
        self.seen: dict[tuple[str, VoteStep], Any] = {}

    def __call__(self, step: VoteStep, arrays: Any, expects: Any) -> Any:
        found = {}
        for name, own in arrays.items():
            answer = [a.clone() for a in self.parties[name].answer(step, own)]
            formats = [(array.dtype, tuple(array.shape)) for array in answer]
            assert formats == list(expects)
            if self.change is not None:
                self.change(name, step, answer)
            found[name] = self.seen[name, step] = tuple(answer)
        return found


@pytest.mark.parametrize("n_parties", [2, 3, 5])
def test_votes_are_counted(n_parties: int) -> None:
    votes = some_votes(n_parties)
    total = count_votes(list(votes), 3, Counted(votes))
    assert torch.equal(total, torch.stack(list(votes.values())).sum(dim=0))


def test_who_leaves_has_no_part_in_any_mask() -> None:
    votes = some_votes(4)
    for gone in votes:
        left = {name: own for name, own in votes.items() if name != gone}
        total = count_votes(list(left), 3, Counted(left))
        assert torch.equal(total, torch.stack(list(left.values())).sum(dim=0))


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_what_travels_is_uniform_whatever_the_votes_are(value: float) -> None:
    votes = {name: torch.full((2000, 4), value) for name in ("a", "b")}
    ask = Counted(votes)
    count_votes(list(votes), 4, ask)
    for name in votes:
        seen = ask.seen[name, VoteStep.VOTE][0].numpy().view(np.uint8).flatten()
        counts = np.bincount(seen, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-8


def test_masks_never_repeat() -> None:
    votes, seen = some_votes(3), []
    for _ in range(2):
        ask = Counted(votes)
        count_votes(list(votes), 3, ask)
        arrays = [a for key, own in ask.seen.items() if key[1] for a in own]
        seen += [array.numpy().tobytes() for array in arrays if array.numel() < 120]
        seen += [ask.seen[name, VoteStep.VOTE][0].numpy().tobytes() for name in votes]
    told = [own for own in seen if len(own) == 32]
    assert len(set(told)) == 2  # the seed, told by all three of each count
    rest = [own for own in seen if len(own) != 32]
    assert len(set(rest)) == len(rest)


def add(what: int, place: tuple[int, ...], by: int) -> Change:
    def change(name: str, step: VoteStep, answer: list[Tensor]) -> None:
        if (name, step) == ("party1", VoteStep.VOTE):
            answer[what][place] += by

    return change


def two_seeds(name: str, step: VoteStep, answer: list[Tensor]) -> None:
    if (name, step) == ("party1", VoteStep.CHECK):
        answer[0][0] ^= 1


def wrong_seed(name: str, step: VoteStep, answer: list[Tensor]) -> None:
    if step is VoteStep.SEED:
        answer[0][1, 5] ^= 1


@pytest.mark.parametrize(
    "change",
    [
        add(0, (3, 1), 1),
        add(0, (0, 0), -4096),
        add(0, (7, 2), FIELD),
        add(0, (7, 2), 1 << 30),
        add(1, (1,), 1),
        two_seeds,
        wrong_seed,
    ],
)
def test_a_vote_that_was_changed_is_found(change: Change) -> None:
    votes = some_votes(3)
    with pytest.raises(ProtocolError, match=r"votes of party0, party1.* was changed"):
        count_votes(list(votes), 3, Counted(votes, change))


def test_changes_that_cancel_in_the_sum_are_no_change_of_it() -> None:
    votes = some_votes(3)

    def swap(name: str, step: VoteStep, answer: list[Tensor]) -> None:
        if step is VoteStep.VOTE and name != "party0":
            answer[0][0, 0] += 9 if name == "party1" else -9

    total = count_votes(list(votes), 3, Counted(votes, swap))
    assert torch.equal(total, torch.stack(list(votes.values())).sum(dim=0))


def test_a_tag_fits_another_vote_by_chance_alone() -> None:
    """With one factor known the tag could be mended: they are told after the votes."""
    votes = some_votes(2, n_rows=5, n_votes=1)
    n_found = 0
    for guess in range(200):

        def mend(
            name: str, step: VoteStep, answer: list[Tensor], guess: int = guess
        ) -> None:
            if (name, step) == ("party1", VoteStep.VOTE):
                answer[0][0, 0] += 1
                answer[1] = (answer[1].long() + guess * 7919).remainder(FIELD).int()

        with pytest.raises(ProtocolError, match="was changed"):
            count_votes(list(votes), 1, Counted(votes, mend))
        n_found += 1
    assert n_found == 200


def test_a_step_is_answered_once_and_in_order() -> None:
    votes = some_votes(2)
    ask = Counted(votes)
    with pytest.raises(ValueError, match="not yet due"):
        ask.parties["party1"].answer(VoteStep.CHECK, ())
    count_votes(list(votes), 3, ask)
    for step in VoteStep:
        with pytest.raises(ValueError, match="over, or not yet due"):
            ask.parties["party1"].answer(step, ())


@pytest.mark.parametrize("n_keys", [1, 2, 3])
def test_a_party_does_not_vote_among_copies_of_itself(n_keys: int) -> None:
    """What its masks add they would take off again: the vote would travel as it is."""
    party = VotingParty(some_votes(1)["party0"])
    key, _ = party.answer(VoteStep.KEYS, ())
    keys = torch.stack([key] * n_keys)
    (seeds,) = party.answer(VoteStep.SEED, (keys,))
    with pytest.raises(ValueError, match="not of several parties"):
        party.answer(VoteStep.VOTE, (keys, seeds[0]))


@pytest.mark.parametrize("n_keys", [0, 1, 2])
def test_a_party_does_not_vote_where_it_is_not(n_keys: int) -> None:
    party = VotingParty(some_votes(1)["party0"])
    party.answer(VoteStep.KEYS, ())
    keys = torch.stack([sharing.from_bytes(KeyPair().public) for _ in range(2)])
    hidden = torch.zeros(32, dtype=torch.uint8)
    with pytest.raises(ValueError, match="not of several parties"):
        party.answer(VoteStep.VOTE, (keys[:n_keys], hidden))


def test_keys_of_more_parties_than_can_be_are_refused() -> None:
    party = VotingParty(some_votes(1)["party0"])
    party.answer(VoteStep.KEYS, ())
    with pytest.raises(ValueError, match="keys of 1025 parties"):
        party.answer(VoteStep.SEED, (torch.ones(1025, 32, dtype=torch.uint8),))


def test_who_tells_a_key_of_no_use_is_named() -> None:
    def zero(name: str, step: VoteStep, answer: list[Tensor]) -> None:
        if (name, step) == ("party1", VoteStep.KEYS):
            answer[0].zero_()

    votes = some_votes(3)
    with pytest.raises(ProtocolError, match="'party1' must tell a key by which"):
        count_votes(list(votes), 3, Counted(votes, zero))


def test_who_votes_on_other_rows_is_named() -> None:
    votes = {"a": torch.zeros(3, 1), "b": torch.zeros(4, 1), "c": torch.zeros(3, 1)}
    with pytest.raises(ProtocolError, match=r"\(3, 1\) of a, \(4, 1\) of b"):
        count_votes(list(votes), 1, Counted(votes))


def test_parties_vote_on_the_same_rows() -> None:
    votes = {"a": torch.zeros(3, 1), "b": torch.zeros(4, 1)}
    with pytest.raises(ProtocolError, match="the same rows"):
        count_votes(list(votes), 1, Counted(votes))
    with pytest.raises(ProtocolError, match="2 votes for each"):
        count_votes(["a"], 2, Counted(votes))
