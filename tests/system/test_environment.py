"""Nodes and workers in unusual surroundings: what they inherit, and what user code sets for its process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from mainspring import App, JobFailed

from .processes import command, environment, started
from .servers import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

TIMEOUT = 60.0
OPTIONS = ("--store", "memory://", "--gearman", "127.0.0.1:0")

TALKATIVE = """
import logging, sys
from mainspring import App

app = App()

def talk(lines: int) -> int:
    for number in range(lines):
        logging.info("line %d of a task that logs very much", number)
        print("and writes to standard error", file=sys.stderr)
    return lines

@app.task
def thread(lines: int) -> int:
    return talk(lines)

@app.task
async def coroutine(lines: int) -> int:
    return talk(lines)

@app.task(executor="process")
def process(lines: int) -> int:
    return talk(lines)
"""


def test_a_log_that_nobody_reads_stops_neither_tasks_nor_the_stop(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(TALKATIVE)
    reader, log = os.pipe()
    fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, 4096)
    lines = 4_000
    try:
        with (
            started(command("run", "app.py", *OPTIONS), cwd=tmp_path, stderr=log) as running,
            contextlib.closing(App(running.address)) as app,
        ):
            tasks = [app.function(name) for name in ("thread", "coroutine", "process")]
            for task in tasks:
                assert task.submit(lines).result(timeout=TIMEOUT) == b"%d" % lines
            text = _read_until(reader, b"lines of this log were dropped")
            assert tasks[0].submit(lines).result(timeout=TIMEOUT) == b"%d" % lines
            assert running.stop() == 0
    finally:
        os.close(log)
        os.close(reader)
    notice = next(line for line in text.splitlines() if b"lines of this log were dropped" in line)
    assert json.loads(notice)["lines"] > 1000


def _read_until(descriptor: int, mark: bytes) -> bytes:
    found = [b""]

    def read() -> None:
        while mark not in found[0] or not found[0].endswith(b"\n"):
            found[0] += os.read(descriptor, 65536)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(TIMEOUT)
    assert mark in found[0]
    return found[0]


UNUSUAL = """
import asyncio, os, pathlib, signal, socket, subprocess, sys, time, warnings
from mainspring import App

warnings.simplefilter("error")
socket.setdefaulttimeout(0.3)
sys.setrecursionlimit(300)

class Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        raise RuntimeError("the loop of the user's policy")

asyncio.set_event_loop_policy(Policy())
os.umask(0o022)
os.chdir("/")
os.environ.pop("MAINSPRING_SERVER", None)
app = App()
slept = pathlib.Path(__file__).with_name("slept")
if "mainspring.cli.task_process" in sys.orig_argv and not slept.exists():
    slept.touch()
    time.sleep(4)

@app.task(executor="process", run_timeout="3s")
def brief() -> str:
    return "done"

def program() -> list[int]:
    def code(text):
        return subprocess.run(["sh", "-c", text]).returncode
    return [code("exit 5"), code("kill -INT $$; exit 6"), code("kill -TERM $$; exit 7")]

@app.task
def thread(first: bool) -> list[int]:
    if first:
        os.chdir("/usr")
        os.environ.clear()
        os.environ["PYTHONHOME"] = "/nowhere"  # no Python starts with it
        os.environ["MAINSPRING_SERVER"] = "127.0.0.1:1"
        os.environ["MAINSPRING_NAMESPACE"] = "elsewhere"
    return program()

@app.task
async def coroutine() -> list[int]:
    return program()

@app.task(executor="process")
def process() -> list[int]:
    return program()

@app.task(executor="process")
def directory() -> str:
    return os.getcwd()

@app.task
def waits() -> list[int]:
    return process.submit().result(timeout=60)

@app.task
async def awaits() -> list[int]:
    return await (await process.asubmit())

@app.task(executor="process")
def waits_in_process() -> list[int]:
    os.environ.clear()
    os.chdir("/usr")
    return App().function("process").submit(b"").result(timeout=60)

@app.task(executor="process")
def dies() -> None:
    os._exit(9)

@app.workflow
async def flow() -> list[int]:
    return await process.submit()
"""


def test_what_a_node_inherits_and_what_tasks_set_for_their_process_changes_nothing(tmp_path: Path) -> None:
    """Ignored and blocked signals, no standard input, modules of the working directory, and settings of the whole process."""
    directory = tmp_path / ("d" * 100)  # the path of the socket is longer than the system accepts
    directory.mkdir()
    (directory / "unusual.py").write_text(UNUSUAL)
    for name in ("queue", "calendar", "types", "msgspec", "sitecustomize"):
        (directory / f"{name}.py").write_text("raise SystemExit('a module of the working directory')\n")
    arguments = [
        *("run", "unusual.py", "--store", "memory://", "--gearman", "unix:jobs.sock"),
        *("--log-file", "node.log", "--frozen-after", "0"),
    ]
    program = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32)); os.close(0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    mainspring = [sys.executable, "-P", "-m", "mainspring", *arguments]
    with (
        started([sys.executable, "-P", "-c", program, *mainspring], cwd=directory) as running,
        contextlib.closing(App(f"unix:{directory / 'jobs.sock'}")) as app,
    ):

        def result(name: str, *payload: object) -> object:
            return json.loads(app.function(name).submit(list(payload)).result(timeout=TIMEOUT))

        codes = [5, -signal.SIGINT, -signal.SIGTERM]
        assert result("brief") == "done", "the import is no running time"
        assert result("process") == codes
        assert result("thread", True) == codes
        assert result("coroutine") == codes
        assert result("directory") == "/"
        assert result("waits") == codes
        assert result("awaits") == codes
        assert json.loads(str(result("waits_in_process"))) == codes
        with pytest.raises(JobFailed, match="ended by itself with exit code 9"):
            result("dies")
        assert result("process") == codes  # in a process that started after all of that
        assert result("thread", False) == codes
        assert result("flow") == codes
        assert running.stop() == 0
    assert (directory / "node.log").stat().st_size


def test_closed_descriptors_and_poor_encodings_end_no_command(tmp_path: Path) -> None:
    def shell(redirection: str, *words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        arguments = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command(*words)]
        env = environment(MAINSPRING_SERVER="unix:jobs.sock", **variables)
        return subprocess.run(arguments, cwd=tmp_path, env=env, capture_output=True, timeout=TIMEOUT, check=False)

    serve = command("serve", "--store", "memory://", "--gearman", "unix:jobs.sock")
    server = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *serve], cwd=tmp_path, env=environment())
    try:
        eventually(lambda: (tmp_path / "jobs.sock").exists() or server.poll() is not None, "the socket")
        name = "größe→✓"
        assert shell("", "submit", name, "1", "--background").returncode == 0
        listed = shell("", "jobs", "list", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert (listed.returncode, listed.stderr) == (0, b"")
        assert rb"gr\xf6\xdfe\u2192" in listed.stdout
        refused = shell(">&-", "jobs", "list")
        assert (refused.returncode, refused.stderr.count(b"\n")) == (1, 1)
        assert b"standard output is closed" in refused.stderr
        assert shell("2>&-", "jobs", "show", "H:none:1").returncode == 4
        server.terminate()
        assert server.wait(TIMEOUT) == 0
    finally:
        server.kill()
        server.wait()
    assert shell("", "jobs", "list", "--help", PYTHONOPTIMIZE="2").stdout == shell("", "jobs", "list", "--help").stdout
