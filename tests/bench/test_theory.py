"""The check of the theory: its definitions, its fits, its files and its command."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import Cli

from lessvfl.core.losses import proxy_loss, row_losses
from lessvfl.core.network import MLP
from lessvfl.core.passes import gradients
from lessvfl.errors import ConfigError, RecordError
from lessvfl.terms import Stage
from lessvfl_bench.pages.theory import build_theory
from lessvfl_bench.theory import problem, rates, run, solve

CPU = torch.device("cpu")
SEEDS = (0, 1)
FAMILIES = problem.FAMILIES


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps: shapes and files, not numbers."""
    monkeypatch.setattr(solve, "PASSES", 10)
    monkeypatch.setattr(solve, "PRETRAIN_STEPS", (20, 10))
    for name in ("SERVER_STEPS", "PARTY_STEPS", "JOINT_STEPS"):
        monkeypatch.setattr(solve, name, 20)
    monkeypatch.setattr(run, "N_TEST", 200)
    monkeypatch.setattr(rates, "N_RESAMPLES", 50)


def a_problem(n: int, network: str = "tanh") -> tuple[MLP, problem.TheorySample]:
    truth = problem.generating_network(SEEDS, FAMILIES[network], CPU)
    return truth, problem.draw_sample(truth, SEEDS, n, "train")


def first(sample: problem.TheorySample, n: int) -> problem.TheorySample:
    X, f, y = sample.X[:, :n], sample.f[:, :n], sample.y[:, :n]
    return problem.TheorySample(X, f, y, n)


def start(n_parties: int, n_components: int, network: str = "tanh") -> tuple[MLP, MLP]:
    """Networks whose server weights and biases are not those of the start."""
    family = FAMILIES[network]
    net, fusion = solve.start(SEEDS, n_parties, n_components, family, CPU)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (fusion.weights[0], fusion.biases[0], net.biases[-1]):
            tensor.normal_(generator=draw)
    return net, fusion


networks = pytest.mark.parametrize("network", FAMILIES)


# ----------------------------------------------------------------------------- the data


@networks
def test_labels_depend_on_the_significant_columns_alone(network: str) -> None:
    truth, sample = a_problem(500, network)
    mask = problem.significant()
    noise = torch.randn(sample.X.shape).to(sample.X)
    same = truth(torch.where(mask, sample.X, noise)).squeeze(2)
    torch.testing.assert_close(same, sample.f)
    for column in mask.nonzero().flatten().tolist():
        X = sample.X.clone()
        X[..., column] = noise[..., column]
        assert ((truth(X).squeeze(2) - sample.f).std(dim=1) > 0.05).all()


@networks
def test_generating_function_and_noise_have_the_stated_size(network: str) -> None:
    _, sample = a_problem(20_000, network)
    assert sample.f.std(dim=1).tolist() == pytest.approx([1, 1], rel=0.05)
    noise = (sample.y - sample.f).std(dim=1).tolist()
    assert noise == pytest.approx([problem.SIGMA] * 2, rel=0.05)


def test_first_rows_are_the_same_for_every_n() -> None:
    _, small = a_problem(100)
    _, large = a_problem(60_000)
    assert torch.equal(small.X, large.X[:, :100])
    torch.testing.assert_close(small.y, first(large, 100).y)


@networks
def test_known_components_that_do_not_matter_see_no_significant_feature(
    network: str,
) -> None:
    truth, sample = a_problem(300, network)
    mask = problem.significant()
    other = torch.where(mask, torch.randn(sample.X.shape).to(sample.X), sample.X)
    for correlated in (False, True):
        H = problem.known_components(truth, sample.X, correlated=correlated)
        moved = problem.known_components(truth, other, correlated=correlated)
        same = (H == moved).all(dim=1).all(dim=0)
        n_units = truth.weights[0].shape[1]
        assert not same[:n_units].any()
        # the correlated feature is drawn together with significant ones
        assert same[n_units + correlated :].all()
        true = H[..., :n_units] @ truth.weights[1].mT
        torch.testing.assert_close(true.squeeze(2), sample.f)


