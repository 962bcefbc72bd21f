"""Callers: their secrets, the origin of their requests, their rights, and their acts as the audit has them.

A role is a set of permissions; a grant gives them for some functions.

Secrets of tokens, sessions and sign-in links are one word each: a prefix, 32 random bytes and their checksum.

The places of a node that callers and namespaces share, so that nobody keeps all others out.

Requests under way, streams, watches and waits each have places of their own.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections import Counter
from enum import Enum, IntEnum, StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import force_setattr

from mainspring.errors import ForbiddenError, UsageError
from mainspring.namespaces import DEFAULT
from mainspring.namespaces import check as check_namespace
from mainspring.private_data import hide_in

if TYPE_CHECKING:
    from collections.abc import Iterable


EVERY_NAMESPACE: Final = "*"


class Role(IntEnum):
    """Roles, from the weakest on: each permits all that the previous one permits."""

    VIEWER = 0
    """Sees everything except payloads."""
    OPERATOR = 1
    """Also cancels, retries, pauses and triggers."""
    DEVELOPER = 2
    """Also submits jobs, starts workflows, and changes schedules and limits."""
    ADMIN = 3
    """Also changes nodes and tokens, and reads the audit."""


class Permission(Enum):
    """The need of a request: a role, or the right to see payloads, which no role includes."""

    SIGNED_IN = "signed_in"
    """Any token: requests about the caller alone."""
    BY_TOKEN = "by_token"  # noqa: S105 - a name
    """Nothing of the caller: the request has a token for its object alone."""
    READ = "read"
    PAYLOADS = "payload:read"
    """Arguments, results, logs and other data of users."""
    OPERATE = "operate"
    DEVELOP = "develop"
    ADMIN = "admin"


_NEEDED: Final = {
    Permission.READ: Role.VIEWER,
    Permission.OPERATE: Role.OPERATOR,
    Permission.DEVELOP: Role.DEVELOPER,
    Permission.ADMIN: Role.ADMIN,
}


_OF_ALL: Final = frozenset({Permission.SIGNED_IN, Permission.BY_TOKEN})
"""Permissions without a role."""


def matches_any(function: str, patterns: Iterable[str]) -> bool:
    """Return whether one of several patterns of a grant names a function."""
    return any(fnmatchcase(function, one) for one in patterns)


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """A role in a namespace, optionally for some functions alone."""

    role: Role
    namespace: str = "default"
    """A namespace, or ``*`` for all of them."""
    functions: tuple[str, ...] = ()
    """Names or patterns such as ``pay*``; none: all functions."""
    payloads: bool = False
    """Whether it includes `Permission.PAYLOADS`."""

    def permits(self, permission: Permission, namespace: str, function: str | None) -> bool:
        """Return whether the grant permits something in a namespace, for a function or (None) for some function."""
        if self.namespace not in (namespace, EVERY_NAMESPACE):
            return False
        if self.functions and function is not None and not matches_any(function, self.functions):
            return False
        if permission in _OF_ALL:
            return True
        if permission is Permission.PAYLOADS:
            return self.payloads
        return self.role >= _NEEDED[permission]


def permitted(grants: Iterable[Grant], permission: Permission, namespace: str, function: str | None = None) -> bool:
    """Return whether one of several grants permits something; see `Grant.permits`."""
    return permission in _OF_ALL or any(one.permits(permission, namespace, function) for one in grants)


PATTERN_LIMIT: Final = 300
"""Characters in a pattern."""


def check_grant(grant: Grant) -> None:
    """Raise UsageError if a grant has an invalid namespace or pattern.

    A pattern is a name, or the beginning of names with a final ``*``: so it is certain whether one contains another, and a store
    finds the functions of a pattern in an index.
    """
    if grant.namespace != EVERY_NAMESPACE:
        check_namespace(grant.namespace)
    for pattern in grant.functions:
        literal = pattern.removesuffix("*")
        if not pattern or len(pattern) > PATTERN_LIMIT or any(character in literal for character in "*?[]\0\x1f"):
            raise UsageError(
                f"{pattern!r} is not a pattern of functions: write a name, or a beginning of names and a *, such as 'pay*'"
            )


def covers(held: Iterable[Grant], wanted: Grant) -> bool:
    """Return whether one of the held grants permits all that another permits."""
    return any(
        one.role >= wanted.role and (one.payloads or not wanted.payloads) and _contains(one, wanted) for one in held
    )


def administers(held: Iterable[Grant], wanted: Grant) -> bool:
    """Return whether one of the held grants is an administrator's for everything that another is for."""
    return any(one.role is Role.ADMIN and _contains(one, wanted) for one in held)


def _contains(one: Grant, other: Grant) -> bool:
    """Return whether a grant is for all namespaces and functions of another."""
    if one.namespace not in (other.namespace, EVERY_NAMESPACE):
        return False
    if not one.functions:
        return True
    return bool(other.functions) and all(
        any(_matches(outer, inner) for outer in one.functions) for inner in other.functions
    )


