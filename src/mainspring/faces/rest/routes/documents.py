"""The description of the API itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.access.roles import Permission
from mainspring.api.request import Request
from mainspring.faces.rest.openapi import document
from mainspring.faces.rest.registry import ROOT, Route

if TYPE_CHECKING:
    from mainspring.faces.rest.registry import Context


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
