"""The numbers of a report: taken from records, averaged over seeds, put into words."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lessvfl import terms
from lessvfl.report.reasons import RULES, SAID
from lessvfl.run.record import RunRecord

RunNumbers = Mapping[str, Any]  # one of RunRecord.runs

MISSING = "–"
MOST_CLASSES = 3  # that are counted in a sentence
METHOD_TITLES = {
    "less-vfl": "LESS-VFL",
    "less-vfl-auto": "less-vfl-auto",
    "local-lasso": "Local lasso",
    "group-lasso": "Group lasso",
    "plain": "Plain VFL",
}
ESTIMATED = (
    "How many of those kept may be useless is an estimate: scrambled copies of a "
    "column stand for useless ones; it does not count columns that matter only through "
    "others."
)
PAPER_MIB = (
    "Paper MiB count embeddings to the server alone, at 4 bytes a value even where "
    "fewer were sent."
)
MOST_PAIRS = 3  # that a sentence names
MANY_SEEN = 0.01  # of the test rows that equal a training row, from where it matters
MOMENTS = {
    "pretrained": "after pre-training",
    "selected": "right after selection",
    "final": "final",
    "best": "best",
}


# -- one number ------------------------------------------------------------------------


def at(value: Any, *path: str) -> Any:
    """Walk down nested mappings; None where the path ends early."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def number(value: Any, *path: str) -> float | None:
    """Return the finite number at a path of nested mappings, or None."""
    value = at(value, *path)
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return None


class SeedSpread(NamedTuple):
    """Mean and sample standard deviation over the seeds that have the number."""

    mean: float
    std: float | None
    n: int
    n_runs: int


def spread(values: Sequence[float | None]) -> SeedSpread | None:
    """Average over seeds, leaving out those without a number."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) > 1 else None
    return SeedSpread(statistics.fmean(known), std, len(known), len(values))


# -- numbers as text -------------------------------------------------------------------


HUGE = 1e12  # from here on a number is written with its exponent


def _decimals(value: float) -> int:
    """Decimals that show three or four digits of a size."""
    size = abs(value)
    return 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3


def _pair(mean: float, std: float | None, decimals: int) -> str:
    form = f",.{decimals}f" if abs(mean) < HUGE else ".3g"
    return f"{mean:{form}}" if std is None else f"{mean:{form}} ± {std:{form}}"


def _share(mean: float, std: float | None) -> str:
    text = f"{100 * mean:.1f} %"
    return text if std is None else f"{text} ± {100 * std:.1f}"


def _count(mean: float, std: float | None) -> str:
    whole = not std and float(mean).is_integer()
    return _pair(mean, None if whole else std, 0 if whole else 1)


KINDS: dict[str, Callable[[float, float | None], str]] = {
    "score": lambda mean, std: _pair(mean, std, 3),
    "share": _share,
    "size": lambda mean, std: _pair(mean, std, _decimals(mean)),
    "MB": lambda mean, std: KINDS["size"](mean / 1e6, std and std / 1e6),  # of bytes
    "count": _count,
    "flag": lambda mean, std: f"{100 * mean:.0f} %",
}


def spread_text(value: SeedSpread | None, kind: str) -> str:
    """Write a mean with its ±, and say so where only some seeds have the number."""
    if value is None:
        return MISSING
    text = KINDS[kind](value.mean, value.std)
    if value.n < value.n_runs:
        text += f" ({value.n} of {value.n_runs} seeds)"
    return text


def value_text(value: float | None, kind: str) -> str:
    """Write the number of one seed, with one digit more than a mean would carry."""
    if value is None:
        return MISSING
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "score":
        return f"{value:.4f}" if abs(value) < HUGE else f"{value:.4g}"
    return KINDS[kind](value, None)


plural = terms.plural


# -- features --------------------------------------------------------------------------


def is_planted(party: str, feature: str) -> bool:
    """Tell a planted column by its name, ``spurious_<party>_<i>``."""
    return re.fullmatch(rf"spurious_{re.escape(party)}_\d+", feature) is not None


class FeatureCounts(NamedTuple):
    """Features of one party or of all, real and planted, kept and removed."""

    real_kept: float
    planted_kept: float
    real_removed: float
    planted_removed: float

    @property
    def kept(self) -> float:
        """Features kept."""
        return self.real_kept + self.planted_kept

    @property
    def held(self) -> float:
        """Features held."""
        return sum(self)


def revealed(run: RunNumbers) -> dict[str, Mapping[str, Sequence[str]]]:
    """Return kept and removed features of the parties whose choice is in the record."""
    features = at(run, "features") or {}
    return {party: names for party, names in features.items() if names is not None}


def feature_counts(run: RunNumbers) -> dict[str, FeatureCounts]:
    """Count each party's features in one run."""
    found = {}
    for party, names in revealed(run).items():
        counts: list[int] = []
        for state in ("kept", "removed"):
            n_planted = sum(is_planted(party, name) for name in names[state])
            counts += [len(names[state]) - n_planted, n_planted]
        found[party] = FeatureCounts(*counts)
    return found


