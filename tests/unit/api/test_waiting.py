"""Calls that wait for callbacks, without a loop."""

from __future__ import annotations

import inspect
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.api.handlers.waiting import Callback, CallInProgress, in_slices
from mainspring.api.request import ApiError, Code, Problem
from mainspring.errors import ConflictError, StoreFullError, UsageError
from mainspring.turns_of_loop import SLICE, LongWork

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from mainspring.api.handlers.waiting import Done, Failed


class Service:
    """Returns values when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[tuple[Done, Failed]] = []

    def ask(self, done: Done, failed: Failed) -> None:
        self.asked.append((done, failed))


def answered(work: Any) -> tuple[list[Any], list[Problem], CallInProgress]:
    answers: list[Any] = []
    problems: list[Problem] = []
    return answers, problems, CallInProgress(work, answers.append, problems.append)


async def at_once(value: Any) -> Any:
    return await Callback[Any](lambda done, _: done(value))


def test_a_call_without_awaiting_is_answered_at_once() -> None:
    answers, problems, _ = answered(at_once(7))
    assert (answers, problems) == ([7], [])


def test_a_call_awaits_the_values_that_it_needs() -> None:
    service = Service()

    async def work() -> int:
        first: int = await Callback(service.ask)
        try:
            second: int = await Callback(service.ask)
        except StoreFullError:
            second = 100
        return first + second

    answers, problems, _ = answered(work())
    service.asked.pop()[0](1)
    assert answers == []
    service.asked.pop()[1](StoreFullError("full"))
    assert (answers, problems) == ([101], [])


def test_any_number_of_immediate_values_uses_no_stack() -> None:
    async def work() -> int:
        return sum([await at_once(1) for _ in range(100_000)])

    assert answered(work())[0] == [100_000]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("why"), Code.INVALID),
        (ConflictError("why"), Code.CONFLICT),
        (StoreFullError("why"), Code.UNAVAILABLE),
        (ApiError(Code.NODE_LIVES, "why"), Code.NODE_LIVES),
    ],
)
def test_errors_of_the_services_are_problems(error: Exception, code: Code) -> None:
    service = Service()

    async def work() -> None:
        await Callback[None](service.ask)

    answers, problems, _ = answered(work())
    service.asked.pop()[1](error)
    assert (answers, problems) == ([], [Problem(code, "why")])


def test_an_ended_call_undoes_its_work() -> None:
    service, undone = Service(), list[str]()

    async def work() -> None:
        try:
            await Callback[None](service.ask)
        finally:
            undone.append("undone")

    answers, problems, call = answered(work())
    assert undone == []
    call.end()
    assert undone == ["undone"]
    service.asked.pop()[0](None)  # too late
    assert (answers, problems) == ([], [])


def test_a_defect_is_raised_and_is_no_answer() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        answered(work())


def test_long_work_runs_in_slices() -> None:
    turns: list[Callable[[], None]] = []
    now = 0.0

    def monotonic() -> float:
        nonlocal now
        now += SLICE  # each step is as long as a slice
        return now

    def steps(wrong: bool) -> Generator[None, None, int]:
        for _ in range(10):
            yield
        if wrong:
            raise UsageError("why")
        return 7

    async def work(wrong: bool) -> int:
        value: int = await in_slices(slices.start, steps(wrong))
        return value

    for wrong in (False, True):
        slices = LongWork(turns.append, monotonic)
        answers, problems, _ = answered(work(wrong))
        number = 0
        while turns:
            assert not answers
            number += 1
            turns.pop(0)()
        assert number == 10
        assert (answers, problems) == (([], [Problem(Code.INVALID, "why")]) if wrong else ([7], []))


def test_long_work_ends_with_its_call() -> None:
    turns: list[Callable[[], None]] = []
    ticks = count(0.0, SLICE)
    taken = []

    def steps() -> Generator[None, None, None]:
        for number in range(10):
            taken.append(number)
            yield

    answers, problems, call = answered(in_slices(LongWork(turns.append, lambda: next(ticks)).start, steps()))
    turns.pop(0)()
    before = list(taken)
    call.end()
    while turns:
        turns.pop(0)()
    assert (taken, answers, problems) == (before, [], [])


def test_an_ended_call_is_freed() -> None:
    work = at_once(1)
    answered(work)[2].end()
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
