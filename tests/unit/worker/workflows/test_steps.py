"""Local steps on the executors of their worker: their attempts, time-outs and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from tests.unit.worker.workflows.host import Host

from mainspring import App, Retry, Snooze, current_job, workflow
from mainspring.worker.executors import process
from mainspring.worker.executors.child import Begun, ToParent, frame

if TYPE_CHECKING:
    import pytest


def flow(app: App, task: Any) -> None:
    """Define a workflow that makes one step."""

    @app.workflow
    async def order() -> Any:
        return await task.step()


async def recorded(host: Host) -> tuple[bytes, bool, int]:
    """Return the result of the only step that was reported, whether it has failed, and its attempts."""
    (step,) = (await host.report()).only.steps
    return step.result, step.failed, step.attempt


def test_a_failed_step_is_tried_again_after_its_delay() -> None:
    app = App()
    attempts: list[int] = []

    @app.task(retry=Retry(max_attempts=3, initial=10.0, factor=2, jitter=0))
    async def price() -> int:
        attempts.append(current_job().attempt)
        if len(attempts) < 3:
            raise OSError("busy")
        return 7

    flow(app, price)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.advance(9.9)
        await host.settle()
        assert attempts == [1]
        host.advance(0.2)
        await host.settle()
        assert attempts == [1, 2]
        assert not await host.reports()
        host.advance(20.1)
        assert await recorded(host) == (b"7", False, 3)

    Host(app).run(test)


def test_the_error_of_the_last_attempt_is_recorded() -> None:
    app = App()

    @app.task(retry=Retry(max_attempts=2, initial=1.0, jitter=0))
    async def price() -> None:
        raise OSError("busy")

    flow(app, price)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.advance(1.1)
        result, failed, attempt = await recorded(host)
        assert (msgspec.json.decode(result)["message"], failed, attempt) == ("busy", True, 2)

    Host(app).run(test)


def test_a_step_that_snoozes_starts_later_without_another_attempt() -> None:
    app = App()
    attempts: list[int] = []

    @app.task
    async def price() -> int:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            raise Snooze(timedelta(seconds=30))
        return 7

    flow(app, price)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.advance(29)
        assert not await host.reports()
        host.advance(1.1)
        assert await recorded(host) == (b"7", False, 1)
        assert attempts == [1, 1]

    Host(app).run(test)


def test_a_step_that_takes_too_long_fails_with_the_reason() -> None:
    app = App()
    ended: list[str] = []

    @app.task(timeout=5.0)
    async def price() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("price")

    flow(app, price)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.advance(4.9)
        assert not await host.reports()
        host.advance(0.2)
        result, failed, _ = await recorded(host)
        error = msgspec.json.decode(result)
        assert (error["type"], failed) == ("Timeout", True)
        assert error["message"] == "the attempt of step price ran for longer than 5 s"
        assert ended == ["price"]

    Host(app).run(test)


class Processes:
    """Takes the place of `subprocess.Popen`: the test is the other end of the pipe of each process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[Processes.One] = []
        monkeypatch.setattr(subprocess, "Popen", self._start)
        monkeypatch.setattr(process._Child, "_kill", lambda child: child._process.pipe.close())  # noqa: SLF001 - no process is there to kill

    class One:
        def __init__(self, descriptor: int) -> None:
            self.pipe = socket.socket(fileno=os.dup(descriptor))

        def wait(self, timeout: float) -> int:
            del timeout
            return -signal.SIGKILL

        def send(self, message: ToParent) -> None:
            self.pipe.sendall(frame(message))

    def _start(self, command: list[str], **_: Any) -> One:
        self.started.append(self.One(int(command[-3])))
        return self.started[-1]


def test_the_start_of_a_process_and_the_wait_for_one_are_no_running_time_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = Processes(monkeypatch)
    app = App()

    @app.task(executor="process", timeout=5.0)
    def price() -> None: ...

    @app.workflow
    async def order() -> None:
        await asyncio.gather(price.step(), price.step(), return_exceptions=True)

    async def failed(host: Host, seconds: float) -> list[bool]:
        """Let time pass; return of each step that is reported then whether it has failed."""
        host.advance(seconds)
        reports = await host.reports()
        for report in reports:
            host.answer(report)
        await host.settle()
        return [step.failed for report in reports for step in report.only.steps]

    async def test(host: Host) -> None:
        host.assign()
        for _ in range(10):  # the process starts, and the second step waits for its end
            assert not await failed(host, 5.1)
        (first,) = processes.started
        first.send(Begun())
        await host.settle()
        assert not await failed(host, 4.9)
        assert await failed(host, 0.2) == [True]
        while len(processes.started) == 1:  # a thread awaits the end of the first process
            await host.settle()
        for _ in range(12):  # a minute and 4.8 s
            assert not await failed(host, 5.4)
        assert await failed(host, 0.3) == [True], "no process is prepared for longer than a minute"

    Host(app, selector="app.py", concurrency=1).run(test)


