"""Every feature with its verdict and the reason: ``features.csv`` of a run folder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lessvfl import terms
from lessvfl.report import parts, tables
from lessvfl.report.reasons import REASONS, AnyReason
from lessvfl.report.tables import FeatureRow, RunNumbers, at
from lessvfl.run.record import RunRecord
from lessvfl.terms import ColumnVerdict

FEATURES_NAME = "features.csv"
COLUMNS = ("party", "feature", "verdict", "kept", "why", "strength", "pair", "share")
NEEDED: ColumnVerdict = "needed"
NOT_NEEDED: ColumnVerdict = "not needed"
UNDECIDED: ColumnVerdict = "undecided"
REMOVED: ColumnVerdict = "removed"
# What not needed says, and what nobody can see: wherever it is said.
NOT_NEEDED_SCOPE = (
    "little effect, straight, curved or with another column of their party; effects "
    "only together with another party's columns cannot be seen"
)
BY_LASSO = ("less-vfl", "local-lasso", "group-lasso", "vflfs")
DWARFS = 3.0  # times the next feature's strength, or the mark
LEAKS = 0.5  # strength as a correlation from which such a feature is suspicious


class Strength(NamedTuple):
    """How strong a feature of one run is against its party's shadows; 1 is the mark."""

    party: str
    feature: str
    score: float  # alone
    is_kept: bool
    why: AnyReason
    pair: tuple[str, float] | None  # what it matters most with, and their strength

    @property
    def value(self) -> float:
        """Return the strength that decided."""
        return self.pair[1] if self.why == "pair" and self.pair else self.score

    @property
    def note(self) -> str:
        """Say why it stayed or went, where that is not what the strength says."""
        if self.why == "pair" and self.pair:
            other = self.pair[0]
            return "squared" if other == self.feature else f"with {other}"
        return REASONS[self.why].note


def strengths(run: RunNumbers) -> list[Strength]:
    """List the features of a run that were measured against shadows.

    What stays is at the mark or beyond, and what goes is below it, or a note says why.
    """
    strengths = []
    for party, how in (at(run, "selection") or {}).items():
        kept = set(tables.revealed(run)[party]["kept"])
        pairs: dict[str, tuple[str, float]] = {}
        for a, b, value in how["pairs"]:
            for one, other in ((a, b), (b, a)):
                if one not in pairs or pairs[one][1] < value:
                    pairs[one] = (other, value)
        strengths += [
            Strength(
                party=party,
                feature=name,
                score=score,
                is_kept=name in kept,
                why=how["why"][name],
                pair=pairs.get(name),
            )
            for name, score in how["scores"].items()
        ]
    return strengths


class FeatureVerdict(NamedTuple):
    """What all runs of a record say of one feature, and why."""

    party: str
    feature: str
    n_kept: int
    n_runs: int
    why: AnyReason  # as most of the runs have it that agree with the verdict
    strength: float | None  # mean of the runs; 1 is the mark that shadows set
    pair: tuple[str, float] | None  # what it matters together with, and their strength
    norm: float | None  # of its weights, mean of the runs that kept it
    at_most: float | None  # correlation that it may well have, mean of the runs
    signs: float | None  # of a curve or a pair, likewise; beyond chance from 1 on
    verdict: ColumnVerdict  # as the record has it

    @property
    def is_kept(self) -> bool:
        """Tell whether at least half of the runs kept it."""
        return 2 * self.n_kept >= self.n_runs

    @property
    def decisive(self) -> float | None:
        """Return the strength that decided: of its pair, where it stays for that."""
        return self.pair[1] if self.why == "pair" and self.pair else self.strength

    @property
    def words(self) -> str:
        """Say why it stays or goes."""
        if self.why == "pair" and self.pair:
            other, _ = self.pair
            how = "squared" if other == self.feature else f"together with {other}"
            return f"matters {how} (alone: {self.strength:.2f})"
        if self.why == "group lasso" and self.is_kept:
            norm = "" if self.norm is None else f" (norm {self.norm:.3f})"
            return f"the group lasso kept its weights{norm}"
        if self.why == "own rule" and self.is_kept:
            return "kept by the method's own rule"
        words = REASONS[self.why].words
        if self.verdict == UNDECIDED and self.why in ("weak", "chance"):
            words += f"; may have a correlation of {self.at_most:.2f}"
            words += ", with signs of a curve or a pair" * ((self.signs or 0) >= 1)
        return words


