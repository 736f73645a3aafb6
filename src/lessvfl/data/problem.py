"""From a data set to a problem: parties, rows, encoding, planted noise."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data import dealing, split
from lessvfl.data.blocks import Blocks, distinct, find_blocks, seen_share, some_blocks
from lessvfl.data.columns import left_out_sentences, usable
from lessvfl.data.encode import CellCounts, Encoding
from lessvfl.data.frame import (
    DataConfig,
    Dataset,
    Floats,
    Frame,
    Places,
    join_columns,
    stack_rows,
)
from lessvfl.data.held_out import settle_test_rows, split_words
from lessvfl.data.labels import (
    LabelConfig,
    centre,
    check_labels,
    huber_delta_of,
    leading_score,
    positive_class,
    randomise,
    row_weights,
    scaled_labels,
    threshold_of,
)
from lessvfl.data.sentinels import blank, marks_of, warn_of_absent
from lessvfl.errors import ConfigError, DataError, warn
from lessvfl.settings import a_float, refuse
from lessvfl.terms import Task, listed, plural, stream_seed


@dataclass(frozen=True)
class PartyTable:
    """What one party holds for one seed: rows to train on, rows to test on."""

    name: str
    X_train: Floats  # (N, d), encoded, imputed, scaled
    X_test: Floats
    features: tuple[str, ...]
    groups: NDArray[np.int64]  # (d,), the feature of each encoded column
    spurious: NDArray[np.bool_]  # (n_features,), True where planted
    significant: NDArray[np.bool_] | None  # (n_features,), where the truth is known
    encoding: Encoding  # how these rows came from its columns
    # Training rows that no other party has, of which nobody knows the label.
    X_alone: Floats | None = None


@dataclass(frozen=True)
class Problem:
    """One data set, split among parties and into train and test, for one seed."""

    name: str
    task: Task
    parties: tuple[PartyTable, ...]
    y_train: NDArray[Any]
    y_test: NDArray[Any]
    label_names: tuple[str, ...]
    n_real: int
    notes: tuple[str, ...] = ()
    label_shift: float = 0.0  # of regression: what was taken off the labels
    label_scale: float = 1.0  # and what they were divided by
    imputed: int = 0  # missing cells filled in, train and test
    flagged: int = 0  # of these, those that a flag tells of
    unseen: int = 0  # cells of test rows whose category no training row has
    bounds: tuple[float, float] = (0.0, 1.0)  # what scale=global mapped to 0 and 1
    sample_weight: Floats | None = None  # of the training rows, as they came
    weight: Floats | None = None  # with that of the classes, mean 1; None: all alike
    huber_delta: float | None = None  # of the Huber loss; None: squared error
    # By class, what its probability is divided by before the largest is predicted.
    threshold: tuple[float, ...] | None = None
    is_randomised: bool = False  # whether training labels are, by `label_epsilon`
    score: str = "accuracy"  # the one that leads
    score_reason: str = ""
    positive: int = 1  # of two classes the one that the average precision is of
    blocks: Places | None = None  # of the training rows; None: every row is alone
    test_blocks: Places | None = None  # of the test rows, as those
    n_blocks: int | None = None  # of all rows; None: every row is alone
    places: Places | None = None  # of the training rows, in the order of the table
    n_equal: int = 0  # of all rows, those that equal another
    # The share of test rows that equal a training row; None: there are none, or nobody
    # knows.
    test_rows_seen: float | None = None
    task_reason: str = ""
    split: str = ""  # what split its rows
    # The raw train and test rows, where `prepare` had them.
    frames: tuple[Frame, Frame] | None = field(default=None, repr=False, compare=False)

    @property
    def n_classes(self) -> int:
        """Return the number of classes, 0 for regression."""
        return len(self.label_names)

    @property
    def largest_table(self) -> int:
        """Return how many values the largest training table of a party has."""
        return max((party.X_train.size for party in self.parties), default=0)

    @property
    def n_features(self) -> int:
        """Return the number of features of all parties, planted ones included."""
        return sum(len(party.features) for party in self.parties)


AS_THEY_ARE = LabelConfig()


def prepare(
    dataset: Dataset,
    config: DataConfig,
    *,
    parties: dealing.PartySpec | None = None,
    spurious: float | Sequence[float] = 0.0,
    seed: int = 0,
    groups: Mapping[str, Sequence[str]] | None = None,
    labels: LabelConfig = AS_THEY_ARE,
    in_order: bool = False,
) -> Problem:
    """Split a data set among parties and into train and test rows.

    Parameters
    ----------
    dataset : Dataset
        The raw data, from `load` or `from_arrays`.
    config : DataConfig
        How columns are dealt, rows are split, and values are scaled.
    parties : int, sequence of int, or mapping of name to columns, optional
        How many parties; how many columns each has; or the columns (names or globs) of
        each. The data set's own unless given.
    spurious : float or sequence of float
        Planted columns of noise, as a share of a party's own columns; one for all
        parties or one per party.
    seed : int
        Seed of the split, of a random deal of columns, and of the noise.
    groups : mapping of feature name to columns, optional
        Columns (names or globs) of one party that are one feature.
    labels : LabelConfig
        How much rows and classes weigh, and the loss.
    in_order : bool
        Whether training and test rows stay in the order of the table.

    Returns
    -------
    Problem
        What every party trains and tests on.

    Examples
    --------
    >>> from lessvfl import data
    >>> table = data.from_arrays([[i, i % 3, -i] for i in range(20)], [0, 1] * 10)
    >>> problem = prepare(table, DataConfig(), parties=[2, 1], spurious=0.5)
    >>> [party.features for party in problem.parties]
    [('x0', 'x1', 'spurious_party0_0'), ('x2',)]
    """
    seed, dataset = config.row_seed(seed), randomise(dataset, labels)
    count, X = dataset.own_parties if parties is None else parties, dataset.X
    dealing.refuse_taken(dataset.taken, count)
    dealt = dealing.deal_columns(X.names, count, config, seed, X.unused)
    shares = _shares_of(spurious, len(dealt))
    feature_of = dealing.features_of(dealt, groups)
    held = {name: usable(name, columns, X) for name, columns in dealt.items()}
    marks = marks_of(X, config.missing_values)
    warn_of_absent(X, config.missing_values)
    used = set(dealing.owners(held))
    if config.equal_rows == "distinct":
        dataset = distinct(dataset, used, marks)
    dataset, _ = settle_test_rows(dataset, config)
    blocks = find_blocks(dataset, config)
    X_train, X_test, alone, train, test = _rows(dataset, config, seed, in_order, blocks)
    blanked = blank(X_train, marks), blank(X_test, marks)
    bounds = _bounds(*blanked, used) if config.scale == "global" else (0.0, 1.0)
    encodings, matrices, counts = [], [], CellCounts()
    for party, columns in held.items():
        encoding = Encoding.fit(
            party,
            X_train,
            columns,
            scale=config.scale,
            bounds=bounds,
            max_categories=config.max_categories,
            missing=config.missing,
            marks=marks,
            groups=feature_of,
        )
        both, met = zip(*map(encoding.apply, (X_train, X_test)), strict=True)
        others = () if alone is None else (encoding.apply(alone)[0],)
        encodings.append(encoding)
        matrices.append((*both, *others))
        counts = sum(met, counts)
    if config.scale != "none":
        _warn_constant(encodings)
    if blocks is not None and (copies := blocks.finding()):
        warn(f"{copies.what}: {copies.done}.")
    tables = _planted(dataset, encodings, matrices, shares, config.noise, seed)
    notes = _notes(dataset.X, dealt, count, counts)
    return replace(
        labels_alone(dataset, train, test, blocks, config, labels),
        parties=tables,
        n_real=sum(len(encoding.features) for encoding in encodings),
        notes=(*dataset.notes, *notes, *(blocks.sentences() if blocks else ())),
        imputed=counts.imputed,
        flagged=counts.flagged,
        unseen=counts.unseen,
        bounds=bounds,
        test_rows_seen=seen_share(*blanked, used),
        frames=(X_train, X_test),
    )


def _shares_of(spurious: Any, n_parties: int) -> list[float]:
    """Return one share of planted columns per party, or refuse what was given."""
    is_many = isinstance(spurious, list | tuple)
    shares = list(spurious) if is_many else [spurious] * n_parties
    if len(shares) != n_parties:
        raise ConfigError(
            f"The 'spurious' shares must be one per party, {n_parties}. "
            f"Got {len(shares)}."
        )
    kind = a_float(0.0, 10.0)
    for share in shares:
        if not kind.accepts(share):
            raise refuse("spurious", "share", kind.allowed, share)
    return shares


def _noise_of(matrices: Sequence[Floats], noise: str) -> tuple[float, float]:
    """Return mean and standard deviation of planted columns.

    For ``noise="range"`` they are the mean of all values of all parties, and half of
    the distance between the greatest and the least, as in the released code.
    """
    cells = [matrix for matrix in matrices if matrix.size]
    if noise == "unit" or not cells:
        return 0.0, 1.0
    total = sum(float(matrix.sum()) for matrix in cells)
    mean = total / sum(matrix.size for matrix in cells)
    low = min(float(matrix.min()) for matrix in cells)
    high = max(float(matrix.max()) for matrix in cells)
    return mean, (high - low) / 2.0


def _planted(
    dataset: Dataset,
    encodings: Sequence[Encoding],
    matrices: Sequence[tuple[Floats, ...]],
    shares: Sequence[float],
    noise: str,
    seed: int,
) -> tuple[PartyTable, ...]:
    """Put every party's table together: its rows and noise.

    Rows are those of training, of test, and those that it has alone, if there are any.
    """
    # All parties' training rows, then their test rows.
    spreads = [_noise_of(part, noise) for part in zip(*matrices, strict=True)]
    tables = []
    for encoding, parts, share in zip(encodings, matrices, shares, strict=True):
        n_planted = int(share * len(encoding.columns) + 1e-9)
        planted = [f"spurious_{encoding.party}_{i}" for i in range(n_planted)]
        if taken := sorted(set(planted) & set(dataset.X.names)):
            raise DataError(
                f"Names of planted columns must be free. "
                f"Got a column '{taken[0]}' in the table; rename it."
            )
        rng = np.random.default_rng(stream_seed(seed, "spurious", encoding.party))
        X_train, X_test, *alone = (
            np.hstack([matrix, rng.normal(*spread, size=(len(matrix), n_planted))])
            for matrix, spread in zip(parts, spreads, strict=True)
        )
        whole, significant = encoding.with_planted(planted), None
        features = whole.features
        if dataset.significant is not None:
            truth = dict(zip(dataset.X.names, dataset.significant, strict=True))
            matter = {c.feature for c in encoding.columns if truth[c.name]}
            significant = np.array([f in matter for f in features], dtype=bool)
        spurious = np.arange(len(features)) >= len(encoding.features)
        tables.append(
            PartyTable(
                name=whole.party,
                X_train=X_train,
                X_test=X_test,
                features=features,
                groups=whole.groups,
                spurious=spurious,
                significant=significant,
                encoding=whole,
                X_alone=alone[0] if alone else None,
            )
        )
    return tuple(tables)


def labels_alone(
    dataset: Dataset,
    train: Places,
    test: Places | None,
    blocks: Blocks | None,
    config: DataConfig,
    labels: LabelConfig,
) -> Problem:
    """Return the labels as they are trained on, without any party's table.

    `train` and `test` are places of rows; where `test` is None, the test rows are the
    data set's own.
    """
    check_labels(dataset, labels)
    labels_train = dataset.training_labels[train]
    labels_test = dataset.y_test if test is None else dataset.y[test]
    assert labels_test is not None, "with test rows of its own"
    y_train, y_test, shift, scale = labels_train, labels_test, 0.0, 1.0
    task, n_classes = dataset.task, len(dataset.label_names)
    if task == "regression" and config.scale_labels:
        shift, scale = centre(y_train, labels)
        y_train, y_test = (scaled_labels(y, shift, scale) for y in (y_train, y_test))
    sample_weight = None if dataset.weight is None else dataset.weight[train]
    weight = row_weights(dataset, y_train, sample_weight, labels)
    counts = class_counts(labels_train, labels_test, n_classes)
    score, reason = leading_score(task, counts, labels)
    problem = Problem(
        name=dataset.name,
        task=task,
        parties=(),
        y_train=y_train,
        y_test=y_test,
        label_names=dataset.label_names,
        n_real=0,
        label_shift=shift,
        label_scale=scale,
        sample_weight=sample_weight,
        weight=weight,
        huber_delta=huber_delta_of(y_train, labels) if task == "regression" else None,
        threshold=threshold_of(dataset, y_train, weight, labels),
        is_randomised=dataset.randomised is not None,
        score=score,
        score_reason=reason,
        positive=positive_class(counts),
        places=train,
        task_reason=dataset.task_reason,
        split=split_words(dataset, config),
    )
    if blocks is None:
        return problem
    n_alone = len(labels_test) if test is None else 0  # rows that are no blocks' own
    return replace(
        problem,
        blocks=some_blocks(blocks.of_row, train),
        test_blocks=None if test is None else some_blocks(blocks.of_row, test),
        n_blocks=blocks.n_blocks + n_alone,
        n_equal=blocks.n_equal,
    )


def class_counts(
    y_train: NDArray[Any], y_test: NDArray[Any], n_classes: int
) -> NDArray[Any]:
    """Count the training and test rows of every class; amounts have none."""
    if not n_classes:
        return np.empty(0, dtype=np.int64)
    first, second = (np.bincount(y, minlength=n_classes) for y in (y_train, y_test))
    return np.asarray(first + second)


def raw_frame(problem: Problem, table: PartyTable) -> Frame:
    """Return the raw columns of one party of a prepared problem.

    Training rows come first, then test rows, both in the order of the labels; planted
    columns stand at the end as they were drawn.
    """
    assert problem.frames is not None, "a problem that `prepare` made"
    names, encoded = table.encoding.names, np.vstack([table.X_train, table.X_test])
    n_real = len(names) - int(table.spurious.sum())
    planted = encoded[:, encoded.shape[1] - (len(names) - n_real) :]
    real = stack_rows([frame.select(names[:n_real]) for frame in problem.frames])
    return join_columns([real, Frame.of_numbers(names[n_real:], planted)])


def _rows(
    dataset: Dataset,
    config: DataConfig,
    seed: int,
    in_order: bool,
    blocks: Blocks | None,
) -> tuple[Frame, Frame, Frame | None, Places, Places | None]:
    """Return tables to train and test on and of the rows that parties have alone.

    With them come the places of the training and test rows, as for `labels_alone`. All
    training rows are common where no table of rows alone comes.
    """
    train, test = np.arange(len(dataset.y)), None
    X_train, X_test, alone = dataset.X, dataset.X_test, None
    if X_test is None:
        of_row = None if blocks is None else blocks.of_row
        train, test = split.split_rows(dataset, config, seed, in_order, of_row)
        X_train, X_test = dataset.X.take(train), dataset.X.take(test)
    if config.overlap < 1:
        common, others = split.common_rows(X_train.n_rows, config.overlap, seed)
        alone = X_train.take(others) if len(others) else None
        X_train, train = X_train.take(common), train[common]
    if len(np.unique(dataset.training_labels[train])) < 2:
        mixes = "the setting split=random mixes the rows"
        raise DataError(
            f"The training rows of '{dataset.name}' must have two different labels or "
            f"more. Got one; {mixes if alone is None else 'a larger overlap has more'}."
        )
    return X_train, X_test, alone, train, test


def _bounds(train: Frame, test: Frame, used: Collection[str]) -> tuple[float, float]:
    """Return least and greatest number of all parties, train and test together."""
    days = {column.name for column in train.columns if column.kind == "date"}
    numbers = [part.select([*{*used} - days]).numeric.ravel() for part in (train, test)]
    values = np.concatenate(numbers)
    present = values[np.isfinite(values)]  # others are refused by name later
    return (float(present.min()), float(present.max())) if present.size else (0.0, 1.0)


def _warn_constant(encodings: Sequence[Encoding]) -> None:
    """Warn once of all columns with one value in the training rows."""
    constant = [
        f"'{column.name}' of {encoding.party}"
        for encoding in encodings
        for column in encoding.columns
        if column.constant
    ]
    if constant:
        n = len(constant)
        many = "1 column has" if n == 1 else f"{n} columns have"
        warn(
            f"{many} one value in all training rows and can tell nothing: "
            f"{listed(constant)}."
        )


def _notes(
    frame: Frame,
    held: Mapping[str, Sequence[str]],
    parties: dealing.PartySpec,
    counts: CellCounts,
) -> tuple[str, ...]:
    """Return the sentences about what was done to the data on the way."""
    notes: list[str] = []
    names = [*frame.names]
    if isinstance(parties, int):  # which deals no others
        names = [name for name in names if name not in frame.unused]
    excluded = [*dealing.excluded_columns(names, parties)]
    if excluded:
        are = plural(len(excluded), "column is", "columns are")
        notes.append(f"{are} excluded by name: {listed(excluded)}.")
    n_held = sum(len(columns) for columns in held.values())
    n_left = len(names) - len(excluded) - n_held
    do, were = ("does", "was") if n_left == 1 else ("do", "were")
    if n_left and isinstance(parties, Mapping):
        belong = plural(n_left, "column belongs", "columns belong")
        notes.append(f"{belong} to no party and {were} left out.")
    elif n_left:
        notes.append(
            f"{n_left} of {plural(len(names), 'column')} {do} not divide evenly "
            f"among {plural(len(held), 'party', 'parties')} and {were} dropped."
        )
    if isinstance(parties, Mapping):
        frame = frame.select([name for columns in held.values() for name in columns])
    notes += left_out_sentences(frame)
    return (*notes, *counts.sentences())
