"""Labels from gradients: what a party learns of the labels of common rows.

An attack takes numbers of rows in several looks, and what the attacker knows besides.
It returns a score for each row and class. The same function on the party's own columns,
as one look, is its control: what the attacker learns without the traffic.

The attacks: norm and direction of gradients (Li et al., "Label leakage and protection
in two-party split learning", ICLR 2022); direct inference, completion of the party's
model and a malicious optimiser (Fu et al., "Label inference attacks against vertical
federated learning", USENIX Security 2022); clusters of gradients.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

from lessvfl_bench.privacy.traffic import AnyArray, Looks, PartyView

N_LABELS = 10  # known of each class
MOST_ROWS = 2000  # that a head labels itself
MOST_LOOKS = 8  # that are clustered, the first ones: errors are largest there
CHANCE = 0.5
TINY = 1e-12


@dataclass(frozen=True)
class KnownLabels:
    """What an attacker knows of the labels: those of some rows, and the shares."""

    rows: AnyArray  # places of rows
    labels: AnyArray  # of these rows
    shares: AnyArray  # of the classes among all rows, (C,)

    @classmethod
    def draw(cls, y: AnyArray, n_classes: int, seed: int) -> KnownLabels:
        """Draw rows of every class; half of a small class at most."""
        rng = np.random.default_rng(seed)
        chosen = []
        for label in range(n_classes):
            own = np.flatnonzero(y == label)
            chosen.append(rng.permutation(own)[: min(N_LABELS, len(own) // 2)])
        rows = np.concatenate(chosen)
        counts = np.bincount(y.astype(int), minlength=n_classes)
        return cls(rows, y[rows].astype(int), counts / len(y))

    @property
    def n_classes(self) -> int:
        """Return the number of classes."""
        return len(self.shares)


LabelAttack = Callable[[Looks, KnownLabels], AnyArray]


def by_norm(looks: Looks, known: KnownLabels) -> AnyArray:
    """Score rows by the norm of their first gradient: that of the rarer class is large.

    For two classes.
    """
    first = np.full(_n_rows(looks), np.nan)
    for look in looks.values():
        norms = np.linalg.norm(look, axis=1)
        norms = norms / max(float(np.nanmedian(norms)), TINY)
        first = np.where(np.isnan(first), norms, first)
    return two_sides(first if known.shares[1] <= known.shares[0] else -first)


def by_side(looks: Looks, known: KnownLabels) -> AnyArray:
    """Read labels off the side of zero where gradients lie; known rows say which is it.

    Behind a linear fusion network a gradient is the error of a row times weights that
    all rows of a step share: of two classes one has positive errors, the other negative
    ones. For two classes.
    """
    total = np.zeros(_n_rows(looks))  # of errors
    for look in looks.values():
        seen = is_seen(look)
        scaled = _scaled(look[seen])
        _, _, axes = np.linalg.svd(scaled, full_matrices=False)
        errors = scaled @ axes[0]
        total[seen] += -errors if errors @ total[seen] < 0 else errors
    means = [np.mean(total[known.rows[known.labels == label]]) for label in (0, 1)]
    return two_sides(total if means[1] >= means[0] else -total)


def by_direction(looks: Looks, known: KnownLabels) -> AnyArray:
    """Score rows by how far they lie in the mean direction of a class's known rows.

    Not by the cosine alone: where a look has small gradients, they are mostly rounding.
    """
    total = np.zeros((_n_rows(looks), known.n_classes))
    for look in looks.values():
        seen = is_seen(look)
        scaled = np.zeros_like(look)
        scaled[seen] = _scaled(look[seen])
        for label in range(known.n_classes):
            own = known.rows[known.labels == label]
            own = own[seen[own]]
            if len(own):
                total[:, label] += scaled @ scaled[own].mean(axis=0)
    apart: AnyArray = total - total.mean(axis=1, keepdims=True)
    return apart


def by_cluster(looks: Looks, known: KnownLabels) -> AnyArray:
    """Cluster the rows of the first looks; known rows say what clusters mean."""
    total = np.zeros((_n_rows(looks), known.n_classes))
    for look in itertools.islice(looks.values(), MOST_LOOKS):
        seen, cluster = _clusters(look, known.n_classes)
        votes = np.tile(known.shares, (known.n_classes, 1)) * N_LABELS
        rows = seen[known.rows]
        np.add.at(votes, (cluster[known.rows[rows]], known.labels[rows]), 1)
        chances = votes / votes.sum(axis=1, keepdims=True)
        total[seen] += np.log(chances / known.shares)[cluster[seen]]
    return total


def by_everything(view: PartyView, known: KnownLabels) -> AnyArray:
    """Fit a head to all that a party has: columns, embeddings, signs in gradients."""
    gradients = view.gradients
    parts = (by_direction(gradients, known), by_cluster(gradients, known))
    return by_head(np.hstack([view.X, view.learnt, *parts]), known)


def by_head(features: AnyArray, known: KnownLabels) -> AnyArray:
    """Fit a head to known labels, and to others as it labels them itself."""
    labels = np.full(len(features), -1)
    labels[known.rows] = known.labels
    some = np.random.default_rng(0).permutation(len(features))[:MOST_ROWS]
    rows = np.union1d(known.rows, some)
    head = SelfTrainingClassifier(LogisticRegression(max_iter=1000))
    model = make_pipeline(StandardScaler(), head).fit(features[rows], labels[rows])
    chances = np.zeros((len(features), known.n_classes))
    chances[:, np.unique(known.labels)] = model.predict_proba(features)
    return chances


# By name: the function, and whether it reads known labels.
ATTACKS_ON_GRADIENTS: dict[str, tuple[LabelAttack, bool]] = {
    "labels by gradient norm": (by_norm, False),
    "labels by side of gradients": (by_side, True),
    "labels by gradient direction": (by_direction, True),
    "labels by gradient clusters": (by_cluster, True),
}
PASSIVE = "labels by passive completion"
ACTIVE = "labels by active completion"
EVERYTHING = "labels by all that a party has"


def measure(
    view: PartyView, y: AnyArray, n_classes: int, seed: int
) -> dict[str, dict[str, float]]:
    """Attack from one party's side; return score, control and shuffled by attack.

    `y` is for what the attacker knows of it and for the scores; scored are rows that
    it does not know and that it saw a gradient of. A control is chance at least: who
    knows nothing can guess. Without gradients there is nothing to attack.
    """
    if not view.gradients:
        return {}
    judge = Judge.of(rows_of(view), y, n_classes, seed)
    own: Looks = {("columns", 0): StandardScaler().fit_transform(view.X)}
    fitted = judge.score(functools.partial(by_head, view.X))
    found = {}
    for name, (attack, reads_labels) in ATTACKS_ON_GRADIENTS.items():
        if n_classes > 2 and attack in (by_norm, by_side):
            continue
        on_gradients = functools.partial(attack, view.gradients)
        without = functools.partial(attack, own)
        alone = fitted if reads_labels else judge.score(without)
        found[name] = judge.against(on_gradients, alone)
    on_own = functools.partial(by_head, view.learnt)
    found[PASSIVE] = judge.against(on_own, fitted)
    on_all = functools.partial(by_everything, view)
    found[EVERYTHING] = judge.against(on_all, fitted)
    return found


def completion(
    view: PartyView, y: AnyArray, n_classes: int, seed: int
) -> dict[str, float]:
    """Complete a party's own network by a head, and return how well that tells labels.

    The network as the party trained it last.
    """
    judge = Judge.of(rows_of(view), y, n_classes, seed)
    control = judge.score(functools.partial(by_head, view.X))
    return judge.against(functools.partial(by_head, view.learnt), control)


def rows_of(view: PartyView) -> AnyArray:
    """Tell of which rows a party saw a gradient, (N,)."""
    return np.asarray(np.any([is_seen(g) for g in view.gradients.values()], axis=0))


@dataclass(frozen=True)
class Judge:
    """Scores attacks by labels, and by labels in random order."""

    y: AnyArray
    mixed: AnyArray
    known: KnownLabels
    known_mixed: KnownLabels
    seen: AnyArray  # rows that are scored, (N,)

    @classmethod
    def of(cls, seen: AnyArray, y: AnyArray, n_classes: int, seed: int) -> Judge:
        """Draw what is known; `seen` are the rows that are scored."""
        mixed = y[np.random.default_rng(seed).permutation(len(y))]
        known = KnownLabels.draw(y, n_classes, seed)
        known_mixed = KnownLabels.draw(mixed, n_classes, seed)
        return cls(y, mixed, known, known_mixed, seen)

    def score(self, attack: Callable[[KnownLabels], AnyArray]) -> float:
        """Return the AUC of an attack."""
        return auc(attack(self.known), self.y, self.known, self.seen)

    def against(
        self, attack: Callable[[KnownLabels], AnyArray], control: float
    ) -> dict[str, float]:
        """Return score, control and shuffled of an attack."""
        known = self.known_mixed
        shuffled = auc(attack(known), self.mixed, known, self.seen)
        score = self.score(attack)
        least = max(CHANCE, control)
        return {"score": score, "control": least, "shuffled": shuffled}

    def guessed(self, scores: AnyArray) -> dict[str, float]:
        """Return the same of scores (N, C) for which no label was known."""
        return self.against(lambda known: scores, CHANCE)


def auc(scores: AnyArray, y: AnyArray, known: KnownLabels, rows: AnyArray) -> float:
    """Return the mean AUC of one class against the others, of rows not known."""
    judged = rows.copy()
    judged[known.rows] = False
    y = y[judged]
    found = [
        roc_auc_score(y == label, scores[judged, label])
        for label in range(known.n_classes)
        if 0 < (y == label).sum() < len(y)
    ]
    return float(np.mean(found))


def _clusters(look: AnyArray, n_clusters: int) -> tuple[AnyArray, AnyArray]:
    """Tell which rows a look has, and the cluster of every one of them."""
    seen = is_seen(look)
    cluster = np.zeros(len(look), dtype=int)
    model = KMeans(n_clusters, n_init=4, random_state=0)
    cluster[seen] = model.fit_predict(_scaled(look[seen]))
    return seen, cluster


def two_sides(second: AnyArray) -> AnyArray:
    """Return scores of two classes by that of the second."""
    second = np.nan_to_num(second)
    return np.stack([-second, second], axis=1)


def _scaled(values: AnyArray) -> AnyArray:
    """Return gradients as shares of the longest."""
    longest = np.linalg.norm(values, axis=1).max(initial=TINY)
    scaled: AnyArray = values / longest
    return scaled


def is_seen(look: AnyArray) -> AnyArray:
    """Tell which rows a look has, (N,)."""
    return np.asarray(~np.isnan(look).any(axis=1))


def _n_rows(looks: Looks) -> int:
    return len(next(iter(looks.values())))
