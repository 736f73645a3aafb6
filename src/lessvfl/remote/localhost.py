"""``lessvfl try``: a run between real processes on this machine, with a fresh kit.

Every party gets a folder with its raw columns, its key and its certificate, the server
one with the labels. Results are read from each side's own run folder, since the parties
reveal nothing.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from lessvfl import data
from lessvfl.data import Blocks, Dataset, PartyTable, Problem
from lessvfl.errors import ConfigError, LessVFLError, ProtocolError
from lessvfl.remote import certificates, policy
from lessvfl.remote.tables import NOT_THE_SERVERS, refuse_whole_rows
from lessvfl.run import experiment, folder
from lessvfl.run.numbers import join_numbers, removed_share
from lessvfl.run.profiles import Settings
from lessvfl.run.record import RunRecord
from lessvfl.run.simulate import Job
from lessvfl.select.evidence import matches
from lessvfl.status import Status, file
from lessvfl.terms import plural

SECRET_ROWS = (
    "split=stratified: the server draws test rows by its own secret, so numbers are "
    "not those of a run in one process"
)
SAME = 1e-6  # tolerance of predictions that must agree

ShowStatus = Callable[[file.Follower], AbstractContextManager[None]]


@dataclass(frozen=True)
class Between:
    """Settings of the sides' configs that a run in one process does not have."""

    align: str = "none"
    evaluation: str | None = None  # none: as in one process


def run_all(
    job: Job,
    seeds: Sequence[int],
    options: Mapping[str, Any],
    target: bool,
    out: Path | None,
    port: int,
    tell: Callable[[str], None],
    predict: bool,
    watch: ShowStatus,
    how: Between,
    *,
    begun: float | None = None,
) -> RunRecord:
    """Run every seed between processes, one after the other, and return the record.

    Seeds whose parties hold the same columns share their processes, as between
    machines. Planted noise and a random deal of columns differ from seed to seed, so
    then every seed has processes of its own.

    Each side's folder is in ``sides/`` of the run folder `out`, a temporary one unless
    given; VFL (Original), for the `target`, runs in this process. With `predict` all
    rows are then predicted between processes, too, and compared. `tell` is called with
    lines to show, `watch` with the server's status; `how` goes into the sides' configs;
    seconds count from `begun`, now unless given.
    """
    experiment.check(job, seeds, target)
    refuse_whole_rows(job.settings)
    if job.settings.data.folds > 1 and not _tables_stay(job):
        raise ConfigError(
            "Between processes the 'folds' setting must be 1 with planted noise or a "
            "random deal, by which the parties' tables differ from run to run. Got "
            f"{job.settings.data.folds}."
        )
    if data.is_drawn_by_class(job.dataset, job.settings.data):
        tell(SECRET_ROWS)
    if out is not None:
        folder.claim_new(out)
    with tempfile.TemporaryDirectory(prefix="lessvfl-try-") as scratch:
        base = Path(scratch) if out is None else out / "sides"
        runs: list[dict[str, Any]] = []
        failed = None
        try:
            for some in [seeds] if _tables_stay(job) else [[seed] for seed in seeds]:
                one = len(some) == 1
                who = f"seed{'' if one else 's'} {', '.join(map(str, some))}"
                tell(f"{who}: a fresh kit, a server and parties as processes")
                place = base / (f"seed-{some[0]}" if one else "all-seeds")
                place.parent.mkdir(parents=True, exist_ok=True)
                taken = port or free_port()
                runs += run(job, some, place, taken, watch, how, begun)
                if predict and failed is None:
                    failed = _predict_seeds(place, some, tell)
            problem = job.problem(seeds[0])
            record = experiment.record(job, problem, runs, options, target)
        except BaseException as ending:
            if out is not None and runs:
                header = experiment.full_header(job, options, job.problem(seeds[0]))
                folder.unfinished(header, ending, runs).write(out)
                tell(folder.kept_words(out, [one["seed"] for one in runs]))
            raise
    if out is not None:
        record.write(out)
    if failed is not None:
        raise failed
    return record


