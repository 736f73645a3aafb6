"""One party: its columns, its network, ``handle(request) -> reply``.

A party never sends columns, weights or its feature mask. What it does after a request
is decided here and nowhere else.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lessvfl import algorithm
from lessvfl.core import evidence
from lessvfl.core.adam import Optimizer
from lessvfl.core.ending import ROUNDING, TrainingEnd
from lessvfl.core.evidence import Memory
from lessvfl.core.finite import finite
from lessvfl.core.lifted import widen
from lessvfl.core.network import Network, Passes
from lessvfl.core.plans import (
    Batches,
    FitPlan,
    Rows,
    SelectPlan,
    ShadowPlan,
    TrainPlan,
    parts,
    sample_rows,
    take,
)
from lessvfl.core.prox import GroupLasso, per_replica
from lessvfl.core.solve import (
    fill_optimizer,
    fit_held_out,
    in_order,
    optimizer_of,
    optimizer_step,
    optimizer_tensors,
)
from lessvfl.errors import ProtocolError
from lessvfl.terms import Observer, PartyId, Stage
from lessvfl.wire import messages

Empty = Literal["constant", "frozen"]
LAMBDA_ROWS = 1 << 16  # that tell which lambda removes every feature


@dataclass(frozen=True)
class Outcome:
    """What one replica of a party ends with."""

    net: Network  # R = 1, cut to its own slots and outputs
    kept: tuple[bool, ...]  # of every feature
    importance: tuple[float, ...]  # norm of every feature's input weights
    slots: tuple[bool, ...]  # kept places of the network it started with
    outputs: tuple[bool, ...]
    constant: Tensor | None  # (E_m,) of a party that kept nothing
    frozen: bool  # it kept nothing and `net` is the pre-trained one
    selection: dict[str, Any] | None = None  # how features were chosen by shadows


@dataclass(frozen=True)
class Whole:
    """A party as it was before it removed anything."""

    net: Network
    X_train: Tensor
    X_test: Tensor


@dataclass
class Training:
    """What changes between two steps of joint training."""

    plan: TrainPlan
    passes: Passes  # of the network
    optimizer: Optimizer
    batches: Batches
    steps: Iterator[tuple[int, Rows]]
    penalty: GroupLasso | None
    shrink: Callable[[], object] | None  # the proximal step of that penalty
    n_steps: int
    remembered_from: int  # the step
    end: TrainingEnd | None  # where the server watches rows held out
    step: int = 0  # steps done
    rows: Rows | None = None  # of the batch whose gradient is awaited
    h: Tensor | None = None  # the embedding whose gradient is awaited


def cut_columns(X: Tensor, used: Tensor) -> Tensor:
    """Return the columns of a table (S, N, columns) that are in use, in memory."""
    return X[:, :, used]


@dataclass(frozen=True)
class Holding:
    """What a party brings into a run; what it selects later is not in here."""

    X_train: Tensor  # (S, N, columns); S = 1 (the same for all replicas) or S = R
    X_test: Tensor
    groups: Tensor  # (columns,), the feature of every column
    must_keep: Sequence[bool] = ()  # own features a selection by shadows may not remove
    cut: Callable[[Tensor, Tensor], Tensor] = cut_columns  # for tables on disk, theirs
    blocks: Tensor | None = None  # of training rows (S, N), int64; None: all are alone


class Party:
    """A party that answers the server's requests.

    `empty` says what a party that kept no feature contributes: a constant it sends
    once, or, as in the released code, its pre-trained embeddings, sent on and never
    trained. `observe` is told of stage 3's epochs. `seeds` are shared with everybody
    (the order of rows), `private` seeds are of the party's own streams: shadows,
    batches of its own, rounding; the shared ones unless given.
    """

    def __init__(
        self,
        name: PartyId,
        net: Network,
        holding: Holding,
        seeds: tuple[int, ...],
        empty: Empty = "constant",
        observe: Observer = lambda event: None,
        private: tuple[int, ...] | None = None,
    ) -> None:
        self.name = name
        self.net = net
        self.X_train, self.X_test = holding.X_train, holding.X_test
        self.seeds = seeds
        self.empty = empty
        self.observe = observe
        self._private = seeds if private is None else private
        self._holding = holding
        R = net.n_replicas
        device = self.X_train.device
        self._pool = _pool(net.column_slots, holding.groups)  # (slots,), group of each
        self._n_groups = int(self._pool.max()) + 1 if len(self._pool) else 0
        self._column_groups = self._pool[net.column_slots]  # (columns,)
        self._owner = _owner(self._column_groups, holding.groups)
        self.kept = torch.ones(R, len(self._owner), dtype=torch.bool, device=device)
        self._is_empty = torch.zeros(R, dtype=torch.bool, device=device)
        self._any_empty = False
        self._widths = (net.n_outputs,) * R
        self._constant = torch.zeros(R, net.n_outputs, device=device)
        self._frozen: dict[str, Tensor] = {}
        self._groups: Tensor | None = None  # (R, n_groups), after selection
        self._has_selected = False
        self._pretrained = net
        self._whole: Whole | None = None  # before the first of two looks
        self._before: list[Tensor] = []  # what the first look saw
        self._slots = torch.ones(R, len(self._pool), dtype=torch.bool, device=device)
        self._outputs = torch.ones(R, net.n_outputs, dtype=torch.bool, device=device)
        self._training: Training | None = None
        self._memory = Memory(len(holding.groups))
        self._selected: list[dict[str, Any]] = []  # how, of every replica
        self._decays = True  # its weights may; False: some were drawn anew

    @property
    def blocks(self) -> Tensor | None:
        """Return the blocks of its training rows, (S, N); None: all are alone."""
        return self._holding.blocks

    def handle(self, request: messages.Request) -> messages.Reply:
        """Answer one request."""
        match request:
            case messages.Describe():
                n_samples = self.X_train.shape[1]
                return messages.Description(self.name, n_samples, self.net.n_outputs)
            case messages.Begin(plan, done):
                return self._begin(plan, done)
            case messages.Descend():
                return self._descend(request)
            case messages.Embed():
                return self._embed(request)
            case messages.Select(components, plan):
                return self._select(components, plan)

    # ------------------------------------------------------------- Algorithm 2, party m

    @property
    def is_training(self) -> bool:
        """Tell whether a stage has begun whose steps are not all done."""
        training = self._training
        return training is not None and (training.step > 0 or training.rows is not None)

    def is_look(self, request: messages.Embed) -> bool:
        """Tell whether a request is for the rows held out of training, and due now."""
        training = self._training
        if training is None or training.end is None:
            return False
        batches, due = training.batches, training.end.is_due(training.step + 1)
        if not batches.n_held_out or not due:
            return False
        n_rows, bits = batches.held_out.shape[1], training.plan.bits
        asked = (request.stage, request.rows, request.n_rows, request.bits)
        return asked == ("train", "train", n_rows, bits)

    def _follow(self, training: Training, request: messages.Descend) -> None:
        """Refuse a stage, a rate or an end that the plan does not have."""
        plan, step = training.plan, training.step + 1
        if training.end is None:
            is_over = step == training.n_steps
            is_whole = math.isclose(request.rate, 1, rel_tol=ROUNDING)
            agrees = is_whole and (is_over or not request.last)
        else:
            watches = training.batches.n_held_out > 0
            agrees = training.end.agrees(step, request.rate, request.last, watches)
        if request.stage != plan.stage or not agrees:
            sentence = (
                f"Party '{self.name}' must be sent the rate of its plan, and its end "
                "where it is due. Got another."
            )
            raise ProtocolError(sentence, public=sentence)

    def _begin(self, plan: TrainPlan, done: int) -> messages.Reply:
        """Start a stage, or go on with one whose state was put back."""
        if done == 0:
            self._training = self._start(plan)
        training = self._training
        if (
            training is None
            or training.rows is not None  # the batch has gone out already
            or (training.plan, training.step) != (plan, done)
        ):
            raise ProtocolError(
                f"Party '{self.name}' must have {done} steps of this stage behind it "
                "to go on. Got another state."
            )
        self.net.train(True)
        return self._next_batch(training)

    def _start(self, plan: TrainPlan) -> Training:
        params = self.net.parameters()
        n_samples, blocks = self.X_train.shape[1], self._holding.blocks
        batches = plan.batches(n_samples, self.seeds, blocks)
        penalty = shrink = None
        if plan.lam is not None:
            w = self.net.input_weights
            lam = torch.tensor(plan.lam, dtype=w.dtype, device=w.device)
            step_size = torch.full_like(lam, plan.learning_rate)
            penalty = GroupLasso(lam, self._membership())
            shrink = functools.partial(penalty.prox, w, step_size)
        n_steps = batches.n_steps(plan.n_epochs)
        return Training(
            plan,
            self.net.passes(),
            optimizer_of(plan, params, n_samples, self._decays),
            batches,
            batches.steps(plan.n_epochs, self.X_train.device),
            penalty,
            shrink,
            n_steps,
            n_steps - batches.n_steps(plan.record),
            plan.end(n_steps),
        )

    def _next_batch(self, training: Training) -> messages.Reply:
        """Embed the next batch (line 5), or end the stage."""
        step = next(training.steps, None)
        if step is None:
            self._training = None
            self.net.train(False)
            if training.penalty is not None:
                self._remove(training.penalty.norms(self.net.input_weights) > 0)
            return self._done(training.plan.stage)
        _, rows = step
        training.rows = rows
        training.h = training.passes.forward(take(self.X_train, rows))
        h = self._with_empty(training.h, "train", rows)
        plan = training.plan
        block = self._block(h, plan.bits, plan.stage, training.step)
        return messages.Embedding(plan.stage, block, ahead=True)

    def _block(self, h: Tensor, bits: int, *name: str | int) -> messages.Block:
        mask = self.net.output_mask
        return messages.Block.in_bits(
            h, self._widths, bits, mask, self._private, "up", self.name, *name
        )

    def _descend(self, request: messages.Descend) -> messages.Reply:
        """Step along dL/dh (lines 11 and 12), then embed the next batch."""
        training, gradient = self._training, request.gradient.values
        if training is None or training.h is None or training.rows is None:
            raise ProtocolError(
                f"Party '{self.name}' must be asked for an embedding before it is sent "
                "a gradient. Got a gradient outside of training."
            )
        if gradient.shape != training.h.shape:
            raise ProtocolError(
                f"Party '{self.name}' must be sent a gradient as large as its "
                f"embedding. Got {tuple(gradient.shape)}."
            )
        self._follow(training, request)
        if self._any_empty:
            gradient = gradient * ~self._is_empty.view(-1, 1, 1)
        grads = training.passes.back(gradient)
        if training.step >= training.remembered_from:
            self._memory.add(training.rows, training.h, gradient)
        step, n_steps = training.step, training.n_steps
        training.plan.set_rate(training.optimizer, step, n_steps, request.rate)
        params = self.net.parameters()
        optimizer_step(training.optimizer, params, grads, training.shrink)
        training.step += 1
        if request.last:
            training.steps = iter(())
        return self._next_batch(training)

    # ------------------------------------------------------------- Algorithm 1, party m

    def _select(
        self,
        components: tuple[tuple[int, ...], ...] | None,
        plan: SelectPlan | ShadowPlan,
    ) -> messages.Reply:
        """Keep K_m, then select features on H_N alone (stage 3)."""
        if self._training is not None:
            sentence = (
                f"Party '{self.name}' selects when it has trained. Got a selection "
                "before the end of a stage."
            )
            raise ProtocolError(sentence, public=sentence)
        if components is not None:
            mask = torch.zeros(
                self.net.n_replicas, self.net.n_outputs, dtype=torch.bool
            )
            for replica, some in enumerate(components):
                mask[replica, list(some)] = True
            self._outputs = mask.to(self.X_train.device)
            self.net = self.net.narrow(outputs=self._outputs)
            self._widths = tuple(len(some) for some in components)
        if isinstance(plan, SelectPlan):
            self._freeze()
            self._remove(self._features_needed(plan))
        elif plan.stage == "select_again":
            self._look_again(plan)
        else:
            self._select_by_shadows(plan)
        return self._done(plan.stage)

    def _features_needed(self, plan: SelectPlan) -> Tensor:
        """Return what stage 3 of the paper keeps, (R, n_groups)."""
        X, who = self.X_train, f"party '{self.name}'"
        batches = plan.batches(X.shape[1], self._private, who)
        loss, groups = algorithm.matching_loss(self.net, X, plan), self._membership()
        if plan.relative:
            some = slice(0, min(X.shape[1], LAMBDA_ROWS))
            largest = algorithm.largest_lambda(self.net, loss, groups, some)
            lam = (largest * plan.weights(largest)).tolist()
            plan = replace(plan, lam=tuple(lam), lam_scale=1.0)
        return algorithm.select_features(
            self.net,
            loss,
            self.net.output_mask.sum(dim=1),
            groups,
            plan,
            in_order(batches, X.device),
            self.observe,
            who,
        )

    def _freeze(self) -> None:
        """Keep the pre-trained network and what it says, for a party left empty."""
        self._has_selected = True
        if self.empty == "frozen":
            self._pretrained = self.net.narrow()
            everything = slice(None)
            self._frozen = {
                which: self._forward(which, everything) for which in ("train", "test")
            }

    def _select_by_shadows(self, plan: ShadowPlan) -> None:
        """Keep what predicts the responses better than shadows do, then fit again."""
        seen = self._remembered()
        if plan.again:
            self._whole = Whole(self.net, self.X_train, self.X_test)
            self._before = seen
        choices = [
            self._look(self.X_train, seen, r, plan).choose()
            for r in range(len(self.seeds))
        ]
        self._has_selected = True
        self._selected = [choice.report(self._owner) for choice in choices]
        self._remove(torch.stack([choice.kept for choice in choices]))
        self._refit(seen, plan)

    def _look_again(self, plan: ShadowPlan) -> None:
        """Select once more, on responses of training; what went may come back."""
        whole = self._whole
        if whole is None:
            raise ProtocolError(
                f"Party '{self.name}' must have looked once to look again. "
                "Got a second look without a first."
            )
        before, seen, kept = self._before, self._remembered(), []
        for r in range(len(self.seeds)):
            looks = [self._look(whole.X_train, s, r, plan) for s in (before, seen)]
            choice = evidence.choose_again(*looks)
            kept.append(choice.kept)
            self._selected[r] = choice.report(self._owner)
        self.net = widen(self.net, whole.net, self._slots)
        self.X_train, self.X_test = whole.X_train, whole.X_test
        self._whole, self._before = None, []
        self._remove(torch.stack(kept))
        self._refit(seen, plan)

    def _refit(self, seen: Sequence[Tensor], plan: ShadowPlan) -> None:
        """Fit the network to what was remembered, on the features kept, alone.

        Small input weights make the network linear at its start, where a square or a
        product has no gradient. So where features act together it is also fitted from
        input weights of full scale, at length, and that fit stays unless it predicts
        the rows held out worse by more than a standard error. Strong weight decay
        would undo it in training, and ends.
        """
        if not plan.refit_epochs or not self.X_train.shape[2]:
            return
        fit = FitPlan(plan.refit_epochs)
        rows, h, gradient = (part[:, -fit.most_rows :] for part in seen)
        X, Z = take(self.X_train, rows), evidence.responses(h, gradient)
        Z = torch.lerp(h, Z, plan.refit_share)
        acts = torch.tensor([bool(how["pairs"]) for how in self._selected])
        redrawn = self.net.redrawn(self._private, self.name) if acts.any() else None
        own = (self._private, self._blocks_of(rows))
        loss = fit_held_out(self.net, X, Z, fit, *own)
        self._decays = True
        if redrawn is not None:
            gap = fit_held_out(redrawn, X, Z, fit.at_length(), *own) - loss
            error = gap.std(dim=1, correction=0) / math.sqrt(gap.shape[1])
            stays = acts.to(gap.device) & (gap.mean(dim=1) <= error)
            self._decays = not bool(stays.any())
            with torch.no_grad():
                both = zip(self.net.parameters(), redrawn.parameters(), strict=True)
                for param, new in both:
                    param.copy_(torch.where(per_replica(stays, param), new, param))

    def _blocks_of(self, rows: Tensor) -> Tensor | None:
        """Return the blocks of rows (R, n), None where every row is alone."""
        blocks = self._holding.blocks
        return None if blocks is None else take(blocks, rows)

    def _look(
        self, X: Tensor, seen: Sequence[Tensor], replica: int, plan: ShadowPlan
    ) -> evidence.Look:
        """Look at the rows that one replica remembers, all columns `X` (S, N, ...)."""
        last = evidence.latest(seen[0][replica])
        rows, h, gradient = (part[replica][last] for part in seen)
        pinned = torch.zeros(self._n_groups, dtype=torch.bool, device=X.device)
        blocks = self._blocks_of(seen[0])
        must = [i for i, must in enumerate(self._holding.must_keep) if must]
        pinned[self._owner[must]] = True
        at = evidence.Subject(
            rows,
            X[min(replica, X.shape[0] - 1), rows],
            evidence.standardised(h, gradient),
            self._column_groups,
            pinned,
            blocks=None if blocks is None else blocks[replica][last],
        )
        return evidence.Look(at, plan, (self._private[replica], self.name, plan.stage))

    def _remembered(self) -> list[Tensor]:
        """Return rows (R, n), their embeddings and gradients (R, n, E); forget them."""
        if not self._memory.tensors():
            raise ProtocolError(
                f"Party '{self.name}' must have gradients of training to select by. "
                "Got a selection without them."
            )
        rows, h, gradient = self._memory.take()
        if h.shape[2] > self.net.n_outputs:  # remembered before components went
            some = self._outputs.any(dim=0)
            h, gradient = h[:, :, some], gradient[:, :, some]
        mask = self.net.output_mask.unsqueeze(1)
        return [rows.to(h.device), h * mask, gradient * mask]

    # ---------------------------------------------------------------------------- state

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all that changes in a run: tensors by name, and plain values."""
        tensors = _named("net", self.net.parameters())
        values: dict[str, Any] = {
            "widths": list(self._widths),
            "has_selected": self._has_selected,
            "selected": self._selected,
            "looks_again": self._whole is not None,
            "decays": self._decays,
            "plan": None,
        }
        tensors["outputs"] = self._outputs.to(torch.uint8)
        tensors["constant"] = self._constant
        tensors |= _named("before", self._before)
        tensors |= _named("seen", self._memory.tensors())
        if self._frozen:
            tensors |= _named("pretrained", self._pretrained.parameters())
        if self._groups is not None:
            tensors["groups"] = self._groups.to(torch.uint8)
        training = self._training
        if training is not None:
            values["plan"] = asdict(training.plan)
            values["step"] = training.step
            tensors |= optimizer_tensors(training.optimizer)
            if training.end is not None:
                tensors["end"] = training.end.state
        return {name: t.detach() for name, t in tensors.items()}, values

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Take up a state as :meth:`state` gave it; this party must be a fresh one."""
        self._selected = list(values["selected"])
        self._decays = values["decays"]
        if values["has_selected"]:
            self._outputs = tensors["outputs"].bool()
            self._widths = tuple(values["widths"])
            if not bool(self._outputs.all()):
                self.net = self.net.narrow(outputs=self._outputs)
            if self.empty == "frozen":
                _fill(self.net.parameters(), tensors, "pretrained")
            self._freeze()
        if values["looks_again"]:
            self._whole = Whole(self.net, self.X_train, self.X_test)
        if "groups" in tensors:
            self._remove(tensors["groups"].bool())
        _fill(self.net.parameters(), tensors, "net")
        self._constant = tensors["constant"].clone()
        self._before = _numbered(tensors, "before")
        self._memory.restore(_numbered(tensors, "seen"))
        if values["plan"] is not None:
            lam = values["plan"]["lam"]
            own = {"lam": None if lam is None else tuple(lam)}
            training = self._start(TrainPlan(**{**values["plan"], **own}))
            fill_optimizer(training.optimizer, tensors)
            if training.end is not None:
                training.end.state.copy_(tensors["end"])
            training.step = values["step"]
            for _ in range(training.step):
                next(training.steps)
            self._training = training

    # -------------------------------------------------------------------- what it keeps

    def features_now(self) -> Tensor:
        """Return the features in use, (R, n_features), also during proximal steps.

        For the party's own eyes: no message carries it.
        """
        training = self._training
        if training is None or training.penalty is None:
            return self.kept
        with torch.no_grad():
            groups = training.penalty.norms(self.net.input_weights) > 0
            return groups[:, self._owner]

    def _remove(self, kept: Tensor) -> None:
        """Cut removed groups (R, n_groups) out of network and columns."""
        slots = kept[:, self._pool]  # (R, slots)
        columns = slots[:, self.net.column_slots]  # (R, columns)
        self.kept = kept[:, self._owner]
        self._slots = slots
        self._groups = kept
        self.net = self.net.narrow(slots=slots)
        used = columns.any(dim=0)
        self.X_train = self._holding.cut(self.X_train, used)
        self.X_test = self._holding.cut(self.X_test, used)
        self._is_empty = ~self.kept.any(dim=1) | ~self.net.output_mask.any(dim=1)
        self._any_empty = bool(self._is_empty.any())
        if self.empty == "constant" and self._any_empty:
            nothing = self.X_train.new_zeros(1, 1, self.X_train.shape[2])
            with torch.no_grad():
                self._constant = self.net(nothing).squeeze(1)

    def outcome(self, replica: int) -> Outcome:
        """Return what one replica ends with."""
        empty = bool(self._is_empty[replica])
        frozen = empty and bool(self._frozen)
        source = self._pretrained if frozen else self.net
        net = source.replica(replica)
        constant = None
        if empty and self.empty == "constant":
            constant = self._constant[replica, self.net.output_mask[replica]]
        what = f"The weights of the features of party '{self.name}'"
        everything = torch.ones_like(self._slots[replica])
        slots = everything if frozen else self._slots[replica]
        return Outcome(
            net,
            tuple(self.kept[replica].tolist()),
            tuple(finite(what, self._importance(replica)).tolist()),
            tuple(slots.tolist()),
            tuple(self._outputs[replica].tolist()),
            constant,
            frozen,
            self._selected[replica] if self._selected else None,
        )

    def _importance(self, replica: int) -> Tensor:
        """Return the norm of every feature's input weights, (n_features,)."""
        own = self.net.input_weights[replica : replica + 1]
        with torch.no_grad():
            norms = GroupLasso(torch.ones(1)).norms(own)[0].double()
        used = self._slots.any(dim=0)
        if len(norms) < len(used):  # the network was cut to the slots in use
            whole = norms.new_zeros(len(used))
            whole[used] = norms
            norms = whole
        groups = norms.new_zeros(self._n_groups)
        groups.index_add_(0, self._pool, (norms * self._slots[replica]).square())
        return groups.sqrt()[self._owner]

    def _done(self, stage: Stage) -> messages.Done:
        empty = tuple(bool(flag) for flag in self._is_empty)
        if self.empty == "frozen" or not any(empty):
            return messages.Done(stage, (False,) * len(empty))
        widths = tuple(n * flag for n, flag in zip(self._widths, empty, strict=True))
        return messages.Done(stage, empty, messages.Block(self._constant, widths))

    # ----------------------------------------------------------------------- embeddings

    def _forward(self, which: str, rows: Rows) -> Tensor:
        X = self.X_train if which == "train" else self.X_test
        with torch.no_grad():
            return self.net(take(X, rows))

    def _embed(self, request: messages.Embed) -> messages.Embedding:
        rows: Rows
        if request.n_rows is not None:
            rows = self._drawn(request, request.n_rows).to(self.X_train.device)
        else:
            rows = self.part_of(request)
        h = self._embed_rows(request.rows, rows)
        name = (request.stage, request.rows, *([request.part] if request.part else []))
        block = self._block(h, request.bits, *name)
        return messages.Embedding(request.stage, block)

    def _drawn(self, request: messages.Embed, n_rows: int) -> Tensor:
        """Return the rows that training leaves out, if it is these, or a sample."""
        if self._training is not None and self.is_look(request):
            return self._training.batches.held_out
        return sample_rows(self.X_train.shape[1], n_rows, self.seeds)

    def part_of(self, request: messages.Embed) -> slice:
        """Return the rows of the part that is asked for."""
        X = self.X_train if request.rows == "train" else self.X_test
        found = parts(X.shape[1])
        if not 0 <= request.part < len(found):
            sentence = (
                f"Party '{self.name}' must be asked for rows that it has. Got others."
            )
            raise ProtocolError(sentence, public=sentence)
        return found[request.part]

    def _embed_rows(self, which: Literal["train", "test"], rows: Rows) -> Tensor:
        self.net.train(False)
        h = self._with_empty(self._forward(which, rows), which, rows)
        self.net.train(self._training is not None)
        return h

    def _with_empty(self, h: Tensor, which: str, rows: Rows) -> Tensor:
        """Put in what the party contributes where a replica kept nothing."""
        if not self._any_empty:
            return h
        if self.empty == "frozen":
            if not self._frozen:
                return h
            other = take(self._frozen[which], rows)
        else:
            other = self._constant.unsqueeze(1)
        return torch.where(self._is_empty.view(-1, 1, 1), other, h)

    def _membership(self) -> Tensor | None:
        """Return which slot belongs to which group, None where each is its own."""
        if self._n_groups == len(self._pool):
            return None
        one_hot = torch.nn.functional.one_hot(self._pool, self._n_groups)
        return one_hot.to(self.X_train.dtype)


