"""A party's selection by shadows, and the fits that follow it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lessvfl.core.features import FeatureMap
from lessvfl.core.network import MLP, Network
from lessvfl.core.party_data import PartyData
from lessvfl.core.party_model import PartyModel
from lessvfl.core.plans import FitPlan, ShadowPlan, take
from lessvfl.core.solve import fit_held_out
from lessvfl.errors import ProtocolError
from lessvfl.select import evidence
from lessvfl.select.alike import Likeness
from lessvfl.select.pieces import pieces_for_curves
from lessvfl.select.responses import Memory, latest, responses, standardised
from lessvfl.terms import PartyId

Seen = Sequence[Tensor]  # what a memory has: rows (n,), embeddings, gradients


@dataclass
class ShadowState:
    """What a party remembers of training, and how it has selected by that."""

    memory: Memory
    before: list[Tensor] = field(default_factory=list)  # what the first of two saw
    report: dict[str, Any] | None = None  # how it selected
    decays: bool = True  # weights may; False: some were drawn anew


class ShadowSelection:
    """A party's selection by shadows: `seed` is its own, `features` are all it has."""

    def __init__(
        self, party: PartyId, seed: int, features: FeatureMap, data: PartyData
    ) -> None:
        self._party, self._seed, self._features = party, seed, features
        self._must_keep, self._places = data.must_keep, data.places
        self._blocks = data.blocks
        self.state = ShadowState(Memory.of(len(features.column_slots)))

    def over(
        self,
        X: Tensor,
        seen: Seen,
        plan: ShadowPlan,
        alike: Likeness | None = None,
        looks: bool = True,
    ) -> evidence.SelectionPass:
        """Return a selection pass over remembered rows: `seen` has their numbers first.

        X (N, columns) are all training rows. `alike` is how alike neighbouring rows
        are, if another pass has found that; this pass `looks` for it itself, or not.
        """
        last = latest(seen[0])
        rows, *answers = (part[last] for part in seen)
        places = self._places if looks or alike is not None else None
        subject = evidence.Subject(
            rows,
            X[rows],
            standardised(*answers),
            self._features.column_groups,
            self._features.groups_of(self._must_keep),
            blocks=self._blocks_of(rows),
            places=None if places is None else take(places, rows),
            alike=alike,
        )
        name = (self._seed, self._party, plan.stage)
        return evidence.SelectionPass(subject, plan, name)

    def _blocks_of(self, rows: Tensor) -> Tensor | None:
        """Return the blocks of rows (n,), None where every row is alone."""
        return None if self._blocks is None else take(self._blocks, rows)

    def look(self, model: PartyModel, plan: ShadowPlan) -> None:
        """Keep what predicts the responses better than shadows do, then fit again.

        The second time all columns take part: what went may come back.
        """
        is_second, memory = plan.stage == "select_again", self.state.memory
        if is_second and not self.state.before:
            raise ProtocolError(
                f"Party '{self._party}' must have looked once to look again. "
                "Got a second look without a first."
            )
        if not memory.batches:
            raise ProtocolError(
                f"Party '{self._party}' must have gradients of training to "
                "select by. Got a selection without them."
            )
        rows, *answers = memory.take()
        if answers[0].shape[1] > int(model.outputs.sum()):  # before components went
            answers = [part[:, model.outputs] for part in answers]
        seen = [rows.to(model.outputs.device), *answers]
        if is_second:
            model.widen()
        model.remove(self.select(model.X_train, seen, plan))
        model.net = self.refit(model.net, model.X_train, seen, plan)

    def select(self, X: Tensor, seen: list[Tensor], plan: ShadowPlan) -> Tensor:
        """Return the groups to keep (n_groups,), of all columns X (N, columns).

        The second time by the clearer of what was seen before and what was seen since.
        """
        over, state = self.over, self.state
        before = state.report if state.before else None
        known = None if before is None or not before["alike"] else before["alike"]
        now = over(X, seen, plan, None if known is None else Likeness(**known))
        if plan.stage == "select_again":
            first = over(X, state.before, plan, now.alike, looks=False)
            choice = evidence.choose_again(first, now)
        else:
            choice = now.choose()
        near_copies = now.near_copies or (before and before.get("near_copies"))
        report = choice.report(self._features.feature_groups)
        state.report = report | {"near_copies": near_copies}
        state.before = seen if plan.again else []
        return choice.kept

    def refit(self, net: Network, X: Tensor, seen: Seen, plan: ShadowPlan) -> Network:
        """Return the network, fitted to what was remembered, on the features kept.

        Small input weights make the network linear at its start, where a square or a
        product has no gradient. So where features act together it is also fitted from
        input weights of full scale, at length, and that fit stays unless it predicts
        the rows held out worse by more than a standard error. Strong weight decay
        would undo it in training, and ends.

        After the last look, columns whose effect is a curve get pieces to draw it of,
        and keep them where rows held out are predicted better with them.
        """
        if not plan.refit_epochs or not X.shape[1]:
            return net
        assert self.state.report is not None, "it has selected"
        party, seed = self._party, self._seed
        fit = FitPlan(plan.refit_epochs)
        rows, h, *more = (part[-fit.most_rows :] for part in seen)
        wanted, start = responses(h, *more), h - more[1] if more[1:] else h
        X, Z = take(X, rows), torch.lerp(start, wanted, plan.refit_share)
        blocks = self._blocks_of(rows)
        redrawn = net.redrawn(seed, party) if self.state.report["pairs"] else None
        loss = fit_held_out(net, X, Z, fit, seed, blocks)
        self.state.decays = True
        if redrawn is not None:
            gap = fit_held_out(redrawn, X, Z, fit.at_length(), seed, blocks) - loss
            error = gap.std(correction=0) / math.sqrt(len(gap))
            if bool(gap.mean() <= error):
                net, self.state.decays = redrawn, False
        if plan.again or not isinstance(net, MLP):
            return net
        pieces = pieces_for_curves(X, Z, blocks)
        if pieces is None:
            return net
        drawn = net.curved(pieces)
        fresh = drawn.redrawn(seed, party)
        straight = fit_held_out(drawn, X, Z, FitPlan(0), seed, blocks).mean()
        near = fit_held_out(drawn, X, Z, fit, seed, blocks).mean()
        far = fit_held_out(fresh, X, Z, fit.at_length(), seed, blocks).mean()
        if not bool(torch.minimum(near, far) < straight):
            return net
        return fresh if bool(far < near) else drawn
