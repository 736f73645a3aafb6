"""What several runs over the same data found, in one sentence of their numbers."""

from __future__ import annotations

from collections.abc import Mapping

from lessvfl import terms
from lessvfl.report import tables
from lessvfl.report.tables import SeedSpread
from lessvfl.run.record import RunRecord

BYTES = "communication.payload_bytes.*"


def finding(records: Mapping[str, RunRecord]) -> str:
    """Say what runs over the same data found; nothing where no seed has finished.

    `records` are by the name to be said. Of two the one that removed features, or else
    the one that sent less, is told against the other. Of more, the best are named.
    """
    done = {name: record for name, record in records.items() if record.runs}
    if len(done) < 2:
        return "".join(tables.headline(record) for record in done.values())
    if len(done) > 2:
        return _best(done)
    name, base = sorted(done, key=lambda name: _rank(done[name]))
    said = [_features(done[name]), _bytes(done[name], done[base], _within(base))]
    sentence = f"{name} {' and '.join(filter(None, said))}"
    return f"{sentence}{_score(done[name], done[base])}" if any(said) else ""


def _within(name: str) -> str:
    """Write a name as within a sentence: plain VFL, but LESS-VFL."""
    known = name.startswith(tuple(tables.METHOD_TITLES.values()))
    return name[0].lower() + name[1:] if known and name[1].islower() else name


def _rank(record: RunRecord) -> tuple[bool, float]:
    """Order by who removed features, then by who sent less."""
    total, sent = tables.mean_total(record.runs), tables.over_seeds(record.runs, BYTES)
    removed = total is not None and total.kept < total.held
    return not removed, sent.mean if sent else float("inf")


def _features(record: RunRecord) -> str:
    """Say what became of the planted features, or of all where none was planted."""
    if found := tables.over_seeds(record.runs, "spurious.removed_share"):
        return f"found {_percent(found.mean)} of the planted noise"
    if total := tables.mean_total(record.runs):
        return f"kept {total.kept:.3g} of {tables.plural(total.held, 'feature')}"
    return ""


def _percent(share: float) -> str:
    """Write a share; not all of it and not nothing is never rounded to that."""
    near = 0 < share < 0.01 or 0.99 < share < 1
    return f"{100 * share:.{1 if near else 0}f} %"


def _bytes(record: RunRecord, base: RunRecord, name: str) -> str:
    ours, theirs = (tables.over_seeds(one.runs, BYTES) for one in (record, base))
    if not ours or not theirs or not ours.mean or not theirs.mean:
        return ""
    ratio = theirs.mean / ours.mean
    more, ratio = ("fewer", ratio) if ratio >= 1 else ("more", 1 / ratio)
    if ratio < 1.05:
        return f"sent about as many bytes as {name}"
    if ratio >= 2:
        return (
            f"sent {ratio:.{0 if ratio >= 10 else 1}f} times {more} bytes than {name}"
        )
    share = 1 - 1 / ratio if more == "fewer" else ratio - 1
    return f"sent {100 * share:.0f} % {more} bytes than {name}"


def _score(record: RunRecord, base: RunRecord) -> str:
    """Compare scores; they are the same where mean ± deviation of the two overlap."""
    score = tables.shared_score([record, base])
    if score is None:
        return ""
    path, word = score
    ours, theirs = (tables.over_seeds(r.runs, f"{path}.final") for r in (record, base))
    if not ours or not theirs:
        return ""
    numbers = f"{ours.mean:.3f} against {theirs.mean:.3f}"
    if ours.std is None or theirs.std is None:
        return f", with {word} {numbers} ({_seeds(ours, theirs)})"
    if abs(ours.mean - theirs.mean) <= ours.std + theirs.std:
        spread = f"within the spread of {_seeds(ours, theirs)}"
        return f", at the same {word} ({numbers}, {spread})"
    how = f"a higher {word}" if ours.mean > theirs.mean else f"a lower {word}"
    return f", at {how} ({numbers}, means of {_seeds(ours, theirs)})"


def _seeds(ours: SeedSpread, theirs: SeedSpread) -> str:
    counts = f"{ours.n}" if ours.n == theirs.n else f"{ours.n} and {theirs.n}"
    return f"{counts} {'seed' if counts == '1' else 'seeds'}"


def _best(records: Mapping[str, RunRecord]) -> str:
    """Name who has the best score, and who sent the least."""
    path, word = tables.shared_score(list(records.values())) or ("", "")
    scores = _means(records, f"{path}.final") if path else {}
    sent = _means(records, BYTES)
    said = []
    if scores:
        name = max(scores, key=lambda name: scores[name])
        said.append(f"{name} has the highest {word} ({scores[name]:.3f})")
    if sent:
        name = min(sent, key=lambda name: sent[name])
        said.append(f"{name} sent the fewest bytes ({terms.bytes_text(sent[name])})")
    return "; ".join(said)


def _means(records: Mapping[str, RunRecord], path: str) -> dict[str, float]:
    found = ((n, tables.over_seeds(r.runs, path)) for n, r in records.items())
    return {name: spread.mean for name, spread in found if spread}
