"""A run as a job of FLARE: what the job holds, and what each side does with it."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("nvflare")

from examples.nvflare.federation import (
    LEAD,
    Federation,
    kill_process,
    wait_for_job,
)
from nvflare import lighter
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode, SiteType
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.utils.event import fire_event_to_components as engine_fires
from nvflare.apis.workspace import Workspace as FlareWorkspace
from nvflare.fuel.f3.message import Message
from nvflare.fuel.sec.audit import Auditor, AuditService
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person
from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.defs import SysCommandTopic
from nvflare.private.fed.app.fl_app_validator import FLAppValidator
from nvflare.private.fed.app.utils import component_security_check
from nvflare.private.fed.client import shell_cmd
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.utils import app_deployer
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.private.fed.utils.app_deployer import AppDeployer
from nvflare.security.security import FLAuthorizer
from tests.conformance.networks import Cell, Cells
from tests.conftest import until
from tests.remote.test_remote import a_dataset

from lessvfl import __version__, report
from lessvfl.errors import ConfigError
from lessvfl.remote import certificates, flare_files, localhost, nvflare, server
from lessvfl.remote.config import PartyConfig, ServerConfig, read
from lessvfl.run import profiles
from lessvfl.run.simulate import Job, simulate
from lessvfl.wire.nvflare import FlareHub

pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")

RUN = "demo"
SITES = ("party0", "party1")


@pytest.fixture(autouse=True)
def built(monkeypatch) -> list[Path]:
    """Return whose report was asked for; it is made elsewhere."""
    asked: list[Path] = []
    monkeypatch.setattr(report, "build", asked.append)
    monkeypatch.setattr(server, "STAY_SECONDS", 0.1)
    return asked


class Workspace:
    """Where FLARE says that a side's own files are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get_site_config_dir(self) -> str:
        return str(self.folder / "local")


class Engine:
    """What a component asks of FLARE's engine."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, self.folder = cell, folder
        self.events: list[tuple[str, Any]] = []

    def get_cell(self) -> Cell:
        return self.cell

    def get_workspace(self) -> Workspace:
        return Workspace(self.folder)

    def fire_event(self, event_type: str, fl_ctx: Any) -> None:
        self.events.append((event_type, fl_ctx.get_prop(FLContextKey.EVENT_DATA)))


class System:
    """The components of a job in one process, in place of FLARE's processes."""

    def __init__(self, base: Path, versions=None, task=nvflare.TASK) -> None:
        self.base, self.cells, self.task = base, Cells(), task
        self.signal = Signal()
        self.server = Engine(Cell(self.cells, "server.job"), base / "server")
        self.versions = {name: __version__ for name in SITES} | (versions or {})
        self.codes: dict[str, str] = {}
        self.threads: list[threading.Thread] = []
        of_server = self.versions.get("server", __version__)
        self.controller = nvflare.ServerController(RUN, of_server, SITES)
        self.controller.broadcast = self._broadcast

    def context(self, name: str, engine: Engine) -> Any:
        return FLContextManager(engine, name, "job").new_context()

    def _broadcast(self, task, fl_ctx, targets, min_responses):
        task.completion_status = None
        left = list(targets)

        def site(name):
            executor = nvflare.PartyExecutor(RUN, self.versions[name])
            cell = Cell(self.cells, f"{name}.job")
            engine = Engine(cell, self.base / name)
            context = self.context(name, engine)
            request = Shareable()
            request.set_header(nvflare.PEER, task.data.get_header(nvflare.PEER))
            reply = executor.execute(self.task, request, context, self.signal)
            self.codes[name] = reply.get_return_code()

            class Ended:
                client = type("Client", (), {"name": name})
                result = reply

            self.controller._ended(Ended, fl_ctx)
            left.remove(name)
            if not left:
                task.completion_status = "done"

        for name in targets:
            thread = threading.Thread(target=site, args=(name,), daemon=True)
            self.threads.append(thread)
            thread.start()

    def run(self) -> str | None:
        """Run the job; return what the server says of its failure."""
        context = self.context("server", self.server)
        self.controller.control_flow(self.signal, context)
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()
        said = [text for event, text in self.server.events if text is not None]
        assert len(said) <= 1
        return said[0] if said else None


