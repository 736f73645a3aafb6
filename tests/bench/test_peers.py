"""The comparison with feature selection on pooled data."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import Cli

from lessvfl import data
from lessvfl.data import DataConfig, Problem
from lessvfl.errors import DataError
from lessvfl.run import simulate
from lessvfl.run.simulate import Job, Run
from lessvfl_bench.pages import peers as page
from lessvfl_bench.pages.peers import build_peers
from lessvfl_bench.peers import pooled, run, stg
from lessvfl_bench.peers.pooled import REFERENCES, Pooled, Selection

CPU = torch.device("cpu")
SIGNAL = (0, 5)  # columns that make the label
TRUTH = np.isin(np.arange(8), SIGNAL)

few_rows = pytest.mark.filterwarnings("ignore:The 'batch_size' setting")


def table(n_rows: int = 400, n_classes: int = 2) -> data.Dataset:
    """Return eight columns of which two, of different parties, make the label."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, 8))
    first, second = X[:, SIGNAL[0]], X[:, SIGNAL[1]]
    y = (first + second > 0).astype(int)
    if n_classes == 3:
        y = np.argmax([np.zeros(n_rows), first, second], axis=0)
    made = data.from_arrays(X, y, name="made")
    return dataclasses.replace(made, significant=TRUTH, n_parties=2)


