"""Where to compute."""

from __future__ import annotations

import pytest
import torch

from lessvfl import data
from lessvfl.core.device import WORTH_GPU, resolve_device
from lessvfl.data import DataConfig


@pytest.mark.parametrize(("n_values", "expected"), [(1, "cpu"), (WORTH_GPU, "cuda")])
def test_auto_takes_a_gpu_where_a_table_is_worth_it(n_values, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto", n_values).type == expected
    assert resolve_device("cuda", n_values).type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto", n_values).type == "cpu"


def test_a_small_table_stays_on_the_cpu(monkeypatch):
    problem = data.prepare(data.load("breast-cancer"), DataConfig(), parties=[20, 10])
    assert problem.largest_table == len(problem.y_train) * 20
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto", problem.largest_table).type == "cpu"
