"""The methods of CALL that are about nodes: what `mainspring nodes` asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.errors import StoreError
from mainspring.faces.gearman.calls import NoParams, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.faces.gearman.calls import Call, Methods
    from mainspring.nodes.model import NodeRow
    from mainspring.server.fleet import Fleet


class _NodeParams(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    """A name, or the number of a term."""


class _DrainParams(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    draining: bool = True


class _RemoveParams(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    force: bool = False


class FleetCalls:
    """Answers for one node's fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._under_way: set[asyncio.Task[None]] = set()
        self.methods: Methods = {
            "nodes.list": (NoParams, lambda call, _: self._do(call, self._list(call))),
            "nodes.show": (_NodeParams, lambda call, said: self._do(call, self._show(call, said))),
            "nodes.drain": (_DrainParams, lambda call, said: self._do(call, self._drain(call, said))),
            "nodes.remove": (_RemoveParams, lambda call, said: self._do(call, self._remove(call, said))),
        }

    def _do(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        async def answered() -> None:
            try:
                await work
            except StoreError as error:
                call.failed(error)

        task = asyncio.get_running_loop().create_task(answered())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _rows(self) -> list[dict[str, Any]]:
        dead = {row.term for row in self._fleet.keeper.dead()}
        return [describe(row, dead=row.term in dead) for row in await self._fleet.port.rows()]

    async def _list(self, call: Call) -> None:
        call.answer({"nodes": await self._rows()})

    async def _show(self, call: Call, said: _NodeParams) -> None:
        row = await self._one(call, said.node)
        if row is not None:
            call.answer(row)

    async def _one(self, call: Call, node: str) -> dict[str, Any] | None:
        """Return the row of a name or a term, or answer that there is none, or that there are several."""
        found = [row for row in await self._rows() if node in {row["name"], str(row["term"])}]
        if len(found) == 1:
            return found[0]
        if found:
            terms = ", ".join(str(row["term"]) for row in found)
            call.fault("conflict", f"{len(found)} nodes are called {node}: name one of the terms {terms}")
        else:
            call.fault("not_found", f"there is no node {node}; mainspring nodes list shows those there are")
        return None

    async def _drain(self, call: Call, said: _DrainParams) -> None:
        row = await self._one(call, said.node)
        if row is not None:
            await self._fleet.port.ask_to_drain(row["term"], draining=said.draining)
            call.answer(row | {"state": "draining" if said.draining else "live"})

    async def _remove(self, call: Call, said: _RemoveParams) -> None:
        row = await self._one(call, said.node)
        if row is None:
            return
        if row["state"] != "dead" and not said.force:
            call.fault(
                "conflict",
                f"{row['name']} is {row['state']}: stop its process, and others have its jobs; to take them away from it now, say"
                " so with --force",
            )
            return
        if await self._fleet.port.end(row["term"]):
            self._fleet.recover([row["term"]])
        call.answer(row | {"state": "removed"})


class LoneCalls:
    """Answers for a node whose store nobody shares: it is the only one."""

    def __init__(self, row: Callable[[], NodeRow]) -> None:
        self._row = row
        self.methods: Methods = {
            "nodes.list": (NoParams, lambda call, _: call.answer({"nodes": [describe(row(), dead=False)]})),
            "nodes.show": (_NodeParams, self._show),
            "nodes.drain": (_DrainParams, self._refuse),
            "nodes.remove": (_RemoveParams, self._refuse),
        }

    def _show(self, call: Call, said: _NodeParams) -> None:
        row = self._row()
        if said.node in {row.name, str(row.term)}:
            call.answer(describe(row, dead=False))
        else:
            call.fault("not_found", f"there is no node {said.node}: {row.name} is the only one that has this store")

    def _refuse(self, call: Call, _: object) -> None:
        call.fault("conflict", f"{self._row().name} is the only node that has this store: stop its process instead")


def describe(row: NodeRow, *, dead: bool) -> dict[str, Any]:
    """Return a node as tools see it; docs/reference/protocol.md lists the keys."""
    return {
        "name": row.name,
        "term": row.term,
        "state": "dead" if dead else "draining" if row.draining else "live",
        "address": row.address or None,
        "slots": row.slots,
        "prefetch": row.capacity,
        "capacity": row.capacity,  # what it was called before
        "jobs": row.running,
        "weight": row.weight,
        "functions": [name.decode("utf-8", "backslashreplace") for name in row.functions],
        "beats": row.counter,
        "lease": row.lease,
        "started_at": rfc3339(row.started_us),
        "version": row.version,
    }
