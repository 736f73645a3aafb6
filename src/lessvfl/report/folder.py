"""The files that a report leaves in a run folder, whoever wrote the record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lessvfl.report import operator, parts
from lessvfl.report.page import run_page
from lessvfl.report.verdicts import FEATURES_NAME, features_csv
from lessvfl.run.record import RunRecord, read_journal, unwritten

REPORT_NAME = "report.html"


def build(folder: Path) -> Path:
    """Write the report of a run folder, and its features beside it.

    Parameters
    ----------
    folder : Path
        A folder with ``record.jsonl``: of ``lessvfl run --out``, of a server, or of a
        party.

    Returns
    -------
    Path
        ``report.html`` in that folder. ``features.csv`` is there, too, if the record
        names features.

    Raises
    ------
    RecordError
        If the folder holds no record, or its report cannot be written; the run is
        there all the same.
    """
    folder = Path(folder)
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


def page(record: RunRecord, since: Mapping[str, Any] | None = None) -> str:
    """Return the report of a record as one HTML document, complete or not.

    `since` is what a party's journal says of predictions.
    """
    if record.side == "party":
        return operator.operator_page(record, since)
    return run_page(record)