def a_job(**more: Any) -> Job:
    dataset = a_dataset()
    few = {"pretrain_epochs": 2, "train_epochs": 2, "server_epochs": 2}
    few |= {"party_epochs": 2, "batch_size": 20} | more
    settings = profiles.resolve("less-vfl", "default", dataset, few)
    return Job(dataset, settings, parties=2, device="cpu")


def prepare(base: Path, **of_server: Any) -> Job:
    """Give everybody a FLARE workspace with a config of the run."""
    job = a_job()
    port = localhost.free_port()
    sides = base / "sides"
    localhost.write_folders(job, job.problem(0), [0], sides, port, 3)
    for name in ("server", *SITES):
        path = config_of(base, name)
        values = yaml.safe_load(path.read_text()) | {"wait": 20.0}
        if name == "server":
            values |= of_server
        path.write_text(yaml.safe_dump(values))
        (base / name / "local").mkdir(parents=True)
        nvflare.install(path, base / name, RUN, name)
    return job


def config_of(base: Path, name: str) -> Path:
    kind = "server.yaml" if name == "server" else "party.yaml"
    return base / "sides" / name / kind


def check(base: Path, job: Job) -> None:
    """Compare with a run in one process."""
    numbers = localhost.collect([job.problem(0)], base / "sides")[0]
    alone = simulate(job, [0])[0].numbers
    for one in (numbers, alone):
        one["seconds"] = None
        for name in ("wire_bytes", "frames", "resent_bytes"):
            one["communication"].pop(name, None)
    assert numbers == alone


# --------------------------------------------------------------------------- the run


def test_a_job_runs_to_the_end_and_gives_the_same_bits(tmp_path, built):
    """And so does a job of a run that is over."""
    job = prepare(tmp_path)
    for _ in range(2):
        system = System(tmp_path)
        assert system.run() is None
        assert set(system.codes.values()) == {ReturnCode.OK}
        check(tmp_path, job)
        assert {path.parent.name for path in built} == {"server", *SITES}


@contextlib.contextmanager
def after(base: Path, pattern: str, act):
    """Do something as soon as the server has written a file."""
    over = threading.Event()

    def look():
        while not over.wait(0.005):
            if any((base / "sides" / "server" / "run").glob(pattern)):
                act()
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(10)


CHECKPOINT = "seed-0/checkpoint.safetensors"


def test_an_aborted_job_ends_at_once_and_goes_on_when_submitted_again(tmp_path):
    job = prepare(tmp_path)
    system = System(tmp_path)
    with after(tmp_path, CHECKPOINT, lambda: system.signal.trigger(True)):
        assert system.run() is None  # FLARE knows that it was aborted
    assert not (tmp_path / "sides" / "server" / "run" / "record.jsonl").exists()
    assert ReturnCode.OK not in system.codes.values()
    assert System(tmp_path).run() is None
    check(tmp_path, job)


def test_a_site_that_flare_has_lost_ends_the_job_which_goes_on_again(tmp_path):
    job = prepare(tmp_path)
    system = System(tmp_path)

    def lose():
        context = system.context("server", system.server)
        context.set_prop(FLContextKey.DISCONNECTED_CLIENT_NAME, "party1")
        system.controller.handle_event(EventType.CLIENT_DISCONNECTED, context)

    with after(tmp_path, CHECKPOINT, lose):
        said = system.run()
    assert said == (
        "Party 'party1' is missing: FLARE has lost its site; submit the job again to "
        "go on with the run."
    )
    assert System(tmp_path).run() is None
    check(tmp_path, job)


# ----------------------------------------------------------------- what does not fit


def test_a_site_without_its_config_is_named_without_its_paths(tmp_path, caplog):
    prepare(tmp_path)
    missing = tmp_path / "party1" / "local" / "lessvfl" / RUN / "party1.yaml"
    missing.unlink()
    said = System(tmp_path).run()
    assert said == (
        "Party 'party1' stops (config): 'party1' must have its own config of run "
        "'demo'. Got none."
    )
    assert f"must be the file '{missing}'" in caplog.text


@pytest.mark.parametrize("value", [True, None])
def test_a_site_whose_logs_flare_would_send_does_not_take_part(tmp_path, value):
    """FLARE does so by default, and they name features, columns and files."""
    prepare(tmp_path)
    path = tmp_path / "party1" / "local" / "resources.json"
    values = json.loads(path.read_text()) | {"allow_log_streaming": value}
    if value is None:
        del values["allow_log_streaming"]
    path.write_text(json.dumps(values))
    said = str(System(tmp_path).run())
    assert "Site 'party1' must keep its logs to itself" in said


