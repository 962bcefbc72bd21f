"""Fused decisions: a worker that has executed an activity of a run that it decides reports both with one packet.

The worker predicts the events of the activity's end, and goes on with the code. That is right only if nothing else happens to the
run meanwhile: so it fuses while no other activity of the run is open elsewhere. If the prediction was wrong all the same, the
node takes the activity's result alone, and the worker evicts the run. A run that gets many signals is not fused for a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.worker.heartbeats import BEATS_PER_LIMIT
from mainspring.worker.workflows.runs import EndedActivity
from mainspring.workflows.history import ActivityTaskCompleted, ActivityTaskStarted, DecisionTaskScheduled
from mainspring.workflows.messages import SettlementMessage, decode_activity_info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.worker.delivery import Delivery
    from mainspring.worker.link import Link
    from mainspring.workflows.history import Event

__all__ = ["EndedActivity", "FuseDelays", "came_true", "events_of", "latest", "message_of", "run_of"]

FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 60.0
MOST_DELAYS: Final = 10_000
"""The most runs whose times are kept."""
ANSWER_TIME: Final = 1.0
"""Seconds for which an end waits for the answer to a report, at most: with the connection, it would be lost."""
TIME_LEFT: Final = 1.0
"""Seconds up to an activity's time-out that a fused decision needs. The watchdog reports code that runs longer."""


def run_of(delivery: Delivery) -> tuple[int, int]:
    """Return the run of an activity and the event that scheduled it; zeros for other jobs."""
    info = delivery.job.raw[2]
    if b'"ref"' not in info:
        return 0, 0
    decoded = decode_activity_info(info)
    return (int(decoded.run), decoded.ref) if decoded.run else (0, 0)


def latest(delivery: Delivery, now: float) -> float:
    """Return the loop's time up to which the end of an activity may wait for its run's code, or for the answer to a report.

    The node ends the attempt if it receives the end of the activity too late, and the activity is executed a second time.
    """
    until = now + ANSWER_TIME
    info = delivery.job.raw[2]
    if b'"timeout"' in info or b'"heartbeat"' in info:
        timeout, heartbeat = delivery.job.info.timeout, delivery.job.info.heartbeat
        if timeout is not None:
            until = min(until, delivery.arrived + timeout - TIME_LEFT)
        if heartbeat is not None and heartbeat * (1 - 1 / BEATS_PER_LIMIT) < TIME_LEFT:
            return now  # the worker sends no heartbeat while the code runs
    return until


def events_of(ended: Sequence[EndedActivity], position: int, now_us: int) -> Sequence[Event]:
    """Return the events that the ends of activities will cause after the event ``position``."""
    events: list[Event] = []
    for one in ended:
        started = position + 1
        events.append(ActivityTaskStarted(started, now_us, one.ref, attempt=one.attempt))
        events.append(ActivityTaskCompleted(position + 2, now_us, one.ref, started, one.settlement.data))
        position += 2
        if len(events) == 2:
            position += 1
            events.append(DecisionTaskScheduled(position, now_us))
    return events


def came_true(predicted: Sequence[Event], recorded: Sequence[Event]) -> bool:
    """Return whether events were recorded as predicted."""
    return len(recorded) >= len(predicted) and all(
        type(one) is type(other)
        and one.id == other.id
        and getattr(one, "scheduled", 0) == getattr(other, "scheduled", 0)
        for one, other in zip(predicted, recorded, strict=False)
    )


def message_of(ended: EndedActivity) -> SettlementMessage:
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
