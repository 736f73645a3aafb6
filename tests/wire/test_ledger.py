"""The bill against its closed form, written here on its own.

With N rows, batches of b rows and S = ceil(N / b) steps an epoch, e epochs take
T = round(e S) steps (one at least, none for no epochs) and see floor(T / S) N +
(T mod S) b rows. Every row seen costs a value per component up (embedding) and one
down (gradient).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from tests.conftest import PUBLISHED, PUBLISHED_LOCAL

from lessvfl import data
from lessvfl.run import profiles, simulate
from lessvfl.wire.ledger import BillLine, Ledger, closed_payload

N, N_TEST, M, E = 48, 12, 3, 5
METHODS = ("less-vfl", "local-lasso", "group-lasso", "plain")
SETTINGS = {"embedding_size": E, "hidden": 4, "train_epochs": 2}
LESS = {"server_epochs": 4, "lam_server": 0.08, "server_step_size": 0.2}
LESS = PUBLISHED | LESS
SELECT = {"party_epochs": 6, "lam_party": 0.6, "party_step_size": 0.05}
OWN = {
    "less-vfl": LESS | SELECT,
    "local-lasso": PUBLISHED_LOCAL | SELECT,
    "group-lasso": {"lam_party": 0.4, "joint_epochs": 3, "learning_rate": 0.2},
    "plain": {},
}


def n_steps(epochs: float, b: int) -> int:
    return max(1, round(epochs * math.ceil(N / b))) if epochs else 0


def n_rows(epochs: float, b: int) -> int:
    whole, rest = divmod(n_steps(epochs, b), math.ceil(N / b))
    return whole * N + rest * b


def run_job(method, b, seeds=(0,), profile="default", **overrides):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N + N_TEST, 9))
    dataset = data.from_arrays(X, (X[:, 0] + X[:, 4] > 0).astype(int))
    dataset = dataclasses.replace(dataset, n_parties=M)
    chosen = OWN[method] | SETTINGS | {"batch_size": b} | overrides
    settings = profiles.resolve(method, profile, dataset, chosen)
    return settings.flat(), simulate.simulate(simulate.Job(dataset, settings), seeds)


def expected_bill(method, config, numbers, item=4):
    """Return by_stage and the paper's figure of a run, from what it kept."""
    b = config["batch_size"]
    kept = [party["kept"] for party in numbers["components"].values()]
    empty = [not party["kept"] for party in numbers["features"].values()]
    silent = [none and config["empty_party"] == "constant" for none in empty]
    speaking = sum(k for k, quiet in zip(kept, silent, strict=True) if not quiet)
    constants = sum(k for k, quiet in zip(kept, silent, strict=True) if quiet)
    stages: dict[str, dict[str, int]] = {}
    values = 0  # embeddings sent up, and the pass that local lasso is charged for

    def train(stage, epochs, width):
        if epochs and width:
            seen = n_rows(epochs, b) * width
            rounds = n_steps(epochs, b) + 1
            stages[stage] = {"up": seen * item, "down": seen * item, "rounds": rounds}
            return seen
        return 0

    def evaluate(n_points, width):
        bill = stages.setdefault("evaluate", {"up": 0, "down": 0, "rounds": 0})
        bill["up"] += n_points * (N + N_TEST) * width * item
        bill["rounds"] += n_points * 2 * (width > 0)

    if method in ("less-vfl", "local-lasso"):
        values += train("pretrain", config["pretrain_epochs"], M * E) + N * M * E
        evaluate(math.ceil(config["pretrain_epochs"]), M * E)
        down = 0
        if method == "less-vfl":
            stages["embed"] = {"up": N * M * E * item, "down": 0, "rounds": 1}
            down = sum(kept) * 4  # K_m as int32, whatever the floats are
        up = constants * item
        stages["select_features"] = {"up": up, "down": down, "rounds": 1}
        evaluate(1, speaking)
    if method == "group-lasso":
        values += train("joint_lasso", config["joint_epochs"], M * E)
        stages["joint_lasso"]["up"] += constants * item
        # The last evaluation of the stage comes after the parties have said Done.
        evaluate(math.ceil(config["joint_epochs"]) - 1, M * E)
        evaluate(1, speaking)
    values += train("train", config["train_epochs"], speaking)
    evaluate(math.ceil(config["train_epochs"]), speaking)
    return stages, values * 4 / 2**20


