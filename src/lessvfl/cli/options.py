"""Options that several commands share, and how their text is read."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lessvfl.errors import ConfigError

if TYPE_CHECKING:
    from lessvfl.core.hidden_paths import Inference
    from lessvfl.run.record import RunRecord
    from lessvfl.status import Status

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else.")
]
SeedsText = Annotated[str, typer.Option("--seeds", help="One run each: 0,1,2.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder of local data sets (LESSVFL_DATA).")
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for records, numbers and report.")
]
MethodName = Annotated[str, typer.Option("--method", help="See 'lessvfl methods'.")]
Profile = Annotated[str, typer.Option(help="default, paper or official-code.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on after the records in --out.")
]
SeedNumber = Annotated[
    int | None, typer.Option("--seed", help="Whose run; an ensemble, or the first one.")
]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the network code that the folder names."),
]
Track = Annotated[
    str | None,
    typer.Option("--track", help="Also write it into a store: mlflow or tensorboard."),
]
InferenceName = Annotated[
    str,
    typer.Option(
        "--inference", help="How trees predict: clear, or fed-eini with hidden paths."
    ),
]
Reasons = Annotated[
    int,
    typer.Option(
        "--reasons", min=0, help="Reasons to give for each row; 0: no explanation."
    ),
]


@contextlib.contextmanager
def tracked(
    store: str | None, title: str, out: Path | None, status: Status | None = None
) -> Iterator[Callable[[RunRecord | Mapping[str, Any]], None]]:
    """Track what happens in the block, if asked to.

    Yield a function to call with the block's record, or the numbers of an evaluation.
    """
    if store is None:
        yield lambda result: None
        return
    from lessvfl.report import tracking

    folder = Path(title) if out is None else out
    with tracking.tracked(store, title, folder / "tensorboard") as follower:
        if status is not None:
            status.followers.append(follower)

        def finish(result: RunRecord | Mapping[str, Any]) -> None:
            if isinstance(result, Mapping):
                follower.finish_evaluation(result, out)
            else:
                follower.finish(result, out)

        yield finish


def read_inference(name: str) -> Inference:
    """Return how trees predict, or refuse another name."""
    from lessvfl.core.hidden_paths import INFERENCES
    from lessvfl.settings import known_as

    return known_as(name, INFERENCES, "'inference'")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of the commands that read a table; :func:`taking` gives them to one."""

    parties: Annotated[
        str | None,
        typer.Option("--parties", help="How many; sizes as in 10,20; or a YAML file."),
    ] = None
    label: Annotated[str | None, typer.Option(help="Label column of a file.")] = None
    sample_weight: Annotated[
        str | None,
        typer.Option(help="Column of how much a row counts in the loss; no feature."),
    ] = None
    group_column: Annotated[
        str | None,
        typer.Option(help="Column of whom a row is of (a person); no feature."),
    ] = None
    time_column: Annotated[
        str | None,
        typer.Option(
            help="Column of when a row is of: the latest rows are the test; no feature."
        ),
    ] = None
    test_ids: Annotated[
        Path | None,
        typer.Option(
            help="File of the ids of test rows, in a column named as in the table."
        ),
    ] = None
    task: Annotated[
        str,
        typer.Option(
            "--task", help="classification, regression, or auto: as labels suggest."
        ),
    ] = "auto"
    groups: Annotated[
        Path | None,
        typer.Option(
            "--groups",
            help="YAML file of feature name -> columns that are one feature.",
        ),
    ] = None
    missing_values: Annotated[
        list[str] | None,
        typer.Option(
            "--missing-values",
            help="What stands for a missing cell: 'income=-999', '*=-999' in any "
            "column.",
        ),
    ] = None

    @property
    def columns(self) -> dict[str, Any]:
        """Return the columns that are no features, and what the labels are."""
        names = ("label", "sample_weight", "group_column", "time_column", "test_ids")
        return {name: getattr(self, name) for name in (*names, "task")}

    def read_groups(self) -> Any:
        """Return the columns of every feature that has several, None where none has."""
        from lessvfl import data

        if self.groups is None or isinstance(self.groups, Mapping):
            return self.groups
        return data.read_parties(self.groups, of="feature")

    def read_missing_values(self) -> dict[str, list[str]]:
        """Read values that stand for a missing cell, by column."""
        from lessvfl import data

        try:
            return data.read_marks(self.missing_values or [])
        except ValueError as error:
            raise ConfigError(
                "The '--missing-values' option must be a column and a value as in "
                f"income=-999. Got {str(error)!r}."
            ) from None


def taking(options: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of a dataclass as options of its own.

    The command gets the dataclass as its first argument. Fields of the class itself
    come before those that it inherits.
    """
    fields = inspect.signature(options, eval_str=True).parameters
    shared = {name: fields[name] for name in options.__annotations__} | fields

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(**given: Any) -> None:
            command(options(**{name: given.pop(name) for name in shared}), **given)

        _, *others = inspect.signature(command, eval_str=True).parameters.values()
        give_options(call, (*shared.values(), *others))
        return call

    return decorate


def give_options(command: Any, options: Iterable[inspect.Parameter]) -> None:
    """Have a function show these parameters, by keyword, to typer."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    shown = [option.replace(kind=keyword) for option in options]
    command.__signature__ = inspect.Signature(shown)
    command.__annotations__ = {option.name: option.annotation for option in shown}


def read_numbers(text: str, option: str) -> list[int]:
    """Read whole numbers as in 2,3."""
    try:
        return [int(part) for part in read_names(text)]
    except ValueError:
        raise ConfigError(
            f"The '{option}' option must be whole numbers as in 2,3. Got {text!r}."
        ) from None


def read_names(text: str) -> list[str]:
    """Read names as in phishing,digits."""
    return [part.strip() for part in text.split(",") if part.strip()]


def whole_numbers(text: str) -> list[int] | None:
    """Read whole numbers as in 0,1,2; None where the text is something else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return None


def read_parties(text: str | Mapping[str, Any] | None) -> Any:
    """Read a number, sizes as in 10,20, or a YAML file of party name -> columns."""
    from lessvfl import data

    if text is None or isinstance(text, Mapping):
        return text
    numbers = whole_numbers(text)
    if numbers is not None:
        return numbers[0] if len(numbers) == 1 else numbers
    if text.endswith((".yaml", ".yml")):
        return data.read_parties(text)
    raise ConfigError(
        "The '--parties' option must be a number, sizes as in 10,20, or a .yaml file "
        f"of party name -> columns. Got {text!r}."
    )
