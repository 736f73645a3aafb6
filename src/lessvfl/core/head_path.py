"""The server's components without a lambda: linear heads along a path of lambdas."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lessvfl.core.losses import Labels
from lessvfl.core.passes import gradients
from lessvfl.core.plans import PathPlan, Rows, hold_out, shuffled, take
from lessvfl.core.prox import GroupLasso
from lessvfl.core.solve import prox_step

OFFSET_STEPS = 30


def choose_components(
    H: Tensor, labels: Labels, rows: Rows, plan: PathPlan, sizes: Sequence[int]
) -> Tensor:
    """Find the components that matter along a path of lambdas, at the server alone.

    `H` (n, E) are embeddings of the training rows `rows`, `sizes` the number of
    components of every party. Returns K as a mask (E,). One component of every party
    stays, its strongest: whether a party matters is for its features to say, which a
    short pre-training may not have got to.
    """
    n_outputs = int(labels.y.max()) + 1 if labels.task == "multiclass" else 1
    asked = labels.at(rows)
    h = (H - H.mean(dim=0)) / H.std(dim=0).clamp_min(torch.finfo(H.dtype).tiny)
    fit, held = _sides(asked, plan)
    weights, offsets = _head_path(take(h, fit), asked.at(fit), n_outputs, plan)
    z = take(h, held) @ weights.mT + offsets.unsqueeze(1)  # (L, n, outputs)
    losses = asked.at(held).losses(z)
    means = losses.mean(dim=1)
    best = int(means.argmin())
    simplest = 0  # which is taken where too few rows were held out to say more
    if (n_held_out := losses.shape[1]) > 1:
        error = losses[best].std() / math.sqrt(n_held_out)
        within = means <= means[best] + plan.n_errors * error
        simplest = int(within.float().argmax())
    kept: Tensor = weights[simplest].norm(dim=0) > 0
    strengths = torch.split(weights[-1].norm(dim=0), list(sizes))
    parts = torch.split(kept, list(sizes))
    for part, strength in zip(parts, strengths, strict=True):
        if len(part) and not bool(part.any()):
            part[strength.argmax()] = True
    return kept


def _sides(labels: Labels, plan: PathPlan) -> tuple[Rows, Rows]:
    """Return the rows to fit and those held out: the last, or blocks at random."""
    n_rows = len(labels.y)
    n_fit = round((1 - plan.held_out) * n_rows)
    if labels.blocks is None:
        return slice(n_fit), slice(n_fit, None)
    order = shuffled(n_rows, labels.seed, "held out", device=labels.y.device)
    held, fit = hold_out(order, n_rows - n_fit, labels.blocks)
    return fit, held


def _head_path(
    h: Tensor, labels: Labels, n_outputs: int, plan: PathPlan
) -> tuple[Tensor, Tensor]:
    """Fit linear heads for a path of lambdas, largest first: (L, C, E) and (L, C)."""
    L, E = plan.n_lambdas, h.shape[1]
    curve = 2.0 if labels.task == "regression" else 0.5  # the most of any row's loss
    ones = torch.cat([h, h.new_ones(len(h), 1)], dim=1)
    if labels.weight is not None:
        ones = ones * labels.weight.sqrt().unsqueeze(1)
    norm = torch.linalg.matrix_norm(ones, 2).clamp_min(1e-12)  # 0: rows without weight
    rate = 1 / (curve * norm**2 / len(h))

    def slopes(W: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        z = h @ W.mT + b.unsqueeze(1)
        return gradients(labels.risk(z).sum(), [W, b])

    nothing = h.new_zeros(1, n_outputs, E).requires_grad_()
    offset = _offset(labels, n_outputs).to(h).requires_grad_()  # all start from there
    largest = slopes(nothing, offset)[0][0].norm(dim=0).max()
    penalty = GroupLasso(largest * torch.logspace(0, -2.5, L).to(h))
    W = nothing.detach().repeat(L, 1, 1).requires_grad_()
    b = offset.detach().repeat(L, 1).requires_grad_()
    t, before = 1.0, (W.detach().clone(), b.detach().clone())
    for _ in range(plan.n_steps):  # with momentum (FISTA)
        prox_step([W, b], slopes(W, b), rate.expand(L), penalty, W)
        now = (W.detach().clone(), b.detach().clone())
        t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
        with torch.no_grad():
            for moving, new, old in zip((W, b), now, before, strict=True):
                moving.add_(new - old, alpha=(t - 1) / t_new)
        t, before = t_new, now
    return before


def _offset(labels: Labels, n_outputs: int) -> Tensor:
    """Return the best constant output for these labels, (1, C): value or logits."""
    y = labels.y
    weight = torch.ones_like(y) if labels.weight is None else labels.weight
    weight = weight.double()
    total = weight.sum().clamp_min(1e-12)  # 0: rows without weight
    if labels.task == "regression":
        offset = (weight * y).sum() / total
        if labels.huber_delta is not None:
            for _ in range(OFFSET_STEPS):  # means in which what is far weighs less
                near = labels.huber_delta / (y - offset).abs().clamp_min(1e-12)
                nearer = weight * near.clamp_max(1)
                offset = (nearer * y).sum() / nearer.sum().clamp_min(1e-12)
        return offset.view(1, 1)
    sums = weight.new_zeros(max(n_outputs, 2)).index_add_(0, y.long(), weight)
    logits = (sums / total).clamp_min(0.5 / len(y)).log()
    return (logits if n_outputs > 1 else logits.diff()).view(1, -1)