Counts = Sequence[float]


def _mean(counts: Iterable[Counts]) -> list[float]:
    return [statistics.fmean(column) for column in zip(*counts, strict=True)]


def _mean_by_party(runs: Iterable[Mapping[str, Counts]]) -> dict[str, list[float]]:
    found: dict[str, list[Counts]] = {}
    for run in runs:
        for party, counts in run.items():
            found.setdefault(party, []).append(counts)
    return {party: _mean(counts) for party, counts in found.items()}


def mean_counts(runs: Iterable[RunNumbers]) -> dict[str, FeatureCounts]:
    """Average each party's counts over the runs that have the party."""
    means = _mean_by_party(map(feature_counts, runs))
    return {party: FeatureCounts(*mean) for party, mean in means.items()}


def with_planted(counts: Iterable[FeatureCounts]) -> bool:
    """Tell whether any of these features were planted."""
    return any(one.planted_kept + one.planted_removed for one in counts)


def total_counts(run: RunNumbers) -> FeatureCounts | None:
    """Count the features of all parties of one run; None where none is revealed."""
    parties = feature_counts(run).values()
    return FeatureCounts(*map(sum, zip(*parties, strict=True))) if parties else None


def mean_total(runs: Iterable[RunNumbers]) -> FeatureCounts | None:
    """Average the counts of all parties over runs; None where none is revealed."""
    totals = [counts for run in runs if (counts := total_counts(run))]
    return FeatureCounts(*_mean(totals)) if totals else None


class FeatureRow(NamedTuple):
    """One feature of one party: kept in how many of how many seeds."""

    party: str
    feature: str
    n_kept: int
    n_runs: int
    importance: float | None

    @property
    def state(self) -> str:
        """``kept`` in every seed, ``removed`` in every seed, or kept in ``some``."""
        if self.n_kept == self.n_runs:
            return "kept"
        return "some" if self.n_kept else "removed"


class Strength(NamedTuple):
    """How strong a feature is against its party's shadows; 1 is the mark."""

    party: str
    feature: str
    value: float
    is_kept: bool
    in_pair: bool  # the strength is that of its strongest pair
    note: str  # why it stayed or went, where that is not what the strength says


def strengths(run: RunNumbers) -> list[Strength]:
    """List the features of a run that were measured against shadows.

    What stays is at the mark or beyond, and what goes is below it, or a note says why.
    """
    found = []
    for party, how in (at(run, "selection") or {}).items():
        kept = set(revealed(run).get(party, {"kept": ()})["kept"])
        pairs: dict[str, tuple[float, str]] = {}
        for a, b, value in how["pairs"]:
            for one, other in ((a, b), (b, a)):
                pairs[one] = max(pairs.get(one, (0.0, "")), (value, other))
        for name, value in how["scores"].items():
            reason = how["why"][name]
            note, in_pair = SAID[reason].note, reason == "pair"
            if in_pair:
                value, other = pairs[name]
                note = "squared" if other == name else f"with {other}"
            found.append(Strength(party, name, value, name in kept, in_pair, note))
    return found


