"""An App that is deployed again and again while its runs go on: each deploy has another generation of this file."""

from __future__ import annotations

from mainspring import App, workflow

GENERATION = 1

app = App()  # the server is in MAINSPRING_SERVER


@app.task
async def echo(number: int) -> int:
    return number


@app.workflow
async def deployed() -> int:
    """Await an activity; later generations take a step after it."""
    result = await echo.submit(1)
    if GENERATION > 1 and workflow.patched("step"):
        result = await workflow.step(echo, result, record="together")
    return result
