"""The lists in docs/reference/http-api.md: ``python -m tests.docs.http_api`` writes them from the routes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect
from msgspec.inspect import type_info

from mainspring.api.access import GrantSpec
from mainspring.faces.rest.registry import Inputs
from mainspring.faces.rest.replies import PROBLEM_TYPES
from mainspring.faces.rest.routes import ROUTES, with_document

from .pages import ROOT

if TYPE_CHECKING:
    from mainspring.faces.rest.registry import Route

SHARED = "/api/v1"
KINDS_OF_VALUES: dict[type[Any], str] = {
    inspect.StrType: "text",
    inspect.BytesType: "base64",
    inspect.IntType: "whole number",
    inspect.FloatType: "number",
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
    inspect.DateTimeType: "time",
    inspect.RawType: "any JSON value",
    inspect.AnyType: "any JSON value",
    inspect.DictType: "object",
}
PAGE = ROOT / "docs" / "reference" / "http-api.md"


def problems() -> str:
    rows = [f"| `{one.code}` | {one.status} | {one.title} |" for one in PROBLEM_TYPES.values()]
    return "\n".join(["| type after `urn:mainspring:problem:` | status | title |", "|---|---|---|", *rows])


def paths() -> str:
    rows = [
        f"| {one.method} | `{one.path.removeprefix('/api/v1')}` | `{one.permission.value}` | {one.summary} |"
        for one in sorted(with_document(ROUTES, version=""), key=lambda one: (one.path, one.method))
    ]
    return "\n".join(["| method | path after `/api/v1` | permission | |", "|---|---|---|---|", *rows])


def bodies() -> str:
    rows = [
        f"| {one.method} | `{one.path.removeprefix(SHARED)}` | {keys} | {_example(one)} |"
        for one in sorted(ROUTES, key=lambda one: (one.path, one.method))
        if (keys := _keys(one))
    ]
    return "\n".join([f"| method | path after `{SHARED}` | keys | example |", "|---|---|---|---|", *rows])


def _keys(route: Route) -> str:
    body = Inputs(route).of_body
    if body is None:
        return ""
    if not isinstance(body, type) or not issubclass(body, msgspec.Struct):
        return _kind(type_info(body))
    return ", ".join(_key(one) for one in msgspec.structs.fields(body))


def _key(field: msgspec.structs.FieldInfo) -> str:
    name = f"`{field.encode_name}`"
    return f"{f'**{name}**' if field.required else name} ({_kind(type_info(field.type))})"


def _kind(info: Any) -> str:
    """Return the type of a key for people."""
    match info:
        case inspect.UnionType():
            parts = [_kind(one) for one in info.types if not isinstance(one, inspect.CustomType)]
            return " or ".join(dict.fromkeys(parts))
        case inspect.Metadata():
            return _kind(info.type)
        case inspect.LiteralType():
            return " or ".join(f"`{one}`" for one in info.values)
        case inspect.ListType() | inspect.VarTupleType():
            return f"array of {_kind(info.item_type)}"
        case inspect.StructType():
            names = (one.encode_name for one in info.fields if one.name != "namespace" or info.cls is GrantSpec)
            return f"object of {', '.join(f'`{name}`' for name in names)}"
        case _:
            return KINDS_OF_VALUES[type(info)]


def _example(route: Route) -> str:
    return "" if route.example is None else f"`{json.dumps(route.example)}`"


def written(text: str) -> str:
    """Return the page with today's lists."""
    for name, content in (("problems", problems()), ("paths", paths()), ("bodies", bodies())):
        pattern = rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda found, new=content: f"{found[1]}{new}\n{found[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