def selection_words(party: str, how: Mapping[str, Any], n_kept: int) -> str:
    """Say in plain words what a party's selection by shadows found."""
    false_share = how["false_share"]
    useless = "no estimate of how many of those kept may be useless"
    if false_share is not None:
        useless = f"about {false_share * n_kept:.1f} of those kept may be useless"
    words = [
        f"{party} keeps {n_kept} of {plural(len(how['scores']), 'feature')}.",
        f"Of the scrambled copies of its columns {100 * how['shadow_share']:.1f} % "
        f"passed the same mark; {useless}.",
        RULES[how["rule"]] if n_kept else "",
    ]
    for a, b, _ in how["pairs"][:MOST_PAIRS]:
        words += [
            f"{a} matters squared." if a == b else f"{a} and {b} matter together."
        ]
    if (n_more := len(how["pairs"]) - MOST_PAIRS) > 0:
        words.append(f"And {plural(n_more, 'more such pair')}.")
    return " ".join(filter(None, words))


def feature_rows(runs: Sequence[RunNumbers]) -> list[FeatureRow]:
    """List every feature of every party, in the order of the record."""
    found: dict[tuple[str, str], list[tuple[bool, float | None]]] = {}
    for run in runs:
        for party, names in revealed(run).items():
            for state in ("kept", "removed"):
                for feature in names[state]:
                    norm = number(run, "importance", party, feature)
                    seeds = found.setdefault((party, feature), [])
                    seeds.append((state == "kept", norm))
    rows = []
    for (party, feature), seeds in found.items():
        norms = spread([norm for _, norm in seeds])
        n_kept, norm = sum(kept for kept, _ in seeds), norms.mean if norms else None
        rows.append(FeatureRow(party, feature, n_kept, len(seeds), norm))
    parties = list(dict.fromkeys(row.party for row in rows))
    return sorted(rows, key=lambda row: (parties.index(row.party), -row.n_kept))


class Recommendation(NamedTuple):
    """What the runs of a record recommend to one party, the most kept first."""

    party: str
    features: list[FeatureRow]
    n_held: int

    def text(self, most: int) -> str:
        """Name up to so many features, with how often where it was not always."""
        names = []
        for row in self.features[:most]:
            often = f" ({row.n_kept} of {row.n_runs})"
            names.append(row.feature + often * (row.n_kept < row.n_runs))
        text = ", ".join(names) or "none"
        n_more = len(self.features) - most
        return f"{text} and {n_more:,} more" if n_more > 0 else text


def recommendations(record: RunRecord) -> list[Recommendation]:
    """Return what a record recommends, by party; nothing where nothing is selected."""
    if record.header.get("method") == "plain":
        return []
    rows = {(row.party, row.feature): row for row in feature_rows(record.runs)}
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


# -- components and communication ------------------------------------------------------


def _pair_at(value: Any, *names: str) -> Counts:
    """Return two numbers of a mapping, or nothing where one is missing."""
    found = [n for name in names if (n := number(value, name)) is not None]
    return found if len(found) == len(names) else ()


def components(run: RunNumbers) -> dict[str, Counts]:
    """Return (kept, of) of each party's embedding components in one run."""
    by_party = (at(run, "components") or {}).items()
    found = {party: _pair_at(counts, "kept", "of") for party, counts in by_party}
    return {party: counts for party, counts in found.items() if counts}


def component_counts(runs: Iterable[RunNumbers]) -> dict[str, list[float]]:
    """Average [kept, of] of each party's embedding components over runs."""
    return _mean_by_party(map(components, runs))


def _sum(values: Iterable[float]) -> float | None:
    return sum(found) if (found := list(values)) else None


