"""The call that says what a schedule would do, and saves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.waiting import in_slices
from mainspring.api.errors import check_number
from mainspring.api.schedules import ClockChangeInfo, ConflictInfo, Preview, Previewed, PreviewedTime
from mainspring.clock import to_us
from mainspring.schedules import preview, triggers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from datetime import timedelta

    from mainspring.clock import Clock
    from mainspring.schedules.model import Schedule
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.service import ScheduleService


class SchedulePreviews:
    """Previews schedules. ``find`` returns all stored ones of a namespace."""

    def __init__(self, service: ScheduleService, find: Callable[[str], Awaitable[list[Stored]]], clock: Clock) -> None:
        self._run_sliced = service.run_sliced
        self._find = find
        self._clock = clock

    async def preview(self, request: Preview) -> Previewed:
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
        for change in preview.clock_changes(schedule, now_us, times[-1] if times else now_us):
            before, after = _offset(change.before), _offset(change.after)
            changes.append(ClockChangeInfo(_text(change.at_us), before, after))
            yield
        return Previewed(
            schedule.name,
            triggers.describe(schedule),
            schedule.timezone,
            [previewed_time(schedule, at) for at in times],
            changes,
            [ConflictInfo(*one) for one in preview.conflicts(schedule, stored, now_us)],
        )


def previewed_time(schedule: Schedule, fire_us: int) -> PreviewedTime:
    """Describe a fire time of a schedule."""
    local = preview.shown(schedule, fire_us).isoformat()
    return PreviewedTime(_text(fire_us), local, preview.clock_note(schedule, fire_us))


def _text(time_us: int) -> str:
    return rfc3339(time_us) or ""


def _offset(offset: timedelta) -> str:
    """Return an offset from UTC as in ISO 8601."""
    minutes = round(offset.total_seconds() / 60)
    sign = "-" if minutes < 0 else "+"
    return f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
