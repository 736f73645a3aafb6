"""The columns of the comparison, and what every method reveals to whom."""

from __future__ import annotations

from typing import NamedTuple


class RivalColumn(NamedTuple):
    """A number of a cell: its heads, how it is written, and which way is better."""

    key: str
    head: str
    narrow: str  # in the terminal; nothing: not there
    kind: str  # of lessvfl.report.tables
    sign: int  # 1: more is better, -1: less is


COLUMNS = (
    RivalColumn("removed_share", "noise removed", "gone", "score", 1),
    RivalColumn("real_kept_share", "real kept", "kept", "score", 1),
    RivalColumn("f1", "support F1", "F1", "score", 1),
    RivalColumn("kept_share", "features kept", "kept", "score", -1),
    RivalColumn("accuracy", "accuracy", "acc.", "score", 1),
    RivalColumn("balanced_accuracy", "balanced accuracy", "bal.", "score", 1),
    RivalColumn("auc", "AUC", "AUC", "score", 1),
    RivalColumn("r2", "R²", "R²", "score", 1),
    RivalColumn("linear_balanced_accuracy", "linear, balanced", "lin.", "score", 1),
    RivalColumn("linear_auc", "linear, AUC", "", "score", 1),
    RivalColumn("linear_r2", "linear, R²", "lin. R²", "score", 1),
    RivalColumn("boosted_balanced_accuracy", "boosted, balanced", "boost.", "score", 1),
    RivalColumn("boosted_auc", "boosted, AUC", "", "score", 1),
    RivalColumn("boosted_r2", "boosted, R²", "boost. R²", "score", 1),
    RivalColumn("mib", "MiB", "MiB", "size", -1),
    RivalColumn("mib_up", "up", "", "size", -1),
    RivalColumn("mib_down", "down", "", "size", -1),
    RivalColumn("rounds", "rounds", "", "count", -1),
    RivalColumn("seconds", "seconds", "s", "size", -1),
)

# By method, besides what training on sends: embeddings of a party's rows up, their
# gradients down, from which a party that is not honest can tell the labels.
_TRAINING = "nothing besides training"
_TREES = (
    "to a party: gradients of every row, from which it reads the labels, and which "
    "rows share a node; to the server: sums of gradients by bin, and which rows a "
    "split sends where"
)
REVEALED = {
    "less-vfl-auto": "to the server: embeddings of some rows (stage 2)",
    "less-vfl": "to the server: embeddings of all rows (stage 2)",
    "local-lasso": _TRAINING,
    "group-lasso": _TRAINING,
    "plain": _TRAINING,
    "mmvfl": (
        "to a party: pseudo-labels, from which it reads the labels, and what the other "
        "parties' columns say of every row, in sum; to the server: what each party's "
        "columns say of the class of every row, and some single columns of rows held "
        "out, each times a number"
    ),
    "counterfactual": (
        "to a party: what the model says of the rows searched, which flipped, and how "
        "far another party can move each; to the server: how far a party can move the "
        "prediction of each, and embeddings of the changed rows"
    ),
    "dual-gates": (
        "to a party: how many rows of every class its own bins have; to the server: "
        "how many bins a party has, and embeddings of a longer training"
    ),
    "vflfs": _TRAINING,
    "gini-filter": (
        "to a party: how many rows of every class its own bins have; to the server: "
        "how many bins a party has"
    ),
    "iv-filter": (
        "to a party: how many rows of every class its own bins have; to the server: "
        "how many bins a party has"
    ),
    "vertical-boost": _TREES,
    "vertical-forest": _TREES,
    "vprf": (
        "to a party: the labels, and which rows share a node of its own trees; to the "
        "server: sums of gradients by bin, which rows a split sends where, and the sum "
        "of all votes for a test row"
    ),
    "auto-boost": f"{_TREES}, of the columns that stay; before that {_TRAINING}",
    "pso-trees": (
        f"{_TREES}; to a party: how good each particle was; to the server: how many "
        "columns of each party a particle uses"
    ),
}
