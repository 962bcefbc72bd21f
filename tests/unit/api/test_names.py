"""One vocabulary: the names of fields in all requests, and the words for statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from msgspec import Raw

from mainspring.api import jobs, schedules, workflows
from mainspring.api.request import ApiError, Request, params_of, read
from mainspring.api.workflows import STATUS_BY_NAME, STATUS_NAMES, AnyStatus, StatusName
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
        seen.add(kind)
    assert {START, SIGNAL, schedules.AddSchedule, jobs.CloneJob} <= seen


def test_former_names_are_refused() -> None:
    assert read(REQUESTS, "workflows.start", b'{"function": "f", "id": "a", "args": [1]}') == START(
        "f", "a", args=Raw(b"[1]")
    )
    for params in (b'{"function": "f", "unique": "a"}', b'{"function": "f", "input": 1}'):
        with pytest.raises(ApiError, match="unknown field"):
            read(REQUESTS, "workflows.start", params)
    with pytest.raises(ApiError, match="unknown field `payload_base64`"):
        read(REQUESTS, "workflows.signal", b'{"key": "k", "name": "go", "payload_base64": "Nw=="}')
    with pytest.raises(ApiError, match="cannot be read"):
        read(REQUESTS, "workflows.start", b'{"function": "f", "id"')


def test_defaults_are_not_sent() -> None:
    assert params_of(START("f", "a", payload=b"1")) == {"function": "f", "id": "a", "payload": "MQ=="}
    assert params_of(schedules.TriggerSchedule("nightly")) == {"name": "nightly"}


def test_statuses_have_one_spelling() -> None:
    assert set(STATUS_NAMES) == set(Status)
    assert set(STATUS_NAMES.values()) == set(get_args(StatusName))
    assert "canceled" not in get_args(AnyStatus)
    assert set(STATUS_BY_NAME) == set(get_args(StatusName))
