"""The page of one run: key numbers, figures, every feature, every seed, settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lessvfl import terms
from lessvfl.report import (
    bill,
    figures,
    intervals,
    measures,
    parts,
    pixels,
    privacy,
    selection_figures,
    sentences,
    server,
    tables,
    verdicts,
)
from lessvfl.report.parts import Drawing
from lessvfl.report.tables import MISSING, RunNumbers, at
from lessvfl.report.verdicts import dwarfing, reasons_by_party
from lessvfl.run.record import FILE_NAME, RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHAPE = (  # of the data: key, one, many
    ("n_train", "training rows", "training rows"),
    ("n_test", "test rows", "test rows"),
    ("n_features", "feature", "features"),
    ("n_parties", "party", "parties"),
)


def run_page(record: RunRecord) -> str:
    """Return the page of a whole run or of a server as one HTML document."""
    header, runs = record.header, record.runs
    line = [tables.method_title(header.get("method"))]
    if profile := header.get("profile"):
        line.append(f"profile {profile}")
    line += [f"on {data_words(at(header, 'data'))}", tables.runs_words(record)]
    if started := header.get("started"):
        line.append(str(started)[:16].replace("T", " "))
    return parts.page(
        "run.html.j2",
        title=sentences.headline(record),
        line=line,
        banner=banner(record),
        n_runs=len(runs),
        runs_words=tables.runs_words(record),
        ensemble=tables.capital(sentences.ensemble_words(record)),
        cards=measures.cards(record),
        notes=_notes(record),
        settings=settings(record),
        footer=f"{made_by(record)}; every number is in it.",
        **(_figures(runs) | _tables(record) if runs else {}),
    )


def made_by(record: RunRecord) -> str:
    """Say what a page was made by and of."""
    return f"Made by lessvfl {record.header.get('lessvfl', '')} from {FILE_NAME}"


def banner(record: RunRecord, name: str = "This run") -> str:
    """Say that a record is not complete; nothing where it is."""
    if record.status == "complete":
        return ""
    n_runs = tables.plural(len(record.runs), "finished seed")
    text = f"{name} is not complete: {record.status}. Numbers are of {n_runs}."
    if record.message:
        text += f" {record.message}"
    return text


def data_words(data: Any) -> str:
    """Name the data and its shape."""
    shape = [
        tables.plural(count, one, many)
        for key, one, many in SHAPE
        if (count := at(data, key)) is not None
    ]
    text = str(at(data, "name"))
    return f"{text} ({', '.join(shape)})" if shape else text


# -- notes ---------------------------------------------------------------------------


def _notes(record: RunRecord) -> list[str]:
    """Return what the labels were taken for, and what else to know of the numbers."""
    task, reason = (at(record.header, "data", key) for key in ("task", "task_reason"))
    labels = [terms.labels_text(task, reason)] if task and reason else []
    if at(record.header, "data", "classes"):
        words = (sentences.label_words(record), sentences.predicted_words(record))
        labels += [f"{one}." for one in words if one]
    notes = record.header.get("notes") or []
    remarks = sentences.remarks(record)
    if figures.score_of(record.runs) and not figures.has_curve(record.runs):
        remarks.append(NO_CURVE)
    return [*dwarfing(record), *labels, *notes, *remarks]


# -- figures ---------------------------------------------------------------------------


NO_CURVE = (
    "Rows were scored once, at the end: there is no curve of scores against bytes."
)
PLANTED = "Planted features are noise and should go; real ones may."
FIGURES = {  # title, caption
    "features": ("Features kept and removed", "By party."),
    "components": (
        "Embedding components kept",
        "By party: the outputs of its network that the server uses.",
    ),
    "splits": ("Splits", "By party: how many splits of trees are of its columns."),
    "bytes": (
        "Bytes by stage and direction",
        "A stage at 0 runs at the server or the parties alone.",
    ),
    "scores": (
        "Strength of the features",
        "Each against its party's scrambled columns. A feature that stays or goes in "
        "spite of its bar says why.",
    ),
    "path": (
        "Shadows along the path",
        "A party goes on until too many of its scrambled columns would be kept.",
    ),
}


def _figure(ax: Axes, name: str, alt: str, more: str = "") -> Drawing:
    title, caption = FIGURES[name]
    return parts.figure(ax, name, title, f"{caption}{more}", alt)


def _figures(runs: Sequence[RunNumbers]) -> dict[str, Any]:
    """Return the figures in their columns, and how parties chose by shadows."""
    counts, kept = tables.mean_counts(runs), tables.component_counts(runs)
    stages, has_trees = tables.stages_billed(runs), tables.are_trees(runs)
    with figures.page_style():
        left, right = pixels.drawn(runs, "pixels"), []
        if counts:  # a server is told of them by some parties, or by none
            ax = figures.plot_features(runs, figures.bar_axes(len(counts)))
            more = f" {PLANTED}" * tables.with_planted(counts.values())
            alt = "; ".join(
                f"{p} kept {c.kept:g} of {c.held:g} features" for p, c in counts.items()
            )
            right.append(_figure(ax, "features", alt, more))
        ax = figures.plot_bytes(runs, figures.bar_axes(2 * len(stages)))
        titles = [tables.stage_title(stage, billed=True) for stage in stages]
        alt = f"Bytes of {', '.join(titles) or 'no stage'}; "
        alt += "the same numbers are in the table of seeds."
        right.append(_figure(ax, "bytes", alt))
        if figures.has_curve(runs):
            key, words = figures.score_of(runs) or ("", "")
            title, alt = f"{tables.capital(words)} against megabytes sent", ""
            if mean := figures.mean_curve(runs, key):
                (x0, y0), (x1, y1) = mean[0], mean[-1]
                alt = f"From {y0:.3f} at {x0:.3g} MB to {y1:.3f} at {x1:.3g} MB."
            ax = figures.plot_curve(runs, figures.new_axes())
            caption = "Both directions, all parties, without evaluation."
            left.append(parts.figure(ax, "curve", title, caption, f"{title}. {alt}"))
        ax = figures.plot_components(runs, figures.bar_axes(len(kept)))
        alt = "; ".join(
            f"{party} {k:g}" + f" of {n:g}" * (not has_trees)
            for party, (k, n) in kept.items()
        )
        name = "splits" if has_trees else "components"
        left.append(_figure(ax, name, alt or "No components were recorded."))
        selection = _selection(runs[0]) if runs[0].get("selection") else None
    return {"left": left, "right": right, "selection": selection}


def _selection(run: RunNumbers) -> dict[str, Any]:
    """Return how the parties of a run chose by shadows, in words and figures."""
    selection, strengths = run["selection"], verdicts.strengths(run)
    most = selection_figures.MOST_FEATURES
    n_rows = min(len(strengths), most) + len(selection)  # and the parties' names
    ax = selection_figures.plot_selection(run, figures.bar_axes(n_rows))
    noted = [f"{one.feature}: {one.note}" for one in strengths if one.note]
    alt = f"Strength of up to {most} features against shadows. "
    scores = _figure(ax, "scores", alt + "; ".join(noted[:most]))
    ax = selection_figures.plot_path(run, figures.new_axes())
    alt = "Features and share of shadows kept along the lambdas, by party."
    return {
        "seed": run.get("seed", ""),
        "sentences": [
            sentences.selection_words(p, how, len(tables.revealed(run)[p]["kept"]))
            for p, how in selection.items()
        ],
        "path": _figure(ax, "path", alt),
        "scores": scores,
    }


# -- tables ----------------------------------------------------------------------------


MOST_NAMES = 40  # of one party that are named before the list of every feature
STATES = {"kept": "kept", "some": "in some seeds", "removed": "removed"}


def _tables(record: RunRecord) -> dict[str, Any]:
    """Return the rows of all tables; empty where a record has none."""
    why, of_server = reasons_by_party(record), record.side == "server"
    recommended = verdicts.recommendations(record)
    missed = tables.missed(record)
    with_losses = any(intervals.of_loss(record, party) for party in missed)
    return {
        # Of a whole run, the figures say it.
        "parties": server.party_rows(record) if of_server else [],
        "power": server.power_words(record) if of_server else "",
        "bill": bill.rows(record),
        "bill_of": bill.whose(record),
        "bill_lacks": bill.PARTIAL if bill.is_partial(bill.sums(record)) else "",
        "recommended_words": verdicts.recommended_words(len(record.runs)),
        "recommended": [
            (
                one.party,
                f"{len(one.features):,} of {one.n_held:,}",
                one.text(MOST_NAMES),
                why.get(one.party, "nothing was removed"),
            )
            for one in recommended
        ],
        "score": tables.capital(tables.first_score(record)[1]),
        "missed": [
            (
                party,
                f"{without:.3f} instead of {whole:.3f}{intervals.bias(record, party)}",
                *[intervals.loss_words(record, party)] * with_losses,
            )
            for party, (without, whole) in missed.items()
        ],
        "with_losses": with_losses,
        "run_without": intervals.RUN_WITHOUT,
        "interval_note": intervals.note(record),
        "privacy": privacy.section(record),
        "estimated": sentences.ESTIMATED,
        "features": _features(record, recommended),
        "seeds": _seeds(record.runs),
    }


def _features(
    record: RunRecord, recommended: Iterable[verdicts.Recommendation]
) -> dict[str, Any] | None:
    """Return the list of every feature, its columns, and by what it is filtered."""
    rows = tables.feature_rows(record.runs)
    if not rows:
        return None
    marked = {(one.party, row.feature) for one in recommended for row in one.features}
    known = {(one.party, one.feature): one for one in verdicts.verdicts(record)}
    lines = [
        {
            "party": row.party,
            "feature": row.feature,
            "state": row.state,
            "kind": "planted" if tables.is_planted(row.party, row.feature) else "real",
            "share": f"{row.n_kept / row.n_runs:g}",
            "often": f"{row.n_kept} of {row.n_runs} runs",
            "verdict": known[row.party, row.feature].verdict,
            "why": known[row.party, row.feature].words,
            "is_recommended": (row.party, row.feature) in marked,
            "norm": MISSING if row.importance is None else f"{row.importance:.3f}",
            "norm_sort": f"{-1 if row.importance is None else row.importance:g}",
        }
        for row in rows
    ]
    with_kind = any(line["kind"] == "planted" for line in lines)
    with_mark = bool(marked) and len(record.runs) > 1  # one run says it all
    with_norms = any(row.importance is not None for row in rows)
    strength = "Gain" if tables.are_trees(record.runs) else "Norm"
    names = ["Party", "Feature", "Kept in", "Outcome", "Verdict", "Why"]
    names += ["Kind"] * with_kind
    return {
        "names": [*names, *["Recommended"] * with_mark, *[strength] * with_norms],
        "rows": lines,
        "parties": {row.party: row.party for row in rows},
        "states": STATES,
        "scope": verdicts.NOT_NEEDED_SCOPE,
        "with_kind": with_kind,
        "with_mark": with_mark,
        "with_norms": with_norms,
    }


def _seeds(runs: Sequence[RunNumbers]) -> dict[str, Any]:
    """Return every number of every seed by group, and its place in the record."""
    several = len(runs) > 1
    groups: dict[str, list[dict[str, Any]]] = {}
    for group, label, path, kind in measures.measures(runs):
        values = [tables.value_at(run, path) for run in runs]
        cells = [
            (None if value is None else repr(value), tables.value_text(value, kind))
            for value in values
        ]
        mean = tables.spread_text(tables.spread(values), kind)
        line = {"label": label, "path": path, "mean": mean, "cells": cells}
        groups.setdefault(group, []).append(line)
    names = ["", *["mean ± std"] * several, *(f"seed {run['seed']}" for run in runs)]
    return {"names": names, "groups": groups}


def settings(record: RunRecord) -> dict[str, list[tuple[str, str]]]:
    """Return what a record was made with: settings, data, versions; pairs of texts."""
    header = record.header
    names = ("method", "profile", "device", "started")
    made_with = {name: header[name] for name in names if name in header}
    versions = header.get("versions") or {}
    made_with |= {f"version of {name}": text for name, text in versions.items()}
    known = (header.get("data") or {}).items()  # a server knows no features
    values = {
        "Settings": tables.settings_in_use(record),
        "Data": {k: value for k, value in known if value is not None and k != "split"},
        "Made with": made_with,
    }
    texts: dict[str, list[tuple[str, str]]] = {}
    for title, pairs in values.items():
        texts[title] = []
        for key, value in pairs.items():
            text = MISSING if value is None else value
            if not isinstance(text, str):
                text = json.dumps(value, ensure_ascii=False)
            texts[title].append((str(key), text))
    return texts
