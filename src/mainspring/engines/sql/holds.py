"""Resources, and who holds and awaits their slots: the rows, and the operations on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from mainspring.resources.definition_store import (
    FindResources,
    ListResources,
    SaveResource,
    decode_resource,
    encode_resource,
)
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
from mainspring.resources.holds import Hold, Holder, HolderKind, Line, Request
from mainspring.resources.instance_store import FindInstances, decode_instance, encode_instance
from mainspring.storage.engine import in_parts
from mainspring.workflows.cross_run import answer_errand, encode_errand

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from mainspring.engines.sql.statements import Handlers, Readers, Statements, Transaction, Values
    from mainspring.resources.definition_store import StoredResource
    from mainspring.resources.hold_store import Asked, Holding, HoldTables
    from mainspring.resources.holds import HoldAnswer
    from mainspring.resources.instances import Instance
    from mainspring.storage.engine import Meter, Page

_encode_lines: Final = msgspec.msgpack.Encoder().encode
_decode_lines: Final = msgspec.msgpack.Decoder(tuple[Line, ...]).decode


class HoldRows:
    """``HoldTables`` but for locks, and messages to nodes."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self._sql: Statements = tx.sql

    async def held_by(self, holders: Collection[Holder]) -> Collection[str]:
        if not holders:
            return ()
        return {name for (name,) in await self._sql.fetch("held_by", self._sql.among({one.id for one in holders}))}

    async def of_runs(self, runs: Collection[int]) -> Collection[str]:
        return {name for (name,) in await self._sql.fetch("held_by", self._sql.among({*runs}))}

    async def awaited_by_runs(self) -> Collection[str]:
        return {name for (name,) in await self._sql.fetch("awaited_by", int(HolderKind.RUN))}

    async def definitions(self, names: Collection[str]) -> Mapping[str, StoredResource]:
        found = await self._sql.fetch("resources_among", self._sql.among(names))
        return {name: decode_resource(stored, name, version) for name, version, stored in found}

    async def turns(self, holders: Collection[Holder]) -> Collection[tuple[Holder, int]]:
        found = await self._sql.fetch("turns_of", self._sql.among({holder.id for holder in holders}))
        return {(Holder(*row[:3]), row[3]) for row in map(tuple, found)}

    async def leased(self, holders: Collection[Holder]) -> Mapping[Holder, bool]:
        by_term: dict[int, dict[int, Holder]] = {}
        for one in holders:
            by_term.setdefault(one.term, {})[one.id] = one
        return {
            ids[job_id]: bool(is_leased)
            for term, ids in by_term.items()
            for job_id, is_leased in await self._sql.fetch("leased", self._sql.among(ids), term)
        }

    async def submitted(self, jobs: Collection[int]) -> Collection[int]:
        return {job for (job,) in await self._sql.fetch("works_submitted", self._sql.among(jobs))} if jobs else ()

    async def open_runs(self, runs: Collection[int]) -> Collection[int]:
        return {run for (run,) in await self._sql.fetch("open_among", self._sql.among({*runs}))}

    async def holds(self, names: Collection[str]) -> Sequence[Hold]:
        found = await self._sql.fetch("holds", self._sql.among(names))
        return [Hold(row[0], row[1], Holder(row[2], row[3], row[4]), *row[5:]) for row in found]

    async def requests(self, names: Collection[str]) -> Sequence[Request]:
        if not names:
            return ()
        found = await self._sql.fetch("requests", self._sql.among(names))
        rows = {row[:4]: row for row in map(tuple, found)}
        return [
            Request(Holder(*row[:3]), row[3], _decode_lines(row[9]), row[4], row[5], row[8], row[6], row[7])
            for row in rows.values()
        ]

    async def delete(self, holds: Sequence[Hold], requests: Sequence[Request]) -> None:
        await self._delete("delete_holds", [(one.resource, one.holder) for one in holds])
        await self._delete("delete_requests", [(name, one.holder) for one in requests for name in _names(one)])

    async def _delete(self, statement: str, rows: Iterable[tuple[str, Holder]]) -> None:
        """Delete all rows of holders of some resources. Most have the same resource, kind and term."""
        alike: dict[tuple[str, int, int], set[int]] = {}
        for resource, (kind, holder, term) in rows:
            alike.setdefault((resource, kind, term), set()).add(holder)
        for values, holders in alike.items():
            await self._sql.execute(statement, *values, self._sql.among(holders))

    async def add(self, holds: Sequence[Hold], requests: Sequence[Request]) -> None:
        if holds:
            await self._add_holds(holds)
        if requests:
            await self._sql.many("add_requests", [row for one in requests for row in _rows(one)])

    async def _add_holds(self, holds: Sequence[Hold]) -> None:
        await self._sql.many("add_holds", [(one.resource, one.item, *one.holder, *one[3:]) for one in holds])

    async def number(self, grants: Mapping[str, int]) -> Mapping[str, int]:
        return dict(await self._sql.each("grants", sorted(grants.items())))

    async def instances(self, names: Collection[str] | None) -> Sequence[Instance]:
        if names is None:
            found = await self._sql.fetch("all_instances")
        else:
            found = await self._sql.fetch("instances", self._sql.among(names)) if names else []
        return [decode_instance(row[0]) for row in found]

    async def save_instances(self, changed: Sequence[Instance], forgotten: Sequence[Instance]) -> None:
        if changed:
            rows = [(one.resource, one.name, encode_instance(one)) for one in changed]
            await self._sql.many("save_instances", rows)
        if forgotten:
            await self._sql.many("delete_instance", [(one.resource, one.name) for one in forgotten])

    async def answer_runs(self, answers: Sequence[tuple[Holder, HoldAnswer]]) -> None:
        await self._sql.many("add_errand", [(encode_errand(answer_errand(*one)),) for one in answers])
        self._tx.answered_runs.extend(holder for holder, _ in answers)


