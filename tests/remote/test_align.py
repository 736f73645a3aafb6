"""Alignment: the true intersection, one order on all sides, and refusals on both."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lessvfl.data import id_kinds
from lessvfl.errors import (
    AlignmentError,
    ConfigError,
    LessVFLError,
    LessVFLWarning,
    PolicyError,
    ProtocolError,
)
from lessvfl.remote import align
from lessvfl.remote.align import (
    Aligner,
    Ids,
    PartyAligner,
    entries,
    ids,
    messages,
    psi,
)

matching_modes = pytest.mark.parametrize("mode", ["plain", "psi"])
each_mode = pytest.mark.parametrize("mode", ["none", "plain", "psi"])

SECRET = bytes(range(32))


@pytest.fixture(autouse=True, scope="module")
def little_padding() -> Iterator[None]:
    """Points take a third of a millisecond each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "PAD_TO", 4)
        yield


def holder_of(mode: Any, values: Any, **options: Any) -> Aligner:
    defaults: dict[str, Any] = {"min_common": 1, "min_share": 0.0, "secret": fresh()}
    return Aligner(mode, Ids(values), len(values), **defaults | options)


def party_of(mode: Any, values: Any, **options: Any) -> PartyAligner:
    return PartyAligner(mode, Ids(values), len(values), **{"secret": fresh()} | options)


def fresh() -> bytes:
    return secrets.token_bytes(32)


def play(holder: Aligner, parties: dict[str, PartyAligner]) -> list[bytes]:
    """Align, and return every message that was sent: hello, in between, finals."""
    sent = [holder.hello()]
    for name, party in parties.items():
        sent += talk(holder, name, party)
    finals = holder.finish()
    for name, party in parties.items():
        assert party.answer(finals[name]) is None
        sent.append(finals[name])
    return sent


def reply_of(party: PartyAligner, message: bytes) -> bytes:
    reply = party.answer(message)
    assert reply is not None
    return reply


def talk(holder: Aligner, name: str, party: PartyAligner) -> list[bytes]:
    """Return what is said between the hello and the last message."""
    said: list[bytes] = []
    ask: bytes | None = holder.hello()
    while ask is not None:
        said.append(reply_of(party, ask))
        ask = holder.take(name, said[-1])
        said += [] if ask is None else [ask]
    return said


def people(start: int, stop: int) -> list[str]:
    return [f"person-{number:09d}" for number in range(start, stop)]


def test_each_side_tells_how_far_it_is():
    """The counts are those of the messages, which each side has anyway."""
    ours: list[str] = []
    theirs: list[str] = []
    holder = holder_of("psi", people(0, 600), tell=ours.append)
    play(holder, {"bank": party_of("psi", people(100, 1200), tell=theirs.append)})
    assert ours == [
        "alignment: hiding our ids, 500 of 600",
        "alignment: comparing with the ids of party 'bank', 500 of 1,100",
        "alignment: comparing with the ids of party 'bank', 1,000 of 1,100",
    ]
    assert theirs == [
        "alignment: answering for the server's ids, 500 of 600",
        "alignment: hiding our ids, 500 of 1,100",
        "alignment: hiding our ids, 1,000 of 1,100",
    ]


# ---------------------------------------------------------------------------- agreement


@st.composite
def tables(draw: st.DrawFn) -> list[list[Any]]:
    """Draw ids of three sides, in any order, with at least one id in common."""
    kinds = (st.text(min_size=1, max_size=5), st.integers(-(10**20), 10**20))
    kind: st.SearchStrategy[Any] = draw(st.sampled_from(kinds))
    world = draw(st.lists(kind, min_size=1, max_size=12, unique=True))
    sides = []
    for _ in range(3):
        more = draw(st.sets(st.sampled_from(world)))
        sides.append(draw(st.permutations(sorted(more | {world[0]}))))
    return sides


@matching_modes
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=20)
@given(sides=tables())
def test_all_sides_find_the_true_intersection_in_one_order(
    mode: str, sides: list[list[Any]]
) -> None:
    holder = holder_of(mode, sides[0])
    parties = {f"p{i}": party_of(mode, side) for i, side in enumerate(sides[1:])}
    play(holder, parties)
    common = [sides[0][row] for row in holder.rows]
    assert len(common) == len(set(common))
    assert set(common) == set(sides[0]) & set(sides[1]) & set(sides[2])
    for party, side in zip(parties.values(), sides[1:], strict=True):
        assert [side[row] for row in party.rows] == common


@given(sides=tables())
def test_mode_none_keeps_rows_that_are_aligned_already(sides: list[list[Any]]) -> None:
    holder = holder_of("none", sides[0])
    parties = {name: party_of("none", sides[0]) for name in ("a", "b")}
    play(holder, parties)
    rows = list(range(len(sides[0])))
    assert holder.rows.tolist() == rows
    assert parties["a"].rows.tolist() == rows


@matching_modes
def test_the_order_comes_from_the_secret(mode: str) -> None:
    values = people(0, 20)

    def order(secret: bytes) -> list[str]:
        holder = holder_of(mode, values, secret=secret)
        play(holder, {"a": party_of(mode, values)})
        return [values[row] for row in holder.rows]

    assert order(SECRET) == order(SECRET)
    assert order(SECRET) != order(fresh())
    assert order(SECRET) not in (values, values[::-1])


@pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")
@each_mode
def test_an_alignment_is_repeated_to_the_bit(mode: str) -> None:
    """A side that was killed and started again makes the very same messages."""

    def messages_of(holder_secret: bytes, party_secret: bytes) -> list[bytes]:
        holder = holder_of(mode, people(0, 10), secret=holder_secret)
        party = party_of(mode, people(0, 10), secret=party_secret)
        return play(holder, {"a": party})

    first = messages_of(SECRET, SECRET)
    assert messages_of(SECRET, SECRET) == first
    other = messages_of(SECRET, fresh())
    assert other[0] == first[0]
    assert (other[1] == first[1]) == (mode == "none")


