"""What a server may ask of a party in the training of a seed, and when.

The counterpart of :mod:`lessvfl.wire.replies`, at the party: what the agreed settings
or the party's policy do not have is refused.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lessvfl.core.plans import QueryPlan, TrainPlan, are_alike
from lessvfl.data import Encoding, Places
from lessvfl.errors import LessVFLError, PolicyError, ProtocolError
from lessvfl.party import Party
from lessvfl.privacy.noise import ClippedNoise
from lessvfl.remote.policy import PolicyChecker
from lessvfl.run.accounting import Spend
from lessvfl.terms import PartyId
from lessvfl.wire import messages
from lessvfl.wire.coding import BITS

log = logging.getLogger(__name__)


@contextmanager
def in_a_sentence(party: PartyId) -> Iterator[None]:
    """Put whatever a message leads to that no honest server sends into a sentence."""
    try:
        yield
    except (LessVFLError, OSError):
        raise
    except Exception as error:
        log.debug("a message cannot be answered", exc_info=True)
        raise ProtocolError(
            f"Party '{party}' cannot do what it was asked. Got "
            f"{type(error).__name__}: {error}"
        ) from error


@dataclass
class SeedProgress:
    """How far a seed is: all that changes, in plain values, but network and bill."""

    behind: int = 0  # plans whose stages are over for this party
    step: int = 0  # of the current stage of joint training
    n_answered: int = 0  # queries of the current stage
    sent: list[int] = field(default_factory=list)  # parts of the rows of stage 2
    scored: dict[str, int] = field(default_factory=dict)  # bits a value, by rows
    # Features in use at every evaluation.
    seen: list[dict[str, Any]] = field(default_factory=list)
    chain: str = ""  # a digest of all that moved the network


@dataclass(frozen=True)
class SeedRows:
    """Which of its common rows a party trains and tests with, by their places."""

    seed: int
    train: Places
    test: Places
    blocks: Places | None  # of the training rows; None: every row is alone
    share: float | None = None  # of the rarer of two classes, where it is told

    @property
    def counts(self) -> dict[str, int]:
        """Return how many there are of each."""
        return {"train": len(self.train), "test": len(self.test)}


@dataclass(frozen=True)
class Prepared:
    """A seed before its first step: its rows, and what a server may ask about them."""

    checker: PolicyChecker
    rows: SeedRows
    encoding: Encoding
    plans: tuple[Any, ...]  # that the server may send, in this order
    stored: tuple[int | None, int] | None  # rows and bits of stage 2
    bits: int  # of a value in joint training
    build: Callable[[], Party]  # a fresh party on these rows
    private: int = field(repr=False)  # the seed of its own streams
    folder: Path  # of this seed
    noise: ClippedNoise | None = None  # on all embeddings that leave
    spend: Spend | None = None  # by it, of every row, in all seeds

    def checked(self, message: Any, party: Party, done: SeedProgress) -> Any:
        """Return a request, with the party's own copy of its plan, or refuse it."""
        match message:
            case messages.Begin(plan) | messages.Select(_, plan):
                agreed = next((p for p in self.plans if are_alike(p, plan)), None)
                if agreed is None:
                    raise PolicyError(
                        f"Party '{self.checker.party}' follows the plans of the "
                        "settings that were agreed on. Got a different one of stage "
                        f"'{plan.stage}'."
                    )
                due = self.stage_due(done)
                if agreed.stage != due:  # it is over, or its turn has not come
                    is_due = "none" if due is None else f"'{due}'"
                    raise PolicyError(
                        f"Party '{self.checker.party}' follows the plans in their "
                        f"order, each once. Got '{agreed.stage}' where {is_due} is due."
                    )
                message = dataclasses.replace(message, plan=agreed)
        match message:
            case messages.Begin(_, 0) if party.is_training:
                what = "the next step of a stage that has begun"
                raise self._misfit(what, "its first step again")
            case messages.Select(components):
                places = () if components is None else components
                is_known = all(0 <= place < party.net.n_outputs for place in places)
                if not is_known or len(set(places)) < len(places):
                    got = f"components {str(components)[:80]}"
                    raise self._misfit("components that it has", got)
            case messages.Embed("evaluate", _, None):
                party.part_of(message)
                self._check_evaluation(message, done)
            case messages.Embed("embed", "train"):
                party.part_of(message)
                self._check_stored(message, done)
            case messages.Embed("train"):
                if not party.is_held_out_check(message):
                    what = "the rows that training leaves out, when due"
                    raise self._misfit(what, message)
            case messages.Embed():
                raise self._misfit("training rows, or all rows to score", message)
            case messages.Query():
                self._check_query(message, done)
        if isinstance(message, messages.Embed):
            if message.bits not in BITS:
                raise self._misfit("4, 8, 16 or 32 bits a value", message.bits)
            if message.n_rows is not None and message.part != 0:
                raise self._misfit("rows of a sample, or a part of all rows", message)
        return message

    def n_due(self, done: SeedProgress) -> int:
        """Return the place of the plan that is due; one of no steps is left out."""
        for place in range(done.behind, len(self.plans)):
            plan = self.plans[place]
            if not isinstance(plan, TrainPlan) or plan.n_epochs > 0:
                return place
        return len(self.plans)

    def stage_due(self, done: SeedProgress) -> str | None:
        """Return the current stage, or the next one; None: all are over."""
        place = self.n_due(done)
        return self.plans[place].stage if place < len(self.plans) else None

    def _misfit(self, what: str, got: object) -> ProtocolError:
        sentence = f"Party '{self.checker.party}' must be asked for {what}. Got {got}."
        return ProtocolError.told(sentence)

    def _check_query(self, message: messages.Query, done: SeedProgress) -> None:
        """Refuse a query but the next one of a stage of queries that is due."""
        place = self.n_due(done)
        plan = self.plans[place] if place < len(self.plans) else None
        is_due = (
            isinstance(plan, QueryPlan)
            and plan.stage == message.stage
            and message.step in (0, done.n_answered)
            and message.step < plan.n_queries
        )
        if not is_due:
            what = "the next query of the method's own protocol, when due"
            raise self._misfit(what, f"step {message.step}")

    def _check_stored(self, message: messages.Embed, done: SeedProgress) -> None:
        """Refuse rows for stage 2 other than those agreed on, and any before it."""
        is_due = self.stage_due(done) == "select_features"
        if self.stored is not None and is_due and message.part not in done.sent:
            n_rows, bits = self.stored
            most = len(self.rows.train)
            agreed = (None if n_rows is None else min(n_rows, most), bits)
            if (message.n_rows, message.bits) == agreed:
                return
        raise self._misfit("the rows of stage 2, once and when due", message)

    def _check_evaluation(self, asked: messages.Embed, done: SeedProgress) -> None:
        refuse, key = self.checker.refuse, "evaluation"
        match self.checker.policy.evaluation:
            case "nothing":
                raise refuse("no evaluation", key, "one")
            case "epochs":
                return
        if self.stage_due(done) is not None:
            raise refuse("evaluation at the end alone", key, "one before it")
        if asked.rows == "train" and (len(self.rows.test) or self.noise):
            raise refuse("evaluation by test rows", key, "training rows")
        if asked.bits != self.bits:
            allowed = f"evaluation at the run's {self.bits} bits a value"
            raise refuse(allowed, key, asked.bits)
