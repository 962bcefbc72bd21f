"""Requests that apply once or to one version only: ``Idempotency-Key``, ``If-Match`` and ``If-None-Match``.

A repeated POST with a key gets the answer of the first one, and is not done twice. After
draft-ietf-httpapi-idempotency-key-header-07. A key belongs to its caller and path; the caller is a token, a session that began
with a sign-in link, or a user of a proxy. The answer is kept for a day.

ETags of objects with a revision say which revision the client has, and also whether it has the whole answer. A write applies to a
revision. A read with ``If-None-Match`` compares more: the counts and times of an object change without a new revision.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from mainspring.access.idempotency import IdempotencyKey, KeptReply, RepeatedError
from mainspring.api.request import write
from mainspring.errors import MainspringError, StoreError
from mainspring.faces.rest.replies import HttpError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Caller
    from mainspring.access.idempotency import RequestKey, Reservation

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