def _named(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{i}": tensor for i, tensor in enumerate(tensors)}


def _numbered(tensors: Mapping[str, Tensor], name: str) -> list[Tensor]:
    found = sorted(key for key in tensors if key.startswith(f"{name}."))
    return [tensors[key] for key in found]


def _fill(params: Sequence[Tensor], tensors: Mapping[str, Tensor], name: str) -> None:
    with torch.no_grad():
        for i, param in enumerate(params):
            param.copy_(tensors[f"{name}.{i}"])


def _owner(column_groups: Tensor, features: Tensor) -> Tensor:
    """Return the penalised group of every feature, by its first column."""
    found = dict(zip(features.tolist(), column_groups.tolist(), strict=True))
    owners = [found[feature] for feature in range(len(found))]
    return torch.tensor(owners, dtype=torch.long).to(features.device)


def _pool(column_slots: Tensor, groups: Tensor) -> Tensor:
    """Return the group of every slot: slots that share a feature belong together.

    A feature can take several slots (a one-hot category) and a slot several features (a
    channel of a convolution); both are then penalised and removed as one.
    """
    n_slots = int(column_slots.max()) + 1 if len(column_slots) else 0
    parent = list(range(n_slots))

    def root(slot: int) -> int:
        while parent[slot] != slot:
            slot = parent[slot]
        return slot

    first: dict[int, int] = {}
    for slot, feature in zip(column_slots.tolist(), groups.tolist(), strict=True):
        parent[root(slot)] = root(first.setdefault(feature, slot))
    roots = [root(slot) for slot in range(n_slots)]
    number = {r: i for i, r in enumerate(dict.fromkeys(roots))}
    return torch.tensor([number[r] for r in roots], dtype=torch.long).to(groups.device)
