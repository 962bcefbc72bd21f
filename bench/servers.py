"""The contestants, and a running server of a contestant."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from generator import NULL_SERVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

SOURCES = Path(__file__).resolve().parent.parent / "src"
SOURCES_VARIABLE = "BENCH_SOURCES"
"""The environment variable with other sources of Mainspring for the processes of a turn."""
READY = re.compile(r"^listening gearman 127\.0\.0\.1:(\d+)", re.MULTILINE)
START_SECONDS = 120.0
STOP_SECONDS = 30.0


class StartError(Exception):
    """A server ended, or did not listen in time; the message ends with its last output."""


@dataclass(frozen=True)
class Contestant:
    """A server that can be started.

    `command` may contain {dir}, an empty directory, and {port}. A server without {port} in its command chooses a free port and
    prints `listening gearman 127.0.0.1:PORT`.
    """

    name: str
    command: str

    @property
    def is_given_a_port(self) -> bool:
        return "{port}" in self.command

    def argv(self, directory: Path, port: int) -> list[str]:
        return [word.format(dir=directory, port=port) for word in shlex.split(self.command)]

    def running(self, parent: Path) -> AbstractContextManager[Server]:
        """Return a context manager that runs such a server in a new directory below `parent`."""
        return Server(self, parent)


MAINSPRING_COMMAND = f"{shlex.quote(sys.executable)} -m mainspring serve --store {{store}} --gearman 127.0.0.1:0"
GEARMAND = shutil.which("gearmand", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "gearmand"
GEARMAND_COMMAND = f"{GEARMAND} -p {{port}} -L 127.0.0.1 -l none -P {{dir}}/pid"


def mainspring(template: str | None = None) -> tuple[Contestant, Contestant]:
    """Return Mainspring on SQLite and in memory; a template with {store} replaces the command."""
    template = template or MAINSPRING_COMMAND
    return (
        Contestant("mainspring sqlite", template.replace("{store}", "sqlite:///{dir}/jobs.db")),
        Contestant("mainspring memory", template.replace("{store}", "memory://")),
    )


GEARMAND_SQLITE = Contestant("gearmand sqlite", f"{GEARMAND_COMMAND} -q libsqlite3 --libsqlite3-db={{dir}}/queue.db")
GEARMAND_MEMORY = Contestant("gearmand -t 0", f"{GEARMAND_COMMAND} -t 0")
NULL = Contestant("null server", shlex.quote(str(NULL_SERVER)))


class Server:
    """One server process with its own directory. A context manager: it stops the process and removes the directory."""

    port: int

    def __init__(self, contestant: Contestant, parent: Path) -> None:
        self.contestant = contestant
        self.directory = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Start the process and wait until it listens. Raises StartError."""
        self.port = free_port() if self.contestant.is_given_a_port else 0
        self._output.write_bytes(b"")
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self.contestant.argv(self.directory, self.port),
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=environment(),
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_listening():
            if self._process.poll() is not None:
                raise StartError(f"{self.contestant.name} ended with {self._process.returncode}: {self._last_output()}")
            if time.monotonic() > deadline:
                raise StartError(f"{self.contestant.name} does not listen: {self._last_output()}")
            time.sleep(0.002)

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """End the process, with SIGKILL if it does not end within STOP_SECONDS. The directory stays."""
        if self._process is None:
            return
        self._process.send_signal(with_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @property
    def ports(self) -> list[int]:
        """The ports for clients and workers: one, or those of all nodes."""
        return [self.port]

    def pids(self) -> list[int]:
        """Return the process and its descendants."""
        assert self._process is not None
        return [self._process.pid, *descendants(self._process.pid)]

    def rss_kib(self) -> int:
        """Return the resident memory of the process and its descendants."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return pages * os.sysconf("SC_PAGESIZE") // 1024

    @property
    def _output(self) -> Path:
        return self.directory / "output.log"

    def _is_listening(self) -> bool:
        if not self.contestant.is_given_a_port:
            ready = READY.search(self._output.read_text(errors="replace"))
            self.port = int(ready[1]) if ready else 0
            return ready is not None
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _last_output(self) -> str:
        lines = self._output.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-3:]) or "it printed nothing"


class Nodes(Server):
    """Running nodes, which the generator uses as one server with several ports."""

    def __init__(self, contestant: Contestant, nodes: Sequence[Server]) -> None:
        self.contestant = contestant
        self.nodes = nodes
        self.directory = nodes[0].directory

    @property
    def ports(self) -> list[int]:
        return [node.port for node in self.nodes]

    def pids(self) -> list[int]:
        return [pid for node in self.nodes for pid in node.pids()]


def environment() -> dict[str, str]:
    """Return the environment of processes that import Mainspring."""
    sources = os.environ.get(SOURCES_VARIABLE, str(SOURCES))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [sources, os.environ.get("PYTHONPATH")]))}


def free_port() -> int:
    """Return a port of the loopback interface that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started, and theirs."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from descendants(child)
