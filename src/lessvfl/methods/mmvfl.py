"""MMVFL: Feng and Yu, 2020 (arXiv 2001.11154), linear, for many parties and classes.

Party k has weights W_k and pseudo-labels Z_k, the server the common Z. Together they
minimise the sum over k of |X_k W_k - Z_k|^2 + beta |W_k|_{2,1} + zeta |Z_k - Z|^2 by
turns: a party solves for W_k and Z_k in closed form, the server averages. Features are
ranked by the norm of their rows of W_k.

Decided here, where the paper is silent or another case: the label holder has no
columns, so that its own Z is the weighted mean of Z and the labels (zeta and eta);
labels are centred indicators of classes, or standardised amounts; columns of one
feature share a norm; and how many features stay is decided by rows held out, by one
limit on norms for all parties. Then training goes on with the features kept.

===== ================================= ==============================================
step  down                              up, and what it reveals
===== ================================= ==============================================
0-... Z, a row for every row            Z_k: what the party's columns say of the class
                                        of every row; the penalty; the largest norm
last  the largest norm of all           predictions of rows held out at every limit
but 1
last  which limit                       nothing: the party selects
===== ================================= ==============================================

A party reads the labels off Z, and what the other parties predict, in sum; the server
learns each party's prediction of every row. Where neighbouring limits differ by one
feature it learns that column, times a number. With a Z of its choice a server sees the
space of a party's columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl import settings
from lessvfl.core import limits
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import PartyPlan, QueryPlan, take
from lessvfl.core.protocol import Holder, QueryArrays, Selected, expect
from lessvfl.core.views import View, targets
from lessvfl.methods.base import Joint, Method, follow_plans
from lessvfl.methods.held_out import choose_together
from lessvfl.terms import Stage
from lessvfl.wire.parties import Parties

STAGE: Stage = "select_features"


@dataclass(frozen=True)
class Config(Joint):
    """Settings of MMVFL."""

    beta: float = settings.setting(
        settings.a_float(open_low=True), 1.0, "weight of the norms of rows of weights"
    )
    zeta: float = settings.setting(
        settings.a_float(open_low=True), 1000.0, "weight of agreement on pseudo-labels"
    )
    eta: float = settings.setting(
        settings.a_float(open_low=True), 1000.0, "weight of agreement with the labels"
    )
    most_rounds: int = settings.setting(
        settings.an_int(1), 30, "the most rounds of alternating solutions"
    )
    tolerance: float = settings.setting(
        settings.a_float(), 1e-4, "relative change of the objective that ends them"
    )
    keep: int | None = settings.setting(
        settings.or_none(settings.an_int(1)),
        None,
        "features that each party keeps; none: by rows held out",
    )

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        n_values = self.most_rounds * limits.MOST_CLASSES + limits.N_VALUES
        solve = QueryPlan(STAGE, self.most_rounds + 2, n_values)
        return solve, *super().plans(n_parties)


class MmvflParty:
    """A party in the rounds of MMVFL."""

    def __init__(self, config: Config, own: Holder) -> None:
        self.own, self.config = own, config
        held, used = (
            r.to(own.X.device) for r in limits.split_rows(own.X.shape[1], own.seeds)
        )
        self._held = take(own.X, held).expand(own.n_replicas, -1, -1)
        groups, n_groups = own.features.column_groups, own.features.n_groups
        self._views = [
            View(X, groups, n_groups, config.beta, config.zeta)
            for X in take(own.X, used).expand(own.n_replicas, -1, -1)
        ]
        self._n_targets = -1  # columns of Z, the same in every round; -1: any
        self._largest: list[float] = []  # norm of any feature of any party; the end

    def answer(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Solve for W_k and Z_k; predict rows held out; or select by a limit."""
        R, n_used = self.own.n_replicas, self._views[0].X.shape[0]
        if self._largest:
            expect(arrays, (R, 1))
            return self._select(arrays[0][:, 0].tolist())
        if step == 0 or (len(arrays) == 1 and arrays[0].dim() == 3):
            expect(arrays, (R, n_used, self._n_targets))
            self._n_targets = arrays[0].shape[2]
            return self._solve(arrays[0])
        expect(arrays, (R, 1))
        self._largest = arrays[0][:, 0].tolist()
        return (self._predict(),)

    def _solve(self, Z: Tensor) -> QueryArrays:
        self._views = [v.solved(z) for v, z in zip(self._views, Z, strict=True)]
        own = [v.pseudo_labels(z) for v, z in zip(self._views, Z, strict=True)]
        norms = torch.stack([view.norms for view in self._views])
        penalty = self.config.beta * norms.sum(dim=1, keepdim=True)
        return torch.stack(own), penalty, norms.amax(dim=1, keepdim=True)

    def _predict(self) -> Tensor:
        """Return predictions of rows held out at every limit, (R, n, limits x C)."""
        found = []
        for X, view, most in zip(self._held, self._views, self._largest, strict=True):
            assert view.W is not None
            masks = limits.at_limits(view.norms, most)[:, view.groups]
            cut = [X @ (view.W * mask.unsqueeze(1)) for mask in masks]
            found.append(torch.cat(cut, dim=1))
        return torch.stack(found)

    def _select(self, places: list[int]) -> Selected:
        limits.check_places(places)
        must, keep = self.own.features.groups_of(self.own.must_keep), self.config.keep
        kept = [
            limits.above(view.norms, most, place)
            if keep is None
            else limits.best(view.norms, keep)
            for view, most, place in zip(
                self._views, self._largest, places, strict=True
            )
        ]
        return Selected(torch.stack(kept) | must)


