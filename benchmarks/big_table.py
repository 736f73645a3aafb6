"""A large table on disk: made chunk by chunk, then run between processes.

    python benchmarks/big_table.py make --rows 1000000 --columns 1000 --out DIR
    python benchmarks/big_table.py run DIR --set row_order=blocks
    python benchmarks/big_table.py same DIR --set row_order=blocks
    python benchmarks/big_table.py grow --rows 125000 --columns 500 --parties 2

`make` writes a kit, every party's columns (float32 in Parquet, a file or a folder of
`--files`) and the server's labels, all with the id column ``row``, in chunks, so that
its own memory does not grow with the table. A party's columns are normal noise; 10 of
them are a part of the label, half of these in a straight line and half by tanh. Noise
is added before the label is cut at zero: ``truth.json`` has the names of the 10, and
how often the label is the sign of what it was made of, which no model can beat by much.

`run` starts the server and the parties as processes and prints for each the peak of its
anonymous memory (RssAnon, looked at ten times a second) and of all its memory (VmHWM,
kept by the kernel; it includes libraries and pages of files), and for the run the wall
time, bytes, features found, missed and false, and test accuracy. Settings are given
with `--set`, `--storage` says where parties have their rows, and `--memory` how many
MiB of private memory the kernel lets a party have (RLIMIT_DATA): with less it fails.

`same` runs in memory and on disk, and compares features, scores and bill.

`grow` makes and runs a table of 1, 4 and 16 times as many rows, each after the other,
and prints the ratios to the first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import smoke
import yaml
from numpy.typing import NDArray
from parties import status_of
from pyarrow import parquet

from lessvfl.remote import certificates, localhost
from lessvfl.run.record import RunRecord

CHUNK = 65_536  # rows of a row group, and of what is in memory at a time
N_TRUE = 10  # columns of a party that the label is made of
NOISE = 0.4  # beside a score of deviation 1
LOOK_SECONDS = 0.1
Scores = NDArray[np.float64]
Line = dict[str, float]


@dataclass(frozen=True)
class Share:
    """What one party holds: its columns, and the part of them in the label."""

    name: str
    number: int
    columns: tuple[str, ...]
    true: NDArray[np.int64]  # places of the columns that matter
    weights: Scores

    @classmethod
    def draw(cls, number: int, n_columns: int, seed: int) -> Share:
        """Draw which columns of a party matter, and how much."""
        rng = np.random.default_rng([seed, number])
        name = f"party{number}"
        columns = tuple(f"{name}_{j:04}" for j in range(n_columns))
        true = np.sort(rng.choice(n_columns, N_TRUE, replace=False))
        weights = rng.uniform(0.5, 1.5, N_TRUE) * rng.choice([-1, 1], N_TRUE)
        return cls(name, number, columns, true, weights)

    def values(self, chunk: int, n_rows: int, seed: int) -> NDArray[np.float32]:
        """Return a chunk of the columns, (columns, rows)."""
        rng = np.random.default_rng([seed, self.number, 1 + chunk])
        return rng.standard_normal((len(self.columns), n_rows), dtype=np.float32)

    def score(self, X: NDArray[np.float32]) -> Scores:
        """Return what the label owes to these columns."""
        seen = X[self.true].astype(np.float64)
        seen[1::2] = np.tanh(2 * seen[1::2])
        result: Scores = self.weights @ seen
        return result


def make(
    out: Path, n_rows: int, n_columns: int, n_parties: int, n_files: int, **more: Any
) -> None:
    """Write kit, tables and truth."""
    seed, compression = more["seed"], more["compression"]
    if n_columns // n_parties < N_TRUE:
        raise SystemExit(f"There must be {N_TRUE} columns for each party at least.")
    if n_files > (most := -(-n_rows // CHUNK)):
        raise SystemExit(f"Of files there must be {most} at most. Got {n_files}.")
    parts = np.array_split(np.arange(n_columns), n_parties)
    shares = [Share.draw(m, len(part), seed) for m, part in enumerate(parts)]
    certificates.init(out, [share.name for share in shares])
    started = time.perf_counter()
    right = write_tables(out, shares, n_rows, n_files, seed, compression)
    data = "columns.parquet" if n_files == 1 else "columns"
    for share in shares:
        common = {"data": data, "id": "row", "align": "none"}
        # The same result every time; a party would keep to its own secret.
        fill_in(out / share.name / "party.yaml", seed_private="shared", **common)
    fill_in(
        out / "server" / "server.yaml",
        data="labels.parquet",
        label="y",
        id="row",
        align="none",
        evaluation="end",
        status=None,
    )
    truth = {
        "rows": n_rows,
        "best_accuracy": right / n_rows,
        "informative": {s.name: [s.columns[j] for j in s.true] for s in shares},
    }
    (out / "truth.json").write_text(json.dumps(truth, indent=1), encoding="utf-8")
    size = sum(path.stat().st_size for path in out.rglob("*.parquet"))
    print(
        f"{n_rows:,} rows of {n_columns:,} columns at {n_parties} parties: "
        f"{size / 2**20:,.0f} MiB in {time.perf_counter() - started:.1f} s "
        f"(compression {compression}), peak memory {status_of('self', 'VmHWM'):.0f} "
        f"MiB, best accuracy {right / n_rows:.3f}",
        flush=True,
    )


def write_tables(
    out: Path,
    shares: Sequence[Share],
    n_rows: int,
    n_files: int,
    seed: int,
    compression: str,
) -> int:
    """Write all tables, chunk by chunk; return in how many rows noise changed nothing.

    A file ends with a chunk, so that rows are the same whatever the number of files.
    """
    starts = range(0, n_rows, CHUNK)
    size = np.sqrt(sum(np.square(share.weights).sum() for share in shares))
    right = 0
    with contextlib.ExitStack() as files:
        labels = _writer(
            out / "server" / "labels.parquet", ["y"], pa.int8(), compression
        )
        files.enter_context(labels)
        for part in np.array_split(np.arange(len(starts)), n_files):
            with contextlib.ExitStack() as those:
                writers = []
                for share in shares:
                    path = _path(out / share.name, part, n_files)
                    writer = _writer(path, share.columns, pa.float32(), compression)
                    writers.append(those.enter_context(writer))
                for chunk in part.tolist():
                    rows = np.arange(starts[chunk], min(starts[chunk] + CHUNK, n_rows))
                    score = np.zeros(len(rows))
                    for share, writer in zip(shares, writers, strict=True):
                        X = share.values(chunk, len(rows), seed)
                        score += share.score(X)
                        _write(writer, rows, X)
                    rng = np.random.default_rng([seed, len(shares), 1 + chunk])
                    noise = NOISE * size * rng.standard_normal(len(rows))
                    y = score + noise > 0
                    right += int((y == (score > 0)).sum())
                    _write(labels, rows, y.astype(np.int8)[None])
    return right


def _path(side: Path, part: NDArray[np.int64], n_files: int) -> Path:
    """Return the file of some chunks."""
    if n_files == 1:
        return side / "columns.parquet"
    (side / "columns").mkdir(exist_ok=True)
    return side / "columns" / f"part-{part[0]:06}.parquet"


def _writer(path: Path, columns: Sequence[str], kind: Any, compression: str) -> Any:
    """Open a file of ids and columns of one kind."""
    schema = pa.schema([("row", pa.int64()), *((name, kind) for name in columns)])
    return parquet.ParquetWriter(
        path, schema, use_dictionary=False, compression=compression
    )


def _write(writer: Any, rows: NDArray[np.int64], X: NDArray[Any]) -> None:
    arrays = [pa.array(rows), *map(pa.array, X)]
    writer.write_batch(pa.record_batch(arrays, schema=writer.schema))


def fill_in(path: Path, **values: Any) -> None:
    """Fill in a ready config."""
    ready = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(ready | values), encoding="utf-8")


# ------------------------------------------------------------------------------ running


def run(base: Path, how: argparse.Namespace) -> Line:
    """Run what was made; print and return what it took."""
    settings, threads = how.set, how.threads
    truth = json.loads((base / "truth.json").read_text(encoding="utf-8"))
    names = list(truth["informative"])
    address = f"127.0.0.1:{localhost.free_port()}"
    told = dict(pair.split("=", 1) for pair in settings)
    fill_in(
        base / "server" / "server.yaml",
        listen=address,
        threads=threads,
        settings={name: yaml.safe_load(value) for name, value in told.items()},
    )
    for name in names:
        own = {"server": address, "threads": threads, "storage": how.storage}
        fill_in(base / name / "party.yaml", **own)
    for name in ("server", *names):
        shutil.rmtree(base / name / "run", ignore_errors=True)
    started = time.perf_counter()
    peaks = run_sides(base, names, threads, how.memory)
    line = {"rows": truth["rows"], "wall s": time.perf_counter() - started}
    for name, (anonymous, whole) in peaks.items():
        print(f"  {name:<8} RssAnon {anonymous:8,.0f} MiB   VmHWM {whole:8,.0f} MiB")
    (numbers,) = RunRecord.read(base / "server" / "run").runs
    sent = numbers["communication"]
    line |= {
        "server MiB": peaks["server"][0],
        "party MiB": max(peaks[name][0] for name in names),
        "payload MB": sum(sent["payload_bytes"][way] for way in ("up", "down")) / 1e6,
        "wire MB": sum(sent["wire_bytes"].values()) / 1e6,
        **compare(base, truth["informative"]),
        "accuracy": numbers["accuracy"]["final"],
        "best": truth["best_accuracy"],
    }
    stages = ", ".join(f"{k} {v:.1f}" for k, v in numbers["seconds"].items() if v >= 1)
    print(f"  seconds: {stages}")
    return line


def compare(base: Path, truth: Mapping[str, Sequence[str]]) -> Line:
    """Return how many columns the parties found, missed and kept without reason."""
    found = missed = false = 0
    for name, true in truth.items():
        (numbers,) = RunRecord.read(base / name / "run").runs
        kept = set(numbers["features"][name]["kept"])
        found += len(kept & {*true})
        missed += len({*true} - kept)
        false += len(kept - {*true})
    return {"found": found, "missed": missed, "false": false}


def run_sides(
    base: Path, names: Sequence[str], threads: int, most: int | None
) -> dict[str, tuple[float, float]]:
    """Run server and parties to their end; return the peaks of their memory in MiB."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    peaks = dict.fromkeys(("server", *names), (0.0, 0.0))
    try:
        for name in peaks:
            command = "server" if name == "server" else "party"
            processes[name] = localhost.start(base / name, command, threads)
            if most is not None and name != "server":
                limit = (most << 20, most << 20)
                resource.prlimit(processes[name].pid, resource.RLIMIT_DATA, limit)
        while any(process.poll() is None for process in processes.values()):
            for name, process in processes.items():
                with contextlib.suppress(OSError, LookupError):  # it has just ended
                    both = (status_of(process.pid, k) for k in ("RssAnon", "VmHWM"))
                    peaks[name] = tuple(map(max, peaks[name], both))
                if process.poll() not in (None, 0):
                    log = (base / name / "log.txt").read_text(encoding="utf-8")
                    raise SystemExit(f"{name} failed:\n{log[-2000:]}")
            time.sleep(LOOK_SECONDS)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
    return peaks


