"""Events that follow from more than one operation: about nodes, and about the dead letters of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mainspring.access.caller import LOCAL
from mainspring.bulk.rules import Action, BulkOperation, Spec
from mainspring.bulk.store import BeginBulk, StepBulk
from mainspring.event_log import series, types
from mainspring.event_log.store import EndSeries, RecordEvents, RecordSeries
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State, StopRequest, failure
from mainspring.jobs.rules import Event, Settlement
from mainspring.namespaces import key
from mainspring.nodes import node_events
from mainspring.resources.holds import counted
from mainspring.resources.rules import UseSpec
from mainspring.schedules.model import Overlap
from mainspring.workflows.model import Key
from mainspring.workflows.requests import CancelWorkflowExecution, FailWorkflowExecution
from mainspring.workflows.watch import Stranded, stranded_event
from tests.conformance.suite.driver import NOW, released
from tests.conformance.suite.events import ERROR, LATER, failed, numbered, want
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.flows import Flows
from tests.conformance.suite.holds import define
from tests.conformance.suite.run_hold_flows import answers, asking, giving_up
from tests.conformance.suite.scheduling import Scheduling

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from tests.conformance.suite.driver import Make, Store


class EventCauseSuite(StoreFixtures):
    """More of the contract of ``mainspring.event_log.store``."""

    # ---- nodes ----

    def test_a_node_that_says_goodbye_is_not_dead(self, store: Store) -> None:
        want(store, "node.*")
        store.end(store.leased())
        store.reopen("n2")
        store.reopen("n3")
        found = numbered(store)
        assert [(one.type, one.subject, one.namespace) for one in found] == [
            (types.NODE_JOINED, "n2", ""),
            (types.NODE_JOINED, "n3", ""),
        ]

    def test_a_node_that_leaves_jobs_behind_is_dead_once(self, store: Store) -> None:
        want(store, "node.*")
        store.leased()
        store.assign(store.leased())
        term = store.term
        store.reopen("n2")
        if store.engine.shared:
            store.end_term(term)
            store.end_term(term)  # another node has been quicker
        store.recover()
        store.reopen("n3")
        (dead,) = [one for one in numbered(store) if one.type == types.NODE_DEAD]
        why = node_events.REMOVED if store.engine.shared else node_events.LEFT_OPEN
        assert (dead.subject, dead.fields) == ("n1", {"node": "n2", "jobs": 2, "why": why})

    # ---- dead letters ----

    def _fail(self, store: Store, number: int = 1, *, at: int = NOW, **values: Any) -> list[Job]:
        """Fail new jobs for good, in one group."""
        jobs = [store.submitted(**values) for _ in range(number)]
        claimed = store.claim(jobs[0].function)
        settlements = [Settlement(job, Event.FAIL, 1, ended_us=at, error=ERROR) for job in claimed]
        assert store.settle(*settlements) == set()
        return claimed

    def _series(self, store: Store) -> list[tuple[str, int]]:
        found = [one for one in numbered(store) if one.type == types.DEAD_LETTERS]
        return [(one.function, one.fields["number"]) for one in found]

    def test_a_series_of_dead_letters_has_few_events(self, store: Store) -> None:
        want(store, types.DEAD_LETTERS)
        self._fail(store)
        self._fail(store, 8)
        self._fail(store, function=b"g")
        assert self._series(store) == [("f", 1), ("g", 1)]
        self._fail(store, 1)
        self._fail(store, 80)
        self._fail(store, 20, at=NOW + 1)
        self._fail(store, 3)
        assert self._series(store) == [("f", 1), ("g", 1), ("f", 10), ("f", 110)]
        self._fail(store, 12, function=b"h")
        assert self._series(store)[4:] == [("h", 12)]
        assert {one.type for one in numbered(store)} == {types.DEAD_LETTERS}

    def test_a_series_ends_after_a_pause(self, store: Store) -> None:
        want(store, types.DEAD_LETTERS)
        self._fail(store)
        self._fail(store, at=NOW + series.PAUSE_US)
        self._fail(store, at=NOW + 2 * series.PAUSE_US)
        assert self._series(store) == [("f", 1)]
        self._fail(store, 2, at=NOW + 3 * series.PAUSE_US + 1)
        assert self._series(store) == [("f", 1), ("f", 2)]

    def test_a_series_ends_soon_if_no_dead_letter_is_left(self, store: Store) -> None:
        want(store, types.DEAD_LETTERS)
        first, second = self._fail(store, 2)
        soon = NOW + series.SHORT_PAUSE_US
        store.redrive(first.id)
        (retried,) = store.claim()
        store.settle(Settlement(retried, Event.SUCCEED, 1, ended_us=soon))
        self._fail(store, at=soon + 1)
        assert self._series(store) == [("f", 2)], "the second one was left"
        for job in store.list(State.FAILED):
            store.group(ops.DeleteEnded(job.id))
        self._fail(store, at=2 * soon - NOW)
        assert self._series(store) == [("f", 2)], "the pause was too short"
        for job in store.list(State.FAILED):
            store.redrive(job.id)
        for job in store.claim():
            store.settle(Settlement(job, Event.SUCCEED, 1, ended_us=soon))
        self._fail(store, at=3 * soon - 2 * NOW + 1)
        assert self._series(store) == [("f", 2), ("f", 1)]
        assert second.id

    def test_what_leaves_no_dead_letter(self, store: Store) -> None:
        want(store, types.DEAD_LETTERS)
        self._fail(store, options=Options(forget=True))
        store.settle(failed(store.leased(), retry=True))
        store.end(store.leased(function=b"\x1fd\x1fdefault\x1fw\x1f1"), Event.FAIL)
        flows = Flows(store)
        flows.running(flows.start(), FailWorkflowExecution(1, "no"))
        assert self._series(store) == []

    def test_dead_letters_that_nobody_wants_are_not_counted(self, store: Store) -> None:
        self._fail(store)
        want(store, types.FAILED, name="all")
        self._fail(store)
        want(store, types.DEAD_LETTERS, namespace="team", functions=("pay*",))
        self._fail(store)
        self._fail(store, function=key("team", b"mail"))
        assert self._series(store) == []
        self._fail(store, function=key("team", b"payroll"))
        (event,) = numbered(store, types=frozenset({types.DEAD_LETTERS}))
        assert (event.namespace, event.function, event.subject, event.job) == ("team", "payroll", "payroll", 0)
        assert event.fields == {"number": 1}

    def test_a_job_that_its_last_node_has_lost_is_a_dead_letter(self, store: Store) -> None:
        want(store, types.DEAD_LETTERS)
        job = store.leased()
        store.settle(Settlement(job, Event.FAIL, 0, ended_us=NOW, error=failure("WorkerLost", "its node was lost")))
        assert self._series(store) == [("f", 1)]

    # ---- workers and stranded runs ----

    def test_events_that_no_operation_causes(self, store: Store) -> None:
        event = node_events.worker_lost("w1", "it is silent", namespace="team", node="n1", jobs=2)
        store.group(RecordEvents([event]))
        want(store, types.WORKER_LOST)
        job = store.leased()
        stale, _ = store.group(ops.Settle([released(job)]), RecordEvents([event]))
        assert stale == set()
        (found,) = numbered(store)
        assert (found.type, found.namespace, found.subject) == (types.WORKER_LOST, "team", "w1")
        assert found.fields == {"node": "n1", "jobs": 2, "why": "it is silent"}

    def test_a_state_that_goes_on_has_one_event(self, store: Store) -> None:
        want(store, types.RUN_STRANDED)
        event = stranded_event(Stranded("default", "order", "2", 7, 0.0))

        def note(key: bytes, *times: int) -> list[bool]:
            return store.group(*(RecordSeries(key, event, NOW + at, 10) for at in times))

        assert note(b"one", 0) == [True]
        assert note(b"one", 10) == [False]
        assert note(b"two", 0, 0) in ([True, False], [False, True]), "two nodes in one group"
        assert note(b"one", 21) == [True]
        store.reopen()
        assert note(b"one", 22) == [False]
        store.group(EndSeries(b"one"), EndSeries(b"three"))
        assert note(b"one", 23) == [True]
        found = numbered(store)
        assert [(one.type, one.function, one.fields) for one in found] == [
            (types.RUN_STRANDED, "order", {"version": "2", "runs": 7})
        ] * 4

    # ---- jobs: clients, operators, many jobs at once, recovery, expiry, schedules ----

    def _bulk(self, store: Store, action: Action, *ids: int, **spec: Any) -> None:
        caller = replace(LOCAL, name="ann")
        begun = BulkOperation(
            id=store.new_id(), created_us=NOW, spec=Spec(action=action, ids=ids, caller=caller, **spec)
        )
        (bulk,) = store.group(BeginBulk(begun))
        (stepped,) = store.group(StepBulk(bulk, ids, ids[-1], NOW + 1, is_last=True))
        assert stepped.stepped

    def test_operations_on_many_jobs_name_their_caller(self, store: Store) -> None:
        dead, waiting, unwanted = store.leased(), store.submitted(), store.submitted()
        store.settle(failed(dead))
        want(store, "job.*", types.OPERATION_ENDED)
        self._bulk(store, Action.RETRY, dead.id, waiting.id)
        self._bulk(store, Action.RESCHEDULE, waiting.id, due_us=NOW + 9)
        self._bulk(store, Action.CANCEL, unwanted.id, unwanted.id + 1000)
        self._bulk(store, Action.DELETE, unwanted.id)
        found = numbered(store)
        assert [(one.type, one.job) for one in found if one.type != types.OPERATION_ENDED] == [
            (types.RETRIED, dead.id),
            (types.SNOOZED, waiting.id),
            (types.CANCELLED, unwanted.id),
        ]
        assert {one.fields["by"] for one in found} == {"ann"}
        ended = [(one.fields["action"], one.fields["done"]) for one in found if one.type == types.OPERATION_ENDED]
        assert ended == [("retry", 2), ("reschedule", 1), ("cancel", 2), ("delete", 1)]

    def test_held_jobs_that_a_client_has_cancelled(self, store: Store) -> None:
        want(store, "job.*")
        released_job, lost, won = store.leased(), store.leased(), store.leased()
        asked = StopRequest(NOW, failure("Cancelled", "enough"))
        store.assign(lost)
        store.group(ops.RequestStop([(job.id, None) for job in (released_job, lost, won)], asked))
        store.settle(released(released_job), Settlement(won, Event.SUCCEED, 1, ended_us=NOW))
        term = store.term
        store.reopen()
        if store.engine.shared:
            store.end_term(term)
        store.recover()
        found = sorted(numbered(store), key=lambda one: one.job)
        assert [(one.type, one.job) for one in found] == [
            (types.CANCELLED, released_job.id),
            (types.CANCELLED, lost.id),
            (types.SUCCEEDED, won.id),
        ]
        assert [one.fields.get("error") for one in found] == ["enough", "enough", None]

    def test_jobs_that_expire_before_they_wait_or_between_attempts(self, store: Store) -> None:
        want(store, types.EXPIRED)
        scheduled = store.submitted(state=State.SCHEDULED, due_us=NOW + 9, expires_us=NOW + 5)
        claimed = store.leased(expires_us=NOW + 5)
        store.end(claimed, Event.EXPIRE)
        store.submitted(expires_us=NOW + 50)
        store.wake(NOW + 6)
        assert sorted(one.job for one in numbered(store)) == [scheduled.id, claimed.id]

    def test_jobs_of_schedules(self, make: Make, store: Store) -> None:
        want(store, "job.*", "schedule.*")
        s = Scheduling(make, store)
        s.add("a", tags=("red",), overlap=Overlap.FORBID)
        s.fire()
        s.at(1)
        s.fire()
        assert s.trigger("a") is not None
        s.run("a", Event.FAIL)
        found = numbered(store)
        first, second = s.history("a")[:2]
        assert [(one.type, one.fields.get("reason", one.fields.get("cause", ""))) for one in found] == [
            (types.FIRED, "trigger"),
            (types.MISSED, "overlap"),
            (types.MISSED, "overlap"),
            (types.FAILED, ""),
        ]
        assert (found[0].fields["fire_us"], found[1].fields["fire_us"]) == (first.fire_us, second.fire_us)
        assert (found[-1].job, found[-1].fields["schedule"]) == (first.job, "a")
        assert [*found[-1].fields["tags"]] == ["red"]

    # ---- runs ----

    def test_runs_end_in_each_way(self, store: Store) -> None:
        want(store, "run.*", "job.*")
        flows = Flows(store)
        failing, cancelled, late = flows.start(), flows.start(), flows.start()
        flows.running(failing, FailWorkflowExecution(1, "ValueError", b"no"))
        flows.cancel(Key(job=cancelled), "enough")
        flows.running(cancelled, CancelWorkflowExecution(1))
        flows.now_us += 86_400_000_000
        flows.ring(late)
        ends = [one for one in numbered(store) if one.type != types.RUN_STARTED]
        assert [(one.type, one.fields["run"]) for one in ends] == [
            (types.RUN_FAILED, failing),
            (types.RUN_CANCELLED, cancelled),
            (types.RUN_TIMED_OUT, late),
        ]
        assert ends[2].fields["ran_us"] == 86_400_000_000

    def test_children_have_events_of_their_own(self, store: Store) -> None:
        want(store, "run.*")
        flows = Flows(store)
        parent = flows.start()
        flows.running(parent, flows.child())
        (child,) = flows.children(parent)
        flows.running(child, flows.close())
        found = [(one.type, one.fields["run"], one.fields.get("parent", 0)) for one in numbered(store)]
        assert found == [
            (types.RUN_STARTED, parent, 0),
            (types.RUN_STARTED, child, parent),
            (types.RUN_COMPLETED, child, parent),
        ]

    def test_runs_that_have_waited_too_long_for_slots(self, store: Store) -> None:
        want(store, "resource.denied")
        define(store, "l", counted(1))
        define(store, "m", counted(1))
        flows = Flows(store)
        first, late = flows.start(), flows.start()
        for run in (first, late):
            flows.running(run, asking(1, UseSpec("l"), UseSpec("m")), giving_up(1))
            answers(flows, run)
        found = [(one.type, one.subject, one.function, one.job) for one in numbered(store)]
        assert found == [(types.RESOURCE_DENIED, name, "order", late) for name in ("l", "m")], (
            "the first run has its slots"
        )

    def test_attempts_of_activities(self, store: Store) -> None:
        want(store, "job.*")
        flows = Flows(store)
        run = flows.start()
        activity = flows.held_activity(run)
        store.settle(failed(activity, retry=True))
        store.wake(LATER + 1)
        (retried,) = store.claim(activity.function)
        store.settle(failed(retried))
        assert [(one.type, one.job, one.fields["run"]) for one in numbered(store)] == [
            (types.ATTEMPT_FAILED, activity.id, run),
            (types.FAILED, activity.id, run),
        ]
