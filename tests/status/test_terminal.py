"""A run in the terminal: the view and the plain lines."""

from __future__ import annotations

import io
import logging
import re
import time

import pytest
from rich.console import Console
from tests.conftest import until

from lessvfl.status import Status, terminal
from lessvfl.terms import Event, Stage


@pytest.fixture
def status() -> Status:
    return Status("r1", "less-vfl", "phishing", ["bank", "<b>"])


def begin(status: Status) -> None:
    status.connect("bank")
    status.connect("<b>")
    status.stepped("pretrain", 1, 400)
    time.sleep(0.01)
    status.stepped("pretrain", 100, 400)
    status.carried("bank", 4_000_000, 2_000_000, 4_100_000, 2_100_000)
    status.scored(0.9312)
    status.refused("foreign CA")


def drawn(status: Status, width: int = 100, height: int = 24) -> str:
    target = Console(file=io.StringIO(), width=width, height=height)
    target.print(terminal.view(status.snapshot(), width, height))
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


# ----------------------------------------------------------------------------- the view


def test_the_view_shows_everything(status) -> None:
    begin(status)
    text = drawn(status)
    assert "less-vfl on phishing · run r1 · running" in text
    assert "pre-training: step 100 of 400" in text
    assert "━" in text
    assert "steps/s" in text
    assert " left" in text
    assert re.search(r"bank +connected +4\.0 MB +2\.0 MB +1 +6\.2 MB +0 s ago", text)
    assert re.search(r"<b> +connected +0 bytes", text)
    assert "4.0 MB up, 2.0 MB down · 6.2 MB on the wire" in text
    assert "test accuracy 0.931" in text
    assert "refused connections: 1" in text


def test_the_view_says_who_is_away(status) -> None:
    assert "waiting for bank, <b>" in drawn(status)
    assert re.search(r"bank +away for 0 s .*never", drawn(status))
    begin(status)
    status.lose("bank")
    assert "paused: waiting for bank" in drawn(status)
    status.ended("Party 'bank' stayed away.")
    assert "failed: Party 'bank' stayed away." in drawn(status)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(status, width) -> None:
    begin(status)
    text = drawn(status, width)
    assert max(map(len, text.splitlines())) <= width
    assert ("heard" in text) == (width >= 80)
    assert "…" not in text


def test_parties_that_do_not_fit_are_counted_and_the_absent_come_first() -> None:
    names = [f"party{i:02}" for i in range(32)]
    status = Status("r", "plain", "d", names)
    for name in names[:-1]:
        status.connect(name)
    text = drawn(status, height=16)
    assert len(text.splitlines()) <= 16
    assert "party31" in text
    assert "and 26 more" in text


def test_without_parties_there_is_no_table(clock) -> None:
    """A run in one process goes on from the start: nobody has to connect."""
    status = Status("", "plain", "digits", clock=clock)
    assert drawn(status).splitlines() == ["plain on digits · running · 0 s", "starting"]
    for epoch in range(1, 4):
        clock.now += 2
        status.observe(Event("select_features", epoch, 8))
    head, stage, pace = drawn(status).splitlines()
    assert head == "plain on digits · running · 6 s"
    assert re.fullmatch(r"parties select features: epoch 3 of 8 +━+╸?━+ *", stage)
    assert pace == "10 s left"
    line = terminal.progress_line(status.snapshot())
    assert line == "parties select features: epoch 3 of 8, 10 s left"
    status.sent(4_000_000, 2_000_000, 9)
    status.scored(0.5, "r2")
    said = "4.0 MB up, 2.0 MB down{}test R² 0.500"
    assert drawn(status).splitlines()[-1] == said.format(" · ")
    assert terminal.progress_line(status.snapshot()).endswith(said.format(", "))


def test_the_view_of_a_party(clock) -> None:
    status = Status("run", "", "lab", ["server"], side="clinic", clock=clock)
    assert "party clinic · a run on lab · waiting" in drawn(status)
    status.connect("server")
    status.begin_run("less-vfl-auto")
    status.stepped("train", 1, 400)
    status.carried("server", up=4_000_000, wire_up=4_100_000)
    status.allow(99_000, 720.4)
    text = drawn(status)
    assert "party clinic · less-vfl-auto on lab · running" in text
    assert re.search(r"server +connected +4\.0 MB +0 bytes +1 +4\.1 MB", text)
    assert "still allowed: 99,000 messages, 720 values about a row" in text
    assert "parties" not in terminal.progress_line(status.snapshot())


def test_lines_can_go_to_a_log(status, caplog) -> None:
    log = logging.getLogger("lessvfl.test")
    with caplog.at_level("INFO"), terminal.show(status, log=log):
        status.connect("bank")
    assert "bank connected" in caplog.messages