@matching_modes
def test_answers_to_two_hellos_share_no_entry(mode: str) -> None:
    """A label holder that asks twice cannot put two answers together."""
    offers = []
    for _ in range(2):
        party = party_of(mode, people(0, 9), secret=SECRET)
        offers.append(reply_of(party, holder_of(mode, people(0, 9)).hello()))
    first, second = (set(listed_in(mode, offer)) for offer in offers)
    assert len(first) == len(second) == 12
    assert not first & second


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), "x" * 32])
def test_a_secret_of_another_length_is_refused_and_not_shown(secret: Any) -> None:
    for make in (holder_of, party_of):
        with pytest.raises(ConfigError, match="must be 32 bytes") as caught:
            make("plain", [1], secret=secret)
        assert "x" not in str(caught.value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("at_once", [1, 2, 1 << 16])
def test_one_digest_of_all_ids_tells_them_apart(monkeypatch, at_once) -> None:
    right = Ids(["1", "23", "t:4"]).digest(bytes(32))
    monkeypatch.setattr(ids, "AT_ONCE", at_once)
    assert Ids(["1", "23", "t:4"]).digest(bytes(32)) == right
    others = (["12", "3", "t:4"], ["23", "1", "t:4"], ["1", "23t:t:4"], ["1", "23"])
    found = [Ids(other).digest(bytes(32)) for other in others]
    assert len({*found, right, Ids(["1", "23", "t:4"]).digest(bytes(31) + b"k")}) == 6
    numbers = Ids(np.array([1, 23, 4])).digest(bytes(32))
    assert numbers == Ids([1, 23, 4]).digest(bytes(32))
    assert numbers == Ids(["1", "23", "4"]).digest(bytes(32))
    assert numbers != Ids(["1", "23", "04"]).digest(bytes(32))


def test_without_ids_mode_none_warns_on_both_sides() -> None:
    holder = Aligner("none", Ids([1, 2]), 2, secret=fresh())
    party = PartyAligner("none", None, 2, secret=fresh())
    with pytest.warns(LessVFLWarning, match="the party are taken as aligned by"):
        offer = reply_of(party, holder.hello())
    with pytest.warns(LessVFLWarning, match="party 'a' are taken as aligned by"):
        holder.take("a", offer)
    party.answer(holder.finish()["a"])
    assert party.rows.tolist() == [0, 1]


def test_many_ids_take_seconds() -> None:
    """Not the hours of comparing each with each."""
    start = time.process_time()
    holder = holder_of("plain", people(0, 30_000))
    play(holder, {"a": party_of("plain", people(15_000, 45_000))})
    assert len(holder.rows) == 15_000
    assert time.process_time() - start < 10


# ------------------------------------------------------------------------------ privacy


@pytest.mark.parametrize("numbers", [False, True])
def test_no_message_holds_an_id(numbers: bool) -> None:
    def values(start: int, stop: int) -> list[Any]:
        names = people(start, stop)
        return [10**11 + hash_of(n) for n in names] if numbers else list(names)

    def hash_of(name: str) -> int:
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")

    sides = [values(0, 40), values(20, 60), values(30, 70)]
    holder = holder_of("psi", sides[0])
    parties = {f"p{i}": party_of("psi", side) for i, side in enumerate(sides[1:])}
    for message in play(holder, parties):
        for value in {v for side in sides for v in side}:
            assert str(value).encode() not in message
            tagged = f"{'w' if numbers else 't'}:{value}".encode()
            for plain in (str(value).encode(), tagged):
                assert hashlib.sha256(plain).digest()[:16] not in message
            if numbers:
                assert value.to_bytes(8, "big") not in message
                assert value.to_bytes(8, "little") not in message


def listed_in(mode: str, offer: bytes) -> list[bytes]:
    """Return what a party offers: points or digests."""
    reader = messages.open_message(offer, messages.OFFER, "a")
    return [*reader.block(psi.POINT_BYTES if mode == "psi" else ids.DIGEST_BYTES)]


def asked_in(hello: bytes) -> list[bytes]:
    """Return the points of a hello."""
    reader = messages.open_message(hello, messages.HELLO, "a")
    reader.take(1)
    return [*reader.block(psi.POINT_BYTES)]


def named_in(final: bytes) -> list[int]:
    """Return the positions of a last message; proofs come behind them."""
    reader = messages.open_message(final, messages.FINAL, "a")
    found = reader.positions()
    if reader.mode == "psi":
        assert len(reader.positions()) == len(found)
    assert len(reader.block(psi.POINT_BYTES)) == len(found)
    reader.end()
    return [int(place) for place in found]


@matching_modes
def test_another_run_sends_nothing_twice(mode: str) -> None:
    """Keys are fresh, even with the same ids."""

    def entries() -> set[bytes]:
        holder = holder_of(mode, people(0, 20))
        hello, offer, *_ = play(holder, {"a": party_of(mode, people(0, 20))})
        asked = set(asked_in(hello)) if mode == "psi" else set()
        return asked | set(listed_in(mode, offer))

    assert not entries() & entries()


@matching_modes
def test_an_offer_tells_neither_order_nor_exact_number_of_rows(mode: str) -> None:
    holder = holder_of(mode, people(0, 5))
    offers = {
        n: reply_of(party_of(mode, people(0, n)), holder.hello()) for n in (5, 8, 9)
    }
    assert len(offers[5]) == len(offers[8]) < len(offers[9])
    listed = listed_in(mode, offers[8])
    assert listed == sorted(listed)


@matching_modes
def test_a_few_rows_more_or_less_change_no_length(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts are padded to 256, on both sides; no message holds an exact one."""
    monkeypatch.setattr(messages, "PAD_TO", 256)
    hellos = {len(holder_of(mode, people(0, n)).hello()) for n in (60, 63)}
    assert len(hellos) == 1
    hello = holder_of(mode, people(0, 60)).hello()
    offers = [reply_of(party_of(mode, people(0, n)), hello) for n in (60, 61, 67)]
    assert len(set(map(len, offers))) == 1
    for number, offer in zip((60, 61, 67), offers, strict=True):
        body = offer[messages.HEAD.size : -messages.CHECKSUM_BYTES]
        assert entries.COUNT.pack(number) not in body


@matching_modes
def test_the_last_message_holds_no_name_of_an_id(mode: str) -> None:
    """Digests of ids under a key in the message itself could be guessed."""
    holder, values = holder_of(mode, people(0, 10)), Ids(people(0, 10))
    *_, final = play(holder, {"a": party_of(mode, people(2, 10))})
    for at in range(len(final) - 31):
        for digest in values.digests(final[at : at + 32]):
            assert digest not in final
    named = named_in(final)
    assert len(named) == len(set(named)) == 8
    assert max(named) < 8


@matching_modes
def test_the_common_order_depends_on_no_id(mode: str) -> None:
    """Other ids in the same rows are put into the same order, on both sides."""
    orders = []
    for shift in (0, 1000):
        values = people(shift, shift + 12)
        holder = holder_of(mode, values, secret=SECRET)
        party = party_of(mode, values[:3:-1])
        play(holder, {"a": party})
        orders.append((holder.rows.tolist(), party.rows.tolist()))
    assert orders[0] == orders[1]


def test_whoever_knows_one_id_cannot_claim_all_rows_by_it() -> None:
    """A forged offer: every point that was asked is answered with one and the same.

    The forger knows an id z of the label holder, but none of the others. It takes the
    label holder's point P of z, answers bP to everything, and offers bH(z). All rows
    then match, and the last message, which named rows by digests of their ids under a
    key that it held too, let a party guess 769 of 1,000 ids that it did not have.
    """
    holder = holder_of("psi", people(0, 8))
    asked, forger = asked_in(holder.hello()), psi.Key(fresh())
    theirs = [*forger.hide(["t:person-000000003"])]
    answered = [*forger.multiply([asked[3]])] * len(asked)
    with pytest.raises(ProtocolError, match="holds one point twice"):
        claim(holder, theirs, answered)


def test_a_claim_on_every_row_gets_positions_and_nothing_to_guess() -> None:
    """The same forger takes another number b for each row, so that no point repeats.

    This cannot be told from a party that has these ids. What it gets are the places of
    its own points, the same bytes whatever ids the label holder has.
    """
    z, secret = "person-000000003", fresh()
    forgers = [psi.Key(fresh()) for _ in range(8)]
    theirs = [forger.hide([f"t:{z}"])[0] for forger in forgers]
    finals = []
    for others in (people(100, 107), people(200, 207)):
        values = [*others[:3], z, *others[3:]]
        holder = holder_of("psi", values, secret=secret)
        place = int(np.flatnonzero(holder_order(holder) == 3)[0])
        point = asked_in(holder.hello())[place]
        answered = [forger.multiply([point])[0] for forger in forgers]
        claim(holder, sorted(theirs), answered)
        finals.append(named_in(holder.finish()["a"]))
    assert sorted(finals[0]) == sorted(finals[1]) == list(range(8))


def test_a_party_without_a_point_has_none_in_common() -> None:
    holder = holder_of("psi", people(0, 8))
    with pytest.raises(AlignmentError, match="party 'a' have no id in common"):
        claim(holder, [], asked_in(holder.hello()))


def test_points_that_differ_by_one_of_low_order_are_one_point() -> None:
    """T and T + (0, 0) have different coordinates and the same multiples."""
    holder = holder_of("psi", people(0, 8))
    asked, forger = asked_in(holder.hello()), psi.Key(fresh())
    point = forger.hide(["t:person-000000003"])[0]
    inverse = pow(int.from_bytes(point, "little"), -1, psi.PRIME)
    theirs = sorted([point, inverse.to_bytes(32, "little")])
    assert len({psi.Key(SECRET).multiply([one])[0] for one in theirs}) == 1
    with pytest.raises(ProtocolError, match="holds one point twice"):
        claim(holder, theirs, [*forger.multiply(asked)])


def holder_order(holder: Aligner) -> Any:
    """Return which row is at each place of the hello; nobody else knows."""
    holder.hello()
    return holder._order


def claim(
    holder: Aligner, theirs: list[bytes], answered: list[bytes], name: str = "a"
) -> None:
    """Offer and answer as a party that may have made it all up."""
    run = messages.open_message(holder.hello(), messages.HELLO, "a").run
    other = sorted(psi.Key(SECRET).hide(map(str, range(len(theirs)))))
    for kind, both in (
        (messages.OFFER, (theirs, other)),
        (messages.ANSWER, (answered, theirs)),
    ):
        parts = map(messages.block, both)
        holder.take(name, messages.seal(kind, "psi", run, parts))


def test_ids_are_not_shown() -> None:
    assert "person" not in repr(Ids(people(0, 3)))


# -------------------------------------------------------------- how many, before which


class Liar:
    """A label holder that makes its points up, and knows some ids of the party."""

    def __init__(self, points: list[bytes]) -> None:
        self.points = sorted(points)
        parts = (bytes([id_kinds.KINDS.index("texts")]), messages.block(self.points))
        self.hello = messages.seal(messages.HELLO, "psi", bytes(16), parts)

    def echo(self, firsts: Sequence[bytes], seconds: Sequence[bytes]) -> bytes:
        both = (messages.block(sorted(some)) for some in (firsts, seconds))
        return messages.seal(messages.ECHO, "psi", bytes(16), both)

    def final(self, places: list[int], ranks: list[int], proofs: list[bytes]) -> bytes:
        parts = [messages.positions(np.array(some)) for some in (places, ranks)]
        parts.append(messages.block(proofs))
        return messages.seal(messages.FINAL, "psi", bytes(16), parts)


def points_of(message: bytes | None, kind: int) -> tuple[list[bytes], list[bytes]]:
    """Return both lists of a message in psi."""
    assert message is not None
    reader = messages.open_message(message, kind, "a")
    return [*reader.block(psi.POINT_BYTES)], [*reader.block(psi.POINT_BYTES)]


def test_one_target_among_made_up_ids_is_not_learnt() -> None:
    """Once, the offer told which ids are common, before the party counted them."""
    heard = []
    for target in ("person-000000007", "person-000000099"):  # it has the first alone
        holder = holder_of("psi", [target, *people(1000, 1099)])
        party = party_of("psi", people(0, 60), min_common=50, secret=SECRET)
        echo = holder.take("a", reply_of(party, holder.hello()))
        assert echo is not None
        with pytest.raises(PolicyError) as caught:
            party.answer(echo)
        heard.append(str(caught.value))
        assert not holder._places, "nothing is known of any id"
    assert heard[0] == heard[1]


def test_the_label_holder_cannot_count_for_itself() -> None:
    """Its own points, and what left before the count, have nothing in common."""
    holder = holder_of("psi", people(0, 60))
    party = party_of("psi", people(0, 60), min_common=61)
    with pytest.raises(PolicyError):
        talk(holder, "a", party)
    party = party_of("psi", people(0, 60), min_common=50)
    offered = points_of(party.answer(holder.hello()), messages.OFFER)
    asked = set(asked_in(holder.hello()))
    for some in offered:
        assert not asked.intersection(some)
        assert not asked.intersection(holder._scalar.multiply(some))
        assert not set(holder._scalar.multiply(asked)).intersection(some)


def test_one_known_id_does_not_count_twice() -> None:
    """A filler: the point of an id that the party has, under many keys.

    Who knew which point of the offer is that id's could send it back under all of them;
    the party finds that points are not all under one key. Here it even knows.
    """
    known = psi.hash_to_curve("t:person-000000003")
    fillers = [psi.Key(fresh()) for _ in range(8)]
    liar = Liar([key.multiply([known])[0] for key in fillers])

    def party() -> PartyAligner:
        return party_of("psi", people(0, 12), min_common=8, secret=SECRET)

    first = party()
    firsts, seconds = points_of(first.answer(liar.hello), messages.OFFER)
    place = int(np.flatnonzero(first._listed == 3)[0])
    many = [key.multiply([firsts[place]])[0] for key in fillers]
    assert set(many) <= set(first._answers), "each of them would count"
    rest = psi.Key(fresh()).multiply(firsts[: 12 - len(many)])
    for at in range(12):  # whichever of the pairs it takes for that of the place
        pair = [key.multiply([seconds[at]])[0] for key in fillers]
        others = psi.Key(fresh()).multiply(seconds[: 12 - len(many)])
        one = party()
        one.answer(liar.hello)
        with pytest.raises(ProtocolError, match="are not all under one key"):
            one.answer(liar.echo([*many, *rest], [*pair, *others]))
    one = party()
    one.answer(liar.hello)
    key = fillers[0]  # an honest echo: it counts once
    with pytest.raises(PolicyError, match="at least 8 common rows"):
        one.answer(liar.echo(key.multiply(firsts), key.multiply(seconds)))


def test_rows_that_nobody_named_are_not_common() -> None:
    """Once, a last message could claim any places of the offer, as many as ids."""
    own = {row: f"person-{row:09d}" for row in range(6)}
    key = psi.Key(fresh())
    liar = Liar([*key.hide([f"t:{name}" for name in own.values()])])
    party = party_of("psi", people(0, 12), min_common=6)
    firsts, seconds = points_of(party.answer(liar.hello), messages.OFFER)
    echoed = key.multiply(firsts)
    answer = party.answer(liar.echo(echoed, key.multiply(seconds)))
    answered, proofs = points_of(answer, messages.ANSWER)
    ranks = [sorted(echoed).index(point) for point in echoed]
    common = [place for place, point in enumerate(echoed) if point in answered]
    others = [place for place in range(12) if place not in common]
    assert len(common) == 6
    assert sorted(party._listed[common]) == list(own)
    proven = key.multiply(proofs)

    def claimed(places: list[int], by: list[int]) -> bytes:
        """Name places by what is known of others."""
        return liar.final(places, [ranks[at] for at in by], [proven[at] for at in by])

    mixed = [*common[:5], others[0]]
    by_own = liar.final(mixed, [ranks[at] for at in common], [proven[p] for p in mixed])
    for wrong in (
        claimed(others, others),
        claimed(mixed, mixed),
        claimed(mixed, common),
        claimed(common[::-1], common),
        by_own,
        liar.final(common, [99] * 6, [proven[at] for at in common]),
        liar.final(common, [ranks[at] for at in common], []),
    ):
        with pytest.raises(ProtocolError, match="names rows that are not common"):
            party.answer(wrong)
    assert party.answer(claimed(common, common)) is None
    assert sorted(party.rows) == list(own)


@pytest.mark.parametrize(("n_common", "is_refused"), [(5, True), (6, False)])
def test_a_share_of_the_offered_ids_must_be_common(
    n_common: int, is_refused: bool
) -> None:
    holder = holder_of("psi", people(0, 60))
    values = people(60 - n_common, 160)
    party = party_of("psi", values, min_common=5, min_share=0.1)
    if not is_refused:
        play(holder, {"a": party})
        assert len(party.rows) == n_common
        return
    with pytest.raises(PolicyError, match=r"5 common rows and 0\.1 of the ids offered"):
        play(holder, {"a": party})


def test_more_ids_than_could_be_common_are_refused_unanswered() -> None:
    """An offer of more than rows / share cannot reach the share: nothing leaves."""
    party = party_of("psi", people(0, 5), min_share=0.1)
    with pytest.raises(PolicyError, match="Got fewer"):
        party.answer(holder_of("psi", people(0, 60)).hello())
    assert party_of("psi", people(0, 6), min_share=0.1).answer(
        holder_of("psi", people(0, 60)).hello()
    )


def test_plain_tells_before_it_counts() -> None:
    """Documented: it is for parties that trust the label holder."""
    holder = holder_of("plain", ["person-000000007", *people(1000, 1099)])
    party = party_of("plain", people(0, 60), min_common=50)
    holder.take("a", reply_of(party, holder.hello()))
    assert np.flatnonzero(holder._places["a"] >= 0).tolist() == [0]


def test_in_plain_too_rows_that_nobody_named_are_not_common() -> None:
    """A key for proofs is the party's: no digest that the server asked for is one."""
    party = party_of("plain", people(0, 8))
    holder = holder_of("plain", people(4, 12))
    offer = reply_of(party, holder.hello())
    holder.take("a", offer)
    (final,) = holder.finish().values()
    listed = listed_in("plain", offer)
    theirs = [*Ids(people(0, 8)).digests(holder._key)]
    other, own = listed.index(theirs[0]), named_in(final)
    reader = messages.open_message(final, messages.FINAL, "a")
    reader.positions()
    proofs = [*reader.block(32)]
    for places, shown in (
        ([*own, other], proofs),
        ([*own, other], [*proofs, proofs[0]]),
        ([*own, other], [*proofs, 2 * listed[other]]),
        ([*own[1:], own[0]], proofs),
        ([other, *own[1:]], proofs),
    ):
        parts = messages.positions(np.array(places)), messages.block(shown)
        with pytest.raises(ProtocolError, match="names rows that are not common"):
            party.answer(messages.seal(messages.FINAL, "plain", reader.run, parts))
    assert party.answer(final) is None
    assert len(party.rows) == 4


def test_a_hello_is_in_no_order_of_rows() -> None:
    """A party sees which points of it are common, and must not know which rows."""
    asked = asked_in(holder_of("psi", people(0, 20)).hello())
    assert asked == sorted(asked)


def test_a_party_learns_which_of_its_ids_are_the_label_holders() -> None:
    """Documented: who lies about its ids learns which of them, of one set at a time."""
    for is_there in (True, False):
        holder = holder_of("psi", people(0, 60), min_common=50)
        target = "t:person-000000007" if is_there else "t:person-000000099"
        key, asked = psi.Key(fresh()), asked_in(holder.hello())
        points = sorted(key.hide([target, *(f"t:made up {i}" for i in range(99))]))
        run = messages.open_message(holder.hello(), messages.HELLO, "a").run
        parts = [messages.block(points)] * 2
        echo = holder.take("a", messages.seal(messages.OFFER, "psi", run, parts))
        echoed, _ = points_of(echo, messages.ECHO)
        found = set(key.multiply(asked)).intersection(echoed)
        assert len(found) == is_there


# ---------------------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "whole numbers"),
        (np.array([1, 2], dtype=np.uint8), "whole numbers"),
        ([np.int64(1), 2], "whole numbers"),
        (pd.Series([1, 2]), "whole numbers"),
        (np.array([1.0, 2.0]), "whole numbers"),
        (["1", "2"], "whole numbers"),
        (np.array(["1", "2"], dtype=object), "whole numbers"),
        (["01", "02"], "whole numbers with leading zeros"),
        (["1", "A2"], "texts"),
        (["1.0", "A2"], "texts"),
        (["1.0", "02."], "whole numbers with a decimal point"),
    ],
)
def test_an_id_is_its_text(values: Any, kind: str) -> None:
    read = Ids(values)
    assert read.kind == kind
    letter = "w" if kind == "whole numbers" else "t"
    assert {item[:2] for item in read.items} <= {f"{letter}:", "w:"}


