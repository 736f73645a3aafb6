"""What both examples share: everybody's folder, and the comparison at the end."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lessvfl import data
from lessvfl.remote import localhost, nvflare
from lessvfl.remote.config import ServerConfig, read
from lessvfl.run import profiles
from lessvfl.run.simulate import Job, simulate

RUN = "demo"
SEED = 0
QUICK = {"pretrain_epochs": 2, "train_epochs": 2}


@contextlib.contextmanager
def prepared(
    name: str, settings: Mapping[str, Any], base: Path | None
) -> Iterator[tuple[Path, Job, list[str]]]:
    """Give a folder, what to run, and who takes part, whose sides are in the folder."""
    with tempfile.TemporaryDirectory(prefix="lessvfl-nvflare-") as scratch:
        base = base or Path(scratch)
        job = make_job(name, settings)
        yield base, job, write_sides(job, base / "sides")


def make_job(name: str, settings: Mapping[str, Any]) -> Job:
    """Return what to run: the default method on a data set dealt to three parties."""
    dataset = data.load(name)
    chosen = profiles.resolve("less-vfl", "default", dataset, settings)
    return Job(dataset, chosen, parties=3, device="cpu")


def write_sides(job: Job, folder: Path) -> list[str]:
    """Give everybody a folder with a table and a config; return who takes part."""
    problem = job.problem(SEED)
    folder.parent.mkdir(parents=True, exist_ok=True)
    port = localhost.free_port()  # FLARE needs none of ours
    localhost.write_folders(job, problem, [SEED], folder, port)
    return ["server", *(table.name for table in problem.parties)]


def config_of(folder: Path, name: str) -> Path:
    """Return the config of a side."""
    return folder / name / ("server.yaml" if name == "server" else "party.yaml")


def write_job(folder: Path, out: Path) -> Path:
    """Write the job that FLARE is given; as ``lessvfl nvflare job`` does."""
    nvflare.write_job(read(ServerConfig, config_of(folder, "server")), RUN, out)
    return out


def same(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be equal to the bit: all but times and bytes on the wire."""
    bill = dict(numbers["communication"])
    for name in ("wire_bytes", "frames", "resent_bytes"):
        bill.pop(name, None)
    return {**numbers, "communication": bill, "seconds": None}


def compare(job: Job, folder: Path) -> bool:
    """Compare what everybody wrote down with a run in this process."""
    numbers = localhost.collect([job.problem(SEED)], folder)[0]
    alone = simulate(job, [SEED])[0].numbers
    is_same = same(numbers) == same(alone)
    measure = next(iter(set(numbers) & {"accuracy", "r2"}))
    print(f"over FLARE: {measure} {numbers[measure]['final']:.6f}")
    print(f"in-process: {measure} {alone[measure]['final']:.6f}")
    print("same to the bit" if is_same else "NOT the same")
    return is_same
