"""Requests that try to reach the objects of another namespace, one or more of each kind."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.access.caller import Caller
from mainspring.access.roles import Grant, Role
from mainspring.api import (
    audit,
    backfills,
    fires,
    functions,
    job_changes,
    job_data,
    job_records,
    jobs,
    live,
    logs,
    namespaces,
    nodes,
    operations,
    schedules,
    series,
    status,
    submitting,
    tokens,
    workers,
    workflow_versions,
    workflows,
)
from mainspring.api.errors import ApiError, Code
from mainspring.api.feeds import Shared
from mainspring.api.job_filters import JobCriteria
from mainspring.api.request import write
from mainspring.job_logs.model import Chunk, Line, parts_of
from mainspring.job_logs.store import AppendLogs
from mainspring.namespaces import key
from mainspring.workflows.model import Definition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.api.request import Request
    from mainspring.server.build import Built

    Requests = Callable[["World"], list[Request[Any]]]

NOT_FOUND = {
    Code.JOB_NOT_FOUND,
    Code.FUNCTION_NOT_FOUND,
    Code.SCHEDULE_NOT_FOUND,
    Code.RUN_NOT_FOUND,
    Code.OPERATION_NOT_FOUND,
    Code.NODE_NOT_FOUND,
    Code.WORKER_NOT_FOUND,
    Code.WORKFLOW_NOT_FOUND,
    Code.TOKEN_NOT_FOUND,
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
        await call(jobs.Cancel(self.ended, "hidden reason", namespace=here))
        await call(functions.Limit("task", concurrency=3, namespace=here))
        await call(functions.Pause("hidden-paused", "hidden reason", namespace=here))
        await call(audit.AddMark("hidden mark", namespace=here))
        await call(functions.Acknowledge("task", "hidden reason", namespace=here))
        for name in ("nightly", "hidden-nightly"):
            await call(schedules.Add(name=name, function="task", every=86_400.0, namespace=here))
        fired = await call(schedules.Trigger("nightly", namespace=here))
        assert fired.handle is not None
        self.fired = fired.handle
        started = await call(operations.Start("delete", handles=[self.scheduled], reason="hidden", namespace=here))
        assert started.id is not None
        self.operation = started.id
        self.token = (await call(tokens.Create("hidden", [tokens.GrantSpec("admin", here)], namespace=here))).id
        await self._log()
        await self._start_run()

    async def _submitted(self, new: submitting.NewJob) -> str:
        handle = (await self.built.api.call(submitting.SubmitJob(new, namespace=self.namespace))).handle
        assert handle is not None
        return handle

    async def _log(self) -> None:
        job = self.built.node.service.id_of(self.scheduled.encode())
        assert job is not None
        (part,) = parts_of(1, [Line(1, 2, "l", "hidden line")])
        chunk = Chunk(1, job, self.namespace, b"task", 1, 1, part.first, part.lines, part.levels, part.body)
        await self._committed(lambda done: self.built.node.commits.put(AppendLogs([chunk]), done))

    async def _start_run(self) -> None:
        runs, call, here = self.built.node.workflows, self.built.api.call, self.namespace
        if runs is None:
            return  # PostgreSQL has none
        definitions = [Definition(name, "1", here) for name in ("flow", "hidden-flow")]
        await self._committed(lambda done: runs.define(definitions, lambda: done(None), done))
        started = await call(workflows.Start("flow", "id", args=ARGUMENTS, namespace=here))
        self.root, self.run = started.handle, started.run
        await call(workflows.Signal("id", "signal", value=ARGUMENTS, namespace=here))

    @staticmethod
    async def _committed(ask: Callable[[Callable[[Any], None]], object]) -> None:
        done = asyncio.get_running_loop().create_future()
        ask(done.set_result)
        assert not isinstance(await done, Exception)

    async def seen(self) -> list[bytes]:
        """Return what its own callers see of it."""
        here = self.namespace
        found: list[Request[Any]] = [
            jobs.List(namespace=here),
            functions.Show("task", namespace=here),
            functions.Show("hidden-paused", namespace=here),
            schedules.Show("nightly", namespace=here),
            schedules.History("nightly", namespace=here),
            logs.Logs(self.scheduled, namespace=here),
            audit.ListMarks(namespace=here),
        ]
        if self.run:
            found += [workflows.List(namespace=here), workflows.History(self.run, namespace=here)]
            found.append(workflow_versions.Versions(namespace=here))
        found += [jobs.Show(handle, namespace=here) for handle in self.handles]
        # A node says so some seconds after its start: workers may connect again until then.
        starting, registered = b'"registered":null', b'"registered":false'
        return [write(await self.built.api.call(one)).replace(starting, registered) for one in found]


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
        {"before": world.fired},
        {},
    ]
    return [jobs.List(partial=partial, **one) for one in filters for partial in (False, True)]


def _versions(world: World) -> list[Request[Any]]:
    objects: list[Any] = [
        ("schedule", "nightly"),
        ("worker", "1-1"),
        *(("run", key) for key in (world.run or "1@1", "id")),
    ]
    lists: tuple[Any, ...] = ("schedules", "workers", "nodes", "runs")
    return [*(live.FollowVersion(one) for one in lists), *(live.FollowVersion(*one) for one in objects)]


def _operations(world: World) -> list[Request[Any]]:
    criteria = [JobCriteria(function="task"), JobCriteria(tag="tag"), JobCriteria(workflow=world.run or "id")]
    return [
        *(operations.Start("cancel", filter=one, dry_run=True) for one in criteria),
        *(operations.Start("cancel", handles=world.handles, dry_run=dry_run) for dry_run in (True, False)),
        *(operations.Start("cancel", filter=one) for one in criteria),
    ]


CASES: dict[type[Request[Any]], Requests] = {
    jobs.List: _lists,
    jobs.Show: _jobs(jobs.Show),
    jobs.Cancel: _jobs(jobs.Cancel),
    jobs.Retry: _jobs(jobs.Retry),
    job_changes.Update: _jobs(job_changes.Update, priority="high"),
    job_changes.Snooze: _jobs(job_changes.Snooze, delay=1.0),
    job_changes.Clone: _jobs(job_changes.Clone),
    job_changes.Delete: _jobs(job_changes.Delete),
    job_data.Payload: _jobs(job_data.Payload),
    job_data.Result: _jobs(job_data.Result),
    job_data.Wait: _jobs(job_data.Wait),
    job_data.Follow: _jobs(job_data.Follow),
    job_records.ListAttempts: _jobs(job_records.ListAttempts),
    job_records.ShowArguments: _jobs(job_records.ShowArguments),
    logs.Logs: lambda world: [*_jobs(logs.Logs)(world), *_jobs(logs.Logs, after="", wait=0.0)(world)],
    logs.FollowLogs: _jobs(logs.FollowLogs),
    functions.List: _named(functions.List),
    functions.Show: _named(functions.Show, function="task"),
    functions.Registered: _named(functions.Registered, function="task"),
    functions.Limit: _named(functions.Limit, function="task", concurrency=1),
    functions.Pause: _named(functions.Pause, function="task"),
    functions.Resume: _named(functions.Resume, function="task"),
    functions.Acknowledge: _named(functions.Acknowledge, function="task"),
    series.ReadSeries: _named(series.ReadSeries, function="task"),
    series.ReadErrors: _named(series.ReadErrors, function="task"),
    submitting.Submit: _named(submitting.Submit, function=b"task", payload=b"", unique=b"unique"),
    submitting.Run: lambda _: [submitting.Run(key("other", b"task"), b"")],
    submitting.SubmitJob: _named(submitting.SubmitJob, job=submitting.NewJob(function="task", unique="unique")),
    submitting.SubmitJobs: _named(submitting.SubmitJobs, jobs=[submitting.NewJob(function="task", unique="unique")]),
    operations.Start: _operations,
    operations.List: _named(operations.List),
    operations.Show: lambda world: [operations.Show(world.operation)],
    operations.Jobs: lambda world: [operations.Jobs(world.operation)],
    operations.Follow: lambda world: [operations.Follow(world.operation)],
    operations.Abort: lambda world: [operations.Abort(world.operation)],
    schedules.List: _named(schedules.List),
    schedules.Show: _named(schedules.Show, name="nightly"),
    schedules.Next: _named(schedules.Next, name="nightly"),
    schedules.History: _named(schedules.History, name="nightly"),
    schedules.Trigger: _named(schedules.Trigger, name="nightly"),
    schedules.Edit: _named(schedules.Edit, name="nightly", every=1.0),
    schedules.Replace: _named(schedules.Replace, name="nightly", every=1.0),
    schedules.Pause: _named(schedules.Pause, name="nightly"),
    schedules.Resume: _named(schedules.Resume, name="nightly"),
    backfills.Backfill: _named(backfills.Backfill, name="nightly", from_=datetime(2020, 1, 1, tzinfo=UTC)),
    schedules.Remove: _named(schedules.Remove, name="nightly"),
    schedules.Adopt: _named(schedules.Adopt, name="nightly", app="mine"),
    schedules.Preview: _named(schedules.Preview, name="mine", parents=["nightly"]),
    schedules.Add: _named(schedules.Add, name="mine", parents=["nightly"]),
    schedules.Declare: _named(schedules.Declare, app="app", schedules=[]),
    fires.ListFires: lambda _: [fires.ListFires(schedule="nightly"), fires.ListFires()],
    fires.ReadTimeline: lambda _: [fires.ReadTimeline(), fires.ReadTimeline(schedules=["nightly"])],
    fires.ReadOutcomes: _named(fires.ReadOutcomes, schedules=["nightly"]),
    workflows.List: lambda world: [workflows.List(), workflows.List(id="id"), workflows.List(after=world.run or None)],
    workflows.Show: _runs(workflows.Show),
    workflows.History: lambda world: [*_runs(workflows.History)(world), *_runs(workflows.History, exact=True)(world)],
    workflows.Signal: _runs(workflows.Signal, name="signal"),
    workflows.Cancel: _runs(workflows.Cancel),
    workflows.Terminate: _runs(workflows.Terminate),
    workflows.Move: _runs(workflows.Move, version="2"),
    workflows.Unpark: lambda world: [*_runs(workflows.Unpark)(world), workflows.Unpark(all=True)],
    workflows.Start: _named(workflows.Start, function="flow", id="id"),
    workflow_versions.Versions: lambda _: [workflow_versions.Versions(), workflow_versions.Versions("flow")],
    workflow_versions.Remove: _named(workflow_versions.Remove, type="flow", version="1"),
    workflow_versions.Workers: _named(workflow_versions.Workers),
    workers.List: _named(workers.List),
    workers.Show: _named(workers.Show, worker="1-1"),
    workers.Drain: _named(workers.Drain, worker="1-1"),
    workers.Stop: _named(workers.Stop, worker="1-1"),
    nodes.List: _named(nodes.List),
    nodes.Show: _named(nodes.Show, node="x"),
    nodes.Drain: _named(nodes.Drain, node="x"),
    nodes.Remove: _named(nodes.Remove, node="x", force=True),
    status.Show: _named(status.Show),
    namespaces.Status: _named(namespaces.Status),
    live.Follow: _named(live.Follow, functions=True),
    live.FollowVersion: _versions,
    namespaces.ListNodes: _named(namespaces.ListNodes),
    namespaces.ShowNode: lambda world: [namespaces.ShowNode(node=world.built.node.settings.name)],
    tokens.WhoAmI: _named(tokens.WhoAmI),
    tokens.ListRoles: _named(tokens.ListRoles),
    tokens.ListNamespaces: _named(tokens.ListNamespaces),
    tokens.List: _named(tokens.List),
    tokens.Show: lambda world: [tokens.Show(world.token), tokens.Show("hidden")],
    tokens.Revoke: lambda world: [tokens.Revoke(world.token)],
    tokens.Rotate: lambda world: [tokens.Rotate(world.token)],
    tokens.Create: lambda world: [tokens.Create("x", [tokens.GrantSpec("viewer", world.namespace)])],
    audit.ListActs: lambda _: [audit.ListActs(), audit.ListActs(everywhere=True)],
    audit.ListMarks: _named(audit.ListMarks),
    audit.AddMark: _named(audit.AddMark, label="mine"),
}
"""The requests of an attacker by kind, in their order: those that read come before those that make objects of the same names."""


def attacks(world: World, attacker: str) -> Iterator[Request[Any]]:
    """Return all requests: first those that only read."""
    found = [msgspec.structs.replace(one, namespace=attacker) for make in CASES.values() for one in make(world)]
    # The audit shows the attacker's own acts as well, with the handles that he has sent.
    readers = {"read", "payload:read"}
    return iter(sorted(found, key=lambda one: one.permission.value not in readers and type(one) is not audit.ListActs))


async def outcome(world: World, request: Request[Any]) -> bytes | Code:
    """Return the answer to an attacker's request, or the code of the refusal."""
    api = world.built.api
    try:
        if isinstance(request, (job_data.Follow, live.Follow, live.FollowVersion, logs.FollowLogs, operations.Follow)):
            feed = Events()
            end = await api.follow(request, feed, caller=world.caller)
            if isinstance(request, live.Follow):  # the first sample comes later
                await asyncio.wait_for(feed.begun.wait(), 10)
            end()
            return write(feed.sent)
        return write(await asyncio.wait_for(api.call(request, caller=world.caller), 10))
    except ApiError as error:
        return error.problem.code
