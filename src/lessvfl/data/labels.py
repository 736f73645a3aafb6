"""The server's own: what its labels are, what they weigh, the loss of its numbers.

What is said here and what comes of it stay with the label holder; no party is told.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import Dataset, Floats, Frame, check_texts, is_missing
from lessvfl.data.learn import QUARTILE, is_heavy, spread_of, usual_distance
from lessvfl.errors import ConfigError, DataError, warn
from lessvfl.privacy.mechanisms import GRADIENT_DEFENCES, RandomisedResponse
from lessvfl.settings import Kind, Section, a_float, one_of, or_none, refuse, setting
from lessvfl.terms import (
    MEASURES,
    SCORE_TEXTS,
    Task,
    labels_text,
    listed,
    plural,
    stream_seed,
    written,
)

# Where the loss bends, in robust standard deviations: 95 % efficient for normal errors.
BEND = 1.345
LARGEST = 1e15  # label in deviations, whose square a network can hold
EVEN = 0.25  # of an even share: what rows of a code have that are alike
UNEVEN = 0.6  # of an even share: classes are uneven where the rarest has less
FEW_CODES = 10  # different whole numbers at most that are classes, whichever they are
NO_LABEL = {"", "na", "n/a", "#n/a", "<na>", "nan", "null"}  # words for a missing one
MAYBE_NONE = {"none", "-", "?"}  # that may be classes, too
WORD = 2.0**-64  # a draw of 64 bits as a share
MAX_CLASSES = 100  # more different whole numbers than this are amounts, not classes

# What labels may be asked to be; classification is binary or multiclass.
CLASSES = "classification"
TASKS = ("auto", CLASSES, *get_args(Task))
OF_CLASSES = ("threshold", "class_weight", "label_epsilon")  # settings


def _class_weight() -> Kind:
    """Return the kind of setting that is none, "balanced", or weights by class name."""
    number = a_float()

    def accepts(value: Any) -> bool:
        if isinstance(value, Mapping):
            named = all(isinstance(name, str) for name in value)
            return len(value) > 0 and named and all(map(number.accepts, value.values()))
        return value is None or value == "balanced"

    def read(text: str) -> str | dict[str, float] | None:
        if text.lower() == "none":
            return None
        if text == "balanced":
            return text
        pairs = [part.rpartition(":") for part in text.split(",")]
        weights = {name.strip(): float(weight) for name, _, weight in pairs}
        if len(weights) < len(pairs) or not all(mark for _, mark, _ in pairs):
            raise ValueError(text)
        return weights

    return Kind("balanced, weights by class as in no:1,yes:20, or none", accepts, read)


@dataclass(frozen=True)
class LabelConfig(Section):
    """What the server does with its labels; parties are told none of it."""

    class_weight: str | Mapping[str, float] | None = setting(
        _class_weight(),
        None,
        "how much a class counts in the loss; balanced: every class as much in all",
    )
    loss: str = setting(
        one_of("auto", "squared", "huber"),
        "auto",
        "regression: squared error, or Huber's, which outliers in the labels move "
        "less; auto: Huber's where labels have heavy tails",
    )
    score: str = setting(
        one_of("auto", *SCORE_TEXTS),
        "auto",
        "the score that leads; auto: of two classes AUC where one is rarer than 30 %, "
        "of uneven ones balanced accuracy, else accuracy, and R2 of amounts",
    )
    threshold: str | None = setting(
        or_none(one_of("balanced")),
        None,
        "none: the class of the largest probability is predicted; balanced: the one "
        "whose probability is the largest multiple of its share of the rows",
    )
    label_epsilon: float | None = setting(
        or_none(a_float(open_low=True)),
        None,
        "classes: training labels are randomised once, so that all that is computed "
        "from them tells of each this much at most; none: they are as they are",
    )
    gradient_defence: str = setting(
        one_of(*GRADIENT_DEFENCES),
        "none",
        "what is done to gradients before they leave the server",
    )
    gradient_noise: float = setting(
        a_float(open_low=True),
        1.0,
        "marvell: the power of its noise, as a multiple of that of the difference of "
        "classes; gaussian: the deviation, as a multiple of gradient_clip",
    )
    gradient_clip: float = setting(
        a_float(open_low=True),
        1.0,
        "gaussian: the largest norm of a row's gradient, before the mean over a batch",
    )


# ------------------------------------------------------------------ classes or amounts


def look_like_classes(
    distinct: Floats, counts: NDArray[Any], named: bool
) -> tuple[bool, str]:
    """Tell whether numbers are codes of classes or amounts, and why: the one place.

    `counts` says how many rows have each of the different numbers, and `named` whether
    their file names classes.
    """
    n_different = len(distinct)
    if not bool((distinct == np.round(distinct)).all()):
        return False, "not all are whole numbers"
    whole = f"{n_different} different whole numbers"
    if n_different > MAX_CLASSES:
        return False, f"more than {MAX_CLASSES} different whole numbers"
    if named:
        return True, f"{whole}, and names for classes"
    if n_different <= FEW_CODES:
        return True, f"{whole}, not more than {FEW_CODES}"
    in_a_row = distinct[0] in (0, 1) and bool((np.diff(distinct) == 1).all())
    even = max(2.0, EVEN * counts.mean())
    if in_a_row and counts.min() >= even:
        return True, f"{whole} in a row from {distinct[0]:.0f} on, with rows alike"
    return False, f"{whole}, not in a row from 0 or 1 on with rows alike"


def task_sentence(task: str, reason: str) -> str:
    """Say what labels are taken for, why, and how to have it otherwise."""
    sentence = labels_text(task, reason)
    if "whole numbers" not in reason or task == "binary":
        return sentence
    other = CLASSES if task == "regression" else "regression"
    return f"{sentence} If that is wrong, set the task to {other}."


# ------------------------------------------------------------------------------ coding


def label_cells(y: Any, frame: Frame | None, name: str) -> list[Any] | NDArray[Any]:
    """Return the labels of a table, numbers as an array, or refuse a missing one."""
    array = np.asarray(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"The labels of '{name}' must be one column. Got shape {array.shape}."
        )
    cells: list[Any] | NDArray[Any] = array
    advice = ""
    if array.dtype.kind in "iuf" and not isinstance(array, np.ma.MaskedArray):
        n_missing = int(np.isnan(array).sum())
    else:
        cells = array.tolist()
        texts = {cell for cell in cells if isinstance(cell, str)}
        words = {text for text in texts if text.strip().casefold() in NO_LABEL}
        n_missing = sum(is_missing(cell) or cell in words for cell in cells)
        if words := words - {""}:
            shown = listed(sorted(map(repr, words)))
            advice = (
                f"; {shown} counts as none: leave such rows out, or rename the class"
            )
    if n_missing:
        raise DataError(
            f"The labels of '{name}' must have no missing cells. "
            f"Got {plural(n_missing, 'row')} without a label{advice}."
        )
    if frame is not None and frame.n_rows != len(cells):
        raise DataError(
            f"The table and the labels of '{name}' must have as many rows. "
            f"Got {plural(frame.n_rows, 'row')} and {plural(len(cells), 'label')}."
        )
    return cells


def _warn_of_classes(names: Sequence[str], owner: str) -> None:
    """Warn of classes that may be one, or none."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.strip().casefold(), []).append(name)
    for word, twins in alike.items():
        shown = " and ".join(map(repr, twins))
        if len(twins) > 1:
            warn(
                f"The labels of '{owner}' have the classes {shown}, which differ in "
                "case or outer blanks alone; write them alike if they are one class."
            )
        elif word in MAYBE_NONE:
            warn(
                f"The labels of '{owner}' have the class {shown}; leave its rows out "
                "if it stands for a missing label."
            )


