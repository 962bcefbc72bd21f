"""The inputs that routes derive from their requests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest

from mainspring.access.caller import Permission
from mainspring.api import jobs, nodes
from mainspring.api.request import Request
from mainspring.faces.rest.registry import Inputs, Route
from mainspring.faces.rest.replies import HttpError
from mainspring.faces.web.exchange import ROOT

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def route(request: Any, **more: Any) -> Route:
    return Route(method="GET", path=f"{ROOT}/x", request=request, answer=None, summary="", **more)


def request_of(shaped: Route, **given: Any) -> Any:
    return shaped.request_of(shaped.takes(**given))


def names(shaped: Route) -> tuple[str, ...]:
    fields: tuple[str, ...] = shaped.takes.__struct_fields__
    return fields


def test_without_differences_the_inputs_are_the_request() -> None:
    plain = route(nodes.StopWorker)
    assert plain.takes is nodes.StopWorker
    assert request_of(plain, worker="w") == nodes.StopWorker("w")


def test_a_list_has_a_cursor_and_a_limit() -> None:
    listing = route(jobs.ListJobs)
    assert names(listing)[-2:] == ("cursor", "limit")
    assert request_of(listing, cursor="x", limit=7) == jobs.ListJobs(cursor="x", limit=7)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"limit": 1001}, listing.takes)


def test_a_long_poll_has_a_time() -> None:
    polled = route(jobs.ShowJob, waits=True)
    assert polled.takes(handle="H:a:1").wait == 0.0
    assert request_of(polled, handle="H:a:1", wait=5.0) == jobs.ShowJob("H:a:1")


def test_texts_of_a_path_have_the_limits_of_their_types() -> None:
    class Two(Request[None]):
        permission = Permission.READ
        first: Annotated[str, msgspec.Meta(max_length=6)]
        second: Annotated[str, msgspec.Meta(max_length=3)]

    class Patterned(Request[None]):
        permission = Permission.READ
        name: Annotated[str, msgspec.Meta(pattern="^[a-z]*$")]

    two = Inputs(Route(method="GET", path=f"{ROOT}/{{first}}/{{second}}", request=Two, answer=None, summary=""))
    assert two.read(["aaaaaa", "bbb"], b"", b"") == Two("aaaaaa", "bbb"), "together more than each may have"
    for wrong in (["aaaaaaa", ""], ["", "bbbb"]):
        with pytest.raises(HttpError, match="is invalid"):
            two.read(wrong, b"", b"")
    patterned = Inputs(Route(method="GET", path=f"{ROOT}/{{name}}", request=Patterned, answer=None, summary=""))
    with pytest.raises(HttpError, match="is invalid"):
        patterned.read(["A"], b"", b"")
