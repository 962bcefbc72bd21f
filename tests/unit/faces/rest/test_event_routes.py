"""Routes about events, and their stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest

from mainspring.access.caller import Caller, Grant, Role
from mainspring.api.events import shown_fields
from mainspring.api.submitting import Submit
from mainspring.callbacks import awaited
from mainspring.client.event import EventData
from mainspring.engines.memory.engine import MemoryEngine
from mainspring.event_log.interests import Interest
from mainspring.event_log.service import MOST_FILTERS
from mainspring.event_log.store import SaveInterests, StoredInterest, SweepEvents
from mainspring.event_log.types import TYPES, types_of
from mainspring.features import Feature

from .a_server import whole_node
from .test_streams import Reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from mainspring.server.build import Built

    from .a_client import Client

N = "/api/v1/namespaces/default"
EVENTS = f"{N}/events"
STREAM = f"{EVENTS}/stream"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


class Stored:
    """A node with clients."""

    def __init__(self, client: Client, built: Built) -> None:
        self.client = client
        self.built = built

    async def cancelled(self, function: bytes = b"f", namespace: str = "default", **options: Any) -> str:
        """Return the handle of a job that was cancelled."""
        submitted = await self.built.api.call(Submit(function, b"", b"", namespace=namespace, **options))
        answer = await self.client.send("POST", f"/api/v1/namespaces/{namespace}/jobs/{submitted.handle}/cancel", {})
        assert answer.status == 200, answer.body
        return submitted.handle

    async def begin(self, query: str = "", path: str = EVENTS, token: str = "admin") -> str:
        """Have events recorded from now on, and return the place."""
        answer = await self.client.get(f"{path}?after=end{query}", token=token)
        assert (answer.status, answer.json["items"]) == (200, [])
        return str(answer.json["last"])

    async def rows(self, query: str, path: str = EVENTS, token: str = "admin") -> list[Any]:
        answer = await self.client.get(f"{path}?{query}", token=token)
        assert answer.status == 200, answer.body
        found: list[Any] = answer.json["items"]
        return found

    async def swept(self, most: int) -> None:
        """Delete all events but the newest ones."""
        await awaited(self.built.node.commits.committed(SweepEvents(0, most)))


@pytest.fixture(params=["memory", "sqlite"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    store = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"

    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[Stored]:
        async with whole_node(store) as (client, built):
            yield Stored(client, built)

    return serving


class Stream:
    """A reader of a stream, with the parts of its events."""

    def __init__(self, stored: Stored, query: str = "", *, last: str = "", token: str = "admin", path: str = STREAM):
        headers = [(b"last-event-id", last.encode())] if last else []
        self.reader = Reader(stored.client, f"{path}?{query}", token, headers)
        self._unread: list[tuple[str, str, Any]] = []

    async def __aenter__(self) -> Self:
        await self.reader.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.reader.left.set()
        await self.reader.task

    async def next(self) -> tuple[str, str, Any]:
        """Return the id, the name and the data of the next event."""
        while not self._unread:
            for frame in (await self.reader.next()).decode().split("\n\n"):
                parts = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
                if parts:
                    self._unread.append((parts["id"], parts["event"], json.loads(parts["data"])))
        return self._unread.pop(0)

    async def event(self) -> Any:
        """Return the next event that is no place."""
        number, name, data = await self.next()
        assert name == "event", (name, data)
        assert number == data["id"]
        return data


def test_nothing_is_recorded_until_somebody_reads(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            await stored.cancelled()
            assert await stored.rows("") == []
            await stored.begin()
            handle = await stored.cancelled()
            (event,) = await stored.rows("type=job.*")
            assert event == {
                "id": event["id"],
                "type": "job.cancelled",
                "time": event["time"],
                "namespace": "default",
                "function": "f",
                "subject": None,
                "job": handle,
                "data": {"error_type": "Cancelled", "error": "cancelled on request", "by": "admin"},
            }

    run(test())


def test_a_reader_goes_on_behind_a_number(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            after = await stored.begin("&type=job.cancelled")
            handles = [await stored.cancelled() for _ in range(5)]
            answer = await stored.client.get(f"{EVENTS}?type=job.cancelled&after={after}&limit=2")
            assert [one["job"] for one in answer.json["items"]] == handles[:2]
            assert answer.json["last"] == answer.json["items"][-1]["id"]
            following = await stored.client.get(
                f"{EVENTS}?type=job.cancelled&after={after}&limit=2&cursor={answer.json['next']}"
            )
            assert [one["job"] for one in following.json["items"]] == handles[2:4]
            rest = await stored.rows(f"type=job.cancelled&after={following.json['last']}")
            assert [one["job"] for one in rest] == handles[4:]
            assert [one["job"] for one in await stored.rows("limit=3&type=job.*")] == handles[:1:-1]
            assert (await stored.client.get(f"{EVENTS}?after=x")).status == 422
            assert (await stored.client.get(f"{EVENTS}?after=1&order=newest")).status == 422

    run(test())


def test_a_filter_chooses_by_type_function_job_and_tag(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            after = await stored.begin()
            paid, other = await stored.cancelled(b"payroll"), await stored.cancelled(b"mail")
            for query, jobs in (
                ("function=pay*", [paid]),
                ("function=mail", [other]),
                (f"job={other}", [other]),
                ("type=job.cancelled&type=job.failed", [paid, other]),
                ("type=job.failed", []),
                ("tag=red", []),
                ("subject=x", []),
            ):
                found = await stored.rows(f"after={after}&{query}")
                assert [one["job"] for one in found if one["job"]] == jobs, query
            wrong = await stored.client.get(f"{EVENTS}?type=job.lost")
            assert (wrong.status, wrong.problem) == (422, "invalid")
            assert "job.failed" in wrong.json["detail"]
            assert (await stored.client.get(f"{EVENTS}?job=x")).status == 422

    run(test())


def test_a_request_waits_for_an_event(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            after = await stored.begin()
            waiting = asyncio.create_task(
                stored.client.get(f"{EVENTS}?type=job.*&after={after}&wait=15", connected=True)
            )
            await stored.rows("type=job.*")  # is answered after the first read of the other
            handle = await stored.cancelled()
            (event,) = (await waiting).json["items"]
            assert event["job"] == handle
            empty = await stored.client.get(f"{EVENTS}?type=job.failed&after={after}&wait=0.01", connected=True)
            assert empty.json["items"] == []
            assert int(empty.json["last"]) >= int(event["id"])

    run(test())


def test_a_reader_whose_events_were_deleted_learns_of_it(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            after = await stored.begin("&type=job.*")
            for _ in range(4):
                await stored.cancelled()
            last = (await stored.rows(f"after={after}&type=job.*"))[-1]["id"]
            await stored.swept(1)
            gone = await stored.client.get(f"{EVENTS}?after={after}&type=job.*")
            assert (gone.status, gone.problem) == (410, "events-gone")
            (left,) = await stored.rows(f"after={gone.json['oldest']}&type=job.*")
            assert left["id"] == last
            assert await stored.rows(f"after={last}&type=job.*") == []

    run(test())


def test_a_stream_sends_each_event_and_goes_on_behind_the_last_one(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            async with Stream(stored, "type=job.*") as stream:
                place, name, data = await stream.next()
                assert (name, data) == ("place", {"last": place})
                first = await stored.cancelled()
                event = await stream.event()
                assert (event["job"], event["type"]) == (first, "job.cancelled")
            away = [await stored.cancelled() for _ in range(3)]
            async with Stream(stored, "type=job.*", last=event["id"]) as stream:
                assert await stream.next() == (event["id"], "place", {"last": event["id"]})
                assert [(await stream.event())["job"] for _ in away] == away
            async with Stream(stored, f"type=job.*&after={place}") as stream:
                await stream.next()
                assert [(await stream.event())["job"] for _ in range(4)] == [first, *away]

    run(test())


def test_a_stream_says_what_was_deleted_and_goes_on(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            after = await stored.begin("&type=job.*")
            handles = [await stored.cancelled() for _ in range(4)]
            await stored.swept(2)
            async with Stream(stored, f"type=job.*&after={after}") as stream:
                await stream.next()
                number, name, data = await stream.next()
                assert (name, data) == ("gone", {"oldest": number})
                assert [(await stream.event())["job"] for _ in range(2)] == handles[2:]

    run(test())


def test_streams_with_one_filter_share_their_reads(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored, contextlib.AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(Stream(stored, "type=job.*")) for _ in range(5)]
            for stream in streams:
                await stream.next()
            handle = await stored.cancelled()
            assert [(await stream.event())["job"] for stream in streams] == [handle] * 5

    run(test())


def test_a_caller_sees_the_events_of_its_functions_and_namespaces(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            access = stored.client.access
            access.callers["pay"] = Caller("pay", (Grant(Role.VIEWER, functions=("pay*",)),), token="pay")
            access.add("team", Role.ADMIN, "team")
            after = await stored.begin("&everywhere=true")
            async with Stream(stored, "", token="pay") as narrow, Stream(stored, "everywhere=true") as wide:
                await narrow.next()
                await wide.next()
                await stored.cancelled(b"mail")
                paid = await stored.cancelled(b"payroll")
                foreign = await stored.cancelled(b"payroll", "team")
                assert (await narrow.event())["job"] == paid
                seen = [await wide.event() for _ in range(6)]
                assert {one["namespace"] for one in seen} == {"default", "team"}
            assert {one["job"] for one in await stored.rows(f"after={after}", token="pay")} == {paid}
            of_team = await stored.rows(f"after={after}", "/api/v1/namespaces/team/events", "team")
            assert {one["namespace"] for one in of_team} == {"team"}
            assert foreign in {one["job"] for one in of_team}
            assert (await stored.client.get(EVENTS, token="team")).status == 403
            for token in ("pay", "team"):
                assert (await stored.client.get(f"{EVENTS}?everywhere=true", token=token)).status == 403
                assert (await stored.client.get(f"{STREAM}?everywhere=true", token=token)).status == 403

    run(test())


def test_acts_are_for_those_who_may_read_the_audit(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            access = stored.client.access
            access.callers["some"] = Caller("some", (Grant(Role.ADMIN, functions=("f",)),), token="some")
            after = await stored.begin()
            await stored.cancelled()
            kinds = {one["type"] for one in await stored.rows(f"after={after}")}
            assert kinds == {"job.cancelled", "operator.acted"}
            for token in ("viewer", "developer", "some"):
                found = await stored.rows(f"after={after}", token=token)
                assert {one["type"] for one in found} == {"job.cancelled"}
                refused = await stored.client.get(f"{EVENTS}?type=operator.acted", token=token)
                assert (refused.status, refused.problem) == (403, "forbidden")

    run(test())


def test_each_type_is_described(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            listed = await stored.rows("", "/api/v1/event-types", "viewer")
            assert [one["type"] for one in listed] == list(TYPES)
            document = (await stored.client.get("/api/v1/openapi.json")).json
            assert [*document["webhooks"]] == list(TYPES)
            for one in listed:
                body = document["webhooks"][one["type"]]["post"]["requestBody"]["content"]["application/json"]
                name = body["schema"]["$ref"].rpartition("/")[2]
                event = document["components"]["schemas"][name]
                assert event["properties"]["type"] == {"enum": [one["type"]]}
                data = document["components"]["schemas"][event["properties"]["data"]["$ref"].rpartition("/")[2]]
                assert {field: part["description"] for field, part in data["properties"].items()} == one["fields"]

    run(test())


def test_programs_have_each_field_of_each_type() -> None:
    own = {one.name: one for one in msgspec.structs.fields(EventData)}
    shown = [part for kind in TYPES.values() for part in shown_fields(kind.fields).items()]
    assert own.keys() == {name for name, _ in shown}
    for name, field in shown:  # of all types: no two may have different fields of one name
        assert own[name].type == field.type, name
        assert not own[name].default


async def lapse(stored: Stored) -> None:
    """Let the interests of all readers end."""
    log = stored.built.node.events
    assert log is not None
    log.use(await awaited(stored.built.node.commits.committed(SaveInterests(10**17))))


def test_a_reader_who_was_away_for_too_long_learns_of_it(serve: Any) -> None:
    """Nobody wanted the events of that time, so none was recorded: the last number is still the reader's."""

    async def test() -> None:
        async with serve() as stored:
            after = await stored.begin("&type=job.*")
            kept = await stored.cancelled()
            (event,) = await stored.rows(f"after={after}&type=job.*")
            await lapse(stored)
            await stored.cancelled()
            gone = await stored.client.get(f"{EVENTS}?after={event['id']}&type=job.*")
            assert (gone.status, gone.problem) == (410, "events-gone")
            assert await stored.rows(f"after={gone.json['oldest']}&type=job.*") == []
            async with Stream(stored, f"type=job.*&after={after}") as stream:
                await stream.next()
                _, name, data = await stream.next()
                assert (name, data) == ("gone", {"oldest": gone.json["oldest"]})
                assert (await stream.event())["job"] == kept
                handle = await stored.cancelled()
                assert (await stream.event())["job"] == handle

    run(test())


