"""What a server knows of each party: components, bytes, and what the party reveals."""

from __future__ import annotations

from collections import Counter

from lessvfl import terms
from lessvfl.report import tables
from lessvfl.report.tables import at, number
from lessvfl.report.verdicts import found_words
from lessvfl.run.record import RunRecord

UNTOLD = "not revealed"


def party_rows(record: RunRecord) -> list[dict[str, str]]:
    """Return a row for each party of a server's record, means over its seeds.

    Bytes are without evaluation.
    """
    components = tables.component_counts(record.runs)
    has_trees = tables.are_trees(record.runs)
    rows = []
    for party in record.header.get("parties") or components:
        kept, of = components.get(party, (0, 0))
        n_kept, paid = tables.value_text(round(kept, 1), "count"), Counter[str]()
        for line in (line for run in record.runs for line in run.get("bill") or []):
            if line["party"] == party and line["stage"] != "evaluate":
                paid[line["direction"]] += line["payload_bytes"]
        rows.append(
            {
                "party": party,
                **({"splits": n_kept} if has_trees else {}),
                **({} if has_trees else {"components": f"{n_kept} of {of:g}"}),
                "features": _features(record, party),
                "sent": terms.bytes_text(paid["up"] / len(record.runs)),
                "received": terms.bytes_text(paid["down"] / len(record.runs)),
            }
        )
    return rows


def power_words(record: RunRecord) -> str:
    """Say how often parties would find a column of little effect, by the rows alone."""
    power = at(record.header, "data", "power")
    if record.header.get("method") != "less-vfl-auto" or not power:
        return ""
    finds, auc, correlation = power["finds"], power["auc"], power["correlation"]
    return (
        f"{found_words(finds, auc, correlation, 'at a party')} That is at most, by the "
        "number of rows alone; each party's page has its own figure."
    )


def _features(record: RunRecord, party: str) -> str:
    """Say how many features a party kept, as far as it reveals that."""
    if counts := tables.mean_counts(record.runs).get(party):
        kept, held = counts.kept, counts.held
    else:
        n_kept, n_removed = (
            tables.spread([number(run, "counts", party, name) for run in record.runs])
            for name in ("n_kept", "n_removed")
        )
        if n_kept is None or n_removed is None:
            kept_none = all(party in tables.emptied(run) for run in record.runs)
            return "none" if kept_none else UNTOLD
        kept, held = n_kept.mean, n_kept.mean + n_removed.mean
    return f"{tables.value_text(round(kept, 1), 'count')} of {held:g}"
