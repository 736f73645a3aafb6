"""What a run spends of privacy, composed in closed form.

A side's settings say which mechanisms stand before what it sends, and the plans of the
method how often a row is in it. Nothing is made smaller by sampling: both sides know
the rows of every batch. What has no mechanism with a price has no epsilon here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from lessvfl.core.plans import QueryPlan, TrainPlan
from lessvfl.errors import ConfigError
from lessvfl.privacy.accounting import epsilon_of, noise_for
from lessvfl.privacy.mechanisms import RandomisedResponse, Releases
from lessvfl.privacy.noise import ClippedNoise, GradientDefence
from lessvfl.run.profiles import Settings
from lessvfl.terms import Evaluation

DELTA = 1e-5  # unless a side says otherwise


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
        single = [dataclasses.replace(kind, times=1) for kind in self.releases]
        return max((epsilon_of([kind], self.delta) for kind in single), default=0.0)

    def numbers(self) -> dict[str, Any]:
        """Return mechanism, epsilon and the rest as the entry that a record has."""
        return {
            "mechanism": self.mechanism,
            "epsilon": finite(self.epsilon),
            "delta": self.delta,
            "each": finite(self.each),
            "releases": sum(kind.times for kind in self.releases),
            "adjacency": self.adjacency,
            "covers": self.covers,
        }


def finite(value: float) -> float | None:
    """Return a number as JSON has it: infinity is null."""
    return value if math.isfinite(value) else None


def of_labels(
    settings: Settings,
    n_classes: int,
    n_parties: int,
    n_seeds: int = 1,
    tells_share: bool = False,
) -> Spend | None:
    """Return what a run spends of a label, if all parties put together what they got.

    None where no mechanism with a price stands before it, or not before all that leaves
    (`unpriced_uses`). Randomised labels cost once, whatever is computed from them.
    Of gradients every step that a row is in is one release, to all parties together.
    """
    labels = settings.labels
    kind, epsilon = labels.gradient_defence, labels.label_epsilon
    if kind != "none" and _has_queries(settings, n_parties):
        raise ConfigError(
            "The 'gradient_defence' setting protects no other messages: method "
            f"{settings.method} tells parties more than gradients. Got '{kind}' with "
            "it."
        )
    if epsilon is not None:
        mechanism = "randomised labels"
        releases = RandomisedResponse(epsilon, n_classes).releases()
    elif kind == "gaussian" and not unpriced_uses(settings, n_classes, tells_share):
        mechanism = "noise on gradients"
        defence = GradientDefence(
            "gaussian", labels.gradient_noise, labels.gradient_clip
        )
        n_releases = n_gradients(settings, n_parties) * n_seeds
        releases = defence.mechanism.releases(n_releases)
    else:
        return None
    return Spend(
        mechanism,
        (releases,),
        adjacency=RandomisedResponse.adjacency,
        covers=RandomisedResponse.covers,
        delta=DELTA if epsilon is None else 0.0,
    )


def unpriced_uses(
    settings: Settings, n_classes: int, tells_share: bool = False
) -> list[str]:
    """Return what a run computes from true labels beside gradients, and who sees it.

    With any of these an epsilon of noise on gradients would not be one of labels. Each
    names the setting that does without.
    """
    uses = {
        "labels that are amounts, which are scaled by all of them": n_classes == 0,
        "stage 2, which chooses components by labels (server_rows=0 of less-vfl-auto "
        "or method=local-lasso leaves it out)": settings.config.stored() is not None,
        "schedule=watched, which ends training by labels (cosine does not)": (
            settings.config.schedule == "watched"
        ),
        "class_weight, which depends on how many labels are alike (none does not)": (
            settings.labels.class_weight is not None
        ),
        "split=stratified, which draws test rows by labels (random does not)": (
            settings.data.split == "stratified"
        ),
        "tell_share, which tells how many labels are alike (false does not)": (
            tells_share
        ),
    }
    return [use for use, is_on in uses.items() if is_on]


def of_columns(settings: Settings, extent: Extent) -> Spend | None:
    """Return what a run spends of a row of a party's columns.

    None where no mechanism with a price stands before it.
    """
    noise = _on_embeddings(settings, extent)
    if noise is None:
        return None
    first = settings.data.noise_at == "first-layer"
    return Spend(
        f"noise on {'the first layer' if first else 'embeddings'}",
        (noise.releases(n_embeddings(settings, extent)),),
        adjacency=noise.adjacency,
        covers=noise.covers,
        delta=extent.delta,
    )


def unpriced(
    settings: Settings, n_classes: int, tells_share: bool = False
) -> list[str]:
    """Return the defences that are on and promise nothing, and why."""
    kind = settings.labels.gradient_defence
    if kind != "gaussian":
        return [] if kind == "none" else [kind]
    uses = unpriced_uses(settings, n_classes, tells_share)
    if not uses or settings.labels.label_epsilon is not None:
        return []
    return [f"noise on each message, beside {'; '.join(uses)},"]


def _has_queries(settings: Settings, n_parties: int) -> bool:
    """Tell whether a method has questions and answers of its own."""
    plans = settings.config.plans(n_parties)
    return any(isinstance(plan, QueryPlan) for plan in plans)


def _on_embeddings(settings: Settings, extent: Extent) -> ClippedNoise | None:
    """Return the noise on a party's embeddings, None without any.

    With `embedding_epsilon` as much as all embeddings of a row may spend.
    """
    data = settings.data
    if not data.has_noise:
        return None
    if _has_queries(settings, extent.n_parties):
        raise ConfigError(
            "Noise on embeddings protects no other messages: method "
            f"{settings.method} asks parties for counts, sums or values of its own. "
            "Got 'embedding_noise' or 'embedding_epsilon' with it."
        )
    if data.embedding_epsilon is None:
        return ClippedNoise(data.embedding_clip, data.embedding_noise)
    times = n_embeddings(settings, extent)
    by_sensitivity = noise_for(data.embedding_epsilon, extent.delta, times)
    unit = ClippedNoise(data.embedding_clip, 1.0)
    noise = by_sensitivity * unit.sensitivity / unit.clip
    return ClippedNoise(data.embedding_clip, noise)


def with_noise(settings: Settings, extent: Extent) -> Settings:
    """Return the settings with as much noise as `embedding_epsilon` asks for."""
    noise = _on_embeddings(settings, extent)
    if noise is None:
        return settings
    data = dataclasses.replace(
        settings.data, embedding_noise=noise.noise, embedding_epsilon=None
    )
    return dataclasses.replace(settings, data=data)


def n_gradients(settings: Settings, n_parties: int) -> int:
    """Return how many gradients by a row a party is sent in one seed, at most."""
    plans = settings.config.plans(n_parties)
    return sum(math.ceil(p.n_epochs) for p in plans if isinstance(p, TrainPlan))


def n_embeddings(settings: Settings, extent: Extent) -> int:
    """Return how many embeddings of a row leave a party in all seeds, at most.

    A training row goes through every epoch, or with `n_rows` of them is held out, and
    looked at as often as these are; it is perhaps among those of stage 2. A test row is
    scored. With ``epochs`` both are, after every stage, too.
    """
    plans = settings.config.plans(extent.n_parties)
    n_passes = sum(
        max(math.ceil(plan.n_epochs), plan.n_looks(extent.n_rows))
        for plan in plans
        if isinstance(plan, TrainPlan)
    )
    n_passes += settings.config.stored() is not None
    if extent.evaluation == "epochs":
        n_passes += n_gradients(settings, extent.n_parties) + len(plans)
    return max(n_passes, 1) * extent.n_seeds
