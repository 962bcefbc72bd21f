"""Deciders at a node: their registrations, decisions and reports, and what a stranger may send."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.simulation.store import execute
from tests.simulation.wires import Wire

from mainspring.job_logs.service import PAUSE
from mainspring.jobs.model import Options, Retry, State, encode_options
from mainspring.storage.reads import RETRY_DELAY
from mainspring.wire.gearman_protocol import Type, request
from mainspring.workflows import reading
from mainspring.workflows.history import decode_events
from mainspring.workflows.messages import (
    DecidedMessage,
    DecideMessage,
    Lease,
    SettlementMessage,
    decode_decided,
    encode_message,
    encode_runs,
    refusal,
)
from mainspring.workflows.model import Definition, Parked, decision_function
from mainspring.workflows.requests import (
    CompleteWorkflowExecution,
    RecordMarker,
    ScheduleActivityTask,
    StartChildWorkflowExecution,
    StartTimer,
    StepResult,
    StepRetry,
)
from mainspring.workflows.store import SaveDefinitions

from .a_face import Node, configure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.storage.engine import Budget, Query
    from mainspring.workflows.history import Event
    from mainspring.workflows.requests import Decision

ORDER = b"order"
DECISIONS = decision_function("default", "order", "1")
WEBHOOK = b"webhook:crm"
WORKFLOW = {"workflow": {"version": "1", "digest": "d"}}
TASK = ScheduleActivityTask(1, "1", b"charge", input=b"[1]")


class Assigned:
    """A decision or an activity."""

    def __init__(self, args: Sequence[bytes]) -> None:
        self.handle, self.token, self.function, _, info, self.payload = args
        self.info: dict[str, Any] = json.loads(info)
        self.run = int(self.info["run"])
        self.events: list[Event] = decode_events(self.payload) if self.function[:1] == b"\x1f" else []


class Decider:
    """A connection of a decider."""

    def __init__(self, node: Node, *functions: bytes, **options: Any) -> None:
        self.node = node
        self.peer = node.connect(extended=True)
        self.raw: list[tuple[int, list[bytes]]] = []
        self.peer.wire._see = lambda kind, args: self.raw.append((kind, list(args)))  # noqa: SLF001 - before it is text
        self.peer.request(Type.REGISTER, ORDER, json.dumps({**WORKFLOW, **options}).encode())
        for function in functions:
            self.peer.request(Type.REGISTER, function, b"")
        if functions:
            self.peer.request(Type.READY, b"10")
        node.commit()
        self.number = 0

    def take(self) -> list[tuple[int, list[bytes]]]:
        self.node.commit()
        raw, self.raw = self.raw, []
        return raw

    def assigned(self) -> Assigned:
        ((kind, args),) = self.take()
        assert kind == Type.ASSIGN
        return Assigned(args)

    def send(self, *messages: DecideMessage) -> None:
        self.number += 1
        self.peer.request(Type.DECIDE, b"%d" % self.number, encode_message(messages))

    def ask(self, message: DecideMessage) -> tuple[DecidedMessage, list[Assigned]]:
        """Report, and return the answer with the assignments of its commit: of activities before it, of decisions after it."""
        self.send(message)
        packets = self.take()
        (place,) = (place for place, (kind, _) in enumerate(packets) if kind == Type.DECIDED)
        _, args = packets.pop(place)
        assert args[0] == b"%d" % self.number
        (answer,) = decode_decided(args[1])
        assert all(kind == Type.ASSIGN for kind, _ in packets)
        assigned = [Assigned(args) for _, args in packets]
        assert all(one.function[:1] != b"\x1f" for one in assigned[:place])
        return answer, assigned


def report(
    decision: Assigned, *decisions: Decision, more: bool = False, steps: Sequence[StepResult] = (), **fields: Any
) -> DecideMessage:
    seen = fields.pop("seen", decision.info["last"])
    return DecideMessage(
        decision.run, decision.handle, decision.token, seen, 1, 0, more, tuple(steps), decisions, **fields
    )


@pytest.fixture
def node() -> Node:
    return Node(workflows=True)


@pytest.fixture
def decider(node: Node) -> Decider:
    return Decider(node)


def start(node: Node, unique: bytes = b"") -> str:
    return node.connect().background(b"[17]", ORDER, unique)


def kinds(events: Sequence[Event] | msgspec.Raw) -> list[str]:
    return [type(event).__name__ for event in (decode_events(events) if isinstance(events, msgspec.Raw) else events)]


# ---- decisions ----


def test_a_decision_comes_with_the_whole_history_of_a_new_run(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    assert decision.function == decision_function("default", "order", "1")
    assert (decision.info["first"], decision.info["last"]) == (1, 2)
    assert kinds(decision.events) == ["WorkflowExecutionStarted", "DecisionTaskScheduled"]


def test_a_decider_is_listed_with_the_last_report_about_its_memory(node: Node, decider: Decider) -> None:
    client = node.connect(extended=True)

    def rows() -> list[dict[str, Any]]:
        return list(client.call("workflows.workers")["items"])

    def report(peer: Any, **changed: int) -> None:
        peer.request(Type.CALL, b"cache", b"worker.cache", json.dumps(numbers | changed).encode())

    assert [(row["versions"], row["decisions"], row["draining"], row["cache"]) for row in rows()] == [
        (["order@1"], 0, False, None)
    ]
    numbers = {"runs": 1, "bytes": 3000, "limit": 2**28, "decisions": 2, "hits": 1, "replays": 0, "evictions": 0}
    report(decider.peer)
    report(decider.peer, runs=-1)
    report(client, runs=9)
    assert client.answer() == ("ANSWER", ["cache", "{}"]), "it decides no runs, and is not listed"
    start(node)
    decider.take()
    assert [(row["decisions"], row["draining"], row["cache"]) for row in rows()] == [(1, False, numbers)]
    decider.peer.request(Type.CALL, b"drains", b"worker.drains", b"{}")
    assert [row["draining"] for row in rows()] == [True]
    decider.peer.leave()
    assert rows() == []


def test_runs_have_the_times_that_a_decider_declares(node: Node) -> None:
    decider = Decider(node)
    times = json.dumps({"times": {"order": {"start_within": 5}, "late": {"deadline": 9}}}).encode()
    decider.peer.request(Type.CALL, b"times", b"worker.times", times)
    decider.peer.request(Type.REGISTER, b"late", json.dumps(WORKFLOW).encode())  # after the call
    node.commit()
    client = node.connect(extended=True)
    for function, expected in ((b"order", (True, False)), (b"late", (False, True))):
        shown = client.call("jobs.show", handle=node.connect().background(b"[]", function))
        assert (shown["start_by"] is not None, shown["deadline_at"] is not None) == expected


def test_decisions_that_only_keep_a_step_take_no_places(node: Node) -> None:
    client = node.connect(extended=True)
    decider = Decider(node, b"charge", decisions=2)
    for number in range(5):
        start(node, b"%d" % number)

    def assigned() -> list[Assigned]:
        return [Assigned(args) for kind, args in decider.take() if kind == Type.ASSIGN]

    def row() -> tuple[Any, ...]:
        (one,) = client.call("workflows.workers")["items"]
        return one["decisions"], one["steps"], one["places"], one["full"]

    def keep(steps: int) -> int:
        decider.peer.request(Type.CALL, b"steps", b"worker.steps", b'{"decisions":%d}' % steps)
        return len(assigned())

    first, _ = assigned()
    assert row() == (2, 0, 2, True)
    assert (keep(1), row()) == (1, (3, 1, 2, True))
    assert (keep(3), row()) == (2, (5, 3, 2, True))
    assert (keep(4), row()) == (0, (5, 4, 2, False))
    assert (keep(0), row()) == (0, (5, 0, 2, True))
    start(node, b"another")
    decider.ask(report(first, StartTimer(1, "1", 60)))
    assert not assigned(), "a decision that has ended is not replaced while there are too many"
    assert row() == (4, 0, 2, True)


def test_a_step_that_waits_for_its_next_attempt_has_a_timer_in_place_of_a_decision(
    node: Node, decider: Decider
) -> None:
    start(node)
    decision = decider.assigned()
    assert decision.info["retries"] is True
    answer, assigned = decider.ask(report(decision, retries=(StepRetry(1, 3, 60_000_000),)))
    assert (answer.verdict, answer.lease, assigned) == ("recorded", Lease.NONE, [])
    assert kinds(answer.events) == ["DecisionTaskStarted", "TimerStarted", "DecisionTaskCompleted"]
    timer = decode_events(answer.events)[1]
    assert (timer.timer_id, timer.control, timer.number, timer.decision_completed) == ("step-1", "3", 1, 0)  # type: ignore[attr-defined]
    node.wait(59)
    assert not decider.take()
    node.wait(1.1)
    next_one = decider.assigned()
    assert kinds(next_one.events) == ["TimerFired", "DecisionTaskScheduled"]


@pytest.mark.parametrize("retry", [StepRetry(0, 1, 1), StepRetry(1, -1, 1), StepRetry(1, 1, -1)])
def test_a_step_that_waits_has_numbers_in_their_ranges(node: Node, decider: Decider, retry: StepRetry) -> None:
    start(node)
    answer, _ = decider.ask(report(decider.assigned(), retries=(retry,)))
    assert answer.verdict == "refused"
    assert "out of range" in answer.why


def test_a_client_gets_the_result_of_the_run(node: Node, decider: Decider) -> None:
    client = node.connect()
    client.request(Type.SUBMIT_JOB, ORDER, b"", b"[17]")
    decision = decider.assigned()
    answer, others = decider.ask(report(decision, CompleteWorkflowExecution(1, b'"done"')))
    assert (answer.verdict, answer.status, answer.lease, others) == ("recorded", 1, Lease.NONE, [])
    assert [name for name, _ in client.received()] == ["JOB_CREATED", "WORK_COMPLETE"]


def test_a_decider_keeps_its_lease_if_it_only_records_steps(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    step = StepResult(1, 1, "price", b"5", 7)
    answer, others = decider.ask(report(decision, more=True, steps=[step]))
    assert (answer.verdict, answer.lease, others) == ("recorded", Lease.KEPT, [])
    assert kinds(answer.events) == ["DecisionTaskStarted", "MarkerRecorded"]


def test_the_next_decision_of_a_decider_that_goes_on_follows_the_answer(node: Node) -> None:
    decider = Decider(node, decisions=1)
    start(node)
    start(node)
    decision = decider.assigned()
    answer, (following,) = decider.ask(report(decision, StartTimer(1, "1", 60.0), more=True))
    assert (answer.verdict, answer.lease) == ("recorded", Lease.NEXT)
    assert kinds(answer.events)[-2:] == ["TimerStarted", "DecisionTaskScheduled"]
    assert (following.run, following.events) == (decision.run, []), "although another run waits for its only place"
    assert following.info["first"] == following.info["last"] + 1


def test_newer_events_come_with_the_next_decision(node: Node, decider: Decider) -> None:
    handle = start(node)
    decision = decider.assigned()
    answer, _ = decider.ask(report(decision, StartTimer(1, "1", 1.0)))
    node.wait(1.1)
    following = decider.assigned()
    assert kinds(following.events) == ["TimerFired", "DecisionTaskScheduled"]
    assert following.info["first"] == decode_events(answer.events)[-1].id + 1
    assert handle


def test_a_fused_activity_costs_one_report(node: Node) -> None:
    decider = Decider(node, b"charge")
    start(node)
    decision = decider.assigned()
    answer, (activity,) = decider.ask(report(decision, TASK))
    assert (activity.function, activity.run) == (b"charge", decision.run)
    assert activity.info["ref"] == 5
    settled = SettlementMessage(activity.handle, activity.token, b'"paid"')
    close = CompleteWorkflowExecution(2, b"1")
    answer, _ = decider.ask(DecideMessage(decision.run, b"", b"", 5, 1, 0, False, (), (close,), (settled,)))
    assert answer.verdict == "recorded"
    assert kinds(answer.events) == [
        "ActivityTaskStarted",
        "ActivityTaskCompleted",
        "DecisionTaskScheduled",
        "DecisionTaskStarted",
        "DecisionTaskCompleted",
        "WorkflowExecutionCompleted",
    ]


def test_of_a_stale_report_the_settlements_count(node: Node) -> None:
    decider = Decider(node, b"charge")
    start(node)
    decision = decider.assigned()
    _, (activity,) = decider.ask(report(decision, TASK))
    settled = SettlementMessage(activity.handle, activity.token, b'"paid"')
    answer, (following,) = decider.ask(
        DecideMessage(decision.run, b"", b"", 4, 1, 0, False, (), (CompleteWorkflowExecution(2),), (settled,))
    )
    assert answer.verdict == "stale"
    assert following.info["last"] == 8, "ActivityTaskStarted, …Completed and DecisionTaskScheduled"
    assert [event.id for event in following.events] == list(range(1, 9)), "the worker has evicted the run"


def test_a_report_without_a_lease_is_stale(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    message = report(decision, CompleteWorkflowExecution(1))
    answer, _ = decider.ask(msgspec.structs.replace(message, token=b"other"))
    assert (answer.verdict, answer.why) == ("stale", "its lease has ended")
    answer, _ = decider.ask(msgspec.structs.replace(message, run=decision.run + 1))
    assert answer.verdict == "stale"
    assert decider.ask(message)[0].verdict == "recorded"
    assert decider.ask(message)[0].verdict == "stale", "a repeated report"


def test_a_decision_of_a_departed_worker_goes_to_another_one(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    other = Decider(node)
    decider.peer.leave()
    following = other.assigned()
    assert following.run == decision.run
    assert kinds(following.events) == ["WorkflowExecutionStarted", "DecisionTaskScheduled"]


def test_a_worker_is_asked_to_report_when_events_come_while_its_steps_run(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    _, (following,) = decider.ask(report(decision, StartTimer(1, "1", 1.0), more=True))
    node.wait(1.1)
    ((kind, args),) = decider.take()
    assert (kind, args) == (Type.STOP, [following.handle, following.token, b"events"])
    answer, (last,) = decider.ask(report(following, more=True))
    assert (answer.verdict, answer.lease) == ("recorded", Lease.NEXT)
    assert "TimerFired" in kinds(answer.events)
    assert last.run == decision.run


def test_a_worker_that_drains_gets_no_decisions(node: Node, decider: Decider) -> None:
    decider.peer.request(Type.CALL, b"1", b"worker.drains", b"{}")
    assert [kind for kind, _ in decider.take()] == [Type.ANSWER]
    start(node)
    assert decider.take() == []
    other = Decider(node)
    assert other.assigned().function == decision_function("default", "order", "1")


def test_a_worker_takes_as_many_decisions_as_it_has_declared(node: Node) -> None:
    decider = Decider(node, decisions=2)
    for _ in range(4):
        start(node)
    first, second = (Assigned(args) for _, args in decider.take())
    answer, (third,) = decider.ask(report(first, StartTimer(1, "1", 60.0)))
    assert answer.verdict == "recorded"
    assert third.run not in {first.run, second.run}
    decider.peer.request(Type.SETTLE, second.handle, second.token, b"released", b"", b"")
    assert [kind for kind, _ in decider.take()] == [Type.SETTLED, Type.ASSIGN]


def test_a_worker_gets_another_decision_for_one_that_was_deleted(node: Node) -> None:
    decider = Decider(node, decisions=1)
    start(node, b"first")
    start(node)
    first = decider.assigned()
    node.connect(extended=True).call("workflows.terminate", key="first")
    ((kind, args),) = decider.take()
    assert (kind, args) == (Type.STOP, [first.handle, first.token, b"cancelled"])
    decider.peer.request(Type.FORGOTTEN, encode_runs([first.run]))
    assert decider.assigned().run != first.run


def test_a_worker_gets_another_decision_for_one_that_it_has_lost(node: Node) -> None:
    decider = Decider(node, decisions=1)
    start(node)
    first = decider.assigned()
    node.wait(10.1)
    ((kind, args),) = decider.take()
    assert (kind, args) == (Type.STOP, [first.handle, first.token, b"lost"]), "a silent worker gets none"
    decider.peer.request(Type.FORGOTTEN, encode_runs([first.run]))
    assert decider.assigned().token != first.token


def test_the_runs_of_a_silent_worker_go_to_another_one(node: Node) -> None:
    """It has them in memory, but the loss of one decision says that it makes no others either."""
    frozen = Decider(node, decisions=10)
    for number in range(3):
        start(node, b"w-%d" % number)
    kept = [Assigned(args) for _, args in frozen.take()]
    for decision in kept[:2]:
        frozen.ask(report(decision, StartTimer(1, "1", 12.0)))
    other = Decider(node, decisions=10)
    node.wait(10.1)
    (kind, _), *more = frozen.take()
    assert (kind, more) == (Type.STOP, [])
    start(node, b"new")
    node.wait(2.5)
    decisions = [Assigned(args) for _, args in other.take()]
    assert {one.run for one in decisions} > {one.run for one in kept}
    assert all(one.info["first"] == 1 for one in decisions), "it needs the whole histories"
    frozen.peer.request(Type.HEARTBEAT, b'{"jobs": []}')
    other.peer.leave()
    assert len(frozen.take()) == 1 + len(decisions), "it gets decisions again"


def test_the_run_whose_code_blocks_a_worker_is_parked_and_the_others_are_given_back(node: Node) -> None:
    frozen, tool = Decider(node, decisions=10), node.connect(extended=True)
    for number in range(2):
        start(node, b"w-%d" % number)
    first, second = (Assigned(args) for _, args in frozen.take())
    delivery = (first.handle.decode(), first.token.decode())
    error = {"type": "WorkerFrozen", "message": "its code blocks"}
    assert tool.call("worker.frozen", deliveries=[delivery], blocking=delivery, error=error) == {"jobs": 2}
    other = Decider(node, decisions=10)
    assert [(one.run, one.info["attempt"]) for one in [other.assigned()]] == [(second.run, 1)]
    shown = tool.call("workflows.show", key="w-0")
    assert (shown["parked"]["kind"], shown["parked"]["message"]) == ("losses", "its code blocks")
    other.peer.leave()
    node.wait(301)
    late = Decider(node, decisions=10)
    assert first.run in [Assigned(args).run for _, args in late.take()], "it is tried again"


def test_a_history_is_read_in_pages(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    decider.peer.request(Type.HISTORY, b"%d" % decision.run, b"2")
    ((kind, args),) = decider.take()
    assert (kind, args[:2]) == (Type.EVENTS, [b"%d" % decision.run, b"2"])
    assert kinds(decode_events(args[2])) == ["DecisionTaskScheduled"]
    decider.peer.request(Type.HISTORY, b"%d" % decision.run, b"3")
    ((_, args),) = decider.take()
    assert decode_events(args[2]) == []


def forgotten(node: Node, decider: Decider) -> Assigned:
    """Return a decision after which the worker has dropped a run, which sleeps for a second."""
    start(node, b"w-1")
    decision = decider.assigned()
    decider.ask(report(decision, StartTimer(1, "1", 1.0)))
    decider.peer.request(Type.FORGOTTEN, encode_runs([decision.run]))
    return decision


def test_a_forgotten_run_is_assigned_with_its_whole_history(node: Node, decider: Decider) -> None:
    forgotten(node, decider)
    node.wait(1.1)
    following = decider.assigned()
    assert following.info["first"] == 1
    assert kinds(following.events)[-3:] == ["TimerStarted", "TimerFired", "DecisionTaskScheduled"]
    assert [event.id for event in following.events] == list(range(1, following.info["last"] + 1))


def test_a_decision_whose_events_cannot_be_read_is_assigned_without_them(node: Node, decider: Decider) -> None:
    forgotten(node, decider)
    node.life.store.away = True
    node.wait(1.1)
    following = decider.assigned()
    assert (following.events, following.info["first"], following.info["last"]) == ([], 8, 7)


def test_a_decision_of_a_run_that_cannot_be_read_is_postponed(
    node: Node, decider: Decider, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = forgotten(node, decider).run
    with monkeypatch.context() as patched:
        patched.setattr(reading, "decoded", lambda *_: "an event of a newer version")
        node.wait(1.1)
        assert decider.take() == []
        assert node.life.workflows is not None
        assert node.life.workflows.is_set_aside(run)
        start(node, b"w-2")
        other = decider.assigned()
        assert other.run != run, "it takes no place"
        decider.ask(report(other, CompleteWorkflowExecution(1, b"1")))
    node.wait(RETRY_DELAY + 0.5)
    following = decider.assigned()
    assert (following.run, following.info["attempt"]) == (run, 1)
    assert [event.id for event in following.events] == list(range(1, following.info["last"] + 1))


def test_a_decision_of_a_long_history_is_assigned_without_events(
    node: Node, decider: Decider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_BLOCKS", 2)
    forgotten(node, decider)
    node.wait(1.1)
    assert decider.assigned().events == []


class HeldReads:
    """Delays the answers of a node's reads."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        read = node.life.store.read
        self.answers: list[Callable[[], None]] = []

        def hold(query: Query[Any], budget: Budget, answered: Callable[[Any], None]) -> None:
            read(query, budget, lambda outcome: self.answers.append(lambda: answered(outcome)))

        monkeypatch.setattr(node.life.store, "read", hold)

    def answer(self) -> None:
        answers, self.answers = self.answers, []
        assert answers
        for answer in answers:
            answer()


