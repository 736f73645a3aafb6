"""Time stage 3 and joint training against the bare matrix products of the same shapes.

Bare products are what no implementation can do without: per layer one product forward
and two backward (one for the first layer), with the same batch and replicas. Two more
yardsticks for joint training with one replica: "without axis" is our own loop around
plain ``torch.nn`` modules whose parameters have no replica axis; "bare loop" is split
training written down in PyTorch with neither axis nor messages, bill or checks. All are
timed in the same process, interleaved, and reported as ratios. Shapes are the paper's:
4 parties, batches of 1000, by default the 267 columns a party of MIMIC-III with noise;
``--columns 210`` is Activity, ``--columns 81`` Sylva.

    python benchmarks/efficiency.py --device cpu
    python benchmarks/efficiency.py --device cuda --replicas 1,64
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lessvfl import algorithm
from lessvfl.core.network import MLP
from lessvfl.core.plans import Labels, SelectPlan, TrainPlan
from lessvfl.core.solve import in_order
from lessvfl.party import Holding, Party
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import Parties

N_PARTIES, COMPONENTS = 4, 16
AFTER_INPUT = (64, 64, COMPONENTS)  # the paper's party network
N_SAMPLES, BATCH = 10_000, 1000
N_CLASSES = 6  # a softmax, as on Activity
HEAD = (N_PARTIES * COMPONENTS, N_CLASSES)


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


def bare(layers: list[Any], n_steps: int) -> None:
    """Do the products of some steps, forward and backward, and nothing else."""
    if layers[0][0].shape[0] == 1:
        layers = [tuple(operand[0] for operand in layer) for layer in layers]
    for _ in range(n_steps):
        for x, w, g in layers:
            x @ w.mT
            g.mT @ x
            if w.shape[-1] in (AFTER_INPUT[0], HEAD[0]):  # a first layer needs none
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


def network(widths: Any, R: int, device: torch.device, plain: bool, name: str) -> Any:
    """Return a network of ours, or a plain module in its place."""
    if plain:
        return Plain(widths, device)
    seeds = tuple(range(R))
    return MLP.create(widths, "tanh", seeds, name, torch.float32, device)


def make_parties(
    R: int, device: torch.device, widths: tuple[int, ...], plain: bool
) -> tuple[Parties, Any]:
    """Return the server's view of the parties, and a fusion network."""
    seeds = tuple(range(R))
    columns = torch.arange(widths[0], device=device)
    parties = []
    for m in range(N_PARTIES):
        net = network(widths, R, device, plain, f"party{m}")
        X = torch.randn(R, N_SAMPLES, widths[0], device=device)
        parties.append(Party(f"party{m}", net, Holding(X, X[:, :0], columns), seeds))
    transport = InProcess({party.name: party.handle for party in parties})
    server = Parties(transport, [party.name for party in parties], Ledger(R))
    return server, network(HEAD, R, device, plain, "server")


def joint(
    R: int,
    device: torch.device,
    n_epochs: int,
    widths: tuple[int, ...],
    plain: bool = False,
) -> tuple[Callable[[], None], int]:
    """Return joint training of some epochs, and its number of steps."""
    server, fusion = make_parties(R, device, widths, plain)
    y = torch.randint(0, N_CLASSES, (R, N_SAMPLES), device=device)
    labels = Labels(y, "multiclass", tuple(range(R)))
    plan = TrainPlan("train", n_epochs, BATCH, False, "adam", 0.01)

    def work() -> None:
        algorithm.train_jointly(server, fusion, labels, plan, quiet)

    return work, n_epochs * (N_SAMPLES // BATCH)


def stage3(
    R: int, device: torch.device, n_epochs: int, widths: tuple[int, ...]
) -> tuple[Callable[[], None], int]:
    """Return stage 3 of one party, and its number of steps."""
    seeds = tuple(range(R))
    net = MLP.create(widths, "tanh", seeds, "party", torch.float32, device)
    X = torch.randn(R, N_SAMPLES, widths[0], device=device)
    plan = SelectPlan("select_features", n_epochs, BATCH, False, 0.001, (0.01,))
    batches = plan.batches(N_SAMPLES, seeds, "party")
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

    return work, n_epochs * (N_SAMPLES // BATCH)


def bare_loop(
    device: torch.device, n_epochs: int, widths: tuple[int, ...]
) -> Callable[[], None]:
    """Return the same split training written down without anything around it."""
    nets = [Plain(widths, device).module for _ in range(N_PARTIES)]
    head = nn.Linear(*HEAD).to(device)
    X = [torch.randn(N_SAMPLES, widths[0], device=device) for _ in nets]
    y = torch.randint(0, N_CLASSES, (N_SAMPLES,), device=device)
    loss_of = nn.CrossEntropyLoss()

    def work() -> None:
        optimizers = [
            torch.optim.Adam(net.parameters(), lr=0.01, fused=True)
            for net in [*nets, head]
        ]
        for _ in range(n_epochs):
            for start in range(0, N_SAMPLES, BATCH):
                rows = slice(start, start + BATCH)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                h = [net(x[rows]) for net, x in zip(nets, X, strict=True)]
                sent = [block.detach().requires_grad_() for block in h]
                loss = loss_of(head(torch.cat(sent, dim=1)), y[rows])
                loss.backward()
                for block, copy in zip(h, sent, strict=True):
                    block.backward(copy.grad)
                for optimizer in optimizers:
                    optimizer.step()

    return work


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


def main() -> None:
    """Print one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--replicas", default="1,64")
    parser.add_argument("--columns", type=int, default=267)  # MIMIC-III, 50 % noise
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    device = torch.device(args.device)
    widths = (args.columns, *AFTER_INPUT)
    single: dict[str, float] = {}
    for R in [int(part) for part in args.replicas.split(",")]:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        one = products(widths, BATCH, R, device)
        everyone = [*one * N_PARTIES, *products(HEAD, BATCH, R, device)]
        for name, make, layers in (
            ("stage 3", stage3, one),
            ("joint", joint, everyone),
        ):
            work, n_steps = make(R, device, args.epochs, widths)
            works = {"ours": work, "bare": functools.partial(bare, layers, n_steps)}
            if name == "joint" and R == 1:
                works["without axis"], _ = joint(1, device, args.epochs, widths, True)
                works["bare loop"] = bare_loop(device, args.epochs, widths)
            found = compare(works, device, args.repeats)
            line: dict[str, Any] = {
                "what": name,
                "columns": args.columns,
                "replicas": R,
            }
            line |= {f"{k} ms/step": 1e3 * v / n_steps for k, v in found.items()}
            line["ours / bare"] = found["ours"] / found["bare"]
            for other in ("without axis", "bare loop"):
                if other in found:
                    line[f"ours / {other}"] = found["ours"] / found[other]
            if R == 1:
                single[name] = found["ours"]
            elif name in single:
                line[f"{R} single runs / batch"] = R * single[name] / found["ours"]
            line["peak MiB"] = peak_mib(device)
            rounded = {
                k: round(v, 3) if isinstance(v, float) else v for k, v in line.items()
            }
            print(json.dumps(rounded))


if __name__ == "__main__":
    main()