def select(parties: Parties, fusion: Network, labels: Labels, config: Config) -> None:
    """Alternate until the objective stands still, then choose the limit."""
    dtype = fusion.input_weights.dtype
    Y = targets(labels, dtype)
    rows, used = (r.to(Y.device) for r in limits.split_rows(Y.shape[1], labels.seeds))
    own, held, names = take(Y, used), take(Y, rows), parties.names
    R, n_rows, C = own.shape
    one = (dtype, (R, 1))
    formats = dict.fromkeys(names, ((dtype, (R, n_rows, C)), one, one))
    Z, before, step, largest = own, torch.inf, 0, own.new_zeros(R, 1)
    for step in range(config.most_rounds):
        sent: dict[str, QueryArrays] = dict.fromkeys(names, (Z,))
        answers = parties.query(STAGE, step, sent, formats)
        own_z = (config.zeta * Z + config.eta * own) / (config.zeta + config.eta)
        found, penalties, norms = zip(*answers.values(), strict=True)
        now = _objective(torch.stack(found) - Z, own_z - own, config)
        now += float(torch.stack(penalties).sum())
        Z = torch.stack([own_z, *found]).mean(dim=0)
        largest = torch.stack(norms).amax(dim=0)
        if abs(before - now) <= config.tolerance * now:
            break
        before = now

    def losses(said: list[Tensor]) -> Tensor:
        mean = torch.stack(said).mean(dim=0)
        errors = mean.view(R, -1, limits.N_LIMITS, C) - held.unsqueeze(2)
        return errors.square().sum(dim=3)

    predictions = (dtype, (R, held.shape[1], limits.N_LIMITS * C))
    choose_together(parties, STAGE, step + 1, largest, predictions, losses)


def _objective(apart: Tensor, off: Tensor, config: Config) -> float:
    """Return the objective but for the penalty; `apart` are Z_k - Z, (parties, ...).

    As Z_k was made of them, X_k W_k - Z_k is zeta (Z_k - Z); `off` is how far the
    label holder's own are from the labels.
    """
    squares = (config.zeta**2 + config.zeta) * apart.square().sum()
    return float(squares + config.eta * off.square().sum())


METHOD = Method(
    "mmvfl",
    "sparse linear views that agree on pseudo-labels; then training on what is left",
    "after Feng and Yu, 2020 (arXiv 2001.11154)",
    Config,
    follow_plans(select),
    profiles=("default",),
    protocol=MmvflParty,
)
