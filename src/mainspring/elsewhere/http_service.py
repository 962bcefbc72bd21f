"""Services with HTTP as work that runs elsewhere: one request submits the work, one asks for its state, one cancels it.

The host is written in the program; paths have the id that the service gave, and answers may have redirects. So an id is encoded,
redirects lead to the same host only, and answers have limits of time and bytes. Connections go to checked addresses, as those of
webhooks do (`webhooks.sending`).
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urljoin

import msgspec

from mainspring.client.external import Done, Failed, Running, Throttled
from mainspring.client.json_types import encode_json
from mainspring.client.options import seconds
from mainspring.clock import to_us
from mainspring.errors import MainspringError, UsageError
from mainspring.webhooks.answer import SendError
from mainspring.webhooks.backoff import retry_after
from mainspring.webhooks.sending import Limits, Sender, check_headers
from mainspring.webhooks.targets import Policy, Target, parse_target

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mainspring.client.options import Duration
    from mainspring.webhooks.answer import Reply

MOST_ANSWER: Final = 16 << 20
MOST_REDIRECTS: Final = 3
CONNECT_LIMIT: Final = 5.0
LONGEST_ID: Final = 512
DEFAULT_PAUSE: Final = 5.0
"""Seconds of a pause that a service asks for without a time."""
LONGEST_PAUSE: Final = 3600.0
_METHODS: Final = frozenset({"DELETE", "GET", "PATCH", "POST", "PUT"})
_PATH: Final = re.compile(r"/(?:[!-z|~]|\{id\}|\{key\})*")
_SHOWN: Final = 200
"""Characters of texts of the service that are shown."""
_GONE: Final = frozenset({404, 410})
_BUSY: Final = frozenset({429, 503})
_LATER: Final = frozenset({408, 425})
"""Statuses below 500 after which the same request may succeed."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD: Final = frozenset({307, 308})


class HttpServiceError(MainspringError):
    """The service could not be asked, or its answer cannot be used: the outcome is unknown."""


class HttpRefusedError(HttpServiceError):
    """The service has refused a request with a ``status`` from 400 to 499. A repetition would be refused as well."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class HttpMeta:
    """Work that a service has taken, as it is recorded with the job."""

    id: str
    """The service's own."""
    key: str
    """That of the submission."""


class _Line(NamedTuple):
    """A method and a path."""

    method: str
    path: str

    def fill(self, values: Mapping[str, str]) -> str:
        return re.sub(r"\{(id|key)\}", lambda found: _segment(values.get(found[1], ""), found[1]), self.path)


