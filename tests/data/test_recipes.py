"""Data sets built of small files in their publishers' form."""

import hashlib
import http.server
import io
import json
import tarfile
import threading
import zipfile
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lessvfl import data
from lessvfl.data.sets import published, recipes
from lessvfl.data.sets.recipes import RECIPES, build
from lessvfl.errors import ConfigError, DataError

ARFF = """@relation phishing

@attribute having_IP_Address  { -1,1 }
@attribute URL_Length   { 1,0,-1 }
@attribute Result  { -1,1 }

@data
-1,1,-1
1,0,1
1,-1,1
"""
HAR = {
    "features.txt": "1 tBodyAcc-mean()-X\n2 fBands()-1,8\n3 fBands()-1,8\n",
    "activity_labels.txt": "1 WALKING\n2 SITTING\n",
    "train/X_train.txt": "  2.8e-001 -1.0e+000  5.0e-001\n -1 0 1\n 0 0 0\n",
    "train/y_train.txt": "2\n1\n2\n",
    "train/subject_train.txt": "1\n1\n3\n",
    "test/X_test.txt": " 1 1 1\n 2 2 2\n",
    "test/y_test.txt": "1\n2\n",
    "test/subject_test.txt": "2\n2\n",
}
CHALLENGE = {
    "gina_train.data": "0 3 255\n1 0 0\n",
    "gina_train.labels": "-1\n1\n",
    "gina_valid.data": "7 7 7\n",
    "gina_valid.labels": "1\n",
}
CREDIT: list[list[Any]] = [
    ["", "X1", "X2", "X3", "Y"],
    ["ID", "LIMIT_BAL", "SEX", "PAY_AMT1", "default payment next month"],
    [1, 20000, 2, 0, 1],
    [2, 120000, 1, -5, 0],
    [3, 5, 1, 0.5, 0],
]


def small(name, rows, features, classes, **more):
    """Return the recipe of a data set for files as small as these."""
    shape = {"rows": rows, "features": features, "classes": classes}
    return replace(RECIPES[name], **shape | {"content": ""} | more)


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "sets"
    folder.mkdir()
    return folder


ACTIVITY = small("activity", (3, 2), 3, 2)
PHISHING = small("phishing", (3,), 2, 2)
GINA = small("gina", (3,), 3, 2)


def har_zip(path):
    """Return the publisher's archive: another one inside, and what macOS left."""
    inner = io.BytesIO()
    files = {f"UCI HAR Dataset/{name}": text for name, text in HAR.items()}
    junk = {"__MACOSX/UCI HAR Dataset/train/._X_train.txt": b"\x00\x05"}
    zipped(inner, files | junk)
    return zipped(path, {"UCI HAR Dataset.zip": inner.getvalue(), "a.names": "?"})


def test_activity_keeps_the_official_split(tmp_path, out):
    built = build("activity", ACTIVITY, out, har_zip(tmp_path / "har.zip"))
    loaded = data.load("activity", data_dir=out)
    assert loaded.X_test is not None
    assert loaded.y_test is not None
    names = ("tBodyAcc-mean()-X", "fBands()-1,8#2", "fBands()-1,8#3")
    assert loaded.X.names == names
    assert loaded.X.numeric[0].tolist() == pytest.approx([0.28, -1.0, 0.5])
    assert loaded.y.tolist() == [1, 0, 1]
    assert loaded.y_test.tolist() == [0, 1]
    assert loaded.X_test.numeric[:, 0].tolist() == [1.0, 2.0]
    assert loaded.label_names == ("WALKING", "SITTING")
    assert loaded.notes == ()
    assert f"activity.npz (SHA-256 of its cells {loaded.checksum[:12]}" in loaded.origin
    with np.load(built.path) as arrays:
        assert arrays["subject"].tolist() == [1, 1, 3]
        assert arrays["X"].dtype == np.float32
        made = json.loads(str(arrays["source"]))
    text = HAR["train/X_train.txt"].encode()
    assert made["files"]["X_train.txt"] == hashlib.sha256(text).hexdigest()
    assert len(made["files"]) == len(HAR)
    assert [path.name for path in out.iterdir()] == ["activity.npz"]


def test_phishing_of_an_archive_with_an_older_file(tmp_path, out):
    files = {"Training Dataset.arff": ARFF, ".old.arff": "?", "old.arff": "?"}
    build("phishing", PHISHING, out, zipped(tmp_path / "p.zip", files))
    loaded = data.load("phishing", data_dir=out)
    assert loaded.X.names == ("having_IP_Address", "URL_Length")
    assert loaded.X.numeric.tolist() == [[-1, 1], [1, 0], [1, -1]]
    assert loaded.y.tolist() == [0, 1, 1]
    assert loaded.label_names == ("-1", "1")
    assert "checksum" in loaded.notes[0]  # it is not the data set


