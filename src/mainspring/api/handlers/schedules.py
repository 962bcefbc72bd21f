"""Calls about schedules: list, show, preview, create, change and run them; their next times and their history."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec import UNSET, DecodeError, Raw, UnsetType, to_builtins
from msgspec.json import decode
from msgspec.structs import asdict, replace

from mainspring.access.idempotency import act_if_new
from mainspring.api.handlers.pages import line, number_of, rfc3339, size_of
from mainspring.api.request import ApiError, Code, Page, Touches, check_number
from mainspring.api.schedules import (
    AddSchedule,
    AdoptSchedule,
    ClockChangeInfo,
    ConflictInfo,
    Declared,
    DeclareSchedules,
    Difference,
    EditSchedule,
    FireInfo,
    ListAllSchedules,
    NextTimes,
    PauseSchedule,
    Previewed,
    PreviewedTime,
    PreviewSchedule,
    RemovedSchedule,
    RemoveSchedule,
    ReplaceSchedule,
    ResumeSchedule,
    ScheduleDetails,
    ScheduleHistory,
    ScheduleInfo,
    ShowSchedule,
    Times,
    TriggerSchedule,
)
from mainspring.callbacks import in_slices
from mainspring.clock import to_us, us_of
from mainspring.errors import ConflictError, NotFoundError, UsageError
from mainspring.features import Feature
from mainspring.namespaces import DEFAULT, key, key_of_text, name_bytes, name_of, name_text, split_text
from mainspring.queries import ListFires
from mainspring.schedules import (
    catalogue,
    triggers,
)
from mainspring.schedules.model import Fire, Origin
from mainspring.schedules.reconcile import Code as DeclaringCode
from mainspring.schedules.reconcile import check_app, digest, fault_of
from mainspring.schedules.specification import row_with_names, specify, stored_with_names, text_with_names, with_keys
from mainspring.schedules.store import Change, ListSchedules, Refused
from mainspring.sizes import PAGE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
    from datetime import timedelta

    from mainspring.access.caller import Act, Caller
    from mainspring.api.handlers.registry import Call, Handlers
    from mainspring.callbacks import Ask
    from mainspring.clock import Clock
    from mainspring.ids import Handles
    from mainspring.schedules.model import Schedule
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.service import ScheduleService
    from mainspring.storage.reads import Reads


def run_of(row: Fire, handles: Handles) -> FireInfo:
    """Return a fire time as the API describes it."""
    return FireInfo(
        schedule=row.schedule,
        fire_time=rfc3339(row.fire_us),
        until=rfc3339(row.until_us),
        state=row.state.value,
        reason=row.reason.value if row.reason is not None else None,
        cause="backfill" if row.operation else row.cause.value,
        handle=handles.of(row.job).decode() if row.job else None,
        node=row.node or None,
        worker=row.worker or None,
        started_at=rfc3339(row.started_us),
        ended_at=rfc3339(row.ended_us),
        outcome=row.outcome or None,
        error=line(row.error),
        attempt=row.attempt,
        parent=row.parent or None,
        finished=row.finished,
    )


if TYPE_CHECKING:
    Changing = EditSchedule | ReplaceSchedule | PauseSchedule | ResumeSchedule | RemoveSchedule | AdoptSchedule
    """Requests that change a schedule as it is, of a revision if they name one."""

T = TypeVar("T")

CHANGE_ATTEMPTS = 5
"""Number of times that a change is repeated if another request changes the schedule in the meantime. Fires never refuse one."""

STEP = 100
"""Schedules that are described at once: about a millisecond."""


class ScheduleCalls:
    """Answers for a node's schedules."""

    def __init__(
        self,
        service: ScheduleService,
        reads: Reads,
        handles: Handles,
        clock: Clock,
        lacks: frozenset[Feature] = frozenset(),
    ) -> None:
        self._keeps_workflows = Feature.WORKFLOWS not in lacks
        self._keeps_deadlines = Feature.DEADLINES not in lacks
        self._service = service
        self._reads = reads
        self._handles = handles
        self._clock = clock
        self.handlers: Handlers = {
            ListAllSchedules: self._list,
            ShowSchedule: self._show,
            AddSchedule: self._add,
            EditSchedule: self._edit,
            ReplaceSchedule: self._replace,
            PauseSchedule: partial(self._switch, "pause"),
            ResumeSchedule: partial(self._switch, "resume"),
            RemoveSchedule: self._remove,
            AdoptSchedule: self._adopt,
            PreviewSchedule: SchedulePreviews(service, self._find, clock).preview,
            TriggerSchedule: self._trigger,
            NextTimes: self._next,
            ScheduleHistory: self._history,
            DeclareSchedules: self._declare,
        }

    # ---- reading ----

    async def _stored(self, namespace: str, *names: str) -> Sequence[Stored]:
        """Return the schedules of these names in a namespace, with their keys; all of its schedules if there are no names."""
        keys = tuple(key_of_text(namespace, name) for name in names) or None
        query = ListSchedules(limit=sys.maxsize, names=keys, namespace=namespace)
        return (await self._reads.read_pages(query)).items

    async def _find(self, namespace: str, *names: str) -> list[Stored]:
        """Return the schedules as `_stored` does, with their names."""
        return [stored_with_names(one) for one in await self._stored(namespace, *names)]

    async def _list(self, request: ListAllSchedules, _: Call) -> Page[ScheduleInfo]:
        """Answer with up to a bit more than one page. The schedules have arguments, which no list shows."""
        after = None if request.cursor is None else key_of_text(request.namespace, request.cursor)
        found: list[ScheduleInfo] = []
        size = 0
        while True:
            left = request.limit - len(found)
            query = ListSchedules(after=after, limit=left, namespace=request.namespace, bytes=PAGE.most)
            page = await self._reads.read_pages(query)
            part = await in_slices(self._service.run_sliced, _infos(page.items))
            found += part
            size += size_of(part)
            after = page.next
            if after is None or size > PAGE.most or len(found) >= request.limit:
                return Page(found, None if after is None else found[-1].name)

    async def _stored_one(self, namespace: str, name: str) -> Stored:
        found = await self._stored(namespace, name)
        if not found:
            raise Touches.SCHEDULE.not_found(name)
        return found[0]

    async def _schedule(self, namespace: str, name: str) -> Stored:
        return stored_with_names(await self._stored_one(namespace, name))

    async def _show(self, request: ShowSchedule, _: Call) -> ScheduleDetails:
        return _details(await self._schedule(request.namespace, request.name))

    async def _next(self, request: NextTimes, _: Call) -> Times:
        check_number("count", request.count)
        stored = await self._schedule(request.namespace, request.name)
        if fault := fault_of(stored):
            raise ApiError(Code.CONFLICT, f"schedule {request.name!r} is set aside on this node: {fault}")
        times = await in_slices(self._service.run_sliced, self._look_ahead(stored, request.count))
        return Times(stored.schedule.name, stored.state.paused, [one.at for one in times], times)

    def _look_ahead(self, stored: Stored, count: int) -> Generator[None, None, list[PreviewedTime]]:
        schedule, state, _ = stored
        after_us = round(self._clock.wall() * 1_000_000)
        if state.next_us is not None:
            after_us = max(after_us, state.next_us - 1)
        times: list[PreviewedTime] = []
        steps = triggers.running_steps(schedule, after_us, triggers.LAST_US)
        while not state.paused and len(times) < count and (at := next(steps, -1)) != -1:
            if at is not None:
                times.append(previewed_time(schedule, at))
            yield
        return times

    async def _history(self, request: ScheduleHistory, _: Call) -> Page[FireInfo]:
        before_us = None if request.cursor is None else number_of(request.cursor)
        query = ListFires(key_of_text(request.namespace, request.name), after=before_us, limit=request.limit)
        page = await self._reads.read_pages(query)
        if not page.items:  # no row yet, or no such schedule
            await self._schedule(request.namespace, request.name)
        following = None if page.next is None else str(page.next)
        return Page([self._run(row_with_names(row)) for row in page.items], following)

    # ---- changing ----

    async def _add(self, request: AddSchedule, call: Call) -> ScheduleInfo:
        schedule = request.schedule()
        act = _act(call, after=schedule)
        change = Change("put", request.name, 0, schedule, Origin.CLI)
        return _saved(await self._save(request.namespace, change, act, call.caller))

    async def _edit(self, request: EditSchedule, call: Call) -> ScheduleInfo:
        def edited(stored: Stored) -> Change:
            return Change("put", request.name, schedule=request.schedule(stored.schedule))

        return _saved(await self._change(request, call, edited))

    async def _replace(self, request: ReplaceSchedule, call: Call) -> ScheduleInfo:
        schedule = request.schedule()
        return _saved(await self._change(request, call, lambda _: Change("put", request.name, schedule=schedule)))

    async def _switch(
        self, kind: Literal["pause", "resume"], request: PauseSchedule | ResumeSchedule, call: Call
    ) -> ScheduleInfo:
        return _saved(await self._change(request, call, lambda _: Change(kind, request.name)))

    async def _change(
        self, request: Changing, call: Call, change: Callable[[Stored], Change], *, with_children: bool = False
    ) -> Stored | None:
        """Save a change of the schedule as it is, again if another request changes it meanwhile. Raises ApiError.

        ``with_children``: remove all schedules that run after it in the same transaction.
        """
        for _ in range(CHANGE_ATTEMPTS):
            with suppress(ConflictError):
                return await self._change_once(request, call, change, with_children=with_children)
        return await self._change_once(request, call, change, with_children=with_children)

    async def _change_once(
        self, request: Changing, call: Call, change: Callable[[Stored], Change], *, with_children: bool
    ) -> Stored | None:
        name, revision = request.name, request.revision
        before = await self._stored_one(request.namespace, name)
        stored = stored_with_names(before)
        # Its function may have changed since `Api` has checked it; this version is the one that is saved.
        call.check(name_text(stored.schedule.function))
        if revision is not None and revision_of(stored) != revision:
            raise ApiError(Code.CHANGED, f"schedule {name!r} was changed since revision {revision}: read it again")
        wanted = change(stored)
        act = _act(call, before=stored.schedule, after=wanted.schedule)
        if isinstance(request, AdoptSchedule):
            act = replace(act, before={"app": stored.state.app}, after={"app": request.app})
        also: list[Change] = []
        if with_children:
            followers = _followers(before.schedule.name, await self._stored(request.namespace))
            for one in followers:
                call.check(name_text(name_of(one.schedule.function)))
            also = [Change("remove", one.schedule.name, before=one) for one in followers]
            if followers:
                act = replace(act, before=act.before | {"children": [split_text(one.name)[1] for one in also]})
        return await self._save(request.namespace, wanted._replace(before=before), act, call.caller, also)

    async def _remove(self, request: RemoveSchedule, call: Call) -> RemovedSchedule:
        await self._change(request, call, lambda _: Change("remove", request.name), with_children=request.children)
        return RemovedSchedule(request.name)

    async def _adopt(self, request: AdoptSchedule, call: Call) -> ScheduleInfo:
        if not request.app:
            raise ApiError(Code.INVALID, "app must be the name of an App")
        app = key_of_text(request.namespace, request.app)
        if call.is_restricted:
            check_app(app, await self._stored(request.namespace), call.caller)
        return _saved(await self._change(request, call, lambda _: Change("adopt", request.name, app=app)))

    async def _save(
        self, namespace: str, change: Change, act: Act, caller: Caller, also: Sequence[Change] = ()
    ) -> Stored | None:
        schedule = None if change.schedule is None else with_keys(change.schedule, namespace)
        if schedule is not None:
            self._check_kept(schedule)
        change = change._replace(name=key_of_text(namespace, change.name), schedule=schedule)
        saved = await _found(namespace, self._service.save([change, *also], act, caller))
        stored = saved[change.name]
        return stored and stored_with_names(stored)

    def _check_kept(self, schedule: Schedule) -> None:
        """Raise ApiError for a schedule that the store does not keep."""
        if not self._keeps_deadlines and not (schedule.start_within is None and schedule.deadline is None):
            raise ApiError(Code.UNSUPPORTED, f"schedule {schedule.name!r}: {Feature.DEADLINES.refusal}")

    async def _trigger(self, request: TriggerSchedule, call: Call) -> FireInfo:
        act = _act(call)
        name = key_of_text(request.namespace, request.name)

        def answer(row: Fire | Refused | None) -> FireInfo:
            if isinstance(row, Refused):
                raise ConflictError(text_with_names(str(row.error), request.namespace))
            if row is None:
                raise call.not_found()
            return self._run(row_with_names(row))

        return await act_if_new(call.once, partial(self._service.trigger, name, act), answer)

    async def _declare(self, request: DeclareSchedules, call: Call) -> Declared:
        def read() -> Generator[None, None, list[Schedule]]:
            schedules: list[Schedule] = []
            for one in request.schedules:
                schedules.append(with_keys(one.schedule(), request.namespace))
                self._check_kept(schedules[-1])
                yield
            return schedules

        schedules = await in_slices(self._service.run_sliced, read())
        namespace = request.namespace
        app = key_of_text(namespace, request.app)
        act = call.act(of=request.app)
        code = self._code(request)

        declaration = await _found(namespace, self._service.declare(app, schedules, act, code=code, caller=call.caller))
        changes = [
            Difference(one.kind.value, split_text(one.name)[1], text_with_names(one.text, namespace), one.warning)
            for one in declaration.changes
        ]
        if not self._keeps_workflows and declaration.governs:
            changes += _not_started(request)
        return Declared(declaration.governs, changes)

    def _code(self, request: DeclareSchedules) -> DeclaringCode:
        """Return what a declaration says about its code."""

        def keys(names: Iterable[str]) -> frozenset[bytes]:
            return frozenset(key(request.namespace, name_bytes(name)) for name in names)

        left_out = keys(request.left_out) | (frozenset() if self._keeps_workflows else keys(request.workflows))
        functions = None if request.functions is None else keys(request.functions)
        return DeclaringCode(functions, left_out, is_named=request.is_named)

    # ---- writing ----

    def _run(self, row: Fire) -> FireInfo:
        return run_of(row, self._handles)