def _predict_seeds(
    base: Path, seeds: Sequence[int], tell: Callable[[str], None]
) -> LessVFLError | None:
    """Predict with the model of every seed; return what went wrong, if anything did."""
    for seed in seeds:
        try:
            rows = plural(predict_all(base, seed), "row")
        except LessVFLError as error:  # the run itself is fine
            return error
        tell(f"seed {seed}: {rows} predicted together, as alone")
    return None


def _tables_stay(job: Job) -> bool:
    """Tell whether the parties' columns are the same with every seed."""
    shares = job.spurious if isinstance(job.spurious, Sequence) else [job.spurious]
    is_dealt = job.settings.data.columns == "random"
    return not is_dealt and not any(share > 0 for share in shares)


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run(
    job: Job,
    seeds: Sequence[int],
    base: Path,
    port: int,
    watch: ShowStatus,
    how: Between = Between(),
    begun: float | None = None,
) -> list[dict[str, Any]]:
    """Run seeds between processes; return their numbers, as `simulate` gives them.

    Each side's folder is made in `base`; the server listens on loopback. The parties'
    columns must be the same with all of these seeds. `watch` gets the server's status.
    """
    problems = [job.problem(seed) for seed in seeds]
    write_folders(job, problems[0], seeds, base, port, between=how)
    names = [table.name for table in problems[0].parties]
    path = base / "server" / "status.json"
    status = Status("", job.settings.method, job.dataset.name, begun=begun)
    parties = plural(len(names), "party", "parties")
    status.do(f"starting the server and {parties}", note=False)
    with watch(file.Follower(path, status)):
        _run_sides(base, names, ("--status-file", str(path)))
    return collect(problems, base)


def _run_sides(
    base: Path, parties: Sequence[str], of_server: Sequence[str], what: str = ""
) -> None:
    """Run server and parties as processes until they end.

    `of_server` are options of the server, `what` is the command before a side's name.
    """
    processes = {"server": start(base / "server", f"{what} server", *of_server)}
    for name in parties:
        processes[name] = start(base / name, f"{what} party")
    try:
        _wait(processes, base)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def predict_all(base: Path, seed: int) -> int:
    """Predict all rows between processes, with the model of one seed.

    Returns how many there are; the answers are in ``predictions-<seed>.parquet`` of the
    server's run folder. They must equal those of the same networks in this process.
    """
    server = folder.load(base / "server" / "run", seed)
    out = base / "server" / "run" / f"predictions-{seed}.parquet"
    options = ("--seed", str(seed), "--out", str(out))
    _run_sides(base, server.party_names, options, "predict")
    blocks, n_rows = [], 0
    for name in server.party_names:
        frame, _ = data.load_columns(base / name / "columns.parquet", "row")
        blocks.append(folder.load(base / name / "run", seed).embed(frame))
        n_rows = frame.n_rows
    z = server.fuse(blocks, n_rows)
    predicted, _ = data.load_columns(out, "row")
    if server.task == "regression":
        columns, right = ["prediction"], server.answers(z)[:, None]
    else:
        columns = [f"probability_{label}" for label in server.label_names]
        right = server.probabilities(z)
    off = np.abs(predicted.select(columns).numeric - right)
    off /= np.maximum(1, np.abs(right))
    if off.max() > SAME:  # batches differ, which changes the last bits
        raise ProtocolError(
            "Predictions between processes must be those of the same networks in one. "
            f"Got some that are off by {off.max():.2g}."
        )
    return n_rows


