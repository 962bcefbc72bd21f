"""Submissions: every packet that submits, priorities, and the packets that a waiting client receives about its job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from .packets import Kind, packet_of

if TYPE_CHECKING:
    from .conftest import Start
    from .servers import Server

FOREGROUND = [Kind.SUBMIT_JOB, Kind.SUBMIT_JOB_HIGH, Kind.SUBMIT_JOB_LOW]
BACKGROUND = [Kind.SUBMIT_JOB_BG, Kind.SUBMIT_JOB_HIGH_BG, Kind.SUBMIT_JOB_LOW_BG]
BINARY = bytes(range(256)) + b"\0\0\xff"


@pytest.mark.parametrize("submit", FOREGROUND)
def test_a_foreground_client_receives_the_result(server: Server, function: bytes, submit: Kind) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", BINARY, submit)
    assert re.fullmatch(rb"H:[^:\0]+:\d+", handle)
    assert worker.grab_assigned() == (handle, function, BINARY)
    worker.complete(handle, BINARY[::-1])
    assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, BINARY[::-1])


@pytest.mark.parametrize("submit", BACKGROUND)
def test_a_background_client_receives_only_the_handle(server: Server, function: bytes, submit: Kind) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", BINARY, submit)
    assert worker.grab_assigned() == (handle, function, BINARY)
    worker.send(Kind.WORK_DATA, handle, b"some")
    worker.send(Kind.WORK_STATUS, handle, b"1", b"2")
    worker.complete(handle, b"done")
    assert client.pending() == []


@pytest.mark.parametrize("submit", BACKGROUND)
def test_a_background_job_outlives_its_client(server: Server, function: bytes, submit: Kind) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"kept", submit)
    client.close()
    assert worker.grab_assigned() == (handle, function, b"kept")
    worker.complete(handle)


@pytest.mark.parametrize("kinds", [FOREGROUND, BACKGROUND], ids=["foreground", "background"])
def test_priorities_come_first_and_within_one_the_oldest(server: Server, function: bytes, kinds: list[Kind]) -> None:
    normal, high, low = kinds
    client, worker = server.peer(), server.worker(function)
    for number, kind in enumerate([low, normal, high, low, high, normal]):
        client.submit(function, b"", b"%d" % number, kind)
    order = []
    for _ in range(6):
        handle, _, payload = worker.grab_assigned()
        order.append(payload)
        worker.complete(handle)
    assert order == [b"2", b"4", b"1", b"5", b"0", b"3"]
    assert worker.grab() == packet_of(Kind.NO_JOB)


@pytest.mark.parametrize("had_a_worker", [False, True])
def test_foreground_and_background_jobs_of_one_priority_share_one_order(
    server: Server, function: bytes, had_a_worker: bool
) -> None:
    client = server.peer()
    kinds = (
        [Kind.SUBMIT_JOB_BG, Kind.SUBMIT_JOB, Kind.SUBMIT_JOB] * 4 + [Kind.SUBMIT_JOB_BG] * 100 + [Kind.SUBMIT_JOB] * 10
    )
    for number, kind in enumerate(kinds):
        client.submit(function, b"", b"%d" % number, kind)
    if had_a_worker:
        server.worker(function).close()
        while function + b"\t%d\t0\t0\n" % len(kinds) not in client.table(b"status"):
            pass
    worker = server.worker(function)
    for number in range(len(kinds)):
        handle, _, payload = worker.grab_assigned()
        assert payload == b"%d" % number
        worker.complete(handle)


def test_pipelined_requests_are_answered_in_order(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    for number in range(50):
        client.send(Kind.SUBMIT_JOB if number % 2 else Kind.SUBMIT_JOB_BG, function, b"", b"%d" % number)
    handles = [client.expect(Kind.JOB_CREATED)[0] for _ in range(50)]
    assert len(set(handles)) == 50
    numbers = [int(handle.rpartition(b":")[2]) for handle in handles]
    assert numbers == sorted(numbers)
    for number, handle in enumerate(handles):
        assert worker.grab_assigned() == (handle, function, b"%d" % number)
        worker.complete(handle)


def test_payloads_and_results_may_be_empty(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"")
    assert worker.grab_assigned() == (handle, function, b"")
    worker.complete(handle, b"")
    assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"")


def test_megabytes_pass_both_ways(server: Server, function: bytes) -> None:
    payload = bytes(range(256)) * 16384
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", payload)
    assert worker.grab_assigned() == (handle, function, payload)
    worker.complete(handle, payload[::-1])
    assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, payload[::-1])


def test_progress_of_the_work_reaches_the_client_in_order(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_DATA, handle, b"one\0two")
    worker.send(Kind.WORK_WARNING, handle, b"hot\0")
    worker.send(Kind.WORK_STATUS, handle, b"1", b"3")
    worker.send(Kind.WORK_DATA, handle, b"")
    worker.complete(handle, b"end")
    assert client.pending() == [
        packet_of(Kind.WORK_DATA, handle, b"one\0two"),
        packet_of(Kind.WORK_WARNING, handle, b"hot\0"),
        packet_of(Kind.WORK_STATUS, handle, b"1", b"3"),
        packet_of(Kind.WORK_DATA, handle, b""),
        packet_of(Kind.WORK_COMPLETE, handle, b"end"),
    ]


def test_a_failure_is_final(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_FAIL, handle)
    worker.sync()
    assert client.receive() == packet_of(Kind.WORK_FAIL, handle)
    assert worker.grab() == packet_of(Kind.NO_JOB)
    assert client.status(handle) == (b"0", b"0", b"0", b"0")


@pytest.mark.parametrize("option", [b"exceptions", b"Exceptions"])
def test_an_exception_reaches_a_client_that_requested_exceptions(
    server: Server, function: bytes, option: bytes
) -> None:
    client, worker = server.peer(), server.worker(function)
    client.option(option)
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_EXCEPTION, handle, b"bad\0news")
    worker.sync()
    assert client.pending() == [packet_of(Kind.WORK_EXCEPTION, handle, b"bad\0news")]
    assert worker.grab() == packet_of(Kind.NO_JOB)


def test_an_exception_is_a_failure_for_other_clients(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_EXCEPTION, handle, b"bad")
    worker.sync()
    ((kind, (reported,)),) = client.pending()
    assert kind is Kind.WORK_FAIL
    assert reported.rstrip(b"\0") == handle  # gearmand leaves a NUL there


def test_clients_of_one_job_receive_an_exception_by_their_own_options(server: Server, function: bytes) -> None:
    extended, plain, worker = server.peer(), server.peer(), server.worker(function)
    extended.option(b"exceptions")
    handle = extended.submit(function, b"u", b"")
    assert plain.submit(function, b"u", b"") == handle
    worker.grab_assigned()
    worker.send(Kind.WORK_EXCEPTION, handle, b"bad")
    worker.sync()
    assert extended.pending() == [packet_of(Kind.WORK_EXCEPTION, handle, b"bad")]
    ((kind, _),) = plain.pending()
    assert kind is Kind.WORK_FAIL


def test_a_server_may_send_exceptions_to_all_clients(start: Start) -> None:
    server = start("--exceptions")
    client, worker = server.peer(), server.worker(b"f")
    handle = client.submit(b"f", b"", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_EXCEPTION, handle, b"bad")
    worker.sync()
    assert client.pending() == [packet_of(Kind.WORK_EXCEPTION, handle, b"bad")]


def test_a_failure_after_an_exception_is_not_reported_again(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    client.option(b"exceptions")
    handle = client.submit(function, b"", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_EXCEPTION, handle, b"bad")
    worker.send(Kind.WORK_FAIL, handle)
    worker.pending()  # gearmand answers with an error: see test_differences
    assert client.pending() == [packet_of(Kind.WORK_EXCEPTION, handle, b"bad")]


def test_an_unknown_option_is_refused(server: Server) -> None:
    client = server.peer()
    client.send(Kind.OPTION_REQ, b"no-such-option")
    code, _ = client.expect(Kind.ERROR)
    assert code == b"UNKNOWN_OPTION"
    client.sync()


def test_an_echo_repeats_any_bytes(server: Server) -> None:
    client = server.peer()
    for data in (b"", b"hello", BINARY):
        client.send(Kind.ECHO_REQ, data)
        assert client.receive() == packet_of(Kind.ECHO_RES, data)


def test_a_connection_may_be_client_and_worker_at_once(server: Server, function: bytes) -> None:
    peer = server.worker(function)
    handle = peer.submit(function, b"", b"self")
    assert peer.grab_assigned() == (handle, function, b"self")
    peer.send(Kind.WORK_COMPLETE, handle, b"done")
    assert peer.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"done")


def test_a_job_waits_for_a_worker_that_connects_later(server: Server, function: bytes) -> None:
    client = server.peer()
    handle = client.submit(function, b"", b"early")
    worker = server.worker(function)
    assert worker.grab_assigned() == (handle, function, b"early")
    worker.complete(handle, b"late")
    assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"late")
