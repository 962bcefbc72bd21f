"""Two nodes change the same runs of workflows: in turns, and at the same time."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.suite.driver import released

from mainspring.engines.postgres.transaction import SQL, Transaction
from mainspring.engines.postgres.workflows import RING_AGAIN_US
from mainspring.errors import StoreFencedError
from mainspring.events import Settled
from mainspring.jobs import store as job_ops
from mainspring.jobs.model import State, StopRequest, decode_failure, failure
from mainspring.jobs.rules import Event, Settlement
from mainspring.workflows import store as ops
from mainspring.workflows.history import (
    WorkflowExecutionContinuedAsNew,
    WorkflowExecutionSignaled,
)
from mainspring.workflows.model import Definition, Key, Status
from mainspring.workflows.requests import Signal, SignalExternalWorkflowExecution
from mainspring.workflows.store import HasErrands

from .a_fleet import session
from .run_nodes import Nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.suite.flows import Flows
    from tests.postgres.server import PostgresServer

    from mainspring.jobs.model import Job
    from mainspring.storage.engine import Operation

SECOND = 1_000_000


@pytest.fixture
def nodes(database: str) -> Iterator[Nodes]:
    """Open two nodes; check all runs afterwards."""
    opened = Nodes(database)
    try:
        yield opened
        opened.flows[1].check()
    finally:
        opened.close()


def signalling(flows: Flows, key: Key, *texts: bytes) -> ops.SignalRuns:
    return ops.SignalRuns([Signal(key, "s", text) for text in texts], flows.now_us)


def deciding(flows: Flows, run: int, job: Job, *decisions: Any, **values: Any) -> list[Operation]:
    """Return the group that completes a decision task."""
    completion = flows.completing(run, job, *decisions, **values)
    return [job_ops.Settle([flows.settled(job)]), ops.Decide([completion], flows.now_us)]


def signals(flows: Flows, run: int) -> list[bytes]:
    return [event.input for event in flows.history(run) if isinstance(event, WorkflowExecutionSignaled)]


# ---- turns ----


def test_a_run_in_memory_that_another_node_has_changed_is_read_again(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    sent = [b"%d" % number for number in range(8)]
    for number, text in enumerate(sent):
        (reached,) = nodes.flows[number % 2].signal(Signal(Key(job=run), "s", text))
        assert (reached.verdict, reached.event) == ("recorded", 3 + number)
    two.running(run, two.timer(1.0))
    assert signals(two, run) == sent
    one.wait(2 * SECOND)
    one.ring(run)
    assert two.kinds(run).count("TimerFired") == 1


def test_the_last_run_of_a_chain_is_found_whatever_node_began_it(nodes: Nodes) -> None:
    """Ids of runs of the node with the lower term are lower, also if the runs are newer."""
    one, two = nodes.flows
    root = two.start(unique=b"u")
    second = two.chained(root)
    third = one.chained(second)
    assert third < second
    assert two.last(root) == third
    for key in (Key(job=root), Key(workflow_id="u")):
        (reached,) = two.signal(Signal(key, "s", b""))
        assert (reached.verdict, reached.run) == ("recorded", third)
    one.running(third, one.close(b"done"))
    for key in (Key(job=root), Key(workflow_id="u")):
        shown = two.show(key)
        assert shown is not None
        assert shown.row.id == third
        (reached,) = two.signal(Signal(key, "s", b""))
        assert (reached.verdict, reached.run, reached.status) == ("closed", third, Status.COMPLETED)


def test_the_last_run_of_a_workflow_id_is_found_whatever_node_began_it(nodes: Nodes) -> None:
    one, two = nodes.flows
    runs = []
    for flows in (two, one):
        runs.append(flows.start(unique=b"u"))
        for each in nodes.flows:
            each.wait(SECOND)
        flows.running(runs[-1], flows.close())
    assert runs[1] < runs[0]
    shown = two.show(Key(workflow_id="u"))
    assert shown is not None
    assert shown.row.id == runs[1]


def test_the_open_runs_of_many_new_workflow_ids_are_one_read(nodes: Nodes) -> None:
    one, two = nodes.flows
    one.define(Definition("ship", "1"))
    rival = one.start(b"ship", unique=b"u")
    jobs = [two.new(unique=unique) for unique in (b"", b"u", b"v", b"")]
    nodes.patch.setitem(SQL, "open_run", "SELECT 1 / 0")
    assert two.group(ops.BeginRuns([ops.Start(job) for job in jobs], two.now_us)) == [ops.Begun({}, {})]
    nodes.patch.undo()
    assert [two.store.state(job.id) for job in jobs] == [State.RUNNING, State.FAILED, State.RUNNING, State.RUNNING]
    assert two.status(rival) is Status.OPEN


# ---- at the same time ----


def test_no_concurrent_signal_is_lost(nodes: Nodes) -> None:
    one, two = nodes.flows
    runs = [one.start(), two.start()]
    sent: dict[int, list[bytes]] = {run: [] for run in runs}
    for number in range(12):
        groups = []
        for at, flows in enumerate(nodes.flows):
            texts = dict.fromkeys(runs if at else reversed(runs), b"%d %d" % (number, at))
            for run, text in texts.items():
                sent[run].append(text)
            groups.append((flows, [signalling(flows, Key(job=run), text) for run, text in texts.items()]))
        for outcomes in nodes.concurrently(*groups):
            assert isinstance(outcomes, list)
            assert all(reached.verdict == "recorded" for (reached,) in outcomes)
    for run in runs:
        assert sorted(signals(two, run)) == sorted(sent[run])


def test_a_signal_after_a_close_is_refused(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    group = deciding(one, run, one.task(run), one.close())
    (_, (decided,)), ((reached,),) = nodes.meet((one, group), (two, [signalling(two, Key(job=run), b"late")]))
    assert (decided.verdict, decided.status) == ("recorded", Status.COMPLETED)
    assert (reached.verdict, reached.status) == ("closed", Status.COMPLETED)


def test_a_signal_before_a_close_is_seen_by_it(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    group = deciding(one, run, one.task(run), one.close())
    ((reached,),), (_, (decided,)) = nodes.meet((two, [signalling(two, Key(job=run), b"in time")]), (one, group))
    assert reached.verdict == "recorded"
    assert decided.refused_close
    assert "CompleteWorkflowExecutionFailed" in one.kinds(run)
    assert one.status(run) is Status.OPEN


@pytest.mark.parametrize("by_name", [True, False])
def test_a_signal_to_a_run_that_continues_as_new_reaches_the_next_one(nodes: Nodes, *, by_name: bool) -> None:
    one, two = nodes.flows
    root = run = one.start(unique=b"u")
    for number in range(3):
        key = Key(workflow_id="u") if by_name else Key(job=root)
        group = deciding(one, run, one.task(run), one.continuing())
        _, ((reached,),) = nodes.meet((one, group), (two, [signalling(two, key, b"%d" % number)]))
        following = one.last_event(run, WorkflowExecutionContinuedAsNew).new_run
        assert (reached.verdict, reached.run) == ("recorded", following)
        assert signals(two, following) == [b"%d" % number]
        nodes.patch.undo()
        run = following


def test_a_run_that_begins_after_its_lock_was_looked_for_is_locked_all_the_same(nodes: Nodes) -> None:
    one, two = nodes.flows
    job = one.new()
    one.store.submit(job)
    key = Key(job=job.id)
    begin = [ops.BeginWaiting(b"order", 1, two.now_us), signalling(two, key, b"first")]
    nodes.before("hold", one, lambda: two.store.committed(begin))
    nodes.meet((one, [signalling(one, key, b"second")]), (two, [signalling(two, key, b"third")]))
    assert signals(two, job.id) == [b"first", b"second", b"third"]


# ---- starts ----


def test_an_early_signal_and_the_begin_of_its_run_at_another_node(nodes: Nodes) -> None:
    one, two = nodes.flows
    waiting = one.store.submitted(function=b"later")
    begin: list[Operation] = [
        ops.SaveDefinitions([Definition("later")], two.now_us),
        ops.BeginWaiting(b"later", 9, two.now_us),
    ]
    group = [signalling(one, Key(job=waiting.id), b"early")]
    ((reached,),), (_, number) = nodes.during((one, group), (two, begin), "early")
    assert number == 1
    assert (reached.verdict, reached.run, reached.event) == ("recorded", waiting.id, 3)
    assert signals(two, waiting.id) == [b"early"]


def test_early_signals_of_two_nodes_keep_their_places(nodes: Nodes) -> None:
    one, two = nodes.flows
    waiting = one.store.submitted(function=b"later")
    key = Key(job=waiting.id)
    for number in range(6):
        groups = [(flows, [signalling(flows, key, b"%d" % (2 * number + at))]) for at, flows in enumerate(nodes.flows)]
        for outcomes in nodes.concurrently(*groups):
            assert isinstance(outcomes, list), outcomes
    two.define(Definition("later"))
    assert two.begin_waiting(function=b"later") == 1
    assert sorted(signals(two, waiting.id), key=int) == [b"%d" % number for number in range(12)]


def test_a_signal_to_a_waiting_job_whose_run_another_node_begins(nodes: Nodes) -> None:
    one, two = nodes.flows
    waiting = one.store.submitted(function=b"order")
    group = [signalling(one, Key(job=waiting.id), b"first")]
    ((reached,),), (number,) = nodes.during(
        (one, group), (two, [ops.BeginWaiting(b"order", 9, two.now_us)]), "take_waiting"
    )
    assert number == 1
    assert (reached.verdict, reached.run, reached.event) == ("recorded", waiting.id, 3)


@pytest.mark.parametrize("function", [b"order", b"later"])
@pytest.mark.parametrize("named", range(3))
def test_signals_to_waiting_jobs_in_another_order_do_not_deadlock(
    nodes: Nodes, postgres: PostgresServer, function: bytes, named: int
) -> None:
    one, two = nodes.flows
    waiting: dict[str, Any] = {"function": function, "state": State.SCHEDULED, "due_us": one.now_us + SECOND}
    jobs = [one.store.submitted(unique=b"w%d" % number, **waiting).id for number in range(2)]
    keys = [Key(workflow_id=f"w{number}") if number < named else Key(job=job) for number, job in enumerate(jobs)]
    first, second = (
        (flows, [ops.SignalRuns([Signal(key, "s", b"%d" % at) for at, key in enumerate(order)], flows.now_us)])
        for flows, order in ((one, keys), (two, keys[::-1]))
    )
    deadlocks = postgres.log().count("deadlock detected")
    method = "take_waiting" if function == b"order" else "early"
    for ((reached, other),) in nodes.meet(first, second, method, 2):
        assert {reached.verdict, other.verdict} == {"recorded"}
    assert postgres.log().count("deadlock detected") == deadlocks


def test_two_nodes_begin_each_waiting_run_once(nodes: Nodes) -> None:
    one, two = nodes.flows
    jobs = [one.store.submitted(function=b"order").id for _ in range(30)]
    begun = 0
    while begun < len(jobs):
        outcomes = nodes.concurrently(
            *((flows, [ops.BeginWaiting(b"order", 4, flows.now_us)]) for flows in nodes.flows)
        )
        begun += sum(one[0] for one in outcomes if isinstance(one, list))
    assert sorted(one.list()) == sorted(jobs)
    assert {len(two.history(run)) for run in jobs} == {2}


def test_a_workflow_id_has_one_open_run_of_two_functions(nodes: Nodes) -> None:
    one, two = nodes.flows
    one.define(Definition("ship"))
    order, ship = one.new(unique=b"17"), two.new(b"ship", unique=b"17")
    nodes.during((one, [one.starting(order)]), (two, [two.starting(ship)]))
    assert one.list() == [ship.id]
    rival = two.store.present(order.id)
    assert State(rival.state) is State.FAILED
    assert decode_failure(rival.error).type == "WorkflowAlreadyRunning"


# ---- timers and decisions ----


def test_two_nodes_ring_a_timer_once(nodes: Nodes) -> None:
    one, two = nodes.flows
    runs = [one.start() for _ in range(3)]
    for run in runs:
        one.running(run, one.timer(1.0))
    for flows in nodes.flows:
        flows.wait(2 * SECOND)
    # Neither waits for the other: both would be as late as the slower one, and ring again what is rung.
    first, second = nodes.during(
        (one, [ops.RingAlarms(runs[:2], one.now_us)]), (two, [ops.RingAlarms(runs, two.now_us)])
    )
    assert first[0].keys() == set(runs[:2])
    due = second[0].pop(runs[2])
    assert due != two.now_us + RING_AGAIN_US, "nobody had locked it"
    assert second == [dict.fromkeys(runs[:2], two.now_us + RING_AGAIN_US)]
    later = two.store.group(ops.RingAlarms(runs[:2], two.now_us + RING_AGAIN_US))
    assert later[0].keys() == set(runs[:2])
    assert not {two.now_us + RING_AGAIN_US, 0} & set(later[0].values()), "they are rung by now, and have timeouts"
    for run in runs:
        assert two.kinds(run).count("TimerFired") == 1


def test_a_timer_of_a_run_that_another_group_changes_is_rung_soon_afterwards(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    one.running(run, one.timer(1.0))
    for flows in nodes.flows:
        flows.wait(2 * SECOND)
    _, (rung,) = nodes.during(
        (one, [ops.SignalRuns([Signal(Key(run=run), "s", b"")], one.now_us)]),
        (two, [ops.RingAlarms([run], two.now_us)]),
    )
    assert rung == {run: two.now_us + RING_AGAIN_US}
    assert two.kinds(run).count("TimerFired") == 0
    two.wait(RING_AGAIN_US)
    (rung,) = two.store.group(ops.RingAlarms([run], two.now_us))
    assert rung.keys() == {run}
    assert two.kinds(run).count("TimerFired") == 1


def test_a_decision_of_a_node_whose_term_has_ended_is_refused(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    activity = one.held_activity(run)
    events = one.row(run).events
    completion = one.completing(run, None, one.close(), settled=[activity.id])
    group = [job_ops.Settle([one.settled(activity, b"stale")]), ops.Decide([completion], one.now_us)]
    two.store.end_term(one.store.term)
    with pytest.raises(StoreFencedError):
        one.store.group(*group)
    assert two.row(run).events == events
    assert two.store.recover() == 1
    (held,) = two.store.claim(b"charge")
    assert two.fuse(run, held, two.close(), result=b"second").status is Status.COMPLETED


@pytest.mark.parametrize("more", [False, True])
def test_a_decision_of_a_node_that_has_lost_it_is_refused(nodes: Nodes, *, more: bool) -> None:
    one, two = nodes.flows
    run = one.start()
    job = one.task(run)
    one.store.settle(Settlement(job, Event.RELEASE, job.attempt))
    held = two.task(run)
    events = two.row(run).events
    completion = one.completing(run, job, one.timer(1.0), more=more)
    settled = [] if more else [job_ops.Settle([one.settled(job)])]
    *stale, (decided,) = one.group(*settled, ops.Decide([completion], one.now_us))
    assert stale == [{job.id}] * (not more)
    assert decided.verdict == "stale"
    assert two.row(run).events == events
    assert two.decide(run, held, two.close()).status is Status.COMPLETED


def test_a_fused_decision_of_a_node_that_has_lost_the_activity_is_refused(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    activity = one.held_activity(run)
    one.store.settle(Settlement(activity, Event.RELEASE, activity.attempt))
    (held,) = two.store.claim(b"charge")
    completion = one.completing(run, None, one.close(), settled=[activity.id])
    settle = job_ops.Settle([one.settled(activity, b"stale")])
    stale, (decided,) = one.group(settle, ops.Decide([completion], one.now_us))
    assert stale == {activity.id}
    assert decided.verdict == "stale"
    assert two.fuse(run, held, two.close()).status is Status.COMPLETED


# ---- ends of jobs that show late ----


def late_end(nodes: Nodes, group: list[Operation], run: int) -> None:
    """Commit a group of the second node that ends a job of a run, which the first node has locked."""
    one, two = nodes.flows
    busy = [signalling(one, Key(job=run), b"busy")]
    nodes.during((one, busy), (two, group))
    nodes.patch.undo()
    assert two.store.read(HasErrands(0))


def ended_once(nodes: Nodes, run: int, kind: str) -> None:
    """Check that the end of an activity is recorded by one of two nodes that do errands at once."""
    _, two = nodes.flows
    assert kind not in two.kinds(run)
    left = True
    while left:
        outcomes = nodes.concurrently(*((flows, [ops.RunErrands(flows.now_us)]) for flows in nodes.flows))
        left = any(one[0].left or one[0].is_elsewhere for one in outcomes if isinstance(one, list))
    assert two.kinds(run).count(kind) == 1
    assert not two.store.read(HasErrands(0))


def test_the_cancel_by_hand_of_an_activity_of_a_locked_run_is_recorded_later(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    one.running(run, one.activity())
    (activity,) = one.shown(run).state.activities.values()
    late_end(nodes, [job_ops.Cancel(activity.job, failure("Cancelled", "by hand"), two.now_us)], run)
    ended_once(nodes, run, "ActivityTaskCanceled")


def test_the_recovered_end_of_an_activity_of_a_locked_run_is_recorded_later(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    third = one.store.beside("n3")
    one.running(run, one.activity())
    (activity,) = third.claim(b"charge")
    request = StopRequest(one.now_us, failure("Cancelled", "by hand"))
    one.group(job_ops.RequestStop([(activity.id, third.term)], request))
    one.store.end_term(third.term)
    late_end(nodes, [job_ops.Recover(two.store.term)], run)
    ended_once(nodes, run, "ActivityTaskCanceled")


def test_the_cancel_by_hand_of_a_decision_of_a_locked_run_costs_no_decision(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    job = one.row(run).decision
    late_end(nodes, [job_ops.Cancel(job, failure("Cancelled", "by hand"), two.now_us)], run)
    while one.run_errands():
        pass
    assert one.row(run).decision not in {0, job}
    two.running(run, two.close())


# ---- errands ----


def test_two_nodes_do_errands_once_and_in_order(nodes: Nodes) -> None:
    one, two = nodes.flows
    target = two.start(unique=b"target")
    sources = [one.start(), two.start()]
    for number in range(4):
        for flows, run in zip(nodes.flows, sources, strict=True):
            texts = [b"%d %d" % (run, 3 * number + at) for at in range(3)]
            sending = [external(text) for text in texts]
            flows.store.group(*deciding(flows, run, own_task(flows, run), *sending, flows.child()))
            nodes.concurrently(*((each, [ops.RunErrands(each.now_us)]) for each in nodes.flows))
            flows.signal(Signal(Key(run=run), "next", b""))
    while one.run_errands():
        pass
    for run in sources:
        mine = [text for text in signals(two, target) if text.startswith(b"%d " % run)]
        assert mine == [b"%d %d" % (run, number) for number in range(12)]
        assert two.kinds(run).count("ChildWorkflowExecutionStarted") == 4


def own_task(flows: Flows, run: int) -> Job:
    """Claim the decision task of a run, and no other."""
    tasks = {job.id: job for job in flows.tasks()}
    job = tasks.pop(flows.row(run).decision)
    flows.store.settle(*map(released, tasks.values()))
    return job


def external(text: bytes) -> SignalExternalWorkflowExecution:
    return SignalExternalWorkflowExecution(0, "target", "s", 0, text)


def test_errands_that_another_node_does_are_left_to_it(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    one.store.group(*deciding(one, run, one.task(run), one.child()))
    group = [ops.RunErrands(one.now_us)]
    (first,), (second,) = nodes.during((one, group), (two, [ops.RunErrands(two.now_us)]))
    assert (len(first.done), first.is_elsewhere) == (1, False)
    assert (second.done, second.is_elsewhere) == ([], True)
    assert len(one.children(run)) == 1


def test_errands_that_are_set_aside_stay_so_while_another_node_does_errands(nodes: Nodes, database: str) -> None:
    one, two = nodes.flows

    async def add_unreadable() -> int:
        async with session(database) as other:
            number: int = await other.fetchval("INSERT INTO errands (errand) VALUES ('x') RETURNING number")
            return number

    number = one.store.run(add_unreadable())
    assert not one.run_errands() or not one.run_errands()
    run = two.start()
    two.store.group(*deciding(two, run, two.task(run), two.child()))
    from_first = [ops.RunErrands(one.now_us, from_first=True)]
    _, (tried,) = nodes.during((two, [ops.RunErrands(two.now_us)]), (one, from_first))
    assert tried.is_elsewhere
    assert (tried.aside.after, list(tried.aside.faults)) == (number, [number])


def test_errands_of_a_node_that_has_died_are_done_by_another_one(nodes: Nodes) -> None:
    one, two = nodes.flows
    run = one.start()
    one.store.group(*deciding(one, run, one.task(run), one.child()))
    assert two.store.read(HasErrands(0))
    two.store.end_term(one.store.term)
    while two.run_errands():
        pass
    (child,) = two.children(run)
    assert two.status(child) is Status.OPEN
    assert "ChildWorkflowExecutionStarted" in two.kinds(run)
    assert not two.store.read(HasErrands(0))


# ---- waiting clients ----


def test_a_client_at_another_node_is_notified_of_the_end_of_a_chain(nodes: Nodes) -> None:
    one, two = nodes.flows
    root = two.start()
    subscribe = job_ops.Subscribe(two.store.term, [root])
    (found,) = two.group(subscribe)
    assert State(found[root].state) is State.RUNNING
    last = one.chained(root)
    assert Settled([root]) not in two.store.messages
    one.running(last, one.close(b"done"))
    two.store.wait_for(lambda messages: Settled([root]) in messages)
    assert two.store.state(root) is State.SUCCEEDED


@pytest.mark.parametrize("method", ["end_roots", "write"])
def test_a_client_that_begins_to_wait_during_the_close_misses_nothing(nodes: Nodes, method: str) -> None:
    """It begins before the root job is locked, or waits for the end of the group that has locked it."""
    one, two = nodes.flows
    run = one.start()
    closing = one, deciding(one, run, one.task(run), one.close(b"done"))
    waiting = two, [job_ops.Subscribe(two.store.term, [run])]
    if method == "end_roots":
        _, (found,) = nodes.during(closing, waiting, method)
        assert State(found[run].state) is State.RUNNING
        two.store.wait_for(lambda messages: Settled([run]) in messages)
    else:
        _, (found,) = nodes.meet(closing, waiting, method)
        assert State(found[run].state) is State.SUCCEEDED


def test_a_group_leaves_no_cycle_for_the_collector_of_garbage(nodes: Nodes) -> None:
    one, _ = nodes.flows
    gc.collect()
    gc.disable()
    try:
        run = one.start()
        one.running(run, one.activity())
        one.signal(Signal(Key(job=run), "s", b""))
        assert not [found for found in gc.get_objects() if type(found) is Transaction]
    finally:
        gc.enable()
