"""Profiles against the published settings, written down here by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.conftest import PUBLISHED, PUBLISHED_LOCAL

from lessvfl import data, methods
from lessvfl.errors import ConfigError
from lessvfl.remote.align.messages import padded
from lessvfl.run import profiles

METHODS = ("less-vfl", "local-lasso", "group-lasso", "plain")

# What the released code did, by data set: batch size, step size of stage 3 and the
# factor on lambda hidden in it.
COMMON = {
    "mimic3": (1000, 0.0001, 100),
    "gina": (100, 0.001, 10),
    "sylva": (1000, 0.001, 10),
    "activity": (1000, 0.001, 10),
    "phishing": (1000, 0.001, 10),
}
# The communication table: lambdas and epochs of pre-training.
LESS = {
    "mimic3": {"lam_party": 40, "lam_server": 0.1, "pretrain_epochs": 1},
    "gina": {"lam_party": 0.025, "lam_server": 0.005, "pretrain_epochs": 1},
    "sylva": {"lam_party": 0.1, "lam_server": 0.01, "pretrain_epochs": 1},
    "activity": {"lam_party": 0.1, "lam_server": 0.25, "pretrain_epochs": 2},
    "phishing": {"lam_party": 0.1, "lam_server": 0.005, "pretrain_epochs": 1},
}
LOCAL = {
    "mimic3": {"lam_party": 40, "pretrain_epochs": 1},
    "gina": {"lam_party": 0.025, "pretrain_epochs": 1},
    "sylva": {"lam_party": 0.1, "pretrain_epochs": 1},
    "activity": {"lam_party": 0.1, "pretrain_epochs": 3},
    "phishing": {"lam_party": 0.1, "pretrain_epochs": 1},
}
GROUP = {
    "mimic3": {"lam_party": 0.25},
    "gina": {"lam_party": 0.1},
    "sylva": {"lam_party": 1},
    "activity": {"lam_party": 0.1},
    "phishing": {"lam_party": 0.25},
}
TABLES: dict[str, Any] = {"less-vfl": LESS, "local-lasso": LOCAL, "group-lasso": GROUP}

NETWORK = {"embedding_size": 16, "hidden": 64, "depth": 3, "fusion_depth": 1}
LEARNING = {"learning_rate": 0.01, "train_epochs": 100}
STAGE_3 = {"party_epochs": 150}
STAGE_2 = {"server_epochs": 150, "server_step_size": 0.01}
JOINT = {"joint_epochs": 150, "optimizer": "sgd", "train_optimizer": "adam"}
BY_METHOD: dict[str, dict[str, Any]] = {
    "less-vfl": {"optimizer": "adam"} | STAGE_2 | STAGE_3,
    "local-lasso": {"optimizer": "adam"} | STAGE_3,
    "group-lasso": JOINT,
    "plain": {"optimizer": "adam"},
}
SELECTING = ("less-vfl", "local-lasso")


def a_dataset(name, **facts):
    table = data.from_arrays(np.eye(8), [0, 1] * 4)
    return dataclasses.replace(table, name=name, **facts)


def flat(method, profile, name="phishing", overrides=None, **facts):
    settings = profiles.resolve(method, profile, a_dataset(name, **facts), overrides)
    return settings.flat()


def check(found, expected):
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("method", METHODS)
def test_official_code(method, name):
    found = flat(method, "official-code", name)
    batch_size, step_size, lam_scale = COMMON[name]
    check(found, NETWORK | LEARNING | BY_METHOD[method])
    check(found, {"activation": "none", "row_order": "file", "batch_size": batch_size})
    check(found, {"uneven": "drop", "noise": "range", "empty_party": "frozen"})
    if method in SELECTING:
        check(found, {"party_step_size": step_size, "lam_scale": lam_scale})
        check(
            found,
            {"reduction": "mean", "stepwise_removal": True, "plateau_tolerance": 0},
        )
    check(found, TABLES.get(method, {}).get(name, {}))


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("method", METHODS)
def test_paper(method, name):
    """What the text says; all else as in the released code."""
    found = flat(method, "paper", name)
    check(found, NETWORK | LEARNING | BY_METHOD[method])
    check(
        found,
        {"activation": "tanh", "row_order": "shuffle", "batch_size": COMMON[name][0]},
    )
    check(found, {"uneven": "drop", "noise": "range", "empty_party": "constant"})
    if method in SELECTING:
        check(found, {"party_step_size": 0.01, "lam_scale": 1})
        check(found, {"reduction": "sum", "stepwise_removal": False})
        epochs = TABLES[method][name]["pretrain_epochs"]
        assert found["pretrain_epochs"] == epochs
    calibrated = flat(method, "paper", "phishing")  # once, not by data set
    for lam in ("lam_party", "lam_server"):
        assert found.get(lam) == calibrated.get(lam)


@pytest.mark.parametrize("method", METHODS)
def test_default(method):
    """The paper's, but each party standardises, and labels draw no test row."""
    published = {"less-vfl": PUBLISHED, "local-lasso": PUBLISHED_LOCAL}
    found = flat(method, "default", overrides=published.get(method))
    check(found, NETWORK | LEARNING | BY_METHOD[method])
    check(found, {"activation": "tanh", "row_order": "shuffle", "scale": "auto"})
    check(found, {"split": "random", "uneven": "spread", "test_share": 0.2})


