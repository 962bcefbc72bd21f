"""The protocol extension as docs/reference/protocol.md specifies it: every packet, option, outcome and verdict."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.interop.packets import Kind, Packet, encode, packet_of

from mainspring.api.handlers.pages import rfc3339
from mainspring.clock import to_us

from .extension import ExtensionKind, ExtensionPeer, FaultError
from .servers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .servers import Server

QUICK_RETRY = {"max_attempts": 3, "initial": 0.05, "factor": 1.0, "jitter": 0.0}
JOB_KEYS = {
    "handle", "function", "unique", "state", "priority", "attempt", "created_at", "started_at", "ended_at", "error",
    "overdue_since", "awaits_until",
}  # fmt: skip
SHOWN_KEYS = JOB_KEYS | {
    "run_at", "expires_at", "input_size", "output_size", "max_attempts", "timeout", "worker",
    "done", "total",
    "traceback", "schedule", "fire_time", "concurrency_key", "tags", "text", "run", "start_by", "deadline_at",
    "works", "completion", "waits_for_unique",
}  # fmt: skip


class Harness:
    """A client and a source of further connections to one server."""

    def __init__(self, server: Server, function: bytes, stack: ExitStack) -> None:
        self.server = server
        self.function = function
        self._stack = stack
        self.client = self.connect()

    def connect(self) -> ExtensionPeer:
        """Connect a client."""
        return self._stack.enter_context(self.server.extended())

    def connect_plain(self) -> ExtensionPeer:
        """Connect a peer without the extension."""
        return self._stack.enter_context(self.server.peer())

    def connect_worker(self, places: int = 1, **options: Any) -> ExtensionPeer:
        """Connect a worker of the test's function that is ready for jobs."""
        worker = self.connect()
        worker.register(self.function, **options)
        worker.assert_silent()
        if places:
            worker.ready(places)
        return worker

    def submit_new(self, payload: bytes = b"", unique: bytes = b"", **options: Any) -> bytes:
        """Submit a job of the test's function."""
        return self.client.submit_new(self.function, payload, unique, **options)

    def state(self, handle: bytes) -> str:
        """Return a job's state."""
        state: str = self.client.show(handle)["state"]
        return state

    def watch(self, **params: Any) -> ExtensionPeer:
        """Watch jobs on a new connection."""
        watcher = self.connect()
        assert watcher.call("jobs.watch", **params) == {}
        return watcher


@pytest.fixture
def harness(healthy: Server, function: bytes) -> Iterator[Harness]:
    with ExitStack() as stack:
        yield Harness(healthy, function, stack)


# ---- negotiation ----


def test_the_extension_must_be_negotiated(harness: Harness) -> None:
    plain = harness.connect_plain()
    plain.write(encode(ExtensionKind.SUBMIT, b"f", b"", b"", b""))
    code, message = plain.expect(Kind.ERROR)
    assert code == b"INVALID_COMMAND"
    assert b"mainspring/2" in message


def test_another_version_is_refused(harness: Harness) -> None:
    plain = harness.connect_plain()
    plain.send(Kind.OPTION_REQ, b"mainspring/1")
    assert plain.expect(Kind.ERROR)[0] == b"OTHER_VERSION"
    plain.assert_silent()


# ---- submitting ----


