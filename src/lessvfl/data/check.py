"""The check of a table: all that a run would say, change or refuse, in one go."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lessvfl.data import columns, files, leaks, readers, relations, split, table
from lessvfl.data.blocks import find_blocks
from lessvfl.data.column import KIND_WORDS, Finding
from lessvfl.data.encode import Encoding
from lessvfl.data.frame import DataConfig, Dataset, Frame
from lessvfl.data.problem import Problem, prepare
from lessvfl.data.roles import take_units, take_weights
from lessvfl.data.sentinels import MarksByColumn, blank, marks_of
from lessvfl.errors import LessVFLError, LessVFLWarning

T = TypeVar("T")
NOBODYS = Finding(None, "no party names it", "left out", "left out")
NO_LABEL = "Nothing is said about labels: none is named; a run needs one"
EXCLUDED = replace(NOBODYS, what="excluded by its party")


@dataclass(frozen=True)
class TableReport:
    """What a table holds, what stops a run, and what is done about its columns."""

    name: str
    n_rows: int
    label: str | None
    label_names: tuple[str, ...]
    task: str | None
    task_reason: str | None
    problems: tuple[str, ...]  # each one stops a run
    findings: tuple[tuple[str | None, Finding], ...]  # with the party that holds it
    kinds: Mapping[str, int]  # columns that are used, by what they are
    unsaid: tuple[str, ...] = ()  # what was not looked at, and why
    test_rows_seen: float | None = None  # share that equal a training row, by seed 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as a value that ``json.dumps`` takes."""
        return {
            "data": {"name": self.name, "n_rows": self.n_rows},
            "label": self.label,
            "task": self.task,
            "task_reason": self.task_reason,
            "label_names": list(self.label_names),
            "columns": dict(self.kinds),
            "test_rows_seen": self.test_rows_seen,
            "problems": list(self.problems),
            "unsaid": list(self.unsaid),
            "findings": [
                {
                    "column": one.column,
                    "party": party,
                    "what": one.what,
                    "done": one.done,
                    "level": one.level,
                }
                for party, one in self.findings
            ],
        }


def held_columns(
    dataset: Dataset,
    parties: split.PartySpec | None,
    config: DataConfig,
    seed: int = 0,
) -> dict[str, list[str]]:
    """Return the columns every party is dealt, those that are left out among them."""
    count = dataset.own_parties if parties is None else parties
    with warnings.catch_warnings():  # prepare warns of columns of nobody
        warnings.simplefilter("ignore", LessVFLWarning)
        X = dataset.X
        return split.deal_columns(X.names, count, config, seed, X.unused)


def run_changes(
    dataset: Dataset,
    held: Mapping[str, Sequence[str]],
    parties: split.PartySpec | None,
    config: DataConfig,
) -> list[tuple[str | None, Finding]]:
    """Return what a run does to the columns that parties hold, with the party's name.

    Columns that a number of parties never deals, ids as an example, have none.
    """
    owner = {column: party for party, names in held.items() for column in names}
    named = isinstance(parties, Mapping)
    names = [n for n in dataset.X.names if n in owner or not named]
    found = columns.changes(dataset.X, dataset.findings, names, config.max_categories)
    return [(owner.get(one.column or ""), one) for one in found]


def giveaways(
    dataset: Dataset, held: Mapping[str, Sequence[str]]
) -> list[tuple[str | None, Finding]]:
    """Return the columns in use that tell the label on their own."""
    owner = {column: party for party, names in held.items() for column in names}
    used, is_class = dataset.X.select([*owner]), dataset.task != "regression"
    found = leaks.giveaways(used, dataset.y, is_class)
    return [(owner[str(one.column)], one) for one in found]


