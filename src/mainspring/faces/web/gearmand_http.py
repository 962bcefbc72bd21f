"""gearmand's ``-r http`` protocol: a request's path is the function, its body the payload.

::

    POST /reverse HTTP/1.1          HTTP/1.0 200 OK
    Content-Length: 3        ──►    X-Gearman-Job-Handle: H:node:1
                                    X-Gearman-Command: WORK_COMPLETE
    abc                             Content-Length: 3
                                    Server: Gearman/1.1.20

                                    cba

Each connection carries one request and is closed after its answer. As in gearmand, the path is used unchanged, without
decoding and with its query; ``X-Gearman-Unique`` is the job's unique, ``X-Gearman-Background: true`` is answered with
``JOB_CREATED`` once the job is stored, ``X-Gearman-Priority`` is ``high`` or ``low``. Requests that gearmand drops without an
answer (other methods, malformed requests) are answered with an HTTP status. Requests that a page in a browser may have sent, or
that name another host, submit nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mainspring.access.proxy import HostNames, may_be_foreign_page
from mainspring.api.request import ApiError, Code
from mainspring.api.submitting import JobOptions, RunJob, Submit
from mainspring.errors import MainspringError
from mainspring.wire.gearman_protocol import unique_of_payload

if TYPE_CHECKING:
    from mainspring.api.handlers.registry import Api
    from mainspring.api.submitting import PriorityName
    from mainspring.faces.web.connections import Connection

PIECE_SIZE = 64 * 1024
"""Bytes of an answer that are written at a time."""
STORE_LIMIT = 30.0
"""Seconds until a client that submits a background job gets an error in place of a handle."""
HEAD_LIMIT = 8 * 1024
"""Bytes of a request's head."""

_SINGLE = frozenset({"host", "origin", "sec-fetch-site", "content-length"})
"""Headers that a request has at most once."""
_HTTP_STATUS = {Code.INVALID: "400 BAD_REQUEST", Code.TOO_LARGE: "413 TOO_LARGE"}
"""HTTP status of problems with the request itself."""
_GEARMAN_CODES = {Code.TOO_MANY_FUNCTIONS: "TOO_MANY_FUNCTIONS"}
"""Gearman's codes of other problems; the default is ``QUEUE_ERROR``."""


class _Reply(NamedTuple):
    """The answer to a submission."""

    command: str
    handle: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    function: bytes
    headers: dict[str, str]
    payload: bytes


