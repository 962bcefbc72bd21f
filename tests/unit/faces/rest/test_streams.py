"""Server-sent events, and long polls, which wait for the events of the same streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.api.a_node import run

from mainspring.access.caller import LOCAL, Permission, Shares
from mainspring.api.request import ApiError, Code, Request, Shared
from mainspring.faces.rest.registry import Route
from mainspring.faces.rest.replies import HttpError
from mainspring.faces.rest.streams import LARGEST_SEND, UNSENT_LIMIT, EventFeed, Streams
from mainspring.faces.web.exchange import N

from .a_client import Client, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.api.handlers.registry import Call
    from mainspring.api.request import Feed


class Thing(Request[dict[str, int]]):
    permission = Permission.READ
    call = "thing"
    wait: float = 0


class Follow(Request[None]):
    permission = Permission.READ
    call = "thing.follow"
    name: str = "thing"


PATH = "/api/v1/namespaces/default/thing"
ROUTES = (
    Route(
        method="GET",
        path=N + "/thing",
        request=Thing,
        answer=dict[str, int],
        summary="Show it",
        watch=lambda inputs: Follow(namespace=inputs.namespace),
    ),
    Route(method="GET", path=N + "/thing/stream", request=Follow, answer=None, summary="Follow it", stream=True),
)


class Subject:
    """A number that streams show."""

    def __init__(self) -> None:
        self.number = 0
        self.feeds: list[Feed] = []
        self.begun = asyncio.Event()

    async def show(self, _: Thing, __: Call) -> dict[str, int]:
        return {"number": self.number}

    async def follow(self, request: Follow, _: Call, feed: Feed) -> Callable[[], None]:
        if request.name != "thing":
            raise ApiError(Code.JOB_NOT_FOUND, "no such thing")
        self.feeds.append(feed)
        feed.replace("thing", {"number": self.number})
        self.begun.set()
        return lambda: self.feeds.remove(feed)

    def set(self, number: int) -> None:
        self.number = number
        for feed in self.feeds:
            feed.replace("thing", {"number": number})


class Reader:
    """The client of one stream."""

    def __init__(
        self,
        client: Client,
        path: str = PATH + "/stream",
        token: str = "viewer",
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.left = asyncio.Event()
        raw, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": raw,
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost"), (b"authorization", b"Bearer " + token.encode()), *headers],
            "client": ("127.0.0.1", 9),
        }
        self.task = asyncio.ensure_future(client.app(scope, self._receive, self.messages.put))

    async def _receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def next(self) -> bytes:
        body = (await self.messages.get()).get("body", b"")
        assert isinstance(body, bytes)
        return body

    async def begin(self) -> dict[str, str]:
        head = await self.messages.get()
        assert head["status"] == 200
        assert (await self.next()).startswith(b"retry: ")
        return {name.decode(): value.decode() for name, value in head["headers"]}


def frame(number: int) -> bytes:
    return b'event: thing\ndata: {"number":%d}\n\n' % number


def with_subject(test: Callable[[Client, Subject], Any], streams: Callable[[], Streams] = Streams) -> None:
    async def prepared() -> None:
        subject = Subject()
        async with serving(ROUTES, streams=streams()) as (client, node):
            node.api.add({Thing: subject.show})
            node.api.add_streams({Follow: subject.follow})
            await test(client, subject)

    run(prepared())


def test_a_stream_begins_with_the_state_and_sends_each_change() -> None:
    async def test(client: Client, subject: Subject) -> None:
        reader = Reader(client)
        headers = await reader.begin()
        assert headers["content-type"].startswith("text/event-stream")
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")
        assert await reader.next() == frame(0)
        subject.set(1)
        assert await reader.next() == frame(1)
        reader.left.set()
        await reader.task
        assert subject.feeds == []
        assert len(client.streams) == 0

    with_subject(test)


def test_a_stream_is_refused_before_it_begins() -> None:
    async def test(client: Client, _: Subject) -> None:
        refused = await client.get(PATH + "/stream?name=other")
        assert (refused.status, refused.problem) == (404, "job-not-found")
        assert (await client.get(PATH + "/stream", token=None)).status == 401
        client.access.add("elsewhere", client.access.callers["viewer"].grants[0].role, "team")
        assert (await client.get(PATH + "/stream", token="elsewhere")).status == 403
        assert len(client.streams) == 0

    with_subject(test)


def test_a_comment_is_sent_while_nothing_happens() -> None:
    async def test(client: Client, subject: Subject) -> None:
        reader = Reader(client)
        await reader.begin()
        assert await reader.next() == frame(0)
        assert await reader.next() == b":\n\n"
        subject.set(1)
        while (body := await reader.next()) == b":\n\n":
            pass
        assert body == frame(1)
        reader.left.set()
        await reader.task

    with_subject(test, lambda: Streams(beat=0.01))


def test_streams_have_a_limit_of_their_own() -> None:
    async def test(client: Client, subject: Subject) -> None:
        readers = [Reader(client) for _ in range(2)]
        for reader in readers:
            await reader.begin()
        refused = await client.get(PATH + "/stream")
        assert (refused.status, refused.problem, refused.headers["retry-after"]) == (503, "too-many-streams", "5")
        assert (await client.get(PATH)).status == 200
        readers[0].left.set()
        await readers[0].task
        await Reader(client).begin()
        assert len(subject.feeds) == 2

    with_subject(test, lambda: Streams(Shares(2, "streams")))


def test_a_caller_leaves_places_to_others() -> None:
    async def test(client: Client, _: Subject) -> None:
        readers = [Reader(client) for _ in range(9)]
        for reader in readers:
            await reader.begin()
        refused = await client.get(PATH + "/stream", token="viewer")
        assert refused.json["detail"] == (
            "'viewer' has 9 of the 16 streams of the node, and leaves the others to other callers: end some, or try again later"
        )
        assert (refused.status, refused.problem, refused.headers["retry-after"]) == (503, "too-many-streams", "5")
        await Reader(client, token="admin").begin()
        readers[0].left.set()
        await readers[0].task
        await Reader(client).begin()

    with_subject(test, lambda: Streams(Shares(16, "streams")))


def test_all_streams_end_when_the_node_stops() -> None:
    async def test(client: Client, subject: Subject) -> None:
        reader = Reader(client)
        await reader.begin()
        assert await reader.next() == frame(0)
        subject.set(5)
        client.streams.end()
        assert await reader.next() == frame(5), "an event that happened before is still sent"
        assert await reader.messages.get() == {"type": "http.response.body", "body": b""}
        await reader.task
        assert (await client.get(PATH + "/stream")).status == 503

    with_subject(test)


def test_a_stream_ends_with_its_token() -> None:
    async def test(client: Client, _: Subject) -> None:
        reader = Reader(client)
        await reader.begin()
        other = Reader(client, token="admin")
        await other.begin()
        client.access.revoke("viewer")
        await reader.task
        assert not other.task.done()
        assert not client.access.watchers["viewer"]

    with_subject(test)


def test_a_slow_reader_gets_the_newest_state_and_loses_a_stream_that_is_too_long() -> None:
    async def test() -> None:
        streams = Streams()
        feed = streams.open(LOCAL, "default")
        for number in range(1000):
            feed.replace("a", number)
            feed.replace("b", -number)
        assert [unsent(feed) for _ in range(3)] == [b"event: a\ndata: 999\n\n", b"event: b\ndata: -999\n\n", b""]
        feed.append("line", "x")
        feed.append("line", "y")
        assert unsent(feed) == b'event: line\ndata: "x"\n\nevent: line\ndata: "y"\n\n'
        for _ in range(2 * UNSENT_LIMIT // 1000):
            feed.append("line", "x" * 1000)
        assert feed.is_ended
        assert unsent(feed) == b"", "no event is sent without the ones before it"
        feed.append("line", "z")
        feed.replace("a", 1)
        assert unsent(feed) == b""

    run(test())


def test_the_events_of_a_slow_reader_are_bounded() -> None:
    async def test() -> None:
        feed, number = Streams().open(LOCAL, "default"), 0
        while not feed.is_ended and number < 2 * UNSENT_LIMIT // 1000:
            feed.append("line", "x" * 1000)
            number += 1
        assert 0.9 * UNSENT_LIMIT < number * 1000 <= UNSENT_LIMIT

    run(test())


def test_the_events_of_all_slow_readers_are_bounded_together() -> None:
    async def test() -> None:
        streams = Streams(unsent_total=10_000)
        first, second, third = (streams.open(LOCAL, "default") for _ in range(3))
        first.append("line", "x" * 6000)
        assert not first.has_room
        assert second.has_room, "one that has read everything may get more"
        second.append("line", "x" * 2000)
        assert not second.has_room
        third.append("line", "x" * 3000)
        assert (first.is_ended, second.is_ended, third.is_ended) == (False, False, True)
        assert third.unsent == 0
        first.close()
        second.append("line", "x" * 7000)
        assert not second.is_ended
        unsent(second)
        fourth = streams.open(LOCAL, "default")
        fourth.append("line", "x" * 9000)
        assert not fourth.is_ended, "events that are sent need no more space"

    run(test())


def test_a_client_gets_many_events_in_several_parts() -> None:
    """The server copies what it sends, so it gets the next part once the client has read the last one."""

    async def test() -> None:
        feed = Streams().open(LOCAL, "default")
        feed.replace("state", 1)
        for number in range(200):
            feed.append("line", f"{number:01000}")
        parts = []
        while part := unsent(feed):
            parts.append(part)
        assert max(map(len, parts)) < LARGEST_SEND + 2000
        frames = b"".join(parts).split(b"\n\n")[:-1]
        assert frames == [b'event: line\ndata: "%01000d"' % number for number in range(200)] + [
            b"event: state\ndata: 1"
        ]

    run(test())


def test_a_shared_value_is_encoded_once() -> None:
    async def test() -> None:
        streams, value = Streams(), Shared({"a": 1})
        feeds = [streams.open(LOCAL, "default") for _ in range(3)]
        for feed in feeds:
            feed.replace("numbers", value)
            feed.replace("more", value)
        sent = [(unsent(feed), unsent(feed)) for feed in feeds]
        assert sent[0] == (b'event: numbers\ndata: {"a":1}\n\n', b'event: more\ndata: {"a":1}\n\n')
        assert len({id(body) for bodies in sent for body in bodies}) == 2, "streams that are not read keep no copies"

    run(test())


def unsent(feed: EventFeed) -> bytes:
    body = feed._take()  # noqa: SLF001 - the frame that a slow reader would get next
    feed._sent()  # noqa: SLF001 - it was sent
    return body


def test_a_long_poll_waits_for_another_answer() -> None:
    async def test(client: Client, subject: Subject) -> None:
        first = await client.get(PATH)
        tag = ("if-none-match", first.headers["etag"])
        assert (await client.get(PATH, headers=[tag])).status == 304
        assert (await client.get(PATH + "?wait=0.001", headers=[tag])).status == 304
        assert (await client.get(PATH + "?wait=60")).json == {"number": 0}, "without a version it answers at once"
        subject.begun.clear()
        poll = asyncio.ensure_future(client.get(PATH + "?wait=60", headers=[tag], connected=True))
        await subject.begun.wait()
        subject.set(0)  # an event that changes nothing
        await asyncio.sleep(0)
        subject.set(2)
        answer = await poll
        assert (answer.status, answer.json) == (200, {"number": 2})
        assert answer.headers["etag"] != tag[1]
        assert subject.feeds == []

    with_subject(test)


def test_a_long_poll_ends_when_the_node_stops() -> None:
    async def test(client: Client, subject: Subject) -> None:
        tag = ("if-none-match", (await client.get(PATH)).headers["etag"])
        poll = asyncio.ensure_future(client.get(PATH + "?wait=60", headers=[tag], connected=True))
        await subject.begun.wait()
        client.streams.end()
        assert (await poll).status == 304

    with_subject(test)


def test_the_feed_of_another_node_is_no_place() -> None:
    async def test() -> None:
        streams = Streams(Shares(1, "streams"))
        feed = streams.open(LOCAL, "default")
        with pytest.raises(HttpError):
            streams.open(LOCAL, "default")
        feed.close()
        feed.close()
        streams.open(LOCAL, "default")

    run(test())


def test_events_are_json_on_one_line() -> None:
    async def test() -> None:
        feed = Streams().open(LOCAL, "default")
        feed.append("line", {"text": "a\r\nb\n\ndata: c"})
        sent = unsent(feed)
        assert sent.count(b"\n") == 3
        assert msgspec.json.decode(sent.split(b"data: ", 1)[1]) == {"text": "a\r\nb\n\ndata: c"}

    run(test())
