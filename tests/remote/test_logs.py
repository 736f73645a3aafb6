"""The log of a run as lines of JSON."""

from __future__ import annotations

import io
import json
import logging
from datetime import datetime, timedelta

import torch

from lessvfl.remote.logs import json_logs


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
