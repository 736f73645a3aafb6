"""Attacks on the messages of runs: planted leaks are found, and nothing else is."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.remote import test_remote

from lessvfl import data
from lessvfl.errors import ConfigError
from lessvfl.party import Party
from lessvfl.remote import server
from lessvfl.run import profiles, simulate
from lessvfl.wire import messages
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.parties import Parties
from lessvfl_bench.pages import again
from lessvfl_bench.privacy import counts, drawn, labels, start, study, tables, values
from lessvfl_bench.privacy.traffic import (
    AnyArray,
    LargerSteps,
    PartyView,
    Recording,
    Shared,
    party_view,
    server_view,
)
from lessvfl_bench.study import run as run_study

pytestmark = pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")


@functools.cache
def a_job(n_classes: int = 2) -> simulate.Job:
    """Return a run between a party of pure noise and one whose columns say labels."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 10))
    signal = X[:, 4] + X[:, 5] + 0.5 * rng.normal(size=600)
    cuts = np.quantile(signal, np.arange(1, n_classes) / n_classes + 0.1)
    y = np.digitize(signal, cuts)
    table = data.from_arrays(X, y, feature_names=[f"x{i}" for i in range(10)])
    held = {"spy": table.X.names[:4], "clinic": table.X.names[4:]}
    few = {"train_epochs": 4}
    settings = profiles.resolve("less-vfl-auto", "default", table, few)
    return simulate.Job(table, settings, parties=held)


@functools.cache
def a_run(n_classes: int = 2):
    """Return a run and its messages."""
    return study.recorded(a_job(n_classes), 0)


def spied(n_classes: int = 2) -> tuple[PartyView, AnyArray]:
    """Return what the party of noise sees, and the labels."""
    run, recording = a_run(n_classes)
    problem = run.problem
    own = problem.parties[0], run.model.parties[0]
    return party_view(recording, Shared.of(problem, 0), *own), problem.y_train


# -- traffic ---------------------------------------------------------------------------


def test_a_recording_changes_nothing():
    (plain,) = simulate.simulate(a_job(), [0])
    run, _ = a_run()
    assert run.numbers["auc"] == plain.numbers["auc"]
    assert run.bill == plain.bill


def test_gradients_are_of_the_rows_that_the_party_trains_on(monkeypatch):
    trained = []
    descend = Party._descend

    def listen(self, request):
        if self.name == "spy":
            rows = self._training.rows.numpy()
            trained.append((rows, request.gradient.values.numpy() * len(rows)))
        return descend(self, request)

    monkeypatch.setattr(Party, "_descend", listen)
    run, recording = study.recorded(a_job(), 0)
    shared = Shared.of(run.problem, 0)
    view = party_view(recording, shared, run.problem.parties[0], run.model.parties[0])
    looks = iter(view.gradients.values())
    rows, gradient = trained[0]
    np.testing.assert_allclose(next(looks)[rows], gradient, rtol=1e-6)
    last_rows, last_gradient = trained[-1]
    last = list(view.gradients.values())[-1]
    np.testing.assert_allclose(last[last_rows], last_gradient, rtol=1e-6)
    assert sum(np.isfinite(g[:, 0]).sum() for g in view.gradients.values()) == sum(
        len(rows) for rows, _ in trained
    )


def test_the_server_sees_bytes_of_the_bill_and_no_column():
    run, recording = a_run()
    shared = Shared.of(run.problem, 0)
    view = server_view(recording, shared, ["spy", "clinic"])
    billed = [line for line in run.bill if line["stage"] != "evaluate"]
    for party, n_bytes in view.n_bytes.items():
        own = [line["payload_bytes"] for line in billed if line["party"] == party]
        assert n_bytes == sum(own)
    assert ("embed", 0) in view.embeddings["clinic"]
    assert not any(stage == "evaluate" for stage, _ in view.embeddings["clinic"])


def test_attacks_see_the_same_traffic_between_machines(tmp_path, monkeypatch):
    """Recorded around the server's transport over Flight, and in one process."""
    far = Recording()
    monkeypatch.setattr(
        server, "Parties", lambda hub, *own: Parties(far.around(hub), *own)
    )
    method = "less-vfl-auto"
    test_remote.run_all(tmp_path, method, evaluation="end")
    own = profiles.resolve(
        method, "default", test_remote.a_dataset(), test_remote.own_settings(method)
    )
    job = simulate.Job(test_remote.a_dataset(), own, parties=test_remote.HELD)
    run, near = study.recorded(job, 0)
    shared, y = Shared.of(run.problem, 0), run.problem.y_train
    found = []
    for recording in (near, far):
        view = server_view(recording, shared, list(test_remote.HELD))
        found.append(study.attacked(recording, view, run, y, 0))
    assert found[0] == found[1]
    ends = run.problem.parties[0], run.model.parties[0]
    views = [party_view(one, shared, *ends) for one in (near, far)]
    for key, look in views[0].gradients.items():
        np.testing.assert_array_equal(look, views[1].gradients[key])


