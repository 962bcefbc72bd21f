"""Calls that change single jobs, submit them in JSON, and read their data, without a face."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api import jobs
from mainspring.api.request import ApiError, Code
from mainspring.api.submitting import NewJob, RunJob, Submission, Submit, SubmitJob, SubmitJobs
from mainspring.errors import ForbiddenError, StoreFullError
from mainspring.features import Feature
from mainspring.jobs.model import Job, State, failure
from mainspring.jobs.user_data import ArgumentRule, ArgumentRules
from mainspring.namespaces import key

from .a_node import PAYLOAD_LIMIT, UNKNOWN_HANDLE, opened, run

if TYPE_CHECKING:
    from mainspring.api.request import Request

    from .a_node import Node

LATER = datetime(2023, 11, 15, tzinfo=UTC)
"""Some hours after the beginning of the tests."""


async def failed(node: Node, payload: bytes = b"load", unique: bytes = b"") -> str:
    """Return a job that has failed."""
    handle = await node.submit(payload=payload, unique=unique)
    await node.api.call(jobs.CancelJob(handle))
    return handle


def new(**values: object) -> NewJob:
    return msgspec.json.decode(msgspec.json.encode({"function": "f"} | values), type=NewJob)


# ---- changes ----


def test_a_waiting_job_is_changed() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit()
            changed = await node.api.call(jobs.UpdateJob(handle, run_at=LATER, priority="high", expires_at=LATER))
            assert (changed.state, changed.priority) == ("scheduled", "high")
            shown = await node.api.call(jobs.ShowJob(handle))
            assert shown.run_at == shown.expires_at == "2023-11-15T00:00:00.000000Z"
            await node.api.call(jobs.UpdateJob(handle, expires_at=None))
            shown = await node.api.call(jobs.ShowJob(handle))
            assert (shown.state, shown.priority, shown.expires_at) == ("scheduled", "high", None)
            past = datetime(2020, 1, 1, tzinfo=UTC)
            assert (await node.api.call(jobs.UpdateJob(handle, run_at=past))).state == "pending"
            assert (await node.api.call(jobs.SnoozeJob(handle, 60))).state == "scheduled"

    run(test())


def test_an_ended_job_is_deleted() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await failed(node)
            assert await node.api.call(jobs.DeleteJob(handle)) == jobs.DeletedJob(handle)
            assert await node.code(jobs.ShowJob(handle)) is Code.JOB_NOT_FOUND

    run(test())


def test_a_retry_may_have_other_arguments_and_a_delay() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await failed(node)
            retried = await node.api.call(jobs.RetryJob(handle, args=msgspec.Raw(b"[1.0]"), delay=60))
            assert retried.state == "scheduled"
            assert (await node.api.call(jobs.ReadPayload(handle))).data == b"[1.0]"

    run(test())


def test_a_refused_retry_names_the_live_job() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await failed(node, unique=b"u")
            live = await node.submit(unique=b"u")
            with pytest.raises(ApiError) as refused:
                await node.api.call(jobs.RetryJob(handle))
            assert (refused.value.problem.code, refused.value.problem.live_handle) == (Code.CONFLICT, live)

    run(test())


def test_a_clone_has_the_same_arguments_and_options() -> None:
    async def test() -> None:
        async with opened() as node:
            original = new(
                args=[1],
                unique="u",
                priority="low",
                timeout=5.0,
                concurrency_key="k",
                tags=("a",),
                delay=60.0,
                deadline=9.0,
            )
            handle = (await node.api.call(SubmitJob(original))).handle
            assert handle is not None
            clone = await node.api.call(jobs.CloneJob(handle))
            assert clone.handle is not None
            assert (clone.handle != handle, clone.joined) == (True, False)
            shown = await node.api.call(jobs.ShowJob(clone.handle))
            assert (shown.function, shown.priority, shown.concurrency_key, shown.tags) == ("f", "low", "k", ["a"])
            assert (shown.timeout, shown.unique, shown.run_at, shown.state) == (5.0, "", None, "pending")
            assert (await node.api.call(jobs.ReadPayload(clone.handle))).data == b"[1]"
            assert (shown.start_by, shown.deadline_at) == (None, None), "they count from a submit, as an expiry"
            other = jobs.CloneJob(handle, payload=b"2", unique="v", priority="high", delay=5, tags=(), deadline=60.0)
            clone = await node.api.call(other)
            assert clone.handle is not None
            shown = await node.api.call(jobs.ShowJob(clone.handle))
            assert (shown.unique, shown.priority, shown.tags, shown.state) == ("v", "high", [], "scheduled")
            assert (shown.start_by, shown.deadline_at is not None) == (None, True)
            assert (await node.api.call(jobs.ReadPayload(clone.handle))).data == b"2"
            assert await node.api.call(jobs.CloneJob(handle, unique="u")) == Submission(handle, joined=True)

    run(test())


def test_kept_arguments_of_a_success_are_cloned_unless_they_are_redacted() -> None:
    async def test() -> None:
        async with opened(arguments=ArgumentRules([], [ArgumentRule("*", "pin")])) as node:
            side = node.worker(places=2)
            plain, secret = await node.submit(payload=b'{"a":1}'), await node.submit(payload=b'{"pin":1}')
            assert (await node.api.call(jobs.ReadPayload(secret))).data == b'{"pin":"[redacted]"}'
            for held in side.given:
                node.service.settling.succeeded(held, b"r")
            await node.committed()
            clone = await node.api.call(jobs.CloneJob(plain))
            assert clone.handle is not None
            assert (await node.api.call(jobs.ReadPayload(clone.handle))).data == b'{"a":1}'
            assert await node.code(jobs.CloneJob(secret)) is Code.NOT_KEPT
            no_json = await node.submit(payload=b"pin=1")
            assert await node.code(jobs.ReadPayload(no_json)) is Code.NOT_KEPT

    run(test())


def test_a_job_whose_arguments_are_gone_is_cloned_with_others() -> None:
    async def test() -> None:
        async with opened(arguments=ArgumentRules([ArgumentRule("*", 0)])) as node:
            side = node.worker()
            handle = await node.submit(payload=b"load")
            assert (await node.api.call(jobs.ReadPayload(handle))).data == b"load"
            node.service.settling.succeeded(side.given[0], b"r")
            await node.committed()
            assert await node.code(jobs.CloneJob(handle)) is Code.NOT_KEPT
            assert await node.code(jobs.ReadPayload(handle)) is Code.NOT_KEPT
            assert (await node.api.call(jobs.CloneJob(handle, args=msgspec.Raw(b"1")))).handle is not None

    run(test())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (jobs.UpdateJob("x"), Code.JOB_NOT_FOUND),
        (jobs.SnoozeJob(UNKNOWN_HANDLE, 1), Code.JOB_NOT_FOUND),
        (jobs.SnoozeJob(UNKNOWN_HANDLE, -1), Code.INVALID),
        (jobs.DeleteJob(UNKNOWN_HANDLE), Code.JOB_NOT_FOUND),
        (jobs.CloneJob(UNKNOWN_HANDLE), Code.JOB_NOT_FOUND),
        (jobs.RetryJob(UNKNOWN_HANDLE, delay=-1), Code.INVALID),
        (jobs.RetryJob(UNKNOWN_HANDLE, payload=b"", args=msgspec.Raw(b"1")), Code.INVALID),
        (jobs.RetryJob(UNKNOWN_HANDLE, payload=b"x" * (PAYLOAD_LIMIT + 1)), Code.TOO_LARGE),
        (jobs.ReadPayload(UNKNOWN_HANDLE), Code.JOB_NOT_FOUND),
        (jobs.ReadResult(UNKNOWN_HANDLE), Code.JOB_NOT_FOUND),
        (jobs.AwaitJob(UNKNOWN_HANDLE), Code.JOB_NOT_FOUND),
        (SubmitJob(new(function="")), Code.INVALID),
        (SubmitJob(new(function="a\x1fb")), Code.INVALID),
        (SubmitJob(new(function="webhook:crm")), Code.INVALID),
        (Submit(b"webhook:crm", b""), Code.INVALID),
        (RunJob(b"webhook:crm", b""), Code.INVALID),
        (SubmitJob(new(delay=1, run_at=LATER)), Code.INVALID),
        (SubmitJob(new(args=1, payload="MQ==")), Code.INVALID),
    ],
)
def test_problems_have_codes(request_: Request[object], code: Code) -> None:
    async def test() -> None:
        async with opened() as node:
            assert await node.code(request_) is code

    run(test())


@pytest.mark.parametrize("namespace", ["default", "team"])
def test_deliveries_of_webhooks_have_the_arguments_that_nodes_made(namespace: str) -> None:
    async def test() -> None:
        async with opened() as node:
            name = key(namespace, b"webhook:crm")
            delivery = Job(node.service.table.next_id(), name, b"an event", state=State.PENDING)
            node.service.intake.submit([delivery], lambda *_: None, lambda _: None)
            await node.committed()
            handle = node.service.handles.of(delivery.id).decode()
            assert await node.code(jobs.CloneJob(handle, namespace=namespace)) is Code.INVALID
            await node.api.call(jobs.CancelJob(handle, namespace=namespace))
            for given in ({"payload": b"another"}, {"args": msgspec.Raw(b"1")}):
                refused = jobs.RetryJob(handle, namespace=namespace, **given)
                assert await node.code(refused) is Code.INVALID
            assert (await node.api.call(jobs.RetryJob(handle, namespace=namespace))).state == "pending"
            await node.api.call(jobs.CancelJob(handle, namespace=namespace))
            assert (await node.api.call(jobs.DeleteJob(handle, namespace=namespace))).handle == handle

    run(test())


def test_a_job_in_the_wrong_state_is_a_conflict() -> None:
    async def test() -> None:
        async with opened() as node:
            ended, waiting = await failed(node), await node.submit(b"g")
            for refused in (
                jobs.UpdateJob(ended, priority="high"),
                jobs.SnoozeJob(ended, 5),
                jobs.DeleteJob(waiting),
                jobs.RetryJob(waiting),
                jobs.ReadResult(waiting),
                jobs.ReadResult(ended),
            ):
                assert await node.code(refused) is Code.CONFLICT, refused

    run(test())


def test_a_store_that_changes_no_jobs_says_so() -> None:
    async def test() -> None:
        async with opened(lacks=frozenset({Feature.JOB_CHANGES})) as node:
            handle = await failed(node)
            for refused in (
                jobs.UpdateJob(handle),
                jobs.SnoozeJob(handle, 5),
                jobs.DeleteJob(handle),
                jobs.RetryJob(handle, delay=5),
                jobs.RetryJob(handle, payload=b""),
            ):
                assert await node.code(refused) is Code.UNSUPPORTED, refused
            assert (await node.api.call(jobs.RetryJob(handle))).state == "pending"

    run(test())


# ---- submissions in JSON ----


def test_jobs_are_submitted_in_json() -> None:
    async def test() -> None:
        async with opened() as node:
            first = await node.api.call(SubmitJob(new(args={"b": 1.0}, unique="u", run_at="2023-11-15T00:00:00Z")))
            assert first.joined is False
            assert first.handle is not None
            shown = await node.api.call(jobs.ShowJob(first.handle))
            assert (shown.state, shown.run_at) == ("scheduled", "2023-11-15T00:00:00.000000Z")
            assert await node.api.call(SubmitJob(new(unique="u"))) == Submission(first.handle, joined=True)
            other = await node.api.call(SubmitJob(new(payload="AP8=")))
            assert other.handle is not None
            assert (await node.api.call(jobs.ReadPayload(other.handle))).data == b"\0\xff"

    run(test())


def test_json_arguments_stay_as_they_are() -> None:
    async def test() -> None:
        async with opened() as node:
            text = b'{"n": 1.000, "big": 123456789012345678901234567890}'
            job = msgspec.json.decode(b'{"function": "f", "args": %b}' % text, type=NewJob)
            handle = (await node.api.call(SubmitJob(job))).handle
            assert handle is not None
            assert (await node.api.call(jobs.ReadPayload(handle))).data == text

    run(test())


def test_each_job_of_a_batch_has_its_answer() -> None:
    async def test() -> None:
        async with opened() as node:
            batch = [new(args=1), new(function=""), new(unique="u"), new(unique="u"), new(payload="A" * 2000)]
            groups = node.store.groups
            answers = (await node.api.call(SubmitJobs(batch))).items
            assert node.store.groups == groups + 1
            problems = [answer.problem and answer.problem.code for answer in answers]
            assert problems == [None, Code.INVALID, None, None, Code.TOO_LARGE]
            assert [answer.joined for answer in answers] == [False, None, False, True, None]
            assert answers[2].handle == answers[3].handle
            assert len((await node.api.call(jobs.ListJobs())).items) == 2
            assert (await node.api.call(SubmitJobs([]))).items == []

    run(test())


def test_a_batch_may_join_a_foreground_job() -> None:
    async def test() -> None:
        async with opened() as node:
            alone = asyncio.create_task(node.api.call(RunJob(b"f", b"", b"u")))
            while not list(node.service.table.held.values()):  # noqa: ASYNC110 - a call has no event for it
                await asyncio.sleep(0)
            answers = (await node.api.call(SubmitJobs([new(unique="u"), new(function=""), new()]))).items
            assert [answer.joined for answer in answers] == [True, None, False]
            alone.cancel()

    run(test())


def test_a_batch_that_the_store_refuses_fails_as_a_whole() -> None:
    async def test() -> None:
        async with opened() as node:
            node.store.error = StoreFullError("full")
            assert await node.code(SubmitJobs([new(), new()])) is Code.UNAVAILABLE

    run(test())


# ---- outcomes ----


async def waits(node: Node, handle: str) -> asyncio.Task[jobs.JobOutcome]:
    """Return a call that waits for the end of a job."""
    job_id = node.service.handles.parse(handle.encode())
    assert job_id is not None
    waiting = asyncio.create_task(node.api.call(jobs.AwaitJob(handle)))
    while not node.service.listeners.of(job_id):  # noqa: ASYNC110 - a call has no event for it
        await asyncio.sleep(0)
    return waiting


def test_a_call_waits_for_the_end_of_a_job() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker()
            handle = await node.submit()
            waiting = await waits(node, handle)
            node.service.settling.succeeded(side.given[0], b"[1.0]")
            wanted = jobs.JobOutcome(handle, "succeeded", 1, msgspec.Raw(b"[1.0]"), "json")
            for outcome in (await waiting, await node.api.call(jobs.AwaitJob(handle))):
                assert msgspec.json.encode(outcome) == msgspec.json.encode(wanted)
            assert (await node.api.call(jobs.ReadResult(handle))).data == b"[1.0]"

    run(test())


def test_a_failed_job_has_no_result() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker()
            handle = await node.submit()
            waiting = await waits(node, handle)
            node.service.settling.failed(side.given[0], failure("E", "why"), final=True)
            assert await waiting == jobs.JobOutcome(handle, "failed", 1, error="E: why")

    run(test())


def test_a_call_that_ends_waits_no_more() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit()
            waiting = await waits(node, handle)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert not node.service.listeners.of(node.service.handles.parse(handle.encode()) or 0)

    run(test())


# ---- permissions ----


def caller(role: Role, *functions: str, payloads: bool = False) -> Caller:
    return Caller("someone", (Grant(role, "default", functions, payloads),))


def test_a_caller_of_some_functions_sees_only_these() -> None:
    async def test() -> None:
        async with opened() as node:
            seen, hidden = await node.submit(b"pay.card"), await node.submit(b"other")
            someone = caller(Role.DEVELOPER, "pay*", payloads=True)
            listed = await node.api.call(jobs.ListJobs(), caller=someone)
            assert [job.handle for job in listed.items] == [seen]
            requests: list[Request[Any]] = [
                jobs.ShowJob(hidden),
                jobs.CancelJob(hidden),
                jobs.RetryJob(hidden),
                jobs.UpdateJob(hidden),
                jobs.SnoozeJob(hidden, 5),
                jobs.DeleteJob(hidden),
                jobs.CloneJob(hidden),
                jobs.ReadPayload(hidden),
                jobs.ReadResult(hidden),
                jobs.AwaitJob(hidden),
                SubmitJob(new(function="other")),
            ]
            for request in requests:
                with pytest.raises((ForbiddenError, ApiError)) as refused:
                    await node.api.call(request, caller=someone)
                assert "lacks the permission" in str(refused.value)
            batch = [new(function=name) for name in ("other", "pay.card", "pay.card", "other")]
            answers = (await node.api.call(SubmitJobs(batch), caller=someone)).items
            problems = [answer.problem and answer.problem.code for answer in answers]
            assert problems == [Code.FORBIDDEN, None, None, Code.FORBIDDEN]
            assert (await node.api.call(jobs.ShowJob(seen), caller=someone)).handle == seen

    run(test())


def test_an_operator_retries_but_not_with_other_arguments() -> None:
    async def test() -> None:
        async with opened() as node:
            handle, operator = await failed(node), caller(Role.OPERATOR)
            with pytest.raises((ForbiddenError, ApiError)):
                await node.api.call(jobs.RetryJob(handle, payload=b""), caller=operator)
            assert (await node.api.call(jobs.RetryJob(handle, delay=5), caller=operator)).state == "scheduled"

    run(test())


def test_a_caller_without_the_right_to_payloads_sees_no_result() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker()
            handle = await node.submit()
            node.service.settling.succeeded(side.given[0], b"secret")
            await node.committed()
            outcome = await node.api.call(jobs.AwaitJob(handle), caller=caller(Role.ADMIN))
            assert outcome == jobs.JobOutcome(handle, "succeeded", 1)
            outcome = await node.api.call(jobs.AwaitJob(handle), caller=caller(Role.VIEWER, payloads=True))
            assert (outcome.encoding, outcome.result) == ("text", "secret")

    run(test())