def check(method, config, run, item=4):
    stages, paper_mib = expected_bill(method, config, run.numbers, item)
    bill = run.numbers["communication"]
    assert bill["by_stage"] == stages
    assert bill["paper_mib"] == pytest.approx(paper_mib, rel=1e-12)
    cost = [amounts for stage, amounts in stages.items() if stage != "evaluate"]
    for way in ("up", "down"):
        assert bill["payload_bytes"][way] == sum(amounts[way] for amounts in cost)
        lines = [line for line in run.bill if line["direction"] == way]
        paid = {stage: amounts[way] for stage, amounts in stages.items()}
        for stage, total in paid.items():
            own = [line["payload_bytes"] for line in lines if line["stage"] == stage]
            assert sum(own) == total
    assert bill["rounds"] == sum(amounts["rounds"] for amounts in cost)


@pytest.mark.parametrize("batch_size", [12, 13, 48])
@pytest.mark.parametrize("method", METHODS)
def test_closed_form(method, batch_size):
    config, runs = run_job(method, batch_size)
    check(method, config, runs[0])


@pytest.mark.parametrize("pretrain_epochs", [0, 0.5, 1, 2.25, 3])
@pytest.mark.parametrize("method", METHODS[:2])
def test_fractions_of_epochs(method, pretrain_epochs):
    config, runs = run_job(method, 13, pretrain_epochs=pretrain_epochs)
    check(method, config, runs[0])


def test_pretraining_is_charged_one_epoch_more():
    """E + 1 epochs in the paper's figure, for local lasso too."""
    epoch = N * M * E * 4 / 2**20
    for method in ("less-vfl", "local-lasso"):
        _, (run,) = run_job(method, 12, pretrain_epochs=2, train_epochs=0)
        found = run.numbers["communication"]["paper_mib"]
        assert found == pytest.approx(3 * epoch)


def test_later_epochs_are_charged_by_the_kept_share():
    _, (run,) = run_job("less-vfl", 12, pretrain_epochs=1, train_epochs=4)
    kept = [party["kept"] for party in run.numbers["components"].values()]
    assert all(party["kept"] for party in run.numbers["features"].values())
    assert 0 < sum(kept) < M * E
    epoch = N * M * E * 4 / 2**20
    found = run.numbers["communication"]["paper_mib"]
    assert found == pytest.approx(epoch * (2 + 4 * sum(kept) / (M * E)))


@pytest.mark.parametrize("method", METHODS)
def test_float64_doubles_the_bytes_but_not_the_papers_figure(method):
    config, (run,) = run_job(method, 13, dtype="float64")
    check(method, config, run, item=8)


@pytest.mark.parametrize("method", METHODS)
def test_every_run_pays_for_what_it_kept(method):
    """Runs of other seeds keep other components."""
    config, runs = run_job(method, 13, seeds=(0, 1, 2, 3))
    for run in runs:
        check(method, config, run)


@pytest.mark.parametrize("profile", ["default", "official-code"])
def test_parties_fall_silent_in_some_runs_only(profile):
    lams: dict[str, Any] = {"lam_server": 0.1, "lam_party": 1.5}
    if profile == "official-code":
        lams |= {"lam_scale": 1, "party_step_size": 0.05, "reduction": "sum"}
    config, runs = run_job("less-vfl", 13, (0, 1, 2, 3), profile, **lams)
    for run in runs:
        check("less-vfl", config, run)
    empty = [[not p["kept"] for p in r.numbers["features"].values()] for r in runs]
    assert any(map(any, empty))
    assert not any(map(all, zip(*empty, strict=True)))
    kept = {tuple(c["kept"] for c in r.numbers["components"].values()) for r in runs}
    assert len(kept) > 1


@pytest.mark.parametrize("profile", ["default", "official-code"])
@pytest.mark.parametrize("method", METHODS[:3])
def test_a_party_that_keeps_nothing(method, profile):
    """It sends a constant once and is silent, or its frozen embedding on and on."""
    lam = {"lam_party": 1e6}
    config, (run,) = run_job(method, 13, profile=profile, **lam)
    assert not any(party["kept"] for party in run.numbers["features"].values())
    check(method, config, run)


