"""Draw the pictures of README.md and docs/ from the records of ``lessvfl demo``.

The features by name are those of breast cancer at three parties, with planted noise;
the calibration is that of ``lessvfl bench shapes --calibrate N --held-out --out DIR``.

    python scripts/pictures.py                   # runs the demo first
    python scripts/pictures.py --runs runs/demo  # of a demo that was run
    python scripts/pictures.py --calibration DIR/shapes.json

They go to ``docs/images``. Each keeps the numbers that it was drawn from as JSON in its
description, so that ``tests/test_pictures.py`` can draw it again, and can tell whether
today's program gives these numbers. Text stays text, in the fonts of the reader's
system: it can be found, and read aloud.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from matplotlib.figure import Figure

from lessvfl import data
from lessvfl.report import figures, pixels, selection_figures, tables
from lessvfl.report.comparison import titles_of
from lessvfl.report.finding import finding
from lessvfl.run import experiment, profiles
from lessvfl.run.record import RunRecord
from lessvfl.run.simulate import Job

FOLDERS = ("less-vfl-auto", "plain", "plain-published")  # of the demo
FOLDER = Path(__file__).parent.parent / "docs" / "images"
CALIBRATION = "calibration.svg"  # the one that no demo is drawn from
NAMED = "breast-cancer"  # whose columns have names that say something
DIGITS = 4  # of a number that is kept
Records = Mapping[str, RunRecord]  # by the folder in the demo's, or NAMED


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="folder of a demo that was run")
    parser.add_argument("--calibration", type=Path, help="draw what bench shapes wrote")
    parser.add_argument("--out", type=Path, default=FOLDER)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = given.out
        out.mkdir(parents=True, exist_ok=True)
        if given.calibration is not None:
            cells = json.loads(given.calibration.read_text(encoding="utf-8"))
            write(out / CALIBRATION, calibration_numbers(cells))
            return
        records = records_of(given, scratch)
        records[NAMED] = _record(NAMED, FOLDERS[0], 3)
        for name in PICTURES:
            if name != CALIBRATION:
                write(out / name, trim(name, records))


def write(path: Path, numbers: Mapping[str, Any]) -> None:
    """Draw the picture of that name."""
    path.write_text(draw(path.name, numbers), encoding="utf-8")
    print(path)


def records_of(given: argparse.Namespace, scratch: str) -> dict[str, RunRecord]:
    """Return the records of the demo by folder."""
    if given.runs is None:
        command = (sys.executable, "-m", "lessvfl.cli", "demo", "--out", scratch)
        subprocess.run(command, check=True)
    folder = given.runs or Path(scratch)
    return {name: RunRecord.read(folder / name) for name in FOLDERS}


def _record(name: str, method: str, parties: int) -> RunRecord:
    dataset = data.load(name)
    settings = profiles.resolve(method, "default", dataset)
    job = Job(dataset, settings, parties=parties, spurious=0.5)
    record, _ = experiment.run(job, [0])
    return record


# -- numbers ---------------------------------------------------------------------------


def trim(name: str, records: Records) -> dict[str, Any]:
    """Return of the records what a picture is drawn from."""
    _, wanted = PICTURES[name]
    return {
        folder: {
            "header": {
                "method": record.header["method"],
                "data": {"n_classes": record.header["data"]["n_classes"]},
                "config": record.transport,
            },
            "runs": [_pick(run, wanted[folder]) for run in record.runs],
        }
        for folder, record in records.items()
        if folder in wanted
    }


def calibration_numbers(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the calibration is drawn from, of the study's cases."""
    runs = []
    for cell in cells:
        shape, seed, _ = cell["case"]
        wanted = ("said", "kept", "false kept")
        found = {key: _rounded(cell["found"][key]) for key in wanted}
        runs.append({"shape": shape, "seed": seed, **found})
    return {FOLDERS[0]: {"header": {"method": FOLDERS[0]}, "runs": runs}}


