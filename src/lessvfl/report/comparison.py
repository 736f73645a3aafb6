"""Several runs on one page: a table, curves laid over each other, features kept."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lessvfl.errors import ConfigError
from lessvfl.report import figures, parts, pixels, sentences, tables
from lessvfl.report.finding import finding
from lessvfl.report.folder import REPORT_NAME
from lessvfl.report.page import banner, data_words
from lessvfl.report.verdicts import verdicts
from lessvfl.run.record import RunRecord

FEW = 3  # runs that stand side by side, each in a column


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
        If there is no folder, one is named twice, `out` is a folder, or a party's
        folder is among others than its own.
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
    for n_parts in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-n_parts:]) for place in places]
        if len(set(names)) == len(names):
            break  # as few of their last parts as tell them apart
    records = {n: RunRecord.read(path) for n, path in zip(names, paths, strict=True)}
    owners = {  # whose columns it knows; a server's are as good as a whole run's
        name: f"party '{one.header['party']}'" if one.side == "party" else "all parties"
        for name, one in records.items()
    }
    first, *others = owners
    for name in others:
        if owners[name] != owners[first]:
            raise ConfigError(
                "The 'folders' of compare must be of one party, or of servers and "
                f"whole runs. Got '{first}' of {owners[first]} and '{name}' of "
                f"{owners[name]}."
            )
    pages = {n: path / REPORT_NAME for n, path in zip(names, paths, strict=True)}
    links = {
        name: quote(Path(os.path.relpath(page, out.parent)).as_posix())
        for name, page in pages.items()
        if page.is_file()
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    parts.write(out, _comparison(records, links))
    return out


def titles_of(records: Mapping[str, RunRecord]) -> dict[str, str]:
    """Name each record by its method, and by more where that is not enough.

    `records` are by the names of their folders: ``plain-published`` of method plain is
    "Plain VFL, published" where another one is plain, too.
    """
    methods = {name: str(one.header.get("method")) for name, one in records.items()}
    titles = {name: tables.method_title(method) for name, method in methods.items()}
    profiles = {
        name: f"{titles[name]}, {one.header.get('profile')}"
        for name, one in records.items()
    }
    for some in (titles, profiles):
        if len(set(some.values())) == len(some):
            return some
    n_like = Counter(titles.values())
    for name, method in methods.items():
        rest = name.removeprefix(method).strip("-_ ")
        if n_like[titles[name]] > 1 and rest:
            titles[name] += f", {rest}"
    return titles


def by_data_set(records: Mapping[str, RunRecord]) -> dict[str, dict[str, RunRecord]]:
    """Group records by the data that they are of, described in JSON."""
    groups: dict[str, dict[str, RunRecord]] = {}
    for name, record in records.items():
        key = json.dumps(record.header.get("data"), sort_keys=True)
        groups.setdefault(key, {})[name] = record
    return groups


def _comparison(records: Mapping[str, RunRecord], links: Mapping[str, str]) -> str:
    """Return the page of records by the names of their folders.

    `links` has the address of the page of each run that has one.
    """
    groups = by_data_set(records)
    sets = [data_words(json.loads(data)) for data in groups]
    several = len(groups) > 1
    first = next(iter(records.values()))
    of_party = first.side == "party"
    whose = f" of {first.header['party']}" if of_party else ""
    about = f"{tables.plural(len(records), 'run')}{whose} on "
    about += f"{len(groups)} data sets" if several else sets[0]
    sentence = "" if several or of_party else _finding(records)
    headers = [record.header for record in records.values()]
    versions = dict.fromkeys(str(header.get("lessvfl")) for header in headers)
    return parts.page(
        "comparison.html.j2",
        title=sentence or about,
        line=[about] if sentence else [],
        banners=[banner(one, f"The run in {name}") for name, one in records.items()],
        groups=[
            _group(f"set{i}", words, several, group, links)
            for i, (words, group) in enumerate(zip(sets, groups.values(), strict=True))
        ],
        notes=[note for header in headers for note in header.get("notes") or []],
        footer=f"Made by lessvfl from records of version {', '.join(versions)}.",
    )


def _finding(group: Mapping[str, RunRecord]) -> str:
    titles = titles_of(group)
    return finding({titles[name]: record for name, record in group.items()})


def _group(
    key: str,
    words: str,
    several: bool,
    group: Mapping[str, RunRecord],
    links: Mapping[str, str],
) -> dict[str, Any]:
    """Return what runs over one data set found, their table and figures."""
    of_party = any(record.side == "party" for record in group.values())
    sentence = _finding(group) if several and not of_party else ""
    about = []
    if max(len(record.runs) for record in group.values()) > 1:
        about.append("Means over seeds ± the sample standard deviation.")
    if not of_party:
        about.append("Scores are the final ones on test rows.")
    if any("paper MiB" in tables.summary(record) for record in group.values()):
        about.append(sentences.PAPER_MIB)
    return {
        "title": words if sentence or of_party else "In numbers",
        "finding": sentence,
        "about": about,
        "few": len(group) <= FEW,
        "features": _by_feature(group) if of_party else None,
        **_table(group, links),
        **({} if of_party else _figures(key, group)),
    }


def _table(group: Mapping[str, RunRecord], links: Mapping[str, str]) -> dict[str, Any]:
    """Return the numbers of runs, few of them in columns and many in lines."""
    header, rows = tables.summary_rows(list(group.values()))
    runs: list[dict[str, Any]] = []
    for folder, row in zip(group, rows, strict=True):
        runs.append(dict(zip(header, row, strict=True)))
        runs[-1]["folder"] = folder
        if folder in links:
            runs[-1]["folder"] = {"text": folder, "address": links[folder]}
        # The heading names the data, the bars show the features.
        del runs[-1]["data"]
        runs[-1].pop("features kept", None)
    if len(runs) > FEW:
        return {"lines": runs, "words": ("method", "profile", "folder")}
    titles = titles_of(group).values()
    lines = [
        {"": label, **dict(zip(titles, (run[label] for run in runs), strict=True))}
        for label in runs[0]
    ]
    return {"lines": lines, "words": ("",)}


def _by_feature(group: Mapping[str, RunRecord]) -> dict[str, Any]:
    """Return which runs of one party kept which of its features."""
    states: dict[str, dict[str, str]] = {}
    for name, record in group.items():
        for one in verdicts(record):
            state = "kept" if one.is_kept else "removed"
            states.setdefault(one.feature, {})[name] = state
    rows = [
        (feature, *(by_run.get(name, tables.MISSING) for name in group))
        for feature, by_run in states.items()
    ]
    rows.sort(key=lambda row: -row[1:].count("kept"))
    return {"names": ("Feature", *titles_of(group).values()), "rows": rows}


def _figures(key: str, group: Mapping[str, RunRecord]) -> dict[str, Any]:
    """Return the pictures of pixels, the curves and the bars of features."""
    titles, finals, counts, pictures = titles_of(group), [], [], []
    runs = {titles[name]: record.runs for name, record in group.items()}
    about, planted = [], False
    if any(len(record.runs) > 1 for record in group.values()):
        about.append("Thick: mean of seeds. Thin: each seed.")
    every_run = (run for record in group.values() for run in record.runs)
    if any(figures.selection_megabytes(run) is not None for run in every_run):
        about.append("Diamond: features selected.")
    with figures.page_style():
        ax = figures.new_axes(3.2 + 0.2 * len(group))
        for i, (name, record) in enumerate(group.items()):
            title = titles[name]
            row, column = divmod(i, len(figures.CYCLE))
            dashes, color = (
                figures.DASHES[row % len(figures.DASHES)],
                figures.CYCLE[column],
            )
            figures.plot_curve(record.runs, ax, name=title, color=color, dashes=dashes)
            finals.append(f"{title}: {sentences.headline(record)}")
            if total := tables.mean_total(record.runs):
                counts.append(f"{title} kept {total.kept:g} of {total.held:g}")
                planted = planted or tables.with_planted([total])
            pictures += pixels.drawn(record.runs, f"{key}-pixels{i}", title)
        if not ax.lines:
            figures.plot_curve([], ax)
        title = "Test score against megabytes sent"
        alt = "; ".join(finals)
        curves = parts.figure(ax, f"{key}-curve", title, " ".join(about), alt)
        kept = []
        if counts:
            caption = "All parties together."
            caption += " Planted features are noise and should go." * planted
            ax = figures.plot_kept(runs, figures.bar_axes(len(runs)))
            title, alt = "Features kept and removed", "; ".join(counts)
            kept.append(parts.figure(ax, f"{key}-kept", title, caption, alt))
    return {"pictures": pictures, "curves": curves, "kept": kept}
