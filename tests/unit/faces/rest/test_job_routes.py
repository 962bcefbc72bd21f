"""Routes about jobs: submitted alone and in batches, changed, deleted, awaited, and followed."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.api.a_node import UNKNOWN_HANDLE, run

from mainspring.jobs.model import failure

from .a_client import serving

if TYPE_CHECKING:
    from tests.unit.api.a_node import Node

    from .a_client import Answer, Client

JOBS = "/api/v1/namespaces/default/jobs"


async def submit(client: Client, body: Any = None, **options: Any) -> Answer:
    return await client.send("POST", JOBS, {"function": "f"} if body is None else body, **options)


async def waited_for(node: Node, handle: str) -> None:
    """Return once a request waits for a job."""
    job_id = node.service.handles.parse(handle.encode())
    assert job_id is not None
    while not node.service.listeners.of(job_id):  # noqa: ASYNC110 - a request has no event for it
        await asyncio.sleep(0)


def test_a_job_is_submitted_and_joined() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            body = {"function": "f", "args": [1, {"a": "ä"}], "unique": "u", "tags": ["x"], "delay": 5}
            created = await submit(client, body, token="developer")
            handle = created.json["handle"]
            assert (created.status, created.json) == (201, {"handle": handle, "joined": False})
            assert created.headers["location"] == f"{JOBS}/{handle}"
            shown = (await client.get(f"{JOBS}/{handle}")).json
            assert (shown["state"], shown["tags"], shown["unique"]) == ("scheduled", ["x"], "u")
            joined = await submit(client, body)
            assert (joined.status, joined.json) == (200, {"handle": handle, "joined": True})
            raw = await client.get(f"{JOBS}/{handle}/payload")
            assert raw.body == msgspec.json.encode(body["args"])
            assert raw.headers["content-type"] == "application/octet-stream"
            assert raw.headers["content-disposition"] == f'attachment; filename="{handle.replace(":", "-")}-payload"'
            assert (await submit(client, token="operator")).status == 403

    run(test())


@pytest.mark.parametrize(
    ("header", "status"),
    [({}, 0), ({"mainspring-depth": "3"}, 3), ({"mainspring-depth": "0"}, 0), ({"mainspring-depth": "8"}, 8)]
    + [({"mainspring-depth": text}, 400) for text in ("9", "-1", "08", "", "3, 3", "x", "\u0663")],
)
def test_a_request_states_the_depth_of_its_code(header: dict[str, str], status: int) -> None:
    async def test() -> None:
        async with serving() as (client, node):
            side = node.worker(b"f")
            answer = await submit(client, headers=header.items())
            if status == 400:
                assert answer.status == 400
                return
            await node.committed()
            (held,) = side.given
            assert (0 if held.job.options is None else held.job.options.depth) == status

    run(test())


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({}, 422, "invalid"),
        ({"function": ""}, 422, "invalid"),
        ({"function": "f", "more": 1}, 422, "invalid"),
        ({"function": "f", "args": 1, "payload": ""}, 422, "invalid"),
        ({"function": "f", "run_at": "2030-01-01T00:00:00"}, 422, "invalid"),
        ({"function": "f" * 600}, 413, "too-large"),
        ({"function": "f", "payload": base64.b64encode(bytes(2000)).decode()}, 413, "too-large"),
        (b"{", 400, "malformed"),
    ],
)
def test_a_job_that_cannot_be_submitted_gets_a_problem(body: Any, status: int, problem: str) -> None:
    async def test() -> None:
        async with serving() as (client, _):
            headers = [("Content-Type", "application/json")] if isinstance(body, bytes) else []
            answer = await submit(client, body, headers=headers)
            assert (answer.status, answer.problem) == (status, problem)

    run(test())


def test_a_client_waits_for_the_end_of_the_job_that_it_submits() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            side = node.worker()
            waiting = asyncio.create_task(submit(client, headers=[("Prefer", "respond-async, wait=30")]))
            while not side.given:  # noqa: ASYNC110 - a request has no event for it
                await asyncio.sleep(0)
            await waited_for(node, side.given[0].handle.decode())
            node.service.settling.succeeded(side.given[0], b'{"n":1.0}')
            answer = await waiting
            assert (answer.status, answer.headers["preference-applied"]) == (200, "wait=30")
            outcome = answer.json["outcome"]
            assert (outcome["state"], outcome["result"], outcome["encoding"]) == ("succeeded", {"n": 1.0}, "json")
            late = await submit(client, {"function": "g"}, headers=[("Prefer", "wait=0")])
            assert (late.status, "outcome" in late.json) == (202, False)

    run(test())


@pytest.mark.parametrize("lines", [False, True])
def test_a_batch_has_an_answer_for_each_job(lines: bool) -> None:
    async def test() -> None:
        async with serving() as (client, _):
            jobs = [{"function": "f", "args": 1}, {"function": ""}, {"function": "f", "unique": "u"}]
            if lines:
                body = b"".join(msgspec.json.encode(job) + b"\n" for job in jobs)
                kind = "application/x-ndjson; charset=utf-8"
                answer = await client.send("POST", f"{JOBS}/batch", body, headers=[("Content-Type", kind)])
            else:
                answer = await client.send("POST", f"{JOBS}/batch", jobs)
            assert answer.status == 200
            first, refused, last = answer.json["items"]
            assert (first["joined"], last["joined"]) == (False, False)
            assert refused["problem"] == {
                "type": "urn:mainspring:problem:invalid",
                "title": "A value is invalid",
                "status": 422,
                "detail": "a job needs the name of a function",
            }
            listed = await client.get(JOBS)
            assert [job["handle"] for job in listed.json["items"]] == [last["handle"], first["handle"]]

    run(test())


def test_a_batch_has_a_limit() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            answer = await client.send("POST", f"{JOBS}/batch", [{"function": "f"}] * 10_001)
            assert (answer.status, answer.problem) == (422, "invalid")
            lines = b'{"function":"f"}\n' * 10_001
            kind = [("Content-Type", "application/x-ndjson")]
            answer = await client.send("POST", f"{JOBS}/batch", lines, headers=kind)
            assert (answer.status, answer.problem) == (422, "invalid")
            answer = await client.send("POST", JOBS, b'{"function":"f"}', headers=kind)
            assert (answer.status, answer.problem) == (415, "media-type")
            assert (await client.get(JOBS)).json["items"] == []

    run(test())


def test_a_waiting_job_is_changed_and_a_cancelled_one_retried_and_deleted() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            path = (await submit(client)).headers["location"]
            changed = await client.send("PATCH", path, {"priority": "high", "run_at": "2030-01-01T00:00:00Z"})
            assert (changed.status, changed.json["state"], changed.json["priority"]) == (200, "scheduled", "high")
            assert (await client.send("POST", f"{path}/snooze", {"delay": 60}, token="operator")).status == 200
            assert (await client.send("DELETE", path)).problem == "conflict"
            cancelled = await client.send("POST", f"{path}/cancel", {"reason": "why"}, token="operator")
            assert cancelled.json["state"] == "cancelled"
            assert (await client.get(path)).json["error"] == "Cancelled: why"
            assert (await client.send("PATCH", path, {"priority": "high"})).problem == "conflict"
            retried = await client.send("POST", f"{path}/retry", {"delay": 60, "args": [2]})
            assert retried.json["state"] == "scheduled"
            assert (await client.get(f"{path}/payload")).body == b"[2]"
            await client.send("POST", f"{path}/cancel")
            gone = await client.send("DELETE", path, token="operator")
            assert (gone.status, gone.json["state"]) == (200, "deleted")
            assert (await client.get(path)).problem == "job-not-found"

    run(test())


def test_a_refused_retry_names_the_live_job() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            body = {"function": "f", "unique": "u"}
            path = (await submit(client, body)).headers["location"]
            await client.send("POST", f"{path}/cancel")
            live = (await submit(client, body)).json["handle"]
            answer = await client.send("POST", f"{path}/retry")
            assert (answer.status, answer.json["live_handle"]) == (409, live)

    run(test())


def test_a_job_is_cloned() -> None:
    async def test() -> None:
        async with serving() as (client, _):
            path = (await submit(client, {"function": "f", "args": [1], "priority": "low"})).headers["location"]
            clone = await client.send("POST", f"{path}/clone", {"unique": "v"}, token="developer")
            assert (clone.status, clone.headers["location"]) == (201, f"{JOBS}/{clone.json['handle']}")
            assert (await client.get(clone.headers["location"])).json["priority"] == "low"
            assert (await client.send("POST", f"{path}/clone", {"unique": "v"})).status == 200

    run(test())


def test_results_are_raw_bytes_for_callers_with_the_right_to_see_them() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            side = node.worker()
            path = (await submit(client)).headers["location"]
            assert (await client.get(f"{path}/result")).problem == "conflict"
            waiting = asyncio.create_task(client.get(f"{path}/result?wait=30"))
            await waited_for(node, path.rpartition("/")[2])
            node.service.settling.succeeded(side.given[0], b"<script>")
            answer = await waiting
            assert answer.body == b"<script>"
            assert answer.headers["content-type"] == "application/octet-stream"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "sandbox" in answer.headers["content-security-policy"]
            for what in ("payload", "result"):
                assert (await client.get(f"{path}/{what}", token="developer")).status == 403
            assert (await client.get(f"{path}/payload")).body == b""

    run(test())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/payload"),
        ("GET", "/result"),
        ("GET", "/stream"),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/cancel"),
        ("POST", "/retry"),
        ("POST", "/snooze"),
        ("POST", "/clone"),
    ],
)
@pytest.mark.parametrize("handle", [UNKNOWN_HANDLE, "x"])
def test_a_job_that_does_not_exist_is_not_found(method: str, path: str, handle: str) -> None:
    async def test() -> None:
        async with serving() as (client, _):
            body = {"delay": 1} if path == "/snooze" else {} if method != "GET" else None
            answer = await client.send(method, f"{JOBS}/{handle}{path}", body)
            assert (answer.status, answer.problem) == (404, "job-not-found")

    run(test())


def test_a_long_poll_ends_when_the_job_has_changed() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            side = node.worker()
            path = (await submit(client)).headers["location"]
            tag = (await client.get(path)).headers["etag"]
            poll = client.get(f"{path}?wait=30", headers=[("If-None-Match", tag)], connected=True)
            polling = asyncio.create_task(poll)
            await waited_for(node, path.rpartition("/")[2])
            node.service.settling.succeeded(side.given[0], b"")
            answer = await polling
            assert (answer.status, answer.json["state"]) == (200, "succeeded")
            tag = answer.headers["etag"]
            assert (await client.get(f"{path}?wait=0", headers=[("If-None-Match", tag)])).status == 304

    run(test())


def test_a_stream_has_the_states_of_a_job_until_it_ends() -> None:
    async def test() -> None:
        async with serving() as (client, node):
            path = (await submit(client)).headers["location"]
            stream = asyncio.create_task(client.get(f"{path}/stream", token="viewer", connected=True))
            handle = path.rpartition("/")[2]
            await waited_for(node, handle)
            side = node.worker()
            while not side.given:  # noqa: ASYNC110 - a request has no event for it
                await asyncio.sleep(0)
            node.service.reports.status(side.given[0], b"1", b"4")
            await asyncio.sleep(0)
            node.service.settling.failed(side.given[0], failure("E", "why"), final=True)
            answer = await stream
            events = [line for line in answer.body.decode().split("\n\n") if "event" in line]
            assert events[0].startswith('event: job\ndata: {"handle":"' + handle)
            assert any('event: progress\ndata: {"done":1,"total":4}' in event for event in events)
            assert '"state":"failed"' in events[-1]
            assert len(client.streams) == 0
            reread = await client.get(f"{path}/stream", connected=True)
            assert reread.body.count(b"event: job") == 1, "a job that has ended is sent once"

    run(test())
