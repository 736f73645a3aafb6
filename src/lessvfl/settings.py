"""Settings: frozen dataclasses whose fields know what they allow.

A section of settings (how data are prepared, how networks look, what a method needs) is
a frozen dataclass made of :func:`setting` fields. A value is checked once, when the
section is built; text from the command line is read by :func:`read`.

What comes from files and other machines has no such text: there the annotations of a
dataclass say what is allowed, and :func:`fit` checks a value against one of them.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from lessvfl.errors import ConfigError
from lessvfl.terms import written

MOST_NAMES = 8  # that are listed beside the nearest one
MOST_SHOWN = 300  # characters of a value that is not allowed
MOST_WHOLE = 2**63 - 1  # a whole number
MOST_PARTIES = 1000  # of a run
EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # a text to YAML 1.1

KnownName = TypeVar("KnownName", bound=str)


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a setting allows: a sentence, a test, and how its text is read."""

    allowed: str
    accepts: Callable[[Any], bool]
    read: Callable[[str], Any] = str


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def a_float(
    low: float = 0.0, high: float = math.inf, *, open_low: bool = False
) -> Kind:
    """Allow a finite number in [low, high] (or (low, high])."""
    bracket = "(" if open_low else "["
    closing = ")" if math.isinf(high) else "]"
    return Kind(
        f"a float in {bracket}{low:g}, {high:g}{closing}",
        lambda v: (
            _is_number(v)
            and abs(v) <= sys.float_info.max  # finite; a whole number has no end
            and (v > low if open_low else v >= low)
            and v <= high
        ),
        float,
    )


def an_int(low: int = 0, high: int = MOST_WHOLE) -> Kind:
    """Allow a whole number from `low` on, up to `high` where there is one."""
    allowed = f">= {low}" if high == MOST_WHOLE else f"from {low} to {high}"
    return Kind(
        f"a whole number {allowed}", lambda v: _is_int(v) and low <= v <= high, int
    )


def a_flag() -> Kind:
    """Allow true or false."""
    words = dict.fromkeys(("true", "yes", "1"), True)
    words |= dict.fromkeys(("false", "no", "0"), False)
    return Kind(
        "true or false", lambda v: isinstance(v, bool), lambda text: words[text.lower()]
    )


def one_of(*choices: str | int) -> Kind:
    """Allow one of the given words, or one of the given whole numbers."""
    names, kind = ", ".join(map(str, choices)), type(choices[0])
    is_one = _is_int if kind is int else lambda v: isinstance(v, kind)
    return Kind(f"one of {names}", lambda v: is_one(v) and v in choices, kind)


def a_text() -> Kind:
    """Allow any text."""
    return Kind("a text", lambda v: isinstance(v, str), str)


def widths() -> Kind:
    """Allow one width, or a width per hidden layer such as ``64,32``."""

    def accepts(value: Any) -> bool:
        many = value if isinstance(value, tuple | list) else (value,)
        return len(many) > 0 and all(map(an_int(1).accepts, many))

    def read(text: str) -> int | tuple[int, ...]:
        parts = tuple(int(part) for part in text.split(","))
        return parts[0] if len(parts) == 1 else parts

    return Kind("a whole number >= 1, or several as in 64,32", accepts, read)


def or_none(kind: Kind) -> Kind:
    """Allow what `kind` allows, or nothing at all."""
    return Kind(
        f"{kind.allowed}, or none",
        lambda v: v is None or kind.accepts(v),
        lambda text: None if text.lower() == "none" else kind.read(text),
    )


def setting(kind: Kind, default: Any, help: str) -> Any:
    """Declare one field of a section of settings."""
    return dataclasses.field(default=default, metadata={"kind": kind, "help": help})


def kind_of(field: dataclasses.Field[Any]) -> Kind:
    """Return what a field of a section allows."""
    kind = field.metadata["kind"]
    assert isinstance(kind, Kind)
    return kind


def refuse(name: str, owner: str, allowed: str, got: object) -> ConfigError:
    """Build the one sentence about a value that is not allowed."""
    shown = written(got)
    if len(shown) > MOST_SHOWN:
        shown = f"{shown[:MOST_SHOWN]}..."
    return ConfigError(f"The '{name}' {owner} must be {allowed}. Got {shown} instead.")


class Section:
    """Base of every section: checks its fields when it is built."""

    def __post_init__(self) -> None:
        """Refuse the first field whose value is not allowed."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            kind, value = kind_of(field), getattr(self, field.name)
            if not kind.accepts(value):
                raise refuse(field.name, "setting", kind.allowed, value)


def read(text: str, field: dataclasses.Field[Any]) -> Any:
    """Turn the text of ``--set KEY=VALUE`` into a value of that field."""
    kind = kind_of(field)
    try:
        return kind.read(text)
    except (ValueError, KeyError, OverflowError):
        raise refuse(field.name, "setting", kind.allowed, text) from None


def value_of(given: Any, field: dataclasses.Field[Any]) -> Any:
    """Return what was given as a value of a field: texts read, others plain.

    The names of a mapping become texts, numbers as labels write them: 1.0 is "1".
    """
    if isinstance(given, str):
        return read(given, field)
    if isinstance(given, Mapping):
        return {_name(key): _plain(value) for key, value in given.items()}
    return _plain(given)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: numpy numbers and dates as such, in lists too."""
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value.item() if isinstance(value, np.generic) else value


