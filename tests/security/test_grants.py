"""A right to see is no right to act: each act needs its own permission for each function that it touches."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.access.audit import ListActs
from mainspring.access.caller import Act, Caller, Grant, Role
from mainspring.api import (
    access,
    completions,
    events,
    functions,
    jobs,
    listeners,
    nodes,
    operations,
    resources,
    schedules,
    webhooks,
    workflows,
)
from mainspring.api import submitting as submits
from mainspring.api.access import GrantSpec
from mainspring.api.handlers.registry import READS, WHOLE
from mainspring.api.request import ApiError, Code, JobCriteria
from mainspring.api.workflows import RemoveVersion
from mainspring.schedules.specification import Specification
from mainspring.wire.gearman_protocol import Type
from mainspring.wire.gearman_protocol import request as request_packet
from tests.security.test_doors import connected
from tests.unit.api.runs_of_a_node import a_run, with_runs
from tests.unit.faces.rest.a_server import whole_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.api.handlers.registry import Api
    from mainspring.api.request import Request

SEES_ALL = Grant(Role.VIEWER, payloads=True)
MIXED = Caller("mixed", (SEES_ALL, Grant(Role.ADMIN, functions=("mail*",), payloads=True)), token="m")
"""Sees everything, and may do everything with other functions."""
ELSEWHERE = Caller("elsewhere", (SEES_ALL, Grant(Role.ADMIN, "team", payloads=True)), token="e")
"""Sees everything here, and may do everything in another namespace."""
OWNER = Caller("owner", (Grant(Role.ADMIN, functions=("pay*",), payloads=True),), token="o")
START = datetime(2026, 1, 1, tzinfo=UTC)

REQUESTS: dict[type[Request[Any]], Callable[[dict[str, str]], Request[Any]]] = {
    operations.Backfill: lambda _: operations.Backfill(name="daily", from_=START, dry_run=True),
    functions.LimitFunction: lambda _: functions.LimitFunction("pay", concurrency=9),
    functions.PauseFunction: lambda _: functions.PauseFunction("pay"),
    functions.Acknowledge: lambda _: functions.Acknowledge("pay"),
    functions.ResumeFunction: lambda _: functions.ResumeFunction("pay"),
    jobs.UpdateJob: lambda at: jobs.UpdateJob(at["job"], priority="high"),
    completions.CompleteJob: lambda at: completions.CompleteJob(at["job"], msgspec.Raw(b"1")),
    jobs.SnoozeJob: lambda at: jobs.SnoozeJob(at["job"], 60.0),
    jobs.DeleteJob: lambda at: jobs.DeleteJob(at["job"]),
    jobs.CloneJob: lambda at: jobs.CloneJob(handle=at["job"]),
    jobs.CancelJob: lambda at: jobs.CancelJob(at["job"]),
    jobs.RetryJob: lambda at: jobs.RetryJob(handle=at["job"], payload=b"1"),
    operations.AbortOperation: lambda at: operations.AbortOperation(at["operation"]),
    schedules.AddSchedule: lambda _: schedules.AddSchedule(name="new", function="pay", every=60.0),
    schedules.EditSchedule: lambda _: schedules.EditSchedule(name="daily", every=90.0),
    schedules.ReplaceSchedule: lambda _: schedules.ReplaceSchedule(name="daily", function="pay", every=60.0),
    schedules.PauseSchedule: lambda _: schedules.PauseSchedule("daily"),
    schedules.ResumeSchedule: lambda _: schedules.ResumeSchedule("daily"),
    schedules.AdoptSchedule: lambda _: schedules.AdoptSchedule("daily", "app"),
    schedules.TriggerSchedule: lambda _: schedules.TriggerSchedule("daily"),
    schedules.RemoveSchedule: lambda _: schedules.RemoveSchedule("daily"),
    submits.Submit: lambda _: submits.Submit(b"pay", b"1"),
    submits.RunJob: lambda _: submits.RunJob(b"pay", b"1"),
    nodes.DrainWorker: lambda _: nodes.DrainWorker("1-1"),
    nodes.UndrainWorker: lambda _: nodes.UndrainWorker("1-1"),
    nodes.StopWorker: lambda _: nodes.StopWorker("1-1"),
    workflows.StartRun: lambda _: workflows.StartRun(function="pay"),
    RemoveVersion: lambda _: RemoveVersion("pay", "1"),
    listeners.PauseListener: lambda _: listeners.PauseListener("pay"),
    listeners.ResumeListener: lambda _: listeners.ResumeListener("pay"),
    listeners.RemoveListener: lambda _: listeners.RemoveListener("pay"),
    resources.SetResource: lambda _: resources.SetResource("licence", total=1),
    resources.DrainResource: lambda _: resources.DrainResource("licence"),
    resources.HoldResource: lambda _: resources.HoldResource("licence", duration=60.0),
    resources.FreeResource: lambda _: resources.FreeResource("licence", "1"),
    resources.TakeResource: lambda _: resources.TakeResource("licence", "H:n:1"),
    webhooks.AddWebhook: lambda _: webhooks.AddWebhook(name="mine", url="https://crm.example", types=["job.failed"]),
    webhooks.EditWebhook: lambda _: webhooks.EditWebhook(name="hook", types=["job.failed"]),
    webhooks.PauseWebhook: lambda _: webhooks.PauseWebhook("hook"),
    webhooks.ResumeWebhook: lambda _: webhooks.ResumeWebhook("hook"),
    webhooks.TryWebhook: lambda _: webhooks.TryWebhook("hook"),
    webhooks.RedeliverWebhook: lambda _: webhooks.RedeliverWebhook("hook", since="1"),
    webhooks.RotateWebhook: lambda _: webhooks.RotateWebhook("hook"),
    webhooks.RemoveWebhook: lambda _: webhooks.RemoveWebhook("hook"),
    events.SaveCursor: lambda _: events.SaveCursor("reader"),
    events.MoveCursor: lambda _: events.MoveCursor("reader", to="1"),
    events.RemoveCursor: lambda _: events.RemoveCursor("reader"),
}
RUN_REQUESTS: dict[type[Request[Any]], Request[Any]] = {
    workflows.SignalRun: workflows.SignalRun("H:laptop:3000000000017", "go"),
    workflows.CancelRun: workflows.CancelRun("H:laptop:3000000000017"),
    workflows.TerminateRun: workflows.TerminateRun("H:laptop:3000000000017"),
    workflows.MoveRun: workflows.MoveRun("H:laptop:3000000000017", "3"),
    workflows.ResetRun: workflows.ResetRun("H:laptop:3000000000017", last=True),
    workflows.PauseRun: workflows.PauseRun("H:laptop:3000000000017"),
    workflows.ResumeRun: workflows.ResumeRun("H:laptop:3000000000017"),
    workflows.RerunRun: workflows.RerunRun("H:laptop:3000000000017"),
    workflows.UnparkRun: workflows.UnparkRun("H:laptop:3000000000017"),
}
CHECKED_ELSEWHERE = {
    "completions.answer": "a completion token is the only right: tests of completions over HTTP",
    "audit.list": "a test of calls about the audit: an administrator of all functions",
    "marks.add": "it names no object",
    "jobs.submit": "test_each_job_and_each_chosen_object_is_checked",
    "jobs.submit_many": "test_each_job_and_each_chosen_object_is_checked",
    "operations.start": "test_each_job_and_each_chosen_object_is_checked",
    "schedules.declare": "tests of declarations",
    "listeners.declare": "tests of declarations of listeners",
    "workflows.unpark_all": "test_a_request_to_a_run_needs_the_permission_for_its_type",
    "nodes.drain": "needs the permission in all namespaces",
    "nodes.undrain": "needs the permission in all namespaces",
    "nodes.remove": "needs the permission in all namespaces",
    **dict.fromkeys(
        ("tokens.create", "tokens.list", "tokens.show", "tokens.revoke", "tokens.rotate"), "tests of tokens below"
    ),
}


async def code(api: Api, request: Request[Any], caller: Caller) -> Code | None:
    """Return the code of the problem with a request; None without one."""
    try:
        await asyncio.wait_for(api.call(request, caller=caller), 0.2 if isinstance(request, submits.RunJob) else 30)
    except ApiError as error:
        return error.problem.code
    except TimeoutError:
        assert isinstance(request, submits.RunJob), "it ends with its job, which no worker runs"
    return None


def test_an_act_needs_its_own_permission_for_the_function_of_its_object() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            assert not api.missing_objects
            acts = {kind for kind in api.kinds if kind.permission not in READS}
            names = {kind.call or kind.name_in_audit for kind in acts - {*REQUESTS} - {*RUN_REQUESTS}}
            assert names == {*CHECKED_ELSEWHERE}, "each act has a case here"
            handles = [(await api.call(submits.Submit(b"pay", b"0"))).handle for _ in range(2)]
            at = {"job": handles[0]}
            await api.call(schedules.AddSchedule(name="daily", function="pay", every=86400.0))
            started = await api.call(operations.StartOperation("cancel", JobCriteria(function="pay"), rate=0.001))
            at["operation"] = started.id or ""
            before = await api.call(schedules.ListAllSchedules())
            for kind, build in REQUESTS.items():
                for caller in (MIXED, ELSEWHERE):
                    assert await code(api, build(at), caller) is Code.FORBIDDEN, (kind, caller.name)
            assert await api.call(schedules.ListAllSchedules()) == before
            assert len((await api.call(jobs.ListJobs())).items) == len(handles)
            assert (await api.call(operations.ShowOperation(at["operation"]))).state == "running"
            shared = {kind for kind in REQUESTS if kind.touches in WHOLE}
            for kind, build in REQUESTS.items():
                if (
                    kind is not operations.AbortOperation
                ):  # one with a part of the functions sees its own operations alone
                    assert (await code(api, build(at), OWNER) is Code.FORBIDDEN) == (kind in shared), kind
            sees = Caller("sees", (SEES_ALL, *OWNER.grants), token="s")
            assert await code(api, operations.AbortOperation(at["operation"]), sees) is None

    asyncio.run(test())


@pytest.mark.parametrize("request_", RUN_REQUESTS.values(), ids=lambda one: one.call)
def test_a_request_to_a_run_needs_the_permission_for_its_type(request_: Request[Any]) -> None:
    async def test() -> None:
        async with with_runs(a_run()) as (node, _):
            assert await code(node.api, request_, MIXED) is Code.FORBIDDEN
            owner = Caller("owner", (Grant(Role.OPERATOR, functions=("order",)),))
            assert await code(node.api, request_, owner) is not Code.FORBIDDEN
            if isinstance(request_, workflows.TerminateRun):  # its children may have other types
                request_.children = "terminate"
                assert await code(node.api, request_, owner) is Code.FORBIDDEN
                request_.children = None
            if isinstance(request_, workflows.UnparkRun):
                assert await code(node.api, workflows.UnparkAllRuns(), owner) is Code.FORBIDDEN

    asyncio.run(test())


def test_each_job_and_each_chosen_object_is_checked() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            handles = [(await api.call(submits.Submit(name, b"0"))).handle for name in (b"pay", b"mail")]
            new = [submits.NewJob(function="pay"), submits.NewJob(function="mail")]
            assert await code(api, submits.SubmitJob(new[0]), MIXED) is Code.FORBIDDEN
            stored = await api.call(submits.SubmitJobs(new), caller=MIXED)
            assert [one.problem is None for one in stored.items] == [False, True]
            for chosen in (
                operations.StartOperation("cancel", handles=handles),
                operations.StartOperation("cancel", JobCriteria(state="pending")),
            ):
                chosen.dry_run = True
                counted = await api.call(chosen, caller=MIXED)
                assert {one.function for one in counted.sample} == {"mail"}

    asyncio.run(test())


def test_the_status_of_a_node_shows_a_tenant_neither_the_store_nor_the_process() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            everything = await built.api.call(nodes.ShowStatus())
            assert (everything.store, everything.pid) == ("memory://", os.getpid())
            tenant = await built.api.call(nodes.ShowStatus(), caller=Caller("t", (Grant(Role.ADMIN),), token="t"))
            assert (tenant.store, tenant.pid) == ("memory", None)

    asyncio.run(test())


def test_refused_calls_about_a_connection_are_in_the_audit() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            viewer = Caller("viewer", (Grant(Role.VIEWER),), token="v")
            narrow = Caller("narrow", (Grant(Role.VIEWER, functions=("a*",)),), token="n")
            frozen = {"deliveries": [["H:n:1", "1.1.1"]], "error": {"type": "x", "message": "y"}}
            for caller, method, params in (
                (viewer, "worker.frozen", frozen),
                (viewer, "worker.slots", {"slots": 5}),
                (narrow, "jobs.watch", {}),
                (narrow, "jobs.watch", {"function": "pay"}),
            ):
                with connected(built.node.face, caller, "default") as wire:
                    wire.ask(request_packet(Type.CALL, b"1", method.encode(), json.dumps(params).encode()))
                    assert wire.packets[0][1][1] == b"forbidden"
            async with asyncio.timeout(30):  # they are recorded in the background
                while len(acts := (await built.api.call(access.ListActs())).items) < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert sorted((act.what, act.who, act.object) for act in acts if act.refused) == [
                ("jobs.watch", "narrow", ""),
                ("jobs.watch", "narrow", "pay"),
                ("worker.frozen", "viewer", ""),
                ("worker.slots", "viewer", ""),
            ]

    asyncio.run(test())


def test_a_refused_mark_or_acknowledgement_is_none() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            sees = Caller("sees", (SEES_ALL,), token="s")
            await api.call(submits.Submit(b"pay", b"0"))
            for request in (access.AddMark("deployed"), functions.Acknowledge("pay")):
                assert await code(api, request, sees) is Code.FORBIDDEN
            await api.call(access.AddMark("real"))
            acts = (await api.call(access.ListActs())).items
            assert {act.what for act in acts if act.refused} == {"marks.add", "functions.acknowledge"}
            query = ListActs(what="functions.acknowledge", without_refusals=True)
            assert not any(query.matches(Act(act.what, act.who, refused=act.refused or "")) for act in acts)
            assert [mark.label for mark in (await api.call(access.ListMarks())).items] == ["real"]

    asyncio.run(test())


def test_a_schedule_runs_after_those_that_its_maker_sees() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            await api.call(schedules.AddSchedule(name="daily", function="pay", every=86400.0))
            await api.call(schedules.AddSchedule(name="mails", function="mail", every=86400.0))
            alone = Caller("alone", (Grant(Role.ADMIN, functions=("mail*",)),), token="a")
            for caller, expected in ((alone, Code.FORBIDDEN), (MIXED, None)):
                after = schedules.AddSchedule(name=f"after-{caller.name}", function="mail", parents=["mails", "daily"])
                assert await code(api, after, caller) is expected
                edited = schedules.EditSchedule(name="mails", parents=["daily"])
                assert (await code(api, edited, caller) is Code.FORBIDDEN) == (expected is Code.FORBIDDEN)

    asyncio.run(test())


def declaration(app: str, *functions: str, is_named: bool = True, when: float = 60.0) -> schedules.DeclareSchedules:
    """Return the declaration of an App whose code has a schedule for each of its functions."""
    described = [Specification(name=f"{app}-{one}", function=one, every=when) for one in functions]
    return schedules.DeclareSchedules(app, described, functions=list(functions), is_named=is_named)


def test_an_app_belongs_to_those_who_have_rights_for_all_of_its_schedules() -> None:
    """Its newest declaration governs, and its name is refused to other code: others would stop its own declarations."""

    async def test() -> None:
        async with whole_node() as (client, built):
            api = built.api
            narrow = Caller("narrow", (SEES_ALL, Grant(Role.DEVELOPER, functions=("a*",))), token="n")
            blind = Caller("blind", (Grant(Role.DEVELOPER, functions=("a*",)),), token="b")
            await api.call(declaration("shop", "pay", "a1"))
            before = await api.call(schedules.ListAllSchedules())

            async def refused(request: Request[Any], caller: Caller = narrow) -> str:
                with pytest.raises(ApiError) as error:
                    await api.call(request, caller=caller)
                assert error.value.problem.code is Code.FORBIDDEN
                return error.value.problem.message

            for attack in (
                declaration("shop", "a1"),
                declaration("shop", "a2"),
                declaration("shop"),
                declaration("shop", "a1", is_named=False),
                schedules.DeclareSchedules("shop", [], functions=None),
            ):
                why = await refused(attack)
                assert (
                    "the App 'shop' has 1 schedules of functions for which 'narrow' lacks the permission 'develop'"
                    in why
                )
                assert "pay" not in why
            assert (await api.call(schedules.ListAllSchedules())) == before
            with connected(built.node.face, blind, "default") as wire:  # as a worker sends it
                params = json.dumps({"app": "shop", "schedules": []}).encode()
                wire.ask(request_packet(Type.CALL, b"1", b"schedules.declare", params))
                async with asyncio.timeout(60):
                    while not wire.packets:  # noqa: ASYNC110 - the connection has no event
                        await asyncio.sleep(0.005)
                ((packet, args),) = wire.packets
                assert (packet, args[1]) == (Type.FAULT, b"forbidden")
            changed = await api.call(declaration("shop", "pay", "a1", when=90.0))
            assert (changed.governs, len(changed.changes)) == (True, 2)
            # Nobody gives the App a schedule of his own either: it would be one beyond the reach of the App's token.
            own = await api.call(declaration("mine", "a3"), caller=narrow)
            assert own.governs
            await refused(schedules.AdoptSchedule("mine-a3", "shop"))
            client.access.callers["narrow"] = narrow
            path = "/api/v1/namespaces/default/schedules/mine-a3/adopt"
            answer = await client.send("POST", path, {"app": "shop"}, token="narrow")
            assert answer.status == 403
            await api.call(schedules.AdoptSchedule("mine-a3", "new"), caller=narrow)
            # Other code with a default name gets another name, and does not learn those of schedules that it may not see.
            await api.call(declaration("app", "mail", is_named=False))
            numbered = await api.call(declaration("app", "a4", is_named=False), caller=blind)
            assert [one.name for one in numbered.changes] == ["app (2)", "app-a4"]
            assert "mail" not in numbered.changes[0].text
            assert (await api.call(declaration("app", "mail", is_named=False))).governs

    asyncio.run(test())


def test_nobody_makes_a_token_where_he_is_no_administrator() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            api = built.api
            for grant in (
                GrantSpec("viewer", payloads=True),
                GrantSpec("viewer"),
                GrantSpec("viewer", functions=["pay"]),
                GrantSpec("viewer", "*"),
            ):
                for grants in ([grant], [GrantSpec("viewer", "team"), grant]):
                    refused = await code(api, access.CreateToken("minted", grants), ELSEWHERE)
                    assert refused is Code.FORBIDDEN, grant
            created = await api.call(
                access.CreateToken("own", [GrantSpec("admin", "team", payloads=True)]), caller=ELSEWHERE
            )
            assert await code(api, access.RotateToken(created.id), MIXED) is Code.TOKEN_NOT_FOUND
            both = await api.call(access.CreateToken("both", [GrantSpec("viewer"), GrantSpec("viewer", "team")]))
            for one in (access.RotateToken(both.id), access.RevokeToken(both.id), access.ShowToken(both.id)):
                assert await code(api, one, ELSEWHERE) is Code.TOKEN_NOT_FOUND

    asyncio.run(test())


def test_operations_of_callers_without_a_token_are_not_each_others() -> None:
    async def test() -> None:
        async with whole_node() as (_, built):
            part = (Grant(Role.OPERATOR, functions=("pay*",)),)
            started = await built.api.call(
                operations.StartOperation("cancel", JobCriteria(function="pay"), rate=0.001),
                caller=Caller("ann@example.com", part),
            )
            other = Caller("bob@example.com", part)
            assert await code(built.api, operations.ShowOperation(started.id or ""), other) is Code.OPERATION_NOT_FOUND

    asyncio.run(test())
