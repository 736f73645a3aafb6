"""What all tests share: one thread, one hypothesis profile, the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import torch

from lessvfl.cli import app

# Networks of tests are tiny: a second thread costs more than it brings.
torch.set_num_threads(1)

hypothesis.settings.register_profile("lessvfl", deadline=None, max_examples=50)
hypothesis.settings.load_profile("lessvfl")


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
        return Result(code if isinstance(code, int) else 0, out, err)

    return run