def test_gina_of_the_challenge_and_of_openml(tmp_path, out):
    folder = write(tmp_path / "gina", CHALLENGE)
    first = build("gina", GINA, out, folder).data
    assert first.X.names == ("attr0", "attr1", "attr2")
    assert first.X.numeric.tolist() == [[0, 3, 255], [1, 0, 0], [7, 7, 7]]
    assert first.y.tolist() == [0, 1, 1]
    (out / "gina.npz").unlink()
    head = "".join(f"@ATTRIBUTE attr{i} INTEGER\n" for i in range(3))
    arff = f"@RELATION g\n{head}@ATTRIBUTE label {{-1,1}}\n@DATA\n"
    path = tmp_path / "any_name.ARFF"
    path.write_text(arff + "0,3,255,-1\n1,0,0,1\n7,7,7,1\n")
    assert build("gina", GINA, out, path).data.checksum == first.checksum


def test_sylva_train_is_the_training_part(tmp_path, out):
    files = {name.replace("gina", "sylva"): text for name, text in CHALLENGE.items()}
    folder = write(tmp_path / "sylva", files)
    one = small("sylva_train", (2,), 3, 2)
    assert build("sylva_train", one, out, folder).data.X.n_rows == 2


def test_mfeat_has_a_party_for_every_file(tmp_path, out):
    widths = {"fac": 3, "fou": 2, "kar": 2, "mor": 1, "pix": 2, "zer": 1}
    rows = np.arange(20)
    path = tmp_path / "mfeat.tar"
    with tarfile.open(path, "w") as archive:
        for view, width in widths.items():
            lines = (" ".join([f"{row}.5"] * width) for row in rows)
            content = "\n".join(lines).encode()
            entry = tarfile.TarInfo(f"mfeat-{view}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    build("mfeat", small("mfeat", (20,), 11, 10), out, path)
    loaded = data.load("mfeat", data_dir=out)
    assert loaded.y.tolist() == [row // 2 for row in rows]
    problem = data.prepare(loaded, data.DataConfig(split="first"))
    assert {party.name: len(party.features) for party in problem.parties} == widths
    assert problem.parties[1].features == ("fou.0", "fou.1")
    told = data.prepare(loaded, data.DataConfig(split="first"), parties=2)
    assert len(told.parties) == 2


def test_credit_of_the_workbook_and_of_csv(tmp_path, out):
    recipe = small("credit", (3,), 3, 2)
    book = tmp_path / "clients.xlsx"
    pd.DataFrame(CREDIT).to_excel(book, engine="xlsxwriter", header=False, index=False)
    first = build("credit", recipe, out, book).data
    assert first.X.names == ("LIMIT_BAL", "SEX", "PAY_AMT1")
    assert first.X.numeric.tolist() == [[20000, 2, 0], [120000, 1, -5], [5, 1, 0.5]]
    assert first.y.tolist() == [1, 0, 0]
    names = [*CREDIT[1][:-1], "default.payment.next.month"]
    table = "\n".join(",".join(map(str, row)) for row in [names, *CREDIT[2:]])
    (out / "credit.npz").unlink()
    (out / "credit.csv").write_text(table)
    loaded = data.load("credit", data_dir=out)  # without building it
    assert loaded.checksum == first.checksum
    assert list(loaded.parties or ()) == ["bank", "bureau", "registry", "shop"]
    assert build("credit", recipe, out, out).data.checksum == first.checksum


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"train/y_train.txt": None}, "'y_train.txt' must be there. Got"),
        ({"train/X_train.txt": "1 2 x\n"}, "must be readable. Got this"),
        ({"train/X_train.txt": ""}, "must be readable. Got this"),
        ({"train/X_train.txt": "1 2\n" * 3}, "feature_names|'X'|columns"),
        ({"train/X_train.txt": "1 2 nan\n" * 3}, "without a missing cell"),
        ({"activity_labels.txt": "1\n2\n"}, "must be readable. Got this"),
        (
            {"train/y_train.txt": "2\n2\n2\n"},
            r"must give 3 \+ 2 rows, 3 columns, 2 classes.* Got .* 1 classes",
        ),
    ],
)
def test_bad_files_are_one_sentence_and_nothing_is_written(
    tmp_path, out, files, sentence
):
    changed = {name: text for name, text in (HAR | files).items() if text is not None}
    with pytest.raises(DataError, match=sentence):
        build("activity", ACTIVITY, out, write(tmp_path / "har", changed))
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.arff", "a.txt"])
def test_files_of_another_kind(tmp_path, out, name):
    path = tmp_path / name
    path.write_bytes(b"\x93neither")
    with pytest.raises(DataError, match=r"must .*Got .*") as caught:
        build("phishing", PHISHING, out, path)
    assert name in str(caught.value)
    with pytest.raises(DataError, match="No such file"):
        build("phishing", PHISHING, out, tmp_path / "nowhere")


