"""The limits, pauses and times of functions: as they are stored, and as they apply at this node."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
import structlog

from mainspring.callbacks import CallInProgress, shielded
from mainspring.clock import from_us, to_us
from mainspring.errors import ConflictError
from mainspring.jobs.lateness import base_us, timed
from mainspring.jobs.model import Options
from mainspring.jobs.store import SIGNS_LAST
from mainspring.namespaces import name_text
from mainspring.resources import rules
from mainspring.resources.rules import (
    NO_TIMES,
    UNLIMITED,
    FunctionLimits,
    Times,
    UnreadableLimits,
    limits_to_wire,
)
from mainspring.resources.store import ListLimits, SaveLimits
from mainspring.storage.reads import REMEDY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mainspring.access.caller import Act
    from mainspring.errors import StoreError
    from mainspring.jobs.held import Ability, FunctionQueue, Worker
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Signs
    from mainspring.jobs.table import Context
    from mainspring.resources.rules import Limits
    from mainspring.resources.service import Resources
    from mainspring.storage.engine import Page
    from mainspring.storage.reads import Reads

if TYPE_CHECKING:
    Change = Callable[[FunctionLimits, int], FunctionLimits]
    """Takes the limits of a function and the wall time in microseconds; returns the new limits."""

READ_INTERVAL = 3.0
"""Seconds between readings of limits that other nodes stored, while no signs tell whether there are any."""
REPEAT_INTERVAL = 15.0
"""Seconds between checks whether a declaration has to be repeated, or has expired."""

log = structlog.get_logger("mainspring.functions")


class FunctionTimes(dict[bytes, Times]):
    """The times by which new jobs of functions should begin and end, as workers declare them; nearly all functions have none."""

    def apply(self, jobs: Iterable[Job]) -> None:
        """Give new jobs the times of their functions, each where a job has none of its own."""
        for job in jobs:
            times = self.get(job.function)
            if times is None:
                continue
            options = job.options or Options()
            job.options = timed(
                msgspec.structs.replace(
                    options,
                    start_within=None if options.start_us else times.start_within,
                    deadline=None if options.deadline_us else times.deadline,
                ),
                base_us(job),
            )


class Functions:
    """Applies the limits and pauses of functions to a node's admission queues.

    ``kept`` is whether the store keeps limits. Without that no limits may be set: a limit has to apply at all nodes.
    ``shared``: other nodes have the store too. ``times`` are those of new jobs.
    """

    def __init__(
        self,
        context: Context,
        reads: Reads,
        serve: Callable[[FunctionQueue], None],
        times: FunctionTimes,
        resources: Resources,
        *,
        kept: bool,
        shared: bool,
    ) -> None:
        self._table, self._dispatch = context.table, context.dispatch
        self._commits, self._clock = context.commits, context.clock
        self._kept = kept
        self._reads = reads
        self._serve = serve
        self._resources = resources
        self._shared = shared
        self._timers = context.timers
        self._limits: dict[bytes, FunctionLimits] = {}
        self._times = times
        self._declared_times: dict[Worker, dict[bytes, Times]] = {}
        """The declarations of this node's workers."""
        self._declared_limits: dict[Worker, dict[bytes, Limits]] = {}
        """Those of their workflows."""
        self._ends: dict[bytes, int] = {}
        """The ends of pauses that have a timer, by function."""
        self._repeated = self._clock.monotonic()
        self._read_at = self._repeated + READ_INTERVAL
        self._reading = False
        self._changes = -1
        """The number of changes when the limits were read, by the signs; -1 if it is unknown."""

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    def limits_of(self, function: bytes) -> FunctionLimits:
        """Return the limits and pause of a function as this node last read or set them."""
        return self._limits.get(function) or FunctionLimits(function)

    def names(self) -> Iterable[bytes]:
        """Return the functions that have limits or a pause."""
        return self._limits

    def limits(self, function: bytes) -> Limits:
        """Return the effective limits of a function."""
        return rules.effective(self.limits_of(function), self._now_us())

    # ---- reading ----

    def load(self, then: Callable[[], None], failed: Callable[[StoreError], None]) -> None:
        """Read the limits of all functions; no job may be handed out before."""

        def loaded(page: Page[FunctionLimits]) -> None:
            self._reading = False
            for row in page.items:
                self._learn(row)
            then()

        def not_loaded(error: StoreError) -> None:
            self._reading = False
            failed(error)

        if not self._kept:
            then()
            return
        self._reading = True
        self._reads.gather(ListLimits(limit=sys.maxsize), loaded, not_loaded)

    def _learn(self, row: FunctionLimits) -> None:
        if row.version >= self.limits_of(row.function).version:
            row = rules.without_ended_pause(row, self._now_us())
            self._limits[row.function] = row
            self.apply(row.function)
            self._apply_times(row)
            if row.paused and row.until_us and self._ends.get(row.function) != row.until_us:
                self._end_pause_at(row.function, row.until_us)

    def _end_pause_at(self, function: bytes, until_us: int) -> None:
        """Start the jobs of a function again at a time, unless its pause is changed before."""
        self._ends[function] = until_us
        seconds = max(from_us(until_us - self._now_us()), 0.0)
        self._timers.at(self._clock.monotonic() + seconds, lambda: self._end_pause(function, until_us))

    def _end_pause(self, function: bytes, until_us: int) -> None:
        if self._ends.get(function) != until_us:
            return  # a timer of another pause
        del self._ends[function]
        self._learn(self.limits_of(function))  # sets another timer if the clock was set back

    def apply(self, function: bytes) -> None:
        """Apply a function's limits to its queue, if this node has one. Also called with each new queue."""
        queue = self._dispatch.queues.get(function)
        if queue is None:
            return
        row = self.limits_of(function)
        limits = rules.effective(row, self._now_us())
        if limits == UNLIMITED and not row.paused and (queue.admission is None or not queue.admission.limited):
            return
        admission = self._table.admission_of(queue)
        if admission.limits == limits and admission.paused == row.paused:
            return
        log.info(
            "limits",
            function=name_text(function),
            paused=row.paused,
            **limits_to_wire(limits),
        )
        admission.change(limits, paused=row.paused)
        if not admission.limited and not admission.keyed:
            self._table.remove_admission(queue)
        self._serve(queue)

    def read_signs(self, signs: Signs) -> None:
        """See `jobs.sharing.Sharing.add_reader`: read the limits if they have changed."""
        if signs.limits == self._changes:
            self._read_at = max(self._read_at, self._clock.monotonic() + SIGNS_LAST)
        elif self._kept and not self._reading:
            self._changes = signs.limits
            self._read_again()

    def _read_again(self) -> None:
        def failed(error: StoreError) -> None:
            del error
            self._changes = -1

        self._read_at = self._clock.monotonic() + READ_INTERVAL
        self.load(lambda: None, failed)

    # ---- changes ----

    def declare_of(self, function: bytes, ability: Ability) -> None:
        """Store what a worker of this node declares with a function: its limits, and the resources that it uses."""
        for name, resource in ability.resources:
            self._resources.declare(name, resource)
        if ability.limits is not None:
            self.declare(function, ability.limits)

    def declare(self, function: bytes, limits: Limits) -> None:
        """Store the limits that a worker of this node declares for a function. They apply here at once."""
        now_us = self._now_us()
        row = self.limits_of(function)
        if isinstance(row, UnreadableLimits) or not rules.is_stale(row, limits, now_us):
            return
        self._limits[function] = rules.with_declaration(row, limits, now_us)
        self.apply(function)
        change = self._change(function, lambda row, now_us: rules.with_declaration(row, limits, now_us))
        CallInProgress(change, lambda _: None, lambda _: None)

    def declare_of_runs(self, worker: Worker, function: bytes, limits: Limits) -> None:
        """Store the limits of open runs that a worker of this node declares for a workflow. They apply here at once."""
        if self._kept and not worker.gone:
            self._declared_limits.setdefault(worker, {})[function] = limits
            self.declare(function, limits)

    def declare_times(self, worker: Worker, declared: Mapping[bytes, Times]) -> None:
        """Store the times that a worker of this node declares for its functions. They apply here at once."""
        if self._kept and not worker.gone:
            self._declared_times.setdefault(worker, {}).update(declared)
            for function, times in declared.items():
                self._declare_times(function, times)

    def _declare_times(self, function: bytes, times: Times) -> None:
        now_us = self._now_us()
        row = self.limits_of(function)
        if isinstance(row, UnreadableLimits) or not rules.are_times_stale(row, times, now_us):
            return
        row = self._limits[function] = rules.with_times(row, times, now_us)
        self._apply_times(row)
        change = self._change(function, lambda row, now_us: rules.with_times(row, times, now_us))
        CallInProgress(change, lambda _: None, lambda _: None)

    def _apply_times(self, row: FunctionLimits) -> None:
        times = rules.effective_times(row, self._now_us())
        if times != NO_TIMES:
            self._times[row.function] = times
        else:
            self._times.pop(row.function, None)

    @shielded
    async def change(
        self,
        function: bytes,
        change: Change,
        act: Callable[[FunctionLimits, FunctionLimits], Act] | None = None,
    ) -> FunctionLimits:
        """Change the limits of a function; they apply here once they are stored, and at other nodes some seconds later.

        ``act`` returns the act for the limits before and after. Raises ConflictError for limits that this node cannot read,
        StoreError, and what ``change`` raises.
        """
        return await self._change(function, change, act)

    async def _change(
        self,
        function: bytes,
        change: Change,
        act: Callable[[FunctionLimits, FunctionLimits], Act] | None = None,
    ) -> FunctionLimits:
        while True:
            before = self.limits_of(function)
            if isinstance(before, UnreadableLimits):  # the write would lose what this version cannot read
                raise ConflictError(f"{before.pause_reason}; {REMEDY}")
            wanted = change(before, self._now_us())
            operation = SaveLimits(wanted, was_paused=before.paused)
            if act is not None:
                operation.act = act(before, wanted)
            stored: FunctionLimits = await self._commits.committed(operation)
            self._learn(stored)
            if stored == msgspec.structs.replace(wanted, version=wanted.version + 1):
                return stored
            # Another change was first: make this one of its result.

    # ---- time ----

    def tick(self, now: float) -> None:
        """Read the limits that other nodes stored, and repeat the declarations of this node's workers."""
        if self._shared and now >= self._read_at and not self._reading:
            self._read_again()
        if now - self._repeated >= REPEAT_INTERVAL:
            self._repeated = now
            for worker in list(self._dispatch.workers):
                for queue, ability in list(worker.abilities.items()):
                    self.declare_of(queue.name, ability)
            for worker in [one for one in self._declared_times if one.gone]:
                del self._declared_times[worker]
            for worker in [one for one in self._declared_limits if one.gone]:
                del self._declared_limits[worker]
            for limited in list(self._declared_limits.values()):
                for function, limits in list(limited.items()):
                    self.declare(function, limits)
            for declared in list(self._declared_times.values()):
                for function, times in list(declared.items()):
                    self._declare_times(function, times)
            for function, row in list(self._limits.items()):
                self.apply(function)
                self._apply_times(row)
