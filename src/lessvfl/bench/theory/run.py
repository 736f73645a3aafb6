"""The theory, checked: Section 4 of the paper against the number of samples N.

Data come from a known generating network (Assumptions 4.1 and 4.2), linear or with
tanh units, penalties shrink as N^(-1/4), and every method is solved by full-batch
proximal steps. Measured are the weights left on non-significant features, exact
recovery of the support, and the distance to the generating network, each against N and
the number of parties M.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lessvfl import __version__
from lessvfl.algorithm import select_components
from lessvfl.bench.theory.problem import (
    FAMILIES,
    N_BLOCKS,
    N_COLUMNS,
    N_TEST,
    SIGMA,
    Sample,
    draw_sample,
    draw_table,
    generating_network,
    known_components,
    significant,
)
from lessvfl.bench.theory.rates import (
    bound_slope,
    fit_all,
    recovery,
    theorem_rate,
    verdict,
)
from lessvfl.bench.theory.solve import (
    LAMBDA,
    fused,
    ignore,
    join,
    joint_lasso,
    lambdas,
    least_squares,
    match_embeddings,
    pretrain,
    rematch,
    server_plan,
    split,
    start,
    trainable,
)
from lessvfl.core.device import resolve_device
from lessvfl.core.network import MLP
from lessvfl.core.plans import Labels
from lessvfl.errors import ConfigError, RecordError
from lessvfl.run.record import write_atomically

SURPLUS, SURPLUS_PARTIES = 3, 4  # components a party where one would do; at which M
N_LIMITS = (100, 10_000_000)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Programme:
    """What to run: sample sizes, numbers of parties, seeds, networks, device."""

    n: tuple[int, ...]
    parties: tuple[int, ...] = (1, 2, 4, 8)
    seeds: tuple[int, ...] = tuple(range(10))
    network: str = "linear"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.network not in FAMILIES:
            raise ConfigError(
                "The 'network' of the theory benchmark must be one of "
                f"{', '.join(FAMILIES)}. Got {self.network!r} instead."
            )
        low, high = N_LIMITS
        if not self.n or any(not low <= n <= high for n in self.n):
            raise ConfigError(
                f"The 'n' of the theory benchmark must be whole numbers in [{low}, "
                f"{high}]. Got {list(self.n)} instead."
            )
        allowed = [m for m in range(1, N_BLOCKS + 1) if N_BLOCKS % m == 0]
        if not self.parties or not set(self.parties) <= set(allowed):
            raise ConfigError(
                "The 'parties' of the theory benchmark must be among "
                f"{allowed}. Got {list(self.parties)} instead."
            )
        if not self.seeds or min(self.seeds) < 0:
            raise ConfigError(
                "The 'seeds' of the theory benchmark must be whole numbers from 0. "
                f"Got {list(self.seeds)} instead."
            )
        for name in ("n", "parties", "seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(
                    f"The '{name}' of the theory benchmark must differ from each "
                    f"other. Got {list(values)} instead."
                )


@dataclass(frozen=True)
class Measured:
    """One method at one N and M, by seed: tensors (R,), zeros and misses as counts."""

    norm: Tensor
    zeros: Tensor
    missed: Tensor
    recovered: Tensor
    distance: Tensor


def measure(net: MLP, predicted: Tensor, truth: Tensor) -> Measured:
    """Compare first-layer weights with the support, and predictions with f(Θ*)."""
    w = net.input_weights.detach()
    norms = torch.linalg.vector_norm(w, dim=1).view(truth.shape[0], N_COLUMNS)
    mask = significant().to(w.device)
    kept = norms > 0
    return Measured(
        torch.linalg.vector_norm(norms[:, ~mask], dim=1),
        (~kept[:, ~mask]).sum(dim=1),
        (~kept[:, mask]).sum(dim=1),
        (kept == mask).all(dim=1),
        (predicted - truth).square().mean(dim=1).sqrt(),
    )


def _entry(
    method: str, n_parties: int, n: int, found: Measured, n_components: int = 1
) -> dict[str, Any]:
    recovered = [bool(hit) for hit in found.recovered.tolist()]
    norm: list[float] = found.norm.tolist()
    n_others = N_COLUMNS - int(significant().sum())
    return {
        "method": method,
        "parties": n_parties,
        "components": n_components,
        "n": n,
        "norm": norm,
        "zero_share": float(found.zeros.double().mean()) / n_others,
        "zero_runs": sum(value == 0 for value in norm) / len(norm),
        "missed": found.missed.tolist(),
        "distance": found.distance.tolist(),
        "recovered": recovered,
        "recovery": recovery(recovered),
    }


def leak(net: MLP, fusion: MLP, test: Sample, n_parties: int) -> dict[str, list[float]]:
    """Redraw the non-significant features, and see what moves, by seed.

    Root mean squared changes as a share of the standard deviation: of the components
    of parties with a significant feature, and of the prediction.
    """
    mask = significant().to(test.X.device)
    other = torch.where(mask, test.X, test.X.roll(1, dims=1))
    with torch.no_grad():
        here, there = (
            join(net(split(X, n_parties)), n_parties) for X in (test.X, other)
        )
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
    sample: Sample,
    test: Sample,
    seeds: tuple[int, ...],
    network: str,
    n_parties: int,
    n_components: int = 1,
) -> tuple[dict[str, Measured], dict[str, list[float]]]:
    """Run every method on one split; with several components only those that select.

    Group lasso starts from the pre-trained network as stages 2 and 3 do. The second
    value is what :func:`leak` says of that network.
    """
    n_seeds, lam = len(seeds), lambdas(network, sample.n)
    X, X_test = split(sample.X, n_parties), split(test.X, n_parties)
    family, device = FAMILIES[network], sample.y.device
    net, fusion = start(seeds, n_parties, n_components, family, device)
    pretrain(net, fusion, X, sample.y)  # stage 1

    def found(party: MLP, server: MLP | None) -> Measured:
        with torch.no_grad():
            H = join(party(X_test), n_parties)
            z = H.sum(dim=2) if server is None else server(H).squeeze(2)
        return measure(party, z, test.f)

    with torch.no_grad():
        H = join(net(X), n_parties)
    server = trainable(fusion)
    labels = Labels(sample.y, "regression", seeds)
    plan = server_plan(H, lam["server"])
    kept = select_components(server, H, labels, plan, ignore)  # stage 2
    kept = kept.view(n_seeds * n_parties, -1)
    local = match_embeddings(net, X, lam["party"], None)
    less = rematch(local, net, X, lam["party"], kept)  # stage 3
    results = {"less-vfl": found(less, server), "local-lasso": found(local, fusion)}
    if n_components == 1:
        whole = fused(net, fusion, n_parties)
        joint_lasso(whole, X, sample.y, lam["joint"])
        results["group-lasso"] = found(whole, None)
    return results, leak(net, fusion, test, n_parties)


def run_stage2(
    truth: MLP, sample: Sample, seeds: tuple[int, ...], network: str, design: str
) -> dict[str, Any]:
    """Solve Eq. 4 on known embeddings and compare with the true server weights."""
    H = known_components(truth, sample.X, correlated=design == "correlated")
    server = least_squares(H, sample.y)
    labels = Labels(sample.y, "regression", seeds)
    plan = server_plan(H, lambdas(network, sample.n)["server"])
    kept = select_components(server, H, labels, plan, ignore)
    w = server.weights[0].detach()[:, 0]
    n_matter = truth.weights[0].shape[1]
    true = torch.nn.functional.pad(truth.weights[1][:, 0], (0, w.shape[1] - n_matter))
    apart = torch.cat([w - true, server.biases[0].detach()], dim=1)
    support = torch.arange(w.shape[1], device=w.device) < n_matter
    recovered = [bool(hit) for hit in (kept == support).all(dim=1).tolist()]
    norm: list[float] = torch.linalg.vector_norm(w[:, n_matter:], dim=1).tolist()
    return {
        "design": design,
        "n": sample.n,
        "norm": norm,
        "zero_runs": sum(value == 0 for value in norm) / len(norm),
        "distance": torch.linalg.vector_norm(apart, dim=1).tolist(),
        "recovered": recovered,
        "recovery": recovery(recovered),
    }


def run(
    programme: Programme,
    folder: Path | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Run the whole programme, and keep what every sample size gave.

    Parameters
    ----------
    programme : Programme
        Sample sizes, parties, seeds, networks and device.
    folder : Path, optional
        Where the numbers of finished sample sizes go.
    resume : bool
        Take finished sample sizes from the folder.
    say : callable
        Told one line after every N and M.

    Returns
    -------
    dict
        Plain values, ready for JSON; docs/theory.md says what they mean.
    """
    if resume and folder is None:
        raise ConfigError("The '--resume' option needs the '--out' folder to go on in.")
    device = resolve_device(programme.device)
    seeds, sizes = programme.seeds, sorted(programme.n)
    results: dict[str, Any] = {
        "network": programme.network,
        "n": sizes,
        "parties": sorted(programme.parties),
        "seeds": list(seeds),
        "lambda": dict(LAMBDA[programme.network]),
        "sigma": SIGMA,
        "n_columns": N_COLUMNS,
        "n_significant": int(significant().sum()),
    }
    parts = []
    for n in sizes:
        about = {k: v for k, v in results.items() if k != "n"}
        about |= {"n": n, "lessvfl": __version__}
        found = _read(folder, about) if resume else None
        if found is None:
            found = run_size(n, programme, device, say)
            _keep(folder, about, found)
        parts.append(found)
    for name in ("results", "surplus", "stage2"):
        results[name] = [entry for part in parts for entry in part[name]]
    results["rates"] = fit_all(results)
    results["theorem_rate"] = theorem_rate()
    results["bound_slope"] = bound_slope(sizes)
    results["verdict"] = verdict(results)
    results["seconds"] = sum(part["seconds"] for part in parts)
    results["device"] = ", ".join(dict.fromkeys(part["device"] for part in parts))
    return results


