"""A run by a file of options, and the file that a run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from lessvfl.run.record import RunRecord

OPTIONS = {
    "data": "t.csv",
    "label": "y",
    "method": "less-vfl",
    "parties": {"bank": ["a", "b"], "shop": "c*"},
    "groups": {"both": ["c1", "c2"]},
    "seeds": [0, 1],
    "missing_values": {"a": [-999, -1]},
    "settings": {
        **dict.fromkeys(("train_epochs", "server_epochs", "party_epochs"), 1),
        "hidden": [8, 4],
        "learning_rate": "1e-3",
    },
    "quiet": True,
}

LEVELS = range(1, 12)
BOMB = "\n".join(  # a text of half a kilobyte that would be one of 10 GB
    ["x0: &x0 [a]", *(f"x{n}: &x{n} [{','.join([f'*x{n - 1}'] * 10)}]" for n in LEVELS)]
)
MERGED = "\n".join(
    [
        "x0: &x0 {a: 1}",
        *(f"x{n}: &x{n} {{<<: [{','.join([f'*x{n - 1}'] * 10)}]}}" for n in LEVELS),
    ]
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a table and a file of options."""
    X = np.random.default_rng(0).normal(size=(80, 4)).round(3)
    X[:3, 0], X[3:5, 0] = -999, -1
    rows = (f"{','.join(map(str, row))},{int(row[1] > 0)}" for row in X)
    text = "\n".join(["a,b,c1,c2,y", *rows])
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(OPTIONS), encoding="utf-8")
    return tmp_path


def numbers_of(folder: Path) -> list[object]:
    """Return what a run found, but for times."""
    runs = RunRecord.read(folder).runs
    return [[run["seed"], run["features"], run["accuracy"]] for run in runs]


def test_a_file_says_what_options_say_and_its_copy_repeats_the_run(
    place, run_cli, monkeypatch
) -> None:
    """Paths are relative to the file, and the copy needs none of the others."""
    first, second = place / "first", place / "second"
    said = run_cli("run", "--config", place / "own.yaml", "--out", first)
    assert said.code == 0, said.err
    header = RunRecord.read(first).header
    assert header["method"] == "less-vfl"
    assert header["config"]["hidden"] == [8, 4]
    assert header["config"]["learning_rate"] == 0.001
    assert header["config"]["missing_values"] == {"a": ["-999", "-1"]}
    found = RunRecord.read(first).runs
    assert [run["seed"] for run in found] == [0, 1]
    names = {
        party: sorted(own["kept"] + own["removed"])
        for party, own in found[0]["features"].items()
    }
    assert names == {"bank": ["a", "b"], "shop": ["both"]}
    copy = yaml.safe_load((first / "run.yaml").read_text(encoding="utf-8"))
    assert "out" not in copy
    assert copy["device"] == "auto"
    (place / "own.yaml").unlink()
    monkeypatch.chdir(place.parent)
    again = run_cli("run", "--config", first / "run.yaml", "--out", second, "-q")
    assert again.code == 0
    assert numbers_of(second) == numbers_of(first)
    texts = [(folder / "run.yaml").read_text() for folder in (first, second)]
    assert texts[0] == texts[1]


def test_options_of_the_command_line_win(place, run_cli) -> None:
    """Also where they say what would be so without them."""
    out = place / "run"
    words = ("--config", place / "own.yaml", "--seeds", "0", "--out", out, "--json")
    found = json.loads(run_cli("run", *words).out)
    assert [run["seed"] for run in found["runs"]] == [0]
    assert yaml.safe_load((out / "run.yaml").read_text())["seeds"] == "0"


def test_a_try_takes_a_file_with_its_own_options(place, run_cli) -> None:
    path = place / "try.yaml"
    path.write_text("data: digits\nport: 70000\n", encoding="utf-8")
    assert "Unknown option 'port'" in run_cli("run", "--config", path).err
    said = run_cli("try", "--config", path)
    assert "The 'port' in" in said.err
    assert "must be a whole number from 0 to 65535. Got 70000." in said.err


