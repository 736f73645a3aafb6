"""A filter by information value: what credit scoring uses, as FATE's filters do.

Bins of equally many rows, weight of evidence by bin, IV as its sum (``core/binning``).
Decided here: classes are counted under sharing instead of encryption, so that no
count reaches the server; features kept are those beyond what scrambled labels reach.
"""

from __future__ import annotations

import functools

from lessvfl.core.binning import information
from lessvfl.core.ratings import BinMeasure
from lessvfl.methods import filters
from lessvfl.methods.base import Method, follow_plans
from lessvfl.methods.filter_party import FilterParty

MEASURE = BinMeasure("information value", information, has_woe=True)

METHOD = Method(
    "iv-filter",
    "features by the information value of their bins, counted under sharing",
    "weight of evidence and information value, as in FATE's feature binning",
    filters.FilterConfig,
    follow_plans(filters.select),
    profiles=("default",),
    protocol=functools.partial(FilterParty, MEASURE),
)
