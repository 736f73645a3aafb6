"""Settings: what every kind allows, reads and refuses."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lessvfl import LessVFLClassifier, data, settings
from lessvfl.data import DataConfig
from lessvfl.errors import ConfigError, DataError
from lessvfl.terms import written

# kind, what it accepts, what it refuses.
KINDS: dict[str, tuple[settings.Kind, list[Any], list[Any]]] = {
    "a float in [0, inf)": (
        settings.a_float(),
        [0, 0.0, 1e300, 3],
        [-1e-9, math.inf, math.nan, True, "1", None],
    ),
    "a float in (0, inf)": (
        settings.a_float(open_low=True),
        [1e-300, 5],
        [0, 0.0, -1, math.inf],
    ),
    "a float in [0, 1]": (settings.a_float(0, 1), [0, 0.5, 1], [1.0001, -0.1]),
    "a whole number >= 0": (settings.an_int(), [0, 7], [-1, 0.0, 1.5, True, "3"]),
    "a whole number >= 1": (settings.an_int(1), [1], [0]),
    "a whole number from 2 to 9": (settings.an_int(2, 9), [2, 9], [1, 10, 2.0]),
    "true or false": (settings.a_flag(), [True, False], [0, 1, "true", None]),
    "one of a, b": (settings.one_of("a", "b"), ["a", "b"], ["c", "", None, 1]),
    "a text": (settings.a_text(), ["", "x"], [None, 3]),
    "a whole number >= 1, or several as in 64,32": (
        settings.widths(),
        [1, (64,), [64, 32], (1, 2, 3)],
        [0, (), [], (64, 0), 1.5, (64, 1.5), True, "64", None],
    ),
    "a text, or none": (settings.or_none(settings.a_text()), [None, "x"], [3]),
}


@pytest.mark.parametrize("allowed", KINDS)
def test_kind(allowed):
    kind, good, bad = KINDS[allowed]
    assert kind.allowed == allowed
    assert all(kind.accepts(value) for value in good)
    assert not any(kind.accepts(value) for value in bad)


TEXTS: list[tuple[settings.Kind, str, Any]] = [
    (settings.a_float(), "1e-3", 0.001),
    (settings.an_int(), "12", 12),
    (settings.a_flag(), "True", True),
    (settings.a_flag(), "yes", True),
    (settings.a_flag(), "1", True),
    (settings.a_flag(), "NO", False),
    (settings.a_flag(), "false", False),
    (settings.a_flag(), "0", False),
    (settings.widths(), "64", 64),
    (settings.widths(), "64, 32", (64, 32)),
    (settings.or_none(settings.an_int()), "none", None),
    (settings.or_none(settings.an_int()), "None", None),
    (settings.or_none(settings.an_int()), "3", 3),
    (settings.a_text(), "a=b", "a=b"),
]


def a_field(kind):
    @dataclass(frozen=True)
    class One(settings.Section):
        value: Any = settings.setting(kind, None, "a value")

    return dataclasses.fields(One)[0]


@pytest.mark.parametrize(("kind", "text", "value"), TEXTS)
def test_reading(kind, text, value):
    found = settings.read(text, a_field(kind))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (settings.a_float(), "much"),
        (settings.an_int(), "1.5"),
        (settings.an_int(), ""),
        (settings.a_flag(), "perhaps"),
        (settings.widths(), "64,,32"),
    ],
)
def test_text_that_cannot_be_read(kind, text):
    with pytest.raises(ConfigError) as error:
        settings.read(text, a_field(kind))
    assert str(error.value) == (
        f"The 'value' setting must be {kind.allowed}. Got {text!r} instead."
    )


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=0))
def test_a_number_survives_its_text(number):
    assert settings.read(repr(number), a_field(settings.a_float())) == number


@dataclass(frozen=True)
class Wheels(settings.Section):
    """Two settings."""

    count: int = settings.setting(settings.an_int(1), 4, "how many")
    spare: bool = settings.setting(settings.a_flag(), True, "is there one")


@dataclass(frozen=True)
class Engine(settings.Section):
    """One setting."""

    power: float = settings.setting(settings.a_float(), 70, "in kW")


def test_a_section_checks_itself():
    assert Wheels(3).count == 3
    with pytest.raises(ConfigError) as error:
        Wheels(count=0)
    assert str(error.value) == (
        "The 'count' setting must be a whole number >= 1. Got 0 instead."
    )
    with pytest.raises(ConfigError, match="'spare' setting must be true or false"):
        Wheels(spare=1)  # type: ignore[arg-type]


def test_sections_side_by_side():
    assert list(settings.fields_of([Wheels, Engine])) == ["count", "spare", "power"]
    values = {"power": 80, "count": 6}
    assert settings.pick(Wheels, values) == {"count": 6}
    assert settings.pick(Engine, values) == {"power": 80}


def test_unknown_name_with_the_nearest_known_one():
    error = settings.unknown("wheel", "cuont", ["spare", "count"], " of the car")
    assert isinstance(error, ConfigError)
    assert isinstance(error, ValueError)
    assert str(error) == (
        "Unknown wheel 'cuont' of the car. Did you mean 'count'? Known: count, spare."
    )
    assert str(settings.unknown("wheel", "x", ["count"])) == (
        "Unknown wheel 'x'. Known: count."
    )


@pytest.mark.parametrize("text", ["1e-5", "+2E3", "-1e0", "1.5e3"])
def test_an_exponent_that_yaml_leaves_a_text_is_a_number(text):
    """In YAML 1.1 a number has a point and its exponent a sign: 1.0e-5."""
    assert yaml.safe_load(text) == text
    assert settings.fit(text, settings.Finite, "delta") == float(text)
    assert settings.fit(text, str | None, "delta") == text
    with pytest.raises(ConfigError, match="must be a whole number"):
        settings.fit("1e-5", settings.Natural, "rounds")


# What NumPy shows as np.int64(-7), and is -7 to a user.
SCALARS = st.one_of(
    st.integers(-9, -1).map(np.int64),
    st.just(np.float32("nan")),
    st.text("ab", min_size=1).map(np.str_),
    st.booleans().map(np.bool_),
    st.just(np.datetime64("2020-01-01", "ns")),
)
VALUES = SCALARS | st.lists(SCALARS, min_size=1) | st.tuples(SCALARS, SCALARS)


@given(VALUES | st.dictionaries(SCALARS, VALUES, min_size=1))
def test_a_value_of_numpy_is_written_as_a_plain_one(value):
    assert "np." not in written(value)


TABLE = data.from_arrays(np.arange(40.0).reshape(20, 2), [0, 1] * 10)


@pytest.mark.parametrize(
    "refused",
    [
        lambda one: settings.refuse("x", "setting", "none", one),
        lambda one: data.prepare(TABLE, DataConfig(), parties=one),
        lambda one: data.prepare(TABLE, DataConfig(), spurious=one),
        lambda one: data.prepare(TABLE, DataConfig(missing_values={"x0": one})),
        lambda one: data.from_arrays(np.eye(9), np.full(9, one), task="regression"),
        lambda one: LessVFLClassifier(device=one).fit(np.eye(9), [0, 1, 0] * 3),
        lambda one: LessVFLClassifier().fit(np.eye(9), np.full(9, one)),
        lambda one: LessVFLClassifier(parties={"a": [one]}).fit(np.eye(9), [0] * 9),
        lambda one: LessVFLClassifier().fit(
            np.eye(9), [0, 1, 0] * 3, sample_weight=[one] * 9
        ),
    ],
)
@pytest.mark.parametrize("one", [np.int64(-7), np.float64("nan"), np.str_("a")])
def test_no_message_shows_how_numpy_writes_a_value(refused, one):
    try:
        said = str(refused(one))
    except (ConfigError, DataError, ValueError) as error:
        said = str(error)
    assert "np." not in said
