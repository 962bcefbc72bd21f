"""Resources in memory, and who holds and awaits their slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.engines.memory.queries import Readers, behind_of
from mainspring.external.store import Status
from mainspring.jobs.model import State
from mainspring.resources.definition_store import FindResources, ListResources, SaveResource
from mainspring.resources.hold_store import (
    AskHolds,
    FindHolds,
    FindKept,
    FindRunHolds,
    FindRunRequests,
    NoteTaken,
    ask,
    find,
    find_kept,
    find_run_holds,
    find_run_requests,
)
from mainspring.resources.holds import HolderKind
from mainspring.resources.instance_store import FindInstances
from mainspring.storage.engine import in_parts, run_synchronously
from mainspring.workflows.cross_run import answer_errand, encode_errand

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from mainspring.engines.memory.tables import Tables
    from mainspring.resources.definition_store import StoredResource
    from mainspring.resources.hold_store import Asked, Holding
    from mainspring.resources.holds import Hold, HoldAnswer, Holder, Request
    from mainspring.resources.instances import Instance
    from mainspring.storage.engine import Meter, Operation, Page


_HELD: Final = frozenset(int(state) for state in State if state.held)


class MemoryHolds:
    """``HoldTables`` in dictionaries."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def held_by(self, holders: Collection[Holder]) -> Collection[str]:
        leases = {one.id for one in holders if one.kind == HolderKind.LEASE}  # under any term
        held = {
            one.resource
            for one in self._tables.holds
            if one.holder in holders or (one.holder.kind == HolderKind.LEASE and one.holder.id in leases)
        }
        requests = (self._tables.requests[one] for one in holders if one in self._tables.requests)
        return held | {line.resource for one in requests for line in one.lines}

    async def of_runs(self, runs: Collection[int]) -> Collection[str]:
        held = {one.resource for one in self._tables.holds if _is_of(one.holder, runs)}
        requests = (one for holder, one in self._tables.requests.items() if _is_of(holder, runs))
        return held | {line.resource for one in requests for line in one.lines}

    async def awaited_by_runs(self) -> Collection[str]:
        requests = (one for holder, one in self._tables.requests.items() if holder.kind == HolderKind.RUN)
        return {line.resource for one in requests for line in one.lines}

    async def lock(self, names: Sequence[str]) -> None:
        """Lock nothing: groups run one after the other."""

    async def definitions(self, names: Collection[str]) -> Mapping[str, StoredResource]:
        return {name: self._tables.resources[name] for name in names if name in self._tables.resources}

    async def turns(self, holders: Collection[Holder]) -> Collection[tuple[Holder, int]]:
        return {(one.holder, one.turn) for one in self._tables.holds if one.holder in holders}

    async def leased(self, holders: Collection[Holder]) -> Mapping[Holder, bool]:
        jobs = self._tables.jobs
        found = {one: jobs[one.id] for one in holders if one.id in jobs}
        return {
            one: job.term == one.term and job.state in _HELD for one, job in found.items() if not State(job.state).ended
        }

    async def submitted(self, jobs: Collection[int]) -> Collection[int]:
        return {job for (job, _), work in self._tables.works.items() if job in jobs and work.status <= Status.DONE}

    async def open_runs(self, runs: Collection[int]) -> Collection[int]:
        rows = self._tables.workflows
        return {run for run in runs if run in rows and rows[run].status.open}

    async def holds(self, names: Collection[str]) -> Sequence[Hold]:
        return [one for one in self._tables.holds if one.resource in names]

    async def requests(self, names: Collection[str]) -> Sequence[Request]:
        requests = self._tables.requests.values()
        return [one for one in requests if any(line.resource in names for line in one.lines)]

    async def delete(self, holds: Sequence[Hold], requests: Sequence[Request]) -> None:
        for hold in holds:
            self._tables.holds.discard(hold)
        for one in requests:
            del self._tables.requests[one.holder]

    async def add(self, holds: Sequence[Hold], requests: Sequence[Request]) -> None:
        self._tables.holds.update(holds)
        self._tables.requests.update((one.holder, one) for one in requests)

    async def number(self, grants: Mapping[str, int]) -> Mapping[str, int]:
        numbers = self._tables.grants
        for name, number in grants.items():
            numbers[name] = numbers.get(name, 0) + number
        return {name: numbers[name] for name in grants}

    async def store_us(self, node_us: int) -> int:
        return node_us

    async def instances(self, names: Collection[str] | None) -> Sequence[Instance]:
        return [one for key, one in sorted(self._tables.instances.items()) if names is None or key[0] in names]

    async def save_instances(self, changed: Sequence[Instance], forgotten: Sequence[Instance]) -> None:
        self._tables.instances.update(((one.resource, one.name), one) for one in changed)
        for one in forgotten:
            del self._tables.instances[one.resource, one.name]

    def announce(self, functions: Collection[bytes]) -> None:
        """Tell nobody: there is no other node."""

    async def answer_runs(self, answers: Sequence[tuple[Holder, HoldAnswer]]) -> None:
        tables = self._tables
        for holder, answer in answers:
            tables.last_errand += 1
            tables.errands[tables.last_errand] = encode_errand(answer_errand(holder, answer))
            tables.answered_runs.append(holder)


