"""VFLFS: how parties train alone, with which rows, and what is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lessvfl
from lessvfl import data
from lessvfl.core.features import FeatureMap
from lessvfl.core.network import MLP
from lessvfl.core.protocol import Holder, Selected
from lessvfl.data import DataConfig
from lessvfl.errors import ConfigError, DataError
from lessvfl.methods import vflfs
from lessvfl.methods.vflfs import AutoEncodingParty

FEW: dict[str, Any] = {"train_epochs": 2, "joint_epochs": 3, "batch_size": 64}
N_ROWS, N_COLUMNS = 300, 6


def a_dataset() -> data.Dataset:
    options = {"n_samples": N_ROWS, "n_test": 60, "task": "binary", "correlation": 0.5}
    return data.load("synthetic", options=options)


def simulate(seeds: list[int], method: str = "vflfs", **more: Any) -> list[Any]:
    dataset = a_dataset()
    own = lessvfl.resolve(method, "default", dataset, FEW | more)
    return lessvfl.simulate(lessvfl.Job(dataset, own, parties=3), seeds)


def rows(n_rows: int, seed: int) -> Tensor:
    """Return columns that two hidden ones make, but for the last two, (n, d)."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n_rows, 2, generator=generator)
    mix = torch.randn(2, N_COLUMNS - 2, generator=torch.Generator().manual_seed(9))
    noise = torch.randn(n_rows, 2, generator=generator)
    return torch.cat([hidden @ mix, noise], dim=1)


def trained(alone: Tensor | None = None, **more: Any) -> AutoEncodingParty:
    """Return a party that has trained alone."""
    X = rows(80, seed=0)
    net = MLP.create((N_COLUMNS, 8, 2), "tanh", 0, "a", X.dtype, X.device)
    features = FeatureMap.of(net, torch.arange(N_COLUMNS))
    nothing = [False] * N_COLUMNS
    holder = Holder("a", X, features, net, 0, 0, nothing, alone)
    few: dict[str, Any] = {"own_epochs": 30, "batch_size": 16, "lam_own": 0.1}
    party = AutoEncodingParty(vflfs.Config(**few | more), holder)
    end = party.answer(0, ())
    assert isinstance(end, Selected)
    assert bool(end.groups.all())
    return party


def weights(party: AutoEncodingParty) -> Tensor:
    return party.inputs.net.input_weights.detach()


def test_the_auto_encoder_learns_and_noise_weighs_least() -> None:
    party = trained(rows(240, seed=1))
    losses = torch.stack(party.losses)
    assert losses.shape == (30,)
    assert bool(losses[-1] < 0.8 * losses[0])
    norms = weights(party).norm(dim=0)
    assert bool(norms[-2:].amax() < norms[:-2].amin())


def test_a_large_lambda_takes_all_weights_away() -> None:
    assert not bool(weights(trained(lam_own=100.0)).any())
    assert bool(weights(trained(lam_own=0.0)).all())


def test_rows_outside_change_where_joint_training_starts() -> None:
    alone, others = rows(240, seed=1), rows(240, seed=2)
    without = weights(trained())
    assert not torch.equal(weights(trained(alone)), without)
    assert not torch.equal(weights(trained(alone)), weights(trained(others)))
    assert torch.equal(weights(trained(alone, own_rows="common")), without)


def test_every_row_comes_once_an_epoch() -> None:
    alone = rows(240, seed=1)
    party = trained(alone)
    every = torch.arange(320)
    both = torch.cat([party.inputs.X, alone])
    assert torch.equal(party._at(every), both)
    assert torch.equal(party._at(every.flip(0)), both.flip(0))


def test_rows_in_the_order_of_the_file_are_mixed_here() -> None:
    mixed, in_order = (trained(row_order=how) for how in ("shuffle", "file"))
    assert torch.equal(weights(mixed), weights(in_order))


