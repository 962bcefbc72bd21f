"""An order as a workflow: price, pay, wait for an approval, print labels, and close it three days later; or refund it."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from mainspring import App, Retry, workflow

PAUSE = timedelta(seconds=float(os.environ.get("PAUSE", "259200")))
LEDGER = Path(os.environ.get("LEDGER", "ledger.txt"))

app = App()
approved = app.signal("approved", dict)


class RefusedError(Exception):
    """Somebody did not approve an order."""


def note(line: str) -> None:
    """Stand for an effect in the world, so that you can count them."""
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(f"{line}\n")


@app.task
def price(items: list[str]) -> int:
    note("price")
    return 60_000 * len(items)


@app.task(retry=Retry(max_attempts=5, initial="200ms"), timeout=timedelta(minutes=2))
async def charge(number: int, cents: int) -> str:
    note(f"charge {number} {cents}")
    return f"payment-{number}"


@app.task(retry=Retry(max_attempts=20))
async def refund(payment: str) -> None:
    note(f"refund {payment}")


@app.task
def label(item: str) -> str:
    note(f"label {item}")
    return f"{item}.pdf"


@app.workflow(timeout=timedelta(days=30))
async def order(number: int, items: list[str]) -> dict:
    cents = await price.step(items)  # a local step: it runs in this worker, and its result is recorded
    async with workflow.Saga() as saga:  # an error or a cancellation in this block refunds the payment
        payment = await charge.submit(number, cents)  # an activity: a job for any worker, in any language
        saga.undo(refund, payment)
        if cents > 100_000:  # a condition is Python
            answer = await approved.receive(timeout=timedelta(days=3))
            if not answer.get("yes", True):
                raise RefusedError(f"{answer['by']} has refused the order")
            workflow.log.info("approved by %s", answer["by"])
        labels = await asyncio.gather(*(label.submit(item) for item in items))
    await workflow.sleep(PAUSE)  # survives every restart
    return {"payment": payment, "labels": labels, "closed": workflow.now().isoformat()}
