"""Large requests of one caller do not delay those of others: at the Gearman port, over HTTP, and in the API behind both."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.access.caller import LOCAL
from mainspring.api.handlers import jobs
from mainspring.callbacks import ITEMS_AT_ONCE, CallInProgress, converted
from mainspring.faces.web.listener import HttpListener
from mainspring.loop_shares import LARGE_READ, LONGEST_REST, PIECE, SHARE_IN_SCOPE, LoopShares
from mainspring.wire.gearman_protocol import EXTENSION, Type, request
from tests.unit.faces.gearman.a_face import Node
from tests.unit.faces.web.ports import accepting

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from tests.unit.faces.gearman.a_face import Peer

LARGE = request(Type.SUBMIT, b"f", b"u" * 65, b"", bytes(4 * LARGE_READ))


def extended(node: Node, namespace: str) -> Peer:
    peer = node.connect(namespace=namespace)
    peer.request(Type.OPTION_REQ, EXTENSION)
    peer.received()
    return peer


def slow(node: Node, peer: Peer, seconds: float) -> list[int]:
    """Let each read of a peer take some seconds; return the sizes of the reads, which grows."""
    parse, sizes = peer.wire.peer.wire.receive, list[int]()

    def receive(data: bytes) -> Any:
        sizes.append(len(data))
        node.clock.advance(seconds)
        return parse(data)

    wire: Any = peer.wire.protocol
    wire.peer.wire = Slow(peer.wire.peer.wire, receive)
    return sizes


class Slow:
    """The parser of a connection, with a function of the test in front of it."""

    def __init__(self, parser: Any, receive: Callable[[bytes], Any]) -> None:
        self._parser = parser
        self.receive = receive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


def turn(node: Node) -> None:
    """Run one turn of the loop, which takes no time."""
    node.life.run_due()
    node.commit()


def test_a_connection_gives_one_large_read_to_each_turn_of_the_loop() -> None:
    node = Node()
    peer = extended(node, "loud")
    for start in range(0, 3 * LARGE_READ, LARGE_READ):
        assert not peer.wire.paused
        peer.send(LARGE[start : start + LARGE_READ])
        assert peer.wire.paused, "the other connections are served first"
        turn(node)
    peer.send(LARGE[3 * LARGE_READ :])
    turn(node)
    assert peer.received()[0][0] == "ERROR"
    assert not peer.wire.paused


def test_large_packets_of_a_namespace_leave_most_of_the_time_to_others() -> None:
    node = Node()
    quiet, others = extended(node, "quiet"), [extended(node, "loud") for _ in range(3)]
    reads = [slow(node, peer, 2 * PIECE) for peer in others]
    sent = memoryview(LARGE * 8)

    def submit() -> None:
        quiet.request(Type.SUBMIT, b"f", b"", b"", b"")
        assert not quiet.wire.paused
        assert quiet.answer()[0] == "SUBMITTED"

    submit()
    began = node.clock.monotonic()
    for _ in range(100):
        for peer, sizes in zip(others, reads, strict=True):
            if not peer.wire.paused:
                start = len(sizes) * LARGE_READ
                peer.send(bytes(sent[start : start + LARGE_READ]))
                turn(node)
                break
        else:
            node.clock.advance(PIECE)
            turn(node)
        submit()
    worked = sum(map(len, reads)) * 2 * PIECE
    passed = node.clock.monotonic() - began
    assert 0.2 < worked / passed < 0.4, "the rest is twice the work, whatever the number of connections"
    assert max(map(len, reads)) - min(map(len, reads)) <= 1, "and the connections take turns"


def test_many_small_packets_are_handled_in_short_slices_beside_others() -> None:
    node = Node()
    quiet, loud = extended(node, "quiet"), extended(node, "loud")
    one = request(Type.SUBMIT, b"f", b"", b"", b"")

    handled: list[int] = []
    submits: Any = loud.wire.peer.submits
    check = type(submits).check

    def slow_check(self: Any, *args: Any) -> Any:
        handled.append(1)
        node.clock.advance(0.001)
        return check(self, *args)

    node.clock.advance(1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(submits), "check", slow_check)
        loud.send(10 * one)
        assert len(handled) == 10, "alone, a read is one piece"
        turn(node)
        quiet.request(Type.ECHO_REQ, b"")
        handled.clear()
        loud.send(10 * one)
        assert len(handled) == 3
        for _ in range(10):
            turn(node)
        assert len(handled) == 10


def test_a_long_list_is_converted_in_pieces_with_rests() -> None:
    now, timers = 100.0, list[tuple[float, Any]]()
    shares = LoopShares(lambda at, then: timers.append((at, then)), lambda: now)
    loud, quiet = shares.of("a", "loud"), shares.of("a", "quiet")
    done: list[int] = []

    def convert(item: int) -> int:
        nonlocal now
        now += 2 * PIECE / ITEMS_AT_ONCE
        done.append(item)
        return -item

    answers: list[list[int]] = []
    number = 4 * ITEMS_AT_ONCE
    shares.enter(quiet, now)
    CallInProgress(converted(range(number), convert), answers.append, answers.append, share=loud)  # type: ignore[arg-type]
    sizes = [len(done)]
    while timers:
        at, then = timers.pop(0)
        assert not answers
        if at > now:
            assert loud.rests(now)
            now = at
        before = len(done)
        then()
        if len(done) > before:
            sizes.append(len(done) - before)
    assert sizes == [ITEMS_AT_ONCE] * 4
    assert answers == [[-item for item in range(number)]]


def test_a_long_list_of_a_caller_without_others_is_converted_in_pieces_without_rests() -> None:
    now, timers = 100.0, list[tuple[float, Any]]()
    shares = LoopShares(lambda at, then: timers.append((at, then)), lambda: now)
    done: list[int] = []

    def convert(item: int) -> int:
        nonlocal now
        now += PIECE / ITEMS_AT_ONCE
        done.append(item)
        return item

    answers: list[list[int]] = []
    items = range(4 * ITEMS_AT_ONCE)
    CallInProgress(converted(items, convert), answers.append, answers.append, share=shares.of("a", "lone"))  # type: ignore[arg-type]
    sizes = [len(done)]
    while timers:
        at, then = timers.pop(0)
        assert at <= now
        before = len(done)
        then()
        sizes.append(len(done) - before)
    assert sizes == [ITEMS_AT_ONCE] * 4 + [0]
    assert answers == [[*items]]


def test_beside_others_a_store_reads_a_long_list_in_short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ROWS_AT_ONCE", 3)
    node = Node()
    quiet, loud = extended(node, "quiet"), extended(node, "loud")
    for _ in range(8):
        loud.request(Type.SUBMIT, b"f", b"", b"", b"")
        node.commit()
    loud.received()
    limits: list[int] = []
    original = node.service.reads.read

    async def read(query: Any) -> Any:
        limits.append(query.limit)
        return await original(query)

    monkeypatch.setattr(node.service.reads, "read", read)

    def listed(limit: int, **more: Any) -> dict[str, Any]:
        limits.clear()
        text = json.dumps({"limit": limit, **more}).encode()
        loud.request(Type.CALL, b"1", b"jobs.list", text)
        for _ in range(20):
            node.commit()
            node.wait(LONGEST_REST)
        ((kind, (_, answer)),) = loud.received()
        assert kind == "ANSWER"
        found: dict[str, Any] = json.loads(answer)
        return found

    node.clock.advance(1.0)
    alone = listed(7)
    assert limits == [7]
    quiet.request(Type.ECHO_REQ, b"")
    beside = listed(7)
    assert limits == [3, 3, 1]
    assert (beside["items"], beside["next"]) == (alone["items"], alone["next"])
    quiet.request(Type.ECHO_REQ, b"")
    last = listed(7, cursor=beside["next"])
    assert limits == [3]
    assert (len(last["items"]), last["next"]) == (1, None)


def test_a_body_over_http_is_read_in_pieces_with_rests() -> None:
    """No more of a body is read while its caller rests, and the request then continues."""
    now, timers = 100.0, list[Any]()
    shares = LoopShares(lambda _, then: timers.append(then), lambda: now)
    loud, quiet = shares.of("a", "loud"), shares.of("a", "quiet")
    size = 40 * LARGE_READ

    async def test() -> None:
        nonlocal now
        rests = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal now
            scope[SHARE_IN_SCOPE](loud)
            body = 0
            while True:
                message = await receive()
                body += len(message["body"])
                shares.enter(quiet, now)
                shares.enter(loud, now)
                now += 4 * PIECE  # the work of this step
                if not message["more_body"]:
                    break
                if timers:
                    rests.set()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % body)]})
            await send({"type": "http.response.body", "body": bytes(body)})

        http = HttpListener(app)
        await http.start()
        async with accepting(http.protocol, 8, 2) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size)
            writer.write(bytes(size))
            answer = asyncio.ensure_future(reader.read())
            await asyncio.wait_for(rests.wait(), 20)
            assert not answer.done()
            while not answer.done():
                now += LONGEST_REST
                for then in [timers.pop() for _ in range(len(timers))]:
                    then()
                await asyncio.sleep(0)
            assert len(await answer) > size
            writer.close()
        await http.stop()

    asyncio.run(test())


def test_each_call_over_all_doors_has_the_share_of_its_caller() -> None:
    node = Node()
    peer = extended(node, "loud")
    share = peer.wire.peer.reading.share
    assert share is node.service.loop_shares.of(peer.wire.peer.caller.holder, "loud")
    assert share is not node.connect().wire.peer.reading.share
    assert node.connect().wire.peer.reading.share is node.service.loop_shares.of(LOCAL.holder, "default")
