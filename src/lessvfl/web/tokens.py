"""Tokens of the service: who may ask for what, and until when.

A token is one line of a file, ``SECRET.2027-03-31``: it is valid until the end of that
day (UTC). Files are checked at every request, so that a new file is a new token.
"""

from __future__ import annotations

import datetime
import hmac
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lessvfl.errors import ConfigError
from lessvfl.run.record import read_private, write_atomically

Right = Literal["predict", "admin"]
FILES: Mapping[Right, str] = {"predict": "token", "admin": "admin-token"}
DAYS = 90  # that a token made here is valid
MIN_SECRET = 16  # characters

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Token:
    """What gives a request a right, until some day."""

    right: Right
    text: str
    last_day: datetime.date

    @property
    def is_over(self) -> bool:
        """Tell whether it has expired."""
        return self.last_day < datetime.datetime.now(datetime.UTC).date()


class Tokens:
    """The tokens in two files, as they are now."""

    def __init__(self, files: Mapping[Right, Path]) -> None:
        self.files = files
        self._known: dict[Right, tuple[int, Token | None]] = {}  # by when it changed

    def find(self, shown: bytes) -> Token | None:
        """Return the token that a header shows, in the same time whichever it is.

        A file is read again when it has changed; one without a token gives no right.
        """
        shown_token = None
        for right, path in self.files.items():
            try:
                changed = path.stat().st_ctime_ns  # of chmod, too
            except OSError:
                continue  # without the file there is no right
            if right not in self._known or self._known[right][0] != changed:
                token = None
                try:
                    token = read(right, path)
                except ConfigError as error:
                    log.warning("%s", error)
                self._known[right] = (changed, token)
            _, token = self._known[right]
            due = b"" if token is None else f"Bearer {token.text}".encode()
            if hmac.compare_digest(shown, due) and token is not None:
                shown_token = token
        return shown_token


def prepare(right: Right, folder: Path, given: Path | None) -> Path:
    """Return the file of a valid token; one is made where none is given."""
    path = given or folder / FILES[right]
    if given is None and (not path.is_file() or read(right, path).is_over):
        text = f"{secrets.token_urlsafe(32)}.{_last_day()}"
        write_atomically(path, text.encode(), mode=0o600)
    token = read(right, path)
    if token.is_over:
        raise ConfigError(
            f"The token in '{path}' must be good today. Got one that was until "
            f"{token.last_day}."
        )
    return path


def read(right: Right, path: Path) -> Token:
    """Return the token in a file."""
    if not path.is_file():
        raise ConfigError(f"The file of the token, '{path}', must exist. Got none.")
    content = read_private(path, "token")
    try:
        text = content.decode("ascii").strip()
        secret, _, day = text.rpartition(".")
        last_day = datetime.date.fromisoformat(day)
    except ValueError:
        raise ConfigError(
            f"The token in '{path}' must end in a dot and the last day that it is good "
            f"for, as in SECRET.{_last_day()}. Got one that does not."
        ) from None
    if len(secret) < MIN_SECRET:
        raise ConfigError(
            f"The token in '{path}' must have {MIN_SECRET} characters or more before "
            f"its day. Got {len(secret)}."
        )
    return Token(right, text, last_day)


def _last_day() -> datetime.date:
    today = datetime.datetime.now(datetime.UTC).date()
    return today + datetime.timedelta(days=DAYS)
