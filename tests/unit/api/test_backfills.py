"""The call that runs a schedule for its past fire times, without a face."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api import schedules
from mainspring.api.handlers import operations as answers
from mainspring.api.handlers.grants import ScheduleGrants
from mainspring.api.handlers.operations import BackfillCalls, OperationCalls
from mainspring.api.handlers.registry import Api
from mainspring.api.handlers.schedules import ScheduleCalls
from mainspring.api.operations import Backfill
from mainspring.api.request import ApiError, Code
from mainspring.features import Feature

from .a_node import run
from .test_operations import ANN, Bulk, started

if TYPE_CHECKING:
    from .a_node import Node


def with_backfills(bulk: Bulk) -> datetime:
    """Give a node the calls about backfills, and return its time."""
    node: Node = bulk.node
    calls = ScheduleCalls(node.schedules, node.reads, node.service.handles, node.clock)
    backfilling = BackfillCalls(bulk.service, node.schedules, node.reads)
    operations = OperationCalls(bulk.service, node.service, node.jobs.find_run)
    granted = ScheduleGrants({**calls.handlers, **backfilling.handlers})
    bulk.api = Api(operations.handlers, granted.handlers)
    bulk.api.add_objects({**operations.objects, **granted.objects})
    return datetime.fromtimestamp(node.clock.wall(), UTC)


def test_a_backfill_is_counted_begun_and_shown() -> None:
    async def test() -> None:
        async with started() as bulk:
            now = with_backfills(bulk)
            await bulk.call(schedules.AddSchedule(name="a", every=60.0, function="f"))
            begin = now - timedelta(minutes=15)
            dry = await bulk.call(Backfill(name="a", from_=begin, dry_run=True))
            assert (dry.id, dry.matched, dry.at_least, len(dry.times)) == (None, 15, False, 10)
            assert (await bulk.call(schedules.ScheduleHistory("a"))).items == []
            assert await bulk.acts() != []
            acts = len(await bulk.acts())
            begun = await bulk.call(Backfill(name="a", from_=begin, max=15, reason="r"), ANN)
            shown = await bulk.ended(begun.id)
            assert (shown.state, shown.action, shown.outcomes) == ("done", "backfill", {"fired": 15})
            assert (shown.matched, shown.schedule, shown.created_by, shown.expect) == (15, "a", "ann", 15)
            assert shown.from_ == begin.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            runs = (await bulk.call(schedules.ScheduleHistory("a"))).items
            assert [one.fire_time for one in runs[::-1]][:10] == dry.times
            assert {(one.cause, one.state) for one in runs} == {("backfill", "fired")}
            (recorded,) = (await bulk.acts())[acts:]
            act = recorded.act
            assert (act.what, act.object, act.who, act.reason) == ("schedules.backfill", "a", "ann", "r")
            assert act.after["operation"] == begun.id

    run(test())


def test_refusals_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with started() as bulk:
            now = with_backfills(bulk)
            begin = now - timedelta(minutes=15)
            await bulk.call(schedules.AddSchedule(name="a", every=60.0, function="f"))
            await bulk.call(schedules.AddSchedule(name="b", parents=["a"], function="f"))
            assert await bulk.code(Backfill(name="c", from_=begin)) is Code.SCHEDULE_NOT_FOUND
            assert await bulk.code(Backfill(name="b", from_=begin)) is Code.INVALID
            assert await bulk.code(Backfill(name="a", from_=begin, max=14)) is Code.CONFLICT
            assert await bulk.code(Backfill(name="a", from_=now + timedelta(1))) is Code.INVALID
            assert await bulk.code(Backfill(name="a", from_=now, to=begin)) is Code.INVALID
            with pytest.raises(ApiError, match="15 fire times are in the range, and at most 3 are expected"):
                await bulk.call(Backfill(name="a", from_=begin, max=3))
            monkeypatch.setattr(answers, "COUNT_SECONDS", -1)
            assert await bulk.code(Backfill(name="a", from_=begin, max=99)) is Code.CONFLICT, "not counted to the end"
            assert (await bulk.call(Backfill(name="a", from_=begin, dry_run=True))).at_least
            assert (await bulk.call(schedules.ScheduleHistory("a"))).items == []

    run(test())


def test_a_grant_for_other_functions_is_refused() -> None:
    async def test() -> None:
        async with started() as bulk:
            now = with_backfills(bulk)
            await bulk.call(schedules.AddSchedule(name="a", every=60.0, function="f"))
            caller = Caller("ann", (Grant(Role.OPERATOR, functions=("g*",)),), token="t")
            assert await bulk.code(Backfill(name="a", from_=now - timedelta(1)), caller) is Code.FORBIDDEN
            viewer = Caller("bob", (Grant(Role.VIEWER),), token="t")
            assert await bulk.code(Backfill(name="a", from_=now - timedelta(1)), viewer) is Code.FORBIDDEN

    run(test())


def test_a_store_without_operations_says_so() -> None:
    async def test() -> None:
        async with started() as bulk:
            now = with_backfills(bulk)
            bulk.api = Api(lacks=frozenset({Feature.OPERATIONS}))
            assert await bulk.code(Backfill(name="a", from_=now)) is Code.UNSUPPORTED

    run(test())
