"""Routes about the logs of jobs, and their stream."""

from __future__ import annotations

import asyncio
import json
from copy import copy
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from tests.unit.api.a_node import UNKNOWN_HANDLE, run

from mainspring.access.caller import LOCAL, Caller, Grant, Role
from mainspring.api.handlers.logs import LogCalls
from mainspring.api.jobs import FollowLogs
from mainspring.job_logs.model import Line
from mainspring.job_logs.service import MOST_TAPPED, Delivery, LogReaders, LogService, ReadLogs

from .a_client import serving
from .test_streams import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import pytest
    from tests.unit.api.a_node import Node

    from .a_client import Client

JOBS = "/api/v1/namespaces/default/jobs"


def _soon(_: float, function: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(function)


class Lines:
    """A feed of lines."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.has_room = True
        self.ended = asyncio.Event()

    def replace(self, event: str, value: Any) -> None:
        raise AssertionError

    def append(self, event: str, value: Any, place: str = "") -> None:
        assert place or event == "end"
        if event == "lines":
            self.messages += [line.message for line in value]
            assert all(line.missed is UNSET for line in value)

    def end(self) -> None:
        self.ended.set()


async def turns() -> None:
    """Let a stream look for new lines, more than once."""
    for _ in range(20):
        await asyncio.sleep(0)


class Logged:
    """A running job that logs."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._logs = LogService(
            node.commits,
            node.reads,
            node.clock,
            _soon,
            LogReaders(node.clock.monotonic),
            lambda: 1,
            retention=100.0,
            is_held=lambda _: True,
        )
        calls = LogCalls(self._logs, node.service)
        node.api.add(calls.handlers)
        node.api.add_streams(calls.followers)
        self._number = 0

    async def begin(self) -> str:
        self.handle = await self.node.submit()
        side = self.node.worker()
        await self.node.committed()
        self.held = side.given[0]
        job = self.held.job
        self._delivery = Delivery(None, job.id, "default", job.function, 1, 5)
        self._logs.begin((self.held.handle, self.held.token), self._delivery)
        return f"{JOBS}/{self.handle}/logs"

    async def log(self, *messages: str, level: int = 1, delivery: Delivery | None = None) -> None:
        lines = [Line(1_000_000, level, "a.b", message, {"n": 1}) for message in messages]
        self._logs.append(delivery or self._delivery, self._number + 1, lines)
        self._number += len(lines)
        self.node.clock.advance(1)
        await asyncio.sleep(0)  # it is put in the next turn
        await self.node.committed()
        assert not self._logs.is_writing(self.held.job.id)

    async def end(self) -> None:
        self.node.service.settling.succeeded(self.held, b"")
        await self.node.committed()
        self.node.clock.advance(10)


def with_log(test: Callable[[Client, Logged, str], Coroutine[Any, Any, None]]) -> None:
    async def prepared() -> None:
        async with serving() as (client, node):
            logged = Logged(node)
            await test(client, logged, await logged.begin())

    run(prepared())


def test_lines_are_listed_page_by_page() -> None:
    async def test(client: Client, logged: Logged, path: str) -> None:
        await logged.log("one", "two", "three")
        page = await client.get(f"{path}?whole=true&limit=2")
        assert [line["message"] for line in page.json["items"]] == ["one", "two"]
        page = await client.get(f"{path}?whole=true&limit=2&cursor={page.json['next']}")
        assert [line["message"] for line in page.json["items"]] == ["three"]
        tail = await client.get(f"{path}?tail=1")
        assert [line["number"] for line in tail.json["items"]] == [3]
        assert tail.json["next"] is not None, "it runs: more may follow"
        await logged.end()
        assert (await client.get(f"{path}?tail=1")).json["next"] is None

    with_log(test)


def test_a_log_is_downloaded_as_text() -> None:
    async def test(client: Client, logged: Logged, path: str) -> None:
        await logged.log("one\n<b>two</b>", "\x1b[2Jthree", level=3)
        answer = await client.get(f"{path}/text")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        time = "2023-11-14T22:13:20.000000Z"  # the node's: the lines have times of 1970
        assert answer.body.decode() == (
            f'{time} ERROR    a.b: one {{"n":1}}\n    <b>two</b>\n{time} ERROR    a.b: three {{"n":1}}\n'
        )

    with_log(test)


def test_lines_need_the_permission_for_payloads_and_a_job() -> None:
    async def test(client: Client, logged: Logged, path: str) -> None:
        del logged
        for end in ("", "/text", "/stream"):
            assert (await client.get(path + end, token="developer")).status == 403
            assert (await client.get(f"{JOBS}/{UNKNOWN_HANDLE}/logs{end}")).problem == "job-not-found"

    with_log(test)


def test_the_lines_of_a_deleted_job_are_for_callers_with_its_function() -> None:
    """Lines may be kept for longer than their job, so each chunk of them has the function."""

    async def test(client: Client, logged: Logged, path: str) -> None:
        del path
        job = logged.node.service.handles.parse(UNKNOWN_HANDLE.encode())
        assert job is not None
        await logged.log("one", delivery=Delivery(None, job, "default", b"f", 1, 5))
        path = f"{JOBS}/{UNKNOWN_HANDLE}/logs"
        grant = Grant(Role.VIEWER, functions=("pay*",), payloads=True)
        client.access.callers["pay"] = Caller("pay", (grant,), token="pay")
        for query, status in (("?tail=1", 403), ("?whole=true", 403), ("/text", 403), ("/stream", 403)):
            assert (await client.get(path + query, token="pay")).status == status
        assert [line["message"] for line in (await client.get(path)).json["items"]] == ["one"]

    with_log(test)


