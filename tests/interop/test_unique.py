"""Uniques: live jobs of one function and one unique are one job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .packets import Kind, packet_of

if TYPE_CHECKING:
    from .servers import Server


def test_one_job_serves_all_its_clients(server: Server, function: bytes) -> None:
    clients = [server.peer() for _ in range(5)]
    worker = server.worker(function)
    handles = {client.submit(function, b"u", b"x") for client in clients}
    (handle,) = handles
    assert worker.grab_assigned()[0] == handle
    worker.send(Kind.WORK_DATA, handle, b"part")
    worker.complete(handle, b"all")
    for client in clients:
        assert client.receive() == packet_of(Kind.WORK_DATA, handle, b"part")
        assert client.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"all")
    assert worker.grab() == packet_of(Kind.NO_JOB)


def test_the_first_payload_and_priority_apply(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"u", b"first", Kind.SUBMIT_JOB_LOW_BG)
    other = client.submit(function, b"", b"other", Kind.SUBMIT_JOB_BG)
    assert client.submit(function, b"u", b"second", Kind.SUBMIT_JOB_HIGH_BG) == handle
    assert worker.grab_assigned() == (other, function, b"other")
    assert worker.grab_assigned() == (handle, function, b"first")
    worker.complete(other)
    worker.complete(handle)


@pytest.mark.parametrize("submit", [Kind.SUBMIT_REDUCE_JOB, Kind.SUBMIT_REDUCE_JOB_BG])
def test_the_first_reducer_applies_even_if_it_is_none(server: Server, function: bytes, submit: Kind) -> None:
    client, worker = server.peer(), server.worker(function)
    for first, answer in ((Kind.SUBMIT_JOB, Kind.JOB_ASSIGN_UNIQ), (Kind.SUBMIT_REDUCE_JOB, Kind.JOB_ASSIGN_ALL)):
        client.send(first, function, b"u", *[b"first", b""] * (first is Kind.SUBMIT_REDUCE_JOB), b"load")
        (handle,) = client.expect(Kind.JOB_CREATED)
        joining = server.peer()
        joining.send(submit, function, b"u", b"second", b"", b"other")
        assert joining.expect(Kind.JOB_CREATED) == (handle,)
        packet = worker.grab(Kind.GRAB_JOB_ALL)
        reducer = [b"first"] * (first is Kind.SUBMIT_REDUCE_JOB)
        assert packet == packet_of(answer, handle, function, b"u", *reducer, b"load")
        worker.complete(handle)
        assert client.pending() == [packet_of(Kind.WORK_COMPLETE, handle, b"")]


def test_a_running_job_is_joined(server: Server, function: bytes) -> None:
    first, second, worker = server.peer(), server.peer(), server.worker(function)
    handle = first.submit(function, b"u", b"")
    worker.grab_assigned()
    worker.send(Kind.WORK_DATA, handle, b"before")
    worker.sync()
    assert second.submit(function, b"u", b"") == handle
    worker.send(Kind.WORK_DATA, handle, b"after")
    worker.complete(handle, b"end")
    end = [packet_of(Kind.WORK_DATA, handle, b"after"), packet_of(Kind.WORK_COMPLETE, handle, b"end")]
    assert first.pending() == [packet_of(Kind.WORK_DATA, handle, b"before"), *end]
    assert second.pending() == end


def test_a_waiting_client_joins_a_background_job(server: Server, function: bytes) -> None:
    first, second, worker = server.peer(), server.peer(), server.worker(function)
    handle = first.submit(function, b"u", b"", Kind.SUBMIT_JOB_BG)
    assert second.submit(function, b"u", b"") == handle
    worker.grab_assigned()
    worker.complete(handle, b"end")
    assert first.pending() == []
    assert second.pending() == [packet_of(Kind.WORK_COMPLETE, handle, b"end")]


def test_a_client_may_wait_twice_for_one_job(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"u", b"")
    assert client.submit(function, b"u", b"") == handle
    worker.grab_assigned()
    worker.complete(handle, b"end")
    assert client.pending() == [packet_of(Kind.WORK_COMPLETE, handle, b"end")] * 2


def test_functions_do_not_share_uniques(server: Server, function: bytes) -> None:
    other = function + b"-other"
    client, worker = server.peer(), server.worker(function, other)
    handles = {client.submit(name, b"u", b"", Kind.SUBMIT_JOB_BG) for name in (function, other)}
    assert len(handles) == 2
    assert {worker.grab_assigned()[0], worker.grab_assigned()[0]} == handles
    for handle in handles:
        worker.complete(handle)


def test_an_empty_unique_joins_nothing(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    first = client.submit(function, b"", b"same", Kind.SUBMIT_JOB_BG)
    second = client.submit(function, b"", b"same", Kind.SUBMIT_JOB_BG)
    assert first != second
    assert [worker.grab_assigned()[0], worker.grab_assigned()[0]] == [first, second]
    worker.complete(first)
    worker.complete(second)


def test_a_dash_makes_the_payload_the_unique(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    first = client.submit(function, b"-", b"payload one", Kind.SUBMIT_JOB_BG)
    second = client.submit(function, b"-", b"payload two", Kind.SUBMIT_JOB_BG)
    assert first != second
    assert client.submit(function, b"-", b"payload one", Kind.SUBMIT_JOB_BG) == first
    assert [worker.grab_assigned()[0], worker.grab_assigned()[0]] == [first, second]
    assert worker.grab() == packet_of(Kind.NO_JOB)
    worker.complete(first)
    worker.complete(second)


def test_a_dash_names_no_job_without_a_payload(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handles = [
        client.submit(function, b"-", b"", kind) for kind in (Kind.SUBMIT_JOB_BG, Kind.SUBMIT_JOB_BG, Kind.SUBMIT_JOB)
    ]
    assert len(set(handles)) == 3
    for handle in handles:
        assert worker.grab(Kind.GRAB_JOB_UNIQ) == packet_of(Kind.JOB_ASSIGN_UNIQ, handle, function, b"-", b"")
        worker.complete(handle)
    assert client.pending() == [packet_of(Kind.WORK_COMPLETE, handles[2], b"")]


@pytest.mark.parametrize("end", [Kind.WORK_COMPLETE, Kind.WORK_FAIL, Kind.WORK_EXCEPTION])
def test_a_unique_is_free_again_when_its_job_has_ended(server: Server, function: bytes, end: Kind) -> None:
    client, worker = server.peer(), server.worker(function)
    first = client.submit(function, b"u", b"1", Kind.SUBMIT_JOB_BG)
    worker.grab_assigned()
    worker.send(end, *[first, b"."][: 1 if end is Kind.WORK_FAIL else 2])
    worker.sync()
    second = client.submit(function, b"u", b"2", Kind.SUBMIT_JOB_BG)
    assert second != first
    assert worker.grab_assigned() == (second, function, b"2")
    worker.complete(second)


def test_a_queued_job_stays_until_its_last_client_leaves(server: Server, function: bytes, unique: bytes) -> None:
    first, second, watcher = server.peer(), server.peer(), server.peer()
    handle = first.submit(function, unique, b"")
    second.submit(function, unique, b"")
    assert watcher.status_unique(unique) == (b"1", b"0", b"0", b"0", b"2")
    first.close()
    watcher.await_waiters(unique, 1)
    worker = server.worker(function)
    assert worker.grab_assigned()[0] == handle
    worker.complete(handle, b"end")
    assert second.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"end")


def test_a_queued_job_is_dropped_with_its_last_client(server: Server, function: bytes, unique: bytes) -> None:
    first, second, watcher = server.peer(), server.peer(), server.peer()
    first.submit(function, unique, b"")
    second.submit(function, unique, b"")
    first.close()
    second.close()
    watcher.await_waiters(unique, 0)
    assert server.worker(function).grab() == packet_of(Kind.NO_JOB)
    assert watcher.status_unique(unique) == (b"0", b"0", b"0", b"0", b"0")


def test_a_unique_of_64_bytes_is_accepted_and_a_longer_one_refused(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    handle = client.submit(function, b"u" * 64, b"", Kind.SUBMIT_JOB_BG)
    client.send(Kind.SUBMIT_JOB_BG, function, b"u" * 65, b"")
    assert client.receive() == packet_of(Kind.ERROR, b"ARGUMENT_TOO_LARGE", b"Unique value too large")
    client.sync()
    assert worker.grab_assigned()[0] == handle
    worker.complete(handle)


def test_uniques_of_63_bytes_join(server: Server, function: bytes) -> None:
    client, worker = server.peer(), server.worker(function)
    unique = b"v" * 63
    handle = client.submit(function, unique, b"", Kind.SUBMIT_JOB_BG)
    assert client.submit(function, unique, b"", Kind.SUBMIT_JOB_BG) == handle
    assert client.submit(function, unique[:-1] + b"w", b"", Kind.SUBMIT_JOB_BG) != handle
    for _ in range(2):
        worker.complete(worker.grab_assigned()[0])
