"""The command as people and scripts use it: real processes, real ports, real files."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from tests import commands
from tests.unit.server.certificates import self_signed, signed

from .processes import Node, answers, command, environment, is_alive, mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.system

APP = """
import os, time
from mainspring import App

app = App()
other = App()

@app.task
def add(a: int, b: int = 0) -> int:
    return a + b

@app.task
def fail() -> None:
    raise ValueError("no good")

@app.task
def wait_for(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.01)
    return "there"

@app.task
def raw(payload: bytes) -> bytes:
    return payload[::-1]

@app.task
def both() -> int:
    return add.submit(1, 2).result(timeout=20)

@app.task(executor="process")
def parent() -> int:
    return os.getppid()
"""

JOB_KEYS = [
    "handle", "function", "unique", "state", "priority", "attempt", "created_at", "started_at", "ended_at", "error",
]  # fmt: skip


class Call:
    """Runs commands against a node, in its directory."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node = node
        self._directory = directory

    def __call__(self, *arguments: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:  # noqa: A002
        return mainspring(*arguments, cwd=self._directory, input=input, MAINSPRING_SERVER=self.node.address)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Node]:
    with node("serve", "--gearman", "127.0.0.1:0", "--store", "sqlite:///jobs.db", cwd=tmp_path) as running:
        yield running


@pytest.fixture
def call(tmp_path: Path, server: Node) -> Call:
    return Call(server, tmp_path)


@pytest.fixture
def run(tmp_path: Path, app: Path) -> Iterator[Call]:
    """Run a node and wait for its workers of the app; return a caller of commands."""
    with node("run", str(app), "--gearman", "127.0.0.1:0", "--store", "memory://", cwd=tmp_path) as running:
        running.await_functions("add", "both")
        yield Call(running, tmp_path)


# A job's life from the command line.


def test_submit_waits_and_writes_the_raw_result(run: Call) -> None:
    done = run("submit", "add", "[1, 2]")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"3", b"")
    assert run("submit", "add", '{"a": 5}').stdout == b"5"
    assert run("submit", "raw", "-", input=b"a\0\xffb\n").stdout == b"\nb\xff\0a"
    assert run("submit", "raw", "--", "--ab").stdout == b"ba--"
    assert run("submit", "both").stdout == b"3"


def test_submit_prints_json_for_programs(run: Call) -> None:
    done = run("submit", "add", "[1, 2]", "--json")
    handle = json.loads(done.stdout)["handle"]
    ended = {"handle": handle, "state": "succeeded", "attempt": 1, "result": 3, "encoding": "json"}
    expected = ended | {"error": None, "traceback": None}
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, expected | {"joined": False}, b"")
    assert json.loads(run("jobs", "result", handle, "--json").stdout) == expected

    failed = run("submit", "fail", "--json")
    result = json.loads(failed.stdout)
    assert (failed.returncode, result["state"], result["error"]) == (1, "failed", "ValueError: no good")
    assert result["traceback"].startswith("Traceback")
    assert failed.stderr.endswith(b"failed at attempt 1: ValueError: no good\n")

    late = run("submit", "nobody", "--json", "--unique", "u", "--timeout", "200ms")
    expected = {"handle": json.loads(late.stdout)["handle"], "joined": True}
    assert (late.returncode, json.loads(late.stdout)["state"]) == (5, None)
    assert json.loads(run("submit", "nobody", "--json", "--unique", "u", "--background").stdout) == expected


def test_submit_exits_with_1_and_one_line_for_a_failed_job(run: Call) -> None:
    done = run("submit", "fail")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().endswith("failed at attempt 1: ValueError: no good\n")
    assert done.stderr.count(b"\n") == 1
    (job,) = json.loads(run("jobs", "list", "--state", "failed", "--json").stdout)
    assert "ValueError" in json.dumps(job["error"])


