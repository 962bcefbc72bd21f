"""Requests that try to reach the objects of another namespace, one or more of each kind."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api import (
    access,
    completions,
    events,
    functions,
    jobs,
    listeners,
    namespaces,
    nodes,
    operations,
    resources,
    schedules,
    streams,
    submitting,
    values,
    webhooks,
    workflows,
)
from mainspring.api.handlers.pages import cursor_of
from mainspring.api.request import ApiError, Code, JobCriteria, Shared, write
from mainspring.callbacks import awaited
from mainspring.job_logs.model import Chunk, Line, parts_of
from mainspring.job_logs.service import AppendLogs
from mainspring.namespaces import key
from mainspring.workflows.model import Definition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.api.request import Request
    from mainspring.server.build import Built

    Requests = Callable[["World"], list[Request[Any]]]

NOT_FOUND = {
    Code.JOB_NOT_FOUND,
    Code.COMPLETION_NOT_FOUND,
    Code.FUNCTION_NOT_FOUND,
    Code.SCHEDULE_NOT_FOUND,
    Code.RUN_NOT_FOUND,
    Code.OPERATION_NOT_FOUND,
    Code.NODE_NOT_FOUND,
    Code.WORKER_NOT_FOUND,
    Code.WORKFLOW_NOT_FOUND,
    Code.TOKEN_NOT_FOUND,
    Code.CURSOR_NOT_FOUND,
    Code.RESOURCE_NOT_FOUND,
    Code.LISTENER_NOT_FOUND,
    Code.WEBHOOK_NOT_FOUND,
    Code.INVALID,
    Code.FORBIDDEN,
}
"""The answers to requests for what is elsewhere. `Code.CONFLICT` is none of them: it tells the state of an object."""
ARGUMENTS = msgspec.Raw(b'"hidden arguments"')
LATER = datetime(2100, 1, 1, tzinfo=UTC)


class World:
    """The objects of one namespace. Attackers know all of their names and handles, and not what contains ``hidden``."""

    def __init__(self, built: Built, namespace: str, other: str) -> None:
        self.built = built
        self.namespace = namespace
        self.caller = Caller("attacker", (Grant(Role.ADMIN, other, payloads=True),), token="attacker")
        self.scheduled = self.ended = self.run = self.root = self.operation = self.token = self.fired = ""

    @property
    def handles(self) -> list[str]:
        """The handles of its jobs."""
        return [one for one in (self.scheduled, self.ended, self.root, self.fired) if one]

    @property
    def hidden(self) -> list[str]:
        """The texts that no answer to an attacker contains unless he has sent them."""
        return ["hidden", *self.handles, *([self.run] if self.run else []), self.operation, self.token]

    async def make(self) -> None:
        """Make an object of each kind."""
        call, here = self.built.api.call, self.namespace
        await call(events.ListEvents(after=events.END, everywhere=True))
        await call(events.SaveCursor("cursor", function="hidden-function", namespace=here))
        await call(
            webhooks.AddWebhook(
                name="hook",
                url="https://hidden.example/hidden-path",
                types=["job.expired"],
                headers={"x-key": "hidden-key"},
                namespace=here,
            )
        )
        listener = listeners.DeclaredListener(name="listener", types=["job.failed"], functions=("hidden-function",))
        await call(listeners.DeclareListeners(app="app", listeners=[listener], functions=["listener"], namespace=here))
        new = submitting.NewJob(
            function="task",
            args=ARGUMENTS,
            unique="unique",
            tags=("tag",),
            concurrency_key="key",
            run_at=LATER,
        )
        self.scheduled = await self._submitted(new)
        self.ended = await self._submitted(submitting.NewJob(function="task", args=ARGUMENTS, tags=("tag",)))
        await self._submitted(submitting.NewJob(function="hidden-task", args=ARGUMENTS))
        await call(jobs.CancelJob(self.ended, "hidden reason", namespace=here))
        await call(functions.LimitFunction("task", concurrency=3, namespace=here))
        await call(functions.PauseFunction("hidden-paused", "hidden reason", namespace=here))
        await call(resources.SetResource("licence", total=5, namespace=here))
        await call(resources.HoldResource("licence", duration=60.0, reason="hidden reason", namespace=here))
        await call(access.AddMark("hidden mark", namespace=here))
        await call(functions.Acknowledge("task", "hidden reason", namespace=here))
        for name in ("nightly", "hidden-nightly"):
            await call(schedules.AddSchedule(name=name, function="task", every=86_400.0, namespace=here))
        fired = await call(schedules.TriggerSchedule("nightly", namespace=here))
        assert fired.handle is not None
        self.fired = fired.handle
        started = await call(
            operations.StartOperation("delete", handles=[self.scheduled], reason="hidden", namespace=here)
        )
        assert started.id is not None
        self.operation = started.id
        self.token = (await call(access.CreateToken("hidden", [access.GrantSpec("admin", here)], namespace=here))).id
        await self._log()
        await self._start_run()

    async def _submitted(self, new: submitting.NewJob) -> str:
        handle = (await self.built.api.call(submitting.SubmitJob(new, namespace=self.namespace))).handle
        assert handle is not None
        return handle

    async def _log(self) -> None:
        job = self.built.node.service.handles.parse(self.scheduled.encode())
        assert job is not None
        (part,) = parts_of(1, [Line(1, 2, "l", "hidden line")])
        chunk = Chunk(1, job, self.namespace, b"task", 1, 1, part.first, part.lines, part.levels, part.body)
        await awaited(self.built.node.commits.committed(AppendLogs([chunk])))

    async def _start_run(self) -> None:
        runs, call, here = self.built.node.workflows, self.built.api.call, self.namespace
        if runs is None:
            return  # PostgreSQL has none
        definitions = [Definition(name, "1", here) for name in ("flow", "hidden-flow")]
        await awaited(runs.definitions.define(definitions))
        started = await call(workflows.StartRun("flow", "id", args=ARGUMENTS, namespace=here))
        self.root, self.run = started.handle, started.run
        await call(workflows.SignalRun("id", "signal", value=ARGUMENTS, namespace=here))

    async def seen(self) -> list[bytes]:
        """Return what its own callers see of it."""
        here = self.namespace
        found: list[Request[Any]] = [
            jobs.ListJobs(namespace=here),
            functions.ShowFunction("task", namespace=here),
            functions.ShowFunction("hidden-paused", namespace=here),
            schedules.ShowSchedule("nightly", namespace=here),
            schedules.ScheduleHistory("nightly", namespace=here),
            jobs.ReadJobLogs(self.scheduled, namespace=here),
            access.ListMarks(namespace=here),
            resources.ShowResource("licence", namespace=here),
        ]
        hook = await self.built.api.call(webhooks.ShowWebhook("hook", namespace=here))
        listener = await self.built.api.call(listeners.ShowListener("listener", namespace=here))
        if self.run:
            found += [workflows.ListWorkflowRuns(namespace=here), workflows.ReadHistory(self.run, namespace=here)]
            found.append(workflows.ListVersions(namespace=here))
        found += [jobs.ShowJob(handle, namespace=here) for handle in self.handles]
        # A node says so some seconds after its start: workers may connect again until then.
        starting, registered = b'"registered":null', b'"registered":false'
        cursors = (await self.built.api.call(events.ListCursors(namespace=here))).items
        places = write([(one.name, one.place, one.function) for one in cursors])
        kept = write(
            [hook.url, hook.types, hook.state, hook.secrets, listener.types, listener.state, listener.functions]
        )
        return [places, kept, *[write(await self.built.api.call(one)).replace(starting, registered) for one in found]]


class Events:
    """The feed of a stream."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.has_room = True
        self.begun = asyncio.Event()
        """Set by the first state."""

    def replace(self, event: str, value: object) -> None:
        """Keep a state."""
        self.sent.append(value.encoded(event, lambda _, one: write(one)) if isinstance(value, Shared) else value)
        self.begun.set()

    def append(self, _: str, value: object, place: str = "") -> None:
        """Keep an event."""
        self.sent += [value, place]

    def end(self) -> None:
        """Do nothing."""


