"""Messages that are not what they should be, against a server that runs.

A server process takes in run after run of three parties, with mutual TLS. This process
is two honest parties; a third (lab) that takes part, replies with a mutated frame, is
cut off and comes back; and a thief of the bank's certificate who greets with mutated
frames. Each run must end with the bits of the undisturbed one:

    python benchmarks/fuzz.py                      # 20,000 messages
    python benchmarks/fuzz.py --n 1000 --seed 1    # quickly, others
    python benchmarks/fuzz.py --minutes 10         # as many as that allows

Or frames are mutated and read in this process, as either side reads them, by what is
due to it, with a limit on the memory that they may take:

    python benchmarks/fuzz.py --frames --n 100000

Exit code 1 if a check fails. Refusals are not sent: a party may end a run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import logging
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import golden
import numpy as np
import torch
from pyarrow import flight as arrow

from lessvfl import data
from lessvfl.core.plans import TrainPlan
from lessvfl.errors import LessVFLWarning, ProtocolError
from lessvfl.remote import certificates
from lessvfl.remote.config import PartyConfig, ServerConfig
from lessvfl.remote.home import versions
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.policy import Policy
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.tables import LabelTable
from lessvfl.status import Status
from lessvfl.wire import (
    codec,
    connection,
    control,
    dial,
    due,
    flight,
    messages,
    shorthand,
)
from lessvfl.wire.codec import WireFrame, encode
from lessvfl.wire.due import BlockShape, Bound, Due

PARTIES = ("clinic", "bank", "lab")
SHORT = {"batch_size": 40, "train_epochs": 3, "party_epochs": 8, "server_epochs": 8}
SHORT |= {"pretrain_epochs": 2, "embedding_size": 4, "hidden": 8, "lam_party": 0.5}
POLICY = Policy(  # redone steps count, and an attack has them redone
    methods=("less-vfl",),
    rounds=10**9,
    values=10**9,
    align_rate=10**9,
    align_ids=1e9,
    components_per_column=2.0,
    evaluation="epochs",
    limits={"bits": None, "pretrain_epochs": None},
)
PATIENCE = 4.0  # the server's; a reply that it waits for that long counts as a hang
LONGEST = 90.0  # seconds without any progress, after which all is given up
GROWTH = 16.0  # MiB that the server may grow by after the first third
SHARES = {"reply": 0.15, "greeting": 0.85}
MEMORY = 64  # MiB that reading frames may take, whatever is in them
WIDEST = 8 << 20  # bytes of the arrays of a frame that is too large
DUE_BYTES = 1 << 16  # of the arrays that are due, where a bound is all there is
ERRORS = (connection.GoneError, *flight.LOST)
BLOCK = messages.Block(torch.arange(40.0).view(10, 4))
KINDS: list[Any] = [
    messages.Describe(),
    messages.Description("lab", 120, 4),
    messages.Begin(TrainPlan("train", 1.5, 100, "file", "adam", 0.01, None)),
    messages.Embedding("train", BLOCK),
    messages.Done("train"),
    messages.Done("train", True, messages.Block(torch.ones(4))),
    control.Hello("lab", 1, "cpu", versions()),
    control.Align(b"offer"),
    control.Save("train-3"),
    control.Agreed({"n_kept": 3}),
    control.Welcome("r", (0,), "less-vfl", {"hidden": 8}, PARTIES, "none"),
    control.Finish("0" * 64),
]
POISON = [-1, 10**400, "x\n", "\ud800", [[[]]], 1.5, [0, 10**30], None, np.inf]
HOW = ("bits", "cut", "longer", "random", "head", "length", "values", "kind", "number")
HOW += ("replay", "run", "party", "field", "shape", "lie")


def decode(data: Any) -> WireFrame:
    """Read a frame of whatever kind."""
    return codec.decode(data, lambda kind, fields, specs: None)


def credentials_of(folder: Path, name: str) -> flight.Credentials:
    """Return the files of the server or a party in the kit."""
    own = folder / "kit" / name
    return flight.Credentials(own / "cert.pem", own / "key.pem", own / "ca.pem")


def seal(head: list[Any], fields: Any, body: bytes, told: Any = None) -> bytes:
    """Return a frame with a right checksum, whatever is in it."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    start = codec.HEAD.pack(*head[:5], *(told or (len(text), len(body))))
    return start + codec._checksum(start, text, body) + text + body


