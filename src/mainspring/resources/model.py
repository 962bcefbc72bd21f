"""The values of the resources slice: limits of functions, and the declarations and commands that set them."""

from __future__ import annotations

from typing import Final

import msgspec


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token bucket: ``number`` starts in ``per_us`` microseconds, and up to ``burst`` at once. All three are at least 1."""

    number: int
    per_us: int
    burst: int


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits of a function's jobs; None is no limit. Each job has a key, which may be empty."""

    concurrency: int | None = None
    """Jobs that run at the same time."""
    concurrency_per_key: int | None = None
    """Jobs of one key that run at the same time."""
    rate: Rate | None = None
    """Starts in a time."""
    rate_per_key: Rate | None = None

    @property
    def per_key(self) -> bool:
        """Whether the limits depend on the keys of jobs."""
        return self.concurrency_per_key is not None or self.rate_per_key is not None


UNLIMITED = Limits()

FUNCTION_POOL = b""
"""The pool of the tokens of a whole function."""


def pool_of(key: bytes) -> bytes:
    """Return the pool of the tokens of one key, which may be empty."""
    return b":" + key


class Declaration(msgspec.Struct, frozen=True):
    """Limits of a function that the code of workers declares. Times are microseconds of wall time."""

    limits: Limits
    first_us: int
    """When the first worker declared them."""
    last_us: int
    """When a worker with this declaration was last connected."""


class FunctionLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """All declarations and commands about one function, as stored."""

    function: bytes
    declared: tuple[Declaration, ...] = ()
    commanded: Limits | None = None
    """The limits that a user has set by command."""
    paused: bool = False
    version: int = 0
    """The number of writes; 0: not stored yet."""
    pause_reason: str = ""
    paused_us: int = 0
    """When the pause began; 0: unknown, or not paused. Times are microseconds of wall time."""
    until_us: int = 0
    """When the pause ends by itself; 0: it does not. Nodes of earlier versions do not know this, and go on to pause."""
    paused_by: str = ""
    """The caller who paused it last, with this reason; empty if unknown, as after a write by a node of an earlier version."""


class UnreadableLimits(FunctionLimits, frozen=True):
    """Stands for limits that this version cannot read: a pause, because no job may run without its limits. Never stored."""


encode_limits: Final = msgspec.msgpack.Encoder().encode
_decode_limits: Final = msgspec.msgpack.Decoder(FunctionLimits).decode


def decode_limits(data: bytes, function: bytes, version: int) -> FunctionLimits:
    """Return stored limits, or `UnreadableLimits`: the start of a node reads those of all functions, and one must not fail it."""
    try:
        return _decode_limits(data)
    except (ValueError, RecursionError) as error:  # a MsgspecError is a ValueError
        reason = f"this version of Mainspring cannot read the limits of the function: {error}"
        return UnreadableLimits(function, paused=True, version=version, pause_reason=reason)
