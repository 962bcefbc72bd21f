"""Nothing in a worker keeps an object of a run's code after the run."""

from __future__ import annotations

import asyncio
import functools
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.worker.workflows.host import Host

from mainspring import App, workflow
from mainspring.workflow_code.workflow_jobs import StepSignatures

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.payload import Signature


class Large:
    """A value of a run's code."""

    def work(self) -> int:
        return 1

    def __call__(self) -> int:
        return 1


class Unhashable(Large):
    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def closure(value: Large) -> Callable[[], Any]:
    def work() -> int:
        return value.work()

    return work


def annotated(value: Large) -> Callable[..., Any]:
    async def work(number: int = 1, kept: Any = None) -> int:
        return value.work() * number

    return work


def cyclic(value: Large) -> Callable[..., Any]:
    def work(own: Any = value) -> int:
        return 1

    value.step = work  # type: ignore[attr-defined]
    return work


async def await_first(value: Any) -> int:
    await asyncio.sleep(0)
    return int(value.work())


STEPS: dict[str, Callable[[Large], Any]] = {
    "closure": closure,
    "lambda": lambda value: lambda: value.work() + 1,
    "annotated": annotated,
    "cyclic": cyclic,
    "partial": lambda value: functools.partial(Large.work, value),
    "partial of a coroutine": lambda value: functools.partial(await_first, value),
    "method": lambda value: value.work,
    "object": lambda value: value,
}


@pytest.mark.parametrize("kind", [Large, Unhashable])
@pytest.mark.parametrize("evicted", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_gone_after_its_run(name: str, evicted: bool, kind: type[Large]) -> None:
    app = App()
    found: list[weakref.ref[Large]] = []

    @app.workflow
    async def order() -> int:
        value = kind()
        found.append(weakref.ref(value))
        title = None if name == "lambda" else "work"
        result = await workflow.step(STEPS[name](value), name=title)
        await workflow.step(STEPS[name](value), name=title)
        if evicted:
            await workflow.sleep(100)
        return int(result)

    async def test(host: Host) -> None:
        host.assign()
        ended = False
        for _ in range(100):  # steps in threads take a moment
            await asyncio.to_thread(lambda: None)
            for report in await host.reports():
                host.answer(report)
                ended = not report.only.more
            if ended:
                break
        await host.settle()
        assert len(await host.forgotten()) == 1
        gc.collect()
        assert found[-1]() is None

    Host(app, workflow_cache=0).run(test)


def test_signatures_that_hold_nothing_are_shared() -> None:
    """They take time."""

    def read(call: Any, title: str = "") -> Signature:
        return StepSignatures().of(call, title or call.__qualname__)[0]

    plain, value = STEPS["lambda"], Large()
    assert read(await_first) is read(await_first)
    assert StepSignatures().of(await_first, "await_first")[1]
    assert read(plain(value)) is read(plain(Large()))
    assert read(plain(value)) is not read(plain(value), "own name"), "errors name it"
    assert read(closure(value)) is not read(closure(value)), "its result is annotated, perhaps with an own type"
    own, kept = annotated(value), StepSignatures()
    assert kept.of(own, "own")[0] is kept.of(own, "own")[0]
