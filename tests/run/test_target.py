"""The paper's target: accuracy and removal, together, for the first time."""

from __future__ import annotations

import pytest

from lessvfl.run.target import cost_to_target, first_hit


def a_point(accuracy, removed, cost):
    return {
        "accuracy": accuracy,
        "removed_share": removed,
        "paper_mib": cost / 10,
        "payload_bytes": cost,
        "rounds": cost + 1,
    }


CURVES = [
    ([(0.95, 0.0), (0.5, 1.0)], None, None),  # never both together
    ([(0.5, 1.0), (0.91, 0.9), (0.99, 1.0)], 1, 1),  # the first time counts
    ([(0.91, 0.9), (0.1, 0.0)], 0, 0),  # though it does not last
    ([(0.9, 0.9)], 0, None),  # exactly the accuracy
    ([(0.95, 0.8)], 0, None),  # exactly the share
    ([], None, None),
]


@pytest.mark.parametrize(("points", "hit", "strict_hit"), CURVES)
def test_cost_to_target(points, hit, strict_hit):
    curve = [a_point(a, r, cost) for cost, (a, r) in enumerate(points)]
    for strict, at in ((False, hit), (True, strict_hit)):
        found = cost_to_target(curve, 0.9, strict)
        cost = {"paper_mib": None, "payload_bytes": None, "rounds": None}
        if at is not None:
            cost = {"paper_mib": at / 10, "payload_bytes": at, "rounds": at + 1}
        assert found == {"accuracy": 0.9, "reached": at is not None} | cost


def test_one_hit_serves_every_measure():
    """The benchmark asks for balanced accuracy, too, and takes arrays."""
    assert first_hit([0.2, 0.9, 0.95], [0.9, 0.8, 0.8], 0.9, strict=False) == 1
    assert first_hit([0.2, 0.9, 0.95], [0.9, 0.8, 0.81], 0.9, strict=True) == 2
    assert first_hit([], [], 0.9, strict=False) == -1
