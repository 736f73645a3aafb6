"""What ``benchmarks/transport.py --nvflare`` runs inside of a FLARE job.

A FLARE system with its own PKI on this machine; in the server's process of a job a hub
like that of a run (``nvflare``), and FLARE's own public call, an auxiliary request with
the same bytes to all sites at once (``aux``). The benchmark's process asks for series
over a local socket, so that it times all ways in turn.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import torch
from examples.nvflare.federation import Federation
from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

from lessvfl.core.device import keep_freed_memory, use_threads
from lessvfl.remote import flare_files, nvflare
from lessvfl.remote.config import ServerConfig
from lessvfl.wire import dial
from lessvfl.wire.control import Agreed, Finish, Hello
from lessvfl.wire.messages import Block, Descend, Embedding
from lessvfl.wire.nvflare import FlareHub, FlareServer

SOCKET = "LESSVFL_BENCH_SOCKET"  # environment: where the benchmark is asked for series
PATIENCE = 300.0
AUX = "lessvfl-bench"
WAYS = ("nvflare", "aux")


def answer(request: Any) -> Any:
    """Send back the block that came, or agree to the end."""
    if isinstance(request, Descend):
        return Embedding(request.stage, request.gradient)
    return Agreed()


def timed(iterate: Callable[[], Any], n: int) -> list[float]:
    """Return milliseconds of each of n iterations."""
    marks = [time.perf_counter()]
    for _ in range(n):
        iterate()
        marks.append(time.perf_counter())
    return [1e3 * (b - a) for a, b in itertools.pairwise(marks)]


class BenchController(Controller):
    """Times iterations with the sites whenever the benchmark asks for them."""

    def __init__(self, run: str, version: str, parties: list[str]) -> None:
        super().__init__()
        self._names = parties

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing yet."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing more."""

    def process_result_of_unknown_task(self, *given: Any) -> None:
        """Ignore what came too late."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Serve the benchmark until it hangs up."""
        use_threads(1)
        keep_freed_memory()
        engine = fl_ctx.get_engine()
        hub = FlareHub(engine.get_cell(), self._names, job=fl_ctx.get_job_id())
        request = Shareable()
        request.set_header(nvflare.PEER, engine.get_cell().get_fqcn())
        task = Task(nvflare.TASK, request)
        self.broadcast(task, fl_ctx, self._names, len(self._names))
        hub.wait(PATIENCE)
        with Client(os.environ[SOCKET], "AF_UNIX") as benchmark:
            while (asked := benchmark.recv()) is not None:
                way, shape, n = asked
                values = torch.randn(shape)
                ways = {"nvflare": self._hub(hub, values)}
                ways["aux"] = self._aux(engine, fl_ctx, values)
                benchmark.send(timed(ways[way], n))
        hub.send(dict.fromkeys(self._names, Finish("0" * 64)))
        hub.close()

    def _hub(self, hub: FlareHub, values: torch.Tensor) -> Callable[[], Any]:
        block = Block(values, (values.shape[-1],))
        requests = dict.fromkeys(self._names, Descend("train", block))
        for reply in hub.exchange(requests).values():
            assert torch.equal(reply.block.values, values)
        return lambda: hub.exchange(requests)

    def _aux(self, engine: Any, fl_ctx: Any, values: torch.Tensor) -> Any:
        data = values.numpy().tobytes()

        def iterate() -> None:
            replies = engine.send_aux_request(
                targets=self._names,
                topic=AUX,
                request=Shareable({"data": data}),
                timeout=PATIENCE,
                fl_ctx=fl_ctx,
            )
            assert all(len(reply["data"]) == len(data) for reply in replies.values())
            assert replies.keys() == set(self._names)

        return iterate


class BenchExecutor(Executor):
    """Sends back whatever comes."""

    def __init__(self, run: str, version: str) -> None:
        super().__init__()

    def execute(
        self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any
    ) -> Any:
        """Answer the hub until it says that the run is over."""
        use_threads(1)
        keep_freed_memory()
        engine = fl_ctx.get_engine()
        engine.register_aux_message_handler(AUX, self._echo)
        server = FlareServer(engine.get_cell(), shareable.get_header(nvflare.PEER))
        hello = Hello(fl_ctx.get_identity_name(), 1, "cpu", {})
        dial.serve(server, hello, answer, patience=PATIENCE)
        return make_reply(ReturnCode.OK)

    @staticmethod
    def _echo(topic: str, request: Shareable, fl_ctx: Any) -> Shareable:
        reply = make_reply(ReturnCode.OK)
        reply["data"] = request["data"]
        return reply


def write_job(names: list[str], out: Path) -> None:
    """Write a job as of a run, with the classes of this file."""
    nvflare.write_job(ServerConfig(parties=tuple(names)), "bench", out)
    for path in out.glob("*/config/*.json"):
        text = path.read_text()
        for name in ("Controller", "Executor"):
            old = f"{'Server' if name == 'Controller' else 'Party'}{name}"
            new = f"{__name__}.Bench{name}"
            text = text.replace(f"lessvfl.remote.nvflare.{old}", new)
        path.write_text(text)


@contextmanager
def flare_system(folder: Path, names: list[str]) -> Iterator[Connection]:
    """Start a FLARE system with the benchmark's job; give what series are asked of."""
    socket = str(folder / "socket")
    root = Path(__file__).parent.parent
    paths = [str(root), str(root / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    os.environ |= {SOCKET: socket, "PYTHONPATH": os.pathsep.join(paths)}
    with (
        Listener(socket, "AF_UNIX") as door,
        Federation(folder / "flare", names) as flare,
    ):
        flare.provision()
        for name in ("server", *names):
            flare_files.allow(flare.kits[name] / "local", f"{__name__}.BenchController")
            flare_files.allow(flare.kits[name] / "local", f"{__name__}.BenchExecutor")
            flare.start(name)
        with flare.session() as session:
            flare.wait_for_sites(session)
            write_job(names, folder / "job")
            session.submit_job(str(folder / "job"))
            with door.accept() as connection:
                yield connection
                connection.send(None)
                time.sleep(2)
