"""A fitted model in a notebook: a small card of HTML that needs nothing around it."""

from __future__ import annotations

from html import escape

from lessvfl import terms
from lessvfl.report import parts, server, tables
from lessvfl.run.record import RunRecord

MOST_NAMES = 12  # features of one party that are named
STYLE = """<style>
.lessvfl-card { border: 1px solid #9aa0a8; border-radius: 6px; padding: .2em 1em;
  margin-bottom: .5em; max-width: 60em; font-family: system-ui, sans-serif; }
.lessvfl-card td, .lessvfl-card th { padding: .15em .6em; text-align: left;
  vertical-align: top; white-space: nowrap; }
.lessvfl-card td:nth-child(3) { white-space: normal; }
</style>"""


def card(record: RunRecord) -> str:
    """Return what a model kept, what it cost and what to bear in mind."""
    (run,) = record.runs
    curve = run["curve"] or [{}]
    name, word = tables.first_score(record)
    missed, lines = tables.missed(record), []
    for row in server.party_rows(record):
        party = row["party"]
        kept = tables.revealed(run)[party]["kept"]
        more = f" and {len(kept) - MOST_NAMES:,} more" * (len(kept) > MOST_NAMES)
        features = ", ".join(kept[:MOST_NAMES]) + more or "none"
        without = f"{missed[party][0]:.3f}" if party in missed else tables.MISSING
        cells = [row["features"], features, row["sent"], row["received"], without]
        lines.append(parts.line(party, cells))
    heads = ("party", "kept", "features", "sent", "received", f"{word} without it")
    said = []
    if (score := tables.number(curve[-1], f"train_{name}")) is not None:
        said.append(f"{word} on the training rows {score:.3f}")
    sent = tables.value_at(run, "communication.payload_bytes.*")
    said.append(f"{terms.bytes_text(sent or 0)} sent")
    said.append(tables.plural(run["communication"]["rounds"], "round"))
    notes = [*record.header["notes"], *tables.emptied(record)]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    title = f"{tables.selected_words(record)}; {', '.join(said)}"
    return (
        f'{STYLE}<div class="lessvfl-card"><p><strong>{escape(title)}</strong></p>'
        f"{parts.table(heads, lines)}" + f"<ul>{items}</ul>" * bool(items) + "</div>"
    )
