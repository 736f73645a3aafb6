"""What aligning rows costs: bytes of each message and seconds of each side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from lessvfl.remote.align import MODES, Aligner, Ids, PartyAligner
from lessvfl.report.parts import markdown_table
from lessvfl_bench.study import NameList, NumberList, Study, option

T = TypeVar("T")
HEADS = (
    *("mode", "ids of each side", "hello", "offer", "echo", "answer", "final"),
    *("label holder: hello", "take", "finish", "party: offer", "answer", "order"),
)


@dataclass(frozen=True)
class Alignment(Study):
    """What aligning rows costs: bytes of each message and seconds of each side.

    The label holder and one party have n ids each, half of them in common; both sides
    run one after the other in this process. Seconds are those of the processor, on one
    core. With several parties the label holder pays hello and finish once, and take for
    each party.
    """

    modes: NameList = option(tuple(MODES), "Of these.")
    sizes: NumberList = option((1000, 10_000, 100_000), "Ids of each side.")
    smallest: ClassVar = {"sizes": (100,)}

    def cases(self) -> list[tuple[str, int]]:
        """Return mode and number of ids."""
        return [(mode, n_ids) for mode in self.modes for n_ids in self.sizes]

    def measure(self, case: Any) -> list[list[float]]:
        """Return bytes of the five messages, and seconds of the six steps."""
        mode, n_ids = case
        shift = 0 if mode == "none" else n_ids // 2
        holder = Aligner(mode, Ids(range(n_ids)), n_ids, secret=bytes(32))
        theirs = Ids(range(shift, shift + n_ids))
        party = PartyAligner(mode, theirs, n_ids, secret=bytes(32))
        hello, hello_seconds = _timed(holder.hello)
        offer, offer_seconds = _timed(lambda: party.answer(hello) or b"")
        echo, take_seconds = _timed(lambda: holder.take("party", offer) or b"")
        answer, answer_seconds = b"", 0.0
        if echo:
            answer, answer_seconds = _timed(lambda: party.answer(echo) or b"")
            _, more_seconds = _timed(lambda: holder.take("party", answer))
            take_seconds += more_seconds
        finals, finish_seconds = _timed(holder.finish)
        _, order_seconds = _timed(lambda: party.answer(finals["party"]))
        assert len(party.rows) == len(holder.rows) == n_ids - shift
        said = [hello, offer, echo, answer, finals["party"]]
        of_holder = [hello_seconds, take_seconds, finish_seconds]
        of_party = [offer_seconds, answer_seconds, order_seconds]
        return [[len(message) for message in said], of_holder + of_party]

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every mode and size."""
        rows = (
            [mode, f"{n:,}", *map(_shown, sizes), *(f"{one:.2f} s" for one in seconds)]
            for (mode, n), (sizes, seconds) in found.items()
        )
        return markdown_table(HEADS, rows)


def _timed(step: Callable[[], T]) -> tuple[T, float]:
    """Return what a step returns, and its seconds."""
    start = time.process_time()
    result = step()
    return result, time.process_time() - start


def _shown(n_bytes: int) -> str:
    """Return a size for people."""
    if n_bytes < 1000:
        return f"{n_bytes} B" if n_bytes else "none"
    return f"{n_bytes / 1e3:.1f} kB" if n_bytes < 1e6 else f"{n_bytes / 1e6:.2f} MB"
