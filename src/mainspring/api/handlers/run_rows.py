"""Rows and details of runs in answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.api.handlers.pages import rfc3339
from mainspring.api.workflows import (
    CHILD_POLICIES,
    STATUS_NAMES,
    ActivityInfo,
    ChildInfo,
    ChildPolicyName,
    ParkingInfo,
    PauseInfo,
    ProgressInfo,
    RunDetails,
    RunInfo,
    StatusName,
    TimerInfo,
    UnbegunStatus,
)
from mainspring.jobs.lateness import overdue_by, overdue_since
from mainspring.jobs.model import State
from mainspring.namespaces import name_text
from mainspring.quantities import format_duration
from mainspring.workflows.model import Status, decode_about, function_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.api.jobs import JobDetails
    from mainspring.jobs.model import Job
    from mainspring.workflows.history import ChildPolicy
    from mainspring.workflows.model import About, OpenActivity, OpenChild
    from mainspring.workflows.model import State as RunState
    from mainspring.workflows.store import RunRow, ShownRun, Unbegun

MOST_PARTS: Final = 5
"""The most things in the text of ``waits_for``; the text ends with the number of others."""
_DAY: Final = 86_400
_UNITS: Final = (_DAY, 3_600, 60, 1)


def status_name(status: int) -> StatusName:
    """Return the name of a status in answers."""
    return STATUS_NAMES[Status(status)]


def unbegun_status(state: int) -> UnbegunStatus:
    """Return the status of a run that has not begun, by the state of its job."""
    return "scheduled" if state == State.SCHEDULED else "pending"


def run_handle(handle: str, run: int) -> str:
    """Return the key of one run; ``handle`` is its root job's."""
    return f"{handle}@{run}"


def run_info(handle: str, shown: ShownRun, now_us: int, *, stranded: bool) -> RunInfo:
    """Return the row of a run; ``handle`` is its root job's."""
    row = shown.row
    return RunInfo(
        handle=handle,
        id=row.workflow_id,
        type=row.type,
        version=row.version,
        status=status_name(row.status),
        started_at=rfc3339(row.started_us),
        closed_at=rfc3339(row.closed_us),
        events=row.events,
        waits_for=_waits_for(shown, now_us, stranded=stranded) if Status(row.status).open else None,
        run=run_handle(handle, row.id),
        parked_at=rfc3339(row.parked_us),
        overdue_since=rfc3339(_overdue_since(shown, now_us)),
        paused_at=rfc3339(row.paused_us),
    )


def _forked_from(handle: str, state: RunState, handle_of: Callable[[int], bytes]) -> str | None:
    """Return the key of the run with a part of which a run has begun. One of another root job is named by its own number."""
    if not state.forked_run:
        return None
    root = handle if state.continued_run == state.forked_run else handle_of(state.forked_run).decode()
    return run_handle(root, state.forked_run)


def _overdue_since(shown: ShownRun, now_us: int) -> int:
    return 0 if shown.options is None else overdue_by(shown.options, now_us, begun=has_decided(shown.state))


def run_details(
    info: RunInfo,
    shown: ShownRun,
    activities: list[ActivityInfo],
    error: str | None,
    *,
    parent: str | None = None,
    handle_of: Callable[[int], bytes],
) -> RunDetails:
    """Return all details of a run; ``info`` is its row, ``error`` that of its root job, ``handle_of`` returns those of jobs."""
    row, state = shown.row, shown.state
    about = decode_about(row.about)
    timers = sorted(state.timers.values(), key=lambda timer: timer.fire_us)
    return RunDetails(
        **{name: getattr(info, name) for name in RunInfo.__struct_fields__},
        begins_at=rfc3339(state.begin_us),
        times_out_at=rfc3339(state.close_by_us) if info.status == "open" else None,
        cancel_requested=bool(state.cancel_requested),
        cancel_reason=state.cancel_reason or None,
        attempt=state.attempt,
        failure=state.failure or None,
        previous_run=run_handle(info.handle, state.continued_run) if state.continued_run else None,
        next_run=run_handle(info.handle, state.new_run) if state.new_run else None,
        forked_from=_forked_from(info.handle, state, handle_of),
        error=error,
        input_size=row.input_size,
        output_size=row.output_size,
        history_size=row.history_bytes,
        parent=parent,
        activities=activities,
        children=[_child(child, handle_of(child.run).decode()) for child in state.children.values()],
        timers=[
            TimerInfo(timer.timer_id, rfc3339(timer.fire_us), timer.start_to_fire or None, timer.control or None)
            for timer in timers
        ],
        steps=list(about.steps),
        receives=list(about.channels),
        unread=about.unread,
        progress=_progress(about),
        parked=_parking(row),
        paused=_pause(row),
    )


def unbegun_info(handle: str, unbegun: Unbegun, now_us: int, *, is_paused: bool) -> RunInfo:
    """Return the row of a run that has not begun. ``is_paused``: its function is paused."""
    job = unbegun.job
    return RunInfo(
        handle=handle,
        id=name_text(job.unique) or handle,
        type=function_text(job.function),
        version="",
        status=unbegun_status(job.state),
        started_at=None,
        closed_at=None,
        events=0,
        waits_for=_begin_of(unbegun, now_us, is_paused=is_paused),
        run=run_handle(handle, job.id),
        parked_at=None,
        overdue_since=rfc3339(overdue_since(job, now_us)),
    )