def code_labels(
    cells: Sequence[Any] | NDArray[Any],
    name: str,
    task: str | None,
    given_names: Sequence[str] | None,
) -> tuple[NDArray[Any], Task, tuple[str, ...], str]:
    """Return labels as codes 0..C-1, or as floats for regression.

    Both numbers and texts are coded in sorted order. With them come the task, the names
    of the classes, and why labels are what they are.
    """
    if task not in (None, *TASKS):
        raise refuse("task", "argument", f"one of {', '.join(TASKS)}", task)
    asked = None if task == "auto" else task
    reason = "as was asked for"
    numbers = _numbers(cells)
    if numbers is None:
        if asked == "regression":
            raise DataError(
                f"The labels of '{name}' must be numbers for regression. Got texts."
            )
        distinct: Sequence[Any] | Floats = sorted(set(cells))
        check_texts(distinct, f"The labels of '{name}'")
        _warn_of_classes([*map(str, distinct)], name)
    elif not np.isfinite(numbers).all():
        got = numbers[~np.isfinite(numbers)][0]
        raise DataError(f"The labels of '{name}' must be finite numbers. Got {got}.")
    else:
        values, rows = np.unique(numbers, return_counts=True)
        amounts, place = np.unique(values.astype(np.float64), return_inverse=True)
        distinct, counts = amounts, np.bincount(place, rows)
    if len(distinct) < 2:
        raise DataError(
            f"The labels of '{name}' must have two different values or more. "
            f"Got {label_name(cells[0])!r} in every row."
        )
    of_truth = isinstance(cells[0], bool)
    if asked is None and numbers is None:
        reason = f"{len(distinct)} different texts"
    elif asked is None and of_truth:
        reason = "truth values"
    elif asked is None:
        is_class, reason = look_like_classes(amounts, counts, bool(given_names))
        asked = CLASSES if is_class else "regression"
    if asked == "regression":
        assert numbers is not None
        y = numbers.astype(np.float64)  # not the array of the caller
        return y, "regression", (), reason
    if asked is None and len(distinct) > MAX_CLASSES:
        raise DataError(
            f"The labels of '{name}' must have at most {MAX_CLASSES} different texts. "
            f"Got {len(distinct)}; is it the right column?"
        )
    if asked == "binary" and len(distinct) != 2:
        raise DataError(
            f"The labels of '{name}' must have two values for the task 'binary'. "
            f"Got {len(distinct)}."
        )
    if numbers is None:
        code = {value: index for index, value in enumerate(distinct)}
        codes = np.array([code[cell] for cell in cells], dtype=np.int64)
    else:
        codes = np.searchsorted(distinct, numbers).astype(np.int64, copy=False)
    names = tuple(label_name(bool(v) if of_truth else v) for v in distinct)
    if given_names is not None and names == tuple(map(str, range(len(given_names)))):
        check_texts(given_names, f"The names of the classes of '{name}'")
        names = tuple(given_names)
    return codes, "binary" if len(names) == 2 else "multiclass", names, reason


