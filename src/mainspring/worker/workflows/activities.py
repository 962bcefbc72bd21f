"""Activities that a worker executes for runs that it decides, and decisions that it fuses with their ends.

A worker that has executed such an activity reports its end and the run's next decision with one packet. It predicts the events
of the activity's end, and goes on with the code. That is right only if nothing else happens to the run meanwhile: so it fuses
while no other activity of the run is open elsewhere. If the prediction was wrong all the same, the node takes the activity's
result alone, and the worker evicts the run. A run that gets many signals is not fused for a time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from mainspring.worker.heartbeats import BEATS_PER_LIMIT
from mainspring.worker.workflows.runs import EndedActivity
from mainspring.workflows import history
from mainspring.workflows.messages import SettlementMessage, decode_activity_info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.worker.delivery import Delivery
    from mainspring.worker.execution import Settlement
    from mainspring.worker.link import Link
    from mainspring.worker.session import Key
    from mainspring.worker.workflows.runs import NodeClocks, Run, RunCache
    from mainspring.workflows.history import Event


class Activities:
    """The activities of the runs in ``cache``, and of others whose decisions another worker makes."""

    def __init__(self, cache: RunCache, clocks: NodeClocks) -> None:
        self._cache = cache
        self._clocks = clocks
        self._held: dict[tuple[Link, Key], tuple[int, int]] = {}
        """The run and the scheduling event of each activity that the worker has."""
        self._ended: dict[Run, None] = {}
        """Runs to look at in this turn of the loop: activities of them have ended."""

    def accepted(self, delivery: Delivery) -> None:
        """Note an activity that the worker holds from now on."""
        number, ref = run_of_activity(delivery)
        if number:
            self._held[delivery.link, delivery.key] = number, ref
            run = self._cache.get(delivery.link, number)
            if run is not None:
                run.activities.add(ref)

    def begun(self, run: Run) -> None:
        """Note the activities of a run that is in memory from now on."""
        run.activities.update(
            ref for (link, _), (number, ref) in self._held.items() if number == run.id and link is run.link
        )

    def ended(self, delivery: Delivery, settlement: Settlement | None) -> bool:
        """Take over the end of an activity; return False if it is settled alone. None: it is lost or given back."""
        activity_of = self._held.pop((delivery.link, delivery.key), None)
        if activity_of is None:
            return False
        number, ref = activity_of
        run = self._cache.get(delivery.link, number)
        if run is None:
            return False
        if settlement is None or settlement.outcome != b"succeeded" or delivery.job.awaits:
            run.activities.discard(ref)
            return False
        now = asyncio.get_running_loop().time()
        latest = latest_report(delivery, now)
        if ref in run.close_by:
            latest = min(latest, now + (run.close_by[ref] - self._clocks.now_us(run.link)) / 1_000_000 - TIME_LEFT)
        if latest <= now or len(settlement.data) > _largest_fused(run):
            run.activities.discard(ref)
            return False
        run.ended.append(EndedActivity(delivery.key, ref, delivery.job.attempt, settlement))
        if run.reporting:
            self._settle_by(run, latest)
        self.look_at(run)
        return True

    def _settle_by(self, run: Run, latest: float) -> None:
        """Settle the ended activities of a run alone at a time of the loop, unless an answer comes before."""
        if run.unanswered is None or latest < run.unanswered.when():
            if run.unanswered is not None:
                run.unanswered.cancel()
            run.unanswered = asyncio.get_running_loop().call_at(latest, self.settle, run)

    def look_at(self, run: Run) -> None:
        """Look at the ended activities of a run with the next ``take_ended``."""
        self._ended[run] = None

    def take_ended(self) -> Sequence[Run]:
        """Return the runs with ended activities that wait for nothing else."""
        if not self._ended:
            return ()
        ended, self._ended = self._ended, {}
        return [run for run in ended if run.ended and not run.reporting]

    def settle(self, run: Run) -> None:
        """Settle the ended activities of a run alone."""
        for one in run.take_ended():
            run.activities.discard(one.ref)
            run.link.session.settle(one.key, one.settlement)
        run.link.flush()


def _largest_fused(run: Run) -> int:
    """Return the bytes of a result that a report may carry: with all open activities they fill half of its packet."""
    limits = run.instance.limits
    return limits.largest // (2 * limits.open_activities)


FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 60.0
MOST_DELAYS: Final = 10_000
"""The most runs whose times are kept."""
ANSWER_TIME: Final = 1.0
"""Seconds for which an end waits for the answer to a report, at most: with the connection, it would be lost."""
TIME_LEFT: Final = 1.0
"""Seconds up to an activity's time-out that a fused decision needs. The watchdog reports code that runs longer."""


