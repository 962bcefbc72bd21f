"""Each change by an operator, a developer or an administrator leaves one act, and a refused or failed one leaves none."""

from __future__ import annotations

import asyncio
from inspect import signature
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, Mock

import pytest
from tests.unit.api.a_node import Node, opened

from mainspring.access.audit import ListActs
from mainspring.access.caller import EVERY_NAMESPACE, Caller, Grant, Permission, Role
from mainspring.api import functions, jobs, schedules, workflows
from mainspring.api.handlers.functions import FunctionCalls
from mainspring.api.handlers.jobs import JobChangeCalls
from mainspring.api.handlers.registry import Api
from mainspring.api.handlers.schedules import ScheduleCalls
from mainspring.api.handlers.workflows import VersionCalls
from mainspring.api.request import ApiError
from mainspring.errors import StoreFullError
from mainspring.schedules.specification import Specification

if TYPE_CHECKING:
    from mainspring.access.audit import Recorded
    from mainspring.access.caller import Act
    from mainspring.api.request import Request

ANN = Caller("ann", (Grant(Role.ADMIN, EVERY_NAMESPACE, payloads=True),), token="t", address="10.0.0.1", request="r1")
WITHOUT_ACTS = {
    "jobs.submit",
    "jobs.batch",
    "jobs.clone",
    "workflows.start",
    "workflows.signal",
}
"""Submits and signals."""


async def acts(node: Node) -> list[Recorded]:
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.reads.ask(ListActs(limit=100), lambda page: found.set_result(page.items), found.set_exception)
    recorded: list[Recorded] = await found
    return recorded


async def call(node: Node, request: Request[Any]) -> Any:
    return await node.api.call(request, caller=ANN)


def test_changes_of_functions_have_their_limits_before_and_after() -> None:
    async def test() -> None:
        async with opened() as node:
            await call(node, functions.LimitFunction("f", concurrency=3))
            await call(node, functions.PauseFunction("f", reason="the bank is down"))
            await call(node, functions.ResumeFunction("f"))
            resumed, paused, limited = await acts(node)
            assert [one.act.what for one in (limited, paused, resumed)] == [
                "functions.limit",
                "functions.pause",
                "functions.resume",
            ]
            assert (limited.act.before["concurrency"], limited.act.after["concurrency"]) == (None, 3)
            assert (paused.act.before["paused"], paused.act.after["paused"]) == (False, True)
            assert paused.act.reason == "the bank is down"
            for one in (limited, paused, resumed):
                assert (one.act.who, one.act.token, one.act.object, one.act.namespace) == ("ann", "t", "f", "default")
                assert (one.act.address, one.act.request) == ("10.0.0.1", "r1")

    asyncio.run(test())


def test_changes_of_schedules_have_their_descriptions_without_payloads() -> None:
    async def test() -> None:
        async with opened() as node:
            await call(node, schedules.AddSchedule(name="s", every=60.0, function="f", payload=b"secret"))
            await call(node, schedules.EditSchedule(name="s", every=30.0))
            await call(node, schedules.PauseSchedule("s"))
            await call(node, schedules.ResumeSchedule("s"))
            await call(node, schedules.TriggerSchedule("s"))
            await call(node, schedules.RemoveSchedule("s"))
            recorded = (await acts(node))[::-1]
            assert [one.act.what for one in recorded] == [
                f"schedules.{name}" for name in ("add", "edit", "pause", "resume", "trigger", "remove")
            ]
            added, edited, *_, removed = [one.act for one in recorded]
            assert (added.before, added.after["every"]) == (None, 60.0)
            assert (edited.before["every"], edited.after["every"]) == (60.0, 30.0)
            assert (removed.before["every"], removed.after) == (30.0, None)
            assert "secret" not in repr(recorded)
            assert "c2VjcmV0" not in repr(recorded)
            for request in (schedules.RemoveSchedule("s"), schedules.TriggerSchedule("s")):
                with pytest.raises(ApiError):
                    await call(node, request)
            assert len(await acts(node)) == 6

    asyncio.run(test())


def test_a_job_is_cancelled_and_retried_with_one_act_each() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit()
            assert (await call(node, jobs.CancelJob(handle, "wrong customer"))).state == "cancelled"
            assert (await call(node, jobs.CancelJob(handle))).state == "cancelled"
            await call(node, jobs.RetryJob(handle))
            with pytest.raises(ApiError):
                await call(node, jobs.RetryJob(handle))
            retried, cancelled = await acts(node)
            assert (cancelled.act.what, cancelled.act.object, cancelled.act.reason) == (
                "jobs.cancel",
                handle,
                "wrong customer",
            )
            assert (cancelled.act.before, cancelled.act.after) == ("pending", "cancelled")
            assert (retried.act.what, retried.act.object) == ("jobs.retry", handle)

    asyncio.run(test())


