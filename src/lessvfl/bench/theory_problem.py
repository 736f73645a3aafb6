"""Data of a known generating network, for the check of the theory.

Columns come in blocks, and every party holds the same number of blocks, so that one
data set serves every number of parties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lessvfl.models import MLP
from lessvfl.types import Tensor, stream

N_BLOCKS = 8
BLOCK = 6  # columns of a block
N_SIGNIFICANT = 2  # of them significant, in a block that matters
N_EMPTY = 2  # blocks at the end without a significant column: with 4 or 8 parties the
# last of them have nothing to say, and stage 2 has something to remove
UNITS = 2  # hidden units of a block, generating and fitted
N_COLUMNS = N_BLOCKS * BLOCK
SIGMA = 0.3  # noise in the label; the generating function has variance 1
N_TEST = 20_000  # fresh rows to measure the distance on
CHUNK = 50_000  # rows drawn at a time: the first rows are the same for every N
# Stage 2 alone: one component built from non-significant features is correlated so with
# four significant ones that the lasso keeps it at every N (4 * 0.4 > 1 > 4 * 0.4²).
N_CORRELATED, RHO = 4, 0.4


def significant() -> Tensor:
    """Return which columns are significant in the generating network, (columns,)."""
    mask = torch.zeros(N_BLOCKS, BLOCK, dtype=torch.bool)
    mask[: N_BLOCKS - N_EMPTY, :N_SIGNIFICANT] = True
    return mask.flatten()


def generating_network(seeds: Sequence[int], device: torch.device) -> MLP:
    """Draw f(Θ*), one a seed: a sum over blocks of Linear, tanh and Linear.

    A block's units see its two significant columns at an angle, so that both matter,
    and all blocks that matter have the same variance.
    """
    n_units = UNITS * (N_BLOCKS - N_EMPTY)
    W = torch.zeros(len(seeds), n_units, N_COLUMNS)
    b, v = torch.zeros(len(seeds), n_units), torch.zeros(len(seeds), 1, n_units)
    for r, seed in enumerate(seeds):
        draw = stream(seed, "generating network")
        for k in range(N_BLOCKS - N_EMPTY):
            units = slice(UNITS * k, UNITS * (k + 1))
            turn = float(torch.rand((), generator=draw)) * 0.7 - 0.35
            angle = torch.tensor(math.pi / 4 + turn)
            c, s = angle.cos(), angle.sin()
            scale = 1 + 0.5 * torch.rand(UNITS, 1, generator=draw)
            w = scale * torch.tensor([[c, s], [-s, c]])
            bias = 0.5 * torch.randn(UNITS, generator=draw)
            size = 0.7 + 0.6 * torch.rand(UNITS, generator=draw)
            sign = 2 * torch.randint(0, 2, (UNITS,), generator=draw) - 1
            x = torch.randn(N_TEST, N_SIGNIFICANT, generator=draw)
            part = torch.tanh(x @ w.T + bias) @ (sign * size)
            W[r, units, k * BLOCK : k * BLOCK + N_SIGNIFICANT] = w
            b[r, units] = bias
            share = math.sqrt(N_BLOCKS - N_EMPTY)
            v[r, 0, units] = sign * size / (share * part.std())
    zero = torch.zeros(len(seeds), 1, device=device)
    return MLP([W.to(device), v.to(device)], [b.to(device), zero], "tanh")


def draw_rows(
    seeds: Sequence[int], n: int, name: str, width: int, device: torch.device
) -> Tensor:
    """Draw standard normal rows on the CPU, so that devices agree; (R, n, width)."""
    rows = torch.empty(len(seeds), n, width, device=device)
    for r, seed in enumerate(seeds):
        for i, start in enumerate(range(0, n, CHUNK)):
            chunk = torch.randn(CHUNK, width, generator=stream(seed, name, i))
            rows[r, start : start + CHUNK] = chunk[: n - start].to(device)
    return rows


@dataclass(frozen=True)
class Sample:
    """Rows of every seed: X (R, n, columns), f(Θ*; x) and y, (R, n) each."""

    X: Tensor
    f: Tensor
    y: Tensor

    def first(self, n: int) -> Sample:
        """Return the first rows."""
        return Sample(self.X[:, :n], self.f[:, :n], self.y[:, :n])


def draw_sample(
    truth: MLP, seeds: Sequence[int], n: int, name: str, device: torch.device
) -> Sample:
    """Draw x of a positive continuous density and y = f(Θ*; x) + ε (Assumption 4.1)."""
    X = draw_rows(seeds, n, name, N_COLUMNS, device)
    f = torch.cat([truth(x) for x in torch.split(X, CHUNK, dim=1)], dim=1).squeeze(2)
    noise = draw_rows(seeds, n, f"{name} noise", 1, device).squeeze(2)
    return Sample(X, f, f + SIGMA * noise)


def known_components(truth: MLP, X: Tensor, *, correlated: bool) -> Tensor:
    """Return embeddings of known party networks, the ones that matter first.

    The components that matter are the units of the generating network; as many a block
    again are tanh of one non-significant feature each. If `correlated`, the first of
    these features is a mixture with what four of the units see, signed as the server's
    weights on them; it stays non-significant, for y does not depend on it.
    """
    W, b = truth.weights[0], truth.biases[0]
    seen = X @ W.mT  # (R, n, units)
    matter = torch.tanh(seen + b.unsqueeze(1))
    blocks = X.view(*X.shape[:2], N_BLOCKS, BLOCK)[..., N_SIGNIFICANT:]
    others = blocks[..., :UNITS].flatten(2).clone()
    if correlated:
        picked = slice(0, N_CORRELATED * UNITS, UNITS)  # one unit of a block
        sizes = torch.linalg.vector_norm(W[:, picked], dim=2)
        signs = truth.weights[1][:, 0, picked].sign()
        mixture = (seen[..., picked] * (signs / sizes).unsqueeze(1)).sum(dim=2)
        rest = math.sqrt(1 - N_CORRELATED * RHO**2)
        others[..., 0] = RHO * mixture + rest * others[..., 0]
    return torch.cat([matter, torch.tanh(others)], dim=2)