def _act(call: Call, *, before: Schedule | None = None, after: Schedule | None = None) -> Act:
    """Return the act of a change. A removed, paused or resumed schedule has no description after it."""
    shown = [None if one is None else _shown(one) for one in (before, after)]
    return call.act(before=shown[0], after=shown[1])


def _not_started(request: DeclareSchedules) -> list[Difference]:
    """Return lines about schedules that a node without workflows leaves out."""
    why = "it starts runs of a workflow, and the store of this node keeps none"
    left_out = {*request.workflows} - {*request.left_out}
    return [
        Difference("left alone", one.name, f"left {one.name} alone: {why}", warning=True)
        for one in request.schedules
        if (one.function if isinstance(one.function, str) else one.name) in left_out
    ]


def _followers(name: str, stored: Sequence[Stored]) -> list[Stored]:
    """Return the schedules that run after one, and those after them."""
    names = {name}
    found: list[Stored] = []
    while more := [one for one in stored if one.schedule.name not in names and names & {*one.schedule.parents}]:
        found += more
        names |= {one.schedule.name for one in more}
    return found


def _shown(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as the audit shows it: without its payload, which may hold secrets."""
    shown: dict[str, Any] = to_builtins(specify(schedule))
    shown.pop("payload", None)  # as which `specify` writes the arguments
    return shown


def revision_of(stored: Stored) -> str:
    """Return the revision of a schedule: of its description and its pause. Fire times do not change it."""
    paused = b"paused" if stored.state.paused else b""
    return blake2b(digest([stored.schedule]) + paused, digest_size=8).hexdigest()


def _saved(stored: Stored | None) -> ScheduleInfo:
    assert stored is not None, "it was saved"
    return _info(stored)


async def _found(namespace: str, work: Coroutine[Ask, Any, T]) -> T:
    """Return a result of the service about schedules of a namespace. Raises ApiError if there is no such schedule."""
    try:
        return await work
    except NotFoundError as error:
        text = text_with_names(str(error), namespace)
        raise ApiError(Code.SCHEDULE_NOT_FOUND, f"{text}; mainspring schedules list shows those there are") from None
    except (UsageError, ConflictError) as error:
        if namespace == DEFAULT:
            raise
        raise type(error)(text_with_names(str(error), namespace)) from None


def _info(stored: Stored) -> ScheduleInfo:
    schedule, state, _ = stored
    fault = fault_of(stored)
    will_fire = schedule.parents or state.next_us is not None
    return ScheduleInfo(
        name=schedule.name,
        function=name_text(schedule.function),
        when=triggers.describe(schedule),
        timezone=schedule.timezone,
        state="set_aside" if fault else "paused" if state.paused else "active" if will_fire else "finished",
        next_at=rfc3339(state.next_us or 0),
        last_at=rfc3339(state.last_us),
        waiting=state.queued,
        origin=state.origin.value,
        app=state.app or None,
        parents=list(schedule.parents),
        fault=fault or None,
    )


def _infos(found: Sequence[Stored]) -> Generator[None, None, list[ScheduleInfo]]:
    """Describe many schedules in steps."""
    described = []
    for number, one in enumerate(found, 1):
        described.append(_info(stored_with_names(one)))
        if number % STEP == 0:
            yield
    return described


def _json(args: bytes) -> Raw | UnsetType:
    """Return arguments that are JSON; UNSET for others, and for none."""
    try:
        args.decode()
        decode(args)
    except (UnicodeDecodeError, DecodeError, RecursionError):
        return UNSET
    return Raw(args)


def _details(stored: Stored) -> ScheduleDetails:
    schedule, state, _ = stored
    fields = {key: None if value is UNSET else value for key, value in asdict(specify(schedule)).items()}
    del fields["namespace"]
    details: dict[str, Any] = (
        fields
        | asdict(_info(stored))
        | {
            "at": rfc3339(0 if fields["at"] is None else us_of(fields["at"])),
            "start": rfc3339(schedule.start_us or 0),
            "end": rfc3339(schedule.end_us or 0),
            "fired_at": rfc3339(state.fired_us),
            "paused_at": rfc3339(state.paused_us) if state.paused else None,
            "overdue_since": rfc3339(max(-state.late_us, 0)),
            "version": state.version,
            "revision": revision_of(stored),
            "payload_size": len(schedule.args),
            "tags": list(schedule.tags),
            "args": _json(schedule.args),
        }
    )
    return ScheduleDetails(**details)


class SchedulePreviews:
    """Previews schedules. ``find`` returns all stored ones of a namespace."""

    def __init__(self, service: ScheduleService, find: Callable[[str], Awaitable[list[Stored]]], clock: Clock) -> None:
        self._run_sliced = service.run_sliced
        self._find = find
        self._clock = clock

    async def preview(self, request: PreviewSchedule, _: Call) -> Previewed:
        """Answer a request. Raises UsageError if the schedule is invalid by itself."""
        check_number("count", request.count)
        stored = {one.schedule.name: one for one in await self._find(request.namespace)}
        before = stored.get(request.name)
        schedule = request.schedule(None if before is None else before.schedule)
        return await in_slices(self._run_sliced, self._previewed(schedule, stored, request.count))

    def _previewed(
        self, schedule: Schedule, stored: Mapping[str, Stored], count: int
    ) -> Generator[None, None, Previewed]:
        now_us = to_us(self._clock.wall())
        times: list[int] = []
        steps = triggers.running_steps(schedule, now_us, triggers.LAST_US)
        while len(times) < count and (at := next(steps, -1)) != -1:
            if at is not None:
                times.append(at)
            yield
        changes: list[ClockChangeInfo] = []
        for change in catalogue.clock_changes(schedule, now_us, times[-1] if times else now_us):
            before, after = _offset(change.before), _offset(change.after)
            changes.append(ClockChangeInfo(_text(change.at_us), before, after))
            yield
        return Previewed(
            schedule.name,
            triggers.describe(schedule),
            schedule.timezone,
            [previewed_time(schedule, at) for at in times],
            changes,
            [ConflictInfo(*one) for one in catalogue.conflicts(schedule, stored, now_us)],
        )


def previewed_time(schedule: Schedule, fire_us: int) -> PreviewedTime:
    """Describe a fire time of a schedule."""
    local = catalogue.shown(schedule, fire_us).isoformat()
    return PreviewedTime(_text(fire_us), local, catalogue.clock_note(schedule, fire_us))


def _text(time_us: int) -> str:
    return rfc3339(time_us) or ""


def _offset(offset: timedelta) -> str:
    """Return an offset from UTC as in ISO 8601."""
    minutes = round(offset.total_seconds() / 60)
    sign = "-" if minutes < 0 else "+"
    return f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
