"""What tests between machines share: no wait that only an operator needs."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server whose run was over go at once, and wait for no disk."""
    monkeypatch.setattr("lessvfl.remote.server.STAY_SECONDS", 0.05)
    monkeypatch.setattr(os, "fsync", lambda file: None)
