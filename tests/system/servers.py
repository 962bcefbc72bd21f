"""Servers that tests disturb: killed, traced, on a full disk; each in its own directory, ended in every outcome."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests import commands

from .extension import ExtensionPeer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

START_TIMEOUT = 30.0
STOP_TIMEOUT = 20.0
SHORT_TIMEOUTS = (sys.executable, str(Path(__file__).with_name("short_timeouts.py")))
"""A program for `serving` with time-outs of one second for silent peers."""


class Server:
    """A running server. ``process`` is the started process, ``pid`` the server's own: a tracer may be between them."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, log: Path, faces: int = 1) -> None:
        self.process = process
        self.directory = directory
        self.log = log
        self.faces = faces
        """Number of its ports; the second one is for health checks."""
        self.port = 0
        self.http = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def peer(self) -> ExtensionPeer:
        """Connect as client, worker or administrator; the caller closes the connection."""
        return ExtensionPeer(self.port)

    def worker(self, *functions: bytes, places: int = 1) -> ExtensionPeer:
        """Connect a worker of the extension."""
        peer = self.peer()
        peer.extend()
        for function in functions:
            peer.register(function)
        if places:
            peer.ready(places)
        return peer

    def extended(self) -> ExtensionPeer:
        """Connect a client of the extension."""
        peer = self.peer()
        peer.extend()
        return peer

    def log_text(self) -> str:
        """Return the server's log."""
        return self.log.read_text("utf-8", "replace")

    def assert_healthy(self, since: int = 0) -> None:
        """Assert that the server runs and has logged no defect; ``since``: characters of the log to skip."""
        assert self.process.poll() is None, f"the server has ended: {self.log_text()[-3000:]}"
        assert_no_defect(self.log_text()[since:])

    def rss(self) -> int:
        """Return the bytes of memory in use."""
        return resident(self.pid)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the process with SIGKILL, and wait for its end."""
        self.process.kill()
        self.process.wait(STOP_TIMEOUT)

    def wait(self) -> int:
        """Wait until the process ends by itself, and return its exit code."""
        return self.process.wait(STOP_TIMEOUT)

    def end(self) -> None:
        """End the process in any case, first with SIGTERM."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(STOP_TIMEOUT)
        assert self.process.stdout is not None
        self.process.stdout.close()


def assert_no_defect(log: str) -> None:
    """Assert that a log has no unexpected exception; exceptions of tasks are no defects of the server."""
    own = "\n".join(line for line in log.splitlines() if '"event": "attempt' not in line)
    for word in ("Traceback", "exception", "defect", "never awaited", "Fatal error"):
        assert word not in own, log[-6000:]


def resident(pid: int) -> int:
    """Return the bytes of memory that a process uses."""
    with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123 - read often
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def environment() -> dict[str, str]:
    """Return the environment without variables that change a server's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}


def launch(
    directory: Path,
    *options: str,
    store: str = "sqlite:///jobs.db",
    program: Sequence[str] = (sys.executable, "-m", "mainspring"),
    tracer: Sequence[str] = (),
) -> Server:
    """Start a server, in a process group of its own so that a tracer ends with it; ``program`` takes the command's arguments."""
    log = directory / f"server-{time.monotonic_ns()}.log"
    listen = () if "--gearman" in options else ("--gearman", "127.0.0.1:0")
    command = [*tracer, *program, "serve", "--store", store, "--name", "n1", *listen, *options]
    with log.open("wb") as sink:
        process = commands.start(
            command,
            cwd=directory,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sink,
            start_new_session=True,
        )
    return Server(process, directory, log, faces=2 if "--http" in options else 1)


def await_ready(server: Server) -> None:
    """Wait until a server prints its addresses. Raises AssertionError with its log if it does not."""
    stdout = server.process.stdout
    assert stdout is not None
    deadline = time.monotonic() + START_TIMEOUT
    seen = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while seen.count(b"\n") < server.faces:
            assert selector.select(max(0.0, deadline - time.monotonic())), f"not ready: {server.log_text()}"
            data = os.read(stdout.fileno(), 4096)
            assert data, f"it ended with {server.process.wait(STOP_TIMEOUT)}: {server.log_text()}"
            seen += data
    gearman, *others = seen.decode().splitlines()
    server.port = listening_port(gearman)
    if others:
        server.http = listening_port(others[0], face="http")


def listening_port(line: str, face: str = "gearman") -> int:
    """Return the port in the line that a server prints when it is ready."""
    words = line.split("\n", 1)[0].split()
    assert words[:2] == ["listening", face], line
    return int(words[2].rpartition(":")[2])


@contextlib.contextmanager
def serving(
    directory: Path,
    *options: str,
    store: str = "sqlite:///jobs.db",
    program: Sequence[str] = (sys.executable, "-m", "mainspring"),
    tracer: Sequence[str] = (),
) -> Iterator[Server]:
    """Run a server that is ready when the block begins."""
    server = launch(directory, *options, store=store, program=program, tracer=tracer)
    try:
        await_ready(server)
        yield server
    finally:
        server.end()


def run_to_end(directory: Path, *options: str, store: str = "sqlite:///jobs.db") -> tuple[int, str]:
    """Start a server that must fail; return its exit code and its log."""
    server = launch(directory, *options, store=store)
    try:
        return server.wait(), server.log_text()
    finally:
        server.end()


def eventually(condition: Callable[[], object], description: str, timeout: float = START_TIMEOUT) -> None:
    """Poll a condition that cannot be awaited until it holds. Raises AssertionError at the time-out in seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {description}"
        time.sleep(0.01)
