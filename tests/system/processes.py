"""Real processes of the command, each in its own directory, ended in every outcome."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests import commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

START_TIMEOUT = 30.0
STOP_TIMEOUT = 30.0


class Node:
    """A running command that listens."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.ports: dict[str, str] = {}

    @property
    def address(self) -> str:
        return self.ports["gearman"]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def await_functions(self, *names: str) -> None:
        """Wait until a worker has registered each function: before that, `submit` warns that none has."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with socket.create_connection(("127.0.0.1", self.port), START_TIMEOUT) as admin:
                admin.sendall(b"status\n")
                with admin.makefile("rb") as lines:
                    rows = [line.decode().split("\t") for line in iter(lines.readline, b".\n")]
            missing = set(names) - {name for name, *_, workers in rows if int(workers)}
            if not missing:
                return
            assert time.monotonic() < deadline, f"no worker of {sorted(missing)} within {START_TIMEOUT} s"
            time.sleep(0.02)

    def await_log(self, text: str) -> None:
        """Wait until its log has a text."""
        deadline = time.monotonic() + START_TIMEOUT
        while text not in (log := self.log.read_text()):
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {log}"
            assert time.monotonic() < deadline, f"no {text} within {START_TIMEOUT} s: {log}"
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def press_ctrl_c(self) -> None:
        """Send SIGINT to the command and all its children, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        return self.process.wait(STOP_TIMEOUT)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    # Tests run side by side: only one of them could have the default port.
    return {**clean, "MAINSPRING_HTTP": "none", **more}


def command(*arguments: str) -> list[str]:
    """Return the arguments that run the command."""
    return [sys.executable, "-m", "mainspring", *arguments]


def mainspring(
    *arguments: str,
    cwd: Path,
    input: bytes | None = None,  # noqa: A002 - the name in subprocess
    prefix: Sequence[str] = (),
    **variables: str,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end; ``prefix`` is a program to run it with."""
    return commands.run(
        [*prefix, *command(*arguments)],
        cwd=cwd,
        env=environment(**variables),
        input=input,
        capture_output=True,
        timeout=60,
    )


@contextlib.contextmanager
def node(
    *arguments: str, cwd: Path, faces: tuple[str, ...] = ("gearman",), worker: bool = True, **variables: str
) -> Iterator[Node]:
    """Run a command that listens on the named faces, and wait until it is ready.

    With ``run`` also until a worker is connected, as its log says; ``worker=False``: none will be, or the log is elsewhere.
    """
    with started(command(*arguments), cwd=cwd, faces=faces, env=environment(**variables)) as running:
        if worker and arguments[0] == "run":
            running.await_log('"connected"')
        yield running


@contextlib.contextmanager
def started(
    arguments: Sequence[str],
    *,
    cwd: Path,
    faces: tuple[str, ...] = ("gearman",),
    env: Mapping[str, str] | None = None,
    stderr: int | None = None,
) -> Iterator[Node]:
    """Run a program that listens on the named faces, and wait until it is ready. ``stderr``: instead of a file."""
    log = cwd / f"node-{time.monotonic_ns()}.log"
    with log.open("wb") as errors:
        process = commands.start(
            arguments,
            cwd=cwd,
            env=environment() if env is None else env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors if stderr is None else stderr,
            start_new_session=True,
        )
    running = Node(process, log)
    try:
        _await_ports(running, faces)
        yield running
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _await_ports(running: Node, faces: tuple[str, ...]) -> None:
    stdout = running.process.stdout
    assert stdout is not None
    deadline = time.monotonic() + START_TIMEOUT
    seen = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while set(faces) - set(running.ports):
            if not selector.select(deadline - time.monotonic()):
                raise AssertionError(f"not ready within {START_TIMEOUT} s; its log: {running.log.read_text()}")
            chunk = os.read(stdout.fileno(), 4096)
            if not chunk:
                raise AssertionError(f"ended with {running.process.wait()}; its log: {running.log.read_text()}")
            seen += chunk
            for line in seen.decode().splitlines():
                word, _, rest = line.partition(" ")
                if word == "listening":
                    face, _, address = rest.partition(" ")
                    running.ports[face] = address


def is_alive(pid: int) -> bool:
    """Return whether a process has not ended; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def answers(port: int) -> bool:
    """Return whether a server listens on a port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
