"""Noise that is asked of a run between processes on one machine."""

import functools

import pytest

from lessvfl import data
from lessvfl.remote import config, localhost
from lessvfl.run import profiles
from lessvfl.run.simulate import Job
from lessvfl.status import terminal


@pytest.mark.parametrize(
    ("given", "private", "noise"),
    [
        ({}, "shared", (0.0, None)),
        ({"embedding_noise": 3.0}, "own", (3.0, None)),
        ({"embedding_epsilon": 2.0}, "own", (0.0, 2.0)),
        ({"embedding_noise": 3.0, "embedding_epsilon": 2.0}, "own", (0.0, 2.0)),
    ],
)
def test_parties_have_the_noise_that_was_asked_for(tmp_path, given, private, noise):
    table = data.load("breast-cancer")
    own = profiles.resolve("less-vfl-auto", "default", table, given)
    job = Job(table, own, parties=2)
    localhost.write_folders(job, job.problem(0), [0], tmp_path / "kit", 9)
    for name in ("party0", "party1"):
        path = tmp_path / "kit" / name / "party.yaml"
        party = config.read(config.PartyConfig, path)
        assert party.seed_private == private
        assert (party.embedding_noise, party.embedding_epsilon) == noise
        assert party.embedding_clip == own.data.embedding_clip


def test_what_parties_spent_is_on_the_whole_page(tmp_path):
    table = data.load("breast-cancer")
    given = {"embedding_noise": 0.5, "train_epochs": 1}  # so little is bounded at once
    own = profiles.resolve("less-vfl-auto", "default", table, given)
    watch = functools.partial(terminal.show, quiet=True, times=False)
    job, port = Job(table, own, parties=2), localhost.free_port()
    (run,) = localhost.run(job, [0], tmp_path / "kit", port, watch)
    spent = run["privacy"]["columns"]
    assert sorted(spent) == ["party0", "party1"]
    in_one = job.privacy(1, ["party0", "party1"])["privacy"]["columns"]
    assert spent["party0"]["epsilon"] == pytest.approx(in_one["party0"]["epsilon"])
