"""Where and how to compute: the device, the threads, the memory."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Iterator

import torch

from lessvfl.errors import ConfigError
from lessvfl.terms import written

log = logging.getLogger(__name__)

# Multiplications of one step from which a second thread was measured to pay.
WORTH_THREADS = 200_000_000
# Values of a party's table from which a GPU was measured to pay.
WORTH_GPU = 16_000_000


def resolve_device(name: str, n_values: int = WORTH_GPU) -> torch.device:
    """Turn ``cpu``, ``cuda`` or ``auto`` into a device.

    With `auto` a table of fewer values than are worth it stays on the CPU.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if name not in ("cpu", "cuda", "auto"):
        raise ConfigError(
            "The 'device' option must be one of cpu, cuda, auto. Got "
            f"{written(name)} instead."
        )
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "The 'device' option is cuda, but PyTorch sees no CUDA device here. "
            "Use cpu or auto instead."
        )
    if name == "auto":
        worth = n_values >= WORTH_GPU
        name = "cuda" if worth and torch.cuda.is_available() else "cpu"
    return torch.device(name)


def use_threads(n_threads: int) -> None:
    """Compute with that many threads: their number changes the order of sums."""
    torch.set_num_threads(n_threads)


@contextlib.contextmanager
def threads_for(n_products: int) -> Iterator[None]:
    """Within the context, compute with as many threads as `n_products` are worth.

    These are the multiplications of a step. Small steps get one thread: a second costs
    more than it brings. More than PyTorch was set to are never used.
    """
    before, wanted = torch.get_num_threads(), 1
    if n_products >= WORTH_THREADS:  # on cores that are free now
        allowed = getattr(os, "sched_getaffinity", None)
        n_cores = len(allowed(0)) if allowed else os.cpu_count() or 1
        wanted = min(before, max(1, n_cores - round(os.getloadavg()[0])))
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory(n_bytes: int = 1 << 28) -> None:
    """Have malloc keep up to `n_bytes` of freed memory for the next message or batch.

    By default glibc gives a block of a MiB back when it is freed, and getting its pages
    again costs more than copying it. Other systems have no such call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        log.debug("no mallopt here: freed memory goes back at once")
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, n_bytes)
    mallopt(mmap_threshold, 1 << 25)  # the most that it takes


def release_freed_memory() -> None:
    """Give back what malloc keeps, after work that is done once in a run."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
