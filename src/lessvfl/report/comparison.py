"""Several runs on one page: a table, curves laid over each other, features kept."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from lessvfl.errors import ConfigError
from lessvfl.report import figures, parts, pixels, tables
from lessvfl.report.finding import finding
from lessvfl.report.folder import REPORT_NAME
from lessvfl.report.page import banner, data_words
from lessvfl.report.tables import RunNumbers
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
    named = dict(zip(_short_names(places), paths, strict=True))
    records = {name: RunRecord.read(path) for name, path in named.items()}
    _check_sides(records)
    out.parent.mkdir(parents=True, exist_ok=True)
    parts.write(out, _comparison(records, _links(named, out.parent)))
    return out


def _check_sides(records: Mapping[str, RunRecord]) -> None:
    """Refuse what has nothing in common: a party's own columns and anything else."""
    owners = {name: _owner(record) for name, record in records.items()}
    first, *others = owners.items()
    for name, owner in others:
        if owner != first[1]:
            raise ConfigError(
                "The 'folders' of compare must be of one party, or of servers and "
                f"whole runs. Got '{first[0]}' of {first[1]} and '{name}' of {owner}."
            )


def _owner(record: RunRecord) -> str:
    """Say whose columns a record knows; a server's is as good as a whole run's."""
    is_party = record.side == "party"
    return f"party '{record.header['party']}'" if is_party else "all parties"


def _short_names(places: Sequence[Path]) -> list[str]:
    """Name folders by as few of their last parts as tell them apart."""
    for n_parts in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-n_parts:]) for place in places]
        if len(set(names)) == len(names):
            break
    return names


def _links(folders: Mapping[str, Path], base: Path) -> dict[str, str]:
    """Return the way from a folder to the page of each run that has one."""
    pages = {name: folder / REPORT_NAME for name, folder in folders.items()}
    return {
        name: quote(Path(os.path.relpath(page, base)).as_posix())
        for name, page in pages.items()
        if page.is_file()
    }


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


def _comparison(records: Mapping[str, RunRecord], links: Mapping[str, str]) -> str:
    groups: dict[str, dict[str, RunRecord]] = {}
    for name, record in records.items():
        key = json.dumps(record.header.get("data"), sort_keys=True)
        groups.setdefault(key, {})[name] = record
    n_runs = tables.plural(len(records), "run")
    sets = [data_words(json.loads(data)) for data in groups]
    several = len(groups) > 1
    first = next(iter(records.values()))
    of_party = first.side == "party"
    whose = f" of {first.header['party']}" if of_party else ""
    about = f"{n_runs}{whose} on {f'{len(groups)} data sets' if several else sets[0]}"
    found = "" if several or of_party else _finding(records)
    body = [parts.header([about] if found else [], found or about)]
    if several:
        body.append(
            '<p class="banner" role="note">These runs are over different data sets, so '
            "they are grouped; compare numbers within a group only.</p>"
        )
    for name, record in records.items():
        body.append(banner(record, f"The run in {name}"))
    for i, (words, group) in enumerate(zip(sets, groups.values(), strict=True)):
        said = _finding(group) if several and not of_party else ""
        body.append(_group(f"set{i}", words, said, group, links))
    headers = [record.header for record in records.values()]
    body.append(parts.notes_card(n for h in headers for n in h.get("notes") or []))
    versions = dict.fromkeys(str(header.get("lessvfl")) for header in headers)
    footer = f"Made by lessvfl from records of version {escape(', '.join(versions))}."
    return parts.document(found or about, body, footer)


def _finding(group: Mapping[str, RunRecord]) -> str:
    titles = titles_of(group)
    return finding({titles[name]: record for name, record in group.items()})


