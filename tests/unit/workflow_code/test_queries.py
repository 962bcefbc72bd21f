"""Queries of runs in a worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mainspring import App, UsageError, workflow
from mainspring.workflow_code.handlers import QueryMethod
from mainspring.workflow_code.instance import Instance
from mainspring.workflow_code.queries import QueryAnswer

from .fake_node import FakeNode, FakeWorker

app = App()


@app.task
def act(number: int) -> int:
    return number * 10


class Basket:
    def __init__(self) -> None:
        self.items: list[str] = []
        self.rng: Any = None

    async def run(self) -> float:
        self.rng = workflow.rng()
        await workflow.wait_until(lambda: len(self.items) >= 2)
        return float(self.rng.random())

    @workflow.signal
    def add(self, item: str) -> None:
        self.items.append(item)

    @QueryMethod
    def count(self, prefix: str = "") -> int:
        return sum(item.startswith(prefix) for item in self.items)

    @QueryMethod
    def status(self) -> dict[str, Any]:
        workflow.log.warning("asked")
        return {"items": self.items, "id": workflow.info().id}

    @QueryMethod
    def fail(self) -> None:
        raise LookupError("no such item")

    @QueryMethod
    def wrong(self) -> int:
        return "text"  # type: ignore[return-value]

    @QueryMethod
    def submits(self) -> None:
        act.submit(1)

    @QueryMethod
    def publishes(self) -> None:
        workflow.publish("x", 1)

    @QueryMethod
    def begins_task(self) -> None:
        async def nothing() -> None: ...

        self.task = asyncio.get_running_loop().create_task(nothing())

    @QueryMethod
    def chance(self) -> float:
        return float(self.rng.random())


basket = app.workflow(Basket)


@pytest.fixture
def worker() -> FakeWorker:
    worker = FakeWorker(basket.function.code, FakeNode(b"[]"), {})
    worker.node.signal("add", "lamp")
    worker.decide()
    return worker


def ask(instance: Instance, name: str, *args: Any) -> QueryAnswer:
    return instance.answer(name, json.dumps(args).encode())


def test_a_query_reads_what_the_run_has(worker: FakeWorker, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(worker.instance, "count").result == b"1"
    assert ask(worker.instance, "count", "x").result == b"0"
    assert json.loads(ask(worker.instance, "status").result) == {"items": ["lamp"], "id": "w-1"}
    assert not caplog.records
    assert worker.instance.lines.take() == b""


def test_a_replay_answers_as_the_run_in_memory(worker: FakeWorker) -> None:
    instance = Instance(worker.instance.code, 1)
    instance.recorded(worker.node.events)
    assert ask(instance, "status") == ask(worker.instance, "status")
    worker.node.signal("add", "desk")  # no decision has seen it
    instance.recorded(worker.node.events)
    assert ask(instance, "count").result == b"1"
    instance.evict()


def test_a_run_whose_code_has_ended_answers(worker: FakeWorker) -> None:
    worker.node.signal("add", "desk")
    worker.until_closed()
    instance = Instance(worker.instance.code, 1)
    instance.recorded(worker.node.events)
    assert ask(instance, "count").result == b"2"
    instance.evict()
    assert "has not begun" in ask(instance, "count").message


def test_a_run_that_has_not_begun_has_no_answer() -> None:
    assert ask(Instance(basket.function.code, 1), "count").error == "UnknownQuery"


def test_an_unknown_query_names_those_that_the_run_answers(worker: FakeWorker) -> None:
    found = ask(worker.instance, "absent")
    assert found.error == "UnknownQuery"
    assert "count, status" in found.message


def test_arguments_and_results_of_other_types_are_refused(worker: FakeWorker) -> None:
    assert ask(worker.instance, "count", 7).error == "PayloadError"
    assert ask(worker.instance, "count", "a", "b").error == "PayloadError"
    assert ask(worker.instance, "wrong").error == "PayloadError"


def test_the_error_of_a_handler_is_the_answer(worker: FakeWorker) -> None:
    assert ask(worker.instance, "fail") == QueryAnswer(b"", "LookupError", "no such item")


@pytest.mark.parametrize("name", ["submits", "publishes"])
def test_a_query_cannot_change_its_run(worker: FakeWorker, name: str) -> None:
    found = ask(worker.instance, name)
    assert found.error == "WorkflowUsageError"
    assert "only reads what the run has" in found.message
    assert not found.has_changed_run
    assert not worker.instance.values
    worker.node.signal("add", "desk")
    assert worker.until_closed()


def test_a_query_that_has_changed_its_run_is_found(worker: FakeWorker) -> None:
    found = ask(worker.instance, "begins_task")
    assert found.error == "WorkflowUsageError"
    assert found.has_changed_run
    worker.instance.evict()


def test_a_query_takes_no_random_number_from_its_run(worker: FakeWorker) -> None:
    first = ask(worker.instance, "chance").result
    assert ask(worker.instance, "chance").result == first
    worker.node.signal("add", "desk")
    assert worker.until_closed().result == first  # the run gets the number that it would have got


def test_a_handler_that_waits_is_refused() -> None:
    with pytest.raises(UsageError, match="plain `def`"):

        @QueryMethod
        async def status(self: Any) -> None: ...
