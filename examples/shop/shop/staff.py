"""The staff's part of the front end: it lists what has failed and what is open, and steers it. Put your own login before it."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException

from shop.app import app
from shop.tasks.partners import notify
from shop.workflows import checkout, restock

staff = APIRouter(prefix="/staff", tags=["staff"])


@staff.get("/failed")
async def failed(tag: str | None = None) -> list[dict[str, Any]]:
    """Return the newest jobs that failed for good, such as those with the tag `money`."""
    jobs = app.jobs.alist(state="failed", tag=tag, limit=100)
    return [{"job": job.handle, "task": job.row.function, "error": job.row.error} async for job in jobs]


@staff.post("/jobs/{handle}/retry", status_code=202)
async def retry(handle: str, args: Annotated[dict[str, Any] | None, Body(embed=True)] = None) -> dict[str, str]:
    """Run a job again that has failed, with other arguments if they are given."""
    row = await app.job(handle).aretry() if args is None else await app.job(handle).aretry(args=args)
    return {"state": row.state}


@staff.get("/orders")
async def open_orders() -> list[str]:
    """Return the numbers of the orders that are open, newest first."""
    return [run.row.id.removeprefix("order-") async for run in app.runs.alist(open=True, type=checkout.name)]


@staff.put("/partners/paused", status_code=204)
async def pause_partners(paused: bool, reason: str = "") -> None:
    """Stop calling partners for a while; their calls wait."""
    if paused:
        await app.functions.apause(notify, reason=reason)
    else:
        await app.functions.aresume(notify)


@staff.post("/restock", status_code=202)
async def restock_now() -> dict[str, str]:
    """Order what runs out now, and not at the next time of the schedule."""
    fired = await app.schedules.atrigger(restock.name)
    if fired.handle is None:
        raise HTTPException(409, f"not now: {fired.reason}")
    return {"run": fired.handle}
