"""Several runs on one page: a table, curves laid over each other, features kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from lessvfl.errors import ConfigError
from lessvfl.report import figures, tables
from lessvfl.report.page import (
    banner,
    data_words,
    document,
    figure,
    heads,
    notes_card,
    write,
)
from lessvfl.report.tables import at
from lessvfl.run.record import RunRecord


def compare(folders: Sequence[Path], out: Path) -> Path:
    """Write one page about several runs.

    Parameters
    ----------
    folders : sequence of Path
        Run folders, each named once.
    out : Path
        The HTML file to write; its folder is made where it is missing.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    ConfigError
        If there is no folder, one is named twice, or `out` is a folder.
    RecordError
        If a folder holds no record.
    """
    if isinstance(folders, str | Path) or len(folders) < 1:
        raise ConfigError(
            "The 'folders' of compare must be one or more run folders. "
            f"Got {folders!r} instead."
        )
    paths, out = [Path(folder) for folder in folders], Path(out)
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(
                "The 'folders' of compare must differ from each other. "
                f"Got '{path}' more than once."
            )
    if out.is_dir():
        raise ConfigError(
            f"The 'out' of compare must be a file to write. Got the folder '{out}'."
        )
    records = {
        name: RunRecord.read(path)
        for name, path in zip(_short_names(places), paths, strict=True)
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, _comparison(records))
    return out


def _short_names(places: Sequence[Path]) -> list[str]:
    """Name folders by as few of their last parts as tell them apart."""
    for n_parts in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-n_parts:]) for place in places]
        if len(set(names)) == len(names):
            break
    return names


def _titles(records: Mapping[str, RunRecord]) -> dict[str, str]:
    """Name each record by its method, and by more where that is not enough."""
    methods = {name: tables.method_title(record) for name, record in records.items()}
    fuller = {
        name: f"{methods[name]}, {record.header.get('profile')}"
        for name, record in records.items()
    }
    for titles in (methods, fuller):
        if len(set(titles.values())) == len(titles):
            return titles
    return {name: f"{methods[name]}, {name}" for name in records}


def _comparison(records: Mapping[str, RunRecord]) -> str:
    groups: dict[str, dict[str, RunRecord]] = {}
    for name, record in records.items():
        key = json.dumps(record.header.get("data"), sort_keys=True)
        groups.setdefault(key, {})[name] = record
    n_runs = tables.plural(len(records), "run")
    sets = [
        data_words(at(next(iter(g.values())).header, "data")) for g in groups.values()
    ]
    title = f"{n_runs} on {sets[0]}"
    if len(groups) > 1:
        title = f"{n_runs} on {len(groups)} data sets"
    body = [f"<header><h1>{escape(title)}</h1></header>"]
    if len(groups) > 1:
        body.append(
            '<p class="banner" role="note">These runs are over different data sets, so '
            "they are grouped; compare numbers within a group only.</p>"
        )
    for name, record in records.items():
        body.append(banner(record, f"The run in {name}"))
    for i, (words, group) in enumerate(zip(sets, groups.values(), strict=True)):
        body.append(_group(f"set{i}", words, group))
    body.append(
        notes_card(n for r in records.values() for n in r.header.get("notes") or [])
    )
    versions = dict.fromkeys(str(r.header.get("lessvfl")) for r in records.values())
    footer = f"Made by lessvfl from records of version {escape(', '.join(versions))}."
    return document(title, body, footer)


def _group(key: str, words: str, group: Mapping[str, RunRecord]) -> str:
    """Return table and figures of the runs over one data set."""
    header, rows = tables.summary_rows(list(group.values()))
    # The heading names the data, the bars show the features: the rest fits a laptop.
    shown = [name for name in header if name not in ("data", "features kept")]
    worded = ("method", "profile", "folder")
    lines = []
    for folder, row in zip(group, rows, strict=True):
        values = dict(zip(header, row, strict=True)) | {"folder": folder}
        cells = (
            f'<td class="{"word" if name in worded else "number"}">'
            f"{escape(values[name])}</td>"
            for name in (*shown, "folder")
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    columns = heads([*shown, "folder"], worded)
    return (
        f'<section><div class="card"><h2>{escape(words)}</h2>'
        '<p class="soft">Means over seeds ± the sample standard deviation; scores are '
        "the final ones on test rows.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Runs">'
        f'<table class="runs"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></div>"
        f"{_overlay(key, group)}</section>"
    )


def _overlay(key: str, group: Mapping[str, RunRecord]) -> str:
    titles = _titles(group)
    with figures.page_style():
        ax = figures.new_axes(3.2 + 0.2 * len(group))
        scored = 0
        for i, (name, record) in enumerate(group.items()):
            if figures.score_of(record.runs) is None:
                continue
            scored += 1
            figures.plot_curve(
                record.runs,
                ax,
                name=titles[name],
                color=figures.CYCLE[i % len(figures.CYCLE)],
                dashes=figures.DASHES[i // len(figures.CYCLE) % len(figures.DASHES)],
            )
        if not scored:
            figures.plot_curve([], ax)
        finals = (
            f"{titles[name]}: {tables.headline(record)}"
            for name, record in group.items()
        )
        curves = figure(
            ax,
            f"{key}-curve",
            "Test score against megabytes sent",
            "Thick: mean of seeds. Thin: each seed. Diamond: features selected.",
            "; ".join(finals),
        )
        runs = {titles[name]: record.runs for name, record in group.items()}
        kept = figure(
            figures.plot_kept(runs, figures.new_axes(figures.bars_height(len(group)))),
            f"{key}-kept",
            "Features kept and removed",
            "All parties together. Planted features are noise and should go.",
            "; ".join(
                f"{titles[name]} kept {c.kept:g} of {c.held:g}"
                for name, record in group.items()
                if (c := tables.mean_total(record.runs))
            ),
        )
    return f'<div class="figures">{curves}{kept}</div>'