@pytest.mark.parametrize(("n_classes", "size"), [(2, 4), (8, 4), (9, 8)])
def test_many_classes_take_twice_the_components(n_classes, size):
    names = tuple(str(k) for k in range(n_classes))
    for method in ("less-vfl-auto", "less-vfl"):
        found = flat(method, "default", label_names=names)
        assert found["embedding_size"] == size
        asked = flat(method, "default", "a", {"embedding_size": 5}, label_names=names)
        assert asked["embedding_size"] == 5
    for profile in ("paper", "official-code"):
        found = flat("less-vfl", profile, label_names=names)
        assert found["embedding_size"] == flat("less-vfl", profile)["embedding_size"]
    one = flat("plain", "default", label_names=names)
    assert one["embedding_size"] == flat("plain", "default")["embedding_size"]


@pytest.mark.parametrize("profile", ["paper", "official-code"])
def test_published_profiles_treat_data_as_published(profile):
    found = flat("plain", profile, scale="none", split="stratified")
    check(found, {"scale": "none", "split": "stratified"})
    found = flat("plain", profile, scale="global", split="first")
    check(found, {"scale": "global", "split": "first"})
    check(flat("plain", "default", scale="none"), {"scale": "auto"})


@pytest.mark.parametrize(
    ("stand_in", "name"),
    [
        ("gina_reconstruction", "gina"),
        ("sylva_train", "sylva"),
        ("activity_time265", "activity"),
        ("my-table", "phishing"),
    ],
)
@pytest.mark.parametrize("profile", ["paper", "official-code"])
@pytest.mark.parametrize("method", METHODS)
def test_stand_ins_take_the_settings_of_the_real_set(method, profile, stand_in, name):
    assert flat(method, profile, stand_in) == flat(method, profile, name)


CONTRACT: list[tuple[str, str, str, Any]] = [
    ("less-vfl", "lam_party", "0.5", 0.5),
    ("less-vfl", "lam_party", "0", 0.0),
    ("less-vfl", "lam_server", "2e-3", 0.002),
    ("less-vfl", "pretrain_epochs", "0.5", 0.5),
    ("less-vfl", "pretrain_epochs", "3", 3.0),
    ("group-lasso", "joint_epochs", "7", 7.0),
    ("less-vfl", "server_epochs", "7", 7),
    ("less-vfl", "party_epochs", "7", 7),
    ("plain", "train_epochs", "7", 7.0),
    ("plain", "batch_size", "7", 7),
    ("plain", "embedding_size", "7", 7),
    ("plain", "hidden", "32", 32),
    ("plain", "hidden", "64,32", (64, 32)),
    ("plain", "depth", "5", 5),
    ("plain", "activation", "softplus", "softplus"),
    ("plain", "optimizer", "sgd", "sgd"),
    ("group-lasso", "optimizer", "adam", "adam"),
    ("plain", "learning_rate", "0.3", 0.3),
    ("less-vfl", "server_step_size", "0.3", 0.3),
    ("less-vfl", "party_step_size", "0.3", 0.3),
]


