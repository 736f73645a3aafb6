"""The commands of ``lessvfl nvflare``: a run as a job of NVIDIA FLARE."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from lessvfl.cli import results
from lessvfl.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="A run as a job of NVIDIA FLARE.")


RunName = Annotated[
    str | None,
    typer.Option("--name", help="The name of the run; that of its folder 'out'."),
]


@contextlib.contextmanager
def needs_nvflare() -> Iterator[None]:
    """Say how to get FLARE where it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nvflare":
            raise
        raise ConfigError(
            "A job of FLARE needs the extra 'nvflare', as in "
            "pip install 'lessvfl[nvflare]'. Got no such package."
        ) from None


@app.command()
def job(
    config: Annotated[Path, typer.Option("--config", help="The server's YAML file.")],
    out: Annotated[Path, typer.Option("--out", help="A new folder for the job.")],
    name: RunName = None,
) -> None:
    """Write a job, ready to be submitted; it holds no code and no settings."""
    from lessvfl.remote.config import ServerConfig, read

    settings = read(ServerConfig, config)
    with needs_nvflare():
        from lessvfl.remote.nvflare import write_job
    run = name or Path(settings.out).name
    write_job(settings, run, out)
    results.say(f"{out}: a job of run '{run}' for {', '.join(settings.parties)}")
    typer.echo("Next, at the server and at every site, before it is submitted:")
    typer.echo(
        f"  lessvfl nvflare site --config FILE --workspace DIR --site SITE --name {run}"
    )


@app.command()
def site(
    config: Annotated[Path, typer.Option("--config", help="This side's YAML file.")],
    workspace: Annotated[
        Path, typer.Option("--workspace", help="This side's FLARE folder.")
    ],
    site: Annotated[
        str, typer.Option("--site", help="The name of this site; server: the server.")
    ],
    name: Annotated[str, typer.Option("--name", help="The name of the run.")],
) -> None:
    """Let this FLARE site take part in a run, with a config of its own."""
    with needs_nvflare():
        from lessvfl.remote.nvflare import install
    path = install(config, workspace, name, site)
    results.say(f"{path}: the config of '{site}' for run '{name}'")
    typer.echo(
        "Start this side of FLARE again if it runs: from then on no job may bring code "
        "to it, nobody elsewhere reads its files, and it keeps its logs."
    )
