"""One party: its columns, its network, ``handle(request) -> reply``.

A party never sends columns, weights or its feature mask. What it does after a request
is decided here; joint predictions are in ``remote/predict/party.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl import algorithm
from lessvfl.core import plans
from lessvfl.core.finite import finite
from lessvfl.core.guard import EmbeddingGuard
from lessvfl.core.network import Network
from lessvfl.core.party_data import Outcome, PartyData
from lessvfl.core.party_model import Empty, ModelState, PartyModel
from lessvfl.core.plans import Batches, Rows, SelectPlan, TrainPlan
from lessvfl.core.protocol import NewProtocol, QueryStage, QueryState, Selected
from lessvfl.core.solve import in_order
from lessvfl.core.training import PartyTraining, TrainingState
from lessvfl.errors import ProtocolError
from lessvfl.select.shadows import ShadowSelection, ShadowState
from lessvfl.terms import Observer, PartyId, Stage, plural
from lessvfl.wire import messages


@dataclass
class PartyState:
    """All that changes at a party in a run."""

    model: ModelState
    shadows: ShadowState
    queries: QueryState
    training: TrainingState | None  # of the stage at hand


class Party:
    """A party that answers the server's requests.

    `empty` says what a party that kept no feature contributes: a constant it sends
    once, or, as in the released code, its pre-trained embeddings, sent on and never
    trained. `observe` is told of stage 3's epochs. `seed` is shared with everybody (the
    order of rows), `private` is of the party's own streams: shadows, batches of its
    own, rounding; the shared one unless given. `protocol` is its side of the method's
    own queries, and `guard` adds noise to whatever embeddings leave.
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
        self.seed = seed
        self.observe = observe
        self.model = PartyModel(net, data, empty, guard)
        self._data = data
        self._private = seed if private is None else private
        self._training: PartyTraining | None = None
        self._shadows = ShadowSelection(name, self._private, self.model.features, data)
        self._queries = QueryStage(
            protocol, name, self.model, data, seed=seed, private=self._private
        )

    @property
    def net(self) -> Network:
        """Return its network, as it is cut now."""
        return self.model.net

    @property
    def kept(self) -> Tensor:
        """Return the features that are kept, (n_features,)."""
        return self.model.features.kept

    def handle(self, request: messages.Request) -> messages.Reply:
        """Answer one request of the server; ProtocolError where it is not due."""
        match request:
            case messages.Describe():
                return messages.Description(
                    self.name, len(self.model.X_train), self.net.n_outputs
                )
            case messages.Begin(plan, done):
                return self._begin(plan, done)
            case messages.Descend():
                return self._descend(request)
            case messages.Embed():
                return self._embed(request)
            case messages.Select():
                return self._select(request)
            case messages.Query():
                return self._query(request)

    # ------------------------------------------------------------- Algorithm 2, party m

    def batches(self, plan: TrainPlan) -> Batches:
        """Return the mini-batches of a stage, which all sides derive alike."""
        return plan.batches(len(self.model.X_train), self.seed, self._data.blocks)

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
        return PartyTraining(
            plan,
            self.model.through,
            batches=self.batches(plan),
            decays=self._shadows.state.decays,
            membership=self.model.features.membership(self.model.X_train.dtype),
            gates=self._queries.gates(plan),
        )

    def _next_batch(self, training: PartyTraining) -> messages.Reply:
        """Embed the next batch (line 5), or end the stage."""
        plan, model = training.plan, self.model
        step = next(training.batches_left, None)
        if step is None:
            self._training = None
            model.net.train(False)
            kept = training.groups_in_use(model.net.input_weights)
            if training.gates is not None:
                training.gates.fold(model.net.input_weights, model.net.column_slots)
                model.freeze()
            if kept is not None:
                model.remove(kept)
            return self._done(plan.stage)
        _, training.rows = step
        rows = training.rows
        training.h = training.passes.forward(plans.take(model.X_train, rows))
        h = model.into(training.h, "train", rows)
        training.sent = model.released(h, plan.stage, training.step)
        block = self._block(training.sent, plan.bits, plan.stage, training.step)
        return messages.Embedding(plan.stage, block, ahead=True)

    def _descend(self, request: messages.Descend) -> messages.Reply:
        """Step along dL/dh (lines 11 and 12), then embed the next batch."""
        training, gradient = self._training, request.gradient.values
        if training is None or training.rows is None:
            raise ProtocolError(
                f"Party '{self.name}' must be asked for an embedding before it is sent "
                "a gradient. Got a gradient outside of training."
            )
        rows, h, sent = training.rows, training.h, training.sent
        if gradient.shape != h.shape:
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
        model = self.model
        if model.is_empty:  # something else stands in for its embedding
            gradient = torch.zeros_like(gradient)
        if training.is_recorded:  # the gradient is that where the server saw the rows
            noise = model.noise_in(h, sent, rows)
            at = h if noise is None else sent
            self._shadows.state.memory.add(rows, at, gradient, noise)
        grads = training.passes.back(model.gradient_of(gradient, h))
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

    def _select(self, request: messages.Select) -> messages.Reply:
        """Keep K_m, then select features on H_N alone (stage 3)."""
        if self._training is not None:
            raise ProtocolError.told(
                f"Party '{self.name}' selects when it has trained. Got a selection "
                "before the end of a stage."
            )
        if request.components is not None:
            self.model.keep_components(request.components)
        if isinstance(request.plan, SelectPlan):
            self.model.freeze()
            self.model.remove(self._features_needed(request.plan))
        else:
            self._shadows.look(self.model, request.plan)
        return self._done(request.stage)

    def _features_needed(self, plan: SelectPlan) -> Tensor:
        """Train by stage 3; return which groups it keeps, a mask (n_groups,)."""
        X, net, who = self.model.X_train, self.net, f"party '{self.name}'"
        membership = self.model.features.membership(X.dtype)
        loss = algorithm.matching_loss(net, X, plan)
        if plan.relative:
            plan = algorithm.with_lambda(plan, net, loss, membership, len(X))
        return algorithm.select_features(
            net,
            loss,
            n_components=net.n_outputs,
            membership=membership,
            plan=plan,
            schedule=in_order(plan.batches(len(X), self._private, who), X.device),
            observe=self.observe,
            who=who,
        )

    def _done(self, stage: Stage) -> messages.Done:
        if not self.model.is_silent:
            return messages.Done(stage)
        return messages.Done(stage, True, messages.Block(self.model.constant))

    def _query(self, request: messages.Query) -> messages.Reply:
        """Answer a query of the method's own protocol; at its end say it is done."""
        answer = self._queries.answer(
            request.step, request.arrays, is_due=self._training is None
        )
        if isinstance(answer, Selected):
            return self._done(request.stage)
        arrays = tuple(answer.arrays)
        return messages.QueryReply(request.stage, arrays, answer.n_values)

    # ----------------------------------------------------------------------- embeddings

    def _embed(self, request: messages.Embed) -> messages.Embedding:
        training, rows = self._training, self.rows_of(request)
        gates = None if training is None else training.gates
        self.net.train(False)
        h = self.model.embed(
            request.rows, rows, None if gates is None else gates.values
        )
        self.net.train(training is not None)
        name = (request.stage, request.rows, *([request.part] if request.part else []))
        block = self._block(self.model.released(h, *name), request.bits, *name)
        return messages.Embedding(request.stage, block)

    def rows_of(self, request: messages.Embed) -> Rows:
        """Return the training rows asked for: a part, those held out, or a sample."""
        training, X = self._training, self.model.X_train
        if request.n_rows is None:
            return self.part_of(request)
        if training is not None and self.is_held_out_check(request):
            return training.batches.held_out.to(X.device)
        return plans.sample_rows(len(X), request.n_rows, self.seed).to(X.device)

    def part_of(self, request: messages.Embed) -> slice:
        """Return which training or test rows the numbered part of a request is."""
        model = self.model
        slices = plans.parts(
            len(model.X_train if request.rows == "train" else model.X_test)
        )
        if not 0 <= request.part < len(slices):
            raise ProtocolError.told(
                f"Party '{self.name}' must be asked for rows that it has, in "
                f"{plural(len(slices), 'part')}. Got part {request.part}."
            )
        return slices[request.part]

    def _block(self, h: Tensor, bits: int, *name: str | int) -> messages.Block:
        return messages.Block.in_bits(h, bits, self._private, "up", self.name, *name)

    # ------------------------------------------------------------- what a run leaves

    def features_now(self) -> Tensor:
        """Return which features are in use, a mask (n_features,), also amid training.

        For the party's own eyes: no message carries it.
        """
        groups = None
        if self._training is not None:
            groups = self._training.groups_in_use(self.net.input_weights)
        return self.kept if groups is None else self.model.features.of_groups(groups)

    def outcome(self) -> Outcome:
        """Return network, features kept and their importance at the end of a run."""
        net, slots, constant = self.model.ending()
        importance = finite(
            f"The weights of the features of party '{self.name}'",
            self.model.features.importance(self.net),
        )
        return Outcome(
            net,
            kept=tuple(self.kept.tolist()),
            importance=tuple(importance.tolist()),
            slots=tuple(slots.tolist()),
            outputs=tuple(self.model.outputs.tolist()),
            constant=constant,
            frozen=net is self.model.pretrained,
            selection=self._shadows.state.report,
            rating=self._queries.rating,
        )

    @property
    def state(self) -> PartyState:
        """Return model, shadows, queries and training, all that changes in a run."""
        return PartyState(
            self.model.state,
            shadows=self._shadows.state,
            queries=self._queries.state,
            training=None if self._training is None else self._training.state,
        )

    def resume(self, state: PartyState) -> None:
        """Go on from a state that :attr:`state` gave; this party must be a new one."""
        self.model.resume(state.model)
        self._shadows.state = state.shadows
        self._queries.resume(state.queries)
        if state.training is not None:
            self._training = self._start(state.training.plan)
            self._training.resume(state.training)
