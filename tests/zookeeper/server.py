"""Real ZooKeeper servers for tests and benchmarks: alone or as an ensemble, ended in every outcome.

    with Ensemble(3) as ensemble:
        url = ensemble.url("/chroot")
        ensemble.kill(ensemble.leader())

Everything here blocks; in a coroutine, use ``asyncio.to_thread``. It needs Linux, and Debian's package ``zookeeper``. A server
alone is Debian's. Ensembles are of a later release, whose jars ``tests/interop/setup.sh`` installs: Debian's 3.8.0 loses
acknowledged writes when a leader is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.postgres.ports import steady_port

from . import keeper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOST: Final = "127.0.0.1"
START: Final = 60.0
STOP: Final = 20.0
JAVA_LIBRARY: Final = Path("/usr/share/java")
JAR: Final = JAVA_LIBRARY / "zookeeper.jar"
LOGGERS: Final = (JAVA_LIBRARY / "slf4j-api.jar", JAVA_LIBRARY / "slf4j-simple.jar")
LATER_JARS: Final = Path(__file__).parent / "jars"
"""The jars of the later release, and of what it needs."""
MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

JAVA: Final = (
    "-Xms32m",
    "-Xmx400m",  # one ensemble serves most tests of a run, and keeps what they have stored
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # there sooner; who measures takes the full compiler
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dzookeeper.preAllocSize=1024",  # kB of its log, not 64 MB: there sooner, and small in memory
)
SETTINGS: Final[Mapping[str, str | int]] = {
    "tickTime": 200,
    "initLimit": 50,
    "syncLimit": 15,
    "minSessionTimeout": 400,
    "maxSessionTimeout": 60_000,
    "maxClientCnxns": 0,
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
    "clientPortAddress": HOST,
}
"""The settings of every server. A session ends up to a tick after its time."""


class ZooKeeperError(Exception):
    """A server did not start, or did not become what was waited for; the message ends with what it wrote."""


class NotInstalledError(ZooKeeperError):
    """There is no ZooKeeper, or no Java, on this machine."""


def program() -> str:
    """Return the path of Java. Raises NotInstalledError where it is missing, or ZooKeeper."""
    java = shutil.which("java")
    if java is None or not JAR.exists():
        raise NotInstalledError("ZooKeeper is not installed (Debian: apt-get install zookeeper)")
    return java


def jars(size: int) -> list[Path]:
    """Return the jars of a server of an ensemble. Raises NotInstalledError where they are missing."""
    if size == 1:
        return [JAR, *LOGGERS]
    later = sorted(LATER_JARS.glob("*.jar"))
    if not later:
        raise NotInstalledError("the ZooKeeper for ensembles is not installed (run tests/interop/setup.sh)")
    return [*later, *LOGGERS]


class Ensemble:
    """One server, or several that elect a leader, on ports of 127.0.0.1. A context manager: inside the block they run.

    ``java`` are further options of the virtual machine, ``settings`` further lines of zoo.cfg. Every write is synchronised to
    the disk below ``parent``, by default the directory for temporary files.
    """

    def __init__(
        self,
        size: int = 1,
        *,
        parent: Path | None = None,
        java: Sequence[str] = (),
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        self.ports: list[int] = []
        """Where clients connect, for each server."""
        self._size = size
        self._parent = parent
        self._java = [program(), *JAVA, *java, "-cp", ":".join(map(str, jars(size))), MAIN, "./zoo.cfg"]
        self._settings = {**SETTINGS, **(settings or {})}
        self._directory: Path | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * size

    def __enter__(self) -> Self:
        try:
            self._create()
            for index in range(self._size):
                self._launch(index)
            for index in range(self._size):
                self.await_ready(index)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what happens to them

    def kill(self, index: int = 0) -> None:
        """End a server at once (SIGKILL)."""
        self._signal(index, signal.SIGKILL)
        self._wait(index)

    def shut_down(self, index: int = 0) -> None:
        """End a server politely."""
        self._signal(index, signal.SIGTERM)
        self._wait(index)

    def start(self, index: int = 0, *, wait: bool = True) -> None:
        """Start a server again that does not run; without ``wait`` it may take a while until it serves."""
        assert not self.is_running(index)
        self._launch(index)
        if wait:
            self.await_ready(index)

    def restart(self, index: int = 0) -> None:
        """Kill a server if it runs, start it, and wait until it serves."""
        if self.is_running(index):
            self.kill(index)
        self.start(index)

    def pause(self, index: int = 0) -> None:
        """Hold a server (SIGSTOP) until it stands: its connections stay, and nobody answers."""
        self._signal(index, signal.SIGSTOP)
        while not _stands(self.pid(index)):
            time.sleep(0.002)

    def resume(self, index: int = 0) -> None:
        """Let a held server go on."""
        self._signal(index, signal.SIGCONT)

    def heal(self) -> None:
        """Let all go on or start them again, and wait until all serve."""
        for index in range(self._size):
            if self.is_running(index):
                self.resume(index)
            else:
                self._launch(index)
        for index in range(self._size):
            self.await_ready(index)

    def close(self) -> None:
        """End them in whatever state they are, and remove their directory. To do it twice does no harm."""
        if self._directory is not None:
            keeper.remove(self._directory)
            self._directory = None
        for index, process in enumerate(self._processes):
            if process is not None:
                process.wait(STOP)
                self._processes[index] = None
        if self._keeper is not None:
            self._keeper.communicate()
            self._keeper = None

    # ---- what they are

    @property
    def hosts(self) -> str:
        """The servers' addresses, with commas between."""
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    def url(self, chroot: str = "") -> str:
        """Return the address of a store."""
        return f"zookeeper://{self.hosts}{chroot}"

    def is_running(self, index: int = 0) -> bool:
        """Whether a server runs, be it held."""
        process = self._processes[index]
        return process is not None and process.poll() is None

    def pid(self, index: int = 0) -> int:
        """Return the process of a server."""
        process = self._processes[index]
        assert process is not None, "it does not run"
        return process.pid

    def leader(self) -> int:
        """Return which server leads, waiting until one does."""
        deadline = time.monotonic() + START
        while True:
            for index in range(self._size):
                if self.mode(index) in {"leader", "standalone"}:
                    return index
            if time.monotonic() > deadline:
                raise ZooKeeperError(f"nobody leads after {START:.0f} s: {self.log()[-2000:]}")
            time.sleep(0.02)

    def mode(self, index: int = 0) -> str:
        """Return ``leader``, ``follower``, ``standalone``, ``read-only``; empty where it does not serve, or does not run."""
        for line in self.ask(b"srvr", index).splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return ""

    def await_mode(self, index: int, mode: str) -> None:
        """Wait until a server is of some `mode`."""
        deadline = time.monotonic() + START
        while self.mode(index) != mode:
            if time.monotonic() > deadline:
                raise ZooKeeperError(f"ZooKeeper does not become {mode!r}: {self.log(index)[-3000:]}")
            time.sleep(0.02)

    def ask(self, word: bytes, index: int = 0) -> str:
        """Return a server's answer to one of its four-letter words; empty where nobody answers."""
        answer = b""
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.ports[index]), 0.5) as connection:
            connection.sendall(word)
            while piece := connection.recv(65_536):
                answer += piece
        return answer.decode("utf-8", "replace")

    def await_ready(self, index: int = 0) -> None:
        """Wait until a server serves. Raises ZooKeeperError where it ends or takes too long."""
        deadline = time.monotonic() + START
        while not self.mode(index):
            if not self.is_running(index) or time.monotonic() > deadline:
                raise ZooKeeperError(f"ZooKeeper does not serve: {self.log(index)[-3000:]}")
            time.sleep(0.02)

    def log(self, index: int = 0) -> str:
        """Return what a server has logged."""
        assert self._directory is not None
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / str(index) / "log").read_text("utf-8", "replace")
        return ""

    # ---- how it is done

    def _create(self) -> None:
        path = tempfile.mkdtemp(prefix="zookeeper-", dir=self._parent or tempfile.gettempdir())
        self._directory = Path(path).resolve()  # as /proc names it
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(self._directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # out of reach of Ctrl-C
        )
        ports: set[int] = set()
        while len(ports) < 3 * self._size:
            ports.add(steady_port())
        chosen = [*ports]
        self.ports = chosen[: self._size]
        members = ""
        if self._size > 1:
            quorum = zip(chosen[self._size : 2 * self._size], chosen[2 * self._size :], strict=True)
            members = "".join(f"server.{index + 1}={HOST}:{one}:{two}\n" for index, (one, two) in enumerate(quorum))
        for index, port in enumerate(self.ports):
            home = self._directory / str(index)
            (home / "data").mkdir(parents=True)
            (home / "data" / "myid").write_text(f"{index + 1}\n")
            lines = {**self._settings, "dataDir": str(home / "data"), "clientPort": port}
            (home / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in lines.items()) + members)

    def _launch(self, index: int) -> None:
        assert self._directory is not None, "it has not been entered, or is closed"
        home = self._directory / str(index)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "JVM", "_JAVA"))
        }
        with (home / "log").open("ab") as log:
            self._processes[index] = subprocess.Popen(
                self._java,
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _signal(self, index: int, number: signal.Signals) -> None:
        process = self._processes[index]
        assert process is not None, "it does not run"
        process.send_signal(number)

    def _wait(self, index: int) -> None:
        process = self._processes[index]
        assert process is not None
        process.wait(STOP)
        self._processes[index] = None


def _stands(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    states = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return all(state == "T" for state in states)
