"""A function's numbers of jobs and workers, read by Gearman's text protocol."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple


class Counts(NamedTuple):
    """A function's queued and running jobs, and its workers."""

    jobs: int
    workers: int


def connect(address: str | None = None) -> socket.socket:
    """Connect to HOST:PORT, the first one of several, by default the server of MAINSPRING_SERVER."""
    host, _, port = (address or os.environ["MAINSPRING_SERVER"]).partition(",")[0].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def decisions(workflow: str) -> str:
    """Return the name that the command prints for the decisions of a workflow's first version."""
    return f"{workflow}@1 (decisions)"


def counts(server: socket.socket, function: str) -> Counts:
    """Return the counts of a function; they are 0 for a function that the server has not registered."""
    server.sendall(b"status\n")
    answer = b""
    while answer != b".\n" and not answer.endswith(b"\n.\n"):
        received = server.recv(65536)
        if not received:
            raise ConnectionError("the server closed the connection")
        answer += received
    for line in answer.decode().splitlines():
        name, *numbers = line.split("\t")
        if name == function:
            return Counts(jobs=int(numbers[0]), workers=int(numbers[2]))
    return Counts(0, 0)
