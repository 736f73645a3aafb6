"""What goes on around the stages of a method, at the server.

Where a run was saved it goes on from there, and it is saved again on the way; observers
are told of every epoch; numbers that are not finite end the run; and rows held out say
when training is over. The algorithm itself is in ``algorithm.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.gates import HALF_OPEN, Gates
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import Rows, TrainPlan
from lessvfl.core.solve import Watch
from lessvfl.core.training import Training, TrainingState
from lessvfl.terms import Event, Observer, Stage


@dataclass
class JointState:
    """What joint training goes on with at the server, or has made."""

    fusion: dict[str, Tensor]
    training: TrainingState | None  # None: the stage is over


@dataclass
class ComponentsState:
    """What stage 2 has made."""

    kept: Tensor  # (E,), K as a mask
    fusion: dict[str, Tensor]  # of the network that was cut to it


class JointStage(Training):
    """A stage of joint training, entered where it was left.

    `owners` name the holder of every component, for the error where one diverges.
    """

    def __init__(
        self,
        plan: TrainPlan,
        fusion: Network,
        labels: Labels,
        owners: Sequence[str],
        observe: Observer,
        keeper: Keeper,
    ) -> None:
        batches = plan.batches(len(labels.y), labels.seed, labels.blocks)
        decays = labels.task != "regression"  # which would shrink the amounts
        slots, w = fusion.column_slots, fusion.input_weights.detach()
        gates = Gates.of(  # on the components
            plan,
            w.new_full(slots.shape, HALF_OPEN),
            torch.arange(len(slots), device=w.device),
            seed=labels.seed,
            who="the server",
        )
        super().__init__(plan, fusion, batches, decays, inputs=True, gates=gates)
        self._fusion = fusion
        self._device = labels.y.device
        self._observe = observe
        self._keeper = keeper
        self._last = False  # whether the step at hand is the last
        self._watch = Watch(plan.stage, [*owners, "the server"])
        saved = keeper.enter(plan.stage, JointState) if self.n_steps else None
        if saved is not None:
            fusion.load_state(saved.fusion)
            if saved.training is None:
                self.step = self.n_steps
            else:
                self.resume(saved.training)

    @property
    def is_over(self) -> bool:
        """Tell whether all steps are done."""
        return self.step == self.n_steps

    def begin(self) -> int:
        """Tell the observer that the stage begins; return how many steps are done."""
        n_per_epoch = self.batches.n_per_epoch
        epochs = (self.step / n_per_epoch, self.n_steps / n_per_epoch)
        self._observe(Event(self.plan.stage, *epochs))
        self._fusion.train(True)
        return self.step

    def steps(self) -> Iterator[tuple[int, Rows]]:
        """Yield number, from 1, and rows of every step that is left.

        A step is over when the next is asked for.
        """
        stage, n_steps = self.plan.stage, self.n_steps
        steps = self.batches.steps(self.plan.n_epochs, self._device)
        for _, rows in itertools.islice(steps, self.step, None):
            yield self.step + 1, rows
            self.step += 1
            if self._last and self.gates is not None:
                self.gates.fold(self._fusion.input_weights, self._fusion.column_slots)
            if self.step % self.batches.n_per_epoch == 0 or self._last:
                self._end_epoch()
            step = n_steps if self._last else self.step
            self._keeper.reached(stage, step, n_steps, self._so_far)
            if self._last:
                break
        self._fusion.train(False)

    def _so_far(self) -> JointState:
        return JointState(self._fusion.state(), None if self._last else self.state)

    def pace(self, risk_held_out: Callable[[Tensor], float]) -> tuple[float, bool]:
        """Return the share of the first learning rate, and whether this step is last.

        `risk_held_out` returns the loss of rows that no step uses, by their numbers.
        """
        number, rate = self.step + 1, 1.0
        self._last = number == self.n_steps
        if self.end is not None:
            if self.is_check_due:
                self.end.see(risk_held_out(self.batches.held_out), number)
            rate, self._last = self.end.rate(number), self.end.is_last(number)
        return rate, self._last

    def watch(self, H: Tensor, loss: Tensor) -> None:
        """Remember a step's embeddings (b, E) and loss: they must be finite."""
        self._watch.add(H.sum(dim=0), loss.view(1))

    def _end_epoch(self) -> None:
        self._watch.check()
        self._fusion.train(False)
        epoch = self.step / self.batches.n_per_epoch
        n_epochs = epoch if self._last else self.plan.n_epochs
        self._observe(Event(self.plan.stage, epoch, n_epochs, self._in_use))
        self._fusion.train(True)

    def _in_use(self, H: Tensor) -> Tensor:
        """Return what the fusion network says of embeddings, behind its gates."""
        if self.gates is None or self._last:
            return self._fusion(H)
        return self._fusion(H * self.gates.values)


def narrow_to_kept(
    fusion: Network, find: Callable[[], Tensor], keeper: Keeper
) -> tuple[Tensor, Network]:
    """Find K unless that is over; return it and the fusion network cut to it."""
    saved = keeper.enter("select_components", ComponentsState)
    kept = find() if saved is None else saved.kept
    fusion = fusion.narrow(slots=kept)
    if saved is None:
        state = ComponentsState(kept, fusion.state())
        keeper.reached("select_components", 1, 1, lambda: state)
    else:
        fusion.load_state(saved.fusion)
    return kept, fusion


def run_once(
    stage: Stage,
    n_epochs: int,
    run: Callable[[], None],
    fusion: Network,
    observe: Observer,
    keeper: Keeper,
) -> None:
    """Run a stage that is not saved before its end, unless it is over."""
    if keeper.enter(stage, dict) is None:
        observe(Event(stage, 0, n_epochs))
        run()
        observe(Event(stage, n_epochs, n_epochs, fusion))
        keeper.reached(stage, 1, 1, dict)
