"""The numbers of a page: the key ones, and all that seeds may have, by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lessvfl import terms
from lessvfl.report import intervals, tables
from lessvfl.report.tables import RunNumbers, at, number
from lessvfl.run.record import RunRecord


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
    timed = {stage for run in runs for stage in at(run, "seconds") or {}}
    for stage in [*tables.in_order(timed - {"total"}), "total"]:
        title = tables.stage_title(stage)
        rows.append(Measure("Seconds", title, f"seconds.{stage}", "size"))
    beside = OF_NETWORKS if tables.are_trees(runs) else ()
    return [
        row
        for row in rows
        if row.path not in beside and tables.over_seeds(runs, row.path) is not None
    ]


# -- key numbers ---------------------------------------------------------------------


def cards(record: RunRecord) -> list[tuple[str, str, str, str]]:
    """Return the key numbers: label, mean, standard deviation, one thing more."""
    details, rows = _details(record), []
    for label, text in tables.summary(record).items():
        if label == "features kept":  # "24 ± 1 of 45" is two lines of a card
            text, _, held = text.rpartition(" of ")
            details[label] = f"of {held}"
        path, _ = tables.SUMMARY[label]
        whole = intervals.together(record, path.removesuffix(".final"))
        if whole is not None:
            text = f"{whole:.3f}"
        rows.append((label, text))
    goals = [
        run for run in record.runs if number(run, "target", "accuracy") is not None
    ]
    if goals:
        reached = [run for run in goals if run["target"].get("reached")]
        label = f"Target {goals[0]['target']['accuracy']:g} reached"
        rows.append((label, f"{len(reached)} of {len(goals)}"))
        details[label] = "seed" if len(goals) == 1 else "seeds"
        if sent := tables.over_seeds(reached, "target.payload_bytes"):
            details[label] += f", after {terms.bytes_text(sent.mean)}"
    numbers = []
    for label, text in rows:
        mean, _, spread = text.partition(" ± ")
        numbers.append((tables.capital(label), mean, spread, details.get(label, "")))
    return numbers


def _details(record: RunRecord) -> dict[str, str]:
    """Say one thing more under a key number."""
    details, runs = {}, record.runs
    for label, (path, kind) in tables.SUMMARY.items():
        if kind != "score" or not path.endswith(".final"):
            continue
        name, words = path.removesuffix(".final"), []
        if interval := intervals.of_score(record, name):
            words.append(f"{intervals.LEVEL}: {interval.words}")
        if intervals.together(record, name) is not None:
            mean = tables.spread_text(tables.over_seeds(runs, path), kind)
            words.append(f"seeds: {mean}")
        if before := tables.over_seeds(runs, f"{name}.pretrained"):
            words.append(f"{before.mean:.3f} after pre-training")
        if words:
            details[label] = "; ".join(words)
    if planted := tables.over_seeds(runs, "spurious.planted"):
        details["spurious removed"] = f"of {planted.mean:,.0f} planted"
    if (n_real := at(record.header, "data", "n_real")) is not None:
        details["real kept"] = f"of {tables.plural(n_real, 'real feature')}"
    up = tables.over_seeds(runs, "communication.payload_bytes.up")
    down = tables.over_seeds(runs, "communication.payload_bytes.down")
    if up and down:
        sizes = terms.bytes_text(up.mean), terms.bytes_text(down.mean)
        details["MB both ways"] = f"{sizes[0]} up, {sizes[1]} down"
    details["paper MiB"] = "embeddings up, 4 bytes a value"
    details["seconds"] = f"on {record.header.get('device', 'this machine')}"
    return details
