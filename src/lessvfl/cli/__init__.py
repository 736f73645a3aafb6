"""The command line: thin commands over the rooms of the library."""

from lessvfl.cli.app import main

__all__ = ["main"]