def test_a_step_that_ends_in_time_does_not_time_out_later() -> None:
    app = App()

    @app.task(timeout=5.0)
    async def price() -> int:
        return 7

    flow(app, price)

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        host.advance(6)
        assert not await host.reports()
        assert host.node.closed.result == b"7"

    Host(app).run(test)


def with_timeout(app: App, task: Any) -> None:
    """Define a workflow that waits 10 s for a step."""

    @app.workflow
    async def order() -> str:
        try:
            async with asyncio.timeout(10):
                return str(await task.step())
        except TimeoutError:
            return "too late"


async def time_out(host: Host) -> None:
    """Let the timer of the run fire while its step runs."""
    host.assign()
    host.answer(await host.report())
    await host.settle()
    host.advance(10)
    host.node.fire()
    host.stop(host.lease, b"events")
    host.answer(await host.report())
    host.answer(await host.report())
    assert host.node.closed.result == b'"too late"'


def test_a_step_that_is_not_awaited_any_more_has_no_further_attempt() -> None:
    app = App()
    attempts: list[int] = []

    @app.task(retry=Retry(max_attempts=2, initial=60.0, jitter=0))
    async def price() -> None:
        attempts.append(current_job().attempt)
        raise OSError("busy")

    with_timeout(app, price)

    async def test(host: Host) -> None:
        await time_out(host)
        host.advance(100)
        await host.settle()
        assert attempts == [1]

    Host(app).run(test)


def test_a_thread_that_does_not_stop_has_no_further_attempt() -> None:
    app = App()
    begun, go, done = threading.Event(), threading.Event(), threading.Event()
    asked: list[bool] = []

    @app.task(retry=Retry(max_attempts=2, initial=1.0, jitter=0))
    def price() -> int:
        begun.set()
        assert go.wait(10)
        asked.append(current_job().cancel_requested)
        done.set()
        raise OSError("busy")

    with_timeout(app, price)

    async def test(host: Host) -> None:
        await time_out(host)
        assert begun.wait(10)
        go.set()
        await asyncio.to_thread(done.wait, 10)
        await host.settle()
        host.advance(2)
        assert not await host.reports()
        assert asked == [True]

    Host(app).run(test)


def test_each_attempt_has_its_own_time_out() -> None:
    app = App()
    attempts: list[int] = []

    @app.task(retry=Retry(max_attempts=2, initial=3.0, jitter=0), timeout=5.0)
    async def price() -> None:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            raise OSError("busy")
        await asyncio.Event().wait()

    flow(app, price)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.advance(3.1)
        await host.settle()
        host.advance(4.8)
        assert not await host.reports()
        assert attempts == [1, 2]
        host.advance(0.3)
        result, failed, attempt = await recorded(host)
        assert (msgspec.json.decode(result)["type"], failed, attempt) == ("Timeout", True, 2)

    Host(app).run(test)


def test_a_step_gets_its_own_copies_of_its_arguments() -> None:
    app = App()

    async def add(numbers: list[int]) -> int:
        numbers.append(4)
        return len(numbers)

    @app.workflow
    async def order() -> list[int]:
        numbers = [1, 2, 3]
        return [await workflow.step(add, numbers), len(numbers)]

    async def test(host: Host) -> None:
        host.assign()
        host.answer(await host.report())
        assert host.node.closed.result == b"[4,3]"

    Host(app).run(test)


def test_a_step_that_blocks_its_worker_beyond_its_timeout_has_timed_out() -> None:
    app = App()
    hosts: list[Host] = []

    @app.task(timeout=timedelta(seconds=2))
    async def price() -> int:
        hosts[0].advance(3)  # without a wait
        return 7

    flow(app, price)

    async def test(host: Host) -> None:
        hosts.append(host)
        host.assign()
        result, failed, attempts = await recorded(host)
        assert (failed, attempts) == (True, 1)
        assert msgspec.json.decode(result)["type"] == "Timeout"

    Host(app).run(test)


def test_a_step_uses_the_task_that_runs_it() -> None:
    app = App()

    @app.task
    async def price() -> str:
        job = current_job()
        try:
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        except TimeoutError:
            assert current_job() is job
            return "late"
        return ""

    flow(app, price)

    async def test(host: Host) -> None:
        host.assign()
        await host.settle()
        host.advance(5.1)
        assert await recorded(host) == (b'"late"', False, 1)

    Host(app).run(test)
