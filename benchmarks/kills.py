"""Processes that are killed: a run that ends as undisturbed, answers that are right.

A server and three parties, each a process on loopback; any of them is killed (SIGKILL)
at random and started again:

    python benchmarks/kills.py train                   # 20 kills during boosted runs
    python benchmarks/kills.py predict                 # 20 kills of a service
    python benchmarks/kills.py train --method vertical-forest --kills 50 --seed 1

Runs must leave the networks, scores and bill of an undisturbed one. A service may say
that it cannot answer; what it answers must be what the parts of all sides say in one
process. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from lessvfl import data, load
from lessvfl.remote.localhost import free_port
from lessvfl.run.record import RunRecord

HELD = {"clinic": ("age", "town"), "bank": ("income", "debt"), "lab": ("dust",)}
SIDES = ("server", *HELD)
N_ROWS = 400
PATIENCE = 120.0  # seconds until something must have happened
ALIKE = 1e-6
TREES = {"trees": 60, "select_trees": 10, "tree_depth": 4, "copies": 20}

Start = Callable[[Sequence[str]], Any]  # of a command of lessvfl: a process


def start_python(words: Sequence[str]) -> Any:
    """Start a command of lessvfl in a Python of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "lessvfl.cli", *words], stdout=subprocess.DEVNULL
    )


def people() -> tuple[pd.DataFrame, Any]:
    """Return a table with a category and missing cells, and labels of three classes."""
    random = np.random.default_rng(3)
    towns = np.array(["Ulm", "Bonn", "Jena", "Kiel"], dtype=object)
    table = pd.DataFrame(
        {
            "age": random.normal(50, 15, N_ROWS),
            "town": random.choice(towns, N_ROWS),
            "income": random.standard_t(2, N_ROWS) * 1000,
            "debt": random.normal(size=N_ROWS),
            "dust": random.normal(size=N_ROWS),
        }
    )
    score = (table["age"] - 50) / 15 + 2.0 * (table["town"] == "Bonn")
    score = np.asarray(score + np.clip(table["income"] / 1000, -2, 2))
    score = score + random.normal(size=N_ROWS)
    table.loc[::7, "age"] = np.nan
    table.loc[5::19, "town"] = None
    classes = np.digitize(score, np.quantile(score, [1 / 3, 2 / 3]))
    return table, np.array(["well", "ill", "worse"])[classes]


