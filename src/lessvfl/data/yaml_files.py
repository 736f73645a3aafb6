"""YAML files of names and values."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lessvfl.errors import ConfigError

MOST_VALUES = 1_000_000  # of a file
UNQUOTED = re.compile(r"""^[^"'#]*?[\[,:-]\s*(![^\s,\]}"'\0]+)""", re.MULTILINE)


def read_yaml(path: Path) -> dict[Any, Any]:
    """Return the names and values in the YAML file at `path`, or refuse the file."""
    import yaml

    try:
        values = _loaded(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The config file '{path}' must be readable. Got this: {error.strerror}."
        ) from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        raise ConfigError(
            f"The config file '{path}' must be YAML. Got this: {yaml_problem(error)}."
        ) from None
    except RecursionError:
        raise ConfigError(
            f"The config file '{path}' must be YAML. Got this: values within values "
            "without end."
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"The config file '{path}' must hold names and values. Got "
            f"{type(values).__name__}."
        )
    return values


def _loaded(text: str) -> Any:
    """Return the value of a YAML text, or refuse aliases that make it much larger."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if _n_values(node, {}) > MOST_VALUES:
            raise ValueError(f"more values by its aliases than {MOST_VALUES:,}")
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _n_values(node: Any, known: dict[int, float]) -> float:
    """Return how many values a node stands for; those of an alias count every time."""
    if id(node) not in known:
        known[id(node)] = math.inf  # while it is counted: of an alias within itself
        inner = getattr(node, "value", None)
        parts = inner if isinstance(inner, list) else ()
        inner_nodes = itertools.chain.from_iterable(
            part if isinstance(part, tuple) else (part,) for part in parts
        )
        known[id(node)] = 1 + sum(_n_values(one, known) for one in inner_nodes)
    return known[id(node)]


def write_yaml(path: Path, values: Mapping[str, Any], about: str) -> None:
    """Write names and values below a few lines about them."""
    import yaml

    head = "".join(f"# {line}\n" for line in about.splitlines())
    body = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
    path.write_text(head + body, encoding="utf-8")


def yaml_problem(error: Exception) -> str:
    """Say what is wrong with a text that is not YAML, and in which line.

    An exclusion without quotes is a tag to YAML, and named where there is one.
    """
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    problem = str(getattr(error, "problem", None) or "it cannot be read")
    if unquoted := UNQUOTED.search(mark.buffer or ""):
        name = unquoted.group(1)
        return f"'{name}' without quotes; write \"{name}\""
    return f"{problem} in line {mark.line + 1}"
