"""Random lives of lean runs, compared with a naive model: the list of all events, read from the beginning for each question."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.unit.workflows.drafts import JOB, SECOND, Run, ended

from mainspring.errors import IllegalTransitionError
from mainspring.jobs.model import State as JobState
from mainspring.jobs.owners import AttemptEnded
from mainspring.workflows import execution, history
from mainspring.workflows.activities import activity_ended, canceled_before_start
from mainspring.workflows.draft import decision_lost, fold, needs_decision, unpark
from mainspring.workflows.execution import complete
from mainspring.workflows.model import UNKNOWN_BUILD, Limits, Parked, decode_state, due_us, encode_state
from mainspring.workflows.requests import (
    CancelTimer,
    CancelWorkflowExecution,
    CompleteWorkflowExecution,
    Completion,
    FailWorkflowExecution,
    RecordMarker,
    RequestCancelActivityTask,
    ScheduleActivityTask,
    ScheduleLambdaFunction,
    StartTimer,
    StepResult,
)
from mainspring.workflows.timeouts import ring, unstarted_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.workflows.draft import Draft
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import State
    from mainspring.workflows.requests import Decision

LIMITS = Limits(events=150, reserved=30, open_activities=4, open_timers=3)

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
)

commands = st.lists(
    st.sampled_from(
        [
            *(ScheduleActivityTask(0, name, b"charge") for name in "abcde"),
            *(ScheduleActivityTask(0, name, b"charge", schedule_to_start=2.0) for name in "ab"),
            *(ScheduleActivityTask(0, name, b"charge", schedule_to_close=5.0, schedule_to_start=2.0) for name in "ab"),
            *(RequestCancelActivityTask(0, name) for name in "abc"),
            *(StartTimer(0, name, seconds) for name in "abcd" for seconds in (0.0, 1.0, 60.0)),
            *(CancelTimer(0, name) for name in "ab"),
            RecordMarker(0, "patch"),
            ScheduleLambdaFunction(0, "a", "f"),
        ]
    ),
    max_size=4,
)
closes = st.sampled_from(
    [CompleteWorkflowExecution(0, b"done"), FailWorkflowExecution(0, "no"), CancelWorkflowExecution(0)]
)


class Model:
    """The answers to all questions about a run, each by a look at all its events."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events

    def of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    @property
    def closed(self) -> bool:
        return bool(self.of(*CLOSES))

    @property
    def tasks(self) -> list[int]:
        """The decision tasks that are not completed, the first one being current."""
        completed = {event.scheduled for event in self.of(history.DecisionTaskCompleted)}
        return [event.id for event in self.of(history.DecisionTaskScheduled) if event.id not in completed]

    @property
    def started(self) -> list[int]:
        """The starts of decision tasks that are not completed."""
        completed = {event.started for event in self.of(history.DecisionTaskCompleted)}
        return [event.id for event in self.of(history.DecisionTaskStarted) if event.id not in completed]

    @property
    def seen(self) -> int:
        completed = self.of(history.DecisionTaskCompleted)
        return completed[-1].seen if completed else 0

    @property
    def triggers(self) -> list[int]:
        return [event.id for event in self.events if not isinstance(event, QUIET)]

    @property
    def activities(self) -> dict[int, history.ActivityTaskScheduled]:
        if self.closed:
            return {}
        over = {event.scheduled for event in self.of(*ENDS)}
        return {event.id: event for event in self.of(history.ActivityTaskScheduled) if event.id not in over}

    @property
    def timers(self) -> dict[int, history.TimerStarted]:
        if self.closed:
            return {}
        over = {event.started for event in self.of(history.TimerFired, history.TimerCanceled)}
        return {event.id: event for event in self.of(history.TimerStarted) if event.id not in over}

    @property
    def due_us(self) -> int:
        if self.closed:
            return 0
        times = [self.events[0].at_us + int(self.events[0].execution_timeout * SECOND)]  # type: ignore[attr-defined]
        times += [timer.fire_us for timer in self.timers.values()]
        begun = {event.scheduled for event in self.of(history.ActivityTaskStarted)}
        for activity in self.activities.values():
            if activity.schedule_to_start and activity.id not in begun:
                times.append(activity.at_us + int(activity.schedule_to_start * SECOND))
            if activity.schedule_to_close:
                times.append(activity.at_us + int(activity.schedule_to_close * SECOND))
        return min(times)

    @property
    def steps(self) -> list[history.MarkerRecorded]:
        """The steps that were recorded since the last completed decision."""
        steps: list[history.MarkerRecorded] = []
        for event in self.events:
            if isinstance(event, history.DecisionTaskCompleted):
                steps = []
            elif isinstance(event, history.MarkerRecorded) and not event.decision_completed:
                steps.append(event)
        return steps


