"""A snapshot in the Prometheus text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, get_args

from lessvfl.status.snapshot import RunState, Snapshot, Way

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

MetricSample = tuple[str, dict[str, str], float]  # name, labels, value

# Name -> type and meaning, in the order of the answer.
FAMILIES: dict[str, tuple[Literal["counter", "gauge"], str]] = {
    "lessvfl_run_info": ("gauge", "Names of the run, as labels; always 1."),
    "lessvfl_run_state": ("gauge", "1 for the state the run is in, else 0."),
    "lessvfl_run_start_time_seconds": ("gauge", "When the run began, Unix time."),
    "lessvfl_steps_total": ("counter", "Steps done."),
    "lessvfl_steps_per_second": ("gauge", "Steps a second, lately."),
    "lessvfl_stage_seconds_left": ("gauge", "Estimated time left of the stage."),
    "lessvfl_score": ("gauge", "Latest score."),
    "lessvfl_party_connected": ("gauge", "1 for a connected party, 0 for one away."),
    "lessvfl_party_heard_time_seconds": ("gauge", "When last heard of, Unix time."),
    "lessvfl_party_connections_total": ("counter", "Connections made by the party."),
    "lessvfl_rounds_total": ("counter", "Exchanges with the party."),
    "lessvfl_payload_bytes_total": ("counter", "Payload bytes, as in the bill."),
    "lessvfl_wire_bytes_total": ("counter", "Bytes on the wire."),
    "lessvfl_refused_connections_total": ("counter", "Refused connections."),
}


def render(snapshot: Snapshot) -> str:
    """Return all metrics of a snapshot; what is not known has no sample."""
    samples = [*_of_run(snapshot), *_of_parties(snapshot)]
    lines = []
    for name, (kind, help_text) in FAMILIES.items():
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        own = [(labels, value) for n, labels, value in samples if n == name]
        lines += [f"{name}{label_text(labels)} {value!r}" for labels, value in own]
    return "\n".join(lines) + "\n"


def _of_run(snapshot: Snapshot) -> Iterator[MetricSample]:
    names = {"run": snapshot["run"], "method": snapshot["method"]}
    names |= {"data": snapshot["data"], "version": snapshot["lessvfl"]}
    yield "lessvfl_run_info", names, 1
    for state in get_args(RunState):
        yield "lessvfl_run_state", {"state": state}, int(state == snapshot["state"])
    yield "lessvfl_run_start_time_seconds", {}, _unix(snapshot["started"])
    for stage, n_steps in snapshot["steps"].items():
        yield "lessvfl_steps_total", {"stage": stage}, n_steps
    if (rate := snapshot["steps_per_second"]) is not None:
        yield "lessvfl_steps_per_second", {}, rate
    if (left := snapshot["stage_seconds_left"]) is not None:
        yield "lessvfl_stage_seconds_left", {}, left
    if score := snapshot["score"]:
        yield "lessvfl_score", {"name": score["name"]}, score["value"]
    for reason, count in snapshot["refused"].items():
        yield "lessvfl_refused_connections_total", {"reason": reason}, count


def _of_parties(snapshot: Snapshot) -> Iterator[MetricSample]:
    for name, party in snapshot["parties"].items():
        who = {"party": name}
        yield "lessvfl_party_connected", who, int(party["connected"])
        yield "lessvfl_party_connections_total", who, party["connections"]
        if heard := party["heard"]:
            yield "lessvfl_party_heard_time_seconds", who, _unix(heard)
        for stage, traffic in party["by_stage"].items():
            here = who | {"stage": stage}
            yield "lessvfl_rounds_total", here, traffic["rounds"]
            for way in get_args(Way):
                there = here | {"direction": way}
                payload, wire = traffic["payload_bytes"], traffic["wire_bytes"]
                yield "lessvfl_payload_bytes_total", there, payload[way]
                yield "lessvfl_wire_bytes_total", there, wire[way]


def label_text(labels: dict[str, str]) -> str:
    """Return the labels of a sample as they are written."""
    pairs = (f'{name}="{value.translate(ESCAPES)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}" if labels else ""


def _unix(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
