from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import pytest

from mainspring.faces.web import Distribution, Measure
from mainspring.faces.web.listener import FRAMING_LIMIT, HEAD_LIMIT, HEALTH, SLOWEST_BODY, HttpListener, http_app

from .ports import accepting, connecting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any

    from starlette.types import ASGIApp, Receive, Scope, Send


class View:
    good = True

    def healthy(self) -> bool:
        return self.good

    def ready(self) -> bool:
        return self.good


def figures() -> list[Measure | Distribution]:
    jobs = [({"function": 'a"\n', "state": "pending"}, 3), ({"function": "b", "state": "running"}, 1)]
    return [
        Measure("mainspring_jobs", "gauge", "Jobs by state.", jobs),
        Measure("mainspring_jobs_submitted_total", "counter", "Accepted jobs.", [({}, 7)]),
        Measure("mainspring_nothing", "gauge", "No samples.", []),
        Distribution("mainspring_wait_seconds", "Waits.", (0.5, 10.0), [({"function": "f"}, [2, 0, 1], 61.5)]),
        Distribution("mainspring_none_seconds", "No samples.", (0.5, 10.0), []),
    ]


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, request_timeout: float = 30.0) -> AsyncIterator[tuple[str, int]]:
    """Serve an application: at most 8 connections at the same time, of which 2 may be working."""
    http = HttpListener(app, reserved=HEALTH, request_timeout=request_timeout)
    await http.start()
    async with accepting(http.protocol, 8, 2) as address:
        yield address
    await http.stop()


async def get(address: Any, path: str) -> tuple[int, str, str]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), head.lower(), body


def test_samples_of_a_measure_have_their_own_labels() -> None:
    """Anybody may name a function in another namespace: that must neither break the page nor hide the namespace."""
    a, b = {"function": "f"}, {"function": "f", "namespace": "team"}
    for samples in ((a, b), (b, a)):

        def mixed(samples: tuple[dict[str, str], ...] = samples) -> list[Measure | Distribution]:
            return [
                Measure("mainspring_jobs", "gauge", "Jobs.", [(labels, 1.0) for labels in samples]),
                Measure("mainspring_ended_total", "counter", "Ended.", [(labels, 2.0) for labels in samples]),
                Distribution(
                    "mainspring_wait_seconds", "Waits.", (0.5,), [(labels, [1, 2], 3.0) for labels in samples]
                ),
            ]

        async def read(figures: Any = mixed) -> tuple[int, str, str]:
            async with serving(http_app(View(), figures, version="9.9")) as address:
                return await get(address, "/metrics")

        status, _, body = asyncio.run(read())
        assert status == 200
        for labels in ('function="f"', 'function="f",namespace="team"'):
            for line in (
                f"mainspring_jobs{{{labels}}} 1.0",
                f"mainspring_ended_total{{{labels}}} 2.0",
                f"mainspring_wait_seconds_count{{{labels}}} 3.0",
                f"mainspring_wait_seconds_sum{{{labels}}} 3.0",
            ):
                assert body.splitlines().count(line) == 1, body


def visit(view: View, *paths: str) -> list[tuple[int, str, str]]:
    async def run() -> list[tuple[int, str, str]]:
        async with serving(http_app(view, figures, version="9.9")) as address:
            return [await get(address, path) for path in paths]

    return asyncio.run(run())


def test_metrics_are_prometheus_text() -> None:
    ((status, head, body),) = visit(View(), "/metrics")
    assert status == 200
    assert "content-type: text/plain; version=0.0.4" in head
    lines = body.splitlines()
    assert 'mainspring_build_info{version="9.9"} 1.0' in lines
    assert "# TYPE mainspring_jobs gauge" in lines
    assert 'mainspring_jobs{function="a\\"\\n",state="pending"} 3.0' in lines
    assert "mainspring_jobs_submitted_total 7.0" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_distributions_are_histograms() -> None:
    ((_, _, body),) = visit(View(), "/metrics")
    assert [line for line in body.splitlines() if "mainspring_wait_seconds" in line] == [
        "# HELP mainspring_wait_seconds Waits.",
        "# TYPE mainspring_wait_seconds histogram",
        'mainspring_wait_seconds_bucket{function="f",le="0.5"} 2.0',
        'mainspring_wait_seconds_bucket{function="f",le="10.0"} 2.0',
        'mainspring_wait_seconds_bucket{function="f",le="+Inf"} 3.0',
        'mainspring_wait_seconds_count{function="f"} 3.0',
        'mainspring_wait_seconds_sum{function="f"} 61.5',
    ]


