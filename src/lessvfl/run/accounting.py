"""What a run spends of privacy, composed by the accountant of dp-accounting.

A side's settings say which mechanisms stand before what it sends, and the plans of the
method how often a row is in it. Nothing is made smaller by sampling: both sides know
the rows of every batch. What has no mechanism with a price has no epsilon here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lessvfl.core.plans import QueryPlan, TrainPlan
from lessvfl.core.privacy import ClippedNoise, GradientDefence
from lessvfl.errors import ConfigError
from lessvfl.mechanisms import RandomisedResponse, Releases
from lessvfl.run.profiles import Settings
from lessvfl.terms import Evaluation, plural

EXTRA = "privacy"
DELTA = 1e-5  # unless a side says otherwise
LOUD = 25.0  # sum of 1 / noise² from which a bound on epsilon serves: it is large
MOST_NOISE = 1e6  # a deviation by the sensitivity that nothing is left of a row at


class Extent(NamedTuple):
    """How often rows are in a run, beside what its settings say."""

    n_parties: int
    evaluation: Evaluation = "end"
    n_seeds: int = 1
    delta: float = DELTA
    n_rows: int = 0  # for training, at most


@dataclass(frozen=True)
class Spend:
    """What a run may tell of one row of a side, if all who get it put it together.

    `releases` are those of all seeds, `each` one of them.
    """

    mechanism: str
    releases: tuple[Releases, ...]
    adjacency: str
    covers: str
    delta: float = DELTA

    @functools.cached_property
    def epsilon(self) -> float:
        """Return epsilon of all releases together."""
        return epsilon_of(self.releases, self.delta)

    @functools.cached_property
    def each(self) -> float:
        """Return epsilon of the one release that tells most."""
        single = [dataclasses.replace(one, times=1) for one in self.releases]
        return max((epsilon_of([one], self.delta) for one in single), default=0.0)

    def numbers(self) -> dict[str, Any]:
        """Return it as the record has it."""
        return {
            "mechanism": self.mechanism,
            "epsilon": finite(self.epsilon),
            "delta": self.delta,
            "each": finite(self.each),
            "releases": sum(one.times for one in self.releases),
            "adjacency": self.adjacency,
            "covers": self.covers,
        }


def finite(value: float) -> float | None:
    """Return a number as JSON has it: infinity is null."""
    return value if math.isfinite(value) else None


def of_labels(
    own: Settings, n_classes: int, n_parties: int, n_seeds: int = 1
) -> Spend | None:
    """Return what a run spends of a label, if all parties put together what they got.

    None where no mechanism with a price stands before it. Randomised labels cost once,
    whatever is computed from them.
    """
    labels = own.labels
    check_gradients(own, n_parties)
    if labels.label_epsilon is not None:
        response = RandomisedResponse(labels.label_epsilon, n_classes)
        how = (response.adjacency, response.covers, 0.0)
        return Spend("randomised labels", (response.releases(),), *how)
    if labels.gradient_defence != "gaussian":
        return None
    defence = GradientDefence("gaussian", labels.gradient_noise, labels.gradient_clip)
    times = n_gradients(own, n_parties) * n_parties * n_seeds
    noise = defence.mechanism
    releases = (noise.releases(times),)
    return Spend("noise on gradients", releases, noise.adjacency, noise.covers)


def of_columns(own: Settings, extent: Extent) -> Spend | None:
    """Return what a run spends of a row of a party's columns.

    None where no mechanism with a price stands before it.
    """
    noise = _on_embeddings(own, extent)
    if noise is None:
        return None
    releases = (noise.releases(n_embeddings(own, extent)),)
    first = own.data.noise_at == "first-layer"
    where = "the first layer" if first else "embeddings"
    how = (noise.adjacency, noise.covers, extent.delta)
    return Spend(f"noise on {where}", releases, *how)


def unpriced(own: Settings) -> list[str]:
    """Return the names of defences that are on and promise nothing."""
    kind = own.labels.gradient_defence
    return [kind] if kind in ("marvell", "max-norm") else []


def check_gradients(own: Settings, n_parties: int) -> None:
    """Refuse a defence of gradients where labels leave in other messages, too."""
    kind = own.labels.gradient_defence
    if kind != "none" and _asks(own, n_parties):
        raise ConfigError(
            "The 'gradient_defence' setting protects no other messages: method "
            f"{own.method} tells parties more than gradients. Got '{kind}' with it."
        )


def _asks(own: Settings, n_parties: int) -> bool:
    """Tell whether a method has questions and answers of its own."""
    return any(isinstance(plan, QueryPlan) for plan in own.config.plans(n_parties))


def _on_embeddings(own: Settings, extent: Extent) -> ClippedNoise | None:
    """Return the noise on a party's embeddings, None without any.

    With `embedding_epsilon` as much as all embeddings of a row may spend.
    """
    data = own.data
    if not data.has_noise:
        return None
    if _asks(own, extent.n_parties):
        raise ConfigError(
            f"Noise on embeddings protects no other messages: method {own.method} asks "
            "parties for counts, sums or values of its own. Got 'embedding_noise' or "
            "'embedding_epsilon' with it."
        )
    if data.embedding_epsilon is None:
        return ClippedNoise(data.embedding_clip, data.embedding_noise)
    times = n_embeddings(own, extent)
    by_sensitivity = noise_for(data.embedding_epsilon, extent.delta, times)
    one = ClippedNoise(data.embedding_clip, 1.0)
    noise = by_sensitivity * one.sensitivity / one.clip
    return ClippedNoise(data.embedding_clip, noise)


def with_noise(own: Settings, extent: Extent) -> Settings:
    """Return the settings with as much noise as `embedding_epsilon` asks for."""
    noise = _on_embeddings(own, extent)
    if noise is None:
        return own
    of_rows = dataclasses.replace(
        own.data, embedding_noise=noise.noise, embedding_epsilon=None
    )
    return dataclasses.replace(own, data=of_rows)


def n_gradients(own: Settings, n_parties: int) -> int:
    """Return how many gradients by a row a party is sent in one seed, at most."""
    plans = own.config.plans(n_parties)
    return sum(math.ceil(p.n_epochs) for p in plans if isinstance(p, TrainPlan))


def n_embeddings(own: Settings, extent: Extent) -> int:
    """Return how many embeddings of a row leave a party in all seeds, at most.

    A training row goes through every epoch, or with `n_rows` of them is held out, and
    looked at as often as these are; it is perhaps among those of stage 2. A test row is
    scored. With ``epochs`` both are, after every stage, too.
    """
    plans = own.config.plans(extent.n_parties)
    n_passes = sum(
        max(math.ceil(plan.n_epochs), plan.n_looks(extent.n_rows))
        for plan in plans
        if isinstance(plan, TrainPlan)
    )
    n_passes += own.config.stored() is not None
    if extent.evaluation == "epochs":
        n_passes += n_gradients(own, extent.n_parties) + len(plans)
    return max(n_passes, 1) * extent.n_seeds


# ----------------------------------------------------------------------- the accountant


def epsilon_of(releases: Sequence[Releases], delta: float) -> float:
    """Return epsilon of releases about one row, all together.

    >>> epsilon_of([Releases("randomised response", 3.0)], delta=0.0)
    3.0
    """
    return _composed(tuple(releases), delta)


@functools.cache
def _composed(releases: tuple[Releases, ...], delta: float) -> float:
    if not releases:
        return 0.0
    if len(releases) == 1 and releases[0].kind == "randomised response":
        if releases[0].times == 1:
            return releases[0].noise  # by its definition
    accountant, event = _accountant(), _event
    if sum(one.times / one.noise**2 for one in releases) > LOUD:
        accountant, event = _bound(), _event_by_sensitivity
    for one in releases:
        if one.kind == "gaussian":
            accountant.compose(event(one), one.times)
        else:  # whose count dp-accounting leaves out of account
            for _ in range(one.times):
                accountant.compose(event(one))
    return float(accountant.get_epsilon(delta))


@functools.cache
def noise_for(epsilon: float, delta: float, times: int) -> float:
    """Return the deviation, by the sensitivity, of so many Gaussian releases."""
    dp = _library()
    bound = _calibrated(_bound, _event_by_sensitivity, epsilon, delta, times, None)
    if epsilon > LOUD / 2:
        found = bound
    else:
        is_near = epsilon >= 1  # for less, the bound is far too large
        near = dp.ExplicitBracketInterval(bound / 2, bound) if is_near else None
        found = _calibrated(_accountant, _event, epsilon, delta, times, near)
    if found > MOST_NOISE:
        raise ConfigError(
            f"An epsilon must leave something of a row. Got {epsilon:g} for "
            f"{plural(times, 'release')}."
        )
    return found


def _calibrated(
    new: Callable[[], Any],
    event_of: Callable[[Releases], Any],
    epsilon: float,
    delta: float,
    times: int,
    near: Any,
) -> float:
    """Return the noise by which an accountant has so many releases spend epsilon."""
    dp = _library()

    def event(noise: float) -> Any:
        return dp.SelfComposedDpEvent(event_of(Releases("gaussian", noise)), times)

    start = near or dp.LowerEndpointAndGuess(0.0, math.sqrt(times))
    how = (new, event, epsilon, delta, start)
    return float(dp.calibrate_dp_mechanism(*how, tol=1e-4))


def _accountant() -> Any:
    """Return an accountant of rows in whose place another one is."""
    dp = _library()
    return dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)


def _bound() -> Any:
    """Return an accountant by Rényi divergences: a bound, at once for any noise."""
    dp = _library()
    return dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)


def _event(one: Releases) -> Any:
    """Return releases as the first accountant has them: by the norm of a row.

    That is half the sensitivity.
    """
    return _event_by_sensitivity(
        one if one.kind != "gaussian" else dataclasses.replace(one, noise=2 * one.noise)
    )


def _event_by_sensitivity(one: Releases) -> Any:
    """Return releases as dp-accounting knows them; nothing else is known to it."""
    dp = _library()
    if one.kind == "gaussian":
        return dp.GaussianDpEvent(one.noise)
    mechanism = RandomisedResponse(one.noise, one.n_classes)
    drawn = mechanism.flips * one.n_classes  # of all classes, its own too
    return dp.RandomizedResponseDpEvent(drawn, one.n_classes)


def _library() -> Any:
    try:
        import dp_accounting
        from dp_accounting import pld, rdp
    except ImportError:
        raise ConfigError(
            f"An epsilon of noise needs the package dp-accounting, extra '{EXTRA}', as "
            f"in pip install 'lessvfl[{EXTRA}]'. Got no such package."
        ) from None
    assert pld
    assert rdp
    return dp_accounting
