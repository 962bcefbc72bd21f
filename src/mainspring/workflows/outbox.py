"""Errands are done: those of one transaction, and stored ones of earlier transactions. `cross_run` has their table.

A transaction does up to 100 errands of its own, and what they cause. The others are stored, and done by later transactions in the
order of their causes. While errands are stored, new ones follow behind them, unless all stored ones are set aside.

A node does stored errands one group after the other, as soon as they are stored and after its start (`ErrandLoop`). Those that it
cannot do are set aside: they are tried again from time to time, all of them in their order (``storage.reads``).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from mainspring import namespaces
from mainspring.access.caller import matches_any
from mainspring.clock import to_us
from mainspring.jobs.lateness import timed
from mainspring.jobs.model import Job, Options
from mainspring.jobs.model import State as JobState
from mainspring.jobs.store import SIGNS_LAST
from mainspring.namespaces import ANY
from mainspring.storage.reads import REMEDY, RETRY_DELAY, Kind
from mainspring.workflows import execution, history, run_holds
from mainspring.workflows.changes import RunDraft
from mainspring.workflows.client_signals import cancel_unbegun, find_target, signal_unbegun
from mainspring.workflows.cross_run import (
    CHILD_POLICY_APPLIED,
    AnswerHold,
    ApplyPolicy,
    CancelOther,
    EndChild,
    ErrandsAside,
    RecordEnd,
    SignalOther,
    StartChild,
    decode_errand,
    encode_errand,
)
from mainspring.workflows.history import ChildPolicy
from mainspring.workflows.model import PART_TAG, Key, function_text
from mainspring.workflows.other_runs import child_ended, child_refused, child_started, external_answered
from mainspring.workflows.reading import Unread
from mainspring.workflows.requests import Reached, Signal
from mainspring.workflows.starting import begin_child
from mainspring.workflows.store import HasErrands, RunErrands, Unbegun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.clock import Clock
    from mainspring.errors import StoreError
    from mainspring.storage.commit_queue import CommitQueue
    from mainspring.storage.reads import Reads, SetAside
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.cross_run import Close, Errand
    from mainspring.workflows.history import Event
    from mainspring.workflows.store import RanErrands

ERRAND: Final = Kind("errand", REMEDY)
"""A request of one run to another, by its number in the store."""


LOOK_INTERVAL: Final = 2.0
"""Seconds between two looks for the errands of other nodes: those that a node leaves which has just died, after about as long.
Signs replace looks (`jobs.store.Signs`)."""
LOOK_KEY: Final = "errands"
"""The name for which nodes choose the one that looks."""


class ErrandLoop:
    """Does stored errands, on a node that calls ``tick`` regularly.

    ``paused`` returns whether nothing may be written. ``looks`` returns whether this node looks for the errands of others, which
    may have stopped before they have done them.
    """

    def __init__(
        self,
        commits: CommitQueue,
        reads: Reads,
        clock: Clock,
        *,
        paused: Callable[[], bool],
        looks: Callable[[], bool],
        set_aside: SetAside,
    ) -> None:
        self._reads = reads
        self._looks = looks
        self._look_at = clock.monotonic() + LOOK_INTERVAL
        self._after = 0
        """The last errand that is set aside."""
        self._commits = commits
        self._clock = clock
        self._paused = paused
        self._set_aside = set_aside
        self._stored = True
        """Whether there may be stored errands. There may be some at first, from an earlier process."""
        self._running = False
        self._retry_at: float | None = None
        """The monotonic time at which those that are set aside are tried again; None if there are none."""

    def stored(self) -> None:
        """Note that a commit has left stored errands."""
        self._stored = True
        if not self._running:
            self.tick()

    def tick(self) -> None:
        """Do the first errands, if there may be some."""
        self._look()
        if self._running or not (self._stored or self._retry_at is not None):
            return  # as nearly always: ticks are frequent
        from_first = self._retry_at is not None and self._clock.monotonic() >= self._retry_at
        if (self._stored or from_first) and not self._paused():
            self._stored, self._running = False, True
            if from_first:
                self._retry_at = None
            self._commits.put(RunErrands(to_us(self._clock.wall()), from_first=from_first), self._done, self._failed)

    def read_sign(self, are_there: bool) -> None:
        """Process the sign whether errands are stored."""
        now = self._clock.monotonic()
        if not are_there:
            self._look_at = max(self._look_at, now + SIGNS_LAST)
        elif not self._stored and not self._running and not self._paused():
            self._look_at = now + LOOK_INTERVAL
            if self._after:
                self._reads.ask(HasErrands(self._after), self._found, lambda _: None)
            else:
                self.stored()

    def _look(self) -> None:
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL
        if not self._stored and not self._paused() and self._looks():
            self._reads.ask(HasErrands(self._after), self._found, lambda _: None)

    def _found(self, are_there: bool) -> None:
        if are_there:
            self.stored()

    def _done(self, outcome: RanErrands) -> None:
        self._running = False
        if outcome.is_elsewhere:
            self._stored = True  # the next tick looks whether that node has done all
            return
        self._after = outcome.aside.after
        self._set_aside.handled(ERRAND, map(str, outcome.done))
        for number, fault in outcome.aside.faults.items():
            self._set_aside.note(ERRAND, str(number), fault)
        if outcome.aside.after and self._retry_at is None:
            self._retry_at = self._clock.monotonic() + RETRY_DELAY
        self.tick()

    def _failed(self, error: StoreError) -> None:
        del error  # the next tick repeats it
        self._stored, self._running = True, False
        self._retry_at = self._clock.monotonic()


MOST: Final = 100
"""Errands that one transaction does."""
MOST_BYTES: Final = 16 * 2**20
"""Bytes of stored errands after which a transaction reads no further one."""
UNKNOWN: Final = "UNKNOWN_EXTERNAL_WORKFLOW_EXECUTION"
NOT_PERMITTED: Final = "OPERATION_NOT_PERMITTED"
ALREADY_RUNNING: Final = "WORKFLOW_ALREADY_RUNNING"


async def run_errands(changes: RunChanges, now_us: int) -> bool:
    """Do the first errands and store the others; return whether there may be stored ones that were not tried."""
    tables, fresh = changes.tables, changes.errands
    after = 0 if changes.errands_from_first else changes.errands_aside.after
    stored = await tables.errands(after, MOST, MOST_BYTES)
    done = await _run_stored(changes, stored, now_us) if stored or changes.errands_from_first else []
    tried = 0
    left: list[Errand] = []
    most = 0 if stored or tables.stores_errands else MOST
    while tried < min(len(fresh), most):  # an errand may cause further ones
        if await _run(changes, fresh[tried], now_us) is not None:
            left.append(fresh[tried])
        tried += 1
    left += fresh[tried:]
    fresh.clear()
    if done or left:
        await tables.change_errands(done, [encode_errand(one) for one in left])
    changes.errands_done += done
    return bool(stored or left)


async def _run_stored(changes: RunChanges, stored: Sequence[tuple[int, bytes]], now_us: int) -> list[int]:
    """Do stored errands, and set aside those that cannot be done; return the numbers of the others."""
    shared = changes.errands_shared
    aside = changes.errands_aside = ErrandsAside() if changes.errands_from_first else changes.errands_aside.copy()
    done: list[int] = []
    for number, data in stored:
        errand = decode_errand(data)
        if isinstance(errand, str):
            aside.faults[number] = errand
        elif (unread := await _run(changes, errand, now_us)) is not None:
            aside.runs[unread.row.id] = unread.fault
        else:
            done.append(number)
            continue
        aside.after = number
    changes.tables.after_commit(lambda: shared.set(aside))
    return done


async def _run(changes: RunChanges, errand: Errand, now_us: int) -> Unread | None:
    """Do an errand; if it has to wait for a run that this node cannot read, change nothing and return the run."""
    source = await changes.find(errand.source, now_us) if not isinstance(errand, EndChild | ApplyPolicy) else None
    if isinstance(source, Unread):
        return source  # nothing can record the answer
    match errand:
        case StartChild():
            await _start_child(changes, errand, now_us)
        case EndChild():
            return await _end_child(changes, errand, now_us)
        case SignalOther():
            return await _signal_other(changes, errand, now_us)
        case CancelOther():
            return await _cancel_other(changes, errand, now_us)
        case ApplyPolicy():
            return await _apply_policy(changes, errand, now_us)
        case RecordEnd():
            if isinstance(source, RunDraft) and source.is_open:
                source.record_end(errand.ended)
        case AnswerHold():
            if isinstance(source, RunDraft) and source.is_open:
                run_holds.answered(source.draft, errand)
    return None


# ---- children ----


async def _start_child(changes: RunChanges, errand: StartChild, now_us: int) -> None:
    event = errand.initiated
    is_named = event.workflow_id != changes.handle_of(event.run)
    job = Job(
        event.run,
        namespaces.key(errand.namespace, event.type.encode()),
        event.input,
        unique=event.workflow_id.encode() if is_named else b"",
        priority=event.task_priority,
        state=int(JobState.PENDING),
        created_us=now_us,
        started_us=now_us,
        input_size=len(event.input),
        key=event.key.encode(),
    )
    if event.start_within or event.deadline:
        job.options = timed(Options(start_within=event.start_within or None, deadline=event.deadline or None), now_us)
    if PART_TAG not in event.tags:  # a part of a map is no run that somebody has started
        changes.tables.lifecycle.add_times(job)
    has_begun = await begin_child(changes, job, errand, now_us)
    parent = await changes.open(errand.source, now_us)
    if not isinstance(parent, RunDraft):
        return
    names = {"type": event.type, "version": event.version}
    if has_begun:
        child_started(parent.draft, event.id, **names)
    else:
        completed = event.decision_completed
        child_refused(parent.draft, event.id, **names, decision_completed=completed, cause=ALREADY_RUNNING)


async def _end_child(changes: RunChanges, errand: EndChild, now_us: int) -> Unread | None:
    parent = await changes.open(errand.parent, now_us)
    if isinstance(parent, Unread):
        return parent
    if parent is not None:
        kind, attributes = _ended(errand.close)
        child_ended(parent.draft, errand.initiated, kind, type=errand.type, version=errand.version, **attributes)
    return None


def _ended(close: Close) -> tuple[type[Event], dict[str, Any]]:
    """Return the parent's event for the close of a child, with its own attributes."""
    match close:
        case history.WorkflowExecutionCompleted():
            return history.ChildWorkflowExecutionCompleted, {"result": close.result}
        case history.WorkflowExecutionFailed():
            return history.ChildWorkflowExecutionFailed, {"reason": close.reason, "details": close.details}
        case history.WorkflowExecutionTimedOut():
            return history.ChildWorkflowExecutionTimedOut, {"timeout": close.timeout}
        case history.WorkflowExecutionCanceled():
            return history.ChildWorkflowExecutionCanceled, {"details": close.details}
        case history.WorkflowExecutionTerminated():
            return history.ChildWorkflowExecutionTerminated, {"reason": close.reason or close.cause}