@pytest.mark.parametrize("profile", profiles.PROFILES)
@pytest.mark.parametrize(("method", "name", "text", "value"), CONTRACT)
def test_every_contract_name_can_be_overridden(profile, method, name, text, value):
    whole = flat(method, profile)
    for given in (text, value):
        found = flat(method, profile, overrides={name: given})
        assert found[name] == value
        assert type(found[name]) is type(value)
        assert found | {name: None} == whole | {name: None}


@pytest.mark.parametrize("method", SELECTING)
def test_default_goes_past_the_paper(method):
    """Few bytes: small embeddings, 8 bits, a falling rate."""
    few = {"embedding_size": 4, "input_scale": 0.01, "bits": 8, "batch_size": 128}
    check(flat(method, "default"), few)
    check(flat(method, "default"), {"learning_rate": 0.005, "train_epochs": 40})
    assert flat(method, "default")["schedule"] == "cosine"


@pytest.mark.parametrize("n_rows", [768, 999, 1024, 1025, 4999, 5000, 5120, 5121])
def test_settings_tell_no_more_of_the_rows_than_their_alignment_does(n_rows):
    """Parties are told both before they have said anything."""

    def shared(n):
        table = data.from_arrays(np.zeros((n, 1)), np.arange(n) % 2, name="numbers")
        return profiles.resolve("less-vfl-auto", "default", table).shared()

    assert shared(n_rows) == shared(padded(n_rows))


@pytest.mark.parametrize(
    ("n_rows", "n_classes", "rows_of_a_step", "bits"),
    [(5121, 2, 512, 4), (5120, 2, 256, 4), (5121, 3, 256, 4), (1024, 2, 256, 8)],
)
def test_a_training_that_ends_by_itself_has_steps_for_its_table(
    n_rows, n_classes, rows_of_a_step, bits
):
    y = np.arange(n_rows) % n_classes
    table = data.from_arrays(np.zeros((n_rows, 3)), y, name="numbers")
    found = profiles.resolve("less-vfl-auto", "default", table).flat()
    many = rows_of_a_step == 512
    check(found, {"schedule": "watched", "bits": bits, "batch_size": rows_of_a_step})
    check(found, {"learning_rate": 0.02 if many else 0.01})
    check(found, {"train_epochs": 15 if many else 21, "embedding_size": 4})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("profile", profiles.PROFILES)
def test_less_vfl_is_algorithm_1_in_every_profile(method, profile):
    """What the profile default changes for less-vfl is what the constant says."""
    found = flat(method, profile)
    if method == "less-vfl":
        assert {"lam_party", "lam_server", "server_epochs"} <= found.keys()
        assert found["adaptive"] == 0
    if method in SELECTING:
        assert (found["bits"] == 8) == (profile == "default")
    else:
        check(found, {"bits": 32, "schedule": "constant", "input_scale": 1.0})
    if profile != "default":
        check(found, {"bits": 32, "schedule": "constant", "input_scale": 1.0})


def test_published_settings_of_less_vfl_are_what_default_changes():
    """PUBLISHED, which tests take the paper's way by, leaves nothing of it out."""
    default = flat("less-vfl", "default")
    paper = flat("less-vfl", "paper", "phishing")
    changed = {name for name in paper if name in PUBLISHED}
    assert changed == set(PUBLISHED)
    assert {name: paper[name] for name in PUBLISHED} == PUBLISHED
    assert all(default[name] != PUBLISHED[name] for name in PUBLISHED)


def test_numbers_of_numpy_become_plain():
    given = {"batch_size": np.int64(5), "learning_rate": np.float32(0.5)}
    found = flat("plain", "default", overrides=given | {"row_order": "file"})
    check(found, {"batch_size": 5, "learning_rate": 0.5, "row_order": "file"})
    assert type(found["batch_size"]) is int
    assert type(found["learning_rate"]) is float


