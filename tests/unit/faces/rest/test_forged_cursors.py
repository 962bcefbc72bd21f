"""Cursors of the right form with positions that no node has made: clients can compute the digest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from mainspring.api.handlers.pages import cursor_of
from mainspring.api.request import is_list
from mainspring.faces.rest.registry import Inputs

from .a_server import ALL_ROUTES, whole_node

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring.faces.rest.registry import Route

    from .a_client import Client

N = "/api/v1/namespaces/default"
PLACES = [
    "",
    "0",
    "-1",
    "1_0",
    "x",
    "\0",
    "\u0663",
    "1" * 18,
    str(2**63),
    "9" * 5000,
    "1:\0",
    f"{2**63}:a",
    "n00",
    "nzz",
    "m-1",
    f"m{2**63}",
    "s1.zz",
    f"s{2**63}.00",
    "1.1.1",
    "999999999999999999.999999999999999999.999999999999999999",
    "H:n:1",
    f"H:n:{2**63}",
    f"{2**40}-{2**63}",
    "1@1",
]
LISTS = [route for route in ALL_ROUTES if is_list(route.request) and route.answer is not bytes]


async def names_of(client: Client) -> dict[str, str]:
    job = await client.send("POST", f"{N}/jobs", {"function": "f"})
    await client.send("POST", f"{N}/schedules", {"name": "f", "function": "f", "every": 60})
    begun = await client.send("POST", f"{N}/operations", {"action": "cancel", "handles": [job.json["handle"]]})
    return {"namespace": "default", "handle": job.json["handle"], "id": begun.json["id"]}


async def check(client: Client, route: Route, names: dict[str, str]) -> list[tuple[str, str, int]]:
    values = [names.get(one, "f") for one in route.parameters]
    path = route.path
    for name, value in zip(route.parameters, values, strict=True):
        path = path.replace("{" + name + "}", quote(value, safe=":"))
    query = "schedules=f" if route.path.endswith("/outcomes") else ""
    inputs = Inputs(route).read(values, query.encode(), b"")
    wrong = []
    for place in PLACES:
        cursor = cursor_of(route.request_of(inputs), place)
        answer = await client.get(f"{path}?{query}&cursor={cursor}")
        if answer.status not in {200, 404, 422}:
            wrong.append((path, place[:40], answer.status))
    return wrong


async def check_all(client: Client) -> None:
    """Send all places to all lists."""
    names = await names_of(client)
    assert [one for route in LISTS for one in await check(client, route, names)] == []
    assert len(LISTS) > 18


@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/jobs.db"])
def test_a_forged_cursor_is_refused_or_harmless(store: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with whole_node(store.format(tmp_path)) as (client, _):
            await check_all(client)

    asyncio.run(test())