def write_folders(
    job: Job,
    problem: Problem,
    seeds: Sequence[int],
    base: Path,
    port: int,
    save_every: int = 50,
    between: Between = Between(),
) -> None:
    """Make a kit, and put each side's table and config into its folder.

    `problem` is that of the first seed. Rows are in the order of the data set, and the
    server splits them by the seed, unless the data set brings its own test rows.
    """
    names = [table.name for table in problem.parties]
    certificates.init(base, names)
    dataset, _ = data.settle_test_rows(job.dataset, job.settings.data)
    rows = dataclasses.replace(job.settings.data, gap=0.0)  # all rows are on some side
    settings = dataclasses.replace(job.settings, data=rows)
    job = dataclasses.replace(job, dataset=dataset, settings=settings)
    address, n_folds = f"127.0.0.1:{port}", settings.data.folds
    blocks = data.find_blocks(dataset, settings.data)
    labels = _label_table(dataset, blocks)
    np.savez(base / "server" / "labels.npz", **labels)
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in settings.flat().items()
        if name not in (*NOT_THE_SERVERS, "folds")
    }
    evaluation = between.evaluation or job.evaluation
    common: dict[str, Any] = {"id": "row", "align": between.align}
    # All sides belong to one operator: the server tells, and its seed is shared as in a
    # simulation, unless noise protects labels.
    defence = settings.labels.gradient_defence
    _write_config(
        base / "server" / "server.yaml",
        listen=address,
        parties=names,
        data="labels.npz",
        label=None,
        sample_weight="weight" if "weight" in labels else None,
        group_column="block" if "block" in labels else None,
        task=dataset.task,
        tell_share=defence != "gaussian",
        seed_private="shared" if defence == "none" else "own",
        evaluation=evaluation,
        method=settings.method,
        profile=settings.profile,
        settings=values,
        seeds=list(dict.fromkeys(seed // n_folds for seed in seeds)),
        folds=n_folds,
        save_every=save_every,
        status=None,
        **common,
    )
    columns = {table.name: len(table.encoding.names) for table in problem.parties}
    common |= {"policy": policy.needed(settings, columns, len(seeds), evaluation)}
    places = _own_order(job, problem, seeds[0], blocks)
    for table in problem.parties:
        folder_of_party = base / table.name
        frame = data.raw_frame(problem, table).take(places)
        path = folder_of_party / "columns.parquet"
        data.write_columns(path, frame, np.arange(len(places)))
        _write_config(
            folder_of_party / "party.yaml",
            server=address,
            data=path.name,
            **_party_config(settings, problem, table),
            **common,
        )


def _own_order(
    job: Job, problem: Problem, seed: int, blocks: Blocks | None
) -> NDArray[np.int64]:
    """Return where the rows of the data set are among the problem's, in their order."""
    if job.dataset.y_test is not None:
        return np.arange(len(problem.y_train) + len(problem.y_test))
    settings, of_row = job.settings, None if blocks is None else blocks.of_row
    row_seed = settings.data.row_seed(seed)
    both = data.split_rows(
        job.dataset, settings.data, row_seed, settings.keeps_order, of_row
    )
    return np.argsort(np.concatenate(both))


def _label_table(dataset: Dataset, blocks: Blocks | None) -> dict[str, Any]:
    """Return the arrays of the label holder's file, its own test rows last."""
    of_test = dataset.y[:0] if dataset.y_test is None else dataset.y_test
    y = np.concatenate([dataset.y, of_test])
    table: dict[str, Any] = {"y": y, "row": np.arange(len(y))}
    if dataset.y_test is not None:
        table["is_test"] = table["row"] >= len(dataset.y)
    elif dataset.is_test is not None:
        table["is_test"] = dataset.is_test
    if dataset.label_names:
        table["label_names"] = np.array(dataset.label_names)
    if blocks is not None:
        alone = blocks.n_blocks + np.arange(len(of_test))
        of_row = blocks.of_row
        if dataset.is_test is not None:  # copies of a row may be on both sides
            of_row = 2 * of_row + dataset.is_test
        table["block"] = np.concatenate([of_row, alone])
    if dataset.weight is not None:  # those of test rows count nowhere
        table["weight"] = np.concatenate([dataset.weight, np.ones(len(of_test))])
    return table


def _party_config(
    settings: Settings, problem: Problem, table: PartyTable
) -> dict[str, Any]:
    """Return what a party's config says of its columns, its noise and its seed.

    With noise, which nobody else may know, it has a secret of its own.
    """
    groups: dict[str, list[str]] = {}
    for column in table.encoding.columns:
        groups.setdefault(column.feature, []).append(column.name)
    planted = np.array(table.features)[table.spurious].tolist()
    patterns = (settings.config.pinned() or "").split(",")
    pinned = [p for p in patterns if any(matches(p, table.features))]
    prepared, noise = settings.data, {}
    if prepared.has_noise:
        has_epsilon = prepared.embedding_epsilon is not None
        noise = {
            "embedding_noise": 0.0 if has_epsilon else prepared.embedding_noise,
            "embedding_epsilon": prepared.embedding_epsilon,
            "embedding_clip": prepared.embedding_clip,
            "noise_at": prepared.noise_at,
        }
    return {
        "columns": list(table.encoding.names),
        "groups": {f: names for f, names in groups.items() if names != [f]} or None,
        "as_is": planted or None,
        "scale": prepared.scale,
        "scale_range": list(problem.bounds) if prepared.scale == "global" else None,
        "max_categories": prepared.max_categories,
        "missing": prepared.missing,
        "missing_values": data.written_marks(table.encoding.columns) or None,
        "must_keep": ",".join(pinned) or None,
        "party_net": settings.net.party_net,
        "seed_private": "own" if noise else "shared",
        **noise,
    }


def _write_config(path: Path, **values: Any) -> None:
    """Fill in a ready config."""
    ready = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(ready | values), encoding="utf-8")


def start(side: Path, command: str, *more: str) -> subprocess.Popen[bytes]:
    """Start one side as a process; its output goes to ``log.txt`` in its folder.

    The last word of `command` is the side: ``server``, or ``predict party``.
    """
    *_, role = words = command.split()
    options = ("--config", str(side / f"{role}.yaml"), *more)
    with open(side / "log.txt", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "lessvfl.cli", *words, *options],
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


def _wait(processes: Mapping[str, subprocess.Popen[bytes]], base: Path) -> None:
    """Wait until all have ended; raise as soon as one fails."""
    codes: dict[str, int | None] = dict.fromkeys(processes)
    while None in codes.values():
        time.sleep(0.05)
        codes = {name: process.poll() for name, process in processes.items()}
        for name, code in codes.items():
            if code not in (None, 0):
                raise ConfigError(_last_words(name, base, code))


def _last_words(name: str, base: Path, code: int) -> str:
    text = (base / name / "log.txt").read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("lessvfl:")]
    last = (ours or lines or ["nothing in its log"])[-1].removeprefix("lessvfl: ")
    who = "The server" if name == "server" else f"Party '{name}'"
    if code == 2 and ours:  # a sentence of ours says it all
        return f"{who} ended early: {last}"
    how = f"code {code}" if code > 0 else f"signal {-code}"
    return f"{who} ended by {how} and said: {last}"


