"""Methods of selection across parties: what is compared, and what is said of it."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Cli

from lessvfl import data, methods, settings
from lessvfl.errors import ConfigError
from lessvfl.run import profiles, simulate
from lessvfl_bench.equal import cells
from lessvfl_bench.pages import again
from lessvfl_bench.pages import rivals as page
from lessvfl_bench.rivals import places, published, run, splits, tables
from lessvfl_bench.rivals.columns import COLUMNS, REVEALED
from lessvfl_bench.rivals.places import RivalCell, RivalPlace
from lessvfl_bench.rivals.run import Rivals
from lessvfl_bench.rivals.tables import RivalRuns

quiet = pytest.mark.filterwarnings("ignore::lessvfl.errors.LessVFLWarning")


def table(n_rows: int = 200, n_columns: int = 12) -> data.Dataset:
    """Return columns of which two make the label, each with a noisy copy."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, n_columns))
    X[:, 6:] = X[:, :6] + 0.1 * rng.standard_normal((n_rows, 6))
    y = (X[:, 0] + X[:, 5] > 0).astype(int)
    return data.from_arrays(X, y, name="made")


# -- splits of columns -----------------------------------------------------------------


def shares(importance: Any, owners: Any, n_parties: int) -> list[float]:
    return sorted(importance[owners == k].sum() for k in range(n_parties))


def test_a_large_alpha_gives_equal_sums_of_importance() -> None:
    rng = np.random.default_rng(0)
    importance = rng.exponential(size=200)
    importance /= importance.sum()
    even = splits.by_importance(importance, 4, 1e6, rng)
    assert shares(importance, even, 4) == pytest.approx([0.25] * 4, abs=0.01)
    spreads = {
        alpha: np.mean(
            [
                np.ptp(
                    shares(importance, splits.by_importance(importance, 4, a, rng), 4)
                )
                for a in [alpha] * 20
            ]
        )
        for alpha in (0.1, 1.0, 100.0)
    }
    assert spreads[0.1] > 2 * spreads[1.0] > 4 * spreads[100.0]


@pytest.mark.parametrize("n_parties", [3, 4, 5])
def test_beta_puts_correlated_columns_together_or_apart(n_parties: int) -> None:
    """Blocks of `n_parties` columns: each at one party, or at every one once."""
    rng = np.random.default_rng(0)
    blocks = rng.permutation(np.repeat(np.arange(n_parties), n_parties))
    common = rng.standard_normal((500, n_parties))
    X = common[:, blocks] + 0.1 * rng.standard_normal((500, len(blocks)))
    corr = splits.rank_correlations(X)
    found = {
        beta: splits.by_correlation(corr, n_parties, beta, rng)
        for beta in (0.0, 0.5, 1.0)
    }
    for block in range(n_parties):
        assert len(set(found[1.0][blocks == block])) == 1
        assert len(set(found[0.0][blocks == block])) == n_parties
    least, middle, most = (splits.score(corr, owners) for owners in found.values())
    assert least < middle < most


def test_the_score_is_that_of_the_definition() -> None:
    """Two parties of two columns each: singular values of 2 x 2 matrices by hand."""
    corr = np.array(
        [[1, 0.6, 0, 0], [0.6, 1, 0, 0], [0, 0, 1, 0.2], [0, 0, 0.2, 1]], dtype=float
    )
    # Of [[1, r], [r, 1]] they are 1 + r and 1 - r, whose deviation is r times root 2.
    assert splits.score(corr, np.array([0, 0, 1, 1])) == pytest.approx((0.6 + 0.2) / 2)


