"""The numbers that the paper prints in its Tables 2, 3 and 5 to 8, one row a number.

They were taken from the paper's source and are kept as printed, unmended: data sets by
the paper's names, and the rows of group lasso and local lasso repeated for every λ_s in
Tables 6 to 8. The paper's "MB" are 2**20 bytes. Where it prints "--" there is no row.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Printed:
    """One number of the paper: where it stands, what it measures, mean and ±."""

    table: int
    data: str
    method: str
    measure: str
    settings: Mapping[str, float]
    mean: float
    std: float | None


@functools.cache
def rows(table: int | None = None) -> tuple[Printed, ...]:
    """Return the numbers of one table, or of all, in the paper's order.

    Parameters
    ----------
    table : int, optional
        Number of a table; all tables by default.

    Returns
    -------
    tuple of Printed

    Examples
    --------
    >>> rows(2)[0].data, rows(2)[0].method, rows(2)[0].mean
    ('MIMIC-III', 'group-lasso', 57.35)
    """
    if table is not None:
        return tuple(row for row in rows() if row.table == table)
    source = resources.files("lessvfl.bench.paper") / "printed.json"
    found = json.loads(source.read_text(encoding="ascii"))
    return tuple(Printed(**row) for row in found)


def find(
    table: int, data: str, method: str, measure: str, **settings: float
) -> Printed | None:
    """Return the number printed for exactly these settings, or None.

    Parameters
    ----------
    table : int
        Number of the table.
    data : str
        The paper's name of the data set.
    method, measure : str
        As in the rows.
    **settings : float
        All the settings that the table prints: none in Tables 2 and 3,
        ``pretrain_epochs`` in Table 5, ``lam_party`` and ``lam_server`` in 6 to 8.

    Returns
    -------
    Printed or None

    Examples
    --------
    >>> find(5, "Gina", "less-vfl", "total_mib", pretrain_epochs=1).mean
    1.48
    >>> find(5, "Gina", "less-vfl", "total_mib") is None
    True
    """
    return _by_key().get(_key(table, data, method, measure, settings))


Key = tuple[int, str, str, str, frozenset[tuple[str, float]]]


def _key(
    table: int, data: str, method: str, measure: str, settings: Mapping[str, float]
) -> Key:
    return table, data, method, measure, frozenset(settings.items())


@functools.cache
def _by_key() -> Mapping[Key, Printed]:
    return {
        _key(row.table, row.data, row.method, row.measure, row.settings): row
        for row in rows()
    }
