"""Bounds of memory, which depends on running jobs and not on queued ones, and the waking of one worker among many."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from tests.interop.packets import Kind, encode, packet_of

from .extension import ExtensionKind, ExtensionPeer
from .servers import Server, eventually, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 2**20
UNREAD_ANSWERS = 2000


def submit_uniques(peer: ExtensionPeer, first: int, count: int) -> float:
    """Submit jobs with distinct uniques, thousands before an answer is read, and return the duration in seconds."""
    start = time.monotonic()
    for at in range(first, first + count, UNREAD_ANSWERS):
        numbers = range(at, min(at + UNREAD_ANSWERS, first + count))
        peer.write(b"".join(encode(Kind.SUBMIT_JOB_BG, b"f", b"unique-%d" % number, b"payload") for number in numbers))
        for _ in numbers:
            peer.expect(Kind.JOB_CREATED)
    return time.monotonic() - start


def queue_uniques(directory: Path, total: int, growth: int) -> None:
    """Queue many jobs with uniques: memory must not grow with them, and the last ones must be as fast as the first."""
    with serving(directory) as server, server.peer() as peer:
        warm = total // 10
        first = submit_uniques(peer, 0, warm)
        before = server.rss()
        submit_uniques(peer, warm, total - 2 * warm)
        last = submit_uniques(peer, total - warm, warm)
        assert server.rss() - before < growth
        assert last < 4 * max(first, 0.5), "the machine may be busy, but a unique's lookup time does not grow"
        client = server.peer()
        client.extend()
        client.request(b"f", b"", b"unique-%d" % (total // 2))
        assert client.expect(ExtensionKind.SUBMITTED)[1] == b"1"
        client.close()
        with server.worker(b"f", places=100) as worker:
            assert [worker.job().unique for _ in range(100)] == [b"unique-%d" % number for number in range(100)]
        assert server.rss() - before < growth + 16 * MIB
        server.assert_healthy()


def test_queued_uniques_use_no_memory(tmp_path: Path) -> None:
    queue_uniques(tmp_path, 100_000, growth=24 * MIB)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_million_queued_uniques_use_no_memory(tmp_path: Path) -> None:
    queue_uniques(tmp_path, 1_000_000, growth=64 * MIB)


def test_ended_jobs_use_no_memory(healthy: Server, function: bytes) -> None:
    """Also if they had a time limit that is far from over."""

    def churn(count: int) -> None:
        options = b'{"timeout": 3600, "heartbeat": 3600, "wait": true}'
        for _ in range(count // 500):
            client.write(encode(ExtensionKind.SUBMIT, function, b"", options, b"x" * 500) * 500)
            worker.ready(500)
            jobs = [worker.job() for _ in range(500)]
            worker.write(
                b"".join(encode(ExtensionKind.SETTLE, job.handle, job.token, b"succeeded", b"", b"") for job in jobs)
            )
            for job in jobs:
                worker.verdict(job)
            ended = 0
            while ended < 500:
                ended += client.next().kind is ExtensionKind.RESULT

    with healthy.extended() as client, healthy.worker(function, places=0) as worker:
        churn(4000)
        before = healthy.rss()
        churn(12_000)
        # SQLite's cache grows by 10 to 20 MiB during the test; a timer for each job makes it 39.
        assert healthy.rss() - before < 26 * MIB


def test_a_worker_that_does_not_read_is_assigned_no_more_jobs(healthy: Server, function: bytes) -> None:
    """Even if it has sent READY for more; it receives all of them once it reads."""
    with healthy.extended() as client, healthy.worker(function, places=0) as worker:
        before = healthy.rss()
        worker.ready(1000)
        worker.assert_silent()
        handles = []
        for _ in range(150):
            client.request(function, bytes(MIB))
            handles.append(client.expect(ExtensionKind.SUBMITTED)[0])
        running = client.call("jobs.list", state="running", function=function.decode())["items"]
        assert 0 < len(running) < 100
        assert healthy.rss() - before < 350 * MIB
        assert [worker.job().handle for _ in handles] == handles


# ---- many sleepers ----


@pytest.fixture
def sleepers(healthy: Server, function: bytes) -> Iterator[list[ExtensionPeer]]:
    """Return a thousand workers that sleep."""
    with ExitStack() as stack:
        workers = [stack.enter_context(healthy.peer()) for _ in range(1000)]
        for worker in workers:
            worker.write(encode(Kind.CAN_DO, function) + encode(Kind.PRE_SLEEP))
        for worker in workers:
            worker.sync()
        yield workers


def find_woken(workers: list[ExtensionPeer]) -> list[ExtensionPeer]:
    """Return the workers that have a packet to read, which must be one NOOP."""
    found = []
    for worker in workers:
        worker.socket.setblocking(False)
        try:
            data = worker.socket.recv(100, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        finally:
            worker.socket.settimeout(10)
        assert data == encode(Kind.NOOP, magic=b"\0RES")
        found.append(worker)
    return found


def test_a_job_wakes_one_of_a_thousand_sleepers(
    healthy: Server, function: bytes, sleepers: list[ExtensionPeer]
) -> None:
    with healthy.peer() as client:
        for number in range(1, 4):
            client.submit(function, b"", b"%d" % number, Kind.SUBMIT_JOB_BG)
            client.sync()
            assert len(find_woken(sleepers)) == number
        first = find_woken(sleepers)
        payloads = set()
        for worker in first:
            worker.expect(Kind.NOOP)
            payloads.add(worker.grab_assigned()[2])
        assert payloads == {b"1", b"2", b"3"}
        assert find_woken(sleepers) == []


def test_a_woken_worker_that_is_silent_strands_no_job(
    healthy: Server, function: bytes, sleepers: list[ExtensionPeer]
) -> None:
    with healthy.peer() as client:
        handle = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
        client.sync()
        (silent,) = find_woken(sleepers)
        others = [worker for worker in sleepers if worker is not silent]
        eventually(lambda: find_woken(others), "another one is woken")
        (other,) = find_woken(others)
        other.expect(Kind.NOOP)
        assert other.grab_assigned()[0] == handle
        silent.expect(Kind.NOOP)
        assert silent.grab() == packet_of(Kind.NO_JOB)


@pytest.mark.parametrize("how", ["leaves", "sleeps again", "takes another", "cannot do it any more"])
def test_a_woken_worker_that_takes_no_job_strands_none(healthy: Server, function: bytes, how: str) -> None:
    with healthy.peer() as client, healthy.peer() as first, healthy.peer() as second:
        for worker in (first, second):
            worker.can_do(function)
            worker.sleep()
        if how == "takes another":
            first.can_do(function + b"2")
        handle = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
        client.sync()
        first.expect(Kind.NOOP)
        if how == "leaves":
            first.close()
        elif how == "sleeps again":
            first.send(Kind.PRE_SLEEP)
            first.expect(Kind.NOOP)  # a job is queued: the server wakes the worker at once
            first.close()
        elif how == "takes another":
            client.submit(function + b"2", b"", b"other", Kind.SUBMIT_JOB_BG)
            client.sync()
            assert first.grab_assigned()[2] == b"other"
        else:
            first.send(Kind.CANT_DO, function)
        second.socket.settimeout(0.9)  # before the server would wake another worker because of silence
        second.expect(Kind.NOOP)
        assert second.grab_assigned()[0] == handle


@pytest.mark.long
def test_queued_foreground_jobs_are_bounded(tmp_path: Path) -> None:
    """They exist only in memory, so the server must refuse more at some point."""
    with serving(tmp_path) as server, server.peer() as client, server.peer() as other:
        before = server.rss()
        packet = encode(Kind.SUBMIT_JOB, b"nobody", b"", bytes(MIB))
        kinds = set()
        for _ in range(1100):
            client.write(packet)
            answer = client.next()
            kinds.add(answer.kind)
            if answer.kind is Kind.ERROR:
                break
        assert kinds == {Kind.JOB_CREATED, Kind.ERROR}, "there is no bound"
        assert server.rss() - before < 1200 * MIB
        assert other.submit(b"nobody", b"", b"stored", Kind.SUBMIT_JOB_BG)
        server.assert_healthy()


def test_a_connection_beyond_the_limit_of_open_files_is_refused_with_an_error(tmp_path: Path, free_port: int) -> None:
    """Idle connections take no file descriptors from workers and clients, nor do those from health checks."""
    limited_files = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    options = ("--http", f"127.0.0.1:{free_port}", "--max-connections", "1000")
    with serving(tmp_path, *options, tracer=limited_files) as server, ExitStack() as stack:
        served = 0
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", free_port), 20))
        while True:
            peer = stack.enter_context(server.peer())
            peer.send(Kind.SUBMIT_JOB_BG, b"f", b"", b"")
            answer = peer.next()
            if answer.kind is Kind.ERROR:
                break
            served += 1
        assert answer.arguments[0] == b"TOO_MANY_CONNECTIONS"
        assert served > 10
        assert "connections are refused" in server.log_text()
        assert urlopen(f"http://127.0.0.1:{free_port}/healthz", timeout=20).read() == b"ok\n"
        assert server.log_text().count("idle connections are ended for new ones") == 1
        server.assert_healthy()
