"""The transports between machines, each as a hub and what parties dial it with."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lessvfl.wire import flight
from lessvfl.wire.dial import Server
from lessvfl.wire.hub import Hub


class Flight:
    """Arrow Flight on loopback, without encryption."""

    def __init__(self) -> None:
        self._hub: flight.FlightHub | None = None

    def hub(self, parties: Sequence[str], **more: Any) -> Hub:
        self._hub = flight.FlightHub("127.0.0.1:0", parties, None, **more)
        return self._hub

    def server(self, party: str) -> Server:
        assert self._hub is not None
        return flight.Address(f"127.0.0.1:{self._hub.port}", None)

    def close(self) -> None:
        pass


class Cells:
    """Cells in one process: what :mod:`lessvfl.wire.nvflare` asks of FLARE's.

    Messages are handed over by threads, in any order, as FLARE does. `lose` says which
    are lost on the way.
    """

    def __init__(self) -> None:
        self.cells: dict[str, Cell] = {}
        self.pool = ThreadPoolExecutor(16)
        self.lose: Callable[[Any], bool] = lambda message: False


class Cell:
    """One cell, of the server or of a site, with the methods that are called."""

    def __init__(self, cells: Cells, name: str) -> None:
        self.cells, self.name = cells, name
        self.site, self.token = name.split(".")[0], str(uuid.uuid4())
        self.called: dict[str, Callable[[Any], Any]] = {}
        cells.cells[name] = self

    def get_fqcn(self) -> str:
        return self.name

    def register_request_cb(self, channel: str, topic: str, cb: Any) -> None:
        self.called[topic] = cb

    def _stamped(self, message: Any, topic: str) -> Any:
        """Return the message as FLARE has it arrive, its sender proven."""
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
        from nvflare.fuel.f3.message import Message
        from nvflare.private.defs import CellMessageHeaderKeys

        proof = {
            MessageHeaderKey.ORIGIN: self.name,
            MessageHeaderKey.TOPIC: topic,
            CellMessageHeaderKeys.CLIENT_NAME: self.site,
            CellMessageHeaderKeys.TOKEN: self.token,
        }
        payload = message.payload
        copied = None if payload is None else bytes(payload)
        return Message({**message.headers, **proof}, copied)

    def fire_and_forget(
        self, channel: str, topic: str, target: str, message: Any, optional: bool
    ) -> dict[str, str]:
        there = self.cells.cells.get(target)
        if there is None:
            return {target: "unreachable"}
        sent = self._stamped(message, topic)
        if not self.cells.lose(sent):
            delay = random.choice((0.0, 0.0, 0.002))

            def deliver() -> None:
                threading.Event().wait(delay)
                there.called[topic](sent)

            self.cells.pool.submit(deliver)
        return {target: ""}

    def send_request(
        self,
        channel: str,
        topic: str,
        target: str,
        message: Any,
        timeout: float,
        optional: bool,
    ) -> Any:
        from nvflare.fuel.f3.cellnet.defs import ReturnCode
        from nvflare.fuel.f3.cellnet.utils import make_reply

        there = self.cells.cells.get(target)
        if there is None:
            return make_reply(ReturnCode.COMM_ERROR)
        return there.called[topic](self._stamped(message, topic))


class Flare:
    """FLARE's messages between cells of one process."""

    def __init__(self) -> None:
        self.cells = Cells()

    def hub(self, parties: Sequence[str], **more: Any) -> Hub:
        from lessvfl.wire.nvflare import FlareHub

        cell = Cell(self.cells, "server.job")
        return FlareHub(cell, parties, job="job", **more)

    def server(self, party: str) -> Server:
        from lessvfl.wire.nvflare import FlareServer

        return FlareServer(Cell(self.cells, f"{party}.job"), "server.job")

    def close(self) -> None:
        self.cells.cells.clear()
        self.cells.pool.shutdown(wait=False)


Network = Flight | Flare
NETWORKS: dict[str, type[Network]] = {"flight": Flight, "nvflare": Flare}
