"""Each value of each route in turn is a text or a number that a store might not accept, and all others are good."""

from __future__ import annotations

import asyncio
import base64
import copy
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from .a_server import ALL_ROUTES, whole_node
from .test_forged_cursors import names_of
from .test_fuzz import READERS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mainspring.faces.rest.registry import Route

    from .a_client import Client

    Step = str | int

ODD: dict[str, list[Any]] = {
    "string": ["a\0b", "\x1f", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"],
    "integer": [2**63 - 1, 2**64, 2**31, -1],
    "number": [1e300, -1e300, 2**63, 1e-300],
}
BODIES: dict[str, Any] = {
    "tokens_create": {"name": "n", "grants": [{"role": "viewer", "namespace": "default"}]},
    "schedules_add": {"name": "s", "function": "f", "every": 60},
}
"""Bodies of routes whose example does not show all that they can do."""


def places(schema: dict[str, Any], schemas: dict[str, Any], path: tuple[Step, ...] = ()) -> Iterator[tuple[Any, str]]:
    """Yield the places of texts and numbers in a body, with their types."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    for one in schema.get("anyOf", ()):
        yield from places(one, schemas, path)
    kind = schema.get("type")
    if kind in ODD:
        yield path, kind
    elif len(path) < 4:
        for name, inner in schema.get("properties", {}).items():
            yield from places(inner, schemas, (*path, name))
        if kind == "array":
            yield from places(schema.get("items", {}), schemas, (*path, 0))


def with_value(body: Any, path: tuple[Step, ...], value: Any) -> Any:
    """Return a body with another value in a place."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if step == 0:
        return [with_value(body[0] if isinstance(body, list) and body else None, rest, value)]
    found = dict(body) if isinstance(body, dict) else {}
    found[str(step)] = with_value(found.get(str(step)), rest, value)
    return found


def requests(route: Route, names: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the paths and the bodies of requests with one odd value."""
    reader, body = READERS[route.operation], copy.deepcopy(BODIES.get(route.operation, route.example))

    def path(odd: str = "", value: str = "") -> str:
        target = route.path
        for name in route.parameters:
            text = value if name == odd else names.get(name, "f")
            target = target.replace("{" + name + "}", quote(text, safe=":"))
        return target

    for name in route.parameters:
        for value in ODD["string"]:
            yield path(name, value), body
    schema = msgspec.json.schema(reader.of_query)
    for (name, *_), kind in places(schema, schema["$defs"]):
        for value in ODD[kind]:
            yield f"{path()}?{name}={quote(str(value), safe='')}", body
    if reader.of_body is not None:
        schema = msgspec.json.schema(reader.of_body)
        for place, kind in places(schema, schema.get("$defs", {})):
            for value in ODD[kind]:
                yield path(), with_value(body, place, value)


async def check(client: Client) -> None:
    """Send all requests. None may be answered with a defect, or as if the store were away."""
    names, wrong = await names_of(client), []
    for route in ALL_ROUTES:
        if route.stream:
            continue
        await names_of(client)  # what the last route has removed
        for path, body in requests(route, names):
            headers = [("if-match", "*"), ("prefer", "wait=0")]
            answer = await asyncio.wait_for(client.send(route.method, path, body, headers=headers), 20)
            if answer.status >= 500:
                wrong.append((route.operation, path, body, answer.status))
    assert wrong == []


def test_an_odd_value_is_refused_or_kept(tmp_path: Path) -> None:
    async def test() -> None:
        async with whole_node(f"sqlite:///{tmp_path}/jobs.db") as (client, _):
            await check(client)

    asyncio.run(test())


def test_arguments_with_too_many_levels_are_shown_as_bytes() -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            deep = base64.b64encode(b"[" * 30_000 + b"]" * 30_000).decode()
            path = "/api/v1/namespaces/default/jobs"
            job = await client.send("POST", path, {"function": "f", "payload": deep})
            shown = await client.get(f"{path}/{job.json['handle']}/arguments")
            assert shown.json["payload"] == deep
            args = b'{"function": "f", "args": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"
            headers = [("content-type", "application/json")]
            assert (await client.send("POST", path, args, headers=headers)).problem == "malformed"

    asyncio.run(test())
