"""Requests to a node, in every protocol. Only this module reads them from JSON and writes answers as JSON.

The other modules of this package have the requests and the answers of one subject each; `answers` has their handlers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import msgspec

from mainspring.access.roles import Permission  # noqa: TC001 - msgspec reads the annotation
from mainspring.api.errors import ApiError, Code
from mainspring.namespaces import Namespaced

if TYPE_CHECKING:
    from collections.abc import Mapping

A = TypeVar("A")
R = TypeVar("R")


class Request(Namespaced, Generic[A], forbid_unknown_fields=True, omit_defaults=True):
    """A request; ``A`` is the type of its answer."""

    permission: ClassVar[Permission]
    """The need of the caller in the namespace of the request. `Api` registers no request without one."""
    in_any_namespace: ClassVar[bool] = False
    """Whether a caller with the permission in some namespace may ask. The handler then checks each object."""
    call: ClassVar[str] = ""
    """The name in JSON; empty for a request with bytes, which JSON cannot hold, and for one that other calls replace."""
    name_in_audit: ClassVar[str] = ""
    """The name of a request without ``call`` in the audit."""
    in_all_namespaces: ClassVar[bool] = False
    """Whether a caller needs the permission in all namespaces, for all functions: the request is about what all of them share."""
    only_reads: ClassVar[bool] = False
    """Whether it changes nothing and may take long: it ends when its client disconnects."""
    is_small: ClassVar[bool] = False
    """Whether it reads or changes a single thing and has a short answer, so that a client may have many of them under way."""


def read(requests: Mapping[str, type[R]], name: str, params: bytes) -> R:
    """Return a request from JSON; no bytes stand for an empty object. Raises ApiError."""
    kind = requests.get(name)
    if kind is None:
        raise ApiError(Code.UNKNOWN_CALL, f"there is no method {name!r}; there are {', '.join(sorted(requests))}")
    try:
        return msgspec.json.decode(params or b"{}", type=kind)
    except (ValueError, RecursionError) as error:  # a MsgspecError, text that is not UTF-8, or too many levels
        raise ApiError(Code.UNREADABLE, f"the params of {name} cannot be read: {error}") from None


write = msgspec.json.Encoder().encode
"""Return an answer as JSON."""
