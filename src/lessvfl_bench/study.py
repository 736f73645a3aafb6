"""Studies: what ``lessvfl bench`` measures besides the paper and its rivals.

A study is a frozen dataclass whose fields are the options of its command. It lists its
cases, measures one after the other or several at a time, each on one thread, and writes
lines about all of them. Records, ``--resume`` and progress come from here.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import statistics
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, ParamSpec

import torch

from lessvfl.errors import ConfigError, DataError
from lessvfl.run.processes import processes
from lessvfl.run.record import write_atomically
from lessvfl_bench.store import Records

NumberList = tuple[int, ...]  # given as in 0,1,2
NameList = tuple[str, ...]  # given as in phishing,digits
Repeated = tuple[str, ...]  # an option that is given once for each
NoiseShare = float

StudyTask = tuple[Any, ...]  # the arguments of a function
Call = Callable[
    [Callable[..., Any], Sequence[StudyTask]], Iterator[tuple[StudyTask, Any]]
]
Say = Callable[[str], None]

DATA = ("phishing", "gina_reconstruction", "activity_time265")
PUBLIC = ("phishing", "sylva_train", "gina_reconstruction", "activity_time265")

# Test rows of each class in proportion: in one process labels are kept from nobody.
BY_CLASS: dict[str, Any] = {"split": "stratified"}


def option(default: Any, help: str, *, positional: bool = False) -> Any:
    """Return a field of a study that says in the command's help what it is."""
    about = {"help": help, "positional": positional}
    return dataclasses.field(default=default, metadata=about)


def check_options(
    lists: Mapping[str, Sequence[Any]], known: Mapping[str, tuple[Any, Collection[Any]]]
) -> None:
    """Refuse lists that are empty or name one twice, seeds, and what is not known.

    `known` has an option's value, or its values, and what is allowed.
    """
    for name, values in lists.items():
        if not values or len(set(values)) < len(values):
            raise ConfigError(
                f"The '{name}' option must name at least one, each once. "
                f"Got {list(values)}."
            )
    if not all(0 <= seed < 2**63 for seed in lists["seeds"]):
        raise ConfigError(
            "Every seed must be a whole number in [0, 2**63). "
            f"Got {list(lists['seeds'])} as 'seeds'."
        )
    for name, (value, allowed) in known.items():
        one = isinstance(value, str)
        wrong = [v for v in ([value] if one else value) if v not in allowed]
        if wrong:
            rule = "be one of" if one else "hold some of"
            raise ConfigError(
                f"The '{name}' option must {rule} {', '.join(map(str, allowed))}. "
                f"Got {wrong[0]!r} instead."
            )


@dataclass(frozen=True)
class Study:
    """Options, cases, what is measured of a case, and the lines about all of them."""

    smallest: ClassVar[Mapping[str, Any]] = {}  # options of the size that takes seconds

    def cases(self) -> Sequence[Any]:
        """Return what is measured, each a tuple of plain values."""
        raise NotImplementedError

    def measure(self, case: Any) -> Any:
        """Return what a case gave, as values that JSON has."""
        raise NotImplementedError

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield what is printed in the end."""
        raise NotImplementedError

    def page(self, found: Mapping[Any, Any], out: Path) -> Path | None:
        """Write a page of all of it, where the study has one."""
        return None


def run(
    study: Study,
    jobs: int = 1,
    out: Path | None = None,
    resume: bool = False,
    say: Say = lambda line: None,
) -> dict[Any, Any]:
    """Measure every case of a study; keep records, and all of them in one file."""
    name = type(study).__name__.lower()
    about = {
        field.name: getattr(study, field.name)
        for field in dataclasses.fields(study)
        if field.type not in ("NumberList", "NameList", "Path | None")
    }

    def record(study: Study, case: Any) -> tuple[str, dict[str, Any]]:
        return name, {"study": name, "case": case, **about}

    tasks = [(study, case) for case in study.cases()]
    records = Records(out, resume)
    with workers(jobs) as call:
        gathered = gather(_alone, tasks, record, records, call, say)
    found = {case: gathered[study, case] for _, case in tasks}
    if out is not None:
        lines = [{"case": case, "found": one} for case, one in found.items()]
        write_atomically(out / f"{name}.json", json.dumps(lines, indent=1).encode())
    return found


def _alone(study: Study, case: Any) -> Any:
    with alone():
        return study.measure(case)


@contextmanager
def alone() -> Iterator[None]:
    """Take one thread and tell nothing: others run beside it."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(n_threads)


P = ParamSpec("P")
UNFIT = "unfit"  # in the place of numbers: why a data set has none


def telling_unfit(
    function: Callable[P, dict[str, Any]],
) -> Callable[P, dict[str, Any]]:
    """Have a function return why a data set cannot be used, for others to go on."""

    @functools.wraps(function)
    def call(*args: P.args, **more: P.kwargs) -> dict[str, Any]:
        try:
            return function(*args, **more)
        except DataError as error:
            return {UNFIT: str(error)}

    return call


@contextmanager
def workers(n_jobs: int) -> Iterator[Call]:
    """Yield a way to call a function for many tasks, in as many processes.

    It gives each task with its result, as soon as it is done.
    """
    if n_jobs == 1:
        yield lambda function, tasks: ((task, function(*task)) for task in tasks)
        return
    with processes(n_jobs) as submit:

        def call(
            function: Callable[..., Any], tasks: Sequence[StudyTask]
        ) -> Iterator[tuple[StudyTask, Any]]:
            waiting = {submit(function, *task): task for task in tasks}
            for done in as_completed(waiting):
                yield waiting[done], done.result()

        yield call


def gather(
    function: Callable[..., Any],
    tasks: Sequence[StudyTask],
    record: Callable[..., tuple[str, dict[str, Any]]],
    records: Records,
    call: Call,
    say: Say,
) -> dict[StudyTask, Any]:
    """Return what a function gives for every task, or what a record of it has.

    `record` names a task's record and says what it is about.
    """
    found: dict[StudyTask, Any] = {}
    about = {task: record(*task) for task in tasks}
    for task, (name, own) in about.items():
        kept = records.find(_file(name, own), own)
        if kept is not None:
            found[task] = kept
    new = [task for task in about if task not in found]
    for n, (task, one) in enumerate(call(function, new)):
        name, own = about[task]
        if UNFIT not in one:
            records.add(_file(name, own), own, one)
        found[task] = one
        say(f"{n + 1} of {len(new)}: {', '.join(_words(own.values()))}")
    return found


def _words(values: Iterable[Any]) -> Iterator[str]:
    """Yield what a task is about, a case part by part."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _words(value)
        elif value not in ({}, None):
            yield str(value)


def _file(name: str, about: Mapping[str, Any]) -> str:
    """Return the name of a record."""
    text = json.dumps(about, sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


# -- lines -----------------------------------------------------------------------------


def mean(runs: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """Return the mean of what runs say, None where none says anything."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return statistics.fmean(values) if values else None


def number(value: float | None, digits: int = 3) -> str:
    """Write a number of a table, nothing where there is none."""
    return "" if value is None else f"{value:.{digits}f}"