def test_health_and_readiness() -> None:
    view = View()
    assert [answer[0] for answer in visit(view, "/healthz", "/readyz", "/other")] == [200, 200, 404]
    view.good = False
    assert [(status, body) for status, _, body in visit(view, "/healthz", "/readyz")] == [
        (503, "unhealthy\n"),
        (503, "not ready\n"),
    ]


def test_two_nodes_in_one_process_do_not_share_figures() -> None:
    assert all(visit(View(), "/metrics")[0][0] == 200 for _ in range(2))


async def until_closed(address: Any, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    heard = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return heard


def listening(timeout: float, ask: Callable[[Any], Coroutine[Any, Any, None]], app: ASGIApp | None = None) -> None:
    async def run() -> None:
        async with serving(app or http_app(View(), figures, version="9.9"), timeout) as address:
            await ask(address)

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET"]
)
def test_the_connection_of_an_incomplete_request_is_closed_after_the_timeout(sent: bytes) -> None:
    async def ask(address: Any) -> None:
        with contextlib.suppress(ConnectionResetError):
            await until_closed(address, sent)

    listening(0.05, ask)


def test_requests_within_the_timeout_are_all_answered() -> None:
    async def ask(address: Any) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(3):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.readuntil(b"ok\n")
        writer.close()

    listening(30, ask)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 no HTTP\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    ],
)
def test_malformed_requests_are_not_logged(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def ask(address: Any) -> None:
        assert b" 400 " in await until_closed(address, sent)

    with caplog.at_level(logging.INFO):
        listening(30, ask)
    assert [record.message for record in caplog.records if record.name.startswith("uvicorn")] == []


async def large_answers(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer /long with much data, /endless never, and health checks at once."""
    del receive
    if scope["path"] == "/endless":
        await asyncio.Event().wait()
    body = bytes(LARGE_SIZE if scope["path"] == "/long" else 1)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


LARGE_SIZE = 1 << 22
GET_REQUEST = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


def test_the_longest_idle_connection_is_closed_for_a_new_one() -> None:
    async def ask(address: Any) -> None:
        async with connecting(address) as connect:
            held = [await connect(b"GET /healthz HT")]
            for _ in range(30):
                held.append(await connect())
                assert (await get(address, "/healthz"))[0] == 200
            for reader in held[:20]:  # including the first, which has begun a request
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 20) == b""

    listening(300, ask)


def test_health_checks_are_answered_while_all_working_places_are_in_use() -> None:
    async def ask(address: Any) -> None:
        async with connecting(address) as connect:
            await connect(GET_REQUEST % b"/endless")
            long = await connect(GET_REQUEST % b"/long")
            await long.readuntil(b"\r\n\r\n")
            for _ in range(8):
                await connect()
            assert (await get(address, "/healthz"))[0] == 200
            assert (await get(address, "/long"))[0] == 503
            await long.readexactly(LARGE_SIZE)
            assert (await get(address, "/other"))[0] == 200, "a sent answer occupies no working place"

    listening(30, ask, large_answers)


def test_an_answer_is_sent_as_long_as_its_client_reads() -> None:
    """The answer to a client that has stopped is aborted."""

    async def ask(address: Any) -> None:
        async with connecting(address) as connect:
            reads, stopped = [await connect(GET_REQUEST % b"/long") for _ in range(2)]
            await reads.readuntil(b"\r\n\r\n")
            begun = asyncio.get_running_loop().time()
            for _ in range(64):
                await reads.readexactly(LARGE_SIZE // 64)
                await asyncio.sleep(0.02)  # a slow client
            assert asyncio.get_running_loop().time() - begun > 2 * 0.4
            with contextlib.suppress(ConnectionResetError):
                assert len(await stopped.read()) < LARGE_SIZE

    listening(0.4, ask, large_answers)


def test_a_request_without_its_body_is_aborted() -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, send
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    ended = asyncio.Event()

    async def ask(address: Any) -> None:
        async with connecting(address) as connect:
            await connect(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab")
            await asyncio.wait_for(ended.wait(), 20)

    listening(0.05, ask, endless)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * HEAD_LIMIT, 431),
        (b"GET /" + b"x" * HEAD_LIMIT, 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: x\r\n" * HEAD_LIMIT, 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * HEAD_LIMIT + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET http://y/healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + b"x" * (HEAD_LIMIT // 2) + b"\r\n\r\n", 200),
    ],
)
def test_a_head_is_refused_if_it_is_long_or_ambiguous(sent: bytes, status: int) -> None:
    async def ask(address: Any) -> None:
        assert b" %d " % status in await until_closed(address, sent)

    listening(30, ask)


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"x"])
def test_a_connection_with_a_request_for_another_protocol_ends(protocol: bytes) -> None:
    """A proxy could send the next request of somebody else over it, which would get no answer."""

    async def ask(address: Any) -> None:
        upgrade = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n" % protocol
        answer = await until_closed(address, upgrade + GET_REQUEST % b"/healthz")
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in answer

    listening(300, ask)


def test_each_head_of_a_connection_has_the_whole_limit() -> None:
    async def ask(address: Any) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(4):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (HEAD_LIMIT // 2) + b"\r\n\r\n")
            assert await reader.readuntil(b"ok\n")
        writer.close()

    listening(30, ask)


def test_streams_and_long_polls_last_longer_than_the_timeout() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        await asyncio.sleep(0.15)  # three times the timeout
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/stream":
            for _ in range(3):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                await asyncio.sleep(0.15)
        await send({"type": "http.response.body", "body": b"end"})

    async def ask(address: Any) -> None:
        async with connecting(address) as connect:
            readers = [await connect(GET_REQUEST % path) for path in (b"/stream", b"/poll")]
            for reader in readers:
                assert await asyncio.wait_for(reader.readuntil(b"end\r\n"), 20)

    listening(0.05, ask, slow)


CHUNKED = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


async def body_of(receive: Receive) -> bytes | None:
    """Return the body of a request; None if the client has left before its end."""
    body = b""
    while (message := await receive())["type"] != "http.disconnect":
        body += message["body"]
        if not message["more_body"]:
            return bytes(body)
    return None


async def heads(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the names of the headers, and the length of the body."""
    size = len(await body_of(receive) or b"")
    names = b" ".join([name for name, _ in scope["headers"]] + [b"%d" % size])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(names))]})
    await send({"type": "http.response.body", "body": names})


