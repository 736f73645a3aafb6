"""Time stage 3 and joint training against bare products and against plain loops.

Bare products are what no implementation can do without: per layer one product forward
and two backward (one for the first layer), with the same batch and replicas. Three more
yardsticks for joint training with one replica: "without axis" is our own loop around
plain ``torch.nn`` modules whose parameters have no replica axis; "split loop" is split
training written down in PyTorch with neither axis nor messages, bill or checks; "plain
loop" is one module with one optimiser, as if nobody had to be asked for anything. All
are timed in the same process, interleaved, and reported as ratios. Shapes are the
paper's (4 parties, batches of 1000 in file order, Adam), by default with the 267
columns a party of MIMIC-III with noise; ``--columns 210`` is Activity, ``--columns 81``
Sylva.

    python benchmarks/efficiency.py --device cpu
    python benchmarks/efficiency.py --device cuda --replicas 1,64

``--steps`` times one step of joint training against the two loops alone, with values
of 32 and of 8 bits (the loops send nothing), for the paper's shapes and for those of
the profile default: 3 parties, batches of 128 shuffled rows, AdamW. ``--processes 2``
runs two of them at once.

    python benchmarks/efficiency.py --steps --threads 1,2
    python benchmarks/efficiency.py --steps --processes 2
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import smoke
import torch
from torch import nn

from lessvfl import algorithm
from lessvfl.core.losses import Labels
from lessvfl.core.network import MLP
from lessvfl.core.passes import Graph
from lessvfl.core.plans import RowOrder, SelectPlan, TrainPlan
from lessvfl.core.solve import in_order
from lessvfl.party import Party, PartyData
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import Parties

HIDDEN = (64, 64)  # of a party network, in the paper and by default


@dataclass(frozen=True)
class Case:
    """What is trained: shapes of networks and tables, batches and the optimiser."""

    name: str
    n_parties: int
    columns: int
    components: int
    n_samples: int
    batch: int
    row_order: RowOrder
    optimizer: str
    n_classes: int = 6  # a softmax, as on Activity

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the widths of a party network."""
        return (self.columns, *HIDDEN, self.components)

    @property
    def head(self) -> tuple[int, int]:
        """Return the widths of the fusion network."""
        return self.n_parties * self.components, self.n_classes

    def n_steps(self, n_epochs: int) -> int:
        """Return the number of steps of some epochs."""
        return n_epochs * (self.n_samples // self.batch)


PAPER = Case("paper", 4, 267, 16, 10_000, 1000, "file", "adam")
DEFAULT = Case("default", 3, 40, 4, 2048, 128, "shuffle", "adamw")


def quiet(event: object) -> None:
    """Observe nothing."""


def products(widths: tuple[int, ...], n: int, R: int, device: Any) -> list[Any]:
    """Return operands of one step: input, weight and output gradient a layer."""
    layers = []
    for n_in, n_out in itertools.pairwise(widths):
        x = torch.randn(R, n, n_in, device=device)
        w = torch.randn(R, n_out, n_in, device=device)
        g = torch.randn(R, n, n_out, device=device)
        layers.append((x, w, g))
    return layers


def bare(layers: list[Any], firsts: tuple[int, ...], n_steps: int) -> None:
    """Do the products of some steps, forward and backward, and nothing else."""
    if layers[0][0].shape[0] == 1:
        layers = [tuple(operand[0] for operand in layer) for layer in layers]
    for _ in range(n_steps):
        for x, w, g in layers:
            x @ w.mT
            g.mT @ x
            if w.shape[-1] in firsts:  # behind a first layer; it needs none itself
                g @ w


class Plain:
    """A plain module behind the calls of a network, without the replica axis."""

    def __init__(self, widths: tuple[int, ...], device: torch.device) -> None:
        layers: list[nn.Module] = []
        for n_in, n_out in itertools.pairwise(widths):
            layers += [nn.Linear(n_in, n_out), nn.Tanh()]
        self.module = nn.Sequential(*layers[:-1]).to(device)
        self.n_replicas, self.n_outputs = 1, widths[-1]
        self.column_slots = torch.arange(widths[0], device=device)
        self.output_mask = torch.ones(1, widths[-1], dtype=torch.bool, device=device)

    def parameters(self) -> list[torch.Tensor]:
        """Return parameters (out, in) and (out,)."""
        return list(self.module.parameters())

    def train(self, mode: bool) -> None:
        """Switch nothing."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map (1, n, in) to (1, n, out)."""
        return self.module(x.squeeze(0)).unsqueeze(0)

    def passes(self, inputs: bool = False) -> Graph:
        """Return this network forward and back, by autograd."""
        return Graph(self, self.parameters(), inputs)


def network(widths: Any, R: int, device: torch.device, plain: bool, name: str) -> Any:
    """Return a network of ours, or a plain module in its place."""
    if plain:
        return Plain(widths, device)
    seeds = tuple(range(R))
    return MLP.create(widths, "tanh", seeds, name, torch.float32, device)


def make_parties(
    case: Case, R: int, device: torch.device, plain: bool
) -> tuple[Parties, Any]:
    """Return the server's view of the parties, and a fusion network."""
    seeds = tuple(range(R))
    columns = torch.arange(case.columns, device=device)
    parties = []
    for m in range(case.n_parties):
        net = network(case.widths, R, device, plain, f"party{m}")
        X = torch.randn(R, case.n_samples, case.columns, device=device)
        parties.append(Party(f"party{m}", net, PartyData(X, X[:, :0], columns), seeds))
    transport = InProcess({party.name: party.handle for party in parties})
    server = Parties(transport, [party.name for party in parties], Ledger(R))
    return server, network(case.head, R, device, plain, "server")


def joint(
    case: Case,
    R: int,
    device: torch.device,
    n_epochs: int,
    plain: bool = False,
    bits: int = 32,
) -> Callable[[], None]:
    """Return joint training of some epochs."""
    server, fusion = make_parties(case, R, device, plain)
    y = torch.randint(0, case.n_classes, (R, case.n_samples), device=device)
    labels = Labels(y, "multiclass", tuple(range(R)))
    how = (case.batch, case.row_order, case.optimizer, 0.01)
    plan = TrainPlan("train", n_epochs, *how, bits=bits)

    def work() -> None:
        algorithm.train_jointly(server, fusion, labels, plan, quiet)

    return work


def stage3(
    case: Case, R: int, device: torch.device, n_epochs: int
) -> Callable[[], None]:
    """Return stage 3 of one party."""
    seeds = tuple(range(R))
    net = MLP.create(case.widths, "tanh", seeds, "party", torch.float32, device)
    X = torch.randn(R, case.n_samples, case.columns, device=device)
    plan = SelectPlan("select_features", n_epochs, case.batch, "file", 0.001, (0.01,))
    batches = plan.batches(case.n_samples, seeds, "party")
    n_components = net.output_mask.sum(dim=1)

    def work() -> None:
        algorithm.select_features(
            net,
            algorithm.matching_loss(net, X, plan),
            n_components,
            None,
            plan,
            in_order(batches, device),
            quiet,
            "party",
        )

    return work


class Loop:
    """The same training written down in PyTorch, without anything around it."""

    def __init__(self, case: Case, device: torch.device, n_epochs: int) -> None:
        self.case, self.n_epochs = case, n_epochs
        self.nets = [Plain(case.widths, device).module for _ in range(case.n_parties)]
        self.head = nn.Linear(*case.head).to(device)
        size = (case.n_samples, case.columns)
        self.X = [torch.randn(size, device=device) for _ in self.nets]
        self.y = torch.randint(0, case.n_classes, size[:1], device=device)
        self.loss_of = nn.CrossEntropyLoss()

    def optimizer(self, modules: list[nn.Module]) -> torch.optim.Optimizer:
        """Return one optimiser for all parameters of these modules."""
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        params = [param for module in modules for param in module.parameters()]
        return kinds[self.case.optimizer](params, lr=0.01, fused=True)

    def batches(self) -> Iterator[Any]:
        """Yield the rows of every step."""
        for _ in range(self.n_epochs):
            order = torch.randperm(self.case.n_samples, device=self.y.device)
            for start in range(0, self.case.n_samples, self.case.batch):
                rows = slice(start, start + self.case.batch)
                yield order[rows] if self.case.row_order == "shuffle" else rows

    def whole(self) -> None:
        """Train all networks as one module with one optimiser."""
        optimizer = self.optimizer([*self.nets, self.head])
        for rows in self.batches():
            optimizer.zero_grad()
            h = [net(x[rows]) for net, x in zip(self.nets, self.X, strict=True)]
            loss = self.loss_of(self.head(torch.cat(h, dim=1)), self.y[rows])
            loss.backward()
            optimizer.step()

    def split(self) -> None:
        """Train with the graph cut at the embeddings, one optimiser a network."""
        optimizers = [self.optimizer([net]) for net in [*self.nets, self.head]]
        for rows in self.batches():
            for optimizer in optimizers:
                optimizer.zero_grad()
            h = [net(x[rows]) for net, x in zip(self.nets, self.X, strict=True)]
            sent = [block.detach().requires_grad_() for block in h]
            loss = self.loss_of(self.head(torch.cat(sent, dim=1)), self.y[rows])
            loss.backward()
            for block, copy in zip(h, sent, strict=True):
                block.backward(copy.grad)
            for optimizer in optimizers:
                optimizer.step()


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """Return the time of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def compare(
    works: dict[str, Callable[[], None]], device: torch.device, repeats: int
) -> dict[str, float]:
    """Time several works in turn, after one warm-up each; return medians."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(seconds(work, device))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_mib(device: torch.device) -> float:
    """Return the peak of memory in MiB: of the device, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def show(line: dict[str, Any]) -> None:
    """Print one JSON object."""
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in line.items()}
    print(json.dumps(rounded), flush=True)


def compare_steps(device: torch.device, args: argparse.Namespace) -> None:
    """Time a step of joint training against the same training in plain loops."""
    for n_threads in [int(part) for part in args.threads.split(",")]:
        torch.set_num_threads(n_threads)
        for case in (DEFAULT, replace(PAPER, columns=args.columns)):
            loop = Loop(case, device, args.epochs)
            works: dict[str, Callable[[], None]] = {
                f"{bits} bits": joint(case, 1, device, args.epochs, bits=bits)
                for bits in (32, 8)
            }
            works |= {"plain loop": loop.whole, "split loop": loop.split}
            found = compare(works, device, args.repeats)
            line = {"what": "step", "case": case.name, "threads": n_threads}
            n_steps = case.n_steps(args.epochs)
            line |= {f"{k} ms": 1e3 * v / n_steps for k, v in found.items()}
            for ours, other in itertools.product(
                ("32 bits", "8 bits"), ("plain loop", "split loop")
            ):
                line[f"{ours} / {other}"] = found[ours] / found[other]
            show(line)


def compare_stages(device: torch.device, args: argparse.Namespace) -> None:
    """Time stage 3 and joint training against their bare products."""
    case = replace(PAPER, columns=args.columns)
    n_steps = case.n_steps(args.epochs)
    firsts = (HIDDEN[0], case.head[0])
    single: dict[str, float] = {}
    for R in [int(part) for part in args.replicas.split(",")]:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        one = products(case.widths, case.batch, R, device)
        head = products(case.head, case.batch, R, device)
        for name, make, layers in (
            ("stage 3", stage3, one),
            ("joint", joint, [*one * case.n_parties, *head]),
        ):
            works = {
                "ours": make(case, R, device, args.epochs),
                "bare": functools.partial(bare, layers, firsts, n_steps),
            }
            if name == "joint" and R == 1:
                loop = Loop(case, device, args.epochs)
                works["without axis"] = joint(case, 1, device, args.epochs, True)
                works |= {"plain loop": loop.whole, "split loop": loop.split}
            found = compare(works, device, args.repeats)
            line: dict[str, Any] = {
                "what": name,
                "columns": args.columns,
                "replicas": R,
            }
            line |= {f"{k} ms/step": 1e3 * v / n_steps for k, v in found.items()}
            line |= {f"ours / {k}": found["ours"] / v for k, v in found.items()}
            del line["ours / ours"]
            if R == 1:
                single[name] = found["ours"]
            elif name in single:
                line[f"{R} single runs / batch"] = R * single[name] / found["ours"]
            line["peak MiB"] = peak_mib(device)
            show(line)


def main() -> None:
    """Print one JSON object a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--replicas", default="1,64")
    parser.add_argument("--columns", type=int, default=267)  # MIMIC-III, 50 % noise
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", action="store_true", help="one step alone")
    parser.add_argument("--threads", default="1", help="of --steps: 1,2")
    parser.add_argument("--processes", type=int, default=1, help="at once")
    args = smoke.parse(parser, replicas="1,2", repeats=1, epochs=1)
    if args.processes > 1:
        again = [sys.executable, *sys.argv, "--processes", "1"]
        running = [subprocess.Popen(again) for _ in range(args.processes)]
        sys.exit(max(process.wait() for process in running))
    compared = compare_steps if args.steps else compare_stages
    compared(torch.device(args.device), args)


if __name__ == "__main__":
    main()