class Sides:
    """A server and its parties as processes in one folder."""

    def __init__(
        self, folder: Path, method: str, settings: dict[str, Any], start: Start
    ) -> None:
        self.folder, self._start = folder, start
        self._running: dict[str, Any] = {}
        self.http = free_port()
        port, (table, labels) = free_port(), people()
        ids = [f"person-{i}" for i in range(N_ROWS)]
        # An alignment would put common rows into an order of every run's own.
        common: dict[str, Any] = {"align": "none", "data": "table.csv", "id": "id"}
        common |= {"out": "run", "wait": PATIENCE}
        server: dict[str, Any] = {"listen": f"127.0.0.1:{port}", "label": "y"}
        server |= {"parties": list(HELD), "method": method, "settings": settings}
        server |= {"save_every": 20, "silence": 5.0}
        policy: dict[str, Any] = {"methods": [method], "values": 10**6}
        policy |= {"components_per_column": 9, "limits": {"bits": None}}
        policy |= {"predict_rows": 10**6, "predict_rate": 10**6}
        policy |= {"predict_alignments": 1000, "align_rate": 1000}
        for side, columns in {"server": (), **HELD}.items():
            (folder / side).mkdir(parents=True)
            own = table[list(columns)].copy()
            own.insert(0, "id", ids)
            if side == "server":
                own["y"], config = labels, server
            else:
                config = {"server": f"127.0.0.1:{port}", "name": side}
                config |= {"seed_private": "shared", "policy": policy}
            own.to_csv(folder / side / "table.csv", index=False)
            text = yaml.safe_dump(common | config)
            (folder / side / f"{_role(side)}.yaml").write_text(text)

    @contextlib.contextmanager
    def all_running(self, *words: str) -> Iterator[None]:
        """Have all sides run, with words for the server before its config."""
        try:
            for side in reversed(SIDES):
                self.start(side, *words)
            yield
        finally:
            for process in self._running.values():
                if process.poll() is None:
                    process.kill()
                process.wait()

    def start(self, side: str, *words: str) -> None:
        """Start a side; `predict` among the words has it predict."""
        own = [word for word in words if side == "server" or word == "predict"]
        first = [word for word in own if word == "predict"]
        rest = [word for word in own if word != "predict"]
        config = self.folder / side / f"{_role(side)}.yaml"
        common = ["--insecure", "--quiet", "--config", str(config)]
        self._running[side] = self._start([*first, _role(side), *common, *rest])

    def kill(self, side: str) -> None:
        """Kill a side, unless it has ended by itself."""
        if self._running[side].poll() is None:
            self._running[side].kill()
        self._running[side].wait()

    def are_over(self) -> bool:
        """Tell whether all have ended; one that ended badly is an error."""
        codes = {side: process.poll() for side, process in self._running.items()}
        bad = {side: code for side, code in codes.items() if code}
        if bad:
            raise RuntimeError(f"exit codes {bad} in {self.folder}")
        return all(code == 0 for code in codes.values())

    def mark(self) -> float:
        """Return when the server last saved where it is, 0 before it did."""
        path = self.folder / "server" / "run" / "seed-0" / "checkpoint.safetensors"
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_mtime
        return 0.0

    def result(self) -> dict[str, Any]:
        """Return what a run left: networks, scores, features and bills."""
        found: dict[str, Any] = {}
        for side in SIDES:
            run = self.folder / side / "run"
            (numbers,) = RunRecord.read(run).runs
            names = ("accuracy", "curve", "components", "features", "ratings", "bill")
            own = {name: numbers.get(name) for name in names}
            own["bill"] = sorted(map(str, own["bill"]))
            nets = sorted(run.glob("networks*/seed-0/**/network.safetensors"))
            found[side] = own | {"networks": [path.read_bytes() for path in nets]}
            assert nets
        return found


def _role(side: str) -> str:
    return "server" if side == "server" else "party"


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something is so, and not for ever."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.005)


# ----------------------------------------------------------------------------- training


def trained(sides: Sides) -> dict[str, Any]:
    """Run undisturbed; return what it left."""
    with sides.all_running():
        until(sides.are_over, "the end of a run")
    return sides.result()


def kill_while_running(
    sides: Sides, killed: Counter[str], n_kills: int, chance: random.Random
) -> None:
    """Kill sides of a run to its end, until there were so many kills in all.

    A kill comes at a random moment after the server saved its state once more.
    """
    mark = 0.0

    def has_moved() -> bool:
        return sides.mark() > mark or sides.are_over()

    with sides.all_running():
        while killed.total() < n_kills:
            until(has_moved, "a checkpoint")
            time.sleep(chance.uniform(0, 0.2))
            if sides.are_over():
                return
            mark, side = sides.mark(), chance.choice(SIDES)
            sides.kill(side)
            sides.start(side, *(["--resume"] if side == "server" else []))
            killed[side] += 1
        until(sides.are_over, "the end of a run")


def killed_runs(
    new: Callable[[str], Sides], n_kills: int, seed: int
) -> tuple[Counter[str], list[bool]]:
    """Return who was killed how often, and which runs ended as undisturbed."""
    expected, chance = trained(new("undisturbed")), random.Random(seed)
    killed: Counter[str] = Counter()
    are_equal: list[bool] = []
    while killed.total() < n_kills:
        sides = new(f"run-{len(are_equal)}")
        kill_while_running(sides, killed, n_kills, chance)
        are_equal.append(sides.result() == expected)
    return killed, are_equal


# --------------------------------------------------------------------------- prediction


