"""The errands of one transaction, and of earlier ones: see `errands`.

A transaction does up to 100 errands of its own, and what they cause. The others are stored, and done by later transactions in the
order of their causes. While errands are stored, new ones follow behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring import namespaces
from mainspring.jobs.model import Job
from mainspring.jobs.model import State as JobState
from mainspring.namespaces import ANY
from mainspring.workflows.decisions import execution
from mainspring.workflows.decisions.child import child_ended, child_refused, child_started
from mainspring.workflows.decisions.external import external_answered
from mainspring.workflows.errands import (
    CHILD_POLICY_APPLIED,
    ApplyPolicy,
    CancelOther,
    EndChild,
    SignalOther,
    StartChild,
    decode_errand,
    encode_errand,
)
from mainspring.workflows.history import (
    ChildPolicy,
    ChildWorkflowExecutionCanceled,
    ChildWorkflowExecutionCompleted,
    ChildWorkflowExecutionFailed,
    ChildWorkflowExecutionTerminated,
    ChildWorkflowExecutionTimedOut,
    ExternalWorkflowExecutionCancelRequested,
    ExternalWorkflowExecutionSignaled,
    RequestCancelExternalWorkflowExecutionFailed,
    SignalExternalWorkflowExecutionFailed,
    WorkflowExecutionCanceled,
    WorkflowExecutionCompleted,
    WorkflowExecutionFailed,
    WorkflowExecutionTerminated,
    WorkflowExecutionTimedOut,
)
from mainspring.workflows.model import Key
from mainspring.workflows.outside import cancel_unbegun, find_target, signal_unbegun
from mainspring.workflows.requests import Reached, Signal
from mainspring.workflows.run_draft import RunDraft
from mainspring.workflows.starting import begin_child
from mainspring.workflows.store import Unbegun

if TYPE_CHECKING:
    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.errands import Close, Errand
    from mainspring.workflows.history import EventBase

MOST: Final = 100
"""Errands that one transaction does."""
MOST_BYTES: Final = 16 * 2**20
"""Bytes of stored errands after which a transaction reads no further one."""
UNKNOWN: Final = "UNKNOWN_EXTERNAL_WORKFLOW_EXECUTION"
ALREADY_RUNNING: Final = "WORKFLOW_ALREADY_RUNNING"


async def run_errands(changes: RunChanges, now_us: int) -> bool:
    """Do the first errands and store the others; return whether there may be stored ones."""
    tables, fresh = changes.tables, changes.errands
    stored = await tables.errands(MOST, MOST_BYTES)
    for _, data in stored:
        await _run(changes, decode_errand(data), now_us)
    done = 0
    while not stored and done < min(len(fresh), MOST):  # an errand may cause further ones
        await _run(changes, fresh[done], now_us)
        done += 1
    left = fresh[done:]
    fresh.clear()
    if stored or left:
        await tables.change_errands([number for number, _ in stored], [encode_errand(one) for one in left])
    return bool(stored or left)


async def _run(changes: RunChanges, errand: Errand, now_us: int) -> None:
    match errand:
        case StartChild():
            await _start_child(changes, errand, now_us)
        case EndChild():
            await _end_child(changes, errand, now_us)
        case SignalOther():
            await _signal_other(changes, errand, now_us)
        case CancelOther():
            await _cancel_other(changes, errand, now_us)
        case ApplyPolicy():
            await _apply_policy(changes, errand, now_us)


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
    )
    has_begun = await begin_child(changes, job, errand, now_us)
    parent = await changes.open(errand.source, now_us)
    if parent is None:
        return
    names = {"type": event.type, "version": event.version}
    if has_begun:
        child_started(parent.draft, event.id, **names)
    else:
        completed = event.decision_completed
        child_refused(parent.draft, event.id, **names, decision_completed=completed, cause=ALREADY_RUNNING)


async def _end_child(changes: RunChanges, errand: EndChild, now_us: int) -> None:
    parent = await changes.open(errand.parent, now_us)
    if parent is not None:
        kind, attributes = _ended(errand.close)
        child_ended(parent.draft, errand.initiated, kind, type=errand.type, version=errand.version, **attributes)


def _ended(close: Close) -> tuple[type[EventBase], dict[str, Any]]:
    """Return the parent's event for the close of a child, with its own attributes."""
    match close:
        case WorkflowExecutionCompleted():
            return ChildWorkflowExecutionCompleted, {"result": close.result}
        case WorkflowExecutionFailed():
            return ChildWorkflowExecutionFailed, {"reason": close.reason, "details": close.details}
        case WorkflowExecutionTimedOut():
            return ChildWorkflowExecutionTimedOut, {"timeout": close.timeout}
        case WorkflowExecutionCanceled():
            return ChildWorkflowExecutionCanceled, {"details": close.details}
        case WorkflowExecutionTerminated():
            return ChildWorkflowExecutionTerminated, {"reason": close.reason or close.cause}


