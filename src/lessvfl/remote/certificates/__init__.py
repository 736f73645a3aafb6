"""Identity: a private CA, and a key and a certificate for the server and each party.

::

    DIR/ca/       ca.pem  ca-key.pem                       of whoever admits parties
    DIR/server/   key.pem  cert.pem  ca.pem  server.yaml  README.md
    DIR/<party>/  key.pem  cert.pem  ca.pem  party.yaml   README.md

A party that makes its own key (:func:`request`) has it signed (:func:`sign`); the key
never leaves its folder. Nothing is ever overwritten, and a folder is made whole or not
at all.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lessvfl.errors import ConfigError
from lessvfl.remote.certificates import keys, texts
from lessvfl.remote.certificates.keys import Certificate, Role
from lessvfl.run.record import write_atomically

__all__ = [
    "Certificate",
    "Role",
    "check_name",
    "check_pair",
    "identity",
    "init",
    "name_of_peer",
    "read",
    "request",
    "sign",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_RESERVED = ("server", "ca")
_LOCAL = ("127.0.0.1", "localhost")

_MAX_DAYS = 36500
_CA_DAYS = 3650  # at least: a CA outlives the certificates it signs


def init(
    folder: Path,
    parties: Sequence[str],
    server_names: Sequence[str] = (),
    days: int = 365,
) -> None:
    """Make a CA, and a folder with key, certificate and config for everyone.

    Parameters
    ----------
    folder
        A new folder, or an empty one.
    parties
        Their names.
    server_names
        Host names and addresses of the server besides 127.0.0.1 and localhost; the
        first is the one that the parties' configs dial.
    days
        How long the certificates are valid; the CA is for ten years at least.
    """
    _check_parties(parties)
    hosts = [keys.host_name(h) for h in dict.fromkeys([*_LOCAL, *server_names])]
    _check_days(days)
    _check_free(folder)
    # A day more, since the others are signed a moment later.
    authority = keys.new_authority(max(days, _CA_DAYS) + 1)
    authority_pem = keys.pem(authority.certificate)
    files = {
        "ca/ca.pem": authority_pem,
        "ca/ca-key.pem": keys.key_pem(authority.key),
    }
    members: list[tuple[str, Role]] = [("server", "server")]
    members += [(party, "party") for party in parties]
    for name, role in members:
        key = keys.new_key()
        names = hosts if role == "server" else [keys.party_name(name)]
        signed = keys.issue(authority, name, key.public_key(), role, names, days)
        files[f"{name}/key.pem"] = keys.key_pem(key)
        files[f"{name}/cert.pem"] = keys.pem(signed)
        files[f"{name}/ca.pem"] = authority_pem
    host = server_names[0] if server_names else None
    files["server/server.yaml"] = texts.server_config(parties, host).encode()
    files["server/README.md"] = texts.server_readme().encode()
    for party in parties:
        files[f"{party}/party.yaml"] = texts.party_config(party, host).encode()
        files[f"{party}/README.md"] = texts.party_readme(party).encode()
    _place(folder, files)


def request(folder: Path, name: str) -> str:
    """Make a party's own key and a request to sign it, in the party's own folder.

    Parameters
    ----------
    folder
        A new folder, or an empty one.
    name
        The party's name.

    Returns
    -------
    str
        The SHA-256 fingerprint of the public key, for the CA's holder to compare.
    """
    check_name(name)
    _check_free(folder)
    key = keys.new_key()
    files = {
        "key.pem": keys.key_pem(key),
        "request.pem": keys.new_request(name, key),
        "party.yaml": texts.party_config(name, None).encode(),
        "README.md": texts.party_readme(name, requested=True).encode(),
    }
    _place(folder, files)
    return keys.fingerprint_of(key.public_key())


def sign(
    ca_folder: Path,
    request_file: Path,
    out: Path,
    name: str | None = None,
    days: int = 365,
) -> Certificate:
    """Sign a party's request; write its certificate, and ca.pem beside it.

    Of the request only key and name are used: what else it asks for, such as to be a
    CA itself, is not granted.

    Parameters
    ----------
    ca_folder
        The folder of ca.pem and ca-key.pem.
    request_file
        The request, as :func:`request` makes it.
    out
        The certificate to write; it must not exist.
    name
        The name that the request must have; any if None.
    days
        How long the certificate is valid; no longer than the CA.

    Returns
    -------
    Certificate
        What was signed.
    """
    _check_days(days)
    authority = keys.read_authority(ca_folder)
    asked, key = keys.read_request(request_file)
    check_name(asked)
    if name is not None and asked != name:
        raise ConfigError(
            f"The request '{request_file}' must be of {name!r}. Got one of {asked!r}."
        )
    ours = keys.pem(authority.certificate)
    beside = out.with_name("ca.pem")
    _check_out(out, beside, ours)
    names = [keys.party_name(asked)]
    signed = keys.issue(authority, asked, key, "party", names, days)
    is_new = not beside.exists()
    if is_new:
        write_atomically(beside, ours)
    try:
        write_atomically(out, keys.pem(signed))
    except BaseException:
        if is_new:
            beside.unlink()
        raise
    return keys.describe(signed)


def read(path: Path) -> Certificate:
    """Return what a certificate file says, whoever signed it."""
    return keys.describe(keys.read_certificate(path))


def identity(cert_pem: bytes) -> str:
    """Return the party's name out of its certificate.

    Who signed it and whether it has expired is not looked at: the TLS handshake and
    :func:`check_pair` do that.
    """
    certificate = keys.parse(cert_pem)
    name = keys.common_name(certificate.subject)
    if keys.role_of(certificate) != "party":
        raise ConfigError(f"The certificate of {name!r} must be one of a party.")
    check_name(name)
    if keys.alternative_names(certificate) != [keys.party_name(name)]:
        raise ConfigError(
            f"The certificate of {name!r} must have this name, and no other, as its "
            "subjectAltName."
        )
    return name


def name_of_peer(alternative: bytes) -> str:
    """Return the party's name out of its subjectAltName, as Flight tells it.

    Examples
    --------
    >>> name_of_peer(b"clinic"), name_of_peer(b"lessvfl:party:clinic_2")
    ('clinic', 'clinic_2')
    """
    name = alternative.decode(errors="replace").removeprefix(keys.PARTY_URI)
    check_name(name)
    return name


def check_pair(cert: Path, key: Path, ca: Path, role: Role | None = None) -> str:
    """Check that certificate, key and CA belong together and can be used today.

    Parameters
    ----------
    cert, key
        The own certificate and its key.
    ca
        The CA that signed it; a file of several serves while one replaces another.
    role
        What the certificate must be for; anything if None.

    Returns
    -------
    str
        The name in the certificate.
    """
    certificate = keys.read_certificate(cert)
    if keys.read_key(key).public_key() != certificate.public_key():
        raise ConfigError(
            f"The certificate '{cert}' and the key '{key}' must belong together: the "
            "certificate was made for another key."
        )
    signers = [
        authority
        for authority in keys.read_authorities(ca)
        if keys.has_signed(authority, certificate)
    ]
    if not signers:
        raise ConfigError(f"The certificate '{cert}' is not signed by the CA '{ca}'.")
    for path, one in ((cert, certificate), (ca, signers[0])):
        problem = keys.problem_of(one)
        if problem is not None:
            raise ConfigError(f"The certificate '{path}' {problem}.")
    found = keys.role_of(certificate)
    if role is not None and found != role:
        raise ConfigError(
            f"The certificate '{cert}' must be for the role {role}. Got {found}."
        )
    return keys.common_name(certificate.subject)


# ------------------------------------------------------------------------------ checks


def check_name(name: str) -> None:
    """Check that a party may have this name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "A party's name must be 1 to 64 letters, digits, '_', '.' or '-', the "
            f"first a letter or digit. Got {name!r}."
        )
    if name.lower() in _RESERVED:
        raise ConfigError(
            f"A party's name must not be {' or '.join(_RESERVED)}. Got {name!r}."
        )


