from __future__ import annotations

from mainspring.workflows.history import TimerFired
from mainspring.workflows.model import OpenActivity, State, Status
from mainspring.workflows.reading import Run, RunCache, Tail
from mainspring.workflows.store import RunRow


def a_run(number: int, *, events: int = 0, seen: int = 0, status: Status = Status.OPEN) -> Run:
    """Return a run with events in memory."""
    row = RunRow(number, number, "default", f"w{number}", "order", "1", status=status, events=events)
    run = Run(row, State(last=events, seen=seen))
    run.append([TimerFired(event + 1, 0, "t", 1) for event in range(events)], 100 * events)
    return run


def test_a_run_is_taken_once() -> None:
    cache = RunCache()
    run = a_run(1)
    cache.put([run])
    assert (cache.peek(1), len(cache), cache.size) == (run, 1, run.size)
    assert cache.take(1) is run
    assert (cache.take(1), len(cache), cache.size) == (None, 0, 0)


def test_the_runs_that_were_not_changed_for_the_longest_time_go_first() -> None:
    size = a_run(1).size
    cache = RunCache(3 * size)
    cache.put(a_run(number) for number in (1, 2, 3))
    first = cache.take(1)
    assert first is not None
    cache.put([first, a_run(4)])
    assert [number for number in range(1, 5) if cache.peek(number)] == [1, 3, 4]
    assert cache.size == 3 * size


def test_a_run_that_grows_is_counted_anew() -> None:
    cache = RunCache()
    run = a_run(1)
    cache.put([run])
    run.state.activities = {number: OpenActivity(number, "", b"f", 0, 0) for number in range(1000)}
    cache.put([run])
    assert len(cache) == 1
    assert cache.size == run.size > 200_000
    small = RunCache(100_000)
    small.put([run])
    assert len(small) == small.size == 0


def test_closed_runs_are_not_kept() -> None:
    cache = RunCache()
    cache.put([a_run(1)])
    cache.put([a_run(1, status=Status.COMPLETED)])
    assert (len(cache), cache.size) == (0, 0)


def test_the_tail_has_the_events_that_no_completed_decision_was_given() -> None:
    cache = RunCache()
    run = a_run(1, events=5, seen=3)
    before = run.size
    cache.put([run])
    tail = cache.tail(1, run.row.decision)
    assert tail is not None
    assert (tail.first, [event.id for event in tail.events]) == (4, [4, 5])
    assert run.size < before
    cache.put([a_run(2, events=5, seen=5)])
    assert cache.tail(2, 0) == Tail(6, [])
    assert cache.tail(3, 0) is None


def test_a_run_that_another_node_has_changed_has_no_tail() -> None:
    cache = RunCache()
    cache.put([a_run(1, events=5, seen=3)])
    assert cache.tail(1, 77) is None, "it has another decision task in the store"
