"""Rates fitted to what was measured, and the verdict in sentences derived from them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NU = 2  # the smallest exponent a smooth risk can have in Lemma B.2: the fastest rate
THEOREM_RATE = -1 / (4 * (NU - 1))  # exponent of N in Theorem 4.3 (ii), without its log
N_RESAMPLES = 2000
TITLES = {
    "less-vfl": "LESS-VFL",
    "local-lasso": "Local lasso",
    "group-lasso": "Group lasso",
    "centralised": "Centralised group lasso",
}


def bound_slope(n: Sequence[int]) -> float:
    """Return the slope of the theorem's bound over these N, its logarithm included.

    >>> round(bound_slope([1000, 10_000, 100_000, 1_000_000]), 3)
    -0.225
    """
    sizes = np.asarray(n, dtype=np.float64)
    bound = (np.log(sizes) / sizes) ** -THEOREM_RATE
    return _slope(np.log10(sizes), bound) or THEOREM_RATE


def recovery(recovered: Sequence[bool]) -> dict[str, float]:
    """Return the share of exact recoveries and Wilson's 95 % interval.

    >>> {key: round(value, 3) for key, value in recovery([True] * 10).items()}
    {'mean': 1.0, 'low': 0.722, 'high': 1.0}
    """
    n, z = len(recovered), 1.959964
    share = sum(recovered) / n
    middle = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    low = (middle - half) / scale if share > 0 else 0.0
    high = (middle + half) / scale if share < 1 else 1.0
    return {"mean": share, "low": low, "high": high}


def fit_rate(n: Sequence[int], values: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Fit mean ~ N^slope by least squares of logarithms, and bootstrap over seeds.

    `values` holds the seeds of every size. Zeros count in a mean; a size whose mean is
    zero has no logarithm and is left out. Without three sizes there is no slope.
    """
    table = np.asarray(values, dtype=np.float64)  # (sizes, seeds)
    logs = np.log10(np.asarray(n, dtype=np.float64))
    n_points = int((table.mean(axis=1) > 0).sum())
    n_zero, n_runs = int((table == 0).sum()), int(table.size)
    notes = []
    if n_zero:
        notes.append(f"{n_zero} of {n_runs} runs are exactly 0 and count as 0 in means")
    if n_points < len(n):
        notes.append(f"{len(n) - n_points} of {len(n)} sizes are 0 in all, left out")
    if n_points < 3:
        notes.append("fewer than 3 sizes are left, so there is no fit")
    slope = low = high = None
    if n_points >= 3:
        slope = _slope(logs, table.mean(axis=1))
        draw = np.random.default_rng(0)
        picks = draw.integers(table.shape[1], size=(N_RESAMPLES, table.shape[1]))
        drawn = [_slope(logs, table[:, pick].mean(axis=1)) for pick in picks]
        known = [value for value in drawn if value is not None]
        low, high = map(float, np.percentile(known, [2.5, 97.5]))
    interval = {"slope": slope, "low": low, "high": high}
    return {**interval, "n_points": n_points, "note": "; ".join(notes)}


def _slope(logs: NDArray[np.float64], means: NDArray[np.float64]) -> float | None:
    positive = means > 0
    if positive.sum() < 2:
        return None
    x, y = logs[positive], np.log10(means[positive])
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def _series(entry: dict[str, Any]) -> str:
    """Name the rows that a rate is fitted to."""
    if "design" in entry:
        return f"stage 2, {entry['design']}"
    method, n_components = str(entry["method"]), entry["components"]
    return method if n_components == 1 else f"{method}, {n_components} components"


