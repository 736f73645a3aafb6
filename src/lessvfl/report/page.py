"""One self-contained HTML file from a record, or from several to compare.

Everything stands in the file: style, script, figures. A content security policy names
the one script by its hash and forbids any connection; every string of a record is
escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from lessvfl.report import figures, tables
from lessvfl.report.tables import MISSING, Run, at
from lessvfl.run.record import FILE_NAME, RunRecord, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPORT_NAME = "report.html"


def build(folder: Path) -> Path:
    """Write the report of a run folder.

    Parameters
    ----------
    folder : Path
        A folder with ``record.jsonl``, as written by ``lessvfl run --out``.

    Returns
    -------
    Path
        ``report.html`` in that folder.

    Raises
    ------
    RecordError
        If the folder holds no record.
    """
    path = Path(folder) / REPORT_NAME
    write(path, page(RunRecord.read(Path(folder))))
    return path


def page(record: RunRecord) -> str:
    """Return the report of a record as one HTML document.

    Parameters
    ----------
    record : RunRecord
        A record with any number of seeds, complete or not.

    Returns
    -------
    str
        The document; it refers to nothing outside itself.
    """
    title = tables.headline(record)
    body = [
        banner(record),
        f"<header>{_line(record)}<h1>{escape(title)}</h1></header>",
        _cards(record),
        notes_card([*(record.header.get("notes") or []), *tables.remarks(record)]),
    ]
    if record.runs:
        body += [_figures(record), _selection(record.runs)]
        body += [_features(record.runs), _seeds(record.runs)]
    body.append(_settings(record))
    version = escape(str(record.header.get("lessvfl", "")))
    footer = f"Made by lessvfl {version} from {FILE_NAME}; every number is in it."
    return document(title, body, footer)


# -- the document ----------------------------------------------------------------------


def _read(name: str) -> str:
    return (resources.files("lessvfl.report") / name).read_text(encoding="utf-8")


def write(path: Path, text: str) -> None:
    """Write a document, whatever characters its names hold."""
    write_atomically(path, text.encode("utf-8", errors="replace"))


def document(title: str, body: Iterable[str], footer: str) -> str:
    """Put a body into the page with its style, its script and its policy."""
    script = _read("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_read("page.html")).substitute(
        policy="default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        title=escape(title),
        style=_read("page.css"),
        body="\n".join(part for part in body if part),
        footer=footer,
        script=script,
    )


def banner(record: RunRecord, name: str = "This run") -> str:
    """Say that a record is not complete; nothing where it is."""
    if record.status == "complete":
        return ""
    n_runs = tables.plural(len(record.runs), "finished seed")
    text = f"{name} is not complete: {record.status}. Numbers are of {n_runs}."
    if record.message:
        text += f" {record.message}"
    return f'<p class="banner" role="status">{escape(text)}</p>'


def _line(record: RunRecord) -> str:
    """Say what was run on what, in one line above the headline."""
    data = at(record.header, "data")
    parts = [tables.method_title(record)]
    if profile := record.header.get("profile"):
        parts.append(f"profile {profile}")
    parts.append(f"on {data_words(data)}")
    parts.append(tables.plural(len(record.runs), "seed"))
    if started := record.header.get("started"):
        parts.append(str(started)[:16].replace("T", " "))
    return f'<p class="soft">{escape(" · ".join(parts))}</p>'


def data_words(data: Any) -> str:
    """Name the data and its shape."""
    text = str(at(data, "name"))
    shape = []
    for key, words in (("n_train", "training rows"), ("n_test", "test rows")):
        if (n_rows := at(data, key)) is not None:
            shape.append(f"{n_rows:,} {words}")
    for key, one, many in (
        ("n_features", "feature", "features"),
        ("n_parties", "party", "parties"),
    ):
        if (count := at(data, key)) is not None:
            shape.append(tables.plural(count, one, many))
    return f"{text} ({', '.join(shape)})" if shape else text


# -- key numbers and notes -------------------------------------------------------------


def _cards(record: RunRecord) -> str:
    details = _details(record)
    cards = []
    for label, text in tables.summary(record):
        if label == "features kept":  # "24 ± 1 of 45" is two lines of a card
            text, _, held = text.rpartition(" of ")
            details[label] = f"of {held}"
        cards.append((label, text, details.get(label, "")))
    if target := _target(record.runs):
        cards.append(target)
    if not cards:
        return ""
    items = []
    for label, text, detail in cards:
        value, _, pm = text.partition(" ± ")
        small = f' <small class="soft">± {escape(pm)}</small>' if pm else ""
        more = f'<dd class="detail">{escape(detail)}</dd>' if detail else ""
        items.append(
            f"<div><dt>{escape(label[0].upper() + label[1:])}</dt>"
            f'<dd class="value">{escape(value)}{small}</dd>{more}</div>'
        )
    n_runs = len(record.runs)
    said = (
        f"Mean ± sample standard deviation over {n_runs} seeds."
        if n_runs > 1
        else "One seed, so nothing to average."
    )
    return (
        '<section aria-label="Key numbers">'
        f'<dl class="numbers">{"".join(items)}</dl>'
        f'<p class="soft">{said} 1 MB is 1,000,000 bytes of payload; evaluation is '
        "never in the cost.</p></section>"
    )


def _details(record: RunRecord) -> dict[str, str]:
    """Say one thing more under a key number."""
    details = {}
    for label, score in (
        ("test accuracy", "accuracy"),
        ("balanced accuracy", "balanced_accuracy"),
        ("AUC", "auc"),
        ("test R²", "r2"),
    ):
        if before := tables.over_seeds(record, score, "pretrained"):
            details[label] = f"{before.mean:.3f} after pre-training"
    if planted := tables.over_seeds(record, "spurious", "planted"):
        details["spurious removed"] = f"of {planted.mean:,.0f} planted"
    if (n_real := at(record.header, "data", "n_real")) is not None:
        details["real kept"] = f"of {tables.plural(n_real, 'real feature')}"
    up = tables.over_seeds(record, "communication", "payload_bytes", "up")
    down = tables.over_seeds(record, "communication", "payload_bytes", "down")
    if up and down:
        sizes = tables.bytes_text(up.mean), tables.bytes_text(down.mean)
        details["MB both ways"] = f"{sizes[0]} up, {sizes[1]} down"
    details["paper MiB"] = "counted as in the paper"
    details["seconds"] = f"on {record.header.get('device', 'this machine')}"
    return details


def _target(runs: Sequence[Run]) -> tuple[str, str, str] | None:
    goals = [
        run for run in runs if tables.number(run, "target", "accuracy") is not None
    ]
    if not goals:
        return None
    goal = goals[0]["target"]["accuracy"]
    reached = [run for run in goals if at(run, "target", "reached")]
    sent = tables.spread(
        [tables.number(run, "target", "payload_bytes") for run in reached]
    )
    word = "seed" if len(goals) == 1 else "seeds"
    detail = f"{word}, after {tables.bytes_text(sent.mean)}" if sent else word
    return f"Target {goal:g} reached", f"{len(reached)} of {len(goals)}", detail


def notes_card(notes: Iterable[object]) -> str:
    """Return the card with the sentences to read the numbers with."""
    notes = dict.fromkeys(notes)
    if not notes:
        return ""
    items = "".join(f"<li>{escape(str(note))}</li>" for note in notes)
    return (
        '<section class="card notes"><h2>Read these numbers with</h2>'
        f"<ul>{items}</ul></section>"
    )


# -- figures ---------------------------------------------------------------------------


def figure(ax: Axes, name: str, title: str, caption: str, alt: str) -> str:
    """Return a drawing with its title, its caption and its words."""
    drawing = figures.to_svg(ax.figure.get_figure(root=True), name)
    return (
        f'<figure class="card {name}"><h2>{escape(title)}</h2>'
        f"<figcaption>{escape(caption)}</figcaption>"
        f'<div class="drawing" role="img" aria-label="{escape(alt)}">{drawing}</div>'
        "</figure>"
    )


def _figures(record: RunRecord) -> str:
    runs = record.runs
    with figures.page_style():
        curve = _curve_figure(runs)
        counts = tables.mean_counts(runs)
        height = figures.bars_height(len(counts))
        features = figure(
            figures.plot_features(runs, figures.new_axes(height)),
            "features",
            "Features kept and removed",
            "By party. Planted features are noise and should go; real ones may.",
            "; ".join(
                f"{party} kept {c.kept:g} of {c.held:g} features"
                for party, c in counts.items()
            )
            or "No party revealed which features it kept.",
        )
        kept = tables.component_counts(runs)
        height = figures.bars_height(len(kept))
        components = figure(
            figures.plot_components(runs, figures.new_axes(height)),
            "components",
            "Embedding components kept",
            "By party: the outputs of its network that the server still uses.",
            "; ".join(f"{party} {k:g} of {n:g}" for party, (k, n) in kept.items())
            or "No components were recorded.",
        )
        stages = tables.stages_billed(runs)
        height = figures.bars_height(2 * len(stages))
        sent = figure(
            figures.plot_bytes(runs, figures.new_axes(height)),
            "bytes",
            "Bytes by stage and direction",
            "A stage at 0 runs at the server or the parties alone.",
            f"Bytes of {', '.join(map(tables.stage_title, stages)) or 'no stage'}; "
            "the same numbers are in the table of seeds.",
        )
    return (
        f'<section class="figures" aria-label="Figures"><div class="column">{curve}'
        f'{components}</div><div class="column">{features}{sent}</div></section>'
    )


def _selection(runs: Sequence[Run]) -> str:
    """Return how the first seed's parties chose by shadows, in words and figures."""
    run = runs[0]
    selection = run.get("selection")
    if not selection:
        return ""
    words = [
        tables.selection_words(party, how, len(tables.revealed(run)[party]["kept"]))
        for party, how in selection.items()
    ]
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in words)
    n_scores = sum(len(how["scores"]) for how in selection.values())
    height = figures.bars_height(min(n_scores, figures.MOST_SCORES))
    with figures.page_style():
        scores = figure(
            figures.plot_scores(run, figures.new_axes(height)),
            "scores",
            "Strength of the features",
            "The strongest ones by themselves; left of the red mark could be chance.",
            f"Strength of up to {figures.MOST_SCORES} features against shadows.",
        )
        path = figure(
            figures.plot_path(run, figures.new_axes()),
            "path",
            "Shadows along the path",
            "A party goes on until too many of its scrambled columns would be kept.",
            "Share of shadows kept against features kept, by party.",
        )
    seed = escape(str(run.get("seed", "")))
    card = (
        f'<div class="card"><h2>How features were chosen</h2><p>Each party scrambled '
        "copies of its own columns and kept what is stronger than these (seed "
        f"{seed}).</p><ul>{items}</ul></div>"
    )
    return (
        f'<section class="figures" aria-label="Selection"><div class="column">{card}'
        f'{path}</div><div class="column">{scores}</div></section>'
    )


