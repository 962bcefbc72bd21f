"""The limits of a run: rules that keep its history within them, and warnings on the way.

| limit | at the limit |
|---|---|
| 25,000 events | the run is terminated: ``EVENT_LIMIT_EXCEEDED`` is its last event |
| the last 1,000 events | take no signals, and no second cancel request, so that no client can end a run |
| 1,000 open activities, timers, children each | the decision fails: ``OPEN_…_LIMIT_EXCEEDED`` |
| the size of a payload | the list of decisions is refused whole |
| 10,000 events, 10 MiB | a warning |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.quantities import format_size
from mainspring.workflows.decision_tasks import close
from mainspring.workflows.history import WorkflowExecutionTerminated
from mainspring.workflows.model import SEMANTICS, Limits

if TYPE_CHECKING:
    from mainspring.workflows.draft import Draft

_DEFAULTS: Final = Limits()
EVENT_LIMIT_EXCEEDED: Final = "EVENT_LIMIT_EXCEEDED"


def ensure_room(draft: Draft, events: int) -> bool:
    """Return whether a history has room for events and one more; terminate its run otherwise."""
    state = draft.state
    if state.last + events < draft.limits.events:
        return True
    if not state.status:
        terminate_full(draft)
    return False


def terminate_full(draft: Draft) -> None:
    """Terminate a run whose history is full."""
    state = draft.state
    reason = f"the history has {state.last} events; the limit is {draft.limits.events}"
    policy = state.child_policy
    close(draft, WorkflowExecutionTerminated, cause=EVENT_LIMIT_EXCEEDED, reason=reason, child_policy=policy)


def takes_requests(draft: Draft) -> bool:
    """Return whether a history has room for requests of clients."""
    return draft.state.last < draft.limits.events - draft.limits.reserved


def recorded(limits: Limits) -> dict[str, int]:
    """Return the attributes of a run's start that tell its code what this node gives it.

    They are recorded, so that its code gets the same answers after the settings or the version of the node have changed; 0
    stands for a default.
    """
    found = {
        name: 0 if getattr(limits, name) == getattr(_DEFAULTS, name) else getattr(limits, name)
        for name in ("warn_events", "warn_bytes")
    }
    return found | {"semantics": SEMANTICS}


def warning(limits: Limits, events: int, size: int, new_events: int, new_size: int) -> str:
    """Return a warning for the log if the history has just become long; otherwise an empty text.

    ``events`` and ``size`` (in bytes) include the new ones.
    """
    if events - new_events < limits.warn_events <= events:
        return f"the history has {events} events; at {limits.events} the run is terminated: let it continue as new before, or end"
    if size - new_size < limits.warn_bytes <= size:
        return f"the history has {format_size(size)}: store large values elsewhere, and pass their location"
    return ""
