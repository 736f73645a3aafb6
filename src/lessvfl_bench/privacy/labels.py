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

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

from lessvfl_bench.privacy.traffic import Looks, Numbers, PartyView

N_LABELS = 10  # known of each class
TINY = 1e-12


@dataclass(frozen=True)
class KnownLabels:
    """What an attacker knows of the labels: those of some rows, and the shares."""

    rows: Numbers  # places of rows
    labels: Numbers  # of these rows
    shares: Numbers  # of the classes among all rows, (C,)

    @classmethod
    def draw(cls, y: Numbers, n_classes: int, seed: int) -> KnownLabels:
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


LabelAttack = Callable[[Looks, KnownLabels], Numbers]


def by_norm(looks: Looks, known: KnownLabels) -> Numbers:
    """Score rows by the norm of their first gradient: that of the rarer class is large.

    For two classes.
    """
    first = np.full(_n_rows(looks), np.nan)
    for look in looks.values():
        norms = np.linalg.norm(look, axis=1)
        norms = norms / max(float(np.nanmedian(norms)), TINY)
        first = np.where(np.isnan(first), norms, first)
    return _two_sides(first if known.shares[1] <= known.shares[0] else -first)


def by_side(looks: Looks, known: KnownLabels) -> Numbers:
    """Read labels off the pattern of gradients, by the shares of classes alone.

    Behind a linear fusion network a gradient is the error of a row times weights that
    all rows of a step share: of two classes one has positive errors, the other negative
    ones. Which is which follows from the shares. Several classes lie in as many
    directions.
    """
    if known.n_classes > 2:
        return _clusters_by_share(looks, known)
    total = np.zeros(_n_rows(looks))
    for look in looks.values():
        seen = ~np.isnan(look).any(axis=1)
        _, _, axes = np.linalg.svd(look[seen], full_matrices=False)
        place = look[seen] @ axes[0]
        place = place / max(float(np.abs(place).mean()), TINY)
        turned = -1 if place @ total[seen] < 0 else 1
        total[seen] += turned * np.clip(place, -1, 1)
    share = float((total > 0).mean())
    apart = abs(share - known.shares[1]) - abs(1 - share - known.shares[1])
    return _two_sides(total if apart <= 0 else -total)


def by_direction(looks: Looks, known: KnownLabels) -> Numbers:
    """Score rows by the cosine to the mean direction of the known rows of a class."""
    total = np.zeros((_n_rows(looks), known.n_classes))
    for look in looks.values():
        unit = _unit(look)
        for label in range(known.n_classes):
            own = unit[known.rows[known.labels == label]]
            own = own[~np.isnan(own).any(axis=1)]
            if len(own):
                total[:, label] += np.nan_to_num(unit @ own.mean(axis=0))
    apart: Numbers = total - total.mean(axis=1, keepdims=True)
    return apart


def by_cluster(looks: Looks, known: KnownLabels) -> Numbers:
    """Cluster rows by their gradients; known rows name the clusters."""
    cluster = _clusters(looks, known)
    votes = np.tile(known.shares, (known.n_classes, 1))
    np.add.at(votes, (cluster[known.rows], known.labels), 1)
    chances: Numbers = votes / votes.sum(axis=1, keepdims=True)
    return chances[cluster]


def by_head(looks: Looks, known: KnownLabels) -> Numbers:
    """Fit a head to the last look at every row, by known labels and self-training."""
    features = last_of(looks)
    labels = np.full(len(features), -1)
    labels[known.rows] = known.labels
    model = make_pipeline(
        StandardScaler(), SelfTrainingClassifier(LogisticRegression(max_iter=1000))
    )
    chances = np.zeros((len(features), known.n_classes))
    chances[:, np.unique(known.labels)] = model.fit(features, labels).predict_proba(
        features
    )
    return chances


# By name: the function, and whether it reads known labels.
ATTACKS_ON_GRADIENTS: dict[str, tuple[LabelAttack, bool]] = {
    "labels by gradient norm": (by_norm, False),
    "labels by side of gradients": (by_side, False),
    "labels by gradient direction": (by_direction, True),
    "labels by gradient clusters": (by_cluster, True),
}
PASSIVE = "labels by passive completion"
ACTIVE = "labels by active completion"


