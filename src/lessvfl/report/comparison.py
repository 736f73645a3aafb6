"""Several runs on one page: a table, curves laid over each other, features kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from lessvfl.errors import ConfigError
from lessvfl.report import figures, parts, tables
from lessvfl.report.page import banner, data_words
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
    named = zip(_short_names(places), paths, strict=True)
    records = {name: RunRecord.read(path) for name, path in named}
    out.parent.mkdir(parents=True, exist_ok=True)
    parts.write(out, _comparison(records))
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
    headers = [record.header for record in records.values()]
    methods = [tables.method_title(header.get("method")) for header in headers]
    profiles = [header.get("profile") for header in headers]
    fuller = [f"{m}, {p}" for m, p in zip(methods, profiles, strict=True)]
    longest = [f"{m}, {name}" for m, name in zip(methods, records, strict=True)]
    for titles in (methods, fuller):
        if len(set(titles)) == len(titles):
            return dict(zip(records, titles, strict=True))
    return dict(zip(records, longest, strict=True))


def _comparison(records: Mapping[str, RunRecord]) -> str:
    groups: dict[str, dict[str, RunRecord]] = {}
    for name, record in records.items():
        key = json.dumps(record.header.get("data"), sort_keys=True)
        groups.setdefault(key, {})[name] = record
    n_runs = tables.plural(len(records), "run")
    sets = [data_words(json.loads(data)) for data in groups]
    several = len(groups) > 1
    title = f"{n_runs} on {f'{len(groups)} data sets' if several else sets[0]}"
    body = [f"<header><h1>{escape(title)}</h1></header>"]
    if several:
        body.append(
            '<p class="banner" role="note">These runs are over different data sets, so '
            "they are grouped; compare numbers within a group only.</p>"
        )
    for name, record in records.items():
        body.append(banner(record, f"The run in {name}"))
    for i, (words, group) in enumerate(zip(sets, groups.values(), strict=True)):
        body.append(_group(f"set{i}", words, group))
    headers = [record.header for record in records.values()]
    body.append(parts.notes_card(n for h in headers for n in h.get("notes") or []))
    versions = dict.fromkeys(str(header.get("lessvfl")) for header in headers)
    footer = f"Made by lessvfl from records of version {escape(', '.join(versions))}."
    return parts.document(title, body, footer)


def _group(key: str, words: str, group: Mapping[str, RunRecord]) -> str:
    """Return table and figures of the runs over one data set."""
    header, rows = tables.summary_rows(list(group.values()))
    lines = []
    for folder, row in zip(group, rows, strict=True):
        lines.append(dict(zip(header, row, strict=True)) | {"folder": folder})
        # The heading names the data, the bars show the features.
        del lines[-1]["data"]
        lines[-1].pop("features kept", None)
    runs = parts.number_table(lines, ("method", "profile", "folder"))
    said = (
        '<p class="soft">Means over seeds ± the sample standard deviation; scores are '
        "the final ones on test rows.</p>"
    )
    table = parts.card(words, said + parts.scroll("Runs", runs), "div")
    return f"<section>{table}{_overlay(key, group)}</section>"


def _overlay(key: str, group: Mapping[str, RunRecord]) -> str:
    titles, finals, counts = _titles(group), [], []
    with figures.page_style():
        ax = figures.new_axes(3.2 + 0.2 * len(group))
        for i, (name, record) in enumerate(group.items()):
            row, column = divmod(i, len(figures.CYCLE))
            dashes = figures.DASHES[row % len(figures.DASHES)]
            look = {"color": figures.CYCLE[column], "dashes": dashes}
            figures.plot_curve(record.runs, ax, name=titles[name], **look)
            finals.append(f"{titles[name]}: {tables.headline(record)}")
            if c := tables.mean_total(record.runs):
                counts.append(f"{titles[name]} kept {c.kept:g} of {c.held:g}")
        if not ax.lines:
            figures.plot_curve([], ax)
        title = "Test score against megabytes sent"
        about = "Thick: mean of seeds. Thin: each seed. Diamond: features selected."
        curves = parts.figure(ax, f"{key}-curve", title, about, "; ".join(finals))
        runs = {titles[name]: record.runs for name, record in group.items()}
        ax = figures.plot_kept(runs, figures.bar_axes(len(group)))
        title = "Features kept and removed"
        about = "All parties together. Planted features are noise and should go."
        kept = parts.figure(ax, f"{key}-kept", title, about, "; ".join(counts))
    return f'<div class="figures">{curves}{kept}</div>'
