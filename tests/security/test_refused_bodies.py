"""A refused request leaves nothing behind: its body is freed at once, and not when the collector of cycles runs."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.access.caller import Role
from mainspring.callbacks import Callback, CallInProgress, awaited
from mainspring.errors import StoreUnavailableError
from tests.unit.faces.rest.a_client import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.faces.rest.a_client import Client

JSON = (("content-type", "application/json"),)
JOBS = "/api/v1/namespaces/default/jobs"


def submit(**fields: Any) -> bytes:
    return msgspec.json.encode({"function": "f", "args": "x" * 1000, **fields})


REFUSED: dict[str, tuple[bytes, dict[str, Any], int]] = {
    "no token": (submit(), {"token": None}, 401),
    "a wrong token": (submit(), {"token": "nobody"}, 401),
    "a role without the permission": (submit(), {"token": "viewer"}, 403),
    "a function outside the grants": (submit(), {"token": "narrow"}, 403),
    "a value that is too long": (submit(unique="u" * 65), {}, 413),
    "an invalid value": (submit(priority=7), {}, 422),
    "no JSON": (submit()[:-1], {}, 400),
    "a wrong media type": (submit(), {"headers": (("content-type", "text/plain"),)}, 415),
    "a wrong key": (submit(), {"headers": (*JSON, ("idempotency-key", " "))}, 400),
    "a value that is too long, with a key": (
        submit(unique="u" * 65),
        {"headers": (*JSON, ("idempotency-key", "k"))},
        413,
    ),
}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def references_after(client: Client, body: bytes, status: int, **options: Any) -> int:
    """Return how many more references to a body there are after five refused requests than before."""
    options.setdefault("headers", JSON)
    before = sys.getrefcount(body)
    for _ in range(5):
        answer = await client.send("POST", JOBS, body, **options)
        assert answer.status == status, answer.body
    await asyncio.sleep(0)
    return sys.getrefcount(body) - before


@pytest.mark.parametrize("what", REFUSED)
def test_no_refused_request_keeps_its_body(what: str) -> None:
    async def scenario() -> None:
        body, options, status = REFUSED[what]
        async with serving() as (client, _):
            client.access.add("narrow", Role.DEVELOPER)
            grants = client.access.callers["narrow"].grants
            narrow = tuple(msgspec.structs.replace(one, functions=("mail*",)) for one in grants)
            client.access.callers["narrow"] = msgspec.structs.replace(client.access.callers["narrow"], grants=narrow)
            assert await references_after(client, body, status, **options) == 0

    asyncio.run(scenario())


class Payload:
    """An object that a weak reference can name."""


async def use(payload: Payload, ask: Callable[..., object]) -> None:
    try:
        await Callback(ask)
    finally:
        del ask
    raise AssertionError(payload)


def test_no_failed_call_keeps_its_request() -> None:
    payload = Payload()
    left = weakref.ref(payload)
    later: list[Callable[[Exception], None]] = []
    problems: list[object] = []
    call = CallInProgress(use(payload, lambda _, failed: later.append(failed)), problems.append, problems.append)
    del payload
    assert left() is not None
    later.pop()(StoreUnavailableError("the store is away"))
    assert problems
    assert call.is_over
    assert left() is None


def test_no_unanswered_question_keeps_its_request() -> None:
    async def ask(payload: Payload) -> None:
        await awaited(Callback[None](lambda _, failed: failed(StoreUnavailableError("the store is away"))))
        raise AssertionError(payload)

    async def scenario() -> None:
        payload = Payload()
        left = weakref.ref(payload)
        question = ask(payload)
        del payload
        with pytest.raises(StoreUnavailableError):
            await question
        del question
        assert left() is None

    asyncio.run(scenario())
