"""Group sparsity, and use of rows outside the intersection: after VFLFS.

Feng, Expert Systems with Applications, 2022. Every party first trains its network
alone, as the encoder of an auto-encoder of its own columns, on all its rows: those in
common with other parties, and those that it has alone, which have no labels. The group
lasso on its input weights holds there, and in the joint training that follows, on the
rows in common (``group_lasso``); then training goes on with what is left.

A reconstruction: the loss of the paper is not known to us. Decided here: the decoder is
one linear layer from the embedding back to the columns, thrown away afterwards; its
loss is the squared error, a mean over rows and columns; a proximal step follows every
step of Adam, at the rate of joint training; no feature is removed before the joint
training, where labels may bring one back; and rows outside the intersection are encoded
by what was learnt on those in common, as in every method.

Lambdas were chosen on generated tables of 1,500 to 8,000 rows. A step of Adam moves the
weights of a column by about the learning rate times the root of the first layer's
width, 8 by default, at most, and the proximal step takes the learning rate times lambda
away: a feature stays if enough steps pull it the same way, and with a ``lam_party``
of 8 or more hardly any does.

Messages: a query without an array, which tells parties to begin, and an answer without
one; then those of ``group-lasso``. What a party has alone shows in its embeddings only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.losses import Labels
from lessvfl.core.network import MLP, Network
from lessvfl.core.plans import (
    Batches,
    PartyPlan,
    QueryPlan,
    RowOrder,
    Rows,
    TrainPlan,
    take,
)
from lessvfl.core.protocol import Holder, QueryArrays, Selected, expect
from lessvfl.core.solve import OPTIMIZERS, Watch
from lessvfl.core.training import PartyTraining, Training
from lessvfl.methods import group_lasso
from lessvfl.methods.base import Method, follow_plans
from lessvfl.settings import a_float, an_int, one_of, setting
from lessvfl.terms import Stage
from lessvfl.wire.parties import Parties

STAGE: Stage = "select_features"


@dataclass(frozen=True)
class Config(group_lasso.Config):
    """Settings of group sparsity with rows outside the intersection."""

    lam_party: float = setting(
        a_float(), 4.0, "weight of the parties' group lasso in joint training"
    )
    joint_epochs: float = setting(a_float(), 20, "epochs of joint proximal training")
    train_optimizer: str = setting(
        one_of(*OPTIMIZERS), "adamw", "optimiser of training after selection"
    )
    lam_own: float = setting(
        a_float(), 0.2, "weight of the group lasso where parties train alone"
    )
    own_epochs: int = setting(
        an_int(), 20, "epochs in which parties train alone; 0: group lasso"
    )
    own_rows: str = setting(
        one_of("all", "common"),
        "all",
        "rows that parties train alone on: all they have, or those in common",
    )

    def alone(self) -> TrainPlan:
        """Return how a party trains alone."""
        plan = self.plan(STAGE, self.own_epochs, self.lam_own)
        order: RowOrder = "shuffle" if self.row_order == "file" else self.row_order
        return dataclasses.replace(plan, optimizer="adam", decay=0.0, row_order=order)

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        alone = [QueryPlan(STAGE, 1, 0)] if self.own_epochs else []
        return (*alone, *super().plans(n_parties))


class AutoEncodingParty:
    """A party that trains its network alone, on all its rows."""

    def __init__(self, config: Config, holder: Holder) -> None:
        self.inputs, self.config = holder, config
        self._alone = holder.alone if config.own_rows == "all" else None
        self.losses: list[Tensor] = []  # of every epoch

    def answer(self, step: int, arrays: QueryArrays) -> Selected:
        """Train network and decoder alone, by proximal steps; keep all features."""
        expect(arrays)
        holder, plan, X = self.inputs, self.config.alone(), self.inputs.X
        net, party, seed = holder.net, holder.party, holder.private
        n_rows = len(X) + (0 if self._alone is None else len(self._alone))
        batches = Batches(
            n_rows, plan.batch_size, seed, (plan.stage, party), plan.row_order
        )
        membership = holder.features.membership(X.dtype)
        encoder = PartyTraining(plan, net, batches, False, membership)
        decoder_net = MLP.create(
            (net.n_outputs, X.shape[1]),
            "none",
            seed,
            f"{party}, decoder",
            dtype=X.dtype,
            device=X.device,
        )
        decoder = Training(plan, decoder_net, batches, False, inputs=True)
        watch = Watch(plan.stage, [f"party '{party}'"])
        net.train(True)
        losses: list[Tensor] = []
        for _, rows in encoder.batches_left:
            x = self._at(rows)
            gap = decoder.passes.forward(encoder.passes.forward(x)) - x
            *grads, down = decoder.passes.back(gap * (2 / gap.numel()))
            encoder.update(encoder.passes.back(down), 1.0, encoder.shrink)
            decoder.update(grads, 1.0)
            losses.append(gap.square().mean())
            watch.add(losses[-1].view(1))
            if len(losses) == batches.n_per_epoch:
                watch.check()
                self.losses.append(torch.stack(losses).mean(dim=0))
                losses.clear()
        net.train(False)
        return Selected(torch.ones_like(holder.features.groups))

    def _at(self, rows: Rows) -> Tensor:
        """Return rows to train on: those in common, then those that it has alone."""
        assert isinstance(rows, Tensor), "rows in random order"
        X, n_common = self.inputs.X, len(self.inputs.X)
        if self._alone is None:
            return take(X, rows)
        common = take(X, rows.clamp(max=n_common - 1))
        others = take(self._alone, (rows - n_common).clamp(min=0))
        return torch.where((rows < n_common).unsqueeze(1), common, others)


def train_alone(
    parties: Parties, fusion: Network, labels: Labels, config: Config
) -> None:
    """Have every party train alone."""
    parties.query_last(STAGE, 0, dict.fromkeys(parties.names, ()))


METHOD = Method(
    "vflfs",
    "group lasso, started by auto-encoders of all rows that a party has",
    "after Feng, Expert Systems with Applications, 2022 (VFLFS)",
    Config,
    follow_plans(train_alone),
    protocol=AutoEncodingParty,
    uses_alone=True,
)
