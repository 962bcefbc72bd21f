"""Attacks on what a node writes to: another program's lock, a disk without space."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from tests.interop.packets import Kind, encode
from tests.system.servers import eventually

from .watching import attend, get, watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.system.disks import Filled
    from tests.system.servers import Server

PATIENCE = 5.0
"""Seconds for which a node waits for a lock of somebody else before it refuses submits."""
CAUSE = "another program has locked"
LINES = 10
"""Lines of the log that a store may cost that refuses everything for some seconds."""


def foreign_writer(server: Server, *, seconds: float) -> None:
    """Hold SQLite's lock for writing from another program: submits wait, or are refused after a while; all else goes on."""
    before = len(server.written())
    with server.peer() as client, server.peer() as other, closing(_connected(server)) as foreign:
        client.settled()
        foreign.execute("BEGIN IMMEDIATE")
        with watched(server):
            client.send(Kind.SUBMIT_JOB_BG, b"locked", b"unique", b"")
            begun = time.monotonic()
            assert get(server.http, "/healthz") == (200, b"ok\n")
            attend(other, seconds - (time.monotonic() - begun))
            if seconds > PATIENCE:
                assert client.receive().kind is Kind.ERROR
                assert get(server.http, "/readyz")[0] == 503
            foreign.execute("ROLLBACK")
            if seconds > PATIENCE:
                eventually(lambda: get(server.http, "/readyz")[0] == 200, "it is ready by itself")
                client.send(Kind.SUBMIT_JOB_BG, b"locked", b"unique", b"")
            assert client.receive().kind is Kind.JOB_CREATED
    assert CAUSE in server.written()
    assert server.written()[before:].count(CAUSE) <= LINES


def _connected(server: Server) -> sqlite3.Connection:
    return sqlite3.connect(server.directory / "jobs.db", isolation_level=None)


def full_disk(filled: Filled, *, refusals: int) -> None:
    """Leave no space and submit on: the node is not ready, says why once, and goes on where there is space."""
    server = filled.server
    packet = encode(Kind.SUBMIT_JOB_BG, b"backlog", b"", b"x" * 4096)
    with server.peer() as client:
        client.settled()
        eventually(lambda: get(server.http, "/readyz")[0] == 200, "it is ready")
        filled.fill()
        before = len(server.written())
        with watched(server):
            refused = 0
            while refused < refusals:
                client.write(packet * 100)
                refused += sum(client.receive().kind is Kind.ERROR for _ in range(100))
            status, said = get(server.http, "/readyz")
            assert status == 503, said
            assert get(server.http, "/healthz")[0] == 200
        assert server.written()[before:].count("\n") <= LINES
        filled.free()
        eventually(lambda: get(server.http, "/readyz")[0] == 200, "it is ready by itself, without a submit")
        client.submit(b"backlog", b"", b"after", Kind.SUBMIT_JOB_BG)


def revoked_rights(server: Server, owner: Callable[[str], object]) -> None:
    """Take the right to insert from the role of a node on PostgreSQL, and give it back."""
    tables = "INSERT ON ALL TABLES IN SCHEMA mainspring"
    with server.peer() as client:
        client.submit(b"f", b"", b"", Kind.SUBMIT_JOB_BG)
        assert get(server.http, "/readyz")[0] == 200
        owner(f"REVOKE {tables} FROM hostile")
        before = len(server.written())
        with watched(server):
            for _ in range(100):
                client.send(Kind.SUBMIT_JOB_BG, b"f", b"", b"")
                assert client.receive().kind is Kind.ERROR
            assert get(server.http, "/readyz")[0] == 503
        assert server.written()[before:].count("\n") <= LINES
        owner(f"GRANT {tables} TO hostile")
        eventually(lambda: get(server.http, "/readyz")[0] == 200, "it is ready by itself")
        client.submit(b"f", b"", b"", Kind.SUBMIT_JOB_BG)
