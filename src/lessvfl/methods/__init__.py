"""The registry of methods: one file and one line each."""

from __future__ import annotations

from lessvfl import settings
from lessvfl.methods import (
    auto_boost,
    counterfactual,
    dual_gates,
    filters,
    group_lasso,
    less_vfl,
    less_vfl_auto,
    local_lasso,
    mmvfl,
    plain,
    pso_trees,
    vertical_boost,
    vertical_forest,
    vflfs,
    vprf,
)
from lessvfl.methods.base import Method

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        less_vfl_auto.METHOD,
        less_vfl.METHOD,
        local_lasso.METHOD,
        group_lasso.METHOD,
        plain.METHOD,
        mmvfl.METHOD,
        counterfactual.METHOD,
        dual_gates.METHOD,
        vflfs.METHOD,
        filters.GINI,
        filters.INFORMATION_VALUE,
        vertical_boost.METHOD,
        vertical_forest.METHOD,
        auto_boost.METHOD,
        pso_trees.METHOD,
        vprf.METHOD,
    )
}
DEFAULT = less_vfl_auto.METHOD.name  # where no method is named


def get(name: str) -> Method:
    """Return a method by its name.

    >>> get("less-vfl").name
    'less-vfl'
    """
    if name not in METHODS:
        raise settings.unknown("method", name, METHODS)
    return METHODS[name]
