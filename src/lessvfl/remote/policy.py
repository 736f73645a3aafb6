"""What a party lets a server ask of it, and how much it has been asked already.

A party takes nothing on trust from the server: what is run, with which bounds, how
often and on which rows is checked here, at the party, before an answer leaves. What
goes beyond is refused with a PolicyError, whose sentence both sides hear. The budget is
kept on disk, ahead of what is spent, so that no restart and no resume gives any of it
back.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lessvfl import methods, settings
from lessvfl.core.network import NetConfig
from lessvfl.core.plans import TrainPlan
from lessvfl.errors import PolicyError
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.run.profiles import OWN, Settings, from_flat
from lessvfl.run.record import read_json, write_json
from lessvfl.settings import Kind, a_float, a_text, an_int, one_of, or_none, setting
from lessvfl.terms import plural
from lessvfl.wire import control

log = logging.getLogger(__name__)

EVALUATIONS = ("end", "epochs", "nothing")

# The most that a server may set; a party's 'limits' change single ones.
LIMITS: Mapping[str, Any] = {
    "embedding_size": 32,
    "hidden": 512,
    "depth": 6,
    "input_scale": 1.0,
    "pretrain_epochs": 10,
    "train_epochs": 200,
    "party_epochs": 500,
    "joint_epochs": 500,
    "refit_epochs": 100,
    "shadows": 1000,
    "bits": 8,
    "learning_rate": 0.1,
    "pretrain_rate": 0.1,
}

LEAST_EPOCHS = 0.5  # an evaluation at the end must not come at the start
LEAST_SCALE = 0.01  # of first weights; below it any network is linear at its start

ROUNDS_AHEAD = 64  # what is written down before it is spent
VALUES_AHEAD = 4.0
SPARE = 0.25  # of what a seed plans, for steps that go another way after a break
MAX_SEED = 2**63


def _names() -> Kind:
    return Kind(
        f"a list of methods out of {', '.join(methods.METHODS)}",
        lambda v: (
            isinstance(v, list | tuple)
            and len(v) > 0
            and all(name in methods.METHODS for name in v)
        ),
        lambda text: tuple(text.split(",")),
    )


def _are_limits(value: Any) -> bool:
    number = a_float(-math.inf)
    return isinstance(value, dict) and all(
        isinstance(name, str) and (most is None or number.accepts(most))
        for name, most in value.items()
    )


def _limits() -> Kind:
    kind = "names of settings, each with the most it may be, or null for no bound"
    return Kind(kind, _are_limits, lambda text: text)


@dataclass(frozen=True)
class Policy(settings.Section):
    """The ``policy`` section of a party's config; its defaults let `default` pass."""

    rounds: int = setting(
        an_int(1), 100_000, "messages in all, those after a restart included"
    )
    values: int = setting(
        an_int(1),
        2000,
        "values about a row that may leave, over all seeds and runs with the same rows",
    )
    seeds: int = setting(an_int(1), 5, "the most seeds of a run")
    min_rows: int = setting(
        an_int(1), 50, "the fewest common rows, and the fewest to train with"
    )
    min_share: float = setting(
        a_float(0, 1), 0.001, "the least share of the ids offered that must be common"
    )
    align_rate: int = setting(
        an_int(1), 100, "alignments in 30 days, of all run folders side by side"
    )
    align_ids: float = setting(
        a_float(open_low=True),
        1000.0,
        "ids offered in 30 days for each of its rows, of all of them",
    )
    components_per_column: float = setting(
        a_float(open_low=True), 1.0, "the most components for each of its columns"
    )
    linear_components_per_column: float = setting(
        a_float(open_low=True), 0.5, "the same without a non-linear hidden layer"
    )
    methods: tuple[str, ...] = setting(
        _names(), (methods.DEFAULT,), "the methods that may be run"
    )
    evaluation: str = setting(
        one_of(*EVALUATIONS),
        "end",
        "when embeddings may be asked for to score: at the end, of test rows alone; "
        "after all epochs; never",
    )
    memory: int = setting(an_int(1), 4096, "the most MiB that its network may take")
    predict_rows: int = setting(
        an_int(0), 1_000_000, "rows to predict in all, after training; 0: none"
    )
    predict_rate: int = setting(an_int(1), 100_000, "rows to predict a minute")
    predict_alignments: int = setting(
        an_int(0), 20, "how often rows may be aligned to predict"
    )
    predict_ids: str | None = setting(
        or_none(a_text()), None, "a file of the ids that may be predicted; none: all"
    )
    limits: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata={"kind": _limits(), "help": "the most that single settings may be"},
    )

    def __post_init__(self) -> None:
        """Refuse values that are not allowed, and limits of settings nobody has."""
        super().__post_init__()
        sections: list[type] = [NetConfig]
        sections += [method.config for method in methods.METHODS.values()]
        known = set(settings.fields_of(sections)) - set(OWN)
        for name in self.limits:
            if name not in known:
                raise settings.unknown("setting", name, known, " in 'limits'")


