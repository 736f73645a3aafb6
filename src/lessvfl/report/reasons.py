"""Why a feature was kept or removed: every word of a record, as a reader has it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from lessvfl.terms import Reason, SelectionRule

# Reasons of those without shadows: of the methods with lambdas, of rivals with a rule
# of their own, of plain, and of a server with shadows, whom a party tells names of
# features and no reasons.
Unmeasured = Literal["group lasso", "own rule", "no selection", "not revealed"]
AnyReason = Reason | Unmeasured


class ReasonWords(NamedTuple):
    """How a reason reads in a list, in a sentence and beside a bar."""

    words: str  # beside a feature
    one: str = ""  # of one feature that was removed, after "it"
    many: str = ""  # of several, after "they"
    note: str = ""  # beside a bar that would say something else, few words


def _being(words: str, note: str = "") -> ReasonWords:
    """Return what is said where "is" and "are" before the words make a sentence."""
    return ReasonWords(words, f"is {words}", f"are {words}", note)


REASONS: dict[AnyReason, ReasonWords] = {
    "strength": ReasonWords("stronger than chance"),
    "pair": ReasonWords("matters together with another"),
    "must keep": ReasonWords("must stay, as asked", note="must keep"),
    "weak": _being("no stronger than chance beside those kept"),
    "chance": _being("no stronger than chance"),
    "says nothing beside the others": ReasonWords(
        "adds nothing to those kept",
        "adds nothing to those kept",
        "add nothing to those kept",
        "adds nothing",
    ),
    "most": _being(
        "stronger than chance, but no more were allowed", "more than allowed"
    ),
    "group lasso": ReasonWords(
        "the group lasso set its weights to zero",
        "has weights that the group lasso set to zero",
        "have weights that the group lasso set to zero",
    ),
    "own rule": _being("below what the method keeps"),
    "no selection": ReasonWords("the method removes nothing"),
    "not revealed": ReasonWords(
        "its party knows why, and the verdict",
        "was removed: its party knows why, and the verdict",
        "were removed: their party knows why, and the verdicts",
    ),
}
RULES: dict[SelectionRule, str] = {
    "path": "",
    "elimination": "Features that add nothing to those kept were removed, too.",
}