async def _apply_policy(changes: RunChanges, errand: ApplyPolicy, now_us: int) -> Unread | None:
    child = await find_target(changes, Key(job=errand.child, namespace=ANY), now_us)
    if isinstance(child, Unbegun):  # it waits for a place
        await cancel_unbegun(changes, child.job, f"its parent {errand.workflow_id} has ended", now_us)
        return None
    if not isinstance(child, RunDraft):
        return child if isinstance(child, Unread) else None
    if errand.policy is ChildPolicy.TERMINATE:
        reason = f"its parent {errand.workflow_id} was terminated or timed out"
        execution.terminate(child.draft, reason=reason, cause=CHILD_POLICY_APPLIED)
    else:
        execution.request_cancel(
            child.draft,
            cause=CHILD_POLICY_APPLIED,
            external_run=errand.source,
            external_workflow_id=errand.workflow_id,
        )
    return None


# ---- signals and cancel requests ----


class _Refused(Enum):
    NOT_PERMITTED = "the decider could not reach the run"


async def _signal_other(changes: RunChanges, errand: SignalOther, now_us: int) -> Unread | None:
    event = errand.initiated
    signal = Signal(Key(), event.name, event.input, depth=errand.depth)
    found = await _target(changes, errand, now_us)
    if isinstance(found, Unread):
        return found
    if isinstance(found, Unbegun):
        # A delayed start begins with its first signal. One that is due waits because the workflow is paused.
        begins = found.job.state == JobState.SCHEDULED
        reached = await signal_unbegun(changes, found.job, signal, now_us, begins=begins)
    elif isinstance(found, RunDraft):
        reached = execution.signal(found.draft, signal, **_sender(errand))
    else:
        reached = _UNKNOWN
    kinds = history.ExternalWorkflowExecutionSignaled, history.SignalExternalWorkflowExecutionFailed
    cause = NOT_PERMITTED if found is _Refused.NOT_PERMITTED else UNKNOWN
    await _answer(changes, errand, now_us, reached, *kinds, cause)
    return None


