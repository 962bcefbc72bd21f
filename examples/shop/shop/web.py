"""The front end: uvicorn shop.web:api

It submits and asks, and does no work itself. An order's number is its workflow id, so a client may repeat each request.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse

from mainspring import ConflictError, ConnectionLostError, JobFailed, JobLost, NotFoundError, RefusedError, Run
from shop import database
from shop.app import app
from shop.models import Decision, Item, Order, Packed, Receipt
from shop.staff import staff
from shop.tasks.catalog import thumbnail
from shop.workflows import checkout, decided, packed, return_goods


@asynccontextmanager
async def lifespan(_api: FastAPI) -> AsyncIterator[None]:
    """Close the App's connection when the program ends."""
    yield
    await app.aclose()


api = FastAPI(title="Shop", lifespan=lifespan)
api.include_router(staff)


@api.exception_handler(ConnectionLostError)
@api.exception_handler(RefusedError)
async def unavailable(_request: Request, error: Exception) -> JSONResponse:
    """Answer 503: the client may repeat its request, because the work has a name."""
    return JSONResponse({"detail": f"try again: {error}"}, 503, {"Retry-After": "5"})


@api.exception_handler(NotFoundError)
async def unknown(_request: Request, _error: Exception) -> JSONResponse:
    """Answer 404."""
    return JSONResponse({"detail": "there is no such order, return, picture or job"}, 404)


def run_of(number: int) -> Run[Receipt]:
    """Return the run of an order."""
    return checkout.get(f"order-{number}")


@api.post("/orders", status_code=202)
async def order(order: Order, partner: str | None = None) -> dict[str, str]:
    """Take an order. It is on disk when this answers; the same number again joins it."""
    database.add_customer(order.email)
    run = await checkout.options(id=f"order-{order.number}").asubmit(order, partner)
    return {"order": f"/orders/{order.number}", "handle": run.handle}


@api.get("/orders/{number}")
async def look(number: int) -> dict[str, Any]:
    """Return how far an order is."""
    run = await run_of(number).adetails()
    return {"state": run["status"], "progress": run["progress"]}


@api.get("/orders/{number}/receipt")
async def receipt(number: int) -> Receipt:
    """Return the receipt of a delivered order."""
    try:
        return await run_of(number).aresult(timeout="1s")
    except TimeoutError:
        raise HTTPException(409, "the order is not delivered yet") from None
    except JobFailed as error:
        raise HTTPException(410, error.reason) from None


@api.post("/orders/{number}/packed", status_code=204)
async def pack(number: int, box: Packed, idempotency_key: Annotated[str | None, Header()] = None) -> None:
    """Tell the order that its box is packed. A repetition with the same key counts once."""
    await run_of(number).asignal(packed, box, request=idempotency_key)


@api.delete("/orders/{number}", status_code=202)
async def cancel(number: int, reason: str = "the customer cancelled") -> dict[str, str]:
    """Ask an order to stop; it undoes what was done."""
    try:
        return {"state": await run_of(number).acancel(reason)}
    except ConflictError as error:
        raise HTTPException(409, str(error)) from None


@api.post("/returns/{number}", status_code=202)
async def give_back(number: int, email: str, items: list[Item]) -> dict[str, str]:
    """Begin a return."""
    run = await return_goods.options(id=f"return-{number}").asubmit(number, email, items)
    return {"return": run.handle}


@api.post("/returns/{number}/decision", status_code=204)
async def decide(number: int, decision: Decision) -> None:
    """Decide about a return."""
    await return_goods.get(f"return-{number}").asignal(decided, decision)


@api.post("/pictures/{picture}", status_code=202)
async def shrink(picture: str, width: int = 200) -> dict[str, str]:
    """Make a small picture."""
    job = await thumbnail.asubmit(picture, width)
    return {"picture": job.handle}


@api.get("/pictures/{handle}")
async def small_picture(handle: str) -> str:
    """Return the name of a small picture, and wait for it for a while."""
    try:
        return await thumbnail.job(handle).aresult(timeout="10s")
    except TimeoutError:
        raise HTTPException(504, "the picture is not ready") from None
    except JobLost:
        raise HTTPException(404, "there is no such picture") from None
    except JobFailed as error:
        raise HTTPException(502, error.reason) from None
