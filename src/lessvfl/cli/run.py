"""The commands that run a method: ``lessvfl run``, ``try`` and ``demo``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lessvfl.cli import results, run_config, start
from lessvfl.cli.check import tell_changes
from lessvfl.cli.job import DEFAULT_METHOD, JobOptions, LoadedJob
from lessvfl.cli.options import AsJson, Device, Quiet, Track, taking, tracked
from lessvfl.errors import DivergenceError, ProtocolError

if TYPE_CHECKING:
    from lessvfl.run.record import RunRecord
    from lessvfl.run.simulate import Job
    from lessvfl.status import Status

RunFolder = Annotated[
    Path | None, typer.Option("--out", help="Run folder: record, networks, report.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the run that --out holds.")
]
TryFolder = Annotated[
    Path | None,
    typer.Option(
        "--out", help="New folder: record, report, and in sides/ every side's own."
    ),
]


# ----------------------------------------------------------------------------- commands


@run_config.from_file
@taking(JobOptions)
def run(
    asked: JobOptions,
    device: Device = "auto",
    out: RunFolder = None,
    overwrite: Overwrite = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Seeds at a time, in processes of their own.")
    ] = 1,
    track: Track = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a method on a data set or on a table of your own."""
    from lessvfl.data.check import held_columns
    from lessvfl.report import privacy
    from lessvfl.run import folder
    from lessvfl.status import Status

    read = asked.read(device)
    job = read.job
    if out is not None:
        folder.claim_new(out, overwrite)  # before the hours, not after them
    tell_changes(job, read.seeds[0], asked.data)
    _tell_bundle(job)
    held = held_columns(job.dataset, job.parties, job.settings.data, read.seeds[0])
    spent = job.privacy(len(read.seeds), list(held)).get("privacy")
    for line in privacy.lines(spent, "would spend"):
        results.say(f"privacy: {line}", err=True)
    names = (job.settings.method, job.dataset.name)
    status = Status("" if out is None else out.name, *names, begun=start.began())
    with tracked(track, "-".join(names), out, status) as finish:
        record = _run_and_save(read, out, quiet, status, n_jobs=jobs)
        if out is not None:
            run_config.write(out, asked, device=device)
        _say(record, out, as_json)
        finish(record)


