"""Lists, histories and the retention of runs of workflows: part of the contract of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.storage.engine import Budget
from mainspring.workflows import store as ops
from mainspring.workflows.history import WorkflowExecutionSignaled
from mainspring.workflows.model import Definition, Key, Parked, State, Status
from mainspring.workflows.requests import Signal
from tests.conformance.suite.flows import SECOND

if TYPE_CHECKING:
    from tests.conformance.suite.flows import Flows

SMALL = Budget(rows=3, part=2)


class ListingFlows:
    """Tests of queries and of retention."""

    def test_lists_are_filtered(self, flows: Flows) -> None:
        flows.define(Definition("refund"))
        first = flows.start(unique=b"a")
        flows.running(first, flows.close())
        flows.now_us += SECOND
        second = flows.start(unique=b"a")
        third = flows.start(b"refund")
        assert flows.list() == [third, second, first]
        assert flows.list(status=(Status.OPEN,)) == [third, second]
        assert flows.list(status=(Status.COMPLETED, Status.FAILED)) == [first]
        assert flows.list(type="order") == [second, first]
        assert flows.list(workflow_id="a") == [second, first]
        assert flows.list(workflow_id="a", status=(Status.COMPLETED,)) == [first]
        assert flows.list(since_us=flows.now_us) == [third, second]
        assert flows.list(namespace="other") == flows.list(workflow_id="b") == flows.list(parked=True) == []

    def test_runs_that_need_a_decision_are_listed(self, flows: Flows) -> None:
        first, second = flows.start(), flows.start()
        flows.running(first, flows.timer(60))
        parked = flows.start()
        flows.park(parked, Parked("defect", "no"))
        assert flows.list(needs_decision=True) == [second]
        flows.signal(Signal(Key(run=first), "a", b""))
        assert flows.list(needs_decision=True, status=(Status.OPEN,)) == [second, first]

    def test_lists_have_the_states_of_runs_with_short_and_long_histories(self, flows: Flows) -> None:
        runs = [flows.start() for _ in range(12)]
        flows.running(runs[0], flows.timer(60))
        for run in runs[1:8]:  # more together than one read has; those of 60 signals have snapshots
            flows.running(run)
            for number in range(60 if run % 2 else 2):
                flows.signal(Signal(Key(run=run), f"s{number}", b"x" * (500 if run % 2 else 200_000)))
        flows.running(runs[8], flows.close())
        for open_runs in (False, True):
            status = (Status.OPEN,) if open_runs else ()
            listed = flows.store.all_of(ops.ListRuns(status=status, limit=100), Budget(seconds=60.0))
            expected = [run for run in reversed(runs) if run != runs[8] or not open_runs]
            assert [one.row.id for one in listed] == expected
            assert listed == [flows.shown(run) for run in expected]
        listed = flows.store.all_of(ops.ListRuns(limit=100, closed_states=False), Budget(seconds=60.0))
        shown = [flows.shown(run) for run in reversed(runs)]
        assert listed == [one if one.row.status.open else one._replace(state=State()) for one in shown]

    def test_a_page_ends_when_its_time_is_spent(self, flows: Flows) -> None:
        runs = [flows.start() for _ in range(5)][::-1]
        page = flows.store.read(ops.ListRuns(limit=3), Budget(seconds=0.0))
        assert ([one.row.id for one in page.items], page.next) == (runs[:1], runs[0])
        found = flows.store.all_of(ops.ListRuns(limit=4), Budget(seconds=0.0))
        assert [one.row.id for one in found] == runs[:4]

    def test_a_page_ends_when_its_bytes_are_spent(self, flows: Flows) -> None:
        runs = [flows.start() for _ in range(5)][::-1]
        page = flows.store.read(ops.ListRuns(bytes=1))
        assert ([one.row.id for one in page.items], page.next) == (runs[:1], runs[0])
        assert [one.row.id for one in flows.store.all_of(ops.ListRuns(bytes=1))] == runs
        whole = flows.store.read(ops.ListRuns(bytes=2**20))
        assert ([one.row.id for one in whole.items], whole.next, whole.size > 0) == (runs, None, True)

    def test_a_page_without_a_match_has_the_place_and_the_time_of_the_search(self, flows: Flows) -> None:
        flows.define(Definition("refund"))
        runs, times = [flows.start(b"refund")], [flows.now_us]
        for _ in range(9):
            flows.now_us += SECOND
            runs.append(flows.start())
            times.append(flows.now_us)
        query = ops.ListRuns(type="refund", limit=2)
        page = flows.store.read(query, SMALL)
        assert (page.items, page.next, page.searched_us) == ([], runs[-3], times[-3])
        places = [page.next]
        while page.next is not None:
            page = flows.store.read(replace(query, after=page.next), SMALL)
            places.append(page.next)
        assert places == [runs[7], runs[4], runs[1], None]
        assert [one.row.id for one in page.items] == runs[:1]
        assert flows.store.read(ops.ListRuns(limit=1)).searched_us == times[-1]

    def test_a_page_of_large_events_is_short(self, flows: Flows) -> None:
        run = flows.start()
        for number in range(12):
            flows.signal(Signal(Key(run=run), f"s{number}", b"x" * 300_000))
        page = flows.store.read(ops.ReadHistory(run=run, limit=1000))
        assert len(page.items) < 7
        assert page.next == page.items[-1].id
        assert len(flows.history(run)) == 14

    def test_lists_have_pages(self, flows: Flows) -> None:
        runs = [flows.start() for _ in range(10)][::-1]
        assert flows.list(limit=4) == runs[:4]
        assert flows.list(limit=4, after=runs[3]) == runs[4:8]
        assert flows.list(limit=4, after=runs[7]) == runs[8:]
        page = flows.store.read(ops.ListRuns(limit=100), SMALL)
        assert 0 < len(page.items) < 10
        assert page.next == page.items[-1].row.id
        found = flows.store.all_of(ops.ListRuns(limit=100), SMALL)
        assert [shown.row.id for shown in found] == runs

    def test_a_workflow_id_of_many_runs_has_pages(self, flows: Flows) -> None:
        runs = []
        for _ in range(5):
            runs.append(flows.start(unique=b"u"))
            flows.running(runs[-1], flows.close())
        runs.reverse()
        page = flows.store.read(ops.ListRuns(workflow_id="u", limit=2))
        assert ([shown.row.id for shown in page.items], page.next) == (runs[:2], runs[1])
        assert flows.list(workflow_id="u", limit=2, after=runs[1]) == runs[2:4]
        assert flows.list(workflow_id="u") == runs

    def test_a_history_has_pages(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run)
        flows.signal(*(Signal(Key(run=run), f"s{number}", b"x" * 100) for number in range(20)))
        flows.signal(*(Signal(Key(run=run), f"t{number}", b"x") for number in range(20)))
        events = flows.history(run)
        assert len(events) == 45
        for limit in (1, 7, 44, 45, 46):
            page = flows.store.read(ops.ReadHistory(run=run, limit=limit))
            assert page.items == events[:limit]
            assert page.next == (limit if limit < 45 else None)
        for after in (0, 3, 30, 44, 45, 60):
            assert flows.history(run, after=after) == events[after:]
        found = flows.store.all_of(ops.ReadHistory(run=run, limit=1000), SMALL)
        assert found == events
        assert flows.history(7) == []

    def test_a_long_history_has_snapshots(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, *(flows.activity() for _ in range(100)))
        for number in range(60):
            flows.signal(Signal(Key(run=run), f"s{number}", b"x" * 500))
        shown = flows.shown(run)
        flows.store.reopen()
        flows.store.recover()
        assert flows.shown(run) == shown
        flows.signal(Signal(Key(run=run), "last", b""))
        decided = flows.decide(run, flows.task(run), flows.timer(60))
        assert decided.verdict == "recorded"
        signals = [event for event in flows.history(run) if isinstance(event, WorkflowExecutionSignaled)]
        assert len(signals) == 61

    def test_an_answer_has_events_that_are_not_in_memory(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run)
        for number in range(60):
            flows.signal(Signal(Key(run=run), f"s{number}", b"x" * 500))
        seen = flows.row(run).events
        flows.store.reopen()
        flows.store.recover()
        task = flows.task(run)
        for number in range(3):
            flows.signal(Signal(Key(run=run), f"t{number}", b""))
        decided = flows.decide(run, task, flows.timer(60), seen=seen - 30)
        assert [event.id for event in decided.events] == list(range(seen - 29, flows.row(run).events + 1))

    def test_closed_runs_are_forgotten_with_their_root_jobs(self, flows: Flows) -> None:
        runs = [flows.start() for _ in range(5)]
        for run in runs[:4]:
            flows.running(run, flows.close())
            flows.now_us += SECOND
        assert flows.group(ops.ForgetRuns(flows.row(runs[0]).closed_us)) == [0]
        assert flows.forget(3) == 3
        assert flows.list() == [runs[4], runs[3]]
        assert flows.history(runs[0]) == []
        assert [flows.store.find(run) for run in runs[:3]] == [None] * 3
        assert flows.forget() == 1
        assert flows.forget() == 0
        assert flows.list() == [runs[4]]
        assert flows.signal(Signal(Key(job=runs[0]), "a", b""))[0].verdict == "unknown"

    def test_a_step_of_retention_is_bounded_by_events(self, flows: Flows) -> None:
        runs = [flows.start() for _ in range(4)]
        for run in runs:
            flows.signal(*(Signal(Key(run=run), "s", b"") for _ in range(12_000)))
            flows.terminate(Key(run=run))
            flows.now_us += 1
        assert [flows.forget(), flows.forget(), flows.forget()] == [2, 2, 0]

    def test_root_jobs_are_not_swept(self, flows: Flows) -> None:
        run = flows.start()
        flows.running(run, flows.close())
        assert flows.store.sweep(2**62, 2**62) == 0
        assert flows.root(run).ended_us
