"""What is loaded before it is needed, and what works with torch and numpy alone.

All of it in one started interpreter, which imports PyTorch once and forks for every
check.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lessvfl

START = """
import json, os, sys, traceback
def loaded(*names): assert not (found := {*names} & {*sys.modules}), found
def forbid(*names): sys.modules.update(dict.fromkeys(names))  # importing is an error
import lessvfl.cli
loaded("torch", "numpy", "sklearn", "rich.table")
import numpy, torch
for check in json.loads(sys.argv.pop()):
    if (child := os.fork()) == 0:
        try:
            exec(check, globals())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)[1] == 0 or sys.exit(check)
"""
# What an estimator can do without until it is asked to plot, to talk or to compile;
# pandas comes with scikit-learn.
NOT_NEEDED = (
    *("matplotlib", "polars", "grpc", "pyarrow.flight", "typer", "cryptography"),
    *("lessvfl.cli", "lessvfl.remote", "lessvfl.report", "lessvfl.wire.flight"),
    *("torch._dynamo", "torch._inductor", "sympy", "dp_accounting"),
)
ESTIMATOR = f"""
import warnings
for name in [*sys.modules]:
    if name.startswith("lessvfl") or name.split(".")[0] == "typer":
        del sys.modules[name]
warnings.simplefilter("ignore")
from lessvfl import LessVFLClassifier
X, y = [[0, 1], [1, 0], [2, 1], [3, 0]] * 5, [0, 0, 1, 1] * 5
model = LessVFLClassifier(method="less-vfl", train_epochs=1)
loaded{NOT_NEEDED}
model.fit(X, y)
loaded{NOT_NEEDED}
model.set_params(activation="none", embedding_size=2).fit(X, y)
loaded{NOT_NEEDED}
"""
BUILT_IN_DATA = """
from lessvfl import data
data.prepare(data.load("breast-cancer"), data.DataConfig())
loaded("sklearn", "scipy", "pandas", "matplotlib")
"""
# As on a machine with a GPU and no installs.
OTHER_DATA = """
forbid("sklearn", "pyarrow", "yaml", "pandas", "polars", "scipy")
from lessvfl import data
problem = data.prepare(data.load("t.npz"), data.DataConfig(split="first"), spurious=1.0)
assert len(problem.y_train) == 80
made = data.load("synthetic", options=dict(n_samples=50, n_test=5))
data.prepare(made, data.DataConfig())
"""
BENCHMARK = """
import dataclasses, runpy
forbid("sklearn", "pyarrow", "yaml", "typer", "rich", "matplotlib", "safetensors")
from lessvfl_bench.paper import run
names = "train_epochs", "party_epochs", "server_epochs", "joint_epochs"
whole, few = run.run, dict.fromkeys(names, 3)
run.run = lambda asked, *more: whole(dataclasses.replace(asked, overrides=few), *more)
sys.argv += "--data t.npz --tables 2 --seeds 0 --device cpu --out out".split()
try:
    runpy.run_module("lessvfl_bench", run_name="__main__")
except SystemExit as end:
    assert not end.code
found = json.load(open("out/bench.json"))
assert [fact["name"] for fact in found["data"]] == ["t"]
"""


def test_nothing_is_loaded_or_needed_before_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(100, 8))
    np.savez("t.npz", X=X, y=(X[:, 0] + X[:, 5] > 0).astype(int))
    checks = json.dumps([ESTIMATOR, BUILT_IN_DATA, OTHER_DATA, BENCHMARK])
    done = subprocess.run(
        [sys.executable, "-c", START, checks], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


READ = """
from pathlib import Path
from lessvfl import data
read = data.load("mixed.csv", label="y")
kinds = [column.kind for column in read.X.columns]
assert kinds == ["numeric", "categorical", "date", "numeric", "boolean"], kinds
data.write_table(Path("p.csv"), {"id": ["a", None], "p": [0.5, None]})
data.write_columns(Path("c.parquet"), read.X, numpy.arange(200))
loaded("pandas", "scipy.stats")
"""
SIGNS = """
import json, os, sys
from lessvfl import cli
from lessvfl.cli import app
sys.modules["torch"] = sys.modules["numpy"] = None  # importing is an error
for words in json.loads(sys.argv.pop()):
    if (child := os.fork()) == 0:
        sys.argv = ["lessvfl", *words]
        try:
            cli.main()
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_table_is_read_and_written_without_pandas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        f'{i / 7:.3f},{"xyz"[i % 3]},{1 + i % 28}/0{1 + i % 9}/2024,"-$1,{i:03d}.5",'
        f"{('yes', 'no', '')[i % 3]},{i % 2}"
        for i in range(200)
    ]
    text = "\n".join(["a,kind,when,money,truth,y", *lines])
    Path("mixed.csv").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", START, json.dumps([READ])],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Path("p.csv").read_text() == '"id","p"\n"a",0.5\n,\n'


def test_a_command_gives_a_sign_of_life_before_anything_heavy_is_loaded() -> None:
    signs = {
        ("run", "digits"): "less-vfl-auto on digits",
        ("try", "digits", "--method", "plain"): "plain on digits",
        ("demo",): "a comparison on digits",
        ("check", "t.csv"): "a look at t.csv",
        ("export", "run"): "the model of run",
        ("evaluate", "run", "t.csv"): "the model of run",
        ("server", "--config", "s.yaml"): "the server, s.yaml",
        ("party", "--config", "p.yaml"): "a party, p.yaml",
        ("predict", "server", "--config", "s.yaml"): "predictions, the server's side, "
        "s.yaml",
        ("predict", "party", "--config", "p.yaml"): "predictions, a party's side, "
        "p.yaml",
    }
    done = subprocess.run(
        [sys.executable, "-c", SIGNS, json.dumps(list(signs))],
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stderr.splitlines() if "is starting" in line]
    assert len(said) == len(signs)
    for line, what in zip(said, signs.values(), strict=True):
        assert line.endswith(f"lessvfl {lessvfl.__version__} is starting: {what}")


INTERRUPTED = """
import os, sys
class CtrlC:
    def find_spec(self, name, *where):
        if name == sys.argv[-1]: os.kill(os.getpid(), 2)
sys.meta_path.insert(0, CtrlC())
import lessvfl.cli
lessvfl.cli.process()
"""


@pytest.mark.parametrize("module", ["typer", "lessvfl.cli.kit", "lessvfl.methods"])
def test_ctrl_c_ends_a_command_quietly_from_the_start(module: str) -> None:
    """The first two are loaded before a command is known, the last by one."""
    words = [sys.executable, "-c", INTERRUPTED, "methods", module]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "lessvfl: interrupted\n")
