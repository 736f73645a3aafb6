"""The theory, checked: Section 4 of the paper against the number of samples N.

Data come from a known generating network (Assumptions 4.1 and 4.2), penalties shrink as
N^(-1/4), and every method is solved by full-batch proximal steps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lessvfl.core.device import resolve_device
from lessvfl.core.network import MLP
from lessvfl.settings import refuse
from lessvfl_bench.store import Records
from lessvfl_bench.study import NumberList, Say, check_options, option
from lessvfl_bench.theory import problem, rates, solve
from lessvfl_bench.theory.problem import FAMILIES, N_BLOCKS, N_COLUMNS, TheorySample

SURPLUS, SURPLUS_PARTIES = 3, 4  # components a party where one would do; at which M
SIZES = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
N_LIMITS = (100, 10_000_000)
N_TEST = 20_000  # fresh rows to measure the distance on


@dataclass(frozen=True)
class Programme:
    """What to run: sample sizes, numbers of parties, seeds, networks, device."""

    n: NumberList = option(SIZES, "Sample sizes.")
    parties: NumberList = option((1, 2, 4, 8), "Numbers of parties.")
    seeds: NumberList = option(tuple(range(10)), "One run each: 0,1,2.")
    network: str = option("linear", "linear, deep-linear, or tanh (slow for large N).")
    device: str = option("auto", "cpu, cuda or auto.")

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        counts = [m for m in range(1, N_BLOCKS + 1) if N_BLOCKS % m == 0]
        check_options(
            {"n": self.n, "parties": self.parties, "seeds": self.seeds},
            {"parties": (self.parties, counts), "network": (self.network, FAMILIES)},
        )
        low, high = N_LIMITS
        if not low <= min(self.n) <= max(self.n) <= high:
            allowed = f"whole numbers in [{low}, {high}]"
            raise refuse("n", "option", allowed, list(self.n))


Measured = dict[str, Any]  # what a method gave, seed by seed, as the results have it


def measure(net: MLP, predicted: Tensor, truth: Tensor) -> Measured:
    """Compare first-layer weights with the support, and predictions with f(Θ*)."""
    w = net.input_weights.detach()
    norms = torch.linalg.vector_norm(w, dim=1).view(truth.shape[0], N_COLUMNS)
    mask = problem.significant().to(w.device)
    kept = norms > 0
    n_zero = (~kept[:, ~mask]).sum(dim=1).double()
    norm = torch.linalg.vector_norm(norms[:, ~mask], dim=1)
    recovered: list[bool] = (kept == mask).all(dim=1).tolist()
    return {
        "norm": norm.tolist(),
        "zero_share": float(n_zero.mean()) / int((~mask).sum()),
        "zero_runs": (norm == 0).sum().item() / len(norm),
        "missed": (~kept[:, mask]).sum(dim=1).tolist(),
        "distance": (predicted - truth).square().mean(dim=1).sqrt().tolist(),
        "recovered": recovered,
        "recovery": rates.recovery(recovered),
    }


def leak(
    net: MLP, fusion: MLP, test: TheorySample, n_parties: int
) -> dict[str, list[float]]:
    """Redraw the non-significant features, and see what moves, by seed.

    Root mean squared changes as a share of the standard deviation: of the components
    of parties with a significant feature, and of the prediction.
    """
    mask = problem.significant().to(test.X.device)
    other = torch.where(mask, test.X, test.X.roll(1, dims=1))
    with torch.no_grad():
        here = solve.join(net(solve.split(test.X, n_parties)), n_parties)
        there = solve.join(net(solve.split(other, n_parties)), n_parties)
        z, moved = fusion(here), fusion(there)
    holds = mask.view(n_parties, -1).any(dim=1)
    holds = holds.repeat_interleave(here.shape[2] // n_parties)

    def change(a: Tensor, b: Tensor) -> list[float]:
        shares = (a - b).square().mean(dim=1).sqrt() / a.std(dim=1)
        found: list[float] = shares.mean(dim=1).tolist()
        return found

    return {
        "components": change(here[..., holds], there[..., holds]),
        "prediction": change(z, moved),
    }


def run_split(
    sample: TheorySample,
    test: TheorySample,
    seeds: tuple[int, ...],
    network: str,
    n_parties: int,
    n_components: int = 1,
) -> tuple[dict[str, Measured], dict[str, list[float]]]:
    """Run every method on one split; with several components only those that select.

    Group lasso starts from the pre-trained network as stages 2 and 3 do. The second
    value is what :func:`leak` says of that network.
    """
    n_seeds, lam = len(seeds), solve.lambdas(network, sample.n)
    X, X_test = solve.split(sample.X, n_parties), solve.split(test.X, n_parties)
    family, device = FAMILIES[network], sample.y.device
    net, fusion = solve.start(seeds, n_parties, n_components, family, device)
    solve.pretrain(net, fusion, X, sample.y)  # stage 1

    def found(party: MLP, server: MLP | None) -> Measured:
        with torch.no_grad():
            H = solve.join(party(X_test), n_parties)
            z = H.sum(dim=2) if server is None else server(H).squeeze(2)
        return measure(party, z, test.f)

    with torch.no_grad():
        H = solve.join(net(X), n_parties)
    server = solve.trainable(fusion)
    kept = solve.match_labels(server, H, sample.y, lam["server"])  # stage 2
    kept = kept.view(n_seeds * n_parties, -1)
    local = solve.match_embeddings(net, X, lam["party"], None)
    less = solve.rematch(local, net, X, lam["party"], kept)  # stage 3
    results = {"less-vfl": found(less, server), "local-lasso": found(local, fusion)}
    if n_components == 1:
        whole = solve.fused(net, fusion, n_parties)
        solve.joint_lasso(whole, X, sample.y, lam["joint"])
        results["group-lasso"] = found(whole, None)
    return results, leak(net, fusion, test, n_parties)


def run_stage2(
    truth: MLP, sample: TheorySample, seeds: tuple[int, ...], network: str, design: str
) -> dict[str, Any]:
    """Solve Eq. 4 on known embeddings and compare with the true server weights."""
    H = problem.known_components(truth, sample.X, correlated=design == "correlated")
    server = solve.least_squares(H, sample.y)
    lam = solve.lambdas(network, sample.n)["server"]
    kept = solve.match_labels(server, H, sample.y, lam)
    w = server.weights[0].detach()[:, 0]
    n_matter = truth.weights[0].shape[1]
    true = torch.nn.functional.pad(truth.weights[1][:, 0], (0, w.shape[1] - n_matter))
    apart = torch.cat([w - true, server.biases[0].detach()], dim=1)
    support = torch.arange(w.shape[1], device=w.device) < n_matter
    recovered: list[bool] = (kept == support).all(dim=1).tolist()
    norm = torch.linalg.vector_norm(w[:, n_matter:], dim=1)
    return {
        "design": design,
        "n": sample.n,
        "norm": norm.tolist(),
        "zero_runs": (norm == 0).sum().item() / len(norm),
        "distance": torch.linalg.vector_norm(apart, dim=1).tolist(),
        "recovered": recovered,
        "recovery": rates.recovery(recovered),
    }


def run(
    programme: Programme,
    folder: Path | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Run the whole programme, and keep what every sample size gave.

    With `resume` finished sample sizes are taken from the folder, and `say` is told a
    line after every N and M. The results are plain values: docs/theory.md.
    """
    device = resolve_device(programme.device)
    sizes = sorted(programme.n)
    results: dict[str, Any] = {
        "network": programme.network,
        "n": sizes,
        "parties": sorted(programme.parties),
        "seeds": list(programme.seeds),
        "lambda": dict(solve.LAMBDA[programme.network]),
        "sigma": problem.SIGMA,
        "n_columns": N_COLUMNS,
        "n_significant": int(problem.significant().sum()),
    }
    records, parts = Records(folder, resume), []
    for n in sizes:
        name, about = f"{programme.network}-n-{n}", {**results, "n": n}
        found = records.find(name, about)
        if found is None:
            found = run_size(n, programme, device, say)
            records.add(name, about, found)
        parts.append(found)
    for name in ("results", "surplus", "stage2"):
        results[name] = [entry for part in parts for entry in part[name]]
    results["rates"] = rates.fit_all(results)
    results["theorem_rate"] = rates.THEOREM_RATE
    results["bound_slope"] = rates.bound_slope(sizes)
    results["verdict"] = rates.verdict(results)
    results["seconds"] = sum(part["seconds"] for part in parts)
    results["device"] = ", ".join(dict.fromkeys(part["device"] for part in parts))
    return results


