"""Keys and certificates: names in them, making and signing them, reading them.

A certificate names its holder twice, as common name and as subjectAltName, and says
in its extended key usage whether it is a server's or a party's, never both. A party's
name that is a host name stands in the subjectAltName as such, any other as the URI
``lessvfl:party:NAME``. Keys are EC keys on P-256.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import (
    CertificatePublicKeyTypes,
    PrivateKeyTypes,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lessvfl.errors import ConfigError
from lessvfl.run.record import read_private

Role = Literal["ca", "server", "party", "other"]

PARTY_URI = "lessvfl:party:"

_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
# A last label of digits alone would make it look like an address.
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$)({_LABEL}\.)*(?!\d+$){_LABEL}")

# Clocks of two organisations differ.
_SKEW = datetime.timedelta(minutes=5)

_USAGES: dict[Role, x509.ObjectIdentifier] = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "party": ExtendedKeyUsageOID.CLIENT_AUTH,
}

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Certificate:
    """What a certificate says."""

    name: str
    role: Role
    issuer: str
    not_before: datetime.datetime
    not_after: datetime.datetime
    fingerprint: str  # SHA-256 of the certificate
    key_fingerprint: str  # SHA-256 of its public key
    problem: str | None  # why it cannot be used today


@dataclass(frozen=True)
class Authority:
    """A CA that can sign."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def now() -> datetime.datetime:
    """Return the time, in the whole seconds of a certificate."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


# ------------------------------------------------------------------------------- names


def subject(name: str) -> x509.Name:
    """Return a name as the subject of a certificate or request."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def common_name(name: x509.Name) -> str:
    """Return the name in a subject or issuer."""
    names = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else name.rfc4514_string()


def party_name(name: str) -> x509.GeneralName:
    """Return a party's name as a subjectAltName holds it."""
    if _HOST_NAME.fullmatch(name):
        return x509.DNSName(name)
    return x509.UniformResourceIdentifier(PARTY_URI + name)


def host_name(host: str) -> x509.GeneralName:
    """Return the server's host name or IP address, as a subjectAltName holds it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if _HOST_NAME.fullmatch(host):
        return x509.DNSName(host)
    raise ConfigError(
        "The server's name must be a host name as in vfl.example.org or an address as "
        f"in 192.0.2.7. Got {host!r}."
    )


# ------------------------------------------------------------------------------ making


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a key."""
    return ec.generate_private_key(ec.SECP256R1())


def new_request(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a PEM request to sign a party's key; `key` is the private one."""
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject(name))
        .add_extension(x509.SubjectAlternativeName([party_name(name)]), False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def new_authority(days: int) -> Authority:
    """Make a CA under a name of its own, so that two CAs are told apart."""
    key, name = new_key(), subject(f"lessvfl CA {os.urandom(4).hex()}")
    return Authority(signed(name, key.public_key(), days, name, key, is_ca=True), key)


def issue(
    authority: Authority,
    name: str,
    key: ec.EllipticCurvePublicKey,
    role: Role,
    names: list[x509.GeneralName],
    days: int,
) -> x509.Certificate:
    """Sign a certificate of the server or of a party, that the CA will outlive."""
    last = authority.certificate.not_valid_after_utc
    if now() + datetime.timedelta(days=days) > last:
        raise ConfigError(
            f"The CA is valid until {_day(last)}, and a certificate may not outlive "
            f"it: its days must be at most {(last - now()).days}. Got {days}."
        )
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key
    extensions = (
        x509.ExtendedKeyUsage([_USAGES[role]]),
        x509.SubjectAlternativeName(names),
        signed_by(authority.key.public_key()),
    )
    issuer = authority.certificate.subject
    return signed(subject(name), key, days, issuer, authority.key, extensions)


def signed(
    holder: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    extensions: Sequence[x509.ExtensionType] = (),
    is_ca: bool = False,
) -> x509.Certificate:
    """Return a certificate of a key, with extensions beside those that all have."""
    usage = x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )
    constraints = x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None)
    builder = (
        x509.CertificateBuilder()
        .subject_name(holder)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - _SKEW)
        .not_valid_after(now() + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        .add_extension(constraints, True)
        .add_extension(usage, True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, False)
    return builder.sign(issuer_key, hashes.SHA256())


def pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


# ----------------------------------------------------------------------------- reading


def read_bytes(path: Path, what: str, *, is_private: bool = False) -> bytes:
    """Return the content of a file; a sentence says what could not be read."""
    try:
        return read_private(path, what) if is_private else path.read_bytes()
    except OSError as problem:
        raise ConfigError(
            f"The {what} '{path}' cannot be read: {problem.strerror}."
        ) from None


def _read(path: Path, what: str, load: Callable[[bytes], _T], must: str) -> _T:
    """Return what a PEM file holds; a sentence says what it must hold."""
    content = read_bytes(path, what)
    try:
        return load(content)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"The file '{path}' must {must}") from None


