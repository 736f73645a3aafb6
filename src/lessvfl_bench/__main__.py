"""``python -m lessvfl_bench``: the runs of ``lessvfl bench paper``, without its page.

For a machine with torch and numpy alone: it writes records and ``bench.json``;
``lessvfl bench paper --resume`` in the same folder then makes tables, figures and page
anywhere, without running anything again.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from pathlib import Path
from typing import Any

from lessvfl.errors import LessVFLError, LessVFLWarning
from lessvfl_bench.paper import run

TYPES: dict[Any, dict[str, Any]] = {  # of a field, and how its option is read
    "NumberList": {"nargs": "+", "type": int},
    "NameList": {"nargs": "+"},
    "Path | None": {"type": Path},
    "float | None": {"type": float},
}


def main() -> None:
    """Read the options, run, write."""
    parser = argparse.ArgumentParser("python -m lessvfl_bench", description=__doc__)
    for field in dataclasses.fields(run.Options):
        if words := field.metadata.get("help"):
            flag = f"--{field.name.replace('_', '-')}"
            parser.add_argument(flag, help=words, **TYPES.get(field.type, {}))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    given = {k: v for k, v in vars(parser.parse_args()).items() if v is not None}
    out, resume = given.pop("out"), given.pop("resume")
    warnings.simplefilter("ignore", LessVFLWarning)

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        results = run.run(run.Options.of(**given), out, resume, say)
    except LessVFLError as error:
        sys.exit(f"lessvfl: {error}")
    for part, seconds in results["seconds"].items():
        say(f"{part}: {seconds:.1f} s")


if __name__ == "__main__":
    main()
