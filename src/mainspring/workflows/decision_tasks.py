"""Whether a run goes on: its decision tasks, its parking, and its close.

An event that the decider has not been given asks for a decision task, unless one is scheduled and not started. Behind a started
one a second is scheduled. Events are never held back.

The code of a parked run cannot make the next decision, so that it waits for other code or for a person. It takes events on.
Its decision task stays scheduled and has no job. A run is parked on request of a decider, or because its decision task was
lost five times without a record in between. No event says so: the values are stored beside the state.

| parked by | goes on |
|---|---|
| a decider: mismatch, missing definition, defect | by hand; when a build is connected that has not failed |
| a node: its token lacks a permission | the same |
| losses | by hand; after 5 minutes, and one more loss then parks it |

The builds that have failed are remembered until they record something of the run themselves, or it is unparked by hand. Their
code would fail again, because it has to repeat the decisions before. If a record of another build made the node forget them,
they would get the run again and park it, and so on for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.owners import AttemptEnded
from mainspring.jobs.rules import Event
from mainspring.workflows.cross_run_rules import after_close
from mainspring.workflows.history import (
    DecisionTaskScheduled,
    DecisionTaskStarted,
    DecisionTaskTimedOut,
    TimeoutType,
)
from mainspring.workflows.model import UNKNOWN_BUILD, Parked

if TYPE_CHECKING:
    from mainspring.jobs.owners import Ended
    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import ChildPolicy, EventBase
    from mainspring.workflows.model import Parking, State


def schedule_decision(draft: Draft) -> None:
    """Schedule a decision task if the run is open, does not wait for its begin, and has no unstarted one."""
    state = draft.state
    if state.status or state.begin_us > draft.now_us or (state.scheduled and (state.waiting or not state.started)):
        return
    if state.full:
        draft.record(
            DecisionTaskScheduled,
            task_list=state.task_list,
            task_priority=state.task_priority,
            start_to_close=state.task_timeout,
        )
    else:
        draft.record(DecisionTaskScheduled)


def start_decision(draft: Draft, identity: str = "") -> None:
    """Start the scheduled decision task. In a lean history that belongs to its first record."""
    draft.record(DecisionTaskStarted, scheduled=draft.state.scheduled, identity=identity)


def time_out_decision(draft: Draft, timeout: TimeoutType) -> None:
    """Close a decision task that was not started or not completed in time, and schedule another one; only in a full history."""
    state = draft.state
    draft.record(DecisionTaskTimedOut, scheduled=state.scheduled, started=state.started, timeout=timeout)
    schedule_decision(draft)


MOST_LOSSES: Final = 5
RETRY_AFTER_US: Final = 300_000_000
"""A run that is parked after losses is tried once more after this time."""
BUILDS_KEPT: Final = 20


def needs_decision(state: State, parking: Parking) -> bool:
    """Return whether the decision task of a run has a job."""
    return state.scheduled != 0 and parking.parked is None


def park(draft: Draft, parked: Parked, build: str = "") -> None:
    """Park a run."""
    parking = draft.parking
    if parking.parked is None:
        parking.parked_us = draft.now_us
    parking.parked = parked
    parking.retry_us = draft.now_us + RETRY_AFTER_US if parked.kind == "losses" else 0
    _add(parking, UNKNOWN_BUILD if parked.kind == "losses" else build)


def unpark(draft: Draft, build: str = "") -> bool:
    """Let a parked run go on: by hand, or because a build connects; return False if it is not parked or the build has failed."""
    parking = draft.parking
    if parking.parked is None or (build and not tried_by(build).isdisjoint(parking.builds)):
        return False
    _release(parking)
    parking.losses = 0
    if not build:
        parking.builds = ()
    return True


def retry_parked(draft: Draft) -> None:
    """Try a run once more that was parked after losses, if it is time."""
    parking = draft.parking
    if parking.parked is not None and 0 < parking.retry_us <= draft.now_us:
        _release(parking)
        _remove(parking, UNKNOWN_BUILD)
        parking.losses = MOST_LOSSES - 1


def decision_lost(draft: Draft, notice: Ended | AttemptEnded) -> bool:
    """Count that a decision task's job ended, or its attempt, otherwise than by a completion; return whether the run is parked.

    A decision task that was handed back is not counted. The history gets no event. A job that has ended needs a successor.
    """
    parking = draft.parking
    if draft.state.status or parking.parked is not None:
        return parking.parked is not None
    if isinstance(notice, AttemptEnded) and notice.event in _UNCOUNTED:
        return False
    parking.losses += 1
    if parking.losses < MOST_LOSSES:
        return False
    why = f"{parking.losses} deciders in a row were lost with the decision; look for a crash of the worker process in its log"
    park(draft, Parked("losses", why))
    return True


def progressed(parking: Parking, build: str) -> None:
    """Note that a build has recorded a decision, or a step of it."""
    parking.losses = 0
    if parking.builds:
        _remove(parking, build)


def tried_by(build: str) -> frozenset[str]:
    """Return the entries of the builds that have failed each of which keeps a parked run from a build; none for no build."""
    return frozenset((build, UNKNOWN_BUILD)) if build else frozenset()


def _add(parking: Parking, build: str) -> None:
    if build and build not in parking.builds:
        parking.builds = (*parking.builds, build)[-BUILDS_KEPT:]


def _remove(parking: Parking, build: str) -> None:
    if build in parking.builds:
        parking.builds = tuple(one for one in parking.builds if one != build)


def _release(parking: Parking) -> None:
    parking.parked = None
    parking.parked_us = 0
    parking.retry_us = 0


_UNCOUNTED: Final = (Event.RELEASE, Event.SNOOZE)


def close(draft: Draft, kind: type[EventBase], *, children: ChildPolicy | None = None, **attributes: object) -> None:
    """Record the event that closes a run, which is not parked any more.

    The jobs of its open activities are deleted, except those of abandoned activities: they go on, and nothing records their ends.
    ``children`` replaces the policies of its open children, if the event applies them.
    """
    open_children = list(draft.state.children.values())
    for activity in draft.state.activities.values():
        if not activity.abandoned:
            draft.withdraw(activity.job)
    after_close(draft, draft.record(kind, **attributes), open_children, children)
    parking = draft.parking
    parking.parked = None
    parking.parked_us = parking.retry_us = 0
