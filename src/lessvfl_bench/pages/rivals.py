"""Methods of feature selection across parties: one page, its tables, what they say."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lessvfl.report import figures, parts, tables
from lessvfl.report.tables import MISSING, plural
from lessvfl_bench.pages import dots
from lessvfl_bench.rivals import published
from lessvfl_bench.rivals.columns import COLUMNS, RivalColumn

NAME = "rivals"
HARD_SPACE = "\N{NO-BREAK SPACE}"
LEGEND = (
    "Means over seeds, on test rows. All methods of a table have the bits, components, "
    "rows of a step and epochs of less-vfl-auto, as far as they have any. Of a shape "
    "noise are its useless features; elsewhere noise is planted, but for published "
    "settings. To remove everything "
    "is best in one column and to keep everything in the next: read them together. "
    "Linear and boosted are models on the pooled columns kept, for judging alone: a "
    "standardised logistic regression (ridge for amounts) and "
    "HistGradientBoosting. A star has the best of a column, and whoever is not told "
    "apart from it: within two standard errors, paired by seed."
)
NARROW_LEGEND = (
    "Means over seeds, on test rows: noise gone, real features kept, F1 of the "
    "support; balanced accuracy and AUC of the method's own model; balanced accuracy "
    "of a linear and a boosted model on the columns kept; MiB both ways; "
    "seconds. A star: the best, or not told apart from it."
)
AHEAD_LEGEND = (
    "By how much {} is better than each, paired by seed, ± its standard error; a star "
    "beyond two. What is better is positive, of bytes, rounds and seconds, too."
)
COUNTS_LEGEND = (
    "At how many {1} {0} is ahead of each / not told apart from it / behind it, by two "
    "standard errors of the difference, paired by seed."
)
BEHIND_LEGEND = (
    "By place and column the rival that is most ahead of {}, beyond two standard "
    "errors: by how much, paired by seed, ± its standard error."
)
PUBLISHED_LEGEND = (
    "Accuracy in % / share of the features kept, as published by Li et al., INFOCOM "
    "2023, Table III (there), and run in its setting (here): two parties, random "
    "halves of the columns, five folds of which each seed is one, no planted noise; "
    "means ± standard deviations over {}. Half: about half of the features stay, as "
    "there. Share: with the lambda of a few that keeps about the published share."
)
PUBLISHED_TITLE = "Table III of FedSDG-FS, there and here"
REVEALED_LEGEND = (
    "Besides what training on sends: embeddings of a party's rows up, their gradients "
    "down."
)
HEADS = {column.key: column.head for column in COLUMNS}
SCORED = [column.key for column in COLUMNS if column.kind == "score"]
SCORES: dots.Marks = (
    ("balanced_accuracy", "own model", figures.ORANGE, "s"),
    ("linear_balanced_accuracy", "linear on kept", figures.BLUE, "o"),
    ("boosted_balanced_accuracy", "boosted on kept", figures.GREEN, "D"),
)
FIGURES = dots.kept_and_scores(
    SCORES, "Of the method's own model, and of two on the pooled columns kept."
)

RivalResults = Mapping[str, Any]
PlaceRow = Mapping[str, Any]


def build_rivals(results: RivalResults, folder: Path) -> Path:
    """Write ``rivals.json``, ``.csv``, ``.md`` and ``.html``; return the page."""
    return parts.write_results(
        folder, NAME, results, _lines(results), markdown(results), _page(results)
    )


def rows_of(results: RivalResults, place: str) -> list[PlaceRow]:
    """Return the rows of one place that have numbers."""
    return [
        row
        for row in results["rows"]
        if row["place"] == place and row["refused"] is None
    ]


def shown(rows: Sequence[PlaceRow]) -> list[RivalColumn]:
    """Return the columns that some of these rows have."""
    return [c for c in COLUMNS if any(row[c.key] is not None for row in rows)]


def cell(row: PlaceRow, column: RivalColumn) -> str:
    """Return a number as text, with a star where it is best or not told apart."""
    if row[column.key] is None:
        return MISSING
    text = tables.KINDS[column.kind](row[column.key], None)
    return f"{text}*" if column.key in row["best"] else text


def texts(rows: Sequence[PlaceRow]) -> list[dict[str, str]]:
    """Return the table of one place, as text."""
    columns = shown(rows)
    return [
        {"method": str(row["method"]), **{c.head: cell(row, c) for c in columns}}
        for row in rows
    ]


def ahead(rows: Sequence[PlaceRow]) -> list[dict[str, str]]:
    """Return the paired differences of one place, as text; of rivals alone."""
    columns = shown(rows)
    return [
        {
            "method": str(row["method"]),
            **{c.head: _gap(row["ahead"][c.key]) for c in columns},
        }
        for row in rows
        if any(row["ahead"][c.key] is not None for c in columns)
    ]


def _gap(gap: Mapping[str, Any] | None) -> str:
    if gap is None:
        return MISSING
    decimals = 3 if abs(gap["mean"]) < 10 else 1
    star = "" if gap["verdict"] == "equal" else f"{HARD_SPACE}*"
    error = f"{HARD_SPACE}{gap['error']:.{decimals}f}"
    return f"{gap['mean']:+.{decimals}f} ±{error}{star}"


def counts(results: RivalResults) -> dict[str, list[dict[str, str]]]:
    """Return, by kind of place, how often the default method is better than each.

    Three numbers: where it is ahead, not told apart, behind.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    for one in results["verdicts"]:
        lines = found.setdefault(one["kind"], {})
        empty = {"method": one["method"], **dict.fromkeys(HEADS.values(), MISSING)}
        line = lines.setdefault(one["method"], empty)
        numbers = (str(len(one[word])) for word in ("ahead", "equal", "behind"))
        line[HEADS[one["column"]]] = " / ".join(numbers)
    return {kind: _without_empty(list(some.values())) for kind, some in found.items()}