@run_config.from_file
@taking(JobOptions)
def try_(
    asked: JobOptions,
    out: TryFolder = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The server's; 0: a free one.")
    ] = 0,
    predict: Annotated[
        bool, typer.Option("--predict", help="Then predict all rows together, too.")
    ] = False,
    align: Annotated[
        str, typer.Option(help="How common rows are found: none, plain or psi.")
    ] = "none",
    evaluation: Annotated[
        str | None,
        typer.Option(
            help="When test rows are scored: epochs, end or nothing; by default "
            "epochs, and end where there is noise on embeddings."
        ),
    ] = None,
    track: Track = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a method between real processes on this machine, with mutual TLS."""
    from lessvfl.remote import localhost
    from lessvfl.status import terminal

    read = asked.read("cpu")

    def tell(line: str) -> None:
        if not quiet:
            results.say(line, err=True)

    tell_changes(read.job, read.seeds[0], asked.data)
    _tell_bundle(read.job)
    title = f"{read.job.settings.method}-{read.job.dataset.name}"
    with tracked(track, title, out) as finish:
        record = localhost.run_all(
            job=read.job,
            seeds=read.seeds,
            options=read.options,
            target=read.target,
            out=out,
            port=port,
            tell=tell,
            predict=predict,
            watch=functools.partial(terminal.show, quiet=quiet, times=False),
            how=localhost.Between(align, evaluation),
            begun=start.began(),
        )
        if out is not None:
            run_config.write(out, asked)
        _say(record, out, as_json)
        finish(record)
    if out is not None and not as_json:
        results.say(f"Sides: {out / 'sides'}")


DEMO_SEEDS = [0, 1, 2]
BLANK = (  # what the demo says instead of a warning, since it chose the data
    "A few pixels at the edge have the same value in all training rows, so that they "
    "tell nothing."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path(
        "lessvfl-demo"
    ),
    quiet: Quiet = False,
) -> None:
    """Compare LESS-VFL with plain VFL, as many bytes and as published, on digits."""
    # Two processes run at a time; read when NumPy and PyTorch are loaded, below.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not quiet:
        start.say("a comparison on digits")
    from lessvfl import data, report
    from lessvfl.run import folder, profiles
    from lessvfl.run.record import RunRecord
    from lessvfl.run.simulate import Job

    dataset = dataclasses.replace(data.load("digits"), notes=(BLANK,))
    ours = profiles.resolve(DEFAULT_METHOD, "default", dataset)
    jobs = {
        out / name: Job(dataset, settings, spurious=0.5)
        for name, settings in (
            (DEFAULT_METHOD, ours),
            ("plain", profiles.resolve_like("plain", ours, dataset)),
            ("plain-published", profiles.resolve("plain", "default", dataset)),
        )
    }
    folder.claim_new(out, known=("report.html", *(one.name for one in jobs)))
    for one in jobs:
        folder.claim_new(one, overwrite=True)
    if not quiet:
        results.say("This is less-vfl-auto; plain runs in a second process.", err=True)
    (first, here), *others = jobs.items()
    with _in_second_process(_run_demos, dict(others)):
        _run_demos({first: here}, quiet)
    results.print_comparison({one.name: RunRecord.read(one) for one in jobs})
    results.say(f"Report: {report.compare(list(jobs), out / 'report.html')}")


def _run_demos(jobs: dict[Path, Job], quiet: bool = True) -> None:
    """Run some methods of the demo, and make their pages."""
    from lessvfl import report

    for out, job in jobs.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* one value in all training rows")
            _run_and_save(LoadedJob(job, DEMO_SEEDS, {}), out, quiet)
        report.build(out)


@contextlib.contextmanager
def _in_second_process(
    run: Callable[[dict[Path, Job]], None], jobs: dict[Path, Job]
) -> Iterator[None]:
    """Run jobs in a process of their own while the block runs, and wait for both.

    Where the block ends early, by Ctrl-C too, the process is ended with it.
    """
    from lessvfl.run import experiment, folder
    from lessvfl.run.processes import processes
    from lessvfl.run.record import FILE_NAME

    began = time.time()
    with processes(1) as submit:
        done = submit(run, jobs)
        try:
            yield
            done.result()
        except BaseException as ending:
            if not done.done():
                for out, job in jobs.items():
                    there = out / FILE_NAME
                    if not there.is_file() or there.stat().st_mtime < began:
                        header = experiment.bare_header(job, {})
                        folder.save_unfinished(out, header, ending)
            raise


def _run_and_save(
    read: LoadedJob,
    out: Path | None,
    quiet: bool,
    status: Status | None = None,
    n_jobs: int = 1,
) -> RunRecord:
    """Run a job; once it has begun, the run folder says how it ended."""
    from lessvfl.run import experiment, folder
    from lessvfl.run.record import FILE_NAME
    from lessvfl.run.simulate import Run
    from lessvfl.status import Status, terminal

    job, seeds, options, target = read
    name = "" if out is None else out.name
    names = (name, job.settings.method, job.dataset.name)
    status = status or Status(*names, begun=start.began())
    done: list[Run] = []
    try:
        with terminal.show(status, quiet=quiet, times=False):
            record, runs = experiment.run(
                job,
                seeds,
                options=options,
                target=target,
                progress=status,
                done=done.append,
                n_jobs=n_jobs,
            )
            status.ended()
    except BaseException as ending:
        has_begun = isinstance(
            ending, KeyboardInterrupt | DivergenceError | ProtocolError
        )
        if out is not None and (done or has_begun):
            header = experiment.bare_header(job, options)
            if done:
                header = experiment.full_header(job, options, done[0].problem)
            folder.save_unfinished(out, header, ending, done)
            if done:
                seeds = [run.numbers["seed"] for run in done]
                results.say(folder.kept_words(out, seeds), err=True)
        raise
    if out is not None:
        if (out / FILE_NAME).exists():
            typer.echo(f"The earlier run in '{out}' is replaced.", err=True)
        folder.save(out, record, runs)
    return record


def _tell_bundle(job: Job) -> None:
    """Say on standard error what the chosen defences are, and what they cost."""
    from lessvfl.run.bundles import bundle_of

    if job.bundle is not None:
        bundle = bundle_of(job.bundle)
        results.say(bundle.words(job.bundle), err=True)
        if changed := bundle.changed(job.settings.flat()):
            change = f"--set changes it: {', '.join(changed)}"
            results.say(f"{change}; what was measured is without that.", err=True)


def _say(record: RunRecord, out: Path | None, as_json: bool) -> None:
    """Print a record, and make the page of its run folder."""
    from lessvfl import report
    from lessvfl.run.record import dumps

    if as_json:
        typer.echo(dumps(record.to_json()))
        if out is not None:
            report.build(out)
        return
    results.print_summary([record])
    results.print_recommended(record)
    results.tell_bill(record)
    if out is not None:
        results.build_report(out)
