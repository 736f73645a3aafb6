"""What is counted, in the Prometheus text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any, get_args

from prometheus_client import Metric, generate_latest

from lessvfl.status.snapshot import RunState, Snapshot, Way

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MetricSample = tuple[str, dict[str, str], float]  # name, labels, value

# Name -> meaning, in the order of the answer.
FAMILIES = {
    "lessvfl_run_info": "Names of the run, as labels; always 1.",
    "lessvfl_run_state": "1 for the state the run is in, else 0.",
    "lessvfl_run_start_time_seconds": "When the run began, Unix time.",
    "lessvfl_steps_total": "Steps done.",
    "lessvfl_steps_per_second": "Steps a second, lately.",
    "lessvfl_stage_seconds_left": "Estimated time left of the stage.",
    "lessvfl_score": "Latest score.",
    "lessvfl_party_connected": "1 for a connected party, 0 for one away.",
    "lessvfl_party_heard_time_seconds": "When last heard of, Unix time.",
    "lessvfl_party_connections_total": "Connections made by the party.",
    "lessvfl_rounds_total": "Exchanges with the party.",
    "lessvfl_payload_bytes_total": "Payload bytes, as in the bill.",
    "lessvfl_wire_bytes_total": "Bytes on the wire.",
    "lessvfl_refused_connections_total": "Refused connections.",
}


def text(families: Mapping[str, str], samples: Iterable[MetricSample]) -> str:
    """Return samples by family, by name and meaning; counters end in ``_total``."""
    metrics: dict[str, Metric] = {}
    for name, meaning in families.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        metrics[name] = Metric(name.removesuffix("_total"), meaning, kind)
    for name, labels, value in samples:
        clean = {k: v.encode(errors="replace").decode() for k, v in labels.items()}
        metrics[name].add_sample(name, clean, value)
    registry: Any = SimpleNamespace(collect=metrics.values)
    return generate_latest(registry).decode()


def render(snapshot: Snapshot) -> str:
    """Return all metrics of a snapshot; what is not known has no sample."""
    return text(FAMILIES, _samples(snapshot))


def _samples(snapshot: Snapshot) -> Iterator[MetricSample]:
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


def _unix(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
