"""Queries for a job's status by handle and by unique, and jobs that are not due yet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from .packets import Kind, packet_of

if TYPE_CHECKING:
    from .servers import Server


def test_the_status_follows_the_job(server: Server, function: bytes, unique: bytes) -> None:
    client, worker, watcher = server.peer(), server.worker(function), server.peer()
    handle = client.submit(function, unique, b"")
    assert watcher.status(handle) == (b"1", b"0", b"0", b"0")
    assert watcher.status_unique(unique) == (b"1", b"0", b"0", b"0", b"1")
    worker.grab_assigned()
    assert watcher.status(handle) == (b"1", b"1", b"0", b"0")
    assert watcher.status_unique(unique) == (b"1", b"1", b"0", b"0", b"1")
    worker.send(Kind.WORK_STATUS, handle, b"30", b"100")
    worker.sync()
    assert watcher.status(handle) == (b"1", b"1", b"30", b"100")
    assert watcher.status_unique(unique) == (b"1", b"1", b"30", b"100", b"1")
    worker.complete(handle)
    assert watcher.status(handle) == (b"0", b"0", b"0", b"0")
    assert watcher.status_unique(unique) == (b"0", b"0", b"0", b"0", b"0")


def test_a_background_job_has_a_status_too_and_no_clients(server: Server, function: bytes, unique: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, unique, b"", Kind.SUBMIT_JOB_BG)
    assert client.status_unique(unique) == (b"1", b"0", b"0", b"0", b"0")
    worker.grab_assigned()
    worker.send(Kind.WORK_STATUS, handle, b"1", b"2")
    worker.sync()
    assert client.status(handle) == (b"1", b"1", b"1", b"2")
    worker.complete(handle)
    assert client.status_unique(unique) == (b"0", b"0", b"0", b"0", b"0")


@pytest.mark.parametrize("tail", [b"\0", b"\0\0", b"\0more"])
def test_a_handle_as_only_argument_ends_with_its_first_nul(server: Server, function: bytes, tail: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"")
    client.send(Kind.GET_STATUS, handle + tail)
    assert client.expect(Kind.STATUS_RES) == (handle, b"1", b"0", b"0", b"0")
    worker.grab_assigned()
    worker.send(Kind.WORK_FAIL, handle + tail)
    worker.sync()
    (failed,) = client.expect(Kind.WORK_FAIL)
    assert failed.partition(b"\0")[0] == handle, "gearmand forwards the tail"


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"", b"0"),
        (b"abc", b"0"),
        (b" 7 of 9", b"7"),
        (b"1.5", b"1"),
        (b"-5", b"4294967291"),
        (b"4294967295", b"4294967295"),
    ],
)
def test_progress_texts_become_numbers_in_the_status(
    server: Server, function: bytes, sent: bytes, shown: bytes
) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_STATUS, handle, sent, sent)
    worker.sync()
    assert worker.status(handle) == (b"1", b"1", shown, shown)
    worker.complete(handle)
    assert client.pending()[0] == packet_of(Kind.WORK_STATUS, handle, sent, sent)


@pytest.mark.parametrize("handle", [b"H:nowhere:1", b"nonsense", b"", b"H:nowhere:99999999999999999999"])
def test_an_unknown_handle_gives_zeros(server: Server, handle: bytes) -> None:
    assert server.peer().status(handle) == (b"0", b"0", b"0", b"0")


@pytest.mark.parametrize("unique", [b"no such unique", b""])
def test_an_unknown_unique_gives_zeros(server: Server, unique: bytes) -> None:
    assert server.peer().status_unique(unique) == (b"0", b"0", b"0", b"0", b"0")


@pytest.mark.parametrize("seconds", [-10, 0])
def test_a_job_for_a_past_time_is_due(server: Server, function: bytes, seconds: int) -> None:
    client, worker = server.peer(), server.worker(function)
    worker.sleep()
    client.send(Kind.SUBMIT_JOB_EPOCH, function, b"", b"%d" % (time.time() + seconds), b"now")
    (handle,) = client.expect(Kind.JOB_CREATED)
    assert worker.receive() == packet_of(Kind.NOOP)
    assert worker.grab_assigned() == (handle, function, b"now")
    worker.complete(handle, b"quiet")
    client.sync()


def test_a_job_for_a_later_time_waits(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    due = int(time.time()) + 2
    client.send(Kind.SUBMIT_JOB_EPOCH, function, b"", b"%d" % due, b"later")
    (handle,) = client.expect(Kind.JOB_CREATED)
    assert client.status(handle) == (b"1", b"0", b"0", b"0")
    assert worker.grab() == packet_of(Kind.NO_JOB)
    other = client.submit(function, b"", b"other", Kind.SUBMIT_JOB_BG)
    assert worker.grab_assigned()[0] == other
    worker.complete(other)
    client.close()
    # gearmand has no event for a job that falls due, so poll
    deadline = time.monotonic() + 5
    while (answer := worker.grab()) == packet_of(Kind.NO_JOB):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert time.time() >= due
    assert answer == packet_of(Kind.JOB_ASSIGN, handle, function, b"later")
    worker.complete(handle)
