"""The reports of deciders: completions inside one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring import namespaces
from mainspring.jobs.model import State as JobState
from mainspring.workflows.chains import begin_next, unknown_version
from mainspring.workflows.completing import complete
from mainspring.workflows.decisions.activity import canceled_before_start
from mainspring.workflows.decisions.model import ContinueAsNewWorkflowExecution, StartChildWorkflowExecution
from mainspring.workflows.model import Parked, Status
from mainspring.workflows.reading import Unread
from mainspring.workflows.requests import Decided
from mainspring.workflows.starting import Definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.workflows.changes import RunChanges
    from mainspring.workflows.decisions.model import Decision
    from mainspring.workflows.model import Definition
    from mainspring.workflows.requests import Completion
    from mainspring.workflows.run_draft import RunDraft
    from mainspring.workflows.store import Decide

CLOSED = "the run is closed, or there is none"
LOST = "the decision task is not held by this decider"


async def decide(changes: RunChanges, operation: Decide) -> Callable[[], list[Decided]]:
    """Record completions; see `Decide`. The outcomes include the events of the whole transaction."""
    outcomes = [await _decide(changes, completion, operation.now_us) for completion in operation.completions]
    return lambda: [outcome() for outcome in outcomes]


async def _decide(changes: RunChanges, completion: Completion, now_us: int) -> Callable[[], Decided]:
    found = await changes.open(completion.run, now_us)
    if isinstance(found, Unread):
        fault = found.fault
        return lambda: Decided("stale", fault)
    if found is None or found.run.row.namespace != completion.namespace:
        return lambda: Decided("stale", CLOSED)
    if completion.job and not await _is_current(changes, found, completion):
        return lambda: Decided("stale", LOST)
    if completion.decisions and (why := await unknown_version(changes, found, completion.decisions[-1])):
        completion = completion._replace(decisions=(), steps=(), parked=Parked("missing", why))
    draft, state, row = found.draft, found.run.state, found.run.row
    if why := await changes.lacks(found, _needed(state.seen, completion)):
        return lambda: Decided("stale", why)
    if StartChildWorkflowExecution in map(type, completion.decisions):
        draft.definitions = await _definitions_of_children(changes, found, completion.decisions)
    verdict, ruled, refused_close = complete(draft, completion)
    if verdict in {"stale", "refused"}:
        return lambda: Decided(verdict, ruled)
    if completion.job:
        found.completed = not completion.more
        found.replaced = completion.more
    if completion.parked is None:
        row.about = completion.about
    if draft.cancels:
        await _cancel_activities(changes, found)
    if state.status == Status.CONTINUED_AS_NEW:
        await begin_next(changes, found, completion.decisions[-1])
    seen = completion.seen
    earlier = await changes.events_after(found, seen)

    def outcome() -> Decided:
        events = [*earlier, *(event for event in found.events if event.id > seen)]
        return Decided(verdict, ruled, events, Status(state.status), refused_close)

    return outcome


def _needed(seen: int, completion: Completion) -> int:
    """Return the event behind which a completion needs the stored events of its run, which has ``seen`` decided."""
    decision = completion.decisions[-1] if completion.decisions else None
    if not isinstance(decision, ContinueAsNewWorkflowExecution):
        return completion.seen
    if decision.attempt > 1:
        return 0
    return max(0, min(completion.seen, seen, *(number - 1 for number in decision.unread)))


async def _is_current(changes: RunChanges, found: RunDraft, completion: Completion) -> bool:
    """Return whether a completion's decider holds the decision task, or has just settled it."""
    if completion.job != found.run.row.decision or found.completed:
        return False
    if completion.more:
        return found.ended is None and await changes.tables.is_held(completion.job, changes.tables.term)
    ended = found.ended
    return ended is not None and ended.state == JobState.SUCCEEDED


async def _definitions_of_children(
    changes: RunChanges, found: RunDraft, decisions: Sequence[Decision]
) -> dict[tuple[str, str], Definition]:
    """Return the workflows that decisions start, as ``Draft.definitions`` has them."""
    definitions = Definitions(changes.tables)
    started: dict[tuple[str, str], Definition] = {}
    for decision in decisions:
        if isinstance(decision, StartChildWorkflowExecution):
            name, version = decision.type, decision.version
            function = namespaces.key(found.run.row.namespace, name.encode())
            definition = await definitions.version(function, version)
            if definition is not None:
                started[name, version] = definition
    return started


async def _cancel_activities(changes: RunChanges, found: RunDraft) -> None:
    """Cancel the activities that no worker has; the jobs of the others get the request."""
    draft, state = found.draft, found.run.state
    cancels, draft.cancels = draft.cancels, []
    held: list[int] = []
    for scheduled in cancels:
        activity = state.activities.get(scheduled)
        if activity is None:
            continue
        if await changes.tables.waiting_job(activity.job) is None:
            held.append(activity.job)
        else:
            draft.withdraw(activity.job)
            canceled_before_start(draft, scheduled)
    if held:
        await changes.jobs.stop(held, draft.now_us)
