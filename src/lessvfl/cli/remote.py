"""The commands of a run between machines: ``lessvfl server`` and ``party``."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lessvfl.cli import check, ending, results, start
from lessvfl.cli.options import Track, tracked

# The engine's own lines say in many words what ours say in one.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

if TYPE_CHECKING:
    from lessvfl.data import Finding
    from lessvfl.remote.config import Common, ServerConfig
    from lessvfl.remote.party import PartyProcess
    from lessvfl.run.record import RunRecord
    from lessvfl.status import Status
    from lessvfl.wire.flight import Credentials, FlightHub

# How long the status page answers after the end, for who looks at it now and then, and
# for the page itself, which looks once a second.
DONE_SECONDS = 30.0
FAILED_SECONDS = 3.0
ALONE = (
    "This party's run is over; if the server still waits for it, start the server "
    "again with --resume, and this party as before."
)

log = logging.getLogger(__name__)

ConfigFile = Annotated[
    Path, typer.Option("--config", help="The YAML file of this side.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No encryption; on this machine alone.")
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="Logs as one JSON object a line.")
]
WarningsAlone = Annotated[bool, typer.Option("--quiet", "-q", help="Warnings alone.")]


def logged(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Set up the logs of a command; their first line is written at once."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(*, config: Path, log_json: bool, quiet: bool, **given: Any) -> None:
            from lessvfl.remote.logs import LineHandler, json_logs

            level = logging.WARNING if quiet else logging.INFO
            with json_logs() if log_json else contextlib.nullcontext():
                if not log_json:
                    form = "%(message)s"
                    lines = [LineHandler()]
                    logging.basicConfig(level=level, format=form, handlers=lines)
                log.info("%s", start.words(f"{what}, {config}"))
                command(config=config, log_json=log_json, quiet=quiet, **given)

        return call

    return decorate


def use_machine(config: Common) -> None:
    """Set up threads and memory."""
    from lessvfl.core.device import keep_freed_memory, use_threads

    use_threads(config.threads)
    keep_freed_memory()


@contextlib.contextmanager
def listening(
    config: ServerConfig, credentials: Credentials | None
) -> Iterator[FlightHub]:
    """Take the server's port for the parties of its config; they hear how it ended."""
    from lessvfl.remote import certificates
    from lessvfl.wire.flight import FlightHub
    from lessvfl.wire.front import raise_open_files

    raise_open_files()
    hub = FlightHub(
        config.listen,
        config.parties,
        credentials,
        silence=config.silence,
        name_of=certificates.name_of_peer,
    )
    error: BaseException | None = None
    try:
        yield hub
    except BaseException as caught:
        error = caught
        raise
    finally:  # a party that does not listen keeps nobody from leaving
        ending.threads_hang(True)  # also where this is interrupted
        ending.threads_hang(not hub.close(error))


