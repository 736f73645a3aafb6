"""How far two folders of ``lessvfl bench paper`` agree: supports and table entries.

    python benchmarks/compare.py runs/whole runs/half

`--smoke` makes two folders, one of them in smaller chunks.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import smoke

from lessvfl_bench.paper import run


def main() -> None:
    """Compare two folders and print two lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER")
    given = smoke.parse(parser)
    if given.smoke:
        with tempfile.TemporaryDirectory() as scratch:
            compare(*made(Path(scratch)))
    elif len(given.folders) == 2:
        compare(*given.folders)
    else:
        parser.error("two folders must be given")


def compare(first: Path, second: Path) -> None:
    """Print how far supports and entries agree."""
    print(of_supports(supports(first), supports(second)))
    print(of_entries(entries(first), entries(second)))


def made(base: Path) -> list[Path]:
    """Make two small folders, one of them in smaller chunks."""
    folders = [base / "whole", base / "chunks"]
    for folder, memory in zip(folders, (None, 2_000_000), strict=True):
        options = run.Options(
            ("breast-cancer",),
            tables=(2,),
            figures=(),
            seeds=(0,),
            device="cpu",
            memory=memory,
            overrides=smoke.SHORT,
        )
        run.run(options, folder)
    return folders


def supports(folder: Path) -> dict[tuple[str, str], Any]:
    """Return the features kept, (P, S, D), by scene and setting."""
    found = {}
    for path in sorted((folder / "records").glob("*.npz")):
        with np.load(path) as record:
            meta = json.loads(str(record["meta"]))
            if "features" not in record.files:
                continue
            features = record["features"]
        scene = {k: v for k, v in json.loads(meta["scene"]).items() if k != "tf32"}
        for index, spec in enumerate(meta["specs"]):
            key = (json.dumps(scene), json.dumps(spec))
            found[key] = features[:, :, index]
    return found


def of_supports(first: dict[Any, Any], second: dict[Any, Any]) -> str:
    """Say how many runs of both folders kept the same features."""
    shared = first.keys() & second.keys()
    same = np.concatenate([(first[k] == second[k]).all(axis=(0, 2)) for k in shared])
    alone = len(first) + len(second) - 2 * len(shared)
    return (
        f"{same.size} runs in both folders, {100 * same.mean():.2f} % with the same "
        f"support; {alone} settings in one folder alone"
    )


def entries(folder: Path) -> dict[str, Any]:
    """Return our side of every table entry."""
    tables = json.loads((folder / "bench.json").read_text())["tables"]
    return {
        json.dumps([number, *(entry[k] for k in ("data", "method", "measure"))])
        + json.dumps(entry["settings"], sort_keys=True): entry["ours"]
        for number, found in tables.items()
        for entry in found
        if entry["ours"] is not None
    }


def of_entries(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Say how far the entries of both folders are apart."""
    shared = [key for key in first if key in second]
    turned, apart = 0, []
    for key in shared:
        a, b = first[key], second[key]
        turned += a["hits"] != b["hits"]
        if a["mean"] is not None and b["mean"] is not None:
            apart.append(abs(a["mean"] - b["mean"]) / max(abs(a["mean"]), 1e-12))
    close = sum(gap <= 0.01 for gap in apart)
    return (
        f"{len(shared)} entries in both, {turned} with other hits; of {len(apart)} "
        f"with a mean, {close} within 1 %, the largest difference "
        f"{100 * max(apart):.2f} %; {len(first) - len(shared)} with settings chosen "
        "otherwise"
    )


if __name__ == "__main__":
    main()
