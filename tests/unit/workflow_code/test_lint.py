"""The lint of workflow code."""

# ruff: noqa: T201 - the functions are only read
from __future__ import annotations

import asyncio
import random
import subprocess
import threading
import time
import uuid
from asyncio import as_completed
from datetime import UTC, date, datetime
from pathlib import Path
from time import time as seconds
from typing import Any

import pytest

from mainspring import App, workflow
from mainspring.workflow_code import guards
from mainspring.workflow_code.lint import lint

app = App()
STATE: dict[str, int] = {}
COUNT = 0


@app.task
def label(item: str) -> str:
    return item


async def undo_with_clock() -> float:
    return time.time()


async def undone_at_once() -> None:
    async with workflow.Saga() as saga:
        saga.undo(label.submit("x"))  # type: ignore[call-overload]


async def undone_by_coroutine() -> None:
    async with workflow.Saga() as saga:
        saga.undo(undo_with_clock())  # type: ignore[call-overload]


async def undone_by_function() -> None:
    async with workflow.Saga() as saga:
        saga.undo(undo_with_clock)


async def clock_of_datetime() -> datetime:
    return datetime.now(UTC)  # noqa: TID251


async def clock_of_date() -> date:
    return date.today()  # noqa: DTZ011


async def clock_by_name() -> float:
    return seconds()


async def clock() -> float:
    return time.monotonic()


async def formatted_clock() -> str:
    return time.strftime("%Y") + time.strftime("%Y", (2026, 1, 1, 0, 0, 0, 0, 1, 0))


async def clock_of_the_system() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


async def blocking() -> None:
    time.sleep(1)  # noqa: ASYNC251


async def chance() -> float:
    return random.random()


async def chance_of_uuid() -> uuid.UUID:
    return uuid.uuid4()


async def own_generator() -> float:
    return random.Random().random()


async def file() -> str:
    with open("x") as one:  # noqa: ASYNC230, PTH123
        return one.read()


async def path() -> str:
    return Path("x").read_text("utf-8")  # noqa: ASYNC240


async def process() -> None:
    subprocess.run(["true"], check=False)  # noqa: ASYNC221


async def thread() -> None:
    threading.Thread(target=blocking).start()


async def worker_thread() -> None:
    await asyncio.to_thread(helper)


async def assigned_global() -> None:
    global COUNT  # noqa: PLW0603
    COUNT += 1


async def changed_global() -> None:
    STATE["x"] = 1


async def set_literal() -> None:
    for one in {"a", "b"}:
        await label.submit(one)


async def named_set(items: list[str]) -> None:
    chosen = set(items) - {"a"}
    await asyncio.gather(*(label.submit(one) for one in chosen))


async def list_of_set(items: list[str]) -> list[str]:
    return list(set(items))


async def unpacked_set(items: list[str]) -> None:
    await asyncio.gather(*{label.submit(one) for one in items})


async def lost_job() -> None:
    label.submit("a")


async def lost_step() -> None:
    workflow.step(print, 1)


async def lost_map() -> None:
    workflow.map(label, ["x"])  # type: ignore[unused-coroutine]


async def lost_coroutine() -> None:
    workflow.sleep(3)  # type: ignore[unused-coroutine] # found by the lint


async def completed_by_name() -> None:
    for one in as_completed([workflow.sleep(1)]):
        await one


async def printing() -> None:
    print("x")


def helper() -> float:
    return time.time()


async def by_helper() -> float:
    return helper()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (clock_of_datetime, "workflow.now()"),
        (clock_of_date, "workflow.now()"),
        (clock_by_name, "workflow.now()"),
        (clock, "workflow.now()"),
        (clock_of_the_system, "workflow.now()"),
        (formatted_clock, "workflow.now()"),
        (blocking, "workflow.sleep("),
        (chance, "workflow.rng()"),
        (chance_of_uuid, "workflow.uuid()"),
        (own_generator, "workflow.rng()"),
        (file, "input or output"),
        (path, "input or output"),
        (process, "input or output"),
        (thread, "threads"),
        (worker_thread, "threads"),
        (assigned_global, "global COUNT"),
        (changed_global, "global STATE"),
        (set_literal, "set"),
        (named_set, "set"),
        (list_of_set, "set"),
        (unpacked_set, "set"),
        (lost_job, "await"),
        (lost_step, "await"),
        (lost_coroutine, "await"),
        (lost_map, "await"),
        (completed_by_name, "asyncio.as_completed"),
        (printing, "workflow.log"),
        (by_helper, "workflow.now()"),
        (undone_at_once, "give undo the function"),
    ],
)
def test_the_lint_finds_what_a_replay_cannot_repeat(call: Any, words: str) -> None:
    (found,) = lint(call)
    assert words in found.message
    assert found.file == __file__
    first = call.__code__.co_firstlineno if call is not by_helper else helper.__code__.co_firstlineno
    assert first < found.line <= first + 3


def test_the_lint_reads_compensations() -> None:
    assert ["workflow.now()" in found.message for found in lint(undone_by_function)] == [True]
    assert ["give undo the function" in found.message for found in lint(undone_by_coroutine)] == [True, False]


@pytest.mark.parametrize("call", [clock, chance, chance_of_uuid])
def test_the_lint_finds_functions_that_the_guards_have_replaced(call: Any) -> None:
    guards.enter()
    guards.leave()
    assert len(lint(call)) == 1


async def fine(number: int, items: list[str]) -> Any:
    now = workflow.now()
    chosen = {one: len(one) for one in items}
    jobs = [label.submit(one) for one in sorted(set(items))]
    for job in asyncio.as_completed(jobs):
        await job
    done, _ = await asyncio.wait([asyncio.create_task(workflow.sleep(1))])
    for task in done:
        await task
    with workflow.unguarded():
        print(datetime.now(UTC))  # noqa: TID251
    async with workflow.Saga() as saga:
        saga.undo(label, "x")
        saga.undo(label.options(priority="low"), "x")
    started = workflow.side_effect(lambda: time.time())  # noqa: PLW0108
    kept = label.submit("x")
    await workflow.step(lambda: open("x"), record="together")  # noqa: SIM115, PTH123
    random.Random(number).random()
    return now, chosen, time.localtime(0), datetime.fromtimestamp(number, UTC), started, await kept


def test_the_lint_accepts_what_a_replay_repeats() -> None:
    assert lint(fine) == []


async def ends_without_raise(number: int) -> None:
    workflow.continue_as_new(number + 1)


async def ends_with_raise(number: int) -> None:
    raise workflow.continue_as_new(number + 1)


def test_an_end_of_a_run_that_nobody_raises_is_found() -> None:
    (found,) = lint(ends_without_raise)
    assert found.message == "workflow.continue_as_new(…) alone does nothing: write `raise` before it"
    assert lint(ends_with_raise) == []
