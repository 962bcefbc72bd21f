"""``Idempotency-Key``: a repeated POST gets the answer of the first one, and is not done twice.

After draft-ietf-httpapi-idempotency-key-header-07. A key belongs to its caller and path; the caller is a
token, a session that began with a sign-in link, or a user of a proxy. The answer is kept for a day.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import TYPE_CHECKING, Final, Protocol

from mainspring.access.replies import KeptReply
from mainspring.errors import MainspringError, StoreError
from mainspring.faces.rest.problems import HttpError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mainspring.access.caller import Caller
    from mainspring.access.replies import Reservation

HEADER: Final = b"idempotency-key"
REPLAYED: Final = b"idempotency-replayed"
"""The header of an answer that was kept."""
LOST_AFTER: Final = 60.0
"""Seconds after which a request without an answer is taken as lost with its node."""
_KEY: Final = re.compile(rb'"?[\x21\x23-\x7e]{1,255}"?')


class Replies(Protocol):
    """Keeps answers in the store. Its coroutines raise StoreError if the store is away."""

    async def reserve_reply(self, key: bytes, request: bytes) -> Reservation | None:
        """Reserve a key for a request; return None, or the earlier reservation of the key."""

    async def keep_reply(self, key: bytes, reply: KeptReply) -> None:
        """Keep the answer to the request that has reserved a key."""

    async def release_reply(self, key: bytes) -> None:
        """Release a key, because its request has changed nothing."""

    def age(self, reservation: Reservation) -> float:
        """Return the seconds since a reservation was made."""


async def once(
    replies: Replies,
    given: bytes,
    caller: Caller,
    target: str,
    body: bytes,
    answer: Callable[[], Awaitable[tuple[int, dict[bytes, bytes], bytes]]],
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Return the answer to a request with a key, which is made now or was made before. Raises HttpError."""
    if _KEY.fullmatch(given) is None:
        raise HttpError("malformed", "Idempotency-Key has 1 to 255 visible ASCII characters")
    key = _digest(_owner(caller), target.encode(), given.strip(b'"'))
    request = _digest(body)
    earlier = await replies.reserve_reply(key, request)
    if earlier is not None:
        return _repeated(earlier, request, replies.age(earlier))
    try:
        status, headers, content = await answer()
    except MainspringError:  # a refusal, which changes nothing; after a defect that is not known
        with contextlib.suppress(StoreError):
            await replies.release_reply(key)
        raise
    with contextlib.suppress(StoreError):  # the client gets its answer in any case
        await replies.keep_reply(key, KeptReply(status, headers, content))
    return status, headers, content


def _owner(caller: Caller) -> bytes:
    """Return the owner of a caller's keys. All sessions that began with links have the same name."""
    return caller.token.encode() or b"\n" + (f"\n{caller.session}" if caller.session else caller.name).encode()


def _repeated(earlier: Reservation, request: bytes, age: float) -> tuple[int, dict[bytes, bytes], bytes]:
    if earlier.request != request:
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
