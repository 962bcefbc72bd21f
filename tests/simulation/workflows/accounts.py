"""The accounts of all runs: what is committed, what was acknowledged, and what steps and activities have done.

They follow the committed events, and judge them by simple rules of their own: the fold that the node uses may be wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.ids import Handles
from mainspring.testing.passing_time import WALL_START
from mainspring.workflows import history
from mainspring.workflows.draft import fold
from mainspring.workflows.history import decode_events
from mainspring.workflows.model import State
from mainspring.workflows.requests import ScheduleActivityTask, StartTimer
from mainspring.workflows.store import ReadHistory
from tests.simulation.store import UNTIMED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.clock import Clock
    from mainspring.workflows.messages import DecidedMessage, DecideMessage
    from mainspring.workflows.observers import Changed
    from mainspring.workflows.reading import Unread

QUIET = (
    history.DecisionTaskScheduled,
    history.DecisionTaskStarted,
    history.DecisionTaskCompleted,
    history.ActivityTaskScheduled,
    history.ActivityTaskStarted,
    history.ActivityTaskCancelRequested,
    history.MarkerRecorded,
    history.TimerStarted,
    history.TimerCanceled,
    history.StartChildWorkflowExecutionInitiated,
    history.ChildWorkflowExecutionStarted,
    history.RequestCancelExternalWorkflowExecutionInitiated,
)
"""The events that a decider causes or need not know. All others ask for a decision."""
ENDS = (
    history.ActivityTaskCompleted,
    history.ActivityTaskFailed,
    history.ActivityTaskTimedOut,
    history.ActivityTaskCanceled,
)
CLOSES = (
    history.WorkflowExecutionCompleted,
    history.WorkflowExecutionFailed,
    history.WorkflowExecutionCanceled,
    history.WorkflowExecutionTerminated,
    history.WorkflowExecutionTimedOut,
    history.WorkflowExecutionContinuedAsNew,
)
SEQUENTIAL = frozenset({"chain", "careful", "inbox", "relay"})
"""The kinds whose steps begin one after the other, each after the record of the one before."""
_json = msgspec.json.decode
SLACK = 0.001
"""Seconds by which times may differ because they are rounded."""


class Account:
    """One run, by its committed events."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.events: list[Any] = []
        self.state = State()
        self.changed: Changed | None = None
        """The run as the node was notified of it last."""
        self.unstarted = self.started = self.seen = self.trigger = 0
        self.activities: dict[int, history.ActivityTaskScheduled] = {}
        self.timers: dict[int, tuple[history.TimerStarted, float]] = {}
        """With the time before which they must not fire, by ``Accounts.time``."""
        self.steps: dict[int, history.MarkerRecorded] = {}
        self.requests: set[int] = set()
        self.close: Any = None
        self.decision = 0
        """The last job of a decision task."""

    @property
    def kind(self) -> str:
        return str(self.events[0].type)

    @property
    def root(self) -> int:
        return int(self.events[0].root)

    def of(self, *kinds: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    def add(self, event: Any, began: Callable[[int], float], now: float) -> None:
        """Add an event that is committed at ``now`` by ``Accounts.time``; ``began`` is ``Accounts.began``."""
        assert event.id == len(self.events) + 1, f"event {event.id} comes after {len(self.events)} events"
        assert self.close is None, f"{event} comes after the close"
        self.events.append(event)
        kind = type(event)
        if kind is history.DecisionTaskScheduled:
            assert not self.unstarted, "two decision tasks are scheduled"
            self.unstarted = event.id
        elif kind is history.DecisionTaskStarted:
            assert event.scheduled == self.unstarted, "a decision task starts that is not scheduled"
            assert not self.started, "two decision tasks are started"
            self.unstarted, self.started = 0, event.id
        elif kind is history.DecisionTaskCompleted:
            assert event.started == self.started, "a decision task is completed that is not started"
            assert event.scheduled <= event.seen < event.id, "a decision has seen what it cannot have seen"
            assert event.seen >= self.seen, "a decision has seen less than the one before"
            self.started, self.seen = 0, event.seen
        elif kind is history.ActivityTaskScheduled:
            self.activities[event.id] = event
        elif isinstance(event, ENDS):
            assert self.activities.pop(event.scheduled, None), f"{event} closes what is not open"
        elif kind is history.TimerStarted:
            self.timers[event.id] = event, began(event.at_us) + event.start_to_fire - SLACK
        elif kind is history.TimerFired:
            timer, at = self.timers.pop(event.started, (None, 0.0))
            assert timer is not None, f"{event}: the timer is not open"
            assert event.at_us >= timer.fire_us, f"{event} fires before {timer.fire_us}"
            assert now >= at, f"{event} fires {at - now:.3f} s too early"
        elif kind is history.TimerCanceled:
            assert self.timers.pop(event.started, None), f"{event}: the timer is not open"
        elif kind is history.MarkerRecorded:
            if event.name == history.MarkerName.STEP:
                assert event.number not in self.steps, f"step {event.number} is recorded twice"
                self.steps[event.number] = event
        elif kind in {history.WorkflowExecutionSignaled, history.WorkflowExecutionCancelRequested} and event.request:
            assert event.request not in self.requests, "a request is recorded twice"
            self.requests.add(event.request)
        elif isinstance(event, CLOSES):
            self.close = event
        if not isinstance(event, QUIET):
            self.trigger = event.id

    def check(self) -> None:
        """Check the run between two transactions."""
        changed = self.changed
        assert changed is not None
        assert changed.events == len(self.events), (
            f"the row counts {changed.events} events, there are {len(self.events)}"
        )
        if self.close is not None:
            assert changed.status, "the run is closed, and its row is not"
            return
        self.decision = changed.decision or self.decision
        assert not changed.status, "the run's row is closed, and its history is not"
        asked = bool(self.unstarted or self.started)
        assert asked or self.trigger <= self.seen, f"event {self.trigger} asks for a decision, and none is scheduled"
        assert bool(changed.decision) == (asked and not changed.parked_us), "the decision task has no job"


class Accounts:
    """All runs. It is the first observer of the runs' slice, so it sees a commit before anything follows from it."""

    def __init__(self, clock: Clock) -> None:
        self.runs: dict[int, Account] = {}
        self._steps = [(0.0, 0.0, 0.0)]
        """The steps of the node's clock: the time of each, its sum with those before, and the sum of those forward."""
        self.executed: dict[int, tuple[int, str]] = {}
        """The run and the label of each execution of a step or an activity, by its number."""
        self.read: Callable[..., None]
        """Reads from the store of the present life."""
        self._clock = clock
        self.closed: list[Account] = []
        """Runs that have closed, and whose jobs the world has not looked for."""

    def chain(self, root: int) -> list[Account]:
        """Return the runs of a root job in their order."""
        return sorted((one for one in self.runs.values() if one.root == root), key=lambda one: one.run)

    # ---- time ----

    def step(self, seconds: float) -> None:
        """Note a step of the node's clock."""
        _, offset, forward = self._steps[-1]
        self._steps.append((self._clock.monotonic(), offset + seconds, forward + max(seconds, 0.0)))

    @property
    def time(self) -> float:
        """The time that goes forward with the node's clock, and never back."""
        return self._clock.monotonic() + self._steps[-1][2]

    def began(self, at_us: int) -> float:
        """Return the earliest ``time`` that a time of the node's clock may be."""
        found = []
        ends = [at for at, _, _ in self._steps[1:]] + [self._clock.monotonic()]
        for (begin, offset, forward), end in zip(self._steps, ends, strict=True):
            at = at_us / 1e6 - WALL_START - offset
            found.append((not begin - SLACK <= at <= end + SLACK, at + forward))
        return min(found)[1]

    # ---- RunObserver ----

    def errands_stored(self) -> None:
        pass

    def holds_asked(self) -> None:
        pass

    def not_read(self, runs: Sequence[Unread]) -> None:
        raise AssertionError(f"no run was made unreadable: {runs}")

    def appended(self, runs: Sequence[Changed]) -> None:
        for changed in runs:
            account = self.runs.get(changed.run)
            if account is None:
                account = self.runs[changed.run] = Account(changed.run)
            account.changed = changed
            self._grow(account)
            account.check()
            if account.close is not None:
                self.closed.append(account)

    def _grow(self, account: Account) -> None:
        after = len(account.events)
        for event in self.stored(account.run, after):
            account.add(event, self.began, self.time)
            self._check_result(account, event)

    def stored(self, run: int, after: int = 0) -> list[Any]:
        """Return the events of a run in the store."""
        pages: list[Any] = []
        self.read(ReadHistory(run=run, after=after, limit=100_000), UNTIMED, pages.append)
        return list(pages[0].items)

    def _check_result(self, account: Account, event: Any) -> None:
        """Check that a recorded result is that of an execution for the run."""
        if isinstance(event, history.ActivityTaskCompleted):
            scheduled = account.events[event.scheduled - 1]
            run, label = _json(scheduled.input)
            assert self.executed.get(_json(event.result)) == (run, label) == (account.run, label)
        elif isinstance(event, history.MarkerRecorded) and event.name == history.MarkerName.STEP and not event.failed:
            run, label = self.executed[_json(event.details)]
            assert run == account.run
            assert label in {f"s{event.number}", "undo"}, f"step {event.number} has the result of {label}"

    # ---- the outside ----

    def step_begins(self, run: int, label: str) -> None:
        """Check that a step that is executed now has no record, and that the results before it have theirs."""
        account = self.runs[run]
        for event in account.steps.values():
            done = _json(event.details)["message"] if event.failed else self.executed[_json(event.details)][1]
            assert done != label, f"{label} of run {run} is executed again after its record"
        if account.kind in SEQUENTIAL and label != "undo":
            assert len(account.steps) == int(label[1:]) - 1, (
                f"{label} of run {run} begins before the records of all others"
            )

    def acknowledged(self, report: DecideMessage, verdict: DecidedMessage) -> None:
        """Check that what a decider has reported is committed."""
        account = self.runs[report.run]
        for event in decode_events(verdict.events):
            assert event.id <= len(account.events), (
                f"event {event.id} of run {report.run} is acknowledged and not committed"
            )
            assert account.events[event.id - 1] == event, f"{event} is acknowledged and recorded otherwise"
        for completed in decode_events(verdict.events):
            if isinstance(completed, history.DecisionTaskCompleted) and completed.now_us == report.now_us:
                self._check_seen(account, report, completed.seen)
        for step in report.steps:
            marker = account.steps.get(step.number)
            assert marker is not None, f"step {step.number} of run {report.run} is acknowledged and not recorded"
            assert (marker.digest, marker.seen) == (step.digest, report.seen), (
                f"{marker} is recorded otherwise than reported"
            )
        numbers = {event.number for event in account.of(history.ActivityTaskScheduled, history.TimerStarted)}
        for decision in report.decisions:
            if isinstance(decision, (ScheduleActivityTask, StartTimer)):
                assert decision.number in numbers, f"{decision} of run {report.run} is acknowledged and not recorded"

    @staticmethod
    def _check_seen(account: Account, report: DecideMessage, seen: int) -> None:
        """Check that a decision counts as given no event that its decider did not have."""
        ended = {Handles.parse(one.handle) for one in report.settlements} if not report.handle else set()
        for event in account.events[report.seen : seen]:
            job = getattr(account.events[getattr(event, "scheduled", 1) - 1], "job", 0)
            own = isinstance(event, history.DecisionTaskScheduled) or job in ended
            assert own, f"{event} counts as seen by a decision that has seen {report.seen} events"

    def whole(self) -> None:
        """Check that the stored histories are as they were committed, and that states are folds."""
        for account in self.runs.values():
            assert self.stored(account.run) == account.events, "a history has changed"
            account.state = fold(account.events)
            for event in account.of(history.ChildWorkflowExecutionCompleted):
                assert self.runs[event.run].close.result == event.result, "a parent has another result than its child"
            parent = account.events[0].parent_run
            if parent:
                initiated = self.runs[parent].events[account.events[0].parent_initiated - 1]
                assert initiated.run == account.run, "a child that its parent has not started"
