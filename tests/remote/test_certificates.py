"""Identity: who is let in, who is not, and what a kit leaves on disk."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import ipaddress
import itertools
import json
import os
import re
import shutil
import socket
import ssl
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lessvfl.cli import app
from lessvfl.cli import kit as kit_commands
from lessvfl.errors import ConfigError
from lessvfl.remote import certificates
from lessvfl.remote.certificates import keys
from lessvfl.remote.config import PartyConfig, ServerConfig, read
from lessvfl.remote.policy import Policy
from lessvfl.run.record import write_atomically
from lessvfl.settings import fields_of

PARTIES = ["clinic", "lab_2"]  # one is a host name, one is not


sign = functools.partial(certificates.sign, name="clinic", new_key=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a kit that no test changes, but for the list of keys that it signed."""
    folder = tmp_path_factory.mktemp("made") / "kit"
    certificates.init(folder, PARTIES, ["vfl.example.org", "192.0.2.7"])
    return folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Return a kit of the same names under another CA."""
    folder = tmp_path_factory.mktemp("foreign") / "kit"
    certificates.init(folder, PARTIES)
    return folder


@pytest.fixture
def at(monkeypatch):
    """Return a function that sets the clock of the kit some days off."""
    real = keys.now

    def move(days):
        there = datetime.timedelta(days=days)
        monkeypatch.setattr(keys, "now", lambda: real() + there)

    return move


def load(path):
    return x509.load_pem_x509_certificate(Path(path).read_bytes())


def peer(certificate):
    """Return the name of a peer with this certificate, from what Flight tells of it."""
    (found,) = extension(certificate, x509.SubjectAlternativeName).value
    return certificates.name_of_peer(found.value.encode())


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind)


def everything(folder):
    """Return every path below a folder with the content of files."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# ------------------------------------------------------------------------ certificates


def test_the_ca_signs_and_nothing_else(made):
    certificate = load(made / "ca" / "ca.pem")
    constraints = extension(certificate, x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = extension(certificate, x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert certificate.issuer == certificate.subject


@pytest.mark.parametrize(
    ("who", "use", "names"),
    [
        (
            "server",
            ExtendedKeyUsageOID.SERVER_AUTH,
            [
                x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                x509.DNSName("localhost"),
                x509.DNSName("vfl.example.org"),
                x509.IPAddress(ipaddress.ip_address("192.0.2.7")),
            ],
        ),
        ("clinic", ExtendedKeyUsageOID.CLIENT_AUTH, [x509.DNSName("clinic")]),
        (
            "lab_2",
            ExtendedKeyUsageOID.CLIENT_AUTH,
            [x509.UniformResourceIdentifier("lessvfl:party:lab_2")],
        ),
    ],
)
def test_a_certificate_says_who_and_what_for(made, who, use, names):
    certificate = load(made / who / "cert.pem")
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == who
    assert list(extension(certificate, x509.ExtendedKeyUsage).value) == [use]
    assert list(extension(certificate, x509.SubjectAlternativeName).value) == names
    assert not extension(certificate, x509.BasicConstraints).value.ca
    authority = load(made / "ca" / "ca.pem")
    signer = extension(certificate, x509.AuthorityKeyIdentifier).value.key_identifier
    assert signer == extension(authority, x509.SubjectKeyIdentifier).value.digest
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)


def test_validity_begins_five_minutes_ago_and_lasts_the_days(tmp_path):
    certificates.init(tmp_path / "kit", ["clinic"], days=30)
    certificate = load(tmp_path / "kit" / "clinic" / "cert.pem")
    authority = load(tmp_path / "kit" / "ca" / "ca.pem")
    now = datetime.datetime.now(datetime.UTC)
    minute = datetime.timedelta(minutes=1)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    assert abs(now - datetime.timedelta(minutes=5) - begin) < minute
    assert abs(now + datetime.timedelta(days=30) - end) < minute
    assert authority.not_valid_after_utc > end


def verifiers(folder):
    store = verification.Store([load(folder / "ca" / "ca.pem")])
    return verification.PolicyBuilder().store(store)


def test_the_chain_verifies(made):
    builder = verifiers(made)
    for host in (
        x509.DNSName("localhost"),
        x509.DNSName("vfl.example.org"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ):
        chain = builder.build_server_verifier(host).verify(
            load(made / "server" / "cert.pem"), []
        )
        assert len(chain) == 2
    for party in PARTIES:
        leaf = load(made / party / "cert.pem")
        assert builder.build_client_verifier().verify(leaf, []).chain[0] == leaf


def test_the_chain_of_others_does_not(made, foreign):
    builder = verifiers(made)
    for leaf in (foreign / "clinic" / "cert.pem", made / "server" / "cert.pem"):
        with pytest.raises(verification.VerificationError):
            builder.build_client_verifier().verify(load(leaf), [])
    with pytest.raises(verification.VerificationError):
        builder.build_server_verifier(x509.DNSName("clinic")).verify(
            load(made / "clinic" / "cert.pem"), []
        )


# ---------------------------------------------------------------------------- handshake


def pair(folder) -> tuple[Path, Path]:
    return folder / "cert.pem", folder / "key.pem"


def handshake(ca, server, party, name="localhost"):
    """Return the party's name as the server read it from a real TLS connection.

    With TLS 1.3 a party learns that it was refused when it first reads, so both sides
    say a word; what either side met is raised.
    """
    listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    listening.verify_mode = ssl.CERT_REQUIRED
    listening.load_cert_chain(*server)
    dialling = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca)
    # The default from Python 3.13 on.
    listening.verify_flags |= ssl.VERIFY_X509_STRICT
    dialling.verify_flags |= ssl.VERIFY_X509_STRICT
    if party is not None:
        dialling.load_cert_chain(*party)
    met: list[Any] = []

    def answer(door):
        connection, _ = door.accept()
        with connection:
            connection.settimeout(10)
            try:
                with listening.wrap_socket(connection, server_side=True) as stream:
                    certificate = stream.getpeercert(binary_form=True)
                    stream.sendall(b"!")
                met.append(ssl.DER_cert_to_PEM_cert(certificate or b""))
            except OSError as problem:
                met.append(problem)

    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=answer, args=(door,))
        thread.start()
        try:
            with (
                socket.create_connection(door.getsockname(), timeout=10) as connection,
                dialling.wrap_socket(connection, server_hostname=name) as stream,
            ):
                stream.recv(1)
        finally:
            thread.join()
    (found,) = met
    if isinstance(found, OSError):
        raise found
    return peer(x509.load_pem_x509_certificate(found.encode()))


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "vfl.example.org"])
def test_a_good_pair_is_let_in_by_its_name(made, party, name):
    server = pair(made / "server")
    ca = made / party / "ca.pem"
    assert handshake(ca, server, pair(made / party), name) == party


