"""The numbers of a report: taken from records, averaged over seeds, put into words.

Nothing here computes a score; every number is one of the record, a count of names in
the record, or the mean and the sample standard deviation of such numbers over seeds.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lessvfl.run.record import RunRecord

Run = Mapping[str, Any]

MISSING = "–"
METHOD_TITLES = {
    "less-vfl": "LESS-VFL",
    "local-lasso": "Local lasso",
    "group-lasso": "Group lasso",
    "plain": "Plain VFL",
}
STAGE_TITLES = {
    "pretrain": "pre-train",
    "embed": "embed",
    "select_components": "select components",
    "select_features": "select features",
    "joint_lasso": "joint lasso",
    "settle": "train a little",
    "select_again": "look again",
    "train": "train",
    "evaluate": "evaluate",
}
SECOND_LOOK = {
    "both looks": "A second look added to the first.",
    "second look": "A second look replaced the first.",
    "pruned": "On a second look it dropped what says nothing beside the others.",
}
MOST_PAIRS = 3  # that a sentence names
MOMENTS = {
    "pretrained": "after pre-training",
    "selected": "right after selection",
    "final": "final",
    "best": "best",
}


# -- one number ------------------------------------------------------------------------


def at(value: Any, *path: str) -> Any:
    """Walk down nested mappings; None where the path ends early.

    >>> at({"accuracy": {"final": 0.9}}, "accuracy", "final")
    0.9
    >>> at({"accuracy": None}, "accuracy", "final") is None
    True
    """
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def number(run: Run, *path: str) -> float | None:
    """Return the finite number at a path of a run, or None."""
    value = at(run, *path)
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return None


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over the seeds that have the number."""

    mean: float
    std: float | None
    n: int
    n_runs: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """Average over seeds, leaving out those without a number.

    >>> spread([1.0, 3.0, None])
    Spread(mean=2.0, std=1.4142135623730951, n=2, n_runs=3)
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) > 1 else None
    return Spread(statistics.fmean(known), std, len(known), len(values))


# -- numbers as text -------------------------------------------------------------------


def _decimals(value: float) -> int:
    """Decimals that show three or four digits of a size."""
    size = abs(value)
    return 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3


def _pair(mean: float, std: float | None, decimals: int) -> str:
    text = f"{mean:,.{decimals}f}"
    return text if std is None else f"{text} ± {std:,.{decimals}f}"


def _score(mean: float, std: float | None) -> str:
    return _pair(mean, std, 3)


def _share(mean: float, std: float | None) -> str:
    text = f"{100 * mean:.1f} %"
    return text if std is None else f"{text} ± {100 * std:.1f}"


def _size(mean: float, std: float | None) -> str:
    return _pair(mean, std, _decimals(mean))


def _count(mean: float, std: float | None) -> str:
    whole = not std and float(mean).is_integer()
    return _pair(mean, None if whole else std, 0 if whole else 1)


def _flag(mean: float, std: float | None) -> str:
    return f"{100 * mean:.0f} %"


KINDS: dict[str, Callable[[float, float | None], str]] = {
    "score": _score,
    "share": _share,
    "size": _size,
    "count": _count,
    "flag": _flag,
}


def spread_text(value: Spread | None, kind: str) -> str:
    """Write a mean with its ±, and say so where only some seeds have the number.

    >>> spread_text(spread([0.91, 0.93]), "score")
    '0.920 ± 0.014'
    >>> spread_text(spread([0.5, None]), "share")
    '50.0 % (1 of 2 seeds)'
    >>> spread_text(None, "score")
    '–'
    """
    if value is None:
        return MISSING
    text = KINDS[kind](value.mean, value.std)
    if value.n < value.n_runs:
        text += f" ({value.n} of {value.n_runs} seeds)"
    return text


def value_text(value: float | None, kind: str) -> str:
    """Write the number of one seed, with one digit more than a mean would carry.

    >>> value_text(0.92134, "score"), value_text(1234567, "count")
    ('0.9213', '1,234,567')
    """
    if value is None:
        return MISSING
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "score":
        return f"{value:.4f}"
    return KINDS[kind](value, None)


def bytes_text(n_bytes: float) -> str:
    """Write a number of bytes in the unit that fits, 1 MB = 1,000,000 bytes.

    >>> bytes_text(3_400_000), bytes_text(512), bytes_text(999_960)
    ('3.4 MB', '512 bytes', '1.0 MB')
    """
    if n_bytes < 1000:
        return f"{n_bytes:.0f} bytes"
    size, units = n_bytes / 1000, iter(("kB", "MB", "GB"))
    unit = next(units)
    while size >= 999.95 and unit != "GB":
        size, unit = size / 1000, next(units)
    return f"{size:,.1f} {unit}"


def plural(n: float, word: str, many: str | None = None) -> str:
    """Write a count and its noun.

    >>> plural(1, "party", "parties"), plural(2.5, "seed")
    ('1 party', '2.5 seeds')
    """
    count = _count(n, None)
    return f"{count} {word if n == 1 else many or word + 's'}"


# -- features --------------------------------------------------------------------------


def is_planted(party: str, feature: str) -> bool:
    """Tell a planted column by its name, ``spurious_<party>_<i>``.

    >>> is_planted("bank", "spurious_bank_3"), is_planted("bank", "spurious_shop_3")
    (True, False)
    """
    return re.fullmatch(rf"spurious_{re.escape(party)}_\d+", feature) is not None


@dataclass(frozen=True)
class Counts:
    """How many features of a party were kept and removed, real and planted."""

    real_kept: float = 0
    planted_kept: float = 0
    real_removed: float = 0
    planted_removed: float = 0

    @property
    def kept(self) -> float:
        """Features kept."""
        return self.real_kept + self.planted_kept

    @property
    def held(self) -> float:
        """Features held."""
        return self.kept + self.real_removed + self.planted_removed


def revealed(run: Run) -> dict[str, Mapping[str, Sequence[str]]]:
    """Return kept and removed features of the parties whose choice is in the record."""
    features = at(run, "features") or {}
    return {party: names for party, names in features.items() if names is not None}


def feature_counts(run: Run) -> dict[str, Counts]:
    """Count each party's features in one run."""
    counts = {}
    for party, names in revealed(run).items():
        planted_kept = sum(is_planted(party, name) for name in names["kept"])
        planted_removed = sum(is_planted(party, name) for name in names["removed"])
        counts[party] = Counts(
            len(names["kept"]) - planted_kept,
            planted_kept,
            len(names["removed"]) - planted_removed,
            planted_removed,
        )
    return counts


