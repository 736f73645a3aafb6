"""What the server asked of a party during training: its memory, and responses.

The gradient dL/dh of a row says where the server wants that row's embedding. So a party
knows, for every row it exchanged, a *response*: its embedding, one step further.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

ASKED = 0.01  # curvature that counts, as a share of the largest
LITTLE = 0.01  # noise that shows half of the curvature, as a share of embeddings
# The most rows a party remembers, the latest: selection holds their columns in memory.
MOST_CELLS, FEWEST_ROWS, MOST_ROWS = 1 << 23, 20_000, 1 << 17


@dataclass
class Memory:
    """What a party remembers of joint training: rows, embeddings and gradients.

    Of many rows it remembers the latest, fewer where there are many columns.
    """

    most_rows: int
    batches: list[tuple[Tensor, ...]] = field(default_factory=list)
    n_rows: int = 0

    @classmethod
    def of(cls, n_columns: int) -> Memory:
        """Return an empty memory of a party with so many columns."""
        n_rows = MOST_CELLS // max(1, n_columns)
        return cls(min(MOST_ROWS, max(FEWEST_ROWS, n_rows)))

    def add(
        self,
        rows: slice | Tensor,
        h: Tensor,
        gradient: Tensor,
        noise: Tensor | None = None,
    ) -> None:
        """Keep a batch: its rows, `h` and, multiplied here by their number, `gradient`.

        `h` is what the server saw; `noise`, kept beside it, is the noise in it.
        """
        if isinstance(rows, slice):
            rows = torch.arange(rows.start, rows.stop)
        more = () if noise is None else (noise,)
        self.batches.append((rows, h.detach(), gradient * len(gradient), *more))
        self.n_rows += len(rows)
        while self.n_rows - (oldest := len(self.batches[0][0])) >= self.most_rows:
            del self.batches[0]
            self.n_rows -= oldest

    def take(self) -> list[Tensor]:
        """Return rows (n,), embeddings and gradients remembered, and forget them.

        Embeddings and gradients are (n, E); the party's own noise in embeddings comes
        fourth, if it adds any. The list is empty if nothing is remembered.
        """
        whole = [torch.cat(parts) for parts in zip(*self.batches, strict=True)]
        self.batches, self.n_rows = [], 0
        return [part[-self.most_rows :] for part in whole]


def responses(h: Tensor, gradient: Tensor, noise: Tensor | None = None) -> Tensor:
    """Return where the server wants each row's embedding, (n, E): a Newton step from h.

    `h` and `gradient` (dL/dh of each row) are (n, E), and so is `noise`, the party's
    own in `h`. The mean of g g' over rows is what the curvature of a log-likelihood is
    on average (Fisher information), so the party needs to know neither head nor labels.
    """
    information = gradient.T @ gradient / len(gradient)
    tiny = torch.finfo(h.dtype).tiny
    if noise is not None:
        information = curvature_by(noise, h, gradient, information)
        h, gradient = h - noise, gradient - noise @ information
    curvature = torch.linalg.eigvalsh(information)[-1]
    wanted: Tensor = h - gradient / curvature.clamp_min(tiny)
    return wanted


def standardised(h: Tensor, gradient: Tensor, noise: Tensor | None = None) -> Tensor:
    """Return the responses (n, E) in units of the information.

    One column for every direction of the embedding that the server asks anything of:
    v'h sqrt(kappa) - v'g / sqrt(kappa), kappa the curvature along v. What the embedding
    says along other directions is of no consequence, and left out.
    """
    information = (gradient.T @ gradient / len(gradient)).double()
    kappa, V = torch.linalg.eigh(information)
    kappa = kappa.clamp_min(torch.finfo(h.dtype).tiny)
    some = kappa > ASKED * kappa[-1]
    V, root = V[:, some].to(h), kappa[some].sqrt().to(h)
    if noise is not None:
        A = curvature_by(noise, h, gradient, information.to(h))
        Z: Tensor = (h @ A - gradient) @ V / root
    else:
        Z = h @ V * root - gradient @ V / root
    return Z


def curvature_by(
    noise: Tensor, h: Tensor, gradient: Tensor, information: Tensor
) -> Tensor:
    """Return the mean curvature (E, E) of the loss, as a party's own noise shows it.

    All are (n, E) but `information` (E, E), the mean of g g', which counts where noise
    is little beside the embeddings `h`. The slope of gradients along Gaussian noise in
    h is the mean curvature (Stein).
    """
    n, width = noise.shape
    centred = gradient - gradient.mean(dim=0)
    little = LITTLE * h.square().mean()
    seen = noise.T @ noise / n + little * torch.eye(width).to(h)
    asked = noise.T @ centred / n + little * information
    slope: Tensor = torch.linalg.solve(seen, asked)
    return 0.5 * slope + 0.5 * slope.T


def latest(rows: Tensor) -> Tensor:
    """Return the places at which each different row was seen last, in rising order.

    `rows` (n,) are numbers of rows, which may come twice: each counts once.
    """
    numbers, place = torch.unique(rows, return_inverse=True)
    last = torch.zeros_like(numbers)
    last.scatter_reduce_(0, place, torch.arange(len(rows)).to(rows), "amax")
    return last.sort().values
