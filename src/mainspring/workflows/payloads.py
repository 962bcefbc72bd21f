"""Payloads of histories: their digests, their comparison, and what stands for them where they are redacted."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, Self

import msgspec

DIGEST_VERSION: Final = 1
_VERSION_BITS: Final = 4
_VERSIONS: Final = (1 << _VERSION_BITS) - 1
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


def digest_of(*parts: bytes) -> int:
    """Return a digest of byte strings (BLAKE2b-64), whose lowest bits are its version."""
    hashed = blake2b(b"".join([b"%d:%b" % (len(part), part) for part in parts]), digest_size=8)
    return int.from_bytes(hashed.digest(), "big") >> _VERSION_BITS << _VERSION_BITS | DIGEST_VERSION


def same_digest(recorded: int, computed: int) -> bool:
    """Return whether two digests are the same; a recorded one of another version is."""
    return recorded == computed or recorded & _VERSIONS != DIGEST_VERSION


def canonical(payload: bytes) -> bytes:
    """Return JSON with sorted keys; other bytes as they are."""
    try:
        return _encode_sorted(msgspec.json.decode(payload))
    except _UNREADABLE:
        return payload


def is_json(payload: bytes) -> bool:
    """Return whether bytes are JSON."""
    try:
        msgspec.json.decode(payload)
    except _UNREADABLE:
        return False
    return True


class RedactedPayload(bytes):
    """A placeholder for a payload of ``size`` bytes. ``digest`` is that of the original; None: it matches every payload."""

    size: int
    digest: int | None

    def __new__(cls, placeholder: bytes, size: int, digest: int | None) -> Self:
        """Create a placeholder."""
        self = super().__new__(cls, placeholder)
        self.size = size
        self.digest = digest
        return self

    def stands_for(self, payload: bytes) -> bool:
        """Return whether it may stand for a payload."""
        return self.digest is None or same_digest(self.digest, digest_of(canonical(payload)))


def same_payload(recorded: bytes, computed: bytes) -> bool:
    """Return whether two payloads are the same.

    Neither the order of the keys of JSON objects counts, nor the form of a number, 1 or 1.0.
    """
    if isinstance(recorded, RedactedPayload):
        return recorded.stands_for(computed)
    if recorded == computed:
        return True
    try:
        return same_values(msgspec.json.decode(recorded), msgspec.json.decode(computed))
    except _UNREADABLE:
        return False


def same_values(one: Any, other: Any) -> bool:
    """Return whether two values of JSON are the same, whatever the form of their numbers."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same_values(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same_values, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def without_values(payload: bytes, *, is_error: bool = False) -> bytes:
    """Return the placeholder of a payload: the same structure without its values. Bytes other than JSON become none.

    Of an error, as `jobs.failures.JobFailure` has it, the name of its type stays.
    """
    try:
        value = msgspec.json.decode(payload)
    except _UNREADABLE:
        return b""
    if is_error and isinstance(value, dict) and isinstance(value.get("type"), str):
        return msgspec.json.encode({"type": value["type"], "message": ""})
    return msgspec.json.encode(_without_values(value))


def _without_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_values(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_values(one) for one in value]
    if isinstance(value, bool):
        return False
    if isinstance(value, str):
        return ""
    return value if value is None else type(value)()
