"""Deliberate differences between Mainspring and gearmand: each docstring describes what gearmand does and why it is changed."""

from __future__ import annotations

import re
import selectors
import socket
import struct
import time
from typing import TYPE_CHECKING

import pytest

from .packets import PACKET_TIMEOUT, REQUEST, Kind, encode, packet_of

if TYPE_CHECKING:
    from .conftest import Start
    from .packets import Peer
    from .servers import Server


def test_packets_with_too_few_arguments_are_answered(mainspring: Server) -> None:
    """gearmand waits for the missing NUL, and so swallows later packets until one contains it."""
    packets: list[tuple[Kind, list[bytes]]] = [
        (Kind.SUBMIT_JOB, [b"function"]),
        (Kind.SUBMIT_JOB, [b"function", b"unique"]),
        (Kind.SUBMIT_JOB_BG, []),
        (Kind.SUBMIT_JOB_EPOCH, [b"function", b"unique", b"1"]),
        (Kind.SUBMIT_REDUCE_JOB, [b"function", b"unique", b"reducer"]),
        (Kind.WORK_STATUS, [b"H:x:1", b"1"]),
        (Kind.CAN_DO_TIMEOUT, [b"function"]),
    ]
    for kind, arguments in packets:
        peer = mainspring.peer()
        peer.send(kind, *arguments)
        code, message = peer.expect(Kind.ERROR)
        assert re.fullmatch(rb"[A-Z_]+", code)
        assert message
        peer.sync()


def test_a_result_packet_may_hold_only_the_handle(mainspring: Server, function: bytes) -> None:
    """gearmand ends the worker's connection and gives the job to the next worker; Perl's library sends this for false values."""
    client, worker = mainspring.peer(), mainspring.worker(function)
    client.option(b"exceptions")
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    for kind in (Kind.WORK_DATA, Kind.WORK_WARNING, Kind.WORK_COMPLETE):
        worker.send(kind, handle)
    worker.sync()
    assert client.pending() == [
        packet_of(kind, handle, b"") for kind in (Kind.WORK_DATA, Kind.WORK_WARNING, Kind.WORK_COMPLETE)
    ]


def test_an_exception_packet_may_hold_only_the_handle(mainspring: Server, function: bytes) -> None:
    """gearmand ends the worker's connection and gives the job to the next worker."""
    client, worker = mainspring.peer(), mainspring.worker(function)
    client.option(b"exceptions")
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_EXCEPTION, handle)
    worker.sync()
    assert client.pending() == [packet_of(Kind.WORK_EXCEPTION, handle, b"")]


def test_a_functions_name_has_at_most_512_bytes(mainspring: Server) -> None:
    """gearmand accepts any length, although its own library refuses to send more than 512 bytes."""
    peer = mainspring.peer()
    peer.send(Kind.SUBMIT_JOB_BG, b"f" * 513, b"", b"")
    assert peer.expect(Kind.ERROR)[0] == b"ARGUMENT_TOO_LARGE"
    assert peer.submit(b"f" * 512, b"", b"", Kind.SUBMIT_JOB_BG)


def test_a_unique_of_64_bytes_matches_itself(mainspring: Server, function: bytes) -> None:
    """gearmand cuts it to 63 bytes, and then never finds it again."""
    client, worker = mainspring.peer(), mainspring.worker(function)
    unique = b"x" * 64
    handle = client.submit(function, unique, b"pay", Kind.SUBMIT_JOB_BG)
    assert client.submit(function, unique, b"load", Kind.SUBMIT_JOB_BG) == handle
    assert client.submit(function, b"x" * 63, b"other", Kind.SUBMIT_JOB_BG) != handle
    assert worker.grab(Kind.GRAB_JOB_UNIQ) == packet_of(Kind.JOB_ASSIGN_UNIQ, handle, function, unique, b"pay")