def test_a_server_without_its_config_names_the_file(tmp_path):
    prepare(tmp_path)
    missing = tmp_path / "server" / "local" / "lessvfl" / RUN / "server.yaml"
    missing.unlink()
    assert f"must be the file '{missing}'" in str(System(tmp_path).run())


@pytest.mark.parametrize("who", ["server", "party1"])
def test_another_version_is_refused_in_one_sentence(tmp_path, who):
    prepare(tmp_path)
    said = str(System(tmp_path, {who: "9.9"}).run())
    name = "The server" if who == "server" else "Site 'party1'"
    assert f"{name} must have lessvfl 9.9, as the job says. Got {__version__}." in said


def test_a_job_for_other_sites_is_refused(tmp_path):
    prepare(tmp_path)
    system = System(tmp_path)
    system.controller._parties = ("party0", "bank")
    said = str(system.run())
    assert "must be the parties of the server's config, party0, party1" in said


def test_a_server_whose_status_page_fails_ends_its_connections(tmp_path):
    prepare(tmp_path, status="example.org:1")
    system = System(tmp_path)
    assert "address of the status page must be of this machine" in str(system.run())
    hub: Any = system.controller._hub
    assert hub._closing.kind == "config"


def test_what_a_site_says_in_its_log_does_not_reach_the_server(tmp_path, caplog):
    prepare(tmp_path)
    (tmp_path / "sides" / "party1" / "columns.parquet").unlink()
    said = str(System(tmp_path).run())
    assert "Party 'party1' stops (data)" in said
    assert "columns.parquet" not in said
    assert "columns.parquet" in caplog.text


def test_a_task_of_another_name_is_not_begun(tmp_path):
    prepare(tmp_path)
    said = str(System(tmp_path, task="train").run())
    assert "stops (TASK_UNKNOWN): its log says why." in said


@pytest.mark.parametrize("peer", ["party0.job", "server.other", "server.job.x", "", 3])
def test_a_task_cannot_name_another_site_as_the_server(tmp_path, peer):
    """A site could have FLARE hand out a task, and so pass for the label holder."""
    prepare(tmp_path)
    system = System(tmp_path)
    engine = Engine(Cell(system.cells, "party1.job"), tmp_path / "party1")
    request = Shareable()
    request.set_header(nvflare.PEER, peer)
    executor = nvflare.PartyExecutor(RUN, __version__)
    context = system.context("party1", engine)
    reply = executor.execute(nvflare.TASK, request, context, system.signal)
    said = reply.get_header(nvflare.REASON)
    assert said == f"A task must name the server of its own job. Got '{peer}'."
    assert not engine.cell.called  # nothing was sent or listened to


@pytest.mark.parametrize(("reason", "word"), [("why", "kind"), (None, "CODE")])
def test_what_a_site_says_of_its_end_is_one_short_line(tmp_path, reason, word):
    system = System(tmp_path)
    hub = FlareHub(system.server.cell, SITES, job="job")
    system.controller._hub = hub
    reply = make_reply("CODE\nforged: " + "A" * 5000)
    reply.set_header(nvflare.KIND, "kind\nforged: " + "A" * 5000)
    reply.set_header(nvflare.REASON, reason)
    client = type("Client", (), {"name": "party1"})
    ended = type("Ended", (), {"client": client, "result": reply})
    system.controller._ended(ended, None)
    said = str(hub._failure)
    assert said.isprintable()
    assert said.startswith(f"Party 'party1' stops ({word} forged: AAA")
    assert len(said) < 150


@pytest.mark.parametrize(
    "run", ["../x", "a/b", "", ".", "..", "a.b", "x" * 64, "/etc", "a\n", None, 3, "-a"]
)
def test_a_run_cannot_name_a_file_elsewhere(tmp_path, run):
    system = System(tmp_path)
    context = system.context("server", system.server)
    with pytest.raises(ConfigError, match="name of a run must be of at most 63"):
        nvflare.config_file(context, run, "server")


# --------------------------------------------------------------------------- the files


