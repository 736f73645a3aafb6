"""From a data set to a problem: parties, rows, encoding, planted noise."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data import plant, split
from lessvfl.data.encode import Counts, Encoding
from lessvfl.data.frame import DataConfig, Dataset, Frame, PartyTable, Problem
from lessvfl.errors import ConfigError, DataError, LessVFLWarning


def prepare(
    dataset: Dataset,
    config: DataConfig,
    *,
    parties: split.Parties | None = None,
    spurious: float | Sequence[float] = 0.0,
    seed: int = 0,
    groups: Mapping[str, Sequence[str]] | None = None,
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
        each. The data set's own number unless given.
    spurious : float or sequence of float
        Planted columns of noise, as a share of a party's own columns; one for all
        parties or one per party.
    seed : int
        Seed of the split, of a random deal of columns, and of the noise.
    groups : mapping of feature name to columns, optional
        Columns (names or globs) of one party that are one feature.

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
    names = dataset.X.names
    count = dataset.n_parties if parties is None else parties
    held = split.deal_columns(names, count, config, seed)
    shares = plant.shares_of(spurious, len(held))
    feature_of = _features(held, groups)
    train, test, y_train, y_test = _rows(dataset, config, seed)
    bounds = _bounds(train, test, held) if config.scale == "global" else (0.0, 1.0)

    encodings, matrices, counts = [], [], Counts()
    for party, columns in held.items():
        encoding = Encoding.fit(
            party,
            train,
            columns,
            scale=config.scale,
            bounds=bounds,
            max_categories=config.max_categories,
            groups=feature_of,
        )
        X_train, of_train = encoding.apply(train)
        X_test, of_test = encoding.apply(test)
        encodings.append(encoding)
        matrices.append((X_train, X_test))
        counts += of_train + of_test
    if config.scale != "none":
        _warn_constant(encodings)

    spreads = [
        plant.spread_of(part, config.noise) for part in zip(*matrices, strict=True)
    ]
    tables = []
    for encoding, pair, share in zip(encodings, matrices, shares, strict=True):
        n_planted = int(share * len(encoding.columns) + 1e-9)
        planted = [f"spurious_{encoding.party}_{i}" for i in range(n_planted)]
        _refuse_taken(planted, names)
        n_rows = [len(matrix) for matrix in pair]
        noise = plant.draw(encoding.party, n_planted, n_rows, spreads, seed)
        X_train, X_test = (np.hstack(both) for both in zip(pair, noise, strict=True))
        tables.append(_table(dataset, encoding, planted, X_train, X_test))

    shift, scale = 0.0, 1.0
    if dataset.task == "regression" and config.scale_labels:
        shift, scale = float(y_train.mean()), float(y_train.std()) or 1.0
        y_train, y_test = (y_train - shift) / scale, (y_test - shift) / scale
    return Problem(
        name=dataset.name,
        task=dataset.task,
        parties=tuple(tables),
        y_train=y_train,
        y_test=y_test,
        label_shift=shift,
        label_scale=scale,
        label_names=dataset.label_names,
        n_real=sum(len(encoding.features) for encoding in encodings),
        notes=dataset.notes + _notes(names, held, count, counts),
        imputed=counts.imputed,
        unseen=counts.unseen,
    )


def _rows(
    dataset: Dataset, config: DataConfig, seed: int
) -> tuple[Frame, Frame, NDArray[Any], NDArray[Any]]:
    """Return train and test tables with their labels."""
    if dataset.X_test is not None and dataset.y_test is not None:
        parts = dataset.X, dataset.X_test, dataset.y, dataset.y_test
    else:
        train, test = split.split_rows(dataset, config, seed)
        parts = (
            dataset.X.take(train),
            dataset.X.take(test),
            dataset.y[train],
            dataset.y[test],
        )
    if len(np.unique(parts[2])) < 2:
        raise DataError(
            f"The training rows of '{dataset.name}' must have two different labels or "
            f"more. Got one; the setting split=stratified mixes the rows."
        )
    return parts


def _features(
    held: Mapping[str, Sequence[str]], groups: Mapping[str, Sequence[str]] | None
) -> dict[str, str]:
    """Return the feature of each column that a group names."""
    owner = {column: party for party, columns in held.items() for column in columns}
    feature_of: dict[str, str] = {}
    for feature, patterns in (groups or {}).items():
        columns = split.match_columns(list(owner), patterns, f"feature '{feature}'")
        holders = sorted({owner[column] for column in columns})
        if len(holders) > 1:
            raise ConfigError(
                f"The columns of feature '{feature}' must belong to one party. "
                f"Got columns of {' and '.join(repr(party) for party in holders)}."
            )
        for column in columns:
            if column in feature_of:
                raise ConfigError(
                    f"Column '{column}' must belong to one feature. "
                    f"Got '{feature_of[column]}' and '{feature}'."
                )
            feature_of[column] = feature
    for feature in feature_of.values():
        if feature in owner and feature_of.get(feature) != feature:
            raise ConfigError(
                f"The feature '{feature}' must not be named like a column outside it. "
                f"Got a column '{feature}' of party '{owner[feature]}'."
            )
    return feature_of


def _bounds(
    train: Frame, test: Frame, held: Mapping[str, Sequence[str]]
) -> tuple[float, float]:
    """Return least and greatest number of all parties, train and test together."""
    columns = [name for names in held.values() for name in names]
    lows, highs = [], []
    for frame in (train, test):
        index_of = {name: index for index, name in enumerate(frame.names)}
        values = frame.numeric[:, [index_of[c] for c in columns if c in index_of]]
        present = values[np.isfinite(values)]  # others are refused by name later
        if present.size:
            lows.append(float(present.min()))
            highs.append(float(present.max()))
    return (min(lows), max(highs)) if lows else (0.0, 1.0)


def _table(
    dataset: Dataset,
    encoding: Encoding,
    planted: Sequence[str],
    X_train: NDArray[np.float64],
    X_test: NDArray[np.float64],
) -> PartyTable:
    """Put one party's table together."""
    whole = encoding.with_planted(planted)
    features = whole.features
    spurious = np.arange(len(features)) >= len(encoding.features)
    significant = None
    if dataset.significant is not None:
        truth = dict(zip(dataset.X.names, dataset.significant, strict=True))
        matter = {column.feature for column in encoding.columns if truth[column.name]}
        significant = np.array([feature in matter for feature in features], dtype=bool)
    return PartyTable(
        name=encoding.party,
        X_train=X_train,
        X_test=X_test,
        features=features,
        groups=whole.groups,
        spurious=spurious,
        significant=significant,
        encoding=whole,
    )


