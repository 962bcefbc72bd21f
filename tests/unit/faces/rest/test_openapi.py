"""The document of the API, checked against the routes in both directions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.api.a_node import run

from mainspring.api.access import ListActs
from mainspring.api.declaration import field_of
from mainspring.api.jobs import SnoozeJob
from mainspring.api.request import Code
from mainspring.faces.rest.registry import Inputs, Route, Table
from mainspring.faces.rest.replies import PROBLEM_TYPES
from mainspring.faces.rest.routes import ROUTES, document, with_document

from .a_client import serving

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL = with_document(ROUTES, version="1.0")


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [ref for key, one in value.items() for ref in ([one] if key == "$ref" else references(one))]
    return [ref for one in value for ref in references(one)] if isinstance(value, list) else []


def test_every_route_is_in_the_document_and_every_operation_is_a_route() -> None:
    described = document(ALL, version="1.0")
    operations = {
        (method.upper(), path): one for path, methods in described["paths"].items() for method, one in methods.items()
    }
    assert set(operations) == {(route.method, route.path) for route in ALL}
    for route in ALL:
        operation = operations[route.method, route.path]
        assert operation["x-permission"] == route.permission.value
        assert {one["name"] for one in operation["parameters"] if one["in"] == "path"} == set(route.parameters)
        assert str(401) in operation["responses"]
        assert ("requestBody" in operation) <= route.has_body


def test_generators_of_clients_find_what_they_need() -> None:
    described = document(ALL, version="1.0")
    titles = [one["title"] for one in described["components"]["schemas"].values()]
    assert len(set(titles)) == len(titles)
    for path, methods in described["paths"].items():
        for operation in methods.values():
            in_path = [one for one in operation["parameters"] if one["in"] == "path"]
            assert all(one["required"] and "default" not in one["schema"] for one in in_path), path
            assert all("description" in one for one in operation["responses"].values())


def test_references_lead_to_schemas() -> None:
    described = document(ALL, version="1.0")
    schemas = described["components"]["schemas"]
    assert {ref.rpartition("/")[2] for ref in references(described)} == set(schemas)


@pytest.mark.parametrize("route", ALL, ids=lambda route: route.operation)
def test_examples_and_problems_are_valid(route: Route) -> None:
    assert set(route.problems) <= set(PROBLEM_TYPES)
    reader = Inputs(route)
    if route.example is not None:
        msgspec.json.decode(msgspec.json.encode(route.example), type=reader.of_body)
    if route.answered is not None:
        msgspec.convert(route.answered, route.answer)


def test_a_route_without_a_permission_is_no_route() -> None:
    class Nameless:
        call = "x"

    with pytest.raises(ValueError, match="declares no permission"):
        Table([Route(method="GET", path="/x", request=Nameless, answer=None, summary="x")], lambda route: route)  # type: ignore[arg-type]


def test_two_routes_differ_in_name_and_place() -> None:
    first = ALL[0]
    with pytest.raises(ValueError, match="needs a name of its own"):
        Table([first, first], lambda route: route)
    with pytest.raises(ValueError, match="two routes are"):
        Table([first, replace(first, name="other")], lambda route: route)


def test_the_document_is_given_to_callers_with_a_token() -> None:
    async def test() -> None:
        async with serving(prefix="/queue") as (client, _):
            answer = await client.get("/queue/api/v1/openapi.json", token="viewer")
            assert (answer.status, answer.json["openapi"]) == (200, "3.1.0")
            assert answer.json["servers"] == [{"url": "/queue"}]
            assert (await client.get("/queue/api/v1/openapi.json", token=None)).status == 401

    run(test())


def test_users_data_are_described_as_bytes() -> None:
    described = document(ALL, version="1.0")["paths"]
    for name in ("payload", "result", "logs/text"):
        answer = described[f"/api/v1/namespaces/{{namespace}}/jobs/{{handle}}/{name}"]["get"]["responses"]["200"]
        assert list(answer["content"]) == ["application/octet-stream"]


def test_the_sentences_of_fields_are_in_the_document() -> None:
    found = document(ALL, version="1.0")
    audit = found["paths"]["/api/v1/namespaces/{namespace}/audit"]["get"]
    sentences = {one["name"]: one.get("description") for one in audit["parameters"]}
    assert None not in sentences.values()
    assert sentences["who"] == field_of(ListActs, "who").help
    assert sentences["cursor"] == field_of(ListActs, "cursor").help
    body = found["components"]["schemas"]["JobsSnoozeBody"]
    assert body["properties"]["delay"]["description"] == field_of(SnoozeJob, "delay").help


def test_each_parameter_and_each_field_of_a_body_has_a_sentence() -> None:
    found = document(ALL, version="1.0")
    operations = [operation for path in found["paths"].values() for operation in path.values()]
    parameters = [one for operation in operations for one in operation.get("parameters", [])]
    missing = [one["name"] for one in parameters if not one.get("description")]
    for name in _schemas_of(operation.get("requestBody", {}) for operation in operations):
        fields = found["components"]["schemas"][name]["properties"].items()
        missing += [f"{name}.{field}" for field, schema in fields if not schema.get("description")]
    assert missing == []


def _schemas_of(bodies: Iterable[Any]) -> set[str]:
    return {reference.rpartition("/")[2] for body in bodies for reference in references(body)}


def test_the_problems_of_a_request_follow_from_its_declaration() -> None:
    routes = {route.operation: route for route in ALL}
    responses = document(ALL, version="1.0")["paths"][routes["jobs_snooze"].path]["post"]["responses"]
    for code in (
        Code.JOB_NOT_FOUND,
        Code.CONFLICT,
        Code.UNSUPPORTED,
    ):  # its object, its own one, its feature of the store
        assert f"(`{code.value}`)" in responses[str(code.status)]["description"]
    assert "precondition_required" in routes["schedules_edit"].problems
