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

    >>> rows(2)[0].data, rows(2)[0].method, rows(2)[0].mean
    ('MIMIC-III', 'group-lasso', 57.35)
    """
    if table is not None:
        return tuple(row for row in rows() if row.table == table)
    source = resources.files("lessvfl_bench.paper") / "printed.json"
    found = json.loads(source.read_text(encoding="ascii"))
    return tuple(Printed(**row) for row in found)


def find(
    table: int, data: str, method: str, measure: str, **settings: float
) -> Printed | None:
    """Return the number printed for exactly these settings, or None.

    Tables 2 and 3 have no settings, Table 5 ``pretrain_epochs``, and Tables 6 to 8
    ``lam_party`` and ``lam_server``.

    >>> find(5, "Gina", "less-vfl", "total_mib", pretrain_epochs=1).mean
    1.48
    """
    wanted = (data, method, measure, settings)
    for row in rows(table):
        if (row.data, row.method, row.measure, row.settings) == wanted:
            return row
    return None
