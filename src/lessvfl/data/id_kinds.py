"""What all ids of a side look like, and two looks of which no id would match."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from lessvfl.terms import plural

LEADING_ZEROS = "whole numbers with leading zeros"
DECIMALS = "whole numbers with a decimal point"
# Of all ids of a side, and what became of two sides of which none would match.
KINDS = ("absent", "texts", "whole numbers", LEADING_ZEROS, DECIMALS)
LOST = "one table has lost its zeros, as in a spreadsheet"
GAINED = "one table has gained a decimal point, as whole numbers with gaps do in pandas"
APART = {
    frozenset({"whole numbers", LEADING_ZEROS}): LOST,
    frozenset({"whole numbers", DECIMALS}): GAINED,
    frozenset({LEADING_ZEROS, DECIMALS}): GAINED,
}

MIXED = "write the ids of both sides alike, with the same letters or none"

WHOLE = re.compile(r"(-?)0*([0-9]+)(?:\.0*)?")  # a whole number, however it is written
PLAIN = re.compile(r"-?[1-9][0-9]*|0")  # as a computer writes it


def kind_of(texts: Sequence[str]) -> str:
    """Say what ids look like, for a side whose own look otherwise."""
    if all(map(PLAIN.fullmatch, texts)):
        return "whole numbers"
    if all("." in text and WHOLE.fullmatch(text) for text in texts):
        return DECIMALS
    return LEADING_ZEROS if all(map(str.isdecimal, texts)) else "texts"


def rewritten(ids: Collection[str], known: Collection[str]) -> str:
    """Say how many ids are known in another writing alone; nothing where none is.

    >>> rewritten(["7", "8", "9"], ["007", "8"]).partition(":")[0]
    'Got 1 id with other zeros before or a decimal point behind'
    """
    alone = {without_zeros(one) for one in set(known).difference(ids)}
    n = sum(without_zeros(one) in alone for one in set(ids).difference(known))
    if n == 0:
        return ""
    return (
        f"Got {plural(n, 'id')} with other zeros before or a decimal point behind: a "
        "table has lost its zeros, as in a spreadsheet; write its ids out again as "
        "texts."
    )


def without_zeros(text: str) -> str:
    """Return a whole number as a computer writes it; other ids as they are.

    >>> [without_zeros(text) for text in ("007", "7.0", "-0", "a07")]
    ['7', '7', '-0', 'a07']
    """
    whole = WHOLE.fullmatch(text)
    return text if whole is None else "".join(whole.groups())
