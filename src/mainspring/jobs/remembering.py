"""The parts of a settlement that are stored for people: the record of the attempt, and the arguments of a succeeded job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.clock import to_us
from mainspring.jobs.attempt_records import NO_PROGRESS, is_in_row, progress_of, record_of
from mainspring.jobs.rules import Event

if TYPE_CHECKING:
    from mainspring.clock import Clock
    from mainspring.ids import Handles
    from mainspring.jobs.argument_rules import ArgumentRules
    from mainspring.jobs.held import Held
    from mainspring.jobs.result_retention import ResultRetention
    from mainspring.jobs.rules import Settlement

_SUCCEED: Final = Event.SUCCEED


class Remembering:
    """Completes settlements of stored jobs. Nothing is kept of a job whose row is deleted at its end."""

    def __init__(self, handles: Handles, clock: Clock, arguments: ArgumentRules, results: ResultRetention) -> None:
        self._handles = handles
        self._clock = clock
        self.rules = arguments
        self._results = results

    def note(self, held: Held, settlement: Settlement) -> None:
        """Set in a settlement what is to be stored, while the job has its worker."""
        job = settlement.job
        if job.options is not None and job.options.forget:
            return
        progress = NO_PROGRESS
        if held.reported:  # most jobs report none
            progress = progress_of(held.numerator, held.denominator, held.text)
        if settlement.event is _SUCCEED:
            self._results.note(job)
            rules, payload = self.rules[job.function], job.payload
            settlement.payload = None if len(payload) <= rules.kept_whole else rules.kept(payload)
            if is_in_row(settlement, held.stop_us, progress):
                return
        worker = held.worker_name() or ""
        now_us = to_us(self._clock.wall())
        node = self._handles.node(job.term)
        settlement.record = record_of(settlement, held.started_us, now_us, node, worker, held.stop_us, progress)
