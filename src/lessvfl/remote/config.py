"""The files that say how a server and a party take part in a run.

Paths in them are relative to the file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lessvfl import settings
from lessvfl.data import TASKS, marks_by_column, yaml_problem
from lessvfl.errors import ConfigError
from lessvfl.remote.policy import EVALUATIONS, Policy, read_policy
from lessvfl.settings import (
    Kind,
    a_flag,
    a_float,
    a_text,
    an_int,
    one_of,
    or_none,
    setting,
)

ALIGNMENTS = ("psi", "plain", "none")
REVEALS = ("nothing", "counts", "features")
PATHS = ("certificate", "key", "ca", "data", "out")  # relative to the file


def _are_different(value: Any, each: Callable[[Any], bool]) -> bool:
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return is_list and all(map(each, value)) and len(set(value)) == len(value)


def _are_names(value: Any) -> bool:
    return _are_different(value, lambda name: isinstance(name, str) and bool(name))


def _names() -> Kind:
    return Kind("a list of different names", _are_names, lambda text: text.split(","))


def _seeds() -> Kind:
    seed = an_int(0)
    return Kind(
        "a whole number >= 0, or a list of different ones",
        lambda v: _are_different(v, lambda one: seed.accepts(one) and one < 2**63),
        lambda text: tuple(map(int, text.split(","))),
    )


def _groups() -> Kind:
    return Kind(
        "feature names with their columns",
        lambda v: (
            isinstance(v, dict)
            and all(isinstance(name, str) and name for name in v)
            and all(isinstance(c, str) or _are_names(c) for c in v.values())
        ),
        lambda text: text,
    )


def _range() -> Kind:
    number = a_float(-math.inf)
    return Kind(
        "two numbers, the lower first",
        lambda v: (
            isinstance(v, list | tuple)
            and len(v) == 2
            and all(map(number.accepts, v))
            and v[0] < v[1]
        ),
        lambda text: tuple(map(float, text.split(","))),
    )


def _mapping() -> Kind:
    return Kind("names and values", lambda v: isinstance(v, dict), lambda text: text)


def _policy() -> Kind:
    return Kind("names and values", lambda v: isinstance(v, Policy), lambda text: text)


@dataclass(frozen=True)
class Common(settings.Section):
    """What both sides say: who they are, their file, and where results go."""

    certificate: str | None = setting(
        or_none(a_text()), None, "the certificate; none: without encryption"
    )
    key: str | None = setting(or_none(a_text()), None, "its key")
    ca: str | None = setting(or_none(a_text()), None, "the CA's certificate")
    data: str = setting(
        a_text(), "", "the table: a file, or a folder of Parquet or Arrow files"
    )
    id: str | None = setting(or_none(a_text()), None, "the column of ids")
    threads: int = setting(an_int(1), 1, "threads to compute with, the same for all")
    device: str = setting(one_of("cpu", "cuda", "auto"), "cpu", "where to compute")
    out: str = setting(a_text(), "run", "the run folder")
    wait: float = setting(
        a_float(open_low=True), 600.0, "seconds that the other side may stay away"
    )


@dataclass(frozen=True)
class ServerConfig(Common):
    """What the label holder's file says."""

    listen: str = setting(a_text(), "127.0.0.1:8815", "HOST:PORT to listen at")
    parties: tuple[str, ...] = setting(_names(), ("party0",), "who takes part")
    label: str | None = setting(or_none(a_text()), None, "the column of labels")
    sample_weight: str | None = setting(
        or_none(a_text()), None, "the column of row weights; none: all alike"
    )
    group_column: str | None = setting(
        or_none(a_text()),
        None,
        "the column of whom a row is of (a person); none: every row is alone",
    )
    task: str | None = setting(
        or_none(one_of(*TASKS)),
        None,
        "what the labels are; none or auto: as they look",
    )
    tell_share: bool = setting(
        a_flag(),
        False,
        "tell parties the share of the rarer of two classes, for what they may drop",
    )
    align: str = setting(one_of(*ALIGNMENTS), "none", "how common rows are found")
    most_ids: int = setting(
        an_int(1), 4_000_000, "ids that a party may offer for it; memory for more"
    )
    method: str = setting(a_text(), "less-vfl-auto", "see 'lessvfl methods'")
    profile: str = setting(a_text(), "default", "default, paper or official-code")
    settings: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata={"kind": _mapping(), "help": "any setting, by name"},
    )
    seeds: tuple[int, ...] = setting(_seeds(), (0,), "one run each: 0, or [0, 1, 2]")
    evaluation: str = setting(
        one_of(*EVALUATIONS),
        "end",
        "when to score: at the end, by test rows alone; after all epochs; not at all",
    )
    silence: float = setting(
        a_float(open_low=True),
        60.0,
        "seconds without a sign of life from a party that is connected",
    )
    save_every: int = setting(an_int(1), 50, "steps between two checkpoints")
    status: str | None = setting(
        or_none(a_text()), None, "HOST:PORT of the status page"
    )


