"""A party in the server's own process: none of its frames goes over a wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lessvfl.wire import codec
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.control import Hello
from lessvfl.wire.due import Due


@dataclass(frozen=True)
class LocalParty:
    """How a hub reaches a party of this process."""

    hello: Hello
    handle: Callable[[Any], Any]
    due: Callable[[], Due]  # what it may be asked for now

    def answer(self, data: bytes) -> memoryview:
        """Answer a frame, in the form in which other parties get and send theirs.

        So it computes what it would as a process of its own, and shares no tensor with
        the server.
        """
        sent = codec.decode(memoryview(data), self.due().accept)
        reply = WireFrame(self.handle(sent.message), sent.number, sent.run)
        return memoryview(codec.encode(reply))
