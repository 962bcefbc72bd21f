"""Workers: abilities, grabbing, sleeping and waking, and jobs whose worker or client disconnects."""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from .packets import PACKET_TIMEOUT, Kind, Packet, encode, packet_of

if TYPE_CHECKING:
    from .conftest import Start
    from .servers import Server

GRABS = [Kind.GRAB_JOB, Kind.GRAB_JOB_UNIQ, Kind.GRAB_JOB_ALL]
NOT_FOUND = packet_of(Kind.ERROR, b"JOB_NOT_FOUND", b"Job given in work result not found")
UNKNOWN = (b"0", b"0", b"0", b"0")
QUEUED = (b"1", b"0", b"0", b"0")
RUNNING = (b"1", b"1", b"0", b"0")


# -- grabbing


@pytest.mark.parametrize("grab", GRABS)
def test_a_grab_without_jobs_returns_no_job(server: Server, function: bytes, grab: Kind) -> None:
    assert server.peer().grab(grab) == packet_of(Kind.NO_JOB)
    assert server.worker(function).grab(grab) == packet_of(Kind.NO_JOB)


@pytest.mark.parametrize("unique", [b"", b"some unique", b"-"])
def test_a_grab_may_request_the_unique(server: Server, function: bytes, unique: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    for grab in (Kind.GRAB_JOB_UNIQ, Kind.GRAB_JOB_ALL):
        handle = client.submit(function, unique, b"pay\0load", Kind.SUBMIT_JOB_BG)
        assert worker.grab(grab) == packet_of(Kind.JOB_ASSIGN_UNIQ, handle, function, unique, b"pay\0load")
        worker.complete(handle)


@pytest.mark.parametrize("submit", [Kind.SUBMIT_REDUCE_JOB, Kind.SUBMIT_REDUCE_JOB_BG])
def test_a_grab_of_all_arguments_returns_the_reducer(server: Server, function: bytes, submit: Kind) -> None:
    client, worker = server.peer(), server.worker(function)

    def submit_reduce(reducer: bytes) -> bytes:
        client.send(submit, function, b"u", reducer, b"", b"pay\0load")
        (handle,) = client.expect(Kind.JOB_CREATED)
        return handle

    handle = submit_reduce(b"sum")
    assert worker.grab(Kind.GRAB_JOB_ALL) == packet_of(
        Kind.JOB_ASSIGN_ALL, handle, function, b"u", b"sum", b"pay\0load"
    )
    worker.complete(handle, b"6")
    foreground = submit is Kind.SUBMIT_REDUCE_JOB
    assert client.pending() == ([packet_of(Kind.WORK_COMPLETE, handle, b"6")] if foreground else [])

    answers: dict[Kind, tuple[bytes, ...]] = {
        Kind.GRAB_JOB: (function, b"pay\0load"),
        Kind.GRAB_JOB_UNIQ: (function, b"u", b"pay\0load"),
    }
    for grab, rest in answers.items():
        handle = submit_reduce(b"sum")
        assert worker.grab(grab).arguments == (handle, *rest)
        worker.complete(handle)
        client.pending()

    handle = submit_reduce(b"")
    assert worker.grab(Kind.GRAB_JOB_ALL) == packet_of(Kind.JOB_ASSIGN_UNIQ, handle, function, b"u", b"pay\0load")
    worker.complete(handle)


def test_a_job_is_assigned_to_one_worker(server: Server, function: bytes) -> None:
    client, workers = server.peer(), [server.worker(function) for _ in range(3)]
    handle = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    assert [worker.grab().kind for worker in workers] == [Kind.JOB_ASSIGN, Kind.NO_JOB, Kind.NO_JOB]
    workers[0].complete(handle)


def test_a_worker_may_hold_several_jobs(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handles = [client.submit(function, b"", b"") for _ in range(3)]
    assert [worker.grab_assigned()[0] for _ in range(3)] == handles
    for handle in reversed(handles):
        worker.complete(handle, handle)
        assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, handle)


def test_a_request_after_a_grab_is_answered_after_it(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    for kind in (Kind.SUBMIT_JOB, Kind.SUBMIT_JOB_BG):
        handle = client.submit(function, b"", b"x", kind)
        assert worker.grab_assigned()[0] == handle
        worker.send(Kind.WORK_COMPLETE, handle, b"")
        worker.send(Kind.GRAB_JOB)
        worker.send(Kind.ECHO_REQ, b"behind")
        worker.send(Kind.GRAB_JOB)
        kinds = [worker.receive().kind for _ in range(3)]
        assert kinds == [Kind.NO_JOB, Kind.ECHO_RES, Kind.NO_JOB]
        worker.sync()
        client.pending()


# -- abilities


def test_a_function_that_is_registered_again_is_the_last_one(server: Server, function: bytes) -> None:
    names = [function + b"-1", function + b"-2"]
    client, worker = server.peer(), server.worker(*names, names[0])
    for name in names:
        client.submit(name, b"", b"", Kind.SUBMIT_JOB_BG)
    for name in names:
        handle, seen, _ = worker.grab_assigned()
        assert seen == name
        worker.complete(handle)


def test_the_function_registered_last_is_drained_first(server: Server, function: bytes) -> None:
    names = [function + b"-%d" % number for number in range(3)]
    client, worker = server.peer(), server.worker(*names)
    for _ in range(2):
        for name in names:
            client.submit(name, b"", b"", Kind.SUBMIT_JOB_BG)
    seen = []
    for _ in range(6):
        handle, name, _ = worker.grab_assigned()
        seen.append(name)
        worker.complete(handle)
    assert seen == [name for name in reversed(names) for _ in range(2)]


@pytest.mark.parametrize("option", ["--round-robin", "-R"])
def test_round_robin_alternates_between_functions(start: Start, option: str) -> None:
    server = start(option)
    names = [b"a", b"b", b"c"]
    client, worker = server.peer(), server.worker(*names)
    for _ in range(2):
        for name in names:
            client.submit(name, b"", b"", Kind.SUBMIT_JOB_BG)
    turns = [{worker.grab_assigned()[1] for _ in names} for _ in range(2)]
    assert turns == [set(names)] * 2


def test_a_repeated_ability_changes_nothing_for_its_jobs(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function, function)
    handle = client.submit(function, b"", b"")
    assert worker.grab_assigned()[0] == handle
    assert worker.grab() == packet_of(Kind.NO_JOB)
    worker.complete(handle)
    assert client.expect(Kind.WORK_COMPLETE)


def test_an_ability_can_be_withdrawn(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    worker.send(Kind.CANT_DO, function)
    worker.send(Kind.CANT_DO, b"never registered")
    worker.sync()
    client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    assert worker.grab() == packet_of(Kind.NO_JOB)
    worker.can_do(function)
    worker.complete(worker.grab_assigned()[0])


def test_all_abilities_can_be_withdrawn(server: Server, function: bytes) -> None:
    other = function + b"-other"
    client, worker = server.peer(), server.worker(function, other)
    worker.send(Kind.RESET_ABILITIES)
    worker.sync()
    for name in (function, other):
        client.submit(name, b"", b"", Kind.SUBMIT_JOB_BG)
    assert worker.grab() == packet_of(Kind.NO_JOB)
    worker.can_do(function, other)
    for _ in range(2):
        worker.complete(worker.grab_assigned()[0])


@pytest.mark.parametrize("refuse", [Kind.CANT_DO, Kind.RESET_ABILITIES])
def test_withdrawing_an_ability_releases_its_running_jobs(server: Server, function: bytes, refuse: Kind) -> None:
    client, first, second = server.peer(), server.worker(function), server.worker(function)
    handle = client.submit(function, b"", b"x")
    first.grab_assigned()
    first.send(refuse, *[function] * (refuse is Kind.CANT_DO))
    first.sync()
    assert client.status(handle) == QUEUED
    assert second.grab_assigned() == (handle, function, b"x")
    first.send(Kind.WORK_COMPLETE, handle, b"too late")
    assert first.receive() == NOT_FOUND
    second.complete(handle, b"in time")
    assert client.pending() == [packet_of(Kind.WORK_COMPLETE, handle, b"in time")]


# -- sleeping and waking


def test_a_sleeper_is_woken_by_a_job(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    worker.sleep()
    handle = client.submit(function, b"", b"")
    assert worker.receive() == packet_of(Kind.NOOP)
    assert worker.grab_assigned()[0] == handle
    worker.complete(handle)


def test_a_sleeper_is_woken_only_for_its_own_functions(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    worker.sleep()
    client.submit(function + b"-other", b"", b"")
    client.sync()
    assert worker.pending() == []


def test_a_worker_that_sleeps_while_a_job_is_queued_is_woken_at_once(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    worker.send(Kind.PRE_SLEEP)
    assert worker.receive() == packet_of(Kind.NOOP)
    assert worker.grab_assigned()[0] == handle
    worker.complete(handle)


def test_a_woken_worker_receives_no_more_wake_ups_until_it_sleeps_again(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    worker.sleep()
    for _ in range(3):
        client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    assert worker.pending() == [packet_of(Kind.NOOP)]
    for _ in range(3):
        worker.complete(worker.grab_assigned()[0])
    assert worker.grab() == packet_of(Kind.NO_JOB)
    worker.sleep()
    client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    assert worker.receive() == packet_of(Kind.NOOP)
    worker.complete(worker.grab_assigned()[0])


def test_a_worker_that_does_not_sleep_is_not_woken(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
    assert worker.pending() == []
    worker.complete(worker.grab_assigned()[0])
    assert client.status(handle) == UNKNOWN


def test_every_job_finds_a_worker_among_sleepers(server: Server, function: bytes) -> None:
    client, workers = server.peer(), [server.worker(function) for _ in range(4)]
    for worker in workers:
        worker.sleep()
    handles = {client.submit(function, b"", b"") for _ in workers}
    found = set()
    for worker in workers:
        assert worker.receive() == packet_of(Kind.NOOP)
        found.add(worker.grab_assigned()[0])
    assert found == handles


def test_a_sleeper_that_has_no_abilities_left_is_not_woken(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    worker.sleep()
    worker.send(Kind.RESET_ABILITIES)
    worker.sync()
    client.submit(function, b"", b"")
    assert worker.pending() == []


# -- workers that disconnect


@pytest.mark.parametrize("submit", [Kind.SUBMIT_JOB, Kind.SUBMIT_JOB_BG])
def test_another_worker_runs_the_job_of_a_lost_worker(server: Server, function: bytes, submit: Kind) -> None:
    client, first, second = server.peer(), server.worker(function), server.worker(function)
    handle = client.submit(function, b"", b"x", submit)
    first.grab_assigned()
    second.sleep()
    first.send(Kind.WORK_STATUS, handle, b"3", b"4")
    first.sync()
    assert client.pending() == ([packet_of(Kind.WORK_STATUS, handle, b"3", b"4")] if submit is Kind.SUBMIT_JOB else [])
    assert client.status(handle) == (b"1", b"1", b"3", b"4")
    first.close()
    assert second.receive() == packet_of(Kind.NOOP)
    assert client.status(handle) == QUEUED
    assert second.grab_assigned() == (handle, function, b"x")
    second.complete(handle, b"done")
    assert client.pending() == ([packet_of(Kind.WORK_COMPLETE, handle, b"done")] if submit is Kind.SUBMIT_JOB else [])


def test_without_a_limit_a_job_survives_many_workers(server: Server, function: bytes) -> None:
    client = server.peer()
    handle = client.submit(function, b"", b"x")
    for _ in range(10):
        worker = server.worker(function)
        assert worker.grab_assigned()[0] == handle
        worker.close()
        client.await_status(handle, *QUEUED)
    worker = server.worker(function)
    worker.complete(worker.grab_assigned()[0], b"at last")
    assert client.pending() == [packet_of(Kind.WORK_COMPLETE, handle, b"at last")]


@pytest.mark.parametrize("option", [["--job-retries=2"], ["-j", "2"]], ids=["long", "short"])
def test_job_retries_limit_the_workers_that_a_job_may_lose(start: Start, option: list[str]) -> None:
    server = start(*option)
    client = server.peer()
    handle = client.submit(b"f", b"", b"")
    silent = client.submit(b"f", b"", b"", Kind.SUBMIT_JOB_LOW_BG)
    for after in (QUEUED, UNKNOWN):
        worker = server.worker(b"f")
        assert worker.grab_assigned()[0] == handle
        worker.close()
        server.peer().await_status(handle, *after)
    assert client.receive() == packet_of(Kind.WORK_FAIL, handle)
    for after in (QUEUED, UNKNOWN):
        worker = server.worker(b"f")
        assert worker.grab_assigned()[0] == silent
        worker.close()
        client.await_status(silent, *after)
    assert server.worker(b"f").grab() == packet_of(Kind.NO_JOB)
    client.sync()


def test_a_job_that_exceeds_its_timeout_goes_to_another_worker(server: Server, function: bytes) -> None:
    """The timeout is one second, the minimum of gearmand."""
    client, slow, second = server.peer(), server.peer(), server.peer()
    slow.send(Kind.CAN_DO_TIMEOUT, function, b"1000")
    slow.sync()
    handle = client.submit(function, b"", b"x")
    slow.grab_assigned()
    client.await_status(handle, *QUEUED)
    second.can_do(function)
    assert second.grab_assigned() == (handle, function, b"x")
    slow.send(Kind.WORK_COMPLETE, handle, b"too late")
    assert slow.receive() == NOT_FOUND
    second.complete(handle, b"done")
    assert client.pending() == [packet_of(Kind.WORK_COMPLETE, handle, b"done")]


def test_a_timeout_is_read_up_to_its_first_letter(server: Server, function: bytes) -> None:
    """As in C's strtol; gearmand raises "10s", 10 milliseconds, to a second. All four timeouts pass at the same time."""
    client, assigned = server.peer(), []
    for number, timeout in enumerate([b" 1000", b"+1000", b"1000ms", b"10s"]):
        worker, name = server.peer(), b"%b-%d" % (function, number)
        worker.send(Kind.CAN_DO_TIMEOUT, name, timeout)
        worker.sync()
        handle = client.submit(name, b"", b"x")
        worker.grab_assigned()
        assigned.append(handle)
    for handle in assigned:
        client.await_status(handle, *QUEUED)


NO_TIMEOUTS = [b"0", b"", b"-1", b"soon", struct.pack(">I", 2000)]
"""Older Go libraries send the last one."""


@pytest.mark.parametrize("timeout", [*NO_TIMEOUTS, b"60000"], ids=repr)
def test_a_long_timeout_or_none_changes_nothing(server: Server, function: bytes, timeout: bytes) -> None:
    client, worker = server.peer(), server.peer()
    worker.send(Kind.CAN_DO_TIMEOUT, function, timeout)
    handle = client.submit(function, b"", b"x")
    assert worker.grab_assigned()[0] == handle
    worker.complete(handle, b"y")
    assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"y")


def test_a_worker_that_leaves_with_a_pending_grab_keeps_no_job(server: Server, function: bytes) -> None:
    """It reports a job, requests the next one, and sends FIN while another connection submits."""
    client = server.peer()
    for turn in range(12):
        worker = server.worker(function)
        first = client.submit(function, b"", b"", Kind.SUBMIT_JOB_BG)
        assert worker.grab_assigned()[0] == first
        worker.write(encode(Kind.WORK_COMPLETE, first, b"") + encode(Kind.GRAB_JOB))
        worker.socket.shutdown(socket.SHUT_WR)
        for kind in (Kind.SUBMIT_JOB, Kind.SUBMIT_JOB_BG)[:: 1 if turn % 2 else -1]:
            client.send(kind, function, b"", b"")
        with suppress(ConnectionResetError):
            while worker.socket.recv(4096):
                pass
        worker.close()
        left = {client.expect(Kind.JOB_CREATED)[0] for _ in range(2)}
        client.await_status(first, *UNKNOWN)
        with server.worker(function) as other:
            deadline = time.monotonic() + PACKET_TIMEOUT
            while left:
                assert time.monotonic() < deadline, f"no worker gets {left!r}"
                answer = other.grab()
                if answer.kind is Kind.JOB_ASSIGN:
                    left.discard(answer.arguments[0])
                    other.complete(answer.arguments[0])
            client.expect(Kind.WORK_COMPLETE)


# -- clients that disconnect


def test_a_queued_job_is_dropped_with_its_client(server: Server, function: bytes, unique: bytes) -> None:
    client, watcher = server.peer(), server.peer()
    handle = client.submit(function, unique, b"")
    assert watcher.status(handle) == QUEUED
    client.close()
    watcher.await_waiters(unique, 0)
    assert server.worker(function).grab() == packet_of(Kind.NO_JOB)
    assert watcher.status(handle) == UNKNOWN


def test_a_running_job_ends_quietly_without_its_client(server: Server, function: bytes, unique: bytes) -> None:
    client, worker, watcher = server.peer(), server.worker(function), server.peer()
    handle = client.submit(function, unique, b"")
    worker.grab_assigned()
    assert watcher.status_unique(unique) == (*RUNNING, b"1")
    client.close()
    watcher.await_waiters(unique, 0)
    assert watcher.status_unique(unique) == (*RUNNING, b"0")
    worker.send(Kind.WORK_DATA, handle, b"to nobody")
    worker.send(Kind.WORK_STATUS, handle, b"1", b"2")
    worker.complete(handle, b"to nobody")
    assert watcher.status(handle) == UNKNOWN


# -- unexpected results


NO_RESULT = b"Job given in work result not found"
NO_DATA = b"Job does not exist on server"
NO_EXCEPTION = b"An exception was received for a job that does not exist"


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        (packet_of(Kind.WORK_COMPLETE, b"H:nowhere:1", b"x"), NO_RESULT),
        (packet_of(Kind.WORK_FAIL, b"H:nowhere:1"), NO_RESULT),
        (packet_of(Kind.WORK_EXCEPTION, b"H:nowhere:1", b"x"), NO_EXCEPTION),
        (packet_of(Kind.WORK_DATA, b"H:nowhere:1", b"x"), NO_DATA),
        (packet_of(Kind.WORK_WARNING, b"H:nowhere:1", b"x"), NO_DATA),
        (packet_of(Kind.WORK_STATUS, b"H:nowhere:1", b"1", b"2"), NO_RESULT),
    ],
    ids=lambda value: str(value.kind.name) if isinstance(value, Packet) else "",
)
def test_results_for_an_unknown_job_are_refused(server: Server, packet: Packet, message: bytes) -> None:
    worker = server.peer()
    worker.send(packet.kind, *packet.arguments)
    assert worker.receive() == packet_of(Kind.ERROR, b"JOB_NOT_FOUND", message)
    worker.sync()


def test_results_from_another_worker_are_refused(server: Server, function: bytes) -> None:
    client, worker, other = server.peer(), server.worker(function), server.worker(function)
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    other.send(Kind.WORK_COMPLETE, handle, b"stolen")
    assert other.receive() == NOT_FOUND
    worker.complete(handle, b"mine")
    assert client.pending() == [packet_of(Kind.WORK_COMPLETE, handle, b"mine")]


def test_a_second_result_is_refused(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    worker.complete(handle, b"1")
    worker.send(Kind.WORK_COMPLETE, handle, b"2")
    assert worker.receive() == NOT_FOUND
    assert client.pending() == [packet_of(Kind.WORK_COMPLETE, handle, b"1")]
