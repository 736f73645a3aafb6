"""Joint training with many parties over Flight: time of an iteration, memory, bytes.

    python benchmarks/parties.py
    python benchmarks/parties.py --parties 2,8,32,128 --processes 2 --iterations 200

The server is a process, and the parties are threads of a few others, several to each.
They train (Algorithm 2) as between machines: mutual TLS with a certificate for each
party, replies checked, blocks of 128 rows and 8 components in 4 bits a value. A party
has 2,000 rows of 16 columns, and the label depends on a column of each of the first two
parties.

An iteration lasts from one gradient to the next, at the server; the median is printed,
without those for warming up. CPU is the processor time of an iteration, which other
work on the machine disturbs less. Memory is anonymous memory (RssAnon) when training is
over and everybody is still connected; that of the parties is of all their processes
together. Bytes are those of an iteration on the wire, before encryption. The last lines
are slopes by least squares: what one more party takes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import smoke
import torch
from processes import credentials_of, running
from torch import Tensor

from lessvfl import algorithm
from lessvfl.core.device import keep_freed_memory, use_threads
from lessvfl.core.network import MLP, NetConfig
from lessvfl.core.plans import Labels, TrainPlan
from lessvfl.party import Holding, Party
from lessvfl.remote import certificates
from lessvfl.wire import dial, flight
from lessvfl.wire.control import Hello
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.line import HubRules
from lessvfl.wire.messages import Descend, Reply, Request, Traffic
from lessvfl.wire.parties import Parties, concatenate
from lessvfl.wire.replies import ReplyRules

N_ROWS, N_COLUMNS, BATCH = 2000, 16, 128
NET = NetConfig(embedding_size=8, hidden=32, input_scale=0.01)
SEEDS = (0,)
PATIENCE = 300.0
WHERE = (torch.float32, torch.device("cpu"))
TICKS = os.sysconf("SC_CLK_TCK")

Line = dict[str, float]


def columns_of(party: int) -> Tensor:
    """Return the columns (1, N, d) of one party."""
    generator = torch.Generator().manual_seed(party)
    return torch.randn(1, N_ROWS, N_COLUMNS, generator=generator)


def take_part(folder: Path, number: int, address: str) -> None:
    """Answer the server as one party until it says farewell."""
    name, X = f"party{number}", columns_of(number)
    widths = NET.party_widths(N_COLUMNS)
    net = MLP.create(widths, NET.activation, SEEDS, name, *WHERE, NET.input_scale)
    party = Party(name, net, Holding(X, X[:, :0], torch.arange(N_COLUMNS)), SEEDS)
    where = flight.Address(address, credentials_of(folder, name))
    dial.serve(where, Hello(name, 1, "cpu", {}), party.handle, patience=PATIENCE)


def host_parties(folder: Path, numbers: range, address: str) -> None:
    """Take part as several parties, in a process set up as ``lessvfl party`` is."""
    use_threads(1)
    keep_freed_memory()
    with ThreadPoolExecutor(len(numbers)) as threads:
        for one in [threads.submit(take_part, folder, n, address) for n in numbers]:
            one.result()


@contextmanager
def started(
    folder: Path, n_parties: int, n_processes: int, address: str
) -> Iterator[list[int]]:
    """Start the parties; give their processes' ids. They must end by themselves."""
    context = multiprocessing.get_context("spawn")
    made = [
        context.Process(
            target=host_parties,
            args=(folder, range(first, n_parties, n_processes), address),
        )
        for first in range(min(n_parties, n_processes))
    ]
    with running(made, 60):
        yield [int(process.pid or 0) for process in made]


