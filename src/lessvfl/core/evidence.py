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


@dataclass(frozen=True)
class Groups:
    """A party's features, as groups of columns.

    Parameters
    ----------
    membership : Tensor (columns, n_groups)
        1 where a column belongs to a group.
    is_shadow, pinned : Tensor (n_groups,)
        Which groups are shadows; which must stay and are not penalised.
    """

    membership: Tensor
    is_shadow: Tensor
    pinned: Tensor


@dataclass(frozen=True)
class Choice:
    """What one replica of a party decided, for its own eyes.

    Parameters
    ----------
    kept : Tensor (n_groups,)
        Which groups stay; shadows never do.
    lam : float
        The lambda that was taken, as a share of the one that keeps nothing.
    shadow_share : float
        Share of the shadows that were kept: the estimate of the share of useless
        features that are.
    path : list of (lambda, features kept, share of shadows kept)
        The path, as far as it was followed.
    scores : Tensor (n_groups,)
        The largest lambda, as a share, at which a group is kept; 0: none on the path.
    frequency : Tensor (n_groups,) or None
        The share of subsamples that keep a group, where there were any.
    pairs : list of (group, group, strength)
        Groups that were kept because they act together; see :func:`moments.pairs`.
    rule : str
        "first look", or which of ``RULES`` the second look took.
    """

    kept: Tensor
    lam: float
    shadow_share: float
    path: list[tuple[float, int, float]]
    scores: Tensor
    frequency: Tensor | None = None
    pairs: tuple[tuple[int, int, float], ...] = ()
    rule: str = "first look"

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
            "frequency": None
            if self.frequency is None
            else self.frequency[owner].tolist(),
            "pairs": [[place[a], place[b], value] for a, b, value in self.pairs],
        }


