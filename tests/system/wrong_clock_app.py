"""An App whose runs sleep for an hour and for a second; see `test_wrong_clocks`."""

from __future__ import annotations

import asyncio

from mainspring import App, current_job, workflow

app = App()
go = app.signal("go", str)


@app.task
async def quick(number: int) -> int:
    current_job().log.info("a line")
    return number


@app.workflow(timeout="2h")
async def sleeps() -> bool:
    """Return whether the timer of an hour has fired after a second."""
    hour = asyncio.create_task(workflow.sleep(3600))
    await quick.submit(0)
    await go.receive()
    for number in range(3):
        await quick.submit(number)
    await workflow.sleep(1)
    return hour.done()