SUMS: dict[str, Callable[[RunNumbers], float | None]] = {
    "features.*.kept": lambda run: (total := total_counts(run)) and total.kept,
    "features.*.*": lambda run: (total := total_counts(run)) and total.held,
    "components.*.kept": lambda run: _sum(kept for kept, _ in components(run).values()),
    "components.*.of": lambda run: _sum(of for _, of in components(run).values()),
    "communication.payload_bytes.*": lambda run: _sum(
        _pair_at(at(run, "communication", "payload_bytes"), "up", "down")
    ),
}


def value_at(run: RunNumbers, path: str) -> float | None:
    """Return the finite number at a dotted path of a run, or a sum of ``SUMS``."""
    return SUMS[path](run) if path in SUMS else number(run, *path.split("."))


def over_seeds(runs: Sequence[RunNumbers], path: str) -> SeedSpread | None:
    """Average the number at a dotted path over runs."""
    return spread([value_at(run, path) for run in runs])


def _in_order(stages: set[str]) -> list[str]:
    known = [stage for stage in terms.STAGE_TEXTS if stage in stages]
    return known + sorted(stages - set(known))


def stages_billed(runs: Sequence[RunNumbers]) -> list[str]:
    """List the stages of the bills of these runs, in the order of a run."""
    bills = (at(run, "communication", "by_stage") or {} for run in runs)
    return _in_order({stage for bill in bills for stage in bill})


def stage_title(stage: str, *, billed: bool = False) -> str:
    """Name a stage in words; in a bill, evaluation says that it is not in the cost."""
    title = terms.stage_text(stage)
    return f"{title} (not in the cost)" if billed and stage == "evaluate" else title


# -- whole records ---------------------------------------------------------------------


def is_regression(record: RunRecord) -> bool:
    """Tell whether the score of a record is R² rather than accuracy."""
    n_classes = at(record.header, "data", "n_classes")
    return _scored(record, "r2") or n_classes is None or n_classes < 2


def _scored(record: RunRecord, *scores: str) -> bool:
    paths = [(score, moment) for score in scores for moment in MOMENTS]
    return any(number(run, *p) is not None for run in record.runs for p in paths)


def first_score(record: RunRecord) -> tuple[str, str]:
    """Return the name of the score that leads, and its word."""
    usual = "r2" if is_regression(record) else "accuracy"
    name = at(record.header, "data", "score") or leading(record.runs) or usual
    return name, score_word(name)


def leading(runs: Sequence[RunNumbers]) -> str | None:
    """Return the score that leads runs, where they say it."""
    return next((run["score"] for run in runs if run.get("score")), None)


def score_word(name: str) -> str:
    """Return what a reader calls a score."""
    return terms.SCORE_TEXTS.get(name, name)


def shared_score(records: Sequence[RunRecord]) -> tuple[str, str] | None:
    """Return one score that all records have, as leading as can be."""
    leads = [first_score(record)[0] for record in records]
    order = sorted(leads, key=lambda name: name == "accuracy")  # the usual one last
    for name in dict.fromkeys([*order, *terms.SCORE_TEXTS]):
        if all(over_seeds(record.runs, f"{name}.final") for record in records):
            return name, score_word(name)
    return None


def score_words(record: RunRecord) -> str:
    """Say the leading score, and what one prediction for all rows has.

    Beside a score that is no accuracy, accuracy is said, too.
    """
    name, word = first_score(record)
    final = over_seeds(record.runs, f"{name}.final")
    if not final:
        return "no test score"
    said = f"test {word} {final.mean:.3f}"
    hits = over_seeds(record.runs, "accuracy.final")
    level = over_seeds(record.runs, "baseline.accuracy")
    if not hits or not level:
        return said
    beside = f"always the most frequent class: {level.mean:.3f}"
    if name != "accuracy":
        beside = f"accuracy {hits.mean:.3f}; {beside}"
    return f"{said} ({beside})"


