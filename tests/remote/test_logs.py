"""The log of a run as lines of JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import torch

from lessvfl.remote.logs import LineHandler, json_logs


def logged(*args: object, **extra: object) -> dict[str, object]:
    stream = io.StringIO()
    with json_logs(stream):
        logging.getLogger("lessvfl.demo").info(*args, extra=extra)
    (line,) = stream.getvalue().splitlines()
    return dict(json.loads(line))


def test_a_log_line_is_one_object() -> None:
    line = logged("joined %s\n'x'", "now", party="bank", stage="train", step=3)
    moment = datetime.fromisoformat(str(line.pop("time")))
    assert moment.utcoffset() == timedelta(0)
    assert line == {
        "level": "INFO",
        "logger": "lessvfl.demo",
        "message": "joined now\n'x'",
        "party": "bank",
        "stage": "train",
        "step": 3,
    }


def test_secrets_and_data_are_not_logged() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----"
    line = logged(
        f"read {key} ok",
        private_key="MIIabc",
        Password="MIIabc",
        text=f"x{key.removesuffix('-----END PRIVATE KEY-----')}",
        rows=torch.zeros(3),
        names=["MIIabc"],
        loss=float("nan"),
        ok=True,
        score=0.5,
        none=None,
    )
    assert "MIIabc" not in json.dumps(line)
    assert line["message"] == "read (hidden) ok"
    assert (line["private_key"], line["Password"]) == ("(hidden)", "(hidden)")
    assert (line["text"], line["rows"]) == ("x(hidden)", "(Tensor)")
    assert (line["loss"], line["ok"], line["score"]) == ("nan", True, 0.5)
    assert line["none"] is None


def test_an_extra_field_cannot_pose_as_one_of_ours() -> None:
    line = logged("x", time="never", level="NONE")
    assert line["level"] == "INFO"
    assert line["time"] != "never"


def test_a_traceback_stays_on_its_line() -> None:
    stream = io.StringIO()
    with json_logs(stream):
        try:
            raise ValueError("no")
        except ValueError:
            logging.getLogger("lessvfl").exception("failed")
    line = json.loads(stream.getvalue())
    assert line["level"] == "ERROR"
    assert line["traceback"].endswith("ValueError: no")


def test_logging_is_as_before_afterwards(capsys, monkeypatch) -> None:
    logger = logging.getLogger("lessvfl")
    monkeypatch.setattr(logger, "level", logging.ERROR)
    before = (logger.level, list(logger.handlers))
    with json_logs():
        assert (logger.level, logger.handlers) != before
        logger.debug("not this")
        logger.info("this")
    assert (logger.level, logger.handlers) == before
    assert json.loads(capsys.readouterr().err)["message"] == "this"


@pytest.fixture
def log(request) -> Iterator[logging.Logger]:
    """Give a logger of our own, back to what it was afterwards."""
    logger = logging.getLogger("lessvfl.demo")
    yield logger
    logger.handlers.clear()
    logger.propagate = True


def flood(logger: logging.Logger, n: int, at: float) -> None:
    for index in range(n):
        record = logging.makeLogRecord(
            {"name": logger.name, "levelno": 30, "levelname": "WARNING"}
            | {"msg": "refused '%d'", "args": (index,), "pathname": "hub.py"}
            | {"lineno": 235, "created": at}
        )
        logger.handle(record)


def test_a_flood_of_strangers_writes_few_lines_and_says_how_many(log) -> None:
    stream = io.StringIO()
    with json_logs(stream):
        flood(log, 5000, at=100.0)
        log.warning("another place is not held back")
        flood(log, 1, at=161.0)
        flood(log, 1, at=162.0)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines[:20]] == [
        f"refused '{index}'" for index in range(20)
    ]
    other, first, second = lines[20:]
    assert other["message"] == "another place is not held back"
    assert first["left_out"] == 4980
    assert "left_out" not in second


def test_plain_lines_are_held_back_as_well(log, capsys) -> None:
    log.propagate = False
    log.addHandler(LineHandler())
    flood(log, 500, at=100.0)
    flood(log, 1, at=161.0)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[-1].endswith("refused '0' (and 480 more like it before)")
