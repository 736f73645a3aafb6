"""Profiles: what the released code did, what the paper says, and what a user gets.

The defaults of every section are the profile ``default``; the other two say what they
do differently. Sources: the paper, and the authors' released experiments, whose facts
are listed in docs/paper.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, replace
from typing import Any

import numpy as np

from lessvfl import methods, settings
from lessvfl.core.network import NetConfig
from lessvfl.data import DataConfig, Dataset, LabelConfig, check_split, from_arrays
from lessvfl.errors import ConfigError
from lessvfl.methods.base import Joint
from lessvfl.run.record import TRANSPORT

PROFILES = ("default", "paper", "official-code")

# What a party decides for itself, whatever a server says.
OWN = ("party_net", "fusion_net", "must_keep")

# What the profile default changes in a method's own defaults (docs/selection.md);
# chosen on training rows.
_SMALL = {"embedding_size": 4, "input_scale": 0.01}
_STEPS = {
    "bits": 8,
    "batch_size": 128,
    "learning_rate": 0.005,
    "train_epochs": 40,
    "schedule": "cosine",
}
_WATCHED = {
    **_SMALL,
    "components_per_column": 0.25,
    "bits": 4,
    "optimizer": "adamw",
    "weight_decay": 2.0,
    "schedule": "watched",
}
_WATCHED_METHODS = (
    *("less-vfl-auto", "mmvfl", "counterfactual", "dual-gates", "vflfs"),
    *("gini-filter", "iv-filter", "vertical-boost", "vertical-forest"),
    *("auto-boost", "pso-trees", "vprf"),
)
_DEFAULT: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_WATCHED_METHODS, _WATCHED),
    "less-vfl": _SMALL | _STEPS | {"pretrain_epochs": 0.5, "pretrain_batch_size": 32},
    "local-lasso": _SMALL | _STEPS | {"pretrain_epochs": 2},
}
# Behind noise on embeddings or gradients, whose deviation grows with the root of how
# often a row is in a batch: few epochs, all rows in the first, and of two classes one
# component, so that there is one number to protect (docs/selection.md).
_FEW_RELEASES: dict[str, Any] = {"pretrain_epochs": 1.0}
_BEHIND_EMBEDDINGS = {"train_epochs": 2.0, "embedding_clip": 0.2}
# Behind noise on gradients, nothing else is computed from labels: no stage 2, and an
# end of training that is known before (`accounting.unpriced_uses`).
_BEHIND_GRADIENTS: dict[str, Any] = {
    "train_epochs": 1.0,
    "gradient_clip": 0.2,
    "server_rows": 0,
    "schedule": "cosine",
}
MANY_CLASSES = 8  # from here on they take twice the components
SEVERAL = {"components_per_column": 0.75}  # classes, which lie in more directions
# Parties are told both before rows are aligned. So these are multiples of what the
# number of rows is rounded up to in an alignment, and tell no more than that says.
MANY_ROWS = 5120  # above, steps are larger, and epochs fewer: two classes
FEW_ROWS = 1024  # up to them, values take twice the bits

# Both reproduce the published handling of the data.
_PUBLISHED_DATA = {
    "uneven": "drop",
    "noise": "range",
    "scale_labels": False,
    "loss": "squared",
    "equal_rows": "apart",
    "missing": "fill",
}

_OFFICIAL = {
    "activation": "none",
    "row_order": "file",
    "party_step_size": 0.001,
    "lam_scale": 10.0,
    "reduction": "mean",
    "empty_party": "frozen",
    "stepwise_removal": True,
}

# Chosen on training rows; docs/paper.md has the tables.
_PAPER = {
    "less-vfl": {"lam_party": 0.5, "lam_server": 0.05},
    "local-lasso": {"lam_party": 1.0},
    "group-lasso": {"lam_party": 0.1},
}

# The settings hard-coded for the published communication table, by data set:
# lam_party of less-vfl and local-lasso, lam_party of group-lasso, lam_server,
# pretrain_epochs of less-vfl, of local-lasso.
_COMMUNICATION_TABLE = {
    "mimic3": (40.0, 0.25, 0.1, 1, 1),
    "gina": (0.025, 0.1, 0.005, 1, 1),
    "sylva": (0.1, 1.0, 0.01, 1, 1),
    "activity": (0.1, 0.1, 0.25, 2, 3),
    "phishing": (0.1, 0.25, 0.005, 1, 1),
}

# Data sets that stand in for one of the paper's.
STAND_INS = {
    "gina_reconstruction": "gina",
    "sylva_train": "sylva",
    "activity_time265": "activity",
}

# Data the authors never ran take the settings of Phishing.
_ELSEWHERE = "phishing"


def _official(method: str, data: str) -> dict[str, Any]:
    """Return the settings of the released code for `method` on the data set `data`."""
    known = STAND_INS.get(data, data)
    row = _COMMUNICATION_TABLE.get(known, _COMMUNICATION_TABLE[_ELSEWHERE])
    lam_local, lam_group, lam_server, epochs_less, epochs_local = row
    is_mimic = known == "mimic3"
    return {
        **_OFFICIAL,
        **({"party_step_size": 0.0001, "lam_scale": 100.0} if is_mimic else {}),
        "batch_size": 100 if known == "gina" else 1000,
        "lam_party": lam_group if method == "group-lasso" else lam_local,
        "lam_server": lam_server,
        "pretrain_epochs": epochs_local if method == "local-lasso" else epochs_less,
    }


def examples() -> list[Dataset]:
    """Return data sets that profiles tell apart, the most usual kind first."""

    def table(n_rows: int, n_classes: int) -> Dataset:
        return from_arrays(np.zeros((n_rows, 1)), np.arange(n_rows) % n_classes)

    usual = table(FEW_ROWS + 1, 2)
    return [
        usual,
        table(FEW_ROWS, 2),
        table(MANY_ROWS + 1, 2),
        table(FEW_ROWS + 1, MANY_CLASSES + 1),
        replace(usual, scale="global", split="first"),
        *(replace(usual, name=name) for name in _COMMUNICATION_TABLE),
    ]


@dataclass(frozen=True)
class Settings:
    """Every setting of a run, in its sections."""

    profile: str
    method: str
    data: DataConfig
    net: NetConfig
    labels: LabelConfig
    config: Joint

    @property
    def keeps_order(self) -> bool:
        """Tell whether training and test rows stay in the order of the table."""
        return self.config.row_order == "blocks"

    def is_ensemble(self, seeds: Sequence[int]) -> bool:
        """Tell whether seeds share their rows, and can predict together."""
        is_plain = self.net.party_net is None and self.net.fusion_net is None
        shares = self.data.split_seed is not None and len(seeds) > 1
        return shares and is_plain and "trees" not in self.flat()

    def check_ensemble(self, seeds: Sequence[int]) -> None:
        """Refuse seeds whose models cannot be averaged."""
        if not self.is_ensemble(seeds):
            raise ConfigError(
                "An ensemble is made of the networks that lessvfl makes itself. Got "
                f"method {self.method}, or networks of your own."
            )

    def flat(self) -> dict[str, Any]:
        """Return all settings by name."""
        parts = (self.data, self.net, self.labels, self.config)
        return {name: value for part in parts for name, value in asdict(part).items()}

    def shared(self) -> dict[str, Any]:
        """Return the settings that parties are told: shapes and method.

        How columns are prepared, what must be kept and what code makes a network is
        every party's own; labels are the server's.
        """
        both = asdict(self.net) | asdict(self.config)
        return {name: value for name, value in both.items() if name not in OWN}


def sections(method: str) -> tuple[type, type, type, type]:
    """Return the sections whose settings a method reads."""
    return DataConfig, NetConfig, LabelConfig, methods.get(method).config


def _start(method: str, profile: str, dataset: Dataset) -> dict[str, Any]:
    """Return the settings with which a profile replaces the sections' own defaults."""
    n_classes = len(dataset.label_names)
    if profile == "default":
        start = dict(_DEFAULT.get(method, {}))
        if "components_per_column" in start and n_classes > 2:
            start |= SEVERAL
        if start and n_classes > MANY_CLASSES:
            start["embedding_size"] *= 2
        if start.get("schedule") == "watched":
            start |= _steps(dataset)
        return start
    handling = {**_PUBLISHED_DATA, "scale": dataset.scale, "split": dataset.split}
    published = _official(method, dataset.name)
    if profile == "official-code":
        return handling | published
    shared = {name: published[name] for name in ("batch_size", "pretrain_epochs")}
    return handling | shared | _PAPER.get(method, {})


