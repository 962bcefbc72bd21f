"""The ASGI application of the HTTP API: it admits a request, finds its route, reads its inputs, calls the API, and answers."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from mainspring import namespaces
from mainspring.access.caller import Caller, Permission, Shares
from mainspring.api.completions import NO_TOKEN_FOUND
from mainspring.api.request import Page, problem_of, write
from mainspring.errors import MainspringError
from mainspring.faces.rest import registry
from mainspring.faces.rest.registry import JSON, NDJSON, PREFER, Context, Inputs, Table, WaitTimes
from mainspring.faces.rest.replies import (
    HEADER,
    REPLAYED,
    HttpError,
    Raw,
    Reply,
    answer_once,
    is_unchanged,
    refusal,
    required_version,
    revision_in,
    tag_of,
)
from mainspring.faces.rest.security import PATHS, check_site, collect
from mainspring.faces.rest.streams import Parts, disconnected
from mainspring.faces.web.exchange import HEADERS, ROOT, IncompleteBodyError, LongBodyError, read_body, send_answer
from mainspring.jobs.model import MOST_DEPTH
from mainspring.loop_shares import SHARE_IN_SCOPE
from mainspring.private_data import hide_secrets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from mainspring.access.idempotency import IdempotencyKey
    from mainspring.api.handlers.registry import Api
    from mainspring.api.request import Feed, Request
    from mainspring.faces.rest.registry import Route
    from mainspring.faces.rest.replies import Encoded, Replies
    from mainspring.faces.rest.security import Doorkeeper, Login
    from mainspring.faces.rest.streams import EventFeed, Streams
    from mainspring.loop_shares import LoopShare

STRICT: Final = HEADERS | {
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; sandbox",
    b"referrer-policy": b"no-referrer",
}
"""Headers of each answer: nothing is shown in frames, or run as a page, either."""
REQUEST_ID: Final = b"x-request-id"
DEPTH: Final = b"mainspring-depth"
"""The header with the depth of the job whose code makes the request; see `jobs.model.Options`."""
ANSWER_LIMIT: Final = 90.0
"""Seconds until a request without an answer is refused; 30 more than the longest wait that a client can request."""

WATCH_AFTER: Final = 1.0
"""Seconds after which a request ends with its client's connection: clients that do not read their answers close at once."""

LOOK_INTERVAL: Final = 0.5
"""Seconds between two looks at the requests under way."""

BY_TOKEN: Final = ROOT + "/completions/"
"""The beginning of the paths whose last segment is a completion token: the only ones that need no other credential."""

log = structlog.get_logger("mainspring.http")


async def _none(_: str) -> bool:
    """Know no completion token."""
    return False


class _Compiled:
    """A route with its reader, which is made for the first request: those of all routes take a node's start a tenth longer."""

    def __init__(self, route: Route) -> None:
        self.route = route

    @cached_property
    def inputs(self) -> Inputs:
        return Inputs(self.route)


