"""Which grants a caller may give to others, and which functions a pattern names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.access.roles import EVERY_NAMESPACE, Grant, Role
from mainspring.errors import UsageError
from mainspring.namespaces import check as check_namespace

if TYPE_CHECKING:
    from collections.abc import Iterable

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
