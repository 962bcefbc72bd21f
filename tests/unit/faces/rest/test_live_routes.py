"""One stream about several subjects."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mainspring.access.caller import Caller, Grant, Role

from .a_server import whole_node
from .test_streams import Reader

PATH = "/api/v1/namespaces/default"


async def event(reader: Reader, name: str) -> Any:
    """Return the data of the next event of a name; comments and other events are passed over."""
    while True:
        body = await asyncio.wait_for(reader.next(), 10)
        for one in body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in one.splitlines() if ": " in line)
            if fields.get("event") == name:
                return json.loads(fields["data"])


def test_one_stream_has_numbers_a_job_and_an_operation() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            job = (await client.send("POST", f"{PATH}/jobs", {"function": "pay"})).json["handle"]
            reader = Reader(client, f"{PATH}/live?functions=true&job={job}")
            await reader.begin()
            body = "".join([(await reader.next()).decode() for _ in range(3)])
            assert body.count("event: ") == 3
            assert '"state":"pending"' in body
            assert '"functions":{"pay":{"waiting":1,' in body
            assert (await client.send("POST", f"{PATH}/jobs/{job}/cancel", {"reason": "test"})).status == 200
            assert (await event(reader, "job"))["state"] == "cancelled"
            assert (await event(reader, "numbers"))["waiting"] == 0, "the numbers go on after the end of the job"
            reader.left.set()
            await reader.task
            assert len(client.streams) == 0

    asyncio.run(test())


def test_a_stream_ends_after_the_last_of_its_subjects() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            client.access.callers = {
                name: Caller(name, caller.grants) for name, caller in client.access.callers.items()
            }
            job = (await client.send("POST", f"{PATH}/jobs", {"function": "pay"})).json["handle"]
            body = {"action": "cancel", "filter": {"function": "pay"}, "reason": "test"}
            operation = (await client.send("POST", f"{PATH}/operations", body)).json["id"]
            reader = Reader(client, f"{PATH}/live?job={job}&operation={operation}")
            await reader.begin()
            sent = b""
            while part := await asyncio.wait_for(reader.next(), 10):
                sent += part
            await reader.task
            text = sent.decode()
            assert text.count("event: complete\ndata: {}\n\n") == 1
            assert text.endswith("event: complete\ndata: {}\n\n")  # clients close the stream then
            assert '"state":"done"' in text
            assert '"state":"cancelled"' in text

    asyncio.run(test())


@pytest.mark.parametrize(
    ("query", "token", "status"),
    [
        ("", "viewer", 422),
        ("?overview=false", "viewer", 422),
        ("?overview=true", "pay", 200),
        ("?overview=true&job={mail}", "pay", 403),
        ("?overview=true&job={pay}", "pay", 200),
        ("?overview=true&logs={pay}", "pay", 403),
        ("?overview=true&logs={mail}", "reader", 200),
        ("?logs={mail}&after=x", "reader", 422),
        ("?job=H:n:99", "viewer", 404),
        ("?job={mail}&operation=99", "viewer", 404),
        ("?overview=true", "elsewhere", 403),
        ("?schedules=true&overview=true&job={pay}", "pay", 200),
        ("?nodes=true", "viewer", 200),
        ("?runs=true", "pay", 200),
        ("?workers=true", "elsewhere", 403),
        ("?schedules=true&nodes=true", "viewer", 422),
        ("?schedules=true&run=x", "viewer", 422),
        ("?schedule=none", "viewer", 404),
        ("?worker=1-1", "viewer", 404),
        ("?run=x", "viewer", 404),
    ],
)
def test_each_subject_has_its_own_permission(query: str, token: str, status: int) -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            names = {
                name: (await client.send("POST", f"{PATH}/jobs", {"function": name})).json["handle"]
                for name in ("pay", "mail")
            }
            for name, grant in (
                ("pay", Grant(Role.VIEWER, "default", ("pay*",))),
                ("reader", Grant(Role.VIEWER, "default", payloads=True)),
                ("elsewhere", Grant(Role.ADMIN, "other")),
            ):
                client.access.callers[name] = Caller(name, (grant,), token=name)
            answer = await client.get(f"{PATH}/live{query.format(**names)}", token=token)
            assert answer.status == status, answer.body
            assert len(client.streams) == 0

    asyncio.run(test())


def test_a_stream_ends_with_its_object() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            schedule = {"name": "nightly", "function": "pay", "every": 3600}
            assert (await client.send("POST", f"{PATH}/schedules", schedule)).status == 201
            reader = Reader(client, f"{PATH}/live?schedule=nightly")
            await reader.begin()
            assert (await event(reader, "version"))["version"]
            assert (await client.send("DELETE", f"{PATH}/schedules/nightly", headers=[("if-match", "*")])).status < 300
            assert await event(reader, "version") == {"version": "", "spread": 0.5}
            assert await event(reader, "complete") == {}
            await reader.task

    asyncio.run(test())


def test_a_stream_of_several_subjects_ends_with_its_token() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            job = (await client.send("POST", f"{PATH}/jobs", {"function": "pay"})).json["handle"]
            reader = Reader(client, f"{PATH}/live?overview=true&job={job}")
            await reader.begin()
            client.access.revoke("viewer")
            await asyncio.wait_for(reader.task, 10)

    asyncio.run(test())
