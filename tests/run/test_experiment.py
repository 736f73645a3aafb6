"""Experiments: what is run, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.jobs import a_job

from lessvfl import data
from lessvfl.errors import ConfigError, LessVFLWarning
from lessvfl.run import experiment, profiles, simulate
from lessvfl.run.numbers import rows_by_class

# ----------------------------------------------------------------------- the target


def test_original_has_no_noise_and_the_profiles_own_training():
    settings = {"activation": "relu", "hidden": 8, "test_share": 0.3}
    job = a_job("less-vfl", "paper", spurious=0.5, batch_size=7, **settings)
    original = experiment.original(job)
    assert original.spurious == 0
    flat = original.settings.flat()
    assert original.settings.method == "plain"
    assert original.settings.profile == "paper"
    assert {name: flat[name] for name in settings} == settings
    assert flat["batch_size"] == 1000
    assert flat["train_epochs"] == 100


def best_original(job, seeds):
    """Return the best accuracy of VFL (Original), over all epochs and seeds."""
    runs = simulate.simulate(experiment.original(job), seeds)
    return max(point["accuracy"] for run in runs for point in run.numbers["curve"])


@pytest.mark.filterwarnings("ignore:The 'batch_size' setting")
def test_threshold_is_one_number_for_all_runs():
    job = a_job("plain", spurious=0.5)
    record, _ = experiment.run(job, [0, 1], target=True)
    best = best_original(job, [0, 1])
    thresholds = [run["target"]["accuracy"] for run in record.runs]
    assert thresholds == [0.9 * best] * 2


def test_released_code_asks_for_more_than_the_share(monkeypatch):
    seen = []

    def cost(curve, threshold, strict):
        seen.append(strict)
        return {}

    monkeypatch.setattr(experiment, "cost_to_target", cost)
    monkeypatch.setattr(experiment, "original", lambda job: job)  # it is not the point
    for profile in profiles.PROFILES:
        job = a_job("plain", profile, spurious=0.5)
        experiment.run(job, [0], target=True)
    assert dict(zip(profiles.PROFILES, seen, strict=True)) == {
        "default": False,
        "paper": False,
        "official-code": True,
    }


# ------------------------------------------------------------------------ what is run


@pytest.mark.parametrize("method", ["less-vfl-auto", "plain"])
def test_rows_that_belong_together_are_in_the_record(method):
    """Seeds whose splits have equal sizes share a batch, and blocks differ in it."""
    rows = np.arange(200) // 2
    X = np.random.default_rng(2).normal(size=(100, 8))[rows]
    dataset = data.from_arrays(X, (X[:, 0] > 0).astype(int))
    own = {"train_epochs": 1, "batch_size": 40, "hidden": 8, "schedule": "constant"}
    settings = profiles.resolve(method, "default", dataset, own)
    job = simulate.Job(dataset, settings, parties=2)
    with pytest.warns(LessVFLWarning, match="100 % of the rows equal another"):
        record, runs = experiment.run(job, [0, 1])
    assert record.header["data"]["n_blocks"] == 100
    assert record.header["data"]["n_equal_rows"] == 200
    assert any("equal another" in note for note in record.header["notes"])
    for run in runs:
        blocks = run.problem.blocks
        assert blocks is not None
        assert (np.bincount(blocks) == 2).all()


def test_record_of_a_run():
    record, runs = experiment.run(a_job(spurious=0.5), [5, 3], options={"n": "1"})
    assert record.status == "complete"
    assert [run["seed"] for run in record.runs] == [5, 3]
    assert [run.numbers for run in runs] == record.runs
    header = record.header
    assert header["data"] == {
        "name": "numbers",
        "n_train": 80,
        "n_test": 20,
        "n_features": 12,
        "n_real": 8,
        "n_missing": 0,
        "n_flagged": 0,
        "n_parties": 4,
        "n_classes": 2,
        "task": "binary",
        "task_reason": "2 different whole numbers, not more than 10",
        "n_blocks": 100,
        "n_equal_rows": 0,
        "split": "random",
        "classes": rows_by_class(runs[0].problem),
        "power": None,
        "score": "accuracy",
        "score_reason": "no class is much rarer than an even share",
    }
    assert header["config"]["data.n"] == "1"
    assert header["config"]["batch_size"] == 40
    assert header["device"] == "cpu"
    assert header["versions"].keys() == {"lessvfl", "python", "torch", "numpy"}


@pytest.mark.parametrize("seeds", [[0, 0], [-1], [2**63]])
def test_seeds_must_make_sense(seeds):
    with pytest.raises(ConfigError, match="Every seed must be"):
        experiment.run(a_job(), seeds)


def test_no_seed():
    with pytest.raises(ConfigError, match="At least one seed"):
        experiment.run(a_job(), [])


@pytest.mark.filterwarnings("error::lessvfl.errors.LessVFLWarning")
def test_plain_is_not_warned_of_what_it_never_removes():
    experiment.run(a_job("plain"), [0])


def test_only_the_seeds_concerned_are_named(monkeypatch):
    """Everything removed with one seed, nothing with another, some with a third."""
    original = simulate.simulate
    lams = {0: 1e6, 1: 0.0, 2: 0.1}
    lasso = {"party_epochs": 8, "party_step_size": 0.05}

    def each_its_own(job, seeds, *more, **how):
        runs = []
        for seed in seeds:
            own = a_job("local-lasso", lam_party=lams[seed], **lasso)
            runs += original(own, [seed], *more, **how)
        return runs

    monkeypatch.setattr(simulate, "simulate", each_its_own)
    job = a_job("local-lasso", **lasso)
    with pytest.warns(LessVFLWarning) as said:
        experiment.run(job, [0, 1, 2])
    assert [str(warning.message) for warning in said] == [
        "Selection removed everything (seed 0): a smaller 'lam_party' may be needed.",
        "Selection removed nothing (seed 1): a larger 'lam_party' may be needed.",
    ]


@pytest.mark.parametrize(
    ("copies", "false_share", "none_or"),
    [
        (3, 0.2, "with 'copies' 3 and 'false_share' 0.2 a party keeps 2 features or "
         "more, or none; "),
        (20, 0.05, ""),
        (3, 0.0, ""),
    ],
)  # fmt: skip
def test_trees_that_keep_nothing_say_how_few_a_party_can_keep(
    copies, false_share, none_or
):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    noise = data.from_arrays(X, rng.random(200) > 0.5, name="noise")
    given = {"trees": 1, "select_trees": 2}
    given |= {"copies": copies, "false_share": false_share}
    own = profiles.resolve("vertical-boost", "default", noise, given)
    with pytest.warns(LessVFLWarning) as said:
        experiment.run(simulate.Job(noise, own, parties=2), [0])
    assert [str(warning.message) for warning in said] == [
        f"Selection removed everything (seed 0): {none_or}a larger 'false_share' or "
        "more 'copies' may be needed, or 'select_trees' 0, which leaves selection out."
    ]


def test_every_run_is_handed_over_before_the_next_begins(monkeypatch):
    job = a_job("less-vfl-auto")
    done: list[simulate.Run] = []
    run_seed = simulate._run_seed

    def fails_at_the_third(job, settings, seed, *more):
        if seed == 2:
            raise RuntimeError("no more")
        return run_seed(job, settings, seed, *more)

    monkeypatch.setattr(simulate, "_run_seed", fails_at_the_third)
    with pytest.raises(RuntimeError, match="no more"):
        experiment.run(job, [0, 1, 2, 3], done=done.append)
    assert [run.numbers["seed"] for run in done] == [0, 1]


def test_seeds_at_a_time_are_those_in_turn():
    """They come in the order asked for, with what each of them warned of."""
    job = a_job("less-vfl-auto", spurious=0.5, batch_size=5000)
    done: list[simulate.Run] = []
    with pytest.warns(LessVFLWarning, match="'batch_size' setting is 5000"):
        at_a_time = simulate.simulate(job, [1, 0], done=done.append, n_jobs=2)
    with pytest.warns(LessVFLWarning, match="'batch_size' setting is 5000"):
        in_turn = simulate.simulate(job, [1, 0])
    assert {run.numbers["seed"] for run in done} == {0, 1}
    for other, run in zip(at_a_time, in_turn, strict=True):
        assert other.numbers["seed"] == run.numbers["seed"]
        assert other.numbers["features"] == run.numbers["features"]
        assert other.bill == run.bill
        final = run.numbers["auc"]["final"]
        assert other.numbers["auc"]["final"] == pytest.approx(final, abs=1e-6)
