"""The files that prove who a server or a party is, as its config names them."""

from __future__ import annotations

from pathlib import Path

from lessvfl.errors import ConfigError
from lessvfl.remote import certificates
from lessvfl.remote.config import Common, PartyConfig
from lessvfl.wire.flight import Credentials


def credentials_of(config: Common, insecure: bool) -> Credentials | None:
    """Return the files that say who this is, or None where that was asked for."""
    files = (config.certificate, config.key, config.ca)
    if insecure:
        return None
    if None in files:
        raise ConfigError(
            "The config must name 'certificate', 'key' and 'ca' (see 'lessvfl kit'), "
            "or --insecure must be given. Got a config without one of them."
        )
    certificate, key, ca = (Path(str(file)) for file in files)
    return Credentials(certificate, key, ca)


def server_credentials(own: Common, insecure: bool) -> Credentials | None:
    """Return the files that prove that this is the server, once they are checked."""
    credentials = credentials_of(own, insecure)
    if credentials is not None:
        certificates.check_pair(
            credentials.certificate, credentials.key, credentials.ca, "server"
        )
    return credentials


def party_identity(own: PartyConfig, insecure: bool) -> tuple[str, Credentials | None]:
    """Return who a party is, and the files that prove it."""
    credentials = credentials_of(own, insecure)
    name = own.name
    if credentials is not None:
        name = certificates.check_pair(
            credentials.certificate, credentials.key, credentials.ca, "party"
        )
    if name is None:
        raise ConfigError(
            "The 'name' setting must say who this is where no certificate does. "
            "Got none."
        )
    return name, credentials