@pytest.mark.parametrize("n", [150, 60_000])
def test_a_table_has_the_moments_of_all_rows(n: int) -> None:
    truth, rows = a_problem(n, "linear")
    table = problem.draw_table(truth, SEEDS, n, "train")
    assert table.X.shape == (len(SEEDS), problem.N_TABLE, rows.X.shape[2])
    assert table.n == rows.n == n

    def moments(sample: problem.TheorySample) -> torch.Tensor:
        z = torch.cat([sample.X, sample.y[..., None], sample.f[..., None]], dim=2)
        z = torch.nn.functional.pad(z, (0, 1), value=1.0)
        return z.mT @ z / z.shape[1]

    torch.testing.assert_close(moments(table), moments(rows), rtol=0, atol=1e-12)


@pytest.mark.parametrize("network", ["linear", "deep-linear"])
def test_risks_and_gradients_on_a_table_are_those_on_all_rows(network: str) -> None:
    """R_N of stages 1 and 2 and of group lasso, and H_N of stage 3."""
    truth, rows = a_problem(3000, network)
    table = problem.draw_table(truth, SEEDS, 3000, "train")
    net, fusion = start(4, 2, network)
    other, _ = solve.start((7, 8), 4, 2, FAMILIES[network], CPU)
    params = [*net.parameters(), *fusion.parameters()]
    found = []
    for sample in (table, rows):
        X = solve.split(sample.X, 4)
        z = fusion(solve.join(net(X), 4))
        losses = (
            row_losses(z, sample.y, "regression").mean(dim=-1).sum(),
            proxy_loss(net(X), other(X).detach(), 1).sum(),
        )
        for loss in losses:
            found.append([loss, *gradients(loss, params)])
    for a, b in zip(found[:2], found[2:], strict=True):
        for one, two in zip(a, b, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------------- networks


def test_splitting_gives_each_party_its_own_columns() -> None:
    _, sample = a_problem(10)
    X = solve.split(sample.X, 4)
    width = problem.N_COLUMNS // 4
    assert torch.equal(X[5], sample.X[1][:, width : 2 * width])


@networks
def test_fused_networks_give_what_the_fusion_network_gives(network: str) -> None:
    _, sample = a_problem(20, network)
    X = solve.split(sample.X, 4)
    net, fusion = start(4, 3, network)
    with torch.no_grad():
        z = fusion(solve.join(net(X), 4))
        whole = solve.fused(net, fusion, 4)
        total = solve.join(whole(X), 4).sum(dim=2, keepdim=True)
    torch.testing.assert_close(total, z)


@networks
def test_penalties_shrink_as_the_fourth_root(network: str) -> None:
    lam = solve.lambdas(network, 10_000)
    assert set(lam) == {"server", "party", "joint"}
    for kind, constant in solve.LAMBDA[network].items():
        assert lam[kind] == pytest.approx(constant / 10)


def test_penalties_follow_the_samples_and_not_the_rows_of_a_table(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of 64 rows that stands for 10,000 has the λ of 10,000."""
    seen = {}
    take_steps = solve._take_steps

    def spy(stage: Stage, lam: float, *rest: Any, **how: Any) -> torch.Tensor:
        seen[stage] = lam
        return take_steps(stage, lam, *rest, **how)

    monkeypatch.setattr(solve, "_take_steps", spy)
    truth, test = a_problem(100, "linear")
    table = problem.draw_table(truth, SEEDS, 10_000, "train")
    run.run_split(table, test, SEEDS, "linear", 2)
    constants = solve.LAMBDA["linear"]
    stages = {
        "select_components": "server",
        "select_features": "party",
        "joint_lasso": "joint",
    }
    assert seen == {
        stage: pytest.approx(constants[kind] / 10) for stage, kind in stages.items()
    }
    seen.clear()
    entry = run.run_stage2(truth, table, SEEDS, "linear", "independent")
    assert seen == {"select_components": pytest.approx(constants["server"] / 10)}
    assert entry["n"] == 10_000


def test_stage_3_runs_again_only_where_a_component_is_gone(quick: None) -> None:
    """The shortcut gives what stage 3 gives when all parties run it."""
    _, sample = a_problem(200)
    X = solve.split(sample.X, 2)
    net, _ = start(2, 2)
    kept = torch.tensor([[1, 1], [0, 1], [0, 0], [1, 1]], dtype=torch.bool)
    local = solve.match_embeddings(net, X, 0.1, None)
    short = solve.rematch(local, net, X, 0.1, kept)
    whole = solve.match_embeddings(net, X, 0.1, kept)
    assert not short.input_weights[2].any()
    for a, b in zip(short.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_stage_2_starts_from_least_squares() -> None:
    truth, sample = a_problem(500)
    H = problem.known_components(truth, sample.X, correlated=True)
    server = solve.least_squares(H, sample.y)
    value = row_losses(server(H), sample.y, "regression").mean(dim=-1).sum()
    grads = torch.autograd.grad(value, server.parameters())
    assert all(grad.abs().max() < 1e-4 for grad in grads)


# ---------------------------------------------------------------------------- measuring


def test_norm_zeros_and_recovery_follow_their_definitions() -> None:
    mask = problem.significant()
    W = torch.zeros(2, 3, problem.N_COLUMNS)
    W[:, :, mask] = 1.0
    W[1, 0, -1], W[1, 1, -2] = 3.0, 4.0  # two non-significant columns, norm 5
    net = MLP([W], [torch.zeros(2, 3)], "none")
    truth = torch.zeros(2, 4)
    found = run.measure(net, truth + torch.tensor([[0.0], [2.0]]), truth)
    n_others = int((~mask).sum())
    assert found["norm"] == [0, 5]
    assert found["zero_share"] == (n_others - 1) / n_others  # 0 and 2 missing
    assert found["zero_runs"] == 0.5
    assert found["missed"] == [0, 0]
    assert found["recovered"] == [True, False]
    assert found["distance"] == [0, 2]


def test_a_missed_feature_is_no_recovery() -> None:
    W = torch.zeros(1, 3, problem.N_COLUMNS)
    W[:, :, problem.significant()] = 1.0
    W[:, :, 0] = 0.0
    net = MLP([W], [torch.zeros(1, 3)], "none")
    found = run.measure(net, torch.zeros(1, 4), torch.zeros(1, 4))
    assert found["missed"] == [1]
    assert found["recovered"] == [False]


@pytest.mark.parametrize(
    ("n_hits", "low", "high"), [(0, 0.0, 0.2775), (5, 0.2366, 0.7634), (10, 0.7225, 1)]
)
def test_wilson_intervals(n_hits: int, low: float, high: float) -> None:
    hit = rates.recovery([True] * n_hits + [False] * (10 - n_hits))
    assert hit == pytest.approx(
        {"mean": n_hits / 10, "low": low, "high": high}, abs=1e-4
    )


# -------------------------------------------------------------------------------- rates

SIZES = [1000, 10_000, 100_000, 1_000_000]


def test_an_exact_power_law_gives_its_slope() -> None:
    values = [[scale * n**-0.25 for scale in (1.0, 2.0, 5.0)] for n in SIZES]
    rate = rates.fit_rate(SIZES, values)
    for key in ("slope", "low", "high"):
        assert rate[key] == pytest.approx(-0.25)
    assert rate["n_points"] == 4
    assert rate["note"] == ""


def test_the_interval_covers_the_slope_of_a_noisy_power_law() -> None:
    draw = torch.Generator().manual_seed(0)
    noise = (0.2 * torch.randn(4, 20, generator=draw)).exp().tolist()
    values = [
        [n**-0.5 * factor for factor in row]
        for n, row in zip(SIZES, noise, strict=True)
    ]
    rate: dict[str, Any] = rates.fit_rate(SIZES, values)
    assert rate["low"] < -0.5 < rate["high"]
    assert 0 < rate["high"] - rate["low"] < 0.2


def test_zeros_are_counted_and_never_invented() -> None:
    values = [[1.0, 1.0], [0.5, 0.0], [0.1, 0.1], [0.0, 0.0]]
    rate = rates.fit_rate(SIZES, values)
    assert rate["n_points"] == 3
    assert "3 of 8 runs are exactly 0" in str(rate["note"])
    assert "1 of 4 sizes" in str(rate["note"])
    few = rates.fit_rate(SIZES, [[1.0], [0.5], [0.0], [0.0]])
    assert few["slope"] is None
    assert "no fit" in str(few["note"])


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.5, -0.4, "practice agrees"),
        (-0.1, 0.1, "practice does not agree"),
        (-0.4, 0.1, "not told apart"),
    ],
)
def test_the_verdict_follows_the_interval(low: float, high: float, words: str) -> None:
    rate = {"slope": (low + high) / 2, "low": low, "high": high, "parties": 2}
    assert words in rates._judge([rate], -0.25)


# ------------------------------------------------------------------------ the programme


def test_recovery_improves_with_n(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage 2 alone, and LESS-VFL with one block a party, at two sizes."""
    monkeypatch.setattr(solve, "PRETRAIN_STEPS", (200, 50))
    monkeypatch.setattr(solve, "PARTY_STEPS", 300)
    monkeypatch.setattr(solve, "SERVER_STEPS", 500)
    monkeypatch.setattr(solve, "JOINT_STEPS", 100)
    truth, sample = a_problem(8000)
    test = problem.draw_sample(truth, SEEDS, 1000, "test")
    small, _ = run.run_split(first(sample, 300), test, SEEDS, "tanh", 8)
    large, _ = run.run_split(first(sample, 2000), test, SEEDS, "tanh", 8)
    for method in ("less-vfl", "local-lasso"):
        assert large[method]["zero_share"] > small[method]["zero_share"]
        for quantity in ("norm", "distance"):
            assert sum(large[method][quantity]) < sum(small[method][quantity])
    few = run.run_stage2(truth, first(sample, 300), SEEDS, "tanh", "independent")
    many = run.run_stage2(truth, sample, SEEDS, "tanh", "independent")
    assert sum(many["norm"]) < 0.2 * sum(few["norm"])
    assert sum(many["distance"]) < sum(few["distance"])


def test_linear_networks_find_the_support_of_many_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Group lasso is one convex problem there, the same for every split."""
    monkeypatch.setattr(solve, "PRETRAIN_STEPS", (200, 100))
    for name in ("PARTY_STEPS", "SERVER_STEPS", "JOINT_STEPS"):
        monkeypatch.setattr(solve, name, 300)
    truth = problem.generating_network((0,), FAMILIES["linear"], CPU)
    test = problem.draw_sample(truth, (0,), 500, "test")
    rows, many = (problem.draw_table(truth, (0,), n, "train") for n in (1000, 300_000))
    few, _ = run.run_split(rows, test, (0,), "linear", 1)
    found = {m: run.run_split(many, test, (0,), "linear", m)[0] for m in (1, 4)}
    for m, results in found.items():
        for method, measured in results.items():
            assert measured["recovered"] == [True], (method, m)
            ratio = measured["distance"][0] / few[method]["distance"][0]
            assert ratio < 0.5, (method, m)
    assert all(measured["recovered"] == [False] for measured in few.values())
    one, four = (found[m]["group-lasso"]["distance"] for m in (1, 4))
    assert one == pytest.approx(four, rel=1e-7)


def test_results_have_the_documented_shape(quick: None, tmp_path: Path) -> None:
    told: list[str] = []
    programme = run.Programme((200, 100, 400), (2, 4), SEEDS, "linear", "cpu")
    results = run.run(programme, say=told.append)
    assert results["n"] == [100, 200, 400]
    assert results["network"] == "linear"
    assert set(results["lambda"]) == {"server", "party", "joint"}
    assert results["theorem_rate"] == -0.25
    assert results["device"] == "cpu"
    assert results["seconds"] > 0
    seen = {(e["method"], e["parties"], e["n"]) for e in results["results"]}
    methods = ("less-vfl", "local-lasso", "group-lasso")
    assert seen == {
        *((m, p, n) for m in methods for p in (2, 4) for n in (100, 200, 400)),
        *(("centralised", 1, n) for n in (100, 200, 400)),
    }
    for entry in [*results["results"], *results["stage2"]]:
        assert len(entry["norm"]) == len(entry["distance"]) == len(SEEDS)
        hit = entry["recovery"]
        assert hit["mean"] == sum(entry["recovered"]) / len(SEEDS)
        assert hit["low"] <= hit["mean"] <= hit["high"]
    assert {rate["quantity"] for rate in results["rates"]} == {"norm", "distance"}
    assert any("promises no exact recovery" in text for text in results["verdict"])
    assert sum("N = " in line for line in told) == 3 * 5

    page = build_theory(results, tmp_path / "new").read_text(encoding="utf-8")
    assert results["verdict"][0].split(",")[0] in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert json.loads((tmp_path / "new/theory.json").read_text()) == results
    with open(tmp_path / "new/theory.csv", newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    n_entries = sum(len(results[part]) for part in ("results", "surplus", "stage2"))
    assert len(lines) == n_entries * len(SEEDS)
    assert float(lines[0]["norm"]) == results["results"][0]["norm"][0]
    for kind in ("png", "svg"):
        assert len(list((tmp_path / "new").glob(f"theory-*.{kind}"))) == 6


# -------------------------------------------------------------------------- the records


@pytest.fixture
def kept(quick: None, tmp_path: Path) -> tuple[run.Programme, Path, dict[str, Any]]:
    """A programme, the folder of its one finished run and what that run gave."""
    programme = run.Programme((100, 200), (8,), (0,), device="cpu")
    return programme, tmp_path, run.run(programme, tmp_path)


Kept = tuple[run.Programme, Path, dict[str, Any]]


def forbid(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let nothing be run; return a list of the sample sizes that were asked for."""
    asked: list[int] = []

    def run_size(n: int, *rest: Any) -> dict[str, Any]:
        asked.append(n)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_size", run_size)
    return asked


def test_resume_reads_what_was_kept(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    programme, folder, results = kept
    asked = forbid(monkeypatch)
    assert run.run(programme, folder, resume=True) == results
    assert asked == []
    with pytest.raises(ConfigError, match=r"--resume must be given\. Got 2 records"):
        run.run(programme, folder)


def test_records_of_another_programme_are_not_used(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    programme, folder, _ = kept
    for path in list((folder / "records").iterdir()):
        text = path.read_bytes()  # not even under another network's name
        path.with_name(path.name.replace("linear", "tanh")).write_bytes(text)
    asked = forbid(monkeypatch)
    others: list[dict[str, Any]] = [{"network": "tanh"}, {"seeds": (1,)}]
    for other in others:
        with pytest.raises(KeyboardInterrupt):
            run.run(dataclasses.replace(programme, **other), folder, resume=True)
    assert asked == [100, 100]


def test_networks_keep_their_records_apart(kept: Kept) -> None:
    programme, folder, _ = kept
    run.run(dataclasses.replace(programme, network="tanh"), folder, resume=True)
    names = {path.name for path in (folder / "records").iterdir()}
    assert names == {f"{k}-n-{n}.json" for k in ("linear", "tanh") for n in (100, 200)}


def test_a_torn_record_is_named(kept: Kept) -> None:
    programme, folder, _ = kept
    path = folder / "records" / "linear-n-200.json"
    whole = path.read_text(encoding="utf-8")
    for text in ("", whole[: len(whole) // 2], "[]", "{}", '"about"'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(RecordError, match=re.escape(f"'{path}' must be a record")):
            run.run(programme, folder, resume=True)


# -------------------------------------------------------------------------- the command


def test_command_prints_json_and_nothing_else(quick: None, run_cli: Cli) -> None:
    words = ("--n", "100,200", "--parties", "8", "--seeds", "0", "--json", "--quiet")
    result = run_cli("bench", "theory", *words)
    assert result.code == 0
    assert result.json["parties"] == [8]
    assert result.json["network"] == "linear"
    assert result.err == ""


def test_command_prints_a_table_and_writes_a_page(
    quick: None, run_cli: Cli, tmp_path: Path
) -> None:
    words = ("--n", "100", "--parties", "1", "--seeds", "0,1", "--out", tmp_path)
    result = run_cli("bench", "theory", *words)
    assert result.code == 0
    assert "less-vfl" in result.out
    assert "N = 100: M = 1" in result.err
    assert (tmp_path / "theory.html").exists()
    assert not (tmp_path / "theory-surplus-norm.png").exists()  # M = 4 was not asked


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--n", "10"),
        ("--n", "1000,1000"),
        ("--n", "many"),
        ("--n", ""),
        ("--parties", "3"),
        ("--parties", "0"),
        ("--seeds", "-1"),
        ("--seeds", "0,0"),
        ("--network", "relu"),
        ("--network", ""),
        ("--device", "abacus"),
    ],
)
def test_bad_options_are_one_sentence_and_code_2(
    option: str, value: str, run_cli: Cli
) -> None:
    result = run_cli("bench", "theory", f"{option}={value}")
    assert result.code == 2
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert option.lstrip("-") in result.err


def test_resume_needs_a_folder(run_cli: Cli) -> None:
    result = run_cli("bench", "theory", "--n", "100", "--resume")
    assert result.code == 2
    assert "'--out'" in result.err