def test_a_trailer_is_no_header() -> None:
    """A proxy that removes ``X-Forwarded-User`` from the head of a request may pass it on after the body."""

    async def ask(address: Any) -> None:
        answer = await until_closed(address, CHUNKED + b"1\r\nx\r\n0\r\nX-Forwarded-User: admin\r\n\r\n")
        assert answer.endswith(b"host transfer-encoding connection 1"), answer

    listening(30, ask, heads)


@pytest.mark.parametrize("begin", [b"0\r\n", b"0\r\nx: y", b"1;x"])
def test_a_body_has_no_endless_trailers_or_chunk_extensions(begin: bytes) -> None:
    more = b"x: y\r\n" if begin == b"0\r\n" else b"yyyy"

    async def send(address: Any) -> None:
        reader, writer = await asyncio.open_connection(*address)
        answer = asyncio.ensure_future(reader.read())
        writer.write(CHUNKED + begin)
        while not answer.done():
            writer.write(more * (FRAMING_LIMIT // 4))
            await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError):
            assert b" 200 " not in await answer
        writer.close()

    async def ask(address: Any) -> None:
        await asyncio.wait_for(send(address), 5)

    listening(30, ask, heads)


def test_a_body_may_have_small_chunks() -> None:
    async def ask(address: Any) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(CHUNKED)
        for _ in range(100):
            writer.write(b"1\r\nx\r\n" * 100)
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b" 10000")
        writer.close()

    listening(30, ask, heads)


def test_a_body_that_comes_slowly_is_aborted() -> None:
    """One byte now and then would hold a place for days."""

    async def send_body(address: Any, piece: bytes, pieces: int) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % (len(piece) * pieces))
        answer = asyncio.ensure_future(reader.read())
        while pieces and not answer.done():
            writer.write(piece)
            pieces -= 1
            await asyncio.sleep(0.02)
        writer.close()
        return await answer

    async def ask(address: Any) -> None:
        slow = asyncio.ensure_future(send_body(address, b"x", 1_000_000))
        assert (await send_body(address, bytes(SLOWEST_BODY), 45)).endswith(b" %d" % (45 * SLOWEST_BODY))
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(slow, 20) == b""

    listening(0.4, ask, heads)


def test_a_request_without_an_answer_at_the_stop_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
            begun.set()
            await asyncio.Event().wait()

        http = HttpListener(hangs, reserved=HEALTH)
        await http.start()
        async with accepting(http.protocol, 8, 2) as address:
            asking = asyncio.create_task(get(address, "/"))
            await begun.wait()
            await http.stop()
            status, head, body = await asking
        assert (status, body) == (503, "this node stops: try again\n")
        assert "retry-after: 1" in head

    asyncio.run(main())
    assert "Traceback" not in caplog.text
