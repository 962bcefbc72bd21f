"""Attacks that fill a node's memory: unread results, long names, many foreground jobs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.interop.packets import Kind, encode
from tests.system.extension import ExtensionKind
from tests.system.servers import eventually

from .watching import MIB, ping_for, watched

if TYPE_CHECKING:
    from tests.system.servers import Server


def unread_results(server: Server, *, connections: int, waits: int, result: int) -> None:
    """Request one large result many times on many connections, and read none; a client that reads must receive it."""
    with ExitStack() as stack:
        client = stack.enter_context(server.extended())
        handle = run_job(server, b"large", bytes(result))
        attackers = [stack.enter_context(server.extended()) for _ in range(connections)]
        with watched(server):
            for attacker in attackers:
                attacker.write(encode(ExtensionKind.WAIT, handle) * waits)
            ping_for(client, 2.0)
            outcome = attackers[-1].result()
            assert (outcome.handle, outcome.state, len(outcome.data)) == (handle, b"succeeded", result)


def run_job(server: Server, function: bytes, result: bytes) -> bytes:
    """Run a job with this result, and return its handle."""
    with server.extended() as client, server.worker(function) as worker:
        handle = client.submit_new(function)
        assert worker.settle_as(worker.job(), b"succeeded", result) == b"recorded"
    return handle


def client_ids(server: Server, *, connections: int, size: int) -> None:
    """Send a long client id on each of some connections; the server must refuse it, so that it takes no memory."""
    with ExitStack() as stack:
        named = stack.enter_context(server.peer())
        named.send(Kind.SET_CLIENT_ID, b"i" * 1024)
        with watched(server):
            for _ in range(connections):
                attacker = stack.enter_context(server.peer())
                attacker.send(Kind.SET_CLIENT_ID, b"i" * size)
                assert [packet.kind for packet in attacker.pending()] == [Kind.ERROR]
            lines = named.table(b"workers")
        assert sum(b"i" * 1024 in line for line in lines) == 1
        assert max(map(len, lines)) < 2048


def foreground_jobs(server: Server, *, count: int, left: int) -> None:
    """Submit many foreground jobs and disconnect, twice: the second time may leave at most ``left`` bytes more in use.

    The first time takes what the allocator keeps of a peak: how much of it goes back depends on what lies between.
    """
    with server.peer() as other:
        submit_and_leave(server, count)
        other.sync()
        before = server.rss()
        submit_and_leave(server, count)
        other.sync()
        eventually(lambda: server.rss() - before < left, f"at most {left / MIB:.0f} MiB more are in use")


def submit_and_leave(server: Server, count: int) -> None:
    """Submit foreground jobs on one connection and close it."""
    packet = encode(Kind.SUBMIT_JOB, b"foreground", b"", b"")
    with server.peer() as client:
        for begun in range(0, count, 1000):
            several = min(1000, count - begun)
            client.write(packet * several)
            for _ in range(several):
                client.expect(Kind.JOB_CREATED)