def run_of_activity(delivery: Delivery) -> tuple[int, int]:
    """Return the run of an activity and the event that scheduled it; zeros for other jobs."""
    info = delivery.job.raw[2]
    if b'"ref"' not in info:
        return 0, 0
    decoded = decode_activity_info(info)
    return (int(decoded.run), decoded.ref) if decoded.run else (0, 0)


def latest_report(delivery: Delivery, now: float) -> float:
    """Return the loop's time up to which the end of an activity may wait for its run's code, or for the answer to a report.

    The node ends the attempt if it receives the end of the activity too late, and the activity is executed a second time.
    """
    until = now + ANSWER_TIME
    info = delivery.job.raw[2]
    if b'"timeout"' in info or b'"heartbeat"' in info:
        timeout, heartbeat = delivery.job.info.timeout, delivery.job.info.heartbeat
        if timeout is not None:
            until = min(until, delivery.arrived + timeout - TIME_LEFT)
        if heartbeat is not None and heartbeat / BEATS_PER_LIMIT < TIME_LEFT:
            return now  # the worker sends no heartbeat while the code runs, and the last one may be two periods old
    return until


def predicted_events(ended: Sequence[EndedActivity], position: int, now_us: int) -> Sequence[Event]:
    """Return the events that the ends of activities will cause after the event ``position``."""
    events: list[Event] = []
    for one in ended:
        started = position + 1
        events.append(history.ActivityTaskStarted(started, now_us, one.ref, attempt=one.attempt))
        events.append(history.ActivityTaskCompleted(position + 2, now_us, one.ref, started, one.settlement.data))
        position += 2
        if len(events) == 2:
            position += 1
            events.append(history.DecisionTaskScheduled(position, now_us))
    return events


def came_true(predicted: Sequence[Event], recorded: Sequence[Event]) -> bool:
    """Return whether events were recorded as predicted."""
    return len(recorded) >= len(predicted) and all(
        type(one) is type(other)
        and one.id == other.id
        and getattr(one, "scheduled", 0) == getattr(other, "scheduled", 0)
        for one, other in zip(predicted, recorded, strict=False)
    )


def settlement_message(ended: EndedActivity) -> SettlementMessage:
    """Return an activity's end as DECIDE carries it."""
    return SettlementMessage(*ended.key, ended.settlement.data)


class FuseDelays:
    """Runs whose decisions are not fused for a time, because other events have overtaken them.

    Each such decision costs a replay of the whole history. The time begins with ``FIRST_DELAY`` seconds, and doubles up to
    ``LONGEST_DELAY`` with each one that is overtaken soon after it. Runs are named by connection and number, as they leave the
    memory.
    """

    def __init__(self) -> None:
        self._delays: dict[tuple[Link, int], tuple[float, float]] = {}
        """The time until which a run's decisions are not fused, and the delay that led to it."""

    def overtaken(self, link: Link, run: int, now: float) -> None:
        """Note that a fused decision was stale."""
        until, delay = self._delays.pop((link, run), (now, 0.0))
        delay = min(2 * delay, LONGEST_DELAY) if delay and now < until + 2 * delay else FIRST_DELAY
        self._delays[link, run] = now + delay, delay
        if len(self._delays) > MOST_DELAYS:
            del self._delays[next(iter(self._delays))]

    def allow(self, link: Link, run: int, now: float) -> bool:
        """Return whether decisions of a run may be fused."""
        found = self._delays.get((link, run)) if self._delays else None
        return found is None or now >= found[0]
