"""Published values: what is stored for jobs and runs, by whom, and until when."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mainspring.jobs import store as job_ops
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event
from mainspring.values.model import ALL_BYTES, MOST_NAMES, VALUE_BYTES, NewValue, StoredValue, Swept
from mainspring.values.service import LookValues, PublishValues, ReadValues, Seen, SweepValues
from mainspring.workflows import store as ops
from mainspring.workflows.model import Key, Parked
from mainspring.workflows.requests import Signal
from tests.conformance.suite.driver import NOW, Store, done, released
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.flows import FlowFixtures, Flows

if TYPE_CHECKING:
    from mainspring.jobs.model import Job


def new(job: Job, name: str = "a", value: bytes = b"1", *, attempt: int = 1, at_us: int = NOW) -> NewValue:
    """Return a value of a job."""
    return NewValue(job.id, name, attempt, at_us, value)


def publishing(store: Store, *values: NewValue) -> PublishValues:
    """Return the operation that stores values under the term of a store."""
    return PublishValues(values, store.term)


def publish(store: Store, *values: NewValue) -> list[int]:
    """Store values; return the jobs whose values were taken."""
    (taken,) = store.group(publishing(store, *values))
    assert isinstance(taken, list)
    return taken


def values_of(store: Store, job: int) -> dict[str, bytes]:
    """Return the values of a job by their names."""
    return {one.name: one.value for one in store.read(ReadValues(job))}


def live_without_values(flows: Flows) -> None:
    """Let jobs and runs that publish nothing, and await nothing, begin and end and be deleted."""
    store = flows.store
    job, other = store.leased(), store.leased()
    store.end(job)
    store.cancel(other.id)
    run = flows.start()
    activity = flows.held_activity(run)
    flows.fuse(run, activity, flows.activity())
    following = flows.chained(flows.start())
    flows.running(following, flows.close())
    flows.forget()
    store.sweep(NOW + 10**9, NOW + 10**9)
    store.group(job_ops.DeleteEnded(job.id))


class ValueSuite(StoreFixtures):
    """The contract of ``mainspring.values.service`` for jobs."""

    def test_the_last_value_of_each_name_is_read(self, store: Store) -> None:
        job = store.leased()
        assert publish(store, new(job), new(job, "b", b'{"x":[null,"\xc3\xa4"]}', at_us=NOW + 5)) == [job.id]
        assert publish(store, new(job, "a", b"2", attempt=2, at_us=NOW + 9)) == [job.id]
        store.reopen()
        found = store.read(ReadValues(job.id))
        assert found == [
            StoredValue(job.id, "a", 2, 3, NOW + 9, b"2"),
            StoredValue(job.id, "b", 1, 2, NOW + 5, b'{"x":[null,"\xc3\xa4"]}'),
        ]
        assert store.read(ReadValues(job.id, "b")) == found[1:]
        assert store.read(ReadValues(job.id, "c")) == store.read(ReadValues(job.id + 1)) == []

    def test_a_later_value_of_one_operation_counts(self, store: Store) -> None:
        job = store.leased()
        publish(store, new(job, "a", b"1"), new(job, "a", b"2"))
        assert values_of(store, job.id) == {"a": b"2"}

    def test_each_job_has_its_own(self, store: Store) -> None:
        first, second = store.leased(), store.leased()
        assert publish(store, new(second, "a", b"2"), new(first, "a", b"1")) == sorted((first.id, second.id))
        assert (values_of(store, first.id), values_of(store, second.id)) == ({"a": b"1"}, {"a": b"2"})

    def test_each_operation_of_a_group_tells_its_own_jobs(self, store: Store) -> None:
        first, second, ended = store.leased(), store.leased(), store.leased()
        store.end(ended)
        outcomes = store.group(
            publishing(store, new(second), new(ended)),
            publishing(store, new(first), new(second, "a", b"2")),
            publishing(store, new(ended)),
            PublishValues([new(first, "b")], store.term + 1),
        )
        assert outcomes == [[second.id], [first.id, second.id], [], []]
        assert (values_of(store, first.id), values_of(store, second.id)) == ({"a": b"1"}, {"a": b"2"})

    def test_values_before_the_end_of_a_job_are_in_its_group(self, store: Store) -> None:
        job = store.leased()
        outcomes = store.group(publishing(store, new(job)), job_ops.Settle([done(job)]))
        assert outcomes == [[job.id], set()]
        assert store.present(job.id).state == State.SUCCEEDED
        assert values_of(store, job.id) == {"a": b"1"}

    def test_a_job_that_nobody_holds_publishes_nothing(self, store: Store) -> None:
        ended, pending, given_back = store.leased(), store.submitted(function=b"g"), store.leased()
        store.end(ended)
        store.settle(released(given_back))
        stranger = store.job()
        assert publish(store, *(new(job) for job in (ended, pending, given_back, stranger))) == []
        held = store.leased(function=b"h")
        assert publish(store, new(held), *(new(job) for job in (ended, pending, given_back, stranger))) == [held.id]
        assert values_of(store, held.id) == {"a": b"1"}
        for job in (ended, pending, given_back, stranger):
            assert values_of(store, job.id) == {}

    def test_a_late_holder_is_refused(self, store: Store) -> None:
        job = store.leased()
        publish(store, new(job))
        late = publishing(store, new(job, "a", b"late"), new(job, "b", b"late"))
        store.reopen()
        store.recover()
        assert store.group(late) == [[]], "the job is pending"
        (next_one,) = store.claim()
        assert next_one.id == job.id
        assert store.group(late) == [[]], "another term holds it"
        assert values_of(store, job.id) == {"a": b"1"}, "that of the earlier attempt stays"
        publish(store, new(next_one, "a", b"2", attempt=2))
        assert [(one.value, one.attempt) for one in store.read(ReadValues(job.id))] == [(b"2", 2)]

    def test_a_value_stays_while_the_job_waits_for_its_next_attempt(self, store: Store) -> None:
        job = store.leased()
        publish(store, new(job))
        store.settle(released(job))
        assert values_of(store, job.id) == {"a": b"1"}

    def test_the_newest_values_are_kept(self, store: Store) -> None:
        job = store.leased()
        publish(store, *(new(job, f"old {number:03}") for number in range(MOST_NAMES)))
        publish(store, new(job, "new"), new(job, "old 000", b"2"))
        kept = values_of(store, job.id)
        assert len(kept) == MOST_NAMES
        assert "old 001" not in kept
        assert (kept["new"], kept["old 000"]) == (b"1", b"2")

    def test_values_are_kept_up_to_a_size(self, store: Store) -> None:
        job, large = store.leased(), b'"' + b"x" * (VALUE_BYTES - 2) + b'"'
        for number in range(ALL_BYTES // VALUE_BYTES + 1):
            publish(store, new(job, f"{number:02}", large))
        kept = values_of(store, job.id)
        assert sorted(kept) == [f"{number:02}" for number in range(1, ALL_BYTES // VALUE_BYTES + 1)]

    def test_values_go_with_their_job(self, store: Store) -> None:
        kept, gone, deleted = (store.leased() for _ in range(3))
        publish(store, *(new(job) for job in (kept, gone, deleted)))
        store.end(gone)
        store.end(deleted, at=NOW + 1000)
        assert store.group(SweepValues()) == [Swept(0, kept=True)]
        store.sweep(NOW + 500, NOW)
        store.group(job_ops.DeleteEnded(deleted.id))
        assert store.group(SweepValues(0, 2)) == [Swept(gone.id, kept=True)]
        assert values_of(store, gone.id) == {}
        assert store.group(SweepValues(gone.id, 2)) == [Swept(0, kept=False)]
        assert values_of(store, kept.id) == {"a": b"1"}
        assert values_of(store, deleted.id) == {}
        assert store.group(SweepValues(kept.id)) == [Swept(0, kept=False)]

    def test_a_dead_letter_keeps_its_values_until_it_is_deleted(self, store: Store) -> None:
        job = store.leased()
        publish(store, new(job))
        store.end(job, Event.FAIL, error=b'{"type":"E","message":""}')
        store.group(SweepValues())
        assert values_of(store, job.id) == {"a": b"1"}
        store.redrive(job.id)
        (next_one,) = store.claim()
        publish(store, new(next_one, "b"))
        assert values_of(store, job.id) == {"a": b"1", "b": b"1"}

    def test_many_jobs_are_looked_at_together(self, store: Store) -> None:
        live, ended, silent = store.leased(), store.leased(), store.leased()
        publish(store, new(live), new(live, "b"), new(ended))
        store.end(ended)
        jobs = (live.id, ended.id, silent.id, silent.id + 1)
        seen = store.read(LookValues(jobs))
        assert seen == Seen({live.id: 2, ended.id: 1}, frozenset({live.id, silent.id}))

    def test_a_naive_model(self, store: Store) -> None:
        """Random publishes, ends, losses and sweeps, compared with dictionaries."""
        chance = random.Random(7)
        held: dict[int, Job] = {}
        model: dict[int, dict[str, bytes]] = {}
        lost: list[Job] = []
        for step in range(120):
            match chance.randrange(5):
                case 0:
                    job = store.leased(function=b"f%d" % step)
                    held[job.id] = job
                case 1 | 2 if held:
                    jobs = chance.sample(sorted(held), min(len(held), 3))
                    given = [new(held[job], chance.choice("abc"), b"%d" % step) for job in jobs]
                    given += [new(job, "a", b"late") for job in lost[-2:]]
                    assert publish(store, *given) == sorted(jobs)
                    for one in given:
                        if one.job in held:
                            model.setdefault(one.job, {})[one.name] = one.value
                case 3 if held:
                    job = held.pop(chance.choice(sorted(held)))
                    lost.append(job)
                    chance.choice((store.end, lambda one: store.settle(released(one))))(job)
                case 4:
                    store.group(SweepValues(0, 3))
                    store.reopen()
                    store.recover()
                    lost += held.values()
                    held.clear()
                case _:
                    pass
            assert {job: values_of(store, job) for job in model} == model


class ValueFlows(FlowFixtures):
    """The values of runs, which are written with the reports of their deciders."""

    def test_a_value_is_written_with_its_decision(self, flows: Flows) -> None:
        run = flows.start()
        flows.wait(7)
        decided = flows.decide(run, flows.task(run), flows.activity(), values=[("a", b"1"), ("b", b"2")])
        assert decided.verdict == "recorded"
        flows.store.reopen()
        found = flows.store.read(ReadValues(run))
        assert found == [
            StoredValue(run, "a", 1, 1, flows.now_us, b"1"),
            StoredValue(run, "b", 1, 2, flows.now_us, b"2"),
        ]

    def test_a_report_that_goes_on_writes_its_values(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        seen = flows.row(run).events
        flows.decide(run, task, steps=[flows.step(1)], more=True, values=[("a", b"1")], seen=seen)
        assert values_of(flows.store, run) == {"a": b"1"}
        flows.decide(run, task, flows.close(), batch=1, values=[("a", b"2")], seen=seen)
        assert values_of(flows.store, run) == {"a": b"2"}

    def test_a_fused_decision_writes_its_values(self, flows: Flows) -> None:
        run = flows.start()
        activity = flows.held_activity(run)
        assert flows.fuse(run, activity, flows.activity(), values=[("a", b"1")]).verdict == "recorded"
        assert values_of(flows.store, run) == {"a": b"1"}

    def test_what_is_not_recorded_publishes_nothing(self, flows: Flows) -> None:
        run = flows.start()
        task = flows.task(run)
        stale = flows.completing(run, task, values=[("a", b"stale")])._replace(job=task.id + 1)
        ((decided,),) = flows.group(ops.Decide([stale], flows.now_us))
        assert decided.verdict == "stale"
        strange = flows.completing(run, task, values=[("a", b"strange")], more=True)._replace(namespace="other")
        ((decided,),) = flows.group(ops.Decide([strange], flows.now_us))
        assert decided.verdict == "stale"
        parked = flows.decide(run, task, values=[("a", b"parked")], parked=Parked("defect", "why"), build="b1")
        assert parked.verdict == "parked"
        assert values_of(flows.store, run) == {}

    def test_a_lost_decision_writes_nothing_over_a_later_one(self, flows: Flows) -> None:
        run = flows.start()
        late = flows.completing(run, flows.task(run), flows.activity(), values=[("a", b"late")])
        flows.store.reopen()
        flows.store.recover()
        flows.decide(run, flows.task(run), flows.activity(), values=[("a", b"1")])
        ((decided,),) = flows.group(ops.Decide([late], flows.now_us))
        assert decided.verdict == "stale"
        assert values_of(flows.store, run) == {"a": b"1"}

    def test_a_close_that_is_refused_keeps_the_values_of_its_report(self, flows: Flows) -> None:
        run = flows.start()
        task, seen = flows.task(run), flows.row(run).events
        flows.signal(Signal(Key(run=run), "s", b""))
        decided = flows.decide(run, task, flows.close(), values=[("a", b"1")], seen=seen)
        assert (decided.verdict, decided.refused_close) == ("recorded", True)
        assert values_of(flows.store, run) == {"a": b"1"}
        flows.decide(run, flows.task(run), flows.close())
        assert values_of(flows.store, run) == {"a": b"1"}

    def test_the_runs_of_a_chain_share_their_values(self, flows: Flows) -> None:
        run = flows.start()
        flows.decide(run, flows.task(run), flows.continuing(), values=[("a", b"1"), ("b", b"1")])
        following = flows.last(run)
        assert following != run
        flows.decide(following, flows.task(following), flows.close(), values=[("a", b"2")])
        assert values_of(flows.store, run) == {"a": b"2", "b": b"1"}
        assert values_of(flows.store, following) == {}

    def test_a_later_attempt_at_a_run_shows_in_its_values(self, flows: Flows) -> None:
        run = flows.start()
        flows.decide(
            run,
            flows.task(run),
            flows.continuing(attempt=2, failure=b'{"type":"E","message":""}'),
            values=[("a", b"1")],
        )
        following = flows.last(run)
        assert [one.attempt for one in flows.store.read(ReadValues(run))] == [1]
        flows.decide(following, flows.task(following), flows.activity(), values=[("a", b"2")])
        assert [one.attempt for one in flows.store.read(ReadValues(run))] == [2]

    def test_values_go_with_the_run(self, flows: Flows) -> None:
        run = flows.start()
        flows.decide(run, flows.task(run), flows.close(), values=[("a", b"1")])
        flows.group(SweepValues())
        assert values_of(flows.store, run) == {"a": b"1"}
        flows.forget()
        flows.store.sweep(flows.now_us + 1, flows.now_us + 1)
        assert flows.store.find(run) is None
        assert flows.group(SweepValues()) == [Swept(0, kept=False)]
        assert values_of(flows.store, run) == {}