def test_a_job_holds_names_and_nothing_else(tmp_path):
    config = ServerConfig(parties=SITES, data="/secret/labels.csv", label="salary")
    nvflare.write_job(config, RUN, tmp_path / "job")
    files = [path for path in (tmp_path / "job").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "job")) for path in files) == [
        "meta.json",
        "parties/config/config_fed_client.json",
        "server/config/config_fed_server.json",
    ]
    text = "".join(path.read_text() for path in files)
    assert "secret" not in text
    assert "salary" not in text
    meta = json.loads((tmp_path / "job" / "meta.json").read_text())
    assert meta["deploy_map"] == {"server": ["server"], "parties": list(SITES)}
    assert meta["mandatory_clients"] == list(SITES)


@pytest.mark.parametrize(
    ("parties", "run", "words"),
    [
        (SITES, "a/b", "name of a run must be"),
        (("a.b",), RUN, "name of a site must be"),
        (("server",), RUN, "must not be named 'server'"),
    ],
)
def test_a_job_of_names_that_cannot_be_is_not_written(tmp_path, parties, run, words):
    with pytest.raises(ConfigError, match=words):
        nvflare.write_job(ServerConfig(parties=parties), run, tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_a_site_keeps_what_it_allowed_before(tmp_path):
    """FLARE builds what is on the site's own list; two classes of ours come to it."""
    local = tmp_path / "local"
    local.mkdir()
    (tmp_path / "party.yaml").write_text("data: own.csv\n")
    (local / "resources.json.default").write_text(
        json.dumps({"format_version": 2, "class_allow_list": ["own.Class"], "x": 1})
    )
    for _ in range(2):
        path = nvflare.install(tmp_path / "party.yaml", tmp_path, RUN, "clinic")
    assert path == local / "lessvfl" / RUN / "clinic.yaml"
    assert yaml.safe_load(path.read_text()) == {
        "data": str(tmp_path / "own.csv"),
        "out": str(tmp_path / "run"),
    }
    found = json.loads((local / "resources.json").read_text())
    assert found == {
        "format_version": 2,
        "class_allow_list": ["own.Class", "lessvfl.remote.nvflare.PartyExecutor"],
        "class_list_enforcement_mode": "enforce",
        "allow_log_streaming": False,
        "x": 1,
    }


@pytest.mark.parametrize("net", ["nets.py:make", "own.nets:make"])
def test_every_path_of_a_sites_config_is_found_from_its_workspace(tmp_path, net):
    (tmp_path / "local").mkdir()
    lines = (
        "data: own.csv",
        f"party_net: {net}",
        "policy:",
        "  predict_ids: consent.csv",
        "  rounds: 3",
    )
    (tmp_path / "party.yaml").write_text("\n".join(lines))
    path = nvflare.install(tmp_path / "party.yaml", tmp_path, RUN, "clinic")
    found = yaml.safe_load(path.read_text())
    is_file = net.startswith("nets.py")
    assert found["party_net"] == (f"{tmp_path}/{net}" if is_file else net)
    assert found["policy"] == {
        "predict_ids": str(tmp_path / "consent.csv"),
        "rounds": 3,
    }
    before = read(PartyConfig, tmp_path / "party.yaml")
    assert read(PartyConfig, path).policy == before.policy


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_site_whose_resources_are_broken_is_told_and_left_alone(tmp_path, text):
    (tmp_path / "party.yaml").write_text("data: own.csv\n")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "resources.json").write_text(text)
    with pytest.raises(ConfigError, match=r"resources.json' must be a JSON object"):
        nvflare.install(tmp_path / "party.yaml", tmp_path, RUN, "clinic")
    assert not (tmp_path / "local" / "lessvfl").exists()


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("clinik", "the name in its FLARE certificate, 'clinic'. Got 'clinik'"),
        ("server", "the startup kit of a server. Got .* without 'server.crt'"),
    ],
)
def test_another_sides_workspace_is_refused(tmp_path, site, words):
    certificates.init(tmp_path / "kit", ["clinic"])
    for folder in ("startup", "local"):
        (tmp_path / folder).mkdir()
    certificate = (tmp_path / "kit" / "clinic" / "cert.pem").read_bytes()
    (tmp_path / "startup" / "client.crt").write_bytes(certificate)
    config = tmp_path / "own.yaml"
    config.write_text("data: own.csv\n")
    with pytest.raises(ConfigError, match=words):
        nvflare.install(config, tmp_path, RUN, site)
    assert list((tmp_path / "local").iterdir()) == []
    nvflare.install(config, tmp_path, RUN, "clinic")


def test_a_folder_that_is_no_workspace_is_refused(tmp_path):
    (tmp_path / "party.yaml").write_text("data: own.csv\n")
    with pytest.raises(ConfigError, match="must be a folder of FLARE"):
        nvflare.install(tmp_path / "party.yaml", tmp_path, RUN, "clinic")