def read_policy(values: Any) -> Policy:
    """Return the policy that a config file spells out."""
    if not isinstance(values, dict):
        raise settings.refuse("policy", "setting", "names and values", values)
    known = settings.fields_of([Policy])
    for name in values:
        if name not in known:
            raise settings.unknown("setting", str(name), known, " in 'policy'")
    found: dict[str, Any] = dict(values)
    if isinstance(found.get("methods"), list):
        found["methods"] = tuple(found["methods"])
    return Policy(**found)


def needed(own: Settings, columns: Mapping[str, int], n_seeds: int) -> dict[str, Any]:
    """Return the policy that runs with these settings need, whatever they ask for.

    For who starts both sides of a run: `columns` are how many each party has.
    """
    usual, known = Policy(), settings.fields_of([NetConfig, type(own.config)])
    ratio = own.net.embedding_size / min(columns.values())
    shown = planned(own, len(columns), "epochs")
    asked = {name: _found(own, name) for name in LIMITS if name in known}
    return {
        "rounds": 100 * usual.rounds,
        "values": max(usual.values, math.ceil(n_seeds * shown)),
        "evaluation": "epochs",
        "seeds": max(usual.seeds, n_seeds),
        "min_rows": 1,
        "min_share": 0.0,
        "components_per_column": max(usual.components_per_column, ratio),
        "linear_components_per_column": max(usual.linear_components_per_column, ratio),
        "methods": [own.method],
        "limits": {name: most for name, most in asked.items() if most > LIMITS[name]},
    }


def planned(own: Settings, n_parties: int, evaluation: str) -> float:
    """Return how many values about a row leave in one seed at most, in the mean.

    All components of every network that the row is shown by: once an epoch in joint
    training, once to choose components, and to score.
    """
    plans = own.config.plans(n_parties)
    epochs = [plan.n_epochs for plan in plans if isinstance(plan, TrainPlan)]
    looks = sum(epochs) + 1
    if evaluation == "end":
        looks += 1
    elif evaluation == "epochs":  # of training and test rows
        looks += 2 * (sum(math.ceil(n) for n in epochs) + len(plans))
    return own.net.embedding_size * looks


def _found(asked: Settings, name: str) -> float:
    """Return the value of a setting, the largest of several; depth by the widths."""
    if name == "depth":
        return len(asked.net.party_widths(1)) - 1
    own = asked.net if hasattr(asked.net, name) else asked.config
    value = getattr(own, name)
    many = value if isinstance(value, list | tuple) else (value,)
    return max((float(one) for one in many if one is not None), default=0.0)


