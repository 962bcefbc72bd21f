"""Calls about operations on many jobs, without a face."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.access.audit import ListActs
from mainspring.access.caller import LOCAL, Caller, Grant, Role
from mainspring.api import jobs
from mainspring.api.handlers import operations as answers
from mainspring.api.handlers.operations import OperationCalls
from mainspring.api.handlers.registry import Api
from mainspring.api.operations import (
    AbortOperation,
    ListOperationJobs,
    ListOperations,
    OperationDetails,
    ShowOperation,
    StartOperation,
)
from mainspring.api.request import ApiError, Code, JobCriteria
from mainspring.bulk.service import BulkNode as Services
from mainspring.bulk.service import BulkService
from mainspring.features import Feature

from .a_node import UNKNOWN_HANDLE, Node, opened, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mainspring.access.audit import Recorded
    from mainspring.api.request import Request
    from mainspring.storage.engine import Page

ANN = Caller("ann", (Grant(Role.OPERATOR),), token="t1", address="1.2.3.4", request="r")
FUNCTION_F = JobCriteria(function="f")


async def unchanged(caller: Caller) -> Caller:
    return caller


class Bulk:
    """A node, and its answers to calls about operations."""

    def __init__(self, node: Node) -> None:
        self.node = node
        loop = asyncio.get_running_loop()
        service = node.service
        services = Services(
            node.commits,
            node.reads,
            node.clock,
            service.stored_changes,
            loop.call_later,
            service.clients.cancel,
            unchanged,
        )
        self.service = BulkService(services, service.table.next_id, lambda: service.term)
        calls = OperationCalls(self.service, service, node.jobs.find_run)
        self.api = Api(calls.handlers)
        self.api.add_objects(calls.objects)

    async def call(self, request: Request[Any], caller: Caller = LOCAL) -> Any:
        return await self.api.call(request, caller=caller)

    async def code(self, request: Request[Any], caller: Caller = LOCAL) -> Code:
        with pytest.raises(ApiError, match=r"\w") as caught:
            await self.call(request, caller)
        return caught.value.problem.code

    async def ended(self, name: str) -> OperationDetails:
        while True:
            shown: OperationDetails = await self.call(ShowOperation(name))
            if shown.state != "running":
                return shown
            await asyncio.sleep(0.001)

    async def states(self, handles: list[str]) -> list[str]:
        return [(await self.node.api.call(jobs.ShowJob(handle))).state for handle in handles]

    async def acts(self) -> list[Recorded]:
        page: Page[Recorded] = await asyncio.wait_for(_answer(self.node, ListActs()), 5)
        return page.items[::-1]


async def _answer(node: Node, query: Any) -> Any:
    answer = asyncio.get_running_loop().create_future()
    node.reads.ask(query, answer.set_result, answer.set_exception)
    return await answer


@asynccontextmanager
async def started() -> AsyncIterator[Bulk]:
    async with opened() as node:
        yield Bulk(node)


def test_an_operation_is_started_shown_and_listed() -> None:
    async def test() -> None:
        async with started() as bulk:
            handles = [await bulk.node.submit() for _ in range(7)]
            other = await bulk.node.submit(b"g")
            begun = await bulk.call(StartOperation("cancel", FUNCTION_F, reason="no more", rate=1000), ANN)
            assert (begun.matched, begun.at_least) == (7, False)
            assert [job.handle for job in begun.sample] == handles[:1:-1]
            shown = await bulk.ended(begun.id)
            assert (shown.state, shown.outcomes, shown.done) == ("done", {"cancelled": 7}, 7)
            assert (shown.created_by, shown.reason, shown.filter, shown.handles) == ("ann", "no more", FUNCTION_F, None)
            assert (shown.rate, shown.matched, shown.failures) == (1000, 7, [])
            assert await bulk.states([*handles, other]) == ["cancelled"] * 7 + ["pending"]
            listed = await bulk.call(ListOperations())
            assert [one.id for one in listed.items] == [begun.id]
            assert listed.next is None
            touched = await bulk.call(ListOperationJobs(begun.id))
            assert [(job.handle, job.outcome) for job in touched.items] == [(one, "cancelled") for one in handles[::-1]]
            assert touched.next is None

    run(test())


def test_the_audit_has_one_row_for_an_operation() -> None:
    async def test() -> None:
        async with started() as bulk:
            for _ in range(3):
                await bulk.node.submit()
            begun = await bulk.call(StartOperation("cancel", FUNCTION_F, reason="no more"), ANN)
            await bulk.ended(begun.id)
            await bulk.call(AbortOperation(begun.id), ANN)
            (recorded,) = await bulk.acts()
            act = recorded.act
            assert (act.what, act.object, act.who, act.token) == ("operations.start", begun.id, "ann", "t1")
            assert (act.reason, act.after["filter"]) == ("no more", {"function": "f"})

    run(test())


def test_a_dry_run_changes_nothing() -> None:
    async def test() -> None:
        async with started() as bulk:
            handles = [await bulk.node.submit() for _ in range(2)]
            dry = await bulk.call(StartOperation("cancel", FUNCTION_F, dry_run=True))
            assert (dry.id, dry.matched, len(dry.sample)) == (None, 2, 2)
            dry = await bulk.call(StartOperation("cancel", handles=[*handles, UNKNOWN_HANDLE], dry_run=True))
            assert (dry.id, dry.matched, len(dry.sample)) == (None, 2, 2)
            assert (await bulk.call(ListOperations())).items == []
            assert await bulk.acts() == []
            assert await bulk.states(handles) == ["pending"] * 2

    run(test())


def test_a_count_that_takes_too_long_is_a_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "COUNT_SECONDS", 0)
    monkeypatch.setattr(answers, "PAGE_LIMIT", 2)

    async def test() -> None:
        async with started() as bulk:
            for _ in range(3):
                await bulk.node.submit()
            dry = await bulk.call(StartOperation("cancel", FUNCTION_F, dry_run=True))
            assert (dry.matched, dry.at_least) == (2, True)

    run(test())


def test_an_operation_above_the_share_of_its_caller_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.bulk.service.OPEN_OF_CALLER", 0)

    async def test() -> None:
        async with started() as bulk:
            await bulk.node.submit()
            assert await bulk.code(StartOperation("cancel", FUNCTION_F), ANN) is Code.CONFLICT
            assert (await bulk.call(ListOperations())).items == []
            assert (await bulk.call(StartOperation("cancel", FUNCTION_F, dry_run=True), ANN)).matched == 1
            assert await bulk.acts() == []

    run(test())


def test_more_jobs_than_expected_are_a_conflict() -> None:
    async def test() -> None:
        async with started() as bulk:
            handles = [await bulk.node.submit() for _ in range(2)]
            assert await bulk.code(StartOperation("cancel", FUNCTION_F, expect=1)) is Code.CONFLICT
            assert (await bulk.call(ListOperations())).items == []
            begun = await bulk.call(StartOperation("cancel", FUNCTION_F, expect=2))
            assert (await bulk.ended(begun.id)).expect == 2
            assert await bulk.states(handles) == ["cancelled"] * 2

    run(test())


def test_an_operation_is_aborted() -> None:
    async def test() -> None:
        async with started() as bulk:
            for _ in range(3):
                await bulk.node.submit()
            begun = await bulk.call(StartOperation("cancel", FUNCTION_F, rate=0.1))
            aborted = await bulk.call(AbortOperation(begun.id, "wrong filter"), ANN)
            assert (aborted.state, aborted.why) == ("aborted", "aborted by ann: wrong filter")
            assert (await bulk.call(ShowOperation(begun.id))).state == "aborted"
            assert [one.act.what for one in await bulk.acts()] == ["operations.start", "operations.abort"]

    run(test())


def test_jobs_are_rescheduled_and_named_by_handles() -> None:
    async def test() -> None:
        async with started() as bulk:
            handles = [await bulk.node.submit() for _ in range(2)]
            later = datetime(2100, 1, 1, tzinfo=UTC)
            begun = await bulk.call(StartOperation("reschedule", handles=[*handles, handles[0]], run_at=later))
            shown = await bulk.ended(begun.id)
            assert (shown.outcomes, shown.handles) == ({"rescheduled": 2}, 2)
            assert shown.run_at == "2100-01-01T00:00:00.000000Z"
            assert await bulk.states(handles) == ["scheduled"] * 2

    run(test())


def test_failures_name_the_jobs() -> None:
    async def test() -> None:
        async with started() as bulk:
            handle = await bulk.node.submit()
            begun = await bulk.call(StartOperation("retry", handles=[handle, UNKNOWN_HANDLE]))
            shown = await bulk.ended(begun.id)
            assert shown.outcomes == {"conflict": 1, "not_found": 1}
            assert {failure.handle: failure.outcome for failure in shown.failures} == {
                handle: "conflict",
                UNKNOWN_HANDLE: "not_found",
            }

    run(test())


def test_a_caller_changes_only_its_functions() -> None:
    async def test() -> None:
        async with started() as bulk:
            mine, other = await bulk.node.submit(b"g1"), await bulk.node.submit()
            limited = Caller("bob", (Grant(Role.OPERATOR, functions=("g*",)),), token="t2")
            begun = await bulk.call(StartOperation("cancel", JobCriteria(state="pending")), limited)
            assert begun.matched == 1
            assert (await bulk.ended(begun.id)).outcomes == {"cancelled": 1}
            by_handle = await bulk.call(StartOperation("cancel", handles=[other]), limited)
            assert (by_handle.matched, by_handle.sample) == (0, [])
            shown = await bulk.ended(by_handle.id)
            assert shown.outcomes == {"forbidden": 1}
            assert "pending" not in shown.failures[0].message
            ended = await bulk.call(StartOperation("retry", handles=[other]), limited)
            assert (await bulk.ended(ended.id)).outcomes == {"forbidden": 1}, "its state is not shown"
            assert await bulk.code(StartOperation("cancel", JobCriteria()), limited) is Code.INVALID
            assert await bulk.states([mine, other]) == ["cancelled", "pending"]

    run(test())


def test_a_caller_with_some_functions_sees_its_own_operations() -> None:
    async def test() -> None:
        async with started() as bulk:
            await bulk.node.submit()
            limited = Caller("bob", (Grant(Role.OPERATOR, functions=("g*",)),), token="t2")
            others = await bulk.call(StartOperation("cancel", FUNCTION_F, rate=0.1), ANN)
            own = await bulk.call(StartOperation("cancel", JobCriteria(state="pending")), limited)
            assert [one.id for one in (await bulk.call(ListOperations(), limited)).items] == [own.id]
            for request in (ShowOperation(others.id), ListOperationJobs(others.id), AbortOperation(others.id)):
                assert await bulk.code(request, limited) is Code.OPERATION_NOT_FOUND
            assert (await bulk.call(ShowOperation(own.id), limited)).id == own.id

    run(test())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (StartOperation("cancel"), Code.INVALID),
        (StartOperation("cancel", JobCriteria()), Code.INVALID),
        (StartOperation("cancel", FUNCTION_F, handles=[UNKNOWN_HANDLE]), Code.INVALID),
        (StartOperation("cancel", handles=["x"]), Code.INVALID),
        (StartOperation("cancel", JobCriteria(state="asleep")), Code.INVALID),
        (StartOperation("cancel", JobCriteria(state="failed")), Code.INVALID),
        (StartOperation("reschedule", FUNCTION_F), Code.INVALID),
        (StartOperation("cancel", FUNCTION_F, rate=0), Code.INVALID),
        (ShowOperation("x"), Code.OPERATION_NOT_FOUND),
        (ShowOperation("op-1"), Code.OPERATION_NOT_FOUND),
        (ShowOperation("op-" + "9" * 30), Code.OPERATION_NOT_FOUND),
        (AbortOperation("op-1"), Code.OPERATION_NOT_FOUND),
        (ListOperationJobs("op-1"), Code.OPERATION_NOT_FOUND),
        (ListOperations(cursor="x"), Code.INVALID),
    ],
)
def test_problems_have_codes(request_: Request[Any], code: Code) -> None:
    async def test() -> None:
        async with started() as bulk:
            assert await bulk.code(request_) is code

    run(test())


def test_an_operator_is_needed() -> None:
    async def test() -> None:
        async with started() as bulk:
            viewer = Caller("vic", (Grant(Role.VIEWER),), token="t")
            assert (await bulk.call(ListOperations(), viewer)).items == []
            for request in (StartOperation("cancel", FUNCTION_F), AbortOperation("op-1")):
                with pytest.raises(ApiError, match="lacks the permission 'operate'"):
                    await bulk.call(request, viewer)

    run(test())


def test_a_store_without_operations_refuses() -> None:
    async def test() -> None:
        api = Api(lacks=frozenset({Feature.OPERATIONS}))
        requests: list[Request[Any]] = [
            StartOperation("cancel", FUNCTION_F),
            ListOperations(),
            ShowOperation("op-1"),
            ListOperationJobs("op-1"),
            AbortOperation("op-1"),
        ]
        for request in requests:
            with pytest.raises(ApiError, match="keeps no operations") as caught:
                await api.call(request)
            assert caught.value.problem.code is Code.UNSUPPORTED

    run(test())
