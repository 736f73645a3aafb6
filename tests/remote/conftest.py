"""What tests between machines share: no wait that only an operator needs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _short_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server whose run was over go at once, not after seconds."""
    monkeypatch.setattr("lessvfl.remote.server.STAY_SECONDS", 0.05)
