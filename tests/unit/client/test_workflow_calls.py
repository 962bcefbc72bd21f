"""Calls of tasks on a loop that belongs to a run of a workflow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mainspring import App, Retry
from mainspring.errors import PayloadError, UsageError

if TYPE_CHECKING:
    from mainspring.client.workflow_calls import Call, StepFunction

app = App("127.0.0.1:1")


@app.task(
    retry=Retry(max_attempts=3), unique=lambda number: f"u{number}", concurrency_key=lambda number: f"k{number % 2}"
)
def double(number: int) -> int:
    return 2 * number


@app.task
async def later(text: str = "") -> str:
    return text


class Calls:
    """Records the calls of a run, and answers with texts in place of jobs."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def submit(self, call: Call[Any]) -> str:
        self.calls.append(("submit", call.function, call.payload))
        self.call = call
        return f"activity {len(self.calls)}"

    def invoke(self, call: Call[Any], function: StepFunction) -> str:
        self.calls.append(("invoke", call.function, call.payload, function.executor))
        return "answered"

    def step(self, call: Call[Any], function: StepFunction, record: str) -> str:
        self.calls.append(("step", call.function, call.payload, function.call, record))
        return "a step"


class Loop(asyncio.SelectorEventLoop):
    workflow_calls = Calls()


def run(code: Any) -> Calls:
    Loop.workflow_calls = Calls()
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(code())
    return Loop.workflow_calls


def test_submits_become_activities() -> None:
    async def code() -> None:
        jobs: list[Any] = [double.options(priority="high").submit(3), await double.asubmit(number=4)]
        jobs += double.submit_many([5, (6,), {"number": 7}])
        jobs += await app.function("resize").asubmit_many([b"raw"])
        assert jobs == [f"activity {number}" for number in range(1, 7)]

    payloads = [b"[3]", b'{"number":4}', b"[5]", b"[6]", b'{"number":7}']
    assert run(code).calls == [*(("submit", "double", payload) for payload in payloads), ("submit", "resize", b"raw")]


def test_an_activity_has_the_options_of_its_submit() -> None:
    async def code() -> None:
        double.options(priority="high", run_timeout="3s").submit(3)

    call = run(code).call
    assert (call.unique, call.options.concurrency_key) == ("u3", "k1")
    assert (call.options.priority, call.options.timeout, call.options.retry) == ("high", 3.0, Retry(max_attempts=3))
    assert call.decode(b"6") == 6
    with pytest.raises(PayloadError):
        call.decode(b'"six"')


def test_arguments_are_checked_at_the_call() -> None:
    async def code() -> None:
        with pytest.raises(TypeError):
            double.submit()  # type: ignore[call-arg]

    assert run(code).calls == []


def test_calls_and_steps_are_passed_to_the_run() -> None:
    async def code() -> None:
        assert later("x") == "answered"  # type: ignore[comparison-overlap]
        assert double(1) == "answered"  # type: ignore[comparison-overlap]
        step: Any = double.step(2)
        assert step == "a step"

    assert run(code).calls == [
        ("invoke", "later", b'["x"]', "coroutine"),
        ("invoke", "double", b"[1]", "thread"),
        ("step", "double", b"[2]", double.function.call, "each"),
    ]


def test_a_step_outside_of_a_workflow_is_refused() -> None:
    async def code() -> None:
        double.step(1)

    with pytest.raises(UsageError, match=r"double\.step\(…\) works only in a workflow: call double\(…\), or submit it"):
        double.step(1)
    with pytest.raises(UsageError, match="works only in a workflow"):
        asyncio.run(code())