def _matches(outer: str, inner: str) -> bool:
    """Return whether a pattern matches all names that another one matches."""
    if outer.endswith("*"):
        return inner.removesuffix("*").startswith(outer.removesuffix("*"))
    return outer == inner


SECRET_BYTES: Final = 32


class Kind(StrEnum):
    """The purpose of a secret, which is also its prefix. No secret is valid for another purpose."""

    TOKEN = "ms_"  # noqa: S105 - a prefix
    SESSION = "mss_"
    """The cookie of a browser."""
    LINK = "msl_"
    """Signs in once."""


_BODY: Final = re.compile(r"[A-Za-z0-9_-]{48}")


def secret_of(kind: Kind, random: bytes) -> str:
    """Return a secret with 32 random bytes."""
    assert len(random) == SECRET_BYTES
    return kind + base64.urlsafe_b64encode(random + _checksum(kind, random)).decode()


def digest_of(kind: Kind, text: str) -> bytes | None:
    """Return the SHA-256 of a secret, under which a store has it; None if the text is no secret of this kind."""
    body = text.removeprefix(kind)
    if not text.startswith(kind) or not _BODY.fullmatch(body):
        return None
    raw = base64.urlsafe_b64decode(body)
    if _checksum(kind, raw[:SECRET_BYTES]) != raw[SECRET_BYTES:]:
        return None
    return hashlib.sha256(text.encode()).digest()


def _checksum(kind: Kind, random: bytes) -> bytes:
    return zlib.crc32(kind.encode() + random).to_bytes(4, "big")


class Act(msgspec.Struct, frozen=True, omit_defaults=True):
    """One act of a caller, or an attempt that was refused."""

    what: str
    """The name of the request, such as ``jobs.cancel``."""
    who: str
    """The name of the caller."""
    object: str = ""
    """The name or the handle of the object."""
    namespace: str = ""
    """Empty for objects outside of all namespaces, such as nodes."""
    token: str = ""
    """The id of the caller's token; empty without one."""
    address: str = ""
    request: str = ""
    before: Any = None
    """The value before, in JSON's types; None if the act does not replace one."""
    after: Any = None
    reason: str = ""
    refused: str = ""
    """Why the caller may not do it; empty for an act."""
    depth: int = 0
    """The depth of the job whose code has done it; see `jobs.model.Options`."""

    def __post_init__(self) -> None:
        """Hide secrets, which clients may have put into wrong places; also those in rows of earlier versions."""
        for name in ("what", "who", "object", "namespace", "before", "after", "reason", "refused"):
            value = getattr(self, name)
            if value and (hidden := hide_in(value)) != value:
                force_setattr(self, name, hidden)


class Caller(msgspec.Struct, frozen=True):
    """The origin of a request, with its rights."""

    name: str
    """The name of its token, of its user at a trusted proxy, or ``local``."""
    grants: tuple[Grant, ...]
    token: str = ""
    """The id of its token; empty without one."""
    address: str = ""
    """The address of its connection."""
    request: str = ""
    """The id of its request."""
    header: str = ""
    """The header of a trusted proxy that names it; empty for other callers."""
    session: str = ""
    """The digest of its session; empty for a caller with a token, also if a session began with that."""
    depth: int = 0
    """The depth of the job whose code makes the request; see `jobs.model.Options`. 0 for most requests."""
    is_port: bool = False
    """Whether it is everybody on a port of one namespace: nobody of it has a right to anything about the node itself."""

    @property
    def holder(self) -> str:
        """The text by which shares are counted: the same for all requests with a token, and for all of a user without one."""
        return self.token or "\n" + self.name

    @property
    def spans_namespaces(self) -> bool:
        """Whether it may use several namespaces, or all: it could take the shares of many; see `namespaces.places_left`."""
        return self is LOCAL or len(named := {one.namespace for one in self.grants}) > 1 or EVERY_NAMESPACE in named

    def may(self, permission: Permission, namespace: str, function: str | None = None) -> bool:
        """Return whether the caller has a permission in a namespace, for a function or (None) for some function of it."""
        return self is LOCAL or permitted(self.grants, permission, namespace, function)

    def check(self, permission: Permission, namespace: str, function: str | None = None) -> None:
        """Raise ForbiddenError if the caller lacks a permission."""
        if not self.may(permission, namespace, function):
            where = f"the namespace {namespace!r}" + ("" if function is None else f" for the function {function!r}")
            raise ForbiddenError(
                f"{self.name!r} lacks the permission {permission.value!r} in {where}: use a token that has it"
            )

    def check_all(self, permission: Permission, namespace: str) -> None:
        """Raise ForbiddenError if the caller lacks a permission in a namespace, or has it for some functions alone."""
        self.check(permission, namespace)
        if self.functions(permission, namespace) is not None:
            raise ForbiddenError(
                f"{self.name!r} has the permission {permission.value!r} in the namespace {namespace!r} for some functions"
                " alone, and this is about all of them: use a token without functions in its grant"
            )

    def check_everywhere(self, permission: Permission) -> None:
        """Raise ForbiddenError unless the caller has a permission in all namespaces, for all functions."""
        if not self.may_everywhere(permission):
            raise ForbiddenError(
                f"{self.name!r} lacks the permission {permission.value!r} in all namespaces and for all functions, which share"
                " this: use a token with the namespace '*'"
            )

    def may_everywhere(self, permission: Permission) -> bool:
        """Return whether the caller has a permission in all namespaces, for all functions."""
        return self.may(permission, EVERY_NAMESPACE) and self.functions(permission, EVERY_NAMESPACE) is None

    def may_somewhere(self, permission: Permission) -> bool:
        """Return whether the caller has a permission in some namespace, for some function."""
        return self is LOCAL or any(one.permits(permission, one.namespace, None) for one in self.grants)

    def act(
        self,
        what: str,
        object: str = "",  # noqa: A002 - the word of the audit
        reason: str = "",
        *,
        namespace: str = DEFAULT,
        before: Any = None,
        after: Any = None,
    ) -> Act:
        """Return an act of this caller for the audit: `audit.Acting.act` of the operation that does it.

        ``before`` and ``after`` are values in JSON's types. Acts on objects outside of namespaces have an empty ``namespace``.
        """
        address = f"{self.address} ({self.header})" if self.header else self.address
        return Act(
            what,
            self.name,
            object,
            namespace,
            self.token,
            address,
            self.request,
            before,
            after,
            reason,
            depth=self.depth,
        )

    def functions(self, permission: Permission, namespace: str) -> tuple[str, ...] | None:
        """Return the patterns of the functions for which the caller has a permission; None: all functions."""
        if self is LOCAL:
            return None
        found = [one for one in self.grants if one.permits(permission, namespace, None)]
        if any(not one.functions for one in found):
            return None
        return tuple(pattern for one in found for pattern in one.functions)


