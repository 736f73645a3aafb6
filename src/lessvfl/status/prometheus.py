"""A snapshot in the Prometheus text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Literal, get_args

from lessvfl.status.value import Snapshot, State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[dict[str, str], float]

# Name -> type and meaning, in the order of the answer.
FAMILIES: dict[str, tuple[Literal["counter", "gauge"], str]] = {
    "lessvfl_run_info": ("gauge", "Names of the run, as labels; always 1."),
    "lessvfl_run_state": ("gauge", "1 for the state the run is in, else 0."),
    "lessvfl_run_start_time_seconds": ("gauge", "When the run began, Unix time."),
    "lessvfl_steps_total": ("counter", "Steps done."),
    "lessvfl_planned_steps": ("gauge", "Steps planned."),
    "lessvfl_steps_per_second": ("gauge", "Steps a second, lately."),
    "lessvfl_stage_seconds_left": ("gauge", "Estimated time left of the stage."),
    "lessvfl_seconds_left": ("gauge", "Estimated time left in all."),
    "lessvfl_score": ("gauge", "Latest score."),
    "lessvfl_party_connected": ("gauge", "1 for a connected party, 0 for one away."),
    "lessvfl_party_heard_time_seconds": (
        "gauge",
        "When the party was last heard of, Unix time.",
    ),
    "lessvfl_party_connections_total": ("counter", "Connections made by the party."),
    "lessvfl_rounds_total": ("counter", "Exchanges with the party."),
    "lessvfl_payload_bytes_total": ("counter", "Payload bytes, as in the bill."),
    "lessvfl_wire_bytes_total": ("counter", "Bytes on the wire."),
    "lessvfl_refused_connections_total": ("counter", "Refused connections."),
}


def render(snapshot: Snapshot) -> str:
    """Return all metrics of a snapshot; what is not known has no sample."""
    samples: dict[str, list[Sample]] = {name: [] for name in FAMILIES}
    for name, labels, value in (*_of_run(snapshot), *_of_parties(snapshot)):
        samples[name].append((labels, value))
    lines = []
    for name, (kind, help_text) in FAMILIES.items():
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(labels)} {v!r}" for labels, v in samples[name]]
    return "\n".join(lines) + "\n"


def _of_run(snapshot: Snapshot) -> Iterator[tuple[str, dict[str, str], float]]:
    names = {"run": snapshot["run"], "method": snapshot["method"]}
    names |= {"data": snapshot["data"], "version": snapshot["lessvfl"]}
    yield "lessvfl_run_info", names, 1
    for state in get_args(State):
        yield "lessvfl_run_state", {"state": state}, int(state == snapshot["state"])
    yield "lessvfl_run_start_time_seconds", {}, _unix(snapshot["started"])
    for stage, n_steps in snapshot["steps"].items():
        yield "lessvfl_steps_total", {"stage": stage}, n_steps
    for stage, n_steps in snapshot["plan"].items():
        yield "lessvfl_planned_steps", {"stage": stage}, n_steps
    for name, value in (
        ("lessvfl_steps_per_second", snapshot["steps_per_second"]),
        ("lessvfl_stage_seconds_left", snapshot["stage_seconds_left"]),
        ("lessvfl_seconds_left", snapshot["seconds_left"]),
    ):
        if value is not None:
            yield name, {}, value
    if score := snapshot["score"]:
        yield "lessvfl_score", {"name": score["name"]}, score["value"]
    for reason, count in snapshot["refused"].items():
        yield "lessvfl_refused_connections_total", {"reason": reason}, count


def _of_parties(snapshot: Snapshot) -> Iterator[tuple[str, dict[str, str], float]]:
    for name, party in snapshot["parties"].items():
        who = {"party": name}
        yield "lessvfl_party_connected", who, int(party["connected"])
        yield "lessvfl_party_connections_total", who, party["connections"]
        if heard := party["heard"]:
            yield "lessvfl_party_heard_time_seconds", who, _unix(heard)
        for stage, traffic in party["by_stage"].items():
            here = who | {"stage": stage}
            yield "lessvfl_rounds_total", here, traffic["rounds"]
            for metric, ways in (
                ("lessvfl_payload_bytes_total", traffic["payload_bytes"]),
                ("lessvfl_wire_bytes_total", traffic["wire_bytes"]),
            ):
                yield metric, here | {"direction": "up"}, ways["up"]
                yield metric, here | {"direction": "down"}, ways["down"]


def _labels(labels: dict[str, str]) -> str:
    pairs: Iterable[str] = (f'{k}="{_escape(v)}"' for k, v in labels.items())
    return "{" + ",".join(pairs) + "}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _unix(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
