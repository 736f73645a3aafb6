"""Every number that the seeds of a record may have, by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lessvfl import terms
from lessvfl.report import tables
from lessvfl.report.tables import RunNumbers


class Measure(NamedTuple):
    """One number that every seed may have: its words, where it is, its kind."""

    group: str
    label: str
    path: str
    kind: str


OF_NETWORKS = ("components.*.kept", "components.*.of", "communication.paper_mib")
BILL = {"up": "bytes up", "down": "bytes down", "rounds": "rounds"}
BY_STAGE = "Communication by stage"
COUNTED: dict[str, tuple[tuple[str, str, str], ...]] = {  # label, path, kind; by group
    "Test rows": (("share that equal a training row", "test_rows_seen", "share"),),
    "Features": (
        ("kept", "features.*.kept", "count"),
        ("held", "features.*.*", "count"),
    ),
    "Planted spurious features": (
        ("planted", "spurious.planted", "count"),
        ("removed", "spurious.removed", "count"),
        ("share removed", "spurious.removed_share", "share"),
        ("share of real features kept", "spurious.real_kept_share", "share"),
    ),
    "Trees": (
        ("trees", "trees.count", "count"),
        ("splits", "trees.splits.*", "count"),
        ("leaves", "trees.leaves", "count"),
    ),
    "Embedding components": (
        ("kept", "components.*.kept", "count"),
        ("of", "components.*.of", "count"),
    ),
    "Communication": (
        ("bytes, parties to server", "communication.payload_bytes.up", "count"),
        ("bytes, server to parties", "communication.payload_bytes.down", "count"),
        ("bytes, both ways", "communication.payload_bytes.*", "count"),
        ("rounds", "communication.rounds", "count"),
        ("MiB as the paper counts", "communication.paper_mib", "size"),
        ("bytes of frames, up", "communication.wire_bytes.up", "count"),
        ("bytes of frames, down", "communication.wire_bytes.down", "count"),
        ("bytes sent twice after a break", "communication.resent_bytes", "count"),
    ),
    BY_STAGE: (),  # of whatever stages there are
    "Target": (
        ("accuracy to reach", "target.accuracy", "score"),
        ("reached", "target.reached", "flag"),
        ("bytes until then", "target.payload_bytes", "count"),
        ("rounds until then", "target.rounds", "count"),
        ("paper MiB until then", "target.paper_mib", "size"),
    ),
}


def measures(runs: Sequence[RunNumbers]) -> list[Measure]:
    """List the numbers that at least one of these runs has, in their order."""
    rows = [
        Measure(words.title, label, f"{score}.{moment}", "score")
        for score, words in terms.SCORES.items()
        for moment, label in tables.MOMENTS.items()
    ]
    billed = [
        (
            f"{tables.stage_title(stage, billed=True)}: {words}",
            f"communication.by_stage.{stage}.{key}",
            "count",
        )
        for stage in tables.stages_billed(runs)
        for key, words in BILL.items()
    ]
    for group, counted in COUNTED.items():
        of_group = billed if group == BY_STAGE else counted
        rows += [Measure(group, *row) for row in of_group]
    timed = {stage for run in runs for stage in tables.at(run, "seconds") or {}}
    for stage in [*tables.in_order(timed - {"total"}), "total"]:
        title = tables.stage_title(stage)
        rows.append(Measure("Seconds", title, f"seconds.{stage}", "size"))
    beside = OF_NETWORKS if tables.are_trees(runs) else ()
    return [
        row
        for row in rows
        if row.path not in beside and tables.over_seeds(runs, row.path) is not None
    ]