def prepared(dataset: data.Dataset | None = None, spurious: float = 0.5) -> Problem:
    return data.prepare(dataset or table(), run.ROWS, spurious=spurious, seed=3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with the table, as the command line takes it."""
    made = table()
    path = tmp_path / "made.npz"
    np.savez(path, X=made.X.numeric, y=made.y, informative=TRUTH)
    return path


# -- the rule --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_right", "chosen"),
    [
        ([90, 95, 93, 50], 2),  # one error of 95 of 100 is 2.3 rows
        ([90, 95, 92, 50], 1),
        ([100, 99, 97], 1),  # where all are right the error is not zero
        ([60, 60, 60], 2),
        ([50, 40, 96], 2),
    ],
)
def test_strongest_penalty_within_one_standard_error(
    n_right: list[int], chosen: int
) -> None:
    assert pooled.strongest(np.array(n_right), 100) == chosen


# -- stochastic gates ------------------------------------------------------------------


def test_probability_of_an_open_gate_is_that_of_its_draws() -> None:
    mu = torch.linspace(-1.5, 1.5, 13)
    normal = torch.distributions.Normal(mu, stg.SIGMA)
    zero = torch.zeros_like(mu)
    assert torch.allclose(stg.open_probability(mu), 1 - normal.cdf(zero), atol=1e-6)
    noise = stg.SIGMA * torch.randn(
        100_000, 13, generator=torch.Generator().manual_seed(0)
    )
    share = (stg.gates(mu, noise) > 0).double().mean(dim=0)
    assert torch.allclose(share, stg.open_probability(mu).double(), atol=0.01)


def test_gate_is_the_clipped_sum() -> None:
    z = stg.gates(torch.tensor([-3.0, 0.2, 0.2, 0.9]), torch.tensor([0, 0.1, -0.3, 2]))
    assert z.tolist() == pytest.approx([0.0, 0.3, 0.0, 1.0])


def trained(lams: tuple[float, ...], **plan: Any) -> tuple[stg.Gated, Problem]:
    problem = prepared()
    one = pooled.pool(problem, 0, CPU)
    gated = stg.train(
        one.X_train, one.y_train, one.groups, 2, stg.Plan(lams, **plan), 0, CPU
    )
    return gated, problem


def test_gates_stand_in_front_of_the_network() -> None:
    gated, problem = trained((0.01,), n_steps=20)
    x = torch.as_tensor(pooled.pool(problem, 0, CPU).X_test).float()
    inputs = x * stg.gates(gated.mu).unsqueeze(1)
    assert torch.allclose(gated(x), gated.net(inputs), atol=1e-5)


def test_gates_close_as_lambda_grows() -> None:
    gated, problem = trained((0.0, 0.03, 100.0), n_steps=600)
    kept = gated.kept()
    assert kept[0].all()
    assert not kept[2].any()
    truth = np.concatenate([t.significant for t in problem.parties if t.features])
    assert kept[1].tolist() == truth.tolist()


def test_every_lambda_is_trained_as_if_alone() -> None:
    both, _ = trained((0.001, 0.03), n_steps=50)
    alone, _ = trained((0.03,), n_steps=50)
    assert torch.allclose(both.mu[1], alone.mu[0], atol=1e-4)


# -- every reference -------------------------------------------------------------------


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set every reference for a minute of tests, not for a benchmark."""
    monkeypatch.setattr(pooled, "LASSONET_HIDDEN", (16,))
    monkeypatch.setattr(pooled, "LASSONET_BATCH", 32)
    monkeypatch.setattr(pooled, "LASSONET_PATH", 2.0)
    monkeypatch.setattr(pooled, "LASSONET_EPOCHS", 3)
    monkeypatch.setattr(pooled, "LASSONET_STEPS", 20)
    monkeypatch.setattr(pooled, "LASSONET_DENSE", 10)
    monkeypatch.setattr(
        pooled, "STG_PLAN", stg.Plan((0.003, 0.03, 0.1), hidden=16, n_steps=500)
    )
    monkeypatch.setattr(pooled, "N_TREES", 15)
    monkeypatch.setattr(pooled, "BORUTA_ROUNDS", 15)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", REFERENCES)
def test_reference_finds_an_obvious_signal(name: str, n_classes: int) -> None:
    reference = REFERENCES[name]
    if reference.missing(name):
        pytest.skip(f"{name} is not installed (extra 'peers')")
    problem = prepared(table(n_classes=n_classes))
    one = pooled.pool(problem, 0, CPU)
    state = torch.random.get_rng_state()
    found = reference.select(one)
    numbers = run.judge(problem, found.kept)
    truth = np.concatenate([t.significant for t in problem.parties if t.features])
    assert found.kept[truth].all()
    assert numbers["removed_share"] >= 0.5
    assert numbers["accuracy"] > 0.85
    assert np.mean(found.predicted == problem.y_test) > 0.75
    assert torch.equal(state, torch.random.get_rng_state())
    if n_classes == 2:
        again = reference.select(one)
        assert np.array_equal(found.kept, again.kept)
        assert np.array_equal(found.predicted, again.predicted)


@pytest.mark.usefixtures("few_steps")
def test_features_of_several_columns_stay_together() -> None:
    """A feature is kept where any of its columns is; LassoNet groups them."""
    rng = np.random.default_rng(0)
    cells = np.array(rng.choice(["a", "b", "c"], size=200), dtype=object)
    X = np.empty((200, 3), dtype=object)
    X[:, 0], X[:, 1] = rng.standard_normal(200), cells
    X[:, 2] = rng.standard_normal(200)
    made = data.from_arrays(X, (cells == "b").astype(int), name="words")
    problem = data.prepare(made, DataConfig(), parties=[1, 2], spurious=1.0)
    one = pooled.pool(problem, 0, CPU)
    assert one.n_features == problem.n_features == 6
    n_columns = [party.X_train.shape[1] for party in problem.parties]
    assert one.groups.max() == 5
    assert len(one.groups) == sum(n_columns) == 8
    assert one.features(np.arange(8) == 3).tolist() == (np.arange(6) == 2).tolist()
    names = ["l1-logistic", "stg"]
    names += [] if REFERENCES["lassonet"].missing("lassonet") else ["lassonet"]
    for name in names:
        assert REFERENCES[name].select(one).kept[2], name


# -- one judge for all -----------------------------------------------------------------


def test_pooled_data_are_the_parties_tables_side_by_side() -> None:
    problem = prepared()
    one = pooled.pool(problem, 0, CPU)
    first, second = problem.parties
    assert np.array_equal(one.X_train, np.hstack([first.X_train, second.X_train]))
    assert np.array_equal(one.X_test, np.hstack([first.X_test, second.X_test]))
    assert one.X_train.shape == (320, 12)  # 8 columns and 4 planted


@pytest.mark.parametrize("method", run.OURS)
def test_our_methods_see_the_same_problem_under_every_profile(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, jobs = table(), []

    class SeenError(Exception):
        """The job is known."""

    def watched(job: Job, seeds: list[int]) -> list[Run]:
        jobs.append((job, seeds))
        raise SeenError

    monkeypatch.setattr(simulate, "simulate", watched)
    bench = run._PeerBench(dataset, 0.5, CPU)
    with pytest.raises(SeenError):
        bench.line(method, 3)
    ((job, seeds),) = jobs
    assert job.settings.profile == run.OURS[method][1]
    assert (job.dataset, seeds) == (dataset, [3])
    theirs = data.prepare(
        job.dataset, job.settings.data, spurious=job.spurious, seed=seeds[0]
    )
    for one, other in zip(bench.problem(3).parties, theirs.parties, strict=True):
        assert np.array_equal(one.X_train, other.X_train)
        assert np.array_equal(one.X_test, other.X_test)


def test_judge_counts_planted_columns_as_not_significant() -> None:
    problem = prepared()
    planted = np.concatenate([party.spurious for party in problem.parties])
    truth = np.concatenate([t.significant for t in problem.parties if t.features])
    assert planted.sum() == 4
    assert not truth[planted].any()
    right = run.judge(problem, truth)
    assert right["f1"] == 1.0
    assert right["removed_share"] == 1.0
    assert right["real_kept_share"] == 2 / 8
    everything = run.judge(problem, np.ones(12, dtype=bool))
    assert everything["f1"] == pytest.approx(2 * 2 / (2 + 12))
    assert everything["removed_share"] == 0.0
    assert everything["real_kept_share"] == 1.0


def test_nothing_kept_predicts_the_majority() -> None:
    problem = prepared(table(n_classes=3), spurious=0.0)
    numbers = run.judge(problem, np.zeros(8, dtype=bool))
    most = np.bincount(problem.y_train).argmax()
    assert numbers["accuracy"] == pytest.approx(np.mean(problem.y_test == most))
    assert numbers["balanced_accuracy"] == pytest.approx(1 / 3)
    assert numbers["removed_share"] is None
    one = pooled.pool(problem, 0, CPU)
    assert (pooled._by_forest(one, np.zeros(8, dtype=bool)).predicted == most).all()


def test_a_class_with_too_few_rows_is_refused() -> None:
    made = table()
    y = np.zeros(400, dtype=int)
    y[:5] = 1
    scarce = data.from_arrays(made.X.numeric, y, name="scarce")
    with pytest.raises(DataError, match=r"Every class of 'scarce' .* Got 4 of"):
        pooled.pool(prepared(scarce), 0, CPU)


# -- the command -----------------------------------------------------------------------


@few_rows
def test_json_holds_every_number(run_cli: Cli, file: Path) -> None:
    result = run_cli(
        *("bench", "peers", "--data", file, "--methods", "plain,random-forest"),
        *("--seeds", "0,1", "--json", "--device", "cpu"),
    )
    assert result.code == 0, result.err
    found = result.json
    assert found["data"] == [str(file)]
    assert found["methods"] == ["plain", "random-forest"]
    assert found["seeds"] == [0, 1]
    assert found["spurious"] == 0.5
    assert found["device"] == "cpu"
    assert found["seconds"] > 0
    plain, forest = found["results"]
    for row in (plain, forest):
        assert row["data"] == str(file)
        assert row["seeds"] == [0, 1]
        assert row["skipped"] is None
        for key in run.NUMBERS:
            values = [line[key] for line in row["by_seed"]]
            assert row[key]["mean"] == pytest.approx(np.mean(values))
            assert row[key]["std"] == pytest.approx(np.std(values, ddof=1))
    assert forest["bytes"] == {"mean": 320 * 12 * 4, "std": 0.0}  # as float32
    assert plain["n_kept"]["mean"] == 12
    # Plain VFL, one step an epoch: 16 components of four parties up and down a step.
    assert plain["bytes"]["mean"] >= 100 * 320 * 4 * 16 * 4 * 2
    assert [line["seed"] for line in forest["by_seed"]] == [0, 1]
    assert "4 of 4: " in result.err


def test_progress_can_be_silenced(run_cli: Cli, file: Path) -> None:
    options = ("--methods", "random-forest", "--seeds", "0", "--quiet")
    result = run_cli("bench", "peers", "--data", file, *options)
    assert result.err == ""
    assert "Random forest" in result.out
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--data", "nothing"], "data set"),
        (["--data", "digits,digits"], "each once"),
        (["--data", ""], "at least one"),
        (["--data", "synthetic", "--methods", "lasso"], "method"),
        (["--data", "synthetic", "--methods", ""], "at least one"),
        (["--data", "synthetic", "--seeds", "a"], "'--seeds'"),
        (["--data", "synthetic", "--seeds", "-1"], "Every seed"),
        (["--data", "synthetic", "--seeds", ""], "at least one"),
        (["--data", "synthetic", "--spurious", "much"], "'--spurious'"),
        (["--data", "synthetic", "--spurious", "-1"], "'spurious'"),
        (["--data", "synthetic", "--device", "tpu"], "'device'"),
        (["--data", "synthetic", "--data-dir", "/nowhere"], "folder"),
        (["--data", "sylva_train"], "LESSVFL_DATA"),
        (["--data", "synthetic", "--resume"], "'--out'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_options_are_one_sentence(
    run_cli: Cli, options: list[str], sentence: str
) -> None:
    methods = [] if "--methods" in options else ["--methods", "random-forest"]
    result = run_cli("bench", "peers", *methods, *options)
    assert result.code == 2
    assert result.err.startswith("lessvfl: ")
    assert len(result.err.splitlines()) == 1
    assert sentence in result.err


def test_regression_is_refused(run_cli: Cli, tmp_path: Path) -> None:
    amounts = tmp_path / "amounts.npz"
    rng = np.random.default_rng(0)
    np.savez(amounts, X=rng.standard_normal((50, 4)), y=rng.standard_normal(50))
    result = run_cli("bench", "peers", "--data", amounts, "--methods", "stg")
    assert result.code == 2
    assert "must have classes" in result.err


# -- packages that are not installed ---------------------------------------------------


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the packages of the extra."""
    found = importlib.util.find_spec
    hidden = ("lassonet", "boruta")
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name in hidden else found(name, *more),
    )


@pytest.mark.usefixtures("without_extras")
def test_a_missing_package_is_skipped_by_default(
    run_cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "METHODS", ("lassonet", "random-forest", "boruta"))
    result = run_cli(
        *("bench", "peers", "--data", file, "--seeds", "0", "--json"),
        *("--out", tmp_path / "out"),
    )
    assert result.code == 0, result.err
    assert len(result.warnings) == 2
    assert "extra 'peers'" in result.warnings[0]
    lassonet, forest, boruta = result.json["results"]
    for row in (lassonet, boruta):
        assert row["skipped"] in result.warnings
        assert row["seeds"] == []
        assert row["by_seed"] == []
        assert row["accuracy"] is None
    assert forest["skipped"] is None
    assert "1 of 1: " in result.err
    text = (tmp_path / "out" / "peers.md").read_text(encoding="utf-8")
    assert "| LassoNet | not installed |" in text
    html = (tmp_path / "out" / "peers.html").read_text(encoding="utf-8")
    assert html.count("not installed</td>") == 2


@pytest.mark.usefixtures("without_extras")
def test_a_missing_package_that_was_asked_for_is_an_error(
    run_cli: Cli, file: Path
) -> None:
    result = run_cli("bench", "peers", "--data", file, "--methods", "stg,boruta")
    assert result.code == 2
    assert "'boruta'" in result.err
    assert "pip install 'lessvfl[peers]'" in result.err


# -- folders ---------------------------------------------------------------------------


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace a reference by one that keeps everything and tells its seeds."""
    seeds: list[int] = []

    def keep_all(one: Pooled) -> Selection:
        seeds.append(one.seed)
        kept = np.ones(one.n_features, dtype=bool)
        return Selection(kept, pooled.majority(one.y_train, len(one.X_test)))

    made = dataclasses.replace(REFERENCES["stg"], select=keep_all)
    monkeypatch.setitem(REFERENCES, "stg", made)
    return seeds


def records(out: Path) -> dict[str, str]:
    paths = sorted((out / "records").iterdir())
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def test_a_run_goes_on_where_it_ended(
    run_cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch)
    out = tmp_path / "out"
    command = ("bench", "peers", "--data", file, "--methods", "stg", "--out", out)
    assert run_cli(*command, "--seeds", "0,1").code == 0
    first = records(out)
    assert len(first) == 2
    result = run_cli(*command, "--seeds", "1,0,2", "--resume", "--json")
    assert result.code == 0, result.err
    assert calls == [0, 1, 2]
    assert "3 of 3: " in result.err
    assert result.json["results"][0]["seeds"] == [1, 0, 2]
    assert first.items() < records(out).items()
    found = [json.loads(text)["found"]["seed"] for text in records(out).values()]
    assert found == [0, 1, 2]
    assert run_cli(*command, "--seeds", "0", "--spurious", "1", "--resume").code == 0
    assert calls == [0, 1, 2, 0]  # another share of noise is another run
    assert len(records(out)) == 4
    refused = run_cli(*command, "--seeds", "0")
    assert refused.code == 2
    assert "--resume must be given. Got 4 records" in refused.err


def results(**changes: Any) -> dict[str, Any]:
    """Return what a comparison of two methods gives."""
    spread = {"mean": 0.5, "std": 0.25}
    numbers: dict[str, Any] = dict.fromkeys(run.NUMBERS, spread)
    numbers |= {"f1": None, "bytes": {"mean": 2e6, "std": 0.0}}
    row = {
        "data": "a<b",
        "method": "stg",
        "seeds": [0, 1],
        **numbers,
        "skipped": None,
        "by_seed": [],
    }
    other = {**row, **dict.fromkeys(run.NUMBERS), "method": "boruta"}
    other |= {"seeds": [], "skipped": "Install it."}
    return {
        "data": ["a<b"],
        "methods": ["stg", "boruta"],
        "seeds": [0, 1],
        "spurious": 0.5,
        "results": [row, other],
        "notes": {"a<b": ["Not the paper's."]},
        "settings": {"stg": "as it is", "boruta": "as it is"},
        "versions": {"lessvfl": "1"},
        "seconds": 1.0,
        "device": "cpu",
        **changes,
    }


def test_files_say_what_the_results_say(tmp_path: Path) -> None:
    made = results()
    assert build_peers(made, tmp_path) == tmp_path / "peers.html"
    assert json.loads((tmp_path / "peers.json").read_text()) == made
    with open(tmp_path / "peers.csv", encoding="utf-8") as stream:
        first, second = csv.DictReader(stream)
    assert first["accuracy_mean"] == "0.5"
    assert first["bytes_mean"] == "2000000.0"
    assert first["f1_mean"] == ""
    assert second["skipped"] == "Install it."
    text = (tmp_path / "peers.md").read_text(encoding="utf-8")
    cells = "0.500 ± 0.250 | 0.500 ± 0.250 | – | 0.500 ± 0.250"
    assert f"| Stochastic gates | {cells}" in text
    assert "| 2.00 | 0.500 ± 0.250 |" in text  # MB, seconds
    assert "Not the paper's." in text
    html = (tmp_path / "peers.html").read_text(encoding="utf-8")
    assert "a&lt;b" in html
    assert "a<b" not in html
    assert html.count("0.500 ± 0.250") == 7
    assert html.count("<svg") == 2
    assert "http" not in html.replace("http-equiv", "")


def test_a_page_without_numbers_has_no_figures(tmp_path: Path) -> None:
    made = results()
    html = build_peers({**made, "results": made["results"][1:]}, tmp_path)
    assert "<svg" not in html.read_text(encoding="utf-8")


def test_a_narrow_table_has_means_only() -> None:
    row = results()["results"][0]
    assert page.cells(row, narrow=True)[1:4] == ["0.500", "0.500", "–"]
    assert len(page.cells(row)) == len(page.COLUMNS) + 1
