"""Faults and attacks: who hears what, who waits how long, and how a run ends."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import resource
import signal
import threading
import time
import urllib.request
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pyarrow import flight as arrow
from tests.conftest import decode, until
from tests.remote.test_remote import (
    HELD,
    a_dataset,
    a_hub,
    a_party,
    a_status,
    a_table,
    compare,
    labels,
    own_settings,
    party_config,
    run_all,
    server_config,
    simulated,
    start,
    told,
    written,
)

from lessvfl.errors import (
    AlignmentError,
    ConfigError,
    DataError,
    PartyLostError,
    PolicyError,
    ProtocolError,
)
from lessvfl.remote import certificates
from lessvfl.remote.localhost import free_port
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.server import ServerProcess
from lessvfl.run.record import RunRecord
from lessvfl.wire import codec, connection, dial, flight
from lessvfl.wire import hub as hub_module
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.control import Agreed, Busy, Farewell, Finish, Hello, Refusal
from lessvfl.wire.due import ANYTHING_SMALL
from lessvfl.wire.line import HubRules
from lessvfl.wire.messages import Block, Descend

pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")


class Simple(threading.Thread):
    """A party that answers with one function, and how it ended."""

    def __init__(self, hub, name, handle=lambda message: Agreed(), **more):
        super().__init__(daemon=True)
        self.address = flight.Address(f"127.0.0.1:{hub.port}", None)
        self.hello = Hello(name, 1, "cpu", {})
        self.handle, self.more = handle, {"patience": 5.0} | more
        self.error: BaseException | None = None
        self.start()

    def run(self):
        try:
            dial.serve(self.address, self.hello, self.handle, **self.more)
        except BaseException as error:
            self.error = error


@contextlib.contextmanager
def a_raw_party(hub, name="clinic", hello=None):
    """Connect without the rules of a party; give what writes and reads frames."""
    client = arrow.connect(f"grpc+tcp://127.0.0.1:{hub.port}")
    to = arrow.FlightDescriptor.for_command(flight.COMMAND)
    writer, reader = client.do_exchange(to)
    greeting = WireFrame(hello or Hello(name, 1, "cpu", {}), 0)
    stream = flight.FlightStream(reader, writer, client)
    stream.write(codec.encode(greeting))
    yield stream.write, stream.read
    stream.close()


class InThread(threading.Thread):
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.error = call, None
        self.start()

    def run(self):
        try:
            self.call()
        except BaseException as error:
            self.error = error


def ask(hub):
    return InThread(lambda: hub.send({"clinic": Finish("0" * 64)}))


# ----------------------------------------------------------------------- who hears what


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DataError("Column 'income', row 17, holds 'Mrs Miller'."), "data"),
        (ZeroDivisionError("'income' of Mrs Miller, row 17"), "error"),
        (OSError(errno.ENOSPC, "No space left", "/home/income/17"), "error"),
    ],
)
def test_what_an_error_names_stays_at_home(tmp_path, error, kind):
    class Stops(PartyProcess):
        def handle(self, message):
            if isinstance(message, Descend):
                raise error
            return super().handle(message)

    config = party_config("clinic", tmp_path)
    with a_hub() as hub:
        clinic = Stops("clinic", config, a_table("clinic"))
        mine, other = start(hub, clinic, a_party("bank", tmp_path))
        status = a_status()
        server = ServerProcess(server_config(tmp_path), labels(), hub, status)
        with pytest.raises(ProtocolError, match=rf"'clinic' stops \({kind}\)") as seen:
            server.run()
        status.ended(str(seen.value))
        hub.close(seen.value)
        mine.join(10)
        other.join(10)
    assert mine.error is error
    heard = "The server says no (protocol): Another party has stopped the run."
    assert str(other.error) == heard
    at_server = str(seen.value) + json.dumps(status.snapshot())
    for secret in ("income", "Miller", "row 17", "/17"):
        assert secret not in at_server


def test_who_came_before_the_rules_stays_only_if_they_admit_it():
    """A port is open while a server still reads its table."""
    came: list[str] = []
    refused: list[tuple[str, str]] = []
    with a_hub() as hub:
        mine, other = Simple(hub, "clinic"), Simple(hub, "bank")
        until(lambda: len(hub.connected) == 2)
        admit = {"clinic": "Torch must be that of the server.", "bank": None}
        hub.follow(
            HubRules(
                admit=lambda hello: admit[hello.party],
                came=came.append,
                refused=lambda who, why: refused.append((who, why)),
            )
        )
        mine.join(20)
        assert str(mine.error).endswith("Torch must be that of the server.")
        assert came == ["bank"]
        assert refused == [("clinic", "Torch must be that of the server.")]
        assert other.is_alive()


def test_a_policy_is_told_to_the_server_and_no_other_party():
    def refuse(message):
        raise PolicyError("At most 3 exchanges are allowed. Got one more.")

    with a_hub() as hub:
        Simple(hub, "clinic", refuse)
        other = Simple(hub, "bank")
        hub.wait(5)
        with pytest.raises(ProtocolError, match=r"\(policy\): At most 3") as seen:
            hub.send({"clinic": Finish("0" * 64)})
        hub.close(seen.value)
        other.join(5)
        heard = "The server says no (protocol): Another party has stopped the run."
        assert str(other.error) == heard


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (AlignmentError("Party 'clinic' has 120 of 150 rows."), "(alignment): The"),
        (PartyLostError(["clinic"], "gone"), "(lost): A party stays away."),
        (OSError(errno.ENOSPC, "No space left", "/labels/of/17"), "(error): Something"),
        (KeyboardInterrupt(), "(interrupted): That side was interrupted."),
    ],
)
def test_an_error_of_the_server_names_nobody_to_a_party(error, heard):
    with a_hub() as hub:
        sides = [Simple(hub, name) for name in HELD]
        hub.wait(5)
        hub.close(error)
        for side in sides:
            side.join(5)
            assert isinstance(side.error, ConfigError)
            assert str(side.error).startswith(f"The server says no {heard}")
            for secret in (*HELD, "120", "150", "labels"):
                assert secret not in str(side.error)


def test_a_text_from_the_wire_is_made_printable_and_cut():
    refusal = Refusal("data", "\x1b[2J\nno" + "x" * 4000)
    with a_hub() as hub, a_raw_party(hub) as (say, listen):
        until(lambda: hub.connected)
        asked = ask(hub)
        frame = decode(listen())
        say(codec.encode(WireFrame(refusal, frame.number, frame.run)))
        asked.join(5)
        text = str(asked.error)
        assert text.isprintable()
        assert 1900 < len(text) < 2100


def test_a_stranger_is_told_no_names():
    with a_hub() as hub, a_raw_party(hub, "stranger") as (_, listen):
        data = bytes(listen())
        refusal = decode(data).message
        assert refusal == Refusal("config", "The server does not expect 'stranger'.")
        assert not any(name.encode() in data for name in HELD)


def test_a_greeting_tells_no_number_of_rows(tmp_path):
    hello = a_party("clinic", tmp_path, slice(0, 137)).hello()
    assert 137 not in dataclasses.asdict(hello).values()
    assert {f.name for f in dataclasses.fields(Hello)} == {
        "party",
        "threads",
        "device",
        "versions",
    }


def test_a_name_of_no_form_of_ours_is_refused_and_ends_nothing(tmp_path):
    """A CA may sign what it likes."""

    def no_name(peer):
        raise ConfigError("A party's name must be letters. Got '%'.")

    certificates.init(tmp_path, ["clinic"])
    own, server = (
        flight.Credentials(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
        for folder in (tmp_path / "clinic", tmp_path / "server")
    )
    hub = flight.FlightHub("127.0.0.1:0", ["clinic"], server, name_of=no_name)
    address = flight.Address(f"127.0.0.1:{hub.port}", own)
    hello = Hello("clinic", 1, "cpu", {})
    with pytest.raises(ConfigError, match=r"\(protocol\): A party's name must be"):
        dial.serve(address, hello, lambda message: Agreed(), patience=20)
    with pytest.raises(PartyLostError):  # nothing else
        hub.wait(0.1)
    assert hub.close()


# ------------------------------------------------------------------------------ the end


def test_a_farewell_before_the_end_is_an_error(tmp_path):
    with a_hub() as hub:
        (side,) = start(hub, a_party("clinic", tmp_path))
        until(lambda: hub.connected)
        hub.close()
        side.join(10)
    assert isinstance(side.error, ProtocolError)
    assert "Got its farewell before" in str(side.error)


@pytest.mark.parametrize("is_over", [True, False])
def test_who_dials_after_the_end_hears_how_it_was(is_over):
    with a_hub() as hub:
        hub._closing = Farewell()
        late = Simple(hub, "clinic", is_over=lambda: is_over)
        late.join(10)
        assert (late.error is None) == is_over
        assert is_over or isinstance(late.error, ProtocolError)
        hub._closing = Refusal.of(PartyLostError(["bank"], "gone"))
        late = Simple(hub, "clinic")
        late.join(10)
        assert "(lost): A party stays away." in str(late.error)


def fail(*args):
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("callback", ["carried", "came", "went", "refused", "admit"])
def test_an_error_in_a_thread_of_a_connection_ends_the_run(callback):
    """It is raised in the server's thread, at once, and no party hears what it says."""
    with a_hub() as hub:
        told: Any = {callback: fail}
        hub.rules = dataclasses.replace(hub.rules, **told)
        began = time.monotonic()
        ready = callback in ("carried", "went")
        sides = [Simple(hub, name) for name in (HELD if ready else ["clinic"])]
        if callback == "refused":
            until(lambda: hub.connected)  # who dials after the end finds nobody
            sides.append(Simple(hub, "stranger"))
        if callback == "went":
            hub.wait(10)
            hub.hang_up("bank")

        def talk():
            hub.wait(30)
            for _ in range(2):
                hub.send(dict.fromkeys(HELD, Finish("0" * 64)))

        with pytest.raises(OSError, match="Too many open files"):
            talk()
        hub.close(OSError())
        assert time.monotonic() - began < 20
        for side in sides[: 1 if callback == "went" else None]:
            side.join(10)
            assert "The server says no (error): Something" in str(side.error)


