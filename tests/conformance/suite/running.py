"""Ends of runs, and overlapping runs."""

from __future__ import annotations

import pytest

from mainspring.jobs import store as job_ops
from mainspring.jobs.rules import Event
from mainspring.schedules.model import Overlap
from tests.conformance.suite.scheduling import SECOND, START, Scheduling, named

ENDS = [Event.SUCCEED, Event.FAIL, Event.CANCEL]


class Running:
    """Tests of runs."""

    # ---- how runs end ----

    @pytest.mark.parametrize("event", ENDS)
    def test_the_row_records_the_end_of_a_run(self, s: Scheduling, event: Event) -> None:
        s.add("a")
        s.fire()
        job = s.running("a")
        s.now_us += 5 * SECOND
        error = b"" if event is Event.SUCCEED else b'{"type":"E","message":"m"}'
        s.end(job, event, started_us=START + 1, error=error)
        (row,) = s.history("a")
        assert (row.node, row.worker, row.attempt, row.error) == ("n1", "w", 1, error)
        assert (row.started_us, row.ended_us) == (START + 1, s.now_us)
        assert row.outcome == {Event.SUCCEED: "succeeded", Event.FAIL: "failed", Event.CANCEL: "cancelled"}[event]

    def test_a_retry_is_no_end(self, s: Scheduling) -> None:
        s.add("a")
        s.fire()
        job = s.running("a")
        s.end(job, Event.RETRY, due_us=s.now_us, ended_us=0)
        assert s.outcomes("a") == ["fired"]
        s.store.wake(s.now_us)
        retried = s.running("a")
        assert retried.options == job.options
        s.end(retried)
        (row,) = s.history("a")
        assert (row.outcome, row.attempt) == ("succeeded", 2)

    def test_a_waiting_job_that_is_cancelled_or_expires_ends_its_run(self, s: Scheduling) -> None:
        s.add("a", expires=10.0)
        s.add("b")
        s.fire()
        (row,) = s.history("b")
        s.store.cancel(row.job, b"{}", s.now_us + 1)
        s.store.wake(s.now_us + 11 * SECOND)
        assert (s.outcomes("a"), s.outcomes("b")) == (["expired"], ["cancelled"])
        (row,) = s.history("b")
        assert (row.node, row.error, row.ended_us) == ("", b"{}", s.now_us + 1)

    def test_a_lost_node_ends_no_run(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.FORBID)
        s.fire()
        job = s.running("a")
        s.store.reopen("n2")
        s.attend()
        assert s.store.recover() == 1
        s.at(1)
        s.fire()
        assert s.outcomes("a") == ["fired", "overlap"]
        assert s.store.settle(s.settlement(job)) == {job.id}
        assert s.outcomes("a") == ["fired", "overlap"]
        s.run("a")
        assert s.outcomes("a") == ["succeeded", "overlap"]
        assert s.history("a")[0].node == "n2"

    def test_several_runs_end_in_one_group(self, s: Scheduling) -> None:
        names = [f"s{number}" for number in range(20)]
        for name in names:
            s.add(name, function=b"f", overlap=Overlap.QUEUE)
            s.add(f"{name}-child", parents=(name,))
        s.at(1)
        s.fire()
        jobs = s.store.claim(b"f")
        s.store.settle(*(s.settlement(job) for job in jobs))
        assert [s.outcomes(name)[-1] for name in names] == ["succeeded"] * 20
        assert [s.outcomes(f"{name}-child")[-1] for name in names] == ["fired"] * 20

    def test_a_settlement_and_a_fire_time_of_one_group(self, s: Scheduling) -> None:
        """A job that a group settles has ended for the fire times of that group."""
        s.add("a", overlap=Overlap.FORBID)
        s.fire()
        job = s.running("a")
        s.at(1)
        s.group(s.firing(), job_ops.Settle([s.settlement(job)]))
        assert s.outcomes("a") == ["succeeded", "fired"]

    # ---- overlap ----

    def test_runs_overlap_where_they_may(self, s: Scheduling) -> None:
        s.add("a")
        for minute in range(3):
            s.at(minute)
            s.fire()
        assert s.outcomes("a") == ["fired"] * 3

    def test_overlap_is_forbidden(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.FORBID)
        for minute in range(3):
            s.at(minute)
            s.fire()
            if minute == 1:
                s.run("a")
        assert s.outcomes("a") == ["succeeded", "overlap", "fired"]

    @pytest.mark.parametrize("event", ENDS)
    def test_runs_queue(self, s: Scheduling, event: Event) -> None:
        s.add("a", overlap=Overlap.QUEUE)
        for minute in range(3):
            s.at(minute)
            s.fire()
        assert s.outcomes("a") == ["fired", "waiting", "waiting"]
        assert s.stored("a").state.queued == 2
        s.run("a", event)
        ended = {Event.SUCCEED: "succeeded", Event.FAIL: "failed", Event.CANCEL: "cancelled"}[event]
        assert s.outcomes("a") == [ended, "fired", "waiting"]
        s.run("a")
        s.run("a")
        assert s.outcomes("a") == [ended, "succeeded", "succeeded"]
        assert s.stored("a").state.queued == 0

    def test_a_job_that_expires_lets_the_next_one_start(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.QUEUE, expires=90.0)
        s.fire()
        s.at(1)
        s.fire()
        s.store.wake(START + 100 * SECOND)
        assert s.outcomes("a") == ["expired", "fired"]

    def test_a_run_replaces_the_one_before(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.REPLACE)
        s.fire()
        job = s.running("a")
        s.at(1)
        s.fire()
        assert s.outcomes("a") == ["fired", "waiting"]
        assert s.lifecycle.cancelled == [job.id]
        s.at(2)
        s.fire()
        assert s.outcomes("a") == ["fired", "overlap", "waiting"]
        assert s.repair() == 0
        assert s.lifecycle.cancelled == [job.id] * 3
        assert s.claim("a") == []
        s.end(job, Event.CANCEL)
        assert s.outcomes("a") == ["cancelled", "overlap", "fired"]
        s.run("a")

    def test_a_fire_time_that_was_decided_before_is_not_waited_for(self, s: Scheduling) -> None:
        schedule = s.add("a", overlap=Overlap.QUEUE, misfire="all")
        s.fire()
        s.run("a")
        s.change("remove", "a")
        s.put(schedule)
        s.at(2)
        s.fire()
        assert s.outcomes("a") == ["succeeded", "fired", "waiting"]
        assert s.repair() == 0

    def test_overlap_is_changed_while_rows_wait(self, s: Scheduling) -> None:
        s.add("a", overlap=Overlap.QUEUE)
        s.fire()
        s.at(1)
        s.fire()
        s.put(named(s.stored("a").schedule, "a", overlap=Overlap.ALLOW))
        s.run("a")
        assert s.repair() == 1
        s.run("a")
        assert s.outcomes("a") == ["succeeded", "succeeded"]