def mean_counts(runs: Sequence[Run]) -> dict[str, Counts]:
    """Average each party's counts over the runs that have the party."""
    found: dict[str, list[Counts]] = {}
    for run in runs:
        for party, counts in feature_counts(run).items():
            found.setdefault(party, []).append(counts)
    return {party: _mean_of(many) for party, many in found.items()}


def _mean_of(counts: Sequence[Counts]) -> Counts:
    return Counts(
        statistics.fmean(c.real_kept for c in counts),
        statistics.fmean(c.planted_kept for c in counts),
        statistics.fmean(c.real_removed for c in counts),
        statistics.fmean(c.planted_removed for c in counts),
    )


def total_counts(run: Run) -> Counts | None:
    """Count the features of all parties of one run; None where none is revealed."""
    parties = feature_counts(run).values()
    if not parties:
        return None
    return Counts(
        sum(c.real_kept for c in parties),
        sum(c.planted_kept for c in parties),
        sum(c.real_removed for c in parties),
        sum(c.planted_removed for c in parties),
    )


def mean_total(runs: Sequence[Run]) -> Counts | None:
    """Average the counts of all parties over runs; None where none is revealed."""
    totals = [counts for run in runs if (counts := total_counts(run))]
    return _mean_of(totals) if totals else None


def kept_features(run: Run) -> float | None:
    """Count the features kept at all parties."""
    counts = total_counts(run)
    return None if counts is None else counts.kept


def held_features(run: Run) -> float | None:
    """Count the features held by all parties."""
    counts = total_counts(run)
    return None if counts is None else counts.held


@dataclass(frozen=True)
class FeatureRow:
    """One feature of one party: kept in how many of how many seeds."""

    party: str
    feature: str
    planted: bool
    n_kept: int
    n_runs: int
    importance: float | None

    @property
    def state(self) -> str:
        """``kept`` in every seed, ``removed`` in every seed, or kept in ``some``."""
        if self.n_kept == self.n_runs:
            return "kept"
        return "some" if self.n_kept else "removed"


