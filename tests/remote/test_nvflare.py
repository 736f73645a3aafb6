"""A run as a job of FLARE: what the job holds, and what each side does with it."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("nvflare")

from examples.nvflare.federation import Federation, kill_process, wait_for_job
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from tests.conformance.networks import Cell, Cells
from tests.remote.test_remote import a_dataset

from lessvfl import __version__, report
from lessvfl.errors import ConfigError
from lessvfl.remote import certificates, localhost, nvflare, server
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
    localhost.write_folders(job, job.problem(0), [0], sides, port, 1, 3)
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
        for name in ("wire_bytes", "resent_bytes"):
            one["communication"].pop(name, None)
    assert numbers == alone


# --------------------------------------------------------------------------- the run


def test_a_job_runs_to_the_end_and_gives_the_same_bits(tmp_path, built):
    job = prepare(tmp_path)
    system = System(tmp_path)
    assert system.run() is None
    assert set(system.codes.values()) == {ReturnCode.OK}
    check(tmp_path, job)
    assert {path.parent.name for path in built} == {"server", *SITES}


def test_a_job_of_a_run_that_is_over_ends_well(tmp_path):
    job = prepare(tmp_path)
    for _ in range(2):
        system = System(tmp_path)
        assert system.run() is None
        assert set(system.codes.values()) == {ReturnCode.OK}
    check(tmp_path, job)


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
    assert said == "A task must name the server of its own job. Got another cell."
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
        (("server",), RUN, "must not be 'server'"),
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
            nvflare.keep_logs(flare.kits[name] / "local")
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
                    wait_for_file(base / "sides" / "server" / "run" / CHECKPOINT)
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


def prepare_kits(base: Path, flare: Federation, run: str, job: Job) -> Path:
    """Give every site a config of a run; return the job."""
    base.mkdir()
    sides = base / "sides"
    localhost.write_folders(job, job.problem(0), [0], sides, 1, 1, 3)
    for name in ("server", *SITES):
        path = config_of(base, name)
        values = yaml.safe_load(path.read_text()) | {"wait": 20.0}
        path.write_text(yaml.safe_dump(values))
        nvflare.install(path, flare.kits[name], run, name)
    config = read(ServerConfig, config_of(base, "server"))
    nvflare.write_job(config, run, base / "job")
    return base / "job"


def wait_for_file(path: Path, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.01)


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