def _begin_of(unbegun: Unbegun, now_us: int, *, is_paused: bool) -> str:
    job = unbegun.job
    if job.state == State.SCHEDULED:
        return f"its start in {rough_duration(max(0, job.due_us - now_us) / 1_000_000)}"
    name = function_text(job.function)
    if is_paused:
        return f"mainspring functions resume {name}"
    return "its start" if unbegun.is_workflow else f"a first worker with the workflow {name}"


def unbegun_details(info: RunInfo, job: Job) -> RunDetails:
    """Return all details of a run that has not begun; ``info`` is its row."""
    return RunDetails(
        **{name: getattr(info, name) for name in RunInfo.__struct_fields__},
        begins_at=rfc3339(job.due_us) if job.state == State.SCHEDULED else None,
        times_out_at=None,
        cancel_requested=False,
        attempt=1,
        failure=None,
        previous_run=None,
        next_run=None,
        error=None,
        input_size=job.input_size,
        output_size=0,
        history_size=0,
        parent=None,
        activities=[],
        children=[],
        timers=[],
        steps=[],
        receives=[],
        unread={},
        progress=None,
        parked=None,
    )


def add_times(details: RunDetails, root: Job, now_us: int, state: RunState | None = None) -> None:
    """Add by when a run should begin and end, and since when it is overdue, from its root job; ``state`` if it has begun."""
    if root.options is not None:
        details.start_by = rfc3339(root.options.start_us)
        details.deadline_at = rfc3339(root.options.deadline_us)
        details.overdue_since = rfc3339(overdue_since(root, now_us, has_run=state is not None and has_decided(state)))


def has_decided(state: RunState) -> bool:
    """Return whether a run has begun its first decision, or follows another run of its chain."""
    return bool(state.started or state.previous_started or state.steps or state.continued_run)


def _waits_for(shown: ShownRun, now_us: int, *, stranded: bool) -> str:
    """Return the things that an open run waits for; of one that is set aside, the reason."""
    if shown.fault:
        return f"a node that can read it: {shown.fault}"
    return waits_for(shown.row, shown.state, now_us, stranded=stranded)


def waits_for(row: RunRow, state: RunState, now_us: int, *, stranded: bool) -> str:
    """Return the things that an open run waits for, such as ``charge #2, timer 2d4h, approved``."""
    if row.parked is not None:
        return f"other code (parked: {row.parked.kind})"
    if row.parking.pause is not None:
        reason = row.parking.pause.reason
        return f"its resume (paused: {reason})" if reason else "its resume (paused)"
    if stranded and row.decision:
        return f"a worker with {row.type}@{row.version}"
    if state.begin_us:
        return f"attempt {state.attempt} in {rough_duration(max(0, state.begin_us - now_us) / 1_000_000)}"
    parts = [*_open_things(state, decode_about(row.about), now_us)]
    if not parts:
        return "a decision"
    shown = parts[:MOST_PARTS]
    return ", ".join(shown) + (f" and {len(parts) - MOST_PARTS} more" if len(parts) > MOST_PARTS else "")


def _open_things(state: RunState, about: About, now_us: int) -> Sequence[str]:
    activities = [f"{function_text(one.function)} #{one.activity_id}" for one in state.activities.values()]
    timers = sorted(timer.fire_us for timer in state.timers.values())
    times = [f"timer {rough_duration(max(0, fire_us - now_us) / 1_000_000)}" for fire_us in timers]
    conditions = ["a condition"] * about.conditions
    children = [f"{one.type} #{one.number}" for one in state.children.values()]
    steps = [f"{step} (step)" for step in about.steps]
    return [*activities, *children, *steps, *about.holds, *times, *about.channels, *conditions]


def rough_duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as ``2d4h``."""
    largest = next((at for at, unit in enumerate(_UNITS) if seconds >= unit), len(_UNITS) - 1)
    smallest = _UNITS[min(largest + 1, len(_UNITS) - 1)]
    return format_duration(int(seconds) // smallest * smallest)


def activity_info(handle: str, activity: OpenActivity, job: JobDetails | None) -> ActivityInfo:
    """Return an open activity; ``handle`` is its job's, and None stands for a job that is not read."""
    return ActivityInfo(
        number=activity.activity_id,
        function=function_text(activity.function),
        handle=handle,
        state=None if job is None else job.state,
        worker=None if job is None else job.worker,
        attempt=None if job is None else job.attempt,
        scheduled_at=rfc3339(activity.scheduled_us),
        error=None if job is None else job.error,
    )


def _progress(about: About) -> ProgressInfo | None:
    progress = about.progress
    return None if progress is None else ProgressInfo(progress.done, progress.total, progress.text)


def _child(child: OpenChild, handle: str) -> ChildInfo:
    return ChildInfo(str(child.number), child.type, child.workflow_id, handle, _POLICIES[child.policy])


_POLICIES: Final[dict[ChildPolicy, ChildPolicyName]] = {policy: name for name, policy in CHILD_POLICIES.items()}


def _pause(row: RunRow) -> PauseInfo | None:
    pause = row.parking.pause
    return None if pause is None else PauseInfo(pause.reason, pause.by, rfc3339(pause.until_us), len(pause.held))


def _parking(row: RunRow) -> ParkingInfo | None:
    parked = row.parked
    if parked is None:
        return None
    return ParkingInfo(
        parked.kind, parked.message, list(parked.recorded), list(parked.code), parked.at, list(row.builds)
    )
