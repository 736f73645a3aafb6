"""Tables on disk: what is learnt and encoded there is what memory would give."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import feather, parquet

from lessvfl import data
from lessvfl.data import Scratch, StoredTable, encode, learn, stored
from lessvfl.data import frame as data_frame
from lessvfl.data.columns import infer_columns
from lessvfl.data.encode import Encoding
from lessvfl.errors import DataError

N_ROWS = 1000


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """Have tables of a thousand rows come in many pieces."""
    for module in (learn, stored, encode):
        monkeypatch.setattr(module, "CHUNK", 64)
    monkeypatch.setattr(stored, "AT_ONCE", 500)
    monkeypatch.setattr(stored, "LEAST_ROWS", 40)
    monkeypatch.setattr(stored, "BLOCK_BYTES", 1000)


@pytest.fixture
def table() -> pyarrow.Table:
    """Return a table of every kind of column."""
    rng = np.random.default_rng(0)
    gaps = rng.normal(size=N_ROWS)
    gaps[rng.random(N_ROWS) < 0.1] = np.nan
    days = pyarrow.array(rng.integers(0, 9000, N_ROWS).astype("int32"))
    mostly = np.where(np.arange(N_ROWS) % 10 < 7, 0.0, np.arange(N_ROWS) % 37)
    mostly[::50] = 1e9
    return pyarrow.table(
        {
            "row": np.arange(N_ROWS),
            "number": rng.normal(size=N_ROWS),
            "float32": rng.normal(size=N_ROWS).astype("float32"),
            "heavy": rng.standard_cauchy(N_ROWS),
            "mostly": mostly,
            "tiny": 1e-170 * np.sin(np.arange(N_ROWS)),
            "gaps": pyarrow.array(gaps, from_pandas=True),
            "same": np.full(N_ROWS, 0.1),
            "letter": np.array(list("abcd"))[rng.integers(0, 4, N_ROWS)],
            "yes": np.array(["yes", "no"])[rng.integers(0, 2, N_ROWS)],
            "truth": rng.random(N_ROWS) < 0.5,
            "day": days.cast(pyarrow.date32()),
            "written": np.array([f"{v:.2f}" for v in rng.normal(size=N_ROWS)]),
        }
    )


def written(table: pyarrow.Table, folder: Path, kind: str) -> Path:
    """Write a table as one file or several, its row groups of odd sizes."""
    if kind == "arrow":
        feather.write_feather(table, folder / "t.arrow", chunksize=130)
        return folder / "t.arrow"
    if kind == "feather":
        feather.write_feather(table, folder / "t.feather", "uncompressed")
        return folder / "t.feather"
    if kind == "parquet":
        parquet.write_table(table, folder / "t.parquet", row_group_size=170)
        return folder / "t.parquet"
    (folder / "t").mkdir()
    for i, start in enumerate(range(0, N_ROWS, 300)):
        path = folder / "t" / f"part-{i}.parquet"
        parquet.write_table(table.slice(start, 300), path, row_group_size=70)
    return folder / "t"


KINDS = ["parquet", "folder", "arrow", "feather"]


def both(path: Path) -> tuple[data.Frame, StoredTable]:
    """Return a table in memory and on disk, both inferred."""
    raw, ids = data.load_columns(path, "row")
    assert ids is not None
    on_disk = StoredTable.open(path, "row")
    look, _ = data.infer_columns(on_disk.look)
    return data.infer_columns(raw)[0], on_disk.with_look(look)


@pytest.mark.parametrize(
    ("kind", "scale"),
    [*((kind, "auto") for kind in KINDS), ("arrow", "standardize"), ("folder", "none")],
)
def test_rows_in_order_are_learnt_and_encoded_to_the_bit(kind, scale, table, tmp_path):
    in_memory, on_disk = both(written(table, tmp_path, kind))
    rows = np.sort(np.random.default_rng(1).permutation(N_ROWS)[:800])
    found = [
        Encoding.fit("p", some.take(rows), in_memory.names, scale=scale)
        for some in (in_memory, on_disk)
    ]
    assert found[0] == found[1]
    bent = {column.name for column in found[0].columns if column.knots}
    assert bent == ({"heavy", "mostly"} if scale == "auto" else set())
    right = found[0].apply(in_memory.take(rows))[0].astype(np.float32)
    (encoded,), _ = found[1].apply_on_disk(
        [on_disk.take(rows)], Scratch(tmp_path), "float32"
    )
    assert np.array_equal(encoded, right)


@pytest.mark.parametrize("kind", KINDS[1:3])
def test_flags_and_marks_are_those_of_memory(kind, table, tmp_path):
    """A value stands for a missing cell in every piece, whatever the column holds."""
    in_memory, on_disk = both(written(table, tmp_path, kind))
    marks = data.marks_of(
        in_memory, {"mostly": 1e9, "letter": "b", "day": "1970-01-09"}
    )
    assert data.marks_of(on_disk.look, {"mostly": 1e9}) == {"mostly": (1e9,)}
    found = [
        Encoding.fit("p", some, in_memory.names, marks=marks)
        for some in (in_memory, on_disk)
    ]
    assert found[0] == found[1]
    flagged = {column.name for column in found[0].columns if column.flag}
    assert flagged == {"gaps", "letter"}  # few rows have one of the others
    right, counts = found[0].apply(in_memory)
    (encoded,), other = found[1].apply_on_disk([on_disk], Scratch(tmp_path), "float32")
    assert counts == other
    assert np.array_equal(encoded, right.astype(np.float32))


def test_rows_in_any_order_stand_where_they_were_asked_for(table, tmp_path):
    in_memory, on_disk = both(written(table, tmp_path, "folder"))
    rows = np.random.default_rng(1).permutation(N_ROWS)[:800]
    twice = np.random.default_rng(2).permutation(800)[:500]
    some = on_disk.take(rows).take(twice)
    learnt = Encoding.fit("p", some, in_memory.names)
    right = learnt.apply(in_memory.take(rows).take(twice))[0].astype(np.float32)
    (encoded,), _ = learnt.apply_on_disk([some], Scratch(tmp_path), "float32")
    assert np.array_equal(encoded, right)
    again = Encoding.fit("p", in_memory.take(rows).take(twice), in_memory.names)
    for column, other in zip(learnt.columns, again.columns, strict=True):
        assert column.shift == pytest.approx(other.shift, rel=1e-12, abs=1e-14)
        assert column.scale == pytest.approx(other.scale, rel=1e-12)


def test_training_and_test_rows_are_read_together(table, tmp_path, monkeypatch):
    in_memory, on_disk = both(written(table, tmp_path, "folder"))
    order = np.random.default_rng(1).permutation(N_ROWS)
    parts = np.sort(order[50:]), order[:50], order[:0]
    encoding = Encoding.fit("p", in_memory, in_memory.names)
    passes: list[int] = []
    frames = type(on_disk.source).frames

    def counted(self, names, n_rows):
        passes.append(n_rows)
        return frames(self, names, n_rows)

    monkeypatch.setattr(type(on_disk.source), "frames", counted)
    some = [on_disk.take(rows) for rows in parts]
    encoded, counts = encoding.apply_on_disk(some, Scratch(tmp_path), "float32")
    assert counts == encoding.apply(in_memory)[1]
    assert len(passes) == 1
    for rows, found in zip(parts, encoded, strict=True):
        right = encoding.apply(in_memory.take(rows))[0].astype(np.float32)
        assert np.array_equal(found, right)


@pytest.mark.parametrize("at_once", [1, 3, 1 << 16])
def test_rows_as_they_stand(at_once, monkeypatch):
    monkeypatch.setattr(data_frame, "AT_ONCE", at_once)
    rows = np.arange(8)
    assert data.are_all(rows, 8)
    assert data.are_all(rows[:0], 0)
    assert data.are_in_order(rows[::2])
    for others in (rows[:7], rows[1:], rows[::-1], np.r_[0, rows[:7]], rows - 1):
        assert not data.are_all(others, 8)
    for border in range(7):
        swapped = rows.copy()
        swapped[[border, border + 1]] = swapped[[border + 1, border]]
        assert not data.are_in_order(swapped)


@pytest.mark.parametrize("n_rows", [10, N_ROWS + 10])
def test_a_file_keeps_its_rows_during_a_run(n_rows, table, tmp_path):
    _, on_disk = both(written(table, tmp_path, "parquet"))
    encoding = Encoding.fit("p", on_disk, ["number"])
    longer = pyarrow.concat_tables([table, table]).slice(0, n_rows)
    written(longer, tmp_path, "parquet")
    with pytest.raises(DataError, match=r"t.parquet' must keep its \d+ rows during"):
        encoding.apply_on_disk([on_disk], Scratch(tmp_path), "float32")


def test_columns_are_cut_on_disk(tmp_path):
    rows = np.arange(60.0, dtype=np.float32).reshape(20, 3)
    used = np.array([True, False, True])
    assert np.array_equal(Scratch(tmp_path).cut(rows, used), rows[:, used])
    assert Scratch(tmp_path).cut(rows, ~used & used).shape == (20, 0)


def test_encoded_rows_leave_no_file_behind(table, tmp_path):
    _, on_disk = both(written(table, tmp_path, "parquet"))
    folder = tmp_path / "run"
    folder.mkdir()
    encoding = Encoding.fit("p", on_disk, ["number"])
    (encoded,), _ = encoding.apply_on_disk([on_disk], Scratch(folder), "float32")
    assert isinstance(encoded, np.memmap)
    assert list(folder.iterdir()) == []


def test_a_full_disk_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"must have room for .* MiB of rows"):
        Scratch(tmp_path).zeros((1 << 40, 1 << 20), "float32")


def test_an_array_without_names_stays_on_disk(tmp_path):
    cells = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    np.save(tmp_path / "t.npy", cells)
    on_disk = StoredTable.open(tmp_path / "t.npy")
    assert on_disk.names == ("x0", "x1", "x2")
    in_memory, _ = data.load_columns(tmp_path / "t.npy")
    assert np.array_equal(in_memory.numeric, cells)
    kept = on_disk.take(np.arange(50, 150))
    whole = Encoding.fit("p", kept, ["x2"])
    assert whole == Encoding.fit("p", in_memory.take(np.arange(50, 150)), ["x2"])


def test_an_array_of_three_dimensions_is_named(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros((4, 3, 2)))
    for storage in ("disk", "memory"):
        with pytest.raises(DataError, match=r"t.npy' must have two .* \(4, 3, 2\)"):
            data.open_columns(tmp_path / "t.npy", None, storage)


def test_a_run_may_move_between_memory_and_disk(table, tmp_path):
    path = written(table, tmp_path, "folder")
    found = {
        storage: data.open_columns(path, "row", storage)[0].digest()
        for storage in ("memory", "disk")
    }
    assert found["memory"] == found["disk"]


def test_storage_is_decided_by_size_unless_it_is_said(table, tmp_path, monkeypatch):
    path = written(table, tmp_path, "folder")
    kinds = {
        storage: type(data.open_columns(path, "row", storage)[0]).__name__
        for storage in ("memory", "disk", "auto")
    }
    assert kinds == {"memory": "Frame", "disk": "StoredTable", "auto": "Frame"}
    monkeypatch.setattr(stored, "LARGE", 10 * N_ROWS)
    large, ids = data.open_columns(path, "row", "auto")
    assert isinstance(large, StoredTable)
    assert ids is not None
    assert ids.tolist() == list(range(N_ROWS))


def other_cells(path: Path) -> None:
    parquet.write_table(
        pyarrow.table({"a": [1.0, 2.0], "b": [1, 2]}), path / "1.parquet"
    )
    parquet.write_table(pyarrow.table({"a": [1.0], "c": [1]}), path / "2.parquet")


def other_kinds(path: Path) -> None:
    parquet.write_table(pyarrow.table({"a": [1.0, 2.0]}), path / "1.parquet")
    parquet.write_table(pyarrow.table({"a": ["x"]}), path / "2.parquet")


def broken(path: Path) -> None:
    (path / "1.parquet").write_bytes(b"PAR1 and no more")


def no_rows(path: Path) -> None:
    parquet.write_table(
        pyarrow.table({"a": pyarrow.array([], "int64")}), path / "1.parquet"
    )


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            other_cells,
            "same columns. Got '2.parquet' and .* of which one alone has 'b'",
        ),
        (other_kinds, "'a' must be of one kind .* which have texts and numbers"),
        (broken, "must be readable"),
        (no_rows, "must have rows. Got none"),
        (lambda path: None, "must hold .parquet, .arrow or .feather files. Got none"),
    ],
)
def test_a_bad_folder_is_one_sentence(make, sentence, tmp_path):
    make(tmp_path)
    for storage in ("disk", "memory"):
        with pytest.raises(DataError, match=sentence):
            data.open_columns(tmp_path, None, storage)


def test_a_csv_file_cannot_stay_on_disk(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="'storage' setting must be memory or auto"):
        data.open_columns(tmp_path / "t.csv", None, "disk")


def test_texts_that_the_look_did_not_have_are_refused(table, tmp_path):
    cells = table["written"].to_pylist()
    cells[777] = "many"
    place = table.column_names.index("written")
    odd = table.set_column(place, "written", pyarrow.array(cells))
    on_disk = StoredTable.open(written(odd, tmp_path, "parquet"), "row")
    look, _ = data.infer_columns(on_disk.look)
    assert "written" in [column.name for column in look.columns if column.reading], (
        "row 777 is not in it"
    )
    with pytest.raises(DataError, match=r"'written' of rows .* of 't.parquet'") as said:
        Encoding.fit("p", on_disk.with_look(look), ["written"])
    first, last = map(int, re.findall(r"rows (\d+) to (\d+)", str(said.value))[0])
    assert first <= 778 <= last < first + 64


@pytest.mark.parametrize("long_at", [0, 9_999])
def test_whole_numbers_are_texts_where_one_batch_has_a_long_one(long_at, tmp_path):
    codes = [10**15 + i % 3 for i in range(10_000)]
    codes[long_at] = 10**17 + 1
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"n": codes, "a": range(10_000)}), path)
    table = StoredTable.open(path)
    look, _ = infer_columns(table.look)
    rows = table.with_look(look)
    parts = [frame for _, frame in rows.batches(["n"], 1000)]
    whole = data_frame.stack_rows(parts)
    if long_at:  # no row of the look: a number among numbers
        assert whole.numeric[:, 0].tolist() == [float(code) for code in codes]
    else:
        assert whole.texts(0).tolist() == list(map(str, codes))
