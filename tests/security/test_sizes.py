"""Everything that a worker or client may store has a limit, and every list a budget of bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import sizes
from mainspring.engines.postgres.rows import SQL as POSTGRES
from mainspring.engines.sqlite.statements import SQL as SQLITE
from mainspring.jobs.failures import UNREADABLE, JobFailure, decode_failure, encode_failure, line_of
from mainspring.wire.gearman.packets import Type
from tests.unit.faces.gearman.a_face import F, Node

LONG = 2**20


@pytest.fixture
def node() -> Node:
    return Node()


def options(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def failed_with(node: Node, **error: str) -> str:
    """Return the handle of a job whose worker has reported a failure."""
    client, worker = node.connect(extended=True), node.stream(F)
    handle: str = client.ask(Type.SUBMIT, F, b"", b"", b"load")[1][0]
    ((_, assigned),) = worker.received()
    detail = options(error=error, final=True)
    worker.request(Type.SETTLE, *(text.encode() for text in assigned[:2]), b"failed", detail, b"")
    node.commit()
    return handle


# ---- failures ----


def test_a_long_failure_is_shortened_and_its_job_is_not_lost(node: Node) -> None:
    error = {"type": "T" * LONG, "message": "begin" + "m" * LONG + "end", "traceback": "first" + "t" * LONG + "last"}
    handle = failed_with(node, **error)
    tool = node.connect(extended=True)
    shown: dict[str, Any] = tool.call("jobs.show", handle=handle)
    assert shown["state"] == "failed"
    kind, _, message = shown["error"].partition(": ")
    assert len(kind) <= sizes.FAILURE_TYPE.most
    assert len(message) <= sizes.FAILURE_TEXT.most
    assert len(shown["traceback"]) <= sizes.FAILURE_TEXT.most
    assert (message[:5], message[-3:]) == ("begin", "end")
    assert (shown["traceback"][:5], shown["traceback"][-4:]) == ("first", "last")
    assert " characters …]" in message


def test_lists_show_the_beginning_of_a_failure_and_a_jobs_own_view_shows_all_of_it(node: Node) -> None:
    message = "it failed: " + "x" * 10_000
    handle = failed_with(node, type="E", message=message)
    tool = node.connect(extended=True)
    (row,) = tool.call("jobs.list")["jobs"]
    assert row["error"].startswith("E: it failed: xx")
    assert sizes.FAILURE_LINE.most - 2 <= len(row["error"]) <= sizes.FAILURE_LINE.most
    assert tool.call("jobs.show", handle=handle)["error"] == f"E: {message}"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.builds(JobFailure, TEXTS, TEXTS, TEXTS), st.data())
def test_the_beginning_of_a_stored_failure_can_be_shown(failed: JobFailure, data: st.DataObject) -> None:
    stored = encode_failure(failed)
    cut = data.draw(st.integers(0, len(stored) - 1))
    found = decode_failure(stored[:cut])
    message = stored.index(b'","message":"') + len(b'","message":"')
    if cut >= message + 1:
        assert found.type == failed.type
        assert failed.message.startswith(found.message.removesuffix("…"))
    else:
        assert found.type == UNREADABLE or failed.type.startswith(found.type.removesuffix("…"))
    assert line_of(stored[:cut])


@given(st.binary(max_size=60))
def test_bytes_that_are_no_failure_break_no_list(stored: bytes) -> None:
    assert line_of(stored)
    assert line_of(b'{"type":"' + stored)


@pytest.mark.parametrize("name", ["list", "list_tagged", "list_these"])
def test_lists_on_sqlite_read_the_beginning_of_a_failure(name: str) -> None:
    assert f"substr(error, 1, {sizes.STORED_FAILURE.most})" in SQLITE[name]


@pytest.mark.parametrize("name", ["list_jobs", "list_ended", "list_dead", "list_tagged", "list_these"])
def test_lists_on_postgresql_read_the_beginning_of_a_failure(name: str) -> None:
    cut = f"substr(error, 1, {sizes.STORED_FAILURE.most}) AS error"
    assert POSTGRES[name].count("options, ") == POSTGRES[name].count(cut)
