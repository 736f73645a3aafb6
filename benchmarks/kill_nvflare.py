"""FLARE sites that are killed at random must not change what comes out.

A provisioned FLARE system on this machine, private alignment, and one run after the
other in which a site is killed with SIGKILL: the process of its job, or the whole site,
in turn, at a random moment. FLARE starts no site's process again within a job, so the
server ends the job; the same job is submitted again and goes on with the run. Features,
scores, curve and bill must be those of an undisturbed run:

    python benchmarks/kill_nvflare.py --kills 20
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import smoke
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the examples

from examples.nvflare import sides
from examples.nvflare.federation import Federation, kill_process, wait_for_job
from kill import SETTINGS, SHORT, comparable, moment_of, write_sides

from lessvfl import data
from lessvfl.errors import LessVFLWarning
from lessvfl.remote import localhost, nvflare
from lessvfl.remote.config import ServerConfig, read
from lessvfl.run import profiles
from lessvfl.run.simulate import Job

SECONDS = {"wait": 20.0, "silence": 20.0}  # a site that stays away ends the job
MOST_JOBS = 5  # until a run must be over


def main() -> None:
    """Run undisturbed once, then with one kill in each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    given = smoke.parse(parser, kills=1)
    warnings.simplefilter("ignore", LessVFLWarning)
    dataset = data.load("breast-cancer")
    own = SHORT if given.smoke else SETTINGS
    settings = profiles.resolve("less-vfl-auto", "default", dataset, own)
    job = Job(dataset, settings, parties=3, device="cpu")
    names = [table.name for table in job.problem(0).parties]
    rng, same = random.Random(given.seed), 0
    with (
        tempfile.TemporaryDirectory() as scratch,
        Federation(Path(scratch) / "flare", names) as flare,
    ):
        flare.provision()
        for name in ("server", *names):
            flare.start(name)
        with flare.session() as session:
            flare.wait_for_sites(session)
            once = Runs(flare, session, job, Path(scratch))
            expected, seconds, _ = once.run("calm", None, "", rng)
            print(f"undisturbed: {seconds:.1f} s of exchanges", flush=True)
            for number in range(given.kills):
                what = ("job", "site")[number % 2]
                due = rng.uniform(0, 0.9 * seconds)
                found, _, told = once.run(f"kill-{number}", due, what, rng)
                is_same = comparable(found) == comparable(expected)
                same += is_same
                how = "identical" if is_same else "DIFFERENT"
                print(f"{number + 1:3}: {told}: {how}", flush=True)
    print(f"{same} of {given.kills} identical")
    sys.exit(same != given.kills)


class Runs:
    """Runs in one FLARE system, each with fresh folders of every side."""

    def __init__(self, flare: Federation, session: Any, job: Job, base: Path) -> None:
        self.flare, self.session, self.job, self.base = flare, session, job, base

    def run(
        self, name: str, due: float | None, what: str, rng: random.Random
    ) -> tuple[dict[str, Any], float, str]:
        """Run to the end with a kill when it is due; return numbers, seconds, words."""
        folder = self.base / name
        for side in write_sides(self.job, self.job.problem(0), [0], folder):
            path = sides.config_of(folder, side)
            config = yaml.safe_load(path.read_text()) | {"wait": SECONDS["wait"]}
            if side == "server":
                config |= SECONDS
            path.write_text(yaml.safe_dump(config))
            nvflare.install(path, self.flare.kits[side], name, side)
        out = self.base / f"job-{name}"
        nvflare.write_job(read(ServerConfig, folder / "server/server.yaml"), name, out)
        job_id = self.session.submit_job(str(out))
        told, seconds = "no kill", 0.0
        began = self._exchanges(folder)
        if due is not None:
            time.sleep(max(0.0, began + due - time.monotonic()))
            victim = rng.choice(self.flare.sites)
            told = f"{what} of {victim} killed in {moment_of(folder)}"
            if what == "job":
                for pid in self.flare.job_processes(victim):
                    kill_process(pid)
            else:
                self.flare.kill(victim)
                self.flare.start(victim)
        else:
            while not (folder / "server/run/record.jsonl").is_file():
                time.sleep(0.02)
            seconds = time.monotonic() - began
        for number in range(MOST_JOBS):
            status = wait_for_job(self.session, job_id)
            if status == "FINISHED:COMPLETED":
                break
            self.flare.wait_for_sites(self.session)
            job_id = self.session.submit_job(str(out))
            told += f", {status.lower()}, submitted again ({number + 2})"
        return localhost.collect([self.job.problem(0)], folder)[0], seconds, told

    @staticmethod
    def _exchanges(folder: Path) -> float:
        """Wait for the first exchange; return when it was."""
        while moment_of(folder) == "start":
            time.sleep(0.02)
        return time.monotonic()


if __name__ == "__main__":
    main()
