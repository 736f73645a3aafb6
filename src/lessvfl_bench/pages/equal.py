"""Methods under the same transport: one page, its tables, and what they say."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lessvfl.report import parts, tables

NAME = "equal"
OURS = "less-vfl-auto"
TITLES = {
    "paper": "The paper's transport",
    "ours": f"The transport of {OURS}",
}
RULES = {  # how lambdas were chosen, on validation rows
    "accuracy": "most accurate",
    "removed": "80 % removed",
}
NONE_DID = "80 % removed (none did)"  # on these rows: the most accurate, then
WORDS = ("data", "method", "lambdas by", "ahead")
LEGEND = (
    "Means over seeds, on test rows, with planted noise. All methods of a table have "
    "the same components, bits, rows of a step, learning rate, schedule and epochs. "
    "Lambdas are chosen on validation rows from the paper's grid, by accuracy, or by "
    "accuracy among those that removed 80 % of the noise. The target is 90 % of the "
    "best of plain training without noise, with 80 % of the noise removed; in "
    "brackets that in balanced accuracy. MiB are both ways. Ahead: the accuracy of "
    f"{OURS} less that of the row, paired by seed, ± its standard error; bold beyond "
    "two of them, with a star on the page. A target counts in whichever epoch it is "
    "reached."
)
FACTORS_LEGEND = (
    "MiB of a whole run, both ways, from less-vfl under the paper's transport to "
    f"{OURS} under its own: each factor is that of two runs which differ in that one "
    "thing, and their product is the whole. Epochs come with the rows of a step, its "
    "learning rate, and the lambdas chosen under that transport. Lambdas are those of "
    "80 % removed; what they leave differs, and so do bytes and accuracy."
)


def build_equal(results: Mapping[str, Any], folder: Path) -> Path:
    """Write ``equal.json``, ``.csv``, ``.md`` and ``.html``; return the page."""
    return parts.write_results(
        folder, NAME, results, _lines(results), markdown(results), _page(results)
    )


def transports(results: Mapping[str, Any]) -> list[str]:
    """Return the transports that were run."""
    found = {row["transport"] for row in results["rows"]}
    return [name for name in TITLES if name in found]


def shown(results: Mapping[str, Any], transport: str) -> list[dict[str, str]]:
    """Return the rows of one transport, as text."""
    return [_texts(row) for row in results["rows"] if row["transport"] == transport]


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    both = (row["target"], row["balanced_target"])
    score, size = "score", "size"
    return {
        "data": str(row["data"]),
        "method": str(row["method"]),
        "lambdas by": _rule(row),
        "accuracy": _number(row, "accuracy", score),
        "ahead": _gap(row["ahead"]["accuracy"]),
        "balanced": _number(row, "balanced_accuracy", score),
        "AUC": _number(row, "auc", score),
        "hits": _bracketed([_hits(one) for one in both]),
        "MiB to target": _bracketed([_number(one, "mib", size) for one in both]),
        "rounds to target": _bracketed(
            [_number(one, "rounds", "whole") for one in both]
        ),
        "MiB": _number(row, "mib", size),
        "rounds": _number(row, "rounds", "whole"),
        "noise removed": _number(row, "removed_share", score),
        "real kept": _number(row, "real_kept_share", score),
    }


def _rule(row: Mapping[str, Any]) -> str:
    return NONE_DID if row["fell_back"] else RULES.get(row["rule"], "")


def _bracketed(pair: Sequence[str]) -> str:
    return f"{pair[0]} ({pair[1]})"


def _hits(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return tables.MISSING
    if one["degenerate"]:
        return "degenerate"
    return f"{one['hits']} of {one['seeds']}"


def _number(row: Mapping[str, Any] | None, key: str, kind: str) -> str:
    if row is None or row.get("degenerate") or row[key] is None:
        return tables.MISSING
    if kind == "whole":
        return f"{row[key]:,.0f}"
    return tables.KINDS[kind](row[key], None)


def _gap(gap: Mapping[str, Any] | None) -> str:
    if gap is None:
        return ""
    text = f"{gap['mean']:+.3f} ± {gap['error']:.3f}"
    return text if gap["verdict"] == "equal" else f"**{text}**"


def sentences(results: Mapping[str, Any]) -> list[str]:
    """Say on how many data sets ``less-vfl-auto`` is more accurate, by rival."""
    skipped = results.get("skipped", {}).items()
    said = [f"{name} is left out: {why}" for name, why in skipped]
    for one in results["verdicts"]:
        if one["score"] != "accuracy":
            continue
        rule = f", lambdas by {RULES[one['rule']]}" if one["rule"] else ""
        counts = {word: len(one[word]) for word in ("ahead", "equal", "behind")}
        behind = f" ({', '.join(one['behind'])})" if one["behind"] else ""
        said.append(
            f"{TITLES[one['transport']]}: {OURS} is more accurate than "
            f"{one['method']}{rule} on {counts['ahead']} of {sum(counts.values())} "
            f"data sets, as accurate within two standard errors on {counts['equal']}, "
            f"less accurate on {counts['behind']}{behind}."
        )
    return said


def factors(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the breakdown as text, and its geometric mean over the data sets."""
    rows: list[dict[str, str]] = []
    for row in results["breakdown"]:
        begin, end = row["mib"][0], row["mib"][-1]
        rows.append(
            {
                "data": row["data"],
                "MiB, less-vfl": tables.KINDS["size"](begin, None),
                **{name: f"{value:.2f}" for name, value in row["factors"].items()},
                f"MiB, {OURS}": tables.KINDS["size"](end, None),
                "whole": f"{row['whole']:.1f}",
                "accuracy": f"{row['accuracy'][0]:.3f}, {row['accuracy'][-1]:.3f}",
            }
        )
    if len(rows) > 1:
        lists = {
            name: [row["factors"][name] for row in results["breakdown"]]
            for name in results["breakdown"][0]["factors"]
        }
        lists["whole"] = [row["whole"] for row in results["breakdown"]]
        empty = dict.fromkeys(rows[0], "")
        texts = {
            name: f"{statistics.geometric_mean(values):.2f}"
            for name, values in lists.items()
        }
        rows.append(empty | {"data": "geometric mean"} | texts)
    return rows