def test_a_job_is_submitted_run_and_settled(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(b"pay\0load", wait=True)
    job = worker.job()
    assert (job.handle, job.function, job.unique, job.payload) == (handle, harness.function, b"", b"pay\0load")
    assert job.info["attempt"] == 1
    assert job.info["term"] >= 1
    assert abs(job.info["submitted_at"] - time.time()) < 10
    assert job.info.keys() <= {"attempt", "term", "submitted_at"}
    assert worker.settle_as(job, b"succeeded", b"re\0sult") == b"recorded"
    assert harness.client.result() == (handle, b"succeeded", 1, {}, b"re\0sult")
    assert harness.client.outcome(handle) == (handle, b"succeeded", 1, {}, b"re\0sult")


def test_a_live_unique_is_joined_and_an_ended_one_is_not(harness: Harness) -> None:
    handle = harness.submit_new(b"first", b"u")
    harness.client.request(harness.function, b"second", b"u", {"wait": True})
    assert harness.client.expect(ExtensionKind.SUBMITTED) == (handle, b"1")
    worker = harness.connect_worker()
    job = worker.job()
    assert (job.unique, job.payload) == (b"u", b"first")
    harness.client.request(harness.function, b"third", b"u")
    assert harness.client.expect(ExtensionKind.SUBMITTED) == (handle, b"1")
    assert worker.settle_as(job, b"succeeded", b"one") == b"recorded"
    assert harness.client.result().data == b"one"
    assert harness.submit_new(b"fourth", b"u") != handle


def test_an_empty_unique_never_joins(harness: Harness) -> None:
    assert harness.submit_new(b"same") != harness.submit_new(b"same")


def test_keep_unique_joins_a_job_that_has_recently_succeeded(harness: Harness) -> None:
    worker = harness.connect_worker(places=3)
    handle = harness.submit_new(b"", b"u", keep_unique=3600)
    assert worker.settle_as(worker.job(), b"succeeded", b"kept") == b"recorded"
    harness.client.request(harness.function, b"", b"u", {"keep_unique": 3600, "wait": True})
    assert harness.client.expect(ExtensionKind.SUBMITTED) == (handle, b"1")
    assert harness.client.result() == (handle, b"succeeded", 1, {}, b"kept")
    assert harness.submit_new(b"", b"u") != handle, "submitted without keep_unique"
    worker.job()
    other = harness.submit_new(b"", b"v")
    assert worker.settle_as(worker.job(), b"succeeded") == b"recorded"
    assert harness.submit_new(b"", b"v", keep_unique=3600) != other, "the first was not submitted with keep_unique"


def test_keep_unique_does_not_join_an_old_or_failed_job(harness: Harness) -> None:
    worker = harness.connect_worker(places=2)
    handle = harness.submit_new(b"", b"u", keep_unique=3600)
    assert worker.settle_as(worker.job(), b"succeeded") == b"recorded"
    time.sleep(0.02)
    assert harness.submit_new(b"", b"u", keep_unique=0.01) != handle
    assert worker.settle_as(worker.job(), b"failed") == b"recorded"
    assert harness.client.outcome(harness.submit_new(b"", b"w", keep_unique=0, expires=0)).state == b"expired"
    harness.submit_new(b"", b"w", keep_unique=3600)


def test_jobs_are_assigned_by_priority(harness: Harness) -> None:
    for name in ("low", "normal", "high"):
        harness.submit_new(name.encode(), priority=name)
    worker = harness.connect_worker(places=3)
    assert [worker.job().payload for _ in range(3)] == [b"high", b"normal", b"low"]


@pytest.mark.parametrize("how", ["delay", "run_at"])
def test_a_delayed_job_waits_for_its_time(harness: Harness, how: str) -> None:
    worker = harness.connect_worker()
    start = time.time()
    handle = harness.submit_new(delay=0.3) if how == "delay" else harness.submit_new(run_at=rfc3339(to_us(start + 0.3)))
    assert harness.state(handle) == "scheduled"
    worker.assert_silent()
    assert worker.job().handle == handle
    assert time.time() - start >= 0.3


def test_a_time_in_the_past_means_now(harness: Harness) -> None:
    worker = harness.connect_worker(places=2)
    harness.submit_new(b"a", run_at="1970-01-01T00:00:01Z")
    harness.submit_new(b"b", delay=0)
    assert [worker.job().payload, worker.job().payload] == [b"a", b"b"]


def test_a_job_that_does_not_start_in_time_expires(harness: Harness) -> None:
    handle = harness.submit_new(b"", b"u", expires=0.2, wait=True)
    result = harness.client.result()
    assert (result.handle, result.state, result.attempt) == (handle, b"expired", 0)
    harness.submit_new(b"", b"u")


def test_a_job_that_is_held_in_memory_for_a_busy_worker_expires(harness: Harness) -> None:
    worker = harness.connect_worker()
    harness.submit_new(b"long")
    long = worker.job()
    harness.submit_new(b"late", expires=0.2, wait=True)
    assert harness.client.result().state == b"expired"
    assert worker.settle_as(long, b"succeeded") == b"recorded"
    worker.ready(1)
    harness.submit_new(b"next")
    assert worker.job().payload == b"next"


def test_a_delayed_job_may_expire_before_it_is_due(harness: Harness) -> None:
    assert harness.client.outcome(harness.submit_new(delay=60, expires=0.2)).state == b"expired"


def test_a_started_job_does_not_expire(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(expires=0.2)
    job = worker.job()
    harness.client.outcome(harness.submit_new(b"", b"", expires=0.3, delay=60))
    assert worker.settle_as(job, b"succeeded") == b"recorded"
    assert harness.state(handle) == "succeeded"


BAD_OPTIONS = [
    b"[]",
    b"{",
    b'{"unknown": 1}',
    b'{"priority": "highest"}',
    b'{"delay": 1, "run_at": "2030-01-01T00:00:00Z"}',
    b'{"delay": -1}',
    b'{"delay": "1s"}',
    b'{"timeout": -0.1}',
    b'{"expires": 1e300}',
    b'{"run_at": "9999-12-31T00:00:00Z"}',
    b'{"retry": {"max_attempts": 0}}',
    b'{"retry": {"jitter": 2}}',
    b'{"retry": {"attempts": 2}}',
    b'{"wait": 1}',
    b"\xff\xfe",
]


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_invalid_options_are_refused_in_the_order_of_the_requests(harness: Harness, options: bytes) -> None:
    client = harness.client
    client.request(harness.function, b"before")
    client.write(encode(ExtensionKind.SUBMIT, harness.function, b"", options, b""))
    client.request(harness.function, b"after")
    assert client.expect(ExtensionKind.SUBMITTED)[1] == b"0"
    assert client.expect(Kind.ERROR)[0] == b"INVALID_ARGUMENTS"
    assert client.expect(ExtensionKind.SUBMITTED)[1] == b"0"


def test_a_function_needs_a_name_and_a_unique_has_a_length_limit(harness: Harness) -> None:
    harness.client.request(b"")
    assert harness.client.expect(Kind.ERROR)[0] == b"INVALID_FUNCTION_NAME"
    harness.client.request(harness.function, b"", b"u" * 65)
    assert harness.client.expect(Kind.ERROR)[0] == b"ARGUMENT_TOO_LARGE"
    harness.submit_new(b"", b"u" * 64)


def test_answers_come_in_the_order_of_the_requests(harness: Harness) -> None:
    client, packets = harness.client, []
    expected: list[tuple[Kind | ExtensionKind, bytes]] = []
    for number in range(300):
        payload = b"%d" % number
        if number % 7 == 0:
            packets.append(encode(ExtensionKind.SUBMIT, b"", b"", b"", payload))
            expected.append((Kind.ERROR, b""))
        elif number % 5 == 0:
            packets.append(encode(Kind.ECHO_REQ, payload))
            expected.append((Kind.ECHO_RES, payload))
        elif number % 3 == 0:
            packets.append(encode(Kind.SUBMIT_JOB_BG, harness.function, b"", payload))
            expected.append((Kind.JOB_CREATED, payload))
        elif number % 4 == 0:
            packets.append(encode(Kind.SUBMIT_JOB, harness.function, b"", payload))
            expected.append((Kind.JOB_CREATED, payload))
        else:
            packets.append(encode(ExtensionKind.SUBMIT, harness.function, b"", b"", payload))
            expected.append((ExtensionKind.SUBMITTED, payload))
    client.write(b"".join(packets))
    answers = [client.next() for _ in packets]
    assert [answer.kind for answer in answers] == [kind for kind, _ in expected]
    assert [answer.arguments[0] for answer in answers if answer.kind is Kind.ECHO_RES] == [
        payload for kind, payload in expected if kind is Kind.ECHO_RES
    ]
    handles = {
        answer.arguments[0]: payload
        for answer, (kind, payload) in zip(answers, expected, strict=True)
        if kind in {Kind.JOB_CREATED, ExtensionKind.SUBMITTED}
    }
    worker = harness.connect_worker(places=len(handles))
    jobs = [worker.job() for _ in handles]
    assert {job.handle: job.payload for job in jobs} == handles


# ---- waiting ----


def test_progress_comes_before_the_result(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(wait=True)
    job = worker.job()
    worker.write(encode(Kind.WORK_STATUS, handle, b"1", b"2") + encode(Kind.WORK_DATA, handle, b"part"))
    worker.write(encode(Kind.WORK_WARNING, handle, b"warm"))
    assert worker.settle_as(job, b"succeeded", b"all") == b"recorded"
    client = harness.client
    assert client.next() == packet_of(Kind.WORK_STATUS, handle, b"1", b"2")
    assert client.next() == packet_of(Kind.WORK_DATA, handle, b"part")
    assert client.next() == packet_of(Kind.WORK_WARNING, handle, b"warm")
    assert client.result().data == b"all"


@pytest.mark.parametrize(
    "handle", [b"H:n1:999999000000000001", b"H:elsewhere:1", b"nonsense", b"", b"H:n1:" + b"9" * 30]
)
def test_a_handle_without_a_job_is_unknown_under_its_own_name(harness: Harness, handle: bytes) -> None:
    assert harness.client.outcome(handle) == (handle, b"unknown", 0, {}, b"")


def test_any_number_of_clients_may_wait_also_on_a_new_connection(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(wait=True)
    others = [harness.connect() for _ in range(5)]
    for other in others:
        other.wait(handle)
        other.wait(handle)
        other.assert_silent()
    harness.client.close()
    assert worker.settle_as(worker.job(), b"succeeded", b"r") == b"recorded"
    for other in others:
        assert other.result().data == b"r"
        other.assert_silent()


# ---- calls ----


def test_jobs_show_describes_a_job(harness: Harness) -> None:
    handle = harness.submit_new(
        b"12345", b"name", priority="low", timeout=9.5, retry=QUICK_RETRY, expires=60, concurrency_key="Zürich"
    )
    job = harness.client.show(handle)
    assert job.keys() == SHOWN_KEYS
    assert {key: job[key] for key in ("function", "unique", "state", "priority", "attempt")} == {
        "function": harness.function.decode(), "unique": "name", "state": "pending", "priority": "low", "attempt": 0,
    }  # fmt: skip
    assert (job["max_attempts"], job["timeout"], job["input_size"], job["worker"]) == (3, 9.5, 5, None)
    assert (job["schedule"], job["fire_time"], job["concurrency_key"]) == (None, None, "Zürich")
    created, expires = (datetime.fromisoformat(job[key]) for key in ("created_at", "expires_at"))
    assert 59 < (expires - created).total_seconds() < 61
    worker = harness.connect_worker()
    worker.send(Kind.SET_CLIENT_ID, b"me")
    delivery = worker.job()
    worker.write(encode(Kind.WORK_STATUS, handle, b"3", b"4"))
    worker.assert_silent()
    job = harness.client.show(handle)
    assert (job["state"], job["worker"], job["done"], job["total"]) == ("running", "me", 3, 4)
    assert (job["done"], job["total"]) == (3, 4)
    assert job["attempt"] == 1
    assert worker.settle_as(delivery, b"succeeded", b"1234567") == b"recorded"
    job = harness.client.show(handle)
    assert (job["state"], job["attempt"], job["input_size"], job["output_size"]) == ("succeeded", 1, 5, 7)
    assert job["started_at"] <= job["ended_at"]


def test_jobs_list_filters_and_pages(harness: Harness) -> None:
    handles = [harness.submit_new(b"", b"u%d" % number).decode() for number in range(5)]
    name = harness.function.decode()
    newest_first = handles[::-1]

    def listed(**params: Any) -> list[str]:
        jobs = harness.client.call("jobs.list", function=name, **params)["items"]
        assert all(job.keys() == JOB_KEYS for job in jobs)
        return [job["handle"] for job in jobs]

    assert listed() == newest_first
    assert listed(limit=2) == newest_first[:2]
    cursor = harness.client.call("jobs.list", function=name, limit=2)["next"]
    assert listed(limit=2, cursor=cursor) == newest_first[2:4]
    assert listed(unique="u3") == [handles[3]]
    assert listed(state="pending") == newest_first
    assert listed(state="running") == []
    worker = harness.connect_worker()
    job = worker.job()
    assert listed(state="running") == handles[:1]
    assert worker.settle_as(job, b"succeeded") == b"recorded"
    assert listed(state="succeeded") == handles[:1]
    assert listed(state="running") == []
    waiting = listed(state="pending") + listed(state="leased")
    assert sorted(waiting) == handles[1:], "a waiting job is pending, or leased to this node"


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("jobs.list", {"limit": 0}, "usage"),
        ("jobs.list", {"limit": 1001}, "usage"),
        ("jobs.list", {"state": "asleep"}, "usage"),
        ("jobs.list", {"colour": "red"}, "usage"),
        ("jobs.list", {"cursor": "nonsense"}, "usage"),
        ("jobs.show", {}, "usage"),
        ("jobs.show", {"handle": 5}, "usage"),
        ("jobs.show", {"handle": "H:n1:999999000000000001"}, "not_found"),
        ("jobs.show", {"handle": "H:n1:" + "9" * 40}, "not_found"),
        ("jobs.cancel", {"handle": "H:n1:999999000000000001"}, "not_found"),
        ("jobs.retry", {"handle": "H:n1:999999000000000001"}, "not_found"),
        ("jobs.watch", {"handle": "nonsense"}, "not_found"),
        ("jobs.dance", {}, "usage"),
    ],
)
def test_invalid_calls_fail_with_a_code(harness: Harness, method: str, params: dict[str, Any], code: str) -> None:
    with pytest.raises(FaultError) as raised:
        harness.client.call(method, **params)
    assert raised.value.code == code
    assert len(raised.value.message) > 10


def test_an_answer_repeats_any_id_of_its_call(harness: Harness) -> None:
    harness.client.write(encode(ExtensionKind.CALL, b"\xff any id", b"node.status", b""))
    call_id, value = harness.client.expect(ExtensionKind.ANSWER)
    assert call_id == b"\xff any id"
    status = json.loads(value)
    assert status["name"] == "n1"
    harness.client.write(encode(ExtensionKind.CALL, b"", b"node.status", b"no json"))
    assert harness.client.expect(ExtensionKind.FAULT)[:2] == (b"", b"usage")


def test_a_queued_job_is_cancelled(harness: Harness) -> None:
    for options in ({}, {"delay": 60}):
        handle = harness.submit_new(b"", b"u", wait=True, **options)
        answer = harness.connect().call("jobs.cancel", handle=handle.decode(), reason="no need")
        assert answer == {"handle": handle.decode(), "state": "cancelled"}
        result = harness.client.result()
        assert (result.handle, result.state, result.attempt) == (handle, b"cancelled", 0)
        assert result.error["message"] == "no need"
        assert harness.client.call("jobs.cancel", handle=handle.decode())["state"] == "cancelled"


def test_a_job_that_is_held_in_memory_is_cancelled(harness: Harness) -> None:
    worker = harness.connect_worker()
    harness.submit_new(b"first")
    first = worker.job()
    second = harness.submit_new(b"second")
    assert harness.client.call("jobs.cancel", handle=second.decode())["state"] == "cancelled"
    assert worker.settle_as(first, b"succeeded") == b"recorded"
    worker.ready()
    worker.assert_silent()
    assert harness.state(second) == "cancelled"


def test_a_running_job_is_cancelled_by_its_worker(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(wait=True)
    job = worker.job()
    assert harness.connect().call("jobs.cancel", handle=handle.decode())["state"] == "running"
    assert worker.await_stop() == (handle, job.token, b"cancelled")
    assert worker.beat([job]) == ([handle], [])
    assert worker.settle_as(job, b"cancelled") == b"recorded"
    result = harness.client.result()
    assert (result.state, result.attempt) == (b"cancelled", 1)


def test_a_cancelled_running_job_may_still_succeed(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(wait=True)
    job = worker.job()
    assert harness.connect().call("jobs.cancel", handle=handle.decode())["state"] == "running"
    worker.await_stop()
    assert worker.settle_as(job, b"succeeded", b"too late") == b"recorded"
    assert harness.client.result().data == b"too late"


@pytest.mark.parametrize("how", ["released", "gone", "failed", "snoozed", "silent"])
def test_a_cancelled_job_does_not_run_again(harness: Harness, how: str) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(wait=True, retry=QUICK_RETRY, heartbeat=0.3 if how == "silent" else 60)
    job = worker.job()
    assert harness.connect().call("jobs.cancel", handle=handle.decode())["state"] == "running"
    worker.await_stop()
    if how == "gone":
        worker.close()
    elif how == "silent":
        assert worker.await_stop()[2] == b"lost"
    else:
        assert worker.settle_as(job, how.encode()) == b"recorded"
    result = harness.client.result()
    assert result.state in ({b"cancelled", b"failed"} if how == "failed" else {b"cancelled"})


def test_a_job_of_a_plain_worker_is_cancelled_at_once(harness: Harness) -> None:
    worker = harness.connect_plain()
    worker.can_do(harness.function)
    handle = harness.submit_new(wait=True)
    assert worker.grab_assigned()[0] == handle
    assert harness.connect().call("jobs.cancel", handle=handle.decode())["state"] == "cancelled"
    assert harness.client.result().state == b"cancelled"
    worker.complete(handle, b"too late")
    worker.assert_silent()
    assert harness.client.outcome(handle).state == b"cancelled"


def test_retry_queues_an_unsuccessful_job_again(harness: Harness) -> None:
    worker = harness.connect_worker(places=3)
    handle = harness.submit_new(b"payload", b"u")
    assert worker.settle_as(worker.job(), b"failed", error={"type": "E", "message": "m"}) == b"recorded"
    assert harness.state(handle) == "failed"
    job = harness.client.call("jobs.retry", handle=handle.decode())
    assert (job["handle"], job["state"], job["attempt"]) == (handle.decode(), "pending", 0)
    redelivery = worker.job()
    assert (redelivery.handle, redelivery.payload, redelivery.info["attempt"]) == (handle, b"payload", 1)
    with pytest.raises(FaultError, match="conflict"):
        harness.client.call("jobs.retry", handle=handle.decode())
    assert worker.settle_as(redelivery, b"succeeded") == b"recorded"
    with pytest.raises(FaultError, match="conflict"):
        harness.client.call("jobs.retry", handle=handle.decode())


def test_retry_is_refused_while_another_job_has_the_unique(harness: Harness) -> None:
    handle = harness.submit_new(b"", b"u")
    harness.client.call("jobs.cancel", handle=handle.decode())
    live = harness.submit_new(b"", b"u")
    with pytest.raises(FaultError, match=live.decode()) as raised:
        harness.client.call("jobs.retry", handle=handle.decode())
    assert raised.value.code == "conflict"


def test_watch_reports_every_change_of_state(harness: Harness) -> None:
    by_function = harness.watch(function=harness.function.decode())
    handle = harness.submit_new(retry=QUICK_RETRY)
    by_handle = harness.watch(handle=handle.decode())
    everything = harness.watch()
    worker = harness.connect_worker(places=2)
    assert worker.settle_as(worker.job(), b"failed") == b"recorded"
    assert worker.settle_as(worker.job(), b"succeeded") == b"recorded"
    seen: list[str] = []
    while "succeeded" not in seen:
        event = by_function.event()
        assert event.keys() >= JOB_KEYS
        assert event["handle"] == handle.decode()
        seen.append(event["state"])
    kept = [state for state in seen if state not in {"pending", "leased"}]
    assert kept == ["running", "scheduled", "running", "succeeded"]
    assert seen[0] in {"pending", "leased"}
    for watcher in (by_handle, everything):
        states: list[str] = []
        while "succeeded" not in states:
            states.append(watcher.event()["state"])
        assert [state for state in states if state not in {"pending", "leased"}] == kept


def test_a_connection_watches_once(harness: Harness) -> None:
    watcher = harness.watch(handle=harness.submit_new().decode())
    with pytest.raises(FaultError, match="conflict"):
        watcher.call("jobs.watch")


def test_a_watcher_that_ends_leaves_nothing_behind(harness: Harness) -> None:
    watcher = harness.watch()
    watcher.close()
    harness.submit_new()
    harness.client.assert_silent()


# ---- workers ----


def test_ready_is_the_number_of_jobs_to_assign(harness: Harness) -> None:
    worker = harness.connect_worker(places=2)
    for number in range(4):
        harness.submit_new(b"%d" % number)
    first, second = worker.job(), worker.job()
    worker.assert_silent()
    worker.ready(1)
    third = worker.job()
    worker.assert_silent()
    assert [job.payload for job in (first, second, third)] == [b"0", b"1", b"2"]
    assert worker.settle_as(second, b"succeeded") == b"recorded"
    worker.assert_silent()


def test_pause_withdraws_the_places(harness: Harness) -> None:
    worker = harness.connect_worker(places=5)
    worker.pause()
    handle = harness.submit_new()
    worker.assert_silent()
    worker.ready(1)
    assert worker.job().handle == handle


def test_jobs_that_are_held_in_memory_go_to_another_worker(harness: Harness) -> None:
    worker = harness.connect_worker()
    for number in range(5):
        harness.submit_new(b"%d" % number)
    assert worker.job().payload == b"0"
    other = harness.connect_worker(places=4)
    assert [other.job().payload for _ in range(4)] == [b"1", b"2", b"3", b"4"]


def test_cant_do_stops_the_function(harness: Harness) -> None:
    worker = harness.connect_worker(places=2)
    worker.send(Kind.CANT_DO, harness.function)
    worker.assert_silent()
    handle = harness.submit_new()
    worker.assert_silent()
    other = harness.connect_worker()
    assert other.job().handle == handle


def test_register_gives_defaults_for_options_of_jobs(harness: Harness) -> None:
    worker = harness.connect_worker(places=4, timeout=30, heartbeat=20, retry={**QUICK_RETRY, "max_attempts": 2})
    handle = harness.submit_new()
    job = worker.job()
    assert (job.info["timeout"], job.info["heartbeat"], job.info["max_attempts"]) == (30, 20, 2)
    assert 25 < job.info["deadline"] - time.time() < 35
    harness.submit_new(timeout=5, heartbeat=4, retry={"max_attempts": 7})
    other = worker.job()
    assert (other.info["timeout"], other.info["heartbeat"], other.info["max_attempts"]) == (5, 4, 7)
    assert worker.settle_as(job, b"failed") == b"recorded"
    redelivery = worker.job()
    assert (redelivery.handle, redelivery.info["attempt"]) == (handle, 2)
    assert worker.settle_as(redelivery, b"failed") == b"recorded"
    assert harness.state(handle) == "failed"


@pytest.mark.parametrize(
    "options", [b"[]", b'{"timeout": -1}', b'{"heartbeat": -1}', b'{"retry": {"factor": -1}}', b"x"]
)
def test_register_refuses_invalid_options(harness: Harness, options: bytes) -> None:
    worker = harness.connect()
    worker.write(encode(ExtensionKind.REGISTER, harness.function, options))
    assert worker.expect(Kind.ERROR)[0] == b"INVALID_ARGUMENTS"


@pytest.mark.parametrize("count", [b"", b"-1", b"many", b"1" * 5000])
def test_ready_refuses_an_invalid_count(harness: Harness, count: bytes) -> None:
    worker = harness.connect()
    worker.write(encode(ExtensionKind.READY, count))
    assert worker.expect(Kind.ERROR)[0] == b"INVALID_ARGUMENTS"


# ---- outcomes ----


def test_failed_is_retried_until_no_attempt_is_left(harness: Harness) -> None:
    worker = harness.connect_worker(places=9)
    handle = harness.submit_new(retry=QUICK_RETRY, wait=True)
    start = time.monotonic()
    for attempt in (1, 2, 3):
        job = worker.job()
        assert (job.handle, job.info["attempt"], job.info["max_attempts"]) == (handle, attempt, 3)
        error = {"type": "ValueError", "message": f"no {attempt}", "traceback": "line 1"}
        assert worker.settle_as(job, b"failed", error=error) == b"recorded"
    assert time.monotonic() - start >= 0.1
    result = harness.client.result()
    assert result == (handle, b"failed", 3, {"type": "ValueError", "message": "no 3", "traceback": "line 1"}, b"")
    assert harness.client.show(handle)["error"] == "ValueError: no 3"


def test_final_is_not_retried(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(retry=QUICK_RETRY, wait=True)
    error = {"type": "E", "message": "m"}
    assert worker.settle_as(worker.job(), b"failed", error=error, final=True) == b"recorded"
    assert harness.client.result() == (handle, b"failed", 1, error, b"")


def test_without_a_policy_one_failure_is_the_end(harness: Harness) -> None:
    worker = harness.connect_worker()
    harness.submit_new(wait=True)
    assert worker.settle_as(worker.job(), b"failed") == b"recorded"
    result = harness.client.result()
    assert (result.state, result.attempt) == (b"failed", 1)
    assert result.error.keys() == {"type", "message"}


def test_released_keeps_its_place_and_is_not_counted(harness: Harness) -> None:
    worker = harness.connect_worker()
    handles = [harness.submit_new(b"%d" % number) for number in range(3)]
    job = worker.job()
    assert worker.settle_as(job, b"released") == b"recorded"
    other = harness.connect_worker(places=3)
    jobs = [other.job() for _ in range(3)]
    assert [job.handle for job in jobs] == handles
    assert [job.info["attempt"] for job in jobs] == [1, 1, 1]
    assert worker.settle_as(job, b"succeeded") == b"stale"


def test_snoozed_runs_after_its_delay_and_is_not_counted(harness: Harness) -> None:
    worker = harness.connect_worker(places=2)
    handle = harness.submit_new()
    start = time.monotonic()
    assert worker.settle_as(worker.job(), b"snoozed", delay=0.3) == b"recorded"
    assert harness.state(handle) == "scheduled"
    redelivery = worker.job()
    assert (redelivery.handle, redelivery.info["attempt"]) == (handle, 1)
    assert time.monotonic() - start >= 0.3
    assert worker.settle_as(redelivery, b"snoozed") == b"recorded"
    worker.ready()
    assert worker.job().handle == handle


def test_an_unknown_outcome_is_refused_and_the_delivery_stays_valid(harness: Harness) -> None:
    worker = harness.connect_worker()
    harness.submit_new()
    job = worker.job()
    worker.settle(job, b"vanished")
    assert worker.expect(Kind.ERROR)[0] == b"INVALID_ARGUMENTS"
    assert worker.settle_as(job, b"succeeded") == b"recorded"


@pytest.mark.parametrize("outcome", [b"succeeded", b"failed", b"released", b"snoozed", b"cancelled"])
def test_a_settlement_that_is_sent_again_is_recorded_once(harness: Harness, outcome: bytes) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(retry={"max_attempts": 3, "initial": 60})
    job = worker.job()
    detail: dict[str, Any] = {"delay": 60} if outcome == b"snoozed" else {}
    worker.settle(job, outcome, b"", detail)
    worker.settle(job, outcome, b"", detail)
    assert (worker.verdict(job), worker.verdict(job)) == (b"recorded", b"recorded")
    other = harness.connect()
    assert other.settle_as(job, outcome, b"", **detail) == b"recorded", "on a new connection"
    states = {b"failed": {"scheduled"}, b"released": {"pending", "leased"}, b"snoozed": {"scheduled"}}
    assert harness.state(handle) in states.get(outcome, {outcome.decode()})


def test_a_settlement_with_a_forged_token_is_stale(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new()
    job = worker.job()
    for token in (b"", b"1.1.1", b"9.9.9", b"x", b"1" * 5000 + b".1.1", job.token + b"0"):
        assert worker.settle_as(job._replace(token=token), b"succeeded", b"forged") == b"stale"
    stranger = job._replace(handle=b"H:n1:999999000000000001")
    assert worker.settle_as(stranger, b"succeeded") == b"stale"
    assert worker.settle_as(job, b"succeeded", b"true") == b"recorded"
    assert harness.client.outcome(handle).data == b"true"


def test_another_connection_cannot_settle_a_running_job(harness: Harness) -> None:
    worker = harness.connect_worker()
    harness.submit_new()
    job = worker.job()
    assert harness.connect().settle_as(job, b"succeeded") == b"stale"
    assert worker.settle_as(job, b"succeeded") == b"recorded"


# ---- time ----


def test_a_timeout_stops_the_attempt_and_counts_as_failed(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(timeout=0.2, wait=True)
    job = worker.job()
    assert job.info["timeout"] == 0.2
    assert worker.await_stop() == (handle, job.token, b"timeout")
    result = harness.client.result()
    assert (result.state, result.attempt, result.error["type"]) == (b"failed", 1, "Timeout")
    assert worker.beat([job]) == ([], [handle])
    for outcome in (b"succeeded", b"failed", b"cancelled", b"released"):
        assert worker.settle_as(job, outcome, b"late") == b"stale", outcome
    assert harness.client.outcome(handle).state == b"failed"


def test_a_timeout_is_retried_by_the_retry_policy(harness: Harness) -> None:
    worker = harness.connect_worker(places=2)
    handle = harness.submit_new(timeout=0.2, retry=QUICK_RETRY)
    first = worker.job()
    assert worker.await_stop()[2] == b"timeout"
    second = worker.job()
    assert (second.handle, second.info["attempt"]) == (handle, 2)
    assert worker.settle_as(first, b"succeeded", b"old") == b"stale"
    assert worker.settle_as(second, b"succeeded", b"new") == b"recorded"
    assert harness.client.outcome(handle).data == b"new"


def test_a_job_without_its_required_heartbeats_is_lost(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(heartbeat=1.5)  # longer than the other worker's settlement takes on a busy machine
    job = worker.job()
    assert worker.await_stop() == (handle, job.token, b"lost")
    other = harness.connect_worker()
    redelivery = other.job()
    assert (redelivery.handle, redelivery.info["attempt"]) == (handle, 1)
    assert worker.settle_as(job, b"succeeded") == b"stale"
    assert other.settle_as(redelivery, b"succeeded") == b"recorded"


def test_heartbeats_and_progress_keep_a_job_running(harness: Harness) -> None:
    worker = harness.connect_worker()
    handle = harness.submit_new(heartbeat=1)
    job = worker.job()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert worker.beat([job]) == ([], [])
        time.sleep(0.2)  # the test is about elapsed time
        worker.write(encode(Kind.WORK_STATUS, handle, b"1", b"2"))
        time.sleep(0.2)
    assert worker.settle_as(job, b"succeeded") == b"recorded"


@pytest.mark.parametrize("max_attempts", [None, 2])
def test_lost_workers_count_against_the_policy_once_a_job_runs_alone(
    harness: Harness, max_attempts: int | None
) -> None:
    retry: dict[str, Any] = {} if max_attempts is None else {"retry": {**QUICK_RETRY, "max_attempts": max_attempts}}
    handle = harness.submit_new(wait=True, **retry)
    for attempt, alone in [(1, False), (1, False), (1, True), (2, True), (3, True)][: 5 if max_attempts is None else 4]:
        worker = harness.connect_worker()
        info = worker.job().info
        assert (info["attempt"], info.get("alone", False)) == (attempt, alone)
        worker.close()
    result = harness.client.result()
    assert (result.handle, result.state, result.attempt) == (handle, b"failed", max_attempts or 3)
    assert ("5 deliveries with workers" in result.error["message"]) == (max_attempts is None)


def test_jobs_of_a_worker_that_leaves_keep_their_places(harness: Harness) -> None:
    worker = harness.connect_worker(places=2)
    handles = [harness.submit_new(b"%d" % number) for number in range(4)]
    worker.job()
    worker.job()
    worker.close()
    eventually(lambda: harness.client.call("jobs.list", state="running", function=harness.function.decode())["items"] == [],
               "the jobs of the disconnected worker are queued again")  # fmt: skip
    other = harness.connect_worker(places=4)
    jobs = [other.job() for _ in range(4)]
    assert [job.handle for job in jobs] == handles
    assert [job.info["attempt"] for job in jobs] == [1, 1, 1, 1]


def test_heartbeats_of_unknown_jobs_report_them_as_lost(harness: Harness) -> None:
    worker = harness.connect_worker()
    harness.submit_new()
    job = worker.job()
    assert worker.beat([job, job._replace(token=b"1.2.3"), job._replace(handle=b"H:x:1")]) == (
        [],
        [job.handle, b"H:x:1"],
    )
    worker.write(encode(ExtensionKind.HEARTBEAT, b'{"jobs": [1]}'))
    assert worker.expect(Kind.ERROR)[0] == b"INVALID_ARGUMENTS"


# ---- both protocols ----


def test_a_plain_worker_completes_a_job_with_options(harness: Harness) -> None:
    worker = harness.connect_plain()
    worker.can_do(harness.function)
    handle = harness.submit_new(b"x", wait=True, retry=QUICK_RETRY)
    assert worker.grab_assigned() == (handle, harness.function, b"x")
    worker.send(Kind.WORK_FAIL, handle)
    worker.assert_silent()
    eventually(lambda: worker.grab() == Packet(Kind.JOB_ASSIGN, (handle, harness.function, b"x")), "the second attempt")
    worker.complete(handle, b"done")
    result = harness.client.result()
    assert (result.state, result.attempt, result.data) == (b"succeeded", 2, b"done")


def test_a_worker_of_the_extension_serves_a_plain_client(harness: Harness) -> None:
    worker, plain = harness.connect_worker(places=2), harness.connect_plain()
    handle = plain.submit(harness.function, b"", b"ping")
    job = worker.job()
    assert (job.handle, job.payload) == (handle, b"ping")
    assert worker.settle_as(job, b"succeeded", b"pong") == b"recorded"
    assert plain.receive() == packet_of(Kind.WORK_COMPLETE, handle, b"pong")
    handle = plain.submit(harness.function, b"", b"ping")
    assert worker.settle_as(worker.job(), b"failed", error={"type": "E", "message": "m"}) == b"recorded"
    assert plain.receive() == packet_of(Kind.WORK_FAIL, handle)


def test_a_background_submit_joins_a_foreground_job_and_outlives_its_client(harness: Harness) -> None:
    plain, worker = harness.connect_plain(), harness.connect_worker()
    handle = plain.submit(harness.function, b"u", b"p")
    job = worker.job()
    harness.client.request(harness.function, b"q", b"u", {"wait": True})
    assert harness.client.expect(ExtensionKind.SUBMITTED) == (handle, b"1")
    plain.close()
    assert worker.settle_as(job, b"succeeded", b"r") == b"recorded"
    assert harness.client.result() == (handle, b"succeeded", 1, {}, b"r")


def test_packets_with_missing_arguments_are_refused(harness: Harness) -> None:
    for kind in (ExtensionKind.SUBMIT, ExtensionKind.CALL, ExtensionKind.REGISTER, ExtensionKind.SETTLE):
        harness.client.write(encode(kind, b"only"))
        assert harness.client.expect(Kind.ERROR)[0] == b"INVALID_ARGUMENTS"
    for kind in (ExtensionKind.SUBMITTED, ExtensionKind.ASSIGN, ExtensionKind.PAUSED):
        harness.client.write(encode(kind))
        assert harness.client.expect(Kind.ERROR)[0] == b"INVALID_COMMAND"
    harness.client.assert_silent()