def _steps(dataset: Dataset) -> dict[str, Any]:
    """Return the steps of a training that ends by itself, and its most epochs."""
    n_rows = dataset.X.n_rows
    if n_rows > MANY_ROWS and len(dataset.label_names) <= 2:
        return {"batch_size": 512, "learning_rate": 0.02, "train_epochs": 15}
    steps = {"batch_size": 256, "learning_rate": 0.01, "train_epochs": 21}
    return steps | ({"bits": 8} if n_rows <= FEW_ROWS else {})


def _behind_noise(given: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Return what less-vfl-auto starts with if the settings `given` ask for noise."""
    on_embeddings = given.get("embedding_noise") or given.get("embedding_epsilon")
    on_gradients = given.get("gradient_defence") == "gaussian"
    if not (on_embeddings or on_gradients):
        return {}
    start = dict(_FEW_RELEASES)
    if on_embeddings:
        start |= _BEHIND_EMBEDDINGS
    if on_gradients:
        start |= _BEHIND_GRADIENTS
    return start | ({"embedding_size": 1} if len(dataset.label_names) <= 2 else {})


def _not_read(method: str, name: str, fields: Mapping[str, Field[Any]]) -> ConfigError:
    """Build the sentence about a setting that the method does not read."""
    readers = [
        other
        for other in methods.METHODS
        if name in settings.fields_of([methods.get(other).config])
    ]
    if not readers:
        return settings.unknown("setting", name, fields, f" of method {method}")
    return ConfigError(
        f"The '{name}' setting is not read by method {method}. It is one of "
        f"{', '.join(readers)}."
    )


def resolve(
    method: str,
    profile: str,
    dataset: Dataset,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Put together the settings of a run.

    Parameters
    ----------
    method, profile : str
        Names out of the registry and out of ``PROFILES``.
    dataset : Dataset
        Published settings differ by data set.
    overrides : mapping
        Settings by name; a text is read as on the command line.

    Returns
    -------
    Settings
        Checked; an unknown name, a setting that the method does not read, or a value
        that is not allowed is a ConfigError.
    """
    if profile not in PROFILES:
        raise settings.unknown("profile", profile, PROFILES)
    allowed = methods.get(method).profiles
    if profile not in allowed:
        raise ConfigError(
            f"Method {method} has the profile {', '.join(allowed)} alone. "
            f"Got '{profile}'; less-vfl has all profiles."
        )
    fields = settings.fields_of(sections(method))
    start = _start(method, profile, dataset)
    values = {name: value for name, value in start.items() if name in fields}
    given = {}
    for name, value in (overrides or {}).items():
        if name not in fields:
            raise _not_read(method, name, fields)
        given[name] = settings.value_of(value, fields[name])
    if (method, profile) == (methods.DEFAULT, "default"):
        values |= _behind_noise(given, dataset)
    resolved = from_flat(method, profile, values | given)
    check_split(dataset, resolved.data)
    return resolved


def transport(chosen: Settings) -> dict[str, Any]:
    """Return the settings that decide how much a run sends, those it reads."""
    values = chosen.flat()
    return {name: values[name] for name in TRANSPORT if name in values}


def resolve_like(method: str, other: Settings, dataset: Dataset) -> Settings:
    """Return a method's settings, with the transport of `other` ones."""
    known = settings.fields_of(sections(method))
    shared = {k: v for k, v in transport(other).items() if k in known}
    return resolve(method, "default", dataset, shared)


def changed(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a record's header that are not the sections' defaults.

    What a profile sets is among them, and options of a data set are.
    """
    usual = from_flat(header["method"], header["profile"], {}).flat()
    return {
        name: value
        for name, value in header["config"].items()
        if name not in usual or usual[name] != value
    }


def from_flat(method: str, profile: str, values: Mapping[str, Any]) -> Settings:
    """Return settings out of their flat values, checked; what is missing is default."""
    data, net, labels, config = (
        part(**settings.pick(part, values)) for part in sections(method)
    )
    return Settings(profile, method, data, net, labels, config)