def verdicts(record: RunRecord) -> list[FeatureVerdict]:
    """List every feature that the record tells of: kept ones first, strongest first."""
    method = record.header.get("method")
    without: AnyReason = "group lasso" if method in BY_LASSO else "own rule"
    if method == "plain":
        without = "no selection"
    elif (record.side, method) == ("server", "less-vfl-auto"):
        without = "not revealed"
    by_feature: dict[tuple[str, str], list[Strength]] = {}
    for each in (one for run in record.runs for one in strengths(run)):
        by_feature.setdefault((each.party, each.feature), []).append(each)
    features = []
    for party, feature, n_kept, n_runs, norm in tables.feature_rows(record.runs):
        stays = 2 * n_kept >= n_runs
        known = tables.at(record.consensus, party, "verdicts") or {}
        seen = by_feature.get((party, feature), [])
        reasons = Counter(one.why for one in seen if one.is_kept == stays)
        pairs = [one.pair for one in seen if one.pair]
        strength = tables.spread([one.score for one in seen])
        features.append(
            FeatureVerdict(
                party=party,
                feature=feature,
                n_kept=n_kept,
                n_runs=n_runs,
                why=reasons.most_common(1)[0][0] if reasons else without,
                strength=strength.mean if strength else None,
                pair=max(pairs, key=lambda pair: pair[1]) if pairs and stays else None,
                norm=norm,
                at_most=_mean(record.runs, party, "at_most", feature),
                signs=_mean(record.runs, party, "signs", feature),
                verdict=known.get(feature, NEEDED if stays else REMOVED),
            )
        )
    parties = dict.fromkeys(one.party for one in features)
    places = {party: place for place, party in enumerate(parties)}

    def order(one: FeatureVerdict) -> tuple[int, bool, float]:
        value = one.strength if one.strength is not None else one.norm
        return places[one.party], not one.is_kept, -(value or 0)

    return sorted(features, key=order)


def _mean(runs: Sequence[RunNumbers], party: str, *path: str) -> float | None:
    """Return the mean of what runs say of a party's selection."""
    mean = tables.spread(
        [tables.number(run, "selection", party, *path) for run in runs]
    )
    return mean.mean if mean else None


def dwarfing(record: RunRecord) -> list[str]:
    """Say which features are so much stronger than all others that they may leak.

    A party has no labels: a column that is known only after the label, or is made of
    it, stands out by its strength alone.
    """
    by_party: dict[str, list[tuple[float, str]]] = {}
    for one in verdicts(record):
        if one.strength is not None:
            by_party.setdefault(one.party, []).append((one.strength, one.feature))
    sentences = []
    for party, features in by_party.items():
        features.sort(key=lambda one: -one[0])
        mark = _mean(record.runs, party, "sight", "mark")
        n_rows = _mean(record.runs, party, "sight", "n_rows")
        if mark is None or not n_rows or len(features) < 2:
            continue
        (strength, feature), (next_, _), *_ = features
        is_strong = strength * math.sqrt(mark / n_rows) >= LEAKS
        if is_strong and strength >= DWARFS * max(1.0, next_):
            sentences.append(
                f"{feature} of {party} is far stronger than its other features "
                f"({strength:.1f} times what chance reaches, the next {next_:.1f}): "
                "make sure that it is known before the label is."
            )
    return sentences


def power_words(record: RunRecord, party: str) -> str:
    """Say how often a column of little effect would be found at a party."""
    finds = _mean(record.runs, party, "power", "finds")
    if finds is None:
        return ""
    auc = _mean(record.runs, party, "power", "auc")
    little = _mean(record.runs, party, "power", "correlation") or 0.0
    return found_words(finds, auc, little, "here")


