"""Requests: what can be asked of a node, whatever the protocol. They are read from JSON, and answers written, here alone.

The modules beside this one have the requests and the answers of one subject each; `answers` has what answers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import msgspec

from mainspring.api.errors import ApiError, Code

if TYPE_CHECKING:
    from collections.abc import Mapping

A = TypeVar("A")
R = TypeVar("R")


class Request(msgspec.Struct, Generic[A], forbid_unknown_fields=True, omit_defaults=True):
    """A request; ``A`` is the type of its answer."""

    call: ClassVar[str] = ""
    """The name under which it can be read and sent; empty where it has bytes that JSON cannot hold."""
    only_reads: ClassVar[bool] = False
    """Whether it may take long and changes nothing: it ends when its client leaves."""


def read(requests: Mapping[str, type[R]], name: str, params: bytes) -> R:
    """Return a request that came as JSON; nothing stands for an empty object. Raises ApiError."""
    kind = requests.get(name)
    if kind is None:
        raise ApiError(Code.UNKNOWN_CALL, f"there is no method {name!r}; there are {', '.join(sorted(requests))}")
    try:
        return msgspec.json.decode(params or b"{}", type=kind)
    except ValueError as error:  # a MsgspecError, or text that is not UTF-8
        raise ApiError(Code.UNREADABLE, f"the params of {name} cannot be read: {error}") from None


write = msgspec.json.Encoder().encode
"""Return an answer as JSON."""
