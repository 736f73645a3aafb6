"""The commands of ``lessvfl bench``: the paper, its theory, its peers."""

from __future__ import annotations

import typer

app = typer.Typer(
    no_args_is_help=True, help="Benchmarks: the paper, its theory, its peers."
)
