"""Events that follow from more than one operation: about nodes, and about the dead letters of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.event_log import series, types
from mainspring.event_log.store import EndSeries, RecordEvents, RecordSeries
from mainspring.jobs import store as ops
from mainspring.jobs.model import Options, State, failure
from mainspring.jobs.rules import Event, Settlement
from mainspring.namespaces import key
from mainspring.nodes import node_events
from mainspring.workflows.requests import FailWorkflowExecution
from mainspring.workflows.watch import Stranded, stranded_event
from tests.conformance.suite.driver import NOW, released
from tests.conformance.suite.events import ERROR, failed, numbered, want
from tests.conformance.suite.fixtures import StoreFixtures
from tests.conformance.suite.flows import Flows

if TYPE_CHECKING:
    from mainspring.jobs.model import Job
    from tests.conformance.suite.driver import Store


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
