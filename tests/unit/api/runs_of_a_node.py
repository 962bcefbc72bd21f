"""A node without a face whose runs are a fake of the service."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.api import workflows
from mainspring.api.handlers.grants import RunGrants
from mainspring.api.handlers.workflows import WorkflowCalls
from mainspring.api.request import read
from mainspring.jobs.model import Job, State
from mainspring.jobs.roots import Stored
from mainspring.storage.engine import Page
from mainspring.workflows.model import Key, Limits, OpenActivity, Parked, Parking
from mainspring.workflows.model import State as RunState
from mainspring.workflows.requests import Reached, Signal
from mainspring.workflows.store import Begun, Forked, ListRuns, Moved, RunRow, Shown, ShownRun, Start, Unbegun

from .a_node import PAYLOAD_LIMIT, Node, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from mainspring.access.idempotency import KeyedAct
    from mainspring.api.request import Request
    from mainspring.workflows.forking import Change
    from mainspring.workflows.history import ChildPolicy, Event

ROOT = 3_000_000_000_017
START_US = 1_700_000_000_000_000
"""The time of the node's clock."""
MISMATCH = Parking(parked=Parked("mismatch", "why"))


class FakeWorkflows:
    """Runs of a node: it answers at once, and keeps the requests."""

    def __init__(self) -> None:
        self.runs: list[ShownRun] = []
        self.unbegun: list[Unbegun] = []
        self.events: list[Event] = []
        self.reached = Reached("recorded", ROOT, ROOT, 7)
        self.moved = Moved("moved", ROOT + 1, ROOT)
        self.forked = Forked("planned", ROOT, ROOT)
        self.begun: Callable[[Job], Begun] = lambda _: Begun({}, {})
        self.received: list[Any] = []
        self.examined = 10**9
        """The runs that one read examines."""
        self.without_worker: list[tuple[str, str, str]] = []

    @property
    def requests(self) -> FakeWorkflows:
        return self

    async def start(self, start: Start) -> Begun:
        self.received.append(tuple(start))
        return self.begun(start.job)

    async def start_once(self, start: Start, keyed_act: KeyedAct) -> Stored:
        stored = Stored(*self.begun(start.job))
        self.received.append((keyed_act.key, keyed_act.reply([stored])))
        return stored

    async def signal(self, signal: Signal) -> Reached:
        self.received.append(signal)
        return self.reached

    async def request_cancel(self, key: Key, reason: str, request: int, act: object = None) -> Reached:
        del act
        self.received.append((key, reason, request))
        return self.reached

    async def terminate(self, key: Key, reason: str, children: ChildPolicy | None, act: object = None) -> Reached:
        del act
        self.received.append((key, reason, children))
        return self.reached

    async def move(self, key: Key, version: str, act: object = None) -> Moved:
        del act
        self.received.append((key, version))
        return self.moved

    async def fork(self, key: Key, change: Change, act: object = None, *, dry_run: bool = False) -> Forked:
        del act
        self.received.append((key, change, dry_run))
        return self.forked

    async def pause(self, key: Key, *, reason: str, by: str, until_us: int, act: object = None) -> Reached:
        del act
        self.received.append((key, reason, by, until_us))
        return self.reached

    async def resume(self, key: Key, act: object = None) -> Reached:
        del act
        self.received.append(("resume", key))
        return self.reached

    async def unpark(self, key: Key | None, _namespace: str, act: object = None) -> int:
        del act
        self.received.append(key)
        return 1 if key else len(self.runs)

    def stranded(self) -> Collection[tuple[str, str, str]]:
        return self.without_worker

    @property
    def definitions(self) -> FakeWorkflows:
        return self

    def functions(self) -> list[bytes]:
        return [b"order"]

    async def list(self, query: ListRuns, most: int = 10**9) -> Page[ShownRun]:
        self.received.append(query)
        newest = sorted(
            (one for one in self.runs if query.after is None or one.row.id < query.after), key=lambda one: -one.row.id
        )
        matching = [one for one in newest[:most] if query.type in {None, one.row.type}]
        page = matching[: query.limit]
        last = page[-1] if len(page) == query.limit else newest[:most][-1] if newest else None
        has_more = last is not None and newest[-1] is not last
        return Page(page, last.row.id, last.row.started_us) if last is not None and has_more else Page(page)

    async def list_part(self, query: ListRuns) -> Page[ShownRun]:
        return await self.list(query, self.examined)

    async def show(self, key: Key) -> Shown:
        self.received.append(key)
        return next(iter(self.runs), self.unbegun)

    async def history(self, run_id: int, first: int, limit: int, *, namespace: str) -> Page[Event]:
        assert namespace == "default"
        found = [event for event in self.events if event.id >= first]
        self.received.append(run_id)
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)


@asynccontextmanager
async def with_runs(*runs: ShownRun, **limits: int) -> AsyncIterator[tuple[Node, FakeWorkflows]]:
    async with opened() as node:
        fake = FakeWorkflows()
        fake.runs.extend(runs)
        chosen = Limits(largest=PAYLOAD_LIMIT, **limits)
        granted = RunGrants(WorkflowCalls(fake, node.service, node.jobs, node.submits, chosen).handlers)
        node.api.add(granted.handlers)
        node.api.add_objects(granted.objects)
        node.service.handles.use_names({3: "laptop"})
        yield node, fake


def a_run(number: int = ROOT, state: RunState | None = None, **columns: Any) -> ShownRun:
    row = RunRow(number, number, "default", f"order-{number}", "order", "2", started_us=START_US, events=4)
    return ShownRun(msgspec.structs.replace(row, **columns), state or RunState())


def activity(job: int = 0, number: int = 2) -> OpenActivity:
    return OpenActivity(5, str(number), b"charge", job, START_US)


def call(name: str, params: str) -> Request[Any]:
    kinds = {kind.call: kind for kind in vars(workflows).values() if getattr(kind, "call", "")}
    return read(kinds, name, params.encode())


def waiting(number: int, **columns: Any) -> Unbegun:
    job = Job(number, b"order", b"", unique=b"order-17", state=int(State.PENDING), created_us=START_US)
    return Unbegun(msgspec.structs.replace(job, **columns), is_workflow=False)