def test_closing_does_not_wait_for_who_does_not_listen():
    """A party that computes hears of the end when it is done."""
    go = threading.Event()

    def compute(message):
        assert go.wait(20)
        return Agreed()

    hub = flight.FlightHub("127.0.0.1:0", tuple(HELD), None, silence=20)
    slow, other = Simple(hub, "clinic", compute), Simple(hub, "bank")
    hub.wait(20)
    ask(hub)
    until(lambda: hub._lines["clinic"].requests.empty())
    began = time.monotonic()
    assert not hub.close(PartyLostError(["bank"], "gone"))
    assert time.monotonic() - began < 15  # `compute` waits longer
    other.join(10)
    assert "(lost)" in str(other.error)
    go.set()
    slow.join(10)
    assert "(lost): A party stays away." in str(slow.error)
    until(hub.close)


def test_who_owes_a_reply_hears_why_a_run_ends():
    with a_hub() as hub, a_raw_party(hub) as (_, listen):
        until(lambda: hub.connected)
        asked = ask(hub)
        listen()
        closing = InThread(lambda: hub.close(PartyLostError(["bank"], "gone")))
        assert decode(listen()).message == Refusal("lost", "A party stays away.")
    for thread in (asked, closing):
        thread.join(20)


class Slow:
    """A party that greets and then goes when told to, as a hub reads and writes it."""

    passed = None

    def __init__(self):
        self.written, self.writes = [], threading.Semaphore(0)
        self.may_write, self.may_go = threading.Event(), threading.Event()
        self._came = [codec.encode(WireFrame(Hello("clinic", 1, "cpu", {}), 0))]

    def read(self):
        if self._came:
            return memoryview(self._came.pop())
        assert self.may_go.wait(20)
        raise connection.GoneError("gone")

    def write(self, data):
        self.writes.release()
        assert self.may_write.wait(20)
        self.written.append(bytes(data))

    def expect(self, n_bytes):
        pass

    def end_soon(self):
        pass


