"""The contents of reports besides decisions: lines of the code's log, and published values."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec
from tests.unit.worker.workflows.host import Host

from mainspring import App, workflow
from mainspring.wire.gearman_protocol import Type, response
from mainspring.worker.session import WorkerSession

if TYPE_CHECKING:
    import pytest

    from .host import Report

# ---- the log of the code ----


class Logging:
    """An App whose workflow logs around a step that ends when the test lets it."""

    def __init__(self) -> None:
        self.app = app = App()
        self.go = asyncio.Event()
        logger = logging.getLogger("shop")

        @app.task
        async def step() -> None:
            await self.go.wait()

        @app.task
        def charge(number: int) -> int:
            return number

        @app.workflow
        async def order() -> None:
            workflow.log.warning("begun %d", 1, extra={"order": 7})
            await workflow.step(step, record="each")
            logger.warning("one step")
            await charge.submit(1)
            workflow.log.warning("charged")


def logged(report: Report) -> list[tuple[int, str, str, dict[str, Any] | None]]:
    """Return the numbers, loggers, texts and fields of the lines in a report."""
    if not report.only.log:
        return []
    first, lines = msgspec.msgpack.decode(report.only.log)
    return [(number, line[2], line[3], line[4]) for number, line in enumerate(lines, first)]


async def reports_around_losses(host: Host, code: Logging) -> tuple[Report, Report]:
    """Return the report that follows a lost decision, and the next one, which follows a lost connection and a replay."""
    host.assign()
    await host.settle()
    host.server.send(response(Type.STOP, *host.lease, b"lost"))
    await host.settle()
    host.has = 0
    host.assign()
    await host.settle()
    code.go.set()
    first = await host.report()
    host.node.record(first.only)  # and its answer is lost with the connection
    host.server.close()
    await host.settle()
    host.advance(60)
    await host.settle()
    (activity,) = host.node.activities.values()
    host.node.end(activity.job, b"1")
    host.has = 0
    host.assign()
    return first, await host.report()


def test_reports_take_the_lines_of_the_code_along() -> None:
    """A replay adds none; lines of a decision that was lost before its report come with the next one."""
    code = Logging()

    async def test(host: Host) -> None:
        first, second = await reports_around_losses(host, code)
        begun = (1, "mainspring.workflow", "begun 1", {"order": 7})
        assert logged(first) == [begun, (2, "shop", "one step", None)]
        charged = (1, "mainspring.workflow", "charged", None)
        assert logged(second) == [charged], "the replay logs nothing again"

    Host(code.app).run(test)


def test_a_server_that_keeps_no_logs_gets_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    code = Logging()
    code.go.set()
    monkeypatch.setattr(WorkerSession, "takes_logs", property(lambda _: False, lambda *_: None), raising=False)

    async def test(host: Host) -> None:
        host.assign()
        assert logged(await host.report()) == []

    Host(code.app).run(test)


# ---- published values ----


class Publishing(Logging):
    """An App whose workflow publishes where the other one logs."""

    def __init__(self) -> None:
        super().__init__()
        self.app = app = App()

        @app.task
        async def step() -> None:
            await self.go.wait()

        @app.task
        def charge(number: int) -> int:
            return number

        @app.workflow
        async def order() -> None:
            workflow.publish("stage", "begun")
            workflow.publish("input", 7)
            await workflow.step(step, record="each")
            workflow.publish("stage", "stepped")
            await charge.submit(1)
            workflow.publish("stage", "charged")


def test_reports_take_the_values_of_the_code_along() -> None:
    """A replay publishes none; those of a decision that was lost before its report come with the next one."""
    code = Publishing()

    async def test(host: Host) -> None:
        first, second = await reports_around_losses(host, code)
        assert first.only.values == (("stage", b'"stepped"'), ("input", b"7")), "the last one of each name"
        assert second.only.values == (("stage", b'"charged"'),), "the replay publishes nothing again"

    Host(code.app).run(test)


def test_a_run_that_parks_publishes_nothing() -> None:
    app = App()

    @app.workflow
    async def order() -> None:
        workflow.publish("stage", "begun")
        raise TypeError("a mistake")

    async def test(host: Host) -> None:
        host.assign()
        report = await host.report()
        assert report.only.parked is not None
        assert report.only.values == (), "the decision will be made again"

    Host(app).run(test)


def test_a_server_that_keeps_no_values_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    code = Publishing()
    code.go.set()
    monkeypatch.setattr(WorkerSession, "takes_values", property(lambda _: False, lambda *_: None), raising=False)

    async def test(host: Host) -> None:
        host.assign()
        assert (await host.report()).only.values == ()

    Host(code.app).run(test)
