"""Replays of whole histories: they find the first difference, and execute nothing."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, workflow
from mainspring.worker.workflows.replay_checks import replay
from mainspring.workflows import history as h

from .fake_node import FakeNode, FakeWorker, code_of
from .programs import CODE
from .recordings import record

if TYPE_CHECKING:
    from collections.abc import Callable

app = App()


@app.task
def label(item: str) -> str:
    return item.upper()


@app.workflow
async def other(item: str) -> str:
    return item


def run_to_end(call: Callable[..., Any]) -> FakeNode:
    worker = FakeWorker(code_of(call), FakeNode(), {"label": str.upper})
    worker.until_closed()
    return worker.node


@pytest.mark.parametrize("seed", range(20))
def test_each_prefix_of_a_history_agrees_with_the_code_that_recorded_it(seed: int) -> None:
    recorded = record(seed)
    for last in recorded.commits:
        found = replay(CODE, recorded.events[:last])
        assert (found.difference, found.events) == (None, last)
    assert found.decisions == sum(isinstance(event, h.DecisionTaskCompleted) for event in recorded.events)


def test_the_first_difference_has_ten_commands_of_both_sides_around_it() -> None:
    def code(item: str) -> Any:
        async def run() -> None:
            for number in range(30):
                await label.submit(item if number == 15 else "same")

        return run

    found = replay(code_of(code("b")), run_to_end(code("a")).events).difference
    assert found is not None
    assert len(found.recorded) == 21
    assert found.at == 10
    assert (found.recorded[10], found.code[10]) == ('activity #16 label ["a"]', 'activity #16 label ["b"]')
    assert found.recorded[:10] == found.code[:10]


@pytest.mark.parametrize(
    ("request_to", "shown"),
    [
        (lambda: workflow.external("other").signal("news", 1), "signal #1 news 1"),
        (lambda: workflow.external("other").cancel(), "cancel another run #1"),
        (lambda: other.submit("a"), 'child #1 other ["a"]'),
    ],
)
def test_a_difference_at_a_request_to_another_run_is_shown(request_to: Callable[[], Any], shown: str) -> None:
    def code(*, asks: bool) -> Any:
        async def run() -> None:
            if asks:
                request_to()
            await label.submit("a")

        return run

    found = replay(code_of(code(asks=False)), run_to_end(code(asks=True)).events).difference
    assert found is not None
    assert (found.recorded[found.at], found.code[found.at]) == (shown, 'activity #1 label ["a"]')


def test_a_replay_executes_no_side_effect_and_no_step() -> None:
    executed = []

    async def run() -> None:
        await label.step("a")
        await workflow.sleep(1)
        workflow.side_effect(lambda: executed.append(1))
        await label.step("b")

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    worker.end_steps()
    worker.node.fire()
    assert replay(code_of(run), worker.node.events).difference is None
    worker.decide_only()  # this decision is not recorded
    assert executed == [1]
    assert replay(code_of(run), worker.node.events).difference is None
    assert executed == [1]


def test_a_lost_decision_is_compared_up_to_its_first_new_side_effect() -> None:
    executed = []

    def code(last: str) -> Any:
        async def run() -> None:
            await label.step("a")
            await label.step(last)
            workflow.side_effect(lambda: executed.append(1))
            await label.step("c")

        return run

    worker = FakeWorker(code_of(code("b")), FakeNode())
    worker.decide()
    worker.end_steps()
    worker.end_steps()
    assert executed == [1]
    assert replay(code_of(code("b")), worker.node.events).difference is None
    assert executed == [1]
    found = replay(code_of(code("x")), worker.node.events).difference
    assert found is not None
    assert found.code[-1] == "step #2 label with other arguments"


def test_an_error_of_the_code_is_shown_beside_the_recorded_command() -> None:
    async def run() -> None:
        await label.submit("a")
        await label.submit("b")

    async def broken() -> None:
        await label.submit("a")
        missing_name  # type: ignore[name-defined] # noqa: B018, F821

    found = replay(code_of(broken), run_to_end(run).events).difference
    assert found is not None
    assert found.recorded[found.at] == 'activity #2 label ["b"]'
    assert "NameError: name 'missing_name' is not defined at" in found.code[found.at]


def test_a_replay_leaves_no_coroutine_behind() -> None:
    async def run() -> None:
        await label.submit("a")
        await workflow.sleep(5)

    worker = FakeWorker(code_of(run), FakeNode())
    worker.decide()
    collected = gc.collect()
    assert replay(code_of(run), worker.node.events).difference is None
    assert gc.isenabled()
    assert gc.collect() <= collected
