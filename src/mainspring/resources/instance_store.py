"""The part of decisions about holds that reads and writes the instances of managed resources (`hold_store.ask`).

It is part of the same operation, so that a release and a grant of the same instance are decided one after the other, under the
lock of the resource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from mainspring.event_log import types
from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import InstanceFields
from mainspring.namespaces import split_text
from mainspring.resources.holds import Waits, decide
from mainspring.resources.instances import CREATE, Instance, InstanceState, Pool, plan, reported, used
from mainspring.storage.engine import Query

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from mainspring.resources.holds import Hold, Request, Resource
    from mainspring.resources.instances import Report
    from mainspring.resources.managed import Managed

encode_instance: Final = msgspec.msgpack.Encoder().encode
decode_instance: Final = msgspec.msgpack.Decoder(Instance).decode


class Tend(msgspec.Struct, frozen=True):
    """A look at the instances of a resource."""

    resource: str
    """The key of its name."""
    nonce: str
    """Makes the keys of new instances unique everywhere."""
    term: int
    """Of the node that submits the jobs of the steps that begin."""
    ids: Sequence[int]
    """Ids for these jobs. Steps for which there is none begin with a later look."""
    reports: Sequence[Report] = ()


class Tended(NamedTuple):
    """The outcome of a look."""

    begun: tuple[Instance, ...]
    """Those whose steps have begun: the node has to submit their jobs."""
    moves: tuple[tuple[Instance, Instance], ...]
    """Those that have changed, as before and after."""
    managed: Managed | None = None
    """The definition."""


NOT_TENDED: Final = Tended((), ())


class FindInstances(Query["list[Instance]"], frozen=True):
    """Read the instances of resources, by name; ``names`` are keys. Without names, read those of all resources."""

    names: tuple[str, ...] | None


class InstanceTables(Protocol):
    """The rows of instances in a transaction."""

    async def store_us(self, node_us: int) -> int:
        """Return the store's time: at most that of its clock, and of the node's estimate."""

    async def instances(self, names: Collection[str] | None) -> Sequence[Instance]:
        """Return the instances of locked resources; of all, without names."""

    async def save_instances(self, changed: Sequence[Instance], forgotten: Sequence[Instance]) -> None:
        """Write and delete rows of locked resources."""

    async def number(self, grants: Mapping[str, int]) -> Mapping[str, int]:
        """See `hold_store.HoldTables.number`."""


class Instances:
    """The instances of some resources, in a decision."""

    def __init__(self, tables: InstanceTables, stored: Sequence[Instance], now_us: int) -> None:
        self._tables = tables
        self._stored = {(one.resource, one.name): one for one in stored}
        self._now = dict(self._stored)
        self._forgotten: list[Instance] = []
        self.now_us = now_us

    @classmethod
    async def read(cls, tables: InstanceTables, names: Collection[str], now_us: int) -> Instances:
        """Read the instances of locked resources."""
        if not names:
            return cls(tables, (), now_us)
        return cls(tables, await tables.instances(names), await tables.store_us(now_us))

    def of(self, name: str) -> list[Instance]:
        """Return the instances of a resource."""
        return [one for (resource, _), one in self._now.items() if resource == name]

    def use(self, holds: Iterable[Hold], requests: Iterable[Request] = ()) -> None:
        """Record the use of instances by holds that begin or have ended, and of all that ended requests may have waited for."""
        if not self._now:
            return
        places = {(hold.resource, hold.item) for hold in holds}
        awaited = {line.resource for one in requests for line in one.lines}
        for place, one in self._now.items():
            if place in places or place[0] in awaited:
                self._now[place] = used(one, self.now_us)

    def useless(self, hold: Hold) -> bool:
        """Return whether a hold is one of an instance that a check has found broken or gone."""
        one = self._now.get((hold.resource, hold.item)) if self._now else None
        return one is not None and one.is_useless

    def metas(self, holds: Iterable[Hold]) -> tuple[tuple[str, str, bytes], ...]:
        """Return the metas of the instances that are held."""
        places = ((hold.resource, hold.item) for hold in holds) if self._now else ()
        return tuple((*place, self._now[place].meta) for place in places if place in self._now)

    async def tend(
        self,
        tend: Tend,
        resources: Callable[[], Mapping[str, Resource]],
        draining: Collection[str],
        holds: Collection[Hold],
        requests: Collection[Request],
    ) -> Tended:
        """Process reports, and do what is next. ``resources`` returns those that the requests need, with their instances."""
        name = tend.resource
        before = {one.name: one for one in self.of(name)}
        for report in tend.reports:
            one = self._now.get((name, report.instance))
            if one is not None:
                self._put(reported(one, report, resources()[name].managed, self.now_us))
        all_needed = resources()
        mine = [hold for hold in holds if hold.resource == name]
        pool = Pool(
            name, all_needed[name].managed, draining, self.of(name), mine, possible(all_needed, holds, requests, name)
        )
        planned = plan(pool, self.now_us)
        for one in planned.changed.values():
            self._put(one)
        for one in [self._now.pop((name, other)) for other in planned.forgotten]:
            self._forgotten.append(one)
        managed = pool.managed
        if planned.created and managed is not None:
            numbers = await self._tables.number({name: planned.created})
            for number in range(numbers[name] - planned.created + 1, numbers[name] + 1):
                self._put(_new(name, number, tend.nonce, managed.fields, self.now_us))
        begun = self._with_jobs(tend)
        moves = [(before.get(one.name, one), one) for one in self.of(name) if before.get(one.name) != one]
        return Tended(tuple(begun), tuple(moves), managed)

    def _put(self, one: Instance) -> None:
        self._now[one.resource, one.name] = one

    def _with_jobs(self, tend: Tend) -> list[Instance]:
        """Give ids of jobs to the steps that have none; those for which there is none begin later."""
        ids = iter(tend.ids)
        begun = []
        for one in [one for one in self.of(tend.resource) if one.step and not one.job]:
            job = next(ids, 0)
            if job:
                after = replace(one, job=job, submitted_us=self.now_us, term=tend.term)
                begun.append(after)
            else:
                after = replace(one, step="", tries=one.tries - 1)
            self._put(after)
        return begun

    async def save(self) -> None:
        """Write what has changed."""
        changed = [one for place, one in self._now.items() if self._stored.get(place) != one]
        if changed or self._forgotten:
            await self._tables.save_instances(changed, self._forgotten)


def _new(resource: str, number: int, nonce: str, fields: str, now_us: int) -> Instance:
    key = f"mainspring-{number}-{nonce}"
    return Instance(resource, str(number), key, fields, created_us=now_us, since_us=now_us, step=CREATE, tries=1)


def possible(
    resources: Mapping[str, Resource], holds: Collection[Hold], requests: Collection[Request], name: str
) -> list[Request]:
    """Return the requests for a resource that the resources could serve if nobody held anything."""
    verdicts = decide(resources, holds, requests)
    found = []
    for one in requests:
        verdict = verdicts[one.holder]
        if any(line.resource == name for line in one.lines) and not (isinstance(verdict, Waits) and verdict.impossible):
            found.append(one)
    return found


_EVENTS: Final = {
    InstanceState.READY: types.INSTANCE_READY,
    InstanceState.BROKEN: types.INSTANCE_FAILED,
    InstanceState.GONE: types.INSTANCE_RELEASED,
}


def events_of(moves: Iterable[tuple[Instance, Instance]]) -> Iterator[NewEvent]:
    """Yield the events of instances that have changed."""
    for before, after in moves:
        kind = ""
        if before.state != after.state:
            kind = _EVENTS.get(InstanceState(after.state), "")
            if kind == types.INSTANCE_READY and before.state != InstanceState.STARTING:
                kind = ""
            if after.state == InstanceState.GONE and before.state != InstanceState.RELEASING:
                kind = types.INSTANCE_FAILED
        elif after.failures > before.failures and not after.step:
            kind = types.INSTANCE_FAILED
        if kind:
            namespace, name = split_text(after.resource)
            why = after.text.partition("\n")[0][:256]
            fields = InstanceFields(instance=after.name, state=InstanceState(after.state).name.lower(), why=why)
            yield NewEvent(kind, namespace, "", name, 0, fields)
