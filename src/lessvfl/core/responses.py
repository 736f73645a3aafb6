"""What the server asked of a party during training: its memory, and responses.

The gradient dL/dh of a row says where the server wants that row's embedding. So a party
knows, for every row it exchanged, a *response*: its embedding, one step further.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from lessvfl.core.prox import per_replica

ASKED = 0.01  # curvature that counts, as a share of the largest
# The most rows a party remembers, the latest: selection holds their columns in memory.
MOST_CELLS, FEWEST_ROWS, MOST_ROWS = 1 << 23, 20_000, 1 << 17


class Memory:
    """What a party remembers of joint training: rows, embeddings and gradients.

    Of many rows it remembers the latest, fewer where there are many columns.
    """

    def __init__(self, n_columns: int) -> None:
        n_rows = MOST_CELLS // max(1, n_columns)
        self.most_rows = min(MOST_ROWS, max(FEWEST_ROWS, n_rows))
        self._seen: deque[tuple[Tensor, ...]] = deque()
        self._n_rows = 0

    def add(self, rows: slice | Tensor, h: Tensor, gradient: Tensor) -> None:
        """Keep what a batch says of its rows; the gradient is one row's own again."""
        if isinstance(rows, slice):
            rows = torch.arange(rows.start, rows.stop).unsqueeze(0)
        rows = rows.expand(gradient.shape[0], -1)
        self._seen.append((rows, h.detach(), gradient * gradient.shape[1]))
        self._n_rows += rows.shape[1]
        while self._n_rows - (oldest := self._seen[0][0].shape[1]) >= self.most_rows:
            self._seen.popleft()
            self._n_rows -= oldest

    def tensors(self) -> list[Tensor]:
        """Return rows (R, n), embeddings and gradients (R, n, E); empty: nothing."""
        whole = [torch.cat(parts, dim=1) for parts in zip(*self._seen, strict=True)]
        return [part[:, -self.most_rows :] for part in whole]

    def restore(self, tensors: Sequence[Tensor]) -> None:
        """Take up what :meth:`tensors` gave."""
        self._seen = deque([tuple(tensors)] if tensors else [])
        self._n_rows = tensors[0].shape[1] if tensors else 0

    def take(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what :meth:`tensors` gives, and forget it."""
        rows, h, gradient = self.tensors()
        self.restore([])
        return rows, h, gradient


def responses(h: Tensor, gradient: Tensor) -> Tensor:
    """Return where the server wants each row's embedding, (R, n, E): a Newton step.

    The mean of g g' over rows is what the curvature of a log-likelihood is on average
    (Fisher information), so the party needs to know neither head nor labels. Its
    largest eigenvalue is the curvature along the direction that the head uses.
    """
    information = gradient.mT @ gradient / gradient.shape[1]
    curvature = torch.linalg.eigvalsh(information)[:, -1]
    tiny = torch.finfo(h.dtype).tiny
    return h - gradient / per_replica(curvature.clamp_min(tiny), gradient)


def standardised(h: Tensor, gradient: Tensor) -> Tensor:
    """Return the responses (n, E) of one replica in units of the information.

    One column for every direction of the embedding that the server asks anything of:
    v'h sqrt(kappa) - v'g / sqrt(kappa), kappa the curvature along v. What the embedding
    says along other directions is of no consequence, and left out.
    """
    kappa, V = torch.linalg.eigh((gradient.T @ gradient / len(gradient)).double())
    kappa = kappa.clamp_min(torch.finfo(h.dtype).tiny)
    some = kappa > ASKED * kappa[-1]
    V, root = V[:, some].to(h), kappa[some].sqrt().to(h)
    Z: Tensor = h @ V * root - gradient @ V / root
    return Z


def latest(rows: Tensor) -> Tensor:
    """Return, for numbers of rows (n,), where each was seen last, in that order.

    A row counts once: scrambled copies know nothing of rows that come twice.
    """
    numbers, place = torch.unique(rows, return_inverse=True)
    last = torch.zeros_like(numbers)
    last.scatter_reduce_(0, place, torch.arange(len(rows)).to(rows), "amax")
    return last.sort().values
