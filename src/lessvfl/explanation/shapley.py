"""Why a prediction is what it is: contributions of parties and features that add up.

The explained output is a number, linear in what the fusion network F gives. A party
that is absent from a coalition is at its mean embedding. Party m contributes its
Shapley value: F with m less F without, in the mean over all orders in which parties may
come. These add up to F of the row less F of all means, the base.

What a party contributes is then split among its features at the party, which needs of
the server one slope a component, v with v . (h - mean) equal to the party's share: the
gradient of F, in the mean over the line from the means to the row (integrated
gradients), moved by as little as it takes. The party compares the row with each row of
a background, which is weighed so that its mean embedding is the one that the server
uses. Its features replace those of the background one after the other, in two orders
for each background row (Shapley values by sampling); many features are split by
integrated gradients through the party's network instead. All columns of a feature go
together. Where the fusion network is linear, as it is by default, this is what a pooled
model would be explained by.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lessvfl.core.network import Network
from lessvfl.core.trees.networks import GrownNetwork

MOST_EXACT = 10  # parties up to which every coalition is looked at
ORDERS = 64  # of more parties: orders that are drawn, each taken in reverse, too
MOST_ORDERED = 32  # features up to which they are taken in orders
NODES = 8  # of the integral along a line
BACKGROUND = 64  # rows, at least, if there are so many
CELLS = 1 << 22  # that go through a network at a time


CoalitionValue = Callable[[frozenset[int]], Tensor]  # (n,), of those present


@dataclass(frozen=True)
class PartyShares:
    """What each party adds to the explained output of rows."""

    base: Tensor  # (n,), the explained output of the mean embeddings
    values: Tensor  # (n, M)
    slopes: tuple[Tensor, ...] | None  # of every party, (n, E_m); None: of trees


def share_among_parties(
    fusion: Network,
    blocks: Sequence[Tensor],
    means: Sequence[Tensor | None],
    weights: Tensor,
) -> PartyShares:
    """Return the Shapley value of every party, and slopes that its features need.

    Parameters
    ----------
    fusion : Network
        The server's network.
    blocks : sequence of Tensor
        The embedding of rows by every party, (n, E_m), or one for all rows, (1, E_m).
    means : sequence of Tensor or None
        Mean embedding that stands for an absent party, (E_m,); None: never absent.
    weights : Tensor
        Weights of the network's K outputs in the explained output of each row, (n, K).
    """
    n_rows, like = len(weights), fusion.input_weights
    weights = weights.to(like.device, torch.float64)
    full = [block.to(like).expand(n_rows, -1) for block in blocks]
    absent = [
        block if mean is None else mean.to(like).expand_as(block)
        for block, mean in zip(full, means, strict=True)
    ]
    players = [m for m, mean in enumerate(means) if mean is not None]

    def value(present: frozenset[int]) -> Tensor:
        """Return the explained output where the other players are absent, (n,)."""
        chosen = [full[m] if m in present else absent[m] for m in range(len(full))]
        with torch.no_grad():
            z = fusion(torch.cat(chosen, dim=1))
        return (z.double() * weights).sum(dim=1)

    values = torch.zeros(n_rows, len(full), dtype=torch.float64)
    shapley_values = _exact if len(players) <= MOST_EXACT else _sampled
    for m, share in shapley_values(players, value).items():
        values[:, m] = share.cpu()
    base = value(frozenset()).cpu()
    if isinstance(fusion, GrownNetwork):
        return PartyShares(base, values, None)
    return PartyShares(base, values, _slopes(fusion, full, absent, weights, values))


def _exact(players: Sequence[int], value: CoalitionValue) -> dict[int, Tensor]:
    """Return the Shapley value of every player, (n,), by all coalitions."""
    known = {
        frozenset(coalition): value(frozenset(coalition))
        for size in range(len(players) + 1)
        for coalition in itertools.combinations(players, size)
    }
    n, shares = len(players), {}
    for m in players:
        total = torch.zeros_like(known[frozenset()])
        for coalition, without in known.items():
            if m not in coalition:
                share = 1 / (n * math.comb(n - 1, len(coalition)))
                total += share * (known[coalition | {m}] - without)
        shares[m] = total
    return shares


def _sampled(players: Sequence[int], value: CoalitionValue) -> dict[int, Tensor]:
    """Return Shapley values, (n,), by fixed random orders; they add up as well."""
    rng = np.random.default_rng(len(players))
    drawn = [rng.permutation(players).tolist() for _ in range(ORDERS)]
    both_ways = ((order, order[::-1]) for order in drawn)
    shares: dict[int, Tensor] = {}
    for order in itertools.chain.from_iterable(both_ways):
        present: frozenset[int] = frozenset()
        last = value(present)
        for m in order:
            present |= {m}
            now = value(present)
            step = (now - last) / (2 * ORDERS)
            shares[m] = shares[m] + step if m in shares else step
            last = now
    return shares


def _slopes(
    fusion: Network,
    full: Sequence[Tensor],
    absent: Sequence[Tensor],
    weights: Tensor,
    values: Tensor,
) -> tuple[Tensor, ...]:
    """Return for every party slopes whose product with h - mean is its value."""
    start, end = torch.cat(list(absent), dim=1), torch.cat(list(full), dim=1)
    total = torch.zeros(end.shape, dtype=torch.float64)
    for place, share in _nodes():
        H = torch.lerp(start, end, place).requires_grad_()
        z = (fusion(H).double() * weights).sum()
        (gradient,) = torch.autograd.grad(z, H)
        total += share * gradient.double().cpu()
    sizes = [block.shape[1] for block in full]
    gradients = torch.split(total, sizes, dim=1)
    moves = torch.split((end - start).double().cpu(), sizes, dim=1)
    slopes = []
    for m, (gradient, move) in enumerate(zip(gradients, moves, strict=True)):
        missing = values[:, m] - (gradient * move).sum(dim=1)
        length = (move * move).sum(dim=1)
        factor = torch.where(length > 0, missing / length, 0.0)
        slopes.append(gradient + factor.unsqueeze(1) * move)
    return tuple(slopes)


def _nodes() -> list[tuple[float, float]]:
    """Return places between 0 and 1, and their shares of an integral."""
    places, shares = np.polynomial.legendre.leggauss(NODES)
    return list(zip((places + 1) / 2, shares / 2, strict=True))


# ------------------------------------------------------------------------- at the party


@dataclass(frozen=True)
class Background:
    """Rows that a row is compared with, weighed to have a given mean embedding."""

    rows: Tensor  # (B, columns)
    weights: Tensor  # (B,), 1 in all

    @classmethod
    def of(cls, net: Network, X: Tensor) -> Background:
        """Choose rows spread over X (n, columns), weighed to keep the mean embedding.

        Weights are as equal as they can be; `net` is the party's network.
        """
        most = max(BACKGROUND, 4 * net.n_outputs)
        places = torch.linspace(0, len(X) - 1, min(most, len(X))).round().long()
        rows = X[places].detach().cpu()
        h = _embedded(net, rows)  # (B, E)
        equal = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
        ones = torch.ones(1, len(rows), dtype=torch.float64)
        A = torch.cat([ones, h.T])  # (1 + E, B)
        goal = torch.cat([ones[0, :1], mean_embedding(net, X)])
        change = torch.linalg.pinv(A, rtol=1e-6) @ (goal - A @ equal)
        return cls(rows, equal + change)


def mean_embedding(net: Network, X: Tensor) -> Tensor:
    """Return the mean embedding of rows (n, columns), (E,)."""
    step = max(1, CELLS // max(1, X.shape[1]))
    parts = [_embedded(net, rows).sum(dim=0) for rows in torch.split(X, step)]
    return torch.stack(parts).sum(dim=0) / len(X)


def share_among_features(
    net: Network, x: Tensor, background: Background, slopes: Tensor, groups: Tensor
) -> Tensor:
    """Return what every feature adds to the explained output of rows, (n, features).

    Parameters
    ----------
    net : Network
        The party's network.
    x : Tensor
        The rows, (n, columns).
    background : Background
        Rows that they are compared with, weighed to the mean embedding.
    slopes : Tensor
        Change of the explained output by each component of the embedding, (n, E).
    groups : Tensor
        The feature of each column, (columns,).
    """
    n_features = int(groups.max()) + 1 if len(groups) else 0
    n_background, n_columns = background.rows.shape
    step = max(1, CELLS // (n_background * max(64, n_columns)))
    parts = [torch.zeros(0, n_features, dtype=torch.float64)]
    share_batch = _in_orders if n_features <= MOST_ORDERED else _by_column
    for rows, slope in zip(
        torch.split(x, step), torch.split(slopes, step), strict=True
    ):
        parts.append(share_batch(net, rows, background, slope, groups.cpu()))
    shares = torch.cat(parts)
    mean = background.weights @ _embedded(net, background.rows)
    total = (slopes.double().cpu() * (_embedded(net, x) - mean)).sum(dim=1)
    missing = total - shares.sum(dim=1)  # what the nodes leave out: by size
    size = shares.abs()
    whole = size.sum(dim=1, keepdim=True)
    part = torch.where(whole > 0, size / whole, 1 / max(1, n_features))
    return shares + missing.unsqueeze(1) * part


def _in_orders(
    net: Network, x: Tensor, background: Background, slopes: Tensor, groups: Tensor
) -> Tensor:
    """Return the Shapley values of features by two orders for each background row.

    They are always the same ones: who asks again learns nothing more.
    """
    like, n_features = net.input_weights, int(groups.max()) + 1
    start, weights = background.rows.to(like), slopes.to(like).unsqueeze(1)
    shares = torch.zeros(len(x), n_features, dtype=torch.float64)
    rng = np.random.default_rng(n_features)
    drawn = rng.permuted(np.tile(np.arange(n_features), (len(start), 1)), axis=1)
    for orders in (torch.from_numpy(drawn), torch.from_numpy(drawn[:, ::-1].copy())):
        ranks = orders.argsort(dim=1)[:, groups]  # (B, columns)
        last: Tensor | None = None
        for step in range(n_features + 1):
            has_come = (ranks < step).to(like.device)
            rows = torch.where(has_come, x.to(like).unsqueeze(1), start)
            with torch.no_grad():
                h = net(rows.flatten(0, 1)).view(*rows.shape[:2], -1)
            output = (h * weights).sum(dim=2).double().cpu()  # (n, B)
            if last is not None:
                change = background.weights * (output - last) / 2
                shares.index_add_(1, orders[:, step - 1], change)
            last = output
    return shares


def _by_column(
    net: Network, x: Tensor, background: Background, slopes: Tensor, groups: Tensor
) -> Tensor:
    """Return integrated gradients of features, up to the error of the integral."""
    like = net.input_weights
    start = background.rows.to(like).unsqueeze(0)  # (1, B, columns)
    move = x.to(like).unsqueeze(1) - start  # (n, B, columns)
    weights = slopes.to(like).unsqueeze(1)  # (n, 1, E)
    gradients = torch.zeros_like(move)
    for place, share in _nodes():
        at = (start + place * move).requires_grad_()
        h = net(at.flatten(0, 1)).view(*move.shape[:2], -1)
        (gradient,) = torch.autograd.grad((h * weights).sum(), at)
        gradients += share * gradient
    of_rows = background.weights.to(like).view(1, -1, 1)
    by_column = (of_rows * gradients * move).sum(dim=1).double().cpu()
    shares = torch.zeros(len(x), int(groups.max()) + 1, dtype=torch.float64)
    return shares.index_add_(1, groups, by_column)


def _embedded(net: Network, x: Tensor) -> Tensor:
    """Return embeddings of rows (n, columns) as (n, E)."""
    with torch.no_grad():
        h: Tensor = net(x.to(net.input_weights))
    return h.double().cpu()
