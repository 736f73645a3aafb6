"""Which functions of ours a run passes: to the proximal step, and to X @ W.

From the command line to the proximal step for ``lam_party`` (stage 3 of the paper), and
from the data file to the first product with a party's weights. Another tree is asked
with ``PYTHONPATH``.

    python benchmarks/callpath.py
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lessvfl import cli

RUN = ["--method", "less-vfl", "--profile", "paper", "--parties", "2", "--quiet"]
FEW = ["train_epochs=1", "party_epochs=1", "server_epochs=1", "hidden=4"]


def path_to(is_there: Callable[[Any], bool], command: list[str]) -> list[str]:
    """Run a command; return our functions on the stack when it first gets there."""
    found: list[str] = []

    def look(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and not found and is_there(frame):
            for one, _ in traceback.walk_stack(frame):
                module = one.f_globals.get("__name__", "")
                if module.startswith("lessvfl"):
                    name = f"{module.removeprefix('lessvfl.')}.{one.f_code.co_qualname}"
                    found.insert(0, name)

    sys.argv = ["lessvfl", *command]
    sys.setprofile(look)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            cli.main()
    finally:
        sys.setprofile(None)
    return found


def calls(name: str, caller: str = "") -> Callable[[Any], bool]:
    """Tell a call of a function by its name, and by who is further up the stack."""

    def is_there(frame: Any) -> bool:
        if not frame.f_code.co_qualname.endswith(name):
            return False
        above = (one.f_code.co_name for one, _ in traceback.walk_stack(frame))
        return caller in above if caller else True

    return is_there


def main() -> None:
    """Print both paths."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        X = np.random.default_rng(0).normal(size=(60, 4))
        rows = np.column_stack([X, X[:, 0] > 0])
        np.savetxt(table, rows, delimiter=",", header="a,b,c,d,y", comments="")
        command = ["run", str(table), "--label", "y", *RUN]
        command += [word for pair in FEW for word in ("--set", pair)]
        for title, is_there in (
            ("to the proximal step for lam_party", calls(".prox", "select_features")),
            ("from the data file", calls("frame_of_columns")),
            ("to X @ W", calls("_linear")),
        ):
            print(f"{title}:")
            print("  " + " -> ".join(path_to(is_there, command)))


if __name__ == "__main__":
    main()
