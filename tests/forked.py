"""The command line as real processes that do not import PyTorch again.

A process that has imported lessvfl, and has no threads, forks a child for every command
(`Forks`). Children have their own pid, folder, environment, limits and output, so that
they are stopped, killed and starved as any process is. A shell starts them by the
script that `Forks.script` writes: what runs it is a client of the same socket.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

PRELOADED = (
    "lessvfl.cli.app",
    "lessvfl.estimator",
    "lessvfl.remote.localhost",
    "lessvfl.remote.predict.party",
    "lessvfl.remote.predict.server",
    "lessvfl.report.page",
    "lessvfl.run.simulate",
    "lessvfl_bench.cli",
    "sklearn.datasets",
    "sklearn.linear_model",
    "uvicorn",
)


class Forked:
    """A command that was started, with the methods of a Popen that tests use."""

    def __init__(self, talk: socket.socket, output: tuple[Any, ...] = ()) -> None:
        self._talk, self._output = talk, output
        self._written: list[str] = []
        self.pid = int(_line(talk))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None and select.select([self._talk], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code."""
        if self.returncode is None:
            self._talk.settimeout(timeout)
            try:
                self.returncode = int(_line(self._talk))
            except TimeoutError:
                raise subprocess.TimeoutExpired("lessvfl", timeout or 0) from None
            self._talk.close()
            for stream in self._output:
                self._written.append(_content(stream))
                stream.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return what it wrote to stdout and to stderr."""
        self.wait(timeout)
        out, err = self._written
        return out, err

    def said(self) -> str:
        """Return what it has written to stderr so far."""
        return self._written[1] if self._written else _content(self._output[1])

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """A process that has imported lessvfl and forks for every command."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self._path = folder / "forks"
        self._process = subprocess.Popen(
            [python, __file__, "serve", self._path], stdin=subprocess.PIPE
        )

    def start(
        self,
        *words: object,
        limits: tuple[tuple[int, int], ...] = (),
        changed: Mapping[str, object] = MappingProxyType({}),
    ) -> Forked:
        """Start ``lessvfl WORDS``, with limits of the system and constants changed.

        Where the first word is a file of Python, that is run instead.
        """
        output = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        with open(os.devnull) as nothing:
            descriptors = [nothing.fileno(), *(stream.fileno() for stream in output)]
            order = {"limits": limits, "changed": dict(changed)}
            talk = _ask(self._path, list(map(str, words)), descriptors, **order)
        return Forked(talk, output)

    def script(self, file: Path) -> Path:
        """Write a program to start as ``lessvfl``, or as Python with -m lessvfl.cli."""
        file.write_text(
            f'#!/bin/sh\nexec {sys.executable} -SE {__file__} run {self._path} "$@"\n'
        )
        file.chmod(0o755)
        return file

    def close(self) -> None:
        """End the process; children that still run go on."""
        self._process.communicate()


def _line(talk: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        received += talk.recv(64) or b"-1\n"
    return received


def _content(stream: Any) -> str:
    size = os.fstat(stream.fileno()).st_size
    return str(os.pread(stream.fileno(), size, 0), "utf-8")


def _ask(
    path: Path,
    words: list[str],
    descriptors: list[int],
    **more: object,
) -> socket.socket:
    """Have a command started; return the socket that tells its pid and exit code."""
    deadline = time.monotonic() + 120
    while True:
        talk = socket.socket(socket.AF_UNIX)
        try:
            talk.connect(str(path))
            break
        except OSError:  # it is still importing
            talk.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    order = {
        "words": words,
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        **more,
    }
    data = json.dumps(order).encode()
    socket.send_fds(talk, [f"{len(data)}\n".encode()], descriptors)
    talk.sendall(data)
    return talk


# -------------------------------------------------------------------- the other process


def _serve(path: str) -> None:
    """Fork for everyone who asks, until standard input ends."""
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those in between
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if listener not in ready:
            return
        talk, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _start(talk)
        talk.close()


def _start(talk: socket.socket) -> NoReturn:
    """Fork the command, tell its pid, wait for it, tell its exit code."""
    head, descriptors, _, _ = socket.recv_fds(talk, 16, 3)
    length, _, data = head.partition(b"\n")
    while len(data) < int(length):
        data += talk.recv(1 << 16)
    pid = os.fork()
    if pid == 0:
        talk.close()
        _become(json.loads(data), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    talk.sendall(f"{pid}\n".encode())
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            talk.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)
        if select.select([talk], [], [], 0.02)[0]:  # whoever asked for it is gone
            os.kill(pid, signal.SIGKILL)


def _become(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Be the command."""
    from lessvfl import cli

    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for what, most in order.get("limits", ()):
        resource.setrlimit(what, (most, most))
    for name, value in order.get("changed", {}).items():
        module, _, constant = name.rpartition(".")
        setattr(sys.modules[module], constant, value)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["lessvfl", *order["words"]]
    code: Any = 1
    try:
        if order["words"][0].endswith(".py"):
            runpy.run_path(order["words"][0], run_name="__main__")
        else:
            cli.main()
        code = 0
    except SystemExit as ending:
        code = ending.code or 0
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def _run(path: str, *words: str) -> int:
    """Be the client in a shell: pass signals on, end as the command ends."""
    own = list(words[2:] if words[:2] == ("-m", "lessvfl.cli") else words)
    process = Forked(_ask(Path(path), own, [0, 1, 2]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: process.send_signal(got))
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        sys.exit(_run(*sys.argv[2:]))