@contextlib.contextmanager
def a_line(stream):
    """Have a hub carry a stream, whose party owes a reply; yield its line."""
    asked = WireFrame(Agreed(), 0)
    with a_hub() as hub:
        attending = InThread(lambda: hub.attend(stream, lambda: None))
        until(lambda: hub.connected)
        line = hub._lines["clinic"]
        stream.may_write.set()
        line.ask((asked, codec.encode(asked), ANYTHING_SMALL))
        assert stream.writes.acquire(timeout=20)
        until(lambda: stream.written)
        yield attending, line
        attending.join(20)
        assert attending.error is None


def test_nothing_is_written_to_a_stream_that_is_over():
    """Once, a farewell could be: what it was written with was freed by then."""
    stream = Slow()
    with a_line(stream) as (attending, line):
        stream.may_go.set()
        attending.join(20)
        line.last = b"farewell"
        line.say_last()
    assert b"farewell" not in stream.written


def test_a_stream_ends_after_what_is_being_written():
    """Once, its end freed what another thread wrote with, and the process aborted."""
    stream = Slow()
    with a_line(stream) as (attending, line):
        stream.may_write.clear()
        line.last = b"farewell"
        saying = InThread(line.say_last)
        assert stream.writes.acquire(timeout=20)
        stream.may_go.set()
        attending.join(0.3)
        assert attending.is_alive()
        stream.may_write.set()
        saying.join(20)
        assert saying.error is None
    assert stream.written[-1] == b"farewell"


