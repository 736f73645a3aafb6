"""What a party lets a server ask of it, and how much it has been asked already.

A party believes the server nothing: what is run, with which bounds, how often and on
which rows is checked here, at the party, before an answer leaves. What goes beyond is
refused with a PolicyError, whose sentence both sides hear. The budget is kept on disk,
ahead of what is spent, so that no restart and no resume gives any of it back.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lessvfl import methods, settings
from lessvfl.core.network import NetConfig
from lessvfl.errors import ConfigError, PolicyError
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.run.profiles import OWN, Settings, from_flat
from lessvfl.settings import Kind, a_float, an_int, one_of, setting

EVALUATIONS = ("epochs", "end", "nothing")

# The most that a server may set; a party's 'limits' change single ones.
LIMITS: Mapping[str, Any] = {
    "embedding_size": 32,
    "hidden": 512,
    "depth": 6,
    "pretrain_epochs": 10,
    "train_epochs": 200,
    "party_epochs": 500,
    "joint_epochs": 500,
    "refit_epochs": 100,
    "shadows": 1000,
}

ROUNDS_AHEAD = 64  # what is written down before it is spent
PASSES_AHEAD = 0.5


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
        an_int(1), 100_000, "exchanges in all, those after a restart included"
    )
    passes: float = setting(
        a_float(open_low=True),
        500.0,
        "times that embeddings of all common rows may leave, all seeds together",
    )
    min_rows: int = setting(an_int(1), 50, "the fewest common rows")
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
        "epochs",
        "when embeddings may be asked for to score: after all epochs, at the end",
    )
    memory: int = setting(an_int(1), 4096, "the most MiB that its network may take")
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
    usual, values = Policy(), own.shared()
    ratio = own.net.embedding_size / min(columns.values())
    asked = {name: _most(values[name]) for name in LIMITS if name in values}
    epochs = [value for name, value in asked.items() if name.endswith("_epochs")]
    return {
        "rounds": 100 * usual.rounds,
        "passes": max(usual.passes, 3.0 * n_seeds * (sum(epochs) + 1)),
        "min_rows": 1,
        "components_per_column": max(usual.components_per_column, ratio),
        "linear_components_per_column": max(usual.linear_components_per_column, ratio),
        "methods": [own.method],
        "limits": {name: most for name, most in asked.items() if most > LIMITS[name]},
    }


def _most(value: Any) -> float:
    """Return a setting's value, the largest where it has several."""
    many = value if isinstance(value, list | tuple) else (value,)
    return float(max(many))


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
        self, method: str, values: Mapping[str, Any], n_columns: int, own_net: bool
    ) -> Settings:
        """Return the settings that a server names, once they are found allowed."""
        policy = self.policy
        if method not in policy.methods:
            some = ", ".join(policy.methods)
            raise self.refuse(f"the methods {some}", "methods", f"'{method[:80]}'")
        known = settings.fields_of([NetConfig, methods.get(method).config])
        for name in values:
            if name in OWN or name not in known:
                raise PolicyError(
                    f"Party '{self.party}' decides for itself on all but the shape of "
                    f"its network and the method. Got the '{name[:80]}' setting."
                )
        for name, most in {**LIMITS, **policy.limits}.items():
            if name in values and most is not None and _most(values[name]) > most:
                allowed = f"'{name}' up to {most:g}"
                raise self.refuse(allowed, f"limits.{name}", values[name])
        asked = from_flat(method, "default", values)
        self._components(asked.net, n_columns, own_net)
        return asked

    def _components(self, net: NetConfig, n_columns: int, own_net: bool) -> None:
        """Refuse more components than the columns behind them can hide in."""
        is_deep = len(net.party_widths(n_columns)) > 2 and net.activation != "none"
        key = "components_per_column"
        if not (is_deep or own_net):
            key = f"linear_{key}"
        most: float = getattr(self.policy, key)
        if net.embedding_size > most * n_columns:
            kind = "" if is_deep or own_net else " of a linear network"
            allowed = f"{most:g} components{kind} for each of its columns"
            raise self.refuse(allowed, key, f"{net.embedding_size} components")

    def memory(self, net: NetConfig, n_inputs: int, n_rows: int) -> None:
        """Refuse a network that would not fit: weights, optimiser, outputs."""
        widths = net.party_widths(n_inputs)
        weights = sum((a + 1) * b for a, b in itertools.pairwise(widths))
        n_values = 4 * weights + 2 * n_rows * sum(widths)
        n_mib = n_values * (8 if net.dtype == "float64" else 4) / 2**20
        if n_mib > self.policy.memory:
            allowed = f"networks of {self.policy.memory} MiB"
            raise self.refuse(allowed, "memory", f"one of {n_mib:.0f} MiB")


class Budget:
    """What has been asked of a party in all, kept in a file of its run folder."""

    def __init__(self, path: Path, judge: Judge) -> None:
        self._path, self._judge = path, judge
        self.rounds, self.rows = 0, 0
        self._written = (0, 0)
        if path.is_file():
            found = read_state(path).values
            self._written = self.rounds, self.rows = found["rounds"], found["rows"]

    def spend(self, n_rows: int, n_common: int) -> None:
        """Take one exchange with the embeddings of some rows off the budget."""
        policy = self._judge.policy
        self.rounds += 1
        self.rows += n_rows
        if self.rounds > policy.rounds:
            raise self._judge.refuse(f"{policy.rounds} rounds", "rounds", "one more")
        if self.rows > policy.passes * n_common:
            allowed = f"embeddings of every common row {policy.passes:g} times"
            raise self._judge.refuse(allowed, "passes", "more")
        if self.rounds > self._written[0] or self.rows > self._written[1]:
            ahead = math.ceil(PASSES_AHEAD * n_common)
            self._write(self.rounds + ROUNDS_AHEAD, self.rows + ahead)

    def settle(self) -> None:
        """Write down what was spent, and no more."""
        self._write(self.rounds, self.rows)

    def _write(self, rounds: int, rows: int) -> None:
        write_state(self._path, State({}, {"rounds": rounds, "rows": rows}))
        self._written = (rounds, rows)


def check_places(places: Sequence[Any], n_common: int) -> None:
    """Refuse training and test rows that are not different common rows."""
    seen = {int(place) for some in places for place in some}
    n_named = sum(len(some) for some in places)
    if len(seen) == n_named and all(0 <= place < n_common for place in seen):
        return
    raise ConfigError(
        "Training and test rows must be different places among the common rows. Got "
        "others.",
        public="Training and test rows must be different common rows.",
    )