def test_submit_exits_with_5_if_the_job_outlasts_the_wait(run: Call, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    late = run("submit", "wait_for", json.dumps([str(gate)]), "--timeout", "200ms", "--unique", "gate")
    assert (late.returncode, late.stdout) == (5, b"")
    handle = late.stderr.decode().split("mainspring jobs result ")[1].split()[0]
    gate.touch()
    done = run("jobs", "result", handle, "--timeout", "20s")
    assert (done.returncode, done.stdout) == (0, b'"there"')


def test_a_misspelt_function_is_reported(run: Call) -> None:
    done = run("submit", "addd", "[1]", "--timeout", "3s")
    assert done.returncode == 5
    hint, ended = done.stderr.decode().splitlines()
    assert hint == "mainspring: no worker has registered addd; the job waits; did you mean 'add'?"
    assert "has not ended within 3s" in ended
    (listed,) = [one for one in json.loads(run("functions", "list", "--json").stdout) if one["function"] == "addd"]
    assert (listed["waiting"], listed["workers"], listed["registered"]) == (1, 0, False)
    assert run("functions", "pause", "rav").returncode == 4
    assert run("functions", "pause", "rav", "--create").returncode == 0


def test_background_prints_the_handle(call: Call) -> None:
    done = call("submit", "nobody", "x", "--background", "--priority", "high", "--unique", "u1")
    assert done.returncode == 0
    handle = done.stdout.decode().strip()
    assert handle.startswith("H:")
    assert call("submit", "nobody", "--background", "--unique", "u1").stdout == done.stdout

    job = json.loads(call("jobs", "show", handle, "--json").stdout)
    assert list(job)[: len(JOB_KEYS)] == JOB_KEYS
    assert (job["function"], job["unique"], job["state"], job["priority"]) == ("nobody", "u1", "pending", "high")
    assert datetime.fromisoformat(job["created_at"]).utcoffset() == timedelta(0)
    assert job["started_at"] is None
    assert job["attempts"] == []
    assert call("jobs", "show", handle, "--arguments").stdout.decode().endswith("\narguments: x\n")

    listed = json.loads(call("jobs", "list", "--json").stdout)
    assert [entry["handle"] for entry in listed] == [handle]
    assert list(listed[0]) == [*JOB_KEYS, "overdue_since", "awaits_until"]
    lines = call("jobs", "list").stdout.decode().splitlines()
    assert lines[0].split("\t") == JOB_KEYS
    assert lines[1].split("\t")[:2] == [handle, "nobody"]
    assert call("jobs", "show", handle).stdout.decode().splitlines()[0].split() == ["handle:", handle]


def test_a_job_is_cancelled_and_retried(call: Call) -> None:
    handle = call("submit", "nobody", '{"a": 1}', "--background").stdout.decode().strip()
    assert json.loads(call("jobs", "show", handle, "--arguments", "--json").stdout)["arguments"]["value"] == {"a": 1}
    assert call("jobs", "cancel", handle).stdout.decode() == f"{handle}\tcancelled\n"
    assert call("jobs", "result", handle).returncode == 1
    assert json.loads(call("jobs", "retry", handle, "--json").stdout)["state"] == "pending"
    conflict = call("jobs", "retry", handle)
    assert conflict.returncode == 1
    assert conflict.stderr.count(b"\n") == 1


@pytest.mark.parametrize("command", ["show", "cancel", "retry", "watch", "result"])
def test_an_unknown_handle_exits_with_4(call: Call, command: str) -> None:
    done = call("jobs", command, "H:nowhere:12345", *(("--timeout", "5s") if command == "result" else ()))
    assert (done.returncode, done.stdout) == (4, b"")
    assert b"H:nowhere:12345" in done.stderr or b"handle" in done.stderr


def test_delayed_jobs_are_scheduled(call: Call) -> None:
    for option, value in (("--in", "1h"), ("--at", "2100-01-01T00:00:00Z")):
        handle = call("submit", "nobody", "--background", option, value).stdout.decode().strip()
        assert json.loads(call("jobs", "show", handle, "--json").stdout)["state"] == "scheduled"


def test_watch_prints_one_object_a_line(call: Call, server: Node, tmp_path: Path) -> None:
    with commands.start(
        command("jobs", "watch", "--json", "--server", server.address),
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    ) as watcher:
        try:
            # The watcher's connection and that of the status command.
            eventually(lambda: json.loads(call("status", "--json").stdout)["connections"] == 2, "the watcher connects")
            assert watcher.stdout is not None
            handle = call("submit", "nobody", "--background").stdout.decode().strip()
            event = json.loads(watcher.stdout.readline())
            assert (event["handle"], event["state"]) == (handle, "pending")
            call("jobs", "cancel", handle)
            assert json.loads(watcher.stdout.readline())["state"] == "cancelled"
        finally:
            watcher.send_signal(signal.SIGINT)
        assert watcher.wait(30) == 0


def test_an_interrupted_submit_names_the_job(call: Call, server: Node, tmp_path: Path) -> None:
    with commands.start(
        command("submit", "nobody", "--server", server.address),
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    ) as submitting:
        try:
            assert submitting.stderr is not None
            assert b"no worker has registered nobody" in submitting.stderr.readline(), "it waits for the job"
            (job,) = json.loads(call("jobs", "list", "--json").stdout)
            submitting.send_signal(signal.SIGINT)
            _, error = submitting.communicate(timeout=30)
        finally:
            submitting.kill()
    assert submitting.returncode == 130
    assert f"job {job['handle']} has not ended; it continues" in error.decode()


def test_status_describes_the_node(call: Call, server: Node) -> None:
    status = json.loads(call("status", "--json").stdout)
    assert status["store"].endswith("/jobs.db")
    assert status["pid"] == server.process.pid
    assert "name:" in call("status").stdout.decode()


def test_a_node_alone_on_its_store_is_the_only_one_listed(call: Call, server: Node) -> None:
    (row,) = json.loads(call("nodes", "list", "--json").stdout)
    assert json.loads(call("nodes", "show", row["name"], "--json").stdout) == row
    assert (row["term"], row["state"], row["address"]) == (1, "live", server.address)
    assert abs(datetime.fromisoformat(row["started_at"]).timestamp() - time.time()) < 120
    assert call("nodes", "drain", row["name"]).returncode == 1


def test_a_node_has_the_slots_of_its_workers(tmp_path: Path, app: Path) -> None:
    options = ("--processes", "2", "--concurrency", "3", "--gearman", "127.0.0.1:0", "--store", "memory://")
    with node("run", str(app), *options, cwd=tmp_path) as running:
        call = Call(running, tmp_path)

        def row() -> dict[str, object]:
            (only,) = json.loads(call("nodes", "list", "--json").stdout)
            return dict(only)

        eventually(lambda: row()["slots"] == 6, "both processes are there")
        # short jobs: the workers prefetch more of them
        program = f"from {app.stem} import add\nfor _ in range(20): add.submit(1).result(30)"
        variables = environment(MAINSPRING_SERVER=running.address)
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=variables, check=True, timeout=60)
        assert row()["slots"] == 6
        head, line = (text.split("\t") for text in call("nodes", "list").stdout.decode().splitlines())
        assert dict(zip(head, line, strict=True))["slots"] == "6"