def _refuse_taken(planted: Sequence[str], names: Sequence[str]) -> None:
    taken = set(planted) & set(names)
    if taken:
        raise DataError(
            f"Names of planted columns must be free. "
            f"Got a column '{sorted(taken)[0]}' in the table; rename it."
        )


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
        shown = ", ".join(constant[:5]) + (", ..." if len(constant) > 5 else "")
        warnings.warn(
            f"{many} one value in all training rows and can tell nothing: {shown}.",
            LessVFLWarning,
            stacklevel=3,
        )


def _notes(
    names: Sequence[str],
    held: Mapping[str, Sequence[str]],
    parties: split.Parties,
    counts: Counts,
) -> tuple[str, ...]:
    """Return the sentences about what was done to the data on the way."""
    notes = []
    n_left = len(names) - sum(len(columns) for columns in held.values())
    if n_left and isinstance(parties, Mapping):
        notes.append(f"{n_left} columns belong to no party and were left out.")
    elif n_left:
        notes.append(
            f"{n_left} of {len(names)} columns do not divide evenly among "
            f"{len(held)} parties and were dropped."
        )
    if counts.imputed:
        notes.append(
            f"{counts.imputed} missing cells were filled in by the mean or the most "
            f"frequent value of the party's training rows."
        )
    if counts.unseen:
        notes.append(
            f"{counts.unseen} test cells hold a category that no training row has; "
            f"they are encoded as zeros."
        )
    return tuple(notes)
