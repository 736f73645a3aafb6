"""Commands of other packages, found by their entry points."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from lessvfl.cli import app as cli
from lessvfl.errors import ConfigError

theirs = typer.Typer()


@theirs.command()
def hello() -> None:
    typer.echo("hello of another package")


@theirs.command()
def other() -> None:
    """Stand beside it: an application of one command has no names."""


def added(value: str) -> typer.Typer:
    """Return an application with one command of another package."""
    to = typer.Typer()
    to.command("own")(other)
    cli.add_others(to, [EntryPoint("more", value, cli.COMMANDS)])
    return to


def test_another_package_adds_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("another_package")
    monkeypatch.setattr(package, "app", theirs, raising=False)
    monkeypatch.setitem(sys.modules, "another_package", package)
    result = CliRunner().invoke(added("another_package:app"), ["more", "hello"])
    assert result.output == "hello of another package\n"


def test_one_that_cannot_be_loaded_says_why_and_the_others_work() -> None:
    to = added("no_such_package:app")
    assert CliRunner().invoke(to, ["own"]).exit_code == 0
    error = CliRunner().invoke(to, ["more"]).exception
    assert isinstance(error, ConfigError)
    assert "'more' must come from a package that can be imported" in str(error)
    assert "no_such_package" in str(error)
