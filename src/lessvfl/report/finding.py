"""What several runs over the same data found, in one sentence of their numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lessvfl import terms
from lessvfl.report import sentences, tables
from lessvfl.run.record import RunRecord

BYTES = "communication.payload_bytes.*"
DIFFERENCES = {  # of two transports, in words; any other is one of the steps
    "bits": "{} bits a value",
    "embedding_size": "{} components",
    "train_epochs": "{:g} epochs",
}


@dataclass(frozen=True)
class PairedGap:
    """By how much one is ahead of another, seed by seed."""

    mean: float
    error: float  # standard error of the mean
    verdict: Literal["ahead", "equal", "behind"]  # equal: within two errors

    @classmethod
    def of(cls, gaps: Sequence[float]) -> PairedGap:
        """Judge the differences of at least two seeds.

        >>> PairedGap.of([0.02, 0.03]).verdict, PairedGap.of([-0.02, 0.03]).verdict
        ('ahead', 'equal')
        """
        mean = statistics.fmean(gaps)
        error = statistics.stdev(gaps) / len(gaps) ** 0.5
        if abs(mean) <= 2 * error:
            return cls(mean, error, "equal")
        return cls(mean, error, "ahead" if mean > 0 else "behind")


def finding(records: Mapping[str, RunRecord]) -> str:
    """Say what runs over the same data found; nothing where no seed has finished.

    `records` are by the name to be said. Of two the one that removed features, or else
    the one that sent less, is told against the other; of more it is told against one
    that sent under the same settings, and what the rest sent comes after it. Where
    there is none such, the best are named.
    """
    done = {name: record for name, record in records.items() if record.runs}
    if len(done) < 2:
        return "".join(sentences.headline(record) for record in done.values())
    name, *others = sorted(done, key=lambda name: _rank(done[name]))
    if len(others) == 1:
        return _against(done, name, others[0])
    like = [other for other in others if not _differences(done[name], done[other])]
    if len(like) != 1:
        return _best(done)
    rest = [_bytes(done[name], done[o], o) for o in others if o not in like]
    return "; it ".join(filter(None, [_against(done, name, like[0]), *rest]))


def _against(records: Mapping[str, RunRecord], name: str, base: str) -> str:
    """Say what a record kept and sent against another one, and how their scores are."""
    ours, theirs = records[name], records[base]
    parts = [_bytes(ours, theirs, base)]
    if removed := tables.over_seeds(ours.runs, "spurious.removed_share"):
        # Not all of it and not nothing is never rounded to that.
        share = removed.mean
        near = 0 < share < 0.01 or 0.99 < share < 1
        percent = f"{100 * share:.{1 if near else 0}f} %"
        parts.insert(0, f"found {percent} of the planted noise")
    elif total := tables.mean_total(ours.runs):
        held = tables.plural(total.held, "feature")
        parts.insert(0, f"kept {total.kept:.3g} of {held}")
    sentence = " and ".join(filter(None, parts))
    return f"{name} {sentence}{_score(ours, theirs)}" if sentence else ""


def _rank(record: RunRecord) -> tuple[bool, float]:
    """Order by who removed features, then by who sent less."""
    total, sent = tables.mean_total(record.runs), tables.over_seeds(record.runs, BYTES)
    removed = total is not None and total.kept < total.held
    return not removed, sent.mean if sent else float("inf")


def _bytes(record: RunRecord, base: RunRecord, name: str) -> str:
    """Compare bytes, and say in which settings of the transport the two differ.

    `name` is that of `base`: within the sentence it is plain VFL, but LESS-VFL.
    """
    ours, theirs = (tables.over_seeds(one.runs, BYTES) for one in (record, base))
    if not ours or not theirs or not ours.mean or not theirs.mean:
        return ""
    known = name.startswith(tuple(tables.METHOD_TITLES.values()))
    than = name[0].lower() + name[1:] if known and name[1].islower() else name
    if differ := _differences(record, base):
        than += f" ({differ})"
    ratio = theirs.mean / ours.mean
    more, ratio = ("fewer", ratio) if ratio >= 1 else ("more", 1 / ratio)
    if ratio < 1.05:
        return f"sent about as many bytes as {than}"
    if ratio >= 2:
        times = f"{ratio:.{0 if ratio >= 10 else 1}f} times"
        return f"sent {times} {more} bytes than {than}"
    share = 1 - 1 / ratio if more == "fewer" else ratio - 1
    return f"sent {100 * share:.0f} % {more} bytes than {than}"


def _differences(record: RunRecord, base: RunRecord) -> str:
    """Say in which settings of the transport two runs differ, if in any."""
    ours, theirs = record.transport, base.transport
    differ = {
        name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]
    }
    words = [
        f"{form.format(ours[name])} instead of {theirs[name]:g}"
        for name, form in DIFFERENCES.items()
        if name in differ
    ]
    return ", ".join(words + ["other steps"] * bool(differ - DIFFERENCES.keys()))


def _score(record: RunRecord, base: RunRecord) -> str:
    """Compare scores, seed by seed; they differ beyond two standard errors."""
    score = tables.shared_score([record, base])
    if score is None:
        return ""
    name, word = score
    ours, theirs = (tables.over_seeds(r.runs, f"{name}.final") for r in (record, base))
    if not ours or not theirs:
        return ""
    numbers = f"{ours.mean:.3f} against {theirs.mean:.3f}"
    firsts, seconds = (
        {run["seed"]: tables.number(run, name, "final") for run in one.runs}
        for one in (record, base)
    )
    pairs = ((firsts[seed], seconds[seed]) for seed in firsts if seed in seconds)
    gaps = [a - b for a, b in pairs if a is not None and b is not None]
    if len(gaps) < 2:
        return f", with {word} {numbers} ({tables.plural(ours.n, 'seed')})"
    verdict, seeds = PairedGap.of(gaps).verdict, tables.plural(len(gaps), "seed")
    if verdict == "equal":
        return f", at the same {word} within two standard errors ({numbers}, {seeds})"
    how = "higher" if verdict == "ahead" else "lower"
    return f", at a {how} {word} ({numbers}, {seeds}, beyond two standard errors)"


def _best(records: Mapping[str, RunRecord]) -> str:
    """Name who has the best score, and who sent the least."""

    def means(path: str) -> dict[str, float]:
        spreads = ((n, tables.over_seeds(r.runs, path)) for n, r in records.items())
        return {name: spread.mean for name, spread in spreads if spread}

    parts = []
    if score := tables.shared_score(list(records.values())):
        key, word = score
        if scores := means(f"{key}.final"):
            name = max(scores, key=lambda name: scores[name])
            parts.append(f"{name} has the highest {word} ({scores[name]:.3f})")
    if sent := means(BYTES):
        name = min(sent, key=lambda name: sent[name])
        least = f"{name} sent the fewest bytes ({terms.bytes_text(sent[name])})"
        others = (record for other, record in records.items() if other != name)
        if any(_differences(records[name], one) for one in others):
            least += ", under settings of its own for what is sent"
        parts.append(least)
    return "; ".join(parts)
