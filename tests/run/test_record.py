"""Records: a round trip, atomic files, and what is refused."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessvfl.errors import ConfigError, RecordError
from lessvfl.run.record import (
    FILE_NAME,
    RunRecord,
    read_json,
    read_private,
    write_atomically,
    write_json,
)

HEADER = {
    "lessvfl": "0.1.0",
    "data": {"name": "digits"},
    "method": "plain",
    "profile": "paper",
    "config": {"hidden": [64, 32], "party_net": None},
    "notes": ["für Elise — ∅ "],
}


def a_run(seed, n_points=2):
    points = [{"stage": "train", "epoch": i, "accuracy": 0.5} for i in range(n_points)]
    return {"seed": seed, "accuracy": {"final": 0.5}, "curve": points}


def a_record(*seeds, **more):
    return RunRecord(dict(HEADER), [a_run(seed) for seed in seeds], **more)


def test_round_trip(tmp_path):
    consensus = {"bank": {"recommended": ["age"], "share": {"age": 0.5}}}
    record = a_record(3, 1, status="complete", message="done", consensus=consensus)
    path = record.write(tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / FILE_NAME
    assert RunRecord.read(path.parent) == record


scalars = st.none() | st.booleans() | st.integers() | st.text() | st.floats(-1e9, 1e9)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.text().filter(lambda k: k != "kind"), values))
def test_any_header_survives(tmp_path_factory, more):
    folder = tmp_path_factory.mktemp("record")
    record = RunRecord(more | HEADER, [a_run(0)], "complete", "line\nbreak \x85")
    record.write(folder)
    assert RunRecord.read(folder) == record


def test_lines(tmp_path):
    """A header, per seed one run and its points, and one end."""
    path = a_record(0, 1, status="complete").write(tmp_path)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["header", *["run", "point", "point"] * 2, "end"]


def test_json_has_no_more_than_the_contract(tmp_path):
    found = a_record(0).to_json()
    header = ["lessvfl", "data", "method", "profile", "config"]
    assert list(found) == [*header, "consensus", "ensemble", "runs"]


@pytest.mark.parametrize("misfit", [float("nan"), float("inf"), {1, 2}, b"x"])
def test_what_is_no_json_is_named_and_the_rest_of_a_record_is_written(tmp_path, misfit):
    record = a_record(0)
    record.runs[0]["selection"] = {"bank": {"scores": [0.5, misfit]}}
    with pytest.raises(RecordError) as caught:
        record.write(tmp_path)
    for words in ("selection.bank.scores.1", str(tmp_path), "holds record.jsonl"):
        assert words in str(caught.value)
    found = RunRecord.read(tmp_path)
    assert found.status == "failed"
    assert repr(misfit) in found.message
    assert found.runs[0]["selection"] == {"bank": {"scores": [0.5, None]}}
    assert found.runs[0]["curve"] == record.runs[0]["curve"]


def test_one_object_of_a_folder_is_strict_json(tmp_path):
    path = tmp_path / "seed-0" / "numbers.json"
    write_json(path, {"a": [1.5, None]}, mode=0o600)
    assert read_json(path) == {"a": [1.5, None]}
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    with pytest.raises(RecordError, match=r"Got nan at 'a.b.0'.*numbers.partial.json"):
        write_json(path, {"a": {"b": [math.nan]}, "c": 2}, mode=0o600)
    assert not path.exists()
    beside = path.with_name("numbers.partial.json")
    assert read_json(beside) == {"a": {"b": [None]}, "c": 2}
    assert beside.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_crash_leaves_the_old_file(tmp_path, monkeypatch, moment):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def crash(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, moment, crash)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seconds", [30.0, 0.0])
def test_a_write_without_a_descriptor_is_tried_again(tmp_path, monkeypatch, seconds):
    """Strangers may hold the last one for a moment, and must not end a run by it."""
    monkeypatch.setattr("lessvfl.run.record.FILES_SECONDS", seconds)
    path, full = tmp_path / "file", [errno.EMFILE, errno.ENFILE]

    def opened(*args, **more):
        if full:
            raise OSError(full.pop(), "Too many open files")
        return open(*args, **more)

    monkeypatch.setattr("lessvfl.run.record.open", opened, raising=False)
    if seconds:
        write_atomically(path, b"new")
        assert path.read_bytes() == b"new"
        return
    with pytest.raises(OSError, match="Too many"):
        write_atomically(path, b"new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o660, 0o644, 0o604, 0o602])
def test_a_secret_that_others_may_open_is_refused(tmp_path, caplog, mode):
    """One that its group may open is warned of."""
    path = tmp_path / "key.pem"
    write_atomically(path, b"secret", mode)
    if mode & 0o006:
        with pytest.raises(ConfigError) as refused:
            read_private(path, "key")
        assert str(refused.value) == (
            f"The key '{path}' must be readable by its owner alone, as after chmod "
            f"600. Got mode {mode:04o}, which lets others in."
        )
    else:
        assert read_private(path, "key") == b"secret"
    assert ("lets its group in; chmod 600 does not" in caplog.text) == (
        mode in (0o640, 0o660)
    )


def test_a_new_file_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "file"
    for content in (b"a long old one", b"new"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def lines_of(record) -> list[str]:
    return [json.dumps(line) for line in record.lines()]


WHOLE = lines_of(a_record(0, 1, status="complete"))
CORRUPT = {
    "empty": [],
    "no end": WHOLE[:-1],
    "no header": WHOLE[1:],
    "only a header": WHOLE[:1],
    "half a line": [*WHOLE[:-1], WHOLE[-1][:9]],
    "not JSON": ["hello", *WHOLE],
    "a number": ["5", WHOLE[-1]],
    "a list": ["[]", WHOLE[-1]],
    "a text": ['"kind"', WHOLE[-1]],
    "header without a method": ['{"kind": "header", "data": {}}', WHOLE[-1]],
    "point of no run": [WHOLE[0], WHOLE[2], WHOLE[-1]],
    "point without seed": [*WHOLE[:2], '{"kind": "point"}', WHOLE[-1]],
    "run without seed": [WHOLE[0], '{"kind": "run"}', WHOLE[-1]],
    "line without kind": [WHOLE[0], '{"seed": 0}', WHOLE[-1]],
    "line of another kind": [WHOLE[0], '{"kind": "song"}', WHOLE[-1]],
    "end without status": [WHOLE[0], '{"kind": "end"}'],
    "end without consensus": [
        WHOLE[0],
        '{"kind": "end", "status": "complete", "message": ""}',
    ],
}


@pytest.mark.parametrize("what", CORRUPT)
def test_corrupted(tmp_path, what):
    (tmp_path / FILE_NAME).write_text("\n".join(CORRUPT[what]))
    with pytest.raises(RecordError, match="is not a record of lessvfl") as error:
        RunRecord.read(tmp_path)
    assert str(tmp_path / FILE_NAME) in str(error.value)


def test_not_a_text(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match="is not a record of lessvfl"):
        RunRecord.read(tmp_path)


@pytest.mark.parametrize("what", ["missing", "empty", "file", "folder of that name"])
def test_not_a_run_folder(tmp_path, what):
    folder = tmp_path / "run"
    if what == "file":
        folder.touch()
    elif what != "missing":
        folder.mkdir()
    if what == "folder of that name":
        (folder / FILE_NAME).mkdir()
    with pytest.raises(RecordError, match="is not a run folder"):
        RunRecord.read(Path(folder))


@pytest.mark.parametrize("schema", [1, 2, 4])
def test_a_folder_of_another_format_says_what_to_do(tmp_path, schema):
    path = a_record().write(tmp_path)
    first, rest = path.read_text().split("\n", 1)
    header = json.loads(first)
    assert header.pop("schema") == 3
    if schema != 1:  # the first format did not say
        header["schema"] = schema
    path.write_text(json.dumps(header) + "\n" + rest)
    with pytest.raises(RecordError, match=f"Got format {schema}, .*run it again"):
        RunRecord.read(tmp_path)