def _without_empty(lines: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return lines without the columns that none of them has."""
    heads = [h for h in lines[0] if any(line[h] != MISSING for line in lines)]
    return [{head: line[head] for head in heads} for line in lines]


def behind(
    results: RivalResults, columns: Collection[str] = HEADS
) -> list[dict[str, str]]:
    """Return where a rival is ahead of the default method, in some columns, as text."""
    return [
        {
            "place": one["place"],
            "column": HEADS[one["column"]],
            "method": one["method"],
            "by": f"{-one['mean']:.3f} ± {one['error']:.3f}",
        }
        for one in results["behind"]
        if one["column"] in columns
    ]


def published_table(results: RivalResults) -> list[dict[str, str]]:
    """Return FedSDG-FS's Table III, with what was run beside it, as text."""
    rows = {
        (row["data"], row["method"]): row
        for row in results["rows"]
        if row["kind"] == published.KIND and row["refused"] is None
    }
    lines = []
    for title, column in published.COLUMNS.items():
        line = {"method": title, "there": column.title or MISSING}
        for name in dict.fromkeys(data for data, _ in rows):
            line[f"{name}, there"] = MISSING
            if name in column.numbers:
                line[f"{name}, there"] = "{:.1f} / {:.2f}".format(*column.numbers[name])
            row = rows.get((name, title))
            line[f"{name}, here"] = MISSING if row is None else _accuracy_and_share(row)
        if any(method == title for _, method in rows):
            lines.append(line)
    return lines


def _accuracy_and_share(row: PlaceRow) -> str:
    by_seed, texts = row["by_seed"], []
    for key, factor, decimals in (("accuracy", 100, 1), ("kept_share", 1, 2)):
        found = tables.spread(by_seed[key])
        assert found is not None, "a run that was not refused"
        text = f"{factor * found.mean:.{decimals}f}"
        spread = f" ± {factor * found.std:.{decimals}f}" if found.std else ""
        texts.append(text + spread)
    return " / ".join(texts)


def published_legend(results: RivalResults) -> str:
    """Return what the published table is about."""
    return PUBLISHED_LEGEND.format(plural(len(results["seeds"]), "fold"))


def refused(results: RivalResults) -> list[str]:
    """Return what methods refused."""
    return [
        f"{row['place']}, {row['method']}: {row['refused']}"
        for row in results["rows"]
        if row["refused"] is not None
    ]


def revealed(results: RivalResults) -> list[dict[str, str]]:
    """Return, by method, where it comes from and what it reveals."""
    said, references = results["revealed"], results["references"]
    return [
        {"method": name, "after": references[name], "reveals": said[name] or MISSING}
        for name in said
    ]


def markdown(results: RivalResults) -> str:
    """Return every table, and what they say."""
    default = results["default"]
    text = [f"{LEGEND}\n"]
    for kind, lines in counts(results).items():
        legend = COUNTS_LEGEND.format(default, kind)
        text += [f"## Counted over {kind}\n", f"{legend}\n", *_table(lines), ""]
    if results["behind"]:
        text += [f"## Where {default} is not the best\n"]
        text += [f"{BEHIND_LEGEND.format(default)}\n", *_table(behind(results)), ""]
    if lines := published_table(results):
        text += [f"## {PUBLISHED_TITLE}\n", f"{published_legend(results)}\n"]
        text += [*_table(lines), ""]
    for place in results["places"]:
        rows = rows_of(results, place)
        if rows:
            text += [f"## {place}\n", *_table(texts(rows)), ""]
        if differences := ahead(rows):
            text += [f"{AHEAD_LEGEND.format(default)}\n", *_table(differences), ""]
    text += [f"- {sentence}" for sentence in refused(results)]
    text += [f"## What is revealed to whom\n\n{REVEALED_LEGEND}\n"]
    text += _table(revealed(results))
    return "\n".join(text) + "\n"


def _table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    return parts.markdown_table(rows[0], (row.values() for row in rows))


def _lines(results: RivalResults) -> Iterator[list[Any]]:
    """Return a line for every place and method: means, then standard errors."""
    about = ("place", "method", "refused")
    keys = [column.key for column in COLUMNS]
    yield [*about, *keys, *(f"{key}_error" for key in keys)]
    for row in results["rows"]:
        errors = (row["error"][key] for key in keys)
        yield [*(row[key] for key in (*about, *keys)), *errors]


def _page(results: RivalResults) -> str:
    default, n_places = results["default"], len(results["places"])
    words = [
        plural(len(results["seeds"]), "seed"),
        f"planted noise {results['spurious']:g} of every party's columns",
        f"lambdas of the paper's methods: {results['lambdas']}",
    ]
    return parts.page(
        "rivals.html.j2",
        "lessvfl_bench.pages",
        title=f"{plural(len(results['methods']), 'method')} at "
        f"{plural(n_places, 'place')}, at equal transport",
        line=words,
        legend=LEGEND,
        counts=[
            (f"Counted over {kind}", COUNTS_LEGEND.format(default, kind), lines)
            for kind, lines in counts(results).items()
        ],
        default=default,
        behind=behind(results),
        behind_legend=BEHIND_LEGEND.format(default),
        ahead_legend=AHEAD_LEGEND.format(default),
        published=published_table(results),
        published_title=PUBLISHED_TITLE,
        published_legend=published_legend(results),
        places=[
            _section(results, f"place{index}", place)
            for index, place in enumerate(results["places"])
            if rows_of(results, place)
        ],
        refused=refused(results),
        revealed=[list(line.values()) for line in revealed(results)],
        revealed_legend=REVEALED_LEGEND,
        footer=f"Made from {NAME}.json with lessvfl {results['lessvfl']}; every number "
        "is in it.",
    )


def _section(results: RivalResults, key: str, place: str) -> dict[str, Any]:
    """Return the tables of a place; of a data set as it lies its figures, too."""
    rows = rows_of(results, place)
    drawn: list[parts.Drawing] = []
    if rows[0]["kind"] == "data sets":
        lines = [(str(row["method"]), _spreads(row)) for row in rows]
        drawn = dots.draw(key, lines, FIGURES)
    return {"title": place, "rows": texts(rows), "ahead": ahead(rows), "figures": drawn}


def _spreads(row: PlaceRow) -> dict[str, Mapping[str, float | None] | None]:
    """Return mean and deviation of the numbers that figures show."""
    found: dict[str, Mapping[str, float | None] | None] = {}
    for key, *_ in (*dots.KEPT, *SCORES):
        spread = tables.spread(row["by_seed"][key])
        found[key] = None if spread is None else spread._asdict()
    return found