LOCAL: Final = Caller("local", (Grant(Role.ADMIN, EVERY_NAMESPACE, payloads=True),))
"""The caller on a port without a namespace that demands no token: it may do everything."""
NOBODY: Final = Caller("nobody", ())
"""The caller on a port that demands a token, until it has signed in."""


def caller_of_port(namespace: str, role: Role) -> Caller:
    """Return the caller on a port of one namespace: a role there, with payloads from `Role.DEVELOPER` on, and none elsewhere."""
    return Caller(f"port of {namespace}", (Grant(role, namespace, payloads=role >= Role.DEVELOPER),), is_port=True)


SHARE: Final = 3
"""Places that a namespace may have for each place that is free: it leaves a quarter to others. A caller may have as many for each
place that its namespace may still take."""
KINDS: Final = ("requests", "streams", "watches", "waits")
OWNERS: Final = ("node", "namespace", "caller")
"""Whose places were all taken."""


class Refusals:
    """Counts the places that a node has refused, by their kind and by whose places were taken."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()


class Shares:
    """The places of one kind. ``most`` is the number of all."""

    def __init__(self, most: int, kind: str, refusals: Refusals | None = None) -> None:
        assert kind in KINDS
        self.most = most
        self._kind = kind
        self._refusals = refusals
        self._number = 0
        self._of_namespaces: Counter[str] = Counter()
        self._of_callers: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of callers with a place."""
        return len(self._of_callers)

    def take(self, caller: Caller, namespace: str) -> str:
        """Take a place for a caller in a namespace, for which it has a permission. Return why there is none, or an empty text."""
        free = self.most - self._number
        in_namespace, own = self._of_namespaces[namespace], self._of_callers[caller.holder]
        left = (SHARE * free - in_namespace) / (SHARE + 1)
        if free <= 0:
            return self._refuse("node", f"all {self.most} {self._kind} of the node are open")
        if left <= 0:
            return self._refuse(
                "namespace",
                f"the namespace {namespace} has {in_namespace} of the {self.most} {self._kind} of the node, and leaves the others"
                " to other namespaces",
            )
        if own >= SHARE * left:
            return self._refuse(
                "caller",
                f"{caller.name!r} has {own} of the {self.most} {self._kind} of the node, and leaves the others to other callers",
            )
        self._number += 1
        self._of_namespaces[namespace] += 1
        self._of_callers[caller.holder] += 1
        return ""

    def _refuse(self, owner: str, why: str) -> str:
        if self._refusals is not None:
            self._refusals.counts[self._kind, owner] += 1
        return f"{why}: end some, or try again later"

    def free(self, caller: Caller, namespace: str) -> None:
        """Free a place."""
        self._number -= 1
        for counts, key in ((self._of_namespaces, namespace), (self._of_callers, caller.holder)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