class _Exchange:
    """One request under way."""

    __slots__ = (
        "address",
        "body",
        "caller",
        "found",
        "has_place",
        "headers",
        "id",
        "inputs",
        "namespace",
        "path",
        "query",
        "receive",
        "secure",
        "send",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.id = secrets.token_hex(8)
        self.receive = receive
        self.send = send
        self.query: bytes = scope["query_string"]
        client = scope.get("client")
        self.address: str = client[0] if client else ""
        """The address of the connection."""
        self.secure = False
        self.headers: dict[bytes, bytes] = {}
        self.path = ""
        self.body = b""
        self.found: _Compiled
        self.inputs: Any = None
        self.caller: Caller
        self.namespace = ""
        self.has_place = False
        """Whether it occupies a place of its caller and its namespace."""


class _Waiting:
    """The wait of the running task for an answer: until `ANSWER_LIMIT`.

    After `WATCH_AFTER` it also ends when its client disconnects, or when its token or session ends.
    """

    __slots__ = ("_doorkeeper", "_end_watch", "_exchange", "_gone", "_since", "_task", "ended_by")

    def __init__(self, exchange: _Exchange, doorkeeper: Doorkeeper) -> None:
        self._exchange = exchange
        self._doorkeeper = doorkeeper
        self._end_watch: Callable[[], None] | None = None
        self._task = asyncio.current_task()
        self._since = 0.0
        self._gone: asyncio.Future[None] | None = None
        self.ended_by = ""
        """Why the task was cancelled: ``time``, ``client`` or ``token``; empty if this has not cancelled it."""

    def look(self, now: float) -> None:
        """End the wait if it has taken too long. ``now`` is the loop's time."""
        waited = now - (self._since or now)
        self._since = self._since or now
        if waited >= ANSWER_LIMIT:
            self._end("time")
        elif waited >= WATCH_AFTER and self._gone is None:
            self._gone = asyncio.ensure_future(disconnected(self._exchange.receive))
            self._gone.add_done_callback(lambda gone: None if gone.cancelled() else self._end("client"))
            headers, secure = self._exchange.headers, self._exchange.secure
            self._end_watch = self._doorkeeper.watch(headers, lambda: self._end("token"), secure=secure)

    def _end(self, why: str) -> None:
        if not self.ended_by and self._task is not None:
            self.ended_by = why
            self._task.cancel()

    def stop(self) -> None:
        """Forget the task."""
        if self._gone is not None:
            self._gone.cancel()
        if self._end_watch is not None:
            self._end_watch()
        if self.ended_by and self._task is not None:
            self._task.uncancel()
        self._task = None


class _Waits:
    """The requests that wait for their answers. One timer looks at all of them: most are answered before it does."""

    def __init__(self) -> None:
        self._all: dict[_Waiting, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, exchange: _Exchange, doorkeeper: Doorkeeper) -> _Waiting:
        """Begin a wait of the running task."""
        waiting = _Waiting(exchange, doorkeeper)
        self._all[waiting] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_INTERVAL, self._look)
        return waiting

    def end(self, waiting: _Waiting) -> None:
        """End a wait."""
        del self._all[waiting]
        waiting.stop()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_INTERVAL, self._look) if self._all else None
        now = loop.time()
        for waiting in list(self._all):
            waiting.look(now)


