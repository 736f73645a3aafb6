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

from lessvfl.core import limits
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.plans import PartyPlan, QueryPlan, take
from lessvfl.core.protocol import Holder, QueryArrays, Selected, expect
from lessvfl.core.views import View, targets
from lessvfl.methods.base import Joint, Method, follow_plans
from lessvfl.methods.held_out import choose_together
from lessvfl.settings import a_float, an_int, or_none, setting
from lessvfl.terms import Stage
from lessvfl.wire.parties import Parties

STAGE: Stage = "select_features"


@dataclass(frozen=True)
class Config(Joint):
    """Settings of MMVFL."""

    beta: float = setting(
        a_float(open_low=True), 1.0, "weight of the norms of rows of weights"
    )
    zeta: float = setting(
        a_float(open_low=True), 1000.0, "weight of agreement on pseudo-labels"
    )
    eta: float = setting(
        a_float(open_low=True), 1000.0, "weight of agreement with the labels"
    )
    most_rounds: int = setting(
        an_int(1), 30, "the most rounds of alternating solutions"
    )
    tolerance: float = setting(
        a_float(), 1e-4, "relative change of the objective that ends them"
    )
    keep: int | None = setting(
        or_none(an_int(1)),
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

    def __init__(self, config: Config, holder: Holder) -> None:
        self.inputs, self.config = holder, config
        X, features = holder.X, holder.features
        held, used = (
            rows.to(X.device) for rows in limits.split_rows(len(X), holder.seed)
        )
        self._held = take(X, held)
        self._view = View(
            take(X, used),
            features.column_groups,
            features.n_groups,
            config.beta,
            config.zeta,
        )
        self._n_targets = -1  # columns of Z, the same in every round; -1: any
        self._largest: float | None = None  # norm of any feature of any party; the end

    def answer(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Solve for W_k and Z_k; predict rows held out; or select by a limit."""
        config = self.config
        if self._largest is not None:  # which limit: the end
            expect(arrays, (1,))
            place, norms = limits.check_place(arrays[0].item()), self._view.norms
            kept = (
                limits.above(norms, self._largest, place)
                if config.keep is None
                else limits.best(norms, config.keep)
            )
            features = self.inputs.features
            return Selected(kept | features.groups_of(self.inputs.must_keep))
        if step == 0 or (len(arrays) == 1 and arrays[0].dim() == 2):  # Z
            expect(arrays, (len(self._view.X), self._n_targets))
            (Z,) = arrays
            self._n_targets = Z.shape[1]
            self._view = self._view.solved(Z)
            norms = self._view.norms
            penalty = config.beta * norms.sum(dim=0, keepdim=True)
            return self._view.pseudo_labels(Z), penalty, norms.amax(dim=0, keepdim=True)
        expect(arrays, (1,))  # the largest norm: predict at every limit
        self._largest = arrays[0].item()
        W = self._view.W
        assert W is not None
        by_limit = limits.at_limits(self._view.norms, self._largest)
        masks = by_limit[:, self._view.groups]
        cut = [self._held @ (W * mask.unsqueeze(1)) for mask in masks]
        return (torch.cat(cut, dim=1),)  # (n, limits x C)


def select(parties: Parties, fusion: Network, labels: Labels, config: Config) -> None:
    """Alternate until the objective stands still, then choose the limit."""
    dtype = fusion.input_weights.dtype
    Y = targets(labels, dtype)
    held, known = (
        take(Y, rows.to(Y.device)) for rows in limits.split_rows(len(Y), labels.seed)
    )
    names, one = parties.names, (dtype, (1,))
    formats = dict.fromkeys(names, ((dtype, tuple(known.shape)), one, one))
    Z, before, step, largest = known, torch.inf, 0, known.new_zeros(1)
    for step in range(config.most_rounds):
        sent: dict[str, QueryArrays] = dict.fromkeys(names, (Z,))
        answers = parties.query(STAGE, step, sent, formats)
        mean = (config.zeta * Z + config.eta * known) / (config.zeta + config.eta)
        pseudo_labels, penalties, norms = zip(*answers.values(), strict=True)
        # As Z_k was made of them, X_k W_k - Z_k is zeta (Z_k - Z).
        apart = (torch.stack(pseudo_labels) - Z).square().sum()
        squares = (config.zeta**2 + config.zeta) * apart
        now = float(squares + config.eta * (mean - known).square().sum())
        now += float(torch.stack(penalties).sum())
        Z = torch.stack([mean, *pseudo_labels]).mean(dim=0)
        largest = torch.stack(norms).amax(dim=0)
        if abs(before - now) <= config.tolerance * now:
            break
        before = now

    def losses(predictions: list[Tensor]) -> Tensor:
        mean = torch.stack(predictions).mean(dim=0)
        errors = mean.view(len(held), limits.N_LIMITS, -1) - held.unsqueeze(1)
        return errors.square().sum(dim=2)

    predictions = (dtype, (len(held), limits.N_LIMITS * held.shape[1]))
    choose_together(parties, STAGE, step + 1, largest, predictions, losses)


METHOD = Method(
    "mmvfl",
    "sparse linear views that agree on pseudo-labels; then training on what is left",
    "after Feng and Yu, 2020 (arXiv 2001.11154)",
    Config,
    follow_plans(select),
    protocol=MmvflParty,
)