def mutate(rng: random.Random, how: str, frame: bytes, before: list[bytes]) -> bytes:
    """Return a frame that differs from an honest one in one way."""
    head = list(codec.HEAD.unpack_from(frame))
    cut = codec.HEAD_BYTES + head[5]
    fields, body = json.loads(frame[codec.HEAD_BYTES : cut]), frame[cut:]
    is_block = bool(fields["arrays"]) and fields["arrays"][0][0] == "float32"
    match how:
        case "bits":
            flipped = bytearray(frame)
            for bit in rng.sample(range(8 * len(frame)), rng.randint(1, 8)):
                flipped[bit // 8] ^= 1 << bit % 8
            return bytes(flipped)
        case "cut":
            return frame[: rng.randrange(1, len(frame))]
        case "longer":
            return frame + rng.randbytes(rng.randint(1, 99))
        case "random":
            return rng.randbytes(rng.choice((1, 48, 300, 5000)))
        case "replay" if before:
            return rng.choice(before)
        case "head":
            head[:2] = rng.choice([[b"LVFM", 1], [b"LVFL", 0], [b"LVFL", 2]])
        case "kind":
            others = [k for k in KINDS if codec._PLACES[type(k)] != head[2]]
            proper = encode(WireFrame(rng.choice(others), head[3], head[4]))
            head[2] = rng.choice((len(codec.KINDS), 65535))
            return rng.choice((proper, proper, seal(head, fields, body)))
        case "number":
            head[3] += rng.choice((1, 2, 1 << 40))
        case "run":
            head[4] = rng.randbytes(16)
        case "length":
            huge = rng.choice((head[5] + 1, 1 << 20, (1 << 32) - 1))
            long = rng.choice((head[6] + 1, 1 << 31, (1 << 64) - 1))
            told = rng.choice(((huge, head[6]), (head[5], long), (huge, long)))
            return seal(head, fields, body, told)
        case "party" if "party" in fields:
            fields["party"] = rng.choice((fields["party"] + "_", "a\nb", "x" * 5000))
        case "field":
            name, now = rng.choice(sorted(fields)), rng.choice(POISON)
            was = fields[name]
            if isinstance(was, dict) and was and name != "revealed":
                now = was | {rng.choice(sorted(was)): now}
            fields[name] = now if now != was else "other"
        case "values" if is_block and body:
            at = 4 * rng.randrange(len(body) // 4)
            bad = np.float32(rng.choice((np.nan, np.inf, -np.inf))).tobytes()
            body = body[:at] + bad + body[at + 4 :]
        case "values":
            fields["arrays"] = np.nan
        case "shape" if is_block and len(fields["arrays"]) == 1:
            values = np.frombuffer(body, np.float32).reshape(fields["arrays"][0][1])
            axes = range(values.ndim)
            twice = [np.concatenate([values, values], axis) for axis in axes]
            less = [values[:0], values[1:], values[..., :0], values.reshape(1, -1)]
            values = rng.choice([*twice, *less, values[None], values.astype(float)])
            fields["arrays"] = [[values.dtype.name, list(values.shape)]]
            body = values.tobytes()
        case "lie":
            name, value = rng.choice(_lies(fields))
            fields[name] = value
        case _:
            fields["arrays"] = rng.choice(([["float32", [-1, 4]]], [["int8", [1]]], 3))
    return seal(head, fields, body)


def _lies(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return what is well-formed, but what the server knows better."""
    if "embedding_size" in fields:
        return [("embedding_size", 10**12), ("n_samples", 121), ("version", 2)]
    if "ahead" in fields:
        return [("ahead", not fields["ahead"]), ("stage", "joint_lasso")]
    if "silent" in fields:
        return [("silent", not fields["silent"]), ("stage", "embed")]
    return [("arrays", 3)]


# ------------------------------------------------------------------- the server process


SAYING = threading.Lock()


def say(**what: Any) -> None:
    """Tell the attacker, as one line of JSON."""
    with SAYING:
        print(json.dumps(what), flush=True)


def normal(reason: str) -> str:
    """Return a reason without what differs from message to message."""
    reason = re.sub(r"\d+", "#", reason.split("\n")[0])
    reason = re.sub(r"Got (['\"{].*|.* instead\.)", "Got ...", reason)
    return re.sub(r"A message must be a frame.*?#\. (Got )?", "", reason)[:99]


class Reasons(logging.Handler):
    """Counts what the transport logs as refused, by reason."""

    by: dict[str, Counter[str]] = {"greeting": Counter(), "reply": Counter()}  # noqa: RUF012

    def emit(self, record: logging.LogRecord) -> None:
        """Count one."""
        way = "greeting" if str(record.msg).startswith("refused") else "reply"
        self.by[way][normal(str(tuple(record.args or "??")[1]))] += 1


def server(folder: Path) -> None:
    """Run after run, until told to stop; tell of each how it ended."""
    stop, memory = threading.Event(), list[float]()
    logger = logging.getLogger("lessvfl.wire.hub")
    logger.addHandler(Reasons(logging.WARNING))
    logger.propagate = False
    logging.getLogger("lessvfl.remote.server").setLevel(logging.ERROR)
    hub = flight.FlightHub(
        "127.0.0.1:0",
        PARTIES,
        credentials_of(folder, "server"),
        silence=PATIENCE,
        name_of=certificates.name_of_peer,
    )
    say(port=hub.port)

    def obey() -> None:
        sys.stdin.read()  # which is closed in the end
        stop.set()

    def look() -> None:
        while True:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            memory.append(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20))
            time.sleep(1.0)

    for target in (obey, look):
        threading.Thread(target=target, daemon=True).start()
    y = (table()[:, 0] + table()[:, 4] > 0).astype(int)
    labels = LabelTable(data.from_arrays(np.zeros((150, 1)), y, name="numbers"))
    config = ServerConfig(
        parties=PARTIES,
        method="less-vfl",
        settings=SHORT,
        wait=60.0,
        save_every=1,
        seed_private="shared",  # the secret of a run folder is of one run
    )
    number = 0
    while not stop.is_set():
        config = dataclasses.replace(config, out=str(folder / "server" / str(number)))
        status, record = Status("fuzz", "less-vfl", "numbers", PARTIES), None
        while record is None:
            try:
                process = ServerProcess(config, labels, hub, status, resume=True)
                with contextlib.closing(process):
                    record = process.run()
            except Exception as error:  # this would end `lessvfl server`
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(where.filename).name}:{where.name}"
                why = f"{type(error).__name__} in {place}: {str(error)[:200]}"
                say(crash=normal(why), whole=traceback.format_exc()[-3000:])
                for party in hub.connected:
                    hub.hang_up(party)
        (numbers,) = record.runs
        bill, told = numbers["communication"], status.snapshot()["traffic"]
        if told["payload_bytes"]["up"] > bill.pop("wire_bytes")["up"]:
            say(crash="status: more payload bytes than were on the wire", whole="")
        for name in ("frames", "socket", "resent_bytes"):
            del bill[name]
        say(run=number, numbers=numbers | {"seconds": 0})
        number += 1
    say(reasons=Reasons.by, mib=memory)
    hub.close()


def hello(name: str) -> control.Hello:
    """Return how a party greets."""
    return control.Hello(name, 1, "cpu", versions())


@functools.cache
def table() -> Any:
    """Return the columns of all parties, 150 rows."""
    return np.random.default_rng(5).normal(size=(150, 9))


# ------------------------------------------------------------------------ the attackers


class Attack:
    """Everybody but the server."""

    def __init__(self, folder: Path, port: int, seed: int, quota: Any) -> None:
        self.folder, self.port, self.seed, self.quota = folder, port, seed, quota
        self.on, self.over = threading.Event(), threading.Event()
        self.sent, self.found = Counter[str](), Counter[str]()  # found: defects
        self.own: dict[str, set[str]] = defaultdict(set)
        self.parties: dict[str, PartyProcess] = {}
        threading.excepthook = self.raised

    def raised(self, args: Any) -> None:
        """Count an error of a thread."""
        self.found[f"{args.thread.name}: {args.exc_type.__name__}"] += 1
        traceback.print_exception(args.exc_value)

    def start(self, target: Any, *args: Any) -> None:
        """Start a thread."""
        name = target.__name__
        threading.Thread(target=target, args=args, daemon=True, name=name).start()

    def goes_on(self, way: str) -> bool:
        """Tell whether to send more of this."""
        return self.on.is_set() and self.sent[way] < self.quota[way]

    def count(self, way: str, how: str) -> None:
        """Count a message."""
        self.sent[way] += 1
        self.sent[f"{way}: {how}"] += 1

    def party(self, name: str, run: str) -> PartyProcess:
        """Return an honest party, with a run folder of its own for every run."""
        at = 3 * PARTIES.index(name)
        config = PartyConfig(
            out=str(self.folder / name / run),
            reveal="counts",
            scale="none",
            seed_private="shared",
            policy=POLICY,
        )
        frame = data.frame_of(table()[:, at : at + 3], ["x0", "x1", "x2"])
        return PartyProcess(name, config, frame)

    def handle(self, name: str, message: Any) -> Any:
        """Answer as an honest party; remember what it wrote at the end of a run."""
        if isinstance(message, control.Welcome):
            if name in self.parties:
                self.parties.pop(name).close()
            self.parties[name] = self.party(name, message.run)
        party = self.parties[name]
        reply = party.handle(message)
        if isinstance(message, control.Finish):
            _, *lines = (party.folder / "record.jsonl").read_text().splitlines()
            self.own[name].add("\n".join(lines))  # the header has the time
        return reply

    def due(self, name: str) -> Due:
        """Return what an honest party may be asked for now."""
        if name not in self.parties:
            return due.requests("before a run", {})
        return self.parties[name].due()

    def honest(self, name: str) -> None:
        """Take part in run after run."""
        address = flight.Address(
            f"127.0.0.1:{self.port}", credentials_of(self.folder, name)
        )
        while not self.over.is_set():
            handle = functools.partial(self.handle, name)
            try:
                waiting = functools.partial(self.due, name)
                dial.serve(address, hello(name), handle, patience=20, due=waiting)
            except Exception as error:
                if not self.over.is_set():
                    self.found[f"honest {name}: {normal(str(error))}"] += 1

    def connect(self, name: str) -> Any:
        """Return a channel with a certificate of ours."""
        certificate, key, ca = credentials_of(self.folder, name).read()
        options = {"cert_chain": certificate, "private_key": key, "tls_root_certs": ca}
        where = f"grpc+tls://127.0.0.1:{self.port}"
        return arrow.connect(where, override_hostname="localhost", **options)

    def lab(self) -> None:
        """Take part, but reply with something else after some exchanges."""
        rng = random.Random(self.seed)
        to = arrow.FlightDescriptor.for_command(flight.COMMAND)
        while not self.over.is_set():
            with contextlib.suppress(*ERRORS):
                client = self.connect("lab")  # a connection has one stream
                writer, reader = client.do_exchange(to)
                with contextlib.closing(client), contextlib.closing(writer):
                    self.converse(rng, writer, reader)
            time.sleep(0.002)

    def converse(self, rng: random.Random, writer: Any, reader: Any) -> None:
        """Take part over one connection, to the end or to the first bad reply."""
        before = list[bytes]()
        said, heard = shorthand.Shorthand(), shorthand.Shorthand()
        left = rng.choice((rng.randrange(9), rng.randrange(60)))
        writer.write_metadata(encode(WireFrame(hello("lab"), 0)))
        while True:
            frame = decode(heard.whole(flight.FlightStream(reader, None).read()))
            if isinstance(frame.message, control.Farewell | control.Refusal):
                return
            reply = self.handle("lab", frame.message)
            good = encode(WireFrame(reply, frame.number, frame.run))
            if left <= 0 and self.goes_on("reply"):
                self.misbehave(rng, writer, reader, good, before)
                return
            writer.write_metadata(said.shorten(good))
            before, left = [*before[-20:], good], left - 1

    def misbehave(self, rng: Any, writer: Any, reader: Any, *past: Any) -> None:
        """Send a mutated reply; the server must hang up, and soon."""
        kind = codec.KINDS[codec.HEAD.unpack_from(past[0])[2]].cls.__name__
        how = rng.choice([h for h in HOW if self.found[f"reply, {h}: hang"] < 3])
        bad, began = mutate(rng, how, *past), time.monotonic()
        self.count("reply", how)
        taken = f"reply, {how} of {kind}: TAKEN"
        with contextlib.suppress(*ERRORS):
            writer.write_metadata(bad)
            answer = decode(flight.FlightStream(reader, None).read()).message
            if not isinstance(answer, control.Refusal):
                self.found[taken] += 1
        if time.monotonic() - began > 0.9 * PATIENCE:
            self.found[f"reply, {how}: hang"] += 1

    def thief(self) -> None:
        """Greet as the bank, with its certificate."""
        rng = random.Random(self.seed + 1)
        bank = hello("bank")
        unfit: list[Any] = [
            {"threads": 9},
            {"device": "a"},
            {"versions": {"a": "x" * 3000}},
        ]
        right = encode(WireFrame(bank, 0))
        commands = [arrow.FlightDescriptor.for_command(c) for c in (b"", b"lessvfl/2")]
        commands.append(arrow.FlightDescriptor.for_path("lessvfl"))
        while self.goes_on("greeting"):
            how = rng.choice((*HOW, "command", "unfit", "empty"))
            to = arrow.FlightDescriptor.for_command(flight.COMMAND)
            if how == "unfit":
                own = dataclasses.replace(bank, **rng.choice(unfit))
                bad = encode(WireFrame(own, 0))
            elif how == "command":
                to, bad = rng.choice(commands), right
            elif how == "empty":
                bad = b""
            else:
                bad = mutate(rng, how, right, [right])
            with contextlib.closing(self.connect("bank")) as client:
                self.greet(client, how, to, bad)

    def greet(self, client: Any, how: str, to: Any, bad: bytes) -> None:
        """Send one greeting; it must be refused with a sentence."""
        self.count("greeting", how)
        try:
            writer, reader = client.do_exchange(to, arrow.FlightCallOptions(timeout=9))
            with contextlib.closing(writer):
                writer.write_metadata(bad)
                answer = decode(flight.FlightStream(reader, None).read()).message
                if not isinstance(answer, control.Refusal):
                    self.sent["greeting: as the bank"] += 1  # it was away
        except (*ERRORS, ProtocolError) as error:
            self.found[f"greeting, {how}: no sentence but {normal(str(error))}"] += 1


# --------------------------------------------------------------- frames in this process


def blocks() -> list[messages.Block]:
    """Return one block in every number of bits."""
    values = torch.rand(8, 4)
    return [messages.Block.in_bits(values, n, 0, "fuzz") for n in (4, 8, 16, 32)]


def all_due() -> list[tuple[str, Due]]:
    """Return what may be due to either side, and to whom."""
    ids = {control.Align: Bound(DUE_BYTES)}
    shape = BlockShape((8, 4), torch.float32, 8)
    formats = ((torch.float32, (8, 4)),)
    to_server = [
        due.replies(control.Align(b""), ids),
        due.replies(messages.Describe(), {}),
        Due({messages.Embedding: due.embedding(shape, "train", True)}),
        Due({messages.QueryReply: due.answer(formats, "train")}),
        Due({messages.Done: Bound(DUE_BYTES)}),
    ]
    bounds = dict.fromkeys((kind.cls for kind in codec.KINDS), Bound(DUE_BYTES))
    to_party = [due.requests(phase, bounds) for phase in due.REQUESTS]
    return [("server", one) for one in to_server] + [("party", one) for one in to_party]


def inflate(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame with a right checksum that claims, or has, more than it should."""
    head = list(codec.HEAD.unpack_from(frame))
    cut = codec.HEAD_BYTES + head[5]
    fields, body = json.loads(frame[codec.HEAD_BYTES : cut]), frame[cut:]
    match rng.choice(("levels", "more", "arrays", "nested")):
        case "levels" if fields.get("coded"):
            n_rows = rng.choice((0, 9, 10**4, 10**9, 2**40))
            fields["coded"] = [rng.choice((4, 8, 16)), "float64", [n_rows, 4]]
        case "levels" | "more":
            body = bytes(rng.randrange(WIDEST))
            fields["arrays"] = [["uint8", [len(body)]]]
            if "coded" in fields:
                n_values = len(body) // 4 * 8
                fields["coded"] = [4, "float64", [n_values // 4, 4]]
                fields["arrays"] = [["uint8", [n_values // 2]], ["float32", [2]]]
                body = body[: n_values // 2] + bytes(8)
        case "arrays":
            size = rng.choice((0, 1 << 31, 1 << 40))
            fields["arrays"] = [["float64", [size, 1 << 30]], ["uint8", [len(body)]]]
        case "nested":
            name = rng.choice(sorted(fields))
            fields[name] = [[0] * 9] * rng.randrange(codec.MAX_FIELDS // 30)
    return seal(head, fields, body)


def read_frames(n: int, seed: int) -> dict[str, int]:
    """Read so many mutated frames in a process of its own; count what became of them.

    It may take so much memory and no more; what does not fit is a defect.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # Only by this much may data grow from here on.
        status = Path("/proc/self/status").read_text()
        (kib,) = re.findall(r"VmData:\s+(\d+)", status)
        limit = (int(kib) << 10) + (MEMORY << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        counts: Counter[str] = Counter()
        try:
            counts = count_frames(n, seed)
        except BaseException as error:
            counts[f"DEFECT {type(error).__name__}: {error}"] += 1
        os.write(write, json.dumps(counts).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        said = told.read()
    os.waitpid(child, 0)
    return dict(json.loads(said or '{"DEFECT: the process is gone": 1}'))


def count_frames(n: int, seed: int) -> Counter[str]:
    """Read mutated frames, each as one side does; count what became of them."""
    rng, counts = random.Random(seed), Counter[str]()
    whole: list[Any] = list(KINDS)
    for block in blocks():
        whole += [messages.Embedding("train", block, True)]
        whole += [messages.Descend("train", block)]
    values = (torch.rand(8, 4),)
    whole += [messages.Query("train", 0, values), messages.QueryReply("train", values)]
    frames, readers = [encode(WireFrame(m, 1)) for m in whole], all_due()
    for _ in range(n):
        who, is_due = rng.choice(readers)
        how, frame = rng.choice((*HOW, "inflate", "none")), rng.choice(frames)
        if how == "inflate":
            frame = inflate(rng, frame)
        elif how != "none":
            frame = mutate(rng, how, frame, frames)
        try:
            codec.decode(frame, is_due.accept)
            counts[f"{who}: read"] += 1
        except ProtocolError as error:
            counts[f"{who}: refused"] += 1
            if isinstance(error.__context__, MemoryError):
                counts[f"DEFECT {who}, {how}: more memory than there is"] += 1
    return counts


# ----------------------------------------------------------------------------- together


def main() -> None:
    """Run undisturbed once, then under attack; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frames", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LessVFLWarning)
    quota = {way: int(share * given.n) for way, share in SHARES.items()}
    if given.serve:
        server(given.serve)
        return
    if given.frames:
        began = time.monotonic()
        counts = read_frames(given.n, given.seed)
        print(json.dumps(counts, indent=1, sort_keys=True))
        print(f"{given.n:,} frames in {time.monotonic() - began:.0f} s")
        sys.exit(any("DEFECT" in name for name in counts))
    with tempfile.TemporaryDirectory(prefix="lessvfl-fuzz-") as scratch:
        sys.exit(attack(Path(scratch), given, quota))


def attack(folder: Path, given: Any, quota: dict[str, int]) -> bool:
    """Start everybody, watch over them, and tell whether a check failed."""
    certificates.init(folder / "kit", PARTIES)
    with open(folder / "stderr", "w") as errors:
        pipes: Any = {"stdin": -1, "stdout": -1, "stderr": errors, "text": True}
        process: Any = subprocess.Popen(
            [sys.executable, __file__, "--serve", folder], **pipes
        )
    state = Attack(
        folder, json.loads(process.stdout.readline())["port"], given.seed, quota
    )
    runs: list[Any] = []
    last: dict[str, Any] = {"reasons": {}, "mib": [0.0] * 9}

    def hear() -> None:
        for line in process.stdout:
            what = json.loads(line)
            if "numbers" in what:
                runs.append(what["numbers"])
                if runs[-1] != runs[0]:
                    (where, *_) = golden.differences(runs[0], runs[-1])
                    print(f"run {what['run']} differs in {where}", flush=True)
            if crash := what.get("crash"):
                state.found[f"CRASH {crash}"] += 1
                if state.found[f"CRASH {crash}"] == 1:
                    print(what["whole"], file=sys.stderr, flush=True)
            last.update(what)

    state.start(hear)
    for name in PARTIES[:2]:
        state.start(state.honest, name)
    state.start(state.lab)
    moved, began, ended = time.monotonic(), 0.0, 0.0
    seen: Any = None
    while process.poll() is None:
        time.sleep(0.1)
        now = time.monotonic()
        if runs and not began:
            print(f"undisturbed: {now - moved:.1f} s", flush=True)
            began = now
            state.on.set()
            state.start(state.thief)
        if (*state.sent.values(), len(runs)) != seen:
            seen, moved = (*state.sent.values(), len(runs)), now
        full = all(state.sent[way] >= n for way, n in quota.items())
        if began and not ended and (full or now - began > 60 * given.minutes):
            ended = now
            state.on.clear()
            process.stdin.close()  # it ends after this run
        if now - moved > LONGEST:
            state.found["ALL: hang"] += 1
            process.kill()
            process.wait()
    state.over.set()
    time.sleep(0.5)
    print((folder / "stderr").read_text()[-2000:])
    print(f"{len(runs) - 1:,} runs under attack in {(ended or moved) - began:.0f} s")
    return report(state, last, runs)


def report(state: Attack, last: dict[str, Any], runs: list[Any]) -> bool:
    """Print what was sent, what was said to it, and every check."""
    sent, reasons, found = state.sent, last["reasons"], state.found
    ways = {way: sent.pop(way) for way in SHARES}
    logs = {f"logged, {way}": counts for way, counts in reasons.items()}
    print(json.dumps({"messages": ways, "sent": sent, **logs}, indent=1))
    mib = last["mib"]
    third = np.array(mib[len(mib) // 3 :])
    slope = float(np.polyfit(np.arange(len(third)), third, 1)[0])
    print(f"\nserver's memory: {mib[-1]:.1f} MiB; {slope * 60:+.2f} a minute")
    logged = {way: sum(counts.values()) for way, counts in reasons.items()}
    for name, count in sorted(found.items()):
        print(f"DEFECT {count:>6,}  {name}")
    ours = ways["greeting"] - sent["greeting: as the bank"]
    checks = {
        "no crash": not any("CRASH" in name for name in found),
        "no hang": not any("hang" in name for name in found),
        "no other defect": not found,
        "every greeting refused, and logged": logged.get("greeting", 0) >= ours > 0,
        "every reply refused, and logged": logged.get("reply", 0) >= ways["reply"] > 0,
        "runs bit-identical": len(runs) > 1 and all(run == runs[0] for run in runs),
        "parties' files bit-identical": {len(s) for s in state.own.values()} == {1},
    }
    if len(third) > 60:  # the first seconds are all growth
        is_flat = slope * len(third) < GROWTH
        checks[f"memory grew by less than {GROWTH:g} MiB"] = is_flat
    for name, passed in checks.items():
        print(f"{'ok  ' if passed else 'FAIL'} {name}")
    return not all(checks.values())


if __name__ == "__main__":
    main()
