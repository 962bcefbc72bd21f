"""Workflows whose processes are killed. Each execution of a function leaves a line with its time in the file of effects."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from typing import Any

from mainspring import App, JobFailed, Retry, workflow

app = App()
elsewhere = App()
"""The App of another worker."""
go = app.signal("go", int)
away = app.function("away")


def did(name: str, number: int) -> None:
    line = f"{name} {number} {time.time_ns() // 1000}\n"
    with open(os.environ["WORKFLOW_EFFECTS"], "a") as file:  # noqa: PTH123
        file.write(line)


@app.task(retry=Retry(max_attempts=50, initial=0.01))
async def work(number: int) -> int:
    did("work", number)
    return number * 2


@elsewhere.task(name="away", retry=Retry(max_attempts=50, initial=0.01))
async def far(number: int) -> int:
    did("away", number)
    return number * 3


@app.task(retry=Retry(max_attempts=50, initial=0.01))
async def linger(number: int) -> None:
    did("linger", number)
    await asyncio.sleep(60)


@app.task
def refuse(number: int) -> None:
    raise ValueError(number)


@app.task
def look(number: int) -> int:
    did("look", number)
    return number + 1


@app.task
async def count(number: int) -> int:
    did("count", number)
    return number + 10


@app.workflow
async def steps(number: int) -> int:
    for _ in range(4):
        number = await look.step(number)
    return sum(await asyncio.gather(*(count.step(number + i) for i in range(3))))


@app.workflow
async def joint_steps(number: int) -> int:
    for _ in range(4):
        number = await workflow.step(count, number, record="together")
    number = await work.submit(number)
    for _ in range(2):
        number = await workflow.step(count, number, record="together")
    return number


@app.workflow
async def activities(number: int) -> list[int]:
    for _ in range(3):
        number = await work.submit(number)
    return await asyncio.gather(*(work.submit(number + i) for i in range(3)))


@app.workflow
async def mixed(number: int) -> list[Any]:
    first = await look.step(number)
    second = await work.submit(first)
    await workflow.sleep(timedelta(seconds=0.02))
    third = await go.receive(timeout=timedelta(minutes=5))
    slow = asyncio.create_task(workflow.sleep(timedelta(minutes=10)))
    fourth = await asyncio.gather(work.submit(third), look.step(second))
    slow.cancel()
    return [first, second, third, fourth, workflow.rng().random() < 2, str(workflow.uuid()) != ""]


@app.workflow
async def remote(number: int) -> list[int]:
    number = int(await away.submit([number]))
    number = await look.step(number)
    both = await asyncio.gather(away.submit([number]), work.submit(number))
    return [int(one) for one in both]


@app.workflow
async def cancelled(number: int) -> None:
    number = await look.step(number)
    try:
        await asyncio.gather(linger.submit(number), workflow.sleep(timedelta(minutes=10)))
    except asyncio.CancelledError:
        number = await look.step(number)
        await work.submit(number)
        raise


@app.workflow
async def undone(number: int) -> int:
    try:
        async with workflow.Saga() as saga:
            number = await work.submit(number)
            saga.undo(work, number + 40)
            saga.undo(look.step, number + 50)
            await refuse.submit(number)
    except JobFailed:
        return number
    return 0


@app.workflow
async def collects(number: int) -> list[int]:
    return [await go.receive(timeout=timedelta(minutes=5)) for _ in range(number)]


@app.workflow
async def member(number: int) -> int:
    return await work.submit(await look.step(number))


@app.workflow
async def family(number: int) -> list[int]:
    first = await member.submit(number)
    return [first, *await asyncio.gather(member.submit(first), member.submit(first + 1))]


@app.workflow(retry=Retry(max_attempts=2, initial=0.02))
async def chained(number: int, link: int = 1) -> int:
    """Continue as new twice, and fail once in between; each run has more events than the one before.

    The last one takes the signal.
    """
    attempt = workflow.info().attempt
    number += 100 * (attempt - 1)
    for _ in range(link):
        number = await look.step(number)
    number = await work.submit(number)
    if link == 2 and attempt == 1:
        raise OSError(number)
    if link < 3:
        raise workflow.continue_as_new(number, link + 1)
    return number + await go.receive(timeout=timedelta(minutes=5))


RESULTS: dict[str, Any] = {
    "steps": 3 * (5 + 10) + 3,
    "joint_steps": (1 + 40) * 2 + 20,
    "activities": [2 * (8 + i) for i in range(3)],
    "mixed": [2, 4, 7, [14, 5], True, True],
    "remote": [12, 8],
    "cancelled": None,
    "undone": 2,
    "family": [4, 10, 12],
    "chained": 430 + 7,
}
"""Of the argument 1."""

Effects = set[tuple[str, int]]
EFFECTS: dict[str, list[Effects]] = {
    "steps": [{("look", 1)}, {("look", 2)}, {("look", 3)}, {("look", 4)}, {("count", 5), ("count", 6), ("count", 7)}],
    "joint_steps": [{("count", 1 + 10 * i) for i in range(4)}, {("work", 41)}, {("count", 82), ("count", 92)}],
    "activities": [{("work", 1)}, {("work", 2)}, {("work", 4)}, {("work", 8), ("work", 9), ("work", 10)}],
    "mixed": [{("look", 1)}, {("work", 2)}, {("work", 7), ("look", 4)}],
    "remote": [{("away", 1)}, {("look", 3)}, {("away", 4), ("work", 4)}],
    "undone": [{("work", 1)}, {("look", 52)}, {("work", 42)}],
    "chained": [
        *({("look", 1)}, {("work", 2)}),
        *({("look", 4)}, {("look", 5)}, {("work", 6)}),
        *({("look", 104)}, {("look", 105)}, {("work", 106)}),
        *({("look", 212)}, {("look", 213)}, {("look", 214)}, {("work", 215)}),
    ],
    "cancelled": [{("look", 1)}, {("linger", 2)}, {("look", 2)}, {("work", 3)}],
    "family": [{("look", 1)}, {("work", 2)}, {("look", 4), ("look", 5), ("work", 5), ("work", 6)}],
}
"""The executions of each workflow: those of one set begin after those of the sets before it are on disk."""