def _pick(run: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Copy the values at dotted paths; a star stands for any name or place."""
    found: dict[str, Any] = {}
    for path in paths:
        for keys, value in _values(run, path.split(".")):
            *parents, last = keys
            place: Any = found
            for key in parents:
                place = place.setdefault(key, {})
            place[last] = _rounded(value)
    if "curve" in found:
        found["curve"] = list(found["curve"].values())
    return found


def _values(value: Any, path: Sequence[str]) -> Iterator[tuple[list[Any], Any]]:
    if not path:
        yield [], value
        return
    key, *rest = path
    names: Any = [key] if isinstance(value, Mapping) else range(len(value))
    if key == "*" and isinstance(value, Mapping):
        names = list(value)
    for name in names:
        for keys, found in _values(value[name], rest):
            yield [name, *keys], found


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def numbers_of(svg: str) -> dict[str, Any]:
    """Return the numbers that a picture was drawn from."""
    for element in ElementTree.fromstring(svg).iter():
        if element.tag.endswith("}description"):
            found: dict[str, Any] = json.loads(element.text or "")
            return found
    raise ValueError("a picture without the numbers that it was drawn from")


# -- pictures --------------------------------------------------------------------------


def draw(name: str, numbers: Mapping[str, Any]) -> str:
    """Draw a picture from its numbers; the same numbers give the same file."""
    plot, _ = PICTURES[name]
    records = {
        folder: RunRecord(one["header"], one["runs"], "complete")
        for folder, one in numbers.items()
    }
    with figures.page_style():
        figure = plot(records)
        stream = io.StringIO()
        about = json.dumps(numbers, separators=(",", ":"))
        metadata = {"Description": about, "Date": None, "Creator": None}
        figure.savefig(stream, format="svg", metadata=metadata, facecolor="white")
    fonts = r"\1 system-ui, -apple-system, 'Segoe UI', sans-serif\2"
    text = re.sub(r"(font: [^'\"]*?px) '.*?(;|\")", fonts, stream.getvalue())
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def _demo(records: Records) -> Figure:
    """Draw the finding: the pixels kept on the left, score against bytes beside it."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
    ours = records["less-vfl-auto"]
    pixels.plot_pixels(ours.runs, left)
    names = titles_of(records)
    titles = {names[folder]: one for folder, one in records.items()}
    for color, (title, one) in zip(figures.CYCLE, titles.items(), strict=False):
        figures.plot_curve(one.runs, right, name=title, color=color)
    said = textwrap.fill(f"{finding(titles)}.", 96)
    figure.suptitle(said, fontsize=12, fontweight="bold")
    return figure


def _path(records: Records) -> Figure:
    ax = figures.new_axes()
    selection_figures.plot_path(records["less-vfl-auto"].runs[0], ax)
    return _whole(ax)


def _selection(records: Records) -> Figure:
    ax = figures.bar_axes(selection_figures.MOST_FEATURES + 3)
    return _whole(selection_figures.plot_selection(records[NAMED].runs[0], ax))


def _bytes(records: Records) -> Figure:
    runs = records["less-vfl-auto"].runs
    stages = tables.stages_billed(runs)
    return _whole(figures.plot_bytes(runs, figures.bar_axes(2 * len(stages))))


def _calibration(records: Records) -> Figure:
    """Draw stated and true shares of useless features, a line for every shape."""
    said: dict[str, list[float]] = {}
    true: dict[str, list[float]] = {}
    for run in records[FOLDERS[0]].runs:
        if run["said"] is not None and run["kept"]:
            said.setdefault(run["shape"], []).append(run["said"])
            share = run["false kept"] / run["kept"]
            true.setdefault(run["shape"], []).append(share)
    size = (6.6, figures.bars_height(2 * len(said)))
    ax = Figure(figsize=size, layout="constrained").subplots()
    for place, (shape, shares) in enumerate(true.items()):
        n, mean = len(shares), statistics.fmean(shares)
        spread = [place + 0.5 * (i / max(1, n - 1) - 0.5) for i in range(n)]
        ax.plot(shares, spread, ".", ms=4, color=figures.GREY, alpha=0.6)
        error = 2 * statistics.stdev(shares) / n**0.5 if n > 1 else 0.0
        own = {"ms": 6, "color": figures.BLUE, "label": "true, mean ± 2 s.e."}
        ax.errorbar(mean, place, xerr=error, fmt="o", **own)
        stated = statistics.fmean(said[shape])
        ax.plot(stated, place, "D", ms=6, color=figures.VERMILION, label="stated, mean")
    ax.set_yticks(range(len(true)), [figures.label(shape) for shape in true])
    ax.invert_yaxis()
    ax.set_xlabel("share of useless features among those kept")
    figures.grid(ax, "x")
    handles, names = ax.get_legend_handles_labels()
    shown = dict(zip(names, handles, strict=True))
    grey = ax.plot([], [], ".", color=figures.GREY, label="true, one run")
    figures.legend(ax, 3, [*shown.values(), *grey])
    return _whole(ax)


def _whole(ax: Any) -> Figure:
    figure: Figure = ax.figure
    return figure


_CURVE = (
    "seed",
    "accuracy.final",
    "communication.payload_bytes",
    "curve.*.stage",
    "curve.*.epoch",
    "curve.*.accuracy",
    "curve.*.payload_bytes",
)
# What each picture shows, and of which method it needs which numbers of a run.
PICTURES: dict[str, tuple[Callable[[Records], Figure], dict[str, Sequence[str]]]] = {
    "demo.svg": (
        _demo,
        {
            "less-vfl-auto": (*_CURVE, "features", "spurious.removed_share"),
            "plain": _CURVE,
            "plain-published": _CURVE,
        },
    ),
    "path.svg": (
        _path,
        {"less-vfl-auto": ("seed", "selection.*.lam", "selection.*.path")},
    ),
    "selection.svg": (
        _selection,
        {
            NAMED: (
                "seed",
                "features",
                "selection.*.scores",
                "selection.*.pairs",
                "selection.*.why",
            )
        },
    ),
    "bytes.svg": (
        _bytes,
        {"less-vfl-auto": ("seed", "communication.by_stage")},
    ),
    CALIBRATION: (_calibration, {}),
}

if __name__ == "__main__":
    main()