@dataclass
class Timed:
    """A transport that notes when each gradient goes out, and the time spent so far."""

    hub: flight.FlightHub
    processes: list[int]  # of the parties
    marks: list[tuple[float, float, float]] = field(default_factory=list)

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        """Return the bytes on the wire so far."""
        traffic: Mapping[str, Traffic] = self.hub.traffic
        return traffic

    def exchange(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        """Pass messages on."""
        if any(isinstance(request, Descend) for request in requests.values()):
            theirs = sum(map(cpu_seconds, self.processes))
            self.marks.append((time.perf_counter(), time.process_time(), theirs))
        replies: dict[str, Reply] = self.hub.exchange(requests)
        return replies

    def close(self) -> None:
        """Say farewell."""
        self.hub.close()


def cpu_seconds(process: int) -> float:
    """Return the processor time that a process has taken."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def status_of(process: int | str, name: str) -> float:
    """Return a number of /proc/PID/status, kB as MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            words = line.split()
            return int(words[1]) / (1024 if words[-1] == "kB" else 1)
    raise LookupError(name)


def measure(n_parties: int, n_processes: int, iterations: int, warm_up: int) -> Line:
    """Train with that many parties; return a line of the table."""
    use_threads(1)
    keep_freed_memory()
    names = [f"party{m}" for m in range(n_parties)]
    n_each = N_ROWS // BATCH
    plan = TrainPlan(
        "train",
        (warm_up + iterations + 1) / n_each,
        BATCH,
        "shuffle",
        "adamw",
        0.01,
        bits=4,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "kit"
        certificates.init(folder, names)
        secrets = credentials_of(folder, "server")
        name_of = certificates.name_of_peer
        hub = flight.FlightHub("127.0.0.1:0", names, secrets, name_of=name_of)
        address = f"127.0.0.1:{hub.port}"
        with started(folder, n_parties, n_processes, address) as processes:
            try:
                begun = time.perf_counter()
                hub.wait(PATIENCE)
                joining = time.perf_counter() - begun
                timed = Timed(hub, processes)
                line = train(timed, names, plan, warm_up)
            finally:
                hub.close()
    return {"parties": n_parties, **line, "joining s": joining}


def train(timed: Timed, names: list[str], plan: TrainPlan, warm_up: int) -> Line:
    """Train, with everybody connected; return what it took."""
    rules = ReplyRules((N_ROWS, 0), NET.embedding_size, torch.float32)
    timed.hub.rules = HubRules(check=rules.complaint)
    ledger = Ledger(1)
    parties = rules.server = Parties(timed, names, ledger)
    widths = NET.fusion_widths(sum(parties.sizes.values()), 1)
    fusion = MLP.create(widths, NET.activation, SEEDS, "the server", *WHERE)
    y = (sum(columns_of(m)[:, :, 0] for m in range(2)) > 0).float()
    before = wire_bytes(timed)
    labels = Labels(y, "binary", SEEDS)
    algorithm.train_jointly(parties, fusion, labels, plan, lambda event: None)
    n_rounds = ledger.n_rounds(0)
    marks = np.array(timed.marks[warm_up:])
    taken = 1e3 * np.diff(marks, axis=0)
    line = {
        "ms": statistics.median(taken[:, 0].tolist()),
        "p95 ms": float(np.quantile(taken[:, 0], 0.95)),
        "server CPU ms": float(taken[:, 1].mean()),
        "parties CPU ms": float(taken[:, 2].mean()),
        "server MiB": status_of("self", "RssAnon"),
        "parties MiB": sum(status_of(p, "RssAnon") for p in timed.processes),
        "KiB": (wire_bytes(timed) - before) / n_rounds / 1024,
        "payload KiB": ledger.payload_bytes(0) / n_rounds / 1024,
        "threads": status_of("self", "Threads"),
        "files": len(os.listdir("/proc/self/fd")),
    }
    z = fusion(concatenate(parties.embed("evaluate", "train")))
    return line | {"accuracy": float(((z[..., 0] > 0) == (y > 0)).float().mean())}


def wire_bytes(timed: Timed) -> int:
    """Return the bytes of all parties so far, both ways."""
    return sum(one.up + one.down for one in timed.traffic.values())


def main() -> None:
    """Measure every number of parties, each with a fresh server; print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parties", default="2,8,32,128", help="numbers of parties")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="theirs")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=20, help="iterations not timed")
    given = smoke.parse(parser, parties="2", processes=1, iterations=5, warm_up=1)
    counts = sorted(int(part) for part in given.parties.split(","))
    if counts[0] < 2:
        parser.error("the label takes two parties at least")
    context = multiprocessing.get_context("spawn")
    lines = []
    for n in counts:
        with ProcessPoolExecutor(1, context) as alone:
            work = (n, given.processes, given.iterations, given.warm_up)
            lines.append(alone.submit(measure, *work).result())
        if n == counts[0]:
            print("  ".join(f"{name:>7}" for name in lines[0]))
        cells = (f"{value:{max(7, len(name))}.4g}" for name, value in lines[-1].items())
        print("  ".join(cells), flush=True)
    if len(counts) > 1:
        print("One more party, by least squares:")
        for name in ("ms", "server CPU ms", "server MiB", "parties MiB", "KiB"):
            slope, start = np.polyfit(counts, [line[name] for line in lines], 1)
            print(f"  {name}: {slope:.4g} (and {start:.4g} with none)")


if __name__ == "__main__":
    main()
