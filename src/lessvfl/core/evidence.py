"""A party's selection without a lambda: group lasso on what the server asked for.

During pre-training the gradient dL/dh of a row says where the server wants that row's
embedding. So a party knows, for every row it exchanged, a *response*: its embedding,
one step further. The features that predict the responses are those that matter. A party

1. plants *shadows* before pre-training, permuted copies of its own columns, which go
   through everything like any other column and carry nothing;
2. solves the group lasso of the responses on its columns for a whole path of lambdas, a
   convex problem on its matrix of moments;
3. takes the smallest lambda at which at most a share q of the shadows is kept, and as
   many of its own features as shadows would be at most a share `fdr` of those kept;
   features that act only together with another one are added;
4. fits its network to the responses again, on the kept features, without a penalty;
5. looks again after a few epochs of training, when the other parties explain most of
   the labels and little things show: at all its columns, those removed included.

All of it is local; nothing of it is sent.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lessvfl.core import moments
from lessvfl.core.moments import Moments
from lessvfl.core.network import Network
from lessvfl.core.plans import FitPlan, ShadowPlan, stream, take
from lessvfl.core.prox import per_replica
from lessvfl.core.solve import fit_held_out

SMALLEST = 10**-2.5  # the end of the path, as a share of the lambda that keeps nothing
RULES = ("both looks", "second look", "pruned")  # candidates of the second look
MOST_COMPARED = 4096  # rows on which candidates of a second look are compared


# ------------------------------------------------------------------------------ shadows


def with_shadows(
    tables: tuple[Tensor, Tensor],
    groups: Tensor,
    n_least: int,
    seeds: Sequence[int],
    party: str,
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Append shadows to a party's training columns, and zeros to its test columns.

    `tables` are (S, N, columns), `groups` (columns,) the feature of every column. There
    are at least `n_least` shadow features, numbered on behind the own ones. The columns
    of one feature are permuted together, and every party permutes in its own way.
    """
    X, X_test = tables
    n_features = int(groups.max()) + 1
    n_copies = max(1, -(-n_least // n_features))
    X = X.expand(len(seeds), -1, -1)
    columns, owners = [X], [groups]
    for copy in range(n_copies):
        order = [
            torch.stack(
                [
                    torch.randperm(
                        X.shape[1], generator=stream(seed, "shadow", party, copy, f)
                    )
                    for f in range(n_features)
                ],
                dim=1,
            )
            for seed in seeds
        ]
        rows = torch.stack(order).to(X.device)[:, :, groups]  # (S, N, columns)
        columns.append(torch.gather(X, 1, rows))
        owners.append(groups + (copy + 1) * n_features)
    zeros = X_test.new_zeros(*X_test.shape[:2], n_copies * len(groups))
    whole = torch.cat(columns, dim=2), torch.cat([X_test, zeros], dim=2)
    return whole, torch.cat(owners)


def matches(patterns: str | None, features: Sequence[str]) -> list[bool]:
    """Tell which features are named by patterns separated by commas.

    >>> matches("age, lab_*", ["age", "sex", "lab_1"])
    [True, False, True]
    """
    wanted = [part.strip() for part in (patterns or "").split(",") if part.strip()]
    return [any(fnmatch.fnmatchcase(name, p) for p in wanted) for name in features]


@dataclass(frozen=True)
class ShadowGroups:
    """A party's features and their shadows, as groups of columns."""

    membership: Tensor  # (columns, n_groups), 1 where a column belongs to a group
    is_shadow: Tensor  # (n_groups,)
    pinned: Tensor  # (n_groups,), groups that must stay and are not penalised


# ---------------------------------------------------------------------------- responses


class Memory:
    """What a party remembers of joint training: rows, embeddings and gradients."""

    def __init__(self) -> None:
        self._seen: list[tuple[Tensor, ...]] = []

    def add(self, rows: slice | Tensor, h: Tensor, gradient: Tensor) -> None:
        """Keep what a batch says of its rows; the gradient is one row's own again."""
        if isinstance(rows, slice):
            rows = torch.arange(rows.start, rows.stop).unsqueeze(0)
        rows = rows.expand(gradient.shape[0], -1)
        self._seen.append((rows, h.detach(), gradient * gradient.shape[1]))

    def tensors(self) -> list[Tensor]:
        """Return rows (R, n), embeddings and gradients (R, n, E); empty: nothing."""
        return [torch.cat(parts, dim=1) for parts in zip(*self._seen, strict=True)]

    def restore(self, tensors: Sequence[Tensor]) -> None:
        """Take up what :meth:`tensors` gave."""
        self._seen = [tuple(tensors)] if tensors else []

    def responses(self) -> tuple[Tensor, Tensor]:
        """Return the rows, and where the server wants their embeddings; forget them."""
        rows, h, gradient = self.tensors()
        self._seen = []
        return rows, responses(h, gradient)


def responses(h: Tensor, gradient: Tensor) -> Tensor:
    """Return where the server wants each row's embedding, (R, n, E): a Newton step.

    The mean of g g' over rows is what the curvature of a log-likelihood is on average
    (Fisher information), so the party needs to know neither head nor labels. Its
    largest eigenvalue is the curvature along the direction that the head uses. The
    better rows are predicted the smaller it is and the noisier the responses: what is
    left of a residual says less and less of a feature's weight, as it should.
    """
    information = gradient.mT @ gradient / gradient.shape[1]
    curvature = torch.linalg.eigvalsh(information)[:, -1]
    tiny = torch.finfo(h.dtype).tiny
    return h - gradient / per_replica(curvature.clamp_min(tiny), gradient)


def refit(
    net: Network,
    X: Tensor,
    Z: Tensor,
    plan: FitPlan,
    seeds: Sequence[int],
    fold: int = 0,
) -> Tensor:
    """Fit a network, cut to what was kept, to the responses: :func:`fit_held_out`."""

    def mismatch(rows: Tensor) -> Tensor:
        mask = net.output_mask.to(Z.dtype).unsqueeze(1)
        return ((net(take(X, rows)) - take(Z, rows)) * mask).square().mean(dim=2)

    return fit_held_out(net, mismatch, X.shape[1], plan, seeds, fold)


# ----------------------------------------------------------------------- the first look


@dataclass(frozen=True)
class Choice:
    """What one replica of a party decided, for its own eyes."""

    kept: Tensor  # (n_groups,), which groups stay; shadows never do
    lam: float  # the lambda taken, as a share of the one that keeps nothing
    shadow_share: float  # of the shadows kept: the estimate for useless features
    path: list[tuple[float, int, float]]  # lambda, features kept, share of shadows kept
    scores: Tensor  # (n_groups,), the largest lambda that keeps a group; 0: none did
    pairs: tuple[tuple[int, int, float], ...] = ()  # groups that act together, strength
    rule: str = "first look"  # or which of ``RULES`` the second look took

    def report(self, owner: Tensor) -> dict[str, Any]:
        """Return it as plain values; `owner` is the group of every own feature."""
        place = {group: feature for feature, group in enumerate(owner.tolist())}
        n_kept = int(self.kept[owner].sum())
        return {
            "rule": self.rule,
            "lam": self.lam,
            "shadow_share": self.shadow_share,
            "false_share": min(1.0, self.shadow_share * len(owner) / max(1, n_kept)),
            "path": [list(point) for point in self.path],
            "scores": self.scores[owner].tolist(),
            "pairs": [[place[a], place[b], value] for a, b, value in self.pairs],
        }


def choose(X: Tensor, Z: Tensor, groups: ShadowGroups, plan: ShadowPlan) -> Choice:
    """Select features of one replica along the path of lambdas, then pairs.

    `X` (n, columns) are the rows that were exchanged, shadows included, `Z` (n, E)
    their responses.
    """
    return _choose(Moments.of(X, Z, groups.membership), groups, plan)


def _choose(seen: Moments, groups: ShadowGroups, plan: ShadowPlan) -> Choice:
    weights = groups.membership.sum(dim=0).sqrt()
    largest = (seen.group_norms(seen.C) / weights).max()
    largest = largest * (1 + 1e-6)  # keeps nothing, exactly
    weights = weights * ~groups.pinned
    shares = torch.logspace(0, math.log10(SMALLEST), plan.n_lambdas).to(seen.X)
    is_shadow, n_shadows = groups.is_shadow, int(groups.is_shadow.sum())

    def is_enough(norms: Tensor) -> bool:
        kept = norms[-1] > 0
        return int(kept[is_shadow].sum()) > plan.q * n_shadows

    kept = moments.group_path(seen, largest * shares, weights, is_enough) > 0
    kept |= groups.pinned
    shares = shares[: len(kept)]
    of_shadows = kept[:, is_shadow].sum(dim=1) / max(1, n_shadows)
    counts = kept[:, ~is_shadow].sum(dim=1)
    useless = of_shadows * int((~is_shadow).sum()) / counts.clamp_min(1)
    place = 0
    for next_place in range(1, len(shares)):
        within = plan.most is None or int(counts[next_place]) <= plan.most
        if float(of_shadows[next_place]) > plan.q or not within:
            break
        if float(useless[next_place]) <= plan.fdr:
            place = next_place
    chosen = kept[place] & ~is_shadow
    found = _add_pairs(seen, groups, plan, chosen) if plan.pairs else ()
    first = torch.where(kept.any(dim=0), shares[kept.float().argmax(dim=0)], 0.0)
    path = list(zip(shares.tolist(), counts.tolist(), of_shadows.tolist(), strict=True))
    return Choice(
        chosen,
        float(shares[place]),
        float(of_shadows[place]),
        path,
        first,
        tuple(found),
    )


def _add_pairs(
    seen: Moments, groups: ShadowGroups, plan: ShadowPlan, chosen: Tensor
) -> list[tuple[int, int, float]]:
    """Put groups that act together into `chosen`, the strongest first; return them."""
    strength, partner = moments.pairs(seen, groups.is_shadow)
    found: list[tuple[int, int, float]] = []
    for group in strength.argsort(descending=True).tolist():
        other = int(partner[group])
        if float(strength[group]) < 1:
            break
        new = {group, other} - set(chosen.nonzero()[:, 0].tolist())
        if plan.most is not None and int(chosen.sum()) + len(new) > plan.most:
            continue
        chosen[[group, other]] = True
        pair = (min(group, other), max(group, other), float(strength[group]))
        if pair[:2] not in [known[:2] for known in found]:
            found.append(pair)
    return found


# ---------------------------------------------------------------------- the second look


def choose_again(
    X: Tensor, Z: Tensor, groups: ShadowGroups, plan: ShadowPlan, before: Tensor
) -> tuple[Choice, Tensor]:
    """Return a second choice, and the candidates (3, n_groups) in order of ``RULES``.

    Candidates are what either look keeps (`before`: the first), what this one keeps,
    and that without what says nothing beside the others (:func:`moments.prune`).
    """
    seen = Moments.of(X, Z, groups.membership)
    choice = _choose(seen, groups, plan)
    exempt = groups.pinned.clone()
    for a, b, _ in choice.pairs:
        exempt[[a, b]] = True
    pruned = moments.prune(seen, choice.kept, groups.is_shadow, exempt)
    both = before | choice.kept
    if plan.most is not None and int(both.sum()) > plan.most:
        both = choice.kept
    return choice, torch.stack([both, choice.kept, pruned])


def compare(
    net: Network,
    pool: Tensor,
    X: Tensor,
    Z: Tensor,
    candidates: Tensor,
    seeds: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return how badly candidates (3, R, n_groups) predict rows held out, (3, R).

    Every row is held out once; `pool` is the group of every slot. And how badly a
    constant does, (R,).
    """
    X, Z = X[:, :MOST_COMPARED], Z[:, :MOST_COMPARED]
    plan = FitPlan(n_epochs=12, batch_size=256, held_out=0.5, patience=3)
    losses = []
    for kept in candidates:
        slots = kept[:, pool]
        columns = slots[:, net.column_slots].any(dim=0)
        folds = [
            refit(net.narrow(slots=slots), X[:, :, columns], Z, plan, seeds, fold)
            for fold in (0, 1)
        ]
        losses.append(torch.cat(folds, dim=1).mean(dim=1))
    spread = (Z - Z.mean(dim=1, keepdim=True)) * net.output_mask.unsqueeze(1)
    return torch.stack(losses), spread.square().mean(dim=(1, 2))


def smallest_as_good(losses: Sequence[float], alone: float, share: float) -> int:
    """Return the last candidate that explains almost as much as the best.

    `losses` are those of rows held out, of candidates from large to small, `alone` is
    that of a constant. Where the best is no better, rows say nothing of the candidates,
    and the largest is taken. `share` is what of the explained may be lost.

    >>> smallest_as_good([0.50, 0.505, 0.6], 1.0, 0.02)
    1
    >>> smallest_as_good([1.3, 1.2, 1.1], 1.0, 0.02)
    0
    """
    explained = alone - min(losses)
    if explained <= 0:
        return 0
    return max(
        place
        for place, loss in enumerate(losses)
        if loss - min(losses) <= share * explained
    )


def decide(choice: Choice, candidates: Tensor, rule: int, first_share: float) -> Choice:
    """Return the choice that a second look ends with: candidate number `rule`."""
    share = (first_share + choice.shadow_share, choice.shadow_share, 0.0)[rule]
    return replace(choice, kept=candidates[rule], rule=RULES[rule], shadow_share=share)
