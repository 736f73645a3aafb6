"""Joint prediction: what it sends, how long it takes, and whether it survives kills.

``size``: with half of all columns planted noise, the bytes that a prediction of one row
takes up (4 for every component, of all parties) and the columns that it needs, before
anything is removed and with the model of a run, all in one process. ``time``: three
parties as processes, mutual TLS on loopback; a prediction over the wire beside a bare
gRPC exchange (``pip install grpcio``) of as many bytes with as many processes, in turn,
then the service over HTTP. ``kill``: clients keep asking the service while parties and
the server are killed with SIGKILL and started again; answers must be those of the same
model in one process, all else an error that says why, and answers must come again.

    python benchmarks/predict.py size --data-dir DIR
    python benchmarks/predict.py time --data phishing --data-dir DIR
    python benchmarks/predict.py kill --kills 100
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import http.client
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import smoke
import yaml

import lessvfl
from lessvfl import data, methods
from lessvfl.core.device import keep_freed_memory, use_threads
from lessvfl.errors import LessVFLWarning
from lessvfl.remote import certificates, localhost
from lessvfl.run import profiles
from lessvfl.run.simulate import Job, simulate

DATA = "phishing,gina_reconstruction,activity_time265"
SHORT = {"train_epochs": 3}
FREELY = {  # what a party's policy allows here
    "predict_rows": 10**12,
    "predict_rate": 10**12,
    "predict_alignments": 10**6,
}
FLOAT_BYTES = 4
N_PARTIES = 3
NO_CONNECTION = (OSError, http.client.HTTPException, ValueError)
START_SECONDS = 120.0
BACK_SECONDS = 30.0  # within which answers must come again
HANGING_SECONDS = 60.0  # after which a request counts as hanging
OVERLAP = 0.2  # how often the next is killed before the last is back
TOLERANCE = 1e-6  # of a probability: floats, and JSON


# --------------------------------------------------------------------------------- size


def size(given: argparse.Namespace) -> None:
    """Run every data set once, and print what a prediction takes before and after."""
    lines = []
    for name in given.data.split(","):
        dataset = data.load(name, data_dir=given.data_dir)
        settings = profiles.resolve(methods.DEFAULT, "default", dataset)
        (run,) = simulate(Job(dataset, settings, spurious=0.5), [given.seed])
        asked = [p for p in run.model.parties if p.constant is None]
        components = run.numbers["components"].values()
        line = {
            "data": name,
            "parties": len(run.model.parties),
            "asked": len(asked),
            "bytes_before": FLOAT_BYTES * sum(one["of"] for one in components),
            "bytes": FLOAT_BYTES * sum(p.n_components for p in asked),
            "columns_before": sum(len(p.encoding.names) for p in run.problem.parties),
            "columns": sum(len(p.encoding.names) for p in asked),
            "accuracy": run.numbers["accuracy"]["final"],
        }
        lines.append(line)
        print(json.dumps(line), flush=True)
    print("data                  parties  bytes: all  kept  columns: all  kept")
    for line in lines:
        print(
            f"{line['data']:20} {line['parties']:8} {line['bytes_before']:11} "
            f"{line['bytes']:5} {line['columns_before']:13} {line['columns']:5}"
        )


# -------------------------------------------------------- server and parties, processes


def train(given: argparse.Namespace, folder: Path) -> list[str]:
    """Run a short training as ``lessvfl try`` does; return the parties' names."""
    dataset = data.load(given.data, data_dir=given.data_dir)
    settings = profiles.resolve(methods.DEFAULT, "default", dataset, SHORT)
    job = Job(dataset, settings, parties=N_PARTIES)
    localhost.run(job, [0], folder, localhost.free_port())
    names = [table.name for table in job.problem(0).parties]
    for name in names:
        path = folder / name / "party.yaml"
        config = yaml.safe_load(path.read_text())
        config["policy"] |= FREELY
        path.write_text(yaml.safe_dump(config))
    return names