async def _cancel_other(changes: RunChanges, errand: CancelOther, now_us: int) -> Unread | None:
    reason = errand.initiated.reason
    found = await _target(changes, errand, now_us)
    if isinstance(found, Unread):
        return found
    if isinstance(found, Unbegun):
        reached = await cancel_unbegun(changes, found.job, reason, now_us)
    elif isinstance(found, RunDraft):
        reached = execution.request_cancel(found.draft, reason=reason, **_sender(errand))
    else:
        reached = _UNKNOWN
    kinds = history.ExternalWorkflowExecutionCancelRequested, history.RequestCancelExternalWorkflowExecutionFailed
    cause = NOT_PERMITTED if found is _Refused.NOT_PERMITTED else UNKNOWN
    await _answer(changes, errand, now_us, reached, *kinds, cause)
    return None


async def _target(
    changes: RunChanges, errand: SignalOther | CancelOther, now_us: int
) -> RunDraft | Unbegun | Unread | _Refused | None:
    """Return the open run that an errand names, or a workflow's job whose run has not begun, if its decider could reach it."""
    event = errand.initiated
    found = await find_target(changes, target_of(errand), now_us)
    if isinstance(found, Unbegun) and not found.is_workflow:
        return None  # it may be a task's job
    if isinstance(found, Unread):
        return found
    if not isinstance(found, RunDraft | Unbegun):
        return None
    if event.reach:
        name = found.draft.state.type if isinstance(found, RunDraft) else function_text(found.job.function)
        if not matches_any(name, event.reach):
            return _Refused.NOT_PERMITTED
    return found


