"""How much memory a message takes at whoever reads it, by its kind.

Every kind with arrays is read in a process of its own, within the bound that is due,
and once where something else is due. The frame itself counts. Two more messages travel
over loopback: levels of 4 bits where ids are due to a server, and a first message that
is too long for a party:

    python benchmarks/wire_memory.py             # arrays of 64 MiB, once decoded
    python benchmarks/wire_memory.py --mib 16

Exit code 1 if one that is due takes more than three times what it decodes to, or one
that is not due more than its frame.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pyarrow import flight as arrow

from lessvfl.errors import LessVFLError
from lessvfl.wire import codec, coding, control, dial, due, flight, messages
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.due import Bound, Due
from lessvfl.wire.line import HubRules

MIB = 1 << 20
M_MMAP_THRESHOLD = -3  # of mallopt(3)
MOST = 3.0  # times the decoded bytes that are due
SMALL = MIB // 4  # of arrays that are read first
SPARE = 2.0  # MiB of whatever else is loaded meanwhile
LOOPBACK_MIB = {"server": 110, "party": 64}  # of the frames that travel
OFFER_BYTES = 32 * 4_000_000  # that are due to a server by default
LARGEST_MIB = 96  # that a party may grow by, the engine's buffers included
WIDTH = 32  # components of an embedding


class Peak(NamedTuple):
    """What reading a message took, in MiB beyond its frame, and how it ended."""

    mib: float
    refusal: str


def peak_of(work: Callable[[], object], first: Callable[[], object] = int) -> Peak:
    """Do something in processes of its own; return the most memory that it took.

    What is done first maps code that the work needs, too, which would count. The least
    of three counts, since a system may give a process 2 MiB at once.
    """
    return min(_peak_of(work, first) for _ in range(3))


def _peak_of(work: Callable[[], object], first: Callable[[], object]) -> Peak:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        refusal = ""
        first()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _mib("VmRSS")
        try:
            work()
        except LessVFLError as error:
            refusal = str(error)
        took = _mib("VmHWM") - before
        os.write(write, f"{took}\n{refusal}".encode()[:2000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        took, _, refusal = told.read().partition("\n")
    os.waitpid(child, 0)
    return Peak(float(took), refusal)


def _mib(key: str) -> float:
    status = Path("/proc/self/status").read_text()
    (kib,) = re.findall(rf"{key}:\s+(\d+)", status)
    return int(kib) / 1024


def coded(values: torch.Tensor, bits: int) -> messages.Block:
    """Return a block in so many bits a value."""
    return messages.Block.in_bits(values, bits, 0, "memory")


def kinds(n_bytes: int) -> Iterator[tuple[str, str, Any]]:
    """Yield who reads a message, what it is, and the message of so many bytes."""
    n_rows = n_bytes // (4 * WIDTH)
    values = torch.rand(n_rows, WIDTH)
    for bits in (4, 8, 16, 32):
        block = coded(values, bits)
        yield "server", f"Embedding, {bits} bits", messages.Embedding("train", block)
        yield "party", f"Descend, {bits} bits", messages.Descend("train", block)
    half = values[: n_rows // 2].double()
    double = coded(half, 8)
    yield "server", "Embedding, 8 bits of double", messages.Embedding("train", double)
    constant = messages.Block(values.flatten())
    yield "server", "Done", messages.Done("train", True, constant)
    yield "server", "QueryReply", messages.QueryReply("train", (values,))
    yield "party", "Query", messages.Query("train", 0, (values,))
    for who in ("server", "party"):
        yield who, "Align", control.Align(bytes(n_bytes))
    places = np.arange(n_bytes // 8)
    yield "party", "Ask", control.Ask(places)
    n_explained = n_bytes // (8 + 4 * WIDTH)
    slopes = values[:n_explained].numpy()
    yield "party", "Explain", control.Explain(places[:n_explained], slopes, 3)
    n_pairs = n_bytes // (2 * 4)
    shares = np.ones((n_pairs // 4, 4), dtype=np.float32)
    named = np.zeros_like(shares, dtype=np.int32)
    yield "server", "Explained", control.Explained(("age",), ("",), named, shares)
    in_order = np.arange(n_bytes // 4)
    blocks = in_order // 2
    whole = control.Prepare.of(0, in_order, in_order[:0], blocks=blocks)
    yield "party", "Prepare", whole


def table(mib: int) -> bool:
    """Print what every kind takes; tell whether all are within bounds."""
    is_well = True
    print("to      message                      due MiB  frame   read  ratio  refused")
    pairs = zip(kinds(SMALL), kinds(mib * MIB), strict=True)
    for (_, _, small), (who, name, message) in pairs:
        data = codec.encode(WireFrame(message, 1))
        little = codec.encode(WireFrame(small, 1))
        specs: list[int] = []

        def note(kind: type, fields: Any, own: Any, to: list[int] = specs) -> None:
            to.append(max(codec.wire_bytes(own), codec.decoded_bytes(fields, own)))

        codec.decode(data, note)
        n_due, frame = specs[0] / MIB, len(data) / MIB
        is_due = Due({type(message): Bound(specs[0])})
        other = Due({control.Agreed: Bound()})

        def warm(data: bytes = little, accept: Any = is_due.accept) -> None:
            codec.decode(data, accept)

        taken = peak_of(lambda d=data, a=is_due.accept: codec.decode(d, a), warm)
        refused = peak_of(lambda d=data, a=other.accept: codec.decode(d, a), warm)
        ratio = (frame + taken.mib) / n_due
        print(
            f"{who:7} {name:28} {n_due:7.1f} {frame:6.1f} {taken.mib:6.1f} "
            f"{ratio:6.2f} {refused.mib:8.1f}"
        )
        is_well &= not taken.refusal and bool(refused.refusal)
        is_well &= frame + taken.mib <= MOST * n_due + SPARE
        is_well &= refused.mib <= SPARE
    return is_well


# ----------------------------------------------------------------------- over loopback


def levels(mib: int, number: int, run: bytes) -> bytes:
    """Return the frame of an embedding in 4 bits a value, of so many MiB."""
    packed = mib * MIB
    level = torch.zeros(1, dtype=torch.uint8).expand(2 * packed // WIDTH, WIDTH)
    coded = coding.Coded(level, torch.zeros(()), torch.ones(()), 4)
    block = messages.Block(level.float(), coded)
    return codec.encode(WireFrame(messages.Embedding("train", block), number, run))


class RudeServer(arrow.FlightServerBase):  # type: ignore[misc]
    """Sends a first message that is too long."""

    def do_exchange(self, context: Any, to: Any, reader: Any, writer: Any) -> None:
        """Answer a greeting."""
        stream = flight.FlightStream(reader, writer)
        stream.read()
        stream.write(levels(LOOPBACK_MIB["party"], 1, bytes(16)))
        stream.read()


def take_role(role: str, port: int) -> None:
    """Be one side of an exchange; print what it took, if that is measured."""
    address = flight.Address(f"127.0.0.1:{port}", None)
    hello = control.Hello("a", 1, "cpu", {})
    if role == "rude-server":
        server = RudeServer("grpc+tcp://127.0.0.1:0")
        print(server.port, flush=True)
        server.serve()
    elif role == "rude-party":
        stream = address.connect()
        stream.write(codec.encode(WireFrame(hello, 0)))
        asked = codec.exchange_of(stream.read())
        stream.write(levels(LOOPBACK_MIB["server"], *asked))
        stream.read()
    elif role == "party":
        before = _mib("VmRSS")
        waiting = due.requests("before a run", {})
        try:
            dial.serve(address, hello, print, patience=1.0, due=lambda: waiting)
        except LessVFLError as error:
            print(f"{before} {_mib('VmHWM')} {error}", flush=True)
    else:
        offer = {control.Align: Bound(OFFER_BYTES)}
        rules = HubRules(due=lambda party, request: due.replies(request, offer))
        hub = flight.FlightHub("127.0.0.1:0", ("a",), None, rules=rules)
        print(hub.port, flush=True)
        hub.wait(60)
        before = _mib("VmRSS")
        try:
            hub.send({"a": control.Align(b"which ids have you?")})
        except LessVFLError as error:
            print(f"{before} {_mib('VmHWM')} {error}", flush=True)
    os._exit(0)


def over_loopback(measured: str) -> bool:
    """Have one side send what is not due; print what the other's process takes."""
    own: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, __file__, "--role"]
    is_server = measured == "server"
    listens = "server" if is_server else "rude-server"
    dials = "rude-party" if is_server else "party"
    with subprocess.Popen([*command, listens], **own) as first:
        assert first.stdout is not None
        port = first.stdout.readline().strip()
        with subprocess.Popen([*command, dials, "--port", port], **own) as second:
            told = first.stdout if is_server else second.stdout
            assert told is not None
            before, peak, why = told.readline().split(" ", 2)
            second.kill()
        first.kill()
    n_mib = LOOPBACK_MIB[measured]
    print(
        f"{measured}, {n_mib} MiB that are not due: {float(before):,.0f} -> "
        f"{float(peak):,.0f} MiB. {why.strip()}"
    )
    most = n_mib + OFFER_BYTES / MIB if is_server else LARGEST_MIB
    return float(peak) - float(before) <= most


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--kinds", action="store_true", help="nothing over loopback")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.role:
        take_role(given.role, given.port)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIB)  # what is freed is given back
    is_well = table(given.mib)
    if not given.kinds:
        is_well &= all([over_loopback(side) for side in LOOPBACK_MIB])
    sys.exit(not is_well)


if __name__ == "__main__":
    main()
