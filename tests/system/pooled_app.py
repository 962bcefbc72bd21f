"""The App of the tests with poolers."""

from __future__ import annotations

from mainspring import App, workflow

app = App()
paid = app.signal("paid", int)


@app.task
def double(number: int) -> int:
    return 2 * number


@app.workflow
async def order(number: int) -> list[int]:
    """Wait for three payments, and for a moment."""
    doubled = await double.submit(number)
    payments = [await paid.receive(), await paid.receive(), await paid.receive()]
    await workflow.sleep(0.02)
    return [doubled, *payments]
