"""The way of a request through the application."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.unit.api.a_node import UNKNOWN_HANDLE, run

from mainspring.access.caller import Permission
from mainspring.api.request import ApiError, Code, Request
from mainspring.faces.rest.registry import Context, Route
from mainspring.faces.rest.replies import Raw, Reply
from mainspring.faces.rest.routes import ROUTES
from mainspring.faces.web.exchange import N

from .a_client import serving

JOBS = "/api/v1/namespaces/default/jobs"


class Echo(Request[dict[str, Any]], kw_only=True):
    """An invented request."""

    permission = Permission.DEVELOP
    call = "echo"
    name: str
    number: int = 1
    values: list[int] = []  # noqa: RUF012 - msgspec copies it
    ratio: float | None = None
    labels: list[str] = []  # noqa: RUF012


async def echo(context: Context) -> Any:
    inputs = context.inputs
    if inputs.name == "broken":
        raise RuntimeError("secret")
    if inputs.name == "raw":
        return Raw(b"<html>")
    if inputs.name == "new":
        return Reply({"a": 1}, 201, {"Location": "/x"})
    if inputs.name == "nothing":
        return None
    if inputs.name == "refused":
        raise ApiError(Code.REFUSED, "full")
    return msgspec.structs.asdict(inputs)


ECHO = Route(
    method="POST",
    path=N + "/echo/{name}",
    request=Echo,
    answer=dict[str, Any],
    summary="Echo",
    handler=echo,
    limit=1000,
)
ECHO_GET = Route(
    method="GET",
    path=N + "/echo/{name}",
    request=Echo,
    answer=dict[str, Any],
    summary="Echo",
    handler=echo,
    name="echo_get",
)


def test_a_job_is_shown_and_listed() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            handle = await node.submit(b"f", unique=b"u")
            shown = await client.get(f"{JOBS}/{handle}", token="viewer")
            assert (shown.status, shown.json["handle"], shown.json["unique"]) == (200, handle, "u")
            assert shown.headers["content-type"] == "application/json"
            listed = await client.get(f"{JOBS}?function=f&state=pending")
            assert [job["handle"] for job in listed.json["items"]] == [handle]
            assert (await client.get(f"{JOBS}?function=other")).json == {
                "items": [],
                "next": None,
                "searched_to": None,
            }

    run(test())


def test_the_pages_of_a_list_follow_their_cursors() -> None:
    async def test() -> None:
        async with serving(prefix="/queue") as (client, node):
            handles = [await node.submit(b"f") for _ in range(5)]
            path, found = f"{JOBS}?limit=2&function=f", []
            while True:
                page = await client.get(path)
                found += [job["handle"] for job in page.json["items"]]
                if page.json["next"] is None:
                    assert "link" not in page.headers
                    break
                assert page.json["searched_to"] == page.json["items"][-1]["created_at"]
                target, _, relation = page.headers["link"].partition("; ")
                assert relation == 'rel="next"'
                assert target.startswith("</queue/api/v1/"), target
                path = target.strip("<>").removeprefix("/queue")
            assert found == handles[::-1]
            cursor = (await client.get(f"{JOBS}?limit=2&function=f")).json["next"]
            assert len((await client.get(f"{JOBS}?limit=3&function=f&cursor={cursor}")).json["items"]) == 3
            another = f"{JOBS.replace('default', 'team')}?function=f&cursor={cursor}"
            for other in (f"{JOBS}?cursor={cursor}", f"{JOBS}?function=g&cursor={cursor}", another):
                refused = await client.get(other)
                assert (refused.status, refused.json["errors"][0]["parameter"]) == (422, "cursor")
            for wrong in ("x", "%C3%A9", cursor[:-3], cursor + "AAAA", "=", "A" * 30):
                assert (await client.get(f"{JOBS}?function=f&cursor={wrong}")).status in (404, 422)

    run(test())


@pytest.mark.parametrize(
    ("method", "path", "status", "problem"),
    [
        ("GET", "/", 404, "path-not-found"),
        ("GET", "/api/v1", 404, "path-not-found"),
        ("GET", JOBS + "/", 404, "path-not-found"),
        ("GET", "/api/v1/namespaces//jobs", 404, "path-not-found"),
        ("GET", JOBS + "/%FF", 400, "malformed"),
        ("GET", JOBS + "/" + UNKNOWN_HANDLE, 404, "job-not-found"),
        ("DELETE", JOBS, 405, "method-not-allowed"),
        ("TRACE", JOBS, 405, "method-not-allowed"),
        ("GET", JOBS + "?limit=x", 422, "invalid"),
        ("GET", JOBS + "?limit=0", 422, "invalid"),
        ("GET", JOBS + "?limit=1&limit=2", 422, "invalid"),
        ("GET", JOBS + "?namespace=other", 422, "invalid"),
        ("GET", JOBS + "?colour=red", 422, "invalid"),
        ("GET", JOBS + "?state=asleep", 422, "invalid"),
        ("GET", JOBS + "?function=%FF", 400, "malformed"),
        ("GET", JOBS + "?" + "a=1&" * 300, 400, "malformed"),
    ],
)
def test_a_request_that_cannot_be_answered_gets_a_problem(method: str, path: str, status: int, problem: str) -> None:
    async def test() -> None:
        async with serving() as (client, _):
            answer = await client.send(method, path)
            assert (answer.status, answer.problem, answer.json["status"]) == (status, problem, status)
            assert answer.json["instance"] == "urn:mainspring:request:" + answer.headers["x-request-id"]
            if status == 405:
                assert answer.headers["allow"] == "GET, HEAD, POST"

    run(test())


@pytest.mark.parametrize(
    ("body", "status", "problem", "pointer"),
    [
        (b"{", 400, "malformed", None),
        (b'{"number": "x"}', 422, "invalid", "/number"),
        (b'{"values": [1, "x"]}', 422, "invalid", "/values/1"),
        (b'{"colour": 1}', 422, "invalid", "/colour"),
        (b'{"name": "other"}', 422, "invalid", "/name"),
        (b'{"namespace": "other"}', 422, "invalid", "/namespace"),
        (b"[]", 422, "invalid", ""),
        (b'{"number": 1e999}', 422, "invalid", "/number"),
        (b"[" * 900, 422, "invalid", ""),
        (b'{"values": "' + b"x" * 1000 + b'"}', 413, "too-large", None),
    ],
)
def test_an_invalid_body_is_refused_with_the_place(body: bytes, status: int, problem: str, pointer: str | None) -> None:
    async def test() -> None:
        async with serving((ECHO,)) as (client, _):
            answer = await client.send(
                "POST",
                "/api/v1/namespaces/default/echo/a",
                body,
                headers=[("content-type", "application/json"), ("content-length", str(len(body)))],
            )
            assert (answer.status, answer.problem) == (status, problem), answer.body
            if pointer is not None:
                assert [fault["pointer"] for fault in answer.json["errors"]] == [pointer]

    run(test())


def test_inputs_come_from_the_path_the_query_and_the_body() -> None:
    async def test() -> None:
        async with serving((ECHO, ECHO_GET)) as (client, _):
            path = "/api/v1/namespaces/team/echo/a%2Fb%20%C3%A9"
            values = {"number": 3, "values": [4], "ratio": 1.5, "labels": ["x", "y"]}
            sent = await client.send("POST", path, values)
            assert sent.json == {"namespace": "team", "name": "a/b é"} | values
            assert (await client.get(f"{path}?number=3&values=4&ratio=1.5&labels=x&labels=y")).json == sent.json
            assert (await client.send("POST", f"{path}?number=3", {})).status == 422, "it has no parameters"
            assert (await client.send("POST", path)).json["number"] == 1, "a body without required keys may be left out"
            for wrong in ("nan", "inf", "-Infinity", "x"):
                refused = await client.get(f"/api/v1/namespaces/team/echo/a?ratio={wrong}")
                assert (refused.status, refused.json["errors"][0]["parameter"]) == (422, "ratio")

    run(test())


def test_a_body_needs_the_media_type_of_json() -> None:
    """A form of another site could otherwise send JSON as text/plain."""

    async def test() -> None:
        async with serving((ECHO,)) as (client, _):
            path = "/api/v1/namespaces/default/echo/a"
            for headers in ([], [("content-type", "text/plain")]):
                assert (await client.send("POST", path, b"{}", headers=headers)).status == 415
            headers = [("content-type", "Application/JSON; charset=utf-8")]
            assert (await client.send("POST", path, b"{}", headers=headers)).status == 200

    run(test())


def test_answers_have_the_status_and_the_headers_of_their_kind(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with serving((ECHO,)) as (client, _):
            base = "/api/v1/namespaces/default/echo/"
            raw = await client.send("POST", base + "raw")
            assert (raw.status, raw.body) == (200, b"<html>")
            assert raw.headers["content-type"] == "application/octet-stream"
            assert raw.headers["content-disposition"].startswith("attachment")
            new = await client.send("POST", base + "new")
            assert (new.status, new.json, new.headers["location"]) == (201, {"a": 1}, "/x")
            nothing = await client.send("POST", base + "nothing")
            assert (nothing.status, nothing.body) == (204, b"")
            refused = await client.send("POST", base + "refused")
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            broken = await client.send("POST", base + "broken")
            assert (broken.status, broken.problem) == (500, "internal")
            assert b"secret" not in broken.body
            for answer in (raw, new, nothing, refused, broken):
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["cache-control"] == "no-store"
                assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
                assert answer.headers["referrer-policy"] == "no-referrer"
                assert answer.headers["cross-origin-resource-policy"] == "same-origin"

    run(test())


def test_a_permission_is_checked_before_the_body_is_read() -> None:
    async def test() -> None:
        async with serving((ECHO,)) as (client, _):
            client.access.add("there", client.access.callers["developer"].grants[0].role, "team")
            base = "/api/v1/namespaces/{}/echo/a"
            for token, namespace, status in (
                ("viewer", "default", 403),
                ("operator", "default", 403),
                ("developer", "default", 422),
                ("there", "default", 403),
                ("there", "team", 422),
            ):
                answer = await client.send("POST", base.format(namespace), {"number": "x"}, token=token)
                assert answer.status == status, (token, namespace)

    run(test())


def test_a_body_that_is_too_long_is_refused_before_it_is_read() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError

    async def test() -> None:
        async with serving() as (client, _):
            length = [("content-length", str(1 << 30)), ("content-type", "application/json")]
            refused = await client.send("POST", JOBS, headers=length, receive=receive)
            assert (refused.status, refused.problem) == (413, "too-large")
            assert refused.headers["connection"] == "close"

    run(test())


def test_every_route_has_a_permission_and_a_name() -> None:
    assert all(isinstance(route.permission, Permission) for route in ROUTES)
    assert all(route.summary for route in ROUTES)


def test_a_caller_has_a_limited_number_of_requests_under_way() -> None:
    async def test() -> None:
        async with serving(places=8) as (client, _):
            sent, go_on = asyncio.Queue[None](), asyncio.Event()

            async def receive() -> dict[str, Any]:
                sent.put_nowait(None)
                await go_on.wait()
                return {"type": "http.request", "body": b'{"function": "f"}'}

            first = [asyncio.ensure_future(client.send("POST", JOBS, receive=receive)) for _ in range(5)]
            for _ in first:
                await sent.get()
            refused = await client.get(JOBS)
            assert (refused.status, refused.problem) == (429, "too-many-requests")
            assert refused.headers["retry-after"] == "1"
            assert (await client.get(JOBS, token="viewer")).status == 200
            go_on.set()
            assert [(await one).status for one in first] == [415] * 5
            assert (await client.get(JOBS)).status == 200

    run(test())