def grow(given: argparse.Namespace, options: dict[str, Any]) -> None:
    """Make and run tables of several sizes; print the ratios to the first."""
    lines: list[Line] = []
    for times in map(int, given.times.split(",")):
        with tempfile.TemporaryDirectory(dir=given.out) as scratch:
            base = Path(scratch) / "table"
            make(base, n_rows=times * given.rows, **options)
            lines.append(run(base, given))
    show(lines)
    for line in lines[1:]:
        ratios = (f"{k} {line[k] / lines[0][k]:.2f}" for k in list(line)[:4])
        print("ratio to the first:", ", ".join(ratios))


def same(given: argparse.Namespace) -> None:
    """Run in memory and on disk; compare what comes of it."""
    lines, found = [], []
    for storage in ("memory", "disk"):
        given.storage = storage
        lines.append(run(given.folder, given))
        names = json.loads((given.folder / "truth.json").read_text())["informative"]
        of = {name: RunRecord.read(given.folder / name / "run") for name in names}
        (numbers,) = RunRecord.read(given.folder / "server" / "run").runs
        paid = numbers["communication"]
        found.append(
            {
                "features": {name: one.runs[0]["features"] for name, one in of.items()},
                "curve": numbers["curve"],
                "bill": [paid["payload_bytes"], paid["rounds"], numbers["bill"]],
            }
        )
    show(lines)
    for name in found[0]:
        print(
            f"{name}: {'the same' if found[0][name] == found[1][name] else 'DIFFERS'}"
        )
    if found[0] != found[1]:
        raise SystemExit(1)


