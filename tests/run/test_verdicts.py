"""The verdict on a column: what is known of it, and where that is known."""

from __future__ import annotations

import pytest

from lessvfl.run.verdicts import agreed


def a_run(kept, removed, why="weak", at_most=0.02, signs=0.5, **more):
    """Return numbers of a run in which all that was removed is alike."""
    names = [*kept, *removed]
    how = {
        "why": dict.fromkeys(kept, "strength") | dict.fromkeys(removed, why),
        "at_most": dict.fromkeys(names, at_most),
        "signs": dict.fromkeys(names, signs),
        "power": {"correlation": 0.1},
    }
    features = {"bank": {"kept": kept, "removed": removed}}
    return {"features": features, "selection": {"bank": how}} | more


def verdict(*runs):
    return agreed(runs)["bank"]["verdicts"]["b"]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ({}, "not needed"),
        ({"at_most": 0.11}, "undecided"),
        ({"signs": 1.1}, "undecided"),
        ({"why": "most"}, "undecided"),
        ({"selection": None}, "removed"),
    ],
)
def test_not_needed_is_what_may_do_little_and_shows_nothing(what, expected):
    assert verdict(a_run(["a"], ["b"], **what)) == expected


def test_a_run_that_an_older_version_began_bounds_no_curve():
    run = a_run(["a"], ["b"])
    del run["selection"]["bank"]["signs"]
    assert verdict(run) == "removed"
    assert agreed([run])["bank"]["verdicts"]["a"] == "needed"


def test_what_some_runs_keep_is_undecided():
    runs = [a_run(["b"], ["a"]), a_run(["a"], ["b"]), a_run(["b"], ["a"])]
    assert verdict(*runs) == "undecided"
    assert verdict(*runs[:1]) == "needed"


def test_whoever_tells_of_no_features_has_no_verdict():
    assert agreed([a_run(["a"], ["b"], features={"bank": None})]) == {}
