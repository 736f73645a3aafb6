"""The files that prove who a server or a party is, as its config names them."""

from __future__ import annotations

from pathlib import Path

from lessvfl.errors import ConfigError
from lessvfl.remote import certificates
from lessvfl.remote.certificates import Role
from lessvfl.remote.config import Common, PartyConfig
from lessvfl.wire.flight import Credentials


def _proven(config: Common, role: Role) -> tuple[str, Credentials]:
    """Return the name in a certificate, and the files that belong to it."""
    files = (config.certificate, config.key, config.ca)
    if None in files:
        raise ConfigError(
            "The config must name 'certificate', 'key' and 'ca' (see 'lessvfl kit'), "
            "or --insecure must be given. Got a config without one of them."
        )
    certificate, key, ca = (Path(str(file)) for file in files)
    name = certificates.check_pair(certificate, key, ca, role)
    return name, Credentials(certificate, key, ca)


def server_credentials(config: Common, insecure: bool) -> Credentials | None:
    """Return the files that prove that this is the server; None if `insecure`."""
    return None if insecure else _proven(config, "server")[1]


def party_identity(
    config: PartyConfig, insecure: bool
) -> tuple[str, Credentials | None]:
    """Return who a party is, and the files that prove it."""
    if not insecure:
        name, credentials = _proven(config, "party")
        if config.name not in (None, name):
            raise ConfigError(
                f"The certificate '{config.certificate}' must be of '{config.name}', "
                f"as the config says by 'name'. Got one of '{name}'."
            )
        return name, credentials
    if config.name is None:
        raise ConfigError(
            "The 'name' setting must say who this is where no certificate does. "
            "Got none."
        )
    return config.name, None
