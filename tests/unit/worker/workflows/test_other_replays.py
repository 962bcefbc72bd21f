"""Replays in another process, whose strings have other hashes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.unit.worker.workflows.host import RUN, Host

from mainspring.worker import selector
from mainspring.worker.workflows.replay_checks import CHECKED_EVENTS, OtherReplays
from mainspring.worker.workflows.runs import Run
from mainspring.workflow_code.instance import Instance

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mainspring import App
    from mainspring.workflows.history import Event
    from mainspring.workflows.model import Parked

CODE = """
from mainspring import App, workflow

app = App()

@app.task
def act(name: str) -> None: ...

@app.workflow
async def order() -> None:
    jobs = [act.submit(name) for name in NAMES]
    for job in jobs:
        await job
"""
UNORDERED = CODE.replace("NAMES", "{str(number) for number in range(30)}")
ORDERED = CODE.replace("NAMES", "map(str, range(30))")
TIMEOUT = 60.0


def record(app: App) -> tuple[Run, Sequence[Event]]:
    """Return a run with the history of its first decision."""
    found: list[tuple[Run, Sequence[Event]]] = []

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        (code,) = app.registry.workflows.values()
        found.append((Run(RUN, host.worker.links[0], Instance(code.code, RUN)), list(host.node.events)))

    Host(app).run(test)
    return found[0]


async def compare(others: OtherReplays, run: Run, events: Sequence[Event]) -> Parked | None:
    """Return the difference that the process finds."""
    answer: asyncio.Future[Parked | None] = asyncio.get_running_loop().create_future()
    assert others.compare(run, events, answer.set_result)
    assert run.reading
    async with asyncio.timeout(TIMEOUT):
        difference = await answer
    assert not run.reading
    return difference


@pytest.mark.parametrize("code", [ORDERED, UNORDERED])
def test_a_difference_is_found_if_the_order_of_a_set_matters(tmp_path: Path, code: str) -> None:
    file = tmp_path / f"orders_{len(code)}.py"
    file.write_text(code)
    run, events = record(selector.load(str(file)))  # type: ignore[arg-type]

    async def test() -> None:
        others = OtherReplays(str(file))
        others.start()
        try:
            for _ in range(2):
                difference = await compare(others, run, events)
                assert (difference is not None) is (code == UNORDERED)
            assert not others.compare(run, events[1:], lambda _: None)
            assert not others.compare(run, [*events] * CHECKED_EVENTS, lambda _: None)
            assert others.compare(run, events, lambda _: pytest.fail("the run was dropped"))
            others.drop(run)
            assert not run.reading
            await compare(others, run, events)
        finally:
            others.close()
        assert not others.compare(run, events, lambda _: None)

    asyncio.run(test())


def test_decisions_go_on_if_the_process_cannot_import_the_app(tmp_path: Path) -> None:
    file = tmp_path / "once.py"
    file.write_text(UNORDERED)
    run, events = record(selector.load(str(file)))  # type: ignore[arg-type]
    file.write_text("1 / 0")

    async def test() -> None:
        others = OtherReplays(str(file))
        others.start()
        with capture_logs() as logs:
            assert await compare(others, run, events) is None
        (line,) = logs
        assert "division by zero" in line["why"]
        assert not others.compare(run, events, lambda _: None)
        others.close()

    asyncio.run(test())


def test_nothing_is_started_without_the_name_of_an_app() -> None:
    others = OtherReplays(None)
    others.start()
    with capture_logs() as logs:
        others.close()
    assert logs == []
