"""One run cannot break its worker: whatever its code raises ends or parks that run alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.worker.workflows.host import RUN, Host

from mainspring import App, workflow
from mainspring.deciding.instance import Instance
from mainspring.wire.gearman.packets import Type
from mainspring.workflows.decisions.model import CompleteWorkflowExecution, FailWorkflowExecution

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


def test_an_evicted_run_gives_its_decision_back() -> None:
    """Otherwise the worker's heartbeats would keep a lease of which nothing comes."""
    app = App()

    @app.workflow
    async def order() -> None:
        await workflow.step(asyncio.sleep, 100)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        (run,) = host.decider._cache  # noqa: SLF001 - as a later change may do it
        host.decider._evict(run)  # noqa: SLF001
        assert await host.taken(Type.SETTLE)
        assert host.settled == [(host.lease[0], b"released")]

    Host(app).run(test)
