"""Runs in which processes are killed at random must end as if nothing had happened.

Starts server and parties as processes, kills one or two of them with SIGKILL at random
moments between the first exchange and the end, starts them again, and compares
features, accuracy, curve and bill with those of an undisturbed run:

    python benchmarks/kill.py --runs 50
    python benchmarks/kill.py --runs 10 --seeds 0,1    # one after the other
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from lessvfl import data, methods
from lessvfl.errors import LessVFLWarning
from lessvfl.remote import localhost
from lessvfl.run import profiles
from lessvfl.run.simulate import Job

SETTINGS = {"train_epochs": 60, "batch_size": 16}
LONGEST = 300.0  # seconds of exchanges after which a run counts as hanging


def main() -> None:
    """Run undisturbed once, then disturbed as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--seeds", default="0", help="of the runs; several: no noise")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    warnings.simplefilter("ignore", LessVFLWarning)
    dataset = data.load("breast-cancer")
    settings = profiles.resolve(methods.DEFAULT, "default", dataset, SETTINGS)
    spurious = 0.5 if len(seeds) == 1 else 0.0
    job = Job(dataset, settings, parties=2, spurious=spurious, device="cpu")
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        expected, seconds, _ = once(job, seeds, base / "undisturbed", [], rng)
        print(f"undisturbed: {seconds:.1f} s of exchanges", flush=True)
        same = 0
        for number in range(given.runs):
            due = sorted(
                rng.uniform(0, 0.9 * seconds) for _ in range(rng.choice((1, 1, 2)))
            )
            found, lasted, killed = once(job, seeds, base / str(number), due, rng)
            resent = sum(one["communication"]["resent_bytes"] for one in found)
            alike = list(map(comparable, found)) == list(map(comparable, expected))
            same += alike
            print(
                f"{number}: {'identical' if alike else 'DIFFERENT'}, {lasted:.1f} s, "
                f"killed {killed}, {resent} bytes sent again",
                flush=True,
            )
    print(f"{same} of {given.runs} identical")
    sys.exit(same != given.runs)


def comparable(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return what must be equal: all but times and what was sent twice."""
    bill = {
        name: value
        for name, value in numbers["communication"].items()
        if name not in ("wire_bytes", "resent_bytes")
    }
    return {**numbers, "communication": bill, "seconds": None}


def once(
    job: Job, seeds: list[int], folder: Path, due: list[float], rng: random.Random
) -> tuple[list[dict[str, Any]], float, list[str]]:
    """Run to the end, killing at the times given; return numbers, seconds, victims."""
    problems = [job.problem(seed) for seed in seeds]
    port = localhost.free_port()
    localhost.write_folders(job, problems[0], seeds, folder, port, 1, 10)
    names = ["server", *(table.name for table in problems[0].parties)]
    running = {name: start(folder, name) for name in names}
    began, killed = time.monotonic(), []
    waiting = list(due)
    first = folder / "server" / "run" / "rows.safetensors"
    while any(process.poll() is None for process in running.values()):
        if not first.is_file():
            began = time.monotonic()  # times count from the first exchange on
        now = time.monotonic() - began
        bad = [n for n, p in running.items() if p.poll() not in (None, 0)]
        if bad or now > LONGEST:
            for process in running.values():
                process.kill()
            log = (folder / (bad or names)[0] / "log.txt").read_text()[-2000:]
            sys.exit(f"{bad or 'all'} did not end well:\n{log}")
        alive = [n for n, p in running.items() if p.poll() is None]
        if waiting and now > waiting[0] and alive:
            waiting.pop(0)
            victim = rng.choice(alive)
            running[victim].kill()
            running[victim].wait()
            killed.append(f"{victim} at {now:.1f} s")
            time.sleep(rng.uniform(0, 0.5))
            running[victim] = start(folder, victim)
        time.sleep(0.02)
    return localhost.collect(problems, folder), time.monotonic() - began, killed


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start one side; a server goes on where it was."""
    if name == "server":
        return localhost.start(folder / name, "server", 1, "--resume")
    return localhost.start(folder / name, "party", 1)


if __name__ == "__main__":
    main()