# Nodes, and how they end.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_stop_a_node(tmp_path: Path, number: signal.Signals) -> None:
    with node("serve", "--gearman", "127.0.0.1:0", "--store", "memory://", cwd=tmp_path) as running:
        running.signal(number)
        assert running.wait() == 0


def test_jobs_survive_a_restart(tmp_path: Path, server: Node, call: Call) -> None:
    handle = call("submit", "nobody", "x", "--background").stdout.decode().strip()
    assert server.stop() == 0
    with node("serve", "--gearman", "127.0.0.1:0", "--store", "sqlite:///jobs.db", cwd=tmp_path) as restarted:
        shown = mainspring("jobs", "show", handle, "--json", "--server", restarted.address, cwd=tmp_path)
        assert json.loads(shown.stdout)["state"] == "pending"


def test_a_node_writes_its_pid_file_and_reopens_its_log(tmp_path: Path) -> None:
    options = ("--pid-file", "node.pid", "--log-file", "node.log")
    with node("serve", "--gearman", "127.0.0.1:0", "--store", "memory://", *options, cwd=tmp_path) as running:
        assert int((tmp_path / "node.pid").read_text()) == running.process.pid
        (tmp_path / "node.log").rename(tmp_path / "node.log.1")
        running.signal(signal.SIGHUP)
        assert running.stop() == 0
        assert (tmp_path / "node.log").exists()
        assert not (tmp_path / "node.pid").exists()


