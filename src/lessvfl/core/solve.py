"""Solving: gradients, optimisers, and fits that watch themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lessvfl.core.network import Network
from lessvfl.core.plans import FitPlan, stream
from lessvfl.core.prox import per_replica
from lessvfl.errors import DivergenceError
from lessvfl.terms import Stage

OPTIMIZERS: dict[str, Callable[[list[Tensor], float], torch.optim.Optimizer]] = {
    "adam": lambda params, lr: torch.optim.Adam(params, lr=lr, fused=True),
    "adamw": lambda params, lr: torch.optim.AdamW(params, lr=lr, fused=True),
    "adagrad": lambda params, lr: torch.optim.Adagrad(params, lr=lr),
    "nadam": lambda params, lr: torch.optim.NAdam(params, lr=lr),
    "rmsprop": lambda params, lr: torch.optim.RMSprop(params, lr=lr),
    "sgd": lambda params, lr: torch.optim.SGD(params, lr=lr),
}


def gradients(
    output: Tensor, inputs: Sequence[Tensor], along: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Return the gradient of an output by each input; zeros where it has no part."""
    return torch.autograd.grad(
        output, inputs, along, allow_unused=True, materialize_grads=True
    )


class Watch:
    """Looks at every step's numbers, and stops the run where one is not finite.

    Sums are collected without waiting for the device and examined once an epoch.

    Parameters
    ----------
    stage : str
        Where the run is.
    names : sequence of str
        Whose number each value that :meth:`look` is given is.
    """

    def __init__(self, stage: Stage, names: Sequence[str]) -> None:
        self.stage = stage
        self.names = names
        self.step = 0
        self._seen: list[Tensor] = []

    def look(self, *values: Tensor) -> None:
        """Remember one number for every name."""
        self._seen += [value.detach().sum() for value in values]

    def check(self) -> None:
        """Raise naming who, stage and step, where a number was not finite."""
        finite = torch.stack(self._seen).isfinite().cpu().view(-1, len(self.names))
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


def fit_held_out(
    net: Network,
    loss: Callable[[Tensor], Tensor],
    n_samples: int,
    plan: FitPlan,
    seeds: Sequence[int],
    fold: int = 0,
) -> Tensor:
    """Fit a network alone, in place, on all replicas at once.

    A share of the rows is held out; every replica ends with the weights that predict it
    best, the first ones included. Returns the losses of the rows held out, (R, n).

    Parameters
    ----------
    net : Network
        What `loss` uses.
    loss : callable
        Maps rows (R, b) to their losses (R, b).
    n_samples : int
        Rows in all.
    fold : int
        Which share of the rows is held out, counted from 0.
    """
    params = net.parameters()
    device = params[0].device

    def shuffled(n: int, *name: str | int) -> Tensor:
        orders = [torch.randperm(n, generator=stream(s, *name)) for s in seeds]
        return torch.stack(orders).to(device)

    def score() -> Tensor:
        net.train(False)
        with torch.no_grad():
            return loss(held)

    n_held = max(1, round(plan.held_out * n_samples))
    order = shuffled(n_samples, "refit").roll(-fold * n_held, dims=1)
    held, rest = order[:, :n_held], order[:, n_held:]
    optimizer = torch.optim.AdamW(params, lr=plan.rate, weight_decay=plan.decay)
    best, kept = score().mean(dim=1), [param.detach().clone() for param in params]
    waited = torch.zeros(len(best), device=device)
    for epoch in range(plan.n_epochs):
        net.train(True)
        places = torch.gather(rest, 1, shuffled(rest.shape[1], "refit", epoch))
        for rows in places.split(plan.batch_size, dim=1):  # type: ignore[no-untyped-call]
            grads = gradients(loss(rows).mean(dim=1).sum(), params)
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad.contiguous()
            optimizer.step()
        now = score().mean(dim=1)
        better = (now < best) & (waited < plan.patience)  # each as if it were alone
        best = torch.where(better, now, best)
        waited = torch.where(better, torch.zeros_like(waited), waited + 1)
        kept = [
            torch.where(per_replica(better, old), param.detach(), old)
            for param, old in zip(params, kept, strict=True)
        ]
        if bool((waited >= plan.patience).all()):
            break
    with torch.no_grad():
        for param, value in zip(params, kept, strict=True):
            param.copy_(value)
    return score()
