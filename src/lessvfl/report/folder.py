"""The files that a report leaves in a folder, whoever wrote the record."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from lessvfl.errors import RecordError
from lessvfl.report import operator, parts
from lessvfl.report.page import run_page
from lessvfl.report.ratings import RATINGS_NAME, ratings_csv
from lessvfl.report.verdicts import FEATURES_NAME, features_csv
from lessvfl.run.record import (
    EFFECTS,
    FILE_NAME,
    RunRecord,
    read_journal,
    read_json,
    unwritten,
)

REPORT_NAME = "report.html"
# Who makes a page of results that are no run: the name of an entry point is that of
# the file, and it is called with its path.
PAGES = "lessvfl.pages"


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
        there, too, if the record names features, and ``ratings.csv`` if it is that of a
        party whose method rates them.

    Raises
    ------
    RecordError
        If the folder holds no record, or its report cannot be written; the run is
        there all the same.
    """
    folder = Path(folder)
    others = entry_points(group=PAGES)
    for one in others:
        if (folder / one.name).is_file():
            page_of_results: Path = one.load()(folder / one.name)
            return page_of_results
    if not (folder / FILE_NAME).is_file():
        kind = "a folder without them" if folder.is_dir() else "a file"
        kind = kind if folder.exists() else "no such folder"
        raise RecordError(
            f"'{folder}' is not a run folder: it must hold {FILE_NAME}, or the results "
            f"of a benchmark ({', '.join(sorted(others.names))}). Got {kind}."
        )
    record = RunRecord.read(folder)
    path = folder / REPORT_NAME
    journal = read_journal(folder)
    effects = read_json(folder / EFFECTS) if (folder / EFFECTS).is_file() else {}
    try:
        lists = {FEATURES_NAME: features_csv, RATINGS_NAME: ratings_csv}
        for name, make in lists.items():
            if text := make(record):
                parts.write(folder / name, text)
            else:
                (folder / name).unlink(missing_ok=True)
        parts.write(path, page(record, journal, effects))
    except Exception as error:  # whatever it is, the run is there
        raise unwritten(folder, "The report", error) from error
    return path


def page(
    record: RunRecord,
    since: Mapping[str, Any] | None = None,
    effects: Mapping[str, Any] | None = None,
) -> str:
    """Return the report of a record as one HTML document, complete or not.

    `since` is what a party's journal says of predictions, `effects` are its curves.
    """
    if record.side == "party":
        return operator.operator_page(record, since, effects)
    return run_page(record)
