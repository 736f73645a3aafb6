"""A run in a notebook is one output that is drawn again; elsewhere, the terminal's."""

from __future__ import annotations

import io
from typing import Any

import IPython.display
import pytest
from rich.console import Console

from lessvfl.status import Status, notebook
from lessvfl.terms import Event


class Screen:
    """What a cell of a notebook shows."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, data: dict[str, str], **options: Any) -> Screen:
        assert options == {"raw": True, "display_id": True}
        self.shown.append(data)
        return self

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(data)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(IPython.display, "display", screen.display)
    monkeypatch.setattr(notebook, "EVERY", 0.0)
    return screen


def test_a_cell_shows_a_bar_and_how_it_ended(screen: Screen) -> None:
    status = Status("", "plain", "<table>")
    console = Console(file=io.StringIO(), force_jupyter=True)
    with notebook.follow(status, console) as progress:
        progress.observe(Event("train", 3, 10))
    begun, at_work, over = screen.shown
    assert "running" in begun["text/plain"]
    assert "3 of 10" in at_work["text/plain"]
    assert "━" in at_work["text/plain"]
    assert "<span style=" in at_work["text/html"]
    assert "&lt;table&gt;" in at_work["text/html"]
    assert "<table>" not in at_work["text/html"]
    assert "complete" in over["text/plain"]


@pytest.mark.parametrize("error", [ValueError("no rows"), KeyboardInterrupt()])
def test_a_cell_shows_that_a_run_failed(screen: Screen, error: BaseException) -> None:
    console = Console(file=io.StringIO(), force_jupyter=True)
    with (
        pytest.raises(type(error)),
        notebook.follow(Status("", "plain", "table"), console),
    ):
        raise error
    said = str(error) or "KeyboardInterrupt"
    assert f"failed: {said}" in screen.shown[-1]["text/plain"]


def test_a_cell_is_not_drawn_at_every_event(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "EVERY", 3600.0)
    console = Console(file=io.StringIO(), force_jupyter=True)
    with notebook.follow(Status("", "plain", "table"), console) as progress:
        for epoch in range(5):
            progress.observe(Event("train", epoch, 5))
    assert len(screen.shown) == 2  # at the beginning and at the end


def test_elsewhere_there_are_lines(screen: Screen) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_jupyter=False, force_terminal=False)
    with notebook.follow(Status("", "plain", "table"), console) as progress:
        progress.observe(Event("train", 1, 5))
    assert "train" in stream.getvalue()
    assert not screen.shown
