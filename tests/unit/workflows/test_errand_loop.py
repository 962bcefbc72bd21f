"""A node does stored requests of runs to other runs, one group after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreError
from mainspring.testing.clock import ManualClock
from mainspring.workflows.errand_loop import ErrandLoop
from mainspring.workflows.store import RunErrands

if TYPE_CHECKING:
    from collections.abc import Callable


class Commits:
    """A commit queue whose groups the test ends."""

    def __init__(self) -> None:
        self.under_way: list[tuple[Callable[[bool], None], Callable[[StoreError], None]]] = []

    def put(self, operation: RunErrands, done: Callable[[bool], None], failed: Callable[[StoreError], None]) -> None:
        assert isinstance(operation, RunErrands)
        assert operation.now_us > 0
        self.under_way.append((done, failed))

    def end(self, error: StoreError | None = None) -> None:
        done, failed = self.under_way.pop()
        if error is None:
            done(False)
        else:
            failed(error)


def loop_of(commits: Any, *, paused: bool = False) -> ErrandLoop:
    return ErrandLoop(commits, ManualClock(), paused=lambda: paused)


def test_a_node_looks_for_errands_of_an_earlier_process_once() -> None:
    commits = Commits()
    loop = loop_of(commits)
    loop.tick()
    loop.tick()
    assert len(commits.under_way) == 1
    commits.end()
    loop.tick()
    assert commits.under_way == []


def test_stored_errands_are_done_at_once_and_one_group_at_a_time() -> None:
    commits = Commits()
    loop = loop_of(commits)
    loop.tick()
    loop.stored()  # by the group under way, or by another one
    loop.tick()
    assert len(commits.under_way) == 1
    commits.end()
    assert len(commits.under_way) == 1
    commits.end()
    assert commits.under_way == []
    loop.stored()
    assert len(commits.under_way) == 1


def test_a_group_that_fails_is_repeated_at_the_next_tick() -> None:
    commits = Commits()
    loop = loop_of(commits)
    loop.tick()
    commits.end(StoreError("no"))
    assert commits.under_way == []
    loop.tick()
    assert len(commits.under_way) == 1


def test_a_paused_node_does_no_errands() -> None:
    commits = Commits()
    loop_of(commits, paused=True).tick()
    assert commits.under_way == []
