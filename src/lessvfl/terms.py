"""The few terms that every room shares."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

MINUTE = 60.0  # seconds

PartyId = str
Task = Literal["binary", "multiclass", "regression"]
Evaluation = Literal["end", "epochs", "nothing"]  # when test rows are scored
Stage = Literal[
    "pretrain",
    "embed",
    "select_components",
    "select_features",
    "joint_lasso",
    "train_first",
    "select_again",
    "train",
    "evaluate",
    "predict",
]

# Why a feature was kept or removed by its party's shadows: the words of the JSON, which
# docs/json.md explains and lessvfl.report.reasons puts into sentences.
Reason = Literal[
    "strength",
    "pair",
    "must keep",
    "weak",
    "chance",
    "says nothing beside the others",
    "most",
]
# On a column, over all runs. Removed is what went and has no verdict: nothing bounds
# what it may do, or its party alone knows.
ColumnVerdict = Literal["needed", "not needed", "undecided", "removed"]
# How features that are kept were found, in words of the JSON, too.
SelectionRule = Literal["path", "elimination"]

# A renamed stage keeps the name of its random streams.
_STREAMS = {"train_first": "settle"}


def stream_seed(seed: int, *names: str | int) -> int:
    """Derive the seed of one named random stream from the run's seed.

    Streams are independent of each other and of their number: adding a party or a stage
    moves no other stream.

    >>> stream_seed(0, "init", "party0") == stream_seed(0, "init", "party1")
    False
    """
    parts = (_STREAMS.get(str(name), str(name)) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256("/".join(parts).encode()).digest()[:7], "big")


# A stage in the JSON, the metrics and the bill -> what a reader calls it.
STAGE_TEXTS: dict[str, str] = {
    "pretrain": "pre-training",
    "embed": "embeddings",
    "select_components": "server selects components",
    "select_features": "parties select features",
    "joint_lasso": "training with selection",
    "train_first": "first training",
    "select_again": "parties select again",
    "train": "training",
    "evaluate": "evaluation",
    "predict": "prediction",
}

# The measures of a task, the usual one first; and what a reader calls a measure.
MEASURES: dict[Task, tuple[str, ...]] = {
    "binary": ("accuracy", "balanced_accuracy", "auc", "average_precision"),
    "multiclass": ("accuracy", "balanced_accuracy", "auc"),
    "regression": ("r2",),
}


class ScoreWords(NamedTuple):
    """What a reader calls a score: in a sentence, as a title, and over a column."""

    text: str
    title: str
    column: str


SCORES = {
    "accuracy": ScoreWords("accuracy", "Test accuracy", "test accuracy"),
    "balanced_accuracy": ScoreWords(
        "balanced accuracy", "Balanced test accuracy", "balanced accuracy"
    ),
    "auc": ScoreWords("AUC", "Test AUC", "AUC"),
    "average_precision": ScoreWords(
        "average precision", "Average precision, test", "average precision"
    ),
    "r2": ScoreWords("R²", "Test R²", "test R²"),
}
SCORE_TEXTS = {name: words.text for name, words in SCORES.items()}


def stage_text(stage: str) -> str:
    """Name a stage as a reader knows it.

    >>> stage_text("pretrain"), stage_text("train")
    ('pre-training', 'training')
    """
    return STAGE_TEXTS.get(stage, stage.replace("_", " "))


def labels_text(task: str, reason: str) -> str:
    """Say what labels are taken for, and why.

    >>> labels_text("regression", "not all are whole numbers")
    'The labels are numbers to regress on: not all are whole numbers.'
    """
    what = "numbers to regress on" if task == "regression" else "classes"
    return f"The labels are {what}: {reason}."


def plural(n: float, one: str, many: str | None = None) -> str:
    """Write a count and what is counted; its plural has an s unless `many` is given.

    >>> plural(1, "row"), plural(1200, "row"), plural(0.25, "epoch"), plural(24.33, "x")
    ('1 row', '1,200 rows', '0.25 epochs', '24.3 xs')
    """
    if float(n).is_integer():
        count = f"{n:,.0f}"
    else:
        count = f"{n:,.1f}" if n >= 10 else f"{round(n, 2):g}"
    return f"{count} {one if n == 1 else many or one + 's'}"


def written(value: Any) -> str:
    """Write a value as in Python, those of NumPy as their plain kinds, in lists too.

    >>> written("a"), written((1, 2.5)), written({"a": [True, None]})
    ("'a'", '(1, 2.5)', "{'a': [True, None]}")
    """
    return repr(_plain(value))


def _plain(value: Any) -> Any:
    if type(value) in (list, tuple, set):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {_plain(key): _plain(one) for key, one in value.items()}
    is_scalar = getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    if not is_scalar:
        return value
    return str(value) if value.dtype.kind in "mM" else value.item()


def listed(names: Sequence[str], most: int = 5) -> str:
    """Name the first of some, and count the others.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d"], 2)
    ('a, b', 'a, b and 2 more')
    """
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def bytes_text(n_bytes: float) -> str:
    """Write a number of bytes in the unit that fits, 1 MB = 1,000,000 bytes.

    >>> bytes_text(512), bytes_text(3_400_000), bytes_text(999_960), bytes_text(5e15)
    ('512 bytes', '3.4 MB', '1.0 MB', '5,000.0 TB')
    """
    if n_bytes < 1000:
        return plural(round(n_bytes), "byte")
    size, units = n_bytes / 1000, iter(("kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= 999.95 and unit != "TB":
        size, unit = size / 1000, next(units)
    return f"{size:,.1f} {unit}"


def time_text(seconds: float) -> str:
    """Write a length of time in its two largest units.

    >>> time_text(7.2), time_text(125), time_text(600), time_text(7260)
    ('7 s', '2 min 5 s', '10 min', '2 h 1 min')
    """
    left = max(0, round(seconds))
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if left >= size:
            parts.append(f"{left // size} {unit}")
        elif parts:
            break
        left %= size
    return " ".join(parts[:2]) or "0 s"


@dataclass(frozen=True)
class Event:
    """The end of an epoch, or with epoch 0 the beginning of a stage.

    `fusion` is given where all networks fit each other; `outputs` (n, C), what it
    gives of the test rows, where no party's part of it may be asked for.
    """

    stage: Stage
    epoch: float
    n_epochs: float
    fusion: Callable[[Tensor], Tensor] | None = None
    outputs: Tensor | None = None


Observer = Callable[[Event], None]


class Progress(Protocol):
    """Whom a run tells how far it is: what the library shows and tracks, or your own.

    Each is called in the thread of the run, some times a second at most, and should
    return soon. `lessvfl.status.Status` is one, and tells its `followers`.
    """

    def begin_seed(self, seed: int, number: int, n_seeds: int) -> None:
        """Learn that the run of a seed begins, the `number`-th of `n_seeds`."""

    def observe(self, event: Event) -> None:
        """Learn of an epoch."""

    def stepped(self, stage: Stage, step: int, n_steps: int) -> None:
        """Learn how many steps of a stage are done."""

    def scored(self, value: float, name: str) -> None:
        """Learn the score so far."""

    def sent(self, up: int, down: int, rounds: int) -> None:
        """Learn what was sent so far."""
