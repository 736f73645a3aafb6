"""The log of a run as lines of JSON, without secrets or data."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
_SECRET_NAME = re.compile("key|secret|passw|passphrase|token|credential", re.I)
_SECRET_TEXT = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
HIDDEN = "(hidden)"


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
    """Return a plain value as it is, of any other no more than its type."""
    if isinstance(value, str):
        return _safe_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    return f"({type(value).__name__})"


class LineHandler(logging.Handler):
    """Write log lines to the standard error of the moment, where a view makes room.

    Times are those of the status: UTC.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            moment = datetime.fromtimestamp(record.created, UTC)
            serious = record.levelno >= logging.WARNING
            level = f"{record.levelname.lower()}: " if serious else ""
            sys.stderr.write(f"{moment:%H:%M:%S} {level}{self.format(record)}\n")
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
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