def _jobs(kind: Any, **fields: Any) -> Requests:
    return lambda world: [kind(handle=handle, **fields) for handle in world.handles]


def _runs(kind: Any, **fields: Any) -> Requests:
    return lambda world: [kind(key=key, **fields) for key in (world.run or "1@1", world.root or "1", "id")]


def _named(kind: Any, **fields: Any) -> Requests:
    return lambda _: [kind(**fields)]


def _lists(world: World) -> list[Request[Any]]:
    runs = [{"workflow": world.run}] if world.run else []
    filters: list[dict[str, Any]] = [
        {"function": "task"},
        {"unique": "unique"},
        {"key": "key"},
        {"schedule": "nightly"},
        *runs,
        {"tag": "tag"},
        {"state": ["cancelled"]},
        {"cursor": cursor_of(jobs.ListJobs(), world.fired)},
        {},
    ]
    return [jobs.ListJobs(**one) for one in filters]


def _versions(world: World) -> list[Request[Any]]:
    objects: list[Any] = [
        ("schedule", "nightly"),
        ("worker", "1-1"),
        *(("run", key) for key in (world.run or "1@1", "id")),
    ]
    lists: tuple[Any, ...] = ("schedules", "workers", "nodes", "runs")
    return [*(namespaces.FollowVersion(one) for one in lists), *(namespaces.FollowVersion(*one) for one in objects)]