class RestApp:
    """The application. ``prefix`` is the path under which a proxy shows it, such as ``/mainspring``, or empty.

    ``shares`` has the places of requests under way. ``knows_token`` returns whether a text is a completion token of the store.
    """

    def __init__(
        self,
        api: Api,
        routes: Iterable[Route],
        doorkeeper: Doorkeeper,
        login: Login,
        replies: Replies,
        streams: Streams,
        *,
        prefix: str = "",
        shares: Shares | None = None,
        knows_token: Callable[[str], Awaitable[bool]] = _none,
    ) -> None:
        self._api = api
        self._knows_token = knows_token
        self._doorkeeper = doorkeeper
        self._login = login
        self._replies = replies
        self._streams = streams
        self._prefix = prefix
        self._shares = Shares(sys.maxsize, "requests") if shares is None else shares
        self._waits = _Waits()
        self._wait_times = WaitTimes()
        self._is_stopping = False
        self.table = Table(routes, _Compiled)

    def end_waits(self) -> None:
        """Answer the clients that wait for the ends of jobs: the node stops. Requests to the store may still be answered."""
        self._is_stopping = True
        self._wait_times.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = _Exchange(scope, receive, send)
        try:
            answer = await self._answer(scope, exchange)
            if answer is not None:  # else it was a stream, which is sent, or the client has gone
                await self._send(exchange, answer)
        finally:
            if exchange.has_place:
                self._shares.free(exchange.caller, exchange.namespace)

    async def guard(self, scope: Scope, receive: Receive, send: Send, then: ASGIApp) -> None:
        """Pass a request to another application if its caller may see the functions of all namespaces."""
        exchange = _Exchange(scope, receive, send)
        try:
            self._collect(scope, exchange)
            self._doorkeeper.check_host(exchange.headers)
            await self._admit(scope, exchange)
            exchange.caller.check_everywhere(Permission.READ)
        except HttpError as refused:
            await self._send(exchange, refusal(refused, exchange.id))
        except MainspringError as failed:
            await self._send(exchange, refusal(problem_of(failed), exchange.id))
        else:
            await then(scope, receive, send)

    async def host_guard(self, scope: Scope, receive: Receive, send: Send, then: ASGIApp) -> None:
        """Pass a request to another application if it names this node: a page of another name could read the answer."""
        exchange = _Exchange(scope, receive, send)
        try:
            self._collect(scope, exchange)
            self._doorkeeper.check_host(exchange.headers)
        except HttpError as refused:
            await self._send(exchange, refusal(refused, exchange.id))
        else:
            await then(scope, receive, send)

    def _collect(self, scope: Scope, exchange: _Exchange) -> None:
        exchange.headers = collect(scope["headers"])
        exchange.secure = self._doorkeeper.is_secure(exchange.headers, exchange.address, scope["scheme"])

    @staticmethod
    async def _send(exchange: _Exchange, answer: Encoded) -> None:
        status, headers, body = answer
        sent = [*(STRICT | headers).items(), (REQUEST_ID, exchange.id.encode())]
        if status not in (204, 304):
            sent.append((b"content-length", b"%d" % len(body)))
        await send_answer(exchange.send, status, sent, body)

    async def _answer(self, scope: Scope, exchange: _Exchange) -> Encoded | None:
        # No variable keeps an error: its traceback has this frame, and together they would keep the body until a collection.
        try:
            self._collect(scope, exchange)
            self._doorkeeper.check_host(exchange.headers)
            exchange.path = path = self._path(scope)
            if path in PATHS:
                return await self._sign_in(scope, exchange)
            await self._read(scope, exchange)
            route = exchange.found.route
            if route.stream:
                await self._stream(exchange)
                return None
            if route.watch is not None and exchange.inputs.wait and b"if-none-match" in exchange.headers:
                return await self._poll(exchange, route.watch(exchange.inputs))
            return await self._in_time(exchange)
        except HttpError as refused:
            return refusal(refused, exchange.id)
        except MainspringError as failed:
            return refusal(problem_of(failed), exchange.id)
        except Exception:
            log.exception(
                "a request failed", request=exchange.id, method=scope["method"], path=hide_secrets(exchange.path)[:200]
            )
            return refusal(None, exchange.id)

    async def _in_time(self, exchange: _Exchange) -> Encoded | None:
        """Answer a request within `ANSWER_LIMIT`; return None if its client has gone meanwhile. Raises HttpError after that time.

        So a request that has waited for the store without an answer is not done later.
        """
        waiting = self._waits.begin(exchange, self._doorkeeper)
        try:
            return await self._once(exchange)
        except asyncio.CancelledError:
            if not waiting.ended_by and not self._is_stopping:
                raise
            if waiting.ended_by == "client":
                return None
            if waiting.ended_by == "token":
                raise HttpError(
                    "unauthenticated",
                    "the token or the session has ended while the request waited: it may have been done",
                ) from None
            reason = f"within {ANSWER_LIMIT:.0f} s" if waiting.ended_by else "before this node stopped"
            raise HttpError(
                "outcome_unknown",
                f"the store has not answered {reason}: look whether the request was done, or repeat it with its Idempotency-Key",
            ) from None
        finally:
            self._waits.end(waiting)

    async def _once(self, exchange: _Exchange) -> Encoded:
        route = exchange.found.route
        # A request that changes nothing needs no kept answer, and who may only read must not fill the store with them.
        if (
            route.method == "POST"
            and not route.request.only_reads
            and (key := exchange.headers.get(HEADER)) is not None
        ):
            _check_repeatable(route)
            target = f"{exchange.path}?{exchange.query.decode('latin-1')}"
            keeps = self._api.keeps_reply(route.request) and route.handler is None
            encode = partial(self._encode, exchange) if keeps else None
            attempt = partial(self._reply, exchange)
            answer = await answer_once(self._replies, key, exchange.caller, target, exchange.body, attempt, encode)
        else:
            answer = await self._reply(exchange)
        if route.then is None or not (PREFER in exchange.headers or REPLAYED in answer[1]):
            return answer
        return await route.then(self._context(exchange), answer)

    def _path(self, scope: Scope) -> str:
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("latin-1")
        # A proxy may remove the prefix, or pass it on.
        return path[len(self._prefix) :] if self._prefix and path.startswith(self._prefix + "/") else path

    async def _sign_in(self, scope: Scope, exchange: _Exchange) -> Encoded:
        method, headers = scope["method"], exchange.headers
        check_site(method, headers)

        async def read(limit: int) -> bytes:
            return await _body(exchange.receive, headers, limit)

        answer = await self._login.answer(exchange.path, method, headers, exchange.query, read, secure=exchange.secure)
        if answer[0] == 401:
            self._api.refused_token(exchange.address, exchange.id, "the token or the link for a session is not valid")
        return answer

    async def _admit(self, scope: Scope, exchange: _Exchange) -> Caller:
        try:
            caller = await self._doorkeeper.admit(
                scope["method"], exchange.headers, address=exchange.address, secure=exchange.secure
            )
        except HttpError as refused:
            if refused.kind.status == 401 and b"authorization" in exchange.headers:
                self._api.refused_token(exchange.address, exchange.id, refused.detail)
            raise
        depth = _depth(exchange.headers)
        exchange.caller = caller = msgspec.structs.replace(caller, request=exchange.id, depth=depth)
        return caller

    async def _admit_token(self, exchange: _Exchange, token: str) -> Caller:
        """Return the caller of a request by a completion token, which needs no credential. Raises HttpError for an unknown one.

        So nobody else makes the node read a body. The site does not matter: no browser adds a completion token by itself.
        """
        if not await self._knows_token(token):
            self._api.refused_token(exchange.address, exchange.id, "the completion token is unknown")
            raise HttpError("completion_not_found", NO_TOKEN_FOUND)
        exchange.caller = caller = Caller("completion token", (), address=exchange.address, request=exchange.id)
        return caller

    async def _read(self, scope: Scope, exchange: _Exchange) -> None:
        """Admit the caller, find the route and read its inputs. Raises HttpError or ForbiddenError."""
        method, headers, path = scope["method"], exchange.headers, exchange.path
        if method == "POST" and path.startswith(BY_TOKEN):
            caller = await self._admit_token(exchange, path.removeprefix(BY_TOKEN))
        else:
            caller = await self._admit(scope, exchange)
        found, values = self.table.find(method, path)
        route: Route = found.route
        exchange.found = found
        # `Api` checks it, too: this is before the body is read.
        exchange.namespace = _namespace(route, values)
        self._api.check_early(route.request, exchange.namespace, caller, values[-1] if values else "")
        # Only who may do something in a namespace takes one of its places.
        if why := self._shares.take(caller, exchange.namespace):
            raise HttpError("too_many_requests", why)
        exchange.has_place = True
        await self._use_share(scope, self._api.share_of(caller, exchange.namespace))
        version = revision_in(required_version(headers.get(b"if-match"))) if route.if_match else None
        body, lines = b"", False
        if route.has_body:
            body = await _body(exchange.receive, headers, route.limit)
            if body:
                lines = _check_media_type(headers, lines=route.lines is not None)
        exchange.body = body
        inputs = found.inputs.read(values, exchange.query, body, lines=lines)
        if route.if_match:
            inputs = msgspec.structs.replace(inputs, **{route.if_match: version})
        exchange.inputs = inputs

    @staticmethod
    async def _use_share(scope: Scope, share: LoopShare | None) -> None:
        """Charge the rest of a request to its caller, and begin it when that need not rest."""
        if share is not None:
            use = scope.get(SHARE_IN_SCOPE)
            if use is not None:
                use(share)
            await share.rested()

    async def _reply(self, exchange: _Exchange, once: IdempotencyKey | None = None) -> Encoded:
        """Call the API, and encode the answer."""
        route, inputs = exchange.found.route, exchange.inputs
        if route.handler is not None:
            return self._finish(exchange, await route.handler(self._context(exchange)))
        return self._encode(exchange, await self._api.call(route.request_of(inputs), caller=exchange.caller, once=once))

    def _context(self, exchange: _Exchange) -> Context:
        return Context(self._api, exchange.caller, exchange.inputs, exchange.headers, self._wait_times)

    def _encode(self, exchange: _Exchange, answer: Any) -> Encoded:
        """Encode an answer of the API."""
        return self._finish(exchange, exchange.found.route.value_of(answer, exchange.inputs))

    def _finish(self, exchange: _Exchange, value: Any) -> Encoded:
        route = exchange.found.route
        extra: dict[bytes, bytes] = {}
        if isinstance(value, Page):
            following = registry.link(value, self._prefix + exchange.path, exchange.query)
            if following is not None:
                extra[b"link"] = following.encode("ascii")
            if type(value) is Page:  # a list of rows has no version: it is long, and changes with each of them
                return _encoded(value, route.status, extra)
        status, headers, body = _encoded(value, route.status, extra)
        if status == 200 and body and (route.method == "GET" or route.version is not None):
            tag = tag_of(body) if route.version is None else b'"%s"' % str(route.version(value)).encode()
            headers[b"etag"] = tag
            if route.method == "GET" and is_unchanged(exchange.headers.get(b"if-none-match"), tag):
                return 304, {b"etag": tag}, b""
        return status, headers, body

    async def _poll(self, exchange: _Exchange, request: Request[Any]) -> Encoded:
        """Answer once the answer differs from the one that the client has, or with 304 after its time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + exchange.inputs.wait
        async with self._following(exchange, request) as feed:
            gone = asyncio.ensure_future(disconnected(exchange.receive))
            gone.add_done_callback(lambda _: feed.end())
            try:
                while True:
                    reply = await self._reply(exchange)
                    if reply[0] != 304 or not await feed.changed(deadline - loop.time()):
                        return reply
            finally:
                gone.cancel()

    async def _stream(self, exchange: _Exchange) -> None:
        route, inputs = exchange.found.route, exchange.inputs
        last = exchange.headers.get(b"last-event-id")
        if last and route.resume:
            inputs = msgspec.structs.replace(inputs, **{route.resume: last.decode("latin-1")})
        requests = [route.request_of(inputs)] if route.follows is None else route.follows(inputs)
        async with self._following(exchange, *requests, joined=route.follows is not None) as feed:
            headers = (*STRICT.items(), (REQUEST_ID, exchange.id.encode()))
            await feed.serve(exchange.receive, exchange.send, headers)

    @contextlib.asynccontextmanager
    async def _following(
        self, exchange: _Exchange, *requests: Request[Any], joined: bool = False
    ) -> AsyncIterator[EventFeed]:
        """Yield the feed of a stream, or of several ``joined`` ones. It ends when its caller's token or session does."""
        feed = self._streams.open(exchange.caller, exchange.namespace)
        feeds: Sequence[Feed] = Parts(feed, len(requests)).feeds if joined else (feed,)
        with contextlib.ExitStack() as ends:
            ends.callback(feed.close)
            for request, part in zip(requests, feeds, strict=True):
                ends.callback(await self._api.follow(request, part, caller=exchange.caller))
            ends.callback(self._doorkeeper.watch(exchange.headers, feed.end, secure=exchange.secure))
            yield feed


