"""The files that a report leaves in a folder, whoever wrote the record."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lessvfl.errors import RecordError
from lessvfl.report import operator, parts
from lessvfl.report.equal import build_equal
from lessvfl.report.page import run_page
from lessvfl.report.paper.page import build_bench
from lessvfl.report.peers import build_peers
from lessvfl.report.theory import build_theory
from lessvfl.report.verdicts import FEATURES_NAME, features_csv
from lessvfl.run.record import FILE_NAME, RunRecord, read_journal, unwritten

REPORT_NAME = "report.html"
MAY_BE_EMPTY = ("tables", "figures", "verdicts", "breakdown")
PageBuilder = Callable[[Mapping[str, Any], Path], Path]
# The results of a benchmark, by its file: what they hold, and who makes their page.
BENCHMARKS: dict[str, tuple[tuple[str, ...], PageBuilder]] = {
    "bench.json": (("seeds", "data", "tables", "figures"), build_bench),
    "equal.json": (("seeds", "data", "rows", "verdicts", "breakdown"), build_equal),
    "peers.json": (("seeds", "data", "methods", "results"), build_peers),
    "theory.json": (("seeds", "n", "results"), build_theory),
}


def build(folder: Path) -> Path:
    """Write the report of a run folder, and its features beside it.

    Parameters
    ----------
    folder : Path
        A folder with ``record.jsonl``: of ``lessvfl run --out``, of a server, or of a
        party; or with the results of a ``lessvfl bench``.

    Returns
    -------
    Path
        ``report.html`` in that folder; of a benchmark its page. ``features.csv`` is
        there, too, if the record names features.

    Raises
    ------
    RecordError
        If the folder holds no record, or its report cannot be written; the run is
        there all the same.
    """
    folder = Path(folder)
    for name in BENCHMARKS:
        if (folder / name).is_file():
            return _of_benchmark(folder / name)
    if not (folder / FILE_NAME).is_file():
        raise RecordError(
            f"'{folder}' is not a run folder: it must hold {FILE_NAME}, or the results "
            f"of a benchmark ({', '.join(BENCHMARKS)}). Got {_kind(folder)}."
        )
    record = RunRecord.read(folder)
    path = folder / REPORT_NAME
    journal = read_journal(folder)
    try:
        if features := features_csv(record):
            parts.write(folder / FEATURES_NAME, features)
        else:
            (folder / FEATURES_NAME).unlink(missing_ok=True)
        parts.write(path, page(record, journal))
    except Exception as error:  # whatever it is, the run is there
        raise unwritten(folder, "The report", error) from error
    return path


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a folder without them"
    return "a file" if path.exists() else "no such folder"


def _of_benchmark(file: Path) -> Path:
    """Write the page of a benchmark from its results."""
    keys, build_page = BENCHMARKS[file.name]
    wrong = f"'{file}' must be results as 'lessvfl bench' writes them"
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        raise RecordError(f"{wrong}. Got what is no JSON.") from None
    own = results if isinstance(results, dict) else {}
    if missing := [key for key in keys if not own.get(key) and key not in MAY_BE_EMPTY]:
        raise RecordError(f"{wrong}, with {', '.join(keys)}. Got no {missing[0]}.")
    try:
        return build_page(results, file.parent)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{wrong}. Got entries of another form, or of another version of lessvfl."
        ) from error


def page(record: RunRecord, since: Mapping[str, Any] | None = None) -> str:
    """Return the report of a record as one HTML document, complete or not.

    `since` is what a party's journal says of predictions.
    """
    if record.side == "party":
        return operator.operator_page(record, since)
    return run_page(record)