def found_words(finds: float, auc: float | None, little: float, where: str) -> str:
    """Say in how many runs a column of a little AUC or correlation would be found."""
    what = f"an AUC of {auc:g}" if auc else f"a correlation of {little:.2g}"
    times = min(99, max(1, round(100 * finds)))
    often = f"{times} of 100 runs"
    if finds > 0.995:
        often = "nearly every run"
    elif finds < 0.005:
        often = "hardly any run"
    return (
        f"A column that has {what} alone, where no other explains the labels, would be "
        f"found {where} in {often}."
    )


def reasons(gone: Sequence[FeatureVerdict]) -> str:
    """Say why features were removed, the most common reason first."""
    counts = Counter(one.why for one in gone).most_common()
    if len(counts) == 1:
        words = REASONS[gone[0].why]
        return f"it {words.one}" if len(gone) == 1 else f"they {words.many}"
    *first, last = (
        f"{n:,} {REASONS[why].one if n == 1 else REASONS[why].many}"
        for why, n in counts
    )
    return f"{', '.join(first)} and {last}"


def reasons_by_party(record: RunRecord) -> dict[str, str]:
    """Say of every party that removed features why it did, and how many are open."""
    gone: dict[str, list[FeatureVerdict]] = {}
    for one in verdicts(record):
        if not one.is_kept:
            gone.setdefault(one.party, []).append(one)
    words = {}
    for party, features in gone.items():
        words[party] = reasons(features)
        if n_open := sum(one.verdict == UNDECIDED for one in features):
            many = "all" if n_open == len(features) else f"{n_open:,}"
            of_them = f"{many} of them " if len(features) > 1 else ""
            words[party] += f" ({of_them}undecided)"
    return words


def as_columns(record: RunRecord) -> dict[str, list[Any]]:
    """Return every feature of one run as columns of a table, in the order of verdicts.

    Strengths are multiples of the mark that shadows set; of a method without shadows
    they are norms of weights, and there is no mark.
    """
    rows = [
        {
            "party": one.party,
            "feature": one.feature,
            "verdict": one.verdict,
            "kept": one.is_kept,
            "strength": (one.norm or 0.0) if one.strength is None else one.strength,
            "mark": None if one.strength is None else 1.0,
            "pair": one.pair and one.pair[0],
            "why": one.why,
        }
        for one in verdicts(record)
    ]
    return {name: [row[name] for row in rows] for name in rows[0]}


class Recommendation(NamedTuple):
    """What the runs of a record recommend to one party, the most kept first."""

    party: str
    features: list[FeatureRow]
    n_held: int

    def text(self, most: int) -> str:
        """Name at most `most` features; those not always kept with how often."""
        names = [
            row.feature + f" ({row.n_kept} of {row.n_runs})" * (row.n_kept < row.n_runs)
            for row in self.features
        ]
        return terms.listed(names, most) or "none"


def recommendations(record: RunRecord) -> list[Recommendation]:
    """Return what a record recommends, by party; nothing where nothing is selected."""
    if record.header.get("method") == "plain":
        return []
    rows = {(row.party, row.feature): row for row in tables.feature_rows(record.runs)}
    n_held = Counter(party for party, _ in rows)
    return [
        Recommendation(
            party, [rows[party, name] for name in one["recommended"]], n_held[party]
        )
        for party, one in record.consensus.items()
    ]


def recommended_words(n_runs: int) -> str:
    """Say what makes a feature a recommended one."""
    if n_runs == 1:
        return "Kept in the only run; run more seeds to see how stable the choice is."
    return (
        f"Kept in at least half of the {n_runs} runs; a feature without a count was "
        "kept in every run."
    )


def features_csv(record: RunRecord) -> str:
    """Return every feature as CSV; empty where the record names none."""
    lines = [
        (
            one.party,
            one.feature,
            one.verdict,
            str(one.is_kept).lower(),
            one.why,
            None if one.strength is None else f"{one.strength:.4g}",
            one.pair and one.pair[0],
            f"{one.n_kept / one.n_runs:.4g}",
        )
        for one in verdicts(record)
    ]
    return parts.csv_text([COLUMNS, *lines]) if lines else ""