def assert_same(one: State, other: State) -> None:
    assert one == other
    assert list(one.requests) == list(other.requests)


class Decider:
    """A decider that was given a decision task."""

    def __init__(self, task: int, seen: int, batch: int) -> None:
        self.task = task
        self.seen = seen
        self.batch = batch


class RunMachine(RuleBasedStateMachine):
    """Requests to a run in any order."""

    @initialize(timeout=st.sampled_from([60.0, 6000.0]))
    def begin(self, timeout: float) -> None:
        self.run_ = Run(limits=LIMITS, timeout=timeout)
        self.jobs: dict[int, bool] = {}
        self.deciders: list[Decider] = []
        self.steps = 0
        self.requests: list[int] = []

    @property
    def model(self) -> Model:
        return Model(self.run_.events)

    def commit(self, draft: Draft) -> None:
        """Write a transaction as a unit does: jobs that a decision cancels are held or not."""
        for scheduled in draft.cancels:
            activity = draft.state.activities.get(scheduled)
            if activity is not None and not self.jobs.get(activity.job, False):
                self.jobs.pop(activity.job, None)
                canceled_before_start(draft, scheduled)
        for job in draft.withdrawn:
            assert draft.state.status or job in self.jobs
            self.jobs.pop(job, None)
        self.jobs |= dict.fromkeys(draft.submitted, False)
        self.run_.commit(draft)

    # ---- requests ----

    @rule(request=st.sampled_from([0, 0, 0, 1, 2, -1]))
    def request(self, request: int) -> None:
        """A signal, or (-1) a cancel request."""
        model = self.model
        closed, repeated, events = model.closed, request > 0 and request in self.requests, len(model.events)
        full = events >= LIMITS.events - LIMITS.reserved
        if request < 0:
            full = full and bool(model.of(history.WorkflowExecutionCancelRequested))
            answer = self.run_.do(execution.request_cancel)
        else:
            answer = self.run_.signal(request=request)
        verdict = "repeated" if repeated else "closed" if closed else "full" if full else "recorded"
        assert answer.verdict == verdict
        assert (len(self.run_.events) > events) == (verdict == "recorded")
        if verdict == "recorded":
            self.requests.append(request)

    # ---- decisions ----

    def hand_out(self) -> Decider:
        """Give the task to a decider. Earlier ones may still be at work: they were lost, and do not know it."""
        state = self.run_.state
        seen = state.step_seen or state.last
        self.deciders.append(Decider(state.scheduled, seen, state.batch))
        del self.deciders[:-3]
        return self.deciders[-1]

    @precondition(lambda self: self.deciders or needs_decision(self.run_.state, self.run_.parking))
    @rule(
        who=st.sampled_from([3, 3, 3, 0, 1, 2]),
        decisions=commands,
        close=st.sampled_from([False] * 9 + [True]),
        kind=closes,
        more=st.booleans(),
        steps=st.sampled_from([0, 0, 1, 2]),
        digest=st.sampled_from([0, 0, 5, 5, 6]),
    )
    def complete(
        self,
        who: int,
        decisions: Sequence[Decision],
        close: bool,
        kind: Decision,
        more: bool,
        steps: int,
        digest: int,
    ) -> None:
        """A decider completes its decision; mostly one that was given the task just now.

        With a digest it repeats the first recorded step, which has digest 5.
        """
        if needs_decision(self.run_.state, self.run_.parking) and (who == 3 or not self.deciders):
            decider = self.hand_out()
        elif self.deciders:
            decider = self.deciders[who % len(self.deciders)]
        else:
            return
        self.judge(decider, decisions, kind if close else None, more=more and not close, steps=steps, digest=digest)

    @precondition(lambda self: needs_decision(self.run_.state, self.run_.parking))
    @rule(
        event=st.sampled_from(["none", "before", "between"]),
        steps=st.sampled_from([0, 1, 1, 2]),
        second=st.tuples(commands, st.one_of(st.none(), st.none(), closes), st.booleans(), st.sampled_from([0, 1])),
        digest=st.sampled_from([0, 0, 5, 6]),
    )
    def race(
        self, event: str, steps: int, second: tuple[Sequence[Decision], Decision | None, bool, int], digest: int
    ) -> None:
        """Two deciders have the task; the first one records steps, or is lost.

        An event comes before the second one gets the task, so that the first one lacks it. Or it comes between the reports, and
        the second one does not resume the decision as the first one began it.
        """
        first = self.hand_out()
        if event == "before":
            self.request(0)
        if not needs_decision(self.run_.state, self.run_.parking):
            return
        other = self.hand_out()
        if steps:
            self.judge(first, [], None, more=True, steps=steps, digest=0)
        if event == "between":
            self.request(0)
            if self.model.tasks[:1] == [other.task]:
                other.seen = self.run_.state.last
        decisions, close, late, more_steps = second
        last = other if late else first
        if last in self.deciders:
            self.judge(last, decisions, close, more=close is None and not decisions, steps=more_steps, digest=digest)
        if event == "between" and other in self.deciders:
            self.deciders.remove(other)  # a unit knows by its job that a later task is not its own

    def judge(
        self,
        decider: Decider,
        decisions: Sequence[Decision],
        close: Decision | None,
        *,
        more: bool,
        steps: int,
        digest: int,
    ) -> None:
        """Have a decider complete its decision, and compare the verdict with the model's."""
        model = self.model
        recorded = model.steps
        results = [StepResult(self.steps + n, decider.batch + 1, "price", b"1", 5) for n in range(1, steps + 1)]
        if digest and recorded:
            results.insert(0, StepResult(recorded[0].number, recorded[0].batch, "price", b"1", digest))
        if close is not None:
            decisions = [*decisions, close]
        expected = "recorded"
        closed, parked = model.closed, self.run_.parking.parked is not None
        differs = bool(recorded) and (recorded[0].seen != decider.seen or digest == 6)
        if closed or parked or differs or model.tasks[:1] != [decider.task]:
            expected = "stale"
        elif steps and recorded and recorded[-1].batch > decider.batch:
            expected = "refused"
        completed = len(model.of(history.DecisionTaskCompleted))
        events, unseen = len(model.events), [one for one in model.triggers if one > decider.seen]
        draft = self.run_.draft()
        ruling = complete(
            draft,
            Completion(17, JOB, decider.seen, batch=decider.batch, steps=results, decisions=decisions, more=more),
        )
        self.commit(draft)
        if not closed and model.of(history.WorkflowExecutionTerminated):
            assert len(self.run_.events) > LIMITS.events - 20, "the history was full"
            return
        assert ruling.verdict == expected, ruling
        if expected != "recorded":
            assert len(self.run_.events) == events
            self.deciders.remove(decider)
            return
        self.steps += steps
        decider.batch += bool(steps)
        assert len(model.steps) == (0 if model.tasks[:1] != [decider.task] else len(recorded) + steps)
        goes_on = more and not decisions and not unseen
        assert len(model.of(history.DecisionTaskCompleted)) == completed + (not goes_on)
        assert ruling.refused_close == (close is not None and bool(unseen))
        assert model.closed == (close is not None and not unseen)
        assert model.closed or not more or model.tasks
        if decider.task not in model.tasks:
            self.deciders.remove(decider)

    @precondition(lambda self: self.jobs)
    @rule(
        data=st.data(),
        decisions=commands,
        behind=st.sampled_from([0, 0, 0, 1, 2]),
        close=st.sampled_from([False] * 9 + [True]),
        decided=st.booleans(),
    )
    def fuse(self, data: st.DataObject, decisions: Sequence[Decision], behind: int, close: bool, decided: bool) -> None:
        """A worker ends an activity and decides at once; it may lack the newest events. Mostly no decision task is open."""
        if decided and needs_decision(self.run_.state, self.run_.parking):
            self.judge(self.hand_out(), [], None, more=False, steps=0, digest=0)
        if not self.jobs:
            return
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        if close:
            decisions = [*decisions, CompleteWorkflowExecution(0)]
        model = self.model
        current = not behind and not model.tasks and not model.closed
        events = len(model.events)
        draft = self.run_.draft()
        activity_ended(draft, self.run_.scheduled(job), ended(job))
        del self.jobs[job]
        parked = self.run_.parking.parked
        ruling = complete(draft, Completion(17, seen=events - behind, decisions=decisions, settled=[job]))
        self.commit(draft)
        if parked is not None or not current:
            assert ruling.verdict == "stale"
        elif not self.run_.state.status or not any(
            isinstance(event, history.WorkflowExecutionTerminated) for event in draft.events
        ):
            assert ruling.verdict == "recorded"
            assert not ruling.refused_close

    @rule(
        kind=st.sampled_from(["hand out", "hand out", "evict", "lose", "lose", "park", "terminate"]),
        build=st.sampled_from(["", "a", "b"]),
    )
    def trouble(self, kind: str, build: str) -> None:
        run = self.run_
        if run.parking.parked is not None:
            tried = build and not {build, UNKNOWN_BUILD}.isdisjoint(run.parking.builds)
            assert run.do(unpark, build) == (not tried)
        elif kind == "terminate" and len(run.events) > 100:
            draft = run.draft()
            execution.terminate(draft)
            self.commit(draft)
        elif kind == "evict":
            self.evict()
        elif not needs_decision(run.state, run.parking):
            return
        elif kind == "hand out":
            self.hand_out()
        elif kind == "lose":
            run.do(decision_lost, AttemptEnded(JOB, "lose", 3, 1, 0, b"", None))
        elif kind == "park":
            completion = Completion(
                17, JOB, run.state.step_seen or run.state.last, parked=Parked("mismatch", "differs"), build=build
            )
            assert run.do(complete, completion).verdict == "parked"

    # ---- activities and time ----

    @precondition(lambda self: self.jobs)
    @rule(
        data=st.data(),
        state=st.sampled_from([None, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED]),
        twice=st.booleans(),
    )
    def settle(self, data: st.DataObject, state: JobState | None, twice: bool) -> None:
        """A worker starts an activity, or ends it."""
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        if state is None:
            self.jobs[job] = True
            return
        error = data.draw(st.sampled_from([b"", b'{"type":"Timeout","message":"late"}']))
        scheduled = self.run_.scheduled(job)
        draft = self.run_.draft()
        activity_ended(draft, scheduled, ended(job, state, error=error))
        del self.jobs[job]
        if twice:
            assert not activity_ended(draft, scheduled, ended(job, state))
        self.commit(draft)

    @rule(after=st.sampled_from([0, 1, 1, 5]))
    def ring(self, after: int) -> None:
        run = self.run_
        run.now_us += after * SECOND
        held = [job for job in unstarted_jobs(run.state, run.now_us) if self.jobs[job]]
        draft = run.draft()
        ring(draft, held)
        self.commit(draft)
        due = due_us(run.state, run.parking)
        assert due == 0 or due > run.now_us

    def evict(self) -> None:
        """The state leaves the memory, and comes back from its snapshot, from the history, or from both."""
        run = self.run_
        restored = decode_state(encode_state(run.state))
        middle = len(run.events) // 2
        at_middle = decode_state(encode_state(fold(run.events[:middle])))
        tail = history.decode_events(history.encode_events(run.events[middle:]))
        assert restored is not None
        assert_same(fold(tail, at_middle), restored)
        run.state = restored

    # ---- always ----

    @invariant()
    def the_state_is_the_fold_of_all_events(self) -> None:
        assert_same(fold(self.run_.events), self.run_.state)

    @invariant()
    def ids_are_dense(self) -> None:
        assert [event.id for event in self.run_.events] == list(range(1, len(self.run_.events) + 1))
        assert len(self.run_.events) <= LIMITS.events

    @invariant()
    def one_task_is_scheduled_and_one_started(self) -> None:
        model = self.model
        assert len(model.started) <= 1
        assert len(model.tasks) <= 1 + len(model.started)

    @invariant()
    def unseen_events_imply_a_task(self) -> None:
        model = self.model
        if not model.closed and model.triggers[-1] > model.seen:
            assert model.tasks
            assert needs_decision(self.run_.state, self.run_.parking) or self.run_.parking.parked

    @invariant()
    def everything_opened_closes_once(self) -> None:
        model = self.model
        ends = [event.scheduled for event in model.of(*ENDS)]
        assert len(ends) == len(set(ends))
        over = [event.started for event in model.of(history.TimerFired, history.TimerCanceled)]
        assert len(over) == len(set(over))
        assert len(model.of(*CLOSES)) <= 1
        assert not model.closed or isinstance(model.events[-1], CLOSES)
        assert set(self.run_.state.activities) == set(model.activities)
        assert len(model.activities) <= LIMITS.open_activities
        assert len(model.timers) <= LIMITS.open_timers
        assert {timer.started for timer in self.run_.state.timers.values()} == set(model.timers)

    @invariant()
    def each_open_activity_has_its_job(self) -> None:
        open_jobs = {activity.job for activity in self.model.activities.values()}
        assert open_jobs == set(self.jobs) == {one.job for one in self.run_.state.activities.values() if one.job}

    @invariant()
    def the_alarm_is_the_least_of_all_times(self) -> None:
        assert due_us(self.run_.state) == self.model.due_us


