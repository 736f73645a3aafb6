"""What a party lets a server ask of it.

A party does not trust the server: what is run, within which bounds, how often and on
which rows is checked here, at the party, before an answer leaves. Anything beyond is
refused with a PolicyError, whose sentence both sides see. ``remote/spent.py`` counts
what has been asked already.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from torch import Tensor

from lessvfl import methods, settings
from lessvfl.core.hidden_paths import INFERENCES
from lessvfl.core.network import NetConfig
from lessvfl.core.plans import QueryPlan, TrainPlan
from lessvfl.errors import PolicyError
from lessvfl.run.accounting import DELTA
from lessvfl.run.profiles import OWN, Settings, from_flat
from lessvfl.settings import AboveZero, Finite, Kind, Natural, Positive, Share
from lessvfl.terms import Evaluation, plural
from lessvfl.wire import control

log = logging.getLogger(__name__)

Telling = Literal["none", "home", "features"]

# The most that a server may set, unless a party's 'limits' say otherwise.
LIMITS: Mapping[str, Any] = {
    "embedding_size": 32,
    "hidden": 512,
    "depth": 6,
    "input_scale": 1.0,
    "pretrain_epochs": 1,
    "train_epochs": 40,
    "party_epochs": 500,
    "joint_epochs": 500,
    "gate_epochs": 500,
    "own_epochs": 500,
    "refit_epochs": 100,
    "shadows": 1000,
    "copies": 1000,
    "trees": 1000,
    "select_trees": 1000,
    "particle_trees": 1000,
    "particles": 1000,
    "swarm_rounds": 1000,
    "most_rounds": 1000,
    "search_steps": 10_000,
    "leaves": 10_000,
    "tree_depth": 30,
    "select_depth": 30,
    "bins": 100,
    "bits": 8,
    "learning_rate": 0.05,
    "pretrain_rate": 0.05,
    "party_step_size": 0.05,
    "gate_rate": 0.05,
    "search_step_size": 1.0,
    "weight_decay": 10.0,
    "sigma": 10.0,
    "adaptive": 10.0,
    "lam": 1000.0,
    "lam_own": 1000.0,
    "lam_party": 1000.0,
    "lam_scale": 1000.0,
    "beta": 1e6,
    "zeta": 1e6,
}

# The least, and texts that are refused: below, or with these, a server sees a network
# that is linear in the columns, steers it as it likes, or sees values of few rows as
# they are, whatever the bits. A limit of null lifts them.
LEAST: Mapping[str, float] = {
    "depth": 2,
    "input_scale": 0.01,
    "batch_size": 32,
    "pretrain_batch_size": 32,
    "gate_batch_size": 32,
}
REFUSED: Mapping[str, str] = {
    "activation": "none",
    "optimizer": "sgd",
    "train_optimizer": "sgd",
}

LOOKS = "batch_size"  # whose limit is that of rows held out together, too
LEAST_EPOCHS = 0.5  # an evaluation at the end must not come at the start

MAX_SEED = 2**63

MethodNames = Annotated[
    tuple[str, ...],
    Meta(min_length=1),
    Kind(
        f"a list of methods out of {', '.join(methods.METHODS)}",
        lambda v: set(v) <= methods.METHODS.keys(),
    ),
]
InferenceNames = Annotated[
    tuple[str, ...],
    Meta(min_length=1),
    Kind(f"a list out of {', '.join(INFERENCES)}", lambda v: set(v) <= set(INFERENCES)),
]
PolicyLimits = Annotated[
    dict[str, Finite | None],
    Meta(
        description="names of settings, each with the most it may be, or null for no "
        "bound"
    ),
]


Delta = Annotated[float, Meta(gt=0, lt=1, description="a float in (0, 1)")]


@dataclass(frozen=True)
class LabelPolicy(settings.Schema):
    """The ``policy`` section of the server's config: what runs may tell of labels."""

    section = "policy."

    epsilon: AboveZero | None = None  # of a label, over all runs side by side
    delta: Delta = DELTA  # that goes with it


