"""Workers that leave: with a request for the next job while another connection submits, or behind calls that wait."""

from __future__ import annotations

import itertools
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.interop.packets import Kind, encode

from .extension import ExtensionKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from .extension import ExtensionPeer

ROUNDS = 2
"""How often workers of both protocols leave in each way."""
NEXT_JOB = 20.0
"""Seconds until a lost job must have come: less than the longest call, for which reading may pause."""
MORE_THAN_TLS_READS = 600_000
"""Bytes that a TLS transport does not read while the reading of its protocol is paused."""
UNKNOWN = (b"0", b"0", b"0", b"0")


def assert_leaving_workers_keep_no_job(connect: Callable[[], ExtensionPeer], function: bytes) -> None:
    """Let plain workers and workers of the extension leave, and assert that others get the jobs that were submitted then."""
    with connect() as client:
        kinds = [Kind.SUBMIT_JOB, Kind.SUBMIT_JOB_BG]
        ways = itertools.product((_as_plain_worker, _as_extended_worker), (kinds, kinds[::-1]), (True, False))
        for take, order, is_before in [*ways] * ROUNDS:
            submits = b"".join(encode(kind, function, b"", b"") for kind in order)
            first = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
            with connect() as worker:
                parting = take(worker, function, first)
                if is_before:
                    client.write(submits)
                worker.write(parting)
                worker.socket.shutdown(socket.SHUT_WR)
                if not is_before:
                    client.write(submits)
                with suppress(ConnectionResetError):
                    while worker.socket.recv(4096):
                        pass
            left = {client.expect(Kind.JOB_CREATED)[0] for _ in range(2)}
            client.await_status(first, *UNKNOWN)
            with connect() as other:
                other.extend()
                other.register(function)
                while left:
                    other.ready()
                    job = other.job()
                    left.remove(job.handle)
                    assert other.settle_as(job, b"succeeded") == b"recorded"
            client.expect(Kind.WORK_COMPLETE)


def wait_for_log_lines(worker: ExtensionPeer, handle: bytes) -> None:
    """Send more long calls than a peer may have under way: the server reads no more from it until they are answered."""
    params = b'{"handle": "%b", "whole": true, "wait": 30}' % handle
    worker.write(encode(ExtensionKind.CALL, b"1", b"jobs.logs", params) * 40)


def assert_a_worker_whose_calls_wait_keeps_no_job(connect: Callable[[], ExtensionPeer], function: bytes) -> None:
    """Let a worker close its connection while the server does not read from it."""
    with connect() as client, connect() as worker, connect() as other:
        for peer in (client, worker, other):
            peer.extend()
        handle = client.submit_new(function)
        worker.register(function)
        worker.ready()
        assert worker.job().handle == handle
        wait_for_log_lines(worker, handle)
        worker.send(Kind.ECHO_REQ, bytes(MORE_THAN_TLS_READS))
        worker.close()
        other.register(function)
        other.ready()
        other.socket.settimeout(NEXT_JOB)
        job = other.job()
        assert job.handle == handle
        assert other.settle_as(job, b"succeeded") == b"recorded"
        other.assert_silent()


def _as_plain_worker(worker: ExtensionPeer, function: bytes, handle: bytes) -> bytes:
    """Take a job, and return what reports it and requests the next one."""
    worker.can_do(function)
    while (answer := worker.grab()).kind is Kind.NO_JOB:
        worker.send(Kind.PRE_SLEEP)
        worker.expect(Kind.NOOP)
    assert answer.arguments[0] == handle
    return encode(Kind.WORK_COMPLETE, handle, b"") + encode(Kind.GRAB_JOB)


def _as_extended_worker(worker: ExtensionPeer, function: bytes, handle: bytes) -> bytes:
    worker.extend()
    worker.register(function)
    worker.ready()
    job = worker.job()
    assert job.handle == handle
    settled = encode(ExtensionKind.SETTLE, job.handle, job.token, b"succeeded", b"", b"")
    return settled + encode(ExtensionKind.READY, b"1")