def test_without_epochs_alone_it_is_group_lasso() -> None:
    """To the bit, with the same network and the same steps."""
    same: dict[str, Any] = {
        "lam_party": 2.0,
        "optimizer": "adamw",
        "learning_rate": 0.01,
    }
    same |= {"bits": 8, "embedding_size": 4, "schedule": "constant"}
    same |= {"input_scale": 0.1, "weight_decay": 1.0, "overlap": 0.5}
    same |= {"components_per_column": 0.25, "train_optimizer": "adamw"}
    (own,) = simulate([0], own_epochs=0, **same)
    (lasso,) = simulate([0], "group-lasso", **same)
    assert own.numbers | {"seconds": {}} == lasso.numbers | {"seconds": {}}
    assert own.bill == lasso.bill
    for mine, theirs in zip(own.model.parties, lasso.model.parties, strict=True):
        for name, tensor in mine.net.state().items():
            assert torch.equal(tensor, theirs.net.state()[name])
    assert simulate([0], **same)[0].numbers["curve"] != own.numbers["curve"]


def test_nothing_is_sent_where_parties_train_alone() -> None:
    (run,) = simulate([0], overlap=0.5)
    by_stage = run.numbers["communication"]["by_stage"]
    assert by_stage["select_features"] == {"up": 0, "down": 0, "rounds": 1}
    assert by_stage["joint_lasso"]["up"] > 0
    (without,) = simulate([0], overlap=0.5, own_epochs=0)
    assert "select_features" not in without.numbers["communication"]["by_stage"]


# ------------------------------------------------------------- rows outside, in process


def prepared(overlap: float, seed: int = 0, **more: Any) -> data.Problem:
    config = DataConfig(overlap=overlap, scale="none")
    own = {"parties": 3, "spurious": 0.5} | more
    return data.prepare(a_dataset(), config, seed=seed, **own)


def test_parties_keep_what_is_not_common() -> None:
    """30 % of the labels; of every row each party has its cells, once."""
    problem, whole = prepared(0.3), prepared(1.0)
    assert len(problem.y_train) == 90
    assert len(problem.y_test) == len(whole.y_test)
    for table, all_of_it in zip(problem.parties, whole.parties, strict=True):
        assert table.X_alone is not None
        assert all_of_it.X_alone is None
        assert table.X_train.shape[0] == 90
        assert table.X_alone.shape == (210, table.X_train.shape[1])
        n_real = int((~table.spurious).sum())
        both = np.vstack([table.X_train, table.X_alone])[:, :n_real]
        every = all_of_it.X_train[:, :n_real]
        assert sorted(map(tuple, both)) == sorted(map(tuple, every))
        assert np.array_equal(table.X_test[:, :n_real], all_of_it.X_test[:, :n_real])
        assert abs(float(table.X_alone[:, n_real:].mean())) < 0.1


def test_all_parties_have_the_same_rows_in_common_by_the_seed() -> None:
    dataset, problem = a_dataset(), prepared(0.3)
    found = []
    for table in problem.parties:
        names = table.encoding.names[: int((~table.spurious).sum())]
        cells = dataset.X.select(names).numeric
        place = {tuple(row): i for i, row in enumerate(cells)}
        found.append([place[tuple(row[: len(names)])] for row in table.X_train])
    assert found[0] == found[1] == found[2]
    assert np.array_equal(problem.y_train, dataset.y[found[0]])
    again, other = prepared(0.3), prepared(0.3, seed=1)
    assert np.array_equal(again.y_train, problem.y_train)
    assert not np.array_equal(other.parties[0].X_train, problem.parties[0].X_train)


def test_weights_and_blocks_go_with_their_rows() -> None:
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(100, 4)), 2, axis=0)
    y, weight = np.arange(200) // 2 % 2, np.repeat(np.arange(1.0, 101.0), 2)
    dataset = data.from_arrays(X, y, sample_weight=weight)
    with pytest.warns(UserWarning, match="equal another row"):
        problem = data.prepare(
            dataset, DataConfig(overlap=0.5, scale="none"), parties=2
        )
    cells = problem.parties[0].X_train
    assert len(problem.y_train) == len(cells) == 80
    assert problem.sample_weight is not None
    assert problem.blocks is not None
    of = {tuple(row): w for row, w in zip(X[:, :2], weight, strict=True)}
    assert problem.sample_weight.tolist() == [of[tuple(row)] for row in cells]
    equal = (cells[:, None] == cells[None]).all(axis=2)
    same = problem.blocks[:, None] == problem.blocks[None]
    assert np.array_equal(equal, same)


def test_too_small_an_overlap_is_refused() -> None:
    with pytest.raises(DataError, match="a larger overlap has more"):
        prepared(0.001)
    with pytest.raises(ConfigError, match=r"a float in \(0, 1\]"):
        DataConfig(overlap=0.0)
