"""All routes of the HTTP API: those of requests that declare their place (`api.declaration.Http`), and `special_routes`.

`with_document` adds the route that answers with their OpenAPI 3.1, which is made from their structs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import NODEFAULT

from mainspring.access.caller import Permission
from mainspring.api import (
    access,
    completions,
    events,
    functions,
    jobs,
    listeners,
    namespaces,
    nodes,
    operations,
    resources,
    schedules,
    streams,
    submitting,
    values,
    webhooks,
    workflows,
)
from mainspring.api.request import Code, Request, Touches, answer_type, details_of, requests_of, summary_of
from mainspring.event_log.types import TYPES
from mainspring.faces.rest import special_routes
from mainspring.faces.rest.registry import BODY_LIMIT, Inputs, Route, is_list, path_in
from mainspring.faces.rest.replies import MEDIA_TYPE, PROBLEM_TYPES, Reply, version_of
from mainspring.faces.web.exchange import PARAMETER, ROOT, Document, N

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from mainspring.api.declaration import Http
    from mainspring.event_log.types import EventType
    from mainspring.faces.rest.registry import Context


SUBJECTS: Final = (
    access,
    completions,
    events,
    functions,
    jobs,
    listeners,
    namespaces,
    nodes,
    operations,
    resources,
    schedules,
    streams,
    submitting,
    values,
    webhooks,
    workflows,
)
"""The modules with requests."""
REVISION: Final = "revision"
"""The field of an answer with the version of its object, and of a request with the one that it changes."""


def routes_of(subject: ModuleType) -> Iterator[Route]:
    """Return the routes of the requests of a module, in their order."""
    return (route_of(kind) for kind in requests_of(subject) if kind.http is not None)


def route_of(kind: type[Request[Any]]) -> Route:
    """Return the route of a request that declares one."""
    http = kind.http
    assert http is not None
    answer = answer_type(kind)
    if answer is type(None):
        answer = None
    # Changes make functions that do not exist.
    found = None if kind.touches is None or kind.touches is Touches.FUNCTION else kind.touches.code
    takes_version = http.method in {"PUT", "PATCH", "DELETE"} and REVISION in kind.__struct_fields__
    return Route(
        method=http.method,
        path=ROOT + http.path if http.path.startswith("/") else f"{N}/{http.path}",
        request=kind,
        answer=answer,
        summary=http.summary or summary_of(kind),
        name=http.name,
        status=http.status,
        others=http.others,
        reply=partial(_reply_with_place, http) if http.location else None,
        problems=(
            *((found,) if found is not None else ()),
            *http.problems,
            *((Code.CHANGED, "precondition_required") if takes_version else ()),
        ),
        if_match=REVISION if takes_version else "",
        version=version_of if REVISION in getattr(answer, "__struct_fields__", ()) else None,
        example=http.example,
        answered=http.answered,
        limit=BODY_LIMIT if http.limit is None else http.limit,
        shows_secret=http.secret,
        stream=http.stream,
        resume=http.resume,
    )


def _reply_with_place(http: Http, answer: Any, request: Request[Any]) -> Any:
    """Return the answer to a request that makes something, with its place."""
    names = PARAMETER.findall(http.location)
    if any(getattr(answer, name) is None for name in names):
        return Reply(answer, 200)
    segments = [
        str(getattr(answer, part[1:-1])) if PARAMETER.fullmatch(part) else part for part in http.location.split("/")
    ]
    status = 200 if getattr(answer, "joined", False) else http.status
    return Reply(answer, status, {"Location": path_in(request.namespace, *segments)})


ROUTES: Final = (*(route for subject in SUBJECTS for route in routes_of(subject)), *special_routes.ROUTES)


OF_ALL: Final = ("malformed", "unauthenticated", "forbidden", "invalid", "unknown_host", "unavailable")
"""Problems of each route."""
_TEMPLATE: Final = "#/components/schemas/{name}"


def document(routes: tuple[Route, ...], *, version: str, prefix: str = "") -> dict[str, Any]:
    """Return the document of all routes as JSON values."""
    readers = {route.operation: Inputs(route) for route in routes}
    types: list[Any] = [Document, events.EventInfo, *map(_event_body, TYPES.values())]
    for route in routes:
        reader = readers[route.operation]
        types += [one for one in (reader.of_body, _answer(route)) if one is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    for name, component in components.items():
        component["title"] = name  # generators name classes by it, and two structs may have one name
    remaining = iter(schemas)
    next(remaining)
    next(remaining)
    webhooks = {one.name: _webhook(one, next(remaining)) for one in TYPES.values()}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        reader = readers[route.operation]
        body = None if reader.of_body is None else next(remaining)
        answer = None if _answer(route) is None else next(remaining)
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, reader, body, answer)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mainspring", "version": version, "summary": "Jobs, schedules and workflows of a fleet."},
        "servers": [{"url": prefix or "/"}],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "webhooks": webhooks,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "mainspring"},
            },
        },
    }


def _event_body(kind: EventType) -> Any:
    """Return the struct of an event of a type."""
    title = "".join(part.capitalize() for part in re.split(r"[._]", kind.name))
    fields = [
        (name, Annotated[one.type, msgspec.Meta(description=one.about)], one.default)
        for name, one in events.shown_fields(kind.fields).items()
    ]
    data = msgspec.defstruct(f"{title}Data", fields)
    own = {"type": Literal.__getitem__(kind.name), "data": data}
    return msgspec.defstruct(
        f"{title}Event",
        [(one.name, own.get(one.name, one.type)) for one in msgspec.structs.fields(events.EventInfo)],
    )


def _webhook(kind: EventType, schema: Any) -> dict[str, Any]:
    """Return an event of a type as the API's lists and streams have it."""
    operation = {
        "operationId": f"event_{kind.name.replace('.', '_')}",
        "summary": kind.about,
        "tags": ["events"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"2XX": {"description": "The receiver has the event."}},
    }
    return {"post": operation}