def test_a_node_runs_in_the_background(tmp_path: Path) -> None:
    started = mainspring(
        *("serve", "--daemon", "--gearman", "127.0.0.1:0", "--store", "memory://", "--pid-file", "node.pid"),
        cwd=tmp_path,
    )
    assert started.returncode == 0
    pid = int((tmp_path / "node.pid").read_text())
    try:
        address = started.stdout.decode().split()[2]
        assert mainspring("status", "--server", address, cwd=tmp_path).returncode == 0
    finally:
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not is_alive(pid), "the node ends")
    assert not (tmp_path / "node.pid").exists()


def test_a_node_serves_monitoring_pages(tmp_path: Path) -> None:
    options = ("--gearman", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", "memory://")
    with node("serve", *options, cwd=tmp_path, faces=("gearman", "http")) as running:
        assert _get(running.ports["http"], "/healthz") == (200, b"ok\n")
        assert _get(running.ports["http"], "/readyz") == (200, b"ready\n")
        status, page = _get(running.ports["http"], "/metrics")
        assert status == 200
        assert b"\nmainspring_" in page


def test_workers_end_with_their_node(run: Call) -> None:
    worker = int(run("submit", "parent").stdout)
    run.node.process.kill()
    run.node.wait()
    eventually(lambda: not is_alive(worker), "the worker ends")


def test_run_without_a_port_still_has_workers(tmp_path: Path, app: Path) -> None:
    with node("run", str(app), "--gearman", "none", "--store", "memory://", cwd=tmp_path, faces=()) as running:
        eventually(lambda: "connected" in running.log.read_text(), "the worker connects")
        assert running.stop() == 0
        assert running.process.stdout is not None
        assert running.process.stdout.read() == b""


def test_a_file_that_cannot_be_imported_ends_run_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\nraise RuntimeError('oops')\n")
    done = mainspring("run", "broken.py", "--gearman", "127.0.0.1:0", "--store", "memory://", cwd=tmp_path)
    assert done.returncode == 2
    assert b'broken.py", line 2' in done.stderr
    assert b"mainspring: worker" in done.stderr


def test_worker_processes_connect_to_a_server(server: Node, call: Call, app: Path, tmp_path: Path) -> None:
    arguments = command("worker", str(app), "--server", server.address, "--processes", "2", "--concurrency", "3")
    with commands.start(arguments, env=environment(), cwd=tmp_path, stderr=subprocess.DEVNULL) as workers:
        try:
            assert call("submit", "add", "[2, 3]", "--timeout", "30s").stdout == b"5"
        finally:
            workers.terminate()
        assert workers.wait(30) == 0


def test_commands_connect_with_client_certificates(tmp_path: Path, app: Path, require: Callable[[str], str]) -> None:
    require("openssl")
    authority = self_signed(tmp_path, "authority")
    signed(tmp_path, "server", authority)
    client = signed(tmp_path, "client", authority)
    options = ("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "authority.pem")
    with node("run", str(app), "--gearman", "0.0.0.0:0", "--store", "memory://", *options, cwd=tmp_path) as running:
        server = ("--server", f"localhost:{running.port}", "--tls-ca", "authority.pem")
        certificate = ("--tls-cert", client.certificate.name, "--tls-key", client.key.name)
        done = mainspring("submit", "both", *server, *certificate, "--timeout", "30s", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, b"3")
        running.signal(signal.SIGHUP)
        assert mainspring("status", *server, *certificate, cwd=tmp_path).returncode == 0
        for stranger in (server, server[:2]):
            refused = mainspring("status", *stranger, cwd=tmp_path)
            assert (refused.returncode, refused.stderr.count(b"\n")) == (3, 1)
        assert running.stop() == 0


# Output on a terminal.


def test_a_terminal_gets_tables_and_progress(run: Call, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    late = _on_a_terminal(run, "submit", "wait_for", json.dumps([str(gate)]), "--timeout", "300ms")
    assert "waiting for H:" in late
    assert "has not ended within 300ms" in late
    assert _on_a_terminal(run, "submit", "add", "[1, 2]").endswith("3\r\n")
    assert _on_a_terminal(run, "submit", "raw", "\na").endswith("a\r\n")
    table = _on_a_terminal(run, "jobs", "list")
    assert "HANDLE" in table
    assert "\t" not in table
    gate.touch()


@pytest.mark.parametrize("width", [80, 200])
def test_the_list_of_jobs_fits_the_terminal(call: Call, width: int) -> None:
    handle = call("submit", "shop.pictures.generate_thumbnails", "-b", "--unique", "u" * 30).stdout.decode()
    shown = re.sub(r"\x1b\[[0-9;]*m", "", _on_a_terminal(call, "jobs", "list", width=width))
    lines = shown.splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= width
    assert lines[1].split()[0] == handle.strip()
    assert ("UNIQUE" in lines[0], "CREATED_AT" in lines[0]) == ((True, True) if width == 200 else (False, False))


def _on_a_terminal(call: Call, *arguments: str, width: int = 200) -> str:
    """Run a command on a pseudo-terminal, and return its output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    with commands.start(
        command(*arguments, "--server", call.node.address),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm", COLUMNS=""),
    ) as process:
        os.close(theirs)
        seen = b""
        with os.fdopen(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # raised at its end
            while chunk := terminal.read(4096):
                seen += chunk
        process.wait(60)
    return seen.decode()


# Errors.


def test_a_port_in_use_is_reported(server: Node, tmp_path: Path) -> None:
    _refused(tmp_path, "something listens there", "serve", "--gearman", server.address, "--store", "memory://")


def test_a_second_node_on_the_same_file_is_refused(server: Node, tmp_path: Path) -> None:
    assert server.process.poll() is None
    _refused(tmp_path, "in use", "serve", "--gearman", "127.0.0.1:0", "--store", "sqlite:///jobs.db")


def test_files_that_are_no_store_are_refused_unchanged(tmp_path: Path) -> None:
    (tmp_path / "rubbish.db").write_bytes(os.urandom(5000))
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    for name in ("rubbish.db", "other.db"):
        before = (tmp_path / name).read_bytes()
        _refused(tmp_path, name, "serve", "--gearman", "127.0.0.1:0", "--store", f"sqlite:///{name}")
        assert (tmp_path / name).read_bytes() == before


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    _refused(tmp_path, "missing", "serve", "--gearman", "127.0.0.1:0", "--store", "sqlite:///missing/jobs.db")


def test_a_read_only_directory_is_reported(tmp_path: Path, require: Callable[[str], str]) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    prefix = []
    if os.geteuid() == 0:  # root may write everywhere without this prefix
        prefix = [require("setpriv"), "--inh-caps=-dac_override", "--bounding-set=-dac_override"]
    options = ("serve", "--gearman", "127.0.0.1:0", "--store", "sqlite:///closed/jobs.db")
    _refused(tmp_path, "closed", *options, prefix=prefix)


def test_a_full_disk_is_reported(tmp_path: Path, require: Callable[[str], str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        [require("mount"), "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no mounts here: {done.stderr.decode()}")
    try:
        _refused(tmp_path, "space", "serve", "--gearman", "127.0.0.1:0", "--store", "sqlite:///disk/jobs.db")
    finally:
        subprocess.run([require("umount"), str(disk)], check=True)


def test_a_closed_output_pipe_causes_no_traceback(call: Call, server: Node, tmp_path: Path) -> None:
    for _ in range(3):
        call("submit", "nobody", "--background")
    reader, writer = os.pipe()
    os.close(reader)
    arguments = command("jobs", "list", "--server", server.address)
    try:
        done = commands.run(
            arguments, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, env=environment(), timeout=60
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


# As a replacement for gearmand.


def test_gearmand_listens_on_loopback_and_logs_that(tmp_path: Path) -> None:
    with node("gearmand", "-p", "0", "-t", "4", "--verbose=", cwd=tmp_path) as running:
        assert running.address.startswith("127.0.0.1:")
        text = running.log.read_text()
        assert "-L is not given" in text
        assert "--threads has no effect" in text
        assert running.stop() == 0


def test_gearmand_takes_its_port_from_the_environment(tmp_path: Path) -> None:
    port = _free_port()
    with node("gearmand", "--verbose=NOTICE", cwd=tmp_path, GEARMAND_PORT=str(port)) as running:
        assert running.port == port
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"verbose\n")
            assert connection.recv(100) == b"OK NOTICE\n"


def test_gearmand_serves_the_http_protocol(tmp_path: Path, require: Callable[[str], str]) -> None:
    gearman = require("gearman")
    port = _free_port()
    options = ("-p", "0", "-L", "127.0.0.1", "-r", "http", f"--http-port={port}")
    with (
        node("gearmand", *options, cwd=tmp_path) as running,
        subprocess.Popen([gearman, "-p", str(running.port), "-w", "-f", "rev", "--", "rev"]) as worker,
    ):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("POST", "/rev", b"abc")
            reply = connection.getresponse()
            assert (reply.status, reply.read(), reply.version) == (200, b"cba", 10)
            assert reply.headers["X-Gearman-Command"] == "WORK_COMPLETE"
            connection.close()
            connection.request("PUT", "/rev", b"x", {"X-Gearman-Background": "true"})
            reply = connection.getresponse()
            assert reply.headers["X-Gearman-Command"] == "JOB_CREATED"
            assert reply.headers["X-Gearman-Job-Handle"].startswith("H:")
            connection.close()
        finally:
            worker.terminate()


def test_gearmand_runs_in_the_background_with_its_pid_file(tmp_path: Path) -> None:
    options = ("-d", "-L", "127.0.0.1", "-p", "0", "-P", "g.pid", "-l", "g.log", "--verbose", "INFO")
    started = mainspring("gearmand", *options, cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    pid = int((tmp_path / "g.pid").read_text())
    os.kill(pid, signal.SIGUSR1)
    eventually(lambda: not is_alive(pid), "the node ends")
    assert not (tmp_path / "g.pid").exists()
    assert "started" in (tmp_path / "g.log").read_text()


def test_the_queue_of_a_real_gearmand_is_imported_once(
    tmp_path: Path, require: Callable[[str], str], server: Node, call: Call
) -> None:
    gearmand, gearman = require("gearmand"), require("gearman")
    queue = tmp_path / "queue.db"
    port = _free_port()
    theirs_command = [
        gearmand,
        "-L",
        "127.0.0.1",
        "-p",
        str(port),
        "-l",
        "none",
        "-q",
        "libsqlite3",
        f"--libsqlite3-db={queue}",
    ]
    with subprocess.Popen(theirs_command) as theirs:
        try:
            eventually(lambda: answers(port), "gearmand listens")
            for unique in ("u1", "u2"):
                subprocess.run([gearman, "-p", str(port), "-b", "-f", "wc", "-u", unique, unique * 2], check=True)
        finally:
            theirs.terminate()
    before = queue.read_bytes()
    _refused(tmp_path, "mainspring import", "serve", "--gearman", "127.0.0.1:0", "--store", "sqlite:///queue.db")
    assert call("import", str(queue)).stdout == b"imported 2 jobs; 0 existed already; 0 refused\n"
    assert call("import", str(queue)).stdout == b"imported 0 jobs; 2 existed already; 0 refused\n"
    assert queue.read_bytes() == before
    jobs = json.loads(call("jobs", "list", "--function", "wc", "--json").stdout)
    assert {job["unique"] for job in jobs} == {"u1", "u2"}
    assert server.process.poll() is None


def test_a_backup_can_be_opened_as_a_store(tmp_path: Path, server: Node, call: Call) -> None:
    handle = call("submit", "nobody", "x", "--background").stdout.decode().strip()
    assert call("backup", "copy.db").returncode == 0  # the server reports the path of its store
    assert call("backup", "copy.db").returncode == 2
    assert call("backup", "copy.db", "--force", "--store", "sqlite:///jobs.db").returncode == 0
    assert server.process.poll() is None
    with node("serve", "--gearman", "127.0.0.1:0", "--store", "sqlite:///copy.db", cwd=tmp_path) as other:
        assert mainspring("jobs", "show", handle, "--server", other.address, cwd=tmp_path).returncode == 0


def _refused(tmp_path: Path, words: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
    done = mainspring(*arguments, cwd=tmp_path, prefix=prefix)
    text = done.stderr.decode()
    assert done.returncode == 1, text
    assert done.stdout == b""
    assert text.startswith("mainspring: ")
    assert text.count("\n") == 1
    assert words in text


def _get(address: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