# ------------------------------------------------------------- code that a job brings


def a_kit(folder: Path, **roles: Any) -> Path:
    """Make the folder local of a site as FLARE does; `roles` are other rights."""
    local = folder / "local"
    local.mkdir(parents=True)
    template = Path(lighter.__file__).parent / "templates" / "master_template.yml"
    rights = json.loads(yaml.safe_load(template.read_text())["default_authz"])
    rights["permissions"] |= roles
    (local / "authorization.json.default").write_text(json.dumps(rights))
    (folder / "party.yaml").write_text("data: own.csv\n")
    return local


def deploy(monkeypatch, folder: Path, app: Path, role: str, org: str) -> Any:
    """Have a site of FLARE take an app as at its start and at its parent process."""
    (folder / "startup").mkdir(exist_ok=True)
    workspace = FlareWorkspace(str(folder), site_name="clinic")
    rights = json.loads(Path(workspace.get_authorization_file_path()).read_text())
    authorizer = FLAuthorizer("clinic-org", rights)
    monkeypatch.setattr(AuthorizationService, "the_authorizer", authorizer)
    validator = FLAppValidator(SiteType.CLIENT)
    monkeypatch.setattr(AppAuthzService, "app_validator", validator)
    allowed = type("Allowed", (), {"is_scope_allowed": lambda scope: True})
    monkeypatch.setattr(app_deployer, "PrivacyService", allowed)
    submitter = {"submitter_name": "eve", "submitter_org": org, "submitter_role": role}
    packed = zip_directory_to_bytes(str(app), "")
    return AppDeployer().deploy(
        workspace, str(uuid.uuid4()), submitter, "app", packed, None
    )


def an_app(folder: Path, code: str | None = None) -> Path:
    """Write what a site gets of a job; with code, one of somebody else's."""
    nvflare.write_job(ServerConfig(parties=("clinic",)), RUN, folder)
    app = folder / "parties"
    if code is not None:
        (app / "custom").mkdir()
        (app / "custom" / "evil.py").write_text(code)
    return app


ROLES = ("project_admin", "org_admin", "lead", "member")


def test_flare_by_itself_lets_a_lead_of_another_organisation_bring_code(
    tmp_path, monkeypatch
):
    """What a site is without 'lessvfl nvflare site': the attack that it must stop."""
    a_kit(tmp_path)
    app = an_app(tmp_path / "job", "open('table.csv')")
    assert deploy(monkeypatch, tmp_path, app, "lead", "other-org") is None


@pytest.mark.parametrize("org", ["other-org", "clinic-org"])
@pytest.mark.parametrize("role", ROLES)
def test_nobody_brings_code_to_a_site(tmp_path, monkeypatch, role, org):
    a_kit(tmp_path)
    nvflare.install(tmp_path / "party.yaml", tmp_path, RUN, "clinic")
    app = an_app(tmp_path / "job", "open('table.csv')")
    said = deploy(monkeypatch, tmp_path, app, role, org)
    assert said == "BYOC not permitted"
    app = an_app(tmp_path / "ours")
    assert deploy(monkeypatch, tmp_path, app, role, org) is None


@pytest.mark.parametrize("org", ["other-org", "clinic-org"])
@pytest.mark.parametrize("role", ROLES)
def test_a_site_keeps_the_rights_that_are_no_danger(tmp_path, role, org):
    """Files are read by who is of its own organisation alone; the rest stays."""
    local = a_kit(tmp_path)
    before = json.loads((local / "authorization.json.default").read_text())
    nvflare.install(tmp_path / "party.yaml", tmp_path, RUN, "clinic")
    after = json.loads((local / "authorization.json").read_text())
    who = Person("eve", org, role)
    given = {
        right: [
            FLAuthorizer("clinic-org", rights).authorize(AuthzContext(right, who, who))
            for rights in (before, after)
        ]
        for right in (*flare_files.COMMANDS, "byoc")
    }
    lost = {right for right, (old, new) in given.items() if old != new}
    shell = {"cat", "grep", "head", "ls", "pwd", "tail"}
    is_elsewhere = role == "project_admin" and org == "other-org"
    assert lost == (shell if is_elsewhere else set()) | (
        {"byoc"} if role in ("project_admin", "lead") else set()
    )
    assert not any(new for right, (_, (new, _)) in given.items() if right == "byoc")


