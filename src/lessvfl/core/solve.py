"""Solving: the loop over epochs, its steps, and when to stop.

A *step* takes the rows of a mini-batch, changes parameters in place and returns the
loss. How the steps of an epoch are run is a schedule: :func:`in_order` here, a captured
CUDA graph in the benchmark of the paper.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lessvfl.core.adam import SGD, Adam, Optimizer
from lessvfl.core.network import Network
from lessvfl.core.passes import gradients
from lessvfl.core.plans import (
    Batches,
    FitPlan,
    Rows,
    TrainPlan,
    hold_out,
    shuffled,
    take,
)
from lessvfl.core.prox import GroupLasso, leading
from lessvfl.errors import DivergenceError
from lessvfl.terms import Stage

Step = Callable[[Rows], Tensor]
RunEpoch = Callable[[int], list[Tensor]]  # by its number; returns its losses
Schedule = Callable[[Step], RunEpoch]

FEW_ROWS = 1000

OPTIMIZERS: dict[str, Callable[[list[Tensor], float], Optimizer]] = {
    "adam": functools.partial(Adam, decoupled=False),
    "adamw": functools.partial(Adam, decoupled=True),
    "adagrad": lambda params, lr: torch.optim.Adagrad(params, lr=lr),
    "nadam": lambda params, lr: torch.optim.NAdam(params, lr=lr),
    "rmsprop": lambda params, lr: torch.optim.RMSprop(params, lr=lr),
    "sgd": SGD,
}


def optimizer_step(
    optimizer: Optimizer,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    shrink: Callable[[], object] | None = None,
) -> None:
    """Step along these gradients; `shrink` is the proximal step after it, if any."""
    grads = [grad.contiguous() for grad in grads]  # fused steps read memory in order
    if isinstance(optimizer, Adam | SGD):
        optimizer.step(grads)
    else:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
    if shrink is not None:
        with torch.no_grad():
            shrink()


def optimizer_of(
    plan: TrainPlan, params: list[Tensor], n_rows: int, decays: bool = True
) -> Optimizer:
    """Return the optimiser of `params` in a stage of joint training on `n_rows` rows.

    Its weight decay is that of the plan for up to `FEW_ROWS` rows, and falls with the
    square of their number beyond: there are as many more steps, and each may count for
    less. Without `decays` it is the optimiser's own.
    """
    optimizer = OPTIMIZERS[plan.optimizer](params, plan.learning_rate)
    if plan.decay and decays:
        for group in optimizer.param_groups:
            group["weight_decay"] = plan.decay * min(1.0, FEW_ROWS / n_rows) ** 2
    return optimizer


def prox_step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    step_size: float | Tensor,
    penalty: GroupLasso,
    w: Tensor,
) -> None:
    """Take one step θ ← prox_{λ,η}(θ − η ∇loss(θ)), in place: one η for both.

    `w` are the input weights among `params`, `grads` are gradients in their order; a
    tensor `step_size` (...) is one η for each network of a stack.
    """
    with torch.no_grad():
        if isinstance(step_size, Tensor):
            for param, grad in zip(params, grads, strict=True):
                param.addcmul_(grad, leading(step_size, param), value=-1)
        else:
            torch._foreach_add_(list(params), list(grads), alpha=-step_size)
        penalty.prox(w, step_size)


def in_order(batches: Batches, device: torch.device) -> Schedule:
    """Return a schedule that runs the steps of an epoch one after another."""

    def schedule(step: Step) -> RunEpoch:
        return lambda epoch: [step(rows) for rows in batches.epoch(epoch, device)]

    return schedule


def minimise(
    params: Sequence[Tensor],
    loss: Step,
    update: Callable[[tuple[Tensor, ...]], None],
    schedule: Schedule,
    n_epochs: int,
    after_epoch: Callable[[int, list[Tensor]], bool | None],
) -> None:
    """Update `params` by the gradients of `loss`, batch by batch, epoch by epoch.

    `after_epoch` is told how many epochs are done and the losses of the last one; it
    returns True to stop.
    """

    def step(rows: Rows) -> Tensor:
        value = loss(rows)
        update(gradients(value.sum(), params))
        return value.detach()

    run_epoch = schedule(step)
    for epoch in range(n_epochs):
        if after_epoch(epoch + 1, run_epoch(epoch)):
            return


class Watch:
    """Collects every step's numbers, and stops the run where one is not finite.

    That is without waiting for the device; they are examined once an epoch.
    `names` say whose each number of a step is.
    """

    def __init__(self, stage: Stage, names: Sequence[str]) -> None:
        self.stage = stage
        self.names = names
        self.step = 0
        self._seen: list[Tensor] = []

    def add(self, *values: Tensor) -> None:
        """Remember vectors of a step: together, one number for every name."""
        self._seen += [value.detach() for value in values]

    def check(self) -> None:
        """Raise DivergenceError, naming side and step, if a number was not finite."""
        if not self._seen:
            return
        finite = torch.cat(self._seen).isfinite().cpu().view(-1, len(self.names))
        if not bool(finite.all()):
            step = int((~finite.all(dim=1)).nonzero()[0])
            who = self.names[int((~finite[step]).nonzero()[0])]
            raise DivergenceError(
                f"The loss of {who} must stay finite. It diverged in stage "
                f"'{self.stage}' at step {self.step + step}; a smaller step size or "
                "learning rate, or scaled columns, may help."
            )
        self.step += len(finite)
        self._seen.clear()


class Plateau:
    """Tells when an objective, a tensor without axes, improves no more.

    `best` is its value at first. A plateau is reached when `patience` values in a row
    improved the best one by less than the share `tolerance`; it is never left again.
    """

    def __init__(self, best: Tensor, patience: int, tolerance: float = 0.0) -> None:
        self.best = best
        self.patience = patience
        self.tolerance = tolerance
        self._waited = 0

    @property
    def reached(self) -> bool:
        """Return whether it is reached."""
        return self._waited >= self.patience

    def improves(self, now: Tensor) -> bool:
        """Tell whether the next value is better; never once a plateau is reached."""
        is_better = bool(now < self.best * (1 - self.tolerance))
        improved = is_better and not self.reached
        self._waited = 0 if improved else self._waited + 1
        self.best = torch.minimum(self.best, now)
        return improved


def fit_held_out(
    net: Network,
    X: Tensor,
    Z: Tensor,
    plan: FitPlan,
    seed: int,
    blocks: Tensor | None = None,
) -> Tensor:
    """Fit a network of rows X (n, columns) to Z (n, E) by least squares, in place.

    A share of the rows is held out, whole `blocks` (n,) if there are any; the network
    ends with the weights that predict them best, the first ones included. Returns the
    mean squared error of every row held out.
    """
    params, passes = net.parameters(), net.passes()
    n_samples, device = len(Z), Z.device
    n_held = max(1, round(plan.held_out * n_samples))
    order = shuffled(n_samples, seed, "refit", device=device)
    held, rest = hold_out(order, n_held, blocks)
    n_rows = max(plan.batch_size, -(-len(rest) // plan.most_steps))  # of a step
    optimizer = OPTIMIZERS["adamw"](params, plan.rate)
    for group in optimizer.param_groups:
        group["weight_decay"] = plan.decay

    def score() -> Tensor:
        net.train(False)
        with torch.no_grad():
            return (net(take(X, held)) - take(Z, held)).square().mean(dim=1)

    plateau = Plateau(score().mean(), plan.patience)
    best = [param.detach().clone() for param in params]
    for epoch in range(plan.n_epochs):
        net.train(True)
        order = shuffled(len(rest), seed, "refit", epoch, device=device)
        for rows in torch.split(rest[order], n_rows):
            gap = passes.forward(take(X, rows)) - take(Z, rows)
            optimizer_step(optimizer, params, passes.back(gap * (2 / gap.numel())))
        if plateau.improves(score().mean()):
            best = [param.detach().clone() for param in params]
        if plateau.reached:
            break
    with torch.no_grad():
        for param, value in zip(params, best, strict=True):
            param.copy_(value)
    return score()
