"""Models of several seeds as one: exact, whatever each of them kept."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tests.run.test_fitted import PARTIES, a_table
from typer.testing import CliRunner

from lessvfl import data
from lessvfl.cli.app import app
from lessvfl.core.network import MLP
from lessvfl.errors import ConfigError
from lessvfl.run import profiles, simulate
from lessvfl.run.ensemble import merge_models
from lessvfl.run.fitted import load_model
from lessvfl.run.folder import load
from lessvfl.run.simulate import Job

SEEDS = (0, 1, 2)


def runs_of(table, method="less-vfl-auto", label="label", **more):
    dataset = data.from_arrays(table.drop(columns=label), table[label].to_numpy())
    more = {"train_epochs": 3, "split_seed": 4, **more}
    settings = profiles.resolve(method, "default", dataset, more)
    return simulate.simulate(Job(dataset, settings, PARTIES), list(SEEDS))


@pytest.fixture(scope="module")
def table():
    return a_table()


def check(runs, rows):
    models = [run.model for run in runs]
    merged = merge_models(models)
    expected = np.mean([model.decide(rows) for model in models], axis=0)
    assert merged.decide(rows) == pytest.approx(expected, abs=1e-5)
    for place, party in enumerate(merged.parties):
        own = [model.parties[place] for model in models]
        assert set(party.kept) == {name for one in own for name in one.kept}
        assert party.n_components == sum(one.n_components for one in own)
        assert not set(party.kept) & set(party.removed)
    return merged


@pytest.mark.parametrize("fusion_depth", [1, 2])
def test_an_ensemble_says_the_mean_of_its_seeds(table, fusion_depth):
    runs = runs_of(table, "less-vfl", lam_party=0.1, fusion_depth=fusion_depth)
    kept = {tuple(sorted(run.model.features.items())) for run in runs}
    assert len(kept) > 1  # else nothing is spread
    merged = check(runs, table.drop(columns="label"))
    assert merged.fusion.n_outputs == 1


def test_seeds_of_an_ensemble_share_their_rows(table):
    first, *others = runs_of(table)
    for run in others:
        assert np.array_equal(run.problem.y_test, first.problem.y_test)
        assert run.problem.parties[0].encoding == first.problem.parties[0].encoding


def test_a_party_that_kept_nothing_in_some_seeds(table):
    runs = runs_of(table, "less-vfl", lam_party=0.05)
    model = runs[0].model
    empty = [
        dataclasses.replace(
            party,
            kept=(),
            removed=(*party.kept, *party.removed),
            encoding=party.encoding.narrow(()),
            net=party.net.narrow(
                torch.zeros(len(party.encoding.groups), dtype=torch.bool)
            ),
            constant=torch.arange(party.n_components, dtype=torch.float32),
        )
        for party in model.parties
    ]
    rows = table.drop(columns="label")
    some = dataclasses.replace(model, parties=(empty[0], *model.parties[1:]))
    check([dataclasses.replace(runs[0], model=some), *runs[1:]], rows)
    none = [dataclasses.replace(run, model=some) for run in runs[:1] * 2]
    merged = check(none, rows)
    assert merged.parties[0].constant is not None
    assert len(merged.parties[0].constant) == 2 * empty[0].n_components


def test_an_ensemble_is_a_model_like_any(table, tmp_path):
    rows = table.drop(columns="label")
    merged = check(runs_of(table), rows)
    merged.save(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again.fusion, MLP)
    assert np.array_equal(again.decide(rows), merged.decide(rows))


def test_seeds_that_draw_curves_have_pieces_of_their_own():
    table = a_table(500)
    noise = np.random.default_rng(0).normal(size=500)
    bent = np.sin(3 * table["lab_0"]) + table["lab_0"] + 0.3 * noise
    runs = runs_of(table.assign(label=bent + table["lab_1"]), shadows=20)
    nets = [run.model.parties[1].net for run in runs]
    assert any(net.pieces is not None for net in nets)
    whole = check(runs, table.drop(columns="label")).parties[1].net
    assert whole.pieces.shape[1] == sum(
        n.pieces.shape[1] for n in nets if n.pieces is not None
    )


def test_seeds_of_other_rows_are_no_ensemble(table):
    runs = runs_of(table, split_seed=None)
    with pytest.raises(ConfigError, match=r"same rows.*they differ in column '\w+' of"):
        merge_models([run.model for run in runs])


def test_trees_are_no_ensemble(table):
    runs = runs_of(table, "vertical-boost", trees=2, select_trees=0)
    with pytest.raises(ConfigError, match="networks that lessvfl makes itself"):
        merge_models([run.model for run in runs])


@pytest.mark.parametrize(
    ("method", "seeds", "more", "match"),
    [
        ("less-vfl-auto", "0", (), "two seeds or more"),
        ("vertical-boost", "0,1", (), "Got method vertical-boost"),
        ("less-vfl-auto", "0,1", ("--set", "split_seed=3"), "must be left out. Got 3"),
        ("less-vfl-auto", "0,1", ("--folds", "2"), "'folds' setting must be 1"),
    ],
)
def test_what_is_no_ensemble_is_refused(method, seeds, more, match):
    asked = ("run", "breast-cancer", "--method", method, "--seeds", seeds, "--ensemble")
    done = CliRunner().invoke(app, [*asked, *more])
    assert isinstance(done.exception, ConfigError)
    assert match in str(done.exception)


def test_an_ensemble_is_said_and_kept(table, tmp_path):
    path, out = tmp_path / "patients.csv", tmp_path / "run"
    table.to_csv(path, index=False)
    asked = ("run", str(path), "--label", "label", "--seeds", "0,1", "--ensemble")
    done = CliRunner().invoke(app, [*asked, "--out", str(out), "-q"])
    assert done.exit_code == 0, done.output
    assert "The ensemble of 2 seeds:" in done.output
    rows = table.drop(columns="label")
    seeds = [load(out, seed).decide(rows) for seed in (0, 1)]
    assert load(out).decide(rows) == pytest.approx(np.mean(seeds, axis=0), abs=1e-5)
    page = (out / "report.html").read_text()
    assert "The ensemble of 2 seeds" in page