def measure(
    view: PartyView, y: Numbers, n_classes: int, seed: int
) -> dict[str, dict[str, float]]:
    """Attack from one party's side; return score, control and shuffled by attack.

    `y` is for what the attacker knows of it and for the scores; scored are rows that
    it does not know and that it saw a gradient of.
    """
    rng = np.random.default_rng(seed)
    places = rng.permutation(len(y))
    own: Looks = {("columns", 0): _scaled(view.X)}
    known = KnownLabels.draw(y, n_classes, seed)
    mixed = KnownLabels.draw(y[places], n_classes, seed)
    scored = _rows_seen(view.gradients)
    fitted = auc(by_head(own, known), y, known, scored)
    found = {}
    for name, (attack, reads_labels) in ATTACKS_ON_GRADIENTS.items():
        if attack is by_norm and n_classes > 2:
            continue
        looks = view.gradients
        alone = fitted if reads_labels else auc(attack(own, known), y, known, scored)
        found[name] = {
            "score": auc(attack(looks, known), y, known, scored),
            "control": alone,
            "shuffled": auc(attack(looks, mixed), y[places], mixed, scored),
        }
    found[PASSIVE] = completion(view, y, n_classes, seed)
    return found


def completion(
    view: PartyView, y: Numbers, n_classes: int, seed: int
) -> dict[str, float]:
    """Complete a party's own network by a head, and return how well that tells labels.

    The network as the party trained it last, by its own embeddings of training rows.
    """
    places = np.random.default_rng(seed).permutation(len(y))
    known = KnownLabels.draw(y, n_classes, seed)
    mixed = KnownLabels.draw(y[places], n_classes, seed)
    scored = _rows_seen(view.gradients)
    own: Looks = {("columns", 0): _scaled(view.X)}
    return {
        "score": auc(by_head(view.sent, known), y, known, scored),
        "control": auc(by_head(own, known), y, known, scored),
        "shuffled": auc(by_head(view.sent, mixed), y[places], mixed, scored),
    }


def auc(scores: Numbers, y: Numbers, known: KnownLabels, rows: Numbers) -> float:
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


def last_of(looks: Looks) -> Numbers:
    """Return the values of every row in the last look at it.

    Looks of another width than the last are left out; what no look has is the mean.
    """
    n_components = list(looks.values())[-1].shape[1]
    last = np.full((_n_rows(looks), n_components), np.nan)
    for look in looks.values():
        if look.shape[1] == n_components:
            last = np.where(np.isnan(look), last, look)
    return np.where(np.isnan(last), np.nanmean(last, axis=0), last)


def _clusters(looks: Looks, known: KnownLabels) -> Numbers:
    """Return the cluster of every row, as many as classes, by direction."""
    table = np.hstack([np.nan_to_num(_unit(look)) for look in looks.values()])
    model = KMeans(known.n_classes, n_init=4, random_state=0)
    clusters: Numbers = model.fit_predict(table)
    return clusters


def _clusters_by_share(looks: Looks, known: KnownLabels) -> Numbers:
    """Cluster rows, and name the clusters by their sizes."""
    cluster = _clusters(looks, known)
    sizes = np.bincount(cluster, minlength=known.n_classes) / len(cluster)
    apart = np.abs(sizes[:, None] - known.shares[None, :])
    _, labels = linear_sum_assignment(apart)
    chosen: Numbers = np.eye(known.n_classes)[labels[cluster]]
    return chosen


def _two_sides(second: Numbers) -> Numbers:
    """Return scores of two classes by that of the second."""
    second = np.nan_to_num(second)
    return np.stack([-second, second], axis=1)


def _unit(look: Numbers) -> Numbers:
    norms = np.linalg.norm(look, axis=1, keepdims=True)
    unit: Numbers = look / np.maximum(norms, TINY)
    return unit


def _scaled(X: Numbers) -> Numbers:
    scaled: Numbers = StandardScaler().fit_transform(X)
    return scaled


def _n_rows(looks: Looks) -> int:
    return len(next(iter(looks.values())))


def _rows_seen(looks: Looks) -> Numbers:
    """Tell which rows any look has, (N,)."""
    some = [~np.isnan(look).any(axis=1) for look in looks.values()]
    seen: Numbers = np.any(some, axis=0)
    return seen
