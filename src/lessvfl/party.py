"""One party: its columns, its network, ``handle(request) -> reply``.

A party never sends columns, weights or its feature mask. What it does after a request
is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lessvfl import algorithm
from lessvfl.core import evidence
from lessvfl.core.lifted import widen
from lessvfl.core.network import Network
from lessvfl.core.plans import (
    FitPlan,
    Rows,
    SelectPlan,
    ShadowPlan,
    TrainPlan,
    sample_rows,
    take,
)
from lessvfl.core.prox import GroupLasso
from lessvfl.core.solve import OPTIMIZERS, gradients
from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.terms import Observer, PartyId, Stage
from lessvfl.wire.messages import (
    Begin,
    Block,
    Descend,
    Describe,
    Description,
    Done,
    Embed,
    Embedding,
    Reply,
    Request,
    Select,
)

Empty = Literal["constant", "frozen"]
STABLE = 0.9  # of the features above the shadows, two checks in a row
MOST_COMPARED = 4096  # rows on which candidates of a second look are compared


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


@dataclass(frozen=True)
class Check:
    """What a party found when it last looked whether its selection still changes."""

    step: int
    above: Tensor  # (R, n_groups), what was stronger than any shadow
    stable: tuple[bool, ...]


@dataclass
class Training:
    """What changes between two steps of joint training."""

    plan: TrainPlan
    optimizer: torch.optim.Optimizer
    steps: Iterator[tuple[int, Rows]]
    penalty: GroupLasso | None
    step_size: Tensor
    n_steps: int
    remembered_from: int  # the step
    step: int = 0  # steps done
    rows: Rows | None = None  # of the batch whose gradient is awaited
    h: Tensor | None = None  # the embedding whose gradient is awaited


class Party:
    """A party that answers the server's requests.

    Parameters
    ----------
    name : str
        The party's name.
    net : Network
        Maps (S, n, columns) to (R, n, components).
    X_train, X_test : Tensor (S, N, columns)
        Its rows; S = 1 (the same for all replicas) or S = R.
    groups : Tensor (columns,)
        The feature of every column.
    seeds : tuple of int
        One a replica.
    empty : {"constant", "frozen"}
        What a party that kept no feature contributes: a constant it sends once, or, as
        in the released code, its pre-trained embeddings, sent on and never trained.
    observe : callable
        Told the end of every epoch of stage 3.
    tell_empty : bool
        Whether a party that kept nothing may say so and be silent from then on;
        otherwise it goes on sending its constant.
    X_more : Tensor (S, n, columns), optional
        Rows that the others lack: stage 3 is the party's own and may use them.
    n_shadows : int
        How many of the features, the last ones, are shadows (``core/evidence.py``);
        they are gone after selection, and not among the features it tells of.
    must_keep : sequence of bool
        Which of its own features a selection by shadows may not remove.
    """

    def __init__(
        self,
        name: PartyId,
        net: Network,
        tables: tuple[Tensor, Tensor],
        groups: Tensor,
        seeds: tuple[int, ...],
        empty: Empty = "constant",
        observe: Observer = lambda event: None,
        tell_empty: bool = True,
        X_more: Tensor | None = None,
        n_shadows: int = 0,
        must_keep: Sequence[bool] = (),
    ) -> None:
        if n_shadows and (empty == "frozen" or not _is_plain(net)):
            raise ConfigError(
                f"Shadows need a network of party '{name}' that takes every column by "
                "itself, and empty_party=constant. Got another; selector=network does "
                "without shadows."
            )
        self._n_shadows = n_shadows
        self._must_keep = must_keep
        self._selected: list[dict[str, Any]] = []  # how, one a replica
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []  # rows, h and dL/dh
        self.tell_empty = tell_empty
        self.X_more = X_more
        self.name = name
        self.net = net
        self.X_train, self.X_test = tables
        self.seeds = seeds
        self.empty = empty
        self.observe = observe
        R = net.n_replicas
        device = self.X_train.device
        self._pool = _pool(net.column_slots, groups)  # (slots,), group of each slot
        self._n_groups = int(self._pool.max()) + 1 if len(self._pool) else 0
        owner = _owner(self._pool[net.column_slots], groups)
        self._owner = owner[: len(owner) - n_shadows]  # (n_features,)
        self.kept = torch.ones(R, len(self._owner), dtype=torch.bool, device=device)
        self._still = torch.zeros(R, dtype=torch.bool, device=device)
        self._any_still = False
        self._widths = (net.n_outputs,) * R
        self._constant = torch.zeros(R, net.n_outputs, device=device)
        self._frozen: dict[str, Tensor] = {}
        self._groups: Tensor | None = None  # (R, n_groups), after selection
        self._has_selected = False
        self._pretrained = net
        self._check: Check | None = None
        self._whole: Whole | None = None  # before the first of two looks
        self._slots = torch.ones(R, len(self._pool), dtype=torch.bool, device=device)
        self._outputs = torch.ones(R, net.n_outputs, dtype=torch.bool, device=device)
        self._training: Training | None = None

    def handle(self, request: Request) -> Reply:
        """Answer one request."""
        match request:
            case Describe():
                n_samples = self.X_train.shape[1]
                return Description(self.name, n_samples, self.net.n_outputs)
            case Begin(plan, done):
                return self._begin(plan, done)
            case Descend(_, gradient, last):
                return self._descend(gradient.values, last)
            case Embed():
                return self._embed(request)
            case Select(components, plan):
                return self._select(components, plan)

    # ------------------------------------------------------------- Algorithm 2, party m

    def _begin(self, plan: TrainPlan, done: int) -> Reply:
        """Start a stage, or go on with one whose state was put back."""
        if done == 0:
            self._training = self._start(plan)
        training = self._training
        if training is None or (training.plan, training.step) != (plan, done):
            raise ProtocolError(
                f"Party '{self.name}' must have {done} steps of this stage behind it "
                "to go on. Got another state."
            )
        self.net.train(True)
        return self._next_batch(training)

    def _start(self, plan: TrainPlan) -> Training:
        params = self.net.parameters()
        batches = plan.batches(self.X_train.shape[1], self.seeds)
        step_size = torch.tensor([plan.learning_rate], dtype=self.X_train.dtype)
        penalty = None
        if plan.lam is not None:
            lam = torch.tensor(plan.lam, dtype=self.X_train.dtype)
            penalty = GroupLasso(lam.to(self.X_train.device), self._membership())
        n_steps = batches.n_steps(plan.n_epochs)
        return Training(
            plan,
            OPTIMIZERS[plan.optimizer](params, plan.learning_rate),
            batches.steps(plan.n_epochs, self.X_train.device),
            penalty,
            step_size.to(self.X_train.device),
            n_steps,
            n_steps - batches.n_steps(plan.record),
        )

    def _next_batch(self, training: Training, last: bool = False) -> Reply:
        """Embed the next batch (line 5), or end the stage."""
        step = None if last else next(training.steps, None)
        if step is None:
            self._training = self._check = None
            self.net.train(False)
            if training.penalty is not None:
                self._remove(training.penalty.norms(self.net.input_weights) > 0)
            return self._done(training.plan.stage)
        _, rows = step
        training.rows = rows
        training.h = self.net(take(self.X_train, rows))
        h = self._with_still(training.h.detach(), "train", rows)
        plan = training.plan
        block = self._block(h, plan.bits, plan.stage, training.step)
        stable = None
        if plan.is_checked(training.step):
            self._check = self._look(training.step)
            stable = self._check.stable
        return Embedding(plan.stage, block, ahead=True, stable=stable)

    def _look(self, step: int) -> Check:
        """Tell for every replica whether what is above the shadows still changes."""
        if self._check is not None and self._check.step == step:
            return self._check  # asked again after a break
        rows, Z = self._responses()
        X, groups = take(self.X_train, rows), self._shadow_groups()
        above = torch.stack(
            [evidence.above(X[r], Z[r], groups) for r in range(len(self.seeds))]
        )
        stable = (False,) * len(above)
        if self._check is not None:
            before = self._check.above
            shared = (above & before).sum(dim=1) / (above | before).sum(dim=1)
            stable = tuple((shared >= STABLE).tolist())  # nothing found: not a number
        return Check(step, above, stable)

    def _block(self, h: Tensor, bits: int, *name: str | int) -> Block:
        mask = self.net.output_mask
        return Block.in_bits(
            h, self._widths, bits, mask, self.seeds, "up", self.name, *name
        )

    def _descend(self, gradient: Tensor, last: bool) -> Reply:
        """Step along dL/dh (lines 11 and 12), then embed the next batch."""
        training = self._training
        if training is None or training.h is None:
            raise ProtocolError(
                f"Party '{self.name}' must be asked for an embedding before it is sent "
                "a gradient. Got a gradient outside of training."
            )
        params = self.net.parameters()
        if self._any_still:
            gradient = gradient * ~self._still.view(-1, 1, 1)
        grads = gradients(training.h, params, gradient)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.contiguous()  # fused steps read memory in order
        plan = training.plan
        if training.step >= training.remembered_from:
            self._remember(training, gradient)
        plan.set_rate(training.optimizer, training.step, training.n_steps)
        training.optimizer.step()
        training.step += 1
        if training.penalty is not None:
            with torch.no_grad():
                training.penalty.prox(self.net.input_weights, training.step_size)
        return self._next_batch(training, last)

    def _remember(self, training: Training, gradient: Tensor) -> None:
        """Keep what a batch says of its rows; the gradient is one row's own again."""
        assert training.h is not None
        rows = training.rows
        if isinstance(rows, slice):
            rows = torch.arange(rows.start, rows.stop).unsqueeze(0)
        assert rows is not None
        rows = rows.expand(gradient.shape[0], -1)
        n_rows = gradient.shape[1]
        self._seen.append((rows, training.h.detach(), gradient * n_rows))

    # ------------------------------------------------------------- Algorithm 1, party m

    def _select(
        self,
        components: tuple[tuple[int, ...], ...] | None,
        plan: SelectPlan | ShadowPlan,
    ) -> Reply:
        """Keep K_m, then select features on H_N alone (stage 3)."""
        if components is not None:
            mask = torch.zeros(
                self.net.n_replicas, self.net.n_outputs, dtype=torch.bool
            )
            for replica, some in enumerate(components):
                mask[replica, list(some)] = True
            self._outputs = mask.to(self.X_train.device)
            self.net = self.net.narrow(outputs=self._outputs)
            self._widths = tuple(len(some) for some in components)
        if isinstance(plan, ShadowPlan):
            self._has_selected = True
            if plan.stage == "select_again":
                self._look_again(plan)
            else:
                self._select_by_shadows(plan)
            return self._done(plan.stage)
        self._freeze()
        kept = algorithm.select_features(
            self.net,
            self._own_rows(),
            self._membership(),
            plan,
            self.seeds,
            self.observe,
            f"party '{self.name}'",
        )
        self._remove(kept)
        return self._done(plan.stage)

    def _select_by_shadows(self, plan: ShadowPlan) -> None:
        """Keep what predicts the responses better than shadows do, then fit again."""
        rows, Z = self._responses()
        self._seen = []
        X, groups = take(self.X_train, rows), self._shadow_groups()
        if plan.again:
            self._whole = Whole(self.net, self.X_train, self.X_test)
        choices = [
            evidence.choose(X[r], Z[r][:, self.net.output_mask[r]], groups, plan, seed)
            for r, seed in enumerate(self.seeds)
        ]
        self._selected = [choice.report(self._owner) for choice in choices]
        self._remove(torch.stack([choice.kept for choice in choices]))
        if plan.refit_epochs and self.X_train.shape[2]:
            X = take(self.X_train, rows)
            evidence.refit(self.net, X, Z, FitPlan(plan.refit_epochs), self.seeds)

    def _look_again(self, plan: ShadowPlan) -> None:
        """Select once more, on responses of training; what went may come back."""
        whole, before = self._whole, self._groups
        if whole is None or before is None:
            raise ProtocolError(
                f"Party '{self.name}' must have looked once to look again. "
                "Got a second look without a first."
            )
        rows, Z = self._responses()
        self._seen = []
        X, groups = take(whole.X_train, rows), self._shadow_groups()
        net = widen(self.net, whole.net, self._slots)
        found = [
            evidence.look_again(
                X[r], Z[r][:, net.output_mask[r]], groups, plan, seed, before[r]
            )
            for r, seed in enumerate(self.seeds)
        ]
        candidates = torch.stack([some for _, some in found], dim=1)  # (3, R, n_groups)
        candidates &= ~self._still.unsqueeze(1)  # the server asks it no more
        losses, alone = self._compare(net, X, Z, candidates)
        kept = before.clone()
        for r, (choice, _) in enumerate(found):
            rule = evidence.smallest_as_good(
                losses[:, r].tolist(), float(alone[r]), plan.loss
            )
            kept[r] = candidates[rule, r]
            first = self._selected[r]["shadow_share"]
            share = (first + choice.shadow_share, choice.shadow_share, 0.0)[rule]
            choice = replace(
                choice, kept=kept[r], rule=evidence.RULES[rule], shadow_share=share
            )
            self._selected[r] = choice.report(self._owner)
        self.net, self.X_train, self.X_test = net, whole.X_train, whole.X_test
        self._whole = None
        self._remove(kept)

    def _compare(
        self, net: Network, X: Tensor, Z: Tensor, candidates: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return how badly candidates (3, R, n_groups) predict rows held out, (3, R).

        Every row is held out once. And how badly a constant does, (R,).
        """
        X, Z = X[:, :MOST_COMPARED], Z[:, :MOST_COMPARED]
        plan = FitPlan(n_epochs=12, batch_size=256, held_out=0.5, patience=3)
        losses = []
        for kept in candidates:
            slots = kept[:, self._pool]
            columns = slots[:, net.column_slots].any(dim=0)
            folds = [
                evidence.refit(
                    net.narrow(slots=slots), X[:, :, columns], Z, plan, self.seeds, fold
                )
                for fold in (0, 1)
            ]
            losses.append(torch.cat(folds, dim=1).mean(dim=1))
        spread = (Z - Z.mean(dim=1, keepdim=True)) * net.output_mask.unsqueeze(1)
        return torch.stack(losses), spread.square().mean(dim=(1, 2))

    def _responses(self) -> tuple[Tensor, Tensor]:
        """Return the rows that were remembered, (R, n), and their responses."""
        if not self._seen or not self._n_shadows:
            raise ProtocolError(
                f"Party '{self.name}' must have shadows and gradients of training to "
                "select by. Got a selection without them."
            )
        rows, h, gradient = (
            torch.cat(parts, dim=1) for parts in zip(*self._seen, strict=True)
        )
        Z = evidence.responses(h, gradient)
        if Z.shape[2] > self.net.n_outputs:  # remembered before components went
            Z = Z[:, :, self._outputs.any(dim=0)]
        return rows.to(self.X_train.device), Z

    def _shadow_groups(self) -> evidence.Groups:
        membership = self._membership()
        if membership is None:
            membership = torch.eye(self._n_groups).to(self.X_train)
        is_shadow = torch.ones(
            self._n_groups, dtype=torch.bool, device=self.X_train.device
        )
        is_shadow[self._owner] = False
        pinned = torch.zeros_like(is_shadow)
        must = [i for i, must in enumerate(self._must_keep) if must]
        pinned[self._owner[must]] = True
        return evidence.Groups(membership, is_shadow, pinned)

    def _own_rows(self) -> Tensor:
        """Return all rows to select features on."""
        if self.X_more is None:
            return self.X_train
        return torch.cat([self.X_train, self.X_more], dim=1)

    def _freeze(self) -> None:
        """Keep the pre-trained network and what it says, for a party left empty."""
        self._has_selected = True
        if self.empty == "frozen":
            self._pretrained = self.net.narrow()
            self._frozen = {which: self._forward(which) for which in ("train", "test")}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all that changes in a run: tensors by name, and plain values."""
        tensors = _named("net", self.net.parameters())
        values: dict[str, Any] = {
            "widths": list(self._widths),
            "has_selected": self._has_selected,
            "selected": self._selected,
            "looks_again": self._whole is not None,
            "plan": None,
        }
        tensors["outputs"] = self._outputs.to(torch.uint8)
        tensors["constant"] = self._constant
        if self._frozen:
            tensors |= _named("pretrained", self._pretrained.parameters())
        if self._groups is not None:
            tensors["groups"] = self._groups.to(torch.uint8)
        if self._check is not None:
            tensors["above"] = self._check.above.to(torch.uint8)
            values["check"] = [self._check.step, list(self._check.stable)]
        if self._seen:
            parts = [torch.cat(some, dim=1) for some in zip(*self._seen, strict=True)]
            tensors |= _named("seen", parts)
        training = self._training
        if training is not None:
            values["plan"] = asdict(training.plan)
            values["step"] = training.step
            tensors |= optimizer_tensors(training.optimizer)
        return {name: t.detach() for name, t in tensors.items()}, values

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Take up a state as :meth:`state` gave it; this party must be a fresh one."""
        self._selected = list(values["selected"])
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
        if "seen.0" in tensors:
            rows, h, gradient = (tensors[f"seen.{i}"] for i in range(3))
            self._seen = [(rows, h, gradient)]
        if "above" in tensors:
            step, stable = values["check"]
            self._check = Check(step, tensors["above"].bool(), tuple(stable))
        if values["plan"] is not None:
            lam = values["plan"]["lam"]
            own = {"lam": None if lam is None else tuple(lam)}
            training = self._start(TrainPlan(**{**values["plan"], **own}))
            fill_optimizer(training.optimizer, tensors)
            training.step = values["step"]
            for _ in range(training.step):
                next(training.steps)
            self._training = training

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
        self.X_train = self.X_train[:, :, used]
        self.X_test = self.X_test[:, :, used]
        self._still = ~self.kept.any(dim=1) | ~self.net.output_mask.any(dim=1)
        self._any_still = bool(self._still.any())
        if self.empty == "constant" and self._any_still:
            nothing = self.X_train.new_zeros(1, 1, self.X_train.shape[2])
            with torch.no_grad():
                self._constant = self.net(nothing).squeeze(1)

    def outcome(self, replica: int) -> Outcome:
        """Return what one replica ends with."""
        still = bool(self._still[replica])
        frozen = still and bool(self._frozen)
        source = self._pretrained if frozen else self.net
        net = source.replica(replica)
        constant = None
        if still and self.empty == "constant":
            constant = self._constant[replica, self.net.output_mask[replica]]
        everything = torch.ones_like(self._slots[replica])
        slots = everything if frozen else self._slots[replica]
        return Outcome(
            net,
            tuple(self.kept[replica].tolist()),
            tuple(self._importance(replica).tolist()),
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

    def _done(self, stage: Stage) -> Done:
        still = tuple(bool(flag) for flag in self._still)
        if self.empty == "frozen" or not self.tell_empty or not any(still):
            return Done(stage, (False,) * len(still))
        widths = tuple(n * flag for n, flag in zip(self._widths, still, strict=True))
        return Done(stage, still, Block(self._constant, widths))

    # ----------------------------------------------------------------------- embeddings

    def _forward(self, which: str, rows: Rows = slice(None)) -> Tensor:
        X = self.X_train if which == "train" else self.X_test
        with torch.no_grad():
            return self.net(take(X, rows))

    def _embed(self, request: Embed) -> Embedding:
        rows: Rows = slice(None)
        if request.n_rows is not None:
            n_samples = self.X_train.shape[1]
            drawn = sample_rows(n_samples, request.n_rows, self.seeds)
            rows = drawn.to(self.X_train.device)
        h = self._embed_rows(request.rows, rows)
        block = self._block(h, request.bits, request.stage, request.rows)
        return Embedding(request.stage, block)

    def _embed_rows(self, which: Literal["train", "test"], rows: Rows) -> Tensor:
        self.net.train(False)
        h = self._with_still(self._forward(which, rows), which, rows)
        self.net.train(self._training is not None)
        return h

    def _with_still(self, h: Tensor, which: str, rows: Rows) -> Tensor:
        """Put in what the party contributes where a replica kept nothing."""
        if not self._any_still:
            return h
        if self.empty == "frozen":
            if not self._frozen:
                return h
            other = take(self._frozen[which], rows)
        else:
            other = self._constant.unsqueeze(1)
        return torch.where(self._still.view(-1, 1, 1), other, h)

    def _membership(self) -> Tensor | None:
        """Return which slot belongs to which group, None where each is its own."""
        if self._n_groups == len(self._pool):
            return None
        one_hot = torch.nn.functional.one_hot(self._pool, self._n_groups)
        return one_hot.to(self.X_train.dtype)


def _is_plain(net: Network) -> bool:
    """Tell whether every column has a slot of its own."""
    slots = net.column_slots
    return torch.equal(slots, torch.arange(len(slots), device=slots.device))


def _named(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{i}": tensor for i, tensor in enumerate(tensors)}


def _fill(params: Sequence[Tensor], tensors: Mapping[str, Tensor], name: str) -> None:
    with torch.no_grad():
        for i, param in enumerate(params):
            param.copy_(tensors[f"{name}.{i}"])


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser, by the number of the parameter."""
    found = {}
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            found[f"optimizer.{number}.{name}"] = torch.as_tensor(value)
    return found


def fill_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Put the state of an optimiser back."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".")
            state.setdefault(int(number), {})[name] = value.clone()
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


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