def test_a_folder_with_ids_as_numbers_goes_on_with_them_as_texts() -> None:
    before = hashlib.sha256(json.dumps(["w:7", "w:8"]).encode()).hexdigest()
    assert Ids(np.array([7, 8])).fingerprint() == before
    assert Ids(["7", "8"]).fingerprint() == before
    assert Ids(["07", "8"]).fingerprint() != before


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([7, 7, 7, 8], "has 2 duplicate ids in 4 rows"),
        (["x7", "x7"], "has 1 duplicate id in 2 rows"),
        ([7, None], "lacks an id in 1 of 2 rows"),
        (["x7", ""], "lacks an id in 1 of 2 rows"),
        (np.array([7.0, np.nan]), "lacks an id in 1 of 2 rows"),
        (np.ma.array([7, 8], mask=[False, True]), "lacks an id in 1 of 2 rows"),
        (pd.array([7, None], dtype="Int64"), "lacks an id in 1 of 2 rows"),
        (pd.Series([pd.NaT, pd.NaT]), "lacks an id in 2 of 2 rows"),
        (np.array([7.5, 8.0]), "Got float instead"),
        ([2.0**60, 8.0], "Got float instead"),
        ([7, "7"], "has 1 duplicate id in 2 rows"),
        ([True, False], "Got bool instead"),
        ([b"x7"], "Got bytes instead"),
        (np.array(["2007-07-07"], dtype="datetime64[ns]"), "Got datetime64 instead"),
        (np.array([[7]]), "must be one column"),
        ([], "must hold 1 to"),
        (["x7\ud800"], "not valid Unicode"),
    ],
)
def test_a_column_that_cannot_serve_is_refused(values: Any, sentence: str) -> None:
    with pytest.raises(AlignmentError, match=sentence) as caught:
        Ids(values, "patient")
    assert "'patient'" in str(caught.value)
    assert "x7" not in str(caught.value)