async def events(reader: Reader) -> list[tuple[str, Any]]:
    found = []
    for block in (await reader.next()).decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found.append((fields["event"], json.loads(fields["data"]), fields.get("id")))
    return [(name, [line["message"] for line in data] if name == "lines" else data) for name, data, _ in found]


def test_a_stream_begins_with_the_tail_and_ends_with_the_job() -> None:
    async def test(client: Client, logged: Logged, path: str) -> None:
        await logged.log("one", "two")
        reader = Reader(client, f"{path}/stream?tail=1", token="admin")
        await reader.begin()
        assert await events(reader) == [("lines", ["two"])]
        await logged.log("three")
        assert await events(reader) == [("lines", ["three"])]
        await logged.end()
        assert await events(reader) == [("end", {"ended": True})]
        await reader.task

    with_log(test)


def test_a_client_that_connects_again_gets_the_lines_after_its_last_one() -> None:
    async def test(client: Client, logged: Logged, path: str) -> None:
        await logged.log("one")
        first = Reader(client, f"{path}/stream", token="admin")
        await first.begin()
        body = (await first.next()).decode()
        first.left.set()
        await first.task
        place = body.split("id: ")[1].splitlines()[0]
        await logged.log("two")
        second = Reader(client, f"{path}/stream", token="admin", headers=[(b"last-event-id", place.encode())])
        await second.begin()
        assert await events(second) == [("lines", ["two"])]
        second.left.set()
        await second.task

    with_log(test)


def test_a_slow_client_gets_no_lines_before_it_has_read_the_others() -> None:
    async def test(client: Client, logged: Logged, path: str) -> None:
        feed = client.streams.open(LOCAL, "default")
        end = await logged.node.api.follow(FollowLogs(logged.handle), feed)
        for _ in range(100):  # more than a stream may leave unsent
            await logged.log("x" * 16_000)
            await asyncio.sleep(0)
        assert not feed.is_ended
        assert not feed.has_room
        end()
        feed.close()

    with_log(test)


def test_new_lines_of_a_running_job_are_not_read_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(_client: Client, logged: Logged, path: str) -> None:
        del path
        feeds = [Lines() for _ in range(2)]
        await logged.log("one")
        ends = [await logged.node.api.follow(FollowLogs(logged.handle), feed) for feed in feeds]
        await logged.log("two")
        reads: list[object] = []
        read = logged.node.store.read

        def noted(query: Any, *rest: Any) -> None:
            reads.append(type(query))
            read(query, *rest)

        monkeypatch.setattr(logged.node.store, "read", noted)
        for number in range(20):
            await logged.log(f"line {number}")
        assert ReadLogs not in reads
        await logged.end()
        for feed in feeds:
            await feed.ended.wait()
        expected = ["one", "two", *(f"line {number}" for number in range(20))]
        assert [feed.messages for feed in feeds] == [expected, expected]
        for end in ends:
            end()

    with_log(test)


def test_a_slow_client_gets_each_line_once() -> None:
    """Its stream keeps few lines for it: the others are read from the store, in several steps."""

    async def test(_client: Client, logged: Logged, path: str) -> None:
        del path
        feed, number, text = Lines(), 3 * MOST_TAPPED, "x" * 1000
        end = await logged.node.api.follow(FollowLogs(logged.handle), feed)
        feed.has_room = False
        for at in range(number):
            await logged.log(f"{at} {text}")
        assert len(feed.messages) <= 1
        feed.has_room = True
        for _ in range(100):
            logged.node.clock.advance(1)
            logged.node.service.tick()
            await asyncio.sleep(0)
        assert feed.messages == [f"{at} {text}" for at in range(number)]
        await logged.log("more")
        assert feed.messages[number:] == ["more"]
        end()

    with_log(test)


def test_lines_of_another_node_are_read_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job was there meanwhile, so that node may have written some."""

    async def test(_client: Client, logged: Logged, path: str) -> None:
        del path
        feed = Lines()
        end = await logged.node.api.follow(FollowLogs(logged.handle), feed)
        await logged.log("one")
        looks: list[Callable[[], None]] = []
        with monkeypatch.context() as patch:
            patch.setattr(logged.node.service.table, "find", lambda _: None)
            await turns()
            patch.setattr(LogService, "wait", lambda *given: looks.append(given[-1]))
            await turns()
            patch.setattr(LogReaders, "written", lambda *_: None)
            await logged.log("elsewhere")
        (look_again,) = looks
        look_again()
        await turns()
        await logged.log("here")
        await turns()
        assert feed.messages == ["one", "elsewhere", "here"]
        end()

    with_log(test)


def test_lines_of_another_node_between_two_claims_of_this_one_are_read_from_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job fails here, runs briefly at another node, and is claimed here again before the reader looks."""

    async def test(_client: Client, logged: Logged, path: str) -> None:
        del path
        feed = Lines()
        end = await logged.node.api.follow(FollowLogs(logged.handle), feed)
        await logged.log("one")
        looks: list[Callable[[], None]] = []
        with monkeypatch.context() as patch:
            patch.setattr(LogService, "wait", lambda *given: looks.append(given[-1]))
            await turns()
            patch.setattr(LogReaders, "written", lambda *_: None)
            await logged.log("elsewhere")
        second = copy(logged.held)
        monkeypatch.setattr(logged.node.service.table, "find", lambda _: second)
        (look_again,) = looks
        look_again()
        await turns()
        await logged.log("here")
        await turns()
        assert feed.messages == ["one", "elsewhere", "here"]
        end()

    with_log(test)
