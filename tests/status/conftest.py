"""A clock for tests of the status."""

from __future__ import annotations

import pytest


class Clock:
    """Seconds that pass only when a test adds them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()