def _operations(world: World) -> list[Request[Any]]:
    criteria = [JobCriteria(function="task"), JobCriteria(tag="tag"), JobCriteria(workflow=world.run or "id")]
    return [
        *(operations.StartOperation("cancel", filter=one, dry_run=True) for one in criteria),
        *(operations.StartOperation("cancel", handles=world.handles, dry_run=dry_run) for dry_run in (True, False)),
        *(operations.StartOperation("cancel", filter=one) for one in criteria),
    ]


CASES: dict[type[Request[Any]], Requests] = {
    jobs.ListJobs: _lists,
    jobs.ShowJob: _jobs(jobs.ShowJob),
    jobs.CancelJob: _jobs(jobs.CancelJob),
    jobs.RetryJob: _jobs(jobs.RetryJob),
    jobs.UpdateJob: _jobs(jobs.UpdateJob, priority="high"),
    completions.CompleteJob: _jobs(completions.CompleteJob, result=msgspec.Raw(b"1")),
    completions.AnswerCompletion: _named(completions.AnswerCompletion, token="msc_x", heartbeat=True),
    jobs.SnoozeJob: _jobs(jobs.SnoozeJob, delay=1.0),
    jobs.CloneJob: _jobs(jobs.CloneJob),
    jobs.DeleteJob: _jobs(jobs.DeleteJob),
    jobs.ReadPayload: _jobs(jobs.ReadPayload),
    jobs.ReadResult: _jobs(jobs.ReadResult),
    jobs.AwaitJob: _jobs(jobs.AwaitJob),
    jobs.FollowJob: _jobs(jobs.FollowJob),
    jobs.ListAttempts: _jobs(jobs.ListAttempts),
    jobs.ShowArguments: _jobs(jobs.ShowArguments),
    jobs.ReadJobLogs: lambda world: [
        *_jobs(jobs.ReadJobLogs)(world),
        *_jobs(jobs.ReadJobLogs, whole=True, wait=0.0)(world),
    ],
    jobs.FollowLogs: _jobs(jobs.FollowLogs),
    values.ListValues: lambda world: [*_jobs(values.ListValues)(world), *_jobs(values.ListValues, wait=0.0)(world)],
    values.ShowValue: _jobs(values.ShowValue, name="hidden-value"),
    values.FollowValues: _jobs(values.FollowValues),
    streams.ListStreams: _jobs(streams.ListStreams),
    streams.ReadStream: _jobs(streams.ReadStream, name="hidden-stream"),
    streams.FollowStream: _jobs(streams.FollowStream, name="hidden-stream"),
    events.ListEvents: lambda world: [
        events.ListEvents(),
        events.ListEvents(order="oldest"),
        events.ListEvents(order="oldest", everywhere=True),
        *(events.ListEvents(order="oldest", job=handle) for handle in world.handles),
        *(events.ListEvents(job=handle) for handle in world.handles),
    ],
    events.ListCursors: _named(events.ListCursors),
    events.MoveCursor: _named(events.MoveCursor, name="cursor", to="999999999"),
    events.RemoveCursor: _named(events.RemoveCursor, name="cursor"),
    events.SaveCursor: _named(events.SaveCursor, name="cursor", type="job.failed"),
    listeners.ListListeners: _named(listeners.ListListeners),
    listeners.ShowListener: _named(listeners.ShowListener, name="listener"),
    listeners.PauseListener: _named(listeners.PauseListener, name="listener"),
    listeners.ResumeListener: _named(listeners.ResumeListener, name="listener"),
    listeners.RemoveListener: _named(listeners.RemoveListener, name="listener"),
    listeners.DeclareListeners: _named(
        listeners.DeclareListeners, app="app", listeners=[], functions=["listener", "hook"]
    ),
    resources.ListResources: _named(resources.ListResources),
    resources.ShowResource: _named(resources.ShowResource, name="licence"),
    resources.SetResource: _named(resources.SetResource, name="licence", declared=True),
    resources.DrainResource: _named(resources.DrainResource, name="licence"),
    resources.HoldResource: _named(resources.HoldResource, name="licence", duration=60.0),
    resources.FreeResource: _named(resources.FreeResource, name="licence", holder="1"),
    resources.TakeResource: _named(resources.TakeResource, name="licence", job="H:n:1"),
    webhooks.ListWebhooks: _named(webhooks.ListWebhooks),
    webhooks.ShowWebhook: _named(webhooks.ShowWebhook, name="hook"),
    webhooks.AddWebhook: _named(
        webhooks.AddWebhook, name="mine", url="https://hook.example", types=["job.failed"], everywhere=True
    ),
    webhooks.EditWebhook: _named(webhooks.EditWebhook, name="hook", types=["job.failed"]),
    webhooks.PauseWebhook: _named(webhooks.PauseWebhook, name="hook"),
    webhooks.ResumeWebhook: _named(webhooks.ResumeWebhook, name="hook"),
    webhooks.TryWebhook: _named(webhooks.TryWebhook, name="hook"),
    webhooks.RedeliverWebhook: lambda world: [
        webhooks.RedeliverWebhook("hook", since="1"),
        *(webhooks.RedeliverWebhook("hook", handle=handle) for handle in world.handles),
    ],
    webhooks.RotateWebhook: _named(webhooks.RotateWebhook, name="hook"),
    webhooks.RemoveWebhook: _named(webhooks.RemoveWebhook, name="hook"),
    events.ListEventTypes: _named(events.ListEventTypes),
    events.FollowEvents: lambda world: [
        events.FollowEvents(after="0"),
        events.FollowEvents(after="0", everywhere=True),
        *(events.FollowEvents(after="0", job=handle) for handle in world.handles),
    ],
    functions.ListFunctions: _named(functions.ListFunctions),
    functions.ShowFunction: _named(functions.ShowFunction, function="task"),
    functions.IsRegistered: _named(functions.IsRegistered, function="task"),
    functions.LimitFunction: _named(functions.LimitFunction, function="task", concurrency=1),
    functions.PauseFunction: _named(functions.PauseFunction, function="task"),
    functions.ResumeFunction: _named(functions.ResumeFunction, function="task"),
    functions.Acknowledge: _named(functions.Acknowledge, function="task"),
    functions.ReadFunctionSeries: _named(functions.ReadFunctionSeries, function="task"),
    functions.ReadErrors: _named(functions.ReadErrors, function="task"),
    submitting.Submit: _named(submitting.Submit, function=b"task", payload=b"", unique=b"unique"),
    submitting.RunJob: lambda _: [submitting.RunJob(key("other", b"task"), b"")],
    submitting.SubmitJob: _named(submitting.SubmitJob, job=submitting.NewJob(function="task", unique="unique")),
    submitting.SubmitJobs: _named(submitting.SubmitJobs, jobs=[submitting.NewJob(function="task", unique="unique")]),
    operations.StartOperation: _operations,
    operations.ListOperations: _named(operations.ListOperations),
    operations.ShowOperation: lambda world: [operations.ShowOperation(world.operation)],
    operations.ListOperationJobs: lambda world: [operations.ListOperationJobs(world.operation)],
    operations.FollowOperation: lambda world: [operations.FollowOperation(world.operation)],
    operations.AbortOperation: lambda world: [operations.AbortOperation(world.operation)],
    schedules.ListAllSchedules: _named(schedules.ListAllSchedules),
    schedules.ShowSchedule: _named(schedules.ShowSchedule, name="nightly"),
    schedules.NextTimes: _named(schedules.NextTimes, name="nightly"),
    schedules.ScheduleHistory: _named(schedules.ScheduleHistory, name="nightly"),
    schedules.TriggerSchedule: _named(schedules.TriggerSchedule, name="nightly"),
    schedules.EditSchedule: _named(schedules.EditSchedule, name="nightly", every=1.0),
    schedules.ReplaceSchedule: _named(schedules.ReplaceSchedule, name="nightly", every=1.0),
    schedules.PauseSchedule: _named(schedules.PauseSchedule, name="nightly"),
    schedules.ResumeSchedule: _named(schedules.ResumeSchedule, name="nightly"),
    operations.Backfill: _named(operations.Backfill, name="nightly", from_=datetime(2020, 1, 1, tzinfo=UTC)),
    schedules.RemoveSchedule: _named(schedules.RemoveSchedule, name="nightly"),
    schedules.AdoptSchedule: _named(schedules.AdoptSchedule, name="nightly", app="mine"),
    schedules.PreviewSchedule: _named(schedules.PreviewSchedule, name="mine", parents=["nightly"]),
    schedules.AddSchedule: _named(schedules.AddSchedule, name="mine", parents=["nightly"]),
    schedules.DeclareSchedules: _named(schedules.DeclareSchedules, app="app", schedules=[]),
    schedules.ListFires: lambda _: [schedules.ListFires(schedule="nightly"), schedules.ListFires()],
    schedules.ReadTimeline: lambda _: [schedules.ReadTimeline(), schedules.ReadTimeline(schedules=["nightly"])],
    schedules.ReadOutcomes: _named(schedules.ReadOutcomes, schedules=["nightly"]),
    workflows.ListWorkflowRuns: lambda world: [
        workflows.ListWorkflowRuns(),
        workflows.ListWorkflowRuns(id="id"),
        workflows.ListWorkflowRuns(cursor=world.run or None),
    ],
    workflows.ShowRun: _runs(workflows.ShowRun),
    workflows.ReadHistory: lambda world: [
        *_runs(workflows.ReadHistory)(world),
        *_runs(workflows.ReadHistory, exact=True)(world),
    ],
    workflows.SignalRun: _runs(workflows.SignalRun, name="signal"),
    workflows.CancelRun: _runs(workflows.CancelRun),
    workflows.TerminateRun: _runs(workflows.TerminateRun),
    workflows.MoveRun: _runs(workflows.MoveRun, version="2"),
    workflows.ResetRun: _runs(workflows.ResetRun, last=True),
    workflows.PauseRun: _runs(workflows.PauseRun, reason="look"),
    workflows.ResumeRun: _runs(workflows.ResumeRun),
    workflows.RerunRun: _runs(workflows.RerunRun),
    workflows.UnparkRun: _runs(workflows.UnparkRun),
    workflows.UnparkAllRuns: _named(workflows.UnparkAllRuns),
    workflows.StartRun: _named(workflows.StartRun, function="flow", id="id"),
    workflows.ListVersions: lambda _: [workflows.ListVersions(), workflows.ListVersions("flow")],
    workflows.RemoveVersion: _named(workflows.RemoveVersion, type="flow", version="1"),
    workflows.ListDeciders: _named(workflows.ListDeciders),
    nodes.ListWorkers: _named(nodes.ListWorkers),
    nodes.ShowWorker: _named(nodes.ShowWorker, worker="1-1"),
    nodes.DrainWorker: _named(nodes.DrainWorker, worker="1-1"),
    nodes.UndrainWorker: _named(nodes.UndrainWorker, worker="1-1"),
    nodes.StopWorker: _named(nodes.StopWorker, worker="1-1"),
    nodes.ListNodes: _named(nodes.ListNodes),
    nodes.ShowNode: _named(nodes.ShowNode, node="x"),
    nodes.DrainNode: _named(nodes.DrainNode, node="x"),
    nodes.UndrainNode: _named(nodes.UndrainNode, node="x"),
    nodes.RemoveNode: _named(nodes.RemoveNode, node="x", force=True),
    nodes.ShowStatus: _named(nodes.ShowStatus),
    namespaces.ShowNamespace: _named(namespaces.ShowNamespace),
    namespaces.FollowNumbers: _named(namespaces.FollowNumbers, functions=True),
    namespaces.FollowVersion: _versions,
    namespaces.ListNamespaceNodes: _named(namespaces.ListNamespaceNodes),
    namespaces.ShowNamespaceNode: lambda world: [namespaces.ShowNamespaceNode(node=world.built.node.settings.name)],
    access.WhoAmI: _named(access.WhoAmI),
    access.ListRoles: _named(access.ListRoles),
    access.ListNamespaces: _named(access.ListNamespaces),
    access.ListTokens: _named(access.ListTokens),
    access.ShowToken: lambda world: [access.ShowToken(world.token), access.ShowToken("hidden")],
    access.RevokeToken: lambda world: [access.RevokeToken(world.token)],
    access.RotateToken: lambda world: [access.RotateToken(world.token)],
    access.CreateToken: lambda world: [access.CreateToken("x", [access.GrantSpec("viewer", world.namespace)])],
    access.ListActs: lambda _: [access.ListActs(), access.ListActs(everywhere=True)],
    access.ListMarks: _named(access.ListMarks),
    access.AddMark: _named(access.AddMark, label="mine"),
}
"""The requests of an attacker by kind, in their order: those that read come before those that make objects of the same names."""