def _check_parties(parties: Sequence[str]) -> None:
    if not parties:
        raise ConfigError("There must be one party at least. Got none.")
    seen: dict[str, str] = {}
    for name in parties:
        check_name(name)
        # Some file systems take Clinic and clinic for one folder.
        if name.lower() in seen:
            raise ConfigError(
                "Parties must have different names, whatever the case of letters. "
                f"Got {seen[name.lower()]!r} and {name!r}."
            )
        seen[name.lower()] = name


def _check_days(days: int) -> None:
    if not 1 <= days <= _MAX_DAYS:
        raise ConfigError(
            f"The days of a certificate must be in [1, {_MAX_DAYS}]. Got {days}."
        )


def _check_free(folder: Path) -> None:
    """Check that a folder can be made; one with anything in it stays as it is."""
    if (folder / "ca" / "ca.pem").exists():
        raise ConfigError(
            f"'{folder}' already holds a CA, and nothing is overwritten: give a new "
            "folder."
        )
    if not folder.resolve().parent.is_dir():
        raise ConfigError(f"The folder '{folder.parent}' must exist. Got none.")
    if folder.exists() and (
        not folder.is_dir() or any(folder.iterdir()) or folder.samefile(os.curdir)
    ):
        raise ConfigError(
            f"'{folder}' must be a new folder, or an empty one that is not the current."
        )


def _check_out(out: Path, beside: Path, ours: bytes) -> None:
    """Check that a certificate can be written, and our CA's beside it."""
    if not out.parent.is_dir():
        raise ConfigError(f"The folder '{out.parent}' must exist. Got none.")
    if out.exists() or out == beside:
        raise ConfigError(
            f"The certificate '{out}' must be a new file, and not the ca.pem that is "
            "written beside it."
        )
    if beside.exists() and keys.read_bytes(beside, "CA certificate") != ours:
        raise ConfigError(
            f"'{beside}' is there already and must be of the CA that signs: write the "
            "certificate into another folder."
        )


# ----------------------------------------------------------------------------- writing


def _private(path: str, flags: int) -> int:
    """Open a file that its owner alone may read, from its first byte on."""
    return os.open(path, flags, 0o600)


def _place(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder of private files, whole or not at all."""
    target = folder.resolve()
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for name, content in files.items():
            path = partial / name
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(path, "xb", opener=_private) as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
