"""Errors of lessvfl, each one sentence a user can act on.

::

    LessVFLError
    ├── ConfigError      ValueError       a setting, option or name is not allowed
    ├── DataError        ValueError       a table, column or label cannot be used
    ├── AlignmentError   ValueError       the rows of two sides cannot be matched
    ├── NetworkError     ValueError       a module cannot serve as a network
    ├── DivergenceError  ArithmeticError  a loss stopped being finite
    ├── ProtocolError    RuntimeError     a message does not fit the protocol
    ├── PolicyError      RuntimeError     more is asked of a party than it allows
    ├── PartyLostError   ConnectionError  a party stays away
    └── RecordError      ValueError       a folder or file is no record of a run

``LessVFLWarning`` is the one category of warnings.

An error that ends a run between machines is told to the other side by its `kind` and
its `public` sentence; what it says here, which may name columns, files or cells, stays
at home.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import Self


class LessVFLError(Exception):
    """Root of all errors raised on purpose by lessvfl.

    `public` is what another side may hear of it.
    """

    kind = "error"
    public = "Something went wrong; the log of the side that stopped says what."

    def __init__(self, *args: object, public: str | None = None) -> None:
        super().__init__(*args)
        if public is not None:
            self.public = public


class ConfigError(LessVFLError, ValueError):
    """A setting, an option or a name is not allowed."""

    kind = "config"
    public = "A setting of the side that stopped does not fit; its log says which."


class DataError(LessVFLError, ValueError):
    """A table, a column or a label cannot be used."""

    kind = "data"
    public = "The table of the side that stopped cannot be used; its log says why."


class AlignmentError(LessVFLError, ValueError):
    """The rows of the label holder and a party cannot be matched."""

    kind = "alignment"
    public = "The rows of all sides cannot be matched; the server's log says why."


class NetworkError(LessVFLError, ValueError):
    """A module cannot serve as party or fusion network."""

    kind = "network"
    public = "The network of the side that stopped cannot be used; its log says why."


class DivergenceError(LessVFLError, ArithmeticError):
    """A loss stopped being finite; the message names who, in which stage and step."""

    kind = "divergence"
    public = "A loss stopped being finite."


class ProtocolError(LessVFLError, RuntimeError):
    """A message does not fit the protocol."""

    kind = "protocol"
    public = "A message did not fit the protocol."

    @classmethod
    def told(cls, sentence: str) -> Self:
        """Return an error of which both sides hear the whole sentence."""
        return cls(sentence, public=sentence)


class PolicyError(LessVFLError, RuntimeError):
    """More is asked of a party than it allows.

    Both sides hear the whole sentence, but for one that has another for the public.
    """

    kind = "policy"

    def __init__(self, sentence: str, public: str | None = None) -> None:
        super().__init__(sentence, public=public or sentence)


class PartyLostError(LessVFLError, ConnectionError):
    """A party stays away; the message names it."""

    kind = "lost"
    public = "A party stays away."

    def __init__(
        self, parties: Sequence[str], why: str, who: str | None = None
    ) -> None:
        self.parties = tuple(parties)
        one = len(self.parties) == 1
        names = " and ".join(f"'{party}'" for party in parties)
        who = who or f"{'Party' if one else 'Parties'} {names}"
        super().__init__(
            f"{who} {'is' if one else 'are'} missing: {why.removesuffix('.')}."
        )


class RecordError(LessVFLError, ValueError):
    """A folder or file is not a record of a run."""

    kind = "record"
    public = "The run folder of the side that stopped does not fit; its log says why."


class LessVFLWarning(UserWarning):
    """Something a user should act on, but need not."""


_BETWEEN = ("lessvfl", "sklearn", "joblib")  # packages between a user and a warning
_warned: set[tuple[str, str, int]] = set()


def warn(sentence: str) -> None:
    """Warn at the user's line that led here, once for each sentence and line.

    Python's own memory of warnings ends where scikit-learn takes over the filters for a
    fold, and the line that it goes by is one of ours.
    """
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].split(".")[0] in _BETWEEN:
        frame = frame.f_back
    filename, line = frame.f_code.co_filename, frame.f_lineno
    if (sentence, filename, line) in _warned and _is_shown_once():
        return
    _warned.add((sentence, filename, line))
    warnings.warn_explicit(sentence, LessVFLWarning, filename, line)


def _is_shown_once() -> bool:
    """Tell whether the filters in force show a warning of ours once."""
    for action, message, category, module, _ in warnings.filters:
        if issubclass(LessVFLWarning, category) and not (message or module):
            return action in ("default", "module", "once")
    return True