def run_size(
    n: int, programme: Programme, device: torch.device, say: Say
) -> dict[str, Any]:
    """Run every method at one sample size; the first rows are the same for every N."""
    began = time.monotonic()
    seeds, network = programme.seeds, programme.network
    truth = generating_network(seeds, FAMILIES[network], device)
    draw = draw_table if truth.activation == "none" else draw_sample
    rows = draw(truth, seeds, n, "train")
    test = draw_sample(truth, seeds, N_TEST, "test")
    entries, surplus = [], []
    stage2 = [
        run_stage2(truth, rows, seeds, network, design)
        for design in ("independent", "correlated")
    ]
    say(f"N = {n:,}: stage 2 alone, {_seconds(began)}")
    for n_parties in sorted({1, *programme.parties}):
        found, _ = run_split(rows, test, seeds, network, n_parties)
        if n_parties == 1:  # one network over all columns
            entries.append(_entry("centralised", 1, n, found["group-lasso"]))
        if n_parties in programme.parties:
            entries += [
                _entry(method, n_parties, n, measured)
                for method, measured in found.items()
            ]
        say(f"N = {n:,}: M = {n_parties}, {_seconds(began)}")
    if SURPLUS_PARTIES in programme.parties:
        found, moved = run_split(rows, test, seeds, network, SURPLUS_PARTIES, SURPLUS)
        for method, measured in found.items():
            entry = _entry(method, SURPLUS_PARTIES, n, measured, SURPLUS)
            surplus.append(entry | {"leak": moved})
        say(f"N = {n:,}: {SURPLUS} components a party, {_seconds(began)}")
    return {
        "results": entries,
        "surplus": surplus,
        "stage2": stage2,
        "seconds": time.monotonic() - began,
        "device": _name(device),
    }


def _file(folder: Path, about: dict[str, Any]) -> Path:
    return folder / "records" / f"{about['network']}-n-{about['n']}.json"


def _keep(folder: Path | None, about: dict[str, Any], found: dict[str, Any]) -> None:
    """Write what a sample size gave."""
    if folder is not None:
        path = _file(folder, about)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"about": about, "found": found}, allow_nan=False)
        write_atomically(path, text.encode())


def _read(folder: Path | None, about: dict[str, Any]) -> dict[str, Any] | None:
    """Return what an earlier run of the same programme kept, None where it did not."""
    assert folder is not None
    path = _file(folder, about)
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        found: dict[str, Any] = record["found"]
        same: bool = record["about"] == about
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"'{path}' must be a record of the theory benchmark; remove it to run its "
            f"part again. Got {type(error).__name__}: {error}."
        ) from None
    return found if same else None


def _seconds(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
