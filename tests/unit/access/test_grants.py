"""Nobody grants more than he has."""

from __future__ import annotations

import itertools

import pytest

from mainspring.access.caller import EVERY_NAMESPACE, Grant, Permission, Role, administers, check_grant, covers
from mainspring.errors import UsageError

FUNCTIONS: tuple[tuple[str, ...], ...] = ((), ("pay",), ("pay*",), ("pay*", "mail"), ("p*",), ("*",))
ALL = [
    Grant(role, namespace, functions, payloads)
    for role, namespace, functions, payloads in itertools.product(
        (Role.VIEWER, Role.ADMIN), ("a", "b", EVERY_NAMESPACE), FUNCTIONS, (False, True)
    )
]
NAMES = ("pay", "payments", "p", "mail", "mails", "x")


def permitted(grant: Grant) -> set[tuple[Permission, str, str]]:
    """Return all that a grant permits in three namespaces, `*` among them."""
    return {
        (permission, namespace, name)
        for permission in Permission
        for namespace in ("a", "b", "c")
        for name in NAMES
        if grant.permits(permission, namespace, name)
    }


def test_a_covered_grant_permits_nothing_more() -> None:
    rights = {grant: permitted(grant) for grant in ALL}
    for held, wanted in itertools.product(ALL, ALL):
        if covers([held], wanted):
            assert rights[held] >= rights[wanted], (held, wanted)
        if administers([held], wanted):
            assert held.role is Role.ADMIN
            where = {(namespace, name) for _, namespace, name in rights[wanted]}
            assert {(namespace, name) for _, namespace, name in rights[held]} >= where


def test_own_grants_and_lesser_ones_are_covered() -> None:
    for grant in ALL:
        assert covers([grant], grant)
        assert covers([grant], Grant(Role.VIEWER, grant.namespace, grant.functions))
    admin = [Grant(Role.ADMIN, EVERY_NAMESPACE, payloads=True)]
    assert all(covers(admin, grant) and administers(admin, grant) for grant in ALL)
    assert covers([Grant(Role.ADMIN, "a", ("pay*",))], Grant(Role.OPERATOR, "a", ("payments", "pay.*")))
    assert covers([Grant(Role.VIEWER, "a"), Grant(Role.ADMIN, "b")], Grant(Role.ADMIN, "b", ("x",)))


@pytest.mark.parametrize("pattern", ["", "a*b", "**", "a?", "a[b]", "x\x1fy", "a\0", "x" * 301])
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="not a pattern"):
        check_grant(Grant(Role.VIEWER, "a", (pattern,)))


@pytest.mark.parametrize("namespace", ["", "A", "a/b", "a*", "\x1f"])
def test_other_namespaces_are_refused(namespace: str) -> None:
    with pytest.raises(UsageError, match="namespace"):
        check_grant(Grant(Role.VIEWER, namespace))


def test_names_prefixes_and_all_namespaces_are_valid() -> None:
    check_grant(Grant(Role.VIEWER, EVERY_NAMESPACE, ("pay", "pay.*", "*", "é")))
