"""A party's selection without a lambda: group lasso on what the server asked for.

During pre-training the gradient dL/dh of a row says where the server wants that row's
embedding. So a party knows, for every row it exchanged, a *response*: its embedding,
one step further. The features that predict the responses are those that matter. A party

1. solves the group lasso of the responses on its columns for a path of lambdas, a
   convex problem on its matrix of moments;
2. measures what chance does on *shadows*, scrambled copies of its own columns, and
   takes the smallest lambda at which at most a share q of them would pass, and as many
   useless features as shadows say would be at most a share `fdr` of those kept;
   features that act only together with another one are added;
3. fits its network to the responses again, on the kept features, without a penalty;
4. selects again after a few epochs of training, when the other parties explain most of
   the labels and little things show: of all its columns, those removed included.

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

from lessvfl.core.finite import finite
from lessvfl.core.plans import ShadowPlan, stream
from lessvfl.select import curves, moments
from lessvfl.select.alike import Likeness, as_they_come, likeness, near_copies
from lessvfl.select.group_path import group_path
from lessvfl.select.moments import ENOUGH_ROWS, RIDGE, Moments, Rule
from lessvfl.select.pairs import MOST_ROWS, pairs
from lessvfl.select.power import Sight
from lessvfl.terms import Reason, SelectionRule

SMALLEST = 10**-2.5  # the end of the path, as a share of the lambda that keeps nothing
CERTAIN = 0.1  # of the share that noise may keep: what is less likely is no chance
EULER = 0.5772
HOPELESS = 0.5  # an estimated share of useless features from which a path ends,
MANY = 20  # where it keeps more features than that
PAIR_COPIES = 2  # orders of the rows in which pairs are looked at for chance
MANY_FRESH = 30_000  # rows, none of which training can have learnt by heart


def matches(patterns: str | None, features: Sequence[str]) -> list[bool]:
    """Tell which features are named by patterns separated by commas.

    >>> matches("age, lab_*", ["age", "sex", "lab_1"])
    [True, False, True]
    """
    wanted = [part.strip() for part in (patterns or "").split(",") if part.strip()]
    return [any(fnmatch.fnmatchcase(name, p) for p in wanted) for name in features]


@dataclass(frozen=True)
class Choice:
    """What a party decided in one selection pass, for its own eyes."""

    kept: Tensor  # (n_groups,), which groups stay
    rule: SelectionRule  # elimination: of what says nothing beside the others
    lam: float  # where the path ended, as a share of the lambda that keeps nothing
    shadow_share: float  # of the shadows that pass the same limit
    false_share: float | None  # estimate for the features kept; None: it says nothing
    path: list[tuple[float, int, float]]  # lambda, features kept, share of shadows
    scores: Tensor  # (n_groups,), what each says; 1 is the limit
    pairs: tuple[tuple[int, int, float], ...]  # groups that act together, strength
    why: tuple[Reason, ...]  # of every group: why it was kept or removed
    sight: Sight  # how much the pass sees
    at_most: Tensor  # (n_groups,), the largest correlation that each may have
    signs: Tensor  # (n_groups,), of curves and of pairs; beyond chance from 1 on
    alike: Likeness | None = None  # rows next to each other in the party's file

    def report(self, owner: Tensor) -> dict[str, Any]:
        """Return plain values, by feature; `owner` (features,) has their groups."""
        place = {group: feature for feature, group in enumerate(owner.tolist())}
        return {
            "rule": self.rule,
            "lam": self.lam,
            "shadow_share": self.shadow_share,
            "false_share": self.false_share,
            "path": [list(point) for point in self.path],
            "scores": finite("The scores of features", self.scores[owner]).tolist(),
            "pairs": [[place[a], place[b], value] for a, b, value in self.pairs],
            "why": [self.why[group] for group in owner.tolist()],
            "sight": vars(self.sight),
            "at_most": finite("What features have", self.at_most[owner]).tolist(),
            "signs": finite("The signs of features", self.signs[owner]).tolist(),
            "alike": None if self.alike is None else vars(self.alike),
        }


@dataclass(frozen=True)
class GroupSelection:
    """Groups that the path of lambdas or elimination keeps, and by what measure."""

    kept: Tensor  # (n_groups,)
    scores: Tensor  # (n_groups,), the limit is 1
    shadow_share: float
    false_share: float | None
    limit: float  # that scores are multiples of
    rule: Rule
    over: Tensor  # (n_groups,), those that `most` has no room for


@dataclass(frozen=True)
class Subject:
    """What a selection pass is about: rows of training, columns, and what must stay."""

    rows: Tensor  # (n,), their numbers
    X: Tensor  # (n, columns), a party's columns of these rows
    Z: Tensor  # (n, E), their standardised responses
    group: Tensor  # (columns,), the group of every column
    pinned: Tensor  # (n_groups,), those that must stay
    blocks: Tensor | None = None  # (n,), rows that belong together; None: each alone
    places: Tensor | None = None  # (n,), where rows are in the party's own file
    alike: Likeness | None = None  # known of another pass

    def in_file_order(self) -> tuple[Subject, Likeness | None]:
        """Return the subject in file order and how alike neighbours are, if they are.

        Otherwise the subject is returned unchanged, with None. Of rows that belong
        together (`blocks`) only the first is compared.
        """
        if self.places is None:
            return self, None
        first = order = self.places.argsort()
        blocks = None if self.blocks is None else self.blocks[order]
        if blocks is not None:
            blocks, starts = as_they_come(blocks)
            first = order[starts]
        alike = self.alike or likeness(self.X[first], self.Z[first])
        if alike is None:
            return self, None
        X, Z = self.X[order], self.Z[order]
        return replace(self, rows=self.rows[order], X=X, Z=Z, blocks=blocks), alike


class SelectionPass:
    """One look of a party at all its columns, which chooses the features to keep.

    `name` is that of its random streams: a seed, and what tells it from others.
    """

    def __init__(
        self, subject: Subject, plan: ShadowPlan, name: Sequence[str | int]
    ) -> None:
        subject, self.alike = subject.in_file_order()
        X, Z, blocks = subject.X, subject.Z, subject.blocks
        in_file = self.alike is not None
        looks = subject.places is not None and not in_file
        self.near_copies = near_copies(X, Z, blocks) if looks else None
        self.seen = Moments.of(X, Z, subject.group, blocks, in_file)
        self.columns = X, subject.group  # as they are scaled
        self.rows = subject.rows
        self.pinned = subject.pinned
        self.plan = plan
        self.name = name
        self._copies = self._stream("path")
        self.shadows = self._scramble(plan.n_copies)
        self._strongest = self.seen.scores(self.seen.C).max()
        self._by_chance = self.shadows.max(dim=1).values  # the strongest of every copy

    def _stream(self, what: str) -> torch.Generator:
        seed, *names = self.name
        return stream(int(seed), "shadow", *names, what)

    def _scramble(self, n_copies: int) -> Tensor:
        """Return the scores of further scrambled copies, (n_copies, n_groups)."""
        seen = self.seen
        return moments.shadow_scores(seen, seen.Z, n_copies, self._copies)

    @property
    def clarity(self) -> float:
        """Return the strongest score as a multiple of what chance makes of it.

        That is the median, over scrambled copies, of a copy's strongest score.
        """
        tiny = torch.finfo(self._by_chance.dtype).tiny
        return float(self._strongest / self._by_chance.median().clamp_min(tiny))

    def half(self) -> Tensor:
        """Return a random half of the rows, as a mask (n,); blocks stay together."""
        blocks = self.seen.blocks
        n = self.seen.n_rows if blocks is None else int(blocks.max()) + 1
        order = torch.randperm(n, generator=self._stream("half"))
        some = (order % 2 == 0).to(self.rows.device)
        return some if blocks is None else some[blocks]

    def unseen(self, first: SelectionPass) -> Tensor:
        """Return the rows of this pass that `first` did not have, as a mask (n,).

        If `first` had one row of a block, no row of the block is in the mask.
        """
        fresh, blocks = ~torch.isin(self.rows, first.rows), self.seen.blocks
        if blocks is None:
            return fresh
        seen = torch.zeros(int(blocks.max()) + 1).to(blocks)
        return seen.index_add_(0, blocks, (~fresh).to(blocks))[blocks] == 0

    def choose(self, fresh: Tensor | None = None) -> Choice:
        """Choose the features to keep: along the path of lambdas, and those in pairs.

        `fresh` is a mask (n,) of rows to compare on: features that say nothing beside
        the others go, if that loses little there; None: no such elimination. Labels of
        pure noise keep nothing, or one feature where another pass follows.
        """
        lam, path, picked = self._path(self.seen)
        pairs, over = self._pairs(picked.kept)
        exempt = self.pinned.clone()
        for a, b, _ in pairs:
            exempt[[a, b]] = True
        rule: SelectionRule = "path"
        beyond = over | picked.over
        if fresh is not None and self._loses_little(fresh, exempt):
            rule = "elimination"
            picked = self._eliminate(self.seen, picked.kept, exempt)
        kept, scores = picked.kept | exempt, picked.scores
        false_share = picked.false_share
        signal = (picked.kept | beyond) & ~self.pinned & (scores >= 1)
        is_signal = bool(signal.any())
        if not self.plan.again and self._is_noise():
            kept, false_share, is_signal, beyond = exempt, None, False, over
        sight, at_most = self._sight(picked, is_signal)
        if not is_signal:
            scores = scores.clamp_max(1 - RIDGE)  # nothing is above the limit
        signs = torch.zeros_like(scores)
        if not self.plan.again:
            curved, signs = self._curved(sight, kept | beyond)
            at_most = torch.maximum(at_most, curved)
        why = self._why(kept, scores, exempt, beyond)
        if self.plan.again and not bool(kept.any()):
            kept[scores.argmax()] = True  # until the next pass, whose reasons count
        return Choice(
            kept=kept,
            rule=rule,
            lam=lam,
            shadow_share=picked.shadow_share,
            false_share=false_share,
            path=path,
            scores=scores,
            pairs=tuple(pairs),
            why=why,
            sight=sight,
            at_most=at_most,
            signs=signs,
            alike=self.alike,
        )

    def _sight(self, picked: GroupSelection, is_signal: bool) -> tuple[Sight, Tensor]:
        """Return how much this pass sees, and each group's largest likely correlation.

        If not `is_signal`, chance may have made all of `picked`: the mark that a column
        must reach is then what the strongest column of a scrambled copy hardly reaches.
        """
        seen, rule = self.seen, picked.rule
        size = torch.bincount(seen.group, minlength=len(seen.weights)).to(seen.X)
        k = moments.dimension(seen.Z)
        degrees = (k * size).clamp_min(1.0)
        usual = (degrees / seen.weights.square())[size > 0].mean()
        tiny = torch.finfo(seen.X.dtype).tiny
        unit = (rule.shadows.square().mean() / usual).clamp_min(tiny)
        whole = (self.shadows.square().mean() / usual).clamp_min(tiny)
        variance = seen.Z.square().sum() / seen.n_rows
        limit = rule.least(max(1, int(picked.kept.sum())))
        if not is_signal:
            limit = max(limit, self._beyond_chance(self.plan.noise))
        usual_mark = moments.chance(torch.tensor(k)).to(seen.X)  # of numeric columns
        sight = Sight(
            max(1.0, float(variance / (k * whole))),
            k,
            float(limit**2 * usual_mark / unit),
        )
        statistics = (picked.scores * picked.limit * seen.weights).square() / unit
        return sight, sight.at_most(statistics.double(), degrees.double())

    def _curved(self, sight: Sight, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each group has at most by curves and pairs, and signs of these.

        Both are (n_groups,); the first is a correlation, a sign from 1 on is beyond
        chance. `kept` (n_groups,) are the groups whose linear part is known.
        """
        shares, signs, degrees = curves.largest_shares(
            self.seen, X=self.columns[0], group=self.columns[1], kept=kept
        )
        n_rows = sight.n_rows * min(1.0, MOST_ROWS / self.seen.n_rows)
        statistics = n_rows * shares.double()
        of_rows = replace(sight, n_rows=n_rows)
        at_most = of_rows.at_most(statistics, torch.full_like(statistics, degrees))
        return at_most, n_rows * signs

    def _is_noise(self) -> bool:
        """Tell whether chance alone may well explain the strongest feature's score.

        If the scrambled copies at hand do not settle it, as many more are made as it
        takes to see a share of `noise`. The strongest scores of copies follow Gumbel's
        law, whose tail tells what is out of the question.
        """
        noise, by_chance = self.plan.noise, self._by_chance
        beyond = self._beyond_chance(noise * CERTAIN)
        if bool(self._strongest > max(beyond, float(by_chance.max()))):
            return False
        n_more = math.ceil(1 / noise) - len(by_chance)
        if n_more > 0 and int((by_chance >= self._strongest).sum()) == 0:
            more = self._scramble(n_more).max(dim=1).values
            by_chance = torch.cat([by_chance, more])
        n_above = int((by_chance >= self._strongest).sum())
        return (1 + n_above) / (1 + len(by_chance)) > noise

    def _beyond_chance(self, share: float) -> float:
        """Return the score that a copy's strongest group exceeds in a share of copies.

        The strongest scores follow Gumbel's law, fitted to those of the copies at hand.
        """
        by_chance = self._by_chance
        spread = by_chance.std() * math.sqrt(6) / math.pi
        middle = by_chance.mean() - EULER * spread
        return float(middle - spread * math.log(share))

    def _path(
        self, seen: Moments
    ) -> tuple[float, list[tuple[float, int, float]], GroupSelection]:
        """Follow the path of lambdas on `seen` as far as the shadows allow.

        Returns where it ends, as a share of the lambda that keeps nothing; every point
        of it: lambda, groups kept, share of shadows (scrambled copies) that pass; and
        the groups chosen. What a shadow says falls with what is left of the responses.
        """
        plan = self.plan
        spread = math.sqrt(self.seen.n_rows / seen.n_rows)
        rule = Rule.of(self.shadows * spread, plan.q, plan.fdr)
        largest = float(seen.scores(seen.C).max()) * (1 + 1e-6)  # keeps nothing
        shares = torch.logspace(0, math.log10(SMALLEST), plan.n_lambdas).to(seen.X)
        weights = seen.weights * ~self.pinned
        came_in = torch.zeros_like(weights)
        points: list[tuple[float, int, float]] = []
        place, chosen, beside, mark = 0, self.pinned, came_in, largest
        false_share: float | None = None  # of those chosen
        for B, slopes in group_path(seen, largest * shares, weights):
            share = float(shares[len(points)])
            kept = (seen.norms(B) > 0) | self.pinned
            limit = share * largest / math.sqrt(max(seen.left(B, slopes), RIDGE))
            n_kept, passing = int(kept.sum()), rule.share(limit)
            points.append((share, n_kept, passing))
            came_in = torch.where(kept & (came_in == 0), share, came_in)
            weak = seen.scores(slopes) / max(largest, RIDGE)
            now = seen.scores(B) / max(largest, RIDGE)
            beside = now if len(points) == 1 else beside  # what must stay says there
            false = rule.false_share(limit, n_kept)
            if passing > plan.q:
                break
            if n_kept and rule.allows(limit, n_kept):
                place, chosen, beside, mark = len(points) - 1, kept, now, limit
                false_share = false
            elif false is not None and n_kept > MANY and false > HOPELESS:
                break
        came_in = torch.where(self.pinned, beside, came_in)
        scores = torch.where(came_in > 0, came_in, weak.clamp_max(share))
        picked = GroupSelection(
            chosen,
            scores / points[place][0],
            shadow_share=points[place][2],
            false_share=false_share,
            limit=mark,
            rule=rule,
            over=torch.zeros_like(chosen),
        )
        return points[place][0], points, self._limited(picked, beside)

    def _limited(self, picked: GroupSelection, beside: Tensor) -> GroupSelection:
        """Keep the plan's `most` strongest groups alone, where more were picked.

        Of equally strong ones those stay that say more in the fit, `beside` the others.
        """
        n_kept, most = int(picked.kept.sum()), self.plan.most
        if most is None or n_kept <= most:
            return picked
        order = beside.argsort()
        order = order[picked.scores[order].argsort(stable=True)]  # the weakest first
        over = torch.zeros_like(picked.kept)
        over[order[(picked.kept & ~self.pinned)[order]][: n_kept - most]] = True
        kept, false_share = picked.kept & ~over, None
        if len(others := picked.scores[kept & ~self.pinned]):
            weakest = picked.limit * float(others.min())
            false_share = picked.rule.false_share(weakest, int(kept.sum()))
        return replace(picked, kept=kept, false_share=false_share, over=over)

    def _pairs(self, chosen: Tensor) -> tuple[list[tuple[int, int, float]], Tensor]:
        """Return pairs of groups that act together, the strongest first.

        Each is two groups and their strength. Second is a mask (n_groups,) of groups
        that would be in a pair, had `most` room for them beside those `chosen`.
        """
        over = torch.zeros_like(chosen)
        if not self.plan.pairs:
            return [], over
        most = self.plan.most
        strength, partner = pairs(self.seen, chosen, PAIR_COPIES, self._stream("pairs"))
        acting: list[tuple[int, int, float]] = []
        chosen = chosen.clone()
        for group in strength.argsort(descending=True).tolist():
            other = int(partner[group])
            if float(strength[group]) < 1:
                break
            new = {group, other} - set(chosen.nonzero()[:, 0].tolist())
            if most is not None and int(chosen.sum()) + len(new) > most:
                over[list(new)] = True
                continue
            chosen[[group, other]] = True
            pair = (min(group, other), max(group, other), float(strength[group]))
            if pair[:2] not in [known[:2] for known in acting]:
                acting.append(pair)
        return acting, over

    def _loses_little(self, fresh: Tensor, exempt: Tensor) -> bool:
        """Tell whether elimination loses little of what groups explain.

        Groups are eliminated on all other rows and compared on the `fresh` ones, a mask
        (n,). Where there are few rows for a regression it is not tried: no.
        """
        n_some = min(self.seen.n_rows // 2, int((~fresh).sum()))
        if 2 * n_some < ENOUGH_ROWS * self.seen.X.shape[1]:
            return False
        some, others = self.seen.rows(~fresh), self.seen.rows(fresh)
        kept = self._path(some)[2].kept | exempt
        left = self._eliminate(some, kept, exempt).kept | exempt
        whole, part = (moments.explained(some, others, which) for which in (kept, left))
        return part >= (1 - self.plan.loss) * whole

    def _eliminate(self, seen: Moments, kept: Tensor, exempt: Tensor) -> GroupSelection:
        """Remove groups that say nothing beside the others `kept`, a mask (n_groups,).

        `seen` are the rows to do so on; groups `exempt` (n_groups,) stay. As rows are
        many, a quarter of the share `fdr` of useless features is allowed.
        """
        kept, scores, rule = moments.eliminate(
            seen,
            kept | exempt,
            exempt,
            n_copies=self.plan.n_copies,
            generator=self._stream("elimination"),
            q=self.plan.q,
            fdr=self.plan.fdr / 4,
        )
        n_kept = int(kept.sum())
        limit = rule.least(n_kept)
        return GroupSelection(
            kept,
            scores / limit,
            shadow_share=rule.share(limit),
            false_share=rule.false_share(limit, n_kept),
            limit=limit,
            rule=rule,
            over=torch.zeros_like(kept),
        )

    def _why(
        self, kept: Tensor, scores: Tensor, exempt: Tensor, over: Tensor
    ) -> tuple[Reason, ...]:
        """Return of every group why it stays or goes; `over`: for want of room.

        All are of groups, (n_groups,): masks, and scores, of which 1 is the limit.
        """
        reasons: list[Reason] = []
        weak: Reason = "weak" if bool(kept.any()) else "chance"
        masks = (kept, scores >= 1, self.pinned, exempt, over)
        for stays, clear, must, acts, left_out in zip(
            *(mask.tolist() for mask in masks), strict=True
        ):
            if stays and (clear or not acts):
                reasons.append("strength")
            elif stays:
                reasons.append("must keep" if must else "pair")
            elif left_out:
                reasons.append("most")
            else:
                reasons.append("says nothing beside the others" if clear else weak)
        return tuple(reasons)


def choose_again(first: SelectionPass, second: SelectionPass) -> Choice:
    """Choose the features to keep by the clearer of two passes, before and in training.

    After training the other parties explain most of the labels, and little things show;
    where rows are few, training has learnt them by heart, and the first pass sees more.
    The second compares on rows that the first has not seen, if there are enough. Of
    very many such rows nothing was learnt by heart, and the second counts: to the first
    the slow weights of useless columns look like something that the labels ask for.
    """
    fresh = second.unseen(first)
    if first.clarity > second.clarity and int(fresh.sum()) < MANY_FRESH:
        return first.choose(first.half())
    enough = len(fresh) <= 4 * int(fresh.sum()) <= 3 * len(fresh)
    return second.choose(fresh if enough else second.half())