def test_curve_pays_for_the_steps_done():
    """What is sent ahead for the next step is not yet on the bill of an epoch."""
    _, (run,) = run_job("plain", 13, train_epochs=3)
    for epoch, point in enumerate(run.numbers["curve"], start=1):
        assert point["payload_bytes"] == 2 * 4 * M * E * N * epoch
        assert point["rounds"] == n_steps(epoch, 13) + 1
        assert point["paper_mib"] == pytest.approx(epoch * N * M * E * 4 / 2**20)


def test_curve_of_all_stages_ends_with_the_whole_bill():
    for method in METHODS:
        _, (run,) = run_job(method, 13)
        bill, last = run.numbers["communication"], run.numbers["curve"][-1]
        assert last["payload_bytes"] == sum(bill["payload_bytes"].values())
        assert last["rounds"] == bill["rounds"]
        assert last["paper_mib"] == bill["paper_mib"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
def test_the_closed_form_of_the_benchmark_is_the_bill(method, dtype):
    _, (run,) = run_job(method, 13, dtype=dtype)
    item = 4 if dtype == "float32" else 8
    paid = {"gradient": 0, "embedding": 0, "constant": 0, "components": 0}
    for line in run.bill:
        if line["stage"] != "evaluate":
            paid[str(line["kind"])] += int(line["payload_bytes"])
    trained, listed = paid["gradient"] // item, paid["components"] // 4
    once = (paid["embedding"] + paid["constant"]) // item - trained
    found = closed_payload(trained, once, listed, item)
    assert found == sum(run.numbers["communication"]["payload_bytes"].values())
    assert (listed > 0) == (method == "less-vfl")


# ---------------------------------------------------------------------- the book itself


def a_line(**facts):
    plain = BillLine("a", "up", "train", "embedding", 40, 10)
    return dataclasses.replace(plain, **facts)


def test_lines_add_up():
    ledger = Ledger()
    ledger.bill_round("train")
    for line in (a_line(), a_line(), a_line(direction="down", kind="gradient")):
        ledger.bill(line)
    assert ledger.direction_bytes("up") == 80
    assert ledger.payload_bytes == 120
    assert ledger.paper_mib == 80 / 2**20
    assert ledger.by_stage() == {"train": {"up": 80, "down": 40, "rounds": 1}}
    first = {"party": "a", "direction": "up", "stage": "train", "kind": "embedding"}
    assert ledger.lines()[0] == first | {"payload_bytes": 80}


def test_a_stage_is_on_the_bill_once_it_has_a_round():
    ledger = Ledger()
    assert (ledger.n_rounds, ledger.by_stage()) == (0, {})
    for stage in ("embed", "train", "train"):
        ledger.bill_round(stage)
    assert ledger.n_rounds == 3
    assert list(ledger.by_stage()) == ["embed", "train"]
    assert ledger.by_stage()["train"] == {"up": 0, "down": 0, "rounds": 2}


def test_evaluation_is_billed_apart():
    ledger = Ledger()
    ledger.bill_round("evaluate")
    ledger.bill(a_line(stage="evaluate"))
    assert ledger.payload_bytes == 0
    assert ledger.n_rounds == 0
    assert ledger.paper_mib == 0
    assert ledger.by_stage() == {"evaluate": {"up": 40, "down": 0, "rounds": 1}}


def test_what_is_sent_ahead_counts_from_the_next_round_on():
    ledger = Ledger()
    ledger.bill_round("train")
    ledger.bill(a_line(ahead=True))
    ledger.bill_round("evaluate")
    assert (ledger.payload_bytes, ledger.paper_mib) == (0, 0)
    assert ledger.direction_bytes("up") == 40
    ledger.bill_round("train")
    assert (ledger.payload_bytes, ledger.paper_mib) == (40, 40 / 2**20)


def test_a_pass_that_is_charged_but_not_sent():
    ledger = Ledger()
    ledger.charge_pass(2**18)
    assert ledger.paper_mib == 1
    assert ledger.payload_bytes == 0