def test_too_many_ids_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "MAX_IDS", 2)
    with pytest.raises(AlignmentError, match="1 to 2 ids"):
        Ids([1, 2, 3])


# ----------------------------------------------------------------------------- refusals


def refusal(
    make_holder: Callable[[], Aligner], make_party: Callable[[], PartyAligner]
) -> LessVFLError:
    """Play the protocol, and return the error that ends it."""
    with pytest.raises(LessVFLError) as caught:
        play(make_holder(), {"bank": make_party()})
    return caught.value


TWICE = ["person-7", *people(0, 99), "person-7"]
CASES: dict[str, tuple[Any, Any, str]] = {
    "duplicates of the party": (
        lambda: holder_of("plain", people(0, 99)),
        lambda: party_of("plain", TWICE),
        "Column 'id' has 1 duplicate id",
    ),
    "duplicates of the label holder": (
        lambda: holder_of("plain", TWICE),
        lambda: party_of("plain", people(0, 99)),
        "Column 'id' has 1 duplicate id",
    ),
    "zeros that the label holder lost": (
        lambda: holder_of("plain", list(range(99))),
        lambda: party_of("plain", [f"{i:03}" for i in range(99)]),
        "The label holder's ids are whole numbers, the party's are whole numbers with "
        "leading zeros: one table has lost its zeros",
    ),
    "a point that the party gained": (
        lambda: holder_of("plain", list(range(99))),
        lambda: party_of("plain", [f"{i}.0" for i in range(99)]),
        "the party's are whole numbers with a decimal point: one table has gained",
    ),
    "zeros that the party lost, aligned": (
        lambda: holder_of("none", [f"{i:03}" for i in range(99)]),
        lambda: party_of("none", list(range(99))),
        "The label holder's ids are whole numbers with leading zeros, the party's are",
    ),
    "nothing in common": (
        lambda: holder_of("plain", people(0, 99)),
        lambda: party_of("plain", people(99, 198)),
        "party 'bank' have no id in common; at least 1",
    ),
    "little in common": (
        lambda: holder_of("plain", people(0, 99), min_common=50),
        lambda: party_of("plain", people(50, 149)),
        "party 'bank' have fewer than 50 ids in common",
    ),
    "a small share in common": (
        lambda: holder_of("plain", people(0, 1000), min_share=0.01),
        lambda: party_of("plain", people(991, 2000)),
        "party 'bank' have fewer than 10 ids in common",
    ),
    "another number of rows": (
        lambda: Aligner("none", None, 99, secret=fresh()),
        lambda: PartyAligner("none", None, 98, secret=fresh()),
        "the label holder has 99 and party 'bank' has 98",
    ),
    "another order": (
        lambda: holder_of("none", people(0, 99)),
        lambda: party_of("none", people(0, 99)[::-1]),
        "those of party 'bank' differ",
    ),
    "another mode": (
        lambda: holder_of("plain", people(0, 99)),
        lambda: party_of("none", people(0, 99)),
        "The label holder aligns by 'plain', the party by 'none'",
    ),
    "no ids": (
        lambda: holder_of("plain", people(0, 99)),
        lambda: PartyAligner("plain", None, 99, secret=fresh()),
        "The mode 'plain' of alignment needs a column of ids",
    ),
    "ids of another table": (
        lambda: Aligner("plain", Ids(people(0, 99)), 98, secret=fresh()),
        lambda: party_of("plain", people(0, 99)),
        "one id for each of 98 rows. Got 99",
    ),
}


@pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tables_that_cannot_be_aligned_are_refused(case: tuple[Any, Any, str]) -> None:
    make_holder, make_party, sentence = case
    error = refusal(make_holder, make_party)
    assert isinstance(error, AlignmentError)
    assert sentence in str(error)
    assert "person" not in str(error)
    assert is_fit_for_others(error.public)


def is_fit_for_others(sentence: str) -> bool:
    """Tell whether a sentence holds no count, no id, no column and no party's name."""
    named = any(word in sentence for word in ("person", "'id'", "bank"))
    return not named and not any(letter.isdigit() for letter in sentence)


def test_too_few_ids_in_common_are_refused_in_psi() -> None:
    error = refusal(
        lambda: holder_of("psi", people(0, 30), min_common=11),
        lambda: party_of("psi", people(20, 50)),
    )
    assert "have fewer than 11 ids" in str(error)
    assert " 10 " not in str(error), "how many there are is not told"
    assert error.public == AlignmentError.public, "that there are few is not told"


@each_mode
def test_a_party_refuses_fewer_common_rows_than_it_allows(mode: str) -> None:
    def order(min_common: int) -> None:
        values = people(0, 7)
        party = party_of(mode, values, min_common=min_common)
        play(holder_of(mode, values), {"a": party})

    order(7)
    with pytest.raises(PolicyError) as caught:
        order(8)
    sentence = "Party policy: at least 8 common rows are needed. Got fewer."
    assert str(caught.value) == caught.value.public == sentence