@logged("the server")
def server(
    config: ConfigFile,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in 'out'.")
    ] = False,
    insecure: Insecure = False,
    log_json: LogJson = False,
    quiet: WarningsAlone = False,
    status_file: Annotated[
        Path | None,
        typer.Option("--status-file", help="Write the status here, as JSON."),
    ] = None,
    track: Track = None,
) -> None:
    """Run a method with parties on other machines."""
    from lessvfl.remote.config import ServerConfig, read
    from lessvfl.remote.identity import server_credentials
    from lessvfl.remote.own_columns import giveaways
    from lessvfl.remote.server import ServerProcess
    from lessvfl.remote.tables import LabelTable
    from lessvfl.status import Status, file, terminal

    settings = read(ServerConfig, config)
    table = LabelTable.load(settings)
    credentials = server_credentials(settings, insecure)
    out = Path(settings.out)
    names = (out.name, settings.method, Path(settings.data).name)
    status = Status(*names, settings.everyone, begun=start.began())
    with contextlib.ExitStack() as stack:
        use_machine(settings)
        title = f"{settings.method}-server"
        finish = stack.enter_context(tracked(track, title, out, status))
        page = None
        try:
            with listening(settings, credentials) as hub, _ended_by_error(status):
                if settings.status is not None:
                    from lessvfl.web.status import StatusServer

                    page = stack.enter_context(StatusServer(status, settings.status))
                    log.info("status page: %s", page.url)
                process = ServerProcess(settings, table, hub, status, resume)
                if (holder := process.party_here) is not None:
                    telling = giveaways(holder.table, holder.ids, process.table)
                    _tell_changes(holder, telling)
                with (
                    file.write(status, status_file),
                    terminal.show(status, quiet=quiet, log=log if log_json else None),
                ):
                    record = process.run()
                    status.ended(scores=_scores(record))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                log.warning("start again with --resume to go on")
            if page is not None and isinstance(error, Exception):
                page.stay(FAILED_SECONDS)
            raise
        results.tell_server(record)
        results.build_report(out)
        if holder is not None:
            _tell_party(holder.folder)
        finish(record)
        if page is not None:
            log.info("the status page stays for %g seconds", DONE_SECONDS)
            page.stay(DONE_SECONDS)


@contextlib.contextmanager
def _ended_by_error(status: Status) -> Iterator[None]:
    """Have the status say how a run failed, before anybody else is told."""
    try:
        yield
    except BaseException as error:
        status.ended(ending.sentence(error) or type(error).__name__)
        raise


def _scores(record: RunRecord) -> dict[int, tuple[str, float]]:
    """Return the leading score of every seed at the end, as far as there is one."""
    names = {run["seed"]: (run, run["score"]) for run in record.runs}
    finals = {seed: (name, run[name]["final"]) for seed, (run, name) in names.items()}
    return {seed: final for seed, final in finals.items() if final[1] is not None}


@logged("a party")
def party(
    config: ConfigFile,
    insecure: Insecure = False,
    log_json: LogJson = False,
    quiet: WarningsAlone = False,
    track: Track = None,
) -> None:
    """Take part in a run as one party."""
    from lessvfl.errors import PartyLostError
    from lessvfl.remote.config import PartyConfig, read
    from lessvfl.remote.identity import party_identity
    from lessvfl.remote.party import PartyProcess
    from lessvfl.remote.seed import SERVER
    from lessvfl.status import Status, terminal
    from lessvfl.wire import flight

    settings = read(PartyConfig, config)
    name, credentials = party_identity(settings, insecure)
    out = Path(settings.out)
    names = (out.name, "", Path(settings.data).name)
    status = Status(*names, [SERVER], side=name, begun=start.began())
    process = PartyProcess.load(name, settings, status)
    if process.is_over:
        results.say(
            f"The run in '{settings.out}' is over; another needs another 'out'."
        )
        _tell_party(out)
        return
    address = flight.Address(settings.server, credentials, settings.server_name)
    use_machine(settings)
    _tell_changes(process)
    with tracked(track, f"party-{name}", out, status) as finish:
        with terminal.show(status, quiet=quiet, log=log if log_json else None):
            try:
                process.serve(address)
            except PartyLostError as lost:
                if not process.has_finished:
                    raise
                log.warning("%s", f"{lost} {ALONE}")
            status.ended()
        finish(_tell_party(out))
    ending.threads_hang(True)  # a thread of the engine may be about to end


def _tell_changes(process: PartyProcess, more: Iterable[Finding] = ()) -> None:
    """Log what a party does to read its columns, and what else is known of them."""
    findings = [*process.table.changes(), *more]
    for line in check.first_lines(findings, process.config.data):
        log.info("%s", line)


def _tell_party(folder: Path) -> RunRecord:
    """Say what the run found, and write it down for the operator."""
    from lessvfl.run.record import RunRecord

    record = RunRecord.read(folder)
    results.tell_party(record)
    results.build_report(folder)
    return record
