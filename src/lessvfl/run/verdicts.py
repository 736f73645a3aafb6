"""What several runs say together: features recommended, and a verdict on each column.

A verdict is made here, once, where all is known that it needs: at the party that holds
the column, or in a process that holds all of them. It stands in the record, and every
list, page and log reads it there. A server is told of no evidence, so that it knows no
verdict on what a party removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from lessvfl.terms import ColumnVerdict

SOMETIMES = (0.2, 0.8)  # shares of the runs within which a choice is not stable


def consensus(
    runs: Sequence[Mapping[str, Mapping[str, Sequence[str]]]],
) -> dict[str, dict[str, Any]]:
    """Return by party the features that runs recommend, and how often each was kept.

    `runs` are the ``features`` of every run: by party the names kept and removed. A
    feature's share is that of the runs that kept it among those in which the party held
    it, and features kept in at least half of these are recommended; the most kept come
    first.

    >>> first = {"bank": {"kept": ["age", "income"], "removed": ["zip"]}}
    >>> second = {"bank": {"kept": ["income"], "removed": ["age", "zip"]}}
    >>> consensus([first, second])["bank"]["share"]
    {'income': 1.0, 'age': 0.5}
    >>> consensus([first, second, second])["bank"]["recommended"]
    ['income']
    """
    by_party = {}
    for party in dict.fromkeys(name for run in runs for name in run):
        lists = [run[party] for run in runs if party in run]
        kept = Counter(name for names in lists for name in names["kept"])
        removed = Counter(name for names in lists for name in names["removed"])
        share = {name: n / (n + removed[name]) for name, n in kept.items()}
        share = dict(sorted(share.items(), key=lambda item: -item[1]))
        recommended = [name for name, part in share.items() if part >= 0.5]
        by_party[party] = {"recommended": recommended, "share": share}
    return by_party


def agreed(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return by party what runs recommend, and the verdict on each of its columns.

    `runs` are numbers of runs as the contract has them; a party whose features are null
    has told of none.
    """
    known = [
        {party: names for party, names in run["features"].items() if names is not None}
        for run in runs
    ]
    by_party = consensus(known)
    for party, recommended in by_party.items():
        of_runs = [
            (features[party], (run.get("selection") or {}).get(party))
            for features, run in zip(known, runs, strict=True)
            if party in features
        ]
        names = dict.fromkeys(
            n for f, _ in of_runs for n in [*f["kept"], *f["removed"]]
        )
        recommended["verdicts"] = {name: _verdict(name, of_runs) for name in names}
    return by_party


def _verdict(
    name: str, of_runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
) -> ColumnVerdict:
    """Return the verdict on column `name`: needed, not needed, or undecided.

    `of_runs` has for every run the party's features and how they were chosen. Not
    needed is a column with at most a little effect, and no sign of one along a curve or
    in a pair. Undecided is one that may have more, that only some runs keep, or that
    was left out because no more features were allowed.
    """
    kept = [how for features, how in of_runs if name in features["kept"]]
    removed = [how for features, how in of_runs if name in features["removed"]]
    both, (low, high) = kept + removed, SOMETIMES
    if len(both) > 1 and low <= len(kept) / len(both) <= high:
        return "undecided"
    if len(kept) >= len(removed):
        return "needed"
    measured = [how for how in both if how and "signs" in how]
    if len(measured) < len(both):
        return "removed"
    whys = Counter(how["why"][name] for how in removed if how)
    if whys.most_common(1)[0][0] == "most":
        return "undecided"
    at_most, signs = (
        fmean(how[what][name] for how in measured) for what in ("at_most", "signs")
    )
    little = fmean(how["power"]["correlation"] for how in measured)
    return "not needed" if at_most <= little and signs < 1 else "undecided"