@pytest.mark.parametrize(
    ("theirs", "mine", "kinds"),
    [
        ("C{:03}", "{:03}", ("texts", "whole numbers with leading zeros")),
        ("{:03}", "C{:03}", ("whole numbers with leading zeros", "texts")),
        ("{}", "C{:03}", ("whole numbers", "texts")),
    ],
)
def test_too_few_common_rows_of_other_kinds_say_which(
    theirs: str, mine: str, kinds: tuple[str, str]
) -> None:
    """Kinds alone, which both sides hear, and what to do; no id."""
    error = refusal(
        lambda: holder_of("psi", [theirs.format(i) for i in range(99)]),
        lambda: party_of("psi", [mine.format(i) for i in range(99)], min_common=50),
    )
    assert (
        str(error)
        == error.public
        == (
            "Party policy: at least 50 common rows are needed. Got fewer; the label "
            f"holder's ids are {kinds[0]}, the party's are {kinds[1]}: write the ids "
            "of both sides alike, with the same letters or none."
        )
    )
    error = refusal(
        lambda: holder_of("plain", [theirs.format(i) for i in range(99)]),
        lambda: party_of("plain", [mine.format(i) for i in range(99)]),
    )
    assert str(error).endswith(f"in the same way? The label holder's are {kinds[0]}.")
    assert error.public == AlignmentError.public


def test_a_last_message_without_rows_is_refused() -> None:
    scene = Scene("plain")
    nothing = 2 * entries.COUNT.pack(0)
    empty = scene.final[: messages.HEAD.size] + nothing + bytes(32)
    with pytest.raises(PolicyError, match="at least 1 common rows are needed"):
        scene.give("final", reseal(empty))


def test_what_others_hear_of_two_modes_is_the_whole_sentence() -> None:
    hello = holder_of("plain", people(0, 9)).hello()
    with pytest.raises(AlignmentError, match="both must set the same mode") as caught:
        party_of("none", people(0, 9)).answer(hello)
    assert caught.value.public == str(caught.value)


def test_all_parties_together_may_share_too_little() -> None:
    holder = holder_of("plain", people(0, 20), min_common=5)
    for name, start in (("a", 0), ("b", 10)):
        talk(holder, name, party_of("plain", people(start, start + 10)))
    with pytest.raises(
        AlignmentError, match="all parties have no id in common"
    ) as caught:
        holder.finish()
    assert caught.value.public == AlignmentError.public


# ----------------------------------------------------------------------------- messages


def reseal(message: bytes) -> bytes:
    """Return a changed message with the right length and checksum again."""
    head, body = message[: messages.HEAD.size], message[messages.HEAD.size : -32]
    head = head[:-8] + len(body).to_bytes(8, "big")
    return head + body + hashlib.sha256(head + body).digest()