CODE_ALLOWED: list[tuple[str, Any]] = [
    ("authorization.json", {"permissions": {"lead": {"byoc": "any"}}}),
    ("authorization.json", {"permissions": {"lead": {" ByOC ": "o:acme"}}}),
    ("authorization.json", {"permissions": {"lead": {"byoc": ["none", "any"]}}}),
    ("authorization.json", {"permissions": {"project_admin": "any"}}),
    ("authorization.json", {"permissions": {"lead": {"cat": "any"}}}),
    ("authorization.json", {"permissions": {"x": {"shell_commands": "n:eve"}}}),
    ("authorization.json", None),
    ("lessvfl__p_resources.json", None),
    ("lessvfl__p_resources.json", {"components": []}),
    ("resources.json", {"class_allow_list": ["*"]}),
    ("resources.json", {"class_list_enforcement_mode": "warn"}),
]


@pytest.mark.parametrize("side", ["server", "party1"])
def test_a_side_whose_files_allow_code_does_not_take_part(tmp_path, side):
    prepare(tmp_path)
    who = "The server" if side == "server" else f"Site '{side}'"
    for name, change in CODE_ALLOWED:
        path = tmp_path / side / "local" / name
        if change is None:
            path.unlink()
        else:
            path.write_text(json.dumps(json.loads(path.read_text()) | change))
        said = str(System(tmp_path).run())
        must = "must let nobody bring code or read its files from elsewhere"
        assert f"{who} {must}" in said
        assert f"local/{name}" in said
        assert str(tmp_path) not in said
        nvflare.install(config_of(tmp_path, side), tmp_path / side, RUN, side)
        flare_files.check(path.parent, who)


@pytest.mark.parametrize("text", ["{", "[]", '{"permissions": 3}'])
def test_rights_that_cannot_be_read_are_told_and_left_alone(tmp_path, text):
    local = a_kit(tmp_path)
    (local / "authorization.json").write_text(text)
    with pytest.raises(ConfigError, match=r"authorization.json' must be a JSON object"):
        nvflare.install(tmp_path / "party.yaml", tmp_path, RUN, "clinic")
    assert not (local / "lessvfl").exists()


@pytest.fixture
def shell(monkeypatch) -> None:
    """Give FLARE its commands back after the test."""
    before = dict(shell_cmd.SHELL_CMD_VALIDATORS)
    monkeypatch.setattr(shell_cmd, "SHELL_CMD_VALIDATORS", before)
    monkeypatch.setattr(flare_files, "SHELL_CMD_VALIDATORS", before)


def start_guard(local: Path) -> None:
    """Have FLARE build and start what a site has in its own process besides."""
    (one,) = json.loads((local / flare_files.GUARD).read_text())["components"]
    assert one["path"] == "lessvfl.remote.flare_files.Guard"
    context = FLContextManager(None, "clinic", "").new_context()
    context.set_prop(FLContextKey.WORKSPACE_OBJECT, Workspace(local.parent))
    engine_fires(EventType.SYSTEM_BOOTSTRAP, [flare_files.Guard()], context)
    component_security_check(context)


@pytest.mark.parametrize("guarded", [False, True])
def test_nobody_reads_a_sites_files_by_a_command(tmp_path, monkeypatch, shell, guarded):
    """FLARE's sites check no rights of a command: the server is to, of its own."""
    a_kit(tmp_path)
    nvflare.install(tmp_path / "party.yaml", tmp_path, RUN, "clinic")
    if guarded:
        start_guard(tmp_path / "local")
    rights = json.loads((tmp_path / "local" / "authorization.json").read_text())
    authorizer = FLAuthorizer("clinic-org", rights)
    monkeypatch.setattr(AuthorizationService, "the_authorizer", authorizer)
    (tmp_path / "own.csv").write_text("its content\n")
    auditor = Auditor(str(tmp_path / "audit.log"))
    monkeypatch.setattr(AuditService, "get_auditor", lambda: auditor)
    cell = Cell(Cells(), "clinic")
    agent = FedAdminAgent("clinic", cell, FLContextManager(None, "clinic", ""))
    agent.register_processor(shell_cmd.ShellCommandProcessor())
    wanted = AdminMessage(SysCommandTopic.SHELL, f"cat {tmp_path / 'own.csv'}")
    reply = agent._dispatch_request(Message(payload=wanted))
    auditor.close()
    assert ("its content" in reply.payload.body) is not guarded
    assert ("not a supported shell command" in reply.payload.body) is guarded