def collect(problems: Sequence[Problem], base: Path) -> list[dict[str, Any]]:
    """Combine what each side wrote into its own run folder, seed by seed."""
    record = RunRecord.read(base / "server" / "run")
    names = [table.name for table in problems[0].parties]
    sides = {name: RunRecord.read(base / name / "run").runs for name in names}
    runs = []
    for place, (problem, numbers) in enumerate(zip(problems, record.runs, strict=True)):
        of_parties = {name: every[place] for name, every in sides.items()}
        runs.append(_join(problem, numbers, of_parties))
    return runs


def _join(
    problem: Problem,
    numbers: dict[str, Any],
    of_parties: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Combine the server's numbers of one run and every party's."""
    for place, point in enumerate(numbers["curve"]):
        masks = []
        for table in problem.parties:
            mask = np.zeros(len(table.features), dtype=bool)
            seen = of_parties[table.name]["seen"]
            if place < len(seen):  # a party that kept nothing is asked no more
                mask[seen[place]["kept"]] = True
            masks.append(mask)
        point["removed_share"] = removed_share(problem.parties, masks)
    for name in ("bill", "features", "counts", "models"):  # the server's view of them
        del numbers[name]
    spent: dict[str, Any] = {}
    for run in of_parties.values():
        spent |= run.get("privacy", {}).get("columns", {})
    if spent:
        none: dict[str, Any] = {"labels": None, "columns": {}, "unpriced": []}
        numbers["privacy"] = numbers.get("privacy", none) | {"columns": spent}
    parties = {
        name: {
            **run["features"][name],
            "importance": run["importance"][name],
            "selection": run.get("selection", {}).get(name),
        }
        for name, run in of_parties.items()
    }
    return join_numbers(numbers, parties, problem)
