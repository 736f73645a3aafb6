"""What a server knows of each party: components, bytes, and what the party reveals."""

from __future__ import annotations

from lessvfl import terms
from lessvfl.report import tables
from lessvfl.report.tables import at, number
from lessvfl.report.verdicts import found_words
from lessvfl.run.record import RunRecord

UNTOLD = "not revealed"


def party_rows(record: RunRecord) -> list[dict[str, str]]:
    """Return a row for each party of a server's record, means over its seeds."""
    components = tables.component_counts(record.runs)
    rows = []
    for party in record.header.get("parties") or components:
        kept, of = components.get(party, (0, 0))
        bytes_up, bytes_down = (_bytes(record, party, way) for way in ("up", "down"))
        own = {"components": f"{tables.value_text(round(kept, 1), 'count')} of {of:g}"}
        if tables.are_trees(record.runs):
            own = {"splits": tables.value_text(round(kept, 1), "count")}
        rows.append(
            {
                "party": party,
                **own,
                "features": _features(record, party),
                "sent": bytes_up,
                "received": bytes_down,
            }
        )
    return rows


def power_words(record: RunRecord) -> str:
    """Say how often parties would find a column of little effect, by the rows alone."""
    found = at(record.header, "data", "power")
    if record.header.get("method") != "less-vfl-auto" or not found:
        return ""
    said = found_words(found["finds"], found["auc"], found["correlation"], "at a party")
    return (
        f"{said} That is at most, by the number of rows alone; each party's page has "
        "its own figure."
    )


def _bytes(record: RunRecord, party: str, way: str) -> str:
    """Say how many bytes a party sent or got, without evaluation."""
    paid = [
        sum(
            line["payload_bytes"]
            for line in run.get("bill") or []
            if (line["party"], line["direction"]) == (party, way)
            and line["stage"] != "evaluate"
        )
        for run in record.runs
    ]
    return terms.bytes_text(sum(paid) / len(paid))


def _features(record: RunRecord, party: str) -> str:
    """Say how many features a party kept, as far as it reveals that."""
    if counts := tables.mean_counts(record.runs).get(party):
        kept, held = counts.kept, counts.held
    else:
        told = [at(run, "counts", party) for run in record.runs]
        kept_mean, removed_mean = (
            tables.spread([number(one, name) for one in told])
            for name in ("n_kept", "n_removed")
        )
        if kept_mean is None or removed_mean is None:
            kept_none = all(party in tables.emptied(run) for run in record.runs)
            return "none" if kept_none else UNTOLD
        kept, held = kept_mean.mean, kept_mean.mean + removed_mean.mean
    return f"{tables.value_text(round(kept, 1), 'count')} of {held:g}"
