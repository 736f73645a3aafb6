"""How a party's method rated its features, bin by bin: a card of its page, and a CSV.

They are in a party's own record and in no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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


class RatedRun(NamedTuple):
    """The rates of one run, and the features that it kept."""

    seed: int
    how: Mapping[str, Any]
    kept: frozenset[str]


class RatedFeature(NamedTuple):
    """A feature on the page: its rate, and its bins where it has any."""

    feature: str
    score: str
    is_kept: bool
    bins: list[dict[str, str]]
    n_more: int  # bins that only the file has


class RatingCard(NamedTuple):
    """What the page says of the rates of one run."""

    title: str
    sentences: list[str]
    features: list[RatedFeature]


def rated_runs(record: RunRecord) -> list[RatedRun]:
    """List the runs of a party's record that rated its features."""
    party, found = str(record.header.get("party")), []
    for run in record.runs:
        if (how := at(run, "ratings", party)) is not None:
            kept = frozenset(tables.revealed(run)[party]["kept"])
            found.append(RatedRun(run["seed"], how, kept))
    return found


def rating_card(record: RunRecord) -> RatingCard | None:
    """Return what the page says of the first run's rates; None without any."""
    runs = rated_runs(record)
    if not runs:
        return None
    seed, how, kept = runs[0]
    features, measure = how["features"], str(how["measure"])
    which = f"Of seed {seed}. " if len(runs) > 1 else ""
    said = [f"{which}{TOLD.get(measure, UNTOLD)}"]
    if any("bins" in one for one in features):
        said.append(
            "Classes are numbered as at the server; those of amounts go upwards."
        )
    if (share := how["false_share"]) is not None and kept:
        said.append(
            f"About {100 * share:.0f} % of what was kept may be useless, by scrambled "
            "copies of the labels."
        )
    n_more = max(0, len(features) - MOST_FEATURES)
    rest = f", also of {plural(n_more, 'more feature')}" if n_more else ""
    said.append(f"The file {RATINGS_NAME} has all of them{rest}.")
    shown = [_shown(one, kept) for one in features[:MOST_FEATURES]]
    title = f"{measure[0].upper()}{measure[1:]} of your features"
    return RatingCard(title, said, shown)


def _shown(one: Mapping[str, Any], kept: frozenset[str]) -> RatedFeature:
    bins, name = one.get("bins", ()), one["feature"]
    lines = [
        {head: _text(cell) for head, cell in _cells(bin_).items()}
        for bin_ in bins[:MOST_BINS]
    ]
    n_more = len(bins) - len(lines)
    return RatedFeature(name, _text(one["score"]), name in kept, lines, n_more)


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
    for seed, how, kept in rated_runs(record):
        for one in how["features"]:
            about = {
                "seed": seed,
                "feature": one["feature"],
                "kept": str(one["feature"] in kept).lower(),
                how["measure"]: one["score"],
            }
            bins = [_cells(bin_) for bin_ in one.get("bins", ())]
            lines += [about | cells for cells in bins or [{}]]
    if not lines:
        return ""
    heads = list(dict.fromkeys(head for line in lines for head in line))
    names = [head.lower().replace(" ", "_") for head in heads]
    rows = ([_short(line.get(head)) for head in heads] for line in lines)
    return parts.csv_text([names, *rows])


def _short(cell: object) -> object:
    return f"{cell:.6g}" if isinstance(cell, float) else cell
