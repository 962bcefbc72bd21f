"""Calls about the attempts and the arguments of jobs."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.handlers import job_records
from mainspring.api.jobs import Attempt, CancelJob, KeptArguments, ListAttempts, RetryJob, ShowArguments, ShowJob
from mainspring.api.request import ApiError, Code
from mainspring.api.submitting import JobOptions, RunJob, Submit
from mainspring.jobs.model import Retry, failure
from mainspring.jobs.user_data import ArgumentRule, ArgumentRules

from .a_node import UNKNOWN_HANDLE, Node, opened, run

AT = "2023-11-14T22:13:2{}.000000Z"


async def attempts(node: Node, handle: str) -> list[Attempt]:
    answer = await node.api.call(ListAttempts(handle))
    assert answer.handle == handle
    return answer.attempts


async def arguments(node: Node, handle: str) -> KeptArguments:
    return await node.api.call(ShowArguments(handle))


def test_a_first_success_is_an_attempt_without_a_record() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker()
            handle = await node.submit()
            assert await attempts(node, handle) == [
                Attempt(1, "running", AT.format(0), None, None, "n", "w", None, None)
            ]
            node.clock.advance(2)
            node.service.settling.succeeded(side.given[0], b"r")
            await node.committed()
            assert await attempts(node, handle) == [
                Attempt(1, "succeeded", AT.format(0), AT.format(2), 2.0, "n", None, None, None)
            ]
            assert node.store.tables.attempts == {}

    run(test())


def test_each_attempt_of_a_job_has_a_record() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker(places=2)
            policy = Retry(max_attempts=3, initial=0.0)
            handle = (await node.api.call(Submit(b"f", b"", options=JobOptions(retry=policy)))).handle
            node.clock.advance(1)
            node.service.settling.failed(side.given[0], failure("ValueError", "no"))
            await node.committed()
            first = Attempt(1, "failed", AT.format(0), AT.format(1), 1.0, "n", "w", "ValueError", "no")
            assert await attempts(node, handle) == [first]
            node.service.tick()
            await node.committed()
            node.service.settling.succeeded(side.given[1], b"r")
            await node.committed()
            second = Attempt(2, "succeeded", AT.format(1), AT.format(1), 0.0, "n", "w", None, None)
            assert await attempts(node, handle) == [first, second]

    run(test())


def test_the_first_success_after_a_retry_has_a_record_with_its_worker() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker(places=2)
            handle = await node.submit()
            await node.committed()
            node.service.settling.failed(side.given[0], failure("ValueError", "no"))
            await node.committed()
            await node.api.call(RetryJob(handle))
            await node.committed()
            node.service.settling.succeeded(side.given[1], b"r")
            await node.committed()
            found = await attempts(node, handle)
            assert [(one.number, one.outcome, one.worker) for one in found] == [
                (1, "failed", "w"),
                (1, "succeeded", "w"),
            ]

    run(test())


def test_a_first_attempt_after_a_lost_worker_has_a_record() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit()
            side = node.worker()
            await node.committed()
            (lost,) = side.given
            assert lost.worker is not None
            lost.worker.streams = True  # a worker of the extension: its loss counts no attempt
            node.service.workers.gone(lost.worker)
            following = node.worker()
            await node.committed()
            node.service.settling.succeeded(following.given[0], b"r")
            await node.committed()
            assert [attempt.outcome for attempt in await attempts(node, handle)] == ["lost", "succeeded"]

    run(test())


@pytest.mark.parametrize("outcome", ["cancelled", "succeeded"])
def test_an_attempt_has_the_time_at_which_its_worker_was_asked_to_stop(outcome: str) -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit()
            side = node.worker()
            await node.committed()
            (held,) = side.given
            assert held.worker is not None
            held.worker.streams = True
            for _ in range(2):  # the first request counts
                node.clock.advance(1)
                await node.api.call(CancelJob(handle))
            assert [one.stop_requested_at for one in await attempts(node, handle)] == [AT.format(1)]
            if outcome == "cancelled":
                node.service.settling.released(held)
            else:
                node.service.settling.succeeded(held, b"r")
            await node.committed()
            (shown,) = await attempts(node, handle)
            assert (shown.outcome, shown.stop_requested_at, shown.ended_at) == (outcome, AT.format(1), AT.format(2))

    run(test())


def test_small_arguments_of_a_success_are_kept() -> None:
    async def test() -> None:
        async with opened(arguments=ArgumentRules([ArgumentRule("*", 13)])) as node:
            side = node.worker(places=4)
            sent = [b'{"a":[1,"x"]}', b"\xff", b"", b"x" * 14]
            handles = [await node.submit(payload=payload) for payload in sent]
            before = [await arguments(node, handle) for handle in handles]
            for held in side.given:
                node.service.settling.succeeded(held, b"r")
            await node.committed()
            after = [await arguments(node, handle) for handle in handles]
            assert after[:3] == before[:3]
            assert after[0] == KeptArguments(handles[0], 13, kept=True, redacted=False, value={"a": [1, "x"]})
            assert after[1] == KeptArguments(handles[1], 1, kept=True, redacted=False, payload=b"\xff")
            assert after[2] == KeptArguments(handles[2], 0, kept=True, redacted=False)
            assert before[3].payload == sent[3]
            assert after[3] == KeptArguments(handles[3], 14, kept=False, redacted=False)

    run(test())


@pytest.mark.parametrize(("declared", "kept"), [(0, [False, False]), (3, [True, False]), (9, [True, True])])
def test_the_size_that_workers_declare_counts_from_then_on(declared: int, kept: list[bool]) -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker(places=2)
            handles = [await node.submit(payload=payload) for payload in (b"123", b"1234")]
            node.service.arguments.declare(b"f", declared)
            for held in side.given:
                node.service.settling.succeeded(held, b"r")
            await node.committed()
            assert [(await arguments(node, handle)).kept for handle in handles] == kept

    run(test())


def test_redacted_values_are_neither_shown_nor_kept_after_a_success() -> None:
    async def test() -> None:
        async with opened(arguments=ArgumentRules([], [ArgumentRule("f", "pin")])) as node:
            payload = b'{"pin":1234,"to":"a"}'
            waiting, other = await node.submit(payload=payload), await node.submit(b"g", payload=payload)
            withheld = await node.submit(payload=b"pin=1234")
            shown = KeptArguments(
                waiting, len(payload), kept=True, redacted=True, value={"pin": "[redacted]", "to": "a"}
            )
            assert await arguments(node, waiting) == shown
            assert (await arguments(node, other)).value == {"pin": 1234, "to": "a"}
            assert await arguments(node, withheld) == KeptArguments(withheld, 8, kept=True, redacted=True)
            side = node.worker(places=2)
            await node.committed()
            for held in side.given:
                assert b"1234" in held.job.payload, "its worker gets all"
                node.service.settling.succeeded(held, b"")
            await node.committed()
            assert await arguments(node, waiting) == shown
            assert [job.payload for job in node.store.tables.jobs.values()] == [
                b'{"pin":"[redacted]","to":"a"}',
                payload,
                b"",
            ]

    run(test())


def test_a_failed_job_keeps_its_arguments_for_a_retry_but_shows_none_that_is_redacted() -> None:
    async def test() -> None:
        async with opened(arguments=ArgumentRules([ArgumentRule("*", 0)], [ArgumentRule("*", "pin")])) as node:
            side = node.worker()
            handle = await node.submit(payload=b'{"pin":1}')
            node.service.settling.failed(side.given[0], failure("E", "no"))
            await node.committed()
            assert (await arguments(node, handle)).value == {"pin": "[redacted]"}
            assert [job.payload for job in node.store.tables.jobs.values()] == [b'{"pin":1}']

    run(test())


def test_large_arguments_are_not_in_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_records, "SHOWN_BYTES", 3)

    async def test() -> None:
        async with opened() as node:
            stored = await node.submit(b"g", b"1234")
            assert await arguments(node, stored) == KeptArguments(stored, 4, kept=True, redacted=False)
            alone = asyncio.create_task(node.api.call(RunJob(b"f", b"1234")))
            await node.submit(b"g")
            (held,) = [one for one in node.service.table.held.values() if not one.stored]
            handle = held.handle.decode()
            assert await arguments(node, handle) == KeptArguments(handle, 4, kept=True, redacted=False)
            assert await attempts(node, handle) == []
            alone.cancel()

    run(test())


@pytest.mark.parametrize("handle", ["x", UNKNOWN_HANDLE])
def test_an_unknown_job_has_neither(handle: str) -> None:
    async def test() -> None:
        async with opened() as node:
            assert await node.code(ListAttempts(handle)) is Code.JOB_NOT_FOUND
            assert await node.code(ShowArguments(handle)) is Code.JOB_NOT_FOUND

    run(test())


def test_arguments_need_their_own_permission_for_the_function() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit()
            for grant, allowed in (
                (Grant(Role.ADMIN, "default"), False),
                (Grant(Role.VIEWER, "default", ("g*",), payloads=True), False),
                (Grant(Role.VIEWER, "default", ("f*",), payloads=True), True),
            ):
                caller = Caller("a", (grant,))
                if allowed:
                    await node.api.call(ShowArguments(handle), caller=caller)
                    continue
                with pytest.raises(ApiError) as caught:
                    await node.api.call(ShowArguments(handle), caller=caller)
                assert caught.value.problem.code is Code.FORBIDDEN

    run(test())


def test_the_progress_of_an_ended_job_stays() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker(places=3)
            for number, succeeds in enumerate((True, False, True)):
                handle = await node.submit()
                await node.committed()
                held = side.given[number]
                if number < 2:
                    node.service.reports.text(held, b"row 3")
                    node.service.reports.status(held, b"3", b"4")
                if succeeds:
                    node.service.settling.succeeded(held, b"r")
                else:
                    node.service.settling.failed(held, failure("ValueError", "no"))
                await node.committed()
                shown = await node.api.call(ShowJob(handle))
                expected = (3, 4, "row 3") if number < 2 else (0, 0, None)
                assert (shown.done, shown.total, shown.text) == expected
                (attempt,) = await attempts(node, handle)
                assert (attempt.done, attempt.total, attempt.text) == expected

    run(test())