def selection_words(party: str, how: Mapping[str, Any], n_kept: int) -> str:
    """Say in plain words what a party's selection by shadows found.

    >>> how = {"scores": {"age": 0.8, "x": 0.0, "y": 0.0}, "rule": "pruned"}
    >>> how |= {"shadow_share": 0.02, "false_share": 0.04, "pairs": [["x", "y", 3.0]]}
    >>> selection_words("clinic", how, 3)
    'clinic keeps 3 of 3 features. Of its scrambled columns 2.0 % passed the same bar, \
so about 0.1 of those kept may be there by chance. On a second look it dropped what \
says nothing beside the others. x and y matter together.'
    """
    by_chance = how["false_share"] * n_kept
    words = [
        f"{party} keeps {n_kept} of {len(how['scores'])} features.",
        f"Of its scrambled columns {100 * how['shadow_share']:.1f} % passed the same "
        f"bar, so about {by_chance:.1f} of those kept may be there by chance.",
        SECOND_LOOK.get(how["rule"], ""),
    ]
    for a, b, _ in how["pairs"][:MOST_PAIRS]:
        words.append(
            f"{a} matters squared." if a == b else f"{a} and {b} matter together."
        )
    n_more = len(how["pairs"]) - MOST_PAIRS
    if n_more > 0:
        words.append(f"And {plural(n_more, 'more such pair')}.")
    return " ".join(word for word in words if word)


def feature_rows(runs: Sequence[Run]) -> list[FeatureRow]:
    """List every feature of every party, in the order of the record."""
    seen: dict[tuple[str, str], list[bool]] = {}
    norms: dict[tuple[str, str], list[float | None]] = {}
    for run in runs:
        for party, names in revealed(run).items():
            for was_kept in (True, False):
                for feature in names["kept" if was_kept else "removed"]:
                    seen.setdefault((party, feature), []).append(was_kept)
                    norm = number(run, "importance", party, feature)
                    norms.setdefault((party, feature), []).append(norm)
    rows = []
    for (party, feature), kept in seen.items():
        norm_spread = spread(norms[party, feature])
        rows.append(
            FeatureRow(
                party,
                feature,
                is_planted(party, feature),
                sum(kept),
                len(kept),
                norm_spread.mean if norm_spread else None,
            )
        )
    parties = list(dict.fromkeys(row.party for row in rows))
    return sorted(rows, key=lambda row: (parties.index(row.party), -row.n_kept))


# -- components and communication ------------------------------------------------------


def components(run: Run) -> dict[str, tuple[float, float]]:
    """Return (kept, of) of each party's embedding components in one run."""
    found = {}
    for party in at(run, "components") or {}:
        kept = number(run, "components", party, "kept")
        of = number(run, "components", party, "of")
        if kept is not None and of is not None:
            found[party] = (kept, of)
    return found


