"""One party: its columns, its network, ``handle(request) -> reply``.

A party never sends columns, weights or its feature mask. What it does after a request
is decided here; joint predictions are in ``remote/predict/party.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lessvfl import algorithm
from lessvfl.core.empty import Empty, Substitute
from lessvfl.core.features import FeatureMap
from lessvfl.core.finite import finite
from lessvfl.core.gates import HALF_OPEN, Gates
from lessvfl.core.guard import EmbeddingGuard
from lessvfl.core.lifted import widen
from lessvfl.core.network import MLP, Network
from lessvfl.core.party_data import Outcome, PartyData, Whole
from lessvfl.core.plans import (
    Rows,
    SelectPlan,
    ShadowPlan,
    TrainPlan,
    parts,
    sample_rows,
    take,
)
from lessvfl.core.protocol import (
    Holder,
    NewProtocol,
    QueryStage,
    QueryState,
    Selected,
    ShownScores,
)
from lessvfl.core.solve import in_order
from lessvfl.core.training import PartyTraining, TrainingState
from lessvfl.core.trees.votes import is_grown, party_net_of
from lessvfl.errors import ProtocolError
from lessvfl.select.shadows import ShadowSelection, ShadowSelector, ShadowState
from lessvfl.terms import Observer, PartyId, Stage, plural
from lessvfl.wire import messages


@dataclass
class PartyState:
    """All that changes at a party in a run."""

    net: dict[str, Tensor]  # as it is cut now
    pretrained: dict[str, Tensor] | None  # of a substitute that is frozen
    outputs: Tensor  # (E,), components left of those at the start
    groups: Tensor | None  # (n_groups,), those kept; None: nothing was removed
    constant: Tensor  # (E,), in the place of an embedding
    shadows: ShadowState
    queries: QueryState
    training: TrainingState | None


class Party:
    """A party that answers the server's requests.

    `empty` says what a party that kept no feature contributes: a constant it sends
    once, or, as in the released code, its pre-trained embeddings, sent on and never
    trained. `observe` is told of stage 3's epochs. `seed` is shared with everybody (the
    order of rows), `private` is of the party's own streams: shadows, batches of its
    own, rounding; the shared one unless given. `guard` adds noise to
    whatever embeddings leave.
    """

    def __init__(
        self,
        name: PartyId,
        net: Network,
        data: PartyData,
        seed: int,
        empty: Empty = "constant",
        observe: Observer = lambda event: None,
        private: int | None = None,
        protocol: NewProtocol | None = None,
        guard: EmbeddingGuard | None = None,
    ) -> None:
        self.name = name
        self.net = net
        self.X_train, self.X_test = data.X_train, data.X_test
        self.seed = seed
        self.observe = observe
        self.features = FeatureMap.of(net, data.groups)
        self._data = data
        self._private = seed if private is None else private
        self._outputs = _everything(net)  # components left of those at the start
        self._substitute = Substitute(empty, net)
        self._training: PartyTraining | None = None
        selector = ShadowSelector(
            name,
            seed=self._private,
            features=self.features,
            must_keep=data.must_keep,
            blocks=data.blocks,
            places=data.places,
        )
        self._shadows = ShadowSelection(selector)
        self._whole: Whole | None = None  # before the first of two selections
        self._queries = QueryStage(protocol)
        self._guard = guard

    @property
    def _through(self) -> Network:
        """Return the network as rows pass it whose embeddings leave."""
        return self.net if self._guard is None else self._guard.around(self.net)

    @property
    def blocks(self) -> Tensor | None:
        """Return the blocks of its training rows, (N,); None: all are alone."""
        return self._data.blocks

    @property
    def kept(self) -> Tensor:
        """Return the features that are kept, (n_features,)."""
        return self.features.kept

    def handle(self, request: messages.Request) -> messages.Reply:
        """Answer one request."""
        match request:
            case messages.Describe():
                return messages.Description(
                    self.name, len(self.X_train), self.net.n_outputs
                )
            case messages.Begin(plan, done):
                return self._begin(plan, done)
            case messages.Descend():
                return self._descend(request)
            case messages.Embed():
                return self._embed(request)
            case messages.Select(components, plan):
                return self._select(components, plan)
            case messages.Query():
                return self._query(request)

    # ------------------------------------------------------------- Algorithm 2, party m

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

    def _start(self, plan: TrainPlan) -> PartyTraining:
        groups = self.features.membership(self.X_train.dtype)
        return PartyTraining(
            plan,
            self._through,
            batches=plan.batches(len(self.X_train), self.seed, self._data.blocks),
            decays=self._shadows.state.decays,
            membership=groups,
            gates=None if plan.gates is None else self._gates(plan, *plan.gates),
        )

    def _gates(self, plan: TrainPlan, sigma: float, lam: float) -> Gates:
        """Return gates on the features, half open unless a protocol said where."""
        start = self._queries.gate_start
        if start is None:
            start = torch.full(self.features.groups.shape, HALF_OPEN)
        return Gates(
            start.to(self.X_train, copy=True),
            self.features.column_groups,
            sigma=sigma,
            lam=lam,
            seed=self._private,
            name=("gates", plan.stage, self.name),
        )

    def _next_batch(self, training: PartyTraining) -> messages.Reply:
        """Embed the next batch (line 5), or end the stage."""
        plan, step = training.plan, next(training.batches_left, None)
        if step is None:
            self._training = None
            self.net.train(False)
            if training.penalty is not None:
                self._remove(training.penalty.norms(self.net.input_weights) > 0)
            if training.gates is not None:
                self._close(training.gates)
            return self._done(plan.stage)
        _, rows = step
        training.rows = rows
        training.h = training.passes.forward(take(self.X_train, rows))
        h = self._substitute.into(training.h, "train", rows)
        sent = self._released(h, plan.stage, training.step)
        training.sent = None if self._guard is None else sent
        block = self._block(sent, plan.bits, plan.stage, training.step)
        return messages.Embedding(plan.stage, block, ahead=True)

    def _close(self, gates: Gates) -> None:
        """Make open gates a part of the network's weights, and remove the others."""
        gates.fold(self.net.input_weights, self.net.column_slots)
        self._substitute.freeze(self._through, self.X_train, self.X_test)
        self._remove(gates.open)

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
        agrees = training.agrees(request.rate, request.last)
        if request.stage != training.plan.stage or not agrees:
            raise ProtocolError.told(
                f"Party '{self.name}' must be sent the rate of its plan, and its end "
                f"where it is due. Got a rate of {request.rate:g} in stage "
                f"'{request.stage}', {'the end' if request.last else 'no end'}."
            )
        gradient = self._substitute.without(gradient)
        if training.is_recorded:  # the gradient is that where the server saw the rows
            at, noise = training.h, None
            if self._guard is not None:
                assert training.sent is not None
                at, X = training.sent, take(self.X_train, training.rows)
                noise = at - self._guard.clear(training.h, self.net, X)
            self._shadows.state.memory.add(training.rows, at, gradient, noise)
        if self._guard is not None and not self._guard.inside:
            gradient = self._guard.back(gradient, training.h)
        grads = training.passes.back(gradient)
        training.update(grads, request.rate, training.shrink)
        training.step += 1
        if request.last:
            training.batches_left = iter(())
        return self._next_batch(training)

    @property
    def is_training(self) -> bool:
        """Tell whether a stage has begun whose steps are not all done."""
        training = self._training
        return training is not None and (training.step > 0 or training.rows is not None)

    def is_held_out_check(self, request: messages.Embed) -> bool:
        """Tell whether a request is for the rows held out of training, and due now."""
        training = self._training
        if training is None or not training.is_check_due:
            return False
        asked = (request.stage, request.rows, request.n_rows, request.bits)
        return asked == ("train", "train", *training.check_format)

    # ------------------------------------------------------------- Algorithm 1, party m

    def _select(
        self,
        components: tuple[int, ...] | None,
        plan: SelectPlan | ShadowPlan,
    ) -> messages.Reply:
        """Keep K_m, then select features on H_N alone (stage 3)."""
        if self._training is not None:
            raise ProtocolError.told(
                f"Party '{self.name}' selects when it has trained. Got a selection "
                "before the end of a stage."
            )
        if components is not None:
            self._outputs = torch.zeros_like(_everything(self.net))
            self._outputs[list(components)] = True
            self.net = self.net.narrow(outputs=self._outputs)
        if isinstance(plan, SelectPlan):
            self._substitute.freeze(self._through, self.X_train, self.X_test)
            self._remove(self._features_needed(plan))
        else:
            self._select_by_shadows(plan)
        return self._done(plan.stage)

    def _query(self, request: messages.Query) -> messages.Reply:
        """Take a step of the method's own protocol; at its end keep what it says."""
        asked = (request.step, request.arrays, self._holder)
        try:
            answer = None if self._training else self._queries.answer(*asked)
        except ValueError as error:
            raise ProtocolError.told(
                f"Party '{self.name}' must be sent what its method's protocol has at "
                f"step {request.step}. Got {error}."
            ) from None
        if answer is None:
            raise ProtocolError.told(
                f"Party '{self.name}' answers the queries of a stage of its method, "
                f"from step 0 on. Got step {request.step} outside of one."
            )
        if isinstance(answer, ShownScores):
            arrays = tuple(answer.arrays)
            return messages.QueryReply(request.stage, arrays, answer.n_values)
        if not isinstance(answer, Selected):
            return messages.QueryReply(request.stage, tuple(answer))
        if answer.net is not None:
            left = self.features.keep(answer.groups).columns[self.features.columns]
            self._replace(answer.net.narrow(left), answer.groups)
        elif not bool(answer.groups.all()):
            self._substitute.freeze(self._through, self.X_train, self.X_test)
            self._remove(answer.groups)
        return self._done(request.stage)

    def _replace(self, net: Network, groups: Tensor) -> None:
        """Go on with another network, cut to these groups (n_groups,)."""
        before = self.features.columns
        self.features, self.net = self.features.keep(groups), net
        self._outputs = _everything(net)
        self._substitute = Substitute(self._substitute.kind, net)
        self._cut_columns(self.features.columns[before])

    def _holder(self) -> Holder:
        return Holder(
            self.name,
            self.X_train,
            features=self.features,
            net=self.net,
            seed=self.seed,
            private=self._private,
            must_keep=self._data.must_keep,
            alone=self._data.alone,
            test=self.X_test,
        )

    def _features_needed(self, plan: SelectPlan) -> Tensor:
        """Return the groups that stage 3 of the paper keeps, (n_groups,)."""
        X, who = self.X_train, f"party '{self.name}'"
        groups = self.features.membership(X.dtype)
        batches = plan.batches(len(X), self._private, who)
        loss = algorithm.matching_loss(self.net, X, plan)
        if plan.relative:
            plan = algorithm.with_lambda(plan, self.net, loss, groups, len(X))
        return algorithm.select_features(
            self.net,
            loss,
            n_components=self.net.n_outputs,
            membership=groups,
            plan=plan,
            schedule=in_order(batches, X.device),
            observe=self.observe,
            who=who,
        )

    def _select_by_shadows(self, plan: ShadowPlan) -> None:
        """Keep what predicts the responses better than shadows do, then fit again.

        The second time all columns take part: what went may come back.
        """
        whole = self._whole if plan.stage == "select_again" else None
        if plan.stage == "select_again" and whole is None:
            raise ProtocolError(
                f"Party '{self.name}' must have looked once to look again. "
                "Got a second look without a first."
            )
        seen = self._shadows.recall(self._outputs)
        if whole is not None:
            self.net = widen(self.net, whole.net, self.features.slots)
            self.X_train, self.X_test = whole.X_train, whole.X_test
            self._whole = None
        elif plan.again:
            self._whole = Whole(self.net, self.X_train, self.X_test)
        self._remove(self._shadows.select(self.X_train, seen, plan))
        self.net = self._shadows.refit(self.net, self.X_train, seen, plan)

    def _remove(self, groups: Tensor) -> None:
        """Cut out of network and columns what is not among these (n_groups,)."""
        self.features = self.features.keep(groups)
        self.net = self.net.narrow(slots=self.features.slots)
        self._cut_columns(self.features.columns)

    def _cut_columns(self, used: Tensor) -> None:
        """Cut columns that are not used, and see whether any feature is left."""
        self.X_train = self._data.cut(self.X_train, used)
        self.X_test = self._data.cut(self.X_test, used)
        self._substitute.follow(self.net, self.kept, self.X_train)

    def _done(self, stage: Stage) -> messages.Done:
        if not self._substitute.is_silent:
            return messages.Done(stage)
        constant = messages.Block(self._substitute.constant)
        return messages.Done(stage, True, constant)

    # ----------------------------------------------------------------------- embeddings

    def _embed(self, request: messages.Embed) -> messages.Embedding:
        rows: Rows
        if request.n_rows is not None:
            rows = self._drawn(request, request.n_rows).to(self.X_train.device)
        else:
            rows = self.part_of(request)
        name = (request.stage, request.rows, *([request.part] if request.part else []))
        h = self._released(self._embed_rows(request.rows, rows), *name)
        return messages.Embedding(request.stage, self._block(h, request.bits, *name))

    def _drawn(self, request: messages.Embed, n_rows: int) -> Tensor:
        """Return the rows that training leaves out, if it is these, or a sample."""
        if self._training is not None and self.is_held_out_check(request):
            return self._training.batches.held_out
        return sample_rows(len(self.X_train), n_rows, self.seed)

    def part_of(self, request: messages.Embed) -> slice:
        """Return which training or test rows the numbered part of a request is."""
        X = self.X_train if request.rows == "train" else self.X_test
        slices = parts(len(X))
        if not 0 <= request.part < len(slices):
            raise ProtocolError.told(
                f"Party '{self.name}' must be asked for rows that it has, in "
                f"{plural(len(slices), 'part')}. Got part {request.part}."
            )
        return slices[request.part]

    def _embed_rows(self, which: Literal["train", "test"], rows: Rows) -> Tensor:
        X = self.X_train if which == "train" else self.X_test
        self.net.train(False)
        gates = None if self._training is None else self._training.gates
        X = take(X, rows)
        X = X if gates is None else X * gates.values
        with torch.no_grad():
            h = self._substitute.into(self._through(X), which, rows)
        self.net.train(self._training is not None)
        return h

    def _released(self, h: Tensor, *name: str | int) -> Tensor:
        """Return embeddings as they may leave."""
        if self._guard is None or self._guard.inside:
            return h
        return self._guard.release(h, *name)

    def _block(self, h: Tensor, bits: int, *name: str | int) -> messages.Block:
        return messages.Block.in_bits(h, bits, self._private, "up", self.name, *name)

    # -------------------------------------------------------------------- what it keeps

    def features_now(self) -> Tensor:
        """Return the features in use, (n_features,), also during proximal steps.

        For the party's own eyes: no message carries it.
        """
        groups = None
        if self._training is not None:
            groups = self._training.groups_in_use(self.net.input_weights)
        return self.kept if groups is None else self.features.of_groups(groups)

    def outcome(self) -> Outcome:
        """Return what the party ends the run with."""
        net, slots, constant = self._substitute.at_the_end(
            self.net, self.features.slots
        )
        importance = finite(
            f"The weights of the features of party '{self.name}'",
            self.features.importance(self.net),
        )
        return Outcome(
            net,
            kept=tuple(self.kept.tolist()),
            importance=tuple(importance.tolist()),
            slots=tuple(slots.tolist()),
            outputs=tuple(self._outputs.tolist()),
            constant=constant,
            frozen=net is self._substitute.pretrained,
            selection=self._shadows.state.report,
            rating=self._queries.rating,
        )

    # ---------------------------------------------------------------------------- state

    @property
    def state(self) -> PartyState:
        """Return all that changes in a run."""
        pretrained = self._substitute.pretrained
        return PartyState(
            net=self.net.state(),
            pretrained=None if pretrained is None else pretrained.state(),
            outputs=self._outputs,
            groups=self.features.groups if self.features.has_removed else None,
            constant=self._substitute.constant,
            shadows=self._shadows.state,
            queries=self._queries.state,
            training=None if self._training is None else self._training.state,
        )

    def resume(self, state: PartyState) -> None:
        """Go on with what :attr:`state` was; this party must be a fresh one."""
        self._shadows.state = state.shadows
        if is_grown(state.net):
            assert state.groups is not None
            self._replace(party_net_of(state.net), state.groups)
        else:
            self._narrow(state)
        self._substitute.constant = state.constant
        self._queries.resume(state.queries, self._holder)
        if state.training is not None:
            self._training = self._start(state.training.plan)
            self._training.resume(state.training)

    def _narrow(self, state: PartyState) -> None:
        """Cut the network to what is left of it, with the weights that it had."""
        self._outputs = state.outputs
        if not bool(self._outputs.all()):
            self.net = self.net.narrow(outputs=self._outputs)
        if state.pretrained is not None:
            self.net.load_state(state.pretrained)
            self._substitute.freeze(self._through, self.X_train, self.X_test)
        if state.shadows.before:  # it looks again
            self._whole = Whole(self.net, self.X_train, self.X_test)
        if state.groups is not None:
            self._remove(state.groups)
        if "pieces" in state.net and isinstance(self.net, MLP):
            self.net = self.net.curved(state.net["pieces"])
        self.net.load_state(state.net)


def _everything(net: Network) -> Tensor:
    """Return that all components of a network are there, (n_outputs,)."""
    device = net.input_weights.device
    return torch.ones(net.n_outputs, dtype=torch.bool, device=device)