SHORT = settings(max_examples=60, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(SHORT, max_examples=2000)
PLANTED = settings(
    SHORT, max_examples=300, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False
)

TestRunMachine = RunMachine.TestCase
TestRunMachine.settings = SHORT


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_lives_agree_with_the_model() -> None:
    run_state_machine_as_test(RunMachine, settings=LONG)


PLANTS = {
    "stale decision": ("state.scheduled <= seen <= state.last", "seen <= state.last"),
    "seen": ("seen = state.last if fused or state.full else completion.seen", "seen = state.last"),
    "unseen events": ("unseen = state.last_trigger > (state.started if state.full else seen)", "unseen = False"),
    "seen of steps": ("state.batch and seen != state.step_seen", "False"),
    "digests": ("recorded.get(step.number, step.digest) != step.digest", "False"),
    "batches": ("step.batch < batch or step.batch <= state.batch", "False"),
    "newer events": ("seen != state.last or not completion.settled", "not completion.settled"),
    "open task": ("state.started or 0 < state.scheduled <= draft.base", "False"),
    "next task": ("completion.more or state.last_trigger > state.seen", "completion.more"),
}
"""Guards of `complete`, and the rest of each if a defect ignores it."""
QUICK = ("seen", "digests", "unseen events")
"""The short form plants these alone: it takes a second."""


@pytest.mark.parametrize(
    "ignored", [pytest.param(one, marks=() if one in QUICK else pytest.mark.long) for one in PLANTS]
)
def test_an_ignored_guard_is_found(ignored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(execution)
    guard, rest = PLANTS[ignored]
    assert source.count(guard) == 1
    planted: dict[str, Any] = {"__name__": __name__}
    exec(compile(source.replace(guard, rest), "planted", "exec"), planted)
    monkeypatch.setitem(globals(), "complete", planted["complete"])
    with pytest.raises((AssertionError, IllegalTransitionError)):
        run_state_machine_as_test(RunMachine, settings=PLANTED)
