"""Data of a known generating network, for the check of the theory.

Columns come in blocks, and every party holds the same number of blocks, so that one
data set serves every number of parties. With linear networks and squared error a risk
and its gradients depend on the rows through means and second moments alone, so that a
small table stands for any number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.network import MLP
from lessvfl.core.passes import ACTIVATIONS
from lessvfl.core.plans import stream

N_BLOCKS = 8
BLOCK = 6  # columns of a block
N_SIGNIFICANT = 2  # of them significant, in a block that matters
N_EMPTY = 2  # blocks at the end without a significant column: with 4 or 8 parties the
# last of them have nothing to say, and stage 2 has something to remove
UNITS = 2  # hidden units of a block, generating and fitted
N_COLUMNS = N_BLOCKS * BLOCK
SIGMA = 0.3  # noise in the label; the generating function has variance 1
N_SCALE = 20_000  # rows that a block's part of f(Θ*) is scaled by
CHUNK = 50_000  # rows drawn at a time: the first rows are the same for every N
# Stage 2 alone: one component built from non-significant features is correlated so with
# four significant ones that the lasso keeps it for large N (4 * 0.4 > 1 > 4 * 0.4²).
N_CORRELATED, RHO = 4, 0.4
N_TABLE = 64  # rows of a table that stands for all; more than columns and label


@dataclass(frozen=True)
class Family:
    """Networks of one kind, generating and fitted."""

    activation: str
    n_layers: int  # of a party
    dtype: torch.dtype


FAMILIES = {
    "linear": Family("none", 1, torch.float64),
    "deep-linear": Family("none", 2, torch.float64),
    "tanh": Family("tanh", 2, torch.float32),
}


def significant() -> Tensor:
    """Return which columns are significant in the generating network, (columns,)."""
    mask = torch.zeros(N_BLOCKS, BLOCK, dtype=torch.bool)
    mask[: N_BLOCKS - N_EMPTY, :N_SIGNIFICANT] = True
    return mask.flatten()


def generating_network(
    seeds: Sequence[int], family: Family, device: torch.device
) -> MLP:
    """Draw f(Θ*) of every seed: a sum over blocks of Linear, activation and Linear.

    A block's units see its two significant columns at an angle, so that both matter,
    and all blocks that matter have the same variance. Linear units see one column each,
    nearly, for otherwise they could cancel each other on a column.
    """
    n_units = UNITS * (N_BLOCKS - N_EMPTY)
    W = torch.zeros(len(seeds), n_units, N_COLUMNS)
    b, v = torch.zeros(len(seeds), n_units), torch.zeros(len(seeds), 1, n_units)
    for r, seed in enumerate(seeds):
        draw = stream(seed, "generating network")
        for k in range(N_BLOCKS - N_EMPTY):
            units = slice(UNITS * k, UNITS * (k + 1))
            turn = float(torch.rand((), generator=draw)) * 0.7 - 0.35
            linear = family.activation == "none"
            angle = torch.tensor(turn / 3 if linear else math.pi / 4 + turn)
            c, s = angle.cos(), angle.sin()
            scale = 1 + 0.5 * torch.rand(UNITS, 1, generator=draw)
            w = scale * torch.tensor([[c, s], [-s, c]])
            bias = 0.5 * torch.randn(UNITS, generator=draw)
            size = 0.7 + 0.6 * torch.rand(UNITS, generator=draw)
            sign = 2 * torch.randint(0, 2, (UNITS,), generator=draw) - 1
            x = torch.randn(N_SCALE, N_SIGNIFICANT, generator=draw)
            part = _activate(x @ w.T + bias, family.activation) @ (sign * size)
            W[r, units, k * BLOCK : k * BLOCK + N_SIGNIFICANT] = w
            b[r, units] = bias
            share = math.sqrt(N_BLOCKS - N_EMPTY)
            v[r, 0, units] = sign * size / (share * part.std())
    W, v, b = (tensor.to(device, family.dtype) for tensor in (W, v, b))
    return MLP([W, v], [b, v.new_zeros(len(seeds), 1)], family.activation)


def _activate(x: Tensor, activation: str) -> Tensor:
    act = ACTIVATIONS[activation]
    return x if act is None else act(x)


def _chunks(seed: int, n: int, name: str, width: int) -> Iterator[Tensor]:
    """Draw standard normal rows on the CPU, so that devices agree."""
    for i, start in enumerate(range(0, n, CHUNK)):
        chunk = torch.randn(CHUNK, width, generator=stream(seed, name, i))
        yield chunk[: n - start]


def _rows(seeds: Sequence[int], n: int, name: str, width: int, like: Tensor) -> Tensor:
    """Draw standard normal rows of every seed, (R, n, width)."""
    rows = like.new_empty(len(seeds), n, width)
    for r, seed in enumerate(seeds):
        for i, chunk in enumerate(_chunks(seed, n, name, width)):
            rows[r, i * CHUNK : (i + 1) * CHUNK] = chunk.to(like)
    return rows


@dataclass(frozen=True)
class TheorySample:
    """Rows of every seed, perhaps a table that stands for more of them."""

    X: Tensor  # (R, rows, columns)
    f: Tensor  # f(Θ*; x), (R, rows)
    y: Tensor  # (R, rows)
    n: int  # samples N


def draw_sample(truth: MLP, seeds: Sequence[int], n: int, name: str) -> TheorySample:
    """Draw x of a positive continuous density and y = f(Θ*; x) + ε (Assumption 4.1)."""
    like = truth.weights[0]
    X = _rows(seeds, n, name, N_COLUMNS, like)
    f = torch.cat([truth(x) for x in torch.split(X, CHUNK, dim=1)], dim=1).squeeze(2)
    noise = _rows(seeds, n, f"{name} noise", 1, like).squeeze(2)
    return TheorySample(X, f, f + SIGMA * noise, n)


def draw_table(truth: MLP, seeds: Sequence[int], n: int, name: str) -> TheorySample:
    """Draw the same for a linear f(Θ*), and return a table that stands for all rows."""
    tables = []
    with torch.no_grad():
        for r, seed in enumerate(seeds):
            weights = [weight[r] for weight in truth.weights]
            of_seed = MLP(weights, [bias[r] for bias in truth.biases], truth.activation)
            tables.append(condense(_labelled_chunks(of_seed, seed, n, name)))
    table = torch.stack(tables)
    X = table[..., :-1].contiguous()
    return TheorySample(X, truth(X).squeeze(2), table[..., -1].contiguous(), n)


def _labelled_chunks(truth: MLP, seed: int, n: int, name: str) -> Iterator[Tensor]:
    """Draw the rows of one seed some at a time, the label as the last column."""
    like = truth.weights[0].detach()
    columns = _chunks(seed, n, name, N_COLUMNS)
    noises = _chunks(seed, n, f"{name} noise", 1)
    for x, noise in zip(columns, noises, strict=True):
        x, noise = x.to(like), noise.to(like)
        yield torch.cat([x, truth(x) + SIGMA * noise], dim=1)


def condense(chunks: Iterable[Tensor]) -> Tensor:
    """Return a table (N_TABLE, width) with the means and second moments of all rows.

    It is μ + √2 C Lᵀ with covariance LLᵀ (divided by n) and cosines C, whose columns
    are orthogonal to each other and to a constant.
    """
    n, total, squares = 0, torch.zeros(()), torch.zeros(())
    for rows in chunks:
        n += len(rows)
        total = total + rows.sum(dim=0)
        squares = squares + rows.T @ rows
    mean = total / n
    L: Tensor = torch.linalg.cholesky(squares / n - torch.outer(mean, mean))
    i = torch.arange(N_TABLE).to(mean).unsqueeze(1) + 0.5
    k = torch.arange(1, len(mean) + 1).to(mean)
    C = torch.cos(math.pi / N_TABLE * i * k)  # CᵀC = N_TABLE / 2
    return mean + math.sqrt(2) * C @ L.T


def known_components(truth: MLP, X: Tensor, *, correlated: bool) -> Tensor:
    """Return embeddings of known party networks, the ones that matter first.

    These are the units of the generating network; as many of every block see one
    non-significant feature each. If `correlated`, the first of these features is a
    mixture with what four of the units see, signed as the server's weights on them; it
    stays non-significant, for y does not depend on it.
    """
    W, b = truth.weights[0], truth.biases[0]
    seen = X @ W.mT  # (R, n, units)
    matter = _activate(seen + b.unsqueeze(1), truth.activation)
    blocks = X.view(*X.shape[:2], N_BLOCKS, BLOCK)[..., N_SIGNIFICANT:]
    others = blocks[..., :UNITS].flatten(2).clone()
    if correlated:
        picked = slice(0, N_CORRELATED * UNITS, UNITS)  # one unit of a block
        sizes = torch.linalg.vector_norm(W[:, picked], dim=2)
        signs = truth.weights[1][:, 0, picked].sign()
        mixture = (seen[..., picked] * (signs / sizes).unsqueeze(1)).sum(dim=2)
        rest = math.sqrt(1 - N_CORRELATED * RHO**2)
        others[..., 0] = RHO * mixture + rest * others[..., 0]
    return torch.cat([matter, _activate(others, truth.activation)], dim=2)
