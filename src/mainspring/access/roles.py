"""Roles: what each of them permits, for which functions, and which grants a caller may give to others."""

from __future__ import annotations

from enum import Enum, IntEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.errors import UsageError
from mainspring.namespaces import check as check_namespace

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
        if permission is Permission.SIGNED_IN:
            return True
        if permission is Permission.PAYLOADS:
            return self.payloads
        return self.role >= _NEEDED[permission]


def permitted(grants: Iterable[Grant], permission: Permission, namespace: str, function: str | None = None) -> bool:
    """Return whether one of several grants permits something; see `Grant.permits`."""
    return permission is Permission.SIGNED_IN or any(one.permits(permission, namespace, function) for one in grants)


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