class HttpWork:
    """Work of an HTTP service: an object for ``app.external(name=…)``, or a base for classes with ``@app.external``.

    ``submit``, ``status``, ``cancel`` and ``logs`` are a method and a path, such as ``"GET /jobs/{id}"``. ``{id}`` is the id in
    the answer to ``submit``, and ``{key}`` the key of the submission. ``submit`` sends the job's argument as JSON, and the key
    as ``Idempotency-Key``.

    ``id``, ``state``, ``result``, ``error``, ``progress`` and ``text`` are the places of these in the answers, such as
    ``"job.state"``. ``id=""``: the service uses the key as its id. ``running``, ``done`` and ``failed`` are the states; the
    progress is a share from 0 to 1. Override `status_of` for a service that answers in another way.

    ``token`` is the name of an environment variable; its value is sent as a bearer token. Override `headers` for others.
    Private addresses are refused, except those in ``networks``, such as ``"10.0.0.0/8"``. ``timeout`` is that of one request,
    and ``most`` are the bytes of an answer.

    Raises UsageError for wrong settings.
    """

    def __init__(
        self,
        base: str,
        *,
        submit: str,
        status: str,
        cancel: str,
        logs: str = "",
        id: str = "id",  # noqa: A002 - the name of the field, as that of the others
        state: str = "state",
        running: Collection[str] = ("queued", "pending", "starting", "running"),
        done: Collection[str] = ("done", "succeeded", "completed"),
        failed: Collection[str] = ("failed", "cancelled"),
        result: str = "result",
        error: str = "error",
        progress: str = "progress",
        text: str = "text",
        token: str = "",
        networks: Collection[str] = (),
        timeout: Duration = 20.0,
        most: int = 1 << 20,
    ) -> None:
        self._base = base.rstrip("/")
        try:
            policy = Policy(tuple(ip_network(one) for one in networks))
        except ValueError as problem:
            raise UsageError(f"networks are such as 10.0.0.0/8: {problem}") from None
        self._policy = policy
        parse_target(self._base, policy)
        if "?" in base:
            raise UsageError("the base of a service has no query: write it into the paths")
        self._submit, self._status = _line(submit, "submit", "key"), _line(status, "status", "id", "key")
        self._cancel = _line(cancel, "cancel", "id", "key")
        self._logs = _line(logs, "logs", "id", "key") if logs else None
        self._places = {"id": id, "state": state, "result": result, "error": error, "progress": progress, "text": text}
        self._running, self._done, self._failed = frozenset(running), frozenset(done), frozenset(failed)
        self._token = token
        if not 0 < most <= MOST_ANSWER:
            raise UsageError(f"the bytes of an answer are from 1 to {MOST_ANSWER:,}, and not {most}")
        total = seconds(timeout, "timeout")
        self._sender = Sender(policy, Limits(total, min(total, CONNECT_LIMIT), most, most))

    def headers(self) -> dict[str, str]:
        """Return the headers of each request beside its own. Raises HttpServiceError if the token is missing."""
        if not self._token:
            return {}
        value = os.environ.get(self._token, "")
        if not value:
            raise HttpServiceError(f"the environment variable {self._token} with the service's token is not set")
        return {"authorization": f"Bearer {value}"}

    def status_of(self, answer: Any) -> Running | Done[Any] | Failed:
        """Return what the answer of the service, read from JSON, says about the work. Raises HttpServiceError."""
        state = self._at(answer, "state")
        if not isinstance(state, str):
            raise HttpServiceError(f"the answer of the service has no text at {self._places['state']}")
        if state in self._done:
            return Done(self._at(answer, "result"))
        if state in self._failed:
            error = self._at(answer, "error")
            return Failed((_shown(error) if error else "") or f"the service answered: {_shown(state)}")
        if state not in self._running:
            raise HttpServiceError(f"the service answered with a state that is not among those given: {_shown(state)}")
        progress, text = self._at(answer, "progress"), self._at(answer, "text")
        is_share = isinstance(progress, (int, float)) and not isinstance(progress, bool) and 0 <= progress <= 1
        return Running(progress if is_share else None, _shown(text) if text else "")

    async def submit(self, args: Any, key: str) -> HttpMeta:
        """Send the job's argument to the service. Raises HttpServiceError, and Throttled."""
        body = encode_json(args, "the argument of the service")
        reply = await self._send(self._submit, {"key": key}, body, {"idempotency-key": key})
        if not self._places["id"]:
            return HttpMeta(key, key)
        found = self._at(_json(reply), "id")
        if isinstance(found, bool) or not isinstance(found, (str, int)):
            raise HttpServiceError(f"the answer of the service has no {self._places['id']}")
        _segment(str(found), "id")
        return HttpMeta(str(found), key)

    async def status(self, meta: HttpMeta) -> Running | Done[Any] | Failed:
        """Return how far the work is. Raises HttpServiceError, and Throttled."""
        try:
            reply = await self._send(self._status, {"id": meta.id, "key": meta.key})
        except HttpRefusedError as error:
            if error.status in _GONE:
                return Failed(f"the service does not have {meta.id} any more (status {error.status})")
            raise
        return self.status_of(_json(reply))

    async def cancel(self, meta: HttpMeta) -> None:
        """Cancel the work; what the service does not have any more is cancelled. Raises HttpServiceError, and Throttled."""
        try:
            await self._send(self._cancel, {"id": meta.id, "key": meta.key})
        except HttpRefusedError as error:
            if error.status not in _GONE:
                raise

    async def logs(self, meta: HttpMeta) -> str:
        """Return the beginning of the work's log; empty for a service without one. Raises HttpServiceError, and Throttled."""
        if self._logs is None:
            return ""
        reply = await self._send(self._logs, {"id": meta.id, "key": meta.key}, is_part=True)
        return reply.body.decode(errors="replace")

    def _at(self, answer: Any, what: str) -> Any:
        for name in filter(None, self._places[what].split(".")):
            if not isinstance(answer, dict):
                return None
            answer = answer.get(name)
        return answer

    async def _send(
        self,
        line: _Line,
        values: Mapping[str, str],
        body: bytes = b"",
        more: Mapping[str, str] | None = None,
        *,
        is_part: bool = False,
    ) -> Reply:
        """Send a request, and return an answer with a status from 200 to 299; with ``is_part``, its beginning is enough."""
        headers = {"accept": "application/json", **({"content-type": "application/json"} if body else {})}
        headers |= {name.lower(): value for name, value in self.headers().items()} | dict(more or {})
        check_headers(headers)
        first = parse_target(self._base + line.fill(values), self._policy)
        target, method = first, line.method
        for _ in range(MOST_REDIRECTS + 1):
            try:
                reply = await self._sender.request(method, target, headers, body)
            except SendError as error:
                raise HttpServiceError(str(error)) from error
            if reply.status not in _REDIRECTS:
                return _checked(reply, line, is_part=is_part)
            target = self._redirected(reply, first, target, method)
        raise HttpServiceError(
            f"the service answered {line.method} {line.path} with more than {MOST_REDIRECTS} redirects"
        )

    def _redirected(self, reply: Reply, first: Target, target: Target, method: str) -> Target:
        """Return where a redirect leads. Raises HttpServiceError for another host, which would get the token."""
        if not reply.location or (method != "GET" and reply.status not in _KEEPS_METHOD):
            raise HttpServiceError(
                f"the service answered {method} with the redirect {reply.status}, which is not followed"
            )
        try:
            found = parse_target(
                urljoin(f"{target.scheme}://{target.authority}{target.path}", reply.location), self._policy
            )
        except (UsageError, ValueError) as error:
            raise HttpServiceError(f"the service redirects to a URL that cannot be used: {error}") from error
        if found[:3] != first[:3]:
            raise HttpServiceError(f"the service redirects to {_shown(found.authority)}; only its own host is asked")
        return found


