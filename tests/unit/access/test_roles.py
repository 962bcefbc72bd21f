"""Permissions of roles and grants."""

from __future__ import annotations

import pytest

from mainspring.access.caller import EVERY_NAMESPACE, LOCAL, Caller, Grant, Permission, Role, permitted
from mainspring.errors import ForbiddenError

NEEDS = {
    Permission.READ: Role.VIEWER,
    Permission.OPERATE: Role.OPERATOR,
    Permission.DEVELOP: Role.DEVELOPER,
    Permission.ADMIN: Role.ADMIN,
}


@pytest.mark.parametrize("role", Role)
def test_each_role_permits_what_the_weaker_ones_do(role: Role) -> None:
    for permission, needed in NEEDS.items():
        assert permitted([Grant(role)], permission, "default") == (role >= needed)


def test_no_role_includes_payloads() -> None:
    assert not permitted([Grant(Role.ADMIN)], Permission.PAYLOADS, "default")
    assert permitted([Grant(Role.VIEWER, payloads=True)], Permission.PAYLOADS, "default")


def test_a_grant_holds_in_its_namespace_alone() -> None:
    grants = [Grant(Role.VIEWER, "a"), Grant(Role.ADMIN, "b")]
    assert permitted(grants, Permission.READ, "a")
    assert not permitted(grants, Permission.OPERATE, "a")
    assert not permitted(grants, Permission.READ, "default")
    assert permitted([Grant(Role.OPERATOR, EVERY_NAMESPACE)], Permission.OPERATE, "b")


def test_a_grant_holds_for_its_functions_alone() -> None:
    caller = Caller("c", (Grant(Role.OPERATOR, functions=("pay*", "mail")), Grant(Role.VIEWER, functions=("see",))))
    assert caller.may(Permission.OPERATE, "default", "payout")
    assert caller.may(Permission.OPERATE, "default"), "of some functions"
    assert not caller.may(Permission.OPERATE, "default", "see")
    assert not caller.may(Permission.READ, "default", "repay")
    assert caller.functions(Permission.READ, "default") == ("pay*", "mail", "see")
    assert caller.functions(Permission.READ, "other") == ()
    assert Caller("all", (Grant(Role.VIEWER),)).functions(Permission.READ, "default") is None
    with pytest.raises(ForbiddenError, match="'operate' in the namespace 'default' for the function 'see'"):
        caller.check(Permission.OPERATE, "default", "see")


def test_any_token_may_ask_about_itself() -> None:
    assert permitted([], Permission.SIGNED_IN, "default")


def test_the_local_caller_may_do_everything() -> None:
    for permission in Permission:
        LOCAL.check(permission, "any", "f")
    assert LOCAL.functions(Permission.READ, "any") is None
