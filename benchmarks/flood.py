"""Floods beside a run: silent connections, streams, long greetings and long replies.

The server and three parties of ``fuzz.py`` compute run after run with mutual TLS; the
server may have 1,024 files open. Beside them, one after the other: connections that say
nothing; streams of one certified non-member that never greet; long greetings of such
ones, five at a time; and long replies of a party that takes part. A line tells of each
how many runs went on meanwhile, their seconds, and the most memory, descriptors and
threads of the server. Every run must end with the bits of the first:

    python benchmarks/flood.py                      # 2,000, 1,000, 400 and 600 MiB
    python benchmarks/flood.py --share 0.01         # the smallest

Exit code 1 if a run differs, a descriptor is wanting, or memory grows with the flood.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fuzz
import smoke
import torch
from pyarrow import flight as arrow

from lessvfl.errors import LessVFLWarning
from lessvfl.remote import certificates
from lessvfl.wire import control, flight

N_CONNECTIONS, N_STREAMS, N_GREETINGS, N_REPLIES = 2000, 1000, 5, 3
GREETING_BYTES, REPLY_BYTES = 400 << 20, 600 << 20
N_RUNS = 2  # undisturbed, and at least that many beside each flood
FILES = 1024  # that the server may have open
GROWTH = 200.0  # MiB that a flood may add


class Flood(fuzz.Attack):
    """Three honest parties, and what is done beside them."""

    long_replies = 0  # that are still to be sent by the lab
    reply_bytes = REPLY_BYTES

    def handle(self, name: str, message: Any) -> Any:
        """Answer as an honest party, except where a long reply is to be sent."""
        if name == "lab" and self.long_replies > 0:
            self.long_replies -= 1
            return control.Align(bytes(self.reply_bytes))
        return super().handle(name, message)

    @contextlib.contextmanager
    def silence(self, n: int) -> Iterator[None]:
        """Hold connections that say nothing."""
        over = threading.Event()

        def hold() -> None:
            with ExitStack() as stack:
                for _ in range(n):
                    with contextlib.suppress(OSError):
                        line = socket.create_connection(("127.0.0.1", self.port), 9)
                        stack.enter_context(line)
                over.wait()

        self.start(hold)
        yield
        over.set()

    @contextlib.contextmanager
    def streams(self, n: int) -> Iterator[None]:
        """Open streams over one connection that never greet."""
        client = self.connect("stranger")
        to = arrow.FlightDescriptor.for_command(flight.COMMAND)
        held = []
        with contextlib.suppress(*fuzz.ERRORS):
            held = [client.do_exchange(to) for _ in range(n)]
        yield
        del held
        client.close()

    @contextlib.contextmanager
    def greetings(self, n_bytes: int) -> Iterator[None]:
        """Greet with many bytes."""

        def greet() -> None:
            with contextlib.suppress(*fuzz.ERRORS):
                client = self.connect("stranger")
                to = arrow.FlightDescriptor.for_command(flight.COMMAND)
                writer, reader = client.do_exchange(to)
                writer.write_metadata(bytes(n_bytes))
                flight.FlightStream(reader, None).read()

        for _ in range(N_GREETINGS):
            self.start(greet)
        yield

    @contextlib.contextmanager
    def replies(self, n_bytes: int) -> Iterator[None]:
        """Have a party that takes part reply with many bytes, a few times."""
        self.reply_bytes, self.long_replies = n_bytes, N_REPLIES
        yield


class Watch:
    """The most memory, descriptors and threads of a process since it was last asked."""

    def __init__(self, pid: int) -> None:
        self._of = Path(f"/proc/{pid}")
        self._most = [0.0, 0.0, 0.0]
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        with contextlib.suppress(OSError, KeyError, ValueError):
            while True:
                lines = (self._of / "status").read_text().splitlines()
                told = dict(line.split(":", 1) for line in lines)
                mib = int(told["VmRSS"].split()[0]) / 1024
                n_files = len(list((self._of / "fd").iterdir()))
                seen = [mib, n_files, int(told["Threads"])]
                self._most = [max(a, b) for a, b in zip(self._most, seen, strict=True)]
                time.sleep(0.02)

    def most(self) -> list[float]:
        """Return the most since the last time."""
        found, self._most = self._most, [0.0, 0.0, 0.0]
        return found


def few_files() -> None:
    """Let a server open no more files than is usual."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))


def flood(folder: Path, share: float) -> bool:
    """Run undisturbed, then beside every flood; print a table, tell of failure."""
    certificates.init(folder / "kit", (*fuzz.PARTIES, "stranger"))
    command = [sys.executable, fuzz.__file__, "--serve", str(folder), "--n", "0"]
    pipes: Any = {"stdin": -1, "stdout": -1, "text": True}
    with open(folder / "stderr", "w") as errors:
        process: Any = subprocess.Popen(
            command, stderr=errors, preexec_fn=few_files, **pipes
        )
    state = Flood(folder, json.loads(process.stdout.readline())["port"], 0, {})
    runs, crashes, watch = list[Any](), list[str](), Watch(process.pid)

    def hear() -> None:
        for line in process.stdout:
            what = json.loads(line)
            runs.extend([what["numbers"]] if "numbers" in what else [])
            crashes.extend([what["crash"]] if "crash" in what else [])

    state.start(hear)
    for name in fuzz.PARTIES:
        state.start(state.honest, name)
    ways: dict[str, Callable[[], Any]] = {
        "nothing": contextlib.nullcontext,
        "connections": lambda: state.silence(max(20, int(share * N_CONNECTIONS))),
        "streams": lambda: state.streams(max(10, int(share * N_STREAMS))),
        "greetings": lambda: state.greetings(int(share * GREETING_BYTES)),
        "replies": lambda: state.replies(int(share * REPLY_BYTES)),
    }
    print("beside        runs  s/run  MiB  files  threads", flush=True)
    peaks: dict[str, list[float]] = {}
    try:
        for way, begin in ways.items():
            before, began = len(runs), time.monotonic()
            watch.most()
            with begin():
                while len(runs) < before + N_RUNS or state.long_replies:
                    time.sleep(0.05)
                    if process.poll() is not None or time.monotonic() - began > 600:
                        raise TimeoutError(f"no run went on beside {way}")
            n, seconds = len(runs) - before, time.monotonic() - began
            peaks[way] = watch.most()
            mib, n_files, n_threads = peaks[way]
            print(
                f"{way:12} {n:5} {seconds / n:6.1f} {mib:4.0f} {n_files:6.0f} "
                f"{n_threads:8.0f}",
                flush=True,
            )
    finally:
        state.over.set()
        process.kill()
        process.wait()
    most = max(peak[0] for peak in peaks.values()) - peaks["nothing"][0]
    checks = {
        "runs bit-identical": all(run == runs[0] for run in runs),
        "nothing ended a run": not crashes,
        f"memory grew by less than {GROWTH:g} MiB": most < GROWTH,
        "descriptors left": max(peak[1] for peak in peaks.values()) < FILES / 2,
    }
    for name, passed in checks.items():
        print(f"{'ok  ' if passed else 'FAIL'} {name}")
    for crash in crashes[:5]:
        print(crash)
    return not all(checks.values())


def main() -> None:
    """Flood a server."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the real sizes")
    given = smoke.parse(parser, share=0.01)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LessVFLWarning)
    with tempfile.TemporaryDirectory(prefix="lessvfl-flood-") as scratch:
        sys.exit(flood(Path(scratch), given.share))


if __name__ == "__main__":
    main()
