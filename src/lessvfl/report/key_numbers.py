"""The key numbers at the top of a page of one run."""

from __future__ import annotations

from lessvfl import terms
from lessvfl.report import intervals, tables
from lessvfl.report.tables import at, number
from lessvfl.run.record import RunRecord


def cards(record: RunRecord) -> list[tuple[str, str, str, str]]:
    """Return the key numbers: label, mean, standard deviation, one thing more."""
    details, rows = _details(record), []
    for label, text in tables.summary(record).items():
        if label == "features kept":  # "24 ± 1 of 45" is two lines of a card
            text, _, held = text.rpartition(" of ")
            details[label] = f"of {held}"
        path, _ = tables.SUMMARY[label]
        whole = intervals.together(record, path.removesuffix(".final"))
        if whole is not None:
            text = f"{whole:.3f}"
        rows.append((label, text))
    goals = [
        run for run in record.runs if number(run, "target", "accuracy") is not None
    ]
    if goals:
        reached = [run for run in goals if run["target"].get("reached")]
        label = f"Target {goals[0]['target']['accuracy']:g} reached"
        rows.append((label, f"{len(reached)} of {len(goals)}"))
        details[label] = "seed" if len(goals) == 1 else "seeds"
        if sent := tables.over_seeds(reached, "target.payload_bytes"):
            details[label] += f", after {terms.bytes_text(sent.mean)}"
    numbers = []
    for label, text in rows:
        mean, _, spread = text.partition(" ± ")
        numbers.append((capital(label), mean, spread, details.get(label, "")))
    return numbers


def _details(record: RunRecord) -> dict[str, str]:
    """Say one thing more under a key number."""
    details, runs = {}, record.runs
    for label, (path, kind) in tables.SUMMARY.items():
        if kind != "score" or not path.endswith(".final"):
            continue
        name, words = path.removesuffix(".final"), []
        if interval := intervals.of_score(record, name):
            words.append(f"{intervals.LEVEL}: {interval.words}")
        if intervals.together(record, name) is not None:
            mean = tables.spread_text(tables.over_seeds(runs, path), kind)
            words.append(f"seeds: {mean}")
        if before := tables.over_seeds(runs, f"{name}.pretrained"):
            words.append(f"{before.mean:.3f} after pre-training")
        if words:
            details[label] = "; ".join(words)
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


def capital(words: str) -> str:
    """Begin words with a capital, and leave the others as they are."""
    return words[:1].upper() + words[1:]
