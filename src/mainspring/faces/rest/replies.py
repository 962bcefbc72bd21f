"""Answers to HTTP requests, before they are sent: replies, and problems.

A problem is ``application/problem+json`` of RFC 9457, with a type for each code. docs/reference/http-api.md has the table of
the types.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from mainspring.api.request import Code, Problem
from mainspring.errors import MainspringError
from mainspring.faces.web.exchange import Document, Fault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Raw(msgspec.Struct, frozen=True):
    """Bytes of a user, which browsers save and never show."""

    data: bytes
    filename: str = "data"


class Reply(msgspec.Struct, frozen=True):
    """An answer with a status or headers of its own."""

    value: object = None
    """A JSON value, `Raw`, or None for no body."""
    status: int = 200
    headers: Mapping[str, str] = {}


PREFIX: Final = "urn:mainspring:problem:"
"""The types of problems begin so. Clients compare them, so they never change. They are names and no addresses: nothing need be
published under them, and they are the same at each node and behind each proxy, which relative references are not."""
MEDIA_TYPE: Final = b"application/problem+json"
RETRY_AFTER: Final = 1
"""Seconds after which a refused request may be repeated."""


class ProblemType(NamedTuple):
    """A type of problems, as of RFC 9457."""

    name: str
    status: int
    title: str

    @property
    def code(self) -> str:
        """The last part of ``type``."""
        return self.name.replace("_", "-")

    @property
    def uri(self) -> str:
        """The value of ``type``."""
        return PREFIX + self.code


OF_HTTP: Final = (
    ("malformed", 400, "The request cannot be read"),
    ("unauthenticated", 401, "A token or a session is needed"),
    ("cross_site", 403, "The request comes from another site"),
    ("path_not_found", 404, "There is no such path"),
    ("method_not_allowed", 405, "The path has no such method"),
    ("media_type", 415, "The body has the wrong media type"),
    ("unknown_host", 421, "The node does not have this name"),
    ("too_many_requests", 429, "The caller has too many requests under way"),
    ("too_many_streams", 503, "The node has no place for a stream"),
    ("in_progress", 409, "The request with this Idempotency-Key is under way"),
    ("key_reused", 422, "The Idempotency-Key was used for another request"),
    ("outcome_unknown", 503, "It is not known whether the request was done"),
    ("precondition_required", 428, "The write names no version"),
    ("internal", 500, "The node has a defect"),
)
"""The problems of HTTP itself. The others are the codes of calls."""
PROBLEM_TYPES: Final = {
    name: ProblemType(name, status, title)
    for name, status, title in (*((code.value, code.status, code.heading) for code in Code), *OF_HTTP)
}
_RETRIED: Final = frozenset({429, 503})


class HttpError(MainspringError):
    """A request that is refused before it becomes a call."""

    def __init__(
        self, name: str, detail: str, *, faults: Sequence[Fault] = (), headers: Mapping[bytes, bytes] | None = None
    ) -> None:
        super().__init__(detail)
        self.kind = PROBLEM_TYPES[name]
        self.detail = detail
        self.faults = faults
        self.headers = headers or {}


def refusal(error: HttpError | Problem | None, request_id: str) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return the status, the headers and the body for an error; None is a defect of the node."""
    headers: dict[bytes, bytes] = {b"content-type": MEDIA_TYPE}
    faults: Sequence[Fault] = ()
    if isinstance(error, HttpError):
        kind, detail, faults = error.kind, error.detail, error.faults
        headers |= error.headers
    elif error is not None:
        kind, detail = PROBLEM_TYPES[error.code], error.message
        faults = () if error.field is None else (Fault(detail, parameter=error.field),)
    else:
        kind, detail = PROBLEM_TYPES["internal"], "the node's log has the reason: look there for the request's id"
    if kind.status in _RETRIED:
        headers.setdefault(b"retry-after", b"%d" % RETRY_AFTER)
    document = Document(
        kind.uri,
        kind.title,
        kind.status,
        detail,
        f"urn:mainspring:request:{request_id}",
        tuple(faults),
        error.live_handle if isinstance(error, Problem) else None,
    )
    return kind.status, headers, msgspec.json.encode(document)


_PLACE: Final = re.compile(r" - at `(?:key in )?`?\$([^`]*)`$")
_FIELD: Final = re.compile(r"(?:unknown|missing required) field `([^`]+)`")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def fault_of(error: msgspec.ValidationError, *, prefix: str = "") -> Fault:
    """Return the wrong value of a body from the decoder's message; ``prefix`` is the pointer of the decoded part."""
    text = str(error)
    place = _PLACE.search(text)
    message = text[: place.start()] if place is not None else text
    pointer = prefix
    for name, index in _STEP.findall(place[1]) if place is not None else ():
        if index == "...":  # the decoder does not report which key of a mapping it was
            break
        pointer += "/" + (index or _escaped(name))
    field = _FIELD.search(message)
    if field is not None:
        pointer += "/" + _escaped(field[1])
    return Fault(message[:1].lower() + message[1:], pointer=pointer)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