async def _apply_policy(changes: RunChanges, errand: ApplyPolicy, now_us: int) -> None:
    child = await find_target(changes, Key(job=errand.child, namespace=ANY), now_us)
    if not isinstance(child, RunDraft):
        return
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


# ---- signals and cancel requests ----


async def _signal_other(changes: RunChanges, errand: SignalOther, now_us: int) -> None:
    event = errand.initiated
    signal = Signal(Key(), event.name, event.input)
    found = await _target(changes, errand, now_us)
    if isinstance(found, Unbegun):
        # A delayed start begins with its first signal. One that is due waits because the workflow is paused.
        begins = found.job.state == JobState.SCHEDULED
        reached = await signal_unbegun(changes, found.job, signal, now_us, begins=begins)
    elif found is not None:
        reached = execution.signal(found.draft, signal, **_sender(errand))
    else:
        reached = _UNKNOWN
    kinds = ExternalWorkflowExecutionSignaled, SignalExternalWorkflowExecutionFailed
    await _answer(changes, errand, now_us, reached, *kinds)


async def _cancel_other(changes: RunChanges, errand: CancelOther, now_us: int) -> None:
    reason = errand.initiated.reason
    found = await _target(changes, errand, now_us)
    if isinstance(found, Unbegun):
        reached = await cancel_unbegun(changes, found.job, reason, now_us)
    elif found is not None:
        reached = execution.request_cancel(found.draft, reason=reason, **_sender(errand))
    else:
        reached = _UNKNOWN
    kinds = ExternalWorkflowExecutionCancelRequested, RequestCancelExternalWorkflowExecutionFailed
    await _answer(changes, errand, now_us, reached, *kinds)


async def _target(changes: RunChanges, errand: SignalOther | CancelOther, now_us: int) -> RunDraft | Unbegun | None:
    """Return the open run that an errand names, or the job of a workflow whose run has not begun."""
    event = errand.initiated
    key = Key(job=event.run, workflow_id="" if event.run else event.workflow_id, namespace=errand.namespace)
    found = await find_target(changes, key, now_us)
    if isinstance(found, Unbegun) and not found.is_workflow:
        return None  # it may be a task's job
    return found if isinstance(found, RunDraft | Unbegun) else None


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
    done: type[EventBase],
    failed: type[EventBase],
) -> None:
    """Record the answer in the history of the run that has asked."""
    source = await changes.open(errand.source, now_us)
    if source is None:
        return
    event = errand.initiated
    attributes: dict[str, Any] = {"workflow_id": event.workflow_id, "run": reached.run or event.run}
    if reached.verdict in _REACHED:
        external_answered(source.draft, event.id, done, **attributes)
    else:
        attributes |= {"decision_completed": event.decision_completed, "cause": UNKNOWN, "control": event.control}
        external_answered(source.draft, event.id, failed, **attributes)


_REACHED: Final = ("recorded", "repeated")
_UNKNOWN: Final = Reached("unknown")
