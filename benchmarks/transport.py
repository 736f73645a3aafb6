"""Time the Flight transport against a bare gRPC stream, both with mutual TLS.

One iteration: every party gets a gradient block, and all embedding blocks come back.
Ours is all that a run does: a Hub in this process, parties in processes of their own,
torch tensors encoded, checked and decoded on both sides. gRPC (``pip install grpcio``)
is a bidirectional stream with the same certificates that carries ready bytes of the
same length back and forth and looks at nothing; ``gRPC+`` is the same stream with our
tensors encoded, checked and decoded. All are timed in turn, round after round, so that
other load on the machine hits all; a ratio is that of two medians of one round, and the
table shows the median and the range of these ratios.

    python benchmarks/transport.py
    python benchmarks/transport.py --nvflare
    python benchmarks/transport.py --parties 2,8,32

The second command times FLARE, too (``benchmarks/transport_nvflare.py``): ``flare`` is
all that a run does over it, ``aux`` FLARE's own public call with the same bytes. The
third command gives the time of one iteration against the number of parties, with
small blocks: it grows no faster than linearly if the time per party does not grow.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import smoke
import torch
from processes import credentials_of, running
from torch import Tensor

from lessvfl.core.device import keep_freed_memory, use_threads
from lessvfl.remote import certificates
from lessvfl.wire import codec, dial, flight
from lessvfl.wire.control import Agreed, Finish, Hello
from lessvfl.wire.messages import Block, Descend, Embedding

N_PARTIES = 4
SHAPES = {"4 KiB": (1, 128, 8), "1 MiB": (1, 4096, 64)}  # replicas, rows, components
FEWER = {"4 KiB": 1, "1 MiB": 8}  # times fewer iterations
METHOD = "/bench/Exchange"
PATIENCE = 300.0

Iteration = Callable[[], Any]
Series = Callable[[int], list[float]]  # how many iterations -> milliseconds of each


def answer(request: Any) -> Any:
    """Send back the block that came, or agree to the end."""
    if isinstance(request, Descend):
        return Embedding(request.stage, request.gradient)
    return Agreed()


def our_party(folder: Path, name: str, address: str) -> None:
    """Answer the hub until it says that the run is over."""
    where = flight.Address(address, credentials_of(folder, name))
    hello = Hello(name, 1, "cpu", {})
    dial.serve(where, hello, answer, patience=PATIENCE)


@contextmanager
def ours(folder: Path, names: list[str]) -> Iterator[Callable[[Tensor], Iteration]]:
    """Connect parties over Flight; give what makes an iteration with a block."""
    server = credentials_of(folder, "server")
    hub = flight.FlightHub(
        "127.0.0.1:0", names, server, name_of=certificates.name_of_peer
    )

    def prepare(values: Tensor) -> Iteration:
        block = Block(values, (values.shape[-1],))
        requests = dict.fromkeys(names, Descend("train", block))
        for reply in hub.exchange(requests).values():
            assert torch.equal(reply.block.values, values)
        return lambda: hub.exchange(requests)

    with started(our_party, folder, names, f"127.0.0.1:{hub.port}"):
        try:
            hub.wait(PATIENCE)
            yield prepare
            hub.send(dict.fromkeys(names, Finish("0" * 64)))
        finally:
            hub.close()


def work(data: bytes) -> bytes:
    """Answer a frame as our parties do."""
    frame = codec.decode(data)
    return codec.encode(codec.WireFrame(answer(frame.message), frame.number))


def working_party(folder: Path, name: str, address: str) -> None:
    """Send back the block of every frame."""
    grpc_party(folder, name, address, work)


def grpc_party(
    folder: Path,
    name: str,
    address: str,
    reply: Callable[[bytes], bytes] = lambda data: data,
) -> None:
    """Send back whatever comes, until the stream ends."""
    certificate, key, ca = credentials_of(folder, name).read()
    secrets = grpc.ssl_channel_credentials(ca, key, certificate)
    options = [("grpc.ssl_target_name_override", "localhost")]
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    outgoing.put(name.encode())
    with grpc.secure_channel(address, secrets, options) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE)
        for data in channel.stream_stream(METHOD)(iter(outgoing.get, None)):
            outgoing.put(reply(data))
        outgoing.put(None)


@contextmanager
def grpc_streams(
    folder: Path, names: list[str], party: Any
) -> Iterator[Callable[[Iterable[bytes]], list[bytes]]]:
    """Connect parties over gRPC; give what exchanges bytes with all of them."""
    requests: dict[str, Any] = {name: queue.SimpleQueue() for name in names}
    replies: dict[str, Any] = {name: queue.SimpleQueue() for name in names}

    def talk(incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
        name = next(incoming).decode()
        replies[name].put(b"hello")
        for data in iter(requests[name].get, None):
            yield data
            replies[name].put(next(incoming))

    def exchange(given: Iterable[bytes]) -> list[bytes]:
        for name, data in zip(names, given, strict=True):
            requests[name].put(data)
        return [replies[name].get(timeout=PATIENCE) for name in names]

    certificate, key, ca = credentials_of(folder, "server").read()
    secrets = grpc.ssl_server_credentials([(key, certificate)], ca, True)
    server = grpc.server(ThreadPoolExecutor(len(names)))
    handler = grpc.stream_stream_rpc_method_handler(talk)
    service, method = METHOD[1:].split("/")
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {method: handler})]
    )
    port = server.add_secure_port("127.0.0.1:0", secrets)
    server.start()
    with started(party, folder, names, f"127.0.0.1:{port}"):
        try:
            for name in names:
                replies[name].get(timeout=PATIENCE)
            yield exchange
        finally:
            for name in names:
                requests[name].put(None)
    server.stop(None).wait()


@contextmanager
def over_grpc(
    folder: Path, names: list[str], works: bool
) -> Iterator[Callable[[Tensor], Iteration]]:
    """Connect parties over gRPC; give what makes an iteration with a block."""
    with grpc_streams(folder, names, working_party if works else grpc_party) as send:

        def iterate(given: bytes | codec.WireFrame) -> list[bytes]:
            is_ready = isinstance(given, bytes)
            return send(given if is_ready else codec.encode(given) for _ in names)

        def prepare(values: Tensor) -> Iteration:
            message = Descend("train", Block(values, (values.shape[-1],)))
            frame = codec.WireFrame(message, 1)
            data = codec.encode(frame)
            if not works:
                assert iterate(data) == [data] * len(names)
                return lambda: iterate(data)
            return lambda: [codec.decode(reply) for reply in iterate(frame)]

        yield prepare


def as_party(target: Any, *given: Any) -> None:
    """Take part in a process that is set up as ``lessvfl party`` does it."""
    use_threads(1)
    keep_freed_memory()
    target(*given)


@contextmanager
def started(
    target: Any, folder: Path, names: list[str], address: str
) -> Iterator[None]:
    """Start a process a party; they must end by themselves, unless something fails."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__"])  # torch is imported once
    made = [
        context.Process(target=as_party, args=(target, folder, name, address))
        for name in names
    ]
    with running(made, 30):
        yield