def _curve_figure(runs: Sequence[Run]) -> str:
    score = figures.score_of(runs)
    alt = "No score was recorded."
    title = "Test accuracy against megabytes sent"
    if score:
        key, words = score
        title = f"{words[0].upper()}{words[1:]} against megabytes sent"
        if mean := figures.mean_curve(runs, key):
            (x0, y0), (x1, y1) = mean[0], mean[-1]
            alt = f"From {y0:.3f} at {x0:.3g} MB to {y1:.3f} at {x1:.3g} MB."
    return figure(
        figures.plot_curve(runs, figures.new_axes()),
        "curve",
        title,
        "Both directions, all parties, without evaluation.",
        f"{title}. {alt}",
    )


# -- tables ----------------------------------------------------------------------------


def _features(runs: Sequence[Run]) -> str:
    rows = tables.feature_rows(runs)
    if not rows:
        return ""
    with_norms = any(row.importance is not None for row in rows)
    parties = dict.fromkeys(row.party for row in rows)
    words = {"kept": "kept", "some": "in some seeds", "removed": "removed"}
    names = ["Party", "Feature", "Kept in", "Outcome", "Kind"]
    names += ["Norm"] if with_norms else []
    lines = []
    for row in rows:
        kind = "planted" if row.planted else "real"
        tag = f'<span class="tag planted">{kind}</span>' if row.planted else kind
        share = row.n_kept / row.n_runs
        cells = (
            f"<td>{escape(row.party)}</td>"
            f'<td class="name">{escape(row.feature)}</td>'
            f'<td data-sort="{share:g}">{row.n_kept} of {row.n_runs}</td>'
            f'<td><span class="tag {row.state}">{words[row.state]}</span></td>'
            f"<td>{tag}</td>"
        )
        if with_norms:
            norm = row.importance
            text = MISSING if norm is None else f"{norm:.3f}"
            cells += f'<td data-sort="{-1 if norm is None else norm:g}">{text}</td>'
        lines.append(
            f'<tr data-party="{escape(row.party)}" data-state="{row.state}" '
            f'data-kind="{kind}">{cells}</tr>'
        )
    return (
        '<section class="card"><h2>Every feature</h2>'
        f"{_controls(parties, words)}"
        '<div class="scroll tall" tabindex="0" role="region" '
        'aria-label="List of features">'
        f'<table class="features" id="features"><thead><tr>{heads(names)}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _controls(parties: Iterable[str], states: Mapping[str, str]) -> str:
    """Return the search box and the filters; the script shows them."""

    def choice(name: str, title: str, options: Iterable[tuple[str, str]]) -> str:
        items = "".join(
            f'<option value="{escape(value)}">{escape(text)}</option>'
            for value, text in [("", "all"), *options]
        )
        return f'<label>{title}<select id="by-{name}">{items}</select></label>'

    return (
        '<div class="controls" id="controls" hidden>'
        '<label class="wide">Search<input type="search" id="search" '
        'placeholder="party or feature" autocomplete="off"></label>'
        f"{choice('party', 'Party', [(party, party) for party in parties])}"
        f"{choice('state', 'Outcome', states.items())}"
        f"{choice('kind', 'Kind', [('real', 'real'), ('planted', 'planted')])}"
        '</div><p class="soft" id="shown" role="status"></p>'
    )


def heads(names: Iterable[str], words: Collection[str] = ()) -> str:
    """Return the cells of a table's head; columns of words are marked."""
    return "".join(
        f'<th scope="col"{" class=word" * (name in words)}>{escape(name)}</th>'
        for name in names
    )


def _seeds(runs: Sequence[Run]) -> str:
    """Return every number of every seed, each cell with its place in the record."""
    groups: dict[str, list[str]] = {}
    for measure in tables.measures(runs):
        values = [measure.value(run) for run in runs]
        cells = []
        for i, value in enumerate(values):
            data = "" if value is None else f' data-value="{value!r}"'
            text = tables.value_text(value, measure.kind)
            where = escape(f"runs.{i}.{measure.path}")
            cells.append(f'<td data-path="{where}"{data}>{escape(text)}</td>')
        if len(runs) > 1:
            mean = tables.spread_text(tables.spread(values), measure.kind)
            where = escape(measure.path)
            cells.insert(0, f'<td class="mean" data-mean="{where}">{escape(mean)}</td>')
        groups.setdefault(measure.group, []).append(
            f'<tr><th scope="row">{escape(measure.label)}</th>{"".join(cells)}</tr>'
        )
    names = ["", *(["mean ± std"] if len(runs) > 1 else [])]
    names += [f"seed {run['seed']}" for run in runs]
    bodies = "".join(
        f'<tbody><tr><th scope="rowgroup" colspan="{len(names)}">{escape(group)}</th>'
        f"</tr>{''.join(lines)}</tbody>"
        for group, lines in groups.items()
    )
    return (
        '<section class="card"><h2>Every seed</h2>'
        '<div class="scroll tall" tabindex="0" role="region" '
        'aria-label="Numbers of every seed">'
        f'<table class="seeds"><thead><tr>{heads(names)}</tr></thead>{bodies}</table>'
        "</div></section>"
    )


def _value(value: Any) -> str:
    if value is None:
        return MISSING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _pairs(title: str, pairs: Mapping[str, Any]) -> str:
    if not pairs:
        return ""
    lines = "".join(
        f'<tr><th scope="row">{escape(str(key))}</th>'
        f"<td>{escape(_value(value))}</td></tr>"
        for key, value in pairs.items()
    )
    return (
        f'<div class="card"><h2>{title}</h2><div class="scroll tall" tabindex="0" '
        f'role="region" aria-label="{title}"><table>{lines}</table></div></div>'
    )


def _settings(record: RunRecord) -> str:
    header = record.header
    names = ("method", "profile", "device", "started")
    made_with = {name: header[name] for name in names if name in header}
    made_with |= {
        f"version of {k}": v for k, v in (header.get("versions") or {}).items()
    }
    data = at(header, "data") or {}
    return (
        f'<section class="settings">{_pairs("Settings", header.get("config") or {})}'
        f'<div class="column">{_pairs("Data", data)}{_pairs("Made with", made_with)}'
        "</div></section>"
    )
