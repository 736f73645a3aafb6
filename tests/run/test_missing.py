"""Missing cells that tell something: people without a record at the bureau."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import lessvfl
from lessvfl import data
from lessvfl.run import folder, simulate
from lessvfl.run.experiment import run as run_experiment
from lessvfl.run.profiles import resolve
from lessvfl.run.simulate import Job

N = 2000
BUREAU = ("late", "refused", "insolvent")  # counts, most of them 0
PARTIES = {"bank": ["income", "age", "noise_*"], "bureau": [*BUREAU, "other_*"]}


def no_record(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Make applicants: three columns are empty together, mostly of those who fail.

    What is written there tells nothing.
    """
    rng = np.random.default_rng(seed)
    names = ["income", "age", *(f"noise_{i}" for i in range(4))]
    names += [f"other_{i}" for i in range(4)]
    table = pd.DataFrame(rng.normal(size=(N, len(names))), columns=names)
    for name in BUREAU:
        table[name] = rng.poisson(0.15, N).astype(float)
    absent = rng.random(N) < 0.25
    chance = -1.2 + 2.4 * absent + 0.6 * table["income"] - 0.4 * table["age"]
    y = rng.random(N) < 1 / (1 + np.exp(-chance))
    table.loc[absent, list(BUREAU)] = np.nan
    return table, np.where(y, "fails", "pays")


def job_of(**given: Any) -> Job:
    dataset = data.from_arrays(*no_record())
    settings = resolve("less-vfl-auto", "default", dataset, given)
    return Job(dataset, settings, parties=PARTIES)


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """Run the same table with flags, as is usual, and without."""
    ways: dict[str, dict[str, Any]] = {"flag": {}, "fill": {"missing": "fill"}}
    return {way: simulate.simulate(job_of(**own), [0])[0] for way, own in ways.items()}


def test_what_is_missing_tells_something(runs):
    flag, fill = (runs[way].numbers["auc"]["final"] for way in ("flag", "fill"))
    assert fill < 0.69
    assert flag > 0.76
