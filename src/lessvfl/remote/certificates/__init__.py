"""Identity: a private CA, and a key and a certificate for the server and each party.

::

    DIR/ca/       ca.pem  ca-key.pem  signed.json          of whoever admits parties
    DIR/server/   key.pem  cert.pem  ca.pem  server.yaml  README.md
    DIR/<party>/  key.pem  cert.pem  ca.pem  party.yaml   README.md

A party that makes its own key (:func:`request`) has it signed (:func:`sign`); the key
never leaves its folder. Nothing is ever overwritten, and a folder is made whole or not
at all. ``signed.json`` lists the keys that the CA signed for each name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from lessvfl.errors import ConfigError
from lessvfl.remote.certificates import keys
from lessvfl.remote.certificates.keys import Certificate, Role
from lessvfl.run.record import write_atomically
from lessvfl.web.address import with_port

__all__ = [
    "Certificate",
    "Role",
    "check_name",
    "check_pair",
    "init",
    "name_of_peer",
    "read",
    "request",
    "sign",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_RESERVED = ("server", "ca")
_SIGNED = "signed.json"  # in the folder of a CA: the keys that it signed, by name
_LOCAL = ("127.0.0.1", "localhost")
PORT, STATUS_PORT = 8815, 8816  # in a kit's configs

_MAX_DAYS = 36500
_CA_DAYS = 3650  # at least: a CA outlives the certificates it signs


def init(
    folder: Path,
    parties: Sequence[str],
    server_names: Sequence[str] = (),
    days: int = 365,
) -> None:
    """Make a CA, and a folder with key, certificate and config for everyone.

    The server is 127.0.0.1, localhost and `server_names`, the first of which the
    parties' configs dial. The CA is valid for ten years at least.
    """
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
    hosts = [keys.host_name(h) for h in dict.fromkeys([*_LOCAL, *server_names])]
    _check_days(days)
    _check_free(folder)
    # A day more, since the others are signed a moment later.
    authority = keys.new_authority(max(days, _CA_DAYS) + 1)
    ca = keys.pem(authority.certificate)
    files = {"ca/ca.pem": ca, "ca/ca-key.pem": keys.key_pem(authority.key)}
    listed: dict[str, list[str]] = {}
    for name in ("server", *parties):
        key = keys.new_key()
        role: Role = "server" if name == "server" else "party"
        names = hosts if role == "server" else [keys.party_name(name)]
        signed = keys.issue(authority, name, key.public_key(), role, names, days)
        files[f"{name}/key.pem"] = keys.key_pem(key)
        files[f"{name}/cert.pem"] = keys.pem(signed)
        files[f"{name}/ca.pem"] = ca
        listed[name] = [keys.fingerprint_of(key.public_key())]
    files[f"ca/{_SIGNED}"] = _listing(listed)
    host = server_names[0] if server_names else None  # that parties elsewhere reach
    config = _filled(
        "server.yaml",
        listen=with_port("127.0.0.1" if host is None else "0.0.0.0", PORT),
        parties=json.dumps(list(parties)),
        status_port=STATUS_PORT,
    )
    files["server/server.yaml"] = config.encode()
    files["server/README.md"] = _filled("server.md").encode()
    for party in parties:
        for name, content in _party_texts(party, host).items():
            files[f"{party}/{name}"] = content
    _place(folder, files)


def request(folder: Path, name: str) -> str:
    """Make a party's own key and a request to sign it, in the party's own folder.

    Return the fingerprint of the public key, for the CA's holder to compare.
    """
    check_name(name)
    _check_free(folder)
    key = keys.new_key()
    files = {"key.pem": keys.key_pem(key), "request.pem": keys.new_request(name, key)}
    _place(folder, files | _party_texts(name, None, requested=True))
    return keys.fingerprint_of(key.public_key())


def _filled(template: str, /, **values: object) -> str:
    """Return a template of this folder with its blanks filled in."""
    text = (resources.files(__package__) / template).read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _party_texts(
    name: str, host: str | None, *, requested: bool = False
) -> dict[str, bytes]:
    """Return a party's ready config and README, as contents by file name.

    `host` is where the server is (None: this machine). A party that `requested` its
    certificate made its key itself.
    """
    config = _filled(
        "party.yaml",
        name=name,
        quoted=json.dumps(name),
        server=json.dumps(with_port(host or "127.0.0.1", PORT)),
        server_name=json.dumps(host or "localhost"),
    )
    signing = "\n" + _filled("signing.md") if requested else ""
    readme = _filled("party.md", name=name, signing=signing)
    return {"party.yaml": config.encode(), "README.md": readme.encode()}


def sign(
    ca: Path,
    request_file: Path,
    out: Path,
    name: str,
    days: int = 365,
    *,
    new_key: bool = False,
) -> Certificate:
    """Sign a party's request; write its certificate, and ca.pem beside it.

    Only the key of the request is used, and its name must be `name`: anything else it
    asks for, such as being a CA itself, is not granted. `new_key` allows a second key
    for a name; the certificate of the first stays valid.
    """
    _check_days(days)
    authority = keys.read_authority(ca)
    asked, key = keys.read_request(request_file)
    check_name(asked)
    if asked != name:
        raise ConfigError(
            f"The request '{request_file}' must be of {name!r}. Got one of {asked!r}."
        )
    ours = keys.pem(authority.certificate)
    beside = out.with_name("ca.pem")
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
    listed, mine = _read_listing(ca), keys.fingerprint_of(key)
    known = listed.setdefault(asked, [])
    if known and mine not in known and not new_key:
        raise ConfigError(
            f"The name {asked!r} must have one key: this CA signed another for it, "
            f"SHA256 {known[-1]}, whose certificate stays valid beside a new one. Sign "
            "under another name, or say that both are the party's (--new-key)."
        )
    names = [keys.party_name(asked)]
    signed = keys.issue(authority, asked, key, "party", names, days)
    is_new = not beside.exists()
    if mine not in known:  # first: a certificate must not be there without
        known.append(mine)
        write_atomically(ca / _SIGNED, _listing(listed))
    if is_new:
        write_atomically(beside, ours)
    try:
        write_atomically(out, keys.pem(signed))
    except BaseException:
        if is_new:
            beside.unlink()
        raise
    return keys.describe(signed)


def _listing(listed: Mapping[str, Sequence[str]]) -> bytes:
    return (json.dumps(listed, indent=1) + "\n").encode()


def _read_listing(ca: Path) -> dict[str, list[str]]:
    """Return the keys that a CA signed, by name; an old CA has no list."""
    path = ca / _SIGNED
    if not path.exists():
        return {}
    try:
        listed = json.loads(keys.read_bytes(path, "list of signed keys"))
        return {str(name): [*map(str, known)] for name, known in listed.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise ConfigError(
            f"The list of signed keys '{path}' must be as 'lessvfl kit' writes it. Got "
            "something else."
        ) from None


def read(path: Path) -> Certificate:
    """Return what a certificate file says, whoever signed it."""
    return keys.describe(keys.read_certificate(path))


def name_of_peer(alternative: bytes) -> str:
    """Return the party's name out of its subjectAltName, as Flight tells it."""
    name = alternative.decode(errors="replace").removeprefix(keys.PARTY_URI)
    check_name(name)
    return name