def test_a_background_job_stays_when_a_foreground_client_of_its_unique_leaves(
    mainspring: Server, function: bytes, unique: bytes
) -> None:
    """gearmand drops the job, although it has acknowledged it to another client."""
    background, foreground, watcher = mainspring.peer(), mainspring.peer(), mainspring.peer()
    handle = foreground.submit(function, unique, b"x")
    assert background.submit(function, unique, b"x", Kind.SUBMIT_JOB_BG) == handle
    foreground.close()
    background.close()
    watcher.await_waiters(unique, 0)
    worker = mainspring.worker(function)
    assert worker.grab_assigned() == (handle, function, b"x")
    worker.complete(handle)


def test_a_unique_runs_when_it_is_submitted_after_a_cancel(mainspring: Server, function: bytes) -> None:
    """gearmand keeps the cancelled job until a worker connects, and lets new submissions join it."""
    client = mainspring.peer()
    first = client.submit(function, b"u", b"1", Kind.SUBMIT_JOB_BG)
    assert client.ask(b"cancel job " + first) == b"OK\r\n"
    assert client.status(first) == (b"0", b"0", b"0", b"0")
    second = client.submit(function, b"u", b"2", Kind.SUBMIT_JOB_BG)
    assert second != first
    worker = mainspring.worker(function)
    assert worker.grab_assigned() == (second, function, b"2")
    worker.complete(second)


def test_the_failure_in_place_of_an_exception_has_a_clean_handle(mainspring: Server, function: bytes) -> None:
    """gearmand leaves a NUL at its end: libgearman hangs, and the Perl client crashes."""
    client, worker = mainspring.peer(), mainspring.worker(function)
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_EXCEPTION, handle, b"bad")
    worker.sync()
    assert client.pending() == [packet_of(Kind.WORK_FAIL, handle)]


def test_a_worker_may_fail_a_job_after_its_exception(mainspring: Server, function: bytes) -> None:
    """gearmand answers JOB_NOT_FOUND, which kills Perl's workers: they send a failure after each exception."""
    client, worker = mainspring.peer(), mainspring.worker(function)
    client.option(b"exceptions")
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_EXCEPTION, handle, b"bad")
    worker.send(Kind.WORK_FAIL, handle)
    worker.sync()
    assert client.pending() == [packet_of(Kind.WORK_EXCEPTION, handle, b"bad")]


def test_one_sleeper_is_woken_for_one_job(mainspring: Server, function: bytes) -> None:
    """gearmand wakes all of them: a thousand sleepers cost a thousand round trips per job."""
    client, workers = mainspring.peer(), [mainspring.worker(function) for _ in range(5)]
    for worker in workers:
        worker.sleep()
    client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    woken = [worker for worker in workers if worker.pending()]
    assert len(woken) == 1
    woken[0].complete(woken[0].grab_assigned()[0])


def test_the_next_sleeper_is_woken_when_the_first_leaves_without_the_job(mainspring: Server, function: bytes) -> None:
    client, workers = mainspring.peer(), [mainspring.worker(function) for _ in range(3)]
    for worker in workers:
        worker.sleep()
    handle = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    while len(workers) > 1:
        woken = await_woken(workers)
        workers.remove(woken)
        woken.close()
    last = await_woken(workers)
    assert last.grab_assigned()[0] == handle
    last.complete(handle)


def await_woken(sleepers: list[Peer]) -> Peer:
    """Wait until one of the sleepers has a packet to read, which must be the wake-up."""
    with selectors.DefaultSelector() as selector:
        for sleeper in sleepers:
            selector.register(sleeper.socket, selectors.EVENT_READ, sleeper)
        ((key, _), *_) = selector.select(PACKET_TIMEOUT)
    woken: Peer = key.data
    assert woken.receive() == packet_of(Kind.NOOP)
    return woken


