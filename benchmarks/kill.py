"""Runs in which processes are killed at random must end as if nothing had happened.

Starts server and parties as processes that align their rows privately, kills one or two
of them with SIGKILL, starts them again, and compares features, accuracy, curve and bill
with those of an undisturbed run. A kill is due during the alignment, inside stage 2 or
3, or at a random moment between the first exchange and the end, in turn. Every side has
its own secret, the same in all runs, from which weights, shadows and the common order
come:

    python benchmarks/kill.py --runs 100 --jobs 4
    python benchmarks/kill.py --runs 10 --seeds 0,1    # one after the other
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import smoke
import torch
import yaml

from lessvfl import data, methods
from lessvfl.errors import LessVFLWarning
from lessvfl.remote import localhost
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.run import profiles
from lessvfl.run.simulate import Job

SETTINGS = {"train_epochs": 15, "batch_size": 16}
SHORT = {"train_epochs": 1}
MOMENTS = ("alignment", "stage 2", "stage 3", "any time")
LONGEST = 1200.0  # seconds of exchanges after which a run counts as hanging


def main() -> None:
    """Run undisturbed once, then disturbed as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--seeds", default="0", help="of the runs; several: no noise")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    given = smoke.parse(parser, runs=1)
    seeds = [int(seed) for seed in given.seeds.split(",")]
    warnings.simplefilter("ignore", LessVFLWarning)
    dataset = data.load("breast-cancer")
    own = SHORT if given.smoke else SETTINGS
    settings = profiles.resolve(methods.DEFAULT, "default", dataset, own)
    spurious = 0.5 if len(seeds) == 1 else 0.0
    job = Job(dataset, settings, parties=2, spurious=spurious, device="cpu")
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        calm = random.Random(0)
        expected, seconds, _ = once(job, seeds, base / "undisturbed", [], calm)
        print(f"undisturbed: {seconds:.1f} s of exchanges", flush=True)
        same, hit = 0, Counter[str]()

        def disturbed(number: int) -> Any:
            rng = random.Random(f"{given.seed} {number}")
            due: list[Due] = [MOMENTS[number % len(MOMENTS)]]
            if due == ["any time"]:
                due = [rng.uniform(0, 0.9 * seconds)]
            if rng.random() < 0.3:
                due.append(rng.uniform(0, 0.9 * seconds))
            return once(job, seeds, base / str(number), due, rng)

        with ThreadPoolExecutor(given.jobs) as pool:
            for number, ended in enumerate(pool.map(disturbed, range(given.runs))):
                found, lasted, killed = ended
                hit.update(moment for _, moment in killed)
                resent = sum(one["communication"]["resent_bytes"] for one in found)
                alike = list(map(comparable, found)) == list(map(comparable, expected))
                same += alike
                victims = ", ".join(f"{name} ({moment})" for name, moment in killed)
                print(
                    f"{number}: {'identical' if alike else 'DIFFERENT'}, {lasted:.1f} "
                    f"s, killed {victims}, {resent} bytes sent again",
                    flush=True,
                )
    print("kills:", ", ".join(f"{n} {moment}" for moment, n in sorted(hit.items())))
    print(f"{same} of {given.runs} identical")
    sys.exit(same != given.runs)


def comparable(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return what must be equal: all but times and what was sent twice."""
    bill = {
        name: value
        for name, value in numbers["communication"].items()
        if name not in ("wire_bytes", "frames", "socket", "resent_bytes")
    }
    return {**numbers, "communication": bill, "seconds": None}


Due = float | str  # seconds after the first exchange, or what is going on


def write_sides(job: Job, problem: Any, seeds: list[int], folder: Path) -> list[str]:
    """Make everybody's folder; return the names. Secrets are the same every time."""
    localhost.write_folders(job, problem, seeds, folder, localhost.free_port(), 1, 10)
    names = ["server", *(table.name for table in problem.parties)]
    for name in names:
        path = folder / name / f"{'server' if name == 'server' else 'party'}.yaml"
        config = yaml.safe_load(path.read_text()) | {"align": "psi"}
        if name != "server":
            config["seed_private"] = "own"
        path.write_text(yaml.safe_dump(config))
        secret = torch.tensor(list(hashlib.sha256(name.encode()).digest()))
        state = State({"secret": secret.to(torch.uint8)}, {"facts": None})
        write_state(folder / name / "run" / "side.safetensors", state)
    return names


def moment_of(folder: Path) -> str:
    """Return what is going on, as the server's folder tells."""
    run = folder / "server" / "run"
    if not (run / "run.safetensors").is_file():
        return "start"
    if not (run / "rows.safetensors").is_file():
        return "alignment"
    marks = sorted(run.glob("seed-*/checkpoint.safetensors"))
    if not marks:
        return "stage 1"
    saved = read_state(marks[-1]).values
    if saved["behind"] == ["pretrain"]:
        return "stage 2"
    if saved["behind"] == ["pretrain", "select_components"]:
        return "stage 3"
    return "training"


def once(
    job: Job, seeds: list[int], folder: Path, due: list[Due], rng: random.Random
) -> tuple[list[dict[str, Any]], float, list[tuple[str, str]]]:
    """Run to the end, killing when it is due; return numbers, seconds, victims."""
    problems = [job.problem(seed) for seed in seeds]
    names = write_sides(job, problems[0], seeds, folder)
    running = {name: start(folder, name) for name in names}
    began, killed = time.monotonic(), []
    waiting = list(due)
    while any(process.poll() is None for process in running.values()):
        moment = moment_of(folder)
        if moment == "start":
            began = time.monotonic()  # times count from the first exchange on
        now = time.monotonic() - began
        bad = [n for n, p in running.items() if p.poll() not in (None, 0)]
        if bad or now > LONGEST:
            for process in running.values():
                process.kill()
            log = (folder / (bad or names)[0] / "log.txt").read_text()[-2000:]
            sys.exit(f"{bad or 'all'} did not end well:\n{log}")
        alive = [n for n, p in running.items() if p.poll() is None]
        is_due = [
            d for d in waiting if d == moment or (isinstance(d, float) and now > d)
        ]
        if is_due and alive:
            waiting.remove(is_due[0])
            time.sleep(rng.uniform(0, 0.2))  # not at its very beginning
            victim = rng.choice(alive)
            running[victim].kill()
            running[victim].wait()
            killed.append((victim, moment_of(folder)))
            time.sleep(rng.uniform(0, 0.5))
            running[victim] = start(folder, victim)
        time.sleep(0.01)
    return localhost.collect(problems, folder), time.monotonic() - began, killed


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start one side; a server goes on where it was."""
    if name == "server":
        return localhost.start(folder / name, "server", 1, "--resume")
    return localhost.start(folder / name, "party", 1)


if __name__ == "__main__":
    main()
