"""The key numbers at the top of a page of one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lessvfl import terms
from lessvfl.report import intervals, tables
from lessvfl.report.tables import RunNumbers, at
from lessvfl.run.record import RunRecord


def cards(record: RunRecord) -> list[tuple[str, str, str, str]]:
    """Return the key numbers: label, mean, standard deviation, one thing more."""
    details, cards = _details(record), []
    for label, text in tables.summary(record).items():
        if label == "features kept":  # "24 ± 1 of 45" is two lines of a card
            text, _, held = text.rpartition(" of ")
            details[label] = f"of {held}"
        path, _ = tables.SUMMARY[label]
        whole = intervals.together(record, path.removesuffix(".final"))
        if whole is not None:
            text = f"{whole:.3f}"
        cards.append((label, text, details.get(label, "")))
    cards += _target(record.runs)
    found = []
    for label, text, detail in cards:
        mean, _, spread = text.partition(" ± ")
        found.append((capital(label), mean, spread, detail))
    return found


def _details(record: RunRecord) -> dict[str, str]:
    """Say one thing more under a key number."""
    details, runs = {}, record.runs
    for label, (path, kind) in tables.SUMMARY.items():
        before = tables.over_seeds(runs, path.replace(".final", ".pretrained"))
        if kind != "score" or not path.endswith(".final"):
            continue
        said, name = [], path.removesuffix(".final")
        found = intervals.of_score(record, name)
        if is_whole := intervals.together(record, name) is not None:
            found = intervals.of_ensemble(record, name)
        if found:
            said.append(f"{intervals.LEVEL}: {found.words}")
        if is_whole:
            mean = tables.spread_text(tables.over_seeds(runs, path), kind)
            said.append(f"seeds: {mean}")
        if before:
            said.append(f"{before.mean:.3f} after pre-training")
        if said:
            details[label] = "; ".join(said)
    if planted := tables.over_seeds(runs, "spurious.planted"):
        details["spurious removed"] = f"of {planted.mean:,.0f} planted"
    if (n_real := at(record.header, "data", "n_real")) is not None:
        details["real kept"] = f"of {tables.plural(n_real, 'real feature')}"
    up = tables.over_seeds(runs, "communication.payload_bytes.up")
    down = tables.over_seeds(runs, "communication.payload_bytes.down")
    if up and down:
        sizes = terms.bytes_text(up.mean), terms.bytes_text(down.mean)
        details["MB both ways"] = f"{sizes[0]} up, {sizes[1]} down"
    details["paper MiB"] = "embeddings up, 4 bytes a value"
    details["seconds"] = f"on {record.header.get('device', 'this machine')}"
    return details


def _target(runs: Sequence[RunNumbers]) -> Iterator[tuple[str, str, str]]:
    """Return the card of the target, where a run has one."""
    goals = [run for run in runs if tables.value_at(run, "target.accuracy") is not None]
    if goals:
        goal = goals[0]["target"]["accuracy"]
        reached = [run for run in goals if run["target"].get("reached")]
        sent = tables.over_seeds(reached, "target.payload_bytes")
        word = "seed" if len(goals) == 1 else "seeds"
        detail = f"{word}, after {terms.bytes_text(sent.mean)}" if sent else word
        yield f"Target {goal:g} reached", f"{len(reached)} of {len(goals)}", detail


def capital(words: str) -> str:
    """Begin words with a capital, and leave the others as they are."""
    return words[:1].upper() + words[1:]