@dataclass(frozen=True)
class Judge:
    """Compares what a server asks of one party with the party's policy."""

    party: str
    policy: Policy

    def refuse(self, allowed: str, key: str, got: object) -> PolicyError:
        """Build the sentence that both sides hear."""
        return PolicyError(
            f"The policy of party '{self.party}' allows {allowed} (policy.{key}). "
            f"Got {got}."
        )

    def settings(
        self, welcome: control.Welcome, n_columns: int, own_net: bool
    ) -> Settings:
        """Return the settings that a server names, once they are found allowed."""
        policy, method, values = self.policy, welcome.method, welcome.settings
        if method not in policy.methods:
            some = ", ".join(policy.methods)
            raise self.refuse(f"the methods {some}", "methods", f"'{method[:80]}'")
        if len(welcome.seeds) > policy.seeds:
            allowed = f"{policy.seeds} seeds"
            raise self.refuse(allowed, "seeds", len(welcome.seeds))
        if self.party not in welcome.parties:
            raise PolicyError(
                f"Party '{self.party}' must be among those who take part. Got a list "
                "without it."
            )
        if not all(0 <= seed < MAX_SEED for seed in welcome.seeds):
            raise PolicyError(f"Seeds must be from 0 to {MAX_SEED - 1}. Got another.")
        known = settings.fields_of([NetConfig, methods.get(method).config])
        for name in values:
            if name in OWN or name not in known:
                raise PolicyError(
                    f"Party '{self.party}' decides for itself on all but the shape of "
                    f"its network and the method. Got the '{name[:80]}' setting."
                )
        asked = from_flat(method, "default", values)
        for name, most in {**LIMITS, **policy.limits}.items():
            if name not in known or most is None:
                continue
            found = _found(asked, name)
            if found > most:
                got = f"{found:g}"
                raise self.refuse(f"'{name}' up to {most:g}", f"limits.{name}", got)
        if asked.config.train_epochs < LEAST_EPOCHS:
            raise PolicyError(
                f"Party '{self.party}' takes part in {LEAST_EPOCHS} epochs of training "
                "or more. Got a run with less."
            )
        self._components(asked.net, n_columns, own_net)
        return asked

    def _components(self, net: NetConfig, n_columns: int, own_net: bool) -> None:
        """Refuse more components than the columns behind them can hide in."""
        is_deep = len(net.party_widths(n_columns)) > 2 and net.activation != "none"
        is_deep = is_deep and net.input_scale >= LEAST_SCALE
        key = "components_per_column"
        if not (is_deep or own_net):
            key = f"linear_{key}"
        most: float = getattr(self.policy, key)
        if net.embedding_size > most * n_columns:
            kind = "" if is_deep or own_net else " of a linear network"
            unit = "component" if most == 1 else "components"
            allowed = f"{most:g} {unit}{kind} for each of its columns"
            log.warning("it has %d columns", n_columns)
            raise self.refuse(
                allowed,
                key,
                f"{net.embedding_size}: the server's 'embedding_size' must be smaller, "
                "or the policy wider",
            )

    def memory(self, net: NetConfig, n_inputs: int, n_rows: int) -> None:
        """Refuse a network that would not fit: weights, optimiser, outputs."""
        widths = net.party_widths(n_inputs)
        weights = sum((a + 1) * b for a, b in itertools.pairwise(widths))
        n_values = 4 * weights + 2 * n_rows * sum(widths)
        n_mib = n_values * (8 if net.dtype == "float64" else 4) / 2**20
        if n_mib > self.policy.memory:
            allowed = f"networks of {self.policy.memory} MiB"
            log.warning("a network of %.0f MiB was asked for", n_mib)
            raise self.refuse(allowed, "memory", "a larger one")

    def rows(self, asked: control.Prepare, n_common: int) -> None:
        """Refuse rows of a seed that are not all common rows, each once."""
        seen = np.zeros(n_common, dtype=np.bool_)
        counts: dict[Literal["train", "test"], int] = {"train": 0, "test": 0}
        for of in counts if asked.n_rows == n_common else ():
            for some in asked.places(of):
                counts[of] += len(some)
                seen[some[(some >= 0) & (some < n_common)]] = True
        told = {"train": asked.n_train, "test": asked.n_test}
        if counts != told or not seen.all():
            raise PolicyError(
                f"Party '{self.party}' trains and tests with all common rows, each of "
                "them once. Got others."
            )
        if asked.blocks is not None and not np.ptp(asked.blocks):
            raise PolicyError(
                f"Party '{self.party}' is told that rows belong together where not all "
                "of them do. Got one block of rows."
            )
        if asked.n_train < self.policy.min_rows:
            allowed = f"training with {plural(self.policy.min_rows, 'row')} or more"
            raise self.refuse(allowed, "min_rows", asked.n_train)


