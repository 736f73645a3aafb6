"""Whether rows next to each other in a file are alike, in columns and in responses.

Scrambled copies stand for useless columns as long as any order of the rows is as
likely. Rows of one person, or of one hour after the other, are alike: a useless column
then agrees with the labels more than its copies do. That takes both, columns and labels
that are alike.

A file that is sorted, by a column or by the label, is no such case: two rows are alike
there only as far as the sorted value says. So what the responses say of the columns is
taken out, in a straight line and then by the mean of the rows whose responses are
nearest (which are the row's class, of however many); so is what a column says by which
rows are sorted; and rows are compared within short stretches of the file, each without
its trend, with these rows in other orders.

Rows of a person may also be anywhere in a file, nearly copies of each other. Among rows
that have nothing to do with each other the number within a distance grows as a power
of it, which the farther of the nearest rows tell. A row that is nearer than that allows
is a near copy; it does harm where the labels are alike, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Rows of a stretch, how many stretches, and what is no chance, in standard deviations.
STRETCHES = ((32, 64, 7.5), (128, 24, 7.0))
LEAST = 0.06  # of all that could be alike, what is worth a change
MOST_COLUMNS = 32  # that are looked at, evenly spread
FEWEST_STRETCHES = 3
LAGS = ((1, 1.0), (2, 0.7), (3, 0.5))  # rows apart, and how much such a pair counts
N_ORDERS = 12  # of the rows of a stretch
MOST_SAID = 3.0  # by one stretch, in standard deviations: a step says no more
SORTED = 0.9  # share of the steps of a column that go one way
FARTHEST = 3.0  # standard deviations, so that few values do not say it all
LIKE_RESPONSES = 5  # rows whose mean says what a class has in common
RIDGE = 1e-6

N_LOOKED = 500  # rows whose nearest are looked for
MOST_ROWS = 32_768  # among which, evenly spread
FEWEST_ROWS = 200
NEAREST, FARTHER = 20, 40  # of the nearest rows, those that tell how many are near
REPEATED = 0.02  # of the rows have one value: such a column tells no near copies
FEWEST_COLUMNS = 3
NO_CHANCE = 1e-3  # of a row whose nearest is so near
MANY_COPIES = 0.05  # of the rows
ALIKE_LABELS = 3.0  # responses of near copies, in standard errors


@dataclass(frozen=True)
class Likeness:
    """How alike rows next to each other in a file are: correlations of lag one."""

    columns: float
    responses: float


def likeness(X: Tensor, Z: Tensor) -> Likeness | None:
    """Return how alike neighbouring rows of a file are, in columns and in responses.

    Columns X (n, columns) and responses Z (n, E) are in the order of the file. None
    where neighbours are not alike in both, or rows are too few to tell.
    """
    if not X.shape[1] or not Z.shape[1]:
        return None
    for length, n_most, limit in STRETCHES:
        n_stretches = min(len(X) // length, n_most)
        if n_stretches < FEWEST_STRETCHES:
            continue
        starts = torch.linspace(0, len(X) - length, n_stretches).long()
        rows = (starts.unsqueeze(1) + torch.arange(length)).flatten().to(X.device)
        some = torch.linspace(0, X.shape[1] - 1, min(X.shape[1], MOST_COLUMNS)).long()
        x, z = _standard(X[rows][:, some.to(X.device)]), _standard(Z[rows])
        alike = Likeness(_lag_one(x), _lag_one(z))
        steps = x.diff(dim=0)
        up, down = (steps > 0).sum(dim=0), (steps < 0).sum(dim=0)
        is_sorted = torch.maximum(up, down) > SORTED * (up + down)
        powers = [x[:, is_sorted] ** power for power in range(1, 4)]
        by_order = torch.cat([torch.ones_like(x[:, :1]), *powers], dim=1)
        x, z = _beside(by_order, x[:, ~is_sorted]), _beside(by_order, z)
        x = _beside(z, x)
        apart = torch.cdist(z, z)
        apart.fill_diagonal_(math.inf)
        like = apart.topk(LIKE_RESPONSES, largest=False).indices  # (n, LIKE_RESPONSES)
        x = x - x[like].mean(dim=1)
        beyond, share = _together(x, z, length)
        if beyond > limit and share > LEAST:
            return alike
    return None


def near_copies(X: Tensor, Z: Tensor, blocks: Tensor | None = None) -> float | None:
    """Return the share of rows that have a near copy with like responses, anywhere.

    X (n, columns) are the rows, Z (n, E) their responses; blocks (n,) say which rows
    are known to belong together. None where the share is small, or too few rows or
    columns to tell. Copies to the last bit do not count, nor do rows of one block.
    """
    if blocks is not None:
        first = as_they_come(blocks)[1]
        X, Z = X[first], Z[first]
    n = min(len(X), MOST_ROWS)
    if n < FEWEST_ROWS:
        return None
    all_rows = torch.linspace(0, len(X) - 1, n).long().to(X.device)
    X, Z = X[all_rows], Z[all_rows]
    some = torch.linspace(0, n - 1, min(n, 4 * N_LOOKED)).long().to(X.device)
    values, apart = X[some].sort(dim=0).values, int(REPEATED * len(some))
    (usable,) = (values[apart:] != values[:-apart]).all(dim=0).nonzero(as_tuple=True)
    if len(usable) < FEWEST_COLUMNS:
        return None
    spread = torch.linspace(0, len(usable) - 1, min(len(usable), MOST_COLUMNS)).long()
    x, z = X[:, usable[spread.to(X.device)]].T.contiguous(), _standard(Z)
    x = torch.searchsorted(x.sort(dim=1).values, x).T / n - 0.5  # whatever their tails
    z = _beside(torch.cat([torch.ones_like(x[:, :1]), x], dim=1), z)
    rows = torch.linspace(0, n - 1, min(n, N_LOOKED)).long().to(X.device)
    parts = [_nearest(x, part) for part in torch.split(rows, 100)]
    far, near = (torch.cat(part) for part in zip(*parts, strict=True))
    to_nearest, middle, outer = (far[:, at] for at in (0, NEAREST - 1, FARTHER - 1))
    tiny = torch.finfo(far.dtype).tiny
    growth = (outer / middle.clamp_min(tiny)).log().clamp_min(RIDGE)
    power = sum(1 / k for k in range(NEAREST, FARTHER)) / growth
    power = torch.minimum(power, power.median())
    closer = (to_nearest / middle.clamp_min(tiny)) ** power
    is_copy = (1 - (1 - closer) ** (NEAREST - 1) < NO_CHANCE) & (to_nearest > 0)
    share = float(is_copy.double().mean())
    if share < MANY_COPIES:
        return None
    here, near = z[rows[is_copy]].unsqueeze(1), near[is_copy]
    like = (here * z[near]).sum(dim=2).double()
    excess = like[:, 0] - like[:, NEAREST:].mean(dim=1)
    error = excess.std() / math.sqrt(len(excess))
    return share if float(excess.mean()) > ALIKE_LABELS * float(error) else None


def _nearest(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances from some rows to their nearest others, and their places.

    `rows` (m,) are places in x (n, columns); both results are (m, FARTHER), the nearest
    first.
    """
    exact = "donot_use_mm_for_euclid_dist"  # copies are at distance 0
    far = torch.cdist(x[rows], x, compute_mode=exact)
    far[torch.arange(len(rows)).to(rows), rows] = math.inf
    far, near = far.topk(FARTHER, largest=False)
    return far.double(), near


