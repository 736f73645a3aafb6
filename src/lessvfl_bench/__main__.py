"""``python -m lessvfl_bench``: the runs of ``lessvfl bench paper``, without its page.

For a machine with torch and numpy alone: it writes records and ``bench.json``;
``lessvfl bench paper --resume`` in the same folder then makes tables, figures and page
anywhere, without running anything again.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

from lessvfl.errors import LessVFLError, LessVFLWarning
from lessvfl_bench.paper import run


def main() -> None:
    """Read the options, run, write."""
    parser = argparse.ArgumentParser("python -m lessvfl_bench", description=__doc__)
    many: dict[str, Any] = {"nargs": "+", "type": int}
    parser.add_argument("--data", nargs="+")
    parser.add_argument("--source")
    parser.add_argument("--profile", default="official-code")
    parser.add_argument("--settings", default="published")
    parser.add_argument("--tables", **many)
    parser.add_argument("--figures", **many)
    parser.add_argument("--seeds", default=run.SEEDS, **many)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--memory", type=float)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    given = vars(parser.parse_args())
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