def run_size(
    n: int, programme: Programme, device: torch.device, say: Say
) -> dict[str, Any]:
    """Run every method at one sample size; the first rows are the same for every N."""
    began = time.monotonic()
    seeds, network = programme.seeds, programme.network
    truth = problem.generating_network(seeds, FAMILIES[network], device)
    draw = problem.draw_table if truth.activation == "none" else problem.draw_sample
    rows = draw(truth, seeds, n, "train")
    test = problem.draw_sample(truth, seeds, N_TEST, "test")

    def tell(what: str) -> None:
        say(f"N = {n:,}: {what}, {time.monotonic() - began:.1f} s")

    entries: list[dict[str, Any]] = []
    surplus: list[dict[str, Any]] = []
    stage2 = [
        run_stage2(truth, rows, seeds, network, design)
        for design in ("independent", "correlated")
    ]
    tell("stage 2 alone")
    for n_parties in sorted({1, *programme.parties}):
        found, _ = run_split(rows, test, seeds, network, n_parties)
        about = {"parties": n_parties, "components": 1, "n": n}
        if n_parties == 1:  # one network over all columns
            entries.append({"method": "centralised", **about, **found["group-lasso"]})
        if n_parties in programme.parties:
            entries += [{"method": name, **about, **found[name]} for name in found]
        tell(f"M = {n_parties}")
    if SURPLUS_PARTIES in programme.parties:
        found, moved = run_split(rows, test, seeds, network, SURPLUS_PARTIES, SURPLUS)
        about = {"parties": SURPLUS_PARTIES, "components": SURPLUS, "n": n}
        surplus = [
            {"method": name, **about, **found[name], "leak": moved} for name in found
        ]
        tell(f"{SURPLUS} components a party")
    on_cuda = device.type == "cuda"
    return {
        "results": entries,
        "surplus": surplus,
        "stage2": stage2,
        "seconds": time.monotonic() - began,
        "device": torch.cuda.get_device_name(device) if on_cuda else "cpu",
    }