def markdown(results: Mapping[str, Any]) -> str:
    """Return every table, and what they say."""
    text = [f"{LEGEND}\n"]
    for transport in transports(results):
        text += [f"## {TITLES[transport]}\n", _table(shown(results, transport)), ""]
    text += [f"- {sentence}" for sentence in sentences(results)]
    if results["breakdown"]:
        text += ["", f"## From the paper's bytes to ours\n\n{FACTORS_LEGEND}\n"]
        text.append(_table(factors(results)))
    return "\n".join(text) + "\n"


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(parts.markdown_table(rows[0], (row.values() for row in rows)))


def _lines(results: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Return a line for every row, numbers as they are."""
    plain = [k for k, v in results["rows"][0].items() if not isinstance(v, dict)]
    yield [*plain, "target_hits", "target_mib", "ahead", "ahead_error"]
    for row in results["rows"]:
        cost = (tables.at(row, "target", key) for key in ("hits", "mib"))
        ahead = (tables.at(row, "ahead", "accuracy", key) for key in ("mean", "error"))
        yield [*(row[key] for key in plain), *cost, *ahead]


def _page(results: Mapping[str, Any]) -> str:
    title = f"{tables.plural(len(results['data']), 'data set')} at equal transport"
    words = [
        tables.plural(len(results["seeds"]), "seed"),
        f"planted noise {results['spurious']:g} of every party's columns",
    ]
    made_with = f"lessvfl {results['lessvfl']}"
    return parts.page(
        "equal.html.j2",
        "lessvfl_bench.pages",
        title=title,
        line=words,
        legend=LEGEND,
        sentences=sentences(results),
        factors_legend=FACTORS_LEGEND,
        factors=factors(results) if results["breakdown"] else [],
        tables=[
            (TITLES[transport], [_starred(row) for row in shown(results, transport)])
            for transport in transports(results)
        ],
        words=WORDS,
        footer=f"Made from {NAME}.json with {made_with}; every number is in it.",
    )


def _starred(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row whose differences beyond two errors have a star instead of two."""
    gap = row["ahead"]
    return {**row, "ahead": f"{gap.strip('*')} *" if gap.startswith("*") else gap}
