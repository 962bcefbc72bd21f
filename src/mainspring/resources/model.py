"""The values of the resources slice: what is scarce about a function, and who said so."""

from __future__ import annotations

from typing import Final

import msgspec


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many starts in so many microseconds, and up to ``burst`` at once: a token bucket. All three are at least 1."""

    number: int
    per_us: int
    burst: int


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What limits the jobs of a function; None is no limit. Each job has a key, be it the empty one."""

    concurrency: int | None = None
    """Jobs that run at the same time."""
    concurrency_per_key: int | None = None
    """The same of each key."""
    rate: Rate | None = None
    """Starts in time."""
    rate_per_key: Rate | None = None

    @property
    def per_key(self) -> bool:
        """Whether the keys of jobs matter to the limits."""
        return self.concurrency_per_key is not None or self.rate_per_key is not None


UNLIMITED = Limits()

OWN = b""
"""The pool of a function's own tokens."""


def pool_of(key: bytes) -> bytes:
    """Return the pool of the tokens of one key, be it the empty one."""
    return b":" + key


class Declaration(msgspec.Struct, frozen=True):
    """What the code of some workers says of a function. Times are microseconds of wall time."""

    limits: Limits
    first_us: int
    """When the first worker that said this registered."""
    last_us: int
    """When the last one was here."""


class FunctionLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that was said of one function, as it is stored."""

    function: bytes
    declared: tuple[Declaration, ...] = ()
    commanded: Limits | None = None
    """What somebody has said by command."""
    paused: bool = False
    version: int = 0
    """How often it was written; 0 is not at all."""


encode_said: Final = msgspec.msgpack.Encoder().encode
decode_said: Final = msgspec.msgpack.Decoder(FunctionLimits).decode
"""To and from the stored form of what was said of a function."""