def test_names_cannot_command_the_terminal() -> None:
    status = Status("r", "plain", "d", ["\x1b[2Jx", "[red]y"])
    text = drawn(status)
    assert "\x1b" not in text
    assert "[red]y" in text


def test_on_a_terminal_the_view_is_live_and_gone_at_the_end(status) -> None:
    stream = io.StringIO()
    target = Console(file=stream, force_terminal=True, width=80, height=24)
    with terminal.show(status, console=target):
        begin(status)
        until(lambda: "step 100 of 400" in stream.getvalue())
        status.stepped("pretrain", 200, 400)
        until(lambda: "step 200 of 400" in stream.getvalue())
    text = stream.getvalue()
    assert "\x1b[?25l" in text  # hides the cursor while it draws
    assert "\x1b[?25h" in text  # and brings it back
    assert text.endswith("\x1b[2K")  # the last line it drew is erased


# ---------------------------------------------------------------------------- the lines


def test_elsewhere_changes_are_lines(status) -> None:
    stream = io.StringIO()
    with terminal.show(status, console=Console(file=stream), every=0):
        until(lambda: "0 of 2 parties" in stream.getvalue())
        begin(status)
        until(lambda: "step 100 of 400" in stream.getvalue())
        status.lose("bank")
        status.connect("bank")
        status.ended()
    lines = stream.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    said = [line[9:] for line in lines]
    assert said[0] == "waiting for bank, <b>, 0 of 2 parties"
    assert said[-1].startswith("done in ")
    progress = (
        r"pre-training: step 100 of 400, [\d,.]+ steps/s, .+ left, "
        r"4\.0 MB up, 2\.0 MB down, test accuracy 0\.931, 2 of 2 parties"
    )
    assert any(re.fullmatch(progress, line) for line in said)
    assert [line for line in said[:-1] if not line.endswith("parties")] == [
        "bank connected",
        "<b> connected",
        "pre-training: step 1 of 400",
        "bank away",
        "bank connected",
        "pre-training: done, test accuracy 0.931",
    ]


def test_lines_of_progress_come_every_few_seconds_and_only_if_new(clock) -> None:
    lines: list[str] = []
    status = Status("r", "plain", "d", ["a"], clock=clock)
    look = terminal._lines(status, lines.append, every=5, times=True)
    status.connect("a")
    for step in range(1, 12):
        clock.now += 1
        status.stepped("train", step, 100)
        look()
    status.lose("a")
    for _ in range(60):
        clock.now += 1
        look()
    said = [line[9:] for line in lines]
    assert [line.split(",")[0] for line in said] == [
        "a connected",
        "training: step 1 of 100",
        "training: step 6 of 100",
        "training: step 11 of 100",
        "a away",
        "paused: waiting for a",
    ]


def test_a_run_in_one_process_says_every_stage_without_the_time(clock) -> None:
    lines: list[str] = []
    status = Status("", "plain", "d", clock=clock)
    look = terminal._lines(status, lines.append, every=5, times=False)
    look()
    stages: tuple[Stage, ...] = ("pretrain", "select_components", "train")
    for stage in stages:
        for epoch in (0, 1, 2):
            status.observe(Event(stage, epoch, 2))
    look()
    assert lines == [
        "pre-training: 2 epochs",
        "server selects components: 2 epochs",
        "training: 2 epochs",
    ]


def test_a_closed_stream_does_not_disturb_the_run(status) -> None:
    stream = io.StringIO()
    with terminal.show(status, console=Console(file=stream)):
        stream.close()
        begin(status)
    assert status.snapshot()["step"] == 100


def test_the_last_changes_are_not_lost(status) -> None:
    stream = io.StringIO()
    with terminal.show(status, console=Console(file=stream)):
        status.ended("No.")
    assert "failed: No.\n" in stream.getvalue()


def test_quiet_shows_nothing(status, capsys) -> None:
    with terminal.show(status, quiet=True):
        begin(status)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_that_cannot_draw_gets_lines(status) -> None:
    stream = io.StringIO()
    dumb = Console(file=stream, force_terminal=True, _environ={"TERM": "dumb"})
    with terminal.show(status, console=dumb):
        status.connect("bank")
    assert "bank connected" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_narrow_terminal_has_no_room_for_a_bar(status) -> None:
    begin(status)
    text = drawn(status, 34)
    assert "pre-training: step 100 of 400\n" in text
    assert "━" not in text


def test_lines_go_to_standard_error(status, capsys) -> None:
    with terminal.show(status):
        pass
    out, err = capsys.readouterr()
    assert out == ""
    assert "waiting for bank" in err
