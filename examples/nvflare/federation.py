"""A FLARE system on this machine: a server, sites and admins, with FLARE's own PKI.

Everything is in one folder, listens on loopback alone and is ended by its process id.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from nvflare.fuel.flare_api.flare_api import new_secure_session

from lessvfl.remote import localhost

ADMIN = "admin@lessvfl.example"
LEAD = "lead@elsewhere.example"  # who may submit jobs, of another organisation
HOST = "localhost"  # the name in the server's certificate
BUILDERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("workspace.WorkspaceBuilder", {"template_file": ["master_template.yml"]}),
    ("static_file.StaticFileBuilder", {"config_folder": "config"}),
    ("cert.CertBuilder", {}),
    ("signature.SignatureBuilder", {}),
)


class Federation:
    """Server and sites as processes, each with its startup kit."""

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        self.folder, self.sites = folder, tuple(sites)
        self.kits: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def provision(self) -> None:
        """Have FLARE make keys, certificates and startup kits for everybody."""
        org = {"org": "lessvfl"}
        port = localhost.free_port()
        server = {"name": HOST, "type": "server", "fed_learn_port": port, **org}
        admin = {"name": ADMIN, "type": "admin", "role": "project_admin", **org}
        lead = {"name": LEAD, "type": "admin", "role": "lead", "org": "elsewhere"}
        clients = [{"name": name, "type": "client", **org} for name in self.sites]
        project = {
            "api_version": 3,
            "name": "lessvfl",
            "description": "server, sites and admins on one machine",
            "participants": [server, *clients, admin, lead],
            "builders": [
                {"path": f"nvflare.lighter.impl.{path}", "args": arguments}
                for path, arguments in BUILDERS
            ],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "project.yml"
        path.write_text(yaml.safe_dump(project), encoding="utf-8")
        subprocess.run(
            [
                *(sys.executable, "-m", "nvflare.cli", "provision"),
                *("-p", str(path), "-w", str(self.folder / "kits"), "--force"),
            ],
            check=True,
            timeout=120,
            stdout=subprocess.DEVNULL,
        )
        made = self.folder / "kits" / "lessvfl" / "prod_00"
        self.kits = {name: made / name for name in (*self.sites, ADMIN, LEAD)}
        self.kits["server"] = made / HOST
        # By default all FLARE servers of a machine keep their jobs in one folder.
        resources = made / HOST / "local" / "resources.json.default"
        text = resources.read_text(encoding="utf-8")
        text = text.replace("/tmp/nvflare", str(self.folder / "store"))
        resources.write_text(text, encoding="utf-8")

    def start(self, name: str) -> None:
        """Start the server or a site, as FLARE's own script does."""
        kit = self.kits[name]
        paths = (str(Path(sys.executable).parent), os.environ.get("PATH", ""))
        with open(kit / "console.txt", "ab") as log:
            self.processes[name] = subprocess.Popen(
                ["bash", str(kit / "startup" / "sub_start.sh"), "--once"],
                stdout=log,
                stderr=log,
                env=os.environ
                | {"PATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            )

    def kill(self, name: str) -> None:
        """End the server or a site and the processes of its jobs, without warning."""
        jobs = self.job_processes(name)
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        for pid in jobs:
            kill_process(pid)

    def job_processes(self, name: str) -> list[int]:
        """Return the processes of a site's jobs: the children of the site's own."""
        parent = self.processes[name].pid
        found = []
        for thread in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended
                found += [int(pid) for pid in thread.read_text().split()]
        return found

    @contextlib.contextmanager
    def session(self, who: str = ADMIN) -> Iterator[Any]:
        """Log in as the admin, or as somebody else who may submit jobs."""
        last = time.monotonic() + 120
        while True:
            try:
                session = new_secure_session(who, str(self.kits[who]))
                break
            except Exception:
                if time.monotonic() > last:
                    raise
                time.sleep(1)
        try:
            yield session
        finally:
            session.close()

    def wait_for_sites(self, session: Any, seconds: float = 120.0) -> None:
        """Wait until every site is connected."""
        end = time.monotonic() + seconds
        while True:
            here = {client.name for client in session.get_system_info().client_info}
            if here >= set(self.sites):
                return
            if time.monotonic() > end:
                raise TimeoutError(f"no connection of {set(self.sites) - here}")
            time.sleep(1)

    def close(self) -> None:
        """End everything that was started here."""
        for name in list(self.processes):
            self.kill(name)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kill_process(pid: int) -> None:
    """End one process without warning."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_for_job(session: Any, job_id: str, seconds: float = 600.0) -> str:
    """Wait for the end of a job; return its status."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status = str(session.get_job_meta(job_id).get("status"))
        if status.startswith(("FINISHED", "FAILED", "ABANDONED")):
            return status
        time.sleep(1)
    raise TimeoutError(f"job {job_id} does not end")