class Asker(threading.Thread):
    """Asks a service for predictions, as fast as it answers."""

    def __init__(self, sides: Sides, seed: int) -> None:
        super().__init__(daemon=True)
        self.heard: Counter[str] = Counter()  # right, wrong, or a status code
        self.is_over = threading.Event()
        self._sides, self._chance = sides, random.Random(seed)
        self._right = _answers(sides)

    def run(self) -> None:
        """Ask until told to end."""
        while not self.is_over.is_set():
            rows = self._chance.sample(range(N_ROWS), self._chance.randint(1, 5))
            what = self._ask(rows)
            self.heard[what] += 1
            if what not in ("right", "wrong"):
                time.sleep(0.02)

    def _ask(self, rows: list[int]) -> str:
        token = self._sides.folder / "server" / "run" / "token"
        url = f"http://127.0.0.1:{self._sides.http}/predict"
        body = json.dumps({"ids": [f"person-{row}" for row in rows]}).encode()
        try:
            headers = {"Authorization": f"Bearer {token.read_text()}"}
            request = urllib.request.Request(url, body, headers)
            with urllib.request.urlopen(request, timeout=30) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as refused:
            return str(refused.code)
        except OSError:  # nobody is there, or a line was cut
            return "nobody"
        except (ValueError, http.client.HTTPException):
            return "cut short"
        return "right" if self._is_right(rows, said["predictions"]) else "wrong"

    def _is_right(self, rows: list[int], said: list[Any]) -> bool:
        if len(said) != len(rows):
            return False
        for row, one in zip(rows, said, strict=True):
            found = [one["probabilities"].get(name) for name in self._right[row]]
            if one["id"] != f"person-{row}" or None in found:
                return False
            if not np.allclose(found, list(self._right[row].values()), 0, ALIKE):
                return False
        return True


def _answers(sides: Sides) -> list[dict[str, float]]:
    """Return what the parts of all sides say of every row, in this process."""
    table, _ = people()
    server = load(sides.folder / "server" / "run", 0)
    blocks = []
    for name, columns in HELD.items():
        part = load(sides.folder / name / "run", 0)
        blocks.append(part.embed(data.frame_of(table[list(columns)])))
    shares = server.probabilities(server.fuse(blocks, N_ROWS))
    return [dict(zip(server.label_names, own.tolist(), strict=True)) for own in shares]


def killed_service(sides: Sides, n_kills: int, seed: int) -> tuple[Any, Any]:
    """Kill sides of a service; return whom how often, and what was answered."""
    trained(sides)
    chance, killed = random.Random(seed), Counter[str]()
    words = ("predict", "--http", f"127.0.0.1:{sides.http}")
    asker = Asker(sides, seed)
    with sides.all_running(*words):
        asker.start()
        for n_before in range(n_kills + 1):
            n_right = asker.heard["right"]
            until(lambda n=n_right: asker.heard["right"] > n, "a right answer")
            time.sleep(chance.uniform(0, 0.2))
            if n_before == n_kills:
                break
            side = chance.choice(SIDES)
            sides.kill(side)
            sides.start(side, *words)
            killed[side] += 1
        asker.is_over.set()
        asker.join(PATIENCE)
    return killed, asker.heard


def main() -> int:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["train", "predict"])
    parser.add_argument("--method", default="vertical-boost")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    settings = TREES if given.method.startswith("vertical-") else {}
    with tempfile.TemporaryDirectory() as folder:

        def new(name: str) -> Sides:
            return Sides(Path(folder) / name, given.method, settings, start_python)

        if given.what == "train":
            killed, are_equal = killed_runs(new, given.kills, given.seed)
            print(f"{killed.total()} kills: {dict(killed)}")
            print(f"{sum(are_equal)} of {len(are_equal)} runs as the undisturbed one")
            return int(not all(are_equal))
        killed, heard = killed_service(new("service"), given.kills, given.seed)
        right, wrong = heard.pop("right", 0), heard.pop("wrong", 0)
        print(f"{killed.total()} kills: {dict(killed)}")
        print(f"{right:,} right answers, {wrong} wrong; no answer: {dict(heard)}")
        return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
