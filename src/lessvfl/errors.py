"""Errors of lessvfl, each one sentence a user can act on.

::

    LessVFLError
    ├── ConfigError      ValueError       a setting, option or name is not allowed
    ├── DataError        ValueError       a table, column or label cannot be used
    ├── AlignmentError   ValueError       the rows of two sides cannot be matched
    ├── NetworkError     ValueError       a module cannot serve as a network
    ├── DivergenceError  ArithmeticError  a loss stopped being finite
    ├── ProtocolError    RuntimeError     a message does not fit the protocol
    ├── PartyLostError   ConnectionError  a party stays away
    └── RecordError      ValueError       a folder or file is no record of a run

``LessVFLWarning`` is the one category of warnings.
"""

from collections.abc import Sequence


class LessVFLError(Exception):
    """Root of all errors raised on purpose by lessvfl."""


class ConfigError(LessVFLError, ValueError):
    """A setting, an option or a name is not allowed."""


class DataError(LessVFLError, ValueError):
    """A table, a column or a label cannot be used."""


class AlignmentError(LessVFLError, ValueError):
    """The rows of the label holder and a party cannot be matched."""


class NetworkError(LessVFLError, ValueError):
    """A module cannot serve as party or fusion network."""


class DivergenceError(LessVFLError, ArithmeticError):
    """A loss stopped being finite; the message names who, in which stage and step."""


class ProtocolError(LessVFLError, RuntimeError):
    """A message does not fit the protocol."""


class PartyLostError(LessVFLError, ConnectionError):
    """A party stays away; the message names it."""

    def __init__(self, parties: Sequence[str], why: str) -> None:
        self.parties = tuple(parties)
        names = " and ".join(f"'{party}'" for party in parties)
        verb = "is" if len(self.parties) == 1 else "are"
        super().__init__(f"The run needs {names}, who {verb} missing: {why}.")


class RecordError(LessVFLError, ValueError):
    """A folder or file is not a record of a run."""


class LessVFLWarning(UserWarning):
    """Something a user should act on, but need not."""