def _name(key: Any) -> str:
    key = _plain(key)
    return f"{key:.17g}" if _is_number(key) else str(key)


# --------------------------------------------------------------- values and their types


Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
AboveZero = Annotated[
    float, Meta(gt=0, le=sys.float_info.max, description="a float in (0, inf)")
]
Share = Annotated[float, Meta(ge=0, le=1, description="a float in [0, 1]")]
PartyName = Annotated[
    str, Meta(min_length=1, max_length=64, description="a name of 1 to 64 letters")
]
PartyNames = Annotated[
    tuple[PartyName, ...],
    Meta(min_length=1, max_length=MOST_PARTIES),
    Kind(
        f"a list of 1 to {MOST_PARTIES} different names, each of 1 to 64 letters",
        lambda names: len(set(names)) == len(names),
    ),
]
UNIONS = (typing.Union, types.UnionType)
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    types.NoneType: "null",  # as files have it
}


def types_of(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, in order."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def fit(value: Any, kind: Any, name: str, owner: str = "setting") -> Any:
    """Return a value as a type has it, lists as tuples; refuse one that is not of it.

    Beside what :mod:`msgspec` reads of it, a type may be ``Annotated`` with a `Kind`.
    """
    if isinstance(kind, type) and issubclass(kind, Schema) and type(value) is not kind:
        raise refuse(name, owner, allowed_by(kind), value)
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        if isinstance(value, str) and EXPONENT.fullmatch(value):
            return fit(float(value), kind, name, owner)
        raise refuse(name, owner, allowed_by(kind), value) from None
    is_union = typing.get_origin(kind) in UNIONS
    for one in typing.get_args(kind) if is_union else (kind,):
        for more in getattr(one, "__metadata__", ()) if converted is not None else ():
            if isinstance(more, Kind) and not more.accepts(converted):
                raise refuse(name, owner, allowed_by(kind), value)
    return converted


def build(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return a dataclass of values, one for each of its fields and no other."""
    names, owner = cls.__dataclass_fields__.keys(), f"of {cls.__name__}"
    if values.keys() != names:
        raise refuse("fields", owner, ", ".join(names) or "none", [*values])
    try:
        return msgspec.convert(values, cls)
    except msgspec.ValidationError:
        for name, kind in types_of(cls).items():
            fit(values[name], kind, name, owner)
        raise refuse("fields", owner, "of their types", values) from None


def allowed_by(kind: Any) -> str:
    """Say what a type allows.

    >>> allowed_by(Natural | None), allowed_by(tuple[Literal["a", "b"], ...])
    ('a whole number >= 0, or null', 'a list, each one of a, b')
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        *_, last = kind.__metadata__
        words = last.allowed if isinstance(last, Kind) else last.description
        least = "" if words or last.ge is None else f" >= {last.ge}"
        return words or allowed_by(parts[0]) + least
    if origin in UNIONS:
        return ", or ".join(map(allowed_by, parts))
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin in (tuple, list):
        return f"a list, each {allowed_by(parts[0])}"
    return _WORDS.get(kind, "names and values")


class Schema:
    """Base of a frozen dataclass whose annotations say what its fields allow."""

    section: typing.ClassVar = ""  # of a file that its names stand in, as "policy."

    def __post_init__(self) -> None:
        """Refuse the first field whose value is not allowed."""
        for name, kind in types_of(type(self)).items():
            at = f"{self.section}{name}"
            object.__setattr__(self, name, fit(getattr(self, name), kind, at))

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str) -> typing.Self:
        """Return what a file says; refuse names that nobody knows."""
        known = types_of(cls)
        for name in values:
            if name not in known:
                raise unknown("setting", str(name), known, f" in '{where}'")
        return cls(**values)


def unknown(what: str, name: str, known: Iterable[str], owner: str = "") -> ConfigError:
    """Build the one sentence about a name nobody knows, with the nearest known one.

    Where there is one, the others are named only if they are few.
    """
    names = sorted(known)
    hint = near(name, names)
    if not hint or len(names) <= MOST_NAMES:
        hint += f" Known: {', '.join(names)}."
    return ConfigError(f"Unknown {what} '{name}'{owner}.{hint}")


def known_as(name: str, known: Iterable[KnownName], what: str) -> KnownName:
    """Return one of several names, or refuse another.

    >>> known_as("b", ("a", "b"), "'letter' option")
    'b'
    """
    names = tuple(known)
    for one in names:
        if one == name:
            return one
    raise ConfigError(f"The {what} must be one of {', '.join(names)}. Got '{name}'.")


def near(name: str, known: Iterable[str]) -> str:
    """Ask whether the nearest known name was meant; nothing where none is near.

    >>> near("Risk", ["age", "risk"]), near("x", ["age"])
    (" Did you mean 'risk'?", '')
    """
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{nearest[0]}'?" if nearest else ""


def fields_of(sections: Iterable[type]) -> dict[str, dataclasses.Field[Any]]:
    """Return every field of several sections by name."""
    return {f.name: f for section in sections for f in dataclasses.fields(section)}


def pick(section: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of flat `values` that belongs to one section."""
    names = {f.name for f in dataclasses.fields(section)}
    return {name: value for name, value in values.items() if name in names}