def test_a_silent_worker_does_not_strand_the_job_that_woke_it(mainspring: Server, function: bytes) -> None:
    """Only one sleeper is woken; another worker that requests a job by itself must still receive it."""
    client, silent, other = mainspring.peer(), mainspring.worker(function), mainspring.worker(function)
    silent.sleep()
    handle = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    assert silent.pending() == [packet_of(Kind.NOOP)]
    assert other.grab_assigned()[0] == handle
    other.complete(handle)
    assert silent.grab() == packet_of(Kind.NO_JOB)


def test_a_sleeper_is_woken_when_a_job_falls_due(mainspring: Server, function: bytes) -> None:
    """gearmand detects the due job only at the next request."""
    client, worker = mainspring.peer(), mainspring.worker(function)
    due = int(time.time()) + 1
    client.send(Kind.SUBMIT_JOB_EPOCH, function, b"", b"%d" % due, b"later")
    (handle,) = client.expect(Kind.JOB_CREATED)
    worker.sleep()
    assert worker.receive() == packet_of(Kind.NOOP)
    assert time.time() >= due
    assert worker.grab_assigned() == (handle, function, b"later")
    worker.complete(handle)


def test_low_jobs_do_not_starve_behind_one_that_is_not_due(mainspring: Server, function: bytes) -> None:
    """gearmand looks no further than the job of normal priority that is not due."""
    client, worker = mainspring.peer(), mainspring.worker(function)
    client.send(Kind.SUBMIT_JOB_EPOCH, function, b"", b"%d" % (time.time() + 1000), b"later")
    client.expect(Kind.JOB_CREATED)
    handle = client.submit(function, b"", b"now", Kind.SUBMIT_JOB_LOW_BG)
    assert worker.grab_assigned() == (handle, function, b"now")
    worker.complete(handle)


@pytest.mark.parametrize("text", [b"9" * 30, b"-5", b"soon", b""])
def test_an_invalid_time_is_refused(mainspring: Server, function: bytes, text: bytes) -> None:
    """gearmand reads words as 0 and negative times as past ones, and closes the connection at large ones."""
    client = mainspring.peer()
    client.send(Kind.SUBMIT_JOB_EPOCH, function, b"", text, b"x")
    client.expect(Kind.ERROR)
    client.sync()


def test_a_job_can_be_scheduled_by_the_calendar(mainspring: Server, function: bytes) -> None:
    """gearmand defines the packet type, and refuses it."""
    client, worker = mainspring.peer(), mainspring.worker(function)
    month = time.gmtime().tm_mon % 12 + 1
    client.send(Kind.SUBMIT_JOB_SCHED, function, b"", b"0", b"0", b"15", b"%d" % month, b"", b"some day")
    (handle,) = client.expect(Kind.JOB_CREATED)
    assert client.status(handle) == (b"1", b"0", b"0", b"0")
    assert worker.grab() == packet_of(Kind.NO_JOB)
    client.send(Kind.SUBMIT_JOB_SCHED, function, b"", b"61", b"", b"", b"", b"", b"never")
    client.expect(Kind.ERROR)
    client.sync()


def test_the_largest_packet_type_only_closes_its_connection(mainspring: Server) -> None:
    """gearmand and its successor 2.0.0 crash."""
    peer, other = mainspring.peer(), mainspring.peer()
    peer.write(encode(0xFFFFFFFF))
    assert peer.is_refused()
    other.sync()


def test_an_excessive_length_is_refused_by_the_header(mainspring: Server) -> None:
    """gearmand waits for 4 GiB."""
    peer, other = mainspring.peer(), mainspring.peer()
    peer.write(REQUEST + struct.pack(">II", Kind.SUBMIT_JOB, 0xFFFFFFFF))
    peer.write(b"function\0unique\0")
    assert peer.is_refused()
    other.sync()


