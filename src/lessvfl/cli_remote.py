"""The commands between machines: ``lessvfl server``, ``party`` and ``try``."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lessvfl.configs import Common
    from lessvfl.transports.flight import Pass

Config = Annotated[Path, typer.Option("--config", help="The YAML file of this side.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No encryption; on this machine alone.")
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="Logs as one JSON object a line.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Warnings alone.")]


def _start(config: Common, quiet: bool) -> None:
    """Set up logs and threads."""
    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    import torch

    torch.set_num_threads(config.threads)


def _pass(config: Common, insecure: bool) -> Pass | None:
    """Return the files that say who this is, or None where that was asked for."""
    from lessvfl.errors import ConfigError
    from lessvfl.transports.flight import Pass

    files = (config.certificate, config.key, config.ca)
    if insecure:
        return None
    if None in files:
        raise ConfigError(
            "The config must name 'certificate', 'key' and 'ca' (see 'lessvfl kit'), "
            "or --insecure must be given. Got a config without one of them."
        )
    certificate, key, ca = (Path(str(file)) for file in files)
    return Pass(certificate, key, ca)


def server(
    config: Config,
    insecure: Insecure = False,
    quiet: Quiet = False,
) -> None:
    """Run a method with parties on other machines."""
    from lessvfl import configs, data, kit, serve
    from lessvfl.record import write_atomically
    from lessvfl.transports.flight import Hub

    own = configs.read(configs.ServerConfig, config)
    _start(own, quiet)
    dataset, _, is_test = data.load_labels(Path(own.data), own.label, own.id)
    papers = _pass(own, insecure)
    if papers is not None:
        kit.check_pair(papers.certificate, papers.key, papers.ca, "server")
    hub = Hub(
        own.listen,
        own.parties,
        papers,
        patience=own.wait,
        name_of=kit.name_of_peer,
    )
    try:
        host = serve.Host(own, serve.LabelTable(dataset, is_test), hub)
        result = host.run()
    finally:
        hub.close()
    text = json.dumps(result.numbers, allow_nan=False)
    write_atomically(Path(own.out) / "server.json", text.encode())


def party(
    config: Config,
    insecure: Insecure = False,
    quiet: Quiet = False,
) -> None:
    """Take part in a run as one party."""
    from lessvfl import configs, data, join, kit
    from lessvfl.errors import ConfigError
    from lessvfl.transports import flight

    own = configs.read(configs.PartyConfig, config)
    _start(own, quiet)
    papers = _pass(own, insecure)
    name = own.name
    if papers is not None:
        name = kit.check_pair(papers.certificate, papers.key, papers.ca, "party")
    if name is None:
        raise ConfigError(
            "The 'name' setting must say who this is where no certificate does. "
            "Got none."
        )
    frame, _ = data.load_columns(Path(own.data), own.id)
    guest = join.Guest(name, own, frame)
    address = flight.Address(own.server, papers, own.server_name)
    flight.serve(address, guest.hello(), guest.handle, patience=own.wait)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(server)
    app.command()(party)


def environment(threads: int) -> dict[str, Any]:
    """Return the environment of a process that computes with so many threads."""
    return os.environ | {"OMP_NUM_THREADS": str(threads)}