@dataclass(frozen=True)
class Policy(settings.Schema):
    """The ``policy`` section of a party's config; its defaults let `default` pass."""

    section = "policy."

    rounds: Positive = 100_000  # messages in all, those after a restart included
    values: Positive = 2000  # about a row, over all seeds, runs and predictions
    seeds: Positive = 5  # the most of a run
    min_rows: Positive = 50  # the fewest common rows, and the fewest to train with
    min_share: Share = 0.001  # the least of the ids offered that must be common
    align_rate: Positive = 100  # alignments in 30 days, of all run folders side by side
    align_ids: AboveZero = 1000.0  # offered in 30 days for each row, of all of them
    components_per_column: AboveZero = 0.75  # of its encoded columns; at least 1 in all
    methods: MethodNames = (methods.DEFAULT,)  # that may be run
    evaluation: Evaluation = "end"  # when embeddings may be asked for to score
    memory: Positive = 4096  # the most MiB that its network may take
    predict_rows: Natural = 1_000_000  # to predict in all, after training; 0: none
    predict_rate: Positive = 100_000  # rows to predict a minute
    predict_alignments: Natural = 20  # how often rows may be aligned to predict
    predict_inference: InferenceNames = ("clear",)  # how trees may predict
    predict_ids: str | None = None  # a file of the ids that may be predicted; none: all
    reasons: Telling = "none"  # for a prediction: at home alone, or told by feature
    reason_rows: Natural = 10_000  # to give reasons for in all, each every time
    # Whether rows that a run would tell too much of stay away from its alignment. A
    # server sees that they are not there.
    withhold_exhausted: bool = False
    epsilon: AboveZero | None = None  # of a row, over all runs and predictions
    delta: Delta = DELTA  # that goes with it
    limits: PolicyLimits = field(default_factory=dict)  # the most of single settings

    def __post_init__(self) -> None:
        """Refuse values that are not allowed, and limits of settings nobody has."""
        super().__post_init__()
        sections: list[type] = [NetConfig]
        sections += [method.config for method in methods.METHODS.values()]
        known = set(settings.fields_of(sections)) - set(OWN)
        for name in self.limits:
            if name not in known:
                raise settings.unknown("setting", name, known, " in 'limits'")


def needed(
    wanted: Settings, columns: Mapping[str, int], n_seeds: int, evaluation: str
) -> dict[str, Any]:
    """Return a policy that allows runs with these settings, whatever they need.

    For whoever starts both sides of a run; `columns` is how many each party has.
    """
    usual, known = Policy(), settings.fields_of([NetConfig, type(wanted.config)])
    ratio = wanted.net.embedding_size / min(columns.values())
    shown = planned(wanted, wanted.net.embedding_size, len(columns), evaluation)
    bound = [name for name in {**LIMITS, **LEAST, **REFUSED} if name in known]
    return {
        "rounds": 100 * usual.rounds,
        "values": max(usual.values, math.ceil(2 * n_seeds * shown)),  # and to predict
        "evaluation": evaluation,
        "seeds": max(usual.seeds, n_seeds),
        "min_rows": 1,
        "min_share": 0.0,
        "components_per_column": max(usual.components_per_column, ratio),
        "methods": [wanted.method],
        "limits": {
            name: None
            for name in bound
            if name == LOOKS or _objection(wanted, name, LIMITS.get(name))
        },
    }


def planned(
    agreed: Settings, size: int, n_parties: int, evaluation: str, n_rows: int = 0
) -> float:
    """Return the most values about a row that leave in one seed, in the mean.

    Each pass shows all `size` components of a row: one an epoch of joint training with
    up to `n_rows`, one to choose components, and those to score.
    """
    plans = agreed.config.plans(n_parties)
    trained = [plan for plan in plans if isinstance(plan, TrainPlan)]
    epochs = [plan.n_epochs for plan in trained]
    n_passes = sum(_passes(plan, n_rows) for plan in trained) + 1
    if evaluation == "end":
        n_passes += 1
    elif evaluation == "epochs":  # of training and test rows
        n_passes += 2 * (sum(math.ceil(n) for n in epochs) + len(plans))
    queries = [plan for plan in plans if isinstance(plan, QueryPlan)]
    n_passes += sum(plan.n_passes for plan in queries)
    return size * n_passes + sum(plan.n_values for plan in queries)


