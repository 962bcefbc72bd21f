"""One header of a trusted proxy names its user, and no other header earns roles."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.access.caller import Grant, Role
from mainspring.access.proxy import TrustedProxies, parse_networks, parse_rules, parse_user_header
from mainspring.api.access import AddMark
from mainspring.errors import SettingsError
from mainspring.faces.rest.replies import HttpError
from mainspring.faces.rest.security import Doorkeeper, Hosts, collect
from mainspring.server.settings import ListenSettings
from tests.unit.faces.rest.a_client import MemoryAccess

PROXY = "10.0.0.5"
RULES = parse_rules("ann@example.com=admin, *@example.com=viewer, group:ops=operator")
BY_EMAIL = TrustedProxies(parse_networks(PROXY), RULES)
BY_USER = TrustedProxies(parse_networks(PROXY), RULES, b"x-webauth-user")
NAMING = ("x-forwarded-user", "x-forwarded-preferred-username", "x-auth-request-email", "remote-user", "x-webauth-user")


@pytest.mark.parametrize("name", NAMING)
def test_a_name_that_users_choose_earns_no_roles_of_an_address(name: str) -> None:
    nickname = {name.encode(): b"ann@example.com"}
    assert BY_EMAIL.caller(PROXY, nickname) is None
    assert BY_EMAIL.caller(PROXY, nickname | {b"x-forwarded-groups": b"ops"}) is None, "groups name no user"
    caller = BY_EMAIL.caller(PROXY, nickname | {b"x-forwarded-email": b"eve@example.com"})
    assert caller is not None
    assert (caller.name, caller.grants) == ("eve@example.com", (Grant(Role.VIEWER),))


def test_the_chosen_header_counts_and_the_audit_names_it() -> None:
    headers = {b"x-webauth-user": b"eve@example.com", b"x-forwarded-email": b"ann@example.com"}
    for proxies, name, header in (
        (BY_USER, "eve@example.com", "x-webauth-user"),
        (BY_EMAIL, "ann@example.com", "x-forwarded-email"),
    ):
        caller = proxies.caller(PROXY, headers)
        assert caller is not None
        act = caller.act(AddMark.call, "deploy")
        assert (act.who, act.address) == (name, f"{PROXY} ({header})")
    assert ListenSettings().proxy_user_header == b"x-forwarded-email"


@pytest.mark.parametrize(
    "name", [b"x-webauth-user", b"X-Webauth-User".lower(), b"x-forwarded-groups", b"x_webauth_user"]
)
def test_a_second_header_of_the_user_is_refused(name: bytes) -> None:
    async def test() -> None:
        doorkeeper = Doorkeeper(MemoryAccess(), Hosts(), BY_USER)
        pairs = [(b"x-webauth-user", b"eve@example.com"), (name, b"ann@example.com"), (b"x-forwarded-groups", b"a")]
        with pytest.raises(HttpError) as caught:
            await doorkeeper.admit("GET", collect(pairs), address=PROXY, secure=False)
        assert caught.value.kind.status == 400

    asyncio.run(test())


@pytest.mark.parametrize(
    "text", ["", "a b", "X-Forwarded-For", "Authorization", "Cookie", "x_user", "X-Forwarded-Groups"]
)
def test_other_headers_cannot_name_users(text: str) -> None:
    with pytest.raises(SettingsError, match="is not the name of a header with a user"):
        parse_user_header(text)
