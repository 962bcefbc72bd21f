"""Users that a trusted proxy has signed in."""

from __future__ import annotations

import pytest

from mainspring.access.caller import Grant, Role
from mainspring.access.proxy import SpoofedHeaderError, TrustedProxies, parse_networks, parse_rules
from mainspring.errors import SettingsError

PROXIES = TrustedProxies(
    parse_networks("10.0.0.5, 192.168.0.0/16, fd00::/8"),
    parse_rules(
        "ann@example.com=admin@*+payloads, *@example.com=viewer, group:ops=operator@shop, bot=developer, ci*=admin"
    ),
)
ANN = (Grant(Role.ADMIN, "*", payloads=True), Grant(Role.VIEWER))


def grants(peer: str = "10.0.0.5", **headers: str) -> tuple[Grant, ...] | None:
    caller = PROXIES.caller(peer, {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()})
    return None if caller is None else caller.grants


def test_a_user_has_the_grants_of_all_rules_that_match() -> None:
    assert grants(x_forwarded_email="ann@example.com") == ANN
    assert grants(x_forwarded_email="bob@example.com") == (Grant(Role.VIEWER),)
    assert grants(x_forwarded_email="bot") == (Grant(Role.DEVELOPER),)
    assert grants(x_forwarded_email="x", x_forwarded_groups="dev, ops") == (Grant(Role.OPERATOR, "shop"),)
    assert grants(x_forwarded_email="x", x_forwarded_groups="dev") is None
    caller = PROXIES.caller("10.0.0.5", {b"x-forwarded-user": b"u1", b"x-forwarded-email": b"bob@example.com"})
    assert caller is not None
    assert (caller.name, caller.address, caller.token) == ("bob@example.com", "10.0.0.5", "")


@pytest.mark.parametrize(
    "peer", ["10.0.0.6", "127.0.0.1", "::1", "", "localhost", "11.0.0.5", "10.0.0.5:80", "::ffff:10.0.0.6"]
)
def test_headers_of_other_peers_do_not_count(peer: str) -> None:
    assert grants(peer, x_forwarded_email="ann@example.com", x_forwarded_for="10.0.0.5") is None


@pytest.mark.parametrize("peer", ["192.168.7.7", "fd00::1", "::ffff:10.0.0.5"])
def test_networks_contain_addresses(peer: str) -> None:
    assert grants(peer, x_forwarded_email="ann@example.com") == ANN


@pytest.mark.parametrize(
    "name",
    [
        "ci@evil.example",
        "ann@example.com.evil",
        "xann@example.com.evil",
        "ann@example.comx",
        "ann@notexample.com",
        "evil@evil@example.com"[:4] + "@sub.example.com",
        "Ann@example.com"[:3] + "@EXAMPLE.COM",
    ],
)
def test_patterns_match_whole_names(name: str) -> None:
    assert grants(x_forwarded_email=name) is None


@pytest.mark.parametrize("name", ["ann@example.com,bob", "a@b@example.com", "ann@example.com\n", "a b", "", "x" * 201])
def test_names_that_could_be_two_are_refused(name: str) -> None:
    if not name.strip():
        with pytest.raises(SpoofedHeaderError):
            grants(x_forwarded_email=name)
        return
    value = name if "\n" not in name else "ann@example.com\nX-Other: y"
    with pytest.raises(SpoofedHeaderError):
        grants(x_forwarded_email=value)


@pytest.mark.parametrize("name", [b"x_forwarded_email", b"x-forwarded_email", b"x_forwarded-groups"])
def test_other_spellings_are_refused(name: bytes) -> None:
    with pytest.raises(SpoofedHeaderError, match="has to remove it"):
        PROXIES.caller("10.0.0.5", {name: b"ann@example.com", b"x-forwarded-email": b"bob"})


@pytest.mark.parametrize("text", ["", "10.0.0.0/33", "proxy", "10.0.0.5/8"])
def test_wrong_networks_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="networks"):
        parse_networks(text)


@pytest.mark.parametrize(
    "text", ["", "ann", "ann=root", "=viewer", "*=viewer", "a*b*=viewer", "ann=viewer@No", "ann=viewer+all"]
)
def test_wrong_rules_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_rules(text)
