"""The checks that the options of all benchmarks pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lessvfl.errors import ConfigError


def check_options(
    lists: Mapping[str, Sequence[Any]], known: Mapping[str, tuple[Any, Collection[Any]]]
) -> None:
    """Refuse lists that are empty or name one twice, seeds, and what is not known.

    `known` has an option's value, or its values, and what is allowed.
    """
    for name, values in lists.items():
        if not values or len(set(values)) < len(values):
            raise ConfigError(
                f"The '{name}' option must name at least one, each once. "
                f"Got {list(values)}."
            )
    if not all(0 <= seed < 2**63 for seed in lists["seeds"]):
        raise ConfigError(
            "Every seed must be a whole number in [0, 2**63). "
            f"Got {list(lists['seeds'])} as 'seeds'."
        )
    for name, (value, allowed) in known.items():
        one = isinstance(value, str)
        wrong = [v for v in ([value] if one else value) if v not in allowed]
        if wrong:
            rule = "be one of" if one else "hold some of"
            raise ConfigError(
                f"The '{name}' option must {rule} {', '.join(map(str, allowed))}. "
                f"Got {wrong[0]!r} instead."
            )
