"""Server and parties as a job of NVIDIA FLARE.

The job holds no code and no settings of anybody: the name of the run, the version of
lessvfl, and which sites are its parties. Every site reads its own config from
``local/lessvfl/<run>/<site>.yaml`` in its FLARE workspace, the server from
``local/lessvfl/<run>/server.yaml``; see docs/nvflare.md.

FLARE builds :class:`ServerController` in the server's process of a job and
:class:`PartyExecutor` in every site's. FLARE does not start a site's process again
within a job. So a job that ends early is submitted once more, and goes on with the run
from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from lessvfl import __version__, report
from lessvfl.core.device import keep_freed_memory, use_threads
from lessvfl.errors import ConfigError, LessVFLError, PartyLostError, ProtocolError
from lessvfl.remote import flare_files
from lessvfl.remote.certificates import keys
from lessvfl.remote.config import Common, PartyConfig, ServerConfig, absolute, read
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.seed import SERVER
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.tables import LabelTable
from lessvfl.status import Status
from lessvfl.wire.control import printable
from lessvfl.wire.hub import STOPPED
from lessvfl.wire.nvflare import FlareHub, FlareServer

TASK = "lessvfl"
PEER = "lessvfl.server"  # header of the task: the server's cell
KIND, REASON = "lessvfl.kind", "lessvfl.reason"  # headers of a reply: what went wrong
NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,62}"  # of a run or a site: never a path
SHORT = 80  # characters of a name or a code of another side in a sentence
POLL_SECONDS = 0.2  # how often to check whether FLARE has aborted the job
END_SECONDS = 60.0  # for the parties to write their reports


class AbortedError(LessVFLError):
    """FLARE has aborted the job."""

    kind = "aborted"
    public = "The job was aborted; submitted again, it goes on with the run."


def plain_name(what: str, name: object) -> str:
    """Return a name that may become part of a path and of FLARE's addresses."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ConfigError(
            f"The name of a {what} must be of at most 63 letters, digits, '-' and '_'. "
            f"Got {printable(str(name), SHORT)!r}."
        )
    return name


def check_version(version: object, who: str) -> None:
    """Raise an error unless a job is of this `version` of lessvfl; `who` refuses it."""
    if version != __version__:
        sentence = (
            f"{who} must have lessvfl {printable(str(version))[:40]}, as the job says. "
            f"Got {__version__}."
        )
        raise ConfigError(sentence, public=sentence)


def local_of(context: FLContext) -> Path:
    """Return the folder of a side's own files in its FLARE workspace."""
    return Path(context.get_workspace().get_site_config_dir())


def config_file(context: FLContext, run: object, name: str) -> Path:
    """Return a side's own config of a run, which lies in its FLARE workspace."""
    run, name = plain_name("run", run), plain_name("site", name)
    path = local_of(context).resolve() / "lessvfl" / run / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"The config of '{name}' for run '{run}' must be the file '{path}'. Got no "
            "such file.",
            public=f"'{name}' must have its own config of run '{run}'. Got none.",
        )
    return path


def server_of(task: Shareable, context: FLContext) -> str:
    """Return the server's cell that a task names; it must be that of this job.

    That is ``server.<job>``; in FLARE's simulator ``server``, which a job elsewhere
    cannot use: FLARE's own cell of that name knows nothing of lessvfl. A task may come
    from another site, which would have itself taken for the label holder.
    """
    peer, root = task.get_header(PEER), FQCN.ROOT_SERVER
    if peer not in (root, FQCN.join([root, str(context.get_job_id())])):
        got = printable(str(peer), SHORT)
        sentence = f"A task must name the server of its own job. Got '{got}'."
        raise ProtocolError(sentence, public=sentence)
    return str(peer)


