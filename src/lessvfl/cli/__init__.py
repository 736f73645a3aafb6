"""The command line: thin commands over the rooms of the library."""

from __future__ import annotations

import time

__all__ = ["main", "process"]


def main() -> None:
    """Run the command line; errors of ours become one line and exit code 2."""
    began = time.monotonic()
    from lessvfl.cli import app, start

    start.began(began)
    app.main()


def process() -> None:
    """Run the command line as a process of its own, which then ends at once."""
    try:
        main()
    except SystemExit as error:
        from lessvfl.cli import ending

        ending.end_at_once(error)
        raise
