"""How selection and training grow with columns and rows, on a CPU core and a GPU.

`columns` and `rows` run ``less-vfl-auto`` with one party whose table is drawn (20 of
its columns matter), from memory, and print seconds of selection (stage 2, both looks,
refits) and of training, peak memory, and the slope of the log-log fit. With two devices
every size runs on both, one after the other, and the ratio is printed. Training is cut
to two epochs: what an epoch takes is what grows.

`files` runs the default on real files with 50 % planted noise and prints the seconds of
selection beside those of ten epochs of plain training of the same networks on the same
columns, a loop of PyTorch without messages, in steps of 128 rows.

`path` solves the group lasso of one party's responses along 20 lambdas, beside the
MultiTaskLasso of skglm with warm starts (``pip install "skglm>=0.5"``), on the same
columns in one run, one thread each, the faster of two passes, and compares the
objectives. Ours computes in single precision, skglm in double.

    python benchmarks/scaling.py columns
    python benchmarks/scaling.py rows --devices cpu,cuda
    python benchmarks/scaling.py files --data-dir DIR
    python benchmarks/scaling.py path
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import smoke
import torch
from efficiency import Plain, peak_mib
from selection import PARTIES

from lessvfl import data, methods
from lessvfl.core.group_path import group_path
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.moments import Moments
from lessvfl.core.network import MLP, NetConfig
from lessvfl.errors import LessVFLWarning
from lessvfl.party import Party, PartyData
from lessvfl.run import profiles, simulate
from lessvfl.terms import Event
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import Parties

COLUMNS = [(n, d) for n in (1000, 4000) for d in (1000, 4000, 16_000, 64_000)]
ROWS = [(n, 250) for n in (10_000, 100_000, 1_000_000)]
N_TRUE = 20
SELECTION = ("select_components", "select_features", "select_again")


def table(n: int, d: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return columns (1, n, d) and labels (1, n) of which 20 columns decide."""
    generator = torch.Generator().manual_seed(n + d)
    X = torch.randn(1, n, d, generator=generator)
    score = X[0, :, :N_TRUE].sum(dim=1) / math.sqrt(N_TRUE)
    y = (score + 0.5 * torch.randn(n, generator=generator) > 0).float()
    return X.to(device), y.unsqueeze(0).to(device)


