"""A filter by Gini impurity, after the eHealth filter of Castiglia et al., Table 1.

Of the filter (ICC 2022) the abstract is public: features by Gini impurity, counted
under additive secret sharing. Decided here: bins of equally many rows, features kept
beyond what scrambled labels reach (``core/chance``), masks dealt by another party.
"""

from __future__ import annotations

import functools

from lessvfl.core.binning import impurity_removed
from lessvfl.core.ratings import BinMeasure
from lessvfl.methods import filters
from lessvfl.methods.base import Method, follow_plans
from lessvfl.methods.filter_party import FilterParty

MEASURE = BinMeasure("Gini impurity removed", impurity_removed)

METHOD = Method(
    "gini-filter",
    "features by the Gini impurity of their bins, counted under sharing; then training",
    "after the eHealth filter (ICC 2022) of Castiglia et al., ICML 2023, Table 1",
    filters.FilterConfig,
    follow_plans(filters.select),
    profiles=("default",),
    protocol=functools.partial(FilterParty, MEASURE),
)