def check_table(
    path: Path,
    *,
    parties: split.PartySpec | None = None,
    label: str | None = None,
    sample_weight: str | None = None,
    group_column: str | None = None,
    task: str | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    config: DataConfig | None = None,
) -> TableReport:
    """Say of a file all that stops a run, and what a run does about each column.

    Where no label is named, and no column is named like one, all is said but that.

    Parameters
    ----------
    path : Path
        A file that `load` takes.
    parties, groups : optional
        As for `prepare`.
    label, sample_weight, group_column, task : str, optional
        As for `load`.
    config : DataConfig, optional
        The settings of the run.

    Returns
    -------
    TableReport
        With no problems exactly where a run would begin.
    """
    config = config or DataConfig()
    attempt = Attempts()
    problems = attempt.problems
    roles = (label, sample_weight, group_column, task)
    dataset, target, unsaid = _load(path, *roles, attempt)
    if dataset is None:
        return nothing_read(path.stem, problems, target)
    has_labels = len(dataset.y) > 0
    X = dataset.X
    is_one_side = bool(unsaid) and parties is None  # perhaps a party's own table
    parties = 1 if is_one_side else parties
    held = attempt(lambda: held_columns(dataset, parties, config))
    for party, names in (held or {}).items():
        attempt(partial(columns.usable, party, names, X))
    if held is not None and groups:
        attempt(lambda: split.features_of(held, groups))
    y = dataset.y if has_labels else None
    found = (
        [(None, one) for one in dataset.findings]
        if held is None
        else run_changes(dataset, held, parties, config)
    )
    owner = {column: party for party, own in (held or {}).items() for column in own}
    of_nobody = {
        name
        for name in X.names
        if held is not None
        and name not in owner
        # A number of parties deals no column that is left out; its finding says why.
        and (isinstance(parties, Mapping) or name not in X.unused)
    }
    mine = X.select([name for name in X.names if name not in of_nobody])
    marks = attempt(lambda: marks_of(X, config.missing_values)) or {}
    n_problems, problem = len(problems), None
    if has_labels and not problems:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LessVFLWarning)  # findings say it
            problem = attempt(
                lambda: prepare(dataset, config, parties=parties, groups=groups)
            )
    flags = partial(_flagged, problem, mine, marks, config)
    flagged = set() if problems else attempt(flags) or set()
    is_class = dataset.task != "regression"
    grouped = (
        split.features_of(held, groups) if held and groups and not problems else {}
    )
    found += [
        (owner.get(one.column or ""), one)
        for one in columns.remarks(blank(mine, marks), y, is_class, flagged, grouped)
    ]
    if has_labels and dataset.task != "regression":
        rare = relations.rare_classes(dataset.y, dataset.label_names, target or "")
        found += [(None, rare)] if rare is not None else []
    blocks = find_blocks(dataset, config) if has_labels else None
    if blocks is not None and (copies := blocks.finding()):
        found.append((None, copies))
    excluded = {} if held is None else split.excluded_columns(X.names, parties or 0)
    found += [(by, replace(EXCLUDED, column=name)) for name, by in excluded.items()]
    if target is not None:  # otherwise one of them is the label
        rest = of_nobody.difference(excluded)
        found += [(None, replace(NOBODYS, column=name)) for name in rest]
    if any(one.level == "stops" for _, one in found):
        del problems[n_problems:]  # all that stops is named
    problems += stops(found)
    if is_one_side:
        found = [(None, one) for _, one in found]
    return TableReport(
        dataset.name,
        X.n_rows,
        target,
        dataset.label_names,
        dataset.task if has_labels else None,
        dataset.task_reason if has_labels else None,
        tuple(problems),
        in_order(found, X.names),
        kinds_of(mine),
        unsaid,
        None if problem is None else problem.test_rows_seen,
    )


