"""How a party's method rated its features, bin by bin: a card of its page, and a CSV.

They are in a party's own record and in no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lessvfl.report import parts, tables
from lessvfl.report.tables import at, plural
from lessvfl.run.record import RunRecord

RATINGS_NAME = "ratings.csv"
UNTOLD = "No message tells these numbers, and no record but yours has them."
TOLD = {  # by measure
    "gain": "The server chose the splits and knows what each gained, and not of which "
    "of your features it is.",
}
MOST_FEATURES, MOST_BINS = 100, 50  # on the page; the file has all


def rated_runs(
    record: RunRecord,
) -> list[tuple[int, Mapping[str, Any], frozenset[str]]]:
    """List by run of a party's record that rated: seed, rates, features kept."""
    party, rated = str(record.header.get("party")), []
    for run in record.runs:
        if (rates := at(run, "ratings", party)) is not None:
            kept = frozenset(tables.revealed(run)[party]["kept"])
            rated.append((run["seed"], rates, kept))
    return rated


def rating_card(record: RunRecord) -> dict[str, Any] | None:
    """Return title, sentences and features of the first run's card; None without any.

    Of a feature there are its score and its bins as texts, and how many bins only the
    file has.
    """
    runs = rated_runs(record)
    if not runs:
        return None
    seed, rates, kept = runs[0]
    features, measure = rates["features"], str(rates["measure"])
    which = f"Of seed {seed}. " if len(runs) > 1 else ""
    sentences = [f"{which}{TOLD.get(measure, UNTOLD)}"]
    if any("bins" in one for one in features):
        sentences.append(
            "Classes are numbered as at the server; those of amounts go upwards."
        )
    if (share := rates["false_share"]) is not None and kept:
        sentences.append(
            f"About {100 * share:.0f} % of what was kept may be useless, by scrambled "
            "copies of the labels."
        )
    n_more = max(0, len(features) - MOST_FEATURES)
    rest = f", also of {plural(n_more, 'more feature')}" if n_more else ""
    sentences.append(f"The file {RATINGS_NAME} has all of them{rest}.")
    shown = [
        {
            "feature": one["feature"],
            "score": _text(one["score"]),
            "is_kept": one["feature"] in kept,
            "bins": [
                {head: _text(cell) for head, cell in _cells(bin_).items()}
                for bin_ in one.get("bins", ())[:MOST_BINS]
            ],
            "n_more": max(0, len(one.get("bins", ())) - MOST_BINS),
        }
        for one in features[:MOST_FEATURES]
    ]
    title = f"{measure[0].upper()}{measure[1:]} of your features"
    return {"title": title, "sentences": sentences, "features": shown}


def _text(cell: str | int | float) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:z.3f}"


def _cells(bin_: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return the cells of one bin by the names of their columns."""
    woe = bin_.get("woe", ())
    return {
        "bin": bin_["bin"],
        "rows": bin_["rows"],
        **{f"class {c}": n for c, n in enumerate(bin_["classes"])},
        **{f"WOE {c}" if len(woe) > 1 else "WOE": w for c, w in enumerate(woe)},
        "part": bin_["part"],
    }


def ratings_csv(record: RunRecord) -> str:
    """Return the rates of all runs, a line for every bin; empty without any."""
    lines: list[dict[str, object]] = []
    for seed, rates, kept in rated_runs(record):
        for one in rates["features"]:
            about = {
                "seed": seed,
                "feature": one["feature"],
                "kept": str(one["feature"] in kept).lower(),
                rates["measure"]: one["score"],
            }
            bins = [_cells(bin_) for bin_ in one.get("bins", ())]
            lines += [about | cells for cells in bins or [{}]]
    if not lines:
        return ""
    heads = list(dict.fromkeys(head for line in lines for head in line))
    names = [head.lower().replace(" ", "_") for head in heads]
    rows = (
        [f"{c:.6g}" if isinstance(c, float) else c for c in map(line.get, heads)]
        for line in lines
    )
    return parts.csv_text([names, *rows])