@dataclass(frozen=True)
class PartyConfig(Common):
    """What a party's file says."""

    server: str = setting(a_text(), "127.0.0.1:8815", "HOST:PORT of the server")
    server_name: str = setting(a_text(), "localhost", "the name in its certificate")
    name: str | None = setting(
        or_none(a_text()), None, "who this is, where no certificate says it"
    )
    columns: tuple[str, ...] = setting(
        _names(), ("*",), 'columns (names or globs, "!" for all but)'
    )
    groups: dict[str, Any] | None = setting(
        or_none(_groups()), None, "feature name -> columns that are one feature"
    )
    as_is: tuple[str, ...] | None = setting(
        or_none(_names()), None, "columns of numbers that are not scaled"
    )
    storage: str = setting(
        one_of("auto", "memory", "disk"),
        "auto",
        "where its rows are while it trains; auto: on disk from 1 GiB on",
    )
    scale_range: tuple[float, float] | None = setting(
        or_none(_range()), None, "low and high that all numbers are scaled by"
    )
    reveal: str = setting(
        one_of(*REVEALS), "nothing", "what the server may learn of the selection"
    )
    align: str = setting(one_of(*ALIGNMENTS), "none", "how it lets rows be aligned")
    scale: str = setting(
        one_of("auto", "standardize", "global", "none"),
        "auto",
        "how it scales its numbers; global: by its 'scale_range'",
    )
    max_categories: int = setting(
        an_int(2), 64, "most different texts in a column of categories"
    )
    missing: str = setting(
        one_of("flag", "fill"),
        "flag",
        "missing cells: filled in, with a flag in the same feature; or filled in alone",
    )
    missing_values: dict[str, Any] | None = setting(
        marks_by_column(), None, "column (name or glob) -> what stands for missing"
    )
    must_keep: str | None = setting(
        or_none(a_text()), None, "features (names or globs) that must stay"
    )
    party_net: str | None = setting(
        or_none(a_text()),
        None,
        "its own network: FILE.py:FUNCTION or MODULE:FUNCTION; none: as agreed",
    )
    seed_private: str = setting(
        one_of("own", "shared"),
        "own",
        "its weights and shadows: of its own secret, or as 'lessvfl run' has them",
    )
    policy: Policy = dataclasses.field(
        default_factory=Policy,
        metadata={"kind": _policy(), "help": "what it lets a server ask of it"},
    )


AnyConfig = TypeVar("AnyConfig", bound=Common)


def read(cls: type[AnyConfig], path: Path) -> AnyConfig:
    """Read a YAML file; paths in it become absolute."""
    return _config(cls, path, _values(path))


def read_side(path: Path) -> PartyConfig | ServerConfig:
    """Read the YAML file of whichever side it is, which its settings tell."""
    values = _values(path)
    of_server, of_party = (
        len(values.keys() - settings.fields_of([other]).keys())
        for other in (PartyConfig, ServerConfig)
    )
    if of_server > of_party:
        return _config(ServerConfig, path, values)
    return _config(PartyConfig, path, values)


def _values(path: Path) -> dict[str, Any]:
    """Return the names and values of a YAML file."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The config file '{path}' must be readable. Got this: {error.strerror}."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The config file '{path}' must be YAML. Got this: {yaml_problem(error)}."
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"The config file '{path}' must hold names and values. Got "
            f"{type(values).__name__}."
        )
    return values


def _config(cls: type[AnyConfig], path: Path, values: dict[str, Any]) -> AnyConfig:
    """Return a config of what a file says, or refuse what it may not say."""
    known = settings.fields_of([cls])
    sides = {ServerConfig: "the server", PartyConfig: "a party"}
    for name in values:
        for other in sides if name not in known else ():
            if name in settings.fields_of([other]):
                raise ConfigError(
                    f"The config file '{path}' must be that of {sides[cls]}. Got one "
                    f"with '{name}', which is a setting of {sides[other]}."
                )
        if name not in known:
            raise settings.unknown("setting", str(name), known, f" in '{path}'")
    values = absolute(values, path.parent)
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
    }
    marks = found.get("missing_values")
    if isinstance(marks, dict):  # YAML has dates
        found["missing_values"] = settings.value_of(marks, known["missing_values"])
    if isinstance(found.get("seeds"), int):
        found["seeds"] = (found["seeds"],)
    if "policy" in found:
        found["policy"] = read_policy(found["policy"])
    return cls(**found)


def absolute(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what a file says, paths that are relative to its folder made whole."""

    def whole(some: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        texts = {name: some[name] for name in names if isinstance(some.get(name), str)}
        return some | {k: str((folder / v).resolve()) for k, v in texts.items()}

    found = whole(values, PATHS)
    if isinstance(found.get("policy"), dict):
        found["policy"] = whole(found["policy"], ["predict_ids"])
    return found
