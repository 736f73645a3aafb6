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

from lessvfl.data import advice, columns, dealing, files, leaks, readers, table
from lessvfl.data.blocks import find_blocks
from lessvfl.data.column import KIND_WORDS, Finding
from lessvfl.data.encode import Encoding
from lessvfl.data.frame import DataConfig, Dataset, Frame
from lessvfl.data.problem import Problem, prepare
from lessvfl.data.roles import NO_ROLES, Roles, with_roles
from lessvfl.data.sentinels import MarksByColumn, blank, marks_of
from lessvfl.errors import LessVFLError, LessVFLWarning

T = TypeVar("T")
NOBODYS = Finding(None, "no party names it", "left out", "left out")
NO_LABEL = "Nothing is said about labels: none is named; a run needs one"
EXCLUDED = replace(NOBODYS, what="excluded by its party")
IN_JSON = ("column", "party", "what", "done", "level")  # fields of a finding


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
    findings: tuple[Finding, ...]
    kinds: Mapping[str, int]  # columns that are used, by what they are
    unsaid: tuple[str, ...] = ()  # what was not looked at, and why
    test_rows_seen: float | None = None  # share that equal a training row, by seed 0
    privacy: str | None = None  # what a run would spend of it, or what runs have spent

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
            "privacy": self.privacy,
            "problems": list(self.problems),
            "unsaid": list(self.unsaid),
            "findings": [
                {key: getattr(finding, key) for key in IN_JSON}
                for finding in self.findings
            ],
        }


def held_columns(
    dataset: Dataset,
    parties: dealing.PartySpec | None,
    config: DataConfig,
    seed: int = 0,
) -> dict[str, list[str]]:
    """Return by party the names of the columns it is dealt, unused columns included."""
    count = dataset.own_parties if parties is None else parties
    with warnings.catch_warnings():  # prepare warns of columns of nobody
        warnings.simplefilter("ignore", LessVFLWarning)
        X = dataset.X
        dealing.refuse_taken(dataset.taken, count)
        return dealing.deal_columns(X.names, count, config, seed, X.unused)


def run_changes(
    dataset: Dataset,
    held: Mapping[str, Sequence[str]],
    parties: dealing.PartySpec | None,
    config: DataConfig,
) -> list[Finding]:
    """Return what a run does to the columns that parties hold.

    Columns that a number of parties never deals, ids as an example, have none.
    """
    owner = dealing.owners(held)
    named = isinstance(parties, Mapping)
    names = [n for n in dataset.X.names if n in owner or not named]
    changes = columns.changes(dataset.X, dataset.findings, names, config.max_categories)
    return _owned(changes, owner)


def giveaways(dataset: Dataset, held: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Return the columns in use that tell the label on their own."""
    owner = dealing.owners(held)
    used, is_class = dataset.X.select([*owner]), dataset.task != "regression"
    return _owned(leaks.giveaways(used, dataset.y, is_class), owner)


def _owned(findings: Sequence[Finding], owner: Mapping[str, str]) -> list[Finding]:
    """Return findings with the party that holds the column."""
    return [
        replace(f, party=None if f.column is None else owner.get(f.column))
        for f in findings
    ]


def check_table(
    path: Path,
    *,
    parties: dealing.PartySpec | None = None,
    label: str | None = None,
    sample_weight: str | None = None,
    group_column: str | None = None,
    task: str | None = None,
    time_column: str | None = None,
    test_ids: str | Path | None = None,
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
    label, sample_weight, group_column, task, time_column, test_ids : str, optional
        As for `load`.
    config : DataConfig, optional
        The settings of the run.

    Returns
    -------
    TableReport
        With no problems exactly where a run would begin.
    """
    attempt = Attempts()
    named = (sample_weight, group_column, time_column, test_ids)
    roles = attempt(partial(files.load_roles, *named)) or NO_ROLES
    dataset, target, unsaid = _load(path, label, roles, task, attempt)
    if dataset is None:
        return nothing_read(path.stem, attempt.problems, target)
    is_one_side = bool(unsaid) and parties is None  # perhaps a party's own table
    parties, config = 1 if is_one_side else parties, config or DataConfig()
    findings, frame, problem = _begin(dataset, parties, groups, config, target, attempt)
    if is_one_side:
        findings = [replace(finding, party=None) for finding in findings]
    has_labels = len(dataset.y) > 0
    return TableReport(
        dataset.name,
        dataset.X.n_rows,
        target,
        dataset.label_names,
        dataset.task if has_labels else None,
        dataset.task_reason if has_labels else None,
        tuple(attempt.problems),
        in_order(findings, dataset.X.names),
        kinds_of(frame),
        unsaid,
        None if problem is None else problem.test_rows_seen,
    )


def _begin(
    dataset: Dataset,
    parties: dealing.PartySpec | None,
    groups: Mapping[str, Sequence[str]] | None,
    config: DataConfig,
    target: str | None,
    attempt: Attempts,
) -> tuple[list[Finding], Frame, Problem | None]:
    """Begin a run as far as it gets; what stops it becomes a problem of `attempt`.

    Returns all that is said of columns, the table of those that parties hold, and the
    run's problem where it has one. `target` is the name of the label.
    """
    X, problems, has_labels = dataset.X, attempt.problems, len(dataset.y) > 0
    held = attempt(lambda: held_columns(dataset, parties, config))
    for party, names in (held or {}).items():
        attempt(partial(columns.usable, party, names, X))
    grouped: Mapping[str, str] = {}
    if held is not None and groups:
        grouped = attempt(partial(dealing.features_of, held, groups)) or {}
    owner = dealing.owners(held or {})
    # A number of parties deals no column that is left out; its finding says why.
    unused = frozenset() if isinstance(parties, Mapping) else X.unused
    of_nobody = set() if held is None else set(X.names).difference(owner, unused)
    frame = X.select([name for name in X.names if name not in of_nobody])
    marks = attempt(lambda: marks_of(X, config.missing_values)) or {}
    n_problems, problem = len(problems), None
    if has_labels and not problems:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LessVFLWarning)  # findings say it
            problem = attempt(
                lambda: prepare(dataset, config, parties=parties, groups=groups)
            )
    flagged: set[str] = set()
    if not problems:
        flagged = attempt(lambda: _flagged(problem, frame, marks, config)) or set()
    if held is None:
        findings = list(dataset.findings)
    else:
        findings = run_changes(dataset, held, parties, config)
    remarks = advice.remarks(
        blank(frame, marks),
        dataset.y if has_labels else None,
        dataset.task != "regression",
        flagged,
        () if problems else grouped,
    )
    findings += _owned(remarks, owner)
    if has_labels:
        findings += _about_rows(dataset, config, target or "")
    excluded = dealing.excluded_columns(X.names, parties or 0) if held else {}
    findings += [replace(EXCLUDED, column=n, party=p) for n, p in excluded.items()]
    if target is not None:  # otherwise one of them is the label
        rest = of_nobody.difference(excluded)
        findings += [replace(NOBODYS, column=name) for name in rest]
    if any(finding.level == "stops" for finding in findings):
        del problems[n_problems:]  # all that stops is named
    problems += stops(findings)
    return findings, frame, problem


