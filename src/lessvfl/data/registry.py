"""What the registry knows of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lessvfl.data.frame import Dataset

Where = Literal["built in", "download", "local folder"]
Loader = Callable[[Path | None, Mapping[str, Any]], Dataset]


@dataclass(frozen=True)
class Entry:
    """One data set: how it is loaded and what is known of it beforehand."""

    load: Loader  # (local folder or None, options) -> Dataset
    summary: str
    source: str
    where: Where
    rows: int
    features: int
    classes: int  # 0 for regression
    parties: int
    paper: bool = False  # one of the paper's five
    takes_options: bool = False
