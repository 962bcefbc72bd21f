"""Coroutines that await callbacks, without a loop."""

from __future__ import annotations

import asyncio
import inspect
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.callbacks import Callback, CallInProgress, awaited, in_slices, shielded
from mainspring.errors import MainspringError, StoreFullError, UsageError
from mainspring.turns_of_loop import SLICE, LongWork

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from mainspring.callbacks import Done, Failed


class Service:
    """Returns values when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[tuple[Done, Failed]] = []

    def ask(self, done: Done, failed: Failed) -> None:
        self.asked.append((done, failed))


def answered(work: Any) -> tuple[list[Any], list[MainspringError], CallInProgress]:
    answers: list[Any] = []
    errors: list[MainspringError] = []
    return answers, errors, CallInProgress(work, answers.append, errors.append)


async def at_once(value: Any) -> Any:
    return await Callback[Any](lambda done, _: done(value))


def test_a_call_without_awaiting_is_answered_at_once() -> None:
    answers, errors, _ = answered(at_once(7))
    assert (answers, errors) == ([7], [])


def test_a_call_awaits_the_values_that_it_needs() -> None:
    service = Service()

    async def work() -> int:
        first: int = await Callback(service.ask)
        try:
            second: int = await Callback(service.ask)
        except StoreFullError:
            second = 100
        return first + second

    answers, errors, _ = answered(work())
    service.asked.pop()[0](1)
    assert answers == []
    service.asked.pop()[1](StoreFullError("full"))
    assert (answers, errors) == ([101], [])


def test_any_number_of_immediate_values_uses_no_stack() -> None:
    async def work() -> int:
        return sum([await at_once(1) for _ in range(100_000)])

    assert answered(work())[0] == [100_000]


def test_an_error_of_a_service_is_passed_on_without_its_frames() -> None:
    service, error = Service(), StoreFullError("why")

    async def work() -> None:
        await Callback[None](service.ask)

    answers, errors, _ = answered(work())
    service.asked.pop()[1](error)
    assert (answers, errors) == ([], [error])
    assert error.__traceback__ is None


def test_an_ended_call_undoes_its_work() -> None:
    service, undone = Service(), list[str]()

    async def work() -> None:
        try:
            await Callback[None](service.ask)
        finally:
            undone.append("undone")

    answers, errors, call = answered(work())
    assert undone == []
    call.end()
    assert undone == ["undone"]
    service.asked.pop()[0](None)  # too late
    assert (answers, errors) == ([], [])


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
        answers, errors, _ = answered(work(wrong))
        number = 0
        while turns:
            assert not answers
            number += 1
            turns.pop(0)()
        assert number == 10
        assert (answers, [str(error) for error in errors]) == (([], ["why"]) if wrong else ([7], []))


def test_long_work_ends_with_its_call() -> None:
    turns: list[Callable[[], None]] = []
    ticks = count(0.0, SLICE)
    taken = []

    def steps() -> Generator[None, None, None]:
        for number in range(10):
            taken.append(number)
            yield

    answers, errors, call = answered(in_slices(LongWork(turns.append, lambda: next(ticks)).start, steps()))
    turns.pop(0)()
    before = list(taken)
    call.end()
    while turns:
        turns.pop(0)()
    assert (taken, answers, errors) == (before, [], [])


def test_an_ended_call_is_freed() -> None:
    work = at_once(1)
    answered(work)[2].end()
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


class Acts:
    """A service with an act that goes on after its commit."""

    def __init__(self) -> None:
        self.service = Service()
        self.done: list[int] = []

    @shielded
    async def act(self, number: int, error: Exception | None = None) -> int:
        """Commit something, and do the rest."""
        await Callback[None](self.service.ask)
        self.done.append(number)
        if error is not None:
            raise error
        return number + 1


def test_a_shielded_act_runs_to_its_end_after_its_call() -> None:
    acts = Acts()

    async def work() -> int:
        return await acts.act(1)

    answers, errors, call = answered(work())
    call.end()
    acts.service.asked.pop()[0](None)
    assert (acts.done, answers, errors) == ([1], [], [])


@pytest.mark.parametrize("error", [None, UsageError("why"), ZeroDivisionError()])
def test_the_call_gets_the_outcome_of_a_shielded_act(error: Exception | None) -> None:
    acts, caught = Acts(), list[Exception]()

    async def work() -> int:
        try:
            return await acts.act(1, error)
        except (UsageError, ZeroDivisionError) as found:
            caught.append(found)
            raise UsageError("other") from None

    answers, errors, _ = answered(work())
    acts.service.asked.pop()[0](None)
    assert (answers, [str(one) for one in errors], caught) == (
        ([2], [], []) if error is None else ([], ["other"], [error])
    )


def test_asyncio_awaits_a_callback() -> None:
    acts = Acts()

    async def scenario() -> None:
        asyncio.get_running_loop().call_soon(lambda: acts.service.asked.pop()[0](None))
        assert await awaited(acts.act(1)) == 2

    asyncio.run(scenario())