def label_words(record: RunRecord) -> str:
    """Say how many rows all sides have, and how many are of each class."""
    data = at(record.header, "data") or {}
    n_rows = (data.get("n_train") or 0) + (data.get("n_test") or 0)
    if not n_rows:
        return ""
    said = f"{plural(n_rows, 'row')} of all sides"
    classes = data.get("classes") or {}
    if not classes:
        return said
    rarest = sorted(classes.items(), key=lambda item: item[1])[:MOST_CLASSES]
    counts = (f"{name} {n:,} ({100 * n / n_rows:.2g} %)" for name, n in rarest)
    more = f" and {plural(len(classes) - MOST_CLASSES, 'class', 'classes')} more"
    return f"{said}: {', '.join(counts)}{more * (len(classes) > MOST_CLASSES)}"


def predicted_words(record: RunRecord) -> str:
    """Say how often the rarer of two classes is predicted on test rows."""
    classes = at(record.header, "data", "classes") or {}
    if len(classes) != 2:
        return ""
    name = min(classes, key=lambda name: classes[name])
    shares = spread([number(run, "predicted", name) for run in record.runs])
    if shares is None:
        return ""
    true = classes[name] / max(1, sum(classes.values()))
    return (
        f"{name} is predicted for {100 * shares.mean:.2g} % of the test rows; "
        f"{100 * true:.2g} % of all rows are"
    )


def missed(record: RunRecord) -> dict[str, list[float]]:
    """Return by party the mean score without it and of all, the most missed first."""
    name, _ = first_score(record)
    means = _mean_by_party(_without(run, name) for run in record.runs)
    return dict(sorted(means.items(), key=lambda item: item[1][0] - item[1][1]))


def _without(run: RunNumbers, name: str) -> dict[str, Counts]:
    """Return by party the score without it and that of all, of the same rows."""
    whole = number(run, name, "final")
    if whole is None:  # no test rows
        whole = number((at(run, "curve") or [{}])[-1], f"train_{name}")
    found: dict[str, Counts] = {}
    for party in at(run, "without") or {}:
        score = number(run, "without", party, name)
        if score is not None and whole is not None:
            found[party] = (score, whole)
    return found


def method_title(method: Any) -> str:
    """Name a method as a reader knows it."""
    return METHOD_TITLES.get(str(method), str(method))


def selected_words(record: RunRecord) -> str:
    """Say how many features a method kept, of how many, at how many parties."""
    title, runs = method_title(record.header.get("method")), record.runs
    kept, held = (over_seeds(runs, f"features.*.{name}") for name in ("kept", "*"))
    if kept and held:
        n_parties = plural(len(mean_counts(runs)), "party", "parties")
        n_kept = f"kept {_count(kept.mean, None) if kept.mean else 'none'} of"
        if record.header.get("method") == "plain" and kept.mean == held.mean:
            n_kept = "used all"
        return f"{title} {n_kept} {plural(held.mean, 'feature')} at {n_parties}"
    n_all = at(record.header, "data", "n_parties")
    return f"{title} with {plural(n_all, 'party', 'parties')}" if n_all else title


def headline(record: RunRecord) -> str:
    """Say in one sentence what came out of a record."""
    runs = record.runs
    if not runs:
        title = method_title(record.header.get("method"))
        return f"{title}: no seed has finished"
    parts = [selected_words(record), score_words(record)]
    if sent := over_seeds(runs, "communication.payload_bytes.*"):
        parts.append(f"{terms.bytes_text(sent.mean)} sent")
    mean_of = f" (mean of {len(runs)} seeds)" if len(runs) > 1 else ""
    return "; ".join(parts) + mean_of


def emptied(record: RunRecord) -> list[str]:
    """Say which parties kept nothing."""
    n_runs, sentences = len(record.runs), []
    counted = [item for run in record.runs for item in feature_counts(run).items()]
    empty = Counter(party for party, c in counted if c.held and not c.kept)
    for party, n_empty in empty.items():
        when = f" in {n_empty} of {n_runs} seeds" if n_runs > 1 else ""
        sentences.append(f"{party} kept none of its features{when}.")
    return sentences


