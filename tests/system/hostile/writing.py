"""Attacks on a node's store: another program's lock, a full disk, revoked rights."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from tests.interop.packets import Kind, encode
from tests.system.servers import eventually

from .watching import get, ping_for, watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.system.disks import Filled
    from tests.system.servers import Server

LOCK_TIMEOUT = 5.0
"""Seconds for which a node waits for another program's lock before it refuses submissions."""
CAUSE = "another program has locked"
LOG_LINES = 10
"""Limit of log lines while a store refuses all writes for some seconds."""


def foreign_writer(server: Server, *, seconds: float) -> None:
    """Hold SQLite's write lock: submissions wait, and are refused after a while; all other requests must be served."""
    before = len(server.log_text())
    with server.peer() as client, server.peer() as other, closing(_connect(server)) as foreign:
        client.sync()
        foreign.execute("BEGIN IMMEDIATE")
        with watched(server):
            client.send(Kind.SUBMIT_JOB_BG, b"locked", b"unique", b"")
            begun = time.monotonic()
            assert get(server.http, "/healthz") == (200, b"ok\n")
            ping_for(other, seconds - (time.monotonic() - begun))
            if seconds > LOCK_TIMEOUT:
                assert client.receive().kind is Kind.ERROR
                assert get(server.http, "/readyz")[0] == 503
            foreign.execute("ROLLBACK")
            if seconds > LOCK_TIMEOUT:
                eventually(lambda: get(server.http, "/readyz")[0] == 200, "it becomes ready by itself")
                client.send(Kind.SUBMIT_JOB_BG, b"locked", b"unique", b"")
            assert client.receive().kind is Kind.JOB_CREATED
    assert CAUSE in server.log_text()
    assert server.log_text()[before:].count(CAUSE) <= LOG_LINES


def _connect(server: Server) -> sqlite3.Connection:
    return sqlite3.connect(server.directory / "jobs.db", isolation_level=None)


def full_disk(filled: Filled, *, refusals: int) -> None:
    """Fill the disk and keep submitting: the node must become unready, log the cause once, and recover when space is freed."""
    server = filled.server
    packet = encode(Kind.SUBMIT_JOB_BG, b"backlog", b"", b"x" * 4096)
    with server.peer() as client:
        client.sync()
        eventually(lambda: get(server.http, "/readyz")[0] == 200, "it is ready")
        filled.fill()
        before = len(server.log_text())
        with watched(server):
            refused = 0
            while refused < refusals:
                client.write(packet * 100)
                refused += sum(client.receive().kind is Kind.ERROR for _ in range(100))
            status, page = get(server.http, "/readyz")
            assert status == 503, page
            assert get(server.http, "/healthz")[0] == 200
        assert server.log_text()[before:].count("\n") <= LOG_LINES
        filled.free()
        eventually(lambda: get(server.http, "/readyz")[0] == 200, "it becomes ready by itself, without a submission")
        client.submit(b"backlog", b"", b"after", Kind.SUBMIT_JOB_BG)


def revoked_rights(server: Server, owner: Callable[[str], object]) -> None:
    """Revoke the right to insert from a node's role on PostgreSQL, and grant it again."""
    tables = "INSERT ON ALL TABLES IN SCHEMA mainspring"
    with server.peer() as client:
        client.submit(b"f", b"", b"", Kind.SUBMIT_JOB_BG)
        assert get(server.http, "/readyz")[0] == 200
        owner(f"REVOKE {tables} FROM hostile")
        before = len(server.log_text())
        with watched(server):
            for _ in range(100):
                client.send(Kind.SUBMIT_JOB_BG, b"f", b"", b"")
                assert client.receive().kind is Kind.ERROR
            assert get(server.http, "/readyz")[0] == 503
        assert server.log_text()[before:].count("\n") <= LOG_LINES
        owner(f"GRANT {tables} TO hostile")
        eventually(lambda: get(server.http, "/readyz")[0] == 200, "it becomes ready by itself")
        client.submit(b"f", b"", b"", Kind.SUBMIT_JOB_BG)
