"""Signatures of webhooks, after Standard Webhooks 1.0: HMAC-SHA256 over the id, the time and the body.

A receiver has the secret of its webhook and verifies with the libraries of https://www.standardwebhooks.com. While a secret is
being replaced, the old and the new one sign together for a while, so that receivers change theirs whenever they are ready.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.clock import MICROSECONDS
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PREFIX: Final = "whsec_"
SHORTEST: Final = 24
"""Bytes of a secret's key, by the standard."""
LONGEST: Final = 64
"""Bytes of a secret's key, by the standard."""
KEY_BYTES: Final = 32
"""Bytes of the keys that are made here."""
MOST_SECRETS: Final = 4
"""Secrets of a webhook that sign together."""
ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Ids have no full stop, which separates the signed parts, and nothing that ends a header."""


class Secret(msgspec.Struct, frozen=True):
    """The key of a webhook's signatures. Its ``repr`` and ``str`` hide it; only `text` shows it."""

    key: bytes

    def __repr__(self) -> str:
        return f"Secret({PREFIX}***)"

    @property
    def text(self) -> str:
        """The secret as its receiver gets it, once: ``whsec_`` and base64."""
        return f"{PREFIX}{b64encode(self.key).decode()}"


def make_secret(draw: Callable[[int], bytes] = secrets.token_bytes) -> Secret:
    """Return a new secret. ``draw`` returns a number of random bytes."""
    return Secret(draw(KEY_BYTES))


def parse_secret(text: str) -> Secret:
    """Return the secret of a text: ``whsec_`` and 24 to 64 bytes as base64. Raises UsageError, which does not repeat the text."""
    try:
        key = b64decode(text.removeprefix(PREFIX), validate=True) if text.startswith(PREFIX) else b""
    except (binascii.Error, ValueError):
        key = b""
    if not SHORTEST <= len(key) <= LONGEST:
        raise UsageError(f"that is no secret of a webhook: write {PREFIX} and {SHORTEST} to {LONGEST} bytes as base64")
    return Secret(key)


class OldSecret(msgspec.Struct, frozen=True):
    """A secret that was replaced, and signs beside the new one for a while."""

    secret: Secret
    until_us: int
    """When it ends, in microseconds of wall time."""


class SecretSet(msgspec.Struct, frozen=True):
    """The secrets of one webhook: the present one, and those that it replaces."""

    present: Secret
    old: tuple[OldSecret, ...] = ()
    """The newest first."""

    def at(self, now_us: int) -> tuple[Secret, ...]:
        """Return the secrets that sign at a time, the present one first."""
        return self.present, *(one.secret for one in self.old if one.until_us > now_us)

    def rotate(self, secret: Secret, now_us: int, overlap_us: int) -> SecretSet:
        """Return the set with another present secret. All earlier ones end after ``overlap_us`` at the latest; 0: at once.

        Raises UsageError if more than `MOST_SECRETS` would sign together.
        """
        end_us = now_us + overlap_us
        earlier = OldSecret(self.present, end_us), *self.old
        old = [OldSecret(one.secret, min(one.until_us, end_us)) for one in earlier]
        live = tuple(one for one in old if one.until_us > now_us)
        if len(live) >= MOST_SECRETS:
            raise UsageError(
                f"{MOST_SECRETS} secrets of this webhook are valid: wait until an old one ends, or rotate without an overlap"
            )
        return SecretSet(secret, live)


def signature(secret: Secret, message_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature: ``v1,`` and base64. ``timestamp`` is in whole seconds since 1970."""
    signed = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    return f"v1,{b64encode(hmac.digest(secret.key, signed, hashlib.sha256)).decode()}"


def signed_headers(live: Sequence[Secret], message_id: str, now_us: int, body: bytes) -> dict[str, str]:
    """Return the headers of one attempt, with a signature of each secret.

    ``message_id`` is the same in all attempts, and ``now_us`` is the time of this one. Raises UsageError for an id that has other
    characters than letters, digits, dashes and underscores, and for no secret: a receiver must not get used to unsigned messages.
    """
    if not _ID.fullmatch(message_id):
        raise UsageError(f"{message_id!r} is no id of a message: use letters, digits, dashes and underscores")
    if not live:
        raise UsageError("a webhook has at least one secret")
    timestamp = now_us // MICROSECONDS
    return {
        ID: message_id,
        TIMESTAMP: str(timestamp),
        SIGNATURE: " ".join(signature(one, message_id, timestamp, body) for one in live),
    }
