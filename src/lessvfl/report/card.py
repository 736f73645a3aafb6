"""The model card: what a model was made of, and what its numbers do not say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lessvfl import terms
from lessvfl.report import parts, sentences, tables
from lessvfl.run.record import RunRecord

CARD_NAME = "MODEL_CARD.md"
MOST_NAMES = 40  # features of one party that are named

HELD_OUT = (
    "The scores are of rows of the same data set that were held out. Rows of another "
    "place or time may differ: `lessvfl evaluate` scores them."
)
UNCALIBRATED = (
    "Probabilities were not calibrated: they may be too sure or not sure enough."
)
LIMITS = (
    "A feature that was kept helped this model on these rows. That is no cause, "
    "and a feature that was removed may say what a kept one says.",
    "Nothing was measured for groups of people or rows apart.",
    "A party's file holds its column names and categories and, of a column of heavy "
    "tails, up to 256 quantiles: it belongs to that party alone.",
)

COMMUNICATION: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("from the parties to the server", "payload_bytes.up", terms.bytes_text),
    ("from the server to the parties", "payload_bytes.down", terms.bytes_text),
    ("rounds", "rounds", "{:,}".format),
)


def write_card(
    folder: Path,
    record: RunRecord,
    seed: int,
    settings: Mapping[str, Any],
    files: Mapping[str, str],
) -> Path:
    """Write ``MODEL_CARD.md`` into a folder; arguments as in :func:`card`."""
    path = folder / CARD_NAME
    parts.write(path, card(record, seed, settings, files))
    return path


def card(
    record: RunRecord, seed: int, settings: Mapping[str, Any], files: Mapping[str, str]
) -> str:
    """Return the card of one seed's model; what the record lacks is left out.

    `settings` are those worth naming, and `files` the exported ones by whose they are.
    """
    run = next(one for one in record.runs if one["seed"] == seed)
    title = tables.method_title(record.header.get("method"))
    name = tables.at(record.header, "data", "name")
    communication = [
        f"- {words}: {write(n)}"
        for words, path, write in COMMUNICATION
        if (n := tables.value_at(run, f"communication.{path}")) is not None
    ]
    sections = {
        "Data": _data(record),
        "Method": _method(record, seed, settings),
        "Scores on test rows": _scores(record, run),
        "Features": _features(record, run),
        "Communication": communication,
        "Files": _table(("file", "of"), [(f, who) for who, f in files.items()]),
        "Limits": _limits(record, run),
    }
    lines = [f"# {_plain(f'{title} on {name}')}", ""]
    for head, section in sections.items():
        if body := list(section):
            lines += [f"## {head}", "", *body, ""]
    return "\n".join(lines)


def _plain(text: Any) -> str:
    """Return a text as it stands in a line or a cell of a table."""
    words = " ".join(str(text).split())
    for mark in "\\|*_`<[":
        words = words.replace(mark, f"\\{mark}")
    return words


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    if rows:
        yield from parts.markdown_table(heads, (map(_plain, row) for row in rows))


def _data(record: RunRecord) -> Iterator[str]:
    about = tables.at(record.header, "data") or {}
    n_train, n_test, n_features, n_real, n_parties, n_classes = (
        tables.number(about, f"n_{what}")
        for what in ("train", "test", "features", "real", "parties", "classes")
    )
    if n_train is not None:
        held_out = "" if n_test is None else f", {n_test:,} held out for the test"
        yield f"- rows: {n_train:,} for training{held_out}"
    if n_features is not None:
        planted = 0 if n_real is None else n_features - n_real
        noise = f", {planted:,} of them planted noise" if planted else ""
        yield f"- features: {n_features:,}{noise}"
    if n_parties is not None:
        yield f"- parties: {n_parties:,}"
    if n_classes is not None:
        yield f"- classes: {n_classes:,}" if n_classes else "- labels: numbers"
    yield from (f"- {_plain(note)}" for note in record.header.get("notes") or ())


def _method(record: RunRecord, seed: int, settings: Mapping[str, Any]) -> Iterator[str]:
    header = record.header
    profile = header.get("profile")
    beside = "" if profile is None else f", profile {_plain(profile)}"
    yield f"- method: {_plain(header.get('method'))}{beside}"
    others = [str(run["seed"]) for run in record.runs if run["seed"] != seed]
    beside = f"; the run also has {', '.join(others)}" if others else ""
    yield f"- seed: {seed}{beside}"
    if settings:
        pairs = (_plain(f"{name}={value}") for name, value in settings.items())
        yield f"- settings other than the library's own: {', '.join(pairs)}"
    versions = tables.at(header, "versions") or {}
    known = ", ".join(f"{name} {number}" for name, number in versions.items())
    yield f"- made with {_plain(known or 'lessvfl ' + str(header.get('lessvfl')))}"
    if header.get("started"):
        yield f"- started: {_plain(header['started'])}"


def _scores(record: RunRecord, run: tables.RunNumbers) -> Iterator[str]:
    rows, n_runs = [], len(record.runs)
    for name, words in terms.SCORES.items():
        value = tables.number(run, name, "final")
        if value is not None:
            mean = tables.over_seeds(record.runs, f"{name}.final")
            cells = (words.title, tables.value_text(value, "score"))
            rows.append((*cells, tables.spread_text(mean, "score"))[: 2 + (n_runs > 1)])
    heads = ("score", "this model", f"all {n_runs} seeds")[: 2 + (n_runs > 1)]
    yield from _table(heads, rows)
    if rows and (threshold := tables.at(run, "threshold")):
        pairs = (f"{_plain(name)} {share:.3g}" for name, share in threshold.items())
        yield ""
        yield (
            "Decided by shares: predicted is the one whose probability divided by its "
            f"share of the training rows is the largest ({', '.join(pairs)})."
        )


def _features(record: RunRecord, run: tables.RunNumbers) -> Iterator[str]:
    rows, estimates = [], []
    for party, names in tables.revealed(run).items():
        kept, n_held = names["kept"], len(names["kept"]) + len(names["removed"])
        shown = terms.listed(kept, MOST_NAMES) or "none"
        rows.append((party, f"{len(kept):,} of {n_held:,}", shown))
        share = tables.number(run, "selection", party, "false_share")
        if share is not None:
            about = f"about {share * len(kept):.1f} of {len(kept):,}"
            estimates.append(f"{_plain(party)} {about}")
    is_selected = record.header.get("method") != "plain"
    heads = ("party", "kept" if is_selected else "used", "features")
    yield from _table(heads, rows)
    if estimates:
        yield ""
        yield f"Perhaps useless: {', '.join(estimates)}. {sentences.ESTIMATED}"


def _limits(record: RunRecord, run: tables.RunNumbers) -> Iterator[str]:
    if any(tables.number(run, name, "final") is not None for name in terms.SCORES):
        yield f"- {HELD_OUT}"
    elif record.side == "party":
        yield "- A party has no labels: the scores are the server's to know."
    else:
        yield "- Nothing was scored: there were no test rows."
    if record.side != "party" and not tables.is_regression(record):
        yield f"- {UNCALIBRATED}"
    yield from (f"- {sentence}" for sentence in LIMITS)
