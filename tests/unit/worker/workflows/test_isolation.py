"""One run cannot break its worker: whatever its code raises ends or parks that run alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.worker.workflows.host import RUN, Host, Node

from mainspring import App, workflow
from mainspring.workflow_code.instance import Instance
from mainspring.workflows.requests import CompleteWorkflowExecution, FailWorkflowExecution

if TYPE_CHECKING:
    from collections.abc import Callable


class UnshownError(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise SystemExit(3)


def _callback(error: BaseException) -> None:
    raise error


async def _in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(_callback, KeyboardInterrupt())
    await asyncio.sleep(0)


async def _in_a_task() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise(SystemExit(1)))


async def _in_a_condition() -> None:
    def condition() -> bool:
        if asyncio.current_task() is None:  # not in the first call, which the task itself makes
            raise KeyboardInterrupt
        return False

    await workflow.wait_until(condition)


async def _raise(error: BaseException) -> None:
    raise error


FAILED = FailWorkflowExecution
CODES: dict[str, tuple[Callable[[], Any], type[Any] | str]] = {
    "surrogate": (lambda: _raise(ValueError("cannot read caf\udce9.txt")), FAILED),
    "no text": (lambda: _raise(UnshownError()), FAILED),
    "defect without a text": (
        lambda: _raise(type("Bad", (UnshownError, TypeError), {})()),
        "the error cannot be shown",
    ),
    "interrupt": (lambda: _raise(KeyboardInterrupt("stop")), FAILED),
    "exit": (lambda: _raise(SystemExit("caf\udce9")), FAILED),
    "exit of a task": (_in_a_task, FAILED),
    "interrupt in a callback": (_in_a_callback, CompleteWorkflowExecution),
    "interrupt in a condition": (_in_a_condition, "its code has stopped: KeyboardInterrupt"),
}


@pytest.mark.parametrize("after_step", [False, True])
@pytest.mark.parametrize("name", CODES)
def test_an_error_of_a_run_ends_that_run_alone(name: str, after_step: bool) -> None:
    code, outcome = CODES[name]
    app = App()

    async def think() -> None:
        await asyncio.sleep(0.5)

    @app.workflow
    async def order() -> None:
        if after_step:
            await workflow.step(think)
        if workflow.info().run == RUN:
            await code()

    async def test(host: Host) -> None:
        server = host.server
        host.assign_two()
        if after_step:
            await host.settle()
            host.advance(1)
        bad, good = (await host.report()).messages
        assert [type(one) for one in good.decisions] == [CompleteWorkflowExecution]
        assert good.parked is None
        if isinstance(outcome, str):
            assert bad.parked is not None
            assert outcome in bad.parked.message
        else:
            assert [type(one) for one in bad.decisions] == [outcome]
        assert server.open
        assert not host.settled

    Host(app).run(test)


@pytest.mark.parametrize("method", ["deliver", "about", "step_ended", "recorded"])
def test_a_defect_of_the_worker_itself_parks_the_run_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that a later change brings: no act for a run is outside of the guard."""
    app = App()

    async def think() -> None:
        await asyncio.sleep(0.5)

    @app.workflow
    async def order() -> None:
        await workflow.step(think)
        await workflow.step(think)

    original: Any = getattr(Instance, method)

    def broken(instance: Instance, *args: Any) -> Any:
        if instance.run == RUN:
            raise RuntimeError("broken by \udce9 test")
        return original(instance, *args)

    async def test(host: Host) -> None:
        monkeypatch.setattr(Instance, method, broken)
        server = host.server
        host.assign_two()
        await host.settle()
        host.advance(1)
        messages = [one for report in await host.reports() for one in report.messages]
        by_run = {one.run: one for one in messages}
        if method == "recorded":
            host.answer_all(messages)
            messages = [one for report in await host.reports() for one in report.messages]
            by_run.update({one.run: one for one in messages})
        parked = by_run[RUN].parked
        assert parked is not None
        assert "RuntimeError: broken by \\udce9 test" in parked.message
        assert by_run[RUN + 1].parked is None
        assert server.open

    Host(app).run(test)


def waiting() -> tuple[App, list[asyncio.Event]]:
    """Return an App whose workflow makes a step, and the events that end the steps in the order of their begin."""
    app = App()
    begun: list[asyncio.Event] = []

    async def wait() -> None:
        begun.append(asyncio.Event())
        await begun[-1].wait()

    @app.workflow
    async def order() -> None:
        await workflow.step(wait)

    return app, begun


def test_runs_of_two_stores_with_one_number_are_two_runs() -> None:
    app, begun = waiting()

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        first, host.node, host.has = host.node, Node(seed=8), 0
        host.other.send(host.decision())
        await host.settle()
        assert len(begun) == 2
        assert not host.settled
        assert not await host.forgotten()
        for one in begun:
            one.set()
            (message,) = (await host.report()).messages
            assert (len(message.steps), len(message.decisions), message.run) == (1, 1, RUN)
        assert first.state.run == host.node.state.run

    Host(app, servers=2).run(test)


def test_a_run_that_another_node_of_its_store_assigns_leaves_the_memory_with_its_decision() -> None:
    """Otherwise the worker's heartbeats would keep a lease of which nothing comes."""
    app, begun = waiting()

    async def test(host: Host) -> None:
        host.assign()
        lease = host.lease
        await host.settle()
        host.has = 0
        host.other.send(host.decision())
        await host.settle()
        assert len(begun) == 2
        assert host.settled == [(lease[0], b"released")]
        assert await host.forgotten() == [RUN]
        begun[0].set()
        await host.settle()
        assert not await host.reports()
        begun[1].set()
        (step,) = (await host.report()).only.steps
        assert step.number == 1

    Host(app, servers=2).run(test)