def component_counts(runs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """Average (kept, of) of each party's embedding components over runs."""
    found: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        for party, counts in components(run).items():
            found.setdefault(party, []).append(counts)
    return {
        party: (
            statistics.fmean(kept for kept, _ in many),
            statistics.fmean(of for _, of in many),
        )
        for party, many in found.items()
    }


def kept_components(run: Run) -> float | None:
    """Count the embedding components kept at all parties."""
    counts = components(run).values()
    return sum(kept for kept, _ in counts) if counts else None


def held_components(run: Run) -> float | None:
    """Count the embedding components of all parties."""
    counts = components(run).values()
    return sum(of for _, of in counts) if counts else None


def sent_bytes(run: Run) -> float | None:
    """Add up the payload of both directions, without evaluation."""
    up = number(run, "communication", "payload_bytes", "up")
    down = number(run, "communication", "payload_bytes", "down")
    return None if up is None or down is None else up + down


def sent_megabytes(run: Run) -> float | None:
    """Return the payload of both directions in MB."""
    n_bytes = sent_bytes(run)
    return None if n_bytes is None else n_bytes / 1e6


def _in_order(stages: set[str]) -> list[str]:
    known = [stage for stage in STAGE_TITLES if stage in stages]
    return known + sorted(stages - set(known))


def stages_billed(runs: Sequence[Run]) -> list[str]:
    """List the stages of the bills of these runs, in the order they happen."""
    return _in_order(
        {stage for run in runs for stage in at(run, "communication", "by_stage") or {}}
    )


def stage_title(stage: str) -> str:
    """Name a stage in words; evaluation says that it is not in the cost."""
    if stage == "evaluate":
        return "evaluate (not in the cost)"
    return STAGE_TITLES.get(stage, stage.replace("_", " "))


# -- whole records ---------------------------------------------------------------------


def is_regression(record: RunRecord) -> bool:
    """Tell whether the score of a record is R² rather than accuracy."""
    if any(value is not None for run in record.runs for value in _moments(run, "r2")):
        return True
    n_classes = at(record.header, "data", "n_classes")
    return n_classes is None or n_classes < 2


def _moments(run: Run, score: str) -> list[float | None]:
    return [number(run, score, moment) for moment in MOMENTS]


def method_title(record: RunRecord) -> str:
    """Name the method as a reader knows it."""
    method = str(record.header.get("method"))
    return METHOD_TITLES.get(method, method)


def over_seeds(record: RunRecord, *path: str) -> Spread | None:
    """Average the number at a path over the seeds of a record."""
    return spread([number(run, *path) for run in record.runs])


def headline(record: RunRecord) -> str:
    """Say in one sentence what came out of a record."""
    title, runs = method_title(record), record.runs
    if not runs:
        return f"{title}: no seed has finished"
    parts = []
    kept = spread([kept_features(run) for run in runs])
    held = spread([held_features(run) for run in runs])
    if kept and held:
        n_parties = plural(len(mean_counts(runs)), "party", "parties")
        if record.header.get("method") == "plain" and kept.mean == held.mean:
            choice = f"used all {plural(held.mean, 'feature')}"
        else:
            n_kept = "none" if kept.mean == 0 else _count(kept.mean, None)
            choice = f"kept {n_kept} of {plural(held.mean, 'feature')}"
        parts.append(f"{title} {choice} at {n_parties}")
    else:
        parts.append(f"{title}: the parties did not reveal which features they kept")
    score, word = ("r2", "R²") if is_regression(record) else ("accuracy", "accuracy")
    final = over_seeds(record, score, "final")
    parts.append(f"test {word} {final.mean:.3f}" if final else "no test score")
    sent = spread([sent_bytes(run) for run in runs])
    if sent:
        parts.append(f"{bytes_text(sent.mean)} sent")
    mean_of = f" (mean of {len(runs)} seeds)" if len(runs) > 1 else ""
    return "; ".join(parts) + mean_of


def remarks(record: RunRecord) -> list[str]:
    """Say what a reader should know beyond the notes of the record."""
    n_runs, sentences = len(record.runs), []
    empty: dict[str, int] = {}
    for run in record.runs:
        for party, counts in feature_counts(run).items():
            if counts.held and not counts.kept:
                empty[party] = empty.get(party, 0) + 1
    for party, n_empty in empty.items():
        when = f" in {n_empty} of {n_runs} seeds" if n_runs > 1 else ""
        sentences.append(f"{party} kept none of its features{when}.")
    scores = [
        value
        for run in record.runs
        for score in ("accuracy", "r2")
        for value in _moments(run, score)
    ]
    if scores and all(value is None for value in scores):
        sentences.append("There were no test rows, so nothing was scored.")
    return sentences


def summary(record: RunRecord) -> list[tuple[str, str]]:
    """Return the key numbers of a record, mean ± sample standard deviation over seeds.

    Parameters
    ----------
    record : RunRecord
        The record of one method.

    Returns
    -------
    list of (str, str)
        Label and value; what no seed has is left out.
    """
    rows = [("features kept", _kept_of(record))]
    for label, path, kind in (
        ("test accuracy", ("accuracy", "final"), "score"),
        ("balanced accuracy", ("balanced_accuracy", "final"), "score"),
        ("AUC", ("auc", "final"), "score"),
        ("test R²", ("r2", "final"), "score"),
        ("spurious removed", ("spurious", "removed_share"), "share"),
        ("real kept", ("spurious", "real_kept_share"), "share"),
    ):
        rows.append((label, spread_text(over_seeds(record, *path), kind)))
    sent = spread([sent_megabytes(run) for run in record.runs])
    rows.append(("MB both ways", spread_text(sent, "size")))
    for label, path, kind in (
        ("paper MiB", ("communication", "paper_mib"), "size"),
        ("paper MiB to target", ("target", "paper_mib"), "size"),
        ("rounds", ("communication", "rounds"), "count"),
        ("seconds", ("seconds", "total"), "size"),
    ):
        rows.append((label, spread_text(over_seeds(record, *path), kind)))
    return [(label, text) for label, text in rows if text != MISSING]


def _kept_of(record: RunRecord) -> str:
    kept = spread([kept_features(run) for run in record.runs])
    held = spread([held_features(run) for run in record.runs])
    if kept is None or held is None:
        return MISSING
    return f"{spread_text(kept, 'count')} of {_count(held.mean, None)}"


def summary_rows(records: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    """Put several records into one table, a row each.

    Parameters
    ----------
    records : sequence of RunRecord
        The records, in the order of the rows.

    Returns
    -------
    header : list of str
        Names of the columns; scores that no record has are left out.
    rows : list of list of str
        One row a record: means over seeds, ± the sample standard deviation.

    Examples
    --------
    >>> from lessvfl.record import RunRecord
    >>> run = {"seed": 0, "accuracy": {"final": 0.9}, "curve": []}
    >>> data = {"name": "toy", "n_classes": 2}
    >>> record = RunRecord({"method": "plain", "data": data}, [run], "complete")
    >>> header, rows = summary_rows([record])
    >>> dict(zip(header, rows[0], strict=True))["test accuracy"]
    '0.900'
    """
    header = ["method", "data", "profile", "seeds"]
    rows = []
    for record in records:
        method = str(record.header.get("method"))
        if record.status != "complete":
            method += f" ({record.status})"
        data = str(at(record.header, "data", "name"))
        profile = str(record.header.get("profile") or MISSING)
        rows.append([method, data, profile, str(len(record.runs))])
    always = {"features kept", "spurious removed", "real kept"}
    always |= {"MB both ways", "paper MiB", "rounds", "seconds"}
    if not records or not all(is_regression(record) for record in records):
        always |= {"test accuracy", "balanced accuracy"}
    if any(is_regression(record) for record in records):
        always |= {"test R²"}
    if any("target" in run for record in records for run in record.runs):
        always |= {"paper MiB to target"}
    summaries = [dict(summary(record)) for record in records]
    for label in (
        "test accuracy",
        "balanced accuracy",
        "test R²",
        "spurious removed",
        "real kept",
        "features kept",
        "MB both ways",
        "paper MiB",
        "paper MiB to target",
        "rounds",
        "seconds",
    ):
        if label in always:
            header.append(label)
            for row, values in zip(rows, summaries, strict=True):
                row.append(values.get(label, MISSING))
    return header, rows


# -- every number of every seed --------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """One number that every seed may have, and where in its run it stands."""

    group: str
    label: str
    path: str
    kind: str
    value: Callable[[Run], float | None]


def _measure(group: str, label: str, path: Sequence[str], kind: str) -> Measure:
    return Measure(group, label, ".".join(path), kind, lambda run: number(run, *path))


def _all_measures(runs: Sequence[Run]) -> Iterator[Measure]:
    for score, title in (
        ("accuracy", "Test accuracy"),
        ("balanced_accuracy", "Balanced test accuracy"),
        ("auc", "Test AUC"),
        ("r2", "Test R²"),
    ):
        for moment, label in MOMENTS.items():
            yield _measure(title, label, (score, moment), "score")
    group = "Features"
    yield Measure(group, "kept", "features.*.kept", "count", kept_features)
    yield Measure(group, "held", "features.*.*", "count", held_features)
    group = "Planted spurious features"
    yield _measure(group, "planted", ("spurious", "planted"), "count")
    yield _measure(group, "removed", ("spurious", "removed"), "count")
    yield _measure(group, "share removed", ("spurious", "removed_share"), "share")
    share = ("spurious", "real_kept_share")
    yield _measure(group, "share of real features kept", share, "share")
    group = "Embedding components"
    yield Measure(group, "kept", "components.*.kept", "count", kept_components)
    yield Measure(group, "of", "components.*.of", "count", held_components)
    group, sent = "Communication", ("communication", "payload_bytes")
    yield _measure(group, "bytes, parties to server", (*sent, "up"), "count")
    yield _measure(group, "bytes, server to parties", (*sent, "down"), "count")
    both = "communication.payload_bytes.*"
    yield Measure(group, "bytes, both ways", both, "count", sent_bytes)
    yield _measure(group, "rounds", ("communication", "rounds"), "count")
    mib = ("communication", "paper_mib")
    yield _measure(group, "MiB as the paper counts", mib, "size")
    for stage in stages_billed(runs):
        bill, title = ("communication", "by_stage", stage), stage_title(stage)
        group = "Communication by stage"
        yield _measure(group, f"{title}: bytes up", (*bill, "up"), "count")
        yield _measure(group, f"{title}: bytes down", (*bill, "down"), "count")
        yield _measure(group, f"{title}: rounds", (*bill, "rounds"), "count")
    group = "Target"
    yield _measure(group, "accuracy to reach", ("target", "accuracy"), "score")
    yield _measure(group, "reached", ("target", "reached"), "flag")
    yield _measure(group, "bytes until then", ("target", "payload_bytes"), "count")
    yield _measure(group, "rounds until then", ("target", "rounds"), "count")
    yield _measure(group, "paper MiB until then", ("target", "paper_mib"), "size")
    timed = {stage for run in runs for stage in at(run, "seconds") or {}}
    for stage in [*_in_order(timed - {"total"}), "total"]:
        title = STAGE_TITLES.get(stage, stage.replace("_", " "))
        yield _measure("Seconds", title, ("seconds", stage), "size")


def measures(runs: Sequence[Run]) -> list[Measure]:
    """List the numbers that at least one of these runs has."""
    return [
        measure
        for measure in _all_measures(runs)
        if any(measure.value(run) is not None for run in runs)
    ]
