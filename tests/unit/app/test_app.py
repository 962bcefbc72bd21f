from __future__ import annotations

import asyncio
import functools
import math
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.unit.client.extension_server import ExtensionServer

import mainspring
from mainspring import (
    App,
    Job,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobLost,
    JobTimedOut,
    PayloadError,
    RefusedError,
    Retry,
    SettingsError,
    UsageError,
)
from mainspring.wire.gearman_protocol import Type

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[ExtensionServer]:
    with ExtensionServer() as server:
        yield server


@pytest.fixture
def app(server: ExtensionServer) -> Iterator[App]:
    app = App(str(server.address))
    yield app
    app.close()


def end(server: ExtensionServer, handle: str, state: str = "succeeded", data: bytes = b"", error: bytes = b"") -> None:
    def act() -> None:
        job = server.jobs[handle.encode()]
        job.data, job.error, job.attempt = data, error, 2
        server.end(job, state)
        server.dispatch()

    server.do(act)


def test_all_public_names_exist() -> None:
    assert all(getattr(mainspring, name) is not None for name in mainspring.__all__)
    assert set(mainspring.__all__) <= set(dir(mainspring))
    with pytest.raises(AttributeError):
        mainspring.nothing  # noqa: B018


def test_a_task_is_still_its_function(app: App) -> None:
    @app.task
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    @app.task(name="other.name")
    async def later() -> int:
        return 5

    assert add(1, b=2) == 3
    assert add.__doc__ == "Add."
    assert asyncio.run(later()) == 5
    assert (add.name, later.name, repr(add)) == ("add", "other.name", "Task('add')")
    assert [(f.name, f.executor) for f in app.registry] == [("add", "thread"), ("other.name", "coroutine")]


def test_invalid_definitions_are_refused(app: App) -> None:
    @app.task
    def add() -> None: ...

    with pytest.raises(UsageError, match="two tasks are named 'add'"):

        @app.task(name="add")
        def another() -> None: ...

    with pytest.raises(UsageError, match="coroutine function"):

        @app.task(executor="process")
        async def busy() -> None: ...

    with pytest.raises(UsageError, match="generator"):

        @app.task
        def many() -> Iterator[int]:
            yield 1

    with pytest.raises(UsageError, match="executor must be"):
        app.task(executor="magic")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="is not a function"):
        app.task("img.thumbnail")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="has no __name__"):
        app.task(functools.partial(max, 1))


def test_submit_sends_payload_and_options(server: ExtensionServer, app: App) -> None:
    @app.task(retry=Retry(max_attempts=3), timeout=timedelta(minutes=2), priority="low")
    def thumbnail(path: str, width: int) -> str:
        return path

    thumbnail.submit("cat.png", width=200)
    thumbnail.options(unique="cat-200", priority="high", delay=5, retry=Retry(max_attempts=1)).submit("cat.png", 200)
    first, second = server.seen_of(Type.SUBMIT)
    assert first[:2] == [b"thumbnail", b""]
    assert first[3] == b'{"path":"cat.png","width":200}'
    options = msgspec.json.decode(first[2])
    assert (options["priority"], options["timeout"], options["retry"]["max_attempts"]) == ("low", 120.0, 3)
    assert second[1] == b"cat-200"
    assert second[3] == b'["cat.png",200]'
    options = msgspec.json.decode(second[2])
    assert (options["priority"], options["delay"], options["retry"]["max_attempts"]) == ("high", 5, 1)


