"""gearmand's HTTP protocol; the answers were recorded from gearmand 1.1.20, for requests that it answers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from tests.unit.faces.rest.a_server import whole_node

from mainspring.api.handlers.registry import Api, Call
from mainspring.api.request import ApiError, Code
from mainspring.api.submitting import Ended, NewJob, RunJob, Submit, SubmitJob, Submitted
from mainspring.callbacks import Callback
from mainspring.faces.web import gearmand_http
from mainspring.faces.web.gearmand_http import GearmandHttp
from mainspring.wire.gearman_protocol import unique_of_payload

from .ports import accepting, connecting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any


Submission = tuple[bytes, bytes, bytes, str, bool]
LARGE_SIZE = 1 << 22
HANDLE = "H:vm:1"


class Jobs:
    def __init__(self) -> None:
        self.api = Api({Submit: self._submit, RunJob: self._run})
        self.submitted: list[Submission] = []
        self.waiting = asyncio.Event()
        self.dropped = asyncio.Event()

    def _record(self, request: Submit | RunJob) -> None:
        priority = request.options.priority if isinstance(request, Submit) else request.priority
        submission = (request.function, request.unique, request.payload, priority, isinstance(request, Submit))
        self.submitted.append(submission)
        if request.function in REFUSALS:
            raise ApiError(REFUSALS[request.function][0], "no")
        if request.function in MISFITS:
            raise ApiError(MISFITS[request.function][0], "a function is less")

    async def _submit(self, request: Submit, _: Call) -> Submitted:
        self._record(request)
        return Submitted(HANDLE)

    async def _run(self, request: RunJob, _: Call) -> Ended:
        self._record(request)
        if request.function == b"rev":
            return Ended(HANDLE, succeeded=True, result=request.payload[::-1])
        if request.function == b"long":
            return Ended(HANDLE, succeeded=True, result=bytes(LARGE_SIZE))
        if request.function == b"bad":
            return Ended(HANDLE, succeeded=False)
        if request.function == b"throw":
            return Ended(HANDLE, succeeded=False, exception=b"why")
        self.waiting.set()
        try:
            return await Callback[Ended](lambda done, failed: None)
        finally:
            self.dropped.set()


REFUSALS = {
    b"new": (Code.TOO_MANY_FUNCTIONS, "TOO_MANY_FUNCTIONS"),
    b"full": (Code.REFUSED, "QUEUE_ERROR"),
    b"away": (Code.UNAVAILABLE, "QUEUE_ERROR"),
}
MISFITS = {b"odd": (Code.INVALID, b"400"), b"lengthy": (Code.TOO_LARGE, b"413")}


@contextlib.asynccontextmanager
async def listening(jobs: Jobs, **limits: Any) -> AsyncIterator[tuple[str, int]]:
    face = GearmandHttp(jobs.api, banner="1.1.20", **{"max_payload": 1000, "read_timeout": 5.0, **limits})
    async with accepting(face.protocol, 8, 2) as address:
        yield address
        await face.close()


def exchange(request: bytes, **limits: Any) -> tuple[bytes, list[Submission]]:
    """Return the server's answer to a request, and the submissions."""

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
    (b"GET /throw HTTP/1.1\r\n\r\n", answered("H:vm:1", "WORK_EXCEPTION", b"why")),
    *(
        (b"POST /%b HTTP/1.1\r\nX-Gearman-Background: true\r\n\r\n" % function, answered(code, "ERROR"))
        for function, (_, code) in REFUSALS.items()
    ),
    (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.0 404 NOT_FOUND\r\nServer: Gearman/1.1.20\r\nContent-Length: 0\r\n\r\n"),
]


@pytest.mark.parametrize(("request_", "answer"), RECORDED)
def test_answers_are_those_of_gearmand(request_: bytes, answer: bytes) -> None:
    assert exchange(request_)[0] == answer


