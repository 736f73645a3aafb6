"""Adam, AdamW and SGD without PyTorch's classes, and the type of every optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Adam:
    """Adam (Kingma and Ba, 2015), if `decoupled` AdamW (Loshchilov and Hutter, 2019).

    `lr` is the learning rate. The numbers are those of ``torch.optim`` with
    ``fused=True``. Its classes are not used because making the first object loads
    PyTorch's compiler, which takes longer than a small run, and because every step then
    looks up what never changes, which takes longer than the kernel.
    """

    def __init__(self, params: Sequence[Tensor], lr: float, *, decoupled: bool) -> None:
        self.param_groups: list[dict[str, Any]] = [
            {"lr": lr, "weight_decay": 0.01 if decoupled else 0.0}
        ]
        self._kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self._params = [param.detach() for param in params]
        self._step = torch.zeros((), device=self._params[0].device)
        self._means = [torch.zeros_like(param) for param in self._params]
        self._squares = [torch.zeros_like(param) for param in self._params]

    def step(self, grads: Sequence[Tensor]) -> None:
        """Change the parameters by one step along `grads`, given in their order."""
        (group,) = self.param_groups
        self._step.add_(1)
        self._kernel(
            self._params,
            list(grads),
            self._means,
            self._squares,
            [],
            [self._step] * len(self._params),
            lr=group["lr"],
            beta1=0.9,
            beta2=0.999,
            weight_decay=group["weight_decay"],
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return step count and moments of every parameter by number, like PyTorch."""
        both = zip(self._means, self._squares, strict=True)
        return {
            "state": {
                number: {"step": self._step, "exp_avg": mean, "exp_avg_sq": square}
                for number, (mean, square) in enumerate(both)
            }
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up a state as :meth:`state_dict` gave it."""
        for number, tensors in self.state_dict()["state"].items():
            for name, value in tensors.items():
                value.copy_(state_dict["state"][number][name])


class SGD:
    """Stochastic gradient descent: the same numbers as ``torch.optim.SGD``.

    `lr` is the learning rate. Made here for the same reason as :class:`Adam`.
    """

    def __init__(self, params: Sequence[Tensor], lr: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": lr, "weight_decay": 0.0}]
        self._params = [param.detach() for param in params]

    def step(self, grads: Sequence[Tensor]) -> None:
        """Change the parameters by one step along `grads`, given in their order."""
        (group,) = self.param_groups
        along = list(grads)
        if group["weight_decay"]:
            along = torch._foreach_add(  # type: ignore[assignment]
                along, self._params, alpha=group["weight_decay"]
            )
        torch._foreach_add_(self._params, along, alpha=-group["lr"])

    def state_dict(self) -> dict[str, Any]:
        """Return that nothing is remembered."""
        return {"state": {}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up nothing."""


Optimizer = torch.optim.Optimizer | Adam | SGD