@pytest.mark.parametrize(
    ("server", "party", "name", "reason"),
    [
        ("made/server", "foreign/clinic", "localhost", None),
        ("made/server", None, "localhost", None),
        ("foreign/server", "made/clinic", "localhost", "verify failed"),
        ("made/server", "made/clinic", "other.example.org", "(?i)hostname mismatch"),
        # For the very name asked for, but not for a server, and the other way round.
        ("made/clinic", "made/lab_2", "clinic", "purpose"),
        ("made/server", "made/server", "localhost", None),
    ],
)
def test_others_are_refused(made, foreign, server, party, name, reason):
    def files(where):
        kit, _, who = where.partition("/")
        return pair((made if kit == "made" else foreign) / who)

    own = None if party is None else files(party)
    kind = ssl.SSLCertVerificationError if reason else ssl.SSLError
    with pytest.raises(kind, match=reason):
        handshake(made / "ca" / "ca.pem", files(server), own, name)


@pytest.mark.parametrize("days", [-20, 20])
def test_an_expired_or_early_certificate_is_refused(tmp_path, at, days):
    """The CA is good today; the party's certificate is over, or not yet begun."""
    certificates.init(tmp_path / "kit", ["clinic"])
    certificates.request(tmp_path / "own", "clinic")
    at(days)
    ca, own = tmp_path / "kit" / "ca", tmp_path / "own"
    sign(ca, own / "request.pem", own / "cert.pem", days=10)
    at(0)
    problem = "expired on" if days < 0 else "is not valid before"
    with pytest.raises(ConfigError, match=problem):
        certificates.check_pair(*pair(own), own / "ca.pem")
    assert problem in (certificates.read(own / "cert.pem").problem or "")
    with pytest.raises(ssl.SSLError):
        handshake(ca / "ca.pem", pair(tmp_path / "kit" / "server"), pair(own))


# ------------------------------------------------------------------------------ on disk