def plant(
    X: Tensor, groups: Tensor, n_least: int, seeds: Sequence[int], party: str
) -> Tensor:
    """Return which row every shadow takes, (S, N, copies x n_features).

    The columns of one feature are permuted together, so they share a shadow.
    """
    n_features = int(groups.max()) + 1
    n_copies = max(1, -(-n_least // n_features))
    order = [
        torch.stack(
            [
                torch.randperm(
                    X.shape[1], generator=stream(seed, "shadow", party, copy, f)
                )
                for copy in range(n_copies)
                for f in range(n_features)
            ],
            dim=1,
        )
        for seed in seeds
    ]
    return torch.stack(order).to(X.device)


def with_shadows(
    tables: tuple[Tensor, Tensor],
    groups: Tensor,
    n_least: int,
    seeds: Sequence[int],
    party: str,
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Append shadows to a party's training columns, and zeros to its test columns.

    Parameters
    ----------
    tables : pair of Tensor (S, N, columns)
        Training and test rows.
    groups : Tensor (columns,)
        The feature of every column.
    n_least : int
        How many shadow features there must be at least.
    seeds : sequence of int
        One a replica.
    party : str
        Whose shadows: every party permutes in its own way.

    Returns
    -------
    tables, groups
        With shadows behind the own columns; their features are numbered on.
    """
    X, X_test = tables
    order = plant(X, groups, n_least, seeds, party)
    n_features = int(groups.max()) + 1
    n_copies = order.shape[2] // n_features
    X = X.expand(len(order), -1, -1)
    shadows, owners = [X], [groups]
    for copy in range(n_copies):
        rows = order[:, :, copy * n_features + groups]  # (S, N, columns)
        shadows.append(torch.gather(X, 1, rows))
        owners.append(groups + (copy + 1) * n_features)
    zeros = X_test.new_zeros(*X_test.shape[:2], n_copies * len(groups))
    whole = torch.cat(shadows, dim=2), torch.cat([X_test, zeros], dim=2)
    return whole, torch.cat(owners)


def matches(patterns: str | None, features: Sequence[str]) -> list[bool]:
    """Tell which features are named by patterns separated by commas.

    >>> matches("age, lab_*", ["age", "sex", "lab_1"])
    [True, False, True]
    """
    wanted = [part.strip() for part in (patterns or "").split(",") if part.strip()]
    return [any(fnmatch.fnmatchcase(name, p) for p in wanted) for name in features]


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


def above(X: Tensor, Z: Tensor, groups: Groups) -> Tensor:
    """Return which groups go with the responses more than any shadow, (n_groups,)."""
    seen = Moments.of(X, Z, groups.membership)
    strength = seen.group_norms(seen.C) / groups.membership.sum(dim=0).sqrt()
    return strength > strength[groups.is_shadow].max()


def choose(
    X: Tensor, Z: Tensor, groups: Groups, plan: ShadowPlan, seed: int = 0
) -> Choice:
    """Select features of one replica, on all rows or by the votes of subsamples.

    With `plan.subsamples` the selection is repeated on so many random halves of the
    rows, and what at least half of them keep is kept (stability selection).

    Parameters
    ----------
    X : Tensor (n, columns)
        Rows that were exchanged, shadows included.
    Z : Tensor (n, E)
        Their responses.
    """
    whole = _choose_once(Moments.of(X, Z, groups.membership), groups, plan)
    if not plan.subsamples:
        return whole
    votes = []
    for number in range(plan.subsamples):
        order = torch.randperm(len(X), generator=stream(seed, "subsample", number))
        half = order[: len(X) // 2].to(X.device)
        some = Moments.of(X[half], Z[half], groups.membership)
        votes.append(_choose_once(some, groups, plan).kept)
    frequency = torch.stack(votes).to(X).mean(dim=0)
    return replace(whole, kept=frequency >= 0.5, frequency=frequency)


def _choose_once(seen: Moments, groups: Groups, plan: ShadowPlan) -> Choice:
    """Select along the path of lambdas, then add what acts together."""
    weights = groups.membership.sum(dim=0).sqrt()
    if plan.adaptive > 0:
        weights = weights * _adaptive(seen, plan.adaptive)
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
        pairs=tuple(found),
    )


def _add_pairs(
    seen: Moments, groups: Groups, plan: ShadowPlan, chosen: Tensor
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


def _adaptive(seen: Moments, gamma: float) -> Tensor:
    """Return 1 / norm^gamma of a ridge regression, the middle group's weight 1."""
    ridge = 0.1 * torch.eye(len(seen.G)).to(seen.G)
    norms = seen.group_norms(torch.linalg.solve(seen.G + ridge, seen.C))
    relative: Tensor = norms / norms.median()
    return relative.clamp(0.05, 20.0).pow(-gamma)


def look_again(
    X: Tensor, Z: Tensor, groups: Groups, plan: ShadowPlan, seed: int, before: Tensor
) -> tuple[Choice, Tensor]:
    """Return a second choice, and the candidates (3, n_groups) in order of ``RULES``.

    Candidates are what either look keeps, what this one keeps, and that without what
    says nothing beside the others (:func:`moments.prune`).

    Parameters
    ----------
    before : Tensor (n_groups,)
        What the first look kept.
    """
    choice = choose(X, Z, groups, plan, seed)
    seen = Moments.of(X, Z, groups.membership)
    exempt = groups.pinned.clone()
    for a, b, _ in choice.pairs:
        exempt[[a, b]] = True
    pruned = moments.prune(seen, choice.kept, groups.is_shadow, exempt)
    both = before | choice.kept
    if plan.most is not None and int(both.sum()) > plan.most:
        both = choice.kept
    return choice, torch.stack([both, choice.kept, pruned])


def smallest_as_good(losses: Sequence[float], alone: float, share: float) -> int:
    """Return the last candidate that explains almost as much as the best.

    Parameters
    ----------
    losses : sequence of float
        Mean loss of rows held out; candidates from large to small.
    alone : float
        The loss of a constant. Where the best is no better, rows say nothing of the
        candidates, and the largest is taken.
    share : float
        The share of what the best explains that may be lost.

    Examples
    --------
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


def refit(
    net: Network,
    X: Tensor,
    Z: Tensor,
    plan: FitPlan,
    seeds: Sequence[int],
    fold: int = 0,
) -> Tensor:
    """Fit a network to the responses: :func:`lessvfl.algorithm.fit_held_out`.

    Parameters
    ----------
    net : Network
        Cut to the features that were kept.
    X : Tensor (R, n, columns)
        Rows that were exchanged.
    Z : Tensor (R, n, outputs)
        Their responses.
    """

    def mismatch(rows: Tensor) -> Tensor:
        mask = net.output_mask.to(Z.dtype).unsqueeze(1)
        return ((net(take(X, rows)) - take(Z, rows)) * mask).square().mean(dim=2)

    return fit_held_out(net, mismatch, X.shape[1], plan, seeds, fold)
