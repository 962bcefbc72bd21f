"""The workflows of a store of an earlier version: `workflow_scene` starts their runs, and `test_workflow_stores` ends them.

That version of Mainspring runs it, too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring import App, workflow

app = App()
elsewhere = App()
"""The App of a worker that is not there yet."""
go = app.signal("go", int)
is_old: list[bool] = []
"""Is not empty in the earlier version: some steps do not end there, and some code has a defect."""
did: list[tuple[str, int]] = []
"""The executions of steps and activities in this process."""


@app.task
async def look(number: int) -> int:
    did.append(("look", number))
    return number + 1


@app.task
async def work(number: int) -> int:
    did.append(("work", number))
    return number * 2


@app.task
async def hold(number: int) -> int:
    if is_old:
        await asyncio.Event().wait()
    did.append(("hold", number))
    return number + 100


@app.task
async def linger(number: int) -> None:
    await asyncio.Event().wait()


@elsewhere.task(name="away")
async def far(number: int) -> int:
    return number * 3


@app.workflow
async def receives(number: int) -> list[int]:
    """Wait for a signal, after a step, an activity and a side effect."""
    values = [await look.step(number), await work.submit(number), workflow.side_effect(lambda: number)]
    values.append(await go.receive())
    values.append(await work.submit(values[-1]))
    return values


@app.workflow
async def sleeps(number: int) -> list[int]:
    await asyncio.gather(workflow.sleep("1h"), work.submit(number))
    return [await look.step(number), int(workflow.rng().randrange(10**9) >= 0)]


@app.workflow
async def waits(number: int) -> int:
    """Wait for an activity without a worker."""
    return int(await app.function("away").submit([number]))


@app.workflow
async def breaks_off(number: int) -> int:
    """Lose a decision, after a step of it was recorded, during the next one."""
    return await hold.step(await look.step(number))


@app.workflow
async def has_defect(number: int) -> int:
    number = await work.submit(number)
    if is_old:
        raise NameError("an old mistake")
    return await look.step(number)


@app.workflow
async def is_long(number: int) -> list[int]:
    """Make a long history, with a snapshot."""
    values = [await look.step(number + i) for i in range(60)]
    values += await asyncio.gather(*(work.submit(i) for i in range(20)))
    return [sum(values), await go.receive(), await look.step(number)]


@app.workflow
async def is_cancelled(number: int) -> None:
    try:
        await linger.submit(number)
    finally:
        await look.step(number)


@elsewhere.workflow
async def comes_later(number: int) -> list[int]:
    """Begin in the new version; the signals came before."""
    return [number, await go.receive(), await go.receive()]


RESULTS: dict[str, Any] = {
    "receives": [2, 2, 1, 7, 14],
    "sleeps": [2, 1],
    "waits": 3,
    "breaks_off": 102,
    "has_defect": 3,
    "is_long": [sum(range(2, 62)) + sum(range(0, 40, 2)), 7, 2],
    "comes_later": [1, 7, 7],
}
"""Of the argument 1 and the signal 7."""
EXECUTIONS = [
    ("hold", 2),
    ("look", 1),
    ("look", 1),
    ("look", 1),
    ("look", 2),
    ("work", 7),
]
"""Those of the new version: nothing that is recorded runs again."""