def _group(
    key: str,
    words: str,
    found: str,
    group: Mapping[str, RunRecord],
    links: Mapping[str, str],
) -> str:
    """Return what runs over one data set found, their table and figures."""
    of_party = any(record.side == "party" for record in group.values())
    runs, n_seeds = _table(group, links), max(len(r.runs) for r in group.values())
    said = []
    if n_seeds > 1:
        said.append("Means over seeds ± the sample standard deviation.")
    if not of_party:
        said.append("Scores are the final ones on test rows.")
    if any("paper MiB" in tables.summary(record) for record in group.values()):
        said.append(tables.PAPER_MIB)
    inner = f"<p>{escape(found)}.</p>" if found else ""
    inner += f'<p class="soft">{" ".join(said)}</p>' if said else ""
    title = words if found or of_party else "In numbers"
    card = parts.card(title, inner + parts.scroll("Runs", runs), "div")
    if of_party:
        return f"<section>{card}{_by_feature(group)}</section>"
    pictures, curves, kept = _figures(key, group)
    if len(group) <= FEW:
        return parts.columns(card + kept, pictures + curves)
    return f"<section>{card}</section>{parts.columns(curves, pictures + kept)}"


def _table(group: Mapping[str, RunRecord], links: Mapping[str, str]) -> str:
    """Return the numbers of runs, few of them in columns and many in lines."""
    header, rows = tables.summary_rows(list(group.values()))
    runs: list[dict[str, str | parts.Link]] = []
    for folder, row in zip(group, rows, strict=True):
        runs.append(dict(zip(header, row, strict=True)))
        address = links.get(folder)
        runs[-1]["folder"] = parts.Link(folder, address) if address else folder
        # The heading names the data, the bars show the features.
        del runs[-1]["data"]
        runs[-1].pop("features kept", None)
    if len(runs) > FEW:
        return parts.number_table(runs, ("method", "profile", "folder"))
    titles, lines = titles_of(group).values(), []
    for label in runs[0]:
        line: dict[str, str | parts.Link] = {"": label}
        line.update(zip(titles, (run[label] for run in runs), strict=True))
        lines.append(line)
    return parts.number_table(lines, ("",))


def _by_feature(group: Mapping[str, RunRecord]) -> str:
    """Return which runs of one party kept which of its features."""
    titles = titles_of(group)
    found = {name: verdicts(record) for name, record in group.items()}
    kept = {
        (name, one.feature): "kept" if one.is_kept else "removed"
        for name, some in found.items()
        for one in some
    }
    features = dict.fromkeys(one.feature for some in found.values() for one in some)

    def n_removed(feature: str) -> int:
        return sum(kept.get((name, feature)) != "kept" for name in group)

    lines = []
    for feature in sorted(features, key=n_removed):
        texts = [kept.get((name, feature), tables.MISSING) for name in group]
        lines.append(parts.line(feature, texts))
    table = parts.table(("Feature", *titles.values()), lines)
    said = '<p class="soft">Kept: by at least half of the seeds of a run.</p>'
    inner = said + parts.scroll("Features by run", table, tall=True)
    return parts.card("Features by run", inner)


def _figures(key: str, group: Mapping[str, RunRecord]) -> tuple[str, str, str]:
    """Return the pictures of pixels, the curves and the bars of features."""
    titles, finals, counts, pictures = titles_of(group), [], [], ""
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
            pictures += pixels.figure(record.runs, f"{key}-pixels{i}", titles[name])
        if not ax.lines:
            figures.plot_curve([], ax)
        title = "Test score against megabytes sent"
        about = _curve_words(group)
        curves = parts.figure(ax, f"{key}-curve", title, about, "; ".join(finals))
        runs = {titles[name]: record.runs for name, record in group.items()}
        kept = _kept(key, runs, "; ".join(counts)) if counts else ""
    return pictures, curves, kept


def _curve_words(group: Mapping[str, RunRecord]) -> str:
    """Say how to read the curves."""
    said = ["Thick: mean of seeds. Thin: each seed."] * any(
        len(record.runs) > 1 for record in group.values()
    )
    selected = (
        figures.selection_megabytes(run)
        for record in group.values()
        for run in record.runs
    )
    if any(sent is not None for sent in selected):
        said.append("Diamond: features selected.")
    return " ".join(said)


def _kept(key: str, runs: Mapping[str, Sequence[RunNumbers]], alt: str) -> str:
    totals = [total for some in runs.values() if (total := tables.mean_total(some))]
    about = "All parties together."
    if tables.with_planted(totals):
        about += " Planted features are noise and should go."
    ax = figures.plot_kept(runs, figures.bar_axes(len(runs)))
    return parts.figure(ax, f"{key}-kept", "Features kept and removed", about, alt)
