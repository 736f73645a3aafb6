"""How a command ends: one sentence, an exit code, and no thread that holds it up."""

from __future__ import annotations

import atexit
import difflib
import os
import sys
import threading
import traceback
from typing import Any, NoReturn

import typer

from lessvfl.cli import results
from lessvfl.errors import LessVFLError

# What typer raises where a command line cannot be read; it exports no name of it.
UsageError: Any = typer.BadParameter.__base__


class Interrupted(Exception):
    """Ctrl-C, under a name that typer does not answer in its own way."""


# The last is what typer makes of Ctrl-C while it reads the command line.
INTERRUPTED = (Interrupted, KeyboardInterrupt, typer.Abort)

_threads_hang = False


def threads_hang(hang: bool) -> None:
    """Say whether a thread waits for another machine and cannot be ended."""
    global _threads_hang
    _threads_hang = hang


def sentence(error: BaseException) -> str | None:
    """Return what a user reads of an error; None: a bug of ours, with a traceback."""
    if isinstance(error, LessVFLError):
        return str(error)
    if isinstance(error, OSError):
        what = f"'{error.filename}'" if error.filename else "A file"
        return f"{what} cannot be read or written: {error.strerror or error}."
    of_torch = ("DefaultCPUAllocator", "CUDA out of memory")  # in words of its own
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(w in str(error) for w in of_torch)
    ):
        lines = str(error).strip().splitlines() or ["nothing more is known"]
        return (
            f"There must be memory for what is asked. Got too little ({lines[-1]}); a "
            "party's own table need not be in it, see 'storage' in its config."
        )
    if isinstance(error, INTERRUPTED):
        return "interrupted"
    if isinstance(error, UsageError):
        text = str(error.format_message()).strip()
        if not text:  # no command: the help has been printed in place of a sentence
            return ""
        known = getattr(error, "possibilities", None) or []
        if near := difflib.get_close_matches(getattr(error, "option_name", ""), known):
            text = f"{error.message.rstrip('.')}. Did you mean {near[0]}?"
        asked = "lessvfl" if error.ctx is None else error.ctx.command_path
        return f"{text}{'' if text.endswith(('.', '?')) else '.'} See '{asked} --help'."
    return None


def leave(error: BaseException) -> NoReturn:
    """End the process after an error, or after the SystemExit of a command.

    Errors of ours, of the file system, of the command line and too little memory are
    one line and exit code 2.
    """
    text = sentence(error)
    if text:
        results.say(f"lessvfl: {' '.join(text.split())}", err=True)
    elif text is None and not isinstance(error, SystemExit):
        if not _threads_hang:
            raise error
        traceback.print_exception(error)
    code = exit_code(error)
    if _threads_hang:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def end_at_once(error: SystemExit) -> None:
    """End the process without taking PyTorch and the engine apart: up to 3 seconds.

    What was to be called at its end is called. A thread that must be waited for, or a
    stream that cannot be written to, leaves the end to Python.
    """
    others = [one for one in threading.enumerate() if not one.daemon]
    if others != [threading.main_thread()]:
        return
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except OSError:
        return
    os._exit(exit_code(error))


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(bool(error.code))
    if isinstance(error, INTERRUPTED):
        return 130
    return 1 if sentence(error) is None else 2