def _is_of(holder: Holder, runs: Collection[int]) -> bool:
    return holder.kind == HolderKind.RUN and holder.id in runs


def ask_for_runs(tables: Tables, operation: AskHolds) -> None:
    """Ask for the runs that a group has changed."""
    run_synchronously(ask(MemoryHolds(tables), [operation]))


def _ask(tables: Tables, operation: AskHolds) -> Asked:
    return run_synchronously(ask(MemoryHolds(tables), [operation]))[0]


def _save(tables: Tables, operation: SaveResource) -> StoredResource:
    stored = tables.resources.get(operation.resource.name)
    if stored is None or stored.version == operation.resource.version:
        wanted = replace(operation.resource, version=operation.resource.version + 1)
        tables.resources[wanted.name] = stored = wanted
    return stored


async def _find(tables: Tables, query: FindHolds, _: Meter) -> list[Holding]:
    return await find(MemoryHolds(tables), query)


async def _find_kept(tables: Tables, query: FindKept, _: Meter) -> set[tuple[Holder, int]]:
    return await find_kept(MemoryHolds(tables), query)


async def _find_instances(tables: Tables, query: FindInstances, _: Meter) -> list[Instance]:
    return [*await MemoryHolds(tables).instances(query.names)]


async def _find_run_requests(tables: Tables, query: FindRunRequests, _: Meter) -> list[str]:
    return await find_run_requests(MemoryHolds(tables), query)


async def _find_run_holds(tables: Tables, query: FindRunHolds, _: Meter) -> list[str]:
    return await find_run_holds(MemoryHolds(tables), query)


async def _find_resources(tables: Tables, query: FindResources, _: Meter) -> list[StoredResource]:
    return list((await MemoryHolds(tables).definitions(query.names)).values())


async def _list(tables: Tables, query: ListResources, meter: Meter) -> Page[StoredResource]:
    async def behind(after: str | None, most: int) -> list[tuple[str, StoredResource]]:
        return [(name, tables.resources[name]) for name in behind_of(tables.resources, after)[:most]]

    return await in_parts(query, meter, behind)


HANDLERS: Final[dict[type[Operation], Callable[[Tables, Any], object]]] = {
    AskHolds: _ask,
    SaveResource: _save,
    NoteTaken: lambda *_: None,
}
READERS: Final[Readers] = {
    FindHolds: _find,
    FindInstances: _find_instances,
    FindKept: _find_kept,
    FindRunHolds: _find_run_holds,
    FindRunRequests: _find_run_requests,
    FindResources: _find_resources,
    ListResources: _list,
}