def start(folder: Path, name: str, port: int) -> subprocess.Popen[bytes]:
    """Start the service at a port, or a party that answers predictions."""
    if name != "server":
        return localhost.start(folder / name, "predict party", 1)
    where = ("--http", f"127.0.0.1:{port}")
    return localhost.start(folder / name, "predict server", 1, *where)


@contextmanager
def running(
    folder: Path, names: Sequence[str], port: int = 0
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start these; have none outlive this. With the server, wait for its answers."""
    processes = {name: start(folder, name, port) for name in names}
    try:
        if "server" in names:
            while not (folder / "server" / "run" / "token").is_file():
                time.sleep(0.1)
            if Client(folder, port).wait(START_SECONDS) > START_SECONDS:
                sys.exit("The service does not answer.")
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def expected(folder: Path, names: Sequence[str]) -> dict[int, list[float]]:
    """Return the probabilities of every id, computed in this process."""
    server = lessvfl.load(folder / "server" / "run")
    blocks, ids = [], np.empty(0)
    for name in names:
        frame, ids = data.load_columns(folder / name / "columns.parquet", "row")
        blocks.append(lessvfl.load(folder / name / "run").embed(frame))
    shares = server.probabilities(server.fuse(blocks, len(ids)))
    return dict(zip(ids.tolist(), shares.tolist(), strict=True))


class Client:
    """One client of the service, over one connection as long as that lasts."""

    def __init__(self, folder: Path, port: int) -> None:
        token = (folder / "server" / "run" / "token").read_text().strip()
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
        }
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", port, timeout=HANGING_SECONDS
        )

    def ask(self, ids: Sequence[int]) -> tuple[int, Any]:
        """Return status and JSON; what is wrong with the connection is raised."""
        body = json.dumps({"ids": ids})
        try:
            self._connection.request("POST", "/predict", body, self._headers)
            response = self._connection.getresponse()
            return response.status, json.loads(response.read())
        except NO_CONNECTION:
            self._connection.close()
            raise

    def wait(self, seconds: float) -> float:
        """Wait until there are answers; return how long, infinity: there are none."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            with contextlib.suppress(*NO_CONNECTION):
                if self.ask([0])[0] == 200:
                    return time.monotonic() - began
            time.sleep(0.02)
        return math.inf


# --------------------------------------------------------------------------------- time


def sized(request: bytes) -> bytes:
    """Return as many bytes as a request asks for."""
    return bytes(int.from_bytes(request[:4], "little"))


def bare_party(folder: Path, name: str, address: str) -> None:
    """Answer over gRPC with bytes alone."""
    import transport

    transport.grpc_party(folder, name, address, sized)


def summary(ms: Sequence[float]) -> str:
    """Return median and 99th percentile as words."""
    middle, last = statistics.median(ms), float(np.percentile(ms, 99))
    return f"median {middle:.2f} ms, p99 {last:.2f} ms"


def wire(given: argparse.Namespace, folder: Path, names: list[str]) -> None:
    """Time predictions over the wire and bare exchanges in turn."""
    import transport

    from lessvfl.remote.config import ServerConfig, read
    from lessvfl.remote.identity import server_credentials
    from lessvfl.remote.predict import Predictor
    from lessvfl.wire.flight import FlightHub

    own = read(ServerConfig, folder / "server" / "server.yaml")
    secrets = server_credentials(own, False)
    hub = FlightHub(own.listen, own.parties, secrets, name_of=certificates.name_of_peer)
    predictor = Predictor(own, data.load_ids(Path(own.data), "row"), hub)
    asked, rng = predictor.parties, np.random.default_rng(given.seed)
    with (
        running(folder, names),
        transport.grpc_streams(folder, asked, bare_party) as exchange,
    ):
        n_common = predictor.begin()
        lengths: dict[str, tuple[int, int]] = {}  # by party: up, down
        for n_rows in given.rows:

            def predict(n_rows: int = n_rows) -> Any:
                return predictor.predict(rng.integers(n_common, size=n_rows))

            rules = hub.rules
            hub.rules = dataclasses.replace(
                rules,
                carried=lambda party, request, up, down: lengths.update(
                    {party: (up, down)}
                ),
            )
            predict()
            hub.rules = rules
            requests = [
                up.to_bytes(4, "little") + bytes(down - 4)
                for up, down in map(lengths.__getitem__, asked)
            ]
            ways = {"ours": predict, "bare gRPC": functools.partial(exchange, requests)}
            found: dict[str, list[list[float]]] = {name: [] for name in ways}
            for number in range(given.rounds + 1):  # the first is for warming up
                for name in list(ways)[:: 1 if number % 2 else -1]:
                    found[name].append(transport.timed(ways[name], given.repeats))
            up, down = (sum(both) for both in zip(*lengths.values(), strict=True))
            print(f"{n_rows} rows, {up} bytes up, {down} down")
            for name, (_, *series) in found.items():
                print(f"{name:>12}: {summary([*itertools.chain(*series)])}")
            ours, bare = ([*map(statistics.median, of[1:])] for of in found.values())
            ratios = sorted(a / b for a, b in zip(ours, bare, strict=True))
            print(
                f"{'ratio':>12}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to "
                f"{ratios[-1]:.2f} in {given.rounds} rounds)",
                flush=True,
            )
        hub.close()
        predictor.close()


def over_http(given: argparse.Namespace, folder: Path, names: list[str]) -> None:
    """Time the service: one client, then many at once."""
    port = localhost.free_port()
    n_ids = len(data.load_ids(folder / "server" / "labels.npz", "row"))

    def work(place: int, n_clients: int, end: float) -> list[float]:
        client, ms = Client(folder, port), []
        for number in itertools.count(place, n_clients):
            began = time.perf_counter()
            if time.monotonic() > end:
                return ms
            status, found = client.ask([number % n_ids])
            ms.append(1e3 * (time.perf_counter() - began))
            assert status == 200, found
        raise AssertionError

    with running(folder, ["server", *names], port):
        for n_clients in (1, given.clients):
            end = time.monotonic() + given.seconds
            with ThreadPoolExecutor(n_clients) as pool:
                one = functools.partial(work, n_clients=n_clients, end=end)
                ms = [*itertools.chain(*pool.map(one, range(n_clients)))]
            rate = len(ms) / given.seconds
            print(f"HTTP, {n_clients} at once: {rate:.0f} a second, {summary(ms)}")


def times(given: argparse.Namespace) -> None:
    """Time predictions over the wire, then over HTTP."""
    use_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "kit"
        names = train(given, folder)
        wire(given, folder, names)
        over_http(given, folder, names)


# --------------------------------------------------------------------------------- kill


@dataclass
class Watch:
    """What clients saw, and whether the server is there."""

    answers: dict[int, list[float]]  # by id
    seen: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    n_server_kills: int = 0
    is_down: bool = False  # the server, until it answers again
    over: bool = False

    def check(self, ids: Sequence[int], status: int, found: Any) -> None:
        """Count an answer: right, or an error with a sentence."""
        if status != 200:
            sentence = found.get("detail") if isinstance(found, dict) else None
            if status == 503 and isinstance(sentence, str) and sentence.endswith("."):
                self.seen["503"] += 1
            else:
                self.note("unclear", f"{status}: {found}")
            return
        rows = found["predictions"]
        shares = [list(row["probabilities"].values()) for row in rows]
        right = [row["id"] for row in rows] == list(ids) and np.allclose(
            shares, [self.answers[one] for one in ids], rtol=0, atol=TOLERANCE
        )
        if right and not found["partial"]:
            self.seen["right"] += 1
        else:
            self.note("wrong", f"{ids}: {found}")

    def note(self, kind: str, words: str) -> None:
        """Count what must not be, and keep its words."""
        self.seen[kind] += 1
        self.bad.append(f"{kind}: {words}")

    def ask(self, client: Client, seed: int) -> None:
        """Keep asking."""
        rng = random.Random(seed)
        known, n_kills = sorted(self.answers), self.n_server_kills
        while not self.over:
            ids = rng.sample(known, rng.choice((1, 3, 20)))
            try:
                self.check(ids, *client.ask(ids))
                n_kills = self.n_server_kills
            except TimeoutError:
                self.note("hanging", f"no answer for {HANGING_SECONDS:g} seconds")
            except NO_CONNECTION as error:
                if self.is_down or n_kills != self.n_server_kills:
                    self.seen["no connection"] += 1
                else:
                    self.note("unclear", f"{type(error).__name__}: {error}")
            time.sleep(rng.uniform(0, 0.05))


def kill(given: argparse.Namespace) -> None:
    """Kill somebody again and again while clients ask; print what they saw."""
    rng, back, victims = random.Random(given.seed), [], Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "kit"
        names, port = ["server", *train(given, folder)], localhost.free_port()
        watch = Watch(expected(folder, names[1:]))
        with (
            running(folder, names, port) as processes,
            ThreadPoolExecutor(given.clients) as pool,
        ):
            asking = [
                pool.submit(watch.ask, Client(folder, port), n)
                for n in range(given.clients)
            ]
            for number in range(given.kills):
                time.sleep(rng.uniform(0, 1))
                victim = rng.choice(names)
                victims["server" if victim == "server" else "party"] += 1
                watch.is_down = watch.is_down or victim == "server"
                watch.n_server_kills += victim == "server"
                processes[victim].kill()
                processes[victim].wait()
                processes[victim] = start(folder, victim, port)
                if rng.random() < OVERLAP and number + 1 < given.kills:
                    continue  # the next one goes before this one is back
                back.append(Client(folder, port).wait(BACK_SECONDS))
                watch.is_down = False
                print(f"{number}: {victim}, back after {back[-1]:.1f} s", flush=True)
                gone = [n for n, p in processes.items() if p.poll() is not None]
                if gone or back[-1] > BACK_SECONDS:
                    logs = [(folder / n / "log.txt").read_text()[-1500:] for n in names]
                    watch.note("not back", "\n".join([f"gone: {gone}", *logs]))
                    break
            watch.over = True
        for one in asking:
            one.result()
    print("killed:", dict(victims), "requests:", dict(watch.seen))
    print(f"back: median {statistics.median(back):.1f} s, at most {max(back):.1f} s")
    print(*watch.bad[:20], sep="\n")
    sys.exit(bool(watch.bad))


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for work, name, table in (
        (size, "size", DATA),
        (times, "time", "phishing"),
        (kill, "kill", "breast-cancer"),
    ):
        one = commands.add_parser(name)
        one.set_defaults(work=work)
        one.add_argument("--data", default=table)
        one.add_argument("--data-dir", type=Path)
        one.add_argument("--seed", type=int, default=0)
        if name == "time":
            one.add_argument("--rows", type=int, nargs="+", default=[1, 1000])
            one.add_argument("--rounds", type=int, default=12)
            one.add_argument("--repeats", type=int, default=50, help="a round")
            one.add_argument("--clients", type=int, default=32)
            one.add_argument("--seconds", type=float, default=10.0)
        if name == "kill":
            one.add_argument("--kills", type=int, default=100)
            one.add_argument("--clients", type=int, default=4)
    few = {"data": "breast-cancer", "rows": [1], "rounds": 1, "repeats": 2}
    few |= {"clients": 2, "seconds": 0.5, "kills": 1}
    given = smoke.parse(parser, *commands.choices.values(), **few)
    warnings.simplefilter("ignore", LessVFLWarning)
    given.work(given)


if __name__ == "__main__":
    main()
