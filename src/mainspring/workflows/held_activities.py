"""The jobs of activities that a pause holds, inside a transaction: they wait, and have another due time.

They stay what they are: with their attempts and errors, and in lists. Only their due times change, by the operation with which
clients reschedule jobs, so that a job which a node claims at the same time is either held or started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State as JobState
from mainspring.jobs.store import Reschedule, Rescheduled
from mainspring.workflows.pausing import HELD_US, note_held

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mainspring.workflows.model import OpenActivity, Parking, State
    from mainspring.workflows.tables import RunTables


async def hold(tables: RunTables, state: State, parking: Parking, scheduled: Iterable[int]) -> list[Rescheduled]:
    """Hold the jobs of those of a paused run's activities that wait; return what has changed."""
    held: dict[int, int] = {}
    outcomes: list[Rescheduled] = []
    for activity in _of(state, scheduled):
        job = None if activity.abandoned else await tables.waiting_job(activity.job)
        if job is None or job.due_us == HELD_US:
            continue
        (outcome,) = await tables.reschedule([_change(state, activity, job.created_us, HELD_US)])
        if outcome.before <= JobState.PENDING:  # no other node has claimed it meanwhile
            held[activity.scheduled] = job.due_us if job.state == JobState.SCHEDULED else 0
            outcomes.append(outcome)
    note_held(parking, held)
    return outcomes


async def release(tables: RunTables, state: State, held: Mapping[int, int], now_us: int) -> list[Rescheduled]:
    """Let the jobs of held activities go on: at once, or at their due times; return what has changed."""
    outcomes: list[Rescheduled] = []
    for activity in _of(state, held):
        job = await tables.waiting_job(activity.job)
        if job is not None and job.due_us == HELD_US:
            due_us = max(held[activity.scheduled], now_us)
            outcomes += await tables.reschedule([_change(state, activity, now_us, due_us)])
    return outcomes


def _of(state: State, scheduled: Iterable[int]) -> list[OpenActivity]:
    return [state.activities[one] for one in sorted(scheduled) if one in state.activities]


def _change(state: State, activity: OpenActivity, now_us: int, due_us: int) -> Reschedule:
    return Reschedule(activity.job, now_us, due_us=due_us, namespace=state.namespace)