def test_a_newline_in_a_client_id_forges_no_row(mainspring: Server, unique: bytes) -> None:
    """gearmand prints the newline."""
    peer = mainspring.peer()
    peer.send(Kind.SET_CLIENT_ID, unique + b"\n99 10.0.0.1 forged : everything")
    peer.sync()
    lines = mainspring.peer().table(b"workers")
    assert sum(unique in line for line in lines) == 1
    assert all(re.fullmatch(rb"\d+ 127\.0\.0\.1 .* :.*\n", line) for line in lines)


def test_a_created_function_keeps_its_last_letter(mainspring: Server, function: bytes) -> None:
    """gearmand drops it if the line ends with only LF, as if it were half of CR LF."""
    peer = mainspring.peer()
    assert peer.ask(b"create function " + function) == b"OK\r\n"
    assert function + b"\t0\t0\t0\n" in peer.table(b"status")


def test_dropping_a_function_loses_no_job(mainspring: Server, function: bytes) -> None:
    """gearmand drops the function and orphans its queued jobs."""
    client = mainspring.peer()
    handle = client.submit(function, b"", b"kept", Kind.SUBMIT_JOB_BG)
    client.ask(b"drop function " + function)
    worker = mainspring.worker(function)
    assert worker.grab_assigned() == (handle, function, b"kept")
    worker.complete(handle)


def test_a_half_closed_connection_still_gets_its_reply(mainspring: Server) -> None:
    """As for ``echo status | nc``; gearmand sometimes closes the connection before it answers."""
    for _ in range(20):
        peer = mainspring.peer()
        peer.write(b"getpid\n")
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.line() == b"OK %d\n" % mainspring.process.pid
        assert peer.is_closed()


def test_a_worker_that_exceeded_a_timeout_can_run_further_jobs(mainspring: Server, function: bytes) -> None:
    """gearmand leaves the old timer running, so that it ends the next job."""
    client, worker = mainspring.peer(), mainspring.peer()
    worker.send(Kind.CAN_DO_TIMEOUT, function, b"1000")
    worker.sync()
    first = client.submit(function, b"", b"1")
    assert worker.grab_assigned()[0] == first
    client.await_status(first, b"1", b"0", b"0", b"0")
    assert worker.grab_assigned()[0] == first
    worker.complete(first, b"second try")
    assert client.receive() == packet_of(Kind.WORK_COMPLETE, first, b"second try")
    second = client.submit(function, b"", b"2")
    assert worker.grab_assigned()[0] == second
    worker.complete(second)
    assert client.receive() == packet_of(Kind.WORK_COMPLETE, second, b"")


def test_a_worker_that_falls_asleep_with_a_job_keeps_its_timeout(mainspring: Server, function: bytes) -> None:
    """gearmand cancels the timeout at PRE_SLEEP: if the worker then hangs, the job stays with it."""
    client, worker = mainspring.peer(), mainspring.peer()
    worker.send(Kind.CAN_DO_TIMEOUT, function, b"1000")
    handle = client.submit(function, b"", b"")
    assert worker.grab_assigned()[0] == handle
    worker.sleep()
    client.await_status(handle, b"1", b"0", b"0", b"0")
    second = mainspring.worker(function)
    assert second.grab_assigned()[0] == handle
    second.complete(handle)


def test_an_excessive_timeout_means_none(mainspring: Server, function: bytes) -> None:
    """gearmand may crash."""
    worker = mainspring.peer()
    worker.send(Kind.CAN_DO_TIMEOUT, function, b"9" * 20)
    worker.sync()
    handle = worker.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    assert worker.grab_assigned()[0] == handle
    worker.complete(handle)


@pytest.mark.parametrize("command", [b"shutdown", b"shutdown graceful"])
def test_shutdown_from_this_machine_stops_the_server(start_mainspring: Start, command: bytes) -> None:
    """gearmand 1.1.15 removed the command; with the option it is there again."""
    server = start_mainspring("--allow-shutdown")
    peer = server.peer()
    assert peer.ask(command).startswith(b"OK")
    assert server.process.wait(10) == 0