def test_two_threads_may_close_at_once(monkeypatch):
    stops, stop = [], flight.FlightHub.stop

    def noted(hub):
        stops.append(hub)
        time.sleep(0.2)
        stop(hub)

    monkeypatch.setattr(flight.FlightHub, "stop", noted)
    start_thread = connection.start_thread

    def slowly(*what):
        time.sleep(0.2)
        return start_thread(*what)

    monkeypatch.setattr(hub_module, "start_thread", slowly)
    with a_hub() as hub:
        threads = [InThread(hub.close) for _ in range(2)]
        for thread in threads:
            thread.join(20)
            assert thread.error is None
    assert stops == [hub]


# ---------------------------------------------------------------------- signs of life


def test_quick_replies_cost_no_sign_of_life():
    def compute(message):
        time.sleep(0.03)
        return Agreed()

    beat = 0.1
    with a_hub() as hub:
        Simple(hub, "clinic", compute, beat=beat)
        until(lambda: hub.connected)
        beats = ("frames", "alive", "up")
        for _ in range(12):
            before, began = hub.bytes.by_part()[beats], time.monotonic()
            hub.send({"clinic": Finish("0" * 64)})
            if time.monotonic() - began < beat:  # else the machine is busy
                assert hub.bytes.by_part()[beats] == before


@pytest.mark.parametrize("change", ["number", "run", "flood"])
def test_false_signs_of_life_are_cut_off(change):
    refused = []
    with a_hub(rules=HubRules(refused=lambda *why: refused.append(why))) as hub:
        with a_raw_party(hub) as (say, listen):
            until(lambda: hub.connected)
            asked = ask(hub)
            frame = decode(listen())
            number, run = frame.number, frame.run
            if change == "number":
                number += 1
            if change == "run":
                run = bytes(15) + b"x"
            for _ in range(10 if change == "flood" else 1):
                say(codec.encode(WireFrame(Busy(), number, run)))
            asked.join(5)
            heard = []
            with contextlib.suppress(connection.GoneError):
                heard.append(decode(listen()).message)
        assert isinstance(asked.error, PartyLostError)
        ((who, why),) = refused
        assert who == "clinic"
        assert ("once a second" if change == "flood" else "or another run") in why
        # What ends a stream with frames that nobody read may overtake the last words.
        if change != "flood" or heard:
            assert heard == [Refusal("protocol", why, final=False)]
        assert hub.connected == ()


# ------------------------------------------------------------------------------ bounds


@pytest.mark.parametrize("value", [1e30, -1.1e6, float("nan"), float("-inf")])
def test_a_party_refuses_a_gradient_beyond_bounds(value):
    handled: list[Any] = []
    block = Block(torch.tensor([[0.0, value]]))
    with a_hub() as hub:
        side = Simple(hub, "clinic", handled.append)
        until(lambda: hub.connected)
        with pytest.raises(ProtocolError, match=r"'clinic' stops \(protocol\)"):
            hub.send({"clinic": Descend("train", block)})
        side.join(5)
    assert isinstance(side.error, ProtocolError)
    assert "not finite, or above 1e+06" in str(side.error)
    assert handled == []


# ------------------------------------------------------------------------- late, replay