def undefined(record: RunRecord) -> list[str]:
    """Say which scores do not exist, and why."""
    n_runs, sentences = len(record.runs), []
    is_scored = _scored(record, "accuracy", "r2")
    if n_runs and not is_scored and at(record.header, "data", "n_test") == 0:
        return ["There were no test rows, so nothing was scored."]
    all_reasons = (run.get("undefined") or {} for run in record.runs)
    found = Counter(item for reasons in all_reasons for item in reasons.items())
    for (score, why), n in found.items():
        if title := SCORES.get(score):
            when = f" in {n} of {n_runs} seeds" if n_runs > 1 else ""
            sentences.append(f"{title} is not defined{when}: {why}.")
    if n_runs and not is_scored and not sentences:
        sentences.append("Nothing was scored.")
    return sentences


def chance(record: RunRecord) -> list[str]:
    """Say where a model is no better than one prediction for all rows."""
    told = [run.get("above_baseline") for run in record.runs]
    known = [above for above in told if above is not None]
    if not known or 2 * sum(known) >= len(known):
        return []
    when = f" in {known.count(False)} of {len(known)} seeds" * (len(known) > 1)
    _, word = first_score(record)
    what = "the mean of the labels" if is_regression(record) else "the same class"
    return [
        f"The test rows do not show that the model is better than chance{when}: its "
        f"{word} there is hardly above that of predicting {what} for every row."
    ]


def seen_words(share: float) -> str:
    """Say how many test rows equal a training row, and what that means for scores."""
    said = f"{100 * share:.2g} % of the test rows equal a training row in every column"
    if share < MANY_SEEN:
        return f"{said}."
    return (
        f"{said}: scores are in part those of rows seen in training. "
        "equal_rows=distinct runs on distinct rows only."
    )


def seen(record: RunRecord) -> list[str]:
    """Say where more than a few test rows equal a training row."""
    share = over_seeds(record.runs, "test_rows_seen")
    many = share is not None and share.mean >= MANY_SEEN
    return [seen_words(share.mean)] if share and many else []


def remarks(record: RunRecord) -> list[str]:
    """Say what a reader should know beyond the notes of the record."""
    return chance(record) + seen(record) + emptied(record) + undefined(record)


SUMMARY = {  # label: where in a run, and the kind of number
    "features kept": ("features.*.kept", "count"),
    "test accuracy": ("accuracy.final", "score"),
    "balanced accuracy": ("balanced_accuracy.final", "score"),
    "AUC": ("auc.final", "score"),
    "average precision": ("average_precision.final", "score"),
    "accuracy of always the most frequent": ("baseline.accuracy", "score"),
    "test R²": ("r2.final", "score"),
    "spurious removed": ("spurious.removed_share", "share"),
    "real kept": ("spurious.real_kept_share", "share"),
    "MB both ways": ("communication.payload_bytes.*", "MB"),
    "paper MiB": ("communication.paper_mib", "size"),
    "paper MiB to target": ("target.paper_mib", "size"),
    "rounds": ("communication.rounds", "count"),
    "seconds": ("seconds.total", "size"),
}


def summary(record: RunRecord) -> dict[str, str]:
    """Return the key numbers of a record by label; what no seed has is left out.

    The leading score is the first of them.
    """
    texts = {}
    lead, _ = first_score(record)
    rows = sorted(SUMMARY.items(), key=lambda row: row[1][0] != f"{lead}.final")
    for label, (path, kind) in rows:
        if found := over_seeds(record.runs, path):
            texts[label] = spread_text(found, kind)
    if held := over_seeds(record.runs, "features.*.*"):
        texts["features kept"] += f" of {_count(held.mean, None)}"
    return texts