def _checked(reply: Reply, line: _Line, *, is_part: bool) -> Reply:
    if reply.status in _BUSY:
        asked = retry_after(reply.retry_after, to_us(time.time())) if reply.retry_after else DEFAULT_PAUSE
        raise Throttled(min(max(asked, 1.0), LONGEST_PAUSE))
    if not 200 <= reply.status < 300:
        what = f"the service answered {line.method} {line.path} with {reply.status}"
        text = _shown(reply.body[: 4 * _SHOWN].decode(errors="replace"))
        message = f"{what}: {text}" if text else what
        if 400 <= reply.status < 500 and reply.status not in _LATER:
            raise HttpRefusedError(message, reply.status)
        raise HttpServiceError(message)
    if not reply.is_whole and not is_part:
        raise HttpServiceError("the answer of the service is too long or too late, or was cut off")
    return reply


def _json(reply: Reply) -> Any:
    try:
        return msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise HttpServiceError("the answer of the service is not JSON") from None


def _line(text: str, name: str, *values: str) -> _Line:
    """Read a method and a path. Raises UsageError."""
    method, _, path = text.partition(" ")
    named = set(re.findall(r"\{(id|key)\}", path))
    if method not in _METHODS or not _PATH.fullmatch(path) or path.startswith("//") or not named <= set(values):
        places = " and ".join(f"{{{one}}}" for one in values)
        raise UsageError(
            f"{name} is a method and a path, which may have {places}, such as 'GET /jobs/x': it is {text!r}"
        )
    return _Line(method, path)


def _segment(value: str, name: str) -> str:
    """Return a value as one segment of a path. Raises HttpServiceError for one that would lead to another path."""
    if not value or value in {".", ".."} or len(value) > LONGEST_ID:
        raise HttpServiceError(f"the {name} {_shown(value)!r} cannot stand in the path of a URL")
    return quote(value, safe="")


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return "".join(one if one.isprintable() else " " for one in text[:_SHOWN]).strip()
