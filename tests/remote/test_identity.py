"""Mutual TLS: who may join, and who may not."""

from __future__ import annotations

import shutil

import pytest

from lessvfl.errors import ConfigError, PartyLostError
from lessvfl.remote import certificates
from lessvfl.wire import flight
from lessvfl.wire.control import Agreed, Finish, Hello
from lessvfl.wire.flight import Address, Hub, Pass


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """Return a kit for two parties, and one of somebody else's CA."""
    base = tmp_path_factory.mktemp("kits")
    certificates.init(base / "ours", ["clinic", "bank"])
    certificates.init(base / "theirs", ["clinic"])
    return base


def a_pass(folder):
    return Pass(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")


def a_hub(papers, **more):
    return Hub(
        "127.0.0.1:0",
        ("clinic", "bank"),
        a_pass(papers / "ours" / "server"),
        name_of=certificates.name_of_peer,
        patience=10,
        **more,
    )


def dial(hub, folder, party, patience=0.5):
    hello = Hello(party, 1, 1, "cpu", {})
    address = Address(f"127.0.0.1:{hub.port}", a_pass(folder))
    flight.serve(address, hello, lambda message: Agreed(), patience=patience)


def test_a_party_with_our_certificate_takes_part(papers):
    import threading

    hub = a_hub(papers)
    threads = [
        threading.Thread(
            target=dial, args=(hub, papers / "ours" / name, name, 10), daemon=True
        )
        for name in ("clinic", "bank")
    ]
    for thread in threads:
        thread.start()
    hub.wait(20)
    assert set(hub.connected) == {"clinic", "bank"}
    replies = hub.send(dict.fromkeys(hub.parties, Finish()))
    assert replies == {"clinic": Agreed(), "bank": Agreed()}
    hub.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_name_that_is_not_in_the_certificate_is_refused(papers):
    seen = []
    hub = a_hub(papers, refused=lambda who, why: seen.append((who, why)))
    with pytest.raises(ConfigError, match="name in its certificate, 'clinic'"):
        dial(hub, papers / "ours" / "clinic", "bank")
    assert hub.connected == ()
    assert seen[0][0] == "clinic"
    hub.close()


def test_a_foreign_ca_is_refused(papers):
    hub = a_hub(papers)
    with pytest.raises(PartyLostError, match="no connection"):
        dial(hub, papers / "theirs" / "clinic", "clinic")
    assert hub.connected == ()
    hub.close()


def test_a_foreign_certificate_with_our_ca_is_refused(papers, tmp_path):
    """The party trusts our server, but nobody we trust signed its certificate."""
    folder = tmp_path / "clinic"
    shutil.copytree(papers / "theirs" / "clinic", folder)
    shutil.copy(papers / "ours" / "ca" / "ca.pem", folder / "ca.pem")
    hub = a_hub(papers)
    with pytest.raises(PartyLostError, match="no connection"):
        dial(hub, folder, "clinic")
    assert hub.connected == ()
    hub.close()


def test_no_certificate_is_no_connection(papers):
    hub = a_hub(papers)
    hello = Hello("clinic", 1, 1, "cpu", {})
    address = Address(f"127.0.0.1:{hub.port}", None)
    with pytest.raises(PartyLostError, match="no connection"):
        flight.serve(address, hello, lambda message: Agreed(), patience=0.5)
    assert hub.connected == ()
    hub.close()


def test_missing_files_are_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="must be files that can be read"):
        Hub("127.0.0.1:0", ("clinic",), a_pass(tmp_path))