def test_headers_set_the_options_of_the_submission() -> None:
    request = b"POST /a/b?c=d HTTP/1.1\r\nX-Gearman-Background: true\r\nX-Gearman-Unique: u1\r\n"
    _, submitted = exchange(request + b"X-Gearman-Priority: HIGH\r\nContent-Length: 2\r\n\r\n\0x")
    assert submitted == [(b"a/b?c=d", b"u1", b"\0x", "high", True)]


def test_a_dash_stands_for_the_unique_of_the_payload() -> None:
    _, submitted = exchange(b"POST /rev HTTP/1.1\r\nX-Gearman-Unique: -\r\nContent-Length: 1\r\n\r\nx")
    assert submitted == [(b"rev", unique_of_payload(b"x"), b"x", "normal", False)]


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
def test_bad_requests_are_answered_with_the_problem(request_: bytes, status: bytes) -> None:
    answer, submitted = exchange(request_)
    assert answer.split(b" ")[1] == status
    assert not submitted


@pytest.mark.parametrize("function", MISFITS)
@pytest.mark.parametrize("background", [b"true", b"false"])
def test_invalid_submissions_are_answered_with_the_problem(function: bytes, background: bytes) -> None:
    answer, _ = exchange(b"POST /%b HTTP/1.1\r\nX-Gearman-Background: %b\r\n\r\n" % (function, background))
    assert answer.split(b" ")[1] == MISFITS[function][1]
    assert answer.endswith(b"\r\n\r\na function is less\n")


def test_a_silent_client_is_disconnected() -> None:
    assert exchange(b"POST /rev HTTP/1.1\r\nContent-Length: 3\r\n\r\nab", read_timeout=0.05) == (b"", [])


def test_the_job_of_a_disconnected_client_is_dropped() -> None:
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
                await reads.readexactly(LARGE_SIZE // 64)
                await asyncio.sleep(0.02)  # a slow client: more than the 0.4 seconds
            with contextlib.suppress(ConnectionResetError):
                assert len(await stopped.read()) < LARGE_SIZE

    asyncio.run(run())


def test_requests_above_the_limit_are_refused() -> None:
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


def test_names_are_those_of_the_default_namespace() -> None:
    async def run() -> None:
        async with whole_node() as (_, built), contextlib.AsyncExitStack() as stack:
            face = GearmandHttp(built.api, banner="1.1.20", max_payload=1000, read_timeout=5.0)
            connect = await stack.enter_async_context(
                connecting(await stack.enter_async_context(accepting(face.protocol, 8, 2)))
            )
            for more in (b"X-Gearman-Background: true\r\n", b""):
                for name in (b"team\x1ff", b"\x1fd\x1fteam\x1ff@1"):
                    refused = await (await connect(b"POST /%b HTTP/1.1\r\n%b\r\n" % (name, more))).read()
                    assert refused.startswith(b"HTTP/1.0 400 BAD_REQUEST\r\n"), "no job of another namespace"
                    assert b"U+001F" in refused
            theirs = (await built.api.call(SubmitJob(job=NewJob(function="f", unique="u"), namespace="team"))).handle
            head = b"POST /f HTTP/1.1\r\nX-Gearman-Unique: u\r\nX-Gearman-Background: true\r\n\r\n"
            ours = await (await connect(head)).read()
            assert b"X-Gearman-Command: JOB_CREATED" in ours
            assert f"Handle: {theirs}\r\n".encode() not in ours, "it joins no job of another namespace"
            await face.close()

    asyncio.run(run())


def test_a_background_submit_that_the_store_does_not_answer_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gearmand_http, "STORE_LIMIT", 0.05)
    jobs = Jobs()

    async def never(request: Submit, _: Call) -> Submitted:
        del request
        return await Callback[Submitted](lambda done, failed: None)

    jobs.api = Api({Submit: never})

    async def run() -> bytes:
        async with asyncio.timeout(30), listening(jobs) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"POST /f HTTP/1.1\r\nX-Gearman-Background: true\r\n\r\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer

    assert asyncio.run(run()) == answered("QUEUE_ERROR", "ERROR")