@quiet
@pytest.mark.parametrize("n_parties", [2, 4, 8])
@pytest.mark.parametrize("split", run.SPLITS)
def test_every_column_has_one_party_and_every_party_a_column(
    split: str, n_parties: int
) -> None:
    dataset = table()
    dealt = splits.parties_of(dataset, split, n_parties, seed=3)
    held = [name for columns in dealt.values() for name in columns]
    assert sorted(held) == sorted(dataset.X.names)
    assert len(dealt) == n_parties
    assert all(dealt.values())
    assert dealt == splits.parties_of(dataset, split, n_parties, seed=3)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ("halves", "as in importance:0.1"),
        ("importance:", "as in importance:0.1"),
        ("importance:0", "above 0"),
        ("correlation:1.5", "in \\[0, 1\\]"),
    ],
)
def test_a_split_that_is_none_is_refused(split: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        splits.read(split)


@quiet
def test_more_parties_than_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 to 12"):
        splits.parties_of(table(), "importance:1", 13, seed=0)


# -- what is compared ------------------------------------------------------------------


def test_every_method_has_the_same_final_training() -> None:
    """Of the paper's methods group lasso has its proximal epochs out of these."""
    dataset = table(6000)
    ours = profiles.transport(profiles.resolve(methods.DEFAULT, "default", dataset))
    final = {"embedding_size", "components_per_column", "bits", "batch_size"}
    final |= {"schedule", "learning_rate", "weight_decay", "train_epochs"}
    for method in methods.METHODS:
        own = places.settings_of(RivalCell(RivalPlace("made"), method), dataset).flat()
        if method == "group-lasso":
            own["train_epochs"] += own["joint_epochs"]
        same = {name: own[name] for name in final}
        assert same == pytest.approx({name: ours[name] for name in final}), method


def test_what_rivals_spend_on_their_selection_is_their_own() -> None:
    dataset = table(6000)
    for method, known in methods.METHODS.items():
        if "paper" not in known.profiles:
            cell = RivalCell(RivalPlace("made"), method)
            usual = profiles.resolve(method, "default", dataset)
            assert places.settings_of(cell, dataset).config == usual.config


def test_what_every_method_reveals_is_said() -> None:
    assert set(REVEALED) == set(methods.METHODS)


def test_a_size_has_what_is_not_named() -> None:
    usual, full, smoke = Rivals.of(), Rivals.of(full=True), Rivals.of(smoke=True)
    assert len(full.places()) > 50 > len(usual.places()) > len(smoke.places()) == 3
    assert set(usual.places()) <= set(full.places())
    assert full.seeds == (0, 1, 2, 3, 4)
    assert full.methods == usual.methods == tuple(methods.METHODS)
    assert Rivals.of(data=("digits",)).places() == [RivalPlace("digits")]
    (alone,) = Rivals.of(published=("pcmac",)).places()
    assert (alone.title, alone.kind) == ("pcmac: as in FedSDG-FS", published.KIND)
    (alone,) = Rivals.of(
        splits=("correlation:1",), split_data=("digits",), split_parties=(2,)
    ).places()
    assert alone.title == "digits: correlation:1, 2 parties"
    assert Rivals.of(full=True, seeds=(7,)).seeds == (7,)


@quiet
def test_a_refused_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(job: Any, seeds: Any) -> Any:
        raise ConfigError("It must not.")

    monkeypatch.setattr(simulate, "simulate", refuse)
    cell = RivalCell(RivalPlace("u-shapes, 300 rows", is_shape=True), "plain")
    assert places.run(cell, 0, None) == {"refused": "It must not."}


@quiet
def test_models_judge_the_columns_kept() -> None:
    """The two that make the label do as well as all, others do not, none guesses."""
    problem = data.prepare(table(600, 6 + 6), data.DataConfig(), parties=2)
    names = [name for party in problem.parties for name in party.features]
    right, wrong = (
        places.judge(problem, {names[i] for i in k}) for k in ((0, 5), (1, 2))
    )
    nothing = places.judge(problem, set())
    for model in places.JUDGES:
        assert right[f"{model}_balanced_accuracy"] > 0.9  # type: ignore[operator]
        assert wrong[f"{model}_auc"] < 0.7  # type: ignore[operator]
        assert nothing[f"{model}_balanced_accuracy"] == 0.5
        assert nothing[f"{model}_auc"] == 0.5
        assert nothing[f"{model}_r2"] is None


@quiet
def test_models_judge_amounts() -> None:
    X = np.random.default_rng(0).standard_normal((300, 3))
    amounts = data.from_arrays(X, X[:, 0] + 0.01 * X[:, 1], task="regression")
    problem = data.prepare(amounts, data.DataConfig(), parties=1)
    assert places.judge(problem, {"x0"})["linear_r2"] > 0.9  # type: ignore[operator]
    assert places.judge(problem, set())["boosted_r2"] == pytest.approx(0, abs=0.1)


@quiet
def test_a_class_that_no_training_row_has_is_never_predicted() -> None:
    X = np.random.default_rng(0).standard_normal((300, 3))
    classes = data.from_arrays(X, (X[:, 0] > 0).astype(int) + (X[:, 0] > 1))
    problem = data.prepare(classes, data.DataConfig(), parties=1)
    y = np.where(problem.y_train == 1, 0, problem.y_train)
    found = places.judge(dataclasses.replace(problem, y_train=y), {"x0"})
    assert found["boosted_balanced_accuracy"] == pytest.approx(2 / 3, abs=0.02)


# -- what is said ----------------------------------------------------------------------


def found(method: str, scores: list[float | None], **more: float) -> RivalRuns:
    runs = [
        {"refused": None, "balanced_accuracy": score, "mib": 1.0, **more}
        for score in scores
    ]
    return RivalRuns(RivalCell(RivalPlace("made"), method), runs)


OURS = found("less-vfl-auto", [0.71, 0.81, 0.92], mib=2.0)


def test_differences_are_paired_and_better_is_positive() -> None:
    rows = tables.rows([OURS, found("plain", [0.70, 0.80, 0.90])], "less-vfl-auto")
    gap = rows[1]["ahead"]["balanced_accuracy"]
    assert gap["mean"] == pytest.approx(0.04 / 3)
    assert gap["verdict"] == "ahead"
    assert rows[1]["ahead"]["mib"]["verdict"] == "behind"
    assert rows[1]["ahead"]["auc"] is None
    assert rows[0]["ahead"]["mib"] is None
    (worst,) = tables.behind(rows)
    assert worst == {
        "place": "made",
        "column": "mib",
        "method": "plain",
        "mean": -1.0,
        "error": 0.0,
    }
    (line,) = page.counts({"verdicts": tables.verdicts(rows)})["data sets"]
    assert line == {
        "method": "plain",
        "balanced accuracy": "1 / 0 / 0",
        "MiB": "0 / 0 / 1",
    }


def test_to_keep_everything_is_not_to_be_ahead() -> None:
    ours = found("less-vfl-auto", [0.8, 0.8], removed_share=1.0, real_kept_share=0.5)
    all_of_it = found("plain", [0.8, 0.8], removed_share=0.0, real_kept_share=1.0)
    some = found("mmvfl", [0.8, 0.8], removed_share=0.9, real_kept_share=0.9)
    (worst,) = [
        one
        for one in tables.behind(tables.rows([ours, all_of_it, some], "less-vfl-auto"))
        if one["column"] == "real_kept_share"
    ]
    assert worst["method"] == "mmvfl"


def test_who_is_not_told_apart_from_the_best_is_marked_too() -> None:
    close = found("mmvfl", [0.69, 0.83, 0.91])
    rows = tables.rows([OURS, close, found("plain", [0.5, 0.6, 0.7])], "less-vfl-auto")
    marked = [row["method"] for row in rows if "balanced_accuracy" in row["best"]]
    assert marked == ["less-vfl-auto", "mmvfl"]
    assert [row["method"] for row in rows if "mib" in row["best"]] == ["mmvfl", "plain"]
    assert page.texts(rows)[1]["balanced accuracy"] == "0.810*"


def test_one_seed_has_a_best_and_no_difference() -> None:
    rows = tables.rows([found("plain", [0.7]), found("less-vfl-auto", [0.8])], "plain")
    assert rows[1]["best"] == ["balanced_accuracy"]
    assert rows[1]["ahead"]["balanced_accuracy"] is None
    assert tables.verdicts(rows) == []
    assert page.ahead(rows) == []


def test_seeds_that_one_lacks_are_left_out() -> None:
    rows = tables.rows([OURS, found("plain", [0.70, None, 0.90])], "less-vfl-auto")
    assert rows[1]["ahead"]["balanced_accuracy"]["mean"] == pytest.approx(0.015)
    assert rows[1]["balanced_accuracy"] == pytest.approx(0.8)


# -- the published table ---------------------------------------------------------------


def test_every_row_is_tested_in_one_of_five_folds() -> None:
    dataset = table(203)
    folds = [published.fold(dataset, seed) for seed in range(5)]
    tested = np.concatenate([one.X_test.numeric for one in folds])  # type: ignore[union-attr]
    assert sorted(map(tuple, tested)) == sorted(map(tuple, dataset.X.numeric))
    for one in folds:
        assert one.X.n_rows + len(one.y_test) == 203  # type: ignore[arg-type]
        assert one.y_test.mean() == pytest.approx(dataset.y.mean(), abs=0.03)  # type: ignore[union-attr]
    again = published.fold(dataset, 5)
    assert not np.array_equal(again.y_test, folds[0].y_test)  # type: ignore[arg-type]


def test_folds_of_amounts_are_refused() -> None:
    amounts = data.from_arrays([[i] for i in range(9)], range(9), task="regression")
    with pytest.raises(ConfigError, match="must have classes"):
        published.fold(amounts, 0)


@quiet
def test_the_published_setting_has_random_halves_and_no_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def simulated(job: Any, seeds: Any) -> Any:
        seen.append((job, *seeds))
        raise ConfigError("Enough.")

    monkeypatch.setattr(simulate, "simulate", simulated)
    place = RivalPlace("breast-cancer", is_published=True)
    places.run(RivalCell(place, "gini-filter", title="gini-filter, half"), 3, None)
    ((job, seed),) = seen
    parties = job.problem(seed).parties
    assert seed == 3
    assert [len(party.features) for party in parties] == [15, 15]
    assert {name for p in parties for name in p.features} == set(job.dataset.X.names)
    assert job.problem(4).parties[0].features != parties[0].features
    assert job.settings.config.keep == 7
    assert len(job.problem(seed).y_test) == pytest.approx(569 / 5, abs=1)


@quiet
def test_the_lambda_that_keeps_about_the_published_share_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The more lambda, the less is kept: 25 features less 100,000 lambda."""
    given, simulated = simulate.simulate, []

    def keep_some(job: Any, seeds: Any) -> Any:
        lam = job.settings.config.lam
        simulated.append(lam)
        plain = profiles.resolve("plain", "default", job.dataset, {"train_epochs": 1})
        (done,) = given(dataclasses.replace(job, settings=plain), seeds)
        names = [name for party in done.problem.parties for name in party.features]
        kept = {"all": {"kept": names[: 25 - round(lam * 1e5)]}}
        return [dataclasses.replace(done, numbers={**done.numbers, "features": kept})]

    monkeypatch.setattr(simulate, "simulate", keep_some)
    place = RivalPlace("breast-cancer", is_published=True)
    found = places.run(
        RivalCell(place, "dual-gates", title="dual-gates, share"), 0, None
    )
    assert simulated == list(published.COLUMNS["dual-gates, share"].tried)
    assert found["n_kept"] == 25 - 10  # of 30: the half
    assert found["kept_share"] == 0.5
    assert 0 <= found["accuracy"] <= 1


def test_published_numbers_stand_beside_ours() -> None:
    place = RivalPlace("pcmac", is_published=True)
    runs = [
        {"refused": None, "accuracy": accuracy, "kept_share": 0.5}
        for accuracy in (0.88, 0.90)
    ]
    cell = RivalCell(place, "gini-filter", title="gini-filter, half")
    rows = tables.rows([RivalRuns(cell, runs)], "less-vfl-auto")
    assert page.published_table({"rows": rows}) == [
        {
            "method": "gini-filter, half",
            "there": "MS-GINI",
            "pcmac, there": "90.2 / 0.50",
            "pcmac, here": "89.0 ± 1.4 / 0.50",
        }
    ]


# -- the command -----------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every training take two epochs."""
    given = profiles.resolve
    few = {"train_epochs": 2, "shadows": 20, "party_epochs": 3, "server_epochs": 3}

    def resolve(method: str, profile: str, dataset: Any, values: Any = None) -> Any:
        known = settings.fields_of(profiles.sections(method))
        more = {key: value for key, value in few.items() if key in known}
        return given(method, profile, dataset, {**(values or {}), **more})

    monkeypatch.setattr(profiles, "resolve", resolve)


@quiet
@pytest.mark.usefixtures("short")
def test_command(run_cli: Cli, tmp_path: Path, monkeypatch: Any) -> None:
    """It runs at every kind of place, writes its page, and resumes without a run."""
    path = tmp_path / "made.npz"
    made = table(300)
    np.savez(path, X=made.X.numeric, y=made.y)
    words = ["bench", "rivals", "--data", str(path), "--seeds", "0,1"]
    words += ["--shapes", "u-shapes, 300 rows", "--splits", "importance:1"]
    words += ["--split-data", str(path), "--split-parties", "2"]
    words += ["--out", str(tmp_path / "out"), "--methods", "less-vfl-auto,plain"]
    result = run_cli(*words)
    assert result.code == 0, result.err
    assert "12 of 12" in result.err
    assert "Report:" in result.out
    kept = json.loads((tmp_path / "out" / "rivals.json").read_text())
    assert [row["method"] for row in kept["rows"]] == kept["methods"] * 3
    assert {row["kind"] for row in kept["rows"]} == {"data sets", "splits", "shapes"}
    for row in kept["rows"]:
        assert row["refused"] is None
        assert (row["f1"] is None) == (row["kind"] != "shapes")
        assert row["mib"] == pytest.approx(row["mib_up"] + row["mib_down"])
        assert 0 < row["boosted_auc"] <= 1
        if row["method"] == "plain":
            assert (row["removed_share"], row["real_kept_share"]) == (0, 1)
    text = (tmp_path / "out" / "rivals.html").read_text()
    assert "What is revealed to whom" in text
    assert text.count("<svg") == 2  # of the data set as it lies
    text = (tmp_path / "out" / "rivals.csv").read_text()
    lines = list(csv.DictReader(text.splitlines()))
    assert len(lines) == len(kept["rows"])

    monkeypatch.setattr(places, "run", pytest.fail)
    result = run_cli(*words, "--resume", "--json", "--quiet")
    assert result.code == 0, result.err
    assert json.loads(result.out)["rows"] == kept["rows"]
    assert again.rivals(tmp_path / "out" / "rivals.json").name == "rivals.html"


@quiet
@pytest.mark.usefixtures("short")
def test_the_smallest_size_needs_no_data_set(run_cli: Cli) -> None:
    done = run_cli("bench", "rivals", "--smoke", "--methods", "plain,gini-filter")
    assert done.code == 0, done.err
    assert "6 of 6" in done.err
    assert "breast-cancer: importance:1, 2 parties" in done.out
    assert "shape: u-shapes, 300 rows" in done.out
    assert "Table III of FedSDG-FS, there and here" in done.out
    assert "gini-filter reveals to a party" in done.out


@quiet
@pytest.mark.usefixtures("short")
def test_lambdas_of_the_grid_are_those_of_rows_held_out(monkeypatch: Any) -> None:
    """Chosen once for a data set, for its splits too; shapes keep the profile's."""
    tried, seen = [], {}

    def attempt(cell: Any, lam_server: Any, **more: Any) -> Any:
        tried.append((cell.data, cell.method))
        both = {"accuracy": 0.5, "removed_share": 0.0}
        small = {"lambdas": {"lam_party": 0.25}, **both}
        return {
            "trials": [small, {"lambdas": {"lam_party": 2.0}, **both, "accuracy": 1.0}]
        }

    def measure(cell: RivalCell, seed: int, **more: Any) -> Any:
        seen[cell.place.title, cell.method] = dict(cell.lambdas)
        return {"refused": None, **dict.fromkeys((c.key for c in COLUMNS), 0.5)}

    monkeypatch.setattr(cells, "try_lambdas", attempt)
    monkeypatch.setattr(places, "run", measure)
    asked = Rivals(
        data=("a",),
        shapes=("xor within",),
        splits=("importance:1",),
        split_data=("a",),
        split_parties=(2,),
        methods=("local-lasso", "mmvfl"),
        seeds=(0,),
        lambdas="grid",
    )
    run.run(asked)
    assert tried == [("a", "local-lasso")]
    chosen = {"lam_party": 2.0}
    assert seen["a", "local-lasso"] == chosen
    assert seen["a: importance:1, 2 parties", "local-lasso"] == chosen
    assert seen["shape: xor within", "local-lasso"] == {}
    assert seen["a", "mmvfl"] == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"methods": ("nobody",)}, "'methods' option"),
        ({"shapes": ("round",)}, "'shapes' option"),
        ({"lambdas": "all"}, "'lambdas' option"),
        ({"seeds": (0, 0)}, "'seeds' option"),
        ({"splits": ("halves",)}, "A split must"),
    ],
)
def test_unknown_names_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run.run(Rivals.of(**given))


# -- the pages -------------------------------------------------------------------------

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_page_of_benchmarks_has_every_option() -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    section = text.split("## lessvfl bench rivals")[1].split("\n## ")[0]
    first = [line.split("|")[1] for line in section.splitlines() if line[:1] == "|"]
    options = {o for cell in first for o in re.findall(r"`--([\w-]+)`", cell)}
    fields = {field.name.replace("_", "-") for field in dataclasses.fields(Rivals)}
    assert options == fields | {"out", "resume", "json", "quiet"}


def test_the_page_of_rivals_has_every_method() -> None:
    text = (DOCS / "rivals.md").read_text(encoding="utf-8")
    assert set(methods.METHODS) <= set(re.findall(r"^\| `([\w-]+)` \|", text, re.M))
