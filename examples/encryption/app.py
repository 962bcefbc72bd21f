"""Tasks and a workflow whose payloads are encrypted."""

from __future__ import annotations

from encryption import from_file

from mainspring import App, workflow

app = App(codec=from_file())
approvals = app.signal("approval", str)


@app.task
def charge(card: str, cents: int) -> str:
    """Return the number of a payment."""
    return f"payment of {cents} from {card}"


@app.workflow
async def order(card: str) -> str:
    """Charge a card once somebody has approved it."""
    workflow.publish("stage", "waits")
    who = await approvals.receive()
    payment = await charge.submit(card, 1250)
    return f"{payment}, approved by {who}"
