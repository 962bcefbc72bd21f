from __future__ import annotations

from mainspring.turns_of_loop import Timers


def timers() -> tuple[Timers, list[float]]:
    earlier: list[float] = []
    return Timers(earlier.append), earlier


def test_functions_are_called_in_the_order_of_their_times_and_then_of_their_coming() -> None:
    heap, _ = timers()
    called: list[str] = []
    for time, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "d")):
        heap.at(time, lambda name=name: called.append(name))  # type: ignore[misc]
    heap.run(2.0)
    assert called == ["a", "b", "c"]
    assert heap.next() == 3.0
    assert len(heap) == 1


def test_the_owner_is_notified_of_a_timer_that_comes_before_all_others() -> None:
    heap, earlier = timers()
    for time in (5.0, 7.0, 3.0, 3.0, 1.0):
        heap.at(time, lambda: None)
    assert earlier == [5.0, 3.0, 1.0]


def test_what_is_due_at_once_is_called_in_the_same_run() -> None:
    heap, _ = timers()
    called: list[str] = []

    def first() -> None:
        called.append("first")
        heap.at(1.0, lambda: called.append("second"))

    heap.at(1.0, first)
    heap.run(1.0)
    assert called == ["first", "second"]


def test_a_cancelled_timer_is_not_called() -> None:
    heap, _ = timers()
    called: list[str] = []
    heap.at(2.0, lambda: called.append("kept"))
    timer = heap.at(1.0, lambda: called.append("cancelled"))
    heap.cancel(timer)
    heap.cancel(timer)
    assert len(heap) == 1
    assert heap.next() == 2.0
    heap.run(3.0)
    assert called == ["kept"]
    heap.cancel(timer)
    assert len(heap) == 0
    assert heap.next() is None


def test_a_timer_cancelled_by_one_that_is_called_with_it() -> None:
    heap, _ = timers()
    called: list[str] = []
    heap.at(1.0, lambda: heap.cancel(other))
    other = heap.at(1.0, lambda: called.append("other"))
    heap.run(1.0)
    assert called == []
    assert len(heap) == 0


def test_cancelled_timers_do_not_fill_the_memory() -> None:
    heap, _ = timers()
    kept = [heap.at(1e6 + number, lambda: None) for number in range(10)]
    for number in range(10_000):
        heap.cancel(heap.at(1000.0 + number, lambda: None))
    assert len(heap) == len(kept)
    assert len(heap._heap) < 200  # noqa: SLF001 - how much it remembers shows nowhere else
    assert heap.next() == 1e6