def _passes(plan: TrainPlan, n_rows: int) -> float:
    """Return how often a row leaves in joint training, in the mean, at most.

    A part of an epoch is as many whole steps, which may be all rows. Rows held out are
    in no step, and looked at more often than others are trained with where rows are
    many; with fewer rows it is one look less that is rounded off.
    """
    n_epochs = math.ceil(plan.n_epochs)
    if not (n_held_out := plan.n_held_out(n_rows)):
        return n_epochs
    more = plan.n_looks(n_rows) + 1 - n_epochs
    return n_epochs + max(0, more) * n_held_out / n_rows


def widest(agreed: Settings, n_parties: int, evaluation: str) -> int:
    """Return the bits of a value that leaves in a run, at most."""
    plans, config = agreed.config.plans(n_parties), agreed.config
    exact = 64 if agreed.net.dtype == "float64" else 32
    if evaluation == "epochs" or any(isinstance(plan, QueryPlan) for plan in plans):
        return exact
    trained = [plan.bits for plan in plans if isinstance(plan, TrainPlan)]
    bits = max(config.bits, *trained, *(config.stored() or (0, 0))[1:])
    return exact if bits >= 32 else bits


def _objection(
    asked: Settings, name: str, most: float | None
) -> tuple[str, object] | None:
    """Return what would be allowed in place of a setting, and what it is.

    None: it is allowed. Of several values the largest counts, of widths their number.
    """
    value: Any = getattr(asked.net if hasattr(asked.net, name) else asked.config, name)
    if name in REFUSED:
        is_refused = value == REFUSED[name]
        return (f"any '{name}' but {REFUSED[name]}", value) if is_refused else None
    if name == "depth" and not isinstance(asked.net.hidden, int):
        value = len(asked.net.hidden) + 1
    many = value if isinstance(value, list | tuple) else (value,)
    largest = max((float(one) for one in many if one is not None), default=None)
    if largest is None:
        return None
    if most is not None and largest > most:
        return f"'{name}' up to {most:g}", f"{largest:g}"
    least = LEAST.get(name, -math.inf)
    return (f"'{name}' from {least:g} on", f"{largest:g}") if largest < least else None