@contextlib.contextmanager
def watching(signal: Signal, aborted: Callable[[AbortedError], None]) -> Iterator[None]:
    """Call `aborted` when FLARE aborts the job."""
    over = threading.Event()

    def poll() -> None:
        while not over.wait(POLL_SECONDS):
            if signal.triggered:
                aborted(AbortedError(AbortedError.public))
                return

    threading.Thread(target=poll, name="lessvfl-abort", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def set_up(config: Common) -> None:
    """Compute with as many threads as the config says."""
    use_threads(config.threads)
    keep_freed_memory()


class ServerController(Controller):  # type: ignore[misc]
    """The server's side of a job: runs every seed with the sites that are parties."""

    def __init__(self, run: str, version: str, parties: Sequence[str]) -> None:
        super().__init__()
        self._run, self._version, self._parties = run, version, tuple(parties)
        self._hub: FlareHub | None = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing yet."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing more."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """End the job when FLARE has given up a site."""
        if event_type == EventType.CLIENT_DISCONNECTED and self._hub is not None:
            name = fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME)
            why = "FLARE has lost its site; submit the job again to go on with the run"
            self._hub.fail(PartyLostError([name], why))

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run to the end; an error is one sentence and ends the job."""
        try:
            self._serve(abort_signal, fl_ctx)
        except AbortedError as error:
            self.log_info(fl_ctx, str(error))
        except LessVFLError as error:
            self.system_panic(str(error), fl_ctx)

    def _serve(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        check_version(self._version, "The server")
        flare_files.check(local_of(fl_ctx), "The server")
        config = read(ServerConfig, config_file(fl_ctx, self._run, SERVER))
        parties = list(config.parties)
        if set(parties) != set(self._parties):
            raise ConfigError(
                "The sites of the job must be the parties of the server's config, "
                f"{', '.join(parties)}. Got {', '.join(self._parties)}."
            )
        set_up(config)
        table = LabelTable.load(config)
        data = Path(config.data).name
        status = Status(self._run, config.method, data, config.everyone)
        cell, job = fl_ctx.get_engine().get_cell(), fl_ctx.get_job_id()
        hub = FlareHub(cell, config.parties, job=job, silence=config.silence)
        self._hub = hub
        with contextlib.ExitStack() as stack:
            stack.enter_context(watching(abort_signal, hub.fail))
            try:
                if config.status is not None:
                    from lessvfl.web.status import StatusServer

                    stack.enter_context(StatusServer(status, config.status))
                process = ServerProcess(config, table, hub, status, resume=True)
                stack.callback(process.close)
                request = Shareable()  # to take part, with the server's cell
                request.set_header(PEER, cell.get_fqcn())
                task = Task(TASK, request, result_received_cb=self._ended)
                self.broadcast(task, fl_ctx, parties, min_responses=len(parties))
                process.run()
            except BaseException as error:
                hub.close(error)
                raise
            hub.close()
            report.build(Path(config.out))
            if process.party_here is not None:
                report.build(process.party_here.folder)
            end = time.monotonic() + END_SECONDS
            while task.completion_status is None and time.monotonic() < end:
                if abort_signal.triggered:
                    return
                time.sleep(POLL_SECONDS)

    def _ended(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Note how a site's task ended; a failure ends the job."""
        name, reply = client_task.client.name, client_task.result
        code = reply.get_return_code()
        if code in (ReturnCode.OK, ReturnCode.TASK_ABORTED):
            return
        kind, reason = reply.get_header(KIND), reply.get_header(REASON)
        why = f"({printable(str(kind), SHORT)}): {printable(str(reason))}"
        if reason is None:
            why = f"({printable(str(code), SHORT)}): its log says why."
        if self._hub is not None:
            sentence = f"Party '{name}' stops {why}"
            self._hub.fail(ProtocolError(sentence, public=STOPPED))

    def process_result_of_unknown_task(self, *given: Any) -> None:
        """Ignore what came too late."""


class PartyExecutor(Executor):  # type: ignore[misc]
    """A site's side of a job: takes part in the run as the party of the site's name."""

    def __init__(self, run: str, version: str) -> None:
        super().__init__()
        self._run, self._version = run, version

    def execute(
        self,
        task_name: str,
        shareable: Shareable,
        fl_ctx: FLContext,
        abort_signal: Signal,
    ) -> Shareable:
        """Take part to the end; tell the server what it may know of an error."""
        if task_name != TASK:
            shown = printable(str(task_name), SHORT)
            sentence = f"The task must be '{TASK}'. Got '{shown}'."
            self.log_error(fl_ctx, sentence, fire_event=False)
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            peer = server_of(shareable, fl_ctx)
            self._take_part(peer, fl_ctx, abort_signal)
        except AbortedError as error:
            self.log_info(fl_ctx, str(error))
            return make_reply(ReturnCode.TASK_ABORTED)
        except LessVFLError as error:
            self.log_error(fl_ctx, str(error), fire_event=False)
            reply = make_reply(ReturnCode.EXECUTION_EXCEPTION)
            reply.set_header(KIND, error.kind)
            reply.set_header(REASON, error.public)
            return reply
        return make_reply(ReturnCode.OK)

    def _take_part(self, peer: str, fl_ctx: FLContext, signal: Signal) -> None:
        name = fl_ctx.get_identity_name()
        who = f"Site '{name}'"
        check_version(self._version, who)
        flare_files.check(local_of(fl_ctx), who)
        flare_files.check_logs(local_of(fl_ctx), who)
        config = read(PartyConfig, config_file(fl_ctx, self._run, name))
        set_up(config)
        data = Path(config.data).name
        status = Status(self._run, "", data, [SERVER], side=name)
        process = PartyProcess.load(name, config, status)
        with contextlib.closing(process):
            # Even if its own run is over: the server may not know that yet.
            server = FlareServer(fl_ctx.get_engine().get_cell(), peer)
            with watching(signal, server.abort):
                process.serve(server)
            report.build(Path(config.out))