def as_they_come(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return blocks (n,) numbered as they first come, and the first row of each."""
    _, blocks = torch.unique(blocks, return_inverse=True)
    first = blocks.new_full((int(blocks.max()) + 1,), len(blocks))
    places = torch.arange(len(blocks)).to(blocks)
    first.scatter_reduce_(0, blocks, places, "amin")
    return first.argsort().argsort()[blocks], first.sort().values


def _together(x: Tensor, z: Tensor, length: int) -> tuple[float, float]:
    """Return how alike near rows are in columns and responses at once.

    x (n, columns) and z (n, E) are stretches of `length` rows, one after the other.
    Returned are the excess over the same rows in other orders, in standard deviations,
    and as a share of all that could be alike.
    """
    t = torch.arange(length).to(x) - (length - 1) / 2
    trend = torch.stack([torch.ones_like(t), t], dim=1)
    trend = trend / torch.linalg.vector_norm(trend, dim=0)
    taken = trend @ trend.T  # of a stretch, by its level and its slope
    x, z = (part.reshape(-1, length, part.shape[1]) for part in (x, z))
    x, z = x - taken @ x, z - taken @ z
    i, j, weight = (part.to(x.device) for part in _near(length))
    weight = weight.to(x)
    both = [part @ part.mT for part in (x, z)]  # how alike any two rows are
    sizes = [part.diagonal(dim1=1, dim2=2).sum(dim=1).unsqueeze(1) for part in both]
    against = taken[i, j] / (length - 2)  # what is left of a trend runs against itself
    near = [p[:, i, j] + against * s for p, s in zip(both, sizes, strict=True)]
    generator = torch.Generator().manual_seed(0)
    orders = torch.rand(N_ORDERS, length, generator=generator).argsort(1).to(i)
    i, j = orders[:, i].flatten(), orders[:, j].flatten()
    pairs = length * (length - 1)  # what is left of a level, of any two
    any_two = [p[:, i, j] + s / pairs for p, s in zip(both, sizes, strict=True)]
    by_chance = (any_two[0] * any_two[1]).view(len(x), N_ORDERS, -1) @ weight
    excess = (near[0] * near[1]) @ weight - by_chance.mean(dim=1)
    tiny = torch.finfo(x.dtype).tiny
    evidence = excess / by_chance.std(dim=1).clamp_min(tiny)
    whole = (sizes[0] * sizes[1]).flatten() / length
    beyond = float(evidence.clamp(-MOST_SAID, MOST_SAID).sum()) / math.sqrt(len(x))
    return beyond, float(excess.sum() / whole.sum().clamp_min(tiny))


def _near(length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return pairs of near rows of a stretch, first and second, and their weights."""
    firsts = [torch.arange(length - lag) for lag, _ in LAGS]
    others = [first + lag for first, (lag, _) in zip(firsts, LAGS, strict=True)]
    weights = [
        torch.full((len(first),), weight, dtype=torch.float64)
        for first, (_, weight) in zip(firsts, LAGS, strict=True)
    ]
    return torch.cat(firsts), torch.cat(others), torch.cat(weights)


def _standard(part: Tensor) -> Tensor:
    """Return columns (n, columns) centred, over their deviation, far values cut."""
    part = part.double()
    centred = part - part.mean(dim=0)
    spread = centred.square().mean(dim=0).sqrt()
    part = (centred / spread.clamp_min(RIDGE)).clamp(-FARTHEST, FARTHEST)
    return (part - part.mean(dim=0)).float()


def _beside(known: Tensor, part: Tensor) -> Tensor:
    """Return columns (n, columns) less their regression on known ones (n, others)."""
    gram = known.T @ known
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
    rest: Tensor = part - known @ torch.linalg.solve(gram + ridge, known.T @ part)
    return rest


def _lag_one(part: Tensor) -> float:
    """Return the correlation of each row (n, columns) with the next, of all columns."""
    whole = part.square().sum(dim=1).mean()
    alike = (part[1:] * part[:-1]).sum(dim=1).mean()
    return float(alike / whole.clamp_min(RIDGE))
