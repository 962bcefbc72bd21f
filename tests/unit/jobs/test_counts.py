from __future__ import annotations

from mainspring.jobs.model import Counts, Priority, State


def test_jobs_are_counted_by_function_state_and_priority() -> None:
    counts = Counts()
    counts.add(b"f", State.PENDING, Priority.HIGH)
    counts.add(b"f", State.PENDING, Priority.HIGH, 2)
    counts.add(b"f", State.PENDING, Priority.LOW)
    counts.add(b"g", State.PENDING, Priority.LOW)
    counts.add(b"f", State.PENDING, Priority.HIGH, -1)
    assert counts == {(b"f", 1, 0): 2, (b"f", 1, 2): 1, (b"g", 1, 2): 1}


def test_both_held_states_are_one() -> None:
    counts = Counts()
    counts.add(b"f", State.RUNNING, Priority.NORMAL)
    counts.add(b"f", State.LEASED, Priority.NORMAL)
    assert counts == {(b"f", State.LEASED, Priority.NORMAL): 2}
    counts.move(b"f", Priority.NORMAL, State.LEASED, State.RUNNING)
    assert counts == {(b"f", State.LEASED, Priority.NORMAL): 2}


def test_a_move_leaves_the_sum() -> None:
    counts = Counts()
    counts.add(b"f", State.LEASED, Priority.NORMAL)
    counts.move(b"f", Priority.NORMAL, State.RUNNING, State.SUCCEEDED)
    assert {key: number for key, number in counts.items() if number} == {(b"f", State.SUCCEEDED, Priority.NORMAL): 1}