def _flagged(
    problem: Problem | None,
    frame: Frame,
    marks: MarksByColumn,
    config: DataConfig,
) -> set[str]:
    """Return the columns that get a flag, where there are no labels by all rows."""
    names = [frame.names[index] for index in frame.used]
    if problem is not None:
        encodings = [party.encoding for party in problem.parties]
    elif np.isinf(frame.numeric).any() or not names:
        return set()
    else:
        missing = config.missing
        encodings = [Encoding.fit("t", frame, names, missing=missing, marks=marks)]
    return {name for encoding in encodings for name in encoding.flagged}


def _about_rows(dataset: Dataset, config: DataConfig, label: str) -> list[Finding]:
    """Return what is said of rare classes, and of rows that equal each other."""
    rare, copies = None, None
    if dataset.task != "regression":
        rare = advice.rare_classes(dataset.y, dataset.label_names, label)
    if (blocks := find_blocks(dataset, config)) is not None:
        copies = blocks.finding()
    return [finding for finding in (rare, copies) if finding is not None]


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


def stops(findings: Sequence[Finding]) -> list[str]:
    """Return the sentences of findings that stop a run."""
    return [
        f"Column '{finding.column}' must hold finite numbers. Got {finding.what}: "
        "leave such cells empty."
        for finding in findings
        if finding.level == "stops"
    ]


def in_order(findings: Sequence[Finding], names: Sequence[str]) -> tuple[Finding, ...]:
    """Return findings in the order of the columns, those of the file first."""
    place = {name: index for index, name in enumerate(names)}
    return tuple(sorted(findings, key=lambda f: place.get(f.column or "", -1)))


def _load(
    path: Path,
    label: str | None,
    roles: Roles,
    task: str | None,
    attempt: Attempts,
) -> tuple[Dataset | None, str | None, tuple[str, ...]]:
    """Load a file as `load` does, and go on without labels where there are none.

    With it come the name of the label and, where none is named, a sentence on that.
    """
    if path.suffix.lower() == ".npz":
        arrays = attempt(lambda: readers.read_npz(path, []))
        if arrays is None or label is not None or "y" in arrays:
            load = partial(files.load_file, path, label, roles, task)
            return None if arrays is None else attempt(load), label or "y", ()
        alone = attempt(lambda: files.load_columns(path))
        table_alone = None if alone is None else _without_labels(alone[0], path.stem)
        return table_alone, None, (f"{NO_LABEL}, as the array 'y'.",)
    raw = attempt(lambda: readers.read_table(path))
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
    data = known or _without_labels(frame, path.stem)
    data = data if target is None else replace(data, taken={target: "labels"})
    for setting, column in roles.columns.items():
        role = Roles(**{setting: getattr(roles, setting)})
        cells = {column: raw.written(column)} if column in raw.names else {}
        data = attempt(partial(with_roles, data, role, cells)) or data
    return data, target, unsaid


def _without_labels(frame: Frame, name: str) -> Dataset:
    """Return a data set whose columns can be judged, and nothing else."""
    inferred, findings = columns.infer_columns(frame)
    nothing = np.empty(0, dtype=np.int64)
    return Dataset(name, inferred, nothing, "binary", findings=findings)


def kinds_of(frame: Frame) -> dict[str, int]:
    """Count the columns that are used by what they are."""
    counts = Counter(column.kind for column in frame.columns if not column.left_out)
    return {words: counts[kind] for kind, words in KIND_WORDS.items()}
