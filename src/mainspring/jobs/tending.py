"""The node's part in managed resources: it looks at their instances, and submits the jobs of their steps.

Each second, and at once when a job begins to wait or a step ends, the first node in line for a resource reads it, and asks
the pure rules (`resources.instances.plan`) for the next moves. If there are some, an operation decides once more under the
lock of the resource, and writes them (`hold_store.AskHolds`). A step gets the id of its job in that transaction; this node
alone submits the job, once. So no step has two jobs at a time, whatever nodes look. How a job has ended is read from the
store. One that is not there any more, because somebody has deleted it or its node was lost before it was stored, counts as
failed, and its step is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from mainspring.callbacks import CallInProgress
from mainspring.clock import to_us
from mainspring.jobs.model import Job, Options, Retry, State, decode_failure
from mainspring.jobs.store import Find
from mainspring.namespaces import key_of_text, split_text
from mainspring.resources.definition_store import FindResources, ListResources, effective
from mainspring.resources.hold_store import AskHolds, FindHolds
from mainspring.resources.holds import HolderKind
from mainspring.resources.instance_store import FindInstances, Tend, possible
from mainspring.resources.instances import RELEASE, Done, Failed, Pool, Report, plan
from mainspring.resources.managed import MAX_META_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.errors import MainspringError, StoreError
    from mainspring.jobs.intake import Intake
    from mainspring.jobs.rules import Settlement
    from mainspring.jobs.table import Context
    from mainspring.resources.definition_store import StoredResource
    from mainspring.resources.hold_store import Asked
    from mainspring.resources.instances import Instance
    from mainspring.resources.managed import Managed
    from mainspring.storage.engine import Page
    from mainspring.storage.reads import Reads

LIST_INTERVAL: Final = 30.0
"""Least number of seconds between two readings of the names of managed resources. A fleet without any pays only for these."""
LOST_AFTER_US: Final = 60_000_000
"""Microseconds after which a job that is not in the store was deleted or lost. A node that still submits it then has no lease."""
IDS: Final = 16
"""Ids of one look; further steps begin with the next one."""


class Order(msgspec.Struct, omit_defaults=True):
    """The arguments of a step's function, by name."""

    key: str
    fields: msgspec.Raw
    meta: msgspec.Raw
    """The value that ``create`` has returned; null before."""
    repeated: bool
    """Whether an earlier job may have done the step already."""
    created: bool = True
    """Of a release: whether the creation has succeeded."""


