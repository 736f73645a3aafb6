"""Test rows that the data name: the latest ones, or those of some ids."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl.data.frame import DataConfig, Dataset, Places
from lessvfl.errors import ConfigError, DataError
from lessvfl.terms import plural


def check_split(dataset: Dataset, config: DataConfig) -> None:
    """Refuse settings of test rows that contradict the data, or each other."""
    if config.gap and dataset.times is None:
        raise ConfigError(
            "The 'gap' setting must be 0 without a time column, before whose latest "
            f"rows it lies. Got {config.gap:g}."
        )
    if config.folds == 1:
        return
    if config.split_seed is not None:
        raise ConfigError(
            "The 'folds' setting must be 1 where seeds share their rows, as those of "
            f"an ensemble do. Got {config.folds}."
        )
    if dataset.times is not None:
        raise ConfigError(
            "The 'folds' setting must be 1 with a time column: each part would be "
            f"tested by a model that has seen later rows. Got {config.folds}."
        )
    if dataset.is_test is not None or dataset.X_test is not None:
        raise ConfigError(
            "The 'folds' setting must be 1 where test rows are named: every row would "
            f"be one once. Got {config.folds}."
        )


def split_words(dataset: Dataset, config: DataConfig) -> str:
    """Say what splits the rows: what names test rows, or else the settings."""
    if dataset.is_test is not None or dataset.X_test is not None:
        return dataset.named_by or "test rows of the data"
    return plural(config.folds, "fold") if config.folds > 1 else config.split


def settle_test_rows(
    dataset: Dataset, config: DataConfig
) -> tuple[Dataset, Places | None]:
    """Return a data set whose test rows are marked, where it names any.

    Of rows with times the latest are marked: as many as `test_share` says, or as near
    to it as rows of one time allow, which are on one side. Left out are training rows
    of the gap before them, and those of people who have test rows. The places of the
    rows that stay come with it, None where all do.
    """
    dataset, stays = _mark_latest(dataset, config)
    is_test, units = dataset.is_test, dataset.units
    if is_test is not None and units is not None:
        on_both = np.isin(units, units[is_test]) & ~is_test & stays
        if on_both.any():
            stays = stays & ~on_both
            rows = plural(int(on_both.sum()), "training row")
            note = f"{rows} of people who have test rows too left out."
            dataset = replace(dataset, notes=(*dataset.notes, note))
        if not (stays & ~is_test).any():
            raise DataError(
                f"The rows of '{dataset.name}' that are not for testing must leave one "
                "of somebody without a test row to train on. Got none."
            )
    if stays.all():
        return dataset, None
    rows_left = np.flatnonzero(stays)
    return dataset.take(rows_left), rows_left


def _mark_latest(
    dataset: Dataset, config: DataConfig
) -> tuple[Dataset, NDArray[np.bool_]]:
    """Return a data set with its latest rows marked, and which are in no gap."""
    times, all_stay = dataset.times, np.ones(len(dataset.y), dtype=np.bool_)
    if times is None:
        return dataset, all_stay
    n_test = len(times) - int(len(times) * (1.0 - config.test_share) + 1e-9)
    if not n_test:
        return replace(dataset, times=None), all_stay
    moments, counts = np.unique(times, return_counts=True)
    if len(moments) < 2:
        raise DataError(
            f"The times of '{dataset.name}' must be two or more, to test on later "
            f"ones. Got {_text(moments[0])} in every row."
        )
    n_later = counts[::-1].cumsum()[::-1]  # rows from each moment on
    first = moments[1:][np.abs(n_later[1:] - n_test).argmin()]
    is_test = times >= first
    gap: Any = config.gap
    gap_text = f"{config.gap:g}"
    if times.dtype.kind == "M":  # days, which are whole
        if gap > 10**6:  # no calendar goes so far back
            raise ConfigError(
                f"The 'gap' setting must be at most 1000000 days. Got {gap:g}."
            )
        n_days = math.ceil(gap)
        gap, gap_text = np.timedelta64(n_days, "D"), plural(n_days, "day")
    is_early = times < first - gap
    if not is_early.any():
        raise DataError(
            f"The rows of '{dataset.name}' before the gap must be one or more. Got "
            f"none more than {gap_text} before {_text(first)}."
        )
    stays = is_test | is_early
    notes = [
        f"Test rows are the latest {int(is_test.sum()):,} of {len(times):,}, from "
        f"{_text(first)} on; training rows end at {_text(times[is_early].max())}."
    ]
    if n_left_out := int((~stays).sum()):
        notes.append(f"{plural(n_left_out, 'row')} in the gap of {gap_text} left out.")
    notes = [*dataset.notes, *notes]
    return replace(dataset, times=None, is_test=is_test, notes=tuple(notes)), stays


def _text(time: Any) -> str:
    return str(time) if isinstance(time, np.datetime64) else f"{time:g}"