def fit_all(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Fit both quantities of every method and M, and of stage 2 alone."""
    series: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for entry in [*results["results"], *results["surplus"], *results["stage2"]]:
        key = _series(entry), entry.get("parties")
        series.setdefault(key, []).append(entry)
    return [
        {"method": method, "parties": n_parties, "quantity": quantity}
        | fit_rate([e["n"] for e in entries], [e[quantity] for e in entries])
        for (method, n_parties), entries in series.items()
        for quantity in ("norm", "distance")
    ]


# -- the verdict -----------------------------------------------------------------------


def verdict(results: dict[str, Any]) -> list[str]:
    """Put the numbers into sentences: where practice agrees with the theorem."""
    said = []
    for method, title in TITLES.items():
        entries = [e for e in results["results"] if e["method"] == method]
        said.append(_recovery_verdict(title, entries))
        said += _rate_verdict(title, method, results)
    return [*said, *_stage2_verdict(results), *_surplus_verdict(results)]


def _at(entries: Sequence[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["n"] == n]


def _recovery_verdict(title: str, entries: Sequence[dict[str, Any]]) -> str:
    sizes = [entry["n"] for entry in entries]
    first, last = _at(entries, min(sizes)), _at(entries, max(sizes))
    steps = ", ".join(
        f"{before['recovery']['mean']:.0%} to {after['recovery']['mean']:.0%} "
        f"(M = {after['parties']})"
        for before, after in zip(first, last, strict=True)
    )
    zeros = statistics.fmean(entry["zero_share"] for entry in last)
    return (
        f"{title}: from N = {min(sizes):,} to {max(sizes):,} exact recovery goes from "
        f"{steps}; at the end {zeros:.1%} of the non-significant features have weights "
        "of exactly zero."
    )


def _rate_verdict(title: str, method: str, results: dict[str, Any]) -> list[str]:
    rates, bound = results["rates"], results["bound_slope"]
    said = []
    for quantity, words in (
        ("norm", "the norm of the non-significant weights goes as"),
        ("distance", "the distance to the generating network goes as"),
    ):
        own = [r for r in rates if (r["method"], r["quantity"]) == (method, quantity)]
        fits = [rate for rate in own if rate["slope"] is not None]
        if fits:
            slopes = ", ".join(f"{_interval(r)} for M = {r['parties']}" for r in fits)
            said.append(f"{title}: {words} {slopes}. {_judge(fits, bound)}")
        if len(fits) < len(own):
            without = ", ".join(str(r["parties"]) for r in own if r["slope"] is None)
            said.append(
                f"{title}: fewer than three sizes have a {quantity} above zero, so "
                f"there is no rate for M = {without}."
            )
    return said


def _interval(rate: dict[str, Any]) -> str:
    return f"N^{rate['slope']:.2f} (95 %: {rate['low']:.2f} to {rate['high']:.2f})"


def _judge(fits: Sequence[dict[str, Any]], bound: float) -> str:
    """Compare slopes with a bound from above, as steep as the theorem says."""
    kinds: dict[str, list[str]] = {}
    for rate in fits:
        if rate["high"] <= bound:
            kind = "at least as fast: practice agrees"
        elif rate["low"] > bound:
            kind = "slower: practice does not agree at these N"
        else:
            kind = "the interval holds it: not told apart"
        name = f"M = {rate['parties']}" if rate["parties"] else ""
        kinds.setdefault(kind, []).append(name)
    if len(kinds) == 1:
        said = next(iter(kinds))
    else:
        said = "; ".join(f"{', '.join(names)} {kind}" for kind, names in kinds.items())
    return f"Against the theorem's N^{bound:.2f} at these N: {said}."


def _stage2_verdict(results: dict[str, Any]) -> list[str]:
    said = [
        "Stage 2 alone: the theorem bounds the distance to server weights that are "
        "zero on non-significant components. It promises no exact recovery."
    ]
    for entry in _at(results["stage2"], max(results["n"])):
        design = entry["design"]
        said.append(
            f"Stage 2 alone, {design} components: at N = {entry['n']:,} the support is "
            f"exact in {entry['recovery']['mean']:.0%} of the runs."
        )
        for rate in results["rates"]:
            if rate["method"] == _series(entry) and rate["slope"] is not None:
                said.append(
                    f"Stage 2 alone, {design} components: the {rate['quantity']} goes "
                    f"as {_interval(rate)}. {_judge([rate], results['bound_slope'])}"
                )
    return said


def _surplus_verdict(results: dict[str, Any]) -> list[str]:
    said = []
    for entry in _at(results["surplus"], max(results["n"])):
        share = entry["recovery"]["mean"]
        words = (
            f"{TITLES[entry['method']]} with {entry['components']} components a party "
            f"where one would do, M = {entry['parties']}: at N = {entry['n']:,} "
            f"recovery is exact in {share:.0%} of the runs, and "
            f"{entry['zero_share']:.1%} of the non-significant features have weights "
            "of exactly zero."
        )
        leak = {key: statistics.fmean(by) for key, by in entry["leak"].items()}
        words += (
            " Redrawing all non-significant features moves its pre-trained components "
            f"by {leak['components']:.1%} of their spread, but the prediction by "
            f"{leak['prediction']:.1%}"
        )
        if share < 0.5 and leak["components"] > 2 * leak["prediction"]:
            words += (
                ": the server cancels what Proposition 4.4 says is not there, and "
                "practice does not agree"
            )
        words += "."
        for rate in results["rates"]:
            own = (rate["method"], rate["quantity"]) == (_series(entry), "norm")
            if own and rate["slope"] is not None:
                judged = _judge([rate], results["bound_slope"])
                words += f" The norm goes as {_interval(rate)}. {judged}"
        said.append(words)
    return said
