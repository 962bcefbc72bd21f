"""An App with the workflows of the benchmarks: they do nothing, to measure the cost of workflows themselves."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from mainspring import App, workflow

STEPS = 10
FAN_OUT = 100
LINKS = 200

app = App()  # the server is in MAINSPRING_SERVER
numbers = app.signal("numbers", int)


@app.task
async def echo(number: int) -> int:
    return number


@app.workflow
async def empty() -> int:
    return 0


@app.workflow
async def steps() -> int:
    """Take steps, each on disk before the next one begins."""
    return sum([await echo.step(1) for _ in range(STEPS)])


@app.workflow
async def steps_together() -> int:
    """Take steps whose results are recorded with the decision."""
    return sum([await workflow.step(echo, 1, record="together") for _ in range(STEPS)])


@app.workflow
async def activities() -> int:
    """Await activities, one after another."""
    return sum([await echo.submit(1) for _ in range(STEPS)])


@app.workflow
async def fan_out() -> int:
    """Await activities that all run at the same time."""
    return sum(await asyncio.gather(*(echo.submit(1) for _ in range(FAN_OUT))))


@app.workflow
async def chain(link: int = 1) -> int:
    """Continue as new until the chain has all links."""
    if link < LINKS:
        raise workflow.continue_as_new(link + 1)
    return link


@app.workflow
async def part() -> int:
    """Take one step, each on disk before the run ends."""
    return await echo.step(1)


@app.workflow
async def family() -> int:
    """Await children that all run at the same time."""
    return sum(await asyncio.gather(*(part.submit() for _ in range(FAN_OUT))))


@app.workflow
async def mapped(items: int) -> int:
    """Map an activity over many items, and return the number of results."""
    return len(await workflow.map(echo, range(items)))


@app.workflow
async def listener() -> int:
    """Receive numbers until a negative one, and return how many there were."""
    received = 0
    while await numbers.receive() >= 0:
        received += 1
    return received


@app.workflow
async def long(steps: int, seconds: float) -> int:
    """Take many steps, sleep, and return the number of steps."""
    taken = sum([await workflow.step(echo, 1, record="together") for _ in range(steps)])
    await workflow.sleep(seconds)
    return taken


@app.workflow
async def long_and_wide(steps: int, rounds: int) -> None:
    """Take many steps, then await activities that run at the same time, in rounds, and sleep."""
    for _ in range(steps):
        await workflow.step(echo, 1, record="together")
    for _ in range(rounds):
        await asyncio.gather(*(echo.submit(1) for _ in range(FAN_OUT)))
    await workflow.sleep(timedelta(days=3))


@app.workflow
async def totals(inputs: list[int]) -> int:
    """Take a step for each input, in groups of ten, and one for the total of each group."""
    total = 0
    for first in range(0, len(inputs), 10):
        group = sum([await echo.step(number) for number in inputs[first : first + 10]])
        total += await echo.step(group)
    return total


@app.workflow
async def sleep_long() -> None:
    await workflow.sleep(timedelta(days=3))


@app.workflow
async def sleep_until(timestamp: float) -> None:
    """Sleep until a time in seconds since 1970."""
    await workflow.sleep(timedelta(seconds=max(0.001, timestamp - workflow.now().timestamp())))


@app.workflow
async def refused() -> None:
    """Fail."""
    raise ValueError("refused")


@app.workflow
async def broken() -> None:
    """Park: the mistake is one of the code."""
    raise NameError("broken")