def target_of(errand: SignalOther | CancelOther) -> Key:
    """Return the key of the run that an errand names."""
    event = errand.initiated
    return Key(job=event.run, workflow_id="" if event.run else event.workflow_id, namespace=errand.namespace)


def _sender(errand: SignalOther | CancelOther) -> dict[str, Any]:
    return {
        "external_run": errand.source,
        "external_workflow_id": errand.workflow_id,
        "external_initiated": errand.initiated.id,
    }


async def _answer(
    changes: RunChanges,
    errand: SignalOther | CancelOther,
    now_us: int,
    reached: Reached,
    done: type[Event],
    failed: type[Event],
    cause: str,
) -> None:
    """Record the answer in the history of the run that has asked."""
    source = await changes.open(errand.source, now_us)
    if not isinstance(source, RunDraft):
        return
    event = errand.initiated
    attributes: dict[str, Any] = {"workflow_id": event.workflow_id, "run": reached.run or event.run}
    if reached.verdict in _REACHED:
        external_answered(source.draft, event.id, done, **attributes)
    else:
        attributes |= {"decision_completed": event.decision_completed, "cause": cause, "control": event.control}
        external_answered(source.draft, event.id, failed, **attributes)


_REACHED: Final = ("recorded", "repeated")
_UNKNOWN: Final = Reached("unknown")
