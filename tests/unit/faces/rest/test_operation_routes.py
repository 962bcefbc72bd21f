"""Routes about operations on many jobs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from mainspring.access.service import AccessService
from mainspring.api.handlers import operations
from mainspring.api.schedules import AddSchedule
from mainspring.api.submitting import Submit
from mainspring.faces.rest.streams import EventFeed

from .a_server import whole_node

if TYPE_CHECKING:
    import pytest

    from mainspring.access.caller import Caller

    from .a_client import Client

SCHEDULES = "/api/v1/namespaces/default/schedules"
OPERATIONS = "/api/v1/namespaces/default/operations"


async def unchanged(_: AccessService, caller: Caller) -> Caller:
    """Return the caller: its token is of the test alone, and not in the store."""
    return caller


async def ended(client: Client, place: str) -> dict[str, Any]:
    """Return an operation once it has ended."""
    while True:
        shown: dict[str, Any] = (await client.send("GET", place, token="viewer")).json
        if shown["state"] != "running":
            return shown
        await asyncio.sleep(0.001)


def test_an_operation_is_started_listed_shown_and_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccessService, "current", unchanged)

    async def test() -> None:
        async with whole_node() as (client, built):
            handles = [(await built.api.call(Submit(b"f", b""))).handle for _ in range(3)]
            body = {"action": "cancel", "filter": {"function": "f", "state": ["pending"]}, "reason": "r"}
            dry = await client.send("POST", OPERATIONS, body | {"dry_run": True}, token="operator")
            assert (dry.status, dry.json["id"], dry.json["matched"]) == (200, None, 3)
            refused = await client.send("POST", OPERATIONS, body | {"expect": 2}, token="operator")
            assert (refused.status, refused.problem) == (409, "conflict")
            begun = await client.send("POST", OPERATIONS, body, token="operator")
            assert (begun.status, begun.json["matched"]) == (202, 3)
            assert {job["handle"] for job in begun.json["sample"]} == set(handles)
            place = begun.headers["location"]
            assert place == f"{OPERATIONS}/{begun.json['id']}"
            shown = await ended(client, place)
            assert (shown["outcomes"], shown["filter"]) == ({"cancelled": 3}, body["filter"])
            listed = (await client.send("GET", OPERATIONS, token="viewer")).json
            assert ([one["id"] for one in listed["items"]], listed["next"]) == ([shown["id"]], None)
            touched = (await client.send("GET", f"{place}/jobs", token="viewer")).json
            assert {job["handle"] for job in touched["items"]} == set(handles)
            aborted = await client.send("POST", f"{place}/abort", {}, token="operator")
            assert (aborted.status, aborted.json["state"]) == (200, "done")

    asyncio.run(asyncio.wait_for(test(), 10))


def test_an_operation_with_a_key_is_begun_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccessService, "current", unchanged)

    async def test() -> None:
        async with whole_node() as (client, built):
            await built.api.call(Submit(b"f", b""))
            await built.api.call(AddSchedule(name="nightly", cron="0 0 * * *", function="f"))
            for path, body in (
                (OPERATIONS, {"action": "cancel", "filter": {"function": "f"}}),
                (f"{SCHEDULES}/nightly/backfill", {"from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"}),
            ):
                headers = [("idempotency-key", "k")]
                request = partial(client.send, "POST", path, body, token="admin", headers=headers)
                answers = await asyncio.gather(*(request() for _ in range(3)))
                assert [answer.status for answer in answers] == [202] * 3
                assert len({answer.json["id"] for answer in answers}) == 1
                await ended(client, answers[0].headers["location"])
                assert (await request()).json == answers[0].json
            assert len((await client.send("GET", OPERATIONS, token="viewer")).json["items"]) == 2

    asyncio.run(asyncio.wait_for(test(), 10))


def test_an_operation_of_a_token_that_is_not_in_the_store_stops() -> None:
    async def test() -> None:
        async with whole_node() as (client, built):
            await built.api.call(Submit(b"f", b""))
            body = {"action": "cancel", "filter": {"function": "f"}}
            begun = await client.send("POST", OPERATIONS, body, token="operator")
            shown = await ended(client, begun.headers["location"])
            assert (shown["state"], shown["done"]) == ("stopped", 0)
            assert shown["why"] == "the token of 'operator' has ended"

    asyncio.run(asyncio.wait_for(test(), 10))


def test_wrong_unknown_and_forbidden_operations_are_refused() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            empty = await client.send("POST", OPERATIONS, {"action": "cancel", "filter": {}}, token="operator")
            assert (empty.status, empty.problem) == (422, "invalid")
            unknown = await client.send("GET", f"{OPERATIONS}/op-1", token="viewer")
            assert (unknown.status, unknown.problem) == (404, "operation-not-found")
            request = {"action": "cancel", "filter": {"function": "f"}}
            refused = await client.send("POST", OPERATIONS, request, token="viewer")
            assert (refused.status, refused.problem) == (403, "forbidden")

    asyncio.run(asyncio.wait_for(test(), 10))


def test_a_long_poll_ends_when_the_operation_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccessService, "current", unchanged)
    monkeypatch.setattr(operations, "INTERVAL", 0.001)
    changed, waits = EventFeed.changed, asyncio.Semaphore(0)

    async def count_waits(feed: EventFeed, seconds: float) -> bool:
        waits.release()
        return await changed(feed, seconds)

    monkeypatch.setattr(EventFeed, "changed", count_waits)

    async def test() -> None:
        async with whole_node() as (client, built):
            for _ in range(2):
                await built.api.call(Submit(b"f", b""))
            body = {"action": "cancel", "filter": {"function": "f"}, "rate": 0.01}
            place = (await client.send("POST", OPERATIONS, body, token="operator")).headers["location"]
            shown = await client.get(place)
            while shown.json["done"] != 1:
                shown = await client.get(place)
            tag = [("If-None-Match", shown.headers["etag"])]
            assert (await client.get(f"{place}?wait=0.01", headers=tag, connected=True)).status == 304
            while not waits.locked():
                await waits.acquire()
            poll = asyncio.create_task(client.get(f"{place}?wait=60", headers=tag, connected=True))
            for _ in range(2):
                await waits.acquire()  # the first wait ends with the state as it is
            assert (await client.send("POST", f"{place}/abort", {}, token="operator")).status == 200
            answer = await poll
            assert (answer.status, answer.json["state"]) == (200, "aborted")
            unknown = await client.get(f"{OPERATIONS}/op-1?wait=60", headers=tag, connected=True)
            assert unknown.problem == "operation-not-found"

    asyncio.run(asyncio.wait_for(test(), 10))
