"""What a request must show before a page answers it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from lessvfl.run.record import write_atomically
from lessvfl.web import limits
from lessvfl.web.address import is_local
from lessvfl.web.site import Page, Site, read_body
from lessvfl.web.tokens import Tokens

TOKEN = "a-token-of-the-tests.2999-12-31"


class Echo(Site):
    """Answers with what was sent."""

    def __init__(self, folder: Path) -> None:
        write_atomically(folder / "token", TOKEN.encode(), mode=0o600)
        pages = {
            "/open": Page(self.echo),
            "/sent": Page(self.echo, "POST", "predict"),
            "/broken": Page(self.fail),
        }
        super().__init__(pages, Tokens({"predict": folder / "token"}))
        self.noted: list[tuple[str, int]] = []
        self.is_full = False

    async def echo(self, request: Request) -> Response:
        body = await read_body(request)
        return PlainTextResponse("late" if body is None else body)

    async def fail(self, request: Request) -> Response:
        raise RuntimeError("a bug")

    def refuse(self, error: HTTPException) -> Response:
        return PlainTextResponse(error.detail, error.status_code, error.headers)

    def note(self, request: Request, status: int) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.noted.append((request.scope["path"], status))


@pytest.fixture
def site(tmp_path) -> Echo:
    return Echo(tmp_path)


@pytest.fixture
def client(site) -> TestClient:
    return TestClient(
        site, base_url="http://127.0.0.1", headers={"Authorization": f"Bearer {TOKEN}"}
    )


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080"],
)
def test_this_machine_has_these_names(host):
    assert is_local(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:80",
        "evil@localhost",
        "localhost:80@evil.example",
        "localhost/evil",
        "localhost#",
        "127.1",
        "0.0.0.0",
        "[::]",
        "[",
        "::1]",
        "127.0.0.1, evil.example",
        "127.0.0.1:evil.example",
        "localhost:80evil.example",
        "localhost:65536",
        "localhost:-1",
        "localhost:",
        "localhost:80:80",
        "[::1]evil.example",
        "evil.example[::1]",
        "[::1]:evil.example",
        "[::1%lo]",
        "\xff",
    ],
)
def test_other_names_are_those_of_others(host, client):
    assert not is_local(host)
    headers = {"Host": host.encode("latin-1")}
    assert client.get("/open", headers=headers).status_code == 421


def test_a_body_has_an_end_with_and_without_its_length(client, site, monkeypatch):
    monkeypatch.setattr(limits, "BODY_BYTES", 1000)
    must = "A request must have 1,000 bytes or less. Got more."
    for content in (b"x" * 1001, iter([b"x" * 600] * 2)):
        long = client.post("/sent", content=content)
        assert (long.status_code, long.text) == (413, must)
    for content in (b"x" * 1000, iter([b"x" * 500] * 2)):
        assert client.post("/sent", content=content).text == "x" * 1000
    for length in ("-1", "1e3", "9" * 40):
        headers = {"Content-Length": length}
        assert client.post("/sent", headers=headers).status_code == 413
    assert site.counts == {"refused": 4, "failed": 1}


def test_a_head_has_an_end(client):
    for more in ({"X": "y" * limits.HEAD_BYTES}, {f"X{i}": "y" for i in range(9999)}):
        assert client.get("/open", headers=more).status_code == 431
    assert client.get("/open?" + "y" * limits.HEAD_BYTES).status_code == 431


@pytest.mark.parametrize(
    "shown",
    [
        f"bearer {TOKEN}",
        f"Bearer {TOKEN.upper()}",
        f"Bearer  {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        "Bearer ",
        "",
    ],
)
def test_a_token_is_taken_to_the_letter(client, shown):
    refused = client.post("/sent", headers={"Authorization": shown})
    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"] == "Bearer"


def test_who_shows_no_token_gets_one_answer_a_connection(client):
    assert "Connection" not in client.get("/open").headers
    stranger = client.get("/open", headers={"Authorization": ""})
    assert (stranger.status_code, stranger.headers["Connection"]) == (200, "close")


def test_other_methods_are_named(client):
    for call, allowed in (("POST /open", "GET, HEAD"), ("GET /sent", "POST")):
        refused = client.request(*call.split())
        assert (refused.status_code, refused.headers["Allow"]) == (405, allowed)


def test_a_bug_is_logged_and_counted(client, site, caplog):
    assert client.get("/broken").status_code == 500
    assert "a bug" in caplog.text
    assert site.counts == {"failed": 1}
    assert site.noted == [("/broken", 500)]


def test_what_cannot_be_written_down_is_not_answered(client, site, caplog):
    site.is_full = True
    answer = client.post("/sent", content=b"secret")
    assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    assert "No space left" in caplog.text


def test_who_serves_nothing_loads_no_web_server():
    """Commands and runs without a page are not slower for it."""
    program = (
        "import sys, lessvfl.cli.app, lessvfl.cli.remote, lessvfl.remote.server, "
        "lessvfl.remote.predict, lessvfl.status.terminal, lessvfl.web.tokens; "
        "print({'starlette', 'uvicorn', 'prometheus_client'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
