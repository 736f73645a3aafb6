"""The log of a run as lines of JSON, without secrets or data."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO

from lessvfl.terms import MINUTE

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
_SECRET_NAME = re.compile("key|secret|passw|passphrase|token|credential", re.I)
_SECRET_TEXT = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
HIDDEN = "(hidden)"
MOST_LINES = 20  # a minute, of those that one place of the code writes


class JsonFormatter(logging.Formatter):
    """Write a log record as one line of JSON.

    Fields are `time` (ISO 8601, UTC), `level`, `logger`, `message`, `traceback` where
    there is one, and whatever plain value was given as ``extra`` (a party, a stage, a
    step). Of anything else, such as an array, only the type is written. Private keys
    and fields named like secrets are hidden.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _safe_text(record.getMessage()),
        }
        if record.exc_info:
            fields["traceback"] = _safe_text(self.formatException(record.exc_info))
        for name, value in record.__dict__.items():
            if name not in _STANDARD and name not in fields:
                fields[name] = HIDDEN if _SECRET_NAME.search(name) else _plain(value)
        return json.dumps(fields, allow_nan=False)


def _safe_text(text: str) -> str:
    return _SECRET_TEXT.sub(HIDDEN, text)


def _plain(value: object) -> object:
    """Return a text, number, bool or None to be logged, of other values their type."""
    if isinstance(value, str):
        return _safe_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    return f"({type(value).__name__})"


class Sparing(logging.Filter):
    """Let through 20 lines a minute from each line of code that logs.

    Otherwise anybody who can reach a port could fill the disk. Lines left out are
    counted, and the next one from the same place says how many (`left_out`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        # By place: when its minute began, the lines of that minute, those left out.
        self._seen: dict[tuple[str, int], tuple[float, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write this log record; count those that are left out."""
        place = (record.pathname, record.lineno)
        with self._lock:
            began, n_lines, left_out = self._seen.get(place, (record.created, 0, 0))
            if record.created - began >= MINUTE:
                began, n_lines = record.created, 0
            if n_lines == MOST_LINES:
                self._seen[place] = (began, n_lines, left_out + 1)
                return False
            self._seen[place] = (began, n_lines + 1, 0)
        if left_out:
            record.left_out = left_out
        return True


class LineHandler(logging.Handler):
    """Write log lines to the current ``sys.stderr``, which a live view may replace.

    Times are in UTC, as in the status.
    """

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(Sparing())

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            moment = datetime.fromtimestamp(record.created, UTC)
            serious = record.levelno >= logging.WARNING
            level = f"{record.levelname.lower()}: " if serious else ""
            left_out = getattr(record, "left_out", 0)
            more = f" (and {left_out} more like it before)" if left_out else ""
            line = f"{moment:%H:%M:%S} {level}{self.format(record)}{more}"
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


@contextlib.contextmanager
def json_logs(stream: IO[str] | None = None) -> Iterator[None]:
    """Write the log of lessvfl, INFO and above, as JSON lines during the block.

    They go to standard error unless another stream is given.
    """
    logger = logging.getLogger("lessvfl")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(Sparing())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