@dataclass(frozen=True)
class PolicyChecker:
    """Compares what a server asks of one party with the party's policy."""

    party: str
    policy: Policy

    def refuse(self, allowed: str, key: str, got: object) -> PolicyError:
        """Build the sentence that both sides see."""
        return PolicyError(
            f"The policy of party '{self.party}' allows {allowed} (policy.{key}). "
            f"Got {got}."
        )

    def settings(self, welcome: control.Welcome, n_columns: int) -> Settings:
        """Return the settings that a server names, or refuse them."""
        policy, method, values = self.policy, welcome.method, welcome.settings
        if method not in policy.methods:
            some = ", ".join(policy.methods)
            raise self.refuse(f"the methods {some}", "methods", f"'{method[:80]}'")
        if len(welcome.seeds) > policy.seeds:
            allowed = f"{policy.seeds} seeds"
            raise self.refuse(allowed, "seeds", len(welcome.seeds))
        if self.party not in welcome.parties:
            raise PolicyError(
                f"Party '{self.party}' must be among those who take part. Got "
                f"{', '.join(welcome.parties)[:200]}."
            )
        for seed in welcome.seeds:
            if not 0 <= seed < MAX_SEED:
                raise PolicyError(
                    f"Seeds must be from 0 to {MAX_SEED - 1}. Got {seed}."
                )
        known = settings.fields_of([NetConfig, methods.get(method).config])
        for name in values:
            if name in OWN or name not in known:
                raise PolicyError(
                    f"Party '{self.party}' decides for itself on all but the shape of "
                    f"its network and the method. Got the '{name[:80]}' setting."
                )
        asked = from_flat(method, "default", values)
        for name in {**LIMITS, **LEAST, **REFUSED, **policy.limits}:
            most = policy.limits.get(name, LIMITS.get(name))
            is_lifted = name in policy.limits and most is None
            if is_lifted or name not in known:
                continue
            if objection := _objection(asked, name, most):
                allowed, got = objection
                raise self.refuse(allowed, f"limits.{name}", got)
        if asked.config.train_epochs < LEAST_EPOCHS:
            raise PolicyError(
                f"Party '{self.party}' takes part in {LEAST_EPOCHS} epochs of training "
                f"or more. Got a run with less: {asked.config.train_epochs:g}."
            )
        plans = asked.config.plans(len(welcome.parties))
        scores = any(isinstance(plan, QueryPlan) and plan.scores for plan in plans)
        if scores and policy.evaluation == "nothing":
            raise self.refuse("no evaluation", "evaluation", "one by the method")
        self.components(asked.net, n_columns)
        return asked

    def components(self, net: NetConfig, n_columns: int) -> None:
        """Refuse so many components that they could give the encoded columns away.

        Any network may come close to a linear one.
        """
        key, most = "components_per_column", self.policy.components_per_column
        size = net.components(n_columns)
        if size > max(1, most * n_columns):
            unit = "component" if most == 1 else "components"
            log.warning("it has %d encoded columns", n_columns)
            raise self.refuse(
                f"{most:g} {unit} for each of its encoded columns",
                key,
                f"{size}: the server's '{key}' must be smaller, or the policy wider",
            )

    def memory(self, net: NetConfig, n_inputs: int, n_rows: int) -> None:
        """Refuse a network whose weights, optimiser and outputs need too much."""
        widths = net.party_widths(n_inputs)
        weights = sum((a + 1) * b for a, b in itertools.pairwise(widths))
        n_values = 4 * weights + 2 * n_rows * sum(widths)
        n_mib = n_values * (8 if net.dtype == "float64" else 4) / 2**20
        if n_mib > self.policy.memory:
            allowed = f"networks of {self.policy.memory} MiB"
            log.warning("a network of %.0f MiB was asked for", n_mib)
            raise self.refuse(allowed, "memory", "a larger one")

    def rows(self, asked: control.Prepare, n_common: int) -> None:
        """Refuse rows of a seed that are not all of the `n_common` common rows."""
        n_test = sum(map(len, asked.places("test")))
        if asked.n_rows != n_common or asked.n_test != n_test:
            raise PolicyError(
                f"Party '{self.party}' trains and tests with all {n_common} common "
                f"rows. Got {asked.n_train} and {asked.n_test} rows, {n_test} of them "
                "marked for testing."
            )
        if asked.blocks is not None and not np.ptp(asked.blocks):
            raise PolicyError(
                f"Party '{self.party}' is told that rows belong together where not all "
                "of them do. Got one block of rows."
            )
        if asked.n_train < self.policy.min_rows:
            allowed = f"training with {plural(self.policy.min_rows, 'row')} or more"
            raise self.refuse(allowed, "min_rows", asked.n_train)

    def looks(self, plan: TrainPlan, blocks: Tensor, seed: int) -> None:
        """Refuse blocks by which so few rows are held out that they are seen as such.

        They leave at every look of the server's; without blocks they are many.
        """
        n_rows, key = len(blocks), LOOKS
        usual = plan.n_held_out(n_rows)
        least = min(LEAST[key], usual // 2)
        is_lifted = self.policy.limits.get(key, least) is None
        if not usual or is_lifted:
            return
        n_held_out = len(plan.batches(n_rows, seed, blocks).held_out)
        if n_held_out < least:
            allowed = f"{least:g} rows or more that are looked at together"
            raise self.refuse(allowed, f"limits.{key}", n_held_out)
