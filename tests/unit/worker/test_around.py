"""Middleware, provided values and hooks in a worker: every executor, and every way in which an attempt ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.unit.worker.test_execution import execute, function, job

from mainspring import App, CurrentJob, JobStopped, Provide, Retry, Snooze, current_job
from mainspring.client.payload import Signature
from mainspring.errors import UsageError, WorkerStartError
from mainspring.wire.gearman_protocol import Type
from mainspring.worker import around
from mainspring.worker.around import Life
from mainspring.worker.execution import Settlement, execute_coroutine
from mainspring.worker.executors import in_process
from mainspring.worker.registry import Function
from mainspring.worker.runtime import Ending
from mainspring.worker.selector import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.unit.client.extension_server import ExtensionServer, FakeJob
    from tests.unit.worker.conftest import Running

    from mainspring.worker.registry import Middleware

    Run = Callable[..., Running]

SELECTOR = str(Path(__file__).with_name("app_of_middleware.py"))
TIMEOUT = 20


class Seen:
    """An App with a plain and an asynchronous middleware that note what they see."""

    def __init__(self) -> None:
        self.app = App()
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self.begun = threading.Event()
        self.go = threading.Event()

        @self.app.middleware
        def plain(job: CurrentJob) -> Iterator[None]:
            assert current_job() is job
            try:
                result = yield
            except BaseException as error:
                self.note(f"plain {shown(job, error)}")
                raise
            self.note(f"plain {result}")

        @self.app.middleware
        async def later(job: CurrentJob) -> AsyncIterator[None]:
            await asyncio.sleep(0)
            try:
                result = yield
            except BaseException as error:
                await asyncio.sleep(0)
                self.note(f"later {shown(job, error)}")
                raise
            await asyncio.sleep(0)
            self.note(f"later {result}")

    def note(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= number, TIMEOUT), self.lines

    def value(self) -> Iterator[str]:
        self.note("opened")
        try:
            yield "value"
        except BaseException as error:
            self.note(f"closed by {type(error).__name__}")
            raise
        else:
            self.note("closed")


def shown(job: CurrentJob, error: BaseException) -> str:
    return f"{type(error).__name__} {job.will_retry(error)} {job.stop_reason}"


class Settled(NamedTuple):
    outcome: str
    detail: dict[str, Any]
    result: Any


def settled(server: ExtensionServer, given: FakeJob) -> Settled:
    server.wait_for(lambda: given.outcomes, TIMEOUT)
    (_, _, outcome, detail, data) = next(args for args in server.seen_of(Type.SETTLE) if args[0] == given.handle)
    return Settled(outcome.decode(), msgspec.json.decode(detail or b"{}"), msgspec.json.decode(data or b"null"))


def lines(trace: Path) -> list[str]:
    return trace.read_text().splitlines() if trace.exists() else []


# ---- threads and coroutines ----


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_all_outcomes_of_functions_are_seen(server: ExtensionServer, run: Run, kind: str) -> None:
    seen = Seen()

    def act(what: str, value: str = Provide(seen.value)) -> Any:
        assert value == "value"
        match what:
            case "fails":
                raise ValueError
            case "snoozes":
                raise Snooze(5)
            case "final":
                raise KeyError
            case "unwritable":
                return object()
        return what

    async def later(what: str, value: str = Provide(seen.value)) -> Any:
        await asyncio.sleep(0)
        return act(what, value)

    seen.app.task(name="f", retry=Retry(max_attempts=3, never=(KeyError,)))(act if kind == "thread" else later)
    run(seen.app, concurrency=1)
    expected = {
        "good": ("succeeded", "good", "closed"),
        "fails": ("failed", "ValueError True None", "closed by ValueError"),
        "snoozes": ("snoozed", "Snooze True None", "closed by Snooze"),
        "final": ("failed", "KeyError False None", "closed by KeyError"),
        "unwritable": ("failed", "PayloadError False None", "closed by PayloadError"),
    }
    for what, (state, line, closed) in expected.items():
        seen.lines.clear()
        given = server.add("f", msgspec.json.encode([what]), max_attempts=3)
        assert settled(server, given).outcome == state
        seen.wait_for(4)
        assert seen.lines == ["opened", closed, f"later {line}", f"plain {line}"]
    seen.lines.clear()
    unreadable = server.add("f", b"[5]", max_attempts=3)
    assert settled(server, unreadable).detail["final"] is True
    assert seen.lines == ["later PayloadError False None", "plain PayloadError False None"]


def test_stopped_coroutines_are_seen_and_their_values_closed(server: ExtensionServer, run: Run) -> None:
    seen = Seen()

    @seen.app.task
    async def waits(value: str = Provide(seen.value)) -> None:
        seen.begun.set()
        await asyncio.Event().wait()

    running = run(seen.app, grace=0.1)
    for reason, retried in (("cancelled", False), ("timeout", True), ("lost", True)):
        given = begin(server, seen, "waits")
        server.stop(given, reason)
        seen.wait_for(4)
        assert seen.lines == [
            "opened",
            "closed by CancelledError",
            f"later CancelledError {retried} {reason}",
            f"plain CancelledError {retried} {reason}",
        ]
    given = begin(server, seen, "waits")
    running.stop()
    assert running.ended() is Ending.STOPPED
    assert given.outcomes == [b"released"]
    assert seen.lines[-1] == "plain CancelledError True drain"


def begin(server: ExtensionServer, seen: Seen, name: str) -> FakeJob:
    seen.lines.clear()
    seen.begun.clear()
    given = server.add(name, max_attempts=3)
    assert seen.begun.wait(TIMEOUT)
    return given


@pytest.mark.parametrize("reason", ["cancelled", "timeout", "lost"])
def test_a_stop_does_not_interrupt_the_closing_of_values(server: ExtensionServer, run: Run, reason: str) -> None:
    seen = Seen()
    closing, go = threading.Event(), asyncio.Event()

    async def value() -> AsyncIterator[str]:
        yield "value"
        closing.set()
        await go.wait()
        seen.note("closed")

    @seen.app.task
    async def act(given: str = Provide(value)) -> str:
        return given

    @seen.app.task
    async def other() -> None: ...

    running = run(seen.app)
    given = server.add("act")
    assert closing.wait(TIMEOUT)
    server.stop(given, reason)
    after = server.add("other")  # its packet follows that of the stop
    server.wait_for(lambda: after.ended)
    seen.lines.clear()
    running.loop.call_soon_threadsafe(go.set)
    seen.wait_for(3)
    assert seen.lines == ["closed", "later value", "plain value"]


def test_a_closing_that_hangs_ends_a_while_after_the_stop(
    server: ExtensionServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "CLOSE_LIMIT", 0.05)
    seen = Seen()

    async def value() -> AsyncIterator[str]:
        yield "value"
        seen.begun.set()
        await asyncio.Event().wait()

    @seen.app.task
    async def act(given: str = Provide(value)) -> str:
        return given

    run(seen.app)
    given = begin(server, seen, "act")
    server.stop(given, "cancelled")
    server.wait_for(lambda: given.state == "cancelled")
    assert seen.lines == ["later CancelledError False cancelled", "plain CancelledError False cancelled"]


def test_stopped_threads_are_seen_and_their_values_closed(server: ExtensionServer, run: Run) -> None:
    seen = Seen()

    @seen.app.task
    def heeds(value: str = Provide(seen.value)) -> None:
        seen.begun.set()
        while True:
            current_job().heartbeat()
            seen.go.wait(0.01)

    run(seen.app)
    for reason, retried in (("cancelled", False), ("timeout", True)):
        server.stop(begin(server, seen, "heeds"), reason)
        seen.wait_for(4)
        assert seen.lines == [
            "opened",
            "closed by JobStopped",
            f"later JobStopped {retried} {reason}",
            f"plain JobStopped {retried} {reason}",
        ]


def test_the_end_of_a_worker_closes_what_a_frozen_thread_holds(server: ExtensionServer, run: Run) -> None:
    seen = Seen()
    threads: list[threading.Thread] = []

    @seen.app.task
    def frozen(value: str = Provide(seen.value)) -> str:
        threads.append(threading.current_thread())
        seen.begun.set()
        seen.go.wait(TIMEOUT)
        return "late"

    running = run(seen.app, grace=0.05)
    begin(server, seen, "frozen")
    running.stop()
    assert running.ended() is Ending.STOPPED
    closed = ["opened", "closed by JobStopped", "later JobStopped True drain", "plain JobStopped True drain"]
    assert seen.lines == closed
    seen.go.set()
    threads[0].join(TIMEOUT)
    assert not threads[0].is_alive()
    assert seen.lines == closed  # each is closed once


def test_a_thread_that_opens_a_value_at_the_end_of_its_worker_closes_it(server: ExtensionServer, run: Run) -> None:
    seen = Seen()
    threads: list[threading.Thread] = []

    def slow() -> Iterator[str]:
        threads.append(threading.current_thread())
        seen.begun.set()
        seen.go.wait(TIMEOUT)
        yield from seen.value()

    @seen.app.task
    def act(value: str = Provide(slow)) -> None:
        seen.note("runs")

    running = run(seen.app, grace=0.05)
    begin(server, seen, "act")
    running.stop()
    assert running.ended() is Ending.STOPPED
    seen.go.set()
    threads[0].join(TIMEOUT)
    assert [line for line in seen.lines if " " not in line or "closed" in line] == ["opened", "closed by JobStopped"]


def test_a_thread_that_ignores_its_timeout_keeps_its_values_until_it_ends(server: ExtensionServer, run: Run) -> None:
    seen = Seen()

    @seen.app.task
    def ignores(value: str = Provide(seen.value)) -> str:
        seen.begun.set()
        seen.go.wait(TIMEOUT)
        return value

    run(seen.app, concurrency=1)
    server.stop(begin(server, seen, "ignores"), "timeout")
    assert seen.lines == ["opened"]
    seen.go.set()
    seen.wait_for(4)
    assert seen.lines == ["opened", "closed", "later value", "plain value"]


def test_the_first_middleware_is_the_outermost_and_that_of_the_task_is_inside(
    server: ExtensionServer, run: Run
) -> None:
    app, seen = App(), []

    def named(name: str) -> Middleware:
        def middleware(_job: CurrentJob) -> Iterator[None]:
            seen.append(name)
            yield
            seen.append(f"/{name}")

        return middleware

    app.middleware(named("a"))

    @app.task(middleware=[named("c"), named("d")])
    def act() -> None: ...

    @app.task
    def other() -> None: ...

    app.middleware(named("b"))  # after the tasks, as in a module that is imported later
    run(app, concurrency=1)
    for name in ("act", "other"):
        settled(server, server.add(name))
    assert seen == ["a", "b", "c", "d", "/d", "/c", "/b", "/a", "a", "b", "/b", "/a"]


def test_middleware_can_raise_other_errors_and_change_nothing_else(server: ExtensionServer, run: Run) -> None:
    app = App()

    @app.middleware
    def turns(job: CurrentJob) -> Iterator[None]:
        if job.function == "never":
            raise Snooze(7)
        try:
            yield
        except KeyError as error:
            raise Snooze(5) from error
        except IndexError as error:
            raise OSError("turned") from error
        except ValueError:
            pass  # such a broad `except` must not make a success of a failure
        if job.function == "late":
            raise RuntimeError("after the success")

    raised: dict[str, type[Exception]] = {"key": KeyError, "index": IndexError, "value": ValueError}

    @app.task
    def raises(name: str) -> None:
        raise raised[name]("a message")

    @app.task
    def late() -> int:
        return 5

    ran = []

    @app.task
    def never() -> None:
        ran.append(1)

    run(app, concurrency=1)
    outcomes = {}
    for name, payload in [
        ("raises", b'["key"]'),
        ("raises", b'["index"]'),
        ("raises", b'["value"]'),
        ("late", b""),
        ("never", b""),
    ]:
        detail = settled(server, server.add(name, payload)).detail
        outcomes[name, payload] = detail.get("delay") or detail["error"]["type"]
    assert list(outcomes.values()) == [5, "OSError", "ValueError", "RuntimeError", 7]
    assert not ran


# ---- one attempt ----


def life_of(*middleware: Any, loop: bool = False) -> Life:
    app = App()
    app.registry.middleware.extend(middleware)
    life = Life(app.registry)
    if not loop:
        life.host = cast("Any", NoHost())
    return life


class NoHost:
    is_here = True


def detail_of(settlement: Settlement) -> dict[str, Any]:
    detail: dict[str, Any] = msgspec.json.decode(settlement.detail)
    return detail


def twice(_job: CurrentJob) -> Iterator[None]:
    yield
    yield


async def twice_later(_job: CurrentJob) -> AsyncIterator[None]:
    yield
    yield


def never(_job: CurrentJob) -> Iterator[None]:
    if _job.attempt > 5:
        yield


async def never_later(_job: CurrentJob) -> AsyncIterator[None]:
    if _job.attempt > 5:
        yield


@pytest.mark.parametrize("middleware", [twice, twice_later, never, never_later])
def test_middleware_that_does_not_yield_once_fails_the_job_finally(middleware: Any) -> None:
    async def act() -> int:
        return 5

    async def main() -> Settlement:
        life = life_of(middleware)
        given = Signature(act, "act")
        surrounded = life.surround(Function("act", act, given, "coroutine", retry=Retry()))
        return await execute_coroutine(surrounded, b"", job(b'{"max_attempts":5}'))

    settlement = asyncio.run(main())
    detail = detail_of(settlement)
    assert settlement.outcome == b"failed"
    assert detail["final"] is True
    assert detail["error"]["type"] == "UsageError"
    assert "yield" in detail["error"]["message"]


def test_the_traceback_of_a_failure_is_that_of_the_task() -> None:
    def fails() -> None:
        raise ValueError("x")

    def passes(_job: CurrentJob) -> Iterator[None]:
        yield

    settlement = execute(life_of(passes).surround(function(fails)), b"", job())
    trace = detail_of(settlement)["error"]["traceback"]
    assert "in fails" in trace
    assert "in passes" not in trace


@pytest.mark.parametrize(
    "error", [StopIteration("x"), StopAsyncIteration("x"), GeneratorExit(), SystemExit(3), JobStopped("x")]
)
def test_errors_that_generators_use_themselves_stay_the_outcome(error: BaseException) -> None:
    def passes(_job: CurrentJob) -> Iterator[None]:
        yield

    def swallows(_job: CurrentJob) -> Iterator[None]:
        with contextlib.suppress(BaseException):
            yield

    def fails() -> None:
        raise error

    for middleware in (passes, swallows):
        settlement = execute(life_of(middleware).surround(function(fails)), b"", job())
        assert settlement.outcome == b"failed"
        assert detail_of(settlement)["error"]["type"].endswith(type(error).__name__)


def test_variables_of_the_context_reach_the_function() -> None:
    plain: contextvars.ContextVar[str] = contextvars.ContextVar("plain")
    later: contextvars.ContextVar[str] = contextvars.ContextVar("later")

    def sets(_job: CurrentJob) -> Iterator[None]:
        token = plain.set("a")
        yield
        plain.reset(token)

    async def sets_later(_job: CurrentJob) -> AsyncIterator[None]:
        token = later.set("b")
        yield
        later.reset(token)

    def shows() -> str:
        return plain.get() + later.get()

    async def shows_later() -> str:
        return shows()

    async def main() -> list[Settlement]:
        life = life_of(sets, sets_later, loop=True)
        await life.start()
        surrounded = life.surround(function(shows))
        threaded = await asyncio.to_thread(execute, surrounded, b"", job())
        coroutine = life.surround(Function("f", shows_later, Signature(shows_later, "f"), "coroutine"))
        return [threaded, await execute_coroutine(coroutine, b"", job())]

    assert [one.data for one in asyncio.run(main())] == [b'"ab"', b'"ab"']


def test_functions_without_anything_around_them_are_left_alone() -> None:
    def plain() -> None: ...

    given = function(plain)
    assert life_of().surround(given) is given


# ---- provided values ----


def test_a_provider_is_called_once_for_an_attempt(server: ExtensionServer, run: Run) -> None:
    app, calls = App(), Counter[str]()

    def base() -> str:
        calls["base"] += 1
        return "base"

    @contextmanager
    def left(of: str = Provide(base)) -> Iterator[str]:
        calls["left"] += 1
        yield f"left {of}"
        calls["left closed"] += 1

    @asynccontextmanager
    async def right(of: str = Provide(base)) -> AsyncIterator[str]:
        calls["right"] += 1
        yield f"right {of}"
        calls["right closed"] += 1

    async def awaited(of: str = Provide(left)) -> str:
        return f"awaited {of}"

    class Manager:
        def __enter__(self) -> str:
            return "manager"

        def __exit__(self, *_: object) -> None:
            calls["manager closed"] += 1

    class AsyncManager:
        async def __aenter__(self) -> str:
            return "async manager"

        async def __aexit__(self, *_: object) -> None:
            calls["async manager closed"] += 1

    @app.task
    def act(
        a: str = Provide(left),
        b: str = Provide(right),
        c: str = Provide(awaited),
        d: str = Provide(Manager),
        e: str = Provide(AsyncManager),
    ) -> list[str]:
        return [a, b, c, d, e]

    @app.task
    async def later(
        a: str = Provide(left),
        b: str = Provide(right),
        c: str = Provide(awaited),
        d: str = Provide(Manager),
        e: str = Provide(AsyncManager),
    ) -> list[str]:
        return [a, b, c, d, e]

    run(app, concurrency=1)
    for name in ("act", "later"):
        calls.clear()
        assert settled(server, server.add(name)).result == [
            "left base", "right base", "awaited left base", "manager", "async manager"
        ]  # fmt: skip
        assert calls == dict.fromkeys(
            ["base", "left", "right", "left closed", "right closed", "manager closed", "async manager closed"], 1
        )


def test_a_provider_that_fails_fails_the_job_and_closes_the_others(server: ExtensionServer, run: Run) -> None:
    seen = Seen()

    def broken() -> str:
        raise ConnectionError("no database")

    def unclosable() -> Iterator[str]:
        yield "x"
        raise RuntimeError("not committed")

    @seen.app.task
    def opens(first: str = Provide(seen.value), second: str = Provide(broken)) -> None: ...

    @seen.app.task
    def closes(first: str = Provide(seen.value), second: str = Provide(unclosable)) -> None: ...

    run(seen.app, concurrency=1)
    for name, error in (("opens", "ConnectionError"), ("closes", "RuntimeError")):
        seen.lines.clear()
        found = settled(server, server.add(name))
        assert found.outcome == "failed"
        assert found.detail["error"]["type"] == error
        assert seen.lines == ["opened", f"closed by {error}", f"later {error} False None", f"plain {error} False None"]


def test_all_jobs_of_a_worker_share_a_value_per_worker(server: ExtensionServer, run: Run) -> None:
    app, seen, failures = App(), [], [1]
    barrier = threading.Barrier(2)

    async def engine() -> AsyncIterator[str]:
        with pytest.raises(Exception, match="no current job"):
            current_job()  # it outlives the job
        if failures:
            failures.pop()
            raise ConnectionError("not yet")
        seen.append("engine")
        await asyncio.sleep(0)
        yield "engine"
        await asyncio.sleep(0)
        seen.append("/engine")

    def pool(of: str = Provide(engine, per="worker")) -> Iterator[list[str]]:
        seen.append("pool")
        yield [of]
        seen.append("/pool")

    @app.task
    def act(given: list[str] = Provide(pool, per="worker")) -> int:
        barrier.wait(TIMEOUT)
        return id(given)

    @app.task
    async def later(given: list[str] = Provide(pool, per="worker")) -> int:
        return id(given)

    running = run(app, concurrency=4)
    assert settled(server, server.add("later")).detail["error"]["type"] == "ConnectionError"
    jobs = [server.add(name) for name in ("act", "later", "act", "later")]
    server.wait_for(lambda: all(one.ended for one in jobs))
    assert len({one.data for one in jobs}) == 1
    assert seen == ["engine", "pool"]
    running.stop()
    assert running.ended() is Ending.STOPPED
    assert seen == ["engine", "pool", "/pool", "/engine"]


def test_a_value_per_worker_knows_no_job(server: ExtensionServer, run: Run) -> None:
    app = App()

    async def later() -> bool:
        return is_in_a_job()

    def plain() -> bool:
        return is_in_a_job()

    def is_in_a_job() -> bool:
        try:
            current_job()
        except UsageError:
            return False
        return True

    @app.task
    async def coroutine(a: bool = Provide(later, per="worker"), b: bool = Provide(plain, per="worker")) -> list[bool]:
        return [a, b, is_in_a_job()]

    @app.task
    def thread(a: bool = Provide(later, per="worker"), b: bool = Provide(plain, per="worker")) -> list[bool]:
        return [a, b, is_in_a_job()]

    for name in ("coroutine", "thread"):
        running = run(app)
        assert settled(server, server.add(name)).result == [False, False, True]
        running.stop()
        running.ended()


def test_a_cancel_of_the_first_job_does_not_take_a_shared_value_from_the_others(
    server: ExtensionServer, run: Run
) -> None:
    app, begun, go = App(), threading.Event(), asyncio.Event()

    async def slow() -> str:
        begun.set()
        await go.wait()
        return "value"

    @app.task
    async def act(given: str = Provide(slow, per="worker")) -> str:
        return given

    running = run(app, concurrency=2)
    first = server.add("act")
    assert begun.wait(TIMEOUT)
    second = server.add("act")
    server.wait_for(lambda: second.state == "running")
    server.stop(first, "cancelled")
    server.wait_for(lambda: first.state == "cancelled")
    running.loop.call_soon_threadsafe(go.set)
    server.wait_for(lambda: second.ended)
    assert second.data == b'"value"'


# ---- hooks ----


def hooked(seen: list[str], *, fails: str = "") -> App:
    app = App()

    @app.on_worker_start
    async def first() -> AsyncIterator[None]:
        task = asyncio.current_task()
        seen.append("first")
        yield
        assert asyncio.current_task() is task  # so that task groups and cancel scopes may be open meanwhile
        seen.append("/first")

    @app.on_worker_stop
    def stop() -> None:
        seen.append("stop")

    @app.on_worker_start
    def second() -> Iterator[None]:
        if fails == "second":
            raise ConnectionError("no database")
        seen.append("second")
        yield
        seen.append("/second")

    @app.on_worker_stop
    async def stop_later() -> None:
        seen.append("stop later")
        if fails == "stop later":
            raise OSError("gone")

    @app.on_worker_start
    async def third() -> None:
        seen.append("third")

    @app.task
    def act() -> None:
        seen.append("act")

    return app


@pytest.mark.parametrize("fails", ["", "stop later"])
def test_hooks_run_around_the_jobs_of_a_worker(server: ExtensionServer, run: Run, fails: str) -> None:
    seen: list[str] = []
    with capture_logs() as logs:
        running = run(hooked(seen, fails=fails))
        given = server.add("act")
        server.wait_for(lambda: given.ended)
        running.stop()
        assert running.ended() is Ending.STOPPED
    assert seen == ["first", "second", "third", "act", "stop later", "/second", "stop", "/first"]
    assert [one["function"] for one in logs if one["log_level"] == "error"] == (
        ["hooked.<locals>.stop_later"] if fails else []
    )


def test_a_hook_that_fails_ends_the_worker_and_stops_those_that_have_started(server: ExtensionServer, run: Run) -> None:
    seen: list[str] = []
    running = run(hooked(seen, fails="second"))
    ending = running.ended()
    assert isinstance(ending, WorkerStartError)
    assert str(ending) == (
        "the worker cannot start: hooked.<locals>.second, a function of on_worker_start, failed: ConnectionError: no database"
    )
    assert isinstance(ending.__cause__, ConnectionError)
    assert seen == ["first", "stop later", "stop", "/first"]
    assert not server.peers


def test_a_worker_can_be_stopped_while_a_hook_starts(server: ExtensionServer, run: Run) -> None:
    app, begun, seen = App(), threading.Event(), []

    @app.on_worker_start
    async def hangs() -> AsyncIterator[None]:
        begun.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            seen.append("ended")

    @app.on_worker_stop
    def stop() -> None:
        seen.append("stop")

    @app.task
    def act() -> None: ...

    running = run(app)
    assert begun.wait(TIMEOUT)
    running.stop()
    assert running.ended() is Ending.STOPPED
    assert sorted(seen) == ["ended", "stop"]
    assert not server.peers


def test_a_hook_that_hangs_at_the_end_does_not_keep_the_worker(
    server: ExtensionServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(around, "END_LIMIT", 0.05)
    app, seen = App(), []

    @app.on_worker_stop
    def last() -> None:
        seen.append("last")

    @app.on_worker_stop
    async def hangs() -> None:
        await asyncio.Event().wait()

    @app.task
    def act() -> None: ...

    running = run(app)
    server.wait_for(lambda: server.peers)
    with capture_logs() as logs:
        running.stop()
        assert running.ended() is Ending.STOPPED
    assert seen == ["last"]
    assert "the worker ends before this has ended" in [one["event"] for one in logs]


# ---- task processes ----


def await_lines(trace: Path, condition: Callable[[list[str]], bool]) -> None:
    """Wait until another process has written lines."""
    until = time.monotonic() + TIMEOUT
    while not condition(lines(trace)):
        assert time.monotonic() < until, lines(trace)
        time.sleep(0.01)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trace"
    monkeypatch.setenv("TRACE", str(path))
    return path


def test_middleware_values_and_hooks_in_task_processes(trace: Path, server: ExtensionServer, run: Run) -> None:
    running = run(cast("App", load(SELECTOR)), selector=SELECTOR, concurrency=1)
    await_lines(trace, lambda found: found == ["worker starts", "pool opens"])
    good, bad, snoozed = server.add("uses"), server.add("fails"), server.add("missing")
    assert settled(server, good).result == "session of engine"
    assert settled(server, bad).outcome == "failed"
    assert settled(server, snoozed).detail["delay"] == 60
    running.stop()
    assert running.ended() is Ending.STOPPED
    assert lines(trace)[2:] == [
        "pool opens",
        *("uses: outer", "engine opens", "session opens", "session closes", "uses: inner out", "uses: outer ok"),
        *("fails: outer", "session opens", "session closes", "fails: inner out", "fails: outer ValueError"),
        *("missing: outer", "missing: inner out", "missing: outer KeyError"),
        *("engine closes", "stop hook", "pool closes"),  # of the task process
        *("stop hook", "pool closes"),
    ]


def test_a_cancelled_function_in_a_process_is_seen_and_a_killed_one_is_not(
    trace: Path, server: ExtensionServer, run: Run
) -> None:
    run(cast("App", load(SELECTOR)), selector=SELECTOR, concurrency=1)
    heeds = server.add("heeds")
    await_lines(trace, lambda found: "session opens" in found)
    server.stop(heeds, "cancelled")
    server.wait_for(lambda: heeds.ended, TIMEOUT)
    assert heeds.state == "cancelled"
    assert lines(trace)[-3:] == ["session closes", "heeds: inner out", "heeds: outer JobStopped"]
    stuck = server.add("stuck")
    await_lines(trace, lambda found: found[-1] == "session opens")
    server.stop(stuck, "timeout")
    after = server.add("uses")
    server.wait_for(lambda: after.ended, TIMEOUT)
    assert not [line for line in lines(trace) if line.startswith("stuck: outer ")]


def test_a_hook_that_fails_in_a_task_process_fails_its_job(
    trace: Path, server: ExtensionServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACE_FAILS", f"not in {os.getpid()}")
    run(cast("App", load(SELECTOR)), selector=SELECTOR, concurrency=1)
    error = settled(server, server.add("uses")).detail["error"]
    assert error["type"] == "ProcessDied"
    assert "fails_if_asked, a function of on_worker_start, failed: ConnectionError: no database" in error["message"]
