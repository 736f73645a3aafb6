"""Processes that work beside this one, and end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

Submit = Callable[..., Future[Any]]


@contextmanager
def processes(n: int) -> Iterator[Submit]:
    """Yield a function that has another one called in one of `n` fresh processes.

    Each process computes with one thread. Where the block ends early, by Ctrl-C too,
    the processes are ended with it.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before a process loads PyTorch
    with ProcessPoolExecutor(n, multiprocessing.get_context("spawn")) as pool:

        def submit(function: Callable[..., Any], *args: Any) -> Future[Any]:
            # A process inherits what is blocked: Ctrl-C is for this one alone.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                return pool.submit(function, *args)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

        try:
            yield submit
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
