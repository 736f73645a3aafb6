"""A party's selection by shadows, replica by replica, and the fits that follow it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lessvfl.core import evidence
from lessvfl.core.alike import Likeness
from lessvfl.core.features import FeatureMap
from lessvfl.core.keeper import by_number, numbered
from lessvfl.core.network import MLP, Network
from lessvfl.core.pieces import pieces_for_curves
from lessvfl.core.plans import FitPlan, ShadowPlan, take
from lessvfl.core.prox import per_replica
from lessvfl.core.responses import Memory, latest, responses, standardised
from lessvfl.core.solve import fit_held_out
from lessvfl.errors import ProtocolError
from lessvfl.terms import PartyId

Seen = Sequence[Tensor]  # what a memory has: rows (R, n), embeddings, gradients


@dataclass(frozen=True)
class ShadowSelector:
    """What selection passes of a party share."""

    party: PartyId
    seeds: tuple[int, ...]  # the party's own, one for each replica
    features: FeatureMap  # all of them
    must_keep: Sequence[bool]  # features
    blocks: Tensor | None  # of training rows (S, N); None: all are alone
    places: Tensor | None = None  # of training rows in the party's own file, (S, N)

    def over(
        self,
        X: Tensor,
        seen: Seen,
        replica: int,
        plan: ShadowPlan,
        alike: Likeness | None = None,
        looks: bool = True,
    ) -> evidence.SelectionPass:
        """Return a selection pass over the rows that one replica remembers.

        `alike` is how alike rows are by another pass, where that has seen it; unless
        this one `looks` itself, they are not otherwise.
        """
        last = latest(seen[0][replica])
        rows, *told = (part[replica][last] for part in seen)
        blocks = self.blocks_of(seen[0])
        places = None
        if self.places is not None and (looks or alike is not None):
            places = take(self.places, seen[0])
        subject = evidence.Subject(
            rows,
            X[min(replica, X.shape[0] - 1), rows],
            standardised(*told),
            self.features.column_groups,
            self.features.groups_of(self.must_keep),
            blocks=None if blocks is None else blocks[replica][last],
            places=None if places is None else places[replica][last],
            alike=alike,
        )
        name = (self.seeds[replica], self.party, plan.stage)
        return evidence.SelectionPass(subject, plan, name)

    def blocks_of(self, rows: Tensor) -> Tensor | None:
        """Return the blocks of rows (R, n), None where every row is alone."""
        return None if self.blocks is None else take(self.blocks, rows)


class ShadowSelection:
    """What a party remembers of training, and how it has selected by that."""

    def __init__(self, selector: ShadowSelector) -> None:
        self.selector = selector
        self.memory = Memory(len(selector.features.column_slots))
        self.before: Seen = []  # what the first of two passes saw
        self.reports: list[dict[str, Any]] = []  # how, of every replica
        self.decays = True  # weights may; False: some were drawn anew

    def recall(self, mask: Tensor, outputs: Tensor) -> Seen:
        """Return rows, embeddings and gradients, and forget them.

        `mask` says which outputs of the network each replica has now, `outputs` (R, E)
        which it has of those at the start.
        """
        if not self.memory.tensors():
            raise ProtocolError(
                f"Party '{self.selector.party}' must have gradients of training to "
                "select by. Got a selection without them."
            )
        rows, *told = self.memory.take()
        if told[0].shape[2] > mask.shape[1]:  # remembered before components went
            some = outputs.any(dim=0)
            told = [part[:, :, some] for part in told]
        mask = mask.unsqueeze(1)
        return [rows.to(mask.device), *(part * mask for part in told)]

    def select(self, X: Tensor, seen: Seen, plan: ShadowPlan) -> Tensor:
        """Return the groups to keep (R, n_groups), of all columns X (S, N, columns).

        The second time by the clearer of what was seen before and what was seen since.
        """
        owner, over = self.selector.features.feature_groups, self.selector.over
        kept, reports = [], []
        for r in range(len(self.selector.seeds)):
            told = self.reports[r]["alike"] if self.before else None
            now = over(X, seen, r, plan, None if told is None else Likeness(**told))
            if plan.stage == "select_again":
                before = over(X, self.before, r, plan, now.alike, looks=False)
                choice = evidence.choose_again(before, now)
            else:
                choice = now.choose()
            near = self.reports[r].get("near_copies") if self.before else None
            report = choice.report(owner) | {"near_copies": now.near_copies or near}
            kept.append(choice.kept)
            reports.append(report)
        self.before, self.reports = seen if plan.again else [], reports
        return torch.stack(kept)

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
        if not plan.refit_epochs or not X.shape[2]:
            return net
        party, seeds = self.selector.party, self.selector.seeds
        fit = FitPlan(plan.refit_epochs)
        rows, h, *more = (part[:, -fit.most_rows :] for part in seen)
        wanted, start = responses(h, *more), h - more[1] if more[1:] else h
        X, Z = take(X, rows), torch.lerp(start, wanted, plan.refit_share)
        own = (seeds, self.selector.blocks_of(rows))
        acts = torch.tensor([bool(how["pairs"]) for how in self.reports])
        redrawn = net.redrawn(seeds, party) if acts.any() else None
        loss = fit_held_out(net, X, Z, fit, *own)
        self.decays = True
        if redrawn is not None:
            gap = fit_held_out(redrawn, X, Z, fit.at_length(), *own) - loss
            error = gap.std(dim=1, correction=0) / math.sqrt(gap.shape[1])
            stays = acts.to(gap.device) & (gap.mean(dim=1) <= error)
            self.decays = not bool(stays.any())
            _replace_where(stays, net, redrawn)
        if plan.again or not isinstance(net, MLP):
            return net
        pieces = pieces_for_curves(X, Z, own[1])
        if pieces is None:
            return net
        drawn = net.curved(pieces)
        fresh = drawn.redrawn(seeds, party)
        loss = fit_held_out(drawn, X, Z, FitPlan(0), *own).mean(dim=1)
        near = fit_held_out(drawn, X, Z, fit, *own).mean(dim=1)
        far = fit_held_out(fresh, X, Z, fit.at_length(), *own).mean(dim=1)
        is_curved = pieces.flatten(1).any(dim=1)
        _replace_where(is_curved & (far < near), drawn, fresh)
        helps = torch.minimum(near, far) < loss
        return drawn if bool((is_curved & helps).any()) else net

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors by name, and plain values."""
        tensors = numbered("before", self.before)
        tensors |= numbered("seen", self.memory.tensors())
        return tensors, {
            "selected": self.reports,
            "looks_again": bool(self.before),
            "decays": self.decays,
        }

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self.before = by_number(tensors, "before")
        self.memory.restore(by_number(tensors, "seen"))
        self.reports = list(values["selected"])
        self.decays = values["decays"]


def _replace_where(stays: Tensor, net: Network, other: Network) -> None:
    """Put the values of another network into the replicas of a mask (R,)."""
    with torch.no_grad():
        for param, new in zip(net.parameters(), other.parameters(), strict=True):
            param.copy_(torch.where(per_replica(stays, param), new, param))
