"""Checks of hosts, sites and callers. Each is made before anything else is done for a request."""

from __future__ import annotations

import pytest
from tests.unit.api.a_node import run

from mainspring.access.caller import Permission
from mainspring.access.proxy import TrustedProxies, parse_networks, parse_rules
from mainspring.faces.rest.replies import HttpError
from mainspring.faces.rest.routes import ROUTES
from mainspring.faces.rest.security import Doorkeeper, Hosts, collect

from .a_client import Client, MemoryAccess, serving

JOBS = "/api/v1/namespaces/default/jobs"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_no_route_answers_without_a_token(route: object) -> None:
    async def test() -> None:
        async with serving() as (client, _):
            path = route.path.replace("{", "").replace("}", "")  # type: ignore[attr-defined]
            for token in (None, "", "wrong"):
                answer = await client.send(route.method, path, token=token)  # type: ignore[attr-defined]
                if route.permission is Permission.BY_TOKEN:  # type: ignore[attr-defined]
                    assert (answer.status, answer.problem) == (404, "completion-not-found")
                    continue
                assert (answer.status, answer.problem) == (401, "unauthenticated")
                assert answer.headers["www-authenticate"].startswith("Bearer")

    run(test())


def test_paths_that_do_not_exist_are_not_distinguished_without_a_token() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            for path in ("/", "/other", "/api/v1/openapi.json", "/api/v1/status"):
                assert (await client.get(path, token=None)).status == 401

    run(test())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("10.1.2.3", 200),
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("jobs.example", 200),
        ("jobs.example.:443", 200),
        ("evil.example", 421),
        ("jobs.example.evil.example", 421),
        ("localhost.evil.example:8080", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::1]evil", 400),
        ("127.0.0.1@evil.example", 400),
        ("", 400),
    ],
)
def test_a_request_has_to_name_the_node(host: str, status: int) -> None:
    async def test() -> None:
        async with serving(hosts=["jobs.example"]) as (client, _):
            for token in ("viewer", None):
                answer = await client.get(JOBS, host=host, token=token)
                assert answer.status == (401 if token is None and status == 200 else status)

    run(test())


SITES: list[tuple[list[tuple[str, str]], bool, bool]] = [
    # headers; whether a cookie is enough; whether a token is
    ([("sec-fetch-site", "same-origin")], True, True),
    ([("sec-fetch-site", "none")], True, True),
    ([("sec-fetch-site", "same-site")], False, False),
    ([("sec-fetch-site", "cross-site")], False, False),
    ([("sec-fetch-site", "cross-site"), ("origin", "http://127.0.0.1:8080")], False, False),
    ([("origin", "http://127.0.0.1:8080")], True, True),
    ([("origin", "http://127.0.0.1:9090")], False, False),
    ([("origin", "http://evil.example")], False, False),
    ([("origin", "null")], False, False),
    ([], False, True),
]


@pytest.mark.parametrize(("headers", "with_cookie", "with_token"), SITES)
def test_other_sites_can_change_nothing(headers: list[tuple[str, str]], with_cookie: bool, with_token: bool) -> None:
    async def statuses(client: Client, method: str) -> tuple[int, int]:
        cookie = [*headers, ("cookie", "a=b; mainspring=session-admin")]
        return (
            (await client.send(method, JOBS, token=None, headers=cookie)).status,
            (await client.send(method, JOBS, headers=headers)).status,
        )

    async def test() -> None:
        async with serving() as (client, _):
            for method in ("POST", "PUT", "PATCH", "DELETE", "BREW"):
                admitted = 400 if method == "POST" else 405  # there is no body, or no such method
                expected = tuple(admitted if is_allowed else 403 for is_allowed in (with_cookie, with_token))
                assert await statuses(client, method) == expected
            assert await statuses(client, "GET") == (200, 200)

    run(test())


def test_a_security_header_is_accepted_once() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            for name, value in (("host", "127.0.0.1"), ("authorization", "Bearer admin"), ("cookie", "mainspring=x")):
                twice = [(name, value)] * (1 if name != "cookie" else 2)
                assert (await client.get(JOBS, headers=twice)).problem == "malformed", name

    run(test())


def test_a_session_is_the_cookie_of_the_scheme() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            for scheme, text, status in (
                ("http", "mainspring=session-viewer", 200),
                ("http", "__Host-mainspring=session-viewer", 401),
                ("https", "__Host-mainspring=session-viewer", 200),
                ("https", "mainspring=session-viewer", 401),
                ("http", "mainspring=session-viewer; mainspring=session-admin", 401),
                ("http", "mainspring=", 401),
            ):
                answer = await client.get(JOBS, token=None, headers=[("cookie", text)], scheme=scheme)
                assert answer.status == status, text
            both = [("cookie", "mainspring=session-viewer"), ("authorization", "Basic eDp5")]
            assert (await client.get(JOBS, token=None, headers=both)).status == 401, "the header decides"

    run(test())


# ---- users of a trusted proxy ----

PROXIES = TrustedProxies(parse_networks("10.0.0.5"), parse_rules("*@example.com=viewer"))


@pytest.mark.parametrize(
    ("peer", "headers", "status"),
    [
        ("10.0.0.5", [(b"x-forwarded-email", b"ann@example.com")], 200),
        ("10.0.0.6", [(b"x-forwarded-email", b"ann@example.com")], 401),
        ("10.0.0.6", [(b"x-forwarded-email", b"ann@example.com"), (b"x-forwarded-for", b"10.0.0.5")], 401),
        ("10.0.0.5", [(b"x-forwarded-email", b"ann@example.com.evil")], 401),
        ("10.0.0.5", [(b"x-forwarded-email", b"ann@example.com"), (b"authorization", b"Bearer wrong")], 401),
        ("10.0.0.5", [(b"x-forwarded-email", b"ann@example.com"), (b"x_forwarded_email", b"bob@example.com")], 400),
        ("10.0.0.5", [(b"x-forwarded-email", b"ann@example.com"), (b"x-forwarded-email", b"bob@example.com")], 400),
    ],
)
def test_users_of_a_trusted_proxy(peer: str, headers: list[tuple[bytes, bytes]], status: int) -> None:
    async def test() -> None:
        doorkeeper = Doorkeeper(MemoryAccess(), Hosts(), PROXIES)

        async def admit() -> str:
            caller = await doorkeeper.admit("GET", collect(headers), address=peer, secure=False)
            return caller.name

        if status == 200:
            assert await admit() == "ann@example.com"
            return
        with pytest.raises(HttpError) as caught:
            await admit()
        assert caught.value.kind.status == status

    run(test())


def test_a_user_of_a_proxy_is_protected_from_other_sites() -> None:
    async def test() -> None:
        doorkeeper = Doorkeeper(MemoryAccess(), Hosts(), PROXIES)
        headers = {b"x-forwarded-email": b"ann@example.com"}
        for more in ({}, {b"sec-fetch-site": b"cross-site"}, {b"origin": b"https://evil.example"}):
            with pytest.raises(HttpError) as caught:
                await doorkeeper.admit("POST", headers | more, address="10.0.0.5", secure=False)
            assert caught.value.kind.status == 403

    run(test())