def test_a_kit_is_complete_and_private(made):
    expected = {"ca": {"ca.pem", "ca-key.pem", "signed.json"}}
    common = {"key.pem", "cert.pem", "ca.pem", "README.md"}
    expected["server"] = common | {"server.yaml"}
    expected |= {party: common | {"party.yaml"} for party in PARTIES}
    found = {folder.name: set(os.listdir(folder)) for folder in made.iterdir()}
    assert found == expected
    assert {mode(path) for path in made.rglob("*.*")} == {0o600}
    assert {mode(path) for path in (made, *made.iterdir())} == {0o700}
    assert os.listdir(made.parent) == ["kit"]


def test_a_key_is_private_from_its_first_byte(tmp_path, monkeypatch):
    """Nobody may open it between its making and a later chmod."""
    monkeypatch.setattr(os, "chmod", None)
    monkeypatch.setattr(os, "fsync", lambda handle: modes.append(os.fstat(handle)))
    modes: list[os.stat_result] = []
    before = os.umask(0)
    try:
        certificates.request(tmp_path / "own", "clinic")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(found.st_mode) for found in modes} == {0o600}
    assert mode(tmp_path / "own") == 0o700


SERVER_KEYS: dict[str, Any] = {
    "listen": "127.0.0.1:8815",
    "certificate": "cert.pem",
    "key": "key.pem",
    "ca": "ca.pem",
    "parties": PARTIES,
    "data": "labels.csv",
    "label": "LABEL_COLUMN",
    "id": "ID_COLUMN",
    "columns": None,
    "sample_weight": None,
    "task": "auto",
    "align": "psi",
    "method": "less-vfl-auto",
    "profile": "default",
    "settings": {},
    "policy": {"epsilon": None, "delta": 1e-5},
    "seeds": [0],
    "evaluation": "end",
    "threads": 1,
    "out": "run",
    "wait": 600,
    "save_every": 50,
    "status": "127.0.0.1:8816",
}

PARTY_KEYS = {
    "server": "127.0.0.1:8815",
    "server_name": "localhost",
    "name": "clinic",
    "certificate": "cert.pem",
    "key": "key.pem",
    "ca": "ca.pem",
    "data": "columns.csv",
    "id": "ID_COLUMN",
    "columns": ["*"],
    "threads": 1,
    "out": "run",
    "wait": 600,
    "align": "psi",
    "scale": "auto",
    "reveal": "nothing",
    "embedding_epsilon": None,
    "policy": dataclasses.asdict(Policy())
    | {"methods": ["less-vfl-auto"], "predict_inference": ["clear"]},
}


def test_the_configs_are_ready(made, foreign):
    def config(path):
        return yaml.safe_load(path.read_text())

    assert config(foreign / "server" / "server.yaml") == SERVER_KEYS
    assert config(foreign / "clinic" / "party.yaml") == PARTY_KEYS
    # With a host name, parties elsewhere can reach the server.
    elsewhere = {"server": "vfl.example.org:8815", "server_name": "vfl.example.org"}
    assert config(made / "clinic" / "party.yaml") == PARTY_KEYS | elsewhere
    reached = SERVER_KEYS | {"listen": "0.0.0.0:8815"}
    assert config(made / "server" / "server.yaml") == reached


@pytest.mark.parametrize("path", ["server/server.yaml", "clinic/party.yaml"])
def test_every_line_of_a_config_is_explained(made, path):
    lines = [line for line in (made / path).read_text().splitlines() if line]
    for above, line in itertools.pairwise(lines):
        assert "# " in (above.lstrip()[:2], line.lstrip()[:2]), line


NOT_IN_A_KIT = {
    "device": "a GPU pays off for few runs",
    "seed_private": "for a comparison with 'lessvfl run', and less private",
    "silence": "for slow networks alone",
    "most_ids": "a party with more ids is told so",
    "as_is": "the default serves; docs/data.md has these five",
    "storage": "the default serves",
    "scale_range": "the default serves",
    "max_categories": "the default serves",
    "missing": "the default serves",
    "party_net": "names code",
    "embedding_noise": "'embedding_epsilon' says it by its price",
    "embedding_clip": "goes with noise, and its default serves",
    "noise_at": "goes with noise, and its default serves",
}


@pytest.mark.parametrize(
    ("path", "config"),
    [("server/server.yaml", ServerConfig), ("clinic/party.yaml", PartyConfig)],
)
def test_a_config_of_a_kit_has_every_key(made, path, config, tmp_path):
    """Those that most runs do without are comments, and hold without their mark."""
    text = re.sub(r"(?m)^# (?=(  )?\w+:( |$))", "", (made / path).read_text())
    (tmp_path / "all.yaml").write_text(text)
    read(config, tmp_path / "all.yaml")
    known, named = set(fields_of([config])), set(yaml.safe_load(text))
    assert known - named == known & NOT_IN_A_KIT.keys()