class Budget:
    """What has been asked of a party in all, kept in a file of its run folder.

    Values about a row are also kept beside the run folder, in ``shown-PARTY.json`` by a
    digest of the rows, so that they count for other runs with these.
    """

    def __init__(self, path: Path, judge: Judge, rows: str) -> None:
        self._path, self._judge, self._rows = path, judge, rows
        run = path.parent.resolve()
        self._run, self._shown = run.name, run.parent / f"shown-{judge.party}.json"
        self.rounds = 0
        self.values: dict[str, float] = {}  # by seed
        if path.is_file():
            found = read_state(path).values
            self.rounds, self.values = found["rounds"], dict(found["values"])
        self._written = (self.rounds, sum(self.values.values()))
        self._planned = math.inf  # of one seed
        others = self._known().get(rows, {})
        self._earlier = sum(n for run, n in others.items() if run != self._run)

    def _known(self) -> dict[str, dict[str, float]]:
        return read_json(self._shown) if self._shown.is_file() else {}

    def plan(self, n_values: float, n_seeds: int) -> None:
        """Refuse a run whose seeds show more of a row than all runs may."""
        most, earlier = self._judge.policy.values, self._earlier
        if earlier + n_seeds * n_values > most:
            before = f" after {earlier:.0f} of earlier runs" if earlier else ""
            raise self._judge.refuse(
                f"{most:,} values about a row in all",
                "values",
                f"a run of {math.ceil(n_seeds * n_values):,}{before}",
            )
        self._planned = n_values

    def left(self) -> tuple[int, float]:
        """Return the messages and the values about a row that are left."""
        policy, spent = self._judge.policy, sum(self.values.values())
        return policy.rounds - self.rounds, policy.values - self._earlier - spent

    def spend_round(self) -> None:
        """Take one message off the budget."""
        most = self._judge.policy.rounds
        self.rounds += 1
        if self.rounds > most:
            raise self._judge.refuse(f"{most} rounds", "rounds", "one more")
        self._keep_ahead()

    def spend_values(self, seed: int, n_values: float) -> None:
        """Take values about a row off the budget of a seed, in the mean over rows."""
        spent = self.values.get(str(seed), 0.0) + n_values
        self.values[str(seed)] = spent
        most = (1 + SPARE) * self._planned
        if spent > most:
            raise PolicyError(
                f"Party '{self._judge.party}' shows {most:.0f} values about a row for "
                "one seed of the agreed settings, those after a break included. Got a "
                "request for more."
            )
        self._keep_ahead()

    def _keep_ahead(self) -> None:
        rounds, values = self._written
        if self.rounds > rounds or sum(self.values.values()) > values:
            self._write(ROUNDS_AHEAD, VALUES_AHEAD)

    def settle(self) -> None:
        """Write down what was spent, and no more."""
        self._write(0, 0.0)

    def _write(self, rounds: int, values: float) -> None:
        """Write down what was spent, and so much ahead of it in every seed."""
        ahead = {seed: spent + values for seed, spent in self.values.items()}
        rounds += self.rounds
        write_state(self._path, State({}, {"rounds": rounds, "values": ahead}))
        total = sum(ahead.values())
        if total != self._written[1]:
            known = self._known()
            known.setdefault(self._rows, {})[self._run] = total
            write_json(self._shown, known, mode=0o600)
        self._written = (rounds, total)
