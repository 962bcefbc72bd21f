"""Requests to a node, in every protocol. Only this module reads them from JSON and writes answers as JSON.

The other modules of this package have the requests and the answers of one subject each; `answers` has their handlers.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotation
from enum import Enum, auto
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from mainspring.access.roles import Permission  # noqa: TC001 - msgspec reads the annotation
from mainspring.api.errors import ApiError, Code
from mainspring.namespaces import Namespaced

A = TypeVar("A")
R = TypeVar("R")


class Touches(Enum):
    """The object of a request: `Api` finds its functions, and refuses callers who lack the request's permission for one."""

    FUNCTION = auto()
    """The function that the field ``function_field`` names."""
    JOB = auto()
    """The job with the ``handle``."""
    RUN = auto()
    """The run of a workflow with the ``key``; without a key, all runs of the namespace."""
    SCHEDULE = auto()
    """The schedule with the ``name``, and the function that the request gives it."""
    OPERATION = auto()
    """The operation with the ``id``: all jobs that it may change, unless the caller started it."""
    ALL = auto()
    """A thing of all functions of the namespace, such as a worker: the caller needs the permission for all of them."""
    EACH = auto()
    """Several objects, whose handler checks each of them and leaves out or refuses those without the permission."""
    NONE = auto()
    """Nothing that exists."""


class Request(Namespaced, Generic[A], forbid_unknown_fields=True, omit_defaults=True):
    """A request; ``A`` is the type of its answer."""

    permission: ClassVar[Permission]
    """The need of the caller in the namespace of the request. `Api` registers no request without one."""
    touches: ClassVar[Touches | None] = None
    """Its object. `Api` registers no request without one whose permission is more than to read; others may have one, too."""
    function_field: ClassVar[str] = "function"
    """The field with the name of a function; the caller needs the permission for that."""
    in_any_namespace: ClassVar[bool] = False
    """Whether a caller with the permission in some namespace may ask. The handler then checks each object."""
    call: ClassVar[str] = ""
    """The name in JSON; empty for a request with bytes, which JSON cannot hold, and for one that other calls replace."""
    name_in_audit: ClassVar[str] = ""
    """The name of a request without ``call`` in the audit."""
    in_all_namespaces: ClassVar[bool] = False
    """Whether a caller needs the permission in all namespaces, for all functions: the request is about what all of them share."""
    about_nodes: ClassVar[bool] = False
    """Whether its answer is about nodes or about all namespaces. Tokens get the part that they may see; ports of one namespace
    have no right to any of it."""
    only_reads: ClassVar[bool] = False
    """Whether it changes nothing and may take long: it ends when its client disconnects."""
    is_small: ClassVar[bool] = False
    """Whether it reads or changes a single thing and has a short answer, so that a client may have many of them under way."""
    rows: ClassVar[str] = ""
    """The field of its answer with the rows of a list. `Api` ends an answer at `sizes.PAGE` bytes of them, and ``next`` in the
    answer continues there. The request has a ``limit``, or a field ``after``."""
    place: ClassVar[str] = ""
    """The field of a row that is the place after it, for answers whose handler leaves ``next`` out. Without it, such a handler
    returns all rows, and `Api` numbers them."""
    former: ClassVar[Mapping[str, str]] = {}
    """Former names of fields, with the present ones: ``{"unique": "id"}``. They are read, too, and `params_of` sends them, so
    that nodes, clients and scripts of this version and of the last one work together."""

    def needs(self) -> Permission:
        """Return the need of this request, which may be more than ``permission``."""
        return self.permission


def read(requests: Mapping[str, type[R]], name: str, params: bytes) -> R:
    """Return a request from JSON; no bytes stand for an empty object. Raises ApiError."""
    kind = requests.get(name)
    if kind is None:
        raise ApiError(Code.UNKNOWN_CALL, f"there is no method {name!r}; there are {', '.join(sorted(requests))}")
    former = getattr(kind, "former", None)
    try:
        return msgspec.json.decode(with_present_names(former, params) if former else params or b"{}", type=kind)
    except (ValueError, RecursionError) as error:  # a MsgspecError, text that is not UTF-8, or too many levels
        raise ApiError(Code.UNREADABLE, f"the params of {name} cannot be read: {error}") from None


def with_present_names(former: Mapping[str, str], params: bytes) -> bytes:
    """Return the JSON of a request with the present names of its fields. Raises ApiError if one has both of its names."""
    if not any(name.encode() in params for name in former):
        return params or b"{}"
    try:
        given = msgspec.json.decode(params, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return params  # the reader of the request reports it
    for name in former.keys() & given.keys():
        present = former[name]
        if present in given:
            raise ApiError(Code.INVALID, f"{name} is the former name of {present}: give only {present}")
        given[present] = given.pop(name)
    return msgspec.json.encode(given)


def params_of(request: Request[Any]) -> dict[str, Any]:
    """Return a request's fields as a node of this version or of the last one reads them.

    Those at their defaults are left out, because nodes have the same defaults.
    """
    names = {present: name for name, present in request.former.items()}
    params: dict[str, Any] = msgspec.to_builtins(request)
    return {names.get(field, field): value for field, value in params.items()}


write = msgspec.json.Encoder().encode
"""Return an answer as JSON."""
