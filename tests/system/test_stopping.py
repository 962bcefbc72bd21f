"""Signals that stop a node or workers: which jobs they wait for, their messages, and an immediate stop."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests import commands

from .processes import Node, command, environment, mainspring, node
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.system

APP = """
import os, time
from mainspring import App

app = App()

@app.task
def wait_for(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.01)
    return "there"
"""
STORE_OPTIONS = ("--gearman", "127.0.0.1:0", "--store", "sqlite:///jobs.db")
STOP_MESSAGE = "1 job running; waiting up to 1 min; Ctrl-C again to stop now"
"""The grace is a minute, so a command that ends within these tests' time-outs was ended early."""


@pytest.fixture(autouse=True)
def app(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Node]:
    with node("serve", *STORE_OPTIONS, "--grace", "1m", cwd=tmp_path) as running:
        yield running


@contextlib.contextmanager
def workers(server: Node, directory: Path, *options: str) -> Iterator[Node]:
    """Run ``mainspring worker`` until it is connected."""
    arguments = ("worker", "app.py", "--server", server.address, "--grace", "1m", *options)
    with node(*arguments, cwd=directory, faces=()) as running:
        eventually(lambda: "connected" in running.log.read_text(), "the worker connects")
        yield running


def submit_blocked(server: Node, directory: Path) -> str:
    """Submit a job that runs until the file ``gate`` exists, and return its handle once it runs."""
    done = mainspring("submit", "wait_for", '["gate"]', "--background", "--server", server.address, cwd=directory)
    handle = done.stdout.decode().strip()
    assert handle, done
    eventually(lambda: show_job(server, directory, handle)["state"] == "running", "the job runs")
    return handle


def show_job(server: Node, directory: Path, handle: str) -> dict[str, Any]:
    done = mainspring("jobs", "show", handle, "--json", "--server", server.address, cwd=directory)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def count_logged(running: Node, words: str) -> int:
    """Count the lines of the log that contain a text."""
    return sum(words in line for line in running.log.read_text().splitlines())


def assert_handed_back(directory: Path, handle: str) -> None:
    """Start a node on the same store, and assert that the job is pending as if it had never run."""
    with node("serve", *STORE_OPTIONS, cwd=directory) as restarted:
        job = show_job(restarted, directory, handle)
        assert (job["state"], job["attempt"]) == ("pending", 0), job


def test_ctrl_c_on_run_reports_running_jobs_and_a_second_one_stops_at_once(tmp_path: Path) -> None:
    with node("run", "app.py", *STORE_OPTIONS, "--grace", "1m", "--processes", "2", cwd=tmp_path) as running:
        handle = submit_blocked(running, tmp_path)
        running.press_ctrl_c()
        eventually(lambda: count_logged(running, STOP_MESSAGE), "it reports the running job")
        assert running.process.poll() is None
        running.press_ctrl_c()
        assert running.wait() == 0
        log = running.log.read_text()
        assert (count_logged(running, "waiting up to"), count_logged(running, "1 job released")) == (1, 1), log
        assert "Traceback" not in log
    assert_handed_back(tmp_path, handle)


def test_a_second_sigint_ends_a_server_also_with_jobs_of_connected_workers(tmp_path: Path, server: Node) -> None:
    with workers(server, tmp_path):
        handle = submit_blocked(server, tmp_path)
        server.press_ctrl_c()
        eventually(lambda: count_logged(server, STOP_MESSAGE), "it reports the running job")
        server.press_ctrl_c()
        assert server.wait() == 0
        (tmp_path / "gate").touch()  # otherwise the worker would wait for its job
    assert_handed_back(tmp_path, handle)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_sigint_ends_workers(tmp_path: Path, server: Node, processes: int) -> None:
    with workers(server, tmp_path, "--processes", str(processes)) as running:
        handle = submit_blocked(server, tmp_path)
        running.press_ctrl_c()
        eventually(lambda: count_logged(running, STOP_MESSAGE), "it reports the running job")
        running.press_ctrl_c()
        assert running.wait() == 0
        log = running.log.read_text()
        assert count_logged(running, "waiting up to") == 1, log
        assert "Traceback" not in log
    job = show_job(server, tmp_path, handle)
    assert (job["state"], job["attempt"]) == ("pending", 0)