def check_pair(cert: Path, key: Path, ca: Path, role: Role | None = None) -> str:
    """Check certificate, key and CA, and return the name in the certificate.

    They must belong together and be valid today. A file of several CAs serves while
    one replaces another.
    """
    certificate = keys.read_certificate(cert)
    if keys.read_key(key).public_key() != certificate.public_key():
        raise ConfigError(
            f"The certificate '{cert}' and the key '{key}' must belong together: the "
            "certificate was made for another key."
        )
    known = keys.read_authorities(ca)
    signers = [one for one in known if keys.has_signed(one, certificate)]
    if not signers:
        raise ConfigError(f"The certificate '{cert}' is not signed by the CA '{ca}'.")
    for path, checked in ((cert, certificate), (ca, signers[0])):
        problem = keys.problem_of(checked)
        if problem is not None:
            raise ConfigError(f"The certificate '{path}' {problem}.")
    its_role = keys.role_of(certificate)
    if role is not None and its_role != role:
        raise ConfigError(
            f"The certificate '{cert}' must be for the role {role}. Got {its_role}."
        )
    return keys.common_name(certificate.subject)


# ------------------------------------------------------------------------------ checks


def check_name(name: str) -> None:
    """Raise a ConfigError unless `name` is a name that a party may have."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "A party's name must be 1 to 64 letters, digits, '_', '.' or '-', the "
            f"first a letter or digit. Got {name!r}."
        )
    if name.lower() in _RESERVED:
        raise ConfigError(
            f"A party's name must not be {' or '.join(_RESERVED)}. Got {name!r}."
        )


def _check_days(days: int) -> None:
    if not 1 <= days <= _MAX_DAYS:
        raise ConfigError(
            f"The days of a certificate must be in [1, {_MAX_DAYS}]. Got {days}."
        )


def _check_free(folder: Path) -> None:
    """Raise an error unless `folder` can be made, or is there and empty."""
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


# ----------------------------------------------------------------------------- writing


def _place(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder of private files, whole or not at all."""

    def private(path: str, flags: int) -> int:
        return os.open(path, flags, 0o600)

    target = folder.resolve()
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for name, content in files.items():
            path = partial / name
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(path, "xb", opener=private) as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