def label_name(cell: Any) -> str:
    """Return the name of a class that a label stands for.

    >>> label_name("ill"), label_name(True), label_name(2), label_name(2.0)
    ('ill', 'True', '2', '2')
    """
    return str(cell) if isinstance(cell, str | bool) else f"{float(cell):.17g}"


def _numbers(cells: Sequence[Any] | NDArray[Any]) -> NDArray[Any] | None:
    """Return labels as numbers, or None where one of them is a text."""
    if isinstance(cells, np.ndarray):  # wider ones differ by less
        return cells if cells.itemsize <= 8 else cells.astype(np.float64)
    if any(isinstance(cell, str) for cell in cells):
        if all(isinstance(cell, str) for cell in cells):
            return None
        raise DataError("Labels must be all texts or all numbers. Got both.")
    numbers = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            if isinstance(cell, bytes):
                raise TypeError
            numbers[row] = float(cell)
        except OverflowError:
            raise DataError(
                f"Labels must be numbers below 1.8e308. Got a larger one in row "
                f"{row + 1}."
            ) from None
        except (TypeError, ValueError):
            raise DataError(
                "Labels must be texts, truth values or numbers. Got "
                f"{type(cell).__name__} in row {row + 1}."
            ) from None
    return numbers


# ------------------------------------------------------------------------------ weights


