"""The page of one run: key numbers, figures, every feature, every seed, settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from lessvfl import terms
from lessvfl.report import (
    bill,
    figures,
    parts,
    pixels,
    selection_figures,
    server,
    tables,
)
from lessvfl.report.tables import MISSING, RunNumbers, at
from lessvfl.report.verdicts import dwarfing, reasons_by_party, verdicts
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
    title = tables.headline(record)
    body = [
        banner(record),
        parts.header(_line(record), title),
        _cards(record),
        parts.notes_card(_notes(record)),
    ]
    if record.runs:
        body += [_parties(record), _bill(record), _recommended(record), _missed(record)]
        body += [_figures(record.runs), _selection(record.runs[0])]
        body += [_features(record), _seeds(record.runs)]
    body.append(settings_section(record))
    version = escape(str(record.header.get("lessvfl", "")))
    footer = f"Made by lessvfl {version} from {FILE_NAME}; every number is in it."
    return parts.document(title, body, footer)


def banner(record: RunRecord, name: str = "This run") -> str:
    """Say that a record is not complete; nothing where it is."""
    if record.status == "complete":
        return ""
    n_runs = tables.plural(len(record.runs), "finished seed")
    text = f"{name} is not complete: {record.status}. Numbers are of {n_runs}."
    if record.message:
        text += f" {record.message}"
    return f'<p class="banner" role="status">{escape(text)}</p>'


def _line(record: RunRecord) -> list[str]:
    """Say what was run on what, in one line above the headline."""
    words = [tables.method_title(record.header.get("method"))]
    if profile := record.header.get("profile"):
        words.append(f"profile {profile}")
    words.append(f"on {data_words(at(record.header, 'data'))}")
    words.append(tables.plural(len(record.runs), "seed"))
    if started := record.header.get("started"):
        words.append(str(started)[:16].replace("T", " "))
    return words


def data_words(data: Any) -> str:
    """Name the data and its shape."""
    shape = [
        tables.plural(count, one, many)
        for key, one, many in SHAPE
        if (count := at(data, key)) is not None
    ]
    text = str(at(data, "name"))
    return f"{text} ({', '.join(shape)})" if shape else text


# -- key numbers and notes -------------------------------------------------------------


def _notes(record: RunRecord) -> list[str]:
    """Return what the labels were taken for, and what else to know of the numbers."""
    task, reason = (at(record.header, "data", key) for key in ("task", "task_reason"))
    said = [terms.labels_text(task, reason)] if task and reason else []
    if at(record.header, "data", "classes"):
        words = (tables.label_words(record), tables.predicted_words(record))
        said += [f"{one}." for one in words if one]
    notes = record.header.get("notes") or []
    return [*dwarfing(record), *said, *notes, *tables.remarks(record)]


def _cards(record: RunRecord) -> str:
    details, cards = _details(record), []
    for label, text in tables.summary(record).items():
        if label == "features kept":  # "24 ± 1 of 45" is two lines of a card
            text, _, held = text.rpartition(" of ")
            details[label] = f"of {held}"
        cards.append((label, text, details.get(label, "")))
    cards += _target(record.runs)
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
    said = "One seed, so nothing to average."
    if len(record.runs) > 1:
        said = f"Mean ± sample standard deviation over {len(record.runs)} seeds."
    return (
        '<section aria-label="Key numbers">'
        f'<dl class="numbers">{"".join(items)}</dl>'
        f'<p class="soft">{said} 1 MB is 1,000,000 bytes of payload; evaluation is '
        "never in the cost.</p></section>"
    )


def _details(record: RunRecord) -> dict[str, str]:
    """Say one thing more under a key number."""
    details, runs = {}, record.runs
    for label, (path, kind) in tables.SUMMARY.items():
        before = tables.over_seeds(runs, path.replace(".final", ".pretrained"))
        if kind == "score" and path.endswith(".final") and before:
            details[label] = f"{before.mean:.3f} after pre-training"
    if planted := tables.over_seeds(runs, "spurious.planted"):
        details["spurious removed"] = f"of {planted.mean:,.0f} planted"
    if (n_real := at(record.header, "data", "n_real")) is not None:
        details["real kept"] = f"of {tables.plural(n_real, 'real feature')}"
    up = tables.over_seeds(runs, "communication.payload_bytes.up")
    down = tables.over_seeds(runs, "communication.payload_bytes.down")
    if up and down:
        sizes = terms.bytes_text(up.mean), terms.bytes_text(down.mean)
        details["MB both ways"] = f"{sizes[0]} up, {sizes[1]} down"
    details["paper MiB"] = "embeddings up, 4 bytes a value"
    details["seconds"] = f"on {record.header.get('device', 'this machine')}"
    return details


def _target(runs: Sequence[RunNumbers]) -> Iterator[tuple[str, str, str]]:
    """Return the card of the target, where a run has one."""
    goals = [run for run in runs if tables.value_at(run, "target.accuracy") is not None]
    if goals:
        goal = goals[0]["target"]["accuracy"]
        reached = [run for run in goals if run["target"].get("reached")]
        sent = tables.over_seeds(reached, "target.payload_bytes")
        word = "seed" if len(goals) == 1 else "seeds"
        detail = f"{word}, after {terms.bytes_text(sent.mean)}" if sent else word
        yield f"Target {goal:g} reached", f"{len(reached)} of {len(goals)}", detail


# -- figures ---------------------------------------------------------------------------


PLANTED = "Planted features are noise and should go; real ones may."
FIGURES = {  # title, caption
    "features": ("Features kept and removed", "By party."),
    "components": (
        "Embedding components kept",
        "By party: the outputs of its network that the server uses.",
    ),
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


def _figure(ax: Axes, name: str, alt: str, more: str = "") -> str:
    title, caption = FIGURES[name]
    return parts.figure(ax, name, title, f"{caption}{more}", alt)


def _parties(record: RunRecord) -> str:
    """Return what a server knows of each party; of a whole run, the figures say it."""
    if record.side != "server":
        return ""
    said = (
        '<p class="soft">Components and features kept; what a party reveals of the '
        "latter is its own choice. Bytes of payload without evaluation.</p>"
    )
    if power := server.power_words(record):
        said += f'<p class="soft">{escape(power)}</p>'
    table = parts.number_table(server.party_rows(record), ("party",))
    return parts.card("Parties", said + parts.scroll("Parties", table))


def _bill(record: RunRecord) -> str:
    """Return the whole bill of a run between machines."""
    found = bill.rows(record)
    if not found:
        return ""
    said = (
        '<p class="soft">Both directions, all parties. Frames: messages with all that '
        "says what they are; the socket has TLS and the engine's own frames besides."
        "</p>"
    )
    table = parts.scroll("Whole bill", parts.number_table(found, ("part",)))
    return parts.card("Whole bill", said + table)


def _figures(runs: Sequence[RunNumbers]) -> str:
    counts, kept = tables.mean_counts(runs), tables.component_counts(runs)
    stages = tables.stages_billed(runs)
    titles = [tables.stage_title(stage, billed=True) for stage in stages]
    of_features = [
        f"{p} kept {c.kept:g} of {c.held:g} features" for p, c in counts.items()
    ]
    of_components = [f"{party} {k:g} of {n:g}" for party, (k, n) in kept.items()]
    with figures.page_style():
        features = ""
        if counts:  # a server is told of them by some parties, or by none
            ax = figures.plot_features(runs, figures.bar_axes(len(counts)))
            more = f" {PLANTED}" * tables.with_planted(counts.values())
            features = _figure(ax, "features", "; ".join(of_features), more)
        ax = figures.plot_components(runs, figures.bar_axes(len(kept)))
        alt = "; ".join(of_components) or "No components were recorded."
        components = _figure(ax, "components", alt)
        ax = figures.plot_bytes(runs, figures.bar_axes(2 * len(stages)))
        alt = f"Bytes of {', '.join(titles) or 'no stage'}; "
        sent = _figure(ax, "bytes", f"{alt}the same numbers are in the table of seeds.")
        left = pixels.figure(runs, "pixels") + _curve_figure(runs) + components
    return parts.columns(left, features + sent, ' aria-label="Figures"')


def _curve_figure(runs: Sequence[RunNumbers]) -> str:
    alt, title = "No score was recorded.", "Test score against megabytes sent"
    if score := figures.score_of(runs):
        key, words = score
        title = f"{words[0].upper()}{words[1:]} against megabytes sent"
        if mean := figures.mean_curve(runs, key):
            (x0, y0), (x1, y1) = mean[0], mean[-1]
            alt = f"From {y0:.3f} at {x0:.3g} MB to {y1:.3f} at {x1:.3g} MB."
    ax = figures.plot_curve(runs, figures.new_axes())
    caption = "Both directions, all parties, without evaluation."
    return parts.figure(ax, "curve", title, caption, f"{title}. {alt}")


def _selection(run: RunNumbers) -> str:
    """Return how the parties of a run chose by shadows, in words and figures."""
    selection = run.get("selection")
    if not selection:
        return ""
    n_scores, most = len(tables.strengths(run)), selection_figures.MOST_FEATURES
    items = ""
    for party, how in selection.items():
        n_kept = len(tables.revealed(run)[party]["kept"])
        items += f"<li>{escape(tables.selection_words(party, how, n_kept))}</li>"
    with figures.page_style():
        n_rows = min(n_scores, most) + len(selection)  # and the parties' names
        ax = selection_figures.plot_selection(run, figures.bar_axes(n_rows))
        noted = [one for one in tables.strengths(run) if one.note]
        words = "; ".join(f"{one.feature}: {one.note}" for one in noted[:most])
        alt = f"Strength of up to {most} features against shadows. {words}"
        scores = _figure(ax, "scores", alt)
        ax = selection_figures.plot_path(run, figures.new_axes())
        alt = "Features and share of shadows kept along the lambdas, by party."
        path = _figure(ax, "path", alt)
    said = (
        "<p>Each party scrambled copies of its own columns and kept what is stronger "
        f"than these (seed {escape(str(run.get('seed', '')))}).</p><ul>{items}</ul>"
        f'<p class="soft">{escape(tables.ESTIMATED)}</p>'
    )
    card = parts.card("How features were chosen", said, "div")
    return parts.columns(card + path, scores, ' aria-label="Selection"')


# -- tables ----------------------------------------------------------------------------


MOST_NAMES = 40  # of one party that are named before the list of every feature


def _recommended(record: RunRecord) -> str:
    """Return the answer of all seeds: the features each party should use."""
    found = tables.recommendations(record)
    if not found:
        return ""
    why = reasons_by_party(record)
    lines = [
        parts.line(
            one.party,
            [
                f"{len(one.features):,} of {one.n_held:,}",
                one.text(MOST_NAMES),
                why.get(one.party, "nothing was removed"),
            ],
        )
        for one in found
    ]
    names = ("Party", "Recommended", "Features", "Why not the others")
    table = parts.table(names, lines, look=' class="recommended"')
    words = escape(tables.recommended_words(len(record.runs)))
    said = f'<p class="soft">{words} Every feature is in the list below.</p>'
    inner = said + parts.scroll("Recommended features", table, tall=True)
    return parts.card("Recommended features", inner)


def _missed(record: RunRecord) -> str:
    """Return what the score would be without each party."""
    found = tables.missed(record)
    if not found:
        return ""
    lines = [
        parts.line(party, [f"{without:.3f} instead of {whole:.3f}"])
        for party, (without, whole) in found.items()
    ]
    _, word = tables.first_score(record)
    names = ("Party", f"{word[0].upper()}{word[1:]} without it")
    table = parts.table(names, lines, look=' class="missed"')
    mean_of = f"; mean of {len(record.runs)} seeds" * (len(record.runs) > 1)
    said = (
        '<p class="soft">How much worse the final model scores when the embedding of '
        f"one party is replaced by its mean over the training rows{mean_of}. A model "
        "trained without the party may make up for some of the loss.</p>"
    )
    inner = said + parts.scroll("Score without each party", table, tall=True)
    return parts.card("Who would be missed", inner)


def _features(record: RunRecord) -> str:
    rows = tables.feature_rows(record.runs)
    if not rows:
        return ""
    recommended = {
        (one.party, row.feature)
        for one in tables.recommendations(record)
        for row in one.features
    }
    with_mark = bool(recommended) and len(record.runs) > 1  # one run says it all
    with_norms = any(row.importance is not None for row in rows)
    with_kind = any(tables.is_planted(row.party, row.feature) for row in rows)
    parties = dict.fromkeys(row.party for row in rows)
    words = {"kept": "kept", "some": "in some seeds", "removed": "removed"}
    why = {(one.party, one.feature): one.words for one in verdicts(record)}
    names = ["Party", "Feature", "Kept in", "Outcome", "Why", *["Kind"] * with_kind]
    names += ["Recommended"] if with_mark else []
    names += ["Norm"] if with_norms else []
    lines = []
    for row in rows:
        kind = "planted" if tables.is_planted(row.party, row.feature) else "real"
        tag = '<span class="tag planted">planted</span>' if kind == "planted" else kind
        share = row.n_kept / row.n_runs
        cells = (
            f"<td>{escape(row.party)}</td>"
            f'<td class="name">{escape(row.feature)}</td>'
            f'<td data-sort="{share:g}">{row.n_kept} of {row.n_runs} runs</td>'
            f'<td><span class="tag {row.state}">{words[row.state]}</span></td>'
            f"<td>{escape(why[row.party, row.feature])}</td>"
        )
        if with_kind:
            cells += f"<td>{tag}</td>"
        if with_mark:
            is_so = (row.party, row.feature) in recommended
            cells += f"<td>{'<b>recommended</b>' if is_so else 'no'}</td>"
        if with_norms:
            norm = row.importance
            text = MISSING if norm is None else f"{norm:.3f}"
            cells += f'<td data-sort="{-1 if norm is None else norm:g}">{text}</td>'
        lines.append(
            f'<tr data-party="{escape(row.party)}" data-state="{row.state}" '
            f'data-kind="{kind}">{cells}</tr>'
        )
    features = parts.table(names, lines, look=' class="features" id="features"')
    inner = parts.scroll("List of features", features, tall=True)
    return parts.card("Every feature", _controls(parties, words, with_kind) + inner)


def _controls(
    parties: Iterable[str], states: Mapping[str, str], with_kind: bool
) -> str:
    """Return the search box and the filters; the script shows them."""

    def choice(name: str, title: str, options: Iterable[tuple[str, str]]) -> str:
        items = "".join(
            f'<option value="{escape(value)}">{escape(text)}</option>'
            for value, text in [("", "all"), *options]
        )
        return f'<label>{title}<select id="by-{name}">{items}</select></label>'

    kinds = choice("kind", "Kind", [("real", "real"), ("planted", "planted")])
    return (
        '<div class="controls" id="controls" hidden>'
        '<label class="wide">Search<input type="search" id="search" '
        'placeholder="party or feature" autocomplete="off"></label>'
        f"{choice('party', 'Party', [(party, party) for party in parties])}"
        f"{choice('state', 'Outcome', states.items())}"
        f"{kinds if with_kind else ''}"
        '</div><p class="soft" id="shown" role="status"></p>'
    )


def _seeds(runs: Sequence[RunNumbers]) -> str:
    """Return every number of every seed, each cell with its place in the record."""
    several = len(runs) > 1
    names = ["", *["mean ± std"] * several, *(f"seed {run['seed']}" for run in runs)]
    groups: dict[str, list[str]] = {}
    for measure in tables.measures(runs):
        values = [tables.value_at(run, measure.path) for run in runs]
        cells = []
        for i, value in enumerate(values):
            data = "" if value is None else f' data-value="{value!r}"'
            text = escape(tables.value_text(value, measure.kind))
            path = escape(f"runs.{i}.{measure.path}")
            cells.append(f'<td data-path="{path}"{data}>{text}</td>')
        if several:
            mean = tables.spread_text(tables.spread(values), measure.kind)
            where = escape(measure.path)
            cells.insert(0, f'<td class="mean" data-mean="{where}">{escape(mean)}</td>')
        span, label = f'scope="rowgroup" colspan="{len(names)}"', escape(measure.label)
        group = f"<tr><th {span}>{escape(measure.group)}</th></tr>"
        line = f'<tr><th scope="row">{label}</th>{"".join(cells)}</tr>'
        groups.setdefault(measure.group, [group]).append(line)
    numbers = parts.table(names, *groups.values(), look=' class="seeds"')
    scroll = parts.scroll("Numbers of every seed", numbers, tall=True)
    return parts.card("Every seed", scroll)


def _pairs(title: str, pairs: Mapping[str, Any]) -> str:
    lines = ""
    for key, value in pairs.items():
        text = MISSING if value is None else value
        if not isinstance(text, str):
            text = json.dumps(value, ensure_ascii=False)
        lines += parts.line(str(key), [text])
    inner = parts.scroll(title, f"<table>{lines}</table>", tall=True)
    return parts.card(title, inner, "div") if lines else ""


def settings_section(record: RunRecord) -> str:
    """Return what a record was made with: settings, data, versions."""
    header = record.header
    names = ("method", "profile", "device", "started")
    made_with = {name: header[name] for name in names if name in header}
    versions = header.get("versions") or {}
    made_with |= {f"version of {name}": text for name, text in versions.items()}
    known = (header.get("data") or {}).items()  # a server knows no features
    data = {name: value for name, value in known if value is not None}
    config = _pairs("Settings", header.get("config") or {})
    column = _pairs("Data", data) + _pairs("Made with", made_with)
    return (
        f'<section class="settings">{config}<div class="column">{column}</div>'
        "</section>"
    )