def test_a_party_that_was_frozen_comes_back_and_nothing_changes(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(hub_module, "QUIET_SECONDS", 0.25)
    caplog.set_level("INFO", "lessvfl")

    class Freezes(PartyProcess):
        n_frozen = 0

        def handle(self, message):
            reply = super().handle(message)
            if (
                isinstance(message, Descend)
                and self.budget.counts["rounds"] > 6
                and not self.n_frozen
            ):
                self.n_frozen += 1
                until(lambda: "clinic" not in hub.connected)
            return reply

    config = party_config("clinic", tmp_path)
    with a_hub(silence=1.0) as hub:
        frozen = Freezes("clinic", config, a_table("clinic"))
        sides = start(hub, frozen, a_party("bank", tmp_path))
        server = ServerProcess(server_config(tmp_path), labels(), hub, a_status())
        record = server.run()
    for side in sides:
        side.join(10)
        assert side.error is None
    assert frozen.n_frozen == 1
    assert "no sign of life from clinic for 0 s; away after 1 s" in caplog.messages
    compare(record, written(tmp_path), simulated("less-vfl"))


def test_a_replayed_session_is_cut_off_with_a_reason(tmp_path, monkeypatch):
    """The frames of an earlier run, sent again by the same party in another."""
    recorded = []
    say = dial._Voice.say

    def record(self, message, number, run=bytes(16)):
        if isinstance(message, Agreed) or number:
            recorded.append(codec.encode(WireFrame(message, number, run)))
        say(self, message, number, run)

    with monkeypatch.context() as patch:
        patch.setattr(dial._Voice, "say", record)
        run_all(tmp_path / "first")
    assert len(recorded) > 20
    refused = []
    with a_hub() as hub:
        start(hub, a_party("bank", tmp_path / "second"))
        hello = a_party("clinic", tmp_path / "second").hello()
        config = server_config(tmp_path / "second", wait=1.0)
        server = ServerProcess(config, labels(), hub, a_status())
        hub.rules = dataclasses.replace(
            hub.rules, refused=lambda *why: refused.append(why)
        )
        with a_raw_party(hub, "clinic", hello) as (say_raw, listen):
            running = InThread(server.run)
            listen()
            say_raw(recorded[0])
            reason = decode(listen()).message
        running.join(10)
        assert isinstance(running.error, PartyLostError)
    assert ("clinic", reason.reason) in refused
    assert "another run" in reason.reason


# ----------------------------------------------------------------------- real processes


LONG = {"train_epochs": 60}
FAST = {"lessvfl.run.record.FILES_SECONDS": 0.5}  # a write is tried again


def write_files(folder, **more):
    """Write the config and table of a server and two parties."""
    dataset, port = a_dataset(), free_port()
    common = {"align": "none", "data": "table.npz", "wait": 120.0, "id": None}
    server = {
        "listen": f"127.0.0.1:{port}",
        "parties": list(HELD),
        "label": None,
        "method": "less-vfl",
        "settings": told(own_settings("less-vfl") | LONG),
        "out": "run",
        "save_every": 3,
        "silence": 2.0,
    }
    for name in ("server", *HELD):
        (folder / name).mkdir(parents=True)
    np.savez(folder / "server" / "table.npz", y=dataset.y)
    (folder / "server" / "server.yaml").write_text(
        yaml.safe_dump(common | server | more)
    )
    for name, columns in HELD.items():
        places = [dataset.X.names.index(column) for column in columns]
        X = dataset.X.numeric[:, places]
        np.savez(folder / name / "table.npz", X=X, feature_names=np.array(columns))
        own: dict[str, Any] = {"server": f"127.0.0.1:{port}", "name": name}
        policy = {"methods": ["less-vfl"], "components_per_column": 9}
        policy["limits"] = {"pretrain_epochs": None, "train_epochs": None}
        own |= {
            "out": "run",
            "scale": "none",
            "seed_private": "shared",
            "policy": policy,
        }
        (folder / name / "party.yaml").write_text(yaml.safe_dump(common | own))


class Processes:
    """The sides of a run as processes; those that are left are killed."""

    def __init__(self, folder, forks):
        self.folder, self.forks, self.started = folder, forks, {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.started.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, name, *limits, changed=MappingProxyType({})):
        """Start one side, with limits of the system on it."""
        command = "server" if name == "server" else "party"
        config = self.folder / name / f"{command}.yaml"
        line = [command, "--insecure", "--config", config]
        self.started[name] = self.forks.start(*line, limits=limits, changed=changed)

    def end(self, name, seconds=300):
        """Wait for the end; return code and the one sentence."""
        out, err = self.started[name].communicate(timeout=seconds)
        lines = [line for line in err.splitlines() if line.startswith("lessvfl:")]
        said = [line for line in lines if not line.startswith("lessvfl: warning:")]
        assert "Traceback" not in out + err, err
        return self.started[name].returncode, (said or [""])[-1]

    def signal(self, name, number):
        self.started[name].send_signal(number)


def has_begun(folder):
    return any((folder / "server" / "run").glob("seed-0/checkpoint.safetensors"))


def started(tmp_path, forks, **more):
    """Start all three."""
    write_files(tmp_path, **more)
    sides = Processes(tmp_path, forks)
    for name in (*HELD, "server"):
        sides.start(name, changed=FAST)
    return sides


def begun(tmp_path, forks, **more):
    """Start all three, and wait for the first checkpoint."""
    sides = started(tmp_path, forks, **more)
    try:
        until(lambda: has_begun(tmp_path), 120)
    except BaseException:
        sides.__exit__()
        raise
    return sides


def test_a_frozen_party_ends_no_server_and_keeps_none(tmp_path, forks):
    """The others hear of it after silence and wait; the server exits at once."""
    with begun(tmp_path, forks, wait=3.0, silence=1.0) as sides:
        sides.signal("clinic", signal.SIGSTOP)
        code, said = sides.end("server")
        assert code == 2
        assert "'clinic' is missing" in said
        code, said = sides.end("bank")
        assert (code, said) == (
            2,
            "lessvfl: The server says no (lost): A party stays away.",
        )
        sides.signal("clinic", signal.SIGKILL)


def test_interrupting_a_server_ends_it_and_its_parties(tmp_path, forks):
    with begun(tmp_path, forks) as sides:
        sides.signal("bank", signal.SIGSTOP)
        sides.signal("server", signal.SIGINT)
        assert sides.end("server") == (130, "lessvfl: interrupted")
        code, said = sides.end("clinic")
        assert code == 2
        assert "(interrupted): That side was interrupted." in said
        sides.signal("bank", signal.SIGKILL)


def test_a_run_folder_that_cannot_be_made_is_said_at_the_start(tmp_path, forks):
    write_files(tmp_path, out="table.npz/run")
    with Processes(tmp_path, forks) as sides:
        sides.start("server")
        code, said = sides.end("server")
        assert code == 2
        assert "cannot be read or written" in said


@pytest.mark.parametrize("victim", ["server", "clinic"])
def test_a_full_disk_ends_the_run_for_all(tmp_path, forks, victim):
    write_files(tmp_path)
    with Processes(tmp_path, forks) as sides:
        for name in ("server", *HELD):
            full = [(resource.RLIMIT_FSIZE, 3000)] if name == victim else []
            sides.start(name, *full)
        code, said = sides.end(victim)
        assert code == 2
        assert "cannot be read or written" in said or "disk I/O error" in said
        for name in {"server", *HELD} - {victim}:
            code, said = sides.end(name)
            assert code == 2
            assert said
            assert str(tmp_path) not in said


def test_too_many_open_files_end_the_run_for_all(tmp_path, forks):
    with begun(tmp_path, forks) as sides:
        resource.prlimit(sides.started["server"].pid, resource.RLIMIT_NOFILE, (3, 3))
        code, said = sides.end("server")
        assert code == 2
        assert "Too many open files" in said
        for name in HELD:
            code, said = sides.end(name)
            assert code == 2
            assert "The server says no" in said


def test_the_status_page_shows_the_result_after_the_end(tmp_path, forks):
    port = free_port()
    own = told(own_settings("less-vfl"))
    where = f"127.0.0.1:{port}"
    with started(tmp_path, forks, status=where, settings=own) as sides:
        for name in HELD:
            assert sides.end(name) == (0, "")
        page = tmp_path / "server" / "run" / "report.html"
        until(page.is_file, 60)
        seen: dict[str, Any] = {}

        def is_done():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json") as told:
                seen.update(json.load(told))
            return seen["state"] == "done"

        until(is_done, 30)
        sides.signal("server", signal.SIGINT)
        assert sides.end("server") == (0, "")
    (numbers,) = RunRecord.read(tmp_path / "server" / "run").runs
    final = numbers["accuracy"]["final"]
    assert seen["scores"] == [{"seed": 0, "name": "accuracy", "value": final}]