def test_names_that_yaml_would_take_for_something_else(tmp_path):
    names = ["no", "1e5", "007", "null"]
    certificates.init(tmp_path / "kit", names, ["2001:db8::7"])
    text = (tmp_path / "kit" / "server" / "server.yaml").read_text()
    assert yaml.safe_load(text)["parties"] == names
    party = yaml.safe_load((tmp_path / "kit" / "no" / "party.yaml").read_text())
    assert party["server"] == "[2001:db8::7]:8815"
    for name in names:
        assert peer(load(tmp_path / "kit" / name / "cert.pem")) == name


def test_a_readme_speaks_to_its_party(made):
    text = (made / "clinic" / "README.md").read_text()
    for words in ("**clinic**", "Keep `key.pem` to yourself", "lessvfl party --config"):
        assert words in text
    assert "request.pem" not in text
    assert "$" not in text


# ------------------------------------------------------------------- a party's own key


@pytest.mark.parametrize("name", PARTIES)
def test_request_and_sign_give_what_init_gives(made, tmp_path, name):
    own = tmp_path / "own"
    fingerprint = certificates.request(own, name)
    assert {mode(path) for path in own.iterdir()} == {0o600}
    assert "request.pem" in (own / "README.md").read_text()
    key = (own / "key.pem").read_bytes()
    signed = sign(made / "ca", own / "request.pem", own / "cert.pem", name=name)
    assert signed.key_fingerprint == fingerprint
    assert (own / "key.pem").read_bytes() == key
    assert (own / "ca.pem").read_bytes() == (made / "ca" / "ca.pem").read_bytes()
    assert certificates.check_pair(*pair(own), own / "ca.pem", "party") == name
    ours, theirs = load(own / "cert.pem"), load(made / name / "cert.pem")
    assert ours.subject == theirs.subject
    assert ours.issuer == theirs.issuer
    own_identifier = x509.SubjectKeyIdentifier.oid
    assert [e for e in ours.extensions if e.oid != own_identifier] == [
        e for e in theirs.extensions if e.oid != own_identifier
    ]
    assert handshake(own / "ca.pem", pair(made / "server"), pair(own)) == name


