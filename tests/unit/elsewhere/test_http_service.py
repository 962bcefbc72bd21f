"""A service takes work once for a key, is asked for its state, and costs no more than the limits, whatever it answers."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest

from mainspring.client.external import Done, Failed, Running, Throttled
from mainspring.elsewhere import HttpMeta, HttpRefusedError, HttpServiceError, HttpWork
from mainspring.errors import UsageError

from .a_service import Asked, Service, answer, says, serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

LINES: dict[str, Any] = {"submit": "POST /jobs", "status": "GET /jobs/{id}", "cancel": "DELETE /jobs/{id}"}


def work_at(service: Service, **settings: Any) -> HttpWork:
    return HttpWork(service.url, networks=("127.0.0.0/8",), **{**LINES, **settings})


def with_service(test: Callable[[Service], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving() as service:
            await test(service)

    asyncio.run(run())


async def error_of(running: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(HttpServiceError) as caught:
        await running
    return str(caught.value)


def test_work_goes_its_way() -> None:
    async def test(service: Service) -> None:
        work = work_at(service)
        meta = await work.submit({"scene": 4}, "key-1")
        assert meta == HttpMeta("job/1", "key-1")
        assert service.asked[0].headers["content-type"] == "application/json"
        job = service.jobs["job/1"]
        assert job["args"] == {"scene": 4}
        assert await work.status(meta) == Running()
        job |= {"state": "running", "progress": 0.5, "text": "frame\n5"}
        assert await work.status(meta) == Running(0.5, "frame 5")
        job |= {"state": "done", "result": [1, 2]}
        assert await work.status(meta) == Done([1, 2])
        job |= {"state": "failed", "error": "no light"}
        assert await work.status(meta) == Failed("no light")
        await work.cancel(meta)
        assert await work.status(meta) == Failed("no light")
        del job["error"]
        assert await work.status(meta) == Failed("the service answered: cancelled")
        assert [asked.path for asked in service.asked[1:]] == ["/api/jobs/job%2F1"] * 7
        assert await work.logs(meta) == ""

    with_service(test)


def test_the_places_and_states_of_a_service_are_settings() -> None:
    async def test(service: Service) -> None:
        work = work_at(
            service,
            submit="PUT /steps/{key}",
            status="GET /steps/{key}",
            cancel="POST /steps/{key}/cancel",
            logs="GET /steps/{key}/log",
            id="",
            state="step.status",
            result="step.output",
            running=("RUNNING",),
            done=("COMPLETED",),
            failed=("FAILED",),
        )
        service.fault = says(
            answer(200, None),
            answer(200, {"step": {"status": "RUNNING"}}),
            answer(200, {"step": {"status": "COMPLETED", "output": "s3://x"}}),
            answer(202),
            b"HTTP/1.1 200 OK\r\n\r\nline 1\nline 2\n",
        )
        meta = await work.submit(None, "a b")
        assert meta == HttpMeta("a b", "a b")
        assert await work.status(meta) == Running()
        assert await work.status(meta) == Done("s3://x")
        await work.cancel(meta)
        assert await work.logs(meta) == "line 1\nline 2\n"
        assert [(asked.method, asked.path) for asked in service.asked] == [
            ("PUT", "/api/steps/a%20b"),
            ("GET", "/api/steps/a%20b"),
            ("GET", "/api/steps/a%20b"),
            ("POST", "/api/steps/a%20b/cancel"),
            ("GET", "/api/steps/a%20b/log"),
        ]

    with_service(test)


def test_a_lost_answer_submits_nothing_twice() -> None:
    async def lose(_: Asked, writer: asyncio.StreamWriter) -> bool:
        writer.transport.abort()
        return True

    async def test(service: Service) -> None:
        work = work_at(service)
        service.fault = lose
        assert "the connection ended before the answer" in await error_of(work.submit(1, "key-1"))
        service.fault = None
        assert await work.submit(1, "key-1") == HttpMeta("job/1", "key-1")
        assert list(service.jobs) == ["job/1"]

    with_service(test)


def test_a_late_answer_submits_nothing_twice() -> None:
    async def test(service: Service) -> None:
        done = asyncio.Event()

        async def wait(_: Asked, __: asyncio.StreamWriter) -> bool:
            await done.wait()
            return True

        work = work_at(service, timeout=0.2)
        service.fault = wait
        assert await error_of(work.submit(1, "key-1")) == "no answer within 0.2 s"
        done.set()
        service.fault = None
        assert await work.submit(1, "key-1") == HttpMeta("job/1", "key-1")
        assert list(service.jobs) == ["job/1"]

    with_service(test)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("asked", "pause"),
    [("7", 7.0), ("0", 1.0), ("999999", 3600.0), ("nonsense", 1.0), (None, 5.0)],
)
def test_a_busy_service_is_given_time(status: int, asked: str | None, pause: float) -> None:
    async def test(service: Service) -> None:
        work = work_at(service)
        service.fault = says(answer(status, "busy", **({"retry_after": asked} if asked is not None else {})))
        with pytest.raises(Throttled) as caught:
            await work.submit(1, "key-1")
        assert caught.value.pause == pause
        assert await work.submit(1, "key-1") == HttpMeta("job/1", "key-1")

    with_service(test)


def test_the_time_of_a_pause_may_be_a_date() -> None:
    async def test(service: Service) -> None:
        service.fault = says(answer(503, retry_after=formatdate(time.time() + 100, usegmt=True)))
        with pytest.raises(Throttled) as caught:
            await work_at(service).status(HttpMeta("job/1", "k"))
        assert 90 < caught.value.pause <= 100

    with_service(test)


def test_a_huge_answer_is_read_up_to_the_limit() -> None:
    sent = 0

    async def flood(_: Asked, writer: asyncio.StreamWriter) -> bool:
        nonlocal sent
        writer.write(b'HTTP/1.1 200 OK\r\n\r\n{"id": "')
        while True:
            writer.write(b"x" * 65_536)
            sent += 65_536
            await writer.drain()

    async def test(service: Service) -> None:
        service.fault = flood
        work = work_at(service, most=100_000, logs="GET /jobs/{id}/log")
        meta = HttpMeta("1", "k")
        assert "too long" in await error_of(work.submit(1, "key-1"))
        assert "too long" in await error_of(work.status(meta))
        assert 90_000 < len(await work.logs(meta)) < 100_000
        assert sent < 20_000_000

    with_service(test)


@pytest.mark.parametrize(
    "given",
    [
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 50_000,
        b'HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"id": "x", "state": "done"}',
        b"nonsense\r\n\r\n",
        answer(200, {"id": None, "state": None}),
        answer(200, {"id": ["x"], "state": ["done"]}),
        answer(200, {"id": True, "state": "unheard of"}),
        answer(200, [1]),
        answer(500, {"id": "x", "state": "done"}),
        answer(400, {"id": "x", "state": "done"}),
        answer(304),
        answer(408),
    ],
)
def test_other_answers_are_errors(given: bytes) -> None:
    async def test(service: Service) -> None:
        service.fault = says(given, given)
        await error_of(work_at(service).submit(1, "key-1"))
        await error_of(work_at(service).status(HttpMeta("x", "k")))

    with_service(test)


@pytest.mark.parametrize("status", [400, 401, 409, 422])
def test_a_refusal_has_its_status_and_text(status: int) -> None:
    async def test(service: Service) -> None:
        service.fault = says(answer(status, {"message": "no\x1b[31m"}))
        with pytest.raises(HttpRefusedError, match=f"POST /jobs with {status}: .*no") as caught:
            await work_at(service).submit(1, "key-1")
        assert caught.value.status == status
        assert str(caught.value).isprintable()

    with_service(test)


def test_work_that_the_service_does_not_have_has_failed_and_is_cancelled() -> None:
    async def test(service: Service) -> None:
        work = work_at(service)
        found = await work.status(HttpMeta("lost", "k"))
        assert found == Failed("the service does not have lost any more (status 404)")
        await work.cancel(HttpMeta("lost", "k"))
        service.fault = says(answer(500))
        await error_of(work.cancel(HttpMeta("lost", "k")))

    with_service(test)


@pytest.mark.parametrize("identity", ["../admin", "a/../../b", "a?b#c", "ü", "%2e%2e"])
def test_an_id_leads_to_no_other_path(identity: str) -> None:
    async def test(service: Service) -> None:
        service.fault = says(answer(200, {"id": identity}))
        work = work_at(service)
        meta = await work.submit(1, "key-1")
        await work.status(meta)
        path = service.asked[-1].path
        assert path.startswith("/api/jobs/")
        assert not {"/", "?", "#"} & set(path.removeprefix("/api/jobs/"))

    with_service(test)


@pytest.mark.parametrize("identity", ["", ".", "..", "x" * 600])
def test_an_id_that_is_no_part_of_a_path_is_refused(identity: str) -> None:
    async def test(service: Service) -> None:
        service.fault = says(answer(200, {"id": identity}))
        assert "cannot stand in the path" in await error_of(work_at(service).submit(1, "key-1"))

    with_service(test)


# ---- redirects and credentials ----


def test_redirects_on_the_same_host_are_followed() -> None:
    async def test(service: Service) -> None:
        work = work_at(service)
        service.fault = says(answer(307, location="/api/jobs"))
        meta = await work.submit({"scene": 1}, "key-1")
        assert service.jobs["job/1"]["args"] == {"scene": 1}
        service.fault = says(answer(302, location="job%2F1"))
        assert await work.status(meta) == Running()

    with_service(test)


def test_no_redirect_leads_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RENDERER_TOKEN", "secret")

    async def test(service: Service) -> None:
        async with serving() as other:
            work = work_at(service, token="RENDERER_TOKEN")
            for location in (other.url, f"//127.0.0.1:{other.port}/", f"https://127.0.0.1:{service.port}/", "ftp://x/"):
                service.fault = says(answer(307, location=location))
                assert "redirects to" in await error_of(work.submit(1, "key-1"))
            assert other.asked == []

    with_service(test)


def test_other_redirects_and_circles_are_errors() -> None:
    async def test(service: Service) -> None:
        work = work_at(service)
        service.fault = says(answer(303, location="/api/jobs"))
        assert "redirect 303" in await error_of(work.submit(1, "key-1"))
        service.fault = says(answer(301))
        assert "redirect 301" in await error_of(work.status(HttpMeta("1", "k")))
        service.fault = says(*[answer(307, location="/api/jobs")] * 10)
        assert "more than 3 redirects" in await error_of(work.submit(1, "key-2"))

    with_service(test)


def test_the_token_comes_from_the_environment_and_is_in_no_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(service: Service) -> None:
        work = work_at(service, token="RENDERER_TOKEN")
        assert "RENDERER_TOKEN" in await error_of(work.submit(1, "key-1"))
        assert service.asked == []
        monkeypatch.setenv("RENDERER_TOKEN", "secret")
        meta = await work.submit(1, "key-1")
        await work.status(meta)
        await work.cancel(meta)
        assert {asked.headers["authorization"] for asked in service.asked} == {"Bearer secret"}
        assert "secret" not in repr(meta)
        monkeypatch.setenv("RENDERER_TOKEN", "two\nlines")
        with pytest.raises(UsageError) as caught:
            await work.status(meta)
        assert "two" not in str(caught.value)

    with_service(test)


def test_private_addresses_are_refused_unless_they_are_named() -> None:
    async def test(service: Service) -> None:
        work = HttpWork(service.url, **LINES)
        assert "it is loopback" in await error_of(work.submit(1, "key-1"))
        assert service.asked == []

    with_service(test)


@pytest.mark.parametrize(
    "wrong",
    [
        {"base": "ftp://x.example"},
        {"base": "https://user:password@x.example"},
        {"base": "https://x.example/?a=b"},
        {"submit": "/jobs"},
        {"submit": "POST jobs"},
        {"submit": "POST /jobs/{id}"},
        {"status": "GET //x.example/{id}"},
        {"status": "GET /jobs/{name}"},
        {"status": "FETCH /jobs/{id}"},
        {"networks": ("ten",)},
        {"most": 0},
        {"timeout": -1},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"base": "https://x.example", **LINES, **wrong}
    with pytest.raises(UsageError) as caught:
        HttpWork(settings.pop("base"), **settings)
    assert "password" not in str(caught.value).replace("no password", "")
