"""9. Results in FastAPI.  Celery: `AsyncResult(id).state` and `.get()`, with a result backend.

uvicorn web:api
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from app import app
from mainspring import JobFailed, JobLost, NotFoundError
from shop.statistics import sum_days

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def lifespan(_api: FastAPI) -> AsyncIterator[None]:
    """Close the App's connection when the program ends."""
    yield
    await app.aclose()


api = FastAPI(lifespan=lifespan)


class Days(BaseModel):
    """The days of a report."""

    days: list[str]


@api.post("/reports", status_code=202)
async def order_report(request: Days) -> dict[str, str]:
    """Submit a job: it is on disk before this returns."""
    job = await sum_days.asubmit(request.days)
    return {"report": job.handle}


@api.get("/reports/{handle}")
async def show_report(handle: str) -> dict[str, Any]:
    """Return the state of the job."""
    try:
        return {"state": await app.job(handle).astate()}
    except NotFoundError:
        raise HTTPException(404, "there is no such report") from None


@api.get("/reports/{handle}/result")
async def wait_for_report(handle: str) -> dict[str, int]:
    """Wait for the result without occupying a thread."""
    try:
        return await sum_days.job(handle).aresult(timeout="30s")
    except TimeoutError:
        raise HTTPException(504, "the report is not ready") from None
    except JobLost:
        raise HTTPException(404, "there is no such report") from None
    except JobFailed as error:
        raise HTTPException(502, error.reason) from None
