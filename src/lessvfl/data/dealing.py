"""Who holds which columns, by number, size or name, and the file that says so."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lessvfl.data.frame import DataConfig
from lessvfl.data.yaml_files import yaml_problem
from lessvfl.errors import ConfigError, warn
from lessvfl.settings import near, refuse
from lessvfl.terms import listed, plural, stream_seed

# How many parties, how many columns each has, or the columns (names, globs) of each.
PartySpec = int | Sequence[int] | Mapping[str, Sequence[str]]


def deal_columns(
    names: Sequence[str],
    parties: PartySpec,
    config: DataConfig,
    seed: int,
    unused: Collection[str] = (),
) -> dict[str, list[str]]:
    """Say which party holds which columns; a number of parties deals no `unused`."""
    if isinstance(parties, Mapping):
        return _deal_by_name(names, parties)
    if isinstance(parties, int | np.integer):
        names = [name for name in names if name not in unused]
    sizes = _sizes(len(names), parties, config.uneven, len(unused))
    order = list(names)
    if config.columns == "random":
        rng = np.random.default_rng(stream_seed(seed, "columns"))
        order = [order[i] for i in rng.permutation(len(order))]
    ends = np.cumsum(sizes)
    return {
        f"party{i}": order[end - size : end]
        for i, (size, end) in enumerate(zip(sizes, ends, strict=True))
    }


def _sizes(
    n_columns: int, parties: int | Sequence[int], uneven: str, n_unused: int
) -> list[int]:
    """Return how many columns each party gets."""
    allowed = "a whole number >= 1, sizes such as [10, 20], or names with their columns"
    if isinstance(parties, int | np.integer):
        if not _is_count(parties):
            raise refuse("parties", "argument", allowed, parties)
        if parties > n_columns:
            more = f"; {n_unused} more {'is' if n_unused == 1 else 'are'} left out"
            raise ConfigError(
                f"Every party must hold a feature of its own. Got {parties} parties "
                f"for n_features = {n_columns}{more * bool(n_unused)}."
            )
        share, rest = divmod(n_columns, int(parties))
        extra = rest if uneven == "spread" else 0
        return [share + (i < extra) for i in range(parties)]
    sizes = list(parties) if isinstance(parties, list | tuple) else []
    if not sizes or not all(_is_count(size) for size in sizes):
        raise refuse("parties", "argument", allowed, parties)
    if sum(sizes) != n_columns:
        raise ConfigError(
            f"The sizes of the parties must add up to the number of columns, "
            f"{n_columns}. Got {sizes}, which add up to {sum(sizes)}."
        )
    return sizes


def _is_count(size: Any) -> bool:
    whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
    return whole and size >= 1


def _deal_by_name(
    names: Sequence[str], parties: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return the columns that each party names, and warn of those nobody names."""
    if not parties:
        raise ConfigError("The parties must be one or more. Got none.")
    held: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for party, patterns in parties.items():
        held[party] = match_columns(names, patterns, f"party '{party}'")
        for column in held[party]:
            if column in owner:
                raise ConfigError(
                    f"Column '{column}' must belong to one party. "
                    f"Got '{owner[column]}' and '{party}'."
                )
            owner[column] = party
    excluded = excluded_columns(names, parties)
    left = [name for name in names if name not in owner and name not in excluded]
    if left:
        warn(
            f"{plural(len(left), 'column belongs', 'columns belong')} to no party and "
            f"{'is' if len(left) == 1 else 'are'} left out: {listed(left)}."
        )
    return held


def refuse_taken(taken: Mapping[str, str], parties: Any) -> None:
    """Refuse a party that names a column of labels, or of another role."""
    for party, patterns in parties.items() if isinstance(parties, Mapping) else ():
        for pattern in [patterns] if isinstance(patterns, str) else map(str, patterns):
            if (role := taken.get(pattern.removeprefix(EXCEPT))) is not None:
                raise ConfigError(
                    f"The columns of party '{party}' must be features, which a column "
                    f"of {role} is not. Got '{pattern}'."
                )


GLOB = re.compile(r"[*?\[]")
EXCEPT = "!"  # before what is excluded; \\! for a name that begins with it


def match_columns(
    names: Sequence[str], patterns: Sequence[str] | str, owner: str
) -> list[str]:
    """Return the columns that names or globs stand for, each once, in order.

    Those after a ``!`` are left out of the others, or of all where there are no others.
    """
    return _matched_and_excluded(names, patterns, owner)[0]


