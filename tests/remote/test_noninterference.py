"""Labels move no byte that leaves the label holder before the first gradient.

Two runs over sockets, the second with the labels in another order: every frame that
the server writes to a party, up to the first gradient, must be equal to the bit.
"""

from __future__ import annotations

import secrets
import uuid
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.remote.test_remote import (
    HELD,
    a_hub,
    a_party,
    a_status,
    own_settings,
    server_config,
    start,
    told,
)

from lessvfl import data
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.tables import LabelTable
from lessvfl.wire import codec
from lessvfl.wire.line import PartyLine
from lessvfl.wire.messages import Descend, Query

pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")

N = 150
DRAWN = np.random.default_rng(21)
ORDER = DRAWN.permutation(N)
CLASSES = {k: DRAWN.permutation(np.arange(N) % k) for k in (2, 3, 9)}
AMOUNTS = DRAWN.lognormal(size=N)
WEIGHTS = DRAWN.uniform(0.5, 2.0, size=N)
PEOPLE = np.arange(N) // 3
IDS = np.arange(N) + 500


class FirstGradient(Exception):
    """The first gradient is about to leave."""


@pytest.fixture
def frames(monkeypatch) -> dict[str, list[bytes]]:
    """Keep what a server writes to each party until its first gradient or question."""
    kept: dict[str, list[bytes]] = defaultdict(list)
    say = PartyLine.say

    def listen(line: PartyLine, frame: bytes) -> int:
        if codec.kind_of(memoryview(frame)) in (Descend, Query):
            raise FirstGradient
        kept[line.party].append(bytes(frame))
        return say(line, frame)

    monkeypatch.setattr(PartyLine, "say", listen)
    monkeypatch.setattr(secrets, "token_bytes", lambda n: bytes([n]) * n)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=7))
    return kept


def run_until_gradients(
    folder: Path,
    frames: dict[str, list[bytes]],
    dataset: data.Dataset,
    method: str = "less-vfl-auto",
    **server: Any,
) -> dict[str, list[bytes]]:
    """Return by party what leaves before the first gradient."""
    frames.clear()
    align = server.get("align", "none")
    ids = None if align == "none" else IDS
    own = told(own_settings(method)) | server.pop("settings", {})
    own_ids = {"id": "who"} if ids is not None else {}
    config = server_config(
        folder, method, settings=own, **{"tell_share": False, **own_ids}, **server
    )
    with a_hub() as hub:
        process = ServerProcess(config, LabelTable(dataset, ids), hub, a_status())
        parties = (a_party(n, folder, ids=ids, align=align, **own_ids) for n in HELD)
        sides = start(hub, *parties)
        try:
            with pytest.raises(FirstGradient):
                process.run()
        finally:
            process.close()
    for side in sides:
        side.join(20)
    return {party: list(own) for party, own in frames.items()}


def a_table(y: Any, **roles: Any) -> data.Dataset:
    return replace(data.from_arrays(np.zeros((N, 1)), y, name="labels"), **roles)


CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "two classes": (CLASSES[2], {}, {}),
    "ids": (CLASSES[2], {}, {"align": "psi"}),
    "three classes": (CLASSES[3], {}, {}),
    "many classes": (CLASSES[9], {}, {}),
    "amounts": (AMOUNTS, {}, {}),
    "weights": (CLASSES[2], {"weight": WEIGHTS}, {}),
    "weights of classes": (
        CLASSES[3],
        {},
        {"settings": {"class_weight": {"0": 1.0, "1": 5.0, "2": 9.0}}},
    ),
    "groups": (CLASSES[2], {"units": PEOPLE}, {}),
    "named test rows": (CLASSES[2], {"is_test": np.arange(N) % 4 == 0}, {}),
    "folds": (CLASSES[2], {}, {"folds": 3}),
    "folds of groups": (CLASSES[3], {"units": PEOPLE}, {"folds": 3}),
    "an ensemble": (CLASSES[2], {}, {"seeds": (0, 1, 2), "ensemble": True}),
    "blocks": (CLASSES[2], {}, {"settings": {"row_order": "blocks"}}),
    "sharing": (CLASSES[2], {}, {"method": "gini-filter"}),
    "trees": (CLASSES[2], {}, {"method": "vertical-boost"}),
    "marvell": (
        CLASSES[2],
        {},
        {"settings": {"gradient_defence": "marvell"}, "seed_private": "own"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_labels_move_no_byte_before_the_first_gradient(tmp_path, frames, case):
    y, roles, server = CASES[case]
    assert (y[ORDER] != y).any()
    moved = {k: v[ORDER] if k == "weight" else v for k, v in roles.items()}
    first, second = (
        run_until_gradients(tmp_path / name, frames, a_table(own, **more), **server)
        for name, own, more in (("a", y, roles), ("b", y[ORDER], moved))
    )
    assert set(first) == set(second) == set(HELD)
    assert first == second
    assert min(map(len, first.values())) > 3  # greeted, aligned, told rows and a plan


def test_a_draw_by_class_is_heard(tmp_path, frames):
    """The other way round: bytes differ where labels do decide."""
    own: dict[str, Any] = {"settings": {"split": "stratified"}}
    first, second = (
        run_until_gradients(tmp_path / name, frames, a_table(y), **own)
        for name, y in (("a", CLASSES[2]), ("b", CLASSES[2][ORDER]))
    )
    assert first != second