def test_a_site_whose_files_allow_code_does_not_start(tmp_path, shell, capsys):
    local = a_kit(tmp_path)
    nvflare.install(tmp_path / "party.yaml", tmp_path, RUN, "clinic")
    start_guard(local)
    (local / "authorization.json").unlink()
    with pytest.raises(RuntimeError, match="This side must let nobody bring code"):
        start_guard(local)
    assert "could not start clinic" in capsys.readouterr().out


# ------------------------------------------------------------------- a whole system


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what FLARE uses
def test_a_killed_site_an_aborted_job_and_a_missing_config(tmp_path, monkeypatch):
    """In a provisioned system: each ends the job, and submitted again it goes on."""
    monkeypatch.undo()  # reports are made
    job = a_job(train_epochs=30)
    with Federation(tmp_path / "flare", SITES) as flare:
        flare.provision()
        for name in SITES:
            local = flare.kits[name] / "local"
            values = flare_files._resources(local) | {flare_files.STREAMING: False}
            flare_files.write_json(local / flare_files.RESOURCES, values)
        for name in ("server", *SITES):
            flare.start(name)
        with flare.session() as session:
            flare.wait_for_sites(session)
            for run in ("job", "site", "aborted", "missing", "server"):
                base = tmp_path / run
                out = prepare_kits(base, flare, run, job)
                if run == "missing":
                    own = flare.kits["party1"] / "local" / "lessvfl" / run
                    (own / "party1.yaml").rename(own / "elsewhere.yaml")
                job_id = session.submit_job(str(out))
                if run != "missing":
                    until((base / "sides" / "server" / "run" / CHECKPOINT).exists)
                victim = {"job": "party1", "server": "server"}.get(run)
                for pid in flare.job_processes(victim) if victim else ():
                    kill_process(pid)
                if run == "site":
                    flare.kill("party1")
                    flare.start("party1")
                if run == "aborted":
                    session.abort_job(job_id)
                assert wait_for_job(session, job_id) != "FINISHED:COMPLETED"
                assert not (base / "sides" / "server" / "run" / "record.jsonl").exists()
                if run == "missing":
                    (own / "elsewhere.yaml").rename(own / "party1.yaml")
                flare.wait_for_sites(session)
                job_id = session.submit_job(str(out))
                assert wait_for_job(session, job_id) == "FINISHED:COMPLETED"
                check(base, job)
        said = (flare.kits["server"] / "console.txt").read_text()
        kept = [path.read_bytes() for path in flare.kits["server"].rglob("*.txt")]
        kept += [path.read_bytes() for path in (flare.folder / "store").rglob("*_*")]
        of_site = (flare.kits["party1"] / "console.txt").read_text()
    assert "must be the file" in of_site
    assert not any(b"must be the file" in text for text in kept)
    assert "Party 'party1' is missing: " in said
    assert "'party1' must have its own config of run 'missing'. Got none." in said