def _matched_and_excluded(
    names: Sequence[str], patterns: Sequence[str] | str, owner: str
) -> tuple[list[str], list[str]]:
    """Return the columns that patterns stand for, and those that they leave out."""
    known = dict.fromkeys(names)
    wanted, unwanted = [], []
    for pattern in [patterns] if isinstance(patterns, str) else map(str, patterns):
        if pattern.startswith(EXCEPT) and pattern not in known:
            unwanted.append(pattern.removeprefix(EXCEPT))
        else:  # a column's own name is no mark
            wanted.append(pattern)
    if not wanted and not unwanted:
        raise ConfigError(f"The columns of {owner} must be one or more. Got none.")
    matched = [name for pattern in wanted for name in _matches(known, pattern, owner)]
    excluded = [
        name for pattern in unwanted for name in _matches(known, pattern, owner, EXCEPT)
    ]
    left = dict.fromkeys(matched if wanted else known)
    for name in excluded:
        left.pop(name, None)
    if not left:
        marked = listed([f"'{EXCEPT}{pattern}'" for pattern in unwanted])
        raise ConfigError(
            f"The columns of {owner} must be one or more. Got none after {marked}."
        )
    return list(left), excluded


def _matches(
    known: Collection[str], pattern: str, owner: str, mark: str = ""
) -> list[str]:
    """Return the columns of one name or glob, or refuse one that has none."""
    if pattern in known:
        return [pattern]
    plain = pattern.removeprefix("\\") if pattern.startswith("\\!") else pattern
    matches = [name for name in known if fnmatch.fnmatchcase(name, plain)]
    if not matches and not (mark and GLOB.search(pattern)):
        raise ConfigError(
            f"The columns of {owner} must be in the table. "
            f"Got '{mark}{pattern}', which matches none.{near(pattern, known)}"
        )
    return matches


def excluded_columns(names: Sequence[str], parties: PartySpec) -> dict[str, str]:
    """Return the columns that a party excludes and none has, with that party."""
    if not isinstance(parties, Mapping):
        return {}
    by_party: dict[str, str] = {}
    held: set[str] = set()
    for party, patterns in parties.items():
        matched, excluded = _matched_and_excluded(names, patterns, f"party '{party}'")
        held.update(matched)
        for name in excluded:
            by_party.setdefault(name, party)
    return {n: by_party[n] for n in names if n in by_party and n not in held}


def owners(held: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the party that holds each column."""
    return {column: party for party, columns in held.items() for column in columns}


def features_of(
    held: Mapping[str, Sequence[str]], groups: Mapping[str, Sequence[str]] | None
) -> dict[str, str]:
    """Return the feature of each column that a group names."""
    owner = owners(held)
    feature_of: dict[str, str] = {}
    for feature, patterns in (groups or {}).items():
        columns = match_columns(list(owner), patterns, f"feature '{feature}'")
        holders = sorted({owner[column] for column in columns})
        if len(holders) > 1:
            raise ConfigError(
                f"The columns of feature '{feature}' must belong to one party. "
                f"Got columns of {' and '.join(repr(party) for party in holders)}."
            )
        for column in columns:
            if column in feature_of:
                raise ConfigError(
                    f"Column '{column}' must belong to one feature. "
                    f"Got '{feature_of[column]}' and '{feature}'."
                )
            feature_of[column] = feature
    for feature in feature_of.values():
        if feature in owner and feature_of.get(feature) != feature:
            raise ConfigError(
                f"The feature '{feature}' must not be named like a column outside it. "
                f"Got a column '{feature}' of party '{owner[feature]}'."
            )
    return feature_of


def read_parties(path: str | Path, of: str = "party") -> dict[str, list[str]]:
    """Read a YAML file of names with their columns: ``clinic: ["lab_*", "!lab_id"]``.

    `of` says what the names are (party or feature), for error messages.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The file of {of} names must be readable. Got '{path}' ({error})."
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(
            f"The file of {of} names '{path}' must be YAML. Got this: "
            f"{yaml_problem(error)}."
        ) from None
    return columns_by_name(content, path, of)


def columns_by_name(
    content: Any, path: str | Path, of: str = "party"
) -> dict[str, list[str]]:
    """Return names with their columns, as the file at `path` has them."""
    if not isinstance(content, dict) or not content:
        raise ConfigError(
            f"The file '{path}' must map {of} names to columns. "
            f"Got {type(content).__name__}."
        )
    parties: dict[str, list[str]] = {}
    for party, columns in content.items():
        columns = [columns] if isinstance(columns, str) else columns
        if not isinstance(columns, list) or not columns:
            raise ConfigError(
                f"The columns of {of} '{party}' in '{path}' must be a list of names "
                f"or globs. Got {columns!r}."
            )
        parties[str(party)] = [str(column) for column in columns]
    return parties