def show(lines: Sequence[Line]) -> None:
    """Print a table."""
    print("  ".join(f"{name:>10}" for name in lines[0]))
    for line in lines:
        cells = (f"{v:,}" if isinstance(v, int) else f"{v:.4g}" for v in line.values())
        print("  ".join(f"{cell:>10}" for cell in cells), flush=True)


def main() -> None:
    """Make a table, run one, or see how both grow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = argparse.ArgumentParser(add_help=False)
    making.add_argument("--rows", type=int, default=1_000_000)
    making.add_argument("--columns", type=int, default=1000, help="of all parties")
    making.add_argument("--parties", type=int, default=4)
    making.add_argument("--files", type=int, default=1, help="of each party")
    making.add_argument("--compression", default="none", help="none, lz4, zstd, ...")
    making.add_argument("--seed", type=int, default=0)
    running = argparse.ArgumentParser(add_help=False)
    running.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    running.add_argument("--threads", type=int, default=1)
    running.add_argument("--storage", default="auto", help="auto, memory or disk")
    running.add_argument("--memory", type=int, metavar="MIB", help="that a party has")
    one = commands.add_parser("make", parents=[making])
    one.add_argument("--out", type=Path, required=True, help="a new folder")
    one = commands.add_parser("run", parents=[running])
    one.add_argument("folder", type=Path, help="what was made")
    one = commands.add_parser("same", parents=[running])
    one.add_argument("folder", type=Path, help="what was made")
    growing = commands.add_parser("grow", parents=[making, running])
    growing.add_argument("--times", default="1,4,16", help="times the rows")
    growing.add_argument("--out", type=Path, help="where tables are for a while")
    few = {"rows": 500, "columns": 24, "parties": 2, "times": "1"}
    given = smoke.parse(parser, growing, **few, set=["train_epochs=1"])
    if given.command == "run":
        show([run(given.folder, given)])
        return
    if given.command == "same":
        same(given)
        return
    options = {
        "n_columns": given.columns,
        "n_parties": given.parties,
        "n_files": given.files,
        "compression": given.compression,
        "seed": given.seed,
    }
    if given.command == "make":
        make(given.out, n_rows=given.rows, **options)
    else:
        grow(given, options)


if __name__ == "__main__":
    main()