def test_a_decision_that_is_lost_while_its_events_are_read_is_not_assigned(
    node: Node, decider: Decider, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten(node, decider)
    reads = HeldReads(node, monkeypatch)
    node.wait(1.1)
    assert decider.take() == []
    client = node.connect(extended=True)
    client.request(Type.CALL, b"1", b"workflows.terminate", json.dumps({"key": "w-1"}).encode())
    assert decider.take() == [], "the worker does not have what STOP would end"
    reads.answer()
    assert decider.take() == []


def test_events_that_follow_while_others_are_read_are_assigned_with_them(
    node: Node, decider: Decider, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten(node, decider)
    reads = HeldReads(node, monkeypatch)
    node.wait(1.1)
    client = node.connect(extended=True)
    client.request(Type.CALL, b"1", b"workflows.signal", json.dumps({"key": "w-1", "name": "go"}).encode())
    assert decider.take() == []
    reads.answer()
    following = decider.assigned()
    assert kinds(following.events)[-1] == "WorkflowExecutionSignaled"
    assert following.info["last"] == following.events[-1].id


def test_a_decision_follows_the_answer_to_a_report_that_comes_while_its_events_are_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    decider = Decider(node, b"charge")
    start(node, b"w-1")
    decision = decider.assigned()
    _, (activity,) = decider.ask(report(decision, TASK))
    decider.peer.request(Type.FORGOTTEN, encode_runs([decision.run]))
    reads = HeldReads(node, monkeypatch)
    client = node.connect(extended=True)
    client.request(Type.CALL, b"1", b"workflows.signal", json.dumps({"key": "w-1", "name": "go"}).encode())
    assert decider.take() == []
    settled = SettlementMessage(activity.handle, activity.token, b'"paid"')
    decider.send(DecideMessage(decision.run, b"", b"", 4, 1, 0, False, (), (), (settled,)))
    reads.answer()
    assert [kind for kind, _ in decider.raw] == []
    assert [kind for kind, _ in decider.take()] == [Type.DECIDED]
    reads.answer()
    assert kinds(decider.assigned().events)[-1] == "ActivityTaskCompleted"


def test_decisions_whose_events_are_read_share_reads(
    node: Node, decider: Decider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(10):
        start(node)
    decisions = [Assigned(args) for _, args in decider.take()]
    decider.send(*(report(decision, StartTimer(1, "1", 1.0)) for decision in decisions))
    decider.take()
    decider.peer.request(Type.FORGOTTEN, encode_runs([decision.run for decision in decisions]))
    reads = HeldReads(node, monkeypatch)
    node.wait(1.1)
    number = 0
    while reads.answers:
        number += 1
        reads.answer()
        node.commit()
    assert sorted(Assigned(args).run for _, args in decider.take()) == sorted(one.run for one in decisions)
    assert 1 <= number <= 2


def test_a_run_whose_decision_crosses_its_forgetting_is_still_the_workers(node: Node, decider: Decider) -> None:
    """The worker reads the history again, and a signal must reach it while its steps run."""
    start(node, b"w-1")
    decision = decider.assigned()
    decider.ask(report(decision, StartTimer(1, "1", 1.0)))
    node.wait(1.1)
    following = decider.assigned()
    decider.peer.request(Type.FORGOTTEN, encode_runs([decision.run]))
    node.connect(extended=True).call("workflows.signal", key="w-1", name="go")
    ((kind, args),) = decider.take()
    assert (kind, args) == (Type.STOP, [following.handle, following.token, b"events"])


def test_a_run_whose_decision_fails_five_times_is_parked(node: Node, decider: Decider) -> None:
    """A worker fails a decision if the node refuses a report of it while the worker goes on with the run."""
    start(node)
    decision = decider.assigned()
    for _ in range(5):
        decider.peer.request(Type.SETTLE, decision.handle, decision.token, b"failed", b'{"final":true}', b"")
        assigned = [args for kind, args in decider.take() if kind == Type.ASSIGN]
        if assigned:
            decision = Assigned(assigned[0])
    assert not assigned
    answer, _ = decider.ask(report(decision, StartTimer(1, "1", 1.0)))
    assert answer.verdict == "stale"


def test_a_run_whose_code_is_missing_is_parked(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    answer, _ = decider.ask(report(decision, parked=Parked("missing", "no code"), build="d"))
    assert answer.verdict == "parked"


@pytest.mark.parametrize("early", [True, False])
def test_a_parked_run_goes_to_another_build_that_connects_before_or_after(node: Node, early: bool) -> None:
    """The other one connects while the request to park is under way, or when it is on disk."""
    first = Decider(node)
    start(node)
    decision = first.assigned()
    first.send(report(decision, parked=Parked("mismatch", "differs"), build="d"))
    if not early:
        node.commit()
    second = Decider(node, workflow={"version": "1", "digest": "e"})
    node.wait(5.1 if early else 0.1)  # the look finds a run that was parked after the connection
    assert second.assigned().run == decision.run
    assert [kind for kind, _ in first.take()] == [Type.DECIDED]


def test_an_alarm_of_a_run_that_is_set_aside_rings_when_the_run_is_tried_again(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    decider.ask(report(decision, StartTimer(1, "1", 1.0)))
    assert node.life.workflows is not None
    node.life.workflows.history_not_read(decision.run, "damaged")
    node.wait(RETRY_DELAY - 1)
    assert decider.take() == []
    node.wait(RETRY_DELAY)
    assert kinds(decider.assigned().events) == ["TimerFired", "DecisionTaskScheduled"]


def test_a_timer_within_the_look_ahead_fires_at_its_time(node: Node, decider: Decider) -> None:
    """The node looks for alarms some seconds ahead, and has looked when the timer starts: it rings its own alarms itself."""
    node.wait(1)
    start(node)
    decider.ask(report(decider.assigned(), StartTimer(1, "1", 0.2)))
    node.wait(0.19)
    assert decider.take() == []
    node.wait(0.02)
    assert kinds(decider.assigned().events) == ["TimerFired", "DecisionTaskScheduled"]


def test_a_plain_worker_of_a_workflows_function_gets_no_run(node: Node, decider: Decider) -> None:
    worker = node.worker(ORDER)
    start(node)
    decider.assigned()
    assert worker.ask(Type.GRAB_JOB) == ("NO_JOB", [])
    worker.request(Type.PRE_SLEEP)
    start(node)
    node.commit()
    assert worker.received() == []
    worker.request(Type.GRAB_JOB)
    assert worker.answer() == ("NO_JOB", [])


# ---- what a stranger may send ----

STEP = StepResult(1, 1, "price", b"5", 7)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seen": -1}, "seen=-1"),
        ({"now_us": 2**63}, "now=9223372036854775808"),
        ({"batch": 2**31}, "batch=2147483648"),
        ({"steps": (msgspec.structs.replace(STEP, number=0),)}, "step 0"),
        ({"steps": (msgspec.structs.replace(STEP, result=b"x" * 101),)}, "101 bytes"),
        ({"decisions": (msgspec.structs.replace(TASK, function=b""),)}, "the name of a function"),
        ({"decisions": (msgspec.structs.replace(TASK, function=b"a\0b"),)}, "the name of a function"),
        ({"decisions": (msgspec.structs.replace(TASK, function=b"\x1fd\x1forder"),)}, r"U\+001F"),
        (
            {"decisions": (msgspec.structs.replace(TASK, function=b"webhook:crm"),)},
            "webhook:crm' is refused: names that",
        ),
        ({"decisions": (StartChildWorkflowExecution(1, "id", "webhook:crm", "1"),)}, "not the name of a workflow"),
        (
            {"decisions": (msgspec.structs.replace(TASK, function=ORDER),)},
            "order is a workflow, and an activity is a task's",
        ),
        ({"decisions": (StartChildWorkflowExecution(1, "id", "team\x1forder", "1"),)}, "the name of a workflow"),
        ({"decisions": (msgspec.structs.replace(TASK, task_priority=3),)}, "priority 3"),
        ({"decisions": (msgspec.structs.replace(TASK, key=b"k" * 257),)}, "key"),
        ({"decisions": (msgspec.structs.replace(TASK, options=b"\xc1"),)}, "options cannot be read"),
        ({"decisions": (msgspec.structs.replace(TASK, options=encode_options(Options(forget=True))),)}, "forget"),
        ({"decisions": (msgspec.structs.replace(TASK, options=encode_options(Options(timeout=-1.0))),)}, "timeout"),
        (
            {
                "decisions": (
                    msgspec.structs.replace(TASK, options=encode_options(Options(retry=Retry(max_attempts=0)))),
                )
            },
            "max_attempts",
        ),
        ({"decisions": (msgspec.structs.replace(TASK, heartbeat=float("nan")),)}, "heartbeat is nan"),
        ({"decisions": (StartTimer(1, "1", float("inf")),)}, "timer of inf"),
        ({"decisions": (StartTimer(1, "1" * 2000, 1.0),)}, "timer_id"),
        ({"decisions": (StartTimer(-1, "1", 1.0),)}, "out of range"),
        ({"decisions": (RecordMarker(1, "m", digest=2**64 - 1, details=b"x" * 101),)}, "details has 101"),
        ({"decisions": (TASK,) * 10_001}, "at most 10000"),
    ],
)
def test_values_out_of_range_are_refused_with_the_reason(change: dict[str, Any], text: str) -> None:
    message = DecideMessage(7, b"", b"", 1, 1, 0, False)
    assert refusal(message, 100, {ORDER}.__contains__) == ""
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(refusal(msgspec.structs.replace(message, **change), 100, {ORDER}.__contains__))


def test_a_run_whose_decider_sends_such_values_is_parked(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    answer, _ = decider.ask(report(decision, StartTimer(1, "1", float("inf"))))
    assert (answer.verdict, answer.why) == ("refused", "StartTimer 1: a timer of inf s is out of range")
    assert decider.take() == [], "the run waits for other code"


def test_a_run_whose_decider_submits_a_workflow_as_an_activity_is_parked(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    answer, _ = decider.ask(report(decision, msgspec.structs.replace(TASK, function=ORDER)))
    assert (answer.verdict, "order is a workflow" in answer.why) == ("refused", True)
    assert decider.take() == []


@pytest.mark.parametrize(
    ("kind", "args", "text"),
    [
        (Type.DECIDE, [b"1", b""], "the body of DECIDE cannot be read"),
        (Type.DECIDE, [b"1", b"\x91\x91\xc1"], "the body of DECIDE cannot be read"),
        (Type.DECIDE, [b"x" * 21, b"\x90"], "an id of up to 20 bytes"),
        (Type.FORGOTTEN, [b"\x91\xa1x"], "the body of FORGOTTEN cannot be read"),
        (Type.HISTORY, [b"x", b"1"], "decimal numbers"),
        (Type.HISTORY, [b"1" * 19, b"1"], "decimal numbers"),
    ],
)
def test_malformed_packets_are_refused(node: Node, decider: Decider, kind: int, args: list[bytes], text: str) -> None:
    decider.peer.request(kind, *args)
    ((kind, answer),) = decider.take()
    assert (kind, answer[0]) == (Type.ERROR, b"INVALID_ARGUMENTS")
    assert text in answer[1].decode()


def test_reports_of_a_connection_without_workflows_are_refused(node: Node) -> None:
    peer = node.connect(extended=True)
    assert peer.ask(Type.DECIDE, b"1", b"\x90")[1][1] == "DECIDE comes after a REGISTER with a workflow"


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        (b"\xff", WORKFLOW, "is not UTF-8"),
        (b"a\x1fb", WORKFLOW, r"U+001F"),
        (b"order", {"workflow": {"version": "a@b"}}, "without '@'"),
        (b"order", {"workflow": {"version": ""}}, "give both"),
        (b"o" * 500, WORKFLOW, "is too long"),
        (b"webhook:crm", WORKFLOW, "'webhook:crm' is refused: names that begin with webhook:"),
        (b"order", {**WORKFLOW, "decisions": 0}, "1 to 10000 decisions"),
        (b"order", {"workflow": {"version": 1}}, "cannot be read"),
    ],
)
def test_registrations_are_checked(node: Node, name: bytes, options: dict[str, Any], text: str) -> None:
    peer = node.connect(extended=True)
    answer, (code, message) = peer.ask(Type.REGISTER, name, json.dumps(options).encode())
    assert (answer, code) == ("ERROR", "INVALID_ARGUMENTS")
    assert text in message


@pytest.mark.parametrize(
    "packet",
    [
        (Type.SUBMIT_JOB, DECISIONS, b"", b""),
        (Type.SUBMIT_JOB_BG, DECISIONS, b"", b""),
        (Type.CAN_DO, DECISIONS),
        (Type.REGISTER, DECISIONS, b""),
        (Type.SUBMIT_JOB_BG, b"a\x1fb", b"", b""),
        (Type.SUBMIT_JOB, WEBHOOK, b"", b""),
        (Type.SUBMIT_JOB_BG, WEBHOOK, b"", b""),
        (Type.SUBMIT_JOB_EPOCH, WEBHOOK, b"", b"1", b""),
        (Type.SUBMIT_REDUCE_JOB_BACKGROUND, WEBHOOK, b"", b"f", b"", b""),
        (Type.SUBMIT_REDUCE_JOB_BACKGROUND, b"f", b"", WEBHOOK, b"", b""),
        (Type.SUBMIT, WEBHOOK, b"", b"", b""),
        (Type.CAN_DO, WEBHOOK),
        (Type.CAN_DO_TIMEOUT, WEBHOOK, b"1"),
        (Type.REGISTER, WEBHOOK, b""),
    ],
)
def test_functions_of_nodes_are_neither_submitted_nor_registered_for(
    node: Node, decider: Decider, packet: tuple[Type, *tuple[bytes, ...]]
) -> None:
    kind, *args = packet
    answer, (code, message) = node.connect(extended=True).ask(kind, *args)
    assert (answer, code) == ("ERROR", "INVALID_FUNCTION_NAME")
    assert "U+001F" in message
    assert decider.take() == []


def test_lists_name_the_functions_of_decisions_for_people(node: Node) -> None:
    start(node)
    Decider(node, b"charge").assigned()
    client = node.connect()
    assert client.text("status").splitlines()[:-1] == [
        "order\t1\t1\t0",
        "charge\t0\t0\t1",
        "order@1 (decisions)\t1\t1\t1",
    ]
    assert client.text("prioritystatus").splitlines()[2] == "order@1 (decisions)\t0\t0\t0\t1"
    assert ": charge order@1(decisions)\n" in client.text("workers")
    for name in (DECISIONS, WEBHOOK):
        assert client.text(f"create function {name.decode()}").startswith("ERR INVALID_FUNCTION_NAME ")


def test_a_store_without_workflows_refuses_their_workers() -> None:
    peer = Node().connect(extended=True)
    answer, (code, message) = peer.ask(Type.REGISTER, ORDER, json.dumps(WORKFLOW).encode())
    assert (answer, code) == ("ERROR", "UNSUPPORTED")
    assert message.startswith("order is a workflow, and this node's store keeps no workflows")


def test_an_unknown_history_is_empty(node: Node, decider: Decider) -> None:
    decider.peer.send(request(Type.HISTORY, b"99", b"1"))
    ((kind, args),) = decider.take()
    assert (kind, decode_events(args[2])) == (Type.EVENTS, [])


def test_a_stop_of_the_node_releases_the_decision_that_follows_the_one_under_way(node: Node, decider: Decider) -> None:
    start(node)
    decider.send(report(decider.assigned(), StartTimer(1, "1", 60.0), more=True))
    node.life.loop.soon.popleft()()  # the report is on its way to the store
    node.life.end()
    counts = node.life.store.counts()
    assert [key for key, number in counts.items() if key[0][:1] == b"\x1f" and number] == [
        (decision_function("default", "order", "1"), State.PENDING, 1)
    ]


def test_a_deleted_decision_is_not_assigned_while_another_one_is_forgotten(node: Node) -> None:
    first = Decider(node, decisions=1)
    runs = [start(node)]
    first.ask(report(first.assigned(), StartTimer(1, "1", 60.0)))
    runs.append(start(node))
    first.assigned()
    second = Decider(node, decisions=1)
    client = node.connect(extended=True)
    assert client.call("workflows.signal", key=runs[0], name="s")["status"] == "open"
    assert second.take() == [], "the decision waits for the worker that has its run"
    node.clock.advance(0.1)  # and now it would wait no longer
    for number, run in enumerate(reversed(runs)):
        client.request(Type.CALL, b"%d" % number, b"workflows.terminate", json.dumps({"key": run}).encode())
    assert [kind for kind, _ in first.take()] == [Type.STOP]
    assert second.take() == []


def test_a_registration_that_the_store_cannot_take_is_repeated(node: Node) -> None:
    peer = node.connect(extended=True)
    peer.request(Type.REGISTER, ORDER, json.dumps(WORKFLOW).encode())
    node.fail()
    assert peer.received() == []
    node.wait(1.0)
    start(node)
    node.commit()
    assert [kind for kind, _ in peer.received()] == ["ASSIGN"]


def test_a_worker_that_ends_before_its_workflow_is_stored_gets_no_decisions(node: Node) -> None:
    """Requests of it still wait for a pause to end, so that its connection is there."""
    gone = node.connect(extended=True)
    gone.request(Type.REGISTER, ORDER, json.dumps(WORKFLOW).encode())
    reading = gone.wire.peer.reading
    reading.pause("unanswered", paused=True)
    reading.drain()
    gone.request(Type.SUBMIT, b"f", b"", b"{}", b"")
    assert gone.wire.protocol.eof_received()
    start(node)
    node.commit()
    assert gone.wire.peer.decisions is None
    assert not gone.wire.over
    reading.pause("unanswered", paused=False)
    node.wait(0)
    assert [kind for kind, _ in gone.received()] == ["SUBMITTED"]


def test_a_history_that_the_store_cannot_give_is_read_again(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    decider.peer.request(Type.HISTORY, b"%d" % decision.run, b"2")
    node.fail()
    assert decider.take() == []
    node.wait(1.0)
    assert [kind for kind, _ in decider.take()] == [Type.EVENTS]


def test_a_job_that_was_pending_before_a_restart_begins_its_run(node: Node) -> None:
    start(node)
    execute(node.engine, [SaveDefinitions([Definition("order")], 1)])  # and the node crashed before it began the run
    second = Node(node, workflows=True)
    counts = second.life.store.counts()
    assert [key[:2] for key, number in counts.items() if number] == [
        (ORDER, State.LEASED),
        (decision_function("default", "order", "1"), State.PENDING),
    ]


# ---- packets of the network ----


def test_the_packets_of_one_group_to_a_peer_are_written_together(
    node: Node, decider: Decider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = node.connect(extended=True)
    jobs = [client.background() for _ in range(3)]
    written: dict[Wire, list[int]] = {client.wire: [], decider.peer.wire: []}
    write = Wire.write

    def count(wire: Wire, data: bytes) -> None:
        written[wire].append(data.count(b"\0RES"))
        write(wire, data)

    monkeypatch.setattr(Wire, "write", count)
    for number, job in enumerate(jobs):
        client.request(Type.CALL, b"%d" % number, b"jobs.cancel", json.dumps({"handle": job}).encode())
    client.send(b"".join(request(Type.SUBMIT_JOB_BG, ORDER, b"order-%d" % number, b"[17]") for number in range(3)))
    assert len(decider.take()) == 3
    assert written == {client.wire: [6], decider.peer.wire: [3]}
    assert [name for name, _ in client.received()] == ["ANSWER"] * 3 + ["JOB_CREATED"] * 3


def test_a_decision_is_assigned_before_the_report_that_caused_it_is_answered(node: Node, decider: Decider) -> None:
    start(node)
    decision = decider.assigned()
    worker = Decider(node, b"charge")
    decider.ask(report(decision, TASK))
    (activity,) = (Assigned(args) for kind, args in worker.take() if kind == Type.ASSIGN)
    written: list[int] = []
    for peer in (decider.peer, worker.peer):
        peer.wire._see = lambda kind, _: written.append(kind)  # noqa: SLF001 - the order of both connections
    worker.peer.request(Type.SETTLE, activity.handle, activity.token, b"succeeded", b"", b"1")
    node.commit()
    assert written == [Type.ASSIGN, Type.SETTLED]


def test_a_client_has_many_signals_under_way_but_few_requests_with_long_answers(node: Node) -> None:
    runs = [start(node) for _ in range(2)]
    signals, lists = node.connect(extended=True), node.connect(extended=True)
    params = [json.dumps({"key": run, "name": "go"}).encode() for run in runs]
    signals.send(b"".join(request(Type.CALL, b"%d" % n, b"workflows.signal", params[n % 2]) for n in range(50)))
    assert not signals.wire.paused
    node.life.commits.flush()
    node.life.store.finish()
    assert len(signals.received()) == 50, "all are in one group"
    lists.send(b"".join(request(Type.CALL, b"%d" % n, b"workflows.list", b"") for n in range(17)))
    assert lists.wire.paused


def test_large_signals_of_a_client_under_way_are_limited(node: Node) -> None:
    configure(node, queued_bytes=1000)
    client = node.connect(extended=True)
    params = json.dumps({"key": start(node), "name": "go", "value": "x" * 600}).encode()
    client.send(request(Type.CALL, b"1", b"workflows.signal", params) * 2)
    assert client.wire.paused
    node.commit()
    assert not client.wire.paused


# ---- lines of the code ----

LINES = msgspec.msgpack.encode((3, [[1_000_000, 1, "mainspring.workflow", "hello", {"n": 1}]]))


def lines(node: Node, handle: str) -> list[dict[str, Any]]:
    node.wait(PAUSE)
    node.commit()
    return list(node.connect(extended=True).call("jobs.logs", handle=handle, whole=True)["items"])


def test_lines_in_a_recorded_report_belong_to_the_log_of_the_run(node: Node, decider: Decider) -> None:
    handle = start(node)
    answer, _ = decider.ask(report(decider.assigned(), TASK, log=LINES))
    assert answer.verdict == "recorded"
    (line,) = lines(node, handle)
    assert (line["number"], line["message"], line["missed"]) == (3, "hello", 2)


def test_lines_in_a_report_that_is_not_recorded_are_not_stored(node: Node, decider: Decider) -> None:
    handle = start(node)
    decision = decider.assigned()
    answer, _ = decider.ask(report(decision, TASK, seen=1, log=LINES))
    assert answer.verdict != "recorded"
    assert lines(node, handle) == []


def test_lines_with_a_fused_decision_belong_to_the_log_of_the_run(node: Node) -> None:
    decider = Decider(node, b"charge")
    handle = start(node)
    _, (activity,) = decider.ask(report(decider.assigned(), TASK))
    ended = SettlementMessage(activity.handle, activity.token, b"1")
    fused = DecideMessage(
        activity.run,
        b"",
        b"",
        5,
        1,
        0,
        more=False,
        decisions=(StartTimer(2, "2", 5.0),),
        settlements=(ended,),
        log=LINES,
    )
    answer, _ = decider.ask(fused)
    assert answer.verdict == "recorded", answer.why
    assert [line["message"] for line in lines(node, handle)] == ["hello"]


@pytest.mark.parametrize("log", [b"\xc1", msgspec.msgpack.encode((0, [])), msgspec.msgpack.encode([1])])
def test_lines_that_cannot_be_read_do_not_harm_the_report(node: Node, decider: Decider, log: bytes) -> None:
    handle = start(node)
    answer, _ = decider.ask(report(decider.assigned(), TASK, log=log))
    assert answer.verdict == "recorded"
    assert lines(node, handle) == []


def test_lines_of_steps_and_of_the_code_take_turns_without_gaps(node: Node, decider: Decider) -> None:
    handle = start(node)
    decision = decider.assigned()

    def log(first: int, *texts: str) -> None:
        some = [[0, 1, "", text] for text in texts]
        body = msgspec.msgpack.encode([[decision.handle, decision.token, first, some]])
        decider.peer.request(Type.LOG, body)
        node.wait(PAUSE)
        node.commit()

    log(1, "a", "b")
    step = StepResult(1, 1, "charge", b"1", 7)
    code = msgspec.msgpack.encode((1, [[0, 1, "", "code"]]))
    decider.ask(report(decision, steps=[step], more=True, log=code))
    node.wait(PAUSE)
    node.commit()
    log(3, "c")
    client = node.connect(extended=True)
    for limit in (1, 2, 100):
        found: list[Any] = []
        place: dict[str, Any] = {"whole": True}
        while (page := client.call("jobs.logs", handle=handle, limit=limit, **place))["items"]:
            found += page["items"]
            place = {"cursor": page["next"]}
        assert [(line["message"], line.get("missed")) for line in found] == [
            ("a", None),
            ("b", None),
            ("code", None),
            ("c", None),
        ]
