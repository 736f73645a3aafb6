"""Profiles: what the released code did, what the paper says, and what a user gets.

The defaults of every section are the profile ``default``; the other two say what they
do differently. Sources: the paper, and the authors' released experiments, whose facts
are listed in docs/paper.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass
from typing import Any

from lessvfl import methods, settings
from lessvfl.core.network import NetConfig
from lessvfl.data import DataConfig, Dataset
from lessvfl.errors import LessVFLWarning
from lessvfl.methods.base import Joint

PROFILES = ("default", "paper", "official-code")
SELECTORS = {"lam_party": "selector", "lam_server": "server_selector"}
_SHADOWS = (
    "pretrain_check",
    "shadows",
    "shadow_share",
    "false_share",
    "adaptive",
    "pairs",
    "second_look",
    "second_loss",
    "subsamples",
    "must_keep",
    "most",
    "refit_epochs",
)
_PATH = ("server_rows", "server_errors", "server_refit")
# Settings that one way of selecting reads and another does not.
_UNREAD = {
    ("selector", "shadows"): ("lam_party",),
    ("selector", "network"): _SHADOWS,
    ("server_selector", "path"): ("lam_server",),
    ("server_selector", "network"): _PATH,
    ("server_selector", "none"): ("lam_server", *_PATH),
}

# What goes past the paper (docs/selection.md); chosen on training rows.
_DEFAULT = {
    "less-vfl": {
        "embedding_size": 4,
        "input_scale": 0.01,
        "aim": "time",
        "pretrain_epochs": 0.5,
        "selector": "shadows",
        "server_selector": "path",
        "second_look": 1,
        "bits": 8,
        "batch_size": 128,
        "learning_rate": 0.005,
        "train_epochs": 40,
        "schedule": "cosine",
    },
}

# Both reproduce the published handling of the data.
_PUBLISHED_DATA = {"uneven": "drop", "noise": "range", "scale_labels": False}

_OFFICIAL = {
    "activation": "none",
    "shuffle": False,
    "party_step_size": 0.001,
    "lam_scale": 10.0,
    "reduction": "mean",
    "empty_party": "frozen",
    "drain": True,
}

# Chosen on training rows by benchmarks/calibrate.py; docs/paper.md has the tables.
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
    """Return what the released code did to this data set with this method."""
    known = STAND_INS.get(data, data)
    row = _COMMUNICATION_TABLE.get(known, _COMMUNICATION_TABLE[_ELSEWHERE])
    lam_local, lam_group, lam_server, epochs_less, epochs_local = row
    values = dict(_OFFICIAL)
    values["batch_size"] = 100 if known == "gina" else 1000
    values["lam_party"] = lam_group if method == "group-lasso" else lam_local
    values["lam_server"] = lam_server
    values["pretrain_epochs"] = epochs_local if method == "local-lasso" else epochs_less
    if known == "mimic3":
        values |= {"party_step_size": 0.0001, "lam_scale": 100.0}
    return values


@dataclass(frozen=True)
class Settings:
    """Every setting of a run, in its sections."""

    profile: str
    method: str
    data: DataConfig
    net: NetConfig
    config: Joint

    def flat(self) -> dict[str, Any]:
        """Return all settings by name."""
        return asdict(self.data) | asdict(self.net) | asdict(self.config)


def sections(method: str) -> tuple[type, type, type]:
    """Return the sections whose settings a method reads."""
    return DataConfig, NetConfig, methods.get(method).config


def without(method: str) -> dict[str, Any]:
    """Return the settings that switch off what the profile default adds to a method.

    >>> without("less-vfl")["selector"]
    'network'
    """
    fields = settings.fields_of(sections(method))
    return {name: fields[name].default for name in _DEFAULT.get(method, {})}


def _check_elsewhere(
    method: str, name: str, value: Any, fields: Mapping[str, Field[Any]]
) -> None:
    """Warn of a setting that only other methods read; refuse what none of them does."""
    others = settings.fields_of(other.config for other in methods.METHODS.values())
    if name not in others:
        raise settings.unknown("setting", name, fields, f" of method {method}")
    settings.check(settings.value_of(value, others[name]), others[name])
    warnings.warn(
        f"The '{name}' setting has no effect with method {method}.",
        LessVFLWarning,
        stacklevel=3,
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
        Settings by name; a text is read as on the command line. One that only other
        methods read is warned of.

    Returns
    -------
    Settings
        Checked; an unknown name or a value that is not allowed is a ConfigError.
    """
    if profile not in PROFILES:
        raise settings.unknown("profile", profile, PROFILES)
    parts = sections(method)
    fields = settings.fields_of(parts)
    values: dict[str, Any] = {}
    if profile != "default":
        values = {**_PUBLISHED_DATA, "scale": dataset.scale, "split": dataset.split}
        published = _official(method, dataset.name)
        if profile == "official-code":
            values |= published
        else:
            values |= {k: published[k] for k in ("batch_size", "pretrain_epochs")}
            values |= _PAPER.get(method, {})
        values = {name: value for name, value in values.items() if name in fields}
    else:
        values = dict(_DEFAULT.get(method, {}))
        for lam, selector in SELECTORS.items():
            if lam in (overrides or {}):  # a lambda by hand is the published stage's
                values[selector] = "network"
    for name, value in (overrides or {}).items():
        if name in fields:
            values[name] = settings.value_of(value, fields[name])
        else:
            _check_elsewhere(method, name, value, fields)
    few_steps = values.get("aim") == "time" and "aim" not in (overrides or {})
    if few_steps and values["selector"] == "network":
        values["aim"] = "bytes"  # the published stage 3 needs many steps before it
    data, net, config = (part(**settings.pick(part, values)) for part in parts)
    for (selector, chosen), unread in _UNREAD.items():
        if getattr(config, selector, None) == chosen:
            for name in set(unread) & set(overrides or {}):
                if values[name] == fields[name].default:
                    continue
                warnings.warn(
                    f"The '{name}' setting has no effect with {selector}={chosen}.",
                    LessVFLWarning,
                    stacklevel=2,
                )
    return Settings(profile, method, data, net, config)
