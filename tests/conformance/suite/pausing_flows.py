"""Pauses of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Options, Retry, State, encode_options
from mainspring.jobs.rules import Event
from mainspring.workflows import store as ops
from mainspring.workflows.model import Key, Parked, Pause, Status
from mainspring.workflows.pausing import HELD_US
from mainspring.workflows.requests import Signal
from tests.conformance.suite.driver import released
from tests.conformance.suite.flows import SECOND, FlowFixtures

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from tests.conformance.suite.flows import Flows

RETRYING = encode_options(Options(retry=Retry(max_attempts=3)))


def waiting(flows: Flows, run: int) -> list[Job]:
    """Decide to schedule two activities; return their jobs, which wait."""
    flows.running(run, flows.activity(), flows.activity(options=RETRYING))
    activities = sorted(flows.shown(run).state.activities.values(), key=lambda one: one.scheduled)
    return [flows.store.present(one.job) for one in activities]


class PausingFlows(FlowFixtures):
    """A paused run records what happens to it, and does nothing of its own accord."""

    def test_no_decision_is_handed_out(self, flows: Flows) -> None:
        run = flows.start()
        at_us = flows.now_us
        assert flows.pause(run, reason="the bank is down", by="ada").verdict == "recorded"
        row = flows.row(run)
        assert row.parking.pause == Pause(at_us, 0, "the bank is down", "ada")
        assert (row.paused_us, row.decision, row.parked) == (at_us, 0, None)
        assert flows.signal(Signal(Key(run=run), "approved", b"1"))[0].verdict == "recorded"
        assert flows.tasks() == []
        flows.wait(SECOND)
        assert flows.pause(run, reason="still").verdict == "recorded"
        assert flows.row(run).parking.pause == Pause(at_us, 0, "still")
        assert flows.list(paused=True) == [run]
        assert flows.resume(run).verdict == "recorded"
        assert flows.list(paused=True) == []
        assert flows.resume(run).verdict == "repeated"
        flows.running(run, flows.close())

    def test_waiting_activities_are_held_with_their_times(self, flows: Flows) -> None:
        run = flows.start()
        first, second = waiting(flows, run)
        (job,) = [one for one in flows.store.claim(b"charge", 2) if one.id == second.id]
        due_us = flows.now_us + 5 * SECOND
        settlement = flows.settled(job, event=Event.RETRY)
        settlement.due_us = due_us
        held = flows.store.present(first.id)
        flows.store.settle(settlement, released(held))
        flows.pause(run)
        for activity in (first, second):
            assert (stored := flows.store.present(activity.id)).state == State.SCHEDULED
            assert stored.due_us == HELD_US
        assert flows.store.claim(b"charge") == []
        assert sorted(flows.store.lifecycle.rescheduled_jobs) == sorted([first.id, second.id])
        flows.resume(run)
        assert flows.store.present(first.id).state == State.PENDING
        later = flows.store.present(second.id)
        assert (later.state, later.due_us, later.attempt) == (State.SCHEDULED, due_us, 1)

    def test_a_started_activity_goes_on_and_its_next_attempt_waits(self, flows: Flows) -> None:
        run = flows.start()
        waiting(flows, run)
        first, second = flows.store.claim(b"charge", 2)
        flows.pause(run)
        settlement = flows.settled(second, event=Event.RETRY)
        settlement.due_us = flows.now_us + SECOND
        flows.store.settle(flows.settled(first, b"done"), settlement)
        assert "ActivityTaskCompleted" in flows.kinds(run)
        assert flows.row(run).decision == 0
        assert flows.store.present(second.id).due_us == HELD_US
        flows.resume(run)
        assert flows.store.present(second.id).due_us == settlement.due_us
        flows.running(run)

    def test_an_activity_that_is_handed_back_waits(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.held_activity(run)
        flows.pause(run)
        flows.store.settle(released(activity))
        assert flows.store.claim(b"charge") == []
        flows.resume(run)
        assert [job.id for job in flows.store.claim(b"charge")] == [activity.id]

    def test_a_decision_that_a_worker_has_goes_on_and_the_next_one_waits(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        flows.pause(run)
        assert flows.row(run).decision == task.id
        assert flows.decide(run, task, flows.activity(), flows.timer(5)).verdict == "recorded"
        (activity,) = flows.shown(run).state.activities.values()
        assert flows.store.present(activity.job).due_us == HELD_US
        flows.signal(Signal(Key(run=run), "approved", b"1"))
        assert flows.row(run).decision == 0
        flows.resume(run)
        assert [job.id for job in flows.store.claim(b"charge")] == [activity.job]
        flows.running(run)

    def test_a_decision_that_goes_on_waits_with_its_next_part(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        flows.pause(run)
        decided = flows.decide(run, task, flows.activity(), more=True)
        assert decided.verdict == "recorded"
        assert flows.row(run).decision == 0
        flows.resume(run)
        flows.running(run)

    def test_a_decision_that_its_worker_loses_waits(self, flows: Flows) -> None:
        for settlement in (released, lambda job: flows.settled(job, event=Event.LOSE)):
            run = flows.start()
            task = flows.task(run)
            flows.pause(run)
            flows.store.settle(settlement(task))
            assert flows.row(run).decision == 0
            assert flows.tasks() == []
            flows.resume(run)
            flows.running(run, flows.close())

    def test_the_end_of_an_activity_is_recorded_and_the_fused_decision_is_stale(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.held_activity(run)
        flows.pause(run)
        decided = flows.fuse(run, activity, flows.close(), seen=flows.row(run).events)
        assert (decided.verdict, decided.why) == ("stale", "the run is paused")
        assert "ActivityTaskCompleted" in flows.kinds(run)
        assert flows.status(run) is Status.OPEN
        flows.resume(run)
        flows.running(run, flows.close())

    def test_a_pause_ends_at_its_time(self, flows: Flows) -> None:
        run = flows.start()
        first, _ = waiting(flows, run)
        until_us = flows.now_us + 10 * SECOND
        flows.pause(run, until_us=until_us)
        assert flows.row(run).due_us == until_us
        flows.ring(run)
        assert flows.row(run).paused_us
        flows.now_us = until_us
        assert flows.alarms().due == [(run, until_us)]
        flows.ring(run)
        assert flows.row(run).paused_us == 0
        assert flows.store.present(first.id).state == State.PENDING

    def test_timers_fire_while_it_is_paused(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.timer(5))
        flows.pause(run)
        flows.wait(5 * SECOND)
        flows.ring(run)
        assert flows.kinds(run)[-2:] == ["TimerFired", "DecisionTaskScheduled"]
        assert flows.tasks() == []
        flows.resume(run)
        flows.running(run, flows.close())

    def test_a_start_to_close_timeout_of_a_held_activity_comes(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.activity(schedule_to_start=3.0))
        flows.pause(run)
        flows.wait(3 * SECOND)
        flows.ring(run)
        assert "ActivityTaskTimedOut" in flows.kinds(run)
        assert "ActivityTaskStarted" not in flows.kinds(run)
        flows.resume(run)
        flows.running(run, flows.close())

    def test_a_paused_run_can_be_ended(self, flows: Flows) -> None:
        run = flows.start()
        waiting(flows, run)
        flows.pause(run)
        flows.terminate(Key(run=run), "enough")
        assert flows.status(run) is Status.TERMINATED
        assert flows.pause(run).verdict == flows.resume(run).verdict == "closed"

    def test_an_abandoned_activity_is_left_alone(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.activity(abandoned=True))
        flows.pause(run)
        assert len(flows.store.claim(b"charge")) == 1

    def test_a_job_that_was_rescheduled_by_hand_stays_so(self, flows: Flows) -> None:
        run = flows.start()
        first, _ = waiting(flows, run)
        flows.pause(run)
        flows.group(job_ops.Reschedule(first.id, flows.now_us, due_us=flows.now_us + SECOND))
        flows.resume(run)
        assert flows.store.present(first.id).due_us == flows.now_us + SECOND

    def test_parked_and_paused_have_their_own_ends(self, flows: Flows) -> None:
        run = flows.start()
        flows.park(run, Parked("defect", "no"))
        flows.pause(run)
        flows.unpark()
        assert flows.tasks() == []
        flows.resume(run)
        flows.running(run, flows.close())

    def test_the_next_run_of_a_chain_is_paused_too(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        flows.pause(run, reason="no")
        assert flows.decide(run, task, flows.continuing(b"next")).status is Status.CONTINUED_AS_NEW
        following = flows.last(run)
        assert flows.row(following).parking.pause == Pause(flows.now_us, 0, "no")
        assert flows.tasks() == []
        flows.resume(following)
        flows.running(following, flows.close())

    def test_a_run_that_has_not_begun_or_is_unknown(self, flows: Flows) -> None:
        job = flows.new()
        flows.group(job_ops.Submit([job]))
        (reached,) = flows.group(ops.PauseRun(Key(job=job.id), flows.now_us))
        assert (reached.verdict, reached.root) == ("unbegun", job.id)
        assert flows.pause(12345).verdict == "unknown"