# ------------------------------------------------- settings that a method does not read

# A setting that exists, a method that does not read it, and those that do.
ELSEWHERE = [
    ("local-lasso", "lam_server", "less-vfl"),
    ("local-lasso", "server_epochs", "less-vfl"),
    ("local-lasso", "adaptive", "less-vfl"),
    ("less-vfl", "joint_epochs", "group-lasso, vflfs"),
    ("less-vfl", "shadow_share", "less-vfl-auto, auto-boost"),
    ("less-vfl", "second_look", "less-vfl-auto, auto-boost"),
    ("less-vfl-auto", "lam_party", "less-vfl, local-lasso, group-lasso, vflfs"),
    ("less-vfl-auto", "lam_server", "less-vfl"),
    ("less-vfl-auto", "party_epochs", "less-vfl, local-lasso"),
    ("group-lasso", "party_epochs", "less-vfl, local-lasso"),
    (
        "group-lasso",
        "pretrain_epochs",
        "less-vfl-auto, less-vfl, local-lasso, counterfactual, auto-boost",
    ),
    ("plain", "lam_party", "less-vfl, local-lasso, group-lasso, vflfs"),
]


@pytest.mark.parametrize(("method", "name", "readers"), ELSEWHERE)
@pytest.mark.parametrize("value", ["1", 1, -1, "much"])
def test_a_setting_of_another_method_is_refused_and_its_methods_named(
    method, name, readers, value
):
    with pytest.raises(ConfigError) as error:
        flat(method, "default", overrides={name: value})
    assert str(error.value) == (
        f"The '{name}' setting is not read by method {method}. It is one of {readers}."
    )


@pytest.mark.parametrize(
    "gone", ["selector", "server_selector", "aim", "subsamples", "pretrain_check"]
)
@pytest.mark.parametrize("method", ["less-vfl", "less-vfl-auto"])
def test_what_no_method_reads_is_unknown(method, gone):
    with pytest.raises(
        ConfigError, match=f"Unknown setting '{gone}' of method {method}"
    ):
        flat(method, "default", overrides={gone: "network"})


@pytest.mark.parametrize("profile", ["paper", "official-code"])
def test_selection_without_a_lambda_has_one_profile(profile):
    with pytest.raises(ConfigError) as error:
        flat("less-vfl-auto", profile)
    assert str(error.value) == (
        "Method less-vfl-auto has the profile default alone. "
        f"Got '{profile}'; less-vfl has all profiles."
    )


@pytest.mark.parametrize("method", methods.METHODS)
def test_profiles_bring_what_a_method_reads_and_nothing_else(method):
    known = {
        f.name for part in profiles.sections(method) for f in dataclasses.fields(part)
    }
    for profile in methods.get(method).profiles:
        assert flat(method, profile).keys() == known


@pytest.mark.parametrize("method", methods.METHODS)
def test_settings_come_back_from_their_flat_values(method):
    settings = profiles.resolve(method, "default", a_dataset("a"), {"hidden": 9})
    again = profiles.from_flat(method, "default", settings.flat())
    assert again == settings
    with pytest.raises(ConfigError, match="'batch_size' setting must be"):
        profiles.from_flat(method, "default", settings.flat() | {"batch_size": 0})


def test_unknown_names():
    with pytest.raises(ConfigError, match="Unknown profile 'papier'"):
        flat("plain", "papier")
    with pytest.raises(ConfigError, match="Unknown method 'lasso'"):
        flat("lasso", "paper")
    with pytest.raises(
        ConfigError,
        match=r"'lam_parti' of method less-vfl\. Did you mean 'lam_party'\?$",
    ):
        flat("less-vfl", "paper", overrides={"lam_parti": 1})


def test_all_methods_of_several_profiles_are_tested_here():
    several = {m.name for m in methods.METHODS.values() if len(m.profiles) > 1}
    assert set(METHODS) == several
    assert methods.DEFAULT == "less-vfl-auto"
