"""What all tests share: one thread, one hypothesis profile, the command line.

With LESSVFL_SKIPPED=FILE the skipped tests are written to FILE, with the reasons.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from tests.forked import Forks

from lessvfl.cli import app
from lessvfl.wire import codec

# Networks of tests are tiny: a second thread costs more than it brings.
torch.set_num_threads(1)

hypothesis.settings.register_profile("lessvfl", deadline=None, max_examples=50)
hypothesis.settings.load_profile("lessvfl")

# What less-vfl does in the paper where the profile default does something else.
PUBLISHED: dict[str, Any] = {
    "embedding_size": 16,
    "input_scale": 1.0,
    "pretrain_epochs": 1,
    "pretrain_batch_size": None,
    "bits": 32,
    "batch_size": 1000,
    "learning_rate": 0.01,
    "train_epochs": 100,
    "schedule": "constant",
}
# And local-lasso, which has no pre-training of its own size.
PUBLISHED_LOCAL = {k: v for k, v in PUBLISHED.items() if k != "pretrain_batch_size"}

# Files that take more than a few seconds: ``scripts/test --quick`` leaves them out.
LONG = """
bench/test_equal bench/test_grid bench/test_paper bench/test_paper_page bench/test_peers
bench/test_studies bench/test_theory cli/test_bad_input cli/test_check cli/test_cli
cli/test_evaluation cli/test_faults cli/test_json cli/test_model cli/test_results
conformance/test_transports select/test_evidence core/test_linear core/test_losses
core/test_metrics core/test_trees_sklearn corpus/test_corpus data/test_leaks
data/test_stored
methods/test_behaviour methods/test_less_vfl_auto methods/test_methods remote/test_align
remote/test_attacks remote/test_faults remote/test_identity remote/test_kit
remote/test_nvflare remote/test_predict remote/test_predict_decisions
remote/test_predict_docs remote/test_remote
remote/test_remote_files report/test_browser report/test_comparison report/test_figures
report/test_evaluation report/test_leading_score report/test_page report/test_reasons
report/test_selection_figures report/test_sides run/test_decide run/test_experiment
run/test_export run/test_fitted run/test_missing run/test_profiles run/test_recorder
run/test_weights status/test_status test_checks test_docs test_estimator test_examples
test_paper test_pictures test_readme test_start web/test_site wire/test_front
wire/test_ledger
""".split()
# Those of them that run what other tests run, too: no coverage is measured there.
REPEATS = """
cli/test_bad_input cli/test_cli cli/test_json select/test_evidence core/test_linear
core/test_losses core/test_metrics data/test_leaks methods/test_behaviour
methods/test_less_vfl_auto remote/test_faults remote/test_kit remote/test_predict_docs
remote/test_remote_files report/test_leading_score report/test_page run/test_fitted
run/test_missing run/test_weights test_checks test_docs test_examples test_pictures
test_readme
""".split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of those files."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder):
            name = item.path.relative_to(folder).with_suffix("").as_posix()
            if name in LONG:
                item.add_marker("long")
            if name in REPEATS:
                item.add_marker("no_cover")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write how many tests of which file were skipped, and why."""
    if file := os.environ.get("LESSVFL_SKIPPED"):
        skipped = Counter[str]()
        for report in terminalreporter.stats.get("skipped", []):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            skipped[f"{report.nodeid.partition('::')[0]}: {reason}"] += 1
        lines = [f"{n} in {what}\n" for what, n in sorted(skipped.items())]
        Path(file).write_text("".join(lines), encoding="utf-8")


@dataclass(frozen=True)
class Result:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the one JSON object of standard output; NaN is refused."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} in the JSON")

        return json.loads(self.out, parse_constant=refuse)

    @property
    def warnings(self) -> list[str]:
        """Return the warnings, in order."""
        head = "lessvfl: warning: "
        lines = self.err.splitlines()
        return [line.removeprefix(head) for line in lines if line.startswith(head)]


Cli = Callable[..., Result]


def decode(data: bytes | memoryview) -> codec.WireFrame:
    """Read a frame of whatever kind and size."""
    return codec.decode(data, lambda kind, fields, specs: None)


def until(is_so: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def after_start(err: str) -> str:
    """Return what a command wrote after its sign of life."""
    return re.sub(r"\A(\S+ )?lessvfl \S+ is starting: .*\n", "", err)


@pytest.fixture
def without_generators(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes generators of PyTorch and NumPy raise; orders are let be."""

    def refuse(*args: object, **more: object) -> None:
        raise AssertionError("a generator that is not keyed")

    def begin() -> None:
        for name in ("rand", "randn", "randint", "normal", "bernoulli", "rand_like"):
            monkeypatch.setattr(torch, name, refuse)
        for name in ("normal_", "uniform_", "random_", "bernoulli_"):
            monkeypatch.setattr(torch.Tensor, name, refuse)
        for name in ("default_rng", "normal", "rand", "randn", "random", "uniform"):
            monkeypatch.setattr(np.random, name, refuse)

    return begin


@pytest.fixture
def run_cli(monkeypatch, capsys) -> Cli:
    """Return a function that runs one command in this process."""
    monkeypatch.delenv("LESSVFL_DATA", raising=False)

    def run(*args: object) -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["lessvfl", *map(str, args)])
        with pytest.raises(SystemExit) as ending:
            app.main()
        out, err = capsys.readouterr()
        code = ending.value.code
        return Result(code if isinstance(code, int) else 0, out, after_start(err))

    return run


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Return what starts commands as processes."""
    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def forked_tools(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder to put first on PATH: its `lessvfl` is forked."""
    return forks.script(tmp_path_factory.mktemp("bin") / "lessvfl").parent


@pytest.fixture
def forked_python(forked_tools: Path, monkeypatch) -> None:
    """Have ``python -m lessvfl.cli`` forked, as for the sides of `lessvfl try`."""
    monkeypatch.setattr(sys, "executable", str(forked_tools / "lessvfl"))
