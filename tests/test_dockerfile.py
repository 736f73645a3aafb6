"""The image of a server and a party, by its Dockerfile: what a linter would say."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.specifiers import SpecifierSet

from lessvfl.remote.config import ServerConfig

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KNOWN = {"FROM", "RUN", "ENV", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "EXPOSE", "CMD"}


class Line(NamedTuple):
    """An instruction and what it is given."""

    word: str
    given: str


def stages() -> dict[str, list[Line]]:
    """Return the instructions of every stage, by its name."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, list[Line]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, given = line.partition(" ")
        if word == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\w+)", given).groups()  # type: ignore[union-attr]
            found[name] = [*found.get(base, ())]
        found[name].append(Line(word, " ".join(given.split())))
    return found


def last(stage: str, word: str) -> str:
    return [line.given for line in stages()[stage] if line.word == word][-1]


def test_instructions_are_few_and_in_capitals() -> None:
    assert {line.word for lines in stages().values() for line in lines} == KNOWN


def test_bases_name_a_version_of_python_that_is_supported() -> None:
    bases = {stages()[name][0].given.split()[0] for name in ("build", "side")}
    (base,) = bases
    version = re.fullmatch(r"python:(\d+\.\d+)-slim-\w+", base)
    assert version is not None
    assert version[1] in SpecifierSet(PROJECT["requires-python"])


@pytest.mark.parametrize("side", ["server", "party"])
def test_a_side_runs_its_command_as_nobody_in_particular(side) -> None:
    assert int(last(side, "USER")) > 0
    entry = json.loads(last(side, "ENTRYPOINT"))
    assert entry[0] in PROJECT["scripts"]
    assert json.loads(last(side, "CMD")) == [side, "--config", f"{side}.yaml"]
    names = [line.word for line in stages()[side]]
    assert names.index("USER") > max(i for i, w in enumerate(names) if w == "RUN")
    copied = [line.given for line in stages()[side] if line.word == "COPY"]
    assert copied == ["--from=build /opt/lessvfl /opt/lessvfl"]  # no tools, no sources


def test_the_port_is_that_of_a_server_alone() -> None:
    assert last("server", "EXPOSE") == ServerConfig().listen.rpartition(":")[2]
    assert "EXPOSE" not in {line.word for line in stages()["party"]}


def test_what_is_copied_is_there_and_is_all_that_is_sent_to_the_builder() -> None:
    copied = [line.given.split() for line in stages()["build"] if line.word == "COPY"]
    sources = {source for *several, _ in copied for source in several}
    assert all((ROOT / source).exists() for source in sources)
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in rules
    assert {rule[1:] for rule in rules if rule.startswith("!")} == sources
    kept = [rule for rule in rules if fnmatch.fnmatch("src/a/__pycache__", rule)]
    assert kept


def test_installing_keeps_no_cache_and_the_versions_of_everybody() -> None:
    (install,) = (g for w, g in stages()["build"] if w == "RUN" and "install" in g)
    for needed in ("--no-cache-dir", "--constraint constraints.txt", "/whl/cpu"):
        assert needed in install
    needs = {PROJECT["readme"], *PROJECT["license-files"]}
    assert needs <= set(last_words("build", "COPY"))


def last_words(stage: str, word: str) -> list[str]:
    lines = [line.given for line in stages()[stage] if line.word == word]
    return [part for line in lines for part in line.split()]
