"""Calls about resources that jobs share."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, to_builtins
from msgspec.json import decode as decode_json
from msgspec.structs import asdict, replace

from mainspring.access.caller import Permission, Shares
from mainspring.api.handlers.pages import rfc3339
from mainspring.api.handlers.run_holds import holder_kind, holder_text
from mainspring.api.request import ApiError, Code, Page
from mainspring.api.resources import (
    DrainResource,
    FreedHold,
    FreeResource,
    HoldInfo,
    HoldResource,
    InstanceInfo,
    ItemInfo,
    ListResources,
    ResourceDetails,
    ResourceInfo,
    SetResource,
    ShowResource,
    TakeResource,
    WaitInfo,
)
from mainspring.api.submitting import PRIORITY_BY_NAME
from mainspring.callbacks import Callback
from mainspring.clock import from_us, to_us
from mainspring.jobs.tending import step_function
from mainspring.namespaces import key_of_text, split_text
from mainspring.quantities import format_duration
from mainspring.resources import definition_store
from mainspring.resources.definition_store import StoredResource, effective
from mainspring.resources.hold_store import AskHolds, FindHolds, Got
from mainspring.resources.holds import (
    Holder,
    HolderKind,
    Line,
    Request,
    ResourceSpec,
    Waits,
    check_lines,
    decide,
    resource_of,
    spec_of_resource,
)
from mainspring.resources.instance_store import FindInstances
from mainspring.resources.instances import InstanceState, shown_state
from mainspring.resources.managed import check_bounds
from mainspring.workflows.model import function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mainspring.access.caller import Act, Refusals
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.jobs.service import JobService
    from mainspring.resources.hold_store import Answer, Asked, Holding
    from mainspring.resources.holds import Hold, Resource
    from mainspring.resources.instances import Instance

LONGEST_HOLD: Final = 30 * 86_400.0
"""Seconds, as the next."""
LONGEST_WAIT: Final = 3600.0
ASKED_AGAIN: Final = 0.5
"""Seconds between two questions of a waiting person."""
QUESTION_LASTS: Final = 10.0
"""Seconds after which a question that is not repeated is void."""
MOST_WAITS: Final = 100
"""Waits of persons at a node."""
MOST_SHOWN: Final = 200
"""Holders of a resource, and of requests for it, in one answer."""
_PRIORITIES: Final = {int(priority): name for name, priority in PRIORITY_BY_NAME.items()}


class _Person:
    """A person with a question for slots. ``wait_us``: for how long; 0: once."""

    def __init__(self, number: int, line: Line, since_us: int, wait_us: int = 0) -> None:
        self.holder = Holder(HolderKind.PERSON, number, 0)
        self.line = line
        self.since_us, self.wait_us = since_us, wait_us
        self.turn = 0


class ResourceCalls:
    """Answers about the resources of a store."""

    def __init__(self, service: JobService, refusals: Refusals | None = None) -> None:
        self._service = service
        self._waits = Shares(MOST_WAITS, "waits", refusals)
        self._turns = count(1)
        self.handlers: Handlers = {
            ListResources: self._list,
            ShowResource: self._show,
            SetResource: self._set,
            DrainResource: self._drain,
            HoldResource: self._hold,
            FreeResource: self._free,
            TakeResource: self._take,
        }

    def _now_us(self) -> int:
        return to_us(self._service.clock.wall())

    # ---- reading ----

    async def _list(self, request: ListResources, _: Call) -> Page[ResourceInfo]:
        after = key_of_text(request.namespace, "") if request.cursor is None else request.cursor
        query = definition_store.ListResources(after=after or None, limit=request.limit)
        page = await self._service.reads.read(query)
        mine = [one for one in page.items if split_text(one.name)[0] == request.namespace]
        holdings = await self._holdings(*(one.name for one in mine))
        now_us = self._now_us()
        rows = await self._instances(*(one.name for one in mine))
        items = [_info(one, holding, now_us, rows[one.name]) for one, holding in zip(mine, holdings, strict=True)]
        first = key_of_text(request.namespace, "")
        is_last = page.next is None or (bool(first) and not page.next.startswith(first))
        return Page(items, None if is_last else page.next)

    async def _holdings(self, *names: str) -> list[Holding]:
        return await self._service.reads.read(FindHolds(names, self._now_us())) if names else []

    async def _instances(self, *names: str) -> dict[str, list[Instance]]:
        """Return the instances of resources, by key."""
        rows: dict[str, list[Instance]] = {name: [] for name in names}
        for one in await self._service.reads.read(FindInstances(names)) if names else ():
            rows[one.resource].append(one)
        return rows

    async def _stored(self, request: Any) -> StoredResource:
        name = key_of_text(request.namespace, request.name)
        found = await self._service.reads.read(definition_store.FindResources((name,)))
        if not found:
            raise ApiError(
                Code.RESOURCE_NOT_FOUND,
                f"there is no resource {request.name!r}; mainspring resources list shows those there are",
            )
        return found[0]

    async def _show(self, request: ShowResource, call: Call) -> ResourceDetails:
        stored = await self._stored(request)
        (holding,) = await self._holdings(stored.name)
        names = {line.resource for one in holding.requests for line in one.lines} | {stored.name}
        all_stored = await self._service.reads.read(definition_store.FindResources(tuple(names)))
        holdings = await self._holdings(*sorted(names))
        now_us = self._now_us()
        instances = await self._instances(*sorted(names))
        resources = {one.name: effective(one, now_us, instances[one.name]) for one in all_stored}
        requests = {one.holder: one for other in holdings for one in other.requests}
        holds = [hold for other in holdings for hold in other.holds]
        verdicts = decide(
            {name: resources.get(name, definition_store.NO_ITEMS) for name in names}, holds, requests.values()
        )
        waiting = [one for one in holding.requests if one.holder in requests]
        return ResourceDetails(
            **asdict(_info(stored, holding, now_us, instances[stored.name])),
            holds=[self._held(one) for one in holding.holds[:MOST_SHOWN]],
            waits=[self._wait(stored.name, one, verdicts[one.holder]) for one in waiting[:MOST_SHOWN]],
            managed=spec_of_resource(resources[stored.name]).managed,
            instances=[
                self._instance(one, holding, sees_metas=call.caller.may(Permission.PAYLOADS, request.namespace))
                for one in instances[stored.name]
            ],
        )

    def _handle(self, holder: Holder) -> str:
        return holder_text(self._service, holder)

    def _why(self, one: Instance) -> str:
        function = step_function(one.resource, one.step)
        if one.step and self._service.registered.has(function) is False:
            return f"no worker runs {function_text(function)}" + (f"; {one.text}" if one.text else "")
        return one.text

    def _instance(self, one: Instance, holding: Holding, *, sees_metas: bool) -> InstanceInfo:
        held = sum(hold.units for hold in holding.holds if hold.item == one.name)
        return InstanceInfo(
            name=one.name,
            state=shown_state(one, held),
            since=rfc3339(one.since_us),
            why=self._why(one),
            held=held,
            created=rfc3339(one.created_us),
            last_used=rfc3339(one.last_use_us),
            fields=decode_json(one.fields),
            key=one.key,
            meta=decode_json(one.meta) if sees_metas and one.meta else UNSET,
            step=one.step,
            job=self._service.handles.of(one.job).decode() if one.job else "",
            failures=one.failures,
            next=rfc3339(one.due_us),
        )

    def _held(self, hold: Hold) -> HoldInfo:
        return HoldInfo(
            holder=self._handle(hold.holder),
            kind=holder_kind(hold.holder),
            item=hold.item,
            units=hold.units,
            number=str(hold.number),
            since=rfc3339(hold.since_us),
            until=rfc3339(hold.until_us),
        )

    def _wait(self, name: str, one: Request, verdict: Any) -> WaitInfo:
        waits = verdict if isinstance(verdict, Waits) else Waits((), ())
        lines = [line for line in one.lines if line.resource == name]
        return WaitInfo(
            holder=self._handle(one.holder),
            kind=holder_kind(one.holder),
            function=function_text(one.function),
            priority=_PRIORITIES[one.priority],
            units=sum(line.units for line in lines),
            labels=sorted({label for line in lines for label in line.labels}),
            since=rfc3339(one.since_us),
            until=rfc3339(one.limit_us) if one.function else None,
            lacks=[split_text(other)[1] for other in waits.lacking],
            behind=[self._handle(holder) for holder in waits.behind],
            impossible=waits.impossible,
        )

    # ---- changing ----

    async def _set(self, request: SetResource, call: Call) -> ResourceInfo:
        bounds = request.max is not None or request.min is not None
        if (request.total is not None) + (request.items is not None) + bounds + request.declared != 1:
            raise ApiError(
                Code.INVALID,
                "give a total, or items, or max and min of instances, or `declared` for what its workers declare: one of"
                " these",
            )
        if bounds:
            return await self._set_bounds(request, call)
        if not request.declared and await self._is_managed(request):
            raise ApiError(Code.INVALID, f"{request.name} has instances: set max and min")
        commanded: Resource | None = None
        if request.declared:
            await self._stored(request)
        else:
            commanded = resource_of(request.name, ResourceSpec(request.total, request.items))
        return await self._change(
            request, call, lambda stored: replace(stored, commanded=commanded, most=None, least=None)
        )

    async def _is_managed(self, request: SetResource) -> bool:
        found = await self._service.reads.read(
            definition_store.FindResources((key_of_text(request.namespace, request.name),))
        )
        return bool(found) and effective(found[0], self._now_us()).managed is not None

    async def _set_bounds(self, request: SetResource, call: Call) -> ResourceInfo:
        await self._stored(request)

        def change(stored: StoredResource) -> StoredResource:
            managed = effective(stored, self._now_us()).managed
            if managed is None:
                raise ApiError(Code.INVALID, f"{request.name} has no instances: set a total, or items")
            declared = effective(replace(stored, most=None, least=None, draining=()), self._now_us()).managed or managed
            most = next(one for one in (request.max, stored.most, declared.most) if one is not None)
            least = next(one for one in (request.min, stored.least, declared.least) if one is not None)
            check_bounds(most, least if request.min is not None else min(least, most))
            return replace(
                stored,
                most=stored.most if request.max is None else most,
                least=stored.least if request.min is None else least,
            )

        return await self._change(request, call, change)

    async def _drain(self, request: DrainResource, call: Call) -> ResourceInfo:
        stored = await self._stored(request)
        (instances,) = (await self._instances(stored.name)).values()
        resource = effective(stored, self._now_us())
        is_managed = resource.managed is not None
        names = {one.name for one in instances} if is_managed else {item.name for item in resource.items}
        if request.item is not None and request.item not in names:
            raise ApiError(Code.INVALID, f"{request.name} has no item {request.item!r}", field="item")
        every = {""} if is_managed else names
        chosen = every if request.item is None else {request.item}

        def change(stored: StoredResource) -> StoredResource:
            draining = {*stored.draining} - chosen if request.undo else {*stored.draining} | chosen
            if is_managed:  # the names of instances that are forgotten
                draining &= names | every
            return replace(stored, draining=tuple(sorted(draining)))

        return await self._change(request, call, change, request.reason)

    async def _change(self, request: Any, call: Call, change: Any, reason: str = "") -> ResourceInfo:
        def act(before: StoredResource, after: StoredResource) -> Act:
            return call.act(reason, of=request.name, before=self._shown(before), after=self._shown(after))

        name = key_of_text(request.namespace, request.name)
        stored = await self._service.resources.change(name, lambda stored, _: change(stored), act)
        (holding,) = await self._holdings(name)
        (instances,) = (await self._instances(name)).values()
        return _info(stored, holding, self._now_us(), instances)

    def _shown(self, stored: StoredResource) -> dict[str, Any]:
        resource = effective(stored, self._now_us())
        shown: dict[str, Any] = {"items": to_builtins(resource.items), "draining": [*stored.draining]}
        if resource.managed is not None:
            shown |= {"max": resource.managed.most, "min": resource.managed.least}
        return shown

    async def _hold(self, request: HoldResource, call: Call) -> HoldInfo:
        if not 0 < request.duration <= LONGEST_HOLD:
            raise ApiError(Code.INVALID, "the duration is above 0 and at most 30 days", field="duration")
        stored = await self._stored(request)
        line = Line(stored.name, request.units, tuple(sorted({*request.labels})))
        check_lines([line])
        if not 0 <= request.wait <= LONGEST_WAIT:
            raise ApiError(Code.INVALID, "the wait is from 0 to an hour", field="wait")
        if not request.wait:
            answer = await self._ask(_Person(self._service.table.next_id(), line, self._now_us()), request, call)
        elif why := self._waits.take(call.caller, request.namespace):
            raise ApiError(Code.TOO_MANY_WAITS, why)
        else:
            try:
                answer = await self._await(line, request, call)
            finally:  # also when its client has gone
                self._waits.free(call.caller, request.namespace)
        if isinstance(answer, Got):
            return replace(
                self._held(answer.holds[0]), units=request.units, item=", ".join(one.item for one in answer.holds)
            )
        raise ApiError(
            Code.CONFLICT,
            f"{request.name} cannot serve that, even if nobody held anything"
            if isinstance(answer, Waits) and answer.impossible
            else f"{request.name} had too few free slots for {format_duration(request.wait)}: see mainspring resources show"
            if request.wait
            else f"{request.name} has too few free slots, or others wait for them: see mainspring resources show",
        )

    async def _await(self, line: Line, request: HoldResource, call: Call) -> Answer:
        """Ask until the slots are granted or the wait is over.

        Each question replaces the one before, and lasts for some seconds: that of a client or node that has gone ends by itself.
        """
        service = self._service
        person = _Person(service.table.next_id(), line, self._now_us(), to_us(request.wait))
        is_settled = False
        try:
            while True:
                answer = await self._ask(person, request, call)
                if not isinstance(answer, Waits) or answer.over:
                    is_settled = True
                    return answer
                left = from_us(person.since_us + person.wait_us - self._now_us())
                pause = min(max(left, 0.0), ASKED_AGAIN)
                await Callback[None](partial(self._pause, pause))
        finally:
            if not is_settled:
                given_back = AskHolds([], self._now_us(), [(person.holder, person.turn)])
                service.commits.put(given_back, lambda _: None, lambda _: None)
                service.assigner.hold_requests.changed(line.resource)

    def _pause(self, seconds: float, done: Callable[[None], None], _: object) -> None:
        self._service.later(seconds, lambda: done(None))

    async def _ask(self, person: _Person, request: HoldResource, call: Call) -> Answer:
        now_us = self._now_us()
        person.turn = next(self._turns)
        asked = Request(person.holder, person.turn, (person.line,), 0, person.since_us)
        asked = asked._replace(until_us=now_us + to_us(request.duration))
        if person.wait_us:
            limit_us = min(person.since_us + person.wait_us, now_us + to_us(QUESTION_LASTS))
            asked = asked._replace(limit_us=limit_us)
        operation = AskHolds([asked], now_us, only_now=not person.wait_us)
        after = {"units": request.units, "labels": [*person.line.labels], "duration": request.duration}
        operation.act = call.act(request.reason, of=request.name, after=after)
        outcome: Asked = await self._service.commits.committed(operation)
        return outcome.answers[0]

    async def _held_by(self, request: Any, holder: str) -> Hold:
        stored = await self._stored(request)
        (holding,) = await self._holdings(stored.name)
        for one in holding.holds:
            if self._handle(one.holder) == holder:
                return one
        raise ApiError(Code.CONFLICT, f"{holder} holds nothing of {request.name}")

    async def _free(self, request: FreeResource, call: Call) -> FreedHold:
        held = await self._held_by(request, request.holder)
        if held.holder.kind == HolderKind.RUN:
            raise ApiError(
                Code.CONFLICT,
                f"{request.holder} is a run, whose code still uses the slots: cancel or terminate it, and they are free",
            )
        if held.holder.kind != HolderKind.PERSON:
            raise ApiError(
                Code.CONFLICT,
                f"{request.holder} is a job, which still uses the slots: cancel it, or take them away with "
                f"mainspring resources free {request.name} --job {request.holder}",
            )
        operation = AskHolds([], self._now_us(), [(held.holder, held.turn)])
        operation.act = call.act(of=request.name, before={"holder": request.holder})
        await self._service.commits.committed(operation)
        self._service.assigner.hold_requests.changed(held.resource)
        return FreedHold(request.name, request.holder)

    async def _take(self, request: TakeResource, call: Call) -> FreedHold:
        held = await self._held_by(request, request.job)
        if held.holder.kind != HolderKind.LEASE:
            raise ApiError(
                Code.CONFLICT, f"{request.job} is no job: give its slots back with mainspring resources free"
            )
        after = "cancelled" if request.cancel else "pending"
        act = call.act(request.reason, of=request.name, before={"job": request.job, "units": held.units}, after=after)
        await self._service.lost_slots.take(held, act, cancel=request.cancel)
        return FreedHold(request.name, request.job)


def _info(stored: StoredResource, holding: Holding, now_us: int, instances: Collection[Instance]) -> ResourceInfo:
    resource = effective(stored, now_us, instances)
    held: dict[str, int] = {}
    for hold in holding.holds:
        held[hold.item] = held.get(hold.item, 0) + hold.units
    items = [
        ItemInfo(
            item.name,
            [*item.labels],
            item.slots,
            number := held.pop(item.name, 0),
            "draining" if item.draining else "busy" if number else "idle",
        )
        for item in resource.items
    ]
    live = {one.name: one for one in instances if one.state != InstanceState.GONE}
    for item in items:
        if item.name in live and item.state != "draining":
            item.state = shown_state(live[item.name], item.held)
    others = [one for one in live.values() if all(item.name != one.name for item in items)]
    items += [ItemInfo(one.name, [], 0, held.pop(one.name, 0), shown_state(one, 0)) for one in others]
    items += [ItemInfo(name, [], 0, number, "gone") for name, number in sorted(held.items())]
    return ResourceInfo(
        name=split_text(stored.name)[1],
        total=resource.items[0].slots if resource.counted else None,
        slots=sum(item.slots for item in resource.items if not item.draining),
        held=sum(hold.units for hold in holding.holds),
        waiting=len(holding.requests),
        source="command" if stored.is_commanded else "workers",
        items=items,
    )