def run_once(X: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Run the method with one party; return the seconds of its stages."""
    _, n, d = X.shape
    shape = NetConfig(embedding_size=4, input_scale=0.01)
    make = (torch.float32, X.device)
    net = MLP.create(shape.party_widths(d), "tanh", (0,), "a", *make, shape.input_scale)
    columns = torch.arange(d, device=X.device)
    party = Party("a", net, PartyData(X, X[:, :0], columns), (0,))
    parties = Parties(InProcess({"a": party.handle}), ["a"], Ledger(1))
    fusion = MLP.create(shape.fusion_widths(4, 1), "tanh", (0,), "server", *make)
    method = methods.get("less-vfl-auto")
    config = method.config(
        optimizer="adamw",
        learning_rate=0.02,
        batch_size=min(512, n),
        train_epochs=2,
        schedule="watched",
        weight_decay=2.0,
        bits=4,
    )
    seconds: dict[str, float] = {}
    last = time.perf_counter()

    def observe(event: Event) -> None:
        nonlocal last
        _wait(X)
        now = time.perf_counter()
        seconds[event.stage] = seconds.get(event.stage, 0.0) + now - last
        last = now

    method.run(parties, fusion, Labels(y, "binary", (0,)), config, observe, Keeper())
    found = set(party.kept[0].nonzero()[:, 0].tolist())
    chosen = sum(seconds[stage] for stage in SELECTION)
    return {
        "selection": chosen,
        "training": sum(seconds.values()) - chosen,
        "found": len(found & set(range(N_TRUE))),
        "false": len(found - set(range(N_TRUE))),
    }


def _wait(X: torch.Tensor) -> None:
    if X.is_cuda:
        torch.cuda.synchronize()


def grow(sizes: list[tuple[int, int]], devices: list[str]) -> list[dict[str, Any]]:
    """Run every size on every device, each in a process of its own; print a line."""
    lines = []
    for n, d in sizes:
        for device in devices:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, context) as alone:
                line = alone.submit(measure, n, d, device).result()
            lines.append(line)
            print(json.dumps({k: _short(v) for k, v in line.items()}), flush=True)
    return lines


def measure(n: int, d: int, device: str) -> dict[str, Any]:
    """Run one size, after a small one that loads what there is to load."""
    torch.set_num_threads(1)
    run_once(*table(500, 50, device))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    line = {"rows": n, "columns": d, "device": device, **run_once(*table(n, d, device))}
    return line | {
        "peak MiB": peak_mib(torch.device(device)),
        "table MiB": 4 * n * d / 2**20,
    }


def summary(lines: list[dict[str, Any]], by: str) -> None:
    """Print slopes of the log-log fits, and the ratios of two devices."""
    other = "rows" if by == "columns" else "columns"
    for key in sorted({(line["device"], line[other]) for line in lines}):
        some = [li for li in lines if (li["device"], li[other]) == key]
        for what in ("selection", "training", "peak MiB"):
            x, y = ([math.log(li[k]) for li in some] for k in (by, what))
            slope = float(np.polyfit(x, y, 1)[0]) if len(some) > 1 else math.nan
            print(f"{key[0]}, {key[1]:,} {other}: slope of {what} {slope:.2f}")
    sizes = {(line["rows"], line["columns"]): {} for line in lines}
    for line in lines:
        sizes[line["rows"], line["columns"]][line["device"]] = line
    for (n, d), found in sizes.items():
        if len(found) == 2:
            ratios = [
                f"{what} {found['cpu'][what] / found['cuda'][what]:.1f}"
                for what in ("selection", "training")
            ]
            print(f"{n:,} x {d:,}: CPU / GPU of {', '.join(ratios)}")


def compare_files(names: list[str], folder: str | None) -> None:
    """Time selection on real files beside ten epochs of plain training."""
    for name in ("breast-cancer", *names):  # the first loads what there is to load
        dataset = data.load(name, data_dir=folder)
        resolved = profiles.resolve("less-vfl-auto", "default", dataset)
        job = simulate.Job(dataset, resolved, PARTIES.get(name, 3), 0.5)
        run = simulate.simulate(job, [0])[0]
        seconds = run.numbers["seconds"]
        chosen = sum(seconds[stage] for stage in SELECTION)
        line = {
            "data": name,
            "rows": len(run.problem.y_train),
            "columns": run.problem.n_features,
            "selection s": chosen,
            "ten plain epochs s": 5 * plain_epochs(run.problem, resolved.net, 2),
            "whole run s": seconds["total"] - seconds["evaluate"],
        }
        print(json.dumps({k: _short(v) for k, v in line.items()}), flush=True)


def plain_epochs(problem: data.Problem, net: NetConfig, n_epochs: int) -> float:
    """Return the seconds of joint training in plain PyTorch, without messages."""
    tables = [torch.as_tensor(p.X_train).float() for p in problem.parties]
    cpu = torch.device("cpu")
    widths = [net.party_widths(X.shape[1]) for X in tables]
    parts = [Plain(one, cpu).module for one in widths]
    n_outputs = problem.n_classes if problem.task == "multiclass" else 1
    head = torch.nn.Linear(sum(one[-1] for one in widths), n_outputs)
    params = [p for part in (*parts, head) for p in part.parameters()]
    optimizer = torch.optim.AdamW(params, lr=0.005, fused=True)
    y = torch.as_tensor(problem.y_train)
    started = time.perf_counter()
    for _ in range(n_epochs):
        for rows in torch.split(torch.randperm(len(y)), 128):
            h = [part(X[rows]) for part, X in zip(parts, tables, strict=True)]
            z = head(torch.cat(h, dim=1))
            if problem.task == "multiclass":
                loss = torch.nn.functional.cross_entropy(z, y[rows].long())
            else:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    z[:, 0], y[rows].float()
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return time.perf_counter() - started


def compare_paths(sizes: list[int], n_rows: int, n_lambdas: int) -> None:
    """Time the path beside skglm's; print seconds and the difference in objective."""
    for d in sizes:
        X, y = table(n_rows, d, "cpu")
        Z = torch.stack([y[0] + 0.3 * X[0, :, e] for e in range(2)], dim=1)
        seen = Moments.of(X[0], Z, torch.arange(d))
        ones = torch.ones(d)
        largest = float(seen.norms(seen.C).max())
        lams = largest * torch.logspace(0, -1, n_lambdas)[1:]
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            ours = [B.double().numpy() for B, _ in group_path(seen, lams, ones)]
            seconds.append(time.perf_counter() - started)
        own = min(seconds)
        theirs, other = _skglm_path(seen, lams)
        worst = max(
            (_objective(seen, a, lam) - _objective(seen, b, lam))
            / _objective(seen, b, lam)
            for a, b, lam in zip(ours, theirs, lams.tolist(), strict=True)
        )
        line = {
            "rows": n_rows,
            "columns": d,
            "kept at the end": int((np.abs(ours[-1]).sum(axis=1) > 0).sum()),
            "ours s": own,
            "skglm s": other,
            "ours / skglm": own / other,
            "largest (ours - skglm) / objective": worst,
        }
        print(json.dumps({k: _short(v) for k, v in line.items()}), flush=True)


def _skglm_path(seen: Moments, lams: torch.Tensor) -> tuple[list[Any], float]:
    from skglm.datafits import QuadraticMultiTask
    from skglm.penalties import L2_1
    from skglm.solvers import MultiTaskBCD
    from skglm.utils.jit_compilation import compiled_clone

    X = np.asfortranarray(seen.X.double().numpy())
    Z = np.asfortranarray(seen.Z.double().numpy())
    solver = MultiTaskBCD(tol=1e-6, warm_start=True, fit_intercept=False)
    datafit = compiled_clone(QuadraticMultiTask())
    penalty = compiled_clone(L2_1(1.0))
    warnings.simplefilter("ignore", UserWarning)  # that both are compiled already
    seconds = []
    for _ in range(2):  # the first time compiles
        started = time.perf_counter()
        found = solver.path(X, Z, datafit, penalty, lams.double().numpy())[1]
        seconds.append(time.perf_counter() - started)
    return [found[:, :, i].T for i in range(found.shape[2])], min(seconds)


def _objective(seen: Moments, B: Any, lam: float) -> float:
    left = np.square(seen.Z.double().numpy() - seen.X.double().numpy() @ B).sum()
    return float(left / (2 * seen.n_rows) + lam * np.linalg.norm(B, axis=1).sum())


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    """Print one JSON object a line, then slopes and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["columns", "rows", "files", "path"])
    parser.add_argument("--devices", default="cpu")
    parser.add_argument("--most", type=int, help="leave out sizes above")
    parser.add_argument("--data", default=",".join(PARTIES))
    parser.add_argument("--data-dir")
    args = smoke.parse(parser, most=1000, data="breast-cancer")
    torch.set_num_threads(1)
    most = args.most or math.inf
    if args.what == "path":
        compare_paths([d for d in (1000, 4000, 16_000) if d <= most], 2000, 20)
        return
    if args.what == "files":
        warnings.simplefilter("ignore", LessVFLWarning)
        compare_files(args.data.split(","), args.data_dir)
        return
    sizes = COLUMNS if args.what == "columns" else ROWS
    sizes = [(n, d) for n, d in sizes if (d if args.what == "columns" else n) <= most]
    sizes = sizes[:1] if args.smoke else sizes
    summary(grow(sizes, args.devices.split(",")), args.what)


if __name__ == "__main__":
    main()
