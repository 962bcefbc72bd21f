"""Requests at random: valid, nearly valid, and nonsense. None of them may be answered with a defect, or harm the node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.faces.rest.registry import Inputs

from .a_server import ALL_ROUTES, whole_node

if TYPE_CHECKING:
    from mainspring.faces.rest.registry import Route

    from .a_client import Client

READERS = {route.operation: Inputs(route) for route in ALL_ROUTES}
ODD = [
    "",
    "null",
    "0",
    "-1",
    "1e999",
    "NaN",
    "\x00",
    "\x1f",
    "é\u202e",
    "../..",
    "%00",
    "x" * 5000,
    "H:n:1000000000001",
    "*",
]
TEXTS = st.one_of(st.sampled_from([*ODD, "default", "f", "true", "2030-01-01T00:00:00Z", "1"]), st.text(max_size=20))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def valid(schema: dict[str, Any], schemas: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for the values that a JSON schema of msgspec describes, roughly."""
    if "$ref" in schema:
        return st.deferred(lambda: valid(schemas[schema["$ref"].rpartition("/")[2]], schemas))
    if "anyOf" in schema:
        return st.one_of([valid(one, schemas) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            required = {name: valid(properties[name], schemas) for name in schema.get("required", ())}
            optional = {name: valid(one, schemas) for name, one in properties.items() if name not in required}
            return st.fixed_dictionaries(required, optional=optional)
        case "array":
            return st.lists(valid(schema.get("items", {}), schemas), max_size=3)
        case "string" if schema.get("format") == "date-time":
            return st.sampled_from(["2030-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59+14:00"])
        case "string":
            return TEXTS
        case "integer":
            return st.one_of(st.integers(0, 3), st.integers())
        case "number":
            return st.one_of(st.floats(0, 10), st.floats(allow_nan=False, allow_infinity=False))
        case "boolean":
            return st.booleans()
    return JSON


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, bytes | None, dict[str, str]]:
    route: Route = draw(st.sampled_from(ALL_ROUTES))
    reader = READERS[route.operation]
    path = route.path.replace(
        "{namespace}", draw(st.sampled_from(["default", "default", "default", "team", "é", "A", "x" * 99]))
    )
    for name in route.parameters:
        path = path.replace("{" + name + "}", quote(draw(TEXTS), safe=""))
    names = [field.name for field in msgspec.structs.fields(reader.of_query)]
    query = draw(st.lists(st.tuples(st.sampled_from([*names, "x"]), TEXTS), max_size=3))
    body = None
    if reader.of_body is not None:
        schema = msgspec.json.schema(reader.of_body)
        value = draw(st.one_of(valid(schema, schema.get("$defs", {})), JSON))
        body = msgspec.json.encode(value) if draw(st.integers(0, 9)) else draw(st.binary(max_size=20))
    headers = {"content-type": "application/json"} if body is not None else {}
    headers["if-match"] = draw(st.sampled_from(["*", '"1"', "x", '""']))
    headers["idempotency-key"] = draw(st.sampled_from(["k", "x" * 300, "é"]))
    return route.method, path + ("?" + urlencode(query, errors="surrogatepass") if query else ""), body, headers


async def check(client: Client, request: tuple[str, str, bytes | None, dict[str, str]]) -> None:
    method, path, body, headers = request
    answer = await asyncio.wait_for(client.send(method, path, body, headers=headers.items()), 20)
    assert answer.status < 500 or answer.status == 503, (answer.status, answer.body)
    if answer.status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json["status"] == answer.status


@settings(max_examples=25)
@given(st.lists(requests(), min_size=20, max_size=40))
def test_no_request_is_answered_with_a_defect(many: list[tuple[str, str, bytes | None, dict[str, str]]]) -> None:
    async def test() -> None:
        async with whole_node() as (client, _):
            for request in many:
                await check(client, request)
            assert (await client.get("/api/v1/status")).status == 200

    asyncio.run(test())