def test_jobs_join_by_unique_which_may_be_computed_from_arguments(server: ExtensionServer, app: App) -> None:
    @app.task
    def fetch(url: str) -> None: ...

    by_url = fetch.options(unique=lambda url: url, keep_unique=timedelta(hours=1))
    first, second, third = by_url.submit("a"), by_url.submit("b"), by_url.submit("a")
    assert first.handle == third.handle != second.handle
    assert [first.joined, second.joined, third.joined] == [False, False, True]
    with pytest.raises(UsageError, match=r"fetch: the unique of these arguments must be text; it is 7 \(int\)"):
        fetch.options(unique=lambda url: 7).submit("a")  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match="keep_unique needs"):
        fetch.options(keep_unique=5)
    with pytest.raises(UsageError, match="no time zone"):
        fetch.options(run_at=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(UsageError, match="belong to the task's definition"):
        fetch.options(retry=Retry(never=(OSError,)))
    assert fetch.options(run_at=datetime(2030, 1, 1, tzinfo=UTC)).submit("c").handle


def test_a_task_may_have_a_unique(server: ExtensionServer, app: App) -> None:
    @app.task(unique="rebuild", keep_unique=timedelta(hours=1))
    def rebuild(index: str = "all") -> None: ...

    @app.task(unique=lambda url, depth=1: f"{url}-{depth}")
    async def crawl(url: str, depth: int = 1) -> None: ...

    rebuild.submit_many([(), ("names",)])
    rebuild.options(unique="other").submit()
    rebuild.options(unique="").options(priority="low").submit()
    rebuild.options(priority="high", keep_unique=5).submit()
    crawl.submit("a", depth=2)
    crawl.submit_many(["a", {"url": "b", "depth": 3}])
    crawl.options(unique=lambda url, depth=1: url).submit("c")

    async def submit() -> None:
        await crawl.asubmit("d")
        await app.aclose()

    asyncio.run(submit())
    sent = [(args[1].decode(), msgspec.json.decode(args[2] or b"{}")) for args in server.seen_of(Type.SUBMIT)]
    assert sent == [
        ("rebuild", {"keep_unique": 3600.0}),
        ("rebuild", {"keep_unique": 3600.0}),
        ("other", {"keep_unique": 3600.0}),
        ("", {"priority": "low"}),
        ("rebuild", {"priority": "high", "keep_unique": 5}),
        *((unique, {}) for unique in ("a-2", "a-1", "b-3", "c", "d-1")),
    ]
    with pytest.raises(UsageError, match="keep_unique needs a unique: give unique= too"):
        app.task(keep_unique=5)
    with pytest.raises(UsageError, match=r"crawl: the unique of these arguments has 66 bytes: give it at most 64"):
        crawl.submit("x" * 64)


@pytest.mark.parametrize(
    ("name", "remedy"), [("delay", r"call submit\("), ("apply_async", r"options\(…\)\.submit"), ("x", "'x'$")]
)
def test_the_error_for_a_method_of_another_queue_names_the_one_to_call(app: App, name: str, remedy: str) -> None:
    @app.task
    def fetch(url: str) -> None: ...

    assert not hasattr(fetch, name)
    with pytest.raises(AttributeError, match=f"^'Task' object has no attribute .*{remedy}"):
        getattr(fetch, name)


def test_a_submission_has_a_readable_repr(app: App) -> None:
    @app.task(priority="low")
    def fetch(url: str) -> None: ...

    assert repr(fetch) == "Task('fetch')"
    assert repr(app.function("resize")) == "Submission('resize')"
    later = app.function("resize").options(delay="90s", expires=5400, heartbeat=0.5, unique="u", keep_unique="1d")
    assert repr(later) == (
        "Submission('resize', delay='1m30s', heartbeat='500ms', expires='1h30m', keep_unique='1d', unique='u')"
    )
    assert repr(fetch.options(tags=["b", "a"])) == "Submission('fetch', priority='low', tags=('a', 'b'))"
    shown = fetch.options(unique="u", run_timeout="5m", retry=Retry(max_attempts=2), concurrency_key="k")
    assert repr(shown) == (
        "Submission('fetch', priority='low', run_timeout='5m', retry=Retry(max_attempts=2, initial=1.0, factor=2.0, "
        "maximum=3600.0, jitter=0.1, on=(<class 'Exception'>,), never=()), concurrency_key='k', unique='u')"
    )


def test_results_come_back_typed(server: ExtensionServer, app: App) -> None:
    @app.task
    def when(at: datetime) -> datetime:
        return at

    job = when.submit(datetime(2030, 1, 1, tzinfo=UTC))
    assert job.state == "pending"
    end(server, job.handle, data=b'"2031-01-01T00:00:00Z"')
    assert job.result(timeout=5) == datetime(2031, 1, 1, tzinfo=UTC)
    assert job.result() == datetime(2031, 1, 1, tzinfo=UTC)
    assert job.state == "succeeded"
    assert app.job(job.handle).result() == b'"2031-01-01T00:00:00Z"'
    assert when.job(job.handle).result() == job.result()
    odd = when.submit(datetime(2030, 1, 1, tzinfo=UTC))
    end(server, odd.handle, data=b"5.5.5")
    with pytest.raises(PayloadError, match="its result cannot be read as datetime"):
        odd.result()


def test_outcomes_are_raised_as_errors(server: ExtensionServer, app: App) -> None:
    @app.task
    def anything() -> None: ...

    jobs = [anything.submit() for _ in range(4)]
    with pytest.raises(TimeoutError, match=jobs[0].handle):
        jobs[0].result(timeout=timedelta(milliseconds=10))
    end(server, jobs[0].handle, "failed", error=b'{"type":"ValueError","message":"no","traceback":"tb"}')
    end(server, jobs[1].handle, "expired")
    assert jobs[2].cancel() == "cancelled"
    with pytest.raises(JobFailed, match="failed at attempt 2: ValueError: no") as failed:
        jobs[0].result()
    assert (failed.value.type_name, failed.value.reason, failed.value.traceback) == ("ValueError", "no", "tb")
    with pytest.raises(JobExpired):
        jobs[1].result()
    with pytest.raises(JobCancelled):
        jobs[2].result()
    with pytest.raises(JobLost):
        app.job("H:none:1").result()


@pytest.mark.parametrize("handle", ["", "a\0b", "H:n:1\n", "\udcff", "H" * 64, b"H:n:1", None])
def test_an_invalid_handle_is_refused_at_the_call(app: App, handle: Any) -> None:
    """No server would answer a handle with a NUL, so the caller would wait for ever."""
    with pytest.raises(UsageError, match="is not a handle: pass the handle of a job, such as 'H:node:1000000000001'"):
        app.job(handle)
    assert app.job("H" * 63).handle == "H" * 63


def test_functions_of_other_languages(server: ExtensionServer, app: App) -> None:
    reverse = app.function("reverse")
    jobs = [
        reverse.submit(b"\0raw"),
        reverse.submit({"a": [1]}),
        reverse.submit("text"),
        reverse.submit(a=1),
        reverse.submit(),
    ]
    assert [args[3] for args in server.seen_of(Type.SUBMIT)] == [b"\0raw", b'{"a":[1]}', b'"text"', b'{"a":1}', b""]
    end(server, jobs[0].handle, data=b"war\0")
    assert jobs[0].result(5) == b"war\0"
    with pytest.raises(TypeError):
        reverse.submit(1, 2)


def test_many_at_once(server: ExtensionServer, app: App) -> None:
    @app.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    jobs = add.submit_many([(1, 2), {"a": 3}, 4])
    assert [args[3] for args in server.seen_of(Type.SUBMIT)] == [b"[1,2]", b'{"a":3}', b"[4]"]
    for number, job in enumerate(jobs):
        end(server, job.handle, data=b"%d" % number)
    assert list(app.results(jobs, timeout=5)) == [0, 1, 2]
    server.refuse.add(b"add")
    with pytest.raises(RefusedError) as error:
        add.submit_many([1, 2])
    assert error.value.__notes__ == ["0 of 2 jobs were accepted"]


def test_nan_and_infinity_are_refused(server: ExtensionServer, app: App) -> None:
    @app.task
    def scale(values: list[float], by: float = 1.0) -> list[float]:
        return [value * by for value in values]

    with pytest.raises(PayloadError, match=r"scale: parameter 'values' at \[1\] is nan"):
        scale.submit([1.0, math.nan])
    with pytest.raises(PayloadError, match="scale: parameter 'by' is -inf"):
        scale.submit_many([([1.0],), ([], -math.inf)])
    with pytest.raises(PayloadError, match=r"a payload of elsewhere at \.by is inf"):
        app.function("elsewhere").submit(by=math.inf)
    with pytest.raises(PayloadError, match="a payload of elsewhere is nan"):
        app.function("elsewhere").submit(math.nan)
    assert not server.seen_of(Type.SUBMIT)


def test_the_asyncio_methods(server: ExtensionServer, app: App) -> None:
    @app.task
    async def double(x: int) -> int:
        return 2 * x

    async def main() -> None:
        job = await double.asubmit(1)
        assert await job.astate() == "pending"
        assert (await job.ainfo())["handle"] == job.handle
        await asyncio.to_thread(end, server, job.handle, data=b"2")
        assert await job.aresult(5) == 2
        assert await job == 2
        assert await job.outcome() == (2, None)
        many = await double.options(priority="high").asubmit_many([1, 2])
        assert await many[0].acancel() == "cancelled"
        with pytest.raises(JobCancelled):
            await many[0].aresult()
        with pytest.raises(JobCancelled):
            await many[0]
        outcome = await many[0].outcome()
        assert not outcome.ok
        assert isinstance(outcome.error, JobCancelled)
        await asyncio.to_thread(end, server, many[1].handle, data=b"7")
        assert [result async for result in app.aresults(many[1:])] == [7]
        await app.aclose()

    for _ in range(2):  # each loop has its own client
        asyncio.run(main())


def test_a_timeout_is_an_error_of_its_own(server: ExtensionServer, app: App) -> None:
    job = app.function("f").submit()
    end(server, job.handle, "failed", error=b'{"type":"Timeout","message":"it ran too long"}')
    with pytest.raises(JobTimedOut, match="failed at attempt 2: Timeout: it ran too long") as failed:
        job.result()
    assert (failed.value.kind, failed.value.attempt) == ("start_to_close", 2)


def test_a_class_can_be_a_job_and_a_future(app: App) -> None:
    class FutureJob(asyncio.Future[int], Job[int]):  # type: ignore[misc] # the Future's `result` takes no timeout
        def __init__(self) -> None:
            asyncio.Future.__init__(self)
            Job.__init__(self, app.connections, "H:n:1", int)

        def cancel(self, reason: str | None = None) -> bool:  # type: ignore[override]
            return asyncio.Future.cancel(self, reason)

    async def main() -> None:
        done, failed, cancelled = FutureJob(), FutureJob(), FutureJob()
        asyncio.get_running_loop().call_soon(done.set_result, 3)
        assert await done == 3 == done.result()
        assert done.done()
        failed.set_exception(ValueError("refused"))
        assert (await asyncio.wait([failed]))[0] == {failed}
        assert isinstance(failed.exception(), ValueError)
        assert cancelled.cancel("changed")
        with pytest.raises(asyncio.CancelledError, match="changed"):
            await cancelled
        assert (done.handle, done.joined) == ("H:n:1", False)

    asyncio.run(main())


def test_the_server_is_read_from_the_environment_at_the_first_use(
    server: ExtensionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_SERVER", "nonsense:port")
    app = App()
    monkeypatch.setenv("MAINSPRING_SERVER", str(server.address))
    assert app.function("f").submit(b"").handle
    monkeypatch.setenv("MAINSPRING_SERVER", "nonsense:port")  # other threads and loops use the same settings

    async def submit() -> str:
        try:
            return (await app.function("f").asubmit(b"")).handle
        finally:
            await app.aclose()

    assert asyncio.run(submit())
    app.close()
    with pytest.raises(SettingsError):
        App("nonsense:port").function("f").submit(b"")


def test_submit_and_work_in_one_process(server: ExtensionServer, app: App) -> None:
    @app.task
    def outer(x: int) -> int:
        return inner.submit(x).result(10) + 1

    @app.task
    def inner(x: int) -> int:
        return x * 2

    created = threading.Event()
    found: dict[str, Any] = {}

    async def work() -> None:
        found["worker"], found["loop"] = app.worker(), asyncio.get_running_loop()
        created.set()
        await found["worker"].run()

    thread = threading.Thread(target=asyncio.run, args=[work()])
    thread.start()
    assert created.wait(10)
    assert outer.submit(20).result(10) == 41
    found["loop"].call_soon_threadsafe(found["worker"].stop)
    thread.join(10)
    assert not thread.is_alive()
