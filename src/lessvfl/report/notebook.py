"""A fitted model in a notebook: a small card of HTML that needs nothing around it."""

from __future__ import annotations

from lessvfl import templates, terms
from lessvfl.report import sentences, server, tables
from lessvfl.run.record import RunRecord

MOST_NAMES = 12  # features of one party that are named


def card(record: RunRecord) -> str:
    """Return what a model kept, what it cost and what to bear in mind."""
    (run,) = record.runs
    curve = run["curve"] or [{}]
    name, word = tables.first_score(record)
    missed, lines = tables.missed(record), []
    for row in server.party_rows(record):
        party = row["party"]
        kept = tables.revealed(run)[party]["kept"]
        features = terms.listed(kept, MOST_NAMES) or "none"
        without = f"{missed[party][0]:.3f}" if party in missed else tables.MISSING
        sizes = (row["sent"], row["received"])
        lines.append((party, row["features"], features, *sizes, without))
    sent = tables.value_at(run, "communication.payload_bytes.*")
    facts = [
        f"{terms.bytes_text(sent or 0)} sent",
        tables.plural(run["communication"]["rounds"], "round"),
    ]
    if (score := tables.number(curve[-1], f"train_{name}")) is not None:
        facts.insert(0, f"{word} on the training rows {score:.3f}")
    template = templates.environment("lessvfl.report").get_template("notebook.html.j2")
    return template.render(
        title=f"{sentences.selected_words(record)}; {', '.join(facts)}",
        heads=(
            *("party", "kept", "features", "sent", "received"),
            f"{word} without it (loss overstated)",
        ),
        lines=lines,
        notes=[*record.header["notes"], *sentences.emptied(record)],
    )
