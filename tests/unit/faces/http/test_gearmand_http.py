"""gearmand's HTTP protocol; the answers were recorded from gearmand 1.1.20, where it gives any."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from mainspring.errors import RefusedError
from mainspring.faces.http.gearmand_http import GearmandHttp, HttpReply

from .ports import accepting, connecting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from mainspring.faces.http.gearmand_http import Priority


Submission = tuple[bytes, bytes, bytes, str, bool]
MUCH = 1 << 22


class Jobs:
    def __init__(self) -> None:
        self.submitted: list[Submission] = []
        self.waiting = asyncio.Event()
        self.dropped = asyncio.Event()

    async def submit(
        self, function: bytes, unique: bytes, payload: bytes, priority: Priority, *, background: bool
    ) -> HttpReply:
        self.submitted.append((function, unique, payload, priority, background))
        if len(unique) > 64:
            raise RefusedError("ARGUMENT_TOO_LARGE", "too long")
        if background:
            return HttpReply("JOB_CREATED", b"H:vm:1")
        if function == b"rev":
            return HttpReply("WORK_COMPLETE", b"H:vm:1", payload[::-1])
        if function == b"long":
            return HttpReply("WORK_COMPLETE", b"H:vm:1", bytes(MUCH))
        if function == b"bad":
            return HttpReply("WORK_FAIL", b"H:vm:1")
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.dropped.set()
        raise AssertionError


@contextlib.asynccontextmanager
async def listening(jobs: Jobs, **limits: Any) -> AsyncIterator[tuple[str, int]]:
    face = GearmandHttp(jobs, banner="1.1.20", **{"max_payload": 1000, "read_timeout": 5.0, **limits})
    async with accepting(face.protocol, 8, 2) as address:
        yield address
        await face.close()


def exchange(request: bytes, **limits: Any) -> tuple[bytes, list[Submission]]:
    """Return what the server answers to a request, and what was submitted."""

    async def run() -> tuple[bytes, list[Submission]]:
        jobs = Jobs()
        async with listening(jobs, **limits) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(request)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer, jobs.submitted

    return asyncio.run(run())


def answered(handle: str, command: str, data: bytes = b"") -> bytes:
    head = f"HTTP/1.0 200 OK\r\nX-Gearman-Job-Handle: {handle}\r\nX-Gearman-Command: {command}\r\n"
    return f"{head}Content-Length: {len(data)}\r\nServer: Gearman/1.1.20\r\n\r\n".encode() + data


RECORDED = [
    (b"POST /rev HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", answered("H:vm:1", "WORK_COMPLETE", b"cba")),
    (b"POST /rev HTTP/1.1\nContent-Length: 3\n\nabc", answered("H:vm:1", "WORK_COMPLETE", b"cba")),
    (b"PUT /rev HTTP/1.0\r\nContent-Length: 3\r\n\r\nabcmore", answered("H:vm:1", "WORK_COMPLETE", b"cba")),
    (b"GET /rev HTTP/1.1\r\n\r\n", answered("H:vm:1", "WORK_COMPLETE")),
    (b"GET rev HTTP/1.1\r\n\r\n", answered("H:vm:1", "WORK_COMPLETE")),
    (b"POST /bad HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", answered("H:vm:1", "WORK_FAIL")),
    (b"POST /a HTTP/1.1\r\nx-gearman-background: TRUE\r\n\r\n", answered("H:vm:1", "JOB_CREATED")),
    (
        b"POST /a HTTP/1.1\r\nX-Gearman-Background: true\r\nX-Gearman-Unique: " + b"u" * 100 + b"\r\n\r\n",
        answered("ARGUMENT_TOO_LARGE", "ERROR"),
    ),
    (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.0 404 NOT_FOUND\r\nServer: Gearman/1.1.20\r\nContent-Length: 0\r\n\r\n"),
]


@pytest.mark.parametrize(("request_", "answer"), RECORDED)
def test_answers(request_: bytes, answer: bytes) -> None:
    assert exchange(request_)[0] == answer


def test_headers_say_how_to_submit() -> None:
    request = b"POST /a/b?c=d HTTP/1.1\r\nX-Gearman-Background: true\r\nX-Gearman-Unique: u1\r\n"
    _, submitted = exchange(request + b"X-Gearman-Priority: HIGH\r\nContent-Length: 2\r\n\r\n\0x")
    assert submitted == [(b"a/b?c=d", b"u1", b"\0x", "high", True)]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"rubbish\r\n\r\n", b"400"),
        (b"POST /rev HTTP/2.0\r\n\r\n", b"400"),
        (b"POST /rev HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"DELETE /rev HTTP/1.1\r\n\r\n", b"405"),
        (b"POST /rev HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"POST /rev HTTP/1.1\r\nContent-Length: 1001\r\n\r\n", b"413"),
        (b"POST /rev HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n", b"431"),
        (b"x" * 70000, b"431"),
    ],
)
def test_bad_requests_are_answered_with_what_is_wrong(request_: bytes, status: bytes) -> None:
    answer, submitted = exchange(request_)
    assert answer.split(b" ")[1] == status
    assert not submitted


def test_a_silent_client_is_hung_up_on() -> None:
    assert exchange(b"POST /rev HTTP/1.1\r\nContent-Length: 3\r\n\r\nab", read_timeout=0.05) == (b"", [])


def test_a_client_that_leaves_drops_its_job() -> None:
    async def run() -> None:
        jobs = Jobs()
        async with listening(jobs) as address:
            _, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
            await jobs.waiting.wait()
            writer.close()
            await writer.wait_closed()
            await asyncio.wait_for(jobs.dropped.wait(), 5)

    asyncio.run(run())


def test_a_stop_ends_waiting_connections() -> None:
    async def run() -> None:
        jobs = Jobs()
        async with listening(jobs) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
            await jobs.waiting.wait()
        assert jobs.dropped.is_set()
        assert await reader.read() == b""
        writer.close()

    asyncio.run(run())


def test_a_result_is_sent_as_long_as_its_client_reads() -> None:
    async def run() -> None:
        async with listening(Jobs(), read_timeout=0.4) as address, connecting(address) as connect:
            reads, stopped = [await connect(b"GET /long HTTP/1.1\r\n\r\n") for _ in range(2)]
            await reads.readuntil(b"\r\n\r\n")
            for _ in range(64):
                await reads.readexactly(MUCH // 64)
                await asyncio.sleep(0.02)  # a slow client: more than the 0.4 seconds
            with contextlib.suppress(ConnectionResetError):
                assert len(await stopped.read()) < MUCH

    asyncio.run(run())


def test_requests_beyond_those_that_may_be_under_way_are_refused() -> None:
    async def run() -> None:
        jobs = Jobs()
        async with listening(jobs) as address, connecting(address) as connect:
            for _ in range(2):
                jobs.waiting.clear()
                await connect(b"GET /slow HTTP/1.1\r\n\r\n")
                await jobs.waiting.wait()
            for _ in range(8):
                await connect()
            refused = await connect(b"GET /rev HTTP/1.1\r\n\r\n")
            assert (await refused.read()).split()[1] == b"503"

    asyncio.run(run())
