"""Records of one side of a run between machines, made out of those of a whole run."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from lessvfl.run.record import RunRecord
from lessvfl.run.verdicts import agreed


def header_of(whole: RunRecord) -> dict[str, Any]:
    """Return the first line of a run without what only a simulator is told."""
    alone = ("spurious", "groups")
    return {key: value for key, value in whole.header.items() if key not in alone}


def bill_of(party: str) -> list[dict[str, Any]]:
    """Return the lines of one party's bill."""
    lines = [
        ("up", "pretrain", "embedding", 4000),
        ("down", "pretrain", "gradient", 4000),
        ("up", "train", "embedding", 16_000),
        ("down", "train", "gradient", 16_000),
        ("up", "evaluate", "embedding", 700_000),
    ]
    names = ("direction", "stage", "kind", "payload_bytes")
    return [{"party": party, **dict(zip(names, one, strict=True))} for one in lines]


def party_record(whole: RunRecord, party: str = "bank", **header: Any) -> RunRecord:
    """Return what one party of a run knows."""
    runs = []
    for one in copy.deepcopy(whole.runs):
        run = {
            "seed": one["seed"],
            **{
                key: {party: one[key][party]}
                for key in ("features", "importance", "selection", "components")
                if one.get(key)
            },
            "rows": {"train": 7352, "test": 2947},
            "communication": one["communication"],
            "bill": bill_of(party),
            "curve": [],
        }
        runs.append(run)
    first_line = header_of(whole) | {
        "side": "party",
        "run": "0" * 32,
        "networks": "networks",
        "party": party,
        "parties": list(whole.runs[0]["features"]),
        "profile": None,
        "reveal": "nothing",
        "align": "psi",
        "config": {"bits": 4, "dtype": "float32"},
        "data": {"name": "columns", "n_train": 7352, "n_test": 2947, "n_features": 15},
    }
    return RunRecord(first_line | header, runs, "complete", consensus=agreed(runs))


def server_record(
    whole: RunRecord, reveals: Mapping[str, str] | None = None
) -> RunRecord:
    """Return what the server of a run knows; `reveals` is party -> what it tells."""
    runs = []
    parties = list(whole.runs[0]["features"])
    for one in copy.deepcopy(whole.runs):
        own, told = one["features"], reveals or {}
        one |= {
            "features": {
                p: own[p] if told.get(p) == "features" else None for p in parties
            },
            "counts": {
                p: {"n_kept": len(own[p]["kept"]), "n_removed": len(own[p]["removed"])}
                for p in parties
                if told.get(p) == "counts"
            },
            "bill": [line for p in parties for line in bill_of(p)],
            "spurious": None,
            "selection": None,
        }
        for name in ("importance", "test_rows_seen"):  # of all columns together
            one.pop(name, None)
        one["communication"] |= {
            "wire_bytes": {"up": 800_000, "down": 30_000},
            "resent_bytes": 0,
        }
        runs.append(one)
    first_line = header_of(whole) | {
        "side": "server",
        "run": "0" * 32,
        "networks": "networks",
        "parties": parties,
    }
    unknown = {"name": "labels", "n_features": None, "n_real": None}
    first_line["data"] = whole.header["data"] | unknown
    return RunRecord(first_line, runs, "complete", consensus=agreed(runs))


def rated_record(
    whole: RunRecord, n_classes: int = 2, bins: bool = True, **header: Any
) -> RunRecord:
    """Return what a party knows whose method rated two of its features."""
    found = party_record(whole, **header)
    for run in found.runs:
        names = run["features"]["bank"]
        (old, gone), new = (names["kept"][0], names["removed"][0]), ("age", "colour")
        names["kept"][0], names["removed"][0] = new
        for how in (run["importance"], run.get("selection") or {}):
            text = json.dumps(how.get("bank"))
            for a, b in zip((old, gone), new, strict=True):
                text = text.replace(json.dumps(a), json.dumps(b))
            how["bank"] = json.loads(text)
        counts = [1000, *[200] * (n_classes - 1)]
        woe = [-0.2513] * (1 if n_classes == 2 else n_classes)
        line = {"rows": 1200, "classes": counts, "woe": woe, "part": 0.0123}
        tables = {"age": ["[18.0, 25.0)", "missing"], "colour": ["a " * 40, "red"]}
        rates = [
            {
                "feature": name,
                "score": score,
                **(
                    {"bins": [{"bin": b, **line} for b in tables[name]]} if bins else {}
                ),
            }
            for name, score in (("age", 0.4123), ("colour", 0.05))
        ]
        shared = {"measure": "information value", "false_share": 0.12}
        run["ratings"] = {"bank": {**shared, "features": rates}}
    return found
