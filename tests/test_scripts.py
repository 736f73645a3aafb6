"""The scripts that others judge by their exit status alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "test"


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("then", ["wait", ":"], ids=["job over", "job running"])
def test_cleaning_up_does_not_change_the_exit_status(status: int, then: str) -> None:
    own = re.findall(r"^(?:set -|trap ).*$", SCRIPT.read_text(), re.MULTILINE)
    assert len(own) == 2
    lines = [own[0], "scratch=$(mktemp -d)", own[1], "sleep 0.1 &", then]
    body = "\n".join([*lines, f"exit {status}"])
    ended = subprocess.run(["bash", "-c", body], timeout=30, check=False)
    assert ended.returncode == status