def read_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate in a PEM file, or raise a ConfigError."""

    def load(content: bytes) -> x509.Certificate:
        certificate = x509.load_pem_x509_certificate(content)
        certificate.public_key()  # an unknown kind shows here
        return certificate

    return _read(path, "certificate", load, "be a PEM certificate. Got none.")


def read_authorities(path: Path) -> list[x509.Certificate]:
    """Return the certificates of all CAs in a file."""
    must = "hold the CA's certificate as PEM. Got none."
    return _read(path, "CA certificate", x509.load_pem_x509_certificates, must)


def read_key(path: Path) -> PrivateKeyTypes:
    """Return the private key in a PEM file, or raise a ConfigError."""
    content = read_bytes(path, "key", is_private=True)
    try:
        return serialization.load_pem_private_key(content, password=None)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"The file '{path}' must hold a PEM private key.") from None
    except TypeError:
        raise ConfigError(
            f"The key '{path}' must not be protected by a password: nobody is there to "
            "type it when a server or party starts."
        ) from None


def read_authority(folder: Path) -> Authority:
    """Return the CA (certificate and private key) whose files are in `folder`."""
    certificate = read_certificate(folder / "ca.pem")
    key = read_key(folder / "ca-key.pem")
    if (
        not isinstance(key, ec.EllipticCurvePrivateKey)
        or key.public_key() != certificate.public_key()
        or role_of(certificate) != "ca"
    ):
        raise ConfigError(
            f"The folder '{folder}' must hold a CA as 'lessvfl kit init' makes it: its "
            "ca.pem and ca-key.pem do not belong together."
        )
    return Authority(certificate, key)


def read_request(path: Path) -> tuple[str, ec.EllipticCurvePublicKey]:
    """Return name and key of a request whose signature shows that it holds the key."""
    must = "be a PEM request, as 'lessvfl kit request' makes it."
    request = _read(path, "request", x509.load_pem_x509_csr, must)
    try:
        key = request.public_key()
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(
        key.curve, ec.SECP256R1
    ):
        raise ConfigError(
            f"The request '{path}' must be for an EC key on the curve P-256, as "
            "'lessvfl kit request' makes it. Got a key of another kind."
        )
    try:
        is_signed = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm):
        is_signed = False
    if not is_signed:
        raise ConfigError(
            f"The request '{path}' must be signed with its own key: its signature is "
            "wrong, so it was changed or made by somebody without the key."
        )
    return common_name(request.subject), key


# ------------------------------------------------------------------------- description


def _extension(
    certificate: x509.Certificate, kind: type[_Extension]
) -> _Extension | None:
    """Return a certificate's extension of this class; None if none can be read."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (
        x509.ExtensionNotFound,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
        ValueError,
    ):
        return None


def role_of(certificate: x509.Certificate) -> Role:
    """Return whose a certificate is: a CA's, the server's, a party's, or "other"."""
    constraints = _extension(certificate, x509.BasicConstraints)
    if constraints is not None and constraints.ca:
        return "ca"
    usage = _extension(certificate, x509.ExtendedKeyUsage)
    for role, use in _USAGES.items():
        if usage is not None and list(usage) == [use]:
            return role
    return "other"


def has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Tell whether a CA signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return role_of(authority) == "ca"


def _day(time: datetime.datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


def problem_of(certificate: x509.Certificate) -> str | None:
    """Return why a certificate cannot be used today; None if it can."""
    if now() > certificate.not_valid_after_utc:
        return f"expired on {_day(certificate.not_valid_after_utc)}"
    if now() < certificate.not_valid_before_utc:
        since = _day(certificate.not_valid_before_utc)
        return f"is not valid before {since}, and this clock says {_day(now())}"
    return None


def fingerprint_of(key: CertificatePublicKeyTypes) -> str:
    """Return the SHA-256 fingerprint of a public key."""
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    content = key.public_bytes(serialization.Encoding.DER, info)
    return hashlib.sha256(content).digest().hex(":").upper()


def describe(certificate: x509.Certificate) -> Certificate:
    """Return what a certificate says."""
    return Certificate(
        name=common_name(certificate.subject),
        role=role_of(certificate),
        issuer=common_name(certificate.issuer),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
        key_fingerprint=fingerprint_of(certificate.public_key()),
        problem=problem_of(certificate),
    )