def test_a_reader_whose_events_others_have_wanted_meanwhile_misses_none(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            interest = StoredInterest("webhook", Interest(types_of(["job.*"])))
            log = stored.built.node.events
            assert log is not None
            await awaited(log.save([interest]))
            after = await stored.begin("&type=job.cancelled")
            await lapse(stored)
            handle = await stored.cancelled()
            (event,) = await stored.rows(f"after={after}&type=job.cancelled")
            assert event["job"] == handle
            assert (await stored.client.get(f"{EVENTS}?after={after}&type=run.*")).status == 410

    run(test())


def test_many_filters_of_a_namespace_become_one(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            for number in range(MOST_FILTERS + 20):
                await stored.begin(f"&function=f{number}")
            log = stored.built.node.events
            assert log is not None
            assert len((await awaited(log.save([]))).interests) == MOST_FILTERS + 1
            after = await stored.begin("&function=other")
            handle = await stored.cancelled(b"other")
            (event,) = await stored.rows(f"after={after}&function=other&type=job.*")
            assert event["job"] == handle

    run(test())


def test_cursors_are_for_callers_with_all_functions(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            access, send = stored.client.access, stored.client.send
            access.callers["pay"] = Caller("pay", (Grant(Role.DEVELOPER, functions=("pay*",)),), token="pay")
            cursors = f"{EVENTS}/cursors"
            saved = await send("PUT", f"{cursors}/c", {"type": ["job.*"]}, token="developer")
            assert (saved.status, saved.json["place"]) == (200, saved.json["last"])
            for token in ("pay", "operator"):
                for method, path, body in (
                    ("PUT", "/c", {}),
                    ("POST", "/c/move", {"to": "1"}),
                    ("DELETE", "/c", None),
                ):
                    assert (await send(method, cursors + path, body, token=token)).status == 403, (token, method)

    run(test())


def test_a_cursor_keeps_its_place_and_its_events_until_it_is_removed(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            send, cursors = stored.client.send, f"{EVENTS}/cursors"
            place = (await send("PUT", f"{cursors}/c", {"type": ["job.*"], "function": "f"})).json["place"]
            await lapse(stored)
            handles = [await stored.cancelled() for _ in range(3)]
            repeated = await send("PUT", f"{cursors}/c", {"type": ["job.*"], "function": "f"})
            assert repeated.json["place"] == place
            found = await stored.rows(f"after={place}&type=job.*&function=f")
            assert [one["job"] for one in found] == handles
            for to, at in ((found[1]["id"], found[1]["id"]), (found[0]["id"], found[1]["id"])):
                moved = await send("POST", f"{cursors}/c/move", {"to": to})
                assert moved.json["place"] == at, "a cursor never moves back"
            (listed,) = await stored.rows("", cursors)
            assert (listed["name"], listed["place"], listed["function"]) == ("c", found[1]["id"], "f")
            assert await stored.rows("", "/api/v1/namespaces/team/events/cursors") == []
            wider = await send("PUT", f"{cursors}/c", {"type": ["job.*"]})
            assert (wider.json["place"], wider.json["function"]) == (found[1]["id"], None)
            assert (await send("DELETE", f"{cursors}/c")).status == 200
            for method, path in (("DELETE", "/c"), ("POST", "/c/move")):
                missing = await send(method, cursors + path, {"to": "1"} if method == "POST" else None)
                assert (missing.status, missing.problem) == (404, "cursor-not-found")
            assert (await send("PUT", f"{cursors}/a%2Fb", {})).status == 422
            acts = (await stored.client.get(f"{N}/audit")).json["items"]
            named = [one["what"] for one in acts if one["what"].startswith("events.")]
            assert named == ["events.remove_cursor", "events.save_cursor", "events.save_cursor"]

    run(test())


def test_a_namespace_has_a_limit_of_cursors(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr("mainspring.api.handlers.events.MOST_CURSORS", 1)
        async with serve() as stored:
            send, cursors = stored.client.send, f"{EVENTS}/cursors"
            assert (await send("PUT", f"{cursors}/a", {})).status == 200
            assert (await send("PUT", f"{cursors}/b", {})).status == 409
            assert (await send("PUT", "/api/v1/namespaces/team/events/cursors/b", {})).status == 200

    run(test())


def test_a_store_without_events_refuses_them_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(MemoryEngine, "lacks", frozenset({Feature.EVENTS}))
        async with whole_node() as (client, _):
            for path in (EVENTS, STREAM, f"{EVENTS}/cursors"):
                refused = await client.get(path)
                assert (refused.status, refused.problem) == (422, "unsupported")
                assert refused.json["detail"] == Feature.EVENTS.refusal
            assert (await client.send("PUT", f"{EVENTS}/cursors/c", {})).status == 422
            assert (await client.get("/api/v1/event-types")).status == 200

    run(test())


def test_a_stream_ends_with_its_token_and_takes_a_place(serve: Any) -> None:
    async def test() -> None:
        async with serve() as stored:
            async with Stream(stored, token="viewer") as stream:
                await stream.next()
                assert len(stored.client.streams) == 1
                stored.client.access.revoke("viewer")
                await stream.reader.task
            assert len(stored.client.streams) == 0
            refused = await stored.client.get(STREAM, token="viewer")
            assert refused.status == 401

    run(test())
