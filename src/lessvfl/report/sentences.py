"""What is said of a record: its headline, its scores, and what to bear in mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lessvfl import terms
from lessvfl.report import intervals, tables
from lessvfl.report.reasons import RULES
from lessvfl.report.tables import at, number, over_seeds
from lessvfl.run.record import RunRecord, alike_words
from lessvfl.terms import plural

UNNAMED = (
    "It takes rows for unrelated: where several are of one person or the like and "
    "nobody named it, the share is larger, which in general cannot be seen."
)
ESTIMATED = (
    "How many of those kept may be useless is an estimate: scrambled copies of a "
    "column stand for useless ones; it does not count columns that matter only through "
    f"others. {UNNAMED}"
)
PAPER_MIB = (
    "Paper MiB count embeddings to the server alone, at 4 bytes a value even where "
    "fewer were sent."
)
MOST_CLASSES = 3  # that are counted in a sentence
MOST_PAIRS = 3  # that a sentence names
MANY_SEEN = 0.01  # of the test rows that equal a training row, from where it matters


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
        alike_words(party, [how]),
    ]
    words += [
        f"{a} matters squared." if a == b else f"{a} and {b} matter together."
        for a, b, _ in how["pairs"][:MOST_PAIRS]
    ]
    if (n_more := len(how["pairs"]) - MOST_PAIRS) > 0:
        words.append(f"And {plural(n_more, 'more such pair')}.")
    return " ".join(filter(None, words))


def score_words(record: RunRecord) -> str:
    """Say the leading score, and what one prediction for all rows has.

    Beside a score that is no accuracy, accuracy is said, too. Seeds that predict
    together are scored so, and their mean is said beside it.
    """
    name, word = tables.first_score(record)
    final = over_seeds(record.runs, f"{name}.final")
    if not final:
        return "no test score"
    hits = over_seeds(record.runs, "accuracy.final")
    level = over_seeds(record.runs, "baseline.accuracy")
    value, whose, accuracy, beside = final.mean, "", hits and hits.mean, []
    if interval := intervals.of_score(record, name):
        beside.append(f"{intervals.LEVEL}: {interval.words}")
    if (whole := intervals.together(record, name)) is not None:
        value, whose = whole, f" of {ensemble_words(record)}"
        accuracy = intervals.together(record, "accuracy")
        beside.append(f"mean of the seeds: {final.mean:.3f}")
    if accuracy is not None and level:
        if name != "accuracy":
            beside.append(f"accuracy {accuracy:.3f}")
        beside.append(f"always the most frequent class: {level.mean:.3f}")
    brackets = f" ({'; '.join(beside)})" if beside else ""
    return f"test {word} {value:.3f}{whose}{brackets}"


def ensemble_words(record: RunRecord) -> str:
    """Name the seeds that predict together; nothing where none do."""
    if record.ensemble is None:
        return ""
    return f"the ensemble of {plural(len(record.ensemble['seeds']), 'seed')}"


def label_words(record: RunRecord) -> str:
    """Say how many rows all sides have, and how many are of each class."""
    data = at(record.header, "data") or {}
    n_rows = (data.get("n_train") or 0) + (data.get("n_test") or 0)
    if not n_rows:
        return ""
    rows = f"{plural(n_rows, 'row')} of all sides"
    classes = data.get("classes") or {}
    if not classes:
        return rows
    rarest = sorted(classes.items(), key=lambda item: item[1])[:MOST_CLASSES]
    counts = ", ".join(f"{name} {n:,} ({100 * n / n_rows:.2g} %)" for name, n in rarest)
    if (n_more := len(classes) - MOST_CLASSES) > 0:
        counts += f" and {plural(n_more, 'class', 'classes')} more"
    return f"{rows}: {counts}{_as_randomised(record)}"


def predicted_words(record: RunRecord) -> str:
    """Say how often the rarer of two classes is predicted on test rows."""
    classes = at(record.header, "data", "classes") or {}
    if len(classes) != 2:
        return ""
    name = min(classes, key=lambda name: classes[name])
    shares = tables.spread([number(run, "predicted", name) for run in record.runs])
    if shares is None:
        return ""
    true = classes[name] / max(1, sum(classes.values()))
    return (
        f"{name} is predicted for {100 * shares.mean:.2g} % of the test rows; "
        f"{100 * true:.2g} % of all rows are{_as_randomised(record)}"
    )


def _as_randomised(record: RunRecord) -> str:
    """Say that shares of classes count labels of training rows that may be others."""
    if at(record.header, "config", "label_epsilon") is None:
        return ""
    return ", with the labels of training rows as they were randomised"


def selected_words(record: RunRecord) -> str:
    """Say how many features a method kept, of how many, at how many parties."""
    title, runs = tables.method_title(record.header.get("method")), record.runs
    kept, held = (over_seeds(runs, f"features.*.{name}") for name in ("kept", "*"))
    if kept and held:
        n_parties = plural(len(tables.mean_counts(runs)), "party", "parties")
        some = tables.value_text(kept.mean, "count") if kept.mean else "none"
        n_kept = f"kept {some} of"
        if record.header.get("method") == "plain" and kept.mean == held.mean:
            n_kept = "used all"
        return f"{title} {n_kept} {plural(held.mean, 'feature')} at {n_parties}"
    n_all = at(record.header, "data", "n_parties")
    return f"{title} with {plural(n_all, 'party', 'parties')}" if n_all else title


def headline(record: RunRecord) -> str:
    """Say in one sentence what came out of a record."""
    runs = record.runs
    if not runs:
        title = tables.method_title(record.header.get("method"))
        return f"{title}: no seed has finished"
    parts = [selected_words(record), score_words(record)]
    if sent := over_seeds(runs, "communication.payload_bytes.*"):
        parts.append(f"{terms.bytes_text(sent.mean)} sent")
    mean_of = f"mean of {tables.runs_words(record)}"
    if intervals.together(record, tables.first_score(record)[0]) is not None:
        mean_of = f"but for the score, {mean_of}"
    return "; ".join(parts) + (f" ({mean_of})" if len(runs) > 1 else "")


def emptied(record: RunRecord) -> list[str]:
    """Say which parties kept nothing."""
    empty = Counter(party for run in record.runs for party in tables.emptied(run))
    return [
        f"{party} kept none of its features{_in_seeds(n_empty, len(record.runs))}."
        for party, n_empty in empty.items()
    ]


def _in_seeds(n: int, n_runs: int) -> str:
    """Say in how many seeds something is so, where there are several."""
    return f" in {n} of {n_runs} seeds" if n_runs > 1 else ""


def undefined(record: RunRecord) -> list[str]:
    """Say which scores do not exist, and why."""
    n_runs, sentences = len(record.runs), []
    is_scored = tables.is_scored(record, "accuracy", "r2")
    if n_runs and not is_scored and at(record.header, "data", "n_test") == 0:
        return ["There were no test rows, so nothing was scored."]
    reasons = (run.get("undefined") or {} for run in record.runs)
    counts = Counter(item for by_score in reasons for item in by_score.items())
    for (score, why), n in counts.items():
        if words := terms.SCORES.get(score):
            seeds = _in_seeds(n, n_runs)
            sentences.append(f"{words.title} is not defined{seeds}: {why}.")
    if n_runs and not is_scored and not sentences:
        sentences.append("Nothing was scored.")
    return sentences


def chance(record: RunRecord) -> list[str]:
    """Say where a model is no better than one prediction for all rows."""
    above = [run.get("above_baseline") for run in record.runs]
    known = [one for one in above if one is not None]
    if not known or 2 * sum(known) >= len(known):
        return []
    _, word = tables.first_score(record)
    is_regression = tables.is_regression(record)
    what = "the mean of the labels" if is_regression else "the same class"
    return [
        "The test rows do not show that the model is better than chance"
        f"{_in_seeds(known.count(False), len(known))}: its {word} there is less than "
        f"two standard errors of guesses above that of predicting {what} for every row."
    ]


def seen_words(share: float) -> str:
    """Say how many test rows equal a training row, and what that means for scores."""
    text = f"{100 * share:.2g} % of the test rows equal a training row in every column"
    if share < MANY_SEEN:
        return f"{text}."
    return (
        f"{text}: scores are in part those of rows seen in training. "
        "equal_rows=distinct runs on distinct rows only."
    )


def together(record: RunRecord) -> list[str]:
    """Say how good all seeds of an ensemble are together, the leading score first."""
    lead, _ = tables.first_score(record)
    names = sorted(terms.SCORES, key=lambda name: name != lead)
    scores = []
    for name in names:
        if (value := intervals.together(record, name)) is not None:
            interval = intervals.of_score(record, name)
            around = f" ({intervals.LEVEL}: {interval.words})" if interval else ""
            scores.append(f"{tables.score_word(name)} {value:.3f}{around}")
    words = ensemble_words(record)
    return [f"{words[0].upper()}{words[1:]}: {', '.join(scores)}."] if scores else []


def remarks(record: RunRecord) -> list[str]:
    """Say what a reader should know beyond the notes of the record."""
    share = over_seeds(record.runs, "test_rows_seen")
    many = share is not None and share.mean >= MANY_SEEN
    seen = [seen_words(share.mean)] if share and many else []
    return [*chance(record), *seen, *emptied(record), *undefined(record)]
