"""Calls about the recent past of a function: its jobs by minute or half hour, and its errors by type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.api.answers.text import rfc3339
from mainspring.api.answers.waiting import read_page
from mainspring.api.errors import ApiError, Code
from mainspring.api.series import BucketInfo, DurationNumbers, ErrorInfo, Errors, ReadErrors, ReadSeries, Series
from mainspring.clock import from_us
from mainspring.jobs.attempts import BOUNDS, OUTCOMES
from mainspring.namespaces import name_of
from mainspring.series import store
from mainspring.series.model import HALF_HOUR, MINUTE, Bucket, ErrorGroup, begin_of, oldest_kept
from mainspring.workflows.model import function_named

if TYPE_CHECKING:
    from mainspring.access.caller import Caller
    from mainspring.api.answers.registry import Handlers
    from mainspring.api.series import StepName
    from mainspring.clock import Clock
    from mainspring.ids import Handles
    from mainspring.series.model import Row
    from mainspring.storage.reads import Reads

STEPS: Final[dict[StepName, int]] = {"minute": MINUTE, "half_hour": HALF_HOUR}
MOST_ROWS: Final = 100_000
"""Rows of one answer: the buckets of two thousand terms."""
NOT_KEPT: Final = (
    "this node's store is on ZooKeeper, which keeps no series of functions: a store on SQLite or PostgreSQL does"
)


class SeriesCalls:
    """Answers from the series in the store. ``kept`` is whether the store keeps series."""

    def __init__(self, reads: Reads, handles: Handles, clock: Clock, *, kept: bool) -> None:
        self._reads = reads
        self._handles = handles
        self._clock = clock
        self._kept = kept
        self.handlers: Handlers = {ReadSeries: self._series, ReadErrors: self._errors}

    async def _series(self, request: ReadSeries, caller: Caller) -> Series:
        step, now = STEPS[request.step], self._clock.wall()
        buckets = {at: Bucket() for at in range(oldest_kept(step, now), begin_of(step, now) + 1, step)}
        for row in await self._rows(request, step, caller):
            if (bucket := buckets.get(row.at)) is not None:
                bucket.add(row.bucket)
        last = None
        for bucket in buckets.values():
            if bucket.waiting_us:
                last = bucket
            elif last is not None:  # nodes write a number that has changed
                bucket.count_waiting(last.waiting, last.waiting_us)
        return Series(
            request.function,
            step,
            [
                _info(at, bucket)
                for at, bucket in buckets.items()
                if (request.since is None or at >= request.since) and (request.until is None or at < request.until)
            ],
            list(BOUNDS),
        )

    async def _errors(self, request: ReadErrors, caller: Caller) -> Errors:
        found: dict[str, ErrorGroup] = {}
        for row in await self._rows(request, HALF_HOUR, caller):
            for kind, group in row.bucket.errors.items():
                if kind in found:
                    found[kind].add(group)
                else:
                    found[kind] = group
        groups = sorted(found.items(), key=lambda one: (-one[1].number, one[0]))
        since_us = oldest_kept(HALF_HOUR, self._clock.wall()) * 1_000_000
        errors = [self._error(kind, group) for kind, group in groups]
        return Errors(request.function, rfc3339(since_us) or "", errors)

    async def _rows(self, request: ReadSeries | ReadErrors, step: int, caller: Caller) -> list[Row]:
        """Return the buckets of all nodes."""
        caller.check(request.permission, request.namespace, request.function)
        if not self._kept:
            raise ApiError(Code.UNSUPPORTED, NOT_KEPT)
        query = store.ReadSeries(
            namespace=request.namespace,
            function=name_of(function_named(request.function, request.namespace)),
            step=step,
            since=oldest_kept(step, self._clock.wall()),
            limit=MOST_ROWS,
        )
        return (await read_page(self._reads.gather, query)).items

    def _error(self, kind: str, group: ErrorGroup) -> ErrorInfo:
        return ErrorInfo(
            kind,
            group.number,
            rfc3339(group.first_us),
            rfc3339(group.last_us),
            group.message,
            self._handles.of(group.job).decode() if group.job else None,
        )


def _info(at: int, bucket: Bucket) -> BucketInfo:
    outcomes = {outcome: bucket.outcomes.get(outcome, 0) for outcome in OUTCOMES}
    return BucketInfo(
        at=rfc3339(at * 1_000_000) or "",
        submitted=bucket.submitted,
        **outcomes,
        wait=_durations(bucket.waited, bucket.waited_us),
        run=_durations(bucket.ran, bucket.ran_us),
        waiting=bucket.waiting if bucket.waiting_us else None,
    )


def _durations(counts: list[int], total_us: int) -> DurationNumbers | None:
    number = sum(counts)
    if not number:
        return None
    return DurationNumbers(number, from_us(total_us) / number, quantile(counts, 0.5), quantile(counts, 0.95), counts)


def quantile(counts: list[int], share: float) -> float:
    """Return about the duration in seconds below which a share of the durations is. The longest bound stands for longer ones."""
    wanted = share * sum(counts)
    for place, number in enumerate(counts):
        if number and wanted <= number:
            low = BOUNDS[place - 1] if place else 0.0
            high = BOUNDS[min(place, len(BOUNDS) - 1)]
            return low + (high - low) * wanted / number
        wanted -= number
    return 0.0