class Scene:
    """One alignment whose messages can be given again, changed."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.secret = fresh()
        self.holder = holder_of(mode, people(0, 10), secret=self.secret)
        self.party = party_of(mode, people(0, 10), secret=self.secret)
        self.hello = self.holder.hello()
        twin = holder_of(mode, people(0, 10), secret=self.secret)
        said = talk(twin, "a", self.party)
        self.offer, self.echo, self.answer = (*said, b"", b"")[:3]
        self.final = twin.finish()["a"]
        self.n_taken = 0
        self.heard: list[str] = []  # what the other side may hear of refusals

    def give(self, name: str, message: bytes) -> None:
        if name in ("hello", "echo"):
            party = party_of(self.mode, people(0, 10), secret=self.secret)
            if name == "echo":
                party.answer(self.hello)
            party.answer(message)
        elif name in ("offer", "answer"):
            self.n_taken += 1
            if name == "answer":
                self.holder.take(f"party {self.n_taken}", self.offer)
            self.holder.take(f"party {self.n_taken}", message)
        else:
            self.party.answer(message)

    def refuses(self, name: str, message: bytes) -> bool:
        start = time.process_time()
        try:
            self.give(name, message)
        except (ProtocolError, AlignmentError, PolicyError) as error:
            self.heard.append(error.public)
            return True
        finally:
            assert time.process_time() - start < 1
        return False


each_message = pytest.mark.parametrize("name", ["hello", "offer", "final"])
SAID = [(mode, name) for mode in messages.MODES for name in ("hello", "offer", "final")]
each_said = pytest.mark.parametrize(
    ("mode", "name"), [*SAID, ("psi", "echo"), ("psi", "answer")]
)


@each_said
def test_a_damaged_message_is_refused(mode: str, name: str) -> None:
    scene = Scene(mode)
    message = getattr(scene, name)
    assert not scene.refuses(name, message)
    chance = random.Random(0)
    for _ in range(40):
        at, bit = chance.randrange(len(message)), 1 << chance.randrange(8)
        flipped = message[:at] + bytes([message[at] ^ bit]) + message[at + 1 :]
        assert scene.refuses(name, flipped)
        assert scene.refuses(name, message[:at])
        assert scene.refuses(name, message + message[:at] + b"\0")
        assert scene.refuses(name, chance.randbytes(at))


@pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")
@each_said
def test_a_forged_message_is_refused_or_read(mode: str, name: str) -> None:
    """The checksum is right, so that what is behind it is tried."""
    scene = Scene(mode)
    message = getattr(scene, name)
    chance = random.Random(0)
    n_refused = 0
    for _ in range(100):
        at = chance.randrange(len(message) - 32)
        forged = chance.choice(
            [
                message[:at] + chance.randbytes(1) + message[at + 1 :],
                message[:at] + chance.randbytes(8) + message[at + 8 :],
                message[:at] + message[at + 1 :],
                message[: max(at, messages.HEAD.size)] + bytes(32),
            ]
        )
        n_refused += scene.refuses(name, reseal(forged))
    assert n_refused > 25
    assert not any("'party" in sentence for sentence in scene.heard)


@each_message
def test_another_version_is_named(name: str) -> None:
    scene = Scene("plain")
    message = getattr(scene, name)
    newer = reseal(message[:4] + (9).to_bytes(2, "big") + message[6:])
    with pytest.raises(ProtocolError, match="is of version 9, but this side speaks"):
        scene.give(name, newer)


def test_a_party_insists_on_its_mode() -> None:
    """A label holder cannot talk a party out of psi and into digests."""
    hello = holder_of("plain", people(0, 10)).hello()
    with pytest.raises(AlignmentError, match="aligns by 'plain', the party by 'none'"):
        party_of("none", people(0, 10)).answer(hello)
    offer = reply_of(party_of("plain", people(0, 10)), hello)
    with pytest.raises(AlignmentError, match="aligns by 'none', the party by 'plain'"):
        holder_of("none", people(0, 10)).take("a", offer)


def test_announced_sizes_are_checked_before_anything_is_made() -> None:
    scene = Scene("plain")
    head = scene.offer[: messages.HEAD.size]
    for count, sentence in ((1 << 60, "more than 30000000"), (1 << 20, "too early")):
        huge = reseal(head + entries.COUNT.pack(count) + bytes(64) + bytes(32))
        with pytest.raises(ProtocolError, match=sentence):
            scene.give("offer", huge)


@each_said
def test_a_message_ends_where_it_should(mode: str, name: str) -> None:
    scene = Scene(mode)
    message = getattr(scene, name)
    with pytest.raises(ProtocolError, match="goes on after its end"):
        scene.give(name, reseal(message[:-32] + b"\0" + bytes(32)))


def test_an_oversized_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene("plain")
    monkeypatch.setattr(messages, "MAX_BYTES", len(scene.offer) - 1)
    with pytest.raises(ProtocolError, match="is larger than"):
        scene.give("offer", scene.offer)


def test_messages_of_another_run_or_out_of_turn_are_refused() -> None:
    scene, other = Scene("plain"), Scene("plain")
    with pytest.raises(ProtocolError, match="answers the hello of another run"):
        scene.give("offer", other.offer)
    with pytest.raises(ProtocolError, match="belongs to another run"):
        scene.give("final", other.final)
    for name, message in (("hello", scene.final), ("offer", scene.final)):
        with pytest.raises(ProtocolError, match="is not the one expected now"):
            scene.give(name, message)
    scene.holder.take("a", scene.offer)
    with pytest.raises(ProtocolError, match="comes after its offer was taken"):
        scene.holder.take("a", scene.offer)


def test_rows_are_known_at_the_end_only() -> None:
    holder = holder_of("plain", [1, 2])
    with pytest.raises(AlignmentError, match="No party has made an offer"):
        holder.finish()
    for side in (holder, party_of("plain", [1, 2])):
        with pytest.raises(AlignmentError, match="not aligned yet"):
            _ = side.rows


@matching_modes
def test_a_final_with_foreign_or_repeated_rows_is_refused(mode: str) -> None:
    scene = Scene(mode)  # 10 rows and 2 entries of padding
    named = named_in(scene.final)
    padding = (set(range(12)) - set(named)).pop()
    head, rest = messages.HEAD.size, messages.HEAD.size + 8 + 4 * len(named)
    for wrong in (12, 2**32 - 1, padding, named[1]):
        changed = messages.positions(np.array([wrong, *named[1:]]))
        with pytest.raises(ProtocolError, match="names rows that"):
            scene.give(
                "final", reseal(scene.final[:head] + changed + scene.final[rest:])
            )


LOW_ORDER = [  # coordinates of curve and twist that X25519 turns into zero
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    psi.PRIME - 1,
]
NO_POINTS = [*LOW_ORDER, psi.PRIME, psi.PRIME + 9, 2**255 + 9, 2**256 - 1]


def test_answers_that_would_be_misread_are_refused() -> None:
    scene = Scene("psi")  # 10 ids and 2 entries of padding
    run = messages.open_message(scene.hello, messages.HELLO, "a").run

    def blocks_of(message: bytes, kind: int) -> list[list[bytes]]:
        reader = messages.open_message(message, kind, "a")
        return [[*reader.block(psi.POINT_BYTES)] for _ in range(2)]

    def give(name: str, kind: int, *both: list[bytes]) -> None:
        parts = map(messages.block, both)
        scene.give(name, messages.seal(kind, "psi", run, parts))

    firsts, seconds = blocks_of(scene.offer, messages.OFFER)
    echoed, pairs = blocks_of(scene.echo, messages.ECHO)
    answered, proofs = blocks_of(scene.answer, messages.ANSWER)
    for odd in (firsts[::-1], [firsts[0], *firsts]):
        with pytest.raises(ProtocolError, match="entries that are not in order"):
            give("offer", messages.OFFER, odd, seconds)
    with pytest.raises(ProtocolError, match="two lists of different lengths"):
        give("offer", messages.OFFER, firsts, seconds[1:])
    with pytest.raises(ProtocolError, match="another number of points than was offer"):
        give("echo", messages.ECHO, echoed[1:], pairs[1:])
    for odd in (answered[1:], answered + firsts[:1]):
        with pytest.raises(ProtocolError, match="another number of points"):
            give("answer", messages.ANSWER, odd, proofs)
    with pytest.raises(ProtocolError, match="another number of points"):
        give("answer", messages.ANSWER, answered, proofs[1:])
    with pytest.raises(ProtocolError, match="claims to share padding"):
        give("answer", messages.ANSWER, in_places_of_padding(scene), proofs)
    with pytest.raises(ProtocolError, match="holds one point twice"):
        give("answer", messages.ANSWER, [answered[1], *answered[1:]], proofs)
    for number in NO_POINTS:
        wrong = number.to_bytes(32, "little")
        odd = sorted([wrong, *firsts[1:]])
        for both in ((odd, seconds), (firsts, odd)):
            with pytest.raises(ProtocolError, match="not on the curve"):
                give("offer", messages.OFFER, *both)
        with pytest.raises(ProtocolError, match="not on the curve"):
            give("answer", messages.ANSWER, answered, [wrong] * len(proofs))
        odd = sorted([wrong, *echoed[1:]])
        with pytest.raises(ProtocolError, match="not on the curve"):
            give("echo", messages.ECHO, odd, pairs)
        hello = scene.hello[: messages.HEAD.size + 1]
        with pytest.raises(ProtocolError, match="not on the curve"):
            scene.give("hello", reseal(hello + messages.block([wrong]) + bytes(32)))
    for number in (0, psi.PRIME, 2**256 - 1):
        odd = [number.to_bytes(32, "little"), *answered[1:]]
        with pytest.raises(ProtocolError, match="not on the curve"):
            give("answer", messages.ANSWER, odd, proofs)
        odd = sorted([number.to_bytes(32, "little"), *pairs[1:]])
        with pytest.raises(ProtocolError, match="not on the curve"):
            give("echo", messages.ECHO, echoed, odd)


def in_places_of_padding(scene: Scene) -> list[bytes]:
    """Return a party's answers, those to padding changed for those to ids."""
    reader = messages.open_message(scene.answer, messages.ANSWER, "a")
    answered = [*reader.block(psi.POINT_BYTES)]
    order = holder_order(scene.holder)
    ids, padding = (np.flatnonzero(order < 10), np.flatnonzero(order >= 10))
    for one, other in zip(ids[:2], padding, strict=True):
        answered[one], answered[other] = answered[other], answered[one]
    return answered


