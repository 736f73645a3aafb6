"""The records behind the README's tables: they are there, and say what it says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.report.reader import read_whole

from lessvfl import report
from lessvfl.errors import RecordError

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
ODD = '{"seeds": [0], "data": [1], "tables": {"2": [1]}, "figures": {}}'


def lines_of(head: str) -> dict[str, list[list[str]]]:
    """Return the README's table with that head: the words of each cell, by line."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    body = text[text.index(head) :].partition("\n\n")[0].splitlines()[2:]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in body]
    return {
        first.strip("`"): [re.findall(r"[\d.]+", cell) for cell in rest]
        for first, *rest in lines
    }


def results(*path: str) -> Any:
    return json.loads(RESULTS.joinpath(*path).read_text(encoding="utf-8"))


def test_equal_transport() -> None:
    rows = {
        (row["data"], row["method"]): row
        for row in results("equal-ours", "equal.json")["rows"]
        if row["transport"] == "ours" and row["rule"] in (None, "accuracy")
    }
    said = lines_of("| data | test accuracy |")
    assert len(said) == 9
    for name, cells in said.items():
        ours, plain, published = (
            rows[name, method] for method in ("less-vfl-auto", "plain", "less-vfl")
        )
        found = [
            [f"{row['accuracy']:.3f}" for row in (ours, plain, published)],
            [str(row["balanced_target"]["hits"]) for row in (ours, plain, published)],
            [f"{row['removed_share']:.3f}" for row in (ours, published)],
            [f"{row['real_kept_share']:.3f}" for row in (ours, published)],
            [f"{row['mib']:.2f}" for row in (ours, plain, published)],
        ]
        found[1].append("5")
        assert cells == found


def test_published_experiment() -> None:
    numbers = {
        (entry["method"], entry["measure"]): entry
        for entry in results("paper-phishing", "bench.json")["tables"]["2"]
    }
    for method, cells in lines_of("| `--method` |").items():
        cost = numbers[method, "cost_mib"]
        ours, paper = cost["ours"], cost["paper"]
        shares = (
            f"{numbers[method, name]['ours']['mean']:.2f}"
            for name in ("removed_share", "real_kept_share")
        )
        assert cells == [
            [f"{ours['mean']:.2f}"],
            [str(ours["hits"]), str(ours["seeds"])],
            [f"{paper['mean']:.2f}", f"{paper['std']:.2f}"],
            *([share] for share in shares),
        ]


@pytest.mark.parametrize("name", sorted(path.name for path in RESULTS.iterdir()))
def test_a_page_is_made_of_them(name: str, tmp_path: Path) -> None:
    shutil.copytree(RESULTS / name, tmp_path / name)
    read_whole(report.build(tmp_path / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "text", "got"),
    [
        ("equal.json", "{", "Got what is no JSON"),
        ("equal.json", "[]", "must hold seeds, .*Got no seeds"),
        ("bench.json", '{"a": 1}', "Got no seeds"),
        ("bench.json", ODD, "of another form"),
        ("record", "", "must hold record.jsonl, or .*equal.json.*a folder without"),
    ],
)
def test_what_is_no_result_is_refused(
    name: str, text: str, got: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RecordError, match=got):
        report.build(tmp_path)


def test_rows_of_nothing_are_refused(tmp_path: Path) -> None:
    whole = results("equal", "equal.json")
    wrong: tuple[list[Any], ...] = ([], [{}])
    for rows in wrong:
        (tmp_path / "equal.json").write_text(json.dumps(whole | {"rows": rows}))
        with pytest.raises(RecordError, match=r"Got no rows|of another form"):
            report.build(tmp_path)
