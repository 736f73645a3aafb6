"""A stage of joint training as one side holds it, the server or a party."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.ending import ROUNDING, TrainingEnd
from lessvfl.core.gates import GatedPasses, Gates
from lessvfl.core.network import Network
from lessvfl.core.passes import Passes
from lessvfl.core.plans import Batches, Rows, TrainPlan
from lessvfl.core.prox import GroupLasso
from lessvfl.core.solve import optimizer_of, optimizer_step


@dataclass
class TrainingState:
    """What changes between two steps of a stage, beside the network."""

    plan: TrainPlan
    step: int  # steps done
    optimizer: dict[int, dict[str, Tensor]]  # by the number of the parameter
    end: Tensor | None  # of the watch over rows held out
    gates: Tensor | None  # (n_groups,)


class Training:
    """What the steps of a stage share, and what changes between two of them.

    Both sides derive the same batches and the same pace from the plan.
    """

    def __init__(
        self,
        plan: TrainPlan,
        net: Network,
        batches: Batches,
        decays: bool,
        inputs: bool = False,
        gates: Gates | None = None,
    ) -> None:
        self.plan = plan
        self.gates = gates
        self.batches = batches
        self.n_steps = batches.n_steps(plan.n_epochs)
        self.params = net.parameters()
        self.passes: Passes
        if gates is None:
            self.passes = net.passes(inputs)
        else:
            inner = net.passes(inputs=True)
            self.passes = GatedPasses(inner, gates, lambda: self.step, inputs)
            self.params = [*self.params, gates.mu]
        self.optimizer = optimizer_of(plan, self.params, batches.n_samples, decays)
        is_watched = plan.schedule == "watched"
        self.end = TrainingEnd(self.n_steps) if is_watched else None
        self.step = 0  # steps done

    @property
    def is_check_due(self) -> bool:
        """Tell whether the rows held out are looked at before the next step."""
        if self.end is None or not self.batches.n_held_out:
            return False
        return self.end.is_due(self.step + 1)

    @property
    def check_format(self) -> tuple[int, int]:
        """Return how many rows are held out, and the bits of their values."""
        return len(self.batches.held_out), self.plan.bits

    def update(
        self,
        grads: Sequence[Tensor],
        rate: float,
        shrink: Callable[[], object] | None = None,
    ) -> None:
        """Take the next step, at a share of the first rate where that is watched."""
        self.plan.set_rate(self.optimizer, self.step, self.n_steps, rate)
        optimizer_step(self.optimizer, self.params, grads, shrink)

    @property
    def state(self) -> TrainingState:
        """Return step, optimiser, end and gates, which change from step to step."""
        return TrainingState(
            self.plan,
            self.step,
            self.optimizer.state_dict()["state"],
            None if self.end is None else self.end.state,
            None if self.gates is None else self.gates.mu,
        )

    def resume(self, state: TrainingState) -> None:
        """Go on from a saved state of the same stage."""
        self.step = state.step
        before = self.optimizer.state_dict()
        self.optimizer.load_state_dict(before | {"state": state.optimizer})
        if self.end is not None and state.end is not None:
            self.end.state.copy_(state.end)
        if self.gates is not None and state.gates is not None:
            self.gates.mu.copy_(state.gates)


class PartyTraining(Training):
    """A stage at a party: also the batch on its way, and the penalty if there is one.

    `membership` says which slots of the network are one group.
    """

    def __init__(
        self,
        plan: TrainPlan,
        net: Network,
        batches: Batches,
        decays: bool,
        membership: Tensor | None,
        gates: Gates | None = None,
    ) -> None:
        super().__init__(plan, net, batches, decays, gates=gates)
        self.penalty: GroupLasso | None = None
        self.shrink: Callable[[], object] | None = None  # its proximal step
        self.rows: Rows | None = None  # of the batch whose gradient is awaited
        self.h = self.sent = torch.empty(0)  # its embedding, and as the server saw it
        w = net.input_weights
        self.batches_left = batches.steps(plan.n_epochs, w.device)
        if plan.lam is not None:
            self.penalty = GroupLasso(w.new_tensor(plan.lam), membership)
            self.shrink = functools.partial(self.penalty.prox, w, plan.learning_rate)

    def groups_in_use(self, input_weights: Tensor) -> Tensor | None:
        """Return the groups that gates or proximal steps leave, (n_groups,)."""
        if self.gates is not None:
            return self.gates.open
        if self.penalty is None:
            return None
        with torch.no_grad():
            return self.penalty.norms(input_weights) > 0

    @property
    def is_recorded(self) -> bool:
        """Tell whether the gradient of the next step is to be remembered."""
        return self.step >= self.n_steps - self.batches.n_steps(self.plan.record)

    def agrees(self, rate: float, last: bool) -> bool:
        """Tell if the server's `rate` and `last` for the next step fit the plan."""
        step = self.step + 1
        if self.end is not None:
            return self.end.agrees(step, rate, last, self.batches.n_held_out > 0)
        is_whole = math.isclose(rate, 1, rel_tol=ROUNDING)
        return is_whole and (step == self.n_steps or not last)

    def resume(self, state: TrainingState) -> None:
        """Go on with what :attr:`state` was, whose batches are behind."""
        super().resume(state)
        for _ in range(state.step):
            next(self.batches_left)