def test_a_request_to_stop_a_running_job_is_an_act() -> None:
    async def test() -> None:
        async with opened() as node:
            side = node.worker()
            handle = await node.submit()
            await node.committed()
            assert len(side.given) == 1
            assert (await call(node, jobs.CancelJob(handle, "now"))).state in {"running", "cancelled"}
            await node.committed()
            assert [one.act.what for one in await acts(node)] == ["jobs.cancel"]

    asyncio.run(test())


def test_an_act_of_a_failed_transaction_is_not_recorded() -> None:
    async def test() -> None:
        async with opened() as node:
            handle = await node.submit()
            node.store.error = StoreFullError("no space")
            with pytest.raises(ApiError):
                await call(node, jobs.CancelJob(handle))
            node.store.error = None
            assert await acts(node) == []

    asyncio.run(test())


def test_every_changing_call_is_recorded_or_listed_as_an_exception() -> None:
    """Handlers that change something use their call: it alone makes acts."""

    async def test() -> None:
        async with opened() as node:
            parts = (
                node.jobs.handlers,
                node.submits.handlers,
                FunctionCalls(node.service, node.dead).handlers,
                ScheduleCalls(node.schedules, node.reads, node.service.handles, node.clock).handlers,
                JobChangeCalls(node.service, node.submits, largest=1).handlers,
                VersionCalls(Mock(), Mock()).handlers,
            )
            silent = {
                request.call
                for part in parts
                for request, handler in part.items()
                if request.permission in {Permission.OPERATE, Permission.DEVELOP, Permission.ADMIN}
                and request.call
                and "call" not in signature(handler).parameters
            }
            assert silent <= WITHOUT_ACTS

    asyncio.run(test())


def test_acts_about_schedules_name_those_that_are_declared_adopted_and_removed() -> None:
    async def test() -> None:
        async with opened() as node:
            a, b = Specification(name="a", every=60.0), Specification(name="b", parents=["a"])
            for declared in ([a, b], [a]):
                await call(node, schedules.DeclareSchedules("shop", declared))
            await node.api.call(schedules.AddSchedule(name="b", parents=["a"]))
            await call(node, schedules.AdoptSchedule("b", "shop"))
            await call(node, schedules.RemoveSchedule("a", children=True))
            recorded = [one.act for one in await acts(node) if one.act.who == "ann"]
            values = {(one.what, one.object): (one.before, one.after) for one in recorded[:2]}
            assert values["schedules.adopt", "b"] == ({"app": ""}, {"app": "shop"})
            removed, _ = values["schedules.remove", "a"]
            assert (removed["name"], removed["children"]) == ("a", ["b"])
            assert [one.after for one in recorded[2:]] == [{"removed": ["b"]}, {"added": ["a", "b"]}]

    asyncio.run(test())


def test_the_removal_of_a_version_is_an_act_of_its_caller() -> None:
    async def test() -> None:
        async with opened() as node:
            table = Mock()
            node.api.add(VersionCalls(table, Mock()).handlers)
            table.remove = AsyncMock(return_value=True)
            await call(node, workflows.RemoveVersion(type="flow", version="1"))
            act = table.remove.call_args.args[-1]
            assert (act.what, act.who, act.object, act.namespace) == ("workflows.remove", "ann", "flow@1", "default")

    asyncio.run(test())


def test_a_refused_request_is_reported_with_its_object() -> None:
    async def test() -> None:
        async with opened() as node:
            refused: list[Act] = []
            api = Api(FunctionCalls(node.service, node.dead).handlers, refused=refused.append)
            viewer = Caller("vic", (Grant(Role.VIEWER),), token="v")
            payer = Caller("pia", (Grant(Role.ADMIN, functions=("pay*",)),), token="p")
            for request, caller in ((functions.PauseFunction("f"), viewer), (functions.PauseFunction("mail"), payer)):
                with pytest.raises(ApiError):
                    await api.call(request, caller=caller)
            with pytest.raises(ApiError):
                await api.call(functions.ShowFunction("unknown"), caller=viewer)
            assert [(one.what, one.who, one.object) for one in refused] == [
                ("functions.pause", "vic", "f"),
                ("functions.pause", "pia", "mail"),
            ]
            assert all("permission" in one.refused for one in refused)

    asyncio.run(test())
