"""The call that lists runs, without a face and with a fake of the service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.access.caller import LOCAL
from mainspring.api import jobs, workflows
from mainspring.api.handlers import runs
from mainspring.api.handlers.pages import rfc3339
from mainspring.api.request import Code
from mainspring.callbacks import ITEMS_AT_ONCE, CallInProgress, awaited
from mainspring.clock import time_of, us_of
from mainspring.jobs.model import Options
from mainspring.jobs.store import CountSome
from mainspring.loop_shares import LoopShares, Piece
from mainspring.workflows.model import About, OpenTimer, Parked, Parking, encode_about
from mainspring.workflows.model import State as RunState

from .a_node import run
from .runs_of_a_node import ROOT, START_US, a_run, activity, waiting, with_runs

if TYPE_CHECKING:
    import pytest


def test_a_run_is_listed_with_the_things_that_it_waits_for() -> None:
    async def test() -> None:
        state = RunState(activities={5: activity()}, timers={"3": OpenTimer(6, "3", START_US + 187_260_000_000)})
        about = encode_about(About(("approved",)))
        async with with_runs(a_run(state=state, about=about)) as (node, _):
            (row,) = (await node.api.call(workflows.ListWorkflowRuns())).items
            assert row.waits_for == "charge #2, timer 2d4h, approved"
            assert (row.handle, row.run) == (f"H:laptop:{ROOT}", f"H:laptop:{ROOT}@{ROOT}")
            assert (row.id, row.type, row.version, row.status) == (f"order-{ROOT}", "order", "2", "open")
            assert (row.started_at, row.closed_at, row.events) == ("2023-11-14T22:13:20.000000Z", None, 4)

    run(test())


def test_lists_have_pages() -> None:
    async def test() -> None:
        async with with_runs(*(a_run(number) for number in range(1, 6))) as (node, _):
            seen: list[str] = []
            after: str | None = None
            while True:
                page = await node.api.call(workflows.ListWorkflowRuns(limit=2, cursor=after))
                seen += [row.id for row in page.items]
                after = page.next
                if after is None:
                    break
            assert seen == [f"order-{number}" for number in (5, 4, 3, 2, 1)]

    run(test())


def test_a_list_adds_nothing_to_the_groups_of_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with with_runs(a_run(1)) as (node, _):
            groups: list[Any] = []
            queries: list[Any] = []
            put, read = node.service.commits.put, node.service.reads.read

            def noted_put(*entry: Any) -> None:
                groups.append(entry)
                put(*entry)

            def noted_read(query: Any) -> Any:
                queries.append(query)
                return read(query)

            monkeypatch.setattr(node.service.commits, "put", noted_put)
            monkeypatch.setattr(node.service.reads, "read", noted_read)
            assert len((await node.api.call(workflows.ListWorkflowRuns())).items) == 1
            assert groups == []
            assert queries == [CountSome(functions=(b"order",))]
            assert queries[0].is_small, "it is answered ahead of long lists"

    run(test())


def test_the_rows_of_a_list_are_built_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with with_runs(*(a_run(number) for number in range(1, 101))) as (node, _):
            built: list[int] = []
            pieces: list[int] = []
            info = runs.RunLookup.info

            def counted(*args: Any, **more: Any) -> Any:
                built.append(1)
                return info(*args, **more)

            def is_long(_: Piece) -> bool:
                pieces.append(len(built))
                return True

            monkeypatch.setattr(runs.RunLookup, "info", counted)
            monkeypatch.setattr(Piece, "is_long", is_long)
            answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            shares = LoopShares(lambda _, then: asyncio.get_running_loop().call_soon(then), lambda: 0.0)
            answer = node.api.answer(workflows.ListWorkflowRuns(), LOCAL)
            CallInProgress(answer, answered.set_result, answered.set_exception, share=shares.of("a", "default"))
            assert len((await answered).items) == 100
            assert pieces == [*range(ITEMS_AT_ONCE, 101, ITEMS_AT_ONCE)]

    run(test())


def test_a_list_ends_with_its_budget_and_says_how_far_it_came() -> None:
    async def test() -> None:
        runs = [
            a_run(number, type="rare" if number == 1 else "order", started_us=START_US + number)
            for number in range(1, 8)
        ]
        async with with_runs(*runs) as (node, fake):
            fake.examined = 3
            seen = []
            request = workflows.ListWorkflowRuns(type="rare", limit=2)
            while True:
                page = await node.api.call(request)
                seen.append(([row.id for row in page.items], page.searched_to))
                if page.next is None:
                    break
                request = replace(request, cursor=page.next)
            assert seen == [
                ([], "2023-11-14T22:13:20.000005Z"),
                ([], "2023-11-14T22:13:20.000002Z"),
                (["order-1"], None),
            ]

    run(test())


def test_a_list_leaves_older_runs_that_have_not_begun_to_later_pages() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            handles = [await node.submit(b"order", unique=f"u{number}".encode()) for number in range(4)]
            ids = [number for handle in handles if (number := node.service.handles.parse(handle.encode())) is not None]
            fake.runs += [a_run(ids[3] + 7), a_run(ids[3] + 8), a_run(ids[0] - 7)]
            fake.examined = 2
            request = workflows.ListWorkflowRuns()
            first = await node.api.call(request)
            assert [row.id for row in first.items] == [f"order-{ids[3] + 8}", f"order-{ids[3] + 7}"]
            rest = await node.api.call(replace(request, cursor=first.next))
            assert [row.id for row in rest.items] == ["u3", "u2", "u1", "u0", f"order-{ids[0] - 7}"]
            assert (rest.next, rest.searched_to) == (None, None)

    run(test())


def test_lists_have_filters() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            for request, expected in (
                (
                    workflows.ListWorkflowRuns(open=True, type="order", id="order-17", since=time_of(1_500_000)),
                    ((0,), False),
                ),
                (workflows.ListWorkflowRuns(closed=True), ((1, 2, 3, 4, 5, 6), False)),
                (workflows.ListWorkflowRuns(parked=True), ((0,), True)),
                (workflows.ListWorkflowRuns(status="timed_out"), ((6,), False)),
            ):
                await node.api.call(request)
                query = fake.received.pop()
                assert (query.status, query.parked) == expected
                assert (query.type, query.workflow_id, query.since_us) == (
                    request.type,
                    request.id,
                    0 if request.since is None else us_of(request.since),
                )

    run(test())


def test_stranded_runs_are_listed_by_their_version() -> None:
    async def test() -> None:
        runs = [a_run(number, decision=7, version="1" if number % 2 else "2") for number in range(1, 1101)]
        async with with_runs(
            *runs,
            a_run(2000, version="1"),
            a_run(2001, version="1", decision=7, parking=Parking(parked=Parked("", ""))),
        ) as (node, fake):
            assert (await node.api.call(workflows.ListWorkflowRuns(stranded=True))).items == []
            fake.without_worker.append(("default", "order", "1"))
            page = await node.api.call(workflows.ListWorkflowRuns(stranded=True, limit=3))
            assert [row.id for row in page.items] == ["order-1099", "order-1097", "order-1095"]
            number, after = 0, page.next
            while after is not None:
                page = await node.api.call(workflows.ListWorkflowRuns(stranded=True, limit=1000, cursor=after))
                number, after = number + len(page.items), page.next
            assert number == 547

    run(test())


def test_overdue_runs_are_marked_and_can_be_listed_alone() -> None:
    async def test() -> None:
        late = Options(start_us=START_US - 9, deadline_us=START_US - 5)
        later = Options(deadline_us=2**60)
        begun = RunState(started=3)
        runs = [a_run(number) for number in range(1, 1101)]
        runs[4] = a_run(5)._replace(options=late)
        runs[1098] = a_run(1099, state=begun)._replace(options=late)
        runs[1099] = a_run(1100)._replace(options=later)
        async with with_runs(*runs) as (node, fake):
            page = await node.api.call(workflows.ListWorkflowRuns(limit=3))
            assert [row.overdue_since for row in page.items] == [None, rfc3339(START_US - 5), None]
            page = await node.api.call(workflows.ListWorkflowRuns(overdue=True, limit=3))
            assert [row.id for row in page.items] == ["order-1099"]
            assert fake.received.pop().status == (0,)
            page = await node.api.call(workflows.ListWorkflowRuns(overdue=True, limit=3, cursor=page.next))
            assert [(row.id, row.overdue_since) for row in page.items] == [("order-5", rfc3339(START_US - 9))]
            assert page.next is None
            assert await node.code(workflows.ListWorkflowRuns(overdue=True, open=True)) is Code.INVALID

    run(test())


def test_runs_that_have_not_begun_are_listed_among_the_others() -> None:
    async def test() -> None:
        async with with_runs() as (node, fake):
            handles = [await node.submit(b"order", unique=f"u{number}".encode()) for number in range(4)]
            await node.submit(b"charge")
            ids = [number for handle in handles if (number := node.service.handles.parse(handle.encode())) is not None]
            fake.runs.extend(a_run(number) for number in (ids[1], ids[3] + 7, ids[0] - 7))
            await node.api.call(jobs.CancelJob(handles[1]))
            expected = [f"order-{ids[3] + 7}", "u3", "u2", f"order-{ids[1]}", "u0", f"order-{ids[0] - 7}"]
            for limit in (1, 2, 3, 100):
                seen: list[str] = []
                after: str | None = None
                while True:
                    page = await node.api.call(workflows.ListWorkflowRuns(limit=limit, cursor=after))
                    assert len(page.items) <= limit
                    seen += [row.id for row in page.items]
                    after = page.next
                    if after is None:
                        break
                assert seen == expected
            await awaited(node.service.changes.redate(ids[2], deadline_us=START_US - 5))
            page = await node.api.call(workflows.ListWorkflowRuns(overdue=True))
            assert [(row.id, row.overdue_since) for row in page.items] == [("u2", rfc3339(START_US - 5))]
            fake.runs.clear()
            fake.unbegun = [waiting(ids[2], unique=b"u2")._replace(is_workflow=True), waiting(9, function=b"charge")]
            for request, ids_found in (
                (workflows.ListWorkflowRuns(status="pending"), ["u3", "u2", "u0"]),
                (workflows.ListWorkflowRuns(status="pending", limit=2), ["u3", "u2"]),
                (workflows.ListWorkflowRuns(type="order"), ["u3", "u2", "u0"]),
                (workflows.ListWorkflowRuns(id="u2"), ["u2"]),
                (workflows.ListWorkflowRuns(id="u2", status="scheduled"), []),
                *(
                    (request, [])
                    for request in (
                        workflows.ListWorkflowRuns(type="refund"),
                        workflows.ListWorkflowRuns(status="scheduled"),
                        workflows.ListWorkflowRuns(status="open"),
                        workflows.ListWorkflowRuns(open=True),
                        workflows.ListWorkflowRuns(closed=True),
                        workflows.ListWorkflowRuns(parked=True),
                        workflows.ListWorkflowRuns(since=time_of(1_000_000)),
                    )
                ),
            ):
                found = (await node.api.call(request)).items
                assert [row.id for row in found] == ids_found
                assert {row.status for row in found} <= {"pending"}

    run(test())