def attacks(world: World, attacker: str) -> Iterator[Request[Any]]:
    """Return all requests: first those that only read."""
    found = [msgspec.structs.replace(one, namespace=attacker) for make in CASES.values() for one in make(world)]
    # The audit shows the attacker's own acts as well, with the handles that he has sent.
    readers = {"read", "payload:read"}
    return iter(sorted(found, key=lambda one: one.permission.value not in readers and type(one) is not access.ListActs))


async def outcome(world: World, request: Request[Any]) -> bytes | Code:
    """Return the answer to an attacker's request, or the code of the refusal."""
    api = world.built.api
    try:
        if isinstance(
            request,
            (
                jobs.FollowJob,
                namespaces.FollowNumbers,
                namespaces.FollowVersion,
                jobs.FollowLogs,
                values.FollowValues,
                streams.FollowStream,
                events.FollowEvents,
                operations.FollowOperation,
            ),
        ):
            feed = Events()
            end = await api.follow(request, feed, caller=world.caller)
            if isinstance(request, namespaces.FollowNumbers):  # the first sample comes later
                await asyncio.wait_for(feed.begun.wait(), 10)
            if isinstance(request, events.FollowEvents):  # a later read is answered after that of the stream
                await asyncio.wait_for(api.call(events.ListEvents(), caller=world.caller), 10)
            end()
            return write(feed.sent)
        return write(await asyncio.wait_for(api.call(request, caller=world.caller), 10))
    except ApiError as error:
        return error.problem.code
