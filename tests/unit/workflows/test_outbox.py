"""A node does stored requests of runs to other runs, one group after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mainspring.errors import StoreError
from mainspring.jobs.store import SIGNS_LAST
from mainspring.storage.reads import RETRY_DELAY, SetAside
from mainspring.testing.passing_time import ManualClock
from mainspring.workflows.cross_run import ErrandsAside
from mainspring.workflows.outbox import LOOK_INTERVAL, ErrandLoop
from mainspring.workflows.store import HasErrands, RanErrands, RunErrands

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Commits:
    """A commit queue whose groups the test ends."""

    def __init__(self) -> None:
        self.under_way: list[tuple[Callable[[RanErrands], None], Callable[[StoreError], None]]] = []
        self.looks: list[Callable[[bool], None]] = []
        """The answers to queries whether there are stored errands."""
        self.after: list[int] = []
        """The errands behind which they ask."""
        self.from_first: list[bool] = []
        """Whether each operation tries those that are set aside."""

    def put(
        self, operation: RunErrands, done: Callable[[RanErrands], None], failed: Callable[[StoreError], None]
    ) -> None:
        assert isinstance(operation, RunErrands)
        assert operation.now_us > 0
        self.from_first.append(operation.from_first)
        self.under_way.append((done, failed))

    def ask(self, query: HasErrands, found: Callable[[bool], None], failed: object) -> None:
        del failed
        self.after.append(query.after)
        self.looks.append(found)

    def end(
        self,
        error: StoreError | None = None,
        *,
        is_elsewhere: bool = False,
        done: Sequence[int] = (),
        aside: ErrandsAside | None = None,
    ) -> None:
        succeeded, failed = self.under_way.pop()
        if error is None:
            succeeded(RanErrands(False, done, aside or ErrandsAside(), is_elsewhere))
        else:
            failed(error)


def loop_of(
    commits: Any,
    *,
    paused: bool = False,
    looks: bool = False,
    clock: ManualClock | None = None,
    set_aside: SetAside | None = None,
) -> ErrandLoop:
    clock = clock or ManualClock()
    return ErrandLoop(
        commits, commits, clock, paused=lambda: paused, looks=lambda: looks, set_aside=set_aside or SetAside(clock)
    )


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


def test_errands_that_are_set_aside_are_named_and_tried_again() -> None:
    commits, clock = Commits(), ManualClock()
    set_aside = SetAside(clock)
    loop = loop_of(commits, clock=clock, set_aside=set_aside)
    loop.tick()
    aside = ErrandsAside()
    aside.after, aside.faults = 8, {7: "of a newer version"}  # the last one waits for a run
    commits.end(aside=aside)
    loop.tick()
    assert commits.under_way == []
    (entry,) = set_aside.entries()
    assert (entry.kind, entry.name, entry.fault) == ("errand", "7", "of a newer version")
    loop.stored()
    commits.end(aside=aside)
    clock.advance(RETRY_DELAY)
    loop.tick()
    commits.end(aside=aside)
    clock.advance(RETRY_DELAY)
    loop.tick()
    commits.end(done=[7, 8])
    assert set_aside.is_empty
    clock.advance(2 * RETRY_DELAY)
    loop.tick()
    assert commits.from_first == [False, False, True, True]


@pytest.mark.parametrize("looks", [True, False])
def test_one_node_does_the_errands_of_others_that_have_stopped(*, looks: bool) -> None:
    commits, clock = Commits(), ManualClock()
    loop = loop_of(commits, looks=looks, clock=clock)
    loop.tick()
    commits.end()
    for are_there in (False, True):
        loop.tick()
        assert not commits.looks, "it has looked just now"
        clock.advance(LOOK_INTERVAL)
        loop.tick()
        assert commits.after == [0] * len(commits.after)
        assert len(commits.looks) == looks
        for found in commits.looks:
            found(are_there)
        commits.looks.clear()
        assert len(commits.under_way) == (looks and are_there)


def test_errands_that_another_node_does_are_tried_at_the_next_tick() -> None:
    """That node may end before it has done them."""
    commits = Commits()
    loop = loop_of(commits)
    loop.tick()
    commits.end(is_elsewhere=True)
    assert commits.under_way == []
    loop.tick()
    commits.end()
    loop.tick()
    assert commits.under_way == []


def test_signs_take_the_place_of_looks_for_errands() -> None:
    commits, clock = Commits(), ManualClock()
    loop = loop_of(commits, looks=True, clock=clock)
    loop.tick()
    commits.end()
    for _ in range(5):
        loop.read_sign(False)
        clock.advance(3)
        loop.tick()
    assert not commits.looks
    clock.advance(SIGNS_LAST)
    loop.tick()
    assert len(commits.looks) == 1, "without signs, the node looks by itself"


def test_errands_that_signs_tell_are_done_once_at_a_time() -> None:
    commits, clock = Commits(), ManualClock()
    loop = loop_of(commits, clock=clock)
    loop.tick()
    commits.end()
    loop.read_sign(True)
    loop.read_sign(True)
    assert len(commits.under_way) == 1
    commits.end()
    assert commits.under_way == []


def test_a_sign_of_errands_that_are_set_aside_starts_a_look_behind_them() -> None:
    commits, clock = Commits(), ManualClock()
    loop = loop_of(commits, clock=clock)
    loop.tick()
    aside = ErrandsAside()
    aside.after = 8
    commits.end(aside=aside)
    loop.read_sign(True)
    assert (commits.after, commits.under_way) == ([8], [])
    commits.looks.pop()(True)
    assert len(commits.under_way) == 1
