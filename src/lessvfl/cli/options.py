"""Options that several commands share, and how their text is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lessvfl.errors import ConfigError

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
