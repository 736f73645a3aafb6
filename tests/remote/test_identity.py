"""Mutual TLS: who may join, and who may not."""

from __future__ import annotations

import shutil
import threading

import pytest

from lessvfl.errors import ConfigError, PartyLostError
from lessvfl.remote import certificates
from lessvfl.wire.control import Agreed, Finish, Hello
from lessvfl.wire.dial import serve
from lessvfl.wire.flight import Address, Credentials, FlightHub
from lessvfl.wire.line import HubRules


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """Return a kit for two parties, and one of somebody else's CA."""
    base = tmp_path_factory.mktemp("kits")
    certificates.init(base / "ours", ["clinic", "bank"])
    certificates.init(base / "theirs", ["clinic"])
    return base


def credentials(folder):
    return Credentials(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")


def a_hub(kits, **more):
    return FlightHub(
        "127.0.0.1:0",
        ("clinic", "bank"),
        credentials(kits / "ours" / "server"),
        name_of=certificates.name_of_peer,
        silence=10,
        **more,
    )


def dial(hub, folder, party, patience=0.5):
    hello = Hello(party, 1, "cpu", {})
    own = None if folder is None else credentials(folder)
    address = Address(f"127.0.0.1:{hub.port}", own)
    serve(address, hello, lambda message: Agreed(), patience=patience)


def test_a_party_with_our_certificate_takes_part(kits):
    hub = a_hub(kits)
    threads = [
        threading.Thread(
            target=dial, args=(hub, kits / "ours" / name, name, 10), daemon=True
        )
        for name in ("clinic", "bank")
    ]
    for thread in threads:
        thread.start()
    hub.wait(20)
    assert set(hub.connected) == {"clinic", "bank"}
    replies = hub.send(dict.fromkeys(hub.parties, Finish("0" * 64)))
    assert replies == {"clinic": Agreed(), "bank": Agreed()}
    hub.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_name_that_is_not_in_the_certificate_is_refused(kits):
    seen = []
    hub = a_hub(kits, rules=HubRules(refused=lambda who, why: seen.append((who, why))))
    with pytest.raises(ConfigError, match="name in its certificate, 'clinic'"):
        dial(hub, kits / "ours" / "clinic", "bank", 10)
    assert hub.connected == ()
    assert seen[0][0] == "clinic"
    hub.close()


@pytest.mark.parametrize("which", ["foreign", "foreign, with our CA", "none"])
def test_who_has_no_certificate_of_ours_is_refused(kits, tmp_path, which):
    """Whether or not that party trusts our server."""
    folder = tmp_path / "clinic"
    shutil.copytree(kits / "theirs" / "clinic", folder)
    if which == "foreign, with our CA":
        shutil.copy(kits / "ours" / "ca" / "ca.pem", folder / "ca.pem")
    hub = a_hub(kits)
    with pytest.raises(PartyLostError, match="no answer"):
        dial(hub, None if which == "none" else folder, "clinic")
    assert hub.connected == ()
    hub.close()


def test_missing_files_are_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="must be files that can be read"):
        FlightHub("127.0.0.1:0", ("clinic",), credentials(tmp_path))
