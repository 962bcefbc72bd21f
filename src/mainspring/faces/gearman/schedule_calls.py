"""The methods of CALL that are about schedules: what `mainspring schedules` and Apps ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.errors import ConflictError, NotFoundError, UsageError
from mainspring.faces.gearman.calls import NoParams, rfc3339
from mainspring.jobs.failures import JobFailure
from mainspring.queries.schedules import ListFires
from mainspring.schedules import triggers
from mainspring.schedules.model import Origin
from mainspring.schedules.specification import Specification, specify
from mainspring.schedules.store import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mainspring.clock import Clock
    from mainspring.errors import MainspringError
    from mainspring.faces.gearman.calls import Call, Methods
    from mainspring.schedules.model import Fire, Schedule
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.service import Declaration, ScheduleService

EDITS = 5
"""How often an edit is begun anew because the schedule has changed meanwhile: it fires."""
_failure = msgspec.json.Decoder(JobFailure).decode


class _NameParams(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _NextParams(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int = 10


class _HistoryParams(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    limit: int = 100
    before: float | None = None


class _DeclareParams(msgspec.Struct, forbid_unknown_fields=True):
    app: str
    schedules: list[Specification]


class ScheduleCalls:
    """Answers for a node's schedules."""

    def __init__(self, service: ScheduleService, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self.methods: Methods = {
            "schedules.list": (NoParams, self._list),
            "schedules.show": (_NameParams, self._show),
            "schedules.add": (Specification, self._add),
            "schedules.edit": (Specification, self._edit),
            "schedules.pause": (_NameParams, lambda call, said: self._change(call, Change("pause", said.name))),
            "schedules.resume": (_NameParams, lambda call, said: self._change(call, Change("resume", said.name))),
            "schedules.remove": (_NameParams, self._remove),
            "schedules.trigger": (_NameParams, self._trigger),
            "schedules.next": (_NextParams, self._next),
            "schedules.history": (_HistoryParams, self._history),
            "schedules.declare": (_DeclareParams, self._declare),
        }

    # ---- reading ----

    def _list(self, call: Call, _: object) -> None:
        self._service.find(lambda found: call.answer({"schedules": [describe(one) for one in found]}), call.failed)

    def _one(self, call: Call, name: str, then: Callable[[Stored], None]) -> None:
        def found(schedules: list[Stored]) -> None:
            if schedules:
                then(schedules[0])
            else:
                _unknown(call, name)

        self._service.find(found, call.failed, [name])

    def _show(self, call: Call, said: _NameParams) -> None:
        self._one(call, said.name, lambda stored: call.answer(_details(stored)))

    def _next(self, call: Call, said: _NextParams) -> None:
        if not 1 <= said.count <= 1000:
            call.fault("usage", f"count is a number from 1 to 1000, not {said.count}")
            return
        self._one(call, said.name, lambda stored: self._tell_next(call, stored, said.count))

    def _tell_next(self, call: Call, stored: Stored, count: int) -> None:
        schedule, state = stored
        after_us = round(self._clock.wall() * 1_000_000)
        if state.next_us is not None:
            after_us = max(after_us, state.next_us - 1)

        def look() -> Iterator[None]:
            times: list[str | None] = []
            steps = triggers.running_steps(schedule, after_us, triggers.LAST_US)
            while not state.paused and len(times) < count and (at := next(steps, -1)) != -1:
                if at is not None:
                    times.append(rfc3339(at))
                yield
            call.answer({"schedule": schedule.name, "paused": state.paused, "times": times})

        self._service.run_sliced(look())

    def _history(self, call: Call, said: _HistoryParams) -> None:
        if not 1 <= said.limit <= 1000:
            call.fault("usage", f"limit is a number from 1 to 1000, not {said.limit}")
            return

        def found(rows: list[Fire]) -> None:
            if rows:
                answer(rows)
            else:  # no row yet, or no such schedule
                self._one(call, said.name, lambda _: answer(rows))

        def answer(rows: list[Fire]) -> None:
            call.answer({"runs": [_run(call, row) for row in rows]})

        before_us = None if said.before is None else round(said.before * 1_000_000)
        call.peer.service.put(ListFires(said.name, before_us, said.limit), found, call.failed)

    # ---- changing ----

    def _add(self, call: Call, said: Specification) -> None:
        try:
            schedule = said.schedule()
        except UsageError as error:
            _failed(call, error)
        else:
            self._change(call, Change("put", said.name, 0, schedule, Origin.CLI))

    def _edit(self, call: Call, said: Specification, repeats: int = EDITS) -> None:
        def found(stored: Stored) -> None:
            try:
                schedule = said.schedule(stored.schedule)
            except UsageError as error:
                _failed(call, error)
                return
            change = Change("put", said.name, stored.state.version, schedule)
            self._service.save([change], lambda saved: _answer(call, saved[said.name]), failed)

        def failed(error: MainspringError) -> None:
            if isinstance(error, ConflictError) and repeats:
                self._edit(call, said, repeats - 1)
            else:
                _failed(call, error)

        self._one(call, said.name, found)

    def _change(self, call: Call, change: Change) -> None:
        self._service.save(
            [change], lambda saved: _answer(call, saved[change.name]), lambda error: _failed(call, error)
        )

    def _remove(self, call: Call, said: _NameParams) -> None:
        self._service.save(
            [Change("remove", said.name)],
            lambda _: call.answer({"name": said.name, "state": "removed"}),
            lambda error: _failed(call, error),
        )

    def _trigger(self, call: Call, said: _NameParams) -> None:
        def triggered(row: Fire | None) -> None:
            if row is None:
                _unknown(call, said.name)
            else:
                call.answer(_run(call, row))

        self._service.trigger(said.name, triggered, call.failed)

    def _declare(self, call: Call, said: _DeclareParams) -> None:
        def declared(declaration: Declaration) -> None:
            changes = [{"kind": one.kind.value, "name": one.name, "text": one.text} for one in declaration.changes]
            call.answer({"governs": declaration.governs, "changes": changes})

        def read() -> Iterator[None]:
            schedules: list[Schedule] = []
            try:
                for one in said.schedules:
                    schedules.append(one.schedule())
                    yield
            except UsageError as error:
                _failed(call, error)
            else:
                self._service.declare(said.app, schedules, declared, lambda error: _failed(call, error))

        self._service.run_sliced(read())


def _answer(call: Call, stored: Stored | None) -> None:
    assert stored is not None, "it was saved"
    call.answer(describe(stored))


def _failed(call: Call, error: MainspringError) -> None:
    if isinstance(error, UsageError):
        call.fault("usage", str(error))
    elif isinstance(error, NotFoundError):
        call.fault("not_found", f"{error}; mainspring schedules list shows those there are")
    else:
        call.failed(error)


def _unknown(call: Call, name: str) -> None:
    _failed(call, NotFoundError(f"there is no schedule {name!r}"))


def describe(stored: Stored) -> dict[str, Any]:
    """Return a schedule as tools see it; docs/reference/protocol.md lists the keys."""
    schedule, state = stored
    return {
        "name": schedule.name,
        "function": schedule.function.decode("utf-8", "backslashreplace"),
        "when": triggers.describe(schedule),
        "timezone": schedule.timezone,
        "state": "paused" if state.paused else "active" if _will_fire(schedule, stored) else "finished",
        "next_at": rfc3339(state.next_us or 0),
        "last_at": rfc3339(state.last_us),
        "waiting": state.queued,
        "origin": state.origin.value,
        "app": state.app or None,
    }


def _will_fire(schedule: Schedule, stored: Stored) -> bool:
    return bool(schedule.parents) or stored.state.next_us is not None


def _details(stored: Stored) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.to_builtins(specify(stored.schedule))
    del said["name"], said["function"], said["timezone"]
    return describe(stored) | {
        "cron": said.pop("cron", None),
        "every": said.pop("every", None),
        "at": rfc3339(round(said.pop("at", 0) * 1_000_000)),
        "start": rfc3339(stored.schedule.start_us or 0),
        "end": rfc3339(stored.schedule.end_us or 0),
        **{key: value for key, value in said.items() if key not in {"start", "end"}},
        "fired_at": rfc3339(stored.state.fired_us),
        "paused_at": rfc3339(stored.state.paused_us) if stored.state.paused else None,
        "version": stored.state.version,
    }


def _run(call: Call, row: Fire) -> dict[str, Any]:
    failure = _failure(row.error) if row.error else None
    return {
        "schedule": row.schedule,
        "fire_time": rfc3339(row.fire_us),
        "state": row.state.value,
        "reason": row.reason.value if row.reason is not None else None,
        "cause": row.cause.value,
        "handle": call.peer.service.handle_of(row.job).decode() if row.job else None,
        "node": row.node or None,
        "worker": row.worker or None,
        "started_at": rfc3339(row.started_us),
        "ended_at": rfc3339(row.ended_us),
        "outcome": row.outcome or None,
        "error": f"{failure.type}: {failure.message}" if failure is not None else None,
        "attempt": row.attempt,
        "parent": row.parent or None,
        "finished": row.finished,
    }
