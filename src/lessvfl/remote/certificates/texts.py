"""The ready configs of a kit, and its README for whoever runs the server or a party."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from string import Template

from lessvfl.web.address import with_port

PORT = 8815
STATUS_PORT = 8816


def _fill(template: str, /, **values: object) -> str:
    """Return a template of this folder with its blanks filled in."""
    text = (resources.files(__package__) / template).read_text(encoding="utf-8")
    return Template(text).substitute(values)


def server_config(parties: Sequence[str], host: str | None) -> str:
    """Return server.yaml; with a host name, one that parties elsewhere reach."""
    listen = with_port("127.0.0.1" if host is None else "0.0.0.0", PORT)
    names = json.dumps(list(parties))
    return _fill("server.yaml", listen=listen, parties=names, status_port=STATUS_PORT)


def server_readme() -> str:
    """Return the README of the server's operator."""
    return _fill("server.md")


def party_config(name: str, host: str | None) -> str:
    """Return a party's party.yaml."""
    server = json.dumps(with_port("127.0.0.1" if host is None else host, PORT))
    server_name = json.dumps("localhost" if host is None else host)
    names = {"name": name, "quoted": json.dumps(name)}
    return _fill("party.yaml", **names, server=server, server_name=server_name)


def party_readme(name: str, *, requested: bool = False) -> str:
    """Return the README of a party's operator, who perhaps made the key."""
    signing = "\n" + _fill("signing.md") if requested else ""
    return _fill("party.md", name=name, signing=signing)