class Attempts:
    """Steps that may be refused, and the sentences of those that were."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, step: Callable[[], T]) -> T | None:
        """Return what a step returns, None where it is refused."""
        try:
            return step()
        except LessVFLError as error:
            self.problems.append(" ".join(str(error).split()))
            return None


def nothing_read(
    name: str, problems: Sequence[str], label: str | None = None
) -> TableReport:
    """Return what is said of a table that cannot be read."""
    return TableReport(name, 0, label, (), None, None, tuple(problems), (), {})


OwnedFindings = Sequence[
    tuple[str | None, Finding]
]  # with the party that holds the column


def _flagged(
    problem: Problem | None, frame: Frame, marks: MarksByColumn, config: DataConfig
) -> set[str]:
    """Return the columns that get a flag, where there are no labels by all rows."""
    if problem is not None:
        encodings = [party.encoding for party in problem.parties]
    else:
        names = [frame.names[index] for index in frame.used]
        if np.isinf(frame.numeric).any() or not names:
            return set()
        missing = config.missing
        encodings = [Encoding.fit("t", frame, names, missing=missing, marks=marks)]
    return {name for encoding in encodings for name in encoding.flagged}


def stops(found: OwnedFindings) -> list[str]:
    """Return the sentences of findings that stop a run."""
    return [
        f"Column '{one.column}' must hold finite numbers. Got {one.what}: "
        "leave such cells empty."
        for _, one in found
        if one.level == "stops"
    ]


def in_order(
    found: OwnedFindings, names: Sequence[str]
) -> tuple[tuple[str | None, Finding], ...]:
    """Return findings in the order of the columns, those of the file first."""
    place = {name: index for index, name in enumerate(names)}
    return tuple(sorted(found, key=lambda pair: place.get(pair[1].column or "", -1)))


def _load(
    path: Path,
    label: str | None,
    sample_weight: str | None,
    group_column: str | None,
    task: str | None,
    attempt: Attempts,
) -> tuple[Dataset | None, str | None, tuple[str, ...]]:
    """Load a file as `load` does, and go on without labels where there are none.

    With it come the name of the label and, where none is named, a sentence on that.
    """
    if path.suffix.lower() == ".npz":
        arrays = attempt(lambda: _arrays(path))
        if arrays is None or label is not None or "y" in arrays:
            more = (sample_weight, group_column, task)
            load = partial(files.load_file, path, label, *more)
            return None if arrays is None else attempt(load), label or "y", ()
        alone = attempt(lambda: files.load_columns(path))
        data = None if alone is None else _without_labels(alone[0], path.stem)
        return data, None, (f"{NO_LABEL}, as the array 'y'.",)
    raw = attempt(lambda: _read(path))
    if raw is None:
        return None, label, ()
    target: str | None = None
    unsaid: tuple[str, ...] = ()
    if label is None and len(files.own_labels(raw.names)) != 1:
        unsaid = (f"{NO_LABEL}, perhaps --label '{files.likely_label(raw.names)}'.",)
    else:
        target = attempt(lambda: files.label_column(raw.names, label, path))
    labels = None if target is None else attempt(lambda: files.read_labels(raw, target))
    frame = raw.frame([name for name in raw.names if name != target])
    known = None
    if labels is not None:
        known = attempt(
            lambda: table.from_arrays(frame, labels, name=path.stem, task=task)
        )
    own = known or _without_labels(frame, path.stem)
    if sample_weight is not None:
        own = attempt(partial(take_weights, own, sample_weight)) or own
    if group_column is not None:
        own = attempt(partial(take_units, own, group_column, raw.cells)) or own
    return own, target, unsaid


def _arrays(path: Path) -> Mapping[str, Any]:
    readers.check_file(path)
    return readers.read_npz(path, [])


def _read(path: Path) -> readers.RawTable:
    readers.check_file(path)
    return readers.read_table(path)


def _without_labels(frame: Frame, name: str) -> Dataset:
    """Return a data set whose columns can be judged, and nothing else."""
    inferred, findings = columns.infer_columns(frame)
    nothing = np.empty(0, dtype=np.int64)
    return Dataset(name, inferred, nothing, "binary", findings=findings)


def kinds_of(frame: Frame) -> dict[str, int]:
    """Count the columns that are used by what they are."""
    counts = Counter(column.kind for column in frame.columns if not column.left_out)
    return {words: counts[kind] for kind, words in KIND_WORDS.items()}