def summary_rows(records: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    """Put records into one table: its columns, as far as any has numbers, and rows."""
    found = [summary(record) for record in records]
    known = {label for texts in found for label in texts} if records else set(SUMMARY)
    if any("target" in run for record in records for run in record.runs):
        known.add("paper MiB to target")
    features, *others = SUMMARY  # beside the bytes that they saved
    place = others.index("MB both ways")
    order = [*others[:place], features, *others[place:]]
    if lead := shared_score(records):
        order.sort(key=lambda label: SUMMARY[label][0] != f"{lead[0]}.final")
    labels = [label for label in order if label in known]
    rows = []
    for record, texts in zip(records, found, strict=True):
        header = record.header
        method = str(header.get("method"))
        if record.status != "complete":
            method += f" ({record.status})"
        about = [str(at(header, "data", "name")), str(header.get("profile") or MISSING)]
        numbers = [texts.get(label, MISSING) for label in labels]
        rows.append([method, *about, str(len(record.runs)), *numbers])
    return ["method", "data", "profile", "seeds", *labels], rows


# -- every number of every seed --------------------------------------------------------


class Measure(NamedTuple):
    """One number that every seed may have: its words, where it is, its kind."""

    group: str
    label: str
    path: str
    kind: str


SCORES = {
    "accuracy": "Test accuracy",
    "balanced_accuracy": "Balanced test accuracy",
    "auc": "Test AUC",
    "average_precision": "Average precision, test",
    "r2": "Test R²",
}
BILL = {"up": "bytes up", "down": "bytes down", "rounds": "rounds"}
COUNTED = {  # group: label, path and kind of its numbers
    "Test rows": (("share that equal a training row", "test_rows_seen", "share"),),
    "Features": (
        ("kept", "features.*.kept", "count"),
        ("held", "features.*.*", "count"),
    ),
    "Planted spurious features": (
        ("planted", "spurious.planted", "count"),
        ("removed", "spurious.removed", "count"),
        ("share removed", "spurious.removed_share", "share"),
        ("share of real features kept", "spurious.real_kept_share", "share"),
    ),
    "Embedding components": (
        ("kept", "components.*.kept", "count"),
        ("of", "components.*.of", "count"),
    ),
    "Communication": (
        ("bytes, parties to server", "communication.payload_bytes.up", "count"),
        ("bytes, server to parties", "communication.payload_bytes.down", "count"),
        ("bytes, both ways", "communication.payload_bytes.*", "count"),
        ("rounds", "communication.rounds", "count"),
        ("MiB as the paper counts", "communication.paper_mib", "size"),
        ("bytes of frames, up", "communication.wire_bytes.up", "count"),
        ("bytes of frames, down", "communication.wire_bytes.down", "count"),
        ("bytes sent twice after a break", "communication.resent_bytes", "count"),
    ),
}
TARGET = (
    Measure("Target", "accuracy to reach", "target.accuracy", "score"),
    Measure("Target", "reached", "target.reached", "flag"),
    Measure("Target", "bytes until then", "target.payload_bytes", "count"),
    Measure("Target", "rounds until then", "target.rounds", "count"),
    Measure("Target", "paper MiB until then", "target.paper_mib", "size"),
)


def _all_measures(runs: Sequence[RunNumbers]) -> Iterator[Measure]:
    for score, title in SCORES.items():
        for moment, label in MOMENTS.items():
            yield Measure(title, label, f"{score}.{moment}", "score")
    for group, rows in COUNTED.items():
        for row in rows:
            yield Measure(group, *row)
    for stage in stages_billed(runs):
        for key, words in BILL.items():
            label = f"{stage_title(stage, billed=True)}: {words}"
            path = f"communication.by_stage.{stage}.{key}"
            yield Measure("Communication by stage", label, path, "count")
    yield from TARGET
    timed = {stage for run in runs for stage in at(run, "seconds") or {}}
    for stage in [*_in_order(timed - {"total"}), "total"]:
        yield Measure("Seconds", stage_title(stage), f"seconds.{stage}", "size")


def measures(runs: Sequence[RunNumbers]) -> list[Measure]:
    """List the numbers that at least one of these runs has."""
    return [
        measure
        for measure in _all_measures(runs)
        if any(value_at(run, measure.path) is not None for run in runs)
    ]