class _BadRequestError(MainspringError):
    """A request that is answered with an HTTP status; ``status`` is the code and its phrase."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class GearmandHttp:
    """Serves accepted connections, see `protocol`; `close` ends them all."""

    def __init__(
        self, api: Api, *, banner: str, max_payload: int, read_timeout: float, hosts: HostNames | None = None
    ) -> None:
        """``hosts`` are the names of this node; by default IP addresses and ``localhost``."""
        self._hosts = HostNames() if hosts is None else hosts
        self._api = api
        self._banner = banner
        self._max_payload = max_payload
        self._read_timeout = read_timeout
        self._open: set[asyncio.Task[None]] = set()

    def protocol(self, connection: Connection) -> asyncio.BaseProtocol:
        """Return the protocol for one connection."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        return asyncio.StreamReaderProtocol(reader, partial(self._serve, connection), loop=loop)

    async def _serve(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the connection's request and close the connection."""
        connection.begin(writer.transport.abort)
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            answer = await self._answer(connection, reader)
            if answer is not None:
                await self._send(writer, answer)
        except ConnectionError:
            pass
        finally:
            self._open.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            connection.release()

    async def _send(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        """Send an answer; the client has ``read_timeout`` seconds to read each piece."""
        writer.transport.set_write_buffer_limits(1, 0)  # drain waits until everything is sent
        try:
            for start in range(0, len(answer), PIECE_SIZE):
                writer.write(answer[start : start + PIECE_SIZE])
                await asyncio.wait_for(writer.drain(), self._read_timeout)
        except TimeoutError:
            writer.transport.abort()

    async def close(self) -> None:
        """End all connections; foreground jobs lose their clients."""
        waiting = list(self._open)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _answer(self, connection: Connection, reader: asyncio.StreamReader) -> bytes | None:
        """Return the complete answer; None if the client has disconnected or was too slow."""
        try:
            async with asyncio.timeout(self._read_timeout):
                request = await self._read(reader)
        except _BadRequestError as error:
            return self._refusal(error.status, str(error))
        except (asyncio.IncompleteReadError, TimeoutError):
            return None
        if not connection.set_working():
            return self._refusal("503 SERVICE_UNAVAILABLE", "too many requests are under way: try again")
        if not request.function:
            return self._head("404 NOT_FOUND", ("Content-Length", "0"), banner_first=True)
        try:
            reply = await self._submit(request, reader)
        except ApiError as error:
            problem = error.problem
            if problem.code in _HTTP_STATUS:
                return self._refusal(_HTTP_STATUS[problem.code], problem.message)
            reply = _Reply("ERROR", _GEARMAN_CODES.get(problem.code, "QUEUE_ERROR"))
        if reply is None:
            return None
        data = b"" if request.method == "HEAD" else reply.data
        return self._outcome(reply.command, reply.handle, data)

    async def _submit(self, request: _Request, reader: asyncio.StreamReader) -> _Reply | None:
        """Submit a job and return its reply; None if the client disconnects first. Raises ApiError."""
        background = request.headers.get("x-gearman-background", "").lower() == "true"
        requested = request.headers.get("x-gearman-priority", "").lower()
        priority: PriorityName = "high" if requested == "high" else "low" if requested == "low" else "normal"
        unique = request.headers.get("x-gearman-unique", "").encode("latin-1")
        if unique == b"-":
            unique = unique_of_payload(request.payload)
        submission: Submit | RunJob
        if background:
            submission = Submit(request.function, request.payload, unique, JobOptions(priority))
        else:
            submission = RunJob(request.function, request.payload, unique, priority)
        job = asyncio.ensure_future(self._reply(submission))
        disconnected = asyncio.ensure_future(_until_end(reader))
        try:
            awaited, limit = ({job}, STORE_LIMIT) if background else ({job, disconnected}, None)
            await asyncio.wait(awaited, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if background and not job.done():
                message = f"the store has not answered within {STORE_LIMIT:.0f} s: the job may be stored later"
                raise ApiError(Code.UNAVAILABLE, message)
            return job.result() if job.done() else None
        finally:
            for pending in (job, disconnected):
                pending.cancel()
            await asyncio.gather(job, disconnected, return_exceptions=True)

    async def _reply(self, request: Submit | RunJob) -> _Reply:
        if isinstance(request, Submit):
            return _Reply("JOB_CREATED", (await self._api.call(request)).handle)
        ended = await self._api.call(request)
        if ended.succeeded:
            return _Reply("WORK_COMPLETE", ended.handle, ended.result)
        if ended.exception is not None:
            return _Reply("WORK_EXCEPTION", ended.handle, ended.exception)
        return _Reply("WORK_FAIL", ended.handle)

    async def _read(self, reader: asyncio.StreamReader) -> _Request:
        lines: list[str] = []
        budget = HEAD_LIMIT
        while True:
            try:
                raw = await reader.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                raise _BadRequestError("431 TOO_LARGE", "the request's head is too long") from None
            budget -= len(raw)
            if budget < 0:
                raise _BadRequestError("431 TOO_LARGE", f"the request's head is longer than {HEAD_LIMIT} bytes")
            line = raw.decode("latin-1").rstrip("\r\n")
            if not line:
                break
            lines.append(line)
        method, function = _request_line(lines[0] if lines else "")
        headers: dict[str, str] = {}
        for name, _, value in (line.partition(":") for line in lines[1:]):
            name = name.strip().lower()
            if name in headers and name in _SINGLE:
                raise _BadRequestError("400 BAD_REQUEST", f"the header {name} is there twice: send it once")
            headers[name] = value.strip()
        self._check_origin(headers)
        return _Request(method, function, headers, await self._read_payload(reader, headers))

    def _check_origin(self, headers: dict[str, str]) -> None:
        """Raise _BadRequestError for another host, as with DNS rebinding, and for what a page of another site may have sent."""
        sent = {name.encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}
        host = sent.get(b"host")
        if host is not None and not self._hosts.accepts(host):
            raise _BadRequestError(
                "421 MISDIRECTED_REQUEST",
                "this node does not have the name in the Host header: use its IP address, localhost or the name of its machine",
            )
        if may_be_foreign_page(sent):
            raise _BadRequestError("403 FORBIDDEN", "pages in browsers may submit nothing here: use the API of --http")

    async def _read_payload(self, reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if "transfer-encoding" in headers:
            raise _BadRequestError("411 LENGTH_REQUIRED", "send the payload with a Content-Length")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise _BadRequestError("400 BAD_REQUEST", "Content-Length is not a number")
        size = int(length[:20])
        if size > self._max_payload:
            raise _BadRequestError("413 TOO_LARGE", f"payloads here have at most {self._max_payload} bytes")
        return await reader.readexactly(size)

    def _outcome(self, command: str, handle: str, data: bytes) -> bytes:
        return (
            self._head(
                "200 OK",
                ("X-Gearman-Job-Handle", handle),
                ("X-Gearman-Command", command),
                ("Content-Length", str(len(data))),
            )
            + data
        )

    def _refusal(self, status: str, why: str) -> bytes:
        text = f"{why}\n".encode()
        return self._head(status, ("Content-Type", "text/plain"), ("Content-Length", str(len(text)))) + text

    def _head(self, status: str, *headers: tuple[str, str], banner_first: bool = False) -> bytes:
        """Return a response head; ``Server`` is the last header, except in gearmand's 404."""
        banner = ("Server", f"Gearman/{self._banner}")
        ordered = (banner, *headers) if banner_first else (*headers, banner)
        lines = [f"HTTP/1.0 {status}", *(f"{name}: {value}" for name, value in ordered)]
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1", "replace")


def _request_line(line: str) -> tuple[str, bytes]:
    """Return the method and the function."""
    parts = line.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise _BadRequestError("400 BAD_REQUEST", "this port speaks HTTP/1: send POST /FUNCTION HTTP/1.1")
    method, path, _ = parts
    if method not in {"GET", "HEAD", "POST", "PUT"}:
        raise _BadRequestError("405 METHOD_NOT_ALLOWED", "use POST, PUT or GET to submit a job")
    return method, path.removeprefix("/").encode("latin-1")


async def _until_end(reader: asyncio.StreamReader) -> None:
    """Return when the client has closed the connection; drop any further data from it."""
    with contextlib.suppress(ConnectionError):
        while await reader.read(4096):
            pass