def timed(iterate: Iteration, n: int) -> list[float]:
    """Return milliseconds of each of n iterations."""
    marks = [time.perf_counter()]
    for _ in range(n):
        iterate()
        marks.append(time.perf_counter())
    return [1e3 * (b - a) for a, b in itertools.pairwise(marks)]


@contextmanager
def over_flare(folder: Path, names: list[str]) -> Iterator[Callable[[str], Any]]:
    """Start a FLARE system; give what makes the series of a size."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import transport_nvflare

    folder.mkdir()
    with transport_nvflare.flare_system(folder, names) as connection:

        def ask(way: str, size: str, n: int) -> list[float]:
            connection.send((way, SHAPES[size], n))
            found: list[float] = connection.recv()
            return found

        yield lambda size: {
            "flare": functools.partial(ask, "nvflare", size),
            "aux": functools.partial(ask, "aux", size),
        }


def compare(
    n_parties: int, sizes: list[str], rounds: int, iterations: int, flare: bool = False
) -> float:
    """Time all in turn and print what came out; return our last median in ms."""
    names = [f"party{m}" for m in range(n_parties)]
    mine = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "kit"
        certificates.init(folder, names)
        with (
            over_flare(Path(scratch) / "flare", names)
            if flare
            else contextlib.nullcontext(lambda size: {}) as over_cells,
            ours(folder, names) as our_way,
            over_grpc(folder, names, works=False) as bare,
            over_grpc(folder, names, works=True) as same_work,
        ):
            for size in sizes:
                values = torch.randn(SHAPES[size])
                here = {
                    "ours": our_way(values),
                    "gRPC": bare(values),
                    "gRPC+": same_work(values),
                }
                ways: dict[str, Series] = {
                    name: functools.partial(timed, way) for name, way in here.items()
                } | over_cells(size)
                n = max(10, iterations // FEWER[size])
                found: dict[str, list[list[float]]] = {name: [] for name in ways}
                for number in range(rounds + 1):  # the first is for warming up
                    for name in list(ways)[:: 1 if number % 2 else -1]:
                        found[name].append(ways[name](n))
                for name, (_, *series) in found.items():
                    ms = sorted(itertools.chain(*series))
                    middle = statistics.median(ms)
                    mine = middle if name == "ours" else mine
                    print(
                        f"{n_parties:7} {size:>7} {name:>5} "
                        f"{1e3 * len(ms) / sum(ms):13.1f} {middle:10.2f} "
                        f"{ms[int(0.95 * len(ms))]:8.2f} {middle / n_parties:9.3f}"
                    )
                for other in list(ways)[1:]:
                    ratios = sorted(
                        statistics.median(a) / statistics.median(b)
                        for a, b in zip(
                            found["ours"][1:], found[other][1:], strict=True
                        )
                    )
                    print(
                        f"{n_parties:7} {size:>7} ours / {other} = "
                        f"{statistics.median(ratios):.2f} "
                        f"({ratios[0]:.2f} to {ratios[-1]:.2f} in {rounds} rounds)",
                        flush=True,
                    )
    return mine


def main() -> None:
    """Time both sizes, or small blocks against the number of parties."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=400, help="a round, of 4 KiB")
    parser.add_argument("--nvflare", action="store_true", help="time FLARE, too")
    parser.add_argument("--parties", help="numbers of parties, as in 2,8,32")
    given = smoke.parse(parser, rounds=1, iterations=10)
    use_threads(1)
    keep_freed_memory()
    print("parties   block   way  iterations/s  median ms   p95 ms  ms/party")
    if given.parties is None:
        sizes = list(SHAPES)
        compare(N_PARTIES, sizes, given.rounds, given.iterations, given.nvflare)
        return
    counts = sorted(int(part) for part in given.parties.split(","))
    share = [compare(n, ["4 KiB"], given.rounds, given.iterations) / n for n in counts]
    growth = max(share) / share[0]
    verdict = "no faster than linearly" if growth <= 1.1 else "faster than linearly"
    print(f"Ours grows {verdict}: time per party is {growth:.2f} times the first's.")


if __name__ == "__main__":
    main()
