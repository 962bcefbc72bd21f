"""One vocabulary: the names of fields in all requests, and the former names, which are still read and sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from msgspec import Raw

from mainspring.api import jobs, schedules, workflows
from mainspring.api.request import ApiError, Request, params_of, read
from mainspring.api.workflows import STATUS_BY_NAME, STATUS_NAMES, AnyStatus, GivenStatus, StatusName
from mainspring.workflows.model import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

START = workflows.StartRun
SIGNAL = workflows.SignalRun
REQUESTS: dict[str, type[Request[Any]]] = {kind.call: kind for kind in (START, SIGNAL)}
FORMER = {"input", "payload_base64", "workflow_id", "canceled"}


def _all(kind: type[Any] = Request) -> Iterator[type[Any]]:
    for one in kind.__subclasses__():
        yield one
        yield from _all(one)


def test_no_request_has_a_former_name() -> None:
    seen = set()
    for kind in _all():
        names = {field.encode_name for field in msgspec.structs.fields(kind)}
        assert not names & FORMER, kind
        assert set(kind.former.values()) <= names, kind
        assert not set(kind.former) & names, kind
        seen.add(kind)
    assert {START, SIGNAL, schedules.AddSchedule, jobs.CloneJob} <= seen


@pytest.mark.parametrize(
    ("call", "params", "request_"),
    [
        ("workflows.start", {"id": "a", "args": [1]}, START("f", "a", args=Raw(b"[1]"))),
        ("workflows.start", {"unique": "a", "input": [1]}, START("f", "a", args=Raw(b"[1]"))),
        ("workflows.start", {"id": "a", "input": [1]}, START("f", "a", args=Raw(b"[1]"))),
        ("workflows.start", {"payload_base64": "WzFd"}, START("f", payload=b"[1]")),
        ("workflows.signal", {"value": "input"}, SIGNAL("k", "go", value=Raw(b'"input"'))),
        ("workflows.signal", {"input": 7, "request": "r"}, SIGNAL("k", "go", "r", Raw(b"7"))),
        ("workflows.signal", {"payload_base64": "Nw=="}, SIGNAL("k", "go", payload=b"7")),
    ],
)
def test_both_names_are_read(call: str, params: dict[str, Any], request_: Request[Any]) -> None:
    given = {"function": "f"} if call == "workflows.start" else {"key": "k", "name": "go"}
    data = json.dumps(given | params, separators=(",", ":")).encode()
    assert read(REQUESTS, call, data) == request_


def test_a_field_has_one_of_its_names() -> None:
    with pytest.raises(ApiError, match="unique is the former name of id: give only id"):
        read(REQUESTS, "workflows.start", b'{"function": "f", "unique": "a", "id": "a"}')
    with pytest.raises(ApiError, match="cannot be read"):
        read(REQUESTS, "workflows.start", b'{"function": "f", "unique"')
    with pytest.raises(ApiError, match="unknown field `unit`"):
        read(REQUESTS, "workflows.start", b'{"function": "f", "unique": "a", "unit": 1}')


def test_nodes_of_the_last_version_read_what_is_sent() -> None:
    assert params_of(START("f", "a", payload=b"1")) == {"function": "f", "unique": "a", "payload_base64": "MQ=="}
    assert params_of(SIGNAL("k", "go", payload=b"1")) == {"key": "k", "name": "go", "payload_base64": "MQ=="}
    assert params_of(schedules.TriggerSchedule("nightly")) == {"name": "nightly"}


def test_statuses_have_one_spelling_and_both_are_read() -> None:
    assert set(STATUS_NAMES) == set(Status)
    assert set(STATUS_NAMES.values()) == set(get_args(StatusName))
    assert "canceled" not in get_args(AnyStatus)
    assert "canceled" in get_args(GivenStatus)
    assert STATUS_BY_NAME["canceled"] is STATUS_BY_NAME["cancelled"] is Status.CANCELED
