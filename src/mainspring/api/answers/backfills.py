"""The call that runs a schedule for its past fire times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from mainspring.api.answers.once import act_if_new
from mainspring.api.answers.operations import COUNT_SECONDS, id_of
from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.waiting import in_slices, read_page
from mainspring.api.backfills import Backfill, Begun
from mainspring.api.errors import ApiError, Code
from mainspring.bulk.model import Action, Spec
from mainspring.clock import to_us
from mainspring.namespaces import key_of_text
from mainspring.schedules.past_times import past_times
from mainspring.schedules.store import ListSchedules

if TYPE_CHECKING:
    from collections.abc import Generator

    from mainspring.access.caller import Caller
    from mainspring.access.once import Once
    from mainspring.api.answers.registry import Handlers
    from mainspring.bulk.service import BulkService
    from mainspring.schedules.reconcile import Stored
    from mainspring.schedules.service import ScheduleService
    from mainspring.storage.reads import Reads

SAMPLE: Final = 10
"""Times in the answer."""


class BackfillCalls:
    """Answers to requests for backfills. ``operations`` is None if the store keeps no operations."""

    def __init__(self, operations: BulkService | None, schedules: ScheduleService, reads: Reads) -> None:
        self._operations = operations
        self._schedules = schedules
        self._reads = reads
        self.handlers: Handlers = {Backfill: self._backfill}

    async def _backfill(self, request: Backfill, caller: Caller, once: Once | None) -> Begun:
        if self._operations is None:
            raise ApiError(
                Code.UNSUPPORTED,
                "a store on ZooKeeper keeps no operations, so it has no backfills: run the schedule by mainspring schedules"
                " trigger",
            )
        stored = await self._schedule(request)
        now_us = self._operations.now_us()
        bulk = self._operations.new(
            request.namespace,
            Spec(
                action=Action.BACKFILL,
                reason=request.reason,
                caller=caller,
                rate=request.rate,
                most=request.max,
                schedule=stored.schedule.name,
                from_us=max(to_us(request.from_.timestamp()), 0),
                to_us=now_us if request.to is None else min(to_us(request.to.timestamp()), now_us),
            ),
        )
        matched, is_least, times = await in_slices(
            self._schedules.run_sliced, self._count(stored, bulk.spec, self._operations.monotonic())
        )
        if request.max is not None and (matched > request.max or is_least):
            raise ApiError(
                Code.CONFLICT,
                f"{'at least ' if is_least else ''}{matched} fire times are in the range, and at most {request.max} are"
                " expected: choose a shorter range, or a higher max",
            )
        answer = Begun(None if request.dry_run else id_of(bulk), matched, is_least, times)
        if not request.dry_run:
            bulk = replace(bulk, spec=replace(bulk.spec, matched=matched, is_least=is_least))
            act = caller.act(
                request.call,
                request.name,
                request.reason,
                namespace=request.namespace,
                after={"operation": id_of(bulk), **msgspec.to_builtins(request)},
            )
            operations = self._operations
            await act_if_new(
                once, lambda keyed, done, failed: operations.begin(bulk, done, failed, act, keyed), lambda _: answer
            )
        return answer

    async def _schedule(self, request: Backfill) -> Stored:
        """Return the schedule of a request, as it is stored. Raises ApiError."""
        key = key_of_text(request.namespace, request.name)
        query = ListSchedules(limit=1, names=(key,), namespace=request.namespace)
        found = (await read_page(self._reads.gather, query)).items
        if not found:
            raise ApiError(
                Code.SCHEDULE_NOT_FOUND,
                f"there is no schedule {request.name!r}; mainspring schedules list shows those there are",
            )
        if found[0].schedule.trigger is None:
            raise ApiError(
                Code.INVALID,
                f"schedule {request.name!r} runs after other schedules and has no times of its own: backfill those",
            )
        return found[0]

    def _count(
        self, stored: Stored, spec: Spec, began: float
    ) -> Generator[None, None, tuple[int, bool, list[str | None]]]:
        """Return the number of fire times in the range, whether there may be more, and the first of them."""
        assert self._operations is not None
        number = 0
        times: list[str | None] = []
        for at in past_times(stored, spec.from_us - 1, spec.to_us):
            if at is not None:
                number += 1
                if len(times) < SAMPLE:
                    times.append(rfc3339(at))
            if self._operations.monotonic() - began > COUNT_SECONDS:
                return number, True, times
            yield
        return number, False, times
