"""Workflows whose processes are killed. Each execution of a function leaves a line with its time in the file of effects."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from typing import Any

from mainspring import App, Retry, workflow

app = App()
go = app.signal("go", int)


def did(name: str, number: int) -> None:
    line = f"{name} {number} {time.time_ns() // 1000}\n"
    with open(os.environ["WORKFLOW_EFFECTS"], "a") as file:  # noqa: PTH123
        file.write(line)


@app.task(retry=Retry(max_attempts=50, initial=0.01))
async def work(number: int) -> int:
    did("work", number)
    return number * 2


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


RESULTS: dict[str, Any] = {
    "steps": 3 * (5 + 10) + 3,
    "joint_steps": (1 + 40) * 2 + 20,
    "activities": [2 * (8 + i) for i in range(3)],
    "mixed": [2, 4, 7, [14, 5], True, True],
}
"""Of the argument 1."""