def test_digests_out_of_order_are_refused() -> None:
    scene = Scene("plain")
    head = scene.offer[: messages.HEAD.size]
    listed = listed_in("plain", scene.offer)
    for wrong in (listed[::-1], [listed[0], *listed]):
        with pytest.raises(ProtocolError, match="entries that are not in order"):
            scene.give("offer", reseal(head + messages.block(wrong) + bytes(32)))


# ------------------------------------------------------------------------------- points


@given(st.integers(0, psi.PRIME - 1))
def test_squares_are_told_as_by_the_criterion_of_euler(number: int) -> None:
    euler = pow(number, (psi.PRIME - 1) // 2, psi.PRIME)
    assert psi.is_square(number) == (euler == 1)
    assert psi.is_square(number * number % psi.PRIME) == (number != 0)


def test_every_item_is_a_point_of_the_curve_and_not_of_its_twist() -> None:
    """Otherwise a hidden point tells one bit of its item: it stays on its side."""
    points = [psi.hash_to_curve(item) for item in people(0, 64)]
    hidden = [*psi.Key(fresh()).multiply(points)]
    assert len(set(points)) == 64
    for point in points + hidden:
        u = int.from_bytes(point, "little")
        assert u < psi.PRIME
        assert pow(u**3 + 486662 * u**2 + u, (psi.PRIME - 1) // 2, psi.PRIME) == 1


def test_points_are_the_same_in_every_version() -> None:
    """Another hash would find no common id with a side that has this one."""
    point = psi.hash_to_curve("t:person")
    assert (
        point.hex()
        == "2d32a9c986b109f484899baccb35b3edaccea6c8829557f6343474f9ba7bd16d"
    )
    assert (
        psi.Key(SECRET).multiply([point])[0].hex()
        == "756165a61073b21293badf4025d92924755d451bf7e2dad974a9e5746bf58b2b"
    )


def test_keys_commute() -> None:
    one, two = psi.Key(fresh()), psi.Key(fresh())
    points = [psi.hash_to_curve(item) for item in people(0, 5)]
    assert [*one.multiply(two.multiply(points))] == [
        *two.multiply(one.multiply(points))
    ]


def test_the_room_offers_what_a_runtime_needs() -> None:
    assert all(hasattr(align, name) for name in align.__all__)
    assert messages.MAX_BYTES < 1 << 31


@given(st.lists(st.binary(min_size=3, max_size=3)), st.integers(1, 3))
def test_entries_are_sorted_and_found_as_bytes_are(listed: Any, at_once: int) -> None:
    """Those that end with zeros, too."""
    listed += [b"a\0\0", b"\0\0\0", b"\xff\0a"]
    some, unique = entries.Entries.of(listed, 3), sorted({*listed})
    assert [*some] == listed
    assert [listed[at] for at in some.sort()] == [*some] == sorted(listed)
    assert some.are_sorted == (len(unique) == len(listed))
    wanted = [b"b\0\0", *listed]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "AT_ONCE", at_once)
        found = entries.Entries.of(unique, 3).find(entries.Entries.of(wanted, 3))
    places = {entry: place for place, entry in enumerate(unique)}
    assert found.tolist() == [places.get(entry, -1) for entry in wanted]
