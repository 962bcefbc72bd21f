"""Large payloads of runs, which are kept apart from their events: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.workflows import store as ops
from mainspring.workflows.history import (
    ActivityTaskCompleted,
    ActivityTaskScheduled,
    MarkerRecorded,
    WorkflowExecutionCompleted,
    WorkflowExecutionSignaled,
    WorkflowExecutionStarted,
)
from mainspring.workflows.model import Key
from mainspring.workflows.payloads import LARGE, STUB, stubs_in
from mainspring.workflows.reading import PAGE_BYTES, ReadLatest
from mainspring.workflows.requests import Signal
from tests.conformance.suite.flows import FlowFixtures

if TYPE_CHECKING:
    from mainspring.workflows.history import Event
    from tests.conformance.suite.flows import Flows

BIG = b"b" * (LARGE + 1)
MIB = b"m" * 2**20


def stubs(flows: Flows, run: int) -> dict[int, int]:
    """Return the sizes of the payloads that are kept apart, by their events."""
    events: list[Event] = flows.store.all_of(ops.ReadHistory(run=run, limit=10_000, apart=True))
    return {event: stub.size for event, stub in stubs_in(events).items()}


def latest(flows: Flows, run: int, first: int = 1) -> Any:
    """Return the events of a run from a number on, as nodes read them for workers."""
    return flows.store.read(ReadLatest(((run, first),))).get(run)


class PayloadFlows(FlowFixtures):
    """`rows` returns how many payloads the store keeps apart."""

    def rows(self, flows: Flows) -> int:
        """Return how many payloads are apart."""
        raise NotImplementedError

    def test_small_payloads_are_parts_of_their_events(self, flows: Flows) -> None:
        run = flows.start(payload=b"[%b]" % (b"1" * (LARGE - 2)))
        flows.running(run, *(flows.activity(input=b"x" * 1_000) for _ in range(20)))
        assert (stubs(flows, run), self.rows(flows)) == ({}, 0)

    def test_large_payloads_are_apart_and_events_have_them(self, flows: Flows) -> None:
        run = flows.start(payload=MIB)
        task, seen = flows.task(run), flows.row(run).events
        steps = [flows.step(1, result=BIG), flows.step(2, result=b"small")]
        decided = flows.decide(run, task, flows.activity(input=BIG), steps=steps, seen=seen)
        assert [event.details for event in decided.events if isinstance(event, MarkerRecorded)] == [BIG, b"small"]
        (job,) = flows.store.claim(b"charge")
        assert job.payload == BIG
        flows.signal(Signal(Key(run=run), "s", BIG))
        flows.store.end(job, result=MIB)
        assert sorted(stubs(flows, run).values()) == [len(BIG)] * 3 + [len(MIB)] * 2
        assert self.rows(flows) == 5
        assert flows.row(run).history_bytes < 2_000
        for _ in range(2):
            whole = {type(event): event for event in flows.history(run)}
            started, scheduled = whole[WorkflowExecutionStarted], whole[ActivityTaskScheduled]
            assert isinstance(started, WorkflowExecutionStarted)
            assert isinstance(scheduled, ActivityTaskScheduled)
            assert (started.input, scheduled.input) == (MIB, BIG)
            assert flows.last_event(run, WorkflowExecutionSignaled).input == BIG
            assert flows.last_event(run, ActivityTaskCompleted).result == MIB
            assert {event.details for event in flows.history(run) if isinstance(event, MarkerRecorded)} == {
                BIG,
                b"small",
            }
            flows.store.reopen()

    def test_a_decider_gets_whole_events(self, flows: Flows) -> None:
        for is_cold in (False, True):  # from memory, and from the store
            run = flows.start()
            seen = flows.row(run).events
            flows.signal(Signal(Key(run=run), "s", BIG))
            if is_cold:
                flows.store.reopen()
                flows.store.recover()
            decided = flows.decide(run, flows.task(run), flows.timer(3600), seen=seen)
            assert [one.input for one in decided.events if isinstance(one, WorkflowExecutionSignaled)] == [BIG]

    def test_nodes_read_whole_events_for_workers_unless_they_are_too_large(self, flows: Flows) -> None:
        run = flows.start(payload=BIG)
        (started,) = [event for event in latest(flows, run) if isinstance(event, WorkflowExecutionStarted)]
        assert started.input == BIG
        flows.signal(*(Signal(Key(run=run), "s", b"s" * 2**19) for _ in range(4)))
        assert latest(flows, run) is None, "the worker asks for pages"

    def test_pages_of_histories_are_bounded(self, flows: Flows) -> None:
        run = flows.start()
        size = PAGE_BYTES // 3
        flows.signal(*(Signal(Key(run=run), "s", b"%d" % number + b"s" * size) for number in range(10)))
        page = flows.store.read(ops.ReadHistory(run=run, limit=1_000))
        assert sum(len(getattr(event, "input", b"")) for event in page.items) < PAGE_BYTES + 2 * size
        assert page.next is not None
        inputs = [one.input[:1] for one in flows.history(run) if isinstance(one, WorkflowExecutionSignaled)]
        assert inputs == [b"%d" % number for number in range(10)]

    def test_a_payload_that_looks_like_a_stub_is_apart(self, flows: Flows) -> None:
        run = flows.start()
        looks = STUB + bytes(24)
        flows.signal(Signal(Key(run=run), "s", looks))
        assert list(stubs(flows, run).values()) == [len(looks)]
        flows.store.reopen()
        assert flows.last_event(run, WorkflowExecutionSignaled).input == looks

    def test_continued_runs_get_whole_inputs_and_signals(self, flows: Flows) -> None:
        run = flows.start(payload=BIG)
        flows.signal(Signal(Key(run=run), "s", MIB))
        signal = flows.last_event(run, WorkflowExecutionSignaled).id
        flows.store.reopen()
        flows.running(run, flows.continuing(MIB, unread=(signal,)))
        following = flows.last(run)
        started, signaled, *_ = flows.history(following)
        assert isinstance(started, WorkflowExecutionStarted)
        assert isinstance(signaled, WorkflowExecutionSignaled)
        assert (started.input, signaled.input) == (MIB, MIB)
        assert len(stubs(flows, following)) == 2

    def test_another_attempt_gets_the_whole_input(self, flows: Flows) -> None:
        run = flows.start(payload=BIG)
        flows.store.reopen()
        flows.running(run, flows.continuing(BIG, attempt=2, failure=b'{"type":"E","message":""}'))
        started = flows.history(flows.last(run))[0]
        assert isinstance(started, WorkflowExecutionStarted)
        assert started.input == BIG

    def test_children_and_results_are_whole(self, flows: Flows) -> None:
        parent = flows.start()
        flows.running(parent, flows.child(input=BIG))
        (child,) = flows.children(parent)
        started = flows.history(child)[0]
        assert isinstance(started, WorkflowExecutionStarted)
        assert started.input == BIG
        flows.running(child, flows.close(MIB))
        assert flows.last_event(child, WorkflowExecutionCompleted).result == MIB
        assert [event for event in flows.history(parent) if getattr(event, "result", b"") == MIB]
        flows.running(parent, flows.close(MIB))
        assert flows.root(parent).result == MIB

    def test_payloads_go_with_their_run(self, flows: Flows) -> None:
        run, other = flows.start(payload=BIG), flows.start(payload=MIB)
        flows.running(run, flows.close())
        assert self.rows(flows) == 2
        assert flows.forget() == 1
        assert self.rows(flows) == 1
        assert list(stubs(flows, other)) == [1]

    def test_the_state_in_memory_has_no_large_payloads(self, flows: Flows) -> None:
        run = flows.start(payload=MIB)
        flows.signal(Signal(Key(run=run), "s", MIB))
        cache: Any = next(one.cache for one in flows.store.engine.slices if hasattr(one, "cache"))  # type: ignore[attr-defined] # all have it
        assert cache.size < 10_000
        flows.store.reopen()
        flows.signal(Signal(Key(run=run), "s", b"small"))
        cache = next(one.cache for one in flows.store.engine.slices if hasattr(one, "cache"))  # type: ignore[attr-defined] # all have it
        assert cache.size < 10_000
