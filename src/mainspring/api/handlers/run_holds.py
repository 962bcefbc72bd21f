"""The slots of resources that a run has, and those for which it waits, for its details."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.api.handlers.pages import rfc3339
from mainspring.api.handlers.run_rows import run_handle
from mainspring.api.workflows import RunHoldInfo
from mainspring.clock import to_us
from mainspring.namespaces import split_text
from mainspring.resources.definition_store import NO_ITEMS, FindResources, effective
from mainspring.resources.hold_store import FindHolds, FindRunHolds
from mainspring.resources.holds import HolderKind, Waits, decide
from mainspring.resources.instance_store import FindInstances

if TYPE_CHECKING:
    from mainspring.jobs.service import JobService
    from mainspring.resources.hold_store import Holding
    from mainspring.resources.holds import Granted, Holder, Request
    from mainspring.resources.instances import Instance

MOST_BEHIND = 10


def holder_text(service: JobService, holder: Holder) -> str:
    """Return a holder as text: the handle of a job or of a run, or the number of a person's hold."""
    if holder.kind == HolderKind.PERSON:
        return str(holder.id)
    handle = service.handles.of(holder.id).decode()
    return run_handle(handle, holder.id) if holder.kind == HolderKind.RUN else handle


def holder_kind(holder: Holder) -> str:
    """Return the kind of a holder as text."""
    return {HolderKind.PERSON: "person", HolderKind.RUN: "run"}.get(HolderKind(holder.kind), "job")


async def holds_of_run(service: JobService, run: int) -> list[RunHoldInfo]:
    """Return the holds of an open run, in the order of their requests, and then its requests that wait."""
    read, now_us = service.reads.read, to_us(service.clock.wall())
    names = await read(FindRunHolds(run))
    if not names:
        return []
    holdings: list[Holding] = await read(FindHolds(tuple(names), now_us))
    holds = [one for holding in holdings for one in holding.holds if _is_of(one.holder, run)]
    holds.sort(key=lambda one: (one.holder.term, one.resource, one.item))
    found = [
        RunHoldInfo(split_text(one.resource)[1], "held", one.units, one.item, str(one.number), rfc3339(one.since_us))
        for one in holds
    ]
    waiting = {one.holder: one for holding in holdings for one in holding.requests if _is_of(one.holder, run)}
    if waiting:
        verdicts = await _verdicts(service, names, now_us)
        for holder, one in sorted(waiting.items()):
            found += _waits(service, one, verdicts.get(holder))
    return found


def _is_of(holder: Holder, run: int) -> bool:
    return holder.kind == HolderKind.RUN and holder.id == run


async def _verdicts(service: JobService, names: list[str], now_us: int) -> dict[Holder, Granted | Waits]:
    """Return the verdicts on the requests for some resources, and for those that these requests ask for besides."""
    read = service.reads.read
    holdings: list[Holding] = await read(FindHolds(tuple(names), now_us))
    more = sorted({line.resource for one in holdings for request in one.requests for line in request.lines} - {*names})
    if more:
        holdings += await read(FindHolds(tuple(more), now_us))
    instances: dict[str, list[Instance]] = {name: [] for name in (*names, *more)}
    for one in await read(FindInstances(tuple(instances))):
        instances[one.resource].append(one)
    stored = {
        one.name: effective(one, now_us, instances[one.name]) for one in await read(FindResources((*names, *more)))
    }
    resources = {name: stored.get(name, NO_ITEMS) for name in instances}
    requests = {request.holder: request for holding in holdings for request in holding.requests}
    return decide(resources, [hold for one in holdings for hold in one.holds], requests.values())


def _waits(service: JobService, request: Request, verdict: Granted | Waits | None) -> list[RunHoldInfo]:
    waits = verdict if isinstance(verdict, Waits) else Waits((), ())
    return [
        RunHoldInfo(
            split_text(line.resource)[1],
            "waits",
            line.units,
            ", ".join(line.labels),
            None,
            rfc3339(request.since_us),
            lacks=[split_text(name)[1] for name in waits.lacking],
            behind=[holder_text(service, holder) for holder in waits.behind[:MOST_BEHIND]],
            impossible=waits.impossible,
        )
        for line in request.lines
    ]
