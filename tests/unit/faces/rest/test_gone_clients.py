"""Requests whose clients have disconnected, or whose node stops: those that still wait for the store are not done later."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.api.a_node import Store, run

from mainspring.engines.memory.bulk import MemoryBulkSlice
from mainspring.engines.memory.schedules import MemoryScheduleSlice
from mainspring.faces.rest import app

from .a_client import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.storage.engine import Answer, Committed, Operation

JOBS = "/api/v1/namespaces/default/jobs"
ONE = b'{"function":"f"}'


class AwayStore(Store):
    """A store that commits nothing until it is ``back``."""

    def __init__(self) -> None:
        super().__init__([MemoryBulkSlice(), MemoryScheduleSlice()])
        self.is_away = False
        self.asked = asyncio.Event()
        self._held: list[Callable[[], None]] = []

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        if not self.is_away:
            super().commit(group, committed, answer)
            return
        self._held.append(partial(super().commit, group, committed, answer))
        self.asked.set()

    def back(self) -> None:
        self.is_away = False
        for commit in self._held:
            commit()


class Leaving:
    """The input of a client that sends a request, and disconnects when it `goes`."""

    def __init__(self, body: bytes) -> None:
        self._messages = [{"type": "http.request", "body": body, "more_body": False}]
        self.goes = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop()
        await self.goes.wait()
        return {"type": "http.disconnect"}


@pytest.mark.parametrize(("path", "body"), [("", ONE), ("/batch", b"[%s,%s]" % (ONE, ONE))], ids=["one", "batch"])
@pytest.mark.parametrize("late", [True, False])
def test_jobs_of_a_client_that_gave_them_up_are_not_stored(
    monkeypatch: pytest.MonkeyPatch, path: str, body: bytes, late: bool
) -> None:
    """A client that disconnects at once does not read answers, as some programs do."""
    monkeypatch.setattr(app, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(app, "WATCH_AFTER", 0 if late else 3600)

    async def test() -> None:
        store = AwayStore()
        async with serving(store=store) as (client, _):
            store.is_away = True
            first = asyncio.ensure_future(client.send("POST", JOBS, {"function": "f"}))
            await store.asked.wait()  # its group is under way: the next one waits for that
            leaving = Leaving(body)
            headers = [("content-type", "application/json")]
            second = asyncio.ensure_future(
                client.send("POST", JOBS + path, body, headers=headers, receive=leaving.receive)
            )
            leaving.goes.set()
            if late:
                with pytest.raises(AssertionError, match="no answer"):
                    await second
            store.back()
            assert (await first).status == 201
            if not late:
                assert (await second).status in (200, 201)
            listed = (await client.get(JOBS)).json["items"]
            assert len(listed) == 1 or not late
            assert len(listed) > 1 or late

    run(test())


@pytest.mark.parametrize("waits_for", ["job", "result"])
def test_a_request_that_waits_ends_with_its_token(monkeypatch: pytest.MonkeyPatch, waits_for: str) -> None:
    monkeypatch.setattr(app, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(app, "WATCH_AFTER", 0)

    async def test() -> None:
        async with serving() as (client, _):
            if waits_for == "job":
                wait = [("prefer", "wait=60")]
                request = client.send("POST", JOBS, {"function": "f"}, headers=wait, token="admin", connected=True)
            else:
                handle = (await client.send("POST", JOBS, {"function": "f"}, token="admin")).json["handle"]
                request = client.get(f"{JOBS}/{handle}/result?wait=60", token="admin", connected=True)
            waiting = asyncio.ensure_future(request)
            while not client.access.watchers.get("admin"):  # noqa: ASYNC110 - the watch has no event
                await asyncio.sleep(0)
            client.access.revoke("admin")
            refused = await waiting
            assert (refused.status, refused.json["type"]) == (401, "urn:mainspring:problem:unauthenticated")
            assert client.access.watchers["admin"] == [], "the watch ends with the request"

    run(test())


def test_requests_that_wait_when_the_node_stops_get_an_answer() -> None:
    async def test() -> None:
        store = AwayStore()
        async with serving(store=store) as (client, _):
            wait = [("prefer", "wait=60")]
            waiting = asyncio.ensure_future(client.send("POST", JOBS, {"function": "f"}, headers=wait))
            while not (await client.get(JOBS)).json["items"]:  # noqa: ASYNC110 - the store has no event
                await asyncio.sleep(0)
            store.is_away = True
            unanswered = asyncio.ensure_future(client.send("POST", JOBS, {"function": "g"}))
            await store.asked.wait()
            client.app.end_waits()
            submitted = await waiting
            assert submitted.status == 202
            assert submitted.json["handle"]
            unanswered.cancel()  # by the server, a second after it has begun to stop
            refused = await unanswered
            assert (refused.status, refused.json["type"]) == (503, "urn:mainspring:problem:outcome-unknown")
            assert "before this node stopped" in refused.json["detail"]
            store.back()

    run(test())
