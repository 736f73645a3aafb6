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
from lessvfl.run.record import RunRecord, read_journal, unwritten

REPORT_NAME = "report.html"
# The results of a benchmark, by its file, and who makes its page of them.
BENCHMARKS: dict[str, Callable[[Mapping[str, Any], Path], Path]] = {
    "bench.json": build_bench,
    "equal.json": build_equal,
    "peers.json": build_peers,
    "theory.json": build_theory,
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
    for name, build_page in BENCHMARKS.items():
        if (folder / name).is_file():
            return _of_benchmark(folder / name, build_page)
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


def _of_benchmark(
    file: Path, build_page: Callable[[Mapping[str, Any], Path], Path]
) -> Path:
    """Write the page of a benchmark from its results."""
    try:
        return build_page(json.loads(file.read_text(encoding="utf-8")), file.parent)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise RecordError(
            f"'{file}' must be the results of a benchmark, as 'lessvfl bench' wrote "
            f"them. Got {type(error).__name__}: {error}."
        ) from error


def page(record: RunRecord, since: Mapping[str, Any] | None = None) -> str:
    """Return the report of a record as one HTML document, complete or not.

    `since` is what a party's journal says of predictions.
    """
    if record.side == "party":
        return operator.operator_page(record, since)
    return run_page(record)
