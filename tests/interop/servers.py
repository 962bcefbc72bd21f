"""Starts the compared servers: gearmand, the oracle, and Mainspring."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tests import commands

from .packets import PACKET_TIMEOUT, Peer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_TIMEOUT = 30.0


class Server:
    """A running server; ``kind`` is ``gearmand`` or ``mainspring``."""

    def __init__(self, kind: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.kind = kind
        self.port = port
        self.process = process
        self.log = log
        self._peers: list[Peer] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_mainspring(self) -> bool:
        return self.kind != "gearmand"

    def peer(self) -> Peer:
        """Connect; the connection ends with the test."""
        peer = Peer(self.port)
        self._peers.append(peer)
        return peer

    def worker(self, *functions: bytes) -> Peer:
        """Connect a worker that is registered for functions."""
        peer = self.peer()
        peer.can_do(*functions)
        return peer

    def disconnect(self) -> None:
        """Close all connections."""
        while self._peers:
            self._peers.pop().close()

    def stop(self) -> None:
        """End the process, first with SIGTERM."""
        self.disconnect()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PACKET_TIMEOUT)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def unused_port() -> int:
    """Return a port of 127.0.0.1 that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_gearmand(program: str, directory: Path, *options: str) -> Server:
    """Start gearmand, with one thread so that its answers have a fixed order, and wait until it accepts connections."""
    port = unused_port()
    log = directory / f"gearmand-{port}.log"
    command = [program, "-t", "0", "-L", "127.0.0.1", "-p", str(port), "-l", "stderr", *options]
    if os.getuid() == 0:
        command += ["-u", "root"]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=directory, start_new_session=True
        )
    server = Server("gearmand", port, process, log)
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PACKET_TIMEOUT).close()
        except ConnectionRefusedError:
            # gearmand reports nothing when it is ready, so poll
            if process.poll() is not None or time.monotonic() > deadline:
                server.stop()
                raise RuntimeError(f"gearmand did not start: {log.read_text()}") from None
            time.sleep(0.005)
        else:
            return server


def start_mainspring(directory: Path, *options: str) -> Server:
    """Start `mainspring gearmand`, and wait until it prints its address."""
    port = unused_port()
    log = directory / f"mainspring-{port}.log"
    command = [sys.executable, "-m", "mainspring", "gearmand", "-p", str(port), "-L", "127.0.0.1", *options]
    with log.open("wb") as sink:
        process = commands.start(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sink,
            cwd=directory,
            start_new_session=True,
        )
    server = Server("mainspring", port, process, log)
    try:
        await_line(process, f"listening gearman 127.0.0.1:{port}".encode())
    except RuntimeError as error:
        server.stop()
        raise RuntimeError(f"mainspring did not start: {error}; {log.read_text()}") from None
    return server


def await_line(process: subprocess.Popen[bytes], expected: bytes) -> None:
    """Read a process's output up to a line. Raises RuntimeError if the process ends first or at the time-out."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_TIMEOUT
    seen = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while expected not in seen.splitlines():
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise RuntimeError(f"{expected!r} did not arrive, only {seen!r}")
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                raise RuntimeError(f"the process ended after printing {seen!r}")
            seen += data


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Stop the server in every outcome."""
    try:
        yield server
    finally:
        server.stop()