def test_cells_must_have_the_known_checksum(tmp_path, out):
    path = tmp_path / "a.arff"
    path.write_text(ARFF)
    first = build("phishing", PHISHING, out, path)
    assert not first.is_known
    with pytest.raises(DataError, match="must not be there yet"):
        build("phishing", PHISHING, out, path)
    first.path.unlink()
    known = replace(PHISHING, content=first.data.checksum)
    assert build("phishing", known, out, path).is_known
    first.path.unlink()
    path.write_text(ARFF.replace("1,-1,1", "1,1,1"))
    with pytest.raises(DataError, match=f"must have the SHA-256 {known.content}"):
        build("phishing", known, out, path)
    assert list(out.iterdir()) == []


@pytest.fixture
def publisher(tmp_path):
    """Serve a folder on the loopback; return it and its address."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given):
            super().__init__(*given, directory=str(folder))

        def log_message(self, format, *given):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_download_is_checked(publisher, out):
    folder, address = publisher
    archive = har_zip(folder / "har.zip")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    recipe = replace(ACTIVITY, address=f"{address}/har.zip", sha256=sha256)
    built = build("activity", recipe, out)
    assert built.files[recipe.address] == sha256
    assert "X_test.txt" in built.files
    built.path.unlink()
    with pytest.raises(DataError, match=f"must have the SHA-256 {'0' * 64}. Got"):
        build("activity", replace(recipe, sha256="0" * 64), out)
    with pytest.raises(DataError, match=r"by --from. Got no download \(HTTPError"):
        build("activity", replace(recipe, address=f"{address}/none.zip"), out)
    assert list(out.iterdir()) == []


def test_openml_where_there_is_no_address(out, monkeypatch):
    table = data.from_arrays([[0, 3, 255], [1, 0, 0], [7, 7, 7]], [-1, 1, 1])
    monkeypatch.setattr(published, "fetch", lambda name: table)
    built = build("gina", GINA, out)
    assert built.files == {"OpenML 1038": table.checksum}
    assert data.load("gina", data_dir=out).label_names == ("-1", "1")
    with pytest.raises(DataError, match="'sylva_train' must be given by --from"):
        build("sylva_train", RECIPES["sylva_train"], out)


def test_recipes_ask_for_what_is_known():
    assert RECIPES["activity"].rows == (7352, 2947)
    for name, recipe in RECIPES.items():
        facts = data.describe(name)
        shape = (sum(recipe.rows), recipe.features, recipe.classes)
        assert shape == (facts["rows"], facts["features"], facts["classes"])
    with pytest.raises(ConfigError, match=r"one of phishing, .*'tox171', .*TOX-171"):
        recipes.recipe_of("tox171")
    with pytest.raises(ConfigError, match=r"Got 'iris'\.$"):
        recipes.recipe_of("iris")


def test_the_command(run_cli, tmp_path, out, monkeypatch):
    path = tmp_path / "a.arff"
    path.write_text(ARFF)
    monkeypatch.setitem(RECIPES, "phishing", PHISHING)
    command = ("data", "build", "phishing", "--from", path)
    monkeypatch.delenv("LESSVFL_DATA", raising=False)
    result = run_cli(*command)
    assert (result.code, result.out) == (2, "")
    assert "must be given by --data-dir or LESSVFL_DATA. Got none." in result.err
    monkeypatch.setenv("LESSVFL_DATA", str(out))
    result = run_cli(*command)
    assert result.code == 0
    sha256 = hashlib.sha256(ARFF.encode()).hexdigest()
    assert f"read a.arff: SHA-256 {sha256}" in result.out
    assert "none is known to compare it with" in result.out
    assert f"wrote {out / 'phishing.npz'}" in result.out.replace("\n", " ")
    assert run_cli(*command).code == 2
