"""The answers to clients of a unique during its query in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreFullError
from mainspring.jobs.store import FindUnique

from .a_node import side

if TYPE_CHECKING:
    import pytest

    from mainspring.storage.engine import Operation

    from .a_node import Node


def test_many_that_ask_the_store_at_once_ask_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.background("other")
    put, asked = node.life.commits.put, []

    def noted(operation: Operation, *callbacks: Any) -> None:
        asked.append(operation)
        put(operation, *callbacks)

    monkeypatch.setattr(node.life.commits, "put", noted)
    clients = [node.foreground(str(at), unique=b"u")[1] for at in range(10)]
    node.commit()
    assert [type(operation) for operation in asked] == [FindUnique]
    assert len(set(node.answers[1:])) == 1
    worker = node.stream(places=5)
    node.commit()
    node.settling.succeeded(next(held for held in side(worker).given if held.job.unique), b"done")
    node.commit()
    assert [client.events for client in clients] == [["succeeded done"]] * 10


def test_a_foreground_job_that_the_store_could_not_be_asked_for_is_refused(node: Node) -> None:
    node.background("other")
    node.foreground("1", unique=b"u")
    node.foreground("2", unique=b"u")
    node.fail()
    assert [type(answer) for answer in node.answers[1:]] == [StoreFullError] * 2
    assert node.service.uniques.questions == {}


def test_a_background_job_that_overtakes_the_question_is_joined(node: Node) -> None:
    """The question is under way and finds nothing; meanwhile the job that it asks for is submitted."""
    node.background("other")
    _, client = node.foreground("1", unique=b"u")
    node.life.loop.soon.popleft()()
    background = node.job("2", unique=b"u")
    node.submit(background)
    node.commit()
    assert node.answers[1:] == [background.id, background.id]
    assert node.table.foreground == {}
    worker = node.stream(places=2)
    node.commit()
    node.settling.succeeded(next(held for held in side(worker).given if held.job.unique), b"done")
    node.commit()
    assert client.events == ["succeeded done"]