def csr(key, name="clinic", *extensions):
    """Return a request as somebody else's tool might make it."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(keys.subject(name))
    for one in extensions:
        builder = builder.add_extension(one, critical=True)
    return builder.sign(key, hashes.SHA256())


def write(path, wanted):
    path.write_bytes(wanted.public_bytes(serialization.Encoding.PEM))
    return path


def test_what_else_a_request_asks_for_is_not_granted(made, tmp_path):
    wanted = csr(
        keys.new_key(),
        "clinic",
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectAlternativeName([x509.DNSName("lab"), x509.DNSName("localhost")]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    out = tmp_path / "cert.pem"
    sign(made / "ca", write(tmp_path / "request.pem", wanted), out)
    assert certificates.read(out).role == "party"
    assert peer(load(out)) == "clinic"


def tampered(path):
    """Put another name into a request without signing it anew."""
    key = keys.new_key()
    der = csr(key, "clinic").public_bytes(serialization.Encoding.DER)
    changed = x509.load_der_x509_csr(der.replace(b"clinic", b"insure"))
    return write(path, changed)


DAYS_LEFT = 3650  # of the CA; a day more within the second that made it


def asking(name="clinic", make_key=keys.new_key):
    """Return a function that writes a request for a name."""
    return lambda path: write(path, csr(make_key(), name))


SIGN_REFUSED: dict[str, tuple[Any, ...]] = {
    "tampered": (tampered, {}, "signature"),
    "other name": (asking("insurer"), {"name": "clinic"}, "'clinic'", "'insurer'"),
    "a name of ours": (asking("server"), {"name": "server"}, "must not be server"),
    "a name with a slash": (asking("../ca"), {"name": "../ca"}, "'../ca'"),
    "rsa": (
        asking(make_key=lambda: rsa.generate_private_key(65537, 2048)),
        {},
        "P-256",
    ),
    "other curve": (
        asking(make_key=lambda: ec.generate_private_key(ec.SECP384R1())),
        {},
        "P-256",
    ),
    "no request": (lambda path: path.write_text("hello"), {}, "must be a PEM request"),
    "no file": (lambda path: None, {}, "cannot be read"),
    "no days": (tampered, {"days": 0}, "Got 0"),
    "too long": (asking(), {"days": 4000}, "outlive", f"at most {DAYS_LEFT}"),
}


@pytest.mark.parametrize("wrong", SIGN_REFUSED)
def test_a_request_that_is_refused(made, tmp_path, wrong):
    make, options, *words = SIGN_REFUSED[wrong]
    make(tmp_path / "request.pem")
    before = everything(tmp_path)
    with pytest.raises(ConfigError) as refused:
        sign(made / "ca", tmp_path / "request.pem", tmp_path / "cert.pem", **options)
    said = str(refused.value).replace(f"{DAYS_LEFT + 1}.", f"{DAYS_LEFT}.")
    for word in words:
        assert word in said
    assert everything(tmp_path) == before


@pytest.mark.parametrize(
    ("known", "unknown", "word"),
    [
        ("06072a8648ce3d0201", "06072a8648ce3d027f", "P-256"),
        ("06082a8648ce3d040302", "06082a8648ce3d04037f", "signature"),
    ],
    ids=["key", "signature"],
)
def test_an_unknown_algorithm_is_refused(made, tmp_path, known, unknown, word):
    """That of the key, or of the signature, is one that nobody has heard of."""
    der = csr(keys.new_key()).public_bytes(serialization.Encoding.DER)
    assert bytes.fromhex(known) in der
    other = der.replace(bytes.fromhex(known), bytes.fromhex(unknown))
    write(tmp_path / "request.pem", x509.load_der_x509_csr(other))
    with pytest.raises(ConfigError, match=word):
        sign(made / "ca", tmp_path / "request.pem", tmp_path / "cert.pem")


def test_signing_overwrites_nothing(made, foreign, tmp_path):
    own = tmp_path / "own"
    certificates.request(own, "clinic")
    sign(foreign / "ca", own / "request.pem", own / "cert.pem")
    before = everything(tmp_path)
    for ca, out, words in (
        (foreign, own / "cert.pem", "must be a new file"),
        (foreign, tmp_path / "ca.pem", "must be a new file"),
        (made, own / "other.pem", "must be of the CA that signs"),
        (made, tmp_path / "nowhere" / "cert.pem", "must exist"),
    ):
        with pytest.raises(ConfigError, match=words):
            sign(ca / "ca", own / "request.pem", out)
    assert everything(tmp_path) == before
    sign(foreign / "ca", own / "request.pem", own / "next.pem")  # renewed
    assert (
        certificates.check_pair(own / "next.pem", own / "key.pem", own / "ca.pem")
        == "clinic"
    )


def test_a_name_has_one_key_unless_told_otherwise(tmp_path):
    """The certificate of the first one stays valid: nobody recalls it."""
    certificates.init(tmp_path / "kit", ["clinic"])
    ca, paths = tmp_path / "kit" / "ca", {}
    for who, name in (("first", "lab"), ("second", "lab"), ("own", "clinic")):
        certificates.request(tmp_path / who, name)
        paths[who] = tmp_path / who / "request.pem"
    certificates.sign(ca, paths["first"], tmp_path / "first" / "cert.pem", "lab")
    certificates.sign(ca, paths["first"], tmp_path / "first" / "again.pem", "lab")
    before = everything(tmp_path)
    for who, name in (("second", "lab"), ("own", "clinic")):
        with pytest.raises(ConfigError, match=f"'{name}' must have one key: this CA"):
            certificates.sign(ca, paths[who], tmp_path / who / "cert.pem", name)
    assert everything(tmp_path) == before
    out = tmp_path / "second" / "cert.pem"
    certificates.sign(ca, paths["second"], out, "lab", new_key=True)
    certificates.sign(ca, paths["second"], tmp_path / "second" / "again.pem", "lab")
    listed = json.loads((ca / "signed.json").read_text())
    assert {name: len(own) for name, own in listed.items()} == {
        "server": 1,
        "clinic": 1,
        "lab": 2,
    }


@pytest.mark.parametrize("text", ["{", "[]", '{"lab": 3}', "[" * 100_000])
def test_a_broken_list_of_signed_keys_is_one_sentence(tmp_path, text):
    certificates.init(tmp_path / "kit", ["clinic"])
    certificates.request(tmp_path / "own", "clinic")
    (tmp_path / "kit" / "ca" / "signed.json").write_text(text)
    wanted, out = tmp_path / "own" / "request.pem", tmp_path / "cert.pem"
    with pytest.raises(ConfigError, match=r"signed.json' must be as 'lessvfl kit'"):
        sign(tmp_path / "kit" / "ca", wanted, out)
    assert not out.exists()


def test_a_ca_without_a_list_begins_one(tmp_path):
    certificates.init(tmp_path / "kit", ["clinic"])
    certificates.request(tmp_path / "own", "lab")
    ca = tmp_path / "kit" / "ca"
    (ca / "signed.json").unlink()
    wanted, out = tmp_path / "own" / "request.pem", tmp_path / "cert.pem"
    fingerprint = certificates.sign(ca, wanted, out, "lab").key_fingerprint
    assert json.loads((ca / "signed.json").read_text()) == {"lab": [fingerprint]}


def test_signing_wants_a_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("init", "kit", "--parties", "clinic").code == 0
    assert run("request", "own", "--name", "insurer").code == 0
    done = run("sign", "kit/ca", "own/request.pem", "--out", "own/cert.pem")
    assert done.code == 2
    assert "--name" in done.err
    assert not Path("own/cert.pem").exists()


def test_signing_takes_a_whole_ca(made, foreign, tmp_path):
    certificates.request(tmp_path / "own", "clinic")
    wanted, out = tmp_path / "own" / "request.pem", tmp_path / "cert.pem"
    with pytest.raises(ConfigError, match="cannot be read"):
        sign(tmp_path, wanted, out)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    (mixed / "ca.pem").write_bytes((made / "ca" / "ca.pem").read_bytes())
    shutil.copy(foreign / "ca" / "ca-key.pem", mixed)
    with pytest.raises(ConfigError, match="do not belong together"):
        sign(mixed, wanted, out)


def test_an_expired_ca_does_not_sign(made, tmp_path, at):
    certificates.request(tmp_path / "own", "clinic")
    at(3652)
    with pytest.raises(ConfigError, match="outlive"):
        sign(made / "ca", tmp_path / "own" / "request.pem", tmp_path / "c.pem")


# ------------------------------------------------------------------ peers and own pair


@pytest.mark.parametrize("alternative", [b"", b"server", b"a/b", b"\xff", b"a b"])
def test_a_peer_without_a_partys_name(alternative):
    with pytest.raises(ConfigError, match="party's name"):
        certificates.name_of_peer(alternative)


@pytest.mark.parametrize("who", ["server", *PARTIES])
def test_a_pair_that_fits(made, who):
    role: certificates.Role = "server" if who == "server" else "party"
    assert (
        certificates.check_pair(*pair(made / who), made / who / "ca.pem", role) == who
    )


def test_a_file_of_two_cas_serves_while_one_replaces_the_other(made, foreign, tmp_path):
    both = tmp_path / "ca.pem"
    both.write_bytes(
        (foreign / "ca" / "ca.pem").read_bytes() + (made / "ca" / "ca.pem").read_bytes()
    )
    assert certificates.check_pair(*pair(made / "clinic"), both) == "clinic"
    assert certificates.check_pair(*pair(foreign / "clinic"), both) == "clinic"
    assert handshake(both, pair(made / "server"), pair(foreign / "clinic")) == "clinic"


PAIR_REFUSED: dict[str, tuple[Any, ...]] = {
    "no certificate": ({"cert": "no.pem"}, "certificate 'no.pem' cannot be read"),
    "no key": ({"key": "no.pem"}, "key 'no.pem' cannot be read"),
    "no ca": ({"ca": "no.pem"}, "CA certificate 'no.pem' cannot be read"),
    "folder for a key": ({"key": "."}, "cannot be read", "directory"),
    "key as certificate": ({"cert": "clinic/key.pem"}, "must be a PEM certificate"),
    "certificate as key": ({"key": "clinic/cert.pem"}, "must hold a PEM private key"),
    "key as ca": ({"ca": "clinic/key.pem"}, "must hold the CA's certificate"),
    "other key": ({"key": "lab_2/key.pem"}, "must belong together"),
    "not the ca": ({"ca": "lab_2/cert.pem"}, "not signed by the CA"),
    "itself as ca": ({"ca": "clinic/cert.pem"}, "not signed by the CA"),
    "other role": ({"role": "server"}, "must be for the role server", "Got party"),
}


@pytest.mark.parametrize("wrong", PAIR_REFUSED)
def test_a_pair_that_does_not_fit(made, monkeypatch, wrong):
    monkeypatch.chdir(made)
    changed, *words = PAIR_REFUSED[wrong]
    paths = {"cert": "clinic/cert.pem", "key": "clinic/key.pem", "ca": "ca/ca.pem"}
    given: Any = {
        k: v if k == "role" else Path(v) for k, v in (paths | changed).items()
    }
    with pytest.raises(ConfigError) as refused:
        certificates.check_pair(**given)
    for word in words:
        assert word in str(refused.value)


def test_a_pair_of_a_foreign_ca(made, foreign):
    with pytest.raises(ConfigError, match="not signed by the CA"):
        certificates.check_pair(*pair(foreign / "clinic"), made / "ca" / "ca.pem")


def test_a_party_is_no_ca(made, tmp_path):
    """What a party signs with its own key is worth nothing."""
    key = keys.read_key(made / "clinic" / "key.pem")
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    party = keys.Authority(load(made / "clinic" / "cert.pem"), key)
    own = keys.new_key()
    signed = keys.issue(
        party, "lab_2", own.public_key(), "party", [x509.DNSName("lab_2")], days=1
    )
    (tmp_path / "cert.pem").write_bytes(keys.pem(signed))
    write_atomically(tmp_path / "key.pem", keys.key_pem(own), mode=0o600)
    with pytest.raises(ConfigError, match="not signed by the CA"):
        certificates.check_pair(*pair(tmp_path), made / "clinic" / "cert.pem")


def test_a_key_that_others_may_read_is_refused(run, made, tmp_path):
    own, ca = tmp_path / "own", tmp_path / "ca"
    shutil.copytree(made / "clinic", own)
    shutil.copytree(made / "ca", ca)
    certificates.request(tmp_path / "asked", "lab")
    for key in (own / "key.pem", ca / "ca-key.pem"):
        key.chmod(0o644)
    with pytest.raises(ConfigError, match="Got mode 0644, which lets others in"):
        certificates.check_pair(*pair(own), own / "ca.pem")
    words = ("sign", ca, tmp_path / "asked" / "request.pem", "--name", "lab")
    refused = run(*words, "--out", tmp_path / "asked" / "cert.pem")
    assert refused.code == 2
    assert "must be readable by its owner alone, as after chmod 600" in refused.err
    assert not (tmp_path / "asked" / "cert.pem").exists()


def test_a_key_with_a_password(made, tmp_path):
    key = keys.new_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    write_atomically(tmp_path / "key.pem", key, mode=0o600)
    with pytest.raises(ConfigError, match="password"):
        certificates.check_pair(
            made / "clinic" / "cert.pem", tmp_path / "key.pem", made / "ca" / "ca.pem"
        )


def test_a_pair_whose_ca_has_expired(made, tmp_path, at):
    """Its key signed the certificate, but today nobody takes its word."""
    authority = keys.read_authority(made / "ca")
    at(-20)
    name = authority.certificate.subject
    key = authority.key
    old = keys.signed(name, key.public_key(), 10, name, key, is_ca=True)
    (tmp_path / "ca.pem").write_bytes(keys.pem(old))
    at(0)
    with pytest.raises(ConfigError, match=r"ca\.pem' expired on"):
        certificates.check_pair(*pair(made / "clinic"), tmp_path / "ca.pem")


# ------------------------------------------------------------------------- command line


@pytest.fixture
def run(run_cli, monkeypatch):
    """Return a function that runs one command of ``lessvfl kit``."""
    monkeypatch.setattr(app, "app", kit_commands.app)
    return run_cli


def test_the_commands_end_to_end(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("init", "kit", "--parties", "clinic, insurer", "--days", 30)
    assert result.code == 0
    assert result.out.splitlines() == [
        "kit/ca: the CA; keep ca-key.pem offline",
        "kit/server: for the server",
        "kit/clinic: for clinic; hand it over, delete it here",
        "kit/insurer: for insurer; hand it over, delete it here",
        "Next, on every side: fill in what says FILL IN in its .yaml file, then",
        "  lessvfl server --config server.yaml",
        "  lessvfl party --config party.yaml",
        "Before predictions, name in 'predict_ids' of each party who may be asked for",
    ]
    asked = run("request", "lab", "--name", "lab")
    assert asked.code == 0
    words = ("sign", "kit/ca", "lab/request.pem", "--out", "lab/cert.pem")
    signed = run(*words, "--name", "lab", "--days", 7)
    assert signed.code == 0
    (key,) = (line for line in asked.out.splitlines() if line.startswith("key: "))
    assert key in signed.out.splitlines()
    shown = run("show", "lab/cert.pem")
    assert shown.code == 0
    name, role, issuer, valid, fingerprint, *_ = shown.out.splitlines()
    assert (name, role) == ("name: lab", "role: party")
    assert issuer.startswith("issuer: lessvfl CA ")
    assert valid.startswith("valid: 20")
    assert fingerprint.startswith("fingerprint: SHA256 ")
    assert len(bytes.fromhex(fingerprint.split()[-1].replace(":", ""))) == 32
    assert "NOT VALID" not in shown.out
    assert run("show", "kit/ca/ca.pem").out.splitlines()[1] == "role: ca"
    assert run("show", "kit/server/cert.pem").out.splitlines()[1] == "role: server"


def test_show_says_if_expired(run, made, at):
    at(366)
    result = run("show", made / "clinic" / "cert.pem")
    assert result.code == 0
    assert result.out.splitlines()[-1].startswith("NOT VALID TODAY: it expired on ")


def test_show_takes_any_certificate(made, tmp_path):
    """One with no usage, two common names and a subjectAltName that cannot be read."""
    key = keys.new_key()
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "one"),
            x509.NameAttribute(NameOID.COMMON_NAME, "two"),
        ]
    )
    odd = (
        x509.CertificateBuilder(name, name, key.public_key(), 7)
        .not_valid_before(keys.now())
        .not_valid_after(keys.now() + datetime.timedelta(days=1))
        .add_extension(
            x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"?"), False
        )
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "odd.pem").write_bytes(keys.pem(odd))
    shown = certificates.read(tmp_path / "odd.pem")
    assert shown.role == "other"
    assert shown.name == "CN=two,CN=one"


REFUSED = {  # what follows `lessvfl kit`, one word a space, and what is said
    "init new --parties ,": "one party at least",
    "init new --parties my%clinic": "'my clinic'",
    "init new --parties a/b": "'a/b'",
    "init new --parties ..": "'..'",
    f"init new --parties {'a' * 65}": "1 to 64",
    "init new --parties a\nb": r"'a\nb'",
    "init new --parties a,server": "'server'",
    "init new --parties CA": "'CA'",
    "init new --parties a,b,a": "'a' and 'a'",
    "init new --parties Lab,lab": "'Lab' and 'lab'",
    "init new --parties a --days 0": "Got 0",
    "init new --parties a --days 36501": "36501",
    "init new --parties a --server-name https://x": "'https://x'",
    "init new --parties a --server-name 1.2.3": "1.2",
    "init kit --parties a": "already holds a CA",
    "init file --parties a": "'file' must be a new",
    "init full --parties a": "'full' must be a new",
    "init . --parties a": "not the current",
    "init no/new --parties a": "'no' must exist",
    "request new --name a%b": "'a b'",
    "request full --name a": "'full' must be a new",
    "sign full file --out c.pem --name a": "'full/ca.pem'",
    "sign kit/ca file --out c.pem --name a": "'file'",
    "show no.pem": "'no.pem' cannot be read",
    "show file": "'file' must be a PEM certificate",
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_bad_input_is_one_sentence(run, made, tmp_path, monkeypatch, wrong):
    shutil.copytree(made, tmp_path / "kit")
    (tmp_path / "file").write_text("hello")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    (tmp_path / "hollow").mkdir()
    command = [word.replace("%", " ") for word in wrong.split(" ")]
    monkeypatch.chdir(tmp_path / ("hollow" if "." in command else ""))
    before = everything(tmp_path)
    result = run(*command)
    assert result.code == 2
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith("lessvfl: ")
    assert REFUSED[wrong] in line
    assert everything(tmp_path) == before


def test_an_empty_folder_will_do(tmp_path):
    (tmp_path / "kit").mkdir()
    certificates.init(tmp_path / "kit", ["clinic"])
    assert mode(tmp_path / "kit") == 0o700
    assert (tmp_path / "kit" / "clinic" / "cert.pem").is_file()


@pytest.mark.parametrize("ending", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch, ending):
    """The disk is full, or somebody interrupts, at the fifth file."""
    calls: list[int] = []

    def fail(handle):
        calls.append(handle)
        if len(calls) == 5:
            raise ending

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(type(ending)):
        certificates.init(tmp_path / "kit", ["clinic"])
    assert len(calls) == 5
    assert everything(tmp_path) == {}


def test_a_certificate_that_cannot_be_written_leaves_no_ca(made, tmp_path, monkeypatch):
    certificates.request(tmp_path / "own", "clinic")
    before = everything(tmp_path)

    def fail(path, content):
        if path.name == "cert.pem":
            raise OSError(28, "No space left")
        write_atomically(path, content)

    monkeypatch.setattr(certificates, "write_atomically", fail)
    own = tmp_path / "own"
    with pytest.raises(OSError, match="No space left"):
        sign(made / "ca", own / "request.pem", own / "cert.pem")
    assert everything(tmp_path) == before