def check_labels(dataset: Dataset, config: LabelConfig) -> None:
    """Refuse settings of labels (`config`) that do not suit the data set's labels."""
    of_classes, name = dataset.task != "regression", f"'{dataset.name}'"
    if of_classes and config.loss == "huber":
        raise ConfigError(
            f"The 'loss' setting must be squared or auto for {name}, whose labels are "
            f"classes. Got '{config.loss}'."
        )
    if config.score not in (allowed := ("auto", *MEASURES[dataset.task])):
        raise ConfigError(
            f"The 'score' setting must be one of {listed(allowed, 9)} for {name}, "
            f"whose task is {dataset.task}. Got '{config.score}'."
        )
    for setting_name in () if of_classes else OF_CLASSES:
        if (value := getattr(config, setting_name)) is not None:
            raise ConfigError(
                f"The '{setting_name}' setting must be none for {name}, whose labels "
                f"are numbers to regress on. Got {written(value)}."
            )
    if config.gradient_defence == "marvell" and dataset.task != "binary":
        n_classes = len(dataset.label_names)
        raise ConfigError(
            "The 'gradient_defence' setting marvell is for labels of two classes. "
            f"Got {f'{n_classes} classes' if of_classes else 'amounts'}."
        )
    if isinstance(config.class_weight, Mapping):
        _weights_of(config.class_weight, dataset.label_names, dataset.name)


def _weights_of(
    given: Mapping[str, float], label_names: Sequence[str], owner: str
) -> Floats:
    """Return a weight for each class, 1 where none was given."""
    weights = np.ones(len(label_names))
    for name, weight in given.items():
        if name not in label_names:
            raise ConfigError(
                f"The 'class_weight' setting must name classes of '{owner}': "
                f"{listed(label_names, 20)}. Got '{name}'."
            )
        weights[label_names.index(name)] = weight
    return weights


def row_weights(
    dataset: Dataset,
    y: NDArray[Any],
    sample_weight: Floats | None,
    config: LabelConfig,
) -> Floats | None:
    """Return how much every training row counts, with mean 1; None where all alike.

    A row's own weight times that of its class. `balanced` gives a class n / (classes *
    rows of the class), so that all classes count alike.
    """
    of_class: Floats | None = None
    if config.class_weight == "balanced":
        counts = np.bincount(y, minlength=len(dataset.label_names))
        present = max(1, int((counts > 0).sum()))
        of_class = len(y) / (present * np.maximum(counts, 1))
    elif isinstance(config.class_weight, Mapping):
        of_class = _weights_of(config.class_weight, dataset.label_names, dataset.name)
    if of_class is None and sample_weight is None:
        return None
    weights = np.ones(len(y)) if sample_weight is None else _at_most_one(sample_weight)
    if of_class is not None:
        weights = weights * _at_most_one(of_class)[y]
    if not weights.any():
        raise DataError(
            f"The weights of the training rows of '{dataset.name}' must not all be "
            f"zero. Got zero for all {len(y)} rows."
        )
    if (weights == weights[0]).all():
        return None
    return np.asarray(weights / weights.mean())


def _at_most_one(weights: Floats) -> Floats:
    """Return weights in the same ratio whose sums and products do not overflow."""
    return np.asarray(weights / (weights.max() or 1.0))


# ------------------------------------------------------------------ what a score counts


def leading_score(
    task: Task, counts: NDArray[Any], config: LabelConfig
) -> tuple[str, str]:
    """Return the score that leads, and why; `counts` are the rows of each class.

    Accuracy says little of uneven classes, where one prediction for all rows has much
    of it. Two classes are uneven where one has less than 30 % of the rows, and more
    classes alike: where the rarest has less than 0.6 of an even share.

    >>> leading_score("binary", np.array([95, 5]), LabelConfig())
    ('auc', 'the rarer class has 5 % of the rows')
    >>> leading_score("binary", np.array([60, 40]), LabelConfig())[0]
    'accuracy'
    """
    if config.score != "auto":
        return config.score, "as set"
    if task == "regression":
        return "r2", "the labels are amounts"
    shares = counts[counts > 0] / max(1, counts.sum())
    if not len(shares) or shares.min() * len(shares) >= UNEVEN:
        return "accuracy", "no class is much rarer than an even share"
    share = f"{100 * shares.min():.2g} % of the rows"
    if task == "binary":
        return "auc", f"the rarer class has {share}"
    return "balanced_accuracy", f"the rarest class has {share}"


def positive_class(counts: NDArray[Any]) -> int:
    """Return which of two classes the average precision is of: the rarer one.

    >>> positive_class(np.array([3, 9])), positive_class(np.array([3, 3]))
    (0, 1)
    """
    return int(len(counts) < 2 or counts[1] <= counts[0])


