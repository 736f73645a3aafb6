"""No method changes what it does without its number, so that tables tell their age.

A stored record of one tiny run of each method, of a frame on the wire, of the messages
of an alignment and of the rows of a split. ``python -m tests.methods.test_behaviour``
writes those anew whose number was raised; `tests/test_docs.py` compares the numbers
with those of tables.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from lessvfl import data, methods, wire
from lessvfl.data import split
from lessvfl.remote import align
from lessvfl.run import profiles, simulate
from lessvfl.wire import codec, control
from lessvfl.wire.messages import Block, Descend

FILE = Path(__file__).parent.parent / "records" / "behaviour.json"
NUMBERS = {name: method.behaviour for name, method in methods.METHODS.items()}
NUMBERS |= {"wire": wire.BEHAVIOUR, "alignment": align.BEHAVIOUR}
NUMBERS |= {"split": split.BEHAVIOUR}
SHORT: dict[str, dict[str, Any]] = {
    "less-vfl": {"party_epochs": 30, "server_epochs": 30},
    "local-lasso": {"party_epochs": 30},
    "group-lasso": {"joint_epochs": 5, "lam_party": 25.0},
    "vertical-boost": {"trees": 5, "select_trees": 5},
    "vertical-forest": {"trees": 5, "select_trees": 5},
    "auto-boost": {"trees": 5},
    "vprf": {"trees": 9, "select_trees": 6},
    "pso-trees": {"trees": 5, "select_trees": 5, "particles": 3, "particle_trees": 3},
}
Record = dict[str, Any]


def run(method: str) -> Record:
    """Return what one short run of a method kept, scored and sent."""
    dataset = data.load("breast-cancer")
    given = {"train_epochs": 3, "split": "stratified", **SHORT.get(method, {})}
    settings = profiles.resolve(method, "default", dataset, given)
    job = simulate.Job(dataset, settings, parties=3, spurious=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (done,) = simulate.simulate(job, [0])
    numbers = done.numbers
    parties = numbers["features"].values()
    return {
        "kept": sorted(name for party in parties for name in party["kept"]),
        "accuracy": round(numbers["accuracy"]["final"], 3),
        "bytes": sum(numbers["communication"]["payload_bytes"].values()),
    }


def frame() -> Record:
    """Return the bytes of a gradient on the wire."""
    block = Block(torch.ones(128, 8))
    return {"bytes": len(codec.encode(codec.WireFrame(Descend("train", block), 1)))}


def alignment() -> Record:
    """Return the bytes of a private alignment of 100 ids with 100, 50 in common."""
    holder = align.Aligner("psi", align.Ids(range(100)), 100, secret=bytes(32))
    theirs = align.Ids(range(50, 150))
    party = align.PartyAligner("psi", theirs, 100, secret=bytes(32))
    hello = holder.hello()
    offer = party.answer(hello) or b""
    echo = holder.take("party", offer) or b""
    answer = party.answer(echo) or b""
    holder.take("party", answer)
    said = [hello, offer, echo, answer, holder.finish()["party"]]
    return {"bytes": sum(map(len, said))}


def drawn() -> Record:
    """Return the test rows of a run that says nothing of them, and their bytes."""
    dataset = data.load("breast-cancer")
    train, test = data.split_rows(dataset, data.DataConfig(), seed=0)
    message = control.Prepare.of(0, train, test)
    return {"kept": sorted(map(str, test)), "bytes": message.rows.nbytes}


def record_of(name: str) -> Record:
    """Return the record that one of `NUMBERS` makes today."""
    makers = {"wire": frame, "alignment": alignment, "split": drawn}
    return makers[name]() if name in makers else run(name)


def differences(was: Record, now: Record) -> list[str]:
    """Return what differs by more than another processor makes of it."""
    kept = set(was.get("kept", [])), set(now.get("kept", []))
    found = {
        "features kept": len(kept[0] ^ kept[1]) > max(2, 0.1 * len(kept[0])),
        "accuracy": abs(was.get("accuracy", 0) - now.get("accuracy", 0)) > 0.02,
        "bytes": abs(was["bytes"] - now["bytes"]) > 0.02 * was["bytes"],
    }
    return [what for what, is_other in found.items() if is_other]


def complaint(name: str, stored: Record, now: Record) -> str:
    """Return what is to be done where a record no longer holds, or nothing."""
    if stored["behaviour"] != NUMBERS[name]:
        return (
            f"The record of {name} is of behaviour {stored['behaviour']}, the code's "
            f"is {NUMBERS[name]}: run `python -m tests.methods.test_behaviour`."
        )
    if others := differences(stored, now):
        return (
            f"Other {' and '.join(others)} than in the record of {name}: raise the "
            f"behaviour number of {name} or undo the change."
        )
    return ""


def read() -> dict[str, Record]:
    found: dict[str, Record] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", NUMBERS)
def test_a_tiny_run_is_that_of_the_record(name: str) -> None:
    stored = read()[name]
    assert not (words := complaint(name, stored, record_of(name))), words


def test_what_changed_is_said() -> None:
    stored = {
        "behaviour": NUMBERS["plain"],
        "kept": [*"ab"],
        "accuracy": 0.9,
        "bytes": 9,
    }
    assert not complaint("plain", stored, {**stored, "accuracy": 0.91})
    for what, value in {"kept": [*"cd"], "accuracy": 0.87, "bytes": 10}.items():
        words = complaint("plain", stored, {**stored, what: value})
        assert "raise the behaviour number of plain" in words
    assert "run `python" in complaint("plain", {**stored, "behaviour": 0}, stored)


def main() -> None:
    """Write the records whose number was raised."""
    stored = read()
    for name, number in NUMBERS.items():
        if name not in stored or stored[name]["behaviour"] != number:
            stored[name] = {"behaviour": number, **record_of(name)}
    text = json.dumps({name: stored[name] for name in NUMBERS}, indent=1)
    FILE.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
