"""Methods under the same transport: what is the same, what is chosen, what is said."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Cli

from lessvfl import data, settings
from lessvfl.errors import ConfigError
from lessvfl.run import profiles, simulate
from lessvfl_bench import study
from lessvfl_bench.equal import cells, run, tables
from lessvfl_bench.equal.cells import METHODS, Cell
from lessvfl_bench.equal.tables import CellRuns
from lessvfl_bench.pages import equal as page
from lessvfl_bench.paper import plan

few_rows = pytest.mark.filterwarnings("ignore:The 'batch_size' setting")


def table(n_rows: int = 400) -> data.Dataset:
    """Return eight columns of which two, of different parties, make the label."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, 8))
    y = (X[:, 0] + X[:, 5] > 0).astype(int)
    return dataclasses.replace(data.from_arrays(X, y, name="made"), n_parties=2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = table()
    path = tmp_path / "made.npz"
    np.savez(path, X=made.X.numeric, y=made.y)
    return path


# -- what is the same ------------------------------------------------------------------


@pytest.mark.parametrize("transport", cells.TRANSPORTS)
def test_every_method_has_the_same_transport(transport: str) -> None:
    dataset = table(6000)
    shared = cells.transport(transport, dataset)
    for method in METHODS:
        own = cells.settings_of(Cell("made", transport, method), dataset).flat()
        same = {name: own[name] for name in shared if name in own}
        if method == "group-lasso":
            assert own["train_optimizer"] == shared["optimizer"]
            epochs = own["joint_epochs"] + own["train_epochs"]
            assert epochs == pytest.approx(shared["train_epochs"])
            same |= {"optimizer": shared["optimizer"]}
            same |= {"train_epochs": shared["train_epochs"]}
        assert same == {name: shared[name] for name in same}
        assert {"embedding_size", "bits", "batch_size", "schedule"} <= set(same)


def test_the_transports_are_those_of_the_paper_and_of_the_default() -> None:
    dataset = table(6000)
    paper, ours = (cells.transport(name, dataset) for name in cells.TRANSPORTS)
    assert (paper["bits"], paper["embedding_size"], paper["train_epochs"]) == (
        32,
        16,
        100,
    )
    usual = profiles.resolve("less-vfl-auto", "default", dataset)
    assert ours == profiles.transport(usual)
    auto = cells.settings_of(Cell("made", "ours", "less-vfl-auto"), dataset)
    assert auto == usual


def test_a_step_of_the_breakdown_changes_one_thing() -> None:
    dataset = table(6000)
    steps = [cells.transport(name, dataset) for name in cells.STEPS]
    changed = [
        {name for name in before if before[name] != after[name]}
        for before, after in itertools.pairwise(steps)
    ]
    assert changed[0] == {"bits"}
    assert changed[1] == {"embedding_size", "components_per_column"}
    assert not changed[2] & (changed[0] | changed[1])


# -- what is chosen --------------------------------------------------------------------


def test_the_grid_is_the_papers() -> None:
    grid = [0.5, 0.25, 0.1, 0.05, 0.01, 0.005]
    assert cells.server_lambdas("less-vfl") == grid
    assert cells.server_lambdas("local-lasso") == [None]
    for method in ("plain", "less-vfl-auto"):
        assert cells.server_lambdas(method) == []


def test_lambdas_are_tried_on_training_rows_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def simulated(job: Any, seeds: list[int]) -> Any:
        seen.append((job, seeds))
        numbers = {"accuracy": {"final": job.settings.config.lam_party / 4}}
        numbers["spurious"] = {"removed_share": 0.5}
        return [type("Run", (), {"numbers": numbers})]

    monkeypatch.setattr(simulate, "simulate", simulated)
    monkeypatch.setattr(data, "load", lambda name, data_dir: table())
    found = cells.try_lambdas(Cell("made", "ours", "less-vfl"), 0.05, "cpu", None)
    configs = [job.settings.config for job, _ in seen]
    tried = [(config.lam_server, config.lam_party) for config in configs]
    grid = plan.published()["grid"]["lam_party"]
    assert tried == [(0.05, lam) for lam in grid]
    for job, seeds in seen:
        assert seeds == [cells.CHOICE_SEED]
        assert job.dataset.X.n_rows == 320  # test rows have no say
    assert found["trials"][0] == {
        "lambdas": {"lam_party": 2.0, "lam_server": 0.05},
        "accuracy": 0.5,
        "removed_share": 0.5,
    }


@pytest.mark.parametrize(
    ("removed", "by_removed"),
    [([1.0, 0.8, 0.7, 0.0], 1.0), ([0.7, 0.5, 0.2, 0.0], 0.5)],
)
def test_lambdas_are_chosen_by_accuracy_and_by_noise_removed(
    removed: list[float], by_removed: float
) -> None:
    """Of equals the first, which is the larger; all where none removed enough."""
    scores, grid = [0.5, 0.7, 0.9, 0.9], [2.0, 1.0, 0.5, 0.25]
    trials = [
        {"lambdas": {"lam_party": lam}, "accuracy": score, "removed_share": share}
        for lam, score, share in zip(grid, scores, removed, strict=True)
    ]
    chosen = {rule: one["lambdas"] for rule, one in cells.choose(trials).items()}
    assert chosen == {
        "accuracy": {"lam_party": 0.5},
        "removed": {"lam_party": by_removed},
    }


# -- what is said ----------------------------------------------------------------------


def found(
    method: str,
    accuracies: list[float],
    transport: str = "ours",
    rule: str = "",
    n_bytes: int = 2**20,
    removed: float = 1.0,
    held_out: float = 0.9,
) -> CellRuns:
    runs = [
        {
            "seed": seed,
            "accuracy": value,
            "balanced_accuracy": value,
            "auc": None,
            "best": {"accuracy": value, "balanced_accuracy": value},
            "removed_share": removed,
            "real_kept_share": 1.0,
            "bytes": {"up": n_bytes // 2, "down": n_bytes // 2},
            "rounds": 10,
            "majority": 0.5,
            "seconds": 1.0,
            "curve": [
                {
                    "accuracy": value,
                    "balanced_accuracy": value,
                    "removed_share": removed,
                    "payload_bytes": n_bytes // 4,
                    "rounds": 3,
                }
            ],
        }
        for seed, value in enumerate(accuracies)
    ]
    spurious = 0.0 if rule == tables.ORIGINAL else 0.5
    cell = Cell("made", transport, method, spurious=spurious)
    trial = {"lambdas": {}, "removed_share": held_out} if rule else {}
    return CellRuns(cell, rule, trial, runs)


def test_differences_are_paired_by_seed() -> None:
    """Seeds that differ much, by the same amount: ahead beyond two errors."""
    ours = found("less-vfl-auto", [0.71, 0.81, 0.92])
    row, _ = tables.rows([found("plain", [0.7, 0.8, 0.9]), ours])
    gap = row["ahead"]["accuracy"]
    assert gap["mean"] == pytest.approx(0.04 / 3)
    assert gap["error"] == pytest.approx(0.01 / 3)
    assert gap["verdict"] == "ahead"
    assert row["ahead"]["auc"] is None
    (verdict, _) = tables.verdicts([row])
    assert verdict["ahead"] == ["made"]


@pytest.mark.parametrize(
    ("reached", "removed", "hits"), [(0.82, 1.0, 2), (0.80, 1.0, 0), (0.95, 0.79, 0)]
)
def test_a_target_is_that_of_the_same_transport_without_noise(
    reached: float, removed: float, hits: int
) -> None:
    original = found("plain", [0.9, 0.9], rule=tables.ORIGINAL)
    elsewhere = found("plain", [0.1, 0.1], transport="paper", rule=tables.ORIGINAL)
    one = found("less-vfl", [reached] * 2, removed=removed)
    (row,) = tables.rows([elsewhere, one, original])
    assert row["target"]["hits"] == hits
    assert row["target"]["mib"] == (0.25 if hits else None)


def test_a_target_that_a_constant_reaches_counts_for_nothing() -> None:
    original = found("plain", [0.55, 0.55], rule=tables.ORIGINAL)
    (row,) = tables.rows([found("less-vfl", [0.5, 0.5]), original])
    assert row["target"]["degenerate"]
    assert not row["balanced_target"]["degenerate"]
    (shown,) = page.shown({"rows": [row]}, "ours")
    assert shown["hits"] == "degenerate (2 of 2)"
    assert shown["MiB to target"] == "– (0.250)"


@pytest.mark.parametrize(
    ("rule", "held_out", "said"),
    [
        ("removed", 0.8, "80 % removed"),
        ("removed", 0.7, "80 % removed (none did)"),
        ("accuracy", 0.7, "most accurate"),
    ],
)
def test_a_rule_that_found_nothing_says_so(
    rule: str, held_out: float, said: str
) -> None:
    rows = tables.rows([found("less-vfl", [0.8, 0.8], rule=rule, held_out=held_out)])
    (shown,) = page.shown({"rows": rows}, "ours")
    assert shown["lambdas by"] == said


def test_factors_multiply_to_the_whole() -> None:
    chain = [
        found("less-vfl", [0.9], "paper", tables.RULE, 64 * 2**20),
        found("less-vfl", [0.9], "bits", tables.RULE, 8 * 2**20),
        found("less-vfl", [0.9], "components", tables.RULE, 4 * 2**20),
        found("less-vfl", [0.8], "ours", tables.RULE, 2 * 2**20),
        found("less-vfl", [0.9], "ours", "accuracy", 9 * 2**20),
        found("less-vfl-auto", [0.95], "ours", "", 2**20),
    ]
    (row,) = tables.breakdown(chain)
    assert row["factors"] == {"bits": 8, "components": 2, "epochs": 2, "method": 2}
    assert row["whole"] == 64
    assert tables.breakdown(chain[:2]) == []


def test_the_page_says_on_how_many_it_is_ahead() -> None:
    ours = found("less-vfl-auto", [0.9, 0.9])
    rows = tables.rows([found("less-vfl", [0.8, 0.81], rule="removed"), ours])
    (sentence,) = page.sentences({"verdicts": tables.verdicts(rows)})[:1]
    assert "more accurate than less-vfl, lambdas by 80 % removed on 1 of 1" in sentence


# -- the command -----------------------------------------------------------------------


@few_rows
@pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")
def test_command(run_cli: Cli, file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """It runs both transports, writes its page, and resumes without a run."""
    small = {"lam_party": [0.5, 0.1], "lam_server": [0.05]}
    monkeypatch.setattr(plan, "published", lambda: {"grid": small})
    given = profiles.resolve

    def short(method: str, profile: str, dataset: Any, values: Any = None) -> Any:
        more = {"train_epochs": 2, "shadows": 20, "party_epochs": 3, "server_epochs": 3}
        known = settings.fields_of(profiles.sections(method))
        more = {key: value for key, value in more.items() if key in known}
        return given(method, profile, dataset, more | (values or {}))

    monkeypatch.setattr(profiles, "resolve", short)
    words = ["bench", "equal", "--data", str(file), "--seeds", "0,1", "--out"]
    words += [str(tmp_path / "out"), "--methods", "plain,less-vfl,less-vfl-auto"]
    result = run_cli(*words)
    assert result.code == 0, result.err
    assert "Report:" in result.out
    kept = json.loads((tmp_path / "out" / "equal.json").read_text())
    assert {row["method"] for row in kept["rows"]} == set(words[-1].split(","))
    (chain,) = kept["breakdown"]
    assert chain["factors"]["bits"] > 2
    whole = np.prod(list(chain["factors"].values()))
    assert chain["whole"] == pytest.approx(float(whole))
    text = (tmp_path / "out" / "equal.html").read_text()
    assert "From the paper&#39;s bytes to ours" in text
    text = (tmp_path / "out" / "equal.csv").read_text()
    lines = list(csv.DictReader(text.splitlines()))
    assert len(lines) == len(kept["rows"])

    monkeypatch.setattr(cells, "run", pytest.fail)
    monkeypatch.setattr(cells, "try_lambdas", pytest.fail)
    result = run_cli(*words, "--resume", "--json", "--quiet")
    assert result.code == 0, result.err
    again = json.loads(result.out)
    assert again["rows"] == kept["rows"]


def test_tasks_go_to_processes_and_come_back_with_their_results() -> None:
    with study.workers(2) as call:
        assert sorted(call(divmod, [(7, 2), (9, 4)])) == [
            ((7, 2), (3, 1)),
            ((9, 4), (2, 1)),
        ]


def test_unknown_names_are_refused() -> None:
    given: dict[str, Any] = {"data": ["digits"], "seeds": [0], "data_dir": None}
    given |= {"transports": ["ours"], "methods": ["plain"]}
    for name in ("transports", "methods", "device"):
        wrong = run.Contest(
            **given | {name: "theirs" if name == "device" else ["theirs"]}
        )
        with pytest.raises(ConfigError, match=f"'{name}' option .* Got 'theirs'"):
            run.run(wrong)


@pytest.mark.parametrize("bench", ["equal", "rivals", "peers"])
def test_a_data_set_with_a_class_of_one_row_is_left_out(
    run_cli: Cli, tmp_path: Path, bench: str
) -> None:
    """The others go on, and the reason is said."""
    X = np.random.default_rng(0).normal(size=(100, 8))
    y = (X[:, 0] + X[:, 5] > 0).astype(int)
    np.savez(tmp_path / "fit.npz", X=X, y=y)
    np.savez(tmp_path / "lone.npz", X=X, y=np.where(np.arange(100) == 7, 2, y))
    files = f"{tmp_path / 'lone.npz'},{tmp_path / 'fit.npz'}"
    methods = "plain,group-lasso" if bench == "rivals" else "plain"
    words = ["--data", files, "--seeds", "0", "--methods", methods, "--json"]
    words += ["--transports", "ours"] if bench == "equal" else []
    result = run_cli("bench", bench, *words, "--out", tmp_path / "out")
    assert result.code == 0, result.err
    found = result.json
    why = "of class '2'"
    if bench == "equal":
        (skipped,) = found["skipped"].items()
        assert skipped[0] == str(tmp_path / "lone.npz")
        assert why in skipped[1]
        assert {row["data"] for row in found["rows"]} == {str(tmp_path / "fit.npz")}
        assert why in (tmp_path / "out" / "equal.md").read_text()
        return
    key = "refused" if bench == "rivals" else "skipped"
    rows = found["rows" if bench == "rivals" else "results"]
    for row in rows:
        is_lone = Path(row["data"]).stem == "lone"
        assert (row[key] is not None) == is_lone
        assert not is_lone or why in row[key]