# ---------------------------------------------------------------------------- threshold


def threshold_of(
    dataset: Dataset, y: NDArray[Any], weight: Floats | None, config: LabelConfig
) -> tuple[float, ...] | None:
    """Return what the probability of a class is divided by before one is predicted.

    None is for the largest probability itself. With ``threshold=balanced`` it is the
    class's share of the training rows, or of their weights where these count in the
    loss: argmax_k p_k / share_k. For true probabilities nothing has a better balanced
    accuracy, (1/C) Σ_k P(predict k | k), which is the sum of
    P(x | k) = p_k P(x) / share_k over what is predicted.
    """
    if dataset.task == "regression" or config.threshold is None:
        return None
    sums = np.bincount(y, weight, minlength=len(dataset.label_names))
    shares = sums / sums.sum()
    return tuple(float(share) if share > 0 else 1.0 for share in shares)


# ---------------------------------------------------------------- numbers to regress on


def centre(y: Floats, config: LabelConfig) -> tuple[float, float]:
    """Return what is subtracted from labels `y` (N,) of regression, and their scale.

    They are mean and standard deviation; or, for Huber's loss, median and robust
    deviation, which a few enormous labels do not move. The scale is never 0.
    """
    if _is_robust(y, config):
        return float(np.median(y)), robust_deviation(y)
    whole = spread_of(y)
    return float(whole.mean), float(whole.deviation) or 1.0


def scaled_labels(y: Floats, shift: float, scale: float) -> Floats:
    """Return (y - shift) / scale, cut at `LARGEST` in size to suit single precision.

    A label beyond `LARGEST` says as much at that size: Huber's loss pulls as hard, and
    R² is the same to all its digits.
    """
    with np.errstate(over="ignore"):
        return np.clip((y - shift) / scale, -LARGEST, LARGEST)


def robust_deviation(y: Floats) -> float:
    """Return the standard deviation of normal numbers with the same median deviation.

    Where more than half of the labels are equal, the median deviation of the others
    serves, which a few enormous ones do not move, either; 1 where all are equal.
    """
    middle = float(np.median(y))
    away = np.abs(y - middle)
    return float(np.median(away)) / QUARTILE or usual_distance(y, middle) or 1.0


def huber_delta_of(y: Floats, config: LabelConfig) -> float | None:
    """Return the error from which on Huber's loss is a straight line."""
    return BEND * robust_deviation(y) if _is_robust(y, config) else None


def _is_robust(y: Floats, config: LabelConfig) -> bool:
    """Tell whether the loss is Huber's."""
    return config.loss == "huber" or (config.loss == "auto" and is_heavy(y))


# ---------------------------------------------------------------------- randomised once


def randomise(
    dataset: Dataset, labels: LabelConfig, draws: NDArray[np.float64] | None = None
) -> Dataset:
    """Return the data set with labels for training that are randomised, if asked for.

    The same row has the same label in every run with this epsilon: without `draws`
    (N,), evenly between 0 and 1, they are drawn by the place of a row in the table.
    """
    if labels.label_epsilon is None:
        return dataset
    check_labels(dataset, labels)
    mechanism = RandomisedResponse(labels.label_epsilon, len(dataset.label_names))
    if draws is None:
        rng = np.random.default_rng(stream_seed(0, "labels", *_names_of(mechanism)))
        draws = rng.random(len(dataset.y))
    return replace(dataset, randomised=mechanism.apply(dataset.y, draws))


def draws_of(
    ids: Iterable[object], secret: bytes, mechanism: RandomisedResponse
) -> NDArray[np.float64]:
    """Return a draw between 0 and 1 for each id, (N,), that only `secret` determines.

    Draws differ by the epsilon of `mechanism`: with the same draws under two epsilons,
    a row whose label differs would give its true label away.
    """
    how = "/".join(_names_of(mechanism))
    digests = (
        hmac.digest(secret, f"{how}/{one}".encode(), hashlib.sha256)[:8] for one in ids
    )
    words = np.frombuffer(b"".join(digests), dtype=">u8")
    return np.asarray(words * WORD, dtype=np.float64)


def _names_of(mechanism: RandomisedResponse) -> tuple[str, str]:
    return repr(float(mechanism.epsilon)), str(mechanism.n_classes)
