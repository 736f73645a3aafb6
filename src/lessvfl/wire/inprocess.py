"""Parties in this process: ``handle`` is called directly, tensors go by reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lessvfl.terms import PartyId
from lessvfl.wire.messages import Reply, Request


@dataclass
class InProcess:
    """The simulator's transport."""

    handlers: Mapping[PartyId, Callable[[Request], Reply]]  # every party's ``handle``

    def exchange(self, requests: Mapping[PartyId, Request]) -> dict[PartyId, Reply]:
        """Let every party answer its request."""
        return {
            name: self.handlers[name](request) for name, request in requests.items()
        }

    def close(self) -> None:
        """Do nothing: there is no connection."""
