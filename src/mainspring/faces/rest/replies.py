"""Answers to HTTP requests, before they are sent: replies, and problems.

A problem is ``application/problem+json`` of RFC 9457, with a type for each code. docs/reference/http-api.md has the table of
the types.

Some requests apply once or to one version only: ``Idempotency-Key``, ``If-Match`` and ``If-None-Match``. A repeated POST with
a key gets the answer of the first one, and is not done twice, after draft-ietf-httpapi-idempotency-key-header-07. A key
belongs to its caller and path; the caller is a token, a session that began with a sign-in link, or a user of a proxy. The
answer is kept for a day.

ETags of objects with a revision say which revision the client has, and also whether it has the whole answer. A write applies to a
revision. A read with ``If-None-Match`` compares more: the counts and times of an object change without a new revision.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from mainspring.access.idempotency import IdempotencyKey, KeptReply, RepeatedError
from mainspring.api.request import Code, Problem, write
from mainspring.errors import MainspringError, StoreError
from mainspring.faces.web.exchange import Document, Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mainspring.access.caller import Caller
    from mainspring.access.idempotency import RequestKey, Reservation


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
        error.oldest if isinstance(error, Problem) else None,
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


_TAG: Final = re.compile(r'(?:W/)?"([^"]*)"')
ANY: Final = "*"


def tag_of(body: bytes) -> bytes:
    """Return the ETag of a body."""
    return b'"%s"' % hashlib.blake2b(body, digest_size=12).hexdigest().encode()


def is_unchanged(if_none_match: bytes | None, tag: bytes) -> bool:
    """Return whether the client has this version."""
    if if_none_match is None:
        return False
    text = if_none_match.decode("latin-1").strip()
    return text == ANY or tag.decode("latin-1").strip('"') in _TAG.findall(text)


def required_version(if_match: bytes | None) -> str | None:
    """Return the version to which a write applies; None for any. Raises HttpError without a usable ``If-Match``."""
    if if_match is None:
        raise HttpError(
            "precondition_required", "this write needs If-Match with the ETag of the version that it changes, or *"
        )
    text = if_match.decode("latin-1").strip()
    if text == ANY:
        return None
    match = _TAG.fullmatch(text)
    if match is None:
        raise HttpError("malformed", "If-Match has one ETag in quotes, or *")
    return match[1]


SEPARATOR: Final = "-"


def version_of(answer: Any) -> str:
    """Return the version of an answer with a ``revision``."""
    return f"{answer.revision}{SEPARATOR}{tag_of(write(answer)).decode()[1:-1]}"


def revision_in(version: str | None) -> str | None:
    """Return the revision of a version from ``If-Match``; None for any."""
    return None if version is None else version.partition(SEPARATOR)[0]


Encoded: TypeAlias = "tuple[int, dict[bytes, bytes], bytes]"
"""Status, headers and body."""

HEADER: Final = b"idempotency-key"
REPLAYED: Final = b"idempotency-replayed"
"""The header of an answer that was kept."""
LOST_AFTER: Final = 60.0
"""Seconds after which a request without an answer is taken as lost with its node."""
_KEY: Final = re.compile(rb'"?[\x21\x23-\x7e]{1,255}"?')


class Replies(Protocol):
    """Keeps answers in the store. Its coroutines raise StoreError if the store is away."""

    @property
    def atomic(self) -> bool:
        """Whether a call can keep its answer in the transaction of its act."""

    def key(self, key: bytes, request: bytes) -> RequestKey:
        """Return the key of a request that is made now; both arguments are digests."""

    async def find_reply(self, key: RequestKey) -> Reservation | None:
        """Return the earlier reservation of a key, if there is one."""

    async def reserve_reply(self, key: RequestKey) -> Reservation | None:
        """Reserve a key for a request; return None, or the earlier reservation of the key."""

    async def keep_reply(self, key: bytes, reply: KeptReply) -> None:
        """Keep the answer to the request that has reserved a key."""

    async def release_reply(self, key: bytes) -> None:
        """Release a key, because its request has changed nothing."""

    def age(self, reservation: Reservation) -> float:
        """Return the seconds since a reservation was made."""


class Attempt(Protocol):
    """Answers a request now."""

    async def __call__(self, once: IdempotencyKey | None = None) -> Encoded:
        """Return the answer. With ``once``, the call keeps it in the transaction of its act, and raises RepeatedError."""


async def answer_once(
    replies: Replies,
    given: bytes,
    caller: Caller,
    target: str,
    body: bytes,
    attempt: Attempt,
    encode: Callable[[Any], Encoded] | None,
) -> Encoded:
    """Return the answer to a request with a key, which is made now or was made before. Raises HttpError.

    ``encode`` returns the answer for that of the call, if the call can keep it in the transaction of its act.
    """
    if _KEY.fullmatch(given) is None:
        raise HttpError("malformed", "Idempotency-Key has 1 to 255 visible ASCII characters")
    key = replies.key(_digest(_owner(caller), target.encode(), given.strip(b'"')), _digest(body))
    if encode is not None and replies.atomic:
        return await _in_one_transaction(replies, key, attempt, encode)
    earlier = await replies.reserve_reply(key)
    if earlier is not None:
        return _repeated(earlier, key, replies.age(earlier))
    try:
        answer = await attempt()
    except MainspringError:  # a refusal, which changes nothing; after a defect that is not known
        with contextlib.suppress(StoreError):
            await replies.release_reply(key.key)
        raise
    with contextlib.suppress(StoreError):  # the client gets its answer in any case
        await replies.keep_reply(key.key, KeptReply(*answer))
    return answer


async def _in_one_transaction(
    replies: Replies, key: RequestKey, attempt: Attempt, encode: Callable[[Any], Encoded]
) -> Encoded:
    earlier = await replies.find_reply(key)  # now, because a repeated request could be refused for another reason
    if earlier is not None:
        return _repeated(earlier, key, replies.age(earlier))
    try:
        return await attempt(IdempotencyKey(key, lambda answer: KeptReply(*encode(answer))))
    except RepeatedError as repeated:
        return _repeated(repeated.earlier, key, replies.age(repeated.earlier))
    except MainspringError:  # maybe because a concurrent request with the key has just changed the object
        with contextlib.suppress(StoreError):
            earlier = await replies.find_reply(key)
        if earlier is None:
            raise
        return _repeated(earlier, key, replies.age(earlier))


def _owner(caller: Caller) -> bytes:
    """Return the owner of a caller's keys. All sessions that began with links have the same name."""
    return caller.token.encode() or b"\n" + (f"\n{caller.session}" if caller.session else caller.name).encode()


def _repeated(earlier: Reservation, key: RequestKey, age: float) -> Encoded:
    if earlier.request != key.request:
        raise HttpError("key_reused", "this Idempotency-Key was used for another request: use a new one")
    if earlier.reply is not None:
        reply = earlier.reply
        return reply.status, {**reply.headers, REPLAYED: b"true"}, reply.body
    if age < LOST_AFTER:
        raise HttpError("in_progress", "the request with this Idempotency-Key is under way: ask again in a second")
    raise HttpError(
        "outcome_unknown",
        "the node ended before it had kept the answer to the request with this Idempotency-Key: look whether it was done, and"
        " use a new key if it was not",
    )


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).digest()