def _names(request: Request) -> set[str]:
    return {line.resource for line in request.lines}


def _rows(request: Request) -> list[Values]:
    lines = _encode_lines(request.lines)
    times = (request.since_us, request.until_us, request.limit_us)
    values = (request.turn, request.priority, *times, request.function, lines)
    return [(name, *request.holder, *values) for name in _names(request)]


async def _save(tx: Transaction, operations: Sequence[SaveResource]) -> list[StoredResource]:
    return [await _save_one(tx.sql, operation.resource) for operation in operations]


async def _save_one(sql: Statements, resource: StoredResource) -> StoredResource:
    wanted = replace(resource, version=resource.version + 1)
    if await sql.execute("save_resource", wanted.name, wanted.version, encode_resource(wanted)):
        return wanted
    ((name, version, stored),) = await sql.fetch("resources_among", sql.among([wanted.name]))
    return decode_resource(stored, name, version)


async def _note(_: Any, operations: Sequence[NoteTaken]) -> list[None]:
    return [None] * len(operations)


async def _list(tx: Transaction, query: ListResources, meter: Meter) -> Page[StoredResource]:
    async def behind(after: str | None, most: int) -> list[tuple[str, StoredResource]]:
        found = await tx.sql.fetch("resources", after or "", most)
        return [(name, decode_resource(stored, name, version)) for name, version, stored in found]

    return await in_parts(query, meter, behind)


def handlers(tables: Callable[[Any], HoldTables]) -> Handlers:
    """Return the handlers of an engine with these tables."""

    async def ask_holds(tx: Any, operations: Sequence[AskHolds]) -> list[Asked]:
        of_runs, tx.asks_of_runs = tx.asks_of_runs, []
        return (await ask(tables(tx), [*operations, *of_runs]))[: len(operations)]

    return {AskHolds: ask_holds, SaveResource: _save, NoteTaken: _note}


def readers(tables: Callable[[Any], HoldTables]) -> Readers:
    """Return the readers of an engine with these tables."""

    async def find_holds(tx: Any, query: FindHolds, _: Meter) -> list[Holding]:
        return await find(tables(tx), query)

    async def find_instances(tx: Any, query: FindInstances, _: Meter) -> list[Instance]:
        return [*await tables(tx).instances(query.names)]

    async def find_resources(tx: Any, query: FindResources, _: Meter) -> list[StoredResource]:
        return list((await tables(tx).definitions(query.names)).values())

    async def kept(tx: Any, query: FindKept, _: Meter) -> set[tuple[Holder, int]]:
        return await find_kept(tables(tx), query)

    async def run_requests(tx: Any, query: FindRunRequests, _: Meter) -> list[str]:
        return await find_run_requests(tables(tx), query)

    async def run_holds(tx: Any, query: FindRunHolds, _: Meter) -> list[str]:
        return await find_run_holds(tables(tx), query)

    return {
        FindHolds: find_holds,
        FindInstances: find_instances,
        FindKept: kept,
        FindRunHolds: run_holds,
        FindRunRequests: run_requests,
        FindResources: find_resources,
        ListResources: _list,
    }
