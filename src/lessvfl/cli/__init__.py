"""The command line: thin commands over the rooms of the library."""

from __future__ import annotations

import os
import signal
import time

__all__ = ["main", "process"]


def main() -> None:
    """Run the command line; errors of ours become one line and exit code 2."""
    began = time.monotonic()
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:  # an exception amid imports is a traceback, or lost in a callback
        signal.signal(signal.SIGINT, _interrupted)
    from lessvfl.cli import app, start

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
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


def _interrupted(*_: object) -> None:
    """End while commands are still being loaded, as :mod:`lessvfl.cli.ending` does."""
    os.write(2, b"lessvfl: interrupted\n")
    os._exit(130)
