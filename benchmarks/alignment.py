"""What aligning rows costs: bytes of each message and seconds of each side.

The label holder and one party have n ids each, half of them in common. Both sides run
one after the other in this process; a table in Markdown is printed:

    python benchmarks/alignment.py --modes psi plain none --sizes 1000 10000 100000

Seconds are those of the processor, on one core. With several parties the label holder
pays `hello` and `finish` once, and `take` for each party.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import smoke

from lessvfl.remote.align import MODES, Aligner, Ids, Mode, PartyAligner

HEADER = (
    "| mode | ids of each side | hello | offer | echo | answer | final "
    "| label holder: hello | take | finish | party: offer | answer | order |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
T = TypeVar("T")


def main() -> None:
    """Measure every mode at every size and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[1000, 10_000, 100_000])
    given = smoke.parse(parser, sizes=[100])
    print(HEADER)
    for mode in given.modes:
        for n_ids in given.sizes:
            sizes, seconds = measure(mode, n_ids)
            cells = [mode, f"{n_ids:,}", *map(shown, sizes)]
            cells += [f"{value:.2f} s" for value in seconds]
            print(f"| {' | '.join(cells)} |", flush=True)


def measure(mode: Mode, n_ids: int) -> tuple[list[int], list[float]]:
    """Return bytes of the five messages, and seconds of the six steps."""
    shift = 0 if mode == "none" else n_ids // 2
    holder = Aligner(mode, Ids(range(n_ids)), n_ids, secret=bytes(32))
    theirs = Ids(range(shift, shift + n_ids))
    party = PartyAligner(mode, theirs, n_ids, secret=bytes(32))
    hello, hello_seconds = timed(holder.hello)
    offer, offer_seconds = timed(lambda: party.answer(hello) or b"")
    echo, take_seconds = timed(lambda: holder.take("party", offer) or b"")
    answer, answer_seconds = b"", 0.0
    if echo:
        answer, answer_seconds = timed(lambda: party.answer(echo) or b"")
        _, more_seconds = timed(lambda: holder.take("party", answer))
        take_seconds += more_seconds
    finals, finish_seconds = timed(holder.finish)
    _, order_seconds = timed(lambda: party.answer(finals["party"]))
    assert len(party.rows) == len(holder.rows) == n_ids - shift
    said = [hello, offer, echo, answer, finals["party"]]
    return [len(message) for message in said], [
        hello_seconds,
        take_seconds,
        finish_seconds,
        offer_seconds,
        answer_seconds,
        order_seconds,
    ]


def timed(step: Callable[[], T]) -> tuple[T, float]:
    """Return what a step returns, and its seconds."""
    start = time.process_time()
    result = step()
    return result, time.process_time() - start


def shown(n_bytes: int) -> str:
    """Return a size for people."""
    if n_bytes == 0:
        return "none"
    if n_bytes < 1000:
        return f"{n_bytes} B"
    return f"{n_bytes / 1e3:.1f} kB" if n_bytes < 1e6 else f"{n_bytes / 1e6:.2f} MB"


if __name__ == "__main__":
    main()