def _answer(route: Route) -> Any:
    return None if route.answer in (None, bytes) else route.answer


def _operation(route: Route, reader: Inputs, body: Any, answer: Any) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [_subject(route)],
        "x-permission": route.permission.value,
        **({"x-in-all-namespaces": True} if route.request.in_all_namespaces else {}),
        "parameters": _parameters(reader.of_path, "path") + _parameters(reader.of_query, "query"),
    }
    details = details_of(route.request)
    if details and route.takes is route.request:
        operation["description"] = details
    if body is not None:
        content: dict[str, Any] = {"schema": body}
        if route.example is not None:
            content["example"] = route.example
        operation["requestBody"] = {"required": reader.needs_body, "content": {"application/json": content}}
    operation["responses"] = _responses(route, answer)
    return operation


def _responses(route: Route, answer: Any) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, text in {route.status: "The answer.", **route.others}.items():
        response: dict[str, Any] = {"description": text}
        if answer is not None and status not in (204, 304):
            content = {"schema": answer}
            if route.answered is not None and status == route.status:
                content["example"] = route.answered
            response["content"] = {"application/json": content}
        elif route.answer is bytes:
            response["content"] = {"application/octet-stream": {}}
        if route.answer is None and status == 200:
            status = 204
        responses[str(status)] = response
    names = [
        *OF_ALL,
        *route.problems,
        *((Code.UNSUPPORTED,) if route.request.requires is not None else ()),
        *(("media_type", "too_large") if route.has_body else ()),
    ]
    for name in dict.fromkeys(names):
        kind = PROBLEM_TYPES[name]
        response = responses.setdefault(
            str(kind.status),
            {
                "description": "",
                "content": {MEDIA_TYPE.decode(): {"schema": {"$ref": _TEMPLATE.format(name=Document.__name__)}}},
            },
        )
        response["description"] = (response["description"] + f" {kind.title} (`{kind.name}`).").strip()
    return responses


def _parameters(part: Any, place: str) -> list[dict[str, Any]]:
    parameters = []
    for field in msgspec.structs.fields(part):
        schema = msgspec.json.schema(field.type)
        if place != "path" and field.default not in (NODEFAULT, None):
            schema["default"] = msgspec.to_builtins(field.default)
        parameter: dict[str, Any] = {
            "name": field.encode_name,
            "in": place,
            "description": schema.pop("description"),
            "required": field.required or place == "path",
            "schema": schema,
        }
        if is_list(field.type):
            parameter["explode"] = True
        parameters.append(parameter)
    return parameters


def _subject(route: Route) -> str:
    segments = [one for one in route.path.removeprefix(ROOT).split("/") if one and not one.startswith("{")]
    return next((one for one in segments if one != "namespaces"), "namespaces")


class Describe(Request[dict[str, Any]]):
    """The OpenAPI document of this API."""

    permission = Permission.SIGNED_IN
    name_in_audit = "openapi.show"


OPENAPI = Route(
    method="GET",
    path=f"{ROOT}/openapi.json",
    request=Describe,
    answer=dict[str, Any],
    summary="Get this document",
    name="openapi",
)


def with_document(routes: tuple[Route, ...], *, version: str, prefix: str = "") -> tuple[Route, ...]:
    """Return the routes and the one that describes all of them."""

    @cache
    def written() -> msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(document((*routes, OPENAPI), version=version, prefix=prefix)))

    async def describe(_: Context) -> msgspec.Raw:
        return written()  # made at the first request: most nodes get none

    return (*routes, replace(OPENAPI, handler=describe))