def _encoded(value: Any, status: int, headers: dict[bytes, bytes]) -> Encoded:
    if isinstance(value, Reply):
        headers |= {name.lower().encode(): text.encode("latin-1", "replace") for name, text in value.headers.items()}
        status, value = value.status, value.value
    if isinstance(value, Raw):
        headers[b"content-type"] = b"application/octet-stream"
        headers[b"content-disposition"] = b'attachment; filename="%s"' % value.filename.encode("ascii", "replace")
        return status, headers, value.data
    if value is None:
        return 204 if status == 200 else status, headers, b""
    headers[b"content-type"] = JSON
    return status, headers, write(value)


def _namespace(route: Route, values: list[str]) -> str:
    for name, value in zip(route.parameters, values, strict=True):
        if name == "namespace":
            return value
    return namespaces.DEFAULT


def _check_media_type(headers: dict[bytes, bytes], *, lines: bool) -> bool:
    """Return whether a body is NDJSON, which some routes take. Raises HttpError."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind == NDJSON and lines:
        return True
    if kind != JSON:
        other = " or application/x-ndjson" if lines else ""
        raise HttpError("media_type", f"send the body as Content-Type: application/json{other}")
    return False


async def _body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    """Return the body. Raises HttpError if it is longer than the limit, before it is read if possible."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit)
    try:
        return await read_body(receive, limit)
    except IncompleteBodyError as error:
        raise HttpError("malformed", str(error)) from None
    except LongBodyError:
        raise _too_large(limit) from None


def _too_large(limit: int) -> HttpError:
    return HttpError(
        "too_large", f"the body of this request has at most {limit} bytes", headers={b"connection": b"close"}
    )


def _depth(headers: dict[bytes, bytes]) -> int:
    """Return the depth that a request states. Raises HttpError."""
    stated = headers.get(DEPTH, b"0")
    if len(stated) != 1 or not b"0" <= stated <= b"%d" % MOST_DEPTH:
        raise HttpError(
            "malformed", f"Mainspring-Depth is a number from 0 to {MOST_DEPTH}: send it as the delivery had it"
        )
    return int(stated)


def _check_repeatable(route: Route) -> None:
    """Raise HttpError if the node must not keep the answer of a route for a repeated request."""
    if route.shows_secret:
        raise HttpError(
            "malformed", "this path takes no Idempotency-Key: its answer has a secret, which the node does not keep"
        )