def test_test_rows_and_folds_can_be_said(place, run_cli) -> None:
    few = OPTIONS["settings"]
    own = {"data": "t.csv", "label": "y", "method": "plain", "quiet": True}
    own |= {"settings": {"train_epochs": few["train_epochs"]}, "folds": 2}  # type: ignore[index]
    path = place / "folds.yaml"
    path.write_text(yaml.safe_dump(own), encoding="utf-8")
    out = place / "run"
    said = run_cli("run", "--config", path, "--out", out)
    assert said.code == 0, said.err
    assert len(RunRecord.read(out).runs) == 2
    again = run_cli("run", "--config", out / "run.yaml", "--out", place / "again", "-q")
    assert again.code == 0, again.err
    assert numbers_of(place / "again") == numbers_of(out)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sead: 1", "Unknown option 'sead' in 'own.yaml'. Did you mean 'seeds'?"),
        ("quiet: 3", "The 'quiet' in 'own.yaml' must be true or false. Got 3."),
        ("seeds: {a: 1}", "The 'seeds' in 'own.yaml' must be a text or a number."),
        ("method: [a]", "The 'method' in 'own.yaml' must be a text or a number."),
        ("settings: 5", "The 'settings' in 'own.yaml' must be names and values. Got 5"),
        ("parties: {a: 5}", "The columns of party 'a' in 'own.yaml' must be a list"),
        ("groups: {}", "The file 'own.yaml' must map feature names to columns."),
        ("- a", "The config file 'own.yaml' must hold names and values. Got list."),
        ("method: plain", "a data set's name or a file must be given"),
        ("data: digits\nsettings: {batch_size: 0}", "'batch_size' setting must be"),
        ("folds: many", "The 'folds' in 'own.yaml' must be a whole number from 0 to"),
        ("data: digits\nseeds: x", "'--seeds' option must be whole numbers"),
        ("test_ids: 2020-13-45", "Got this: month must be in 1..12."),
        ("data: !!timestamp x", "must be YAML. Got this: "),
        ("data: !!bool maybe", "must be YAML. Got this: "),
        (f"data: {'[' * 5000}", "must be YAML. Got this: values within values"),
        ("data: &a [*a]", "must be YAML. Got this: more values by its aliases"),
        (BOMB, "must be YAML. Got this: more values by its aliases than 1,000,000."),
        (MERGED, "must be YAML. Got this: more values by its aliases than"),
        ("data: !!python/object/apply:os.system [id]", "must be YAML. Got this: "),
    ],
)
def test_bad_files_are_one_sentence(text, said, tmp_path, monkeypatch, run_cli) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(text, encoding="utf-8")
    result = run_cli("run", "--config", "own.yaml")
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert said in line


@pytest.mark.parametrize("name", ["party_net", "fusion_net"])
def test_code_that_a_file_names_needs_trust(name, place, run_cli) -> None:
    """A file from somebody else can name any code of this machine."""
    code = place / "nets.py"
    code.write_text(
        "from pathlib import Path\n\nfrom torch import nn\n\n"
        "Path(__file__).with_name('ran').touch()\n\n\n"
        "def small(n_in, n_out):\n    return nn.Linear(n_in, n_out)\n",
        encoding="utf-8",
    )
    named = {" " + name: f"{code}:small", "train_epochs": 1}
    own = {"data": "t.csv", "label": "y", "method": "plain", "settings": named}
    path = place / "theirs.yaml"
    path.write_text(yaml.safe_dump(own), encoding="utf-8")
    for command in ("run", "try"):
        said = run_cli(command, "--config", path, "-q")
        assert said.code == 2
        assert said.err.endswith(
            f"must be trusted to name code to run ('{name}'), by '--trust-code'. Got "
            "no such word.\n"
        )
    path.write_text(yaml.safe_dump(own | {"trust_code": True}), encoding="utf-8")
    assert "Unknown option 'trust_code'" in run_cli("run", "--config", path, "-q").err
    assert not (place / "ran").exists()
    path.write_text(yaml.safe_dump(own), encoding="utf-8")
    said = run_cli("run", "--config", path, "--trust-code", "-q")
    assert said.code == 0, said.err
    assert (place / "ran").exists()
