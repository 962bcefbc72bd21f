"""Signing in and out with a browser."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from tests.unit.api.a_node import run

from .a_client import Answer, Client, serving

OWN = ("sec-fetch-site", "same-origin")
FORM = ("content-type", "application/x-www-form-urlencoded")
JOBS = "/api/v1/namespaces/default/jobs"


async def post(client: Client, path: str, *headers: tuple[str, str], scheme: str = "http", **fields: str) -> Answer:
    return await client.send(
        "POST", path, urlencode(fields).encode(), token=None, headers=[OWN, FORM, *headers], scheme=scheme
    )


@pytest.mark.parametrize(
    ("scheme", "cookie", "flags"),
    [
        ("http", "mainspring!queue", "; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"),
        ("https", "__Host-mainspring!queue", "; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure"),
    ],
)
def test_a_token_begins_a_session_which_ends_at_the_log_out(scheme: str, cookie: str, flags: str) -> None:
    async def test() -> None:
        async with serving(prefix="/queue") as (client, _):
            page = await client.get("/queue/login", token=None)
            assert page.status == 200
            assert b'<form class="panel" method="post" action="/queue/login">' in page.body
            assert b'name="token"' in page.body
            assert b"mainspring tokens create" in page.body
            assert b"tokens create" not in (await client.get("/queue/login?link=msl_x", token=None)).body
            begun = await post(client, "/queue/login", scheme=scheme, token=" viewer\n")
            assert (begun.status, begun.headers["location"]) == (303, "/queue/")
            value, _, rest = begun.headers["set-cookie"].partition(";")
            assert (value, ";" + rest) == (f"{cookie}=session-viewer", flags)
            session = ("cookie", value)
            assert (await client.get(JOBS, token=None, headers=[session], scheme=scheme)).status == 200
            ended = await post(client, "/queue/logout", session, scheme=scheme)
            assert (ended.status, ended.headers["location"]) == (303, "/queue/login")
            assert "Max-Age=0" in ended.headers["set-cookie"]
            assert (await client.get(JOBS, token=None, headers=[session], scheme=scheme)).status == 401

    run(test())


def test_where_the_store_keeps_no_tokens_the_sign_in_says_where_the_token_is() -> None:
    async def test() -> None:
        async with serving(keeps_tokens=False) as (client, _):
            page = await client.get("/login", token=None)
            assert b"The node prints one at each start" in page.body
            assert b"tokens create" not in page.body

    run(test())


def test_the_sign_in_leads_to_the_page_that_was_asked_for_and_never_to_another_site() -> None:
    async def test() -> None:
        async with serving(prefix="/queue") as (client, _):
            page = await client.get("/queue/login?next=%2Fjobs%3Fstate%3Dfailed", token=None)
            assert b'name="next" value="/jobs?state=failed"' in page.body
            for following, target in (
                ("/jobs?state=failed&function=a%2Fb", "/queue/jobs?state=failed&function=a%2Fb"),
                ("", "/queue/"),
                ("//evil.example/", "/queue/"),
                ("/\\evil.example", "/queue/"),
                ("https://evil.example/", "/queue/"),
                ("/jobs\r\nset-cookie: a=b", "/queue/"),
                ("/\u00e9", "/queue/"),
            ):
                begun = await post(client, "/queue/login", token="viewer", next=following)
                assert (begun.status, begun.headers["location"]) == (303, target)
            refused = await post(client, "/queue/login", token="wrong", next="/jobs")
            assert b'name="next" value="/jobs"' in refused.body

    run(test())


def test_a_link_is_used_by_its_button_and_once() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            for _ in range(2):  # as a browser that fetches pages ahead does
                page = await client.get("/login?link=msl_x", token=None)
            (value,) = re.findall(rb'name="link" value="([^"]*)"', page.body)
            assert (await post(client, "/login", link=value.decode())).status == 303
            used = await post(client, "/login", link=value.decode())
            assert used.status == 401
            assert b'name="token"' in used.body
            assert "set-cookie" not in used.headers

    run(test())


def test_a_wrong_token_begins_no_session_and_is_not_shown() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            for fields in ({"token": "canary"}, {}, {"link": "canary"}, {"token": ""}):
                refused = await post(client, "/login", **fields)
                assert refused.status == 401
                assert "set-cookie" not in refused.headers
                assert b"canary" not in refused.body

    run(test())


def test_texts_of_others_are_escaped() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            for name in ("link", "next"):
                page = await client.get(f"/login?{name}=%22%3E%3Cscript%3E", token=None)
                assert b"<script" not in page.body
                assert b'value="&quot;&gt;&lt;script&gt;"' in page.body
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy

    run(test())


@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_other_sites_can_neither_sign_in_nor_out(path: str) -> None:
    async def test() -> None:
        async with serving() as (client, _):
            body = b"token=viewer"
            for headers, status in (
                ([("sec-fetch-site", "cross-site")], 403),
                ([("origin", "http://evil.example")], 403),
                ([], 403),
                ([("origin", "http://127.0.0.1:8080")], 303),
            ):
                answer = await client.send("POST", path, body, token=None, headers=[FORM, *headers])
                assert answer.status == status, headers
            evil = await client.send("POST", path, body, token=None, headers=[FORM, OWN], host="evil.example")
            assert evil.status == 421

    run(test())


def test_forms_have_a_type_and_a_limit() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            assert (await client.send("POST", "/login", b"token=viewer", token=None, headers=[OWN])).status == 415
            assert (await post(client, "/login", token="x" * 10_000)).status == 413
            for path, method in (("/login", "PUT"), ("/logout", "GET")):
                answer = await client.send(method, path, token=None, headers=[OWN])
                assert (answer.status, "POST" in answer.headers["allow"]) == (405, True)

    run(test())


@pytest.mark.parametrize(("proxy", "cookie"), [("10.0.0.1", "mainspring="), ("127.0.0.1", "__Host-mainspring=")])
def test_a_trusted_proxy_with_tls_makes_the_cookie_secure(proxy: str, cookie: str) -> None:
    async def test() -> None:
        async with serving(proxies=proxy) as (client, _):
            begun = await post(client, "/login", ("x-forwarded-proto", "https"), token="viewer")
            assert begun.headers["set-cookie"].startswith(cookie)

    run(test())