@pytest.mark.parametrize("processes", [1, 2])
def test_repeated_sigterm_does_not_shorten_the_grace_of_workers(tmp_path: Path, server: Node, processes: int) -> None:
    with workers(server, tmp_path, "--processes", str(processes)) as running:
        handle = submit_blocked(server, tmp_path)
        running.signal(signal.SIGTERM)
        eventually(lambda: count_logged(running, "waiting up to"), "it reports the running job")
        for _ in range(3):
            os.killpg(running.process.pid, signal.SIGTERM)  # systemd and containers signal all processes
            time.sleep(0.2)
        time.sleep(1.5)  # a worker without grace would release the job after a second
        assert show_job(server, tmp_path, handle)["state"] == "running"
        (tmp_path / "gate").touch()
        assert running.wait() == 0
        assert count_logged(running, "waiting up to") == 1
    assert show_job(server, tmp_path, handle)["state"] == "succeeded"


def test_repeated_sigterm_does_not_shorten_the_grace_of_a_node(tmp_path: Path) -> None:
    with node("run", "app.py", *STORE_OPTIONS, "--grace", "1m", cwd=tmp_path) as running:
        handle = submit_blocked(running, tmp_path)
        for _ in range(3):
            running.signal(signal.SIGTERM)
            eventually(lambda: count_logged(running, STOP_MESSAGE), "it reports the running job")
        (tmp_path / "gate").touch()
        assert running.wait() == 0
        assert (count_logged(running, STOP_MESSAGE), count_logged(running, "job released")) == (1, 0)
    with node("serve", *STORE_OPTIONS, cwd=tmp_path) as restarted:
        assert show_job(restarted, tmp_path, handle)["state"] == "succeeded"


def test_a_stop_without_running_jobs_logs_no_warning(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    with node("run", "app.py", *STORE_OPTIONS, cwd=tmp_path) as running:
        done = mainspring("submit", "wait_for", '["gate"]', "--server", running.address, cwd=tmp_path)
        assert done.returncode == 0, done
        running.stop()
        lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    assert [line for line in lines if line["level"] != "info"] == []
    assert "stopped" in {line["event"] for line in lines}


@pytest.mark.parametrize("options", [(), ("--log-format", "json"), ("--log-file", "own.log")])
def test_a_terminal_shows_only_the_message(tmp_path: Path, options: tuple[str, ...]) -> None:
    controller, terminal = pty.openpty()
    arguments = command("run", "app.py", *STORE_OPTIONS, "--grace", "1m", *options)
    process = commands.start(
        arguments, cwd=tmp_path, env=environment(), stdin=terminal, stdout=subprocess.PIPE, stderr=terminal,
        start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    running = Node(process, tmp_path / "terminal")
    assert process.stdout is not None
    running.ports["gearman"] = process.stdout.readline().decode().split()[2]
    try:
        submit_blocked(running, tmp_path)
        running.press_ctrl_c()
        shown_lines = _until(controller, STOP_MESSAGE)
        running.press_ctrl_c()
        shown_lines += _until(controller, "job released")
        lines = [line.strip() for line in shown_lines.splitlines() if "waiting up to" in line or "released" in line]
        assert lines == [f"mainspring: {STOP_MESSAGE}", "mainspring: 1 job released"]
        assert running.wait() == 0
        assert ("--log-file" in options) == (tmp_path / "own.log").exists()
        if "--log-file" in options:
            assert STOP_MESSAGE in (tmp_path / "own.log").read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(controller)


def _until(terminal: int, words: str) -> str:
    """Read a terminal until a text and the end of its line have arrived."""
    show_job = ""
    while words not in show_job or not show_job.endswith("\n"):
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        show_job += data.decode()
    return show_job