# -- labels ----------------------------------------------------------------------------


def test_gradients_tell_labels_to_a_party_of_noise():
    found = labels.measure(*spied(), 2, 0)
    for name in ("side of gradients", "gradient direction", "gradient clusters"):
        attack = found[f"labels by {name}"]
        assert attack["score"] > 0.9, name
        assert abs(attack["control"] - 0.5) < 0.1, name
        assert abs(attack["shuffled"] - 0.5) < 0.1, name


def test_gradients_tell_several_classes():
    found = labels.measure(*spied(3), 3, 0)
    assert "labels by gradient norm" not in found
    attack = found["labels by gradient direction"]
    assert attack["score"] > 0.8
    assert abs(attack["control"] - 0.5) < 0.1
    assert abs(attack["shuffled"] - 0.5) < 0.1


def test_norms_tell_a_rare_class():
    rng = np.random.default_rng(0)
    y = (rng.random(1000) < 0.1).astype(int)
    weights = rng.normal(size=3)
    looks = {("train", 0): (0.1 - y)[:, None] * weights}
    known = labels.KnownLabels.draw(y, 2, 0)
    every = np.ones(1000, dtype=bool)
    assert labels.auc(labels.by_norm(looks, known), y, known, every) == 1.0


def test_a_network_that_learnt_labels_is_completed():
    """The clinic's own embeddings tell labels as its columns do not yet."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 500)
    X = rng.normal(size=(500, 40))
    X[:, 0] += 2 * y
    learnt = {("train", 0): X[:, :1]}
    found = labels.completion(PartyView("clinic", X, learnt, X[:, :1]), y, 2, 0)
    assert found["score"] > found["control"] + 0.05
    assert abs(found["shuffled"] - 0.5) < 0.1


def test_known_labels_are_few_and_not_scored():
    y = np.repeat([0, 1], [6, 100])
    known = labels.KnownLabels.draw(y, 2, 0)
    assert np.bincount(known.labels).tolist() == [3, labels.N_LABELS]
    told = np.zeros((106, 2))
    told[known.rows, known.labels] = 1
    every = np.ones(106, dtype=bool)
    assert labels.auc(told, y, known, every) == 0.5


def test_larger_steps_are_one_partys_alone():
    _, recording = a_run()
    first = next(
        one.requests
        for one in recording.carried
        if isinstance(one.requests["spy"], messages.Begin)
    )
    rates: Any = {
        name: (lambda request: request.plan.learning_rate) for name in ("spy", "clinic")
    }
    transport: Any = InProcess(rates)
    told = transport.exchange(first)
    taken = LargerSteps(transport, "spy", 10.0).exchange(first)
    assert taken == {**told, "spy": 10 * told["spy"]}


# -- columns ---------------------------------------------------------------------------


def test_columns_are_found_in_what_they_make():
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(800, 3))
    seen = {("train", 0): X @ rng.normal(size=(3, 3))}
    y = rng.integers(0, 2, 800)
    for name, attack in values.measure(seen, X, y, 0).items():
        assert attack["score"] > 0.95, name
        assert attack["control"] < 0.05, name
        assert attack["shuffled"] < 0.05, name


def test_nothing_is_found_in_other_columns():
    rng = np.random.default_rng(0)
    X, other = rng.normal(size=(2, 800, 3))
    y = rng.integers(0, 2, 800)
    for attack in values.measure({("train", 0): other}, X, y, 0).values():
        assert attack["score"] < 0.05


# -- counts ----------------------------------------------------------------------------


def a_party(kept: float, n_bytes: float) -> dict[str, float]:
    alike = dict.fromkeys(sum(counts.OBSERVED.values(), ()), 1.0)
    return {**alike, "kept": kept, "n_bytes": n_bytes}


def test_sizes_that_follow_what_was_kept_tell_it():
    told = counts.told_of_kept([a_party(n / 12, 100 + n) for n in range(12)])
    assert told["bytes"]["score"] > 0.95
    assert told["bytes"]["shuffled"] < 0.5
    assert told["components"]["score"] == 0
    assert counts.told_of_kept([a_party(0.5, 100)]) == {}


def test_a_server_sees_counts_and_not_what_was_kept():
    seed = 1  # one of those whose noise is not kept by chance
    run, recording = study.recorded(a_job(), seed)
    shared = Shared.of(run.problem, seed)
    view = server_view(recording, shared, ["spy", "clinic"])
    seen = counts.observed(view, run.numbers, "spy")
    assert seen["kept"] == 0
    assert seen["silent"] == 1
    assert counts.observed(view, run.numbers, "clinic")["kept"] > 0
    assert all(seen[key] > 0 for key in ("n_bytes", "select_seconds", "width"))


@pytest.mark.parametrize("mode", tables.ALIGNED)
def test_what_alignment_tells_of_ids(mode):
    """The label holder learns each pairwise intersection, a party the common one."""
    told = counts.membership(mode)
    assert told["label holder"]["score"] == 1
    assert told["party"]["score"] == 0.75


# -- the study -------------------------------------------------------------------------


def test_labels_are_true_where_training_is_told_others():
    y = np.random.default_rng(0).integers(0, 2, 400)
    table = data.from_arrays(np.stack([y, 1 - y], axis=1), y)
    given = {"label_epsilon": 1.0, "scale": "none", "equal_rows": "apart"}
    job = simulate.Job(table, profiles.resolve("plain", "default", table, given), 1)
    problem, true = job.problem(3), study.true_labels(job, 3)
    np.testing.assert_array_equal(true, problem.parties[0].X_train[:, 0])
    assert 0.1 < (true != problem.y_train).mean() < 0.4


def test_the_capability_of_a_defence():
    assert tables.capability(0.0, 0.9, 0.9) == 1.0
    assert tables.capability(1.0, 0.9, 0.9) == pytest.approx(1 / (1 + 0.5**0.5))
    assert tables.capability(0.6, 0.5, 0.9) == pytest.approx(1 / (1 + 0.26**0.5))


def test_a_defence_is_compared_with_none():
    def a_run(score, worth):
        attack = {"score": score, "control": 0.5, "shuffled": 0.5}
        own = {"balanced_accuracy": worth, "n_classes": 2}
        return [{**own, "attacks": {"labels": attack}}]

    runs = {("d", "m", "none"): a_run(1.0, 0.9), ("d", "m", "noise"): a_run(0.5, 0.7)}
    none, noise = (list(row.values())[-3:] for row in tables.attack_rows(runs))
    assert none == ["+0.500", "0.586", "0.586"]
    (matrix,) = tables.leak_tables(runs).values()
    assert [row["labels"] for row in matrix] == ["+0.500", "+0.000"]
    plain = 1 / (1 + (0.5 * 0.5**2 + 0.5 * 0.2**2) ** 0.5)
    above = 1 / (1 + (0.5 * 0.4**2) ** 0.5)  # the attack is at its control
    assert noise == ["+0.000", f"{plain:.3f}", f"{above:.3f}"]


def test_the_worst_leaks_of_data_sets_are_side_by_side():
    def a_run(**scores):
        attacks = {
            name.replace("_", " "): {"score": score, "control": 0.5, "shuffled": 0.5}
            for name, score in scores.items()
        }
        worth = {"balanced_accuracy": 0.9, "noise": 1.0, "real": 0.25}
        return [{"attacks": attacks, **worth}]

    runs = {
        ("a", "m", "none"): a_run(
            labels_by_norm=0.6, labels_by_side=0.9, columns_by=0.7
        ),
        ("b", "m", "none"): a_run(labels_by_side=1.0),
        ("a", "m", "noise"): a_run(labels_by_side=0.4),
    }
    none, noise = tables.worst_rows(runs)
    assert (none["a"], none["b"]) == ("+0.40 / +0.20", "+0.50 / +0.00")
    assert (noise["a"], noise["b"]) == ("-0.10 / +0.00", "")
    assert tables.task_rows(runs)[0]["a"] == "0.90 / 1.00 / 0.25"


def test_a_defence_is_run_with_its_settings_or_left_out(tmp_path, monkeypatch):
    few = {"train_epochs": 1}
    bundles = {name: {**few, **study.DEFENCES[name]} for name in ("none", "marvell-4")}
    monkeypatch.setattr(study, "DEFENCES", bundles)
    tables_of = {
        name: replace(a_job(n).dataset, n_parties=2)
        for name, n in (("two", 2), ("three", 3))
    }
    monkeypatch.setattr(data, "load", lambda name, data_dir: tables_of[name])
    asked = study.Privacy(tuple(tables_of), defences=("none", "marvell-4"), seeds=(0,))
    found = run_study(asked, out=tmp_path)
    for case in asked.cases():
        assert ("skipped" in found[case]) == (case[:3:2] == ("three", "marvell-4"))
    side = {
        row["defence"]: row["leak"]
        for row in tables.attack_rows(tables.by_defence(found))
        if row["attack"] == "labels by side of gradients" and row["data"] == "two"
    }
    assert float(side["marvell-4"]) < float(side["none"])
    for run in (one for one in found.values() if "skipped" not in one):
        assert {drawn.TOLD, start.START} <= set(run["attacks"])
    text = asked.page(found, tmp_path).read_text()
    page = again.privacy(tmp_path / "privacy.json")
    assert page.read_text() == text
    assert "Defence: marvell-4" in text
    assert "is for labels of two classes" in text


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"defences": ("moat",)}, "The 'defences' option must hold some of none"),
        ({"seeds": ()}, "The 'seeds' option must name at least one"),
    ],
)
def test_options_that_are_not_known(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        study.Privacy(**given)