def write_job(config: ServerConfig, run: str, out: Path) -> None:
    """Write a job for FLARE to a new folder: who takes part in which run."""
    plain_name("run", run)
    for party in config.parties:
        if plain_name("site", party) == SERVER:
            raise ConfigError("A site must not be named 'server'. Got one that is.")
    if out.exists():
        raise ConfigError(f"The folder '{out}' must be new. Got one that exists.")
    given = {"run": run, "version": __version__}
    server = {
        "format_version": 2,
        "workflows": [
            {
                "id": "lessvfl",
                "path": f"{__name__}.{ServerController.__name__}",
                "args": given | {"parties": list(config.parties)},
            }
        ],
    }
    site = {
        "format_version": 2,
        "executors": [
            {
                "tasks": [TASK],
                "executor": {
                    "path": f"{__name__}.{PartyExecutor.__name__}",
                    "args": given,
                },
            }
        ],
    }
    meta = {
        "name": run,
        "resource_spec": {},
        "min_clients": len(config.parties),
        "mandatory_clients": list(config.parties),
        "deploy_map": {"server": ["server"], "parties": list(config.parties)},
    }
    flare_files.write_json(out / "meta.json", meta)
    flare_files.write_json(out / "server" / "config" / "config_fed_server.json", server)
    flare_files.write_json(out / "parties" / "config" / "config_fed_client.json", site)


def install(config: Path, workspace: Path, run: str, site: str) -> Path:
    """Put a side's config of a run into its own FLARE workspace, and allow its class.

    Paths in the config become absolute. `site` is the name of the site, or ``server``.
    FLARE only builds components of classes on the site's own list, but by default it
    accepts code with a job of any lead; that right is revoked. By default FLARE also
    sends a site's logs to the server; that is switched off at a site, since they name
    files, columns and the features that it keeps.

    Returns where the config is.
    """
    run, site = plain_name("run", run), plain_name("site", site)
    is_server = site == SERVER
    read(ServerConfig if is_server else PartyConfig, config)  # what is wrong with it
    local = workspace / "local"
    if not local.is_dir():
        raise ConfigError(
            f"The workspace must be a folder of FLARE with 'local' in it. Got "
            f"'{workspace}'."
        )
    _refuse_another_sides(workspace / "startup", site)
    values = {"out": "run"} | yaml.safe_load(config.read_text(encoding="utf-8"))
    folder = config.parent.resolve()
    values = absolute(values, folder)
    where, _, function = (values.get("party_net") or "").rpartition(":")
    if where.endswith(".py"):
        values["party_net"] = f"{(folder / where).resolve()}:{function}"
    component = ServerController if is_server else PartyExecutor
    name = f"{__name__}.{component.__name__}"
    flare_files.secure(local, name, is_site=not is_server)
    path = local / "lessvfl" / run / f"{site}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def _refuse_another_sides(startup: Path, site: str) -> None:
    """Refuse a startup kit that is another side's; FLARE's simulator has none."""
    if not startup.is_dir():
        return
    certificate = startup / ("server.crt" if site == SERVER else "client.crt")
    if not certificate.is_file():
        raise ConfigError(
            f"The workspace of '{site}' must have the startup kit of "
            f"{'a server' if site == SERVER else 'a site'}. Got '{startup}' without "
            f"'{certificate.name}'."
        )
    name = keys.common_name(keys.read_certificate(certificate).subject)
    if site not in (SERVER, name):
        raise ConfigError(
            f"The site must go by the name in its FLARE certificate, '{name}'. Got "
            f"'{site}'."
        )