EVIL = """
import pathlib, time
from nvflare.apis.executor import Executor
from nvflare.apis.impl.controller import Controller
from nvflare.private.admin_defs import Message
from nvflare.private.defs import CellChannel, SysCommandTopic, new_cell_message

HERE = pathlib.Path.cwd()

class Reader(Executor):
    def __init__(self):
        super().__init__()
        (HERE / "stolen.txt").write_text((HERE / "own.csv").read_text())
    def execute(self, *given): ...
    def handle_event(self, event, context):
        if event == "_start_run":
            for name in ("party1", "party2"):
                wanted = f"cat {HERE.parent / name / 'own.csv'}"
                request = new_cell_message({}, Message(SysCommandTopic.SHELL, wanted))
                cell = context.get_engine().get_cell()
                reply = cell.send_request(
                    CellChannel.CLIENT_MAIN, "admin", name, request, timeout=10.0
                )
                (HERE / f"of-{name}.txt").write_text(str(reply.payload.body))

class Waiter(Controller):
    def start_controller(self, context): ...
    def stop_controller(self, context): ...
    def process_result_of_unknown_task(self, *given): ...
    def control_flow(self, signal, context):
        end = time.monotonic() + 20
        while time.monotonic() < end and not signal.triggered:
            time.sleep(0.2)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what FLARE uses
def test_a_lead_of_another_organisation_runs_no_code_at_a_site(tmp_path):
    """Nor reads its files from another site; sites as FLARE makes them are read."""
    app = tmp_path / "job" / "app"
    (app / "custom").mkdir(parents=True)
    (app / "custom" / "evil.py").write_text(EVIL)
    (app / "config").mkdir()
    reader = {"tasks": ["x"], "executor": {"path": "evil.Reader", "args": {}}}
    waiter = {"id": "x", "path": "evil.Waiter", "args": {}}
    files: dict[str, Any] = {
        "meta.json": {
            "name": "x",
            "min_clients": 1,
            "deploy_map": {"app": ["server", "party0", "party1"]},
        },
        "app/config/config_fed_client.json": {"executors": [reader]},
        "app/config/config_fed_server.json": {"workflows": [waiter]},
    }
    for name, values in files.items():
        text = json.dumps({"format_version": 2} | values)
        (tmp_path / "job" / name).write_text(text)
    (tmp_path / "party.yaml").write_text("data: own.csv\n")
    sites = (*SITES, "party2")
    with Federation(tmp_path / "flare", sites) as flare:
        flare.provision()
        kits = {name: flare.kits[name] for name in sites}
        for kit in kits.values():
            (kit / "own.csv").write_text("42")
        nvflare.install(tmp_path / "party.yaml", kits["party1"], RUN, "party1")
        for name in ("server", *sites):
            flare.start(name)
        with flare.session(LEAD) as session:
            flare.wait_for_sites(session)
            job_id = session.submit_job(str(tmp_path / "job"))
            wait_for_job(session, job_id)
            meta = session.get_job_meta(job_id)
    assert (kits["party0"] / "stolen.txt").read_text() == "42"
    assert not (kits["party1"] / "stolen.txt").exists()
    assert "BYOC not permitted" in str(meta)
    assert (kits["party0"] / "of-party2.txt").read_text() == "42"
    said = (kits["party0"] / "of-party1.txt").read_text()
    assert "is not a supported shell command" in said


def prepare_kits(base: Path, flare: Federation, run: str, job: Job) -> Path:
    """Give every site a config of a run; return the job."""
    base.mkdir()
    sides = base / "sides"
    localhost.write_folders(job, job.problem(0), [0], sides, 1, 3)
    for name in ("server", *SITES):
        path = config_of(base, name)
        values = yaml.safe_load(path.read_text()) | {"wait": 20.0}
        path.write_text(yaml.safe_dump(values))
        nvflare.install(path, flare.kits[name], run, name)
    config = read(ServerConfig, config_of(base, "server"))
    nvflare.write_job(config, run, base / "job")
    return base / "job"


# ------------------------------------------------------------------- the command line


def test_the_commands_write_a_job_and_a_sites_config(tmp_path, run_cli):
    (tmp_path / "server.yaml").write_text("parties: [clinic, bank]\nout: churn\n")
    (tmp_path / "party.yaml").write_text("data: own.csv\n")
    (tmp_path / "kit" / "local").mkdir(parents=True)
    of_server = ("--config", tmp_path / "server.yaml")
    done = run_cli("nvflare", "job", *of_server, "--out", tmp_path / "job")
    assert done.code == 0
    assert "a job of run 'churn' for clinic, bank" in done.out + done.err
    assert json.loads((tmp_path / "job" / "meta.json").read_text())["name"] == "churn"
    of_site = ("--config", tmp_path / "party.yaml", "--workspace", tmp_path / "kit")
    done = run_cli("nvflare", "site", *of_site, "--site", "clinic", "--name", "churn")
    assert done.code == 0
    assert (tmp_path / "kit" / "local" / "lessvfl" / "churn" / "clinic.yaml").is_file()
    again = run_cli("nvflare", "job", *of_server, "--out", tmp_path / "job")
    assert again.code == 2
    assert "must be new" in again.err


def test_without_flare_the_commands_say_what_to_install(tmp_path, run_cli, monkeypatch):
    (tmp_path / "server.yaml").write_text("parties: [clinic]\n")
    monkeypatch.delitem(sys.modules, "lessvfl.remote.nvflare")
    monkeypatch.setitem(sys.modules, "nvflare.apis.controller_spec", None)
    where = ("--config", tmp_path / "server.yaml", "--out", tmp_path / "job")
    done = run_cli("nvflare", "job", *where)
    assert done.code == 2
    assert "pip install 'lessvfl[nvflare]'" in done.err