class Tending:
    """Looks at managed resources; ``mine`` returns whether this node is the first in line for a name.

    ``declared`` returns the keys of the managed resources that workers of this node have declared. For ``interval`` seconds it
    also looks at a new one if another node is the first in line: that one may not know of it before its next reading.
    ``changed`` is called with the key of a resource whose instances have changed.
    """

    def __init__(
        self,
        context: Context,
        reads: Reads,
        intake: Intake,
        *,
        mine: Callable[[str], bool],
        interval: float,
        declared: Callable[[], Collection[str]],
        changed: Callable[[str], None],
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._clock = context.clock
        self._reads = reads
        self._intake = intake
        self._is_first = mine
        self._interval = interval
        self._declared = declared
        self._declared_at: dict[str, float] = {}
        self._changed = changed
        self._names: set[str] = set()
        """The keys of the resources that are managed, or still have instances."""
        self._list_at = 0.0
        self._busy: set[str] = set()
        """Those at which this node is looking."""
        self._hinted: set[str] = set()
        """Those of them at which it looks once more after that."""
        self._jobs: dict[int, str] = {}
        """The resources of jobs of steps that this node has submitted, by id."""
        self._submitting: set[int] = set()
        """The ids of jobs that the store does not have yet."""
        self._refused: dict[int, str] = {}
        """Why jobs were not stored."""

    def check(self, now: float) -> None:
        """Look at all resources for which this node is the first in line; called about once a second, with a monotonic time."""
        if not self._table.term or self._dispatch.paused:
            return
        if now >= self._list_at:
            self._list_at = now + self._interval
            self._run("", self.find())
        for name in self._declared():
            self._declared_at.setdefault(name, now)
        for name in self._names.union(self._declared()):
            if self._mine(name):
                self._run(name, self.look(name))

    def lacking(self, names: Collection[str]) -> None:
        """Look at resources at once: a job of this node has begun to wait for their slots."""
        for name in self._names.union(self._declared()).intersection(names):
            self._hint(name)

    def ended(self, settlements: Sequence[Settlement]) -> None:
        """Look at once at the resources whose steps have ended on this node."""
        if self._jobs:
            for name in {self._jobs.pop(one.job.id) for one in settlements if one.job.id in self._jobs}:
                self._hint(name)

    def _hint(self, name: str) -> None:
        if self._mine(name) and self._table.term and not self._dispatch.paused:
            if name in self._busy:
                self._hinted.add(name)
            else:
                self._run(name, self.look(name))

    def _mine(self, name: str) -> bool:
        new_until = self._declared_at.get(name, float("-inf")) + self._interval
        return self._clock.monotonic() < new_until or self._is_first(f"resource {name}")

    def _run(self, name: str, work: Any) -> None:
        if name in self._busy:
            work.close()
            return
        self._busy.add(name)

        def over(_: object) -> None:
            self._busy.discard(name)
            if name in self._hinted:
                self._hinted.discard(name)
                self._hint(name)

        CallInProgress(work, over, over)

    async def find(self) -> None:
        """Find the resources that are managed, or still have instances. Raises StoreError."""
        found: set[str] = set()
        are_any = False
        after: str | None = None
        while True:
            page: Page[StoredResource] = await self._reads.read_pages(ListResources(after=after, limit=1000))
            are_any = are_any or bool(page.items)
            now_us = self._now_us()
            found.update(one.name for one in page.items if effective(one, now_us).managed is not None)
            after = page.next
            if after is None:
                break
        if are_any:
            found.update(one.resource for one in await self._reads.read(FindInstances(None)))
        self._names = found

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    # ---- a look ----

    async def look(self, name: str) -> None:
        """Look at a resource: report what has ended, and do what is next. Raises StoreError."""
        instances = await self._reads.read(FindInstances((name,)))
        reports = await self._reports(name, instances)
        if not reports and not await self._has_work(name):
            return
        ids = [self._table.next_id() for _ in range(IDS)]
        tend = Tend(name, uuid4().hex, self._table.term, ids, reports)
        operation = AskHolds([], self._now_us(), tend=tend)
        asked: Asked = await self._commits.committed(operation)
        for report in reports:
            self._refused.pop(report.job, None)
            self._jobs.pop(report.job, None)
        for one in asked.tended.begun:
            self._submit(one, asked.tended.managed)
        if asked.tended.moves:
            self._changed(name)

    async def _has_work(self, name: str) -> bool:
        """Return whether there is something to do, by what is committed."""
        now_us = self._now_us()
        (holding,) = await self._reads.read(FindHolds((name,), now_us))
        names = tuple(sorted({line.resource for one in holding.requests for line in one.lines} | {name}))
        stored = {one.name: one for one in await self._reads.read(FindResources(names))}
        if name not in stored:
            return False
        others = await self._reads.read(FindHolds(names, now_us))
        instances = await self._reads.read(FindInstances(names))
        resources = {
            key: effective(one, now_us, [row for row in instances if row.resource == key])
            for key, one in stored.items()
        }
        requests = {one.holder: one for other in others for one in other.requests}
        complete = [one for one in requests.values() if all(line.resource in resources for line in one.lines)]
        holds = [hold for other in others for hold in other.holds]
        mine = [one for one in instances if one.resource == name]
        pool = Pool(
            name,
            resources[name].managed,
            stored[name].draining,
            mine,
            [hold for hold in holds if hold.resource == name],
            possible(resources, holds, complete, name),
        )
        planned = plan(pool, now_us)
        useless = {one.name for one in mine if one.is_useless}
        has_jobs = any(hold.item in useless and hold.holder.kind == HolderKind.LEASE for hold in pool.holds)
        return bool(planned.changed or planned.created or planned.forgotten or has_jobs)

    # ---- jobs of steps ----

    async def _reports(self, name: str, instances: Collection[Instance]) -> list[Report]:
        waiting = [one for one in instances if one.step and one.job not in self._submitting]
        if not waiting:
            return []
        room = len(waiting) * 2 * MAX_META_BYTES
        find = Find([one.job for one in waiting], room, split_text(name)[0])
        found: dict[int, Job] = await self._commits.committed(find)
        reports = []
        for one in waiting:
            outcome = self._outcome(one, found.get(one.job))
            if outcome is not None:
                reports.append(Report(one.name, one.job, outcome))
        return reports

    def _outcome(self, one: Instance, job: Job | None) -> Done | Failed | None:
        """Return how a job has ended; None if it has not."""
        if job is None:
            why = self._refused.get(one.job)
            if why is not None:
                return Failed(f"the job could not be stored: {why}")
            is_lost = self._now_us() - one.submitted_us >= LOST_AFTER_US
            return Failed("the job was deleted, or lost before it was stored", is_lost=True) if is_lost else None
        if not State(job.state).ended:
            return None
        if job.state == State.SUCCEEDED:
            return Failed(f"the result has {job.output_size:,} bytes") if job.unread else Done(job.result)
        why = State(job.state).name.lower()
        if job.error:
            failure = decode_failure(job.error)
            why = f"{failure.type}: {failure.message}"
        return Failed(why)

    def _submit(self, one: Instance, managed: Managed | None) -> None:
        """Submit the job of a step that has begun."""
        job = job_of(one, managed, self._now_us())
        self._submitting.add(job.id)
        self._jobs[job.id] = one.resource

        def stored(_: Sequence[int], __: object) -> None:
            self._submitting.discard(job.id)

        def refused(error: MainspringError | StoreError) -> None:
            self._submitting.discard(job.id)
            self._refused[job.id] = str(error)

        self._intake.submit([job], stored, refused)


def step_function(resource: str, step: str) -> bytes:
    """Return the key of the function of a step; ``resource`` is the key of its name."""
    namespace, name = split_text(resource)
    return key_of_text(namespace, f"{name}.{step}").encode()


def job_of(one: Instance, managed: Managed | None, now_us: int) -> Job:
    """Return the job of an instance's step."""
    order = Order(one.key, msgspec.Raw(one.fields.encode()), msgspec.Raw(one.meta or b"null"), one.is_repeated)
    if one.step == RELEASE:
        order.created = bool(one.meta)
    options = Options()
    if managed is not None:
        backoff = managed.backoff
        options = Options(
            retry=Retry(backoff.attempts, backoff.initial, backoff.factor, backoff.maximum),
            timeout=managed.timeout_us / 1_000_000 or None,
        )
    payload = msgspec.json.encode(order)
    return Job(one.job, step_function(one.resource, one.step), payload, created_us=now_us, options=options)
