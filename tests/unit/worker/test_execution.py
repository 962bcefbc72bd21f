from __future__ import annotations

import asyncio
import contextvars
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.client.options import Retry
from mainspring.client.payload import Signature
from mainspring.errors import UsageError
from mainspring.worker import execution
from mainspring.worker.current import CurrentJob, JobStopped, Snooze, current_job
from mainspring.worker.execution import CANCELLED, RELEASED, Settlement, execute_coroutine
from mainspring.worker.registry import Function, Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.client.inside import Awaited
    from mainspring.worker.current import TokenRequest
    from mainspring.worker.job_log import LogLine


class NullReporter:
    def progress(self, job: CurrentJob, done: int, total: int, text: str) -> None: ...
    def send_data(self, job: CurrentJob, data: bytes, *, warning: bool) -> None: ...

    def write_log(self, job: CurrentJob, line: LogLine) -> None: ...
    def open_completion(self, job: CurrentJob, request: TokenRequest, done: Callable[[Any], None]) -> None: ...
    def publish(self, job: CurrentJob, name: str, value: bytes) -> None: ...
    def write_item(self, job: CurrentJob, name: str, item: bytes) -> int:
        return 0

    def flush_streams(self, job: CurrentJob, done: Callable[[Any], None]) -> None: ...
    def waits(self, job: CurrentJob, awaited: Awaited) -> None: ...
    def continues(self, job: CurrentJob, awaited: Awaited) -> None: ...


def function(call: Any, **options: Any) -> Function:
    return Function(call.__name__, call, Signature(call, call.__name__), "thread", **options)


def execute(function: Function, payload: bytes, job: CurrentJob) -> Settlement:
    """Run a function like the executors do, in a context of its own."""
    return contextvars.Context().run(execution.execute, function, payload, job)


def job(info: bytes = b"") -> CurrentJob:
    return CurrentJob(b"H:n:1000000000007", b"u", "f", info, NullReporter())


def fail(error: BaseException) -> Any:
    def failing() -> None:
        raise error

    return failing


def test_a_result() -> None:
    def double(x: int) -> int:
        return 2 * x

    assert execute(function(double), b"[4]", job()) == (b"succeeded", b"", b"8")


def test_a_payload_that_does_not_fit_is_a_final_failure() -> None:
    def double(x: int) -> int:
        return 2 * x

    outcome, detail, _ = execute(function(double), b'["4"]', job())
    described = msgspec.json.decode(detail)
    assert outcome == b"failed"
    assert described["final"] is True
    assert described["error"]["type"] == "PayloadError"
    assert "parameter 'x'" in described["error"]["message"]


def test_a_result_without_json_form_is_a_final_failure() -> None:
    def odd() -> object:
        return object()

    outcome, detail, _ = execute(function(odd), b"", job())
    assert outcome == b"failed"
    assert msgspec.json.decode(detail)["final"] is True


def test_a_result_that_is_not_finite_is_a_final_failure() -> None:
    def mean() -> dict[str, list[float]]:
        return {"means": [0.5, math.nan]}

    outcome, detail, data = execute(function(mean), b"", job())
    described = msgspec.json.decode(detail)
    assert (outcome, data, described["final"]) == (b"failed", b"", True)
    assert described["error"]["type"] == "PayloadError"
    assert described["error"]["message"].startswith("the result at .means[1] is nan")


@dataclass
class Picky:
    """A type with its own code, which runs when a payload is decoded."""

    size: int

    def __post_init__(self) -> None:
        raise SystemExit if self.size > 9 else KeyError(self.size)


@pytest.mark.parametrize(("payload", "type_name"), [(b'[{"size":1}]', "KeyError"), (b'[{"size":10}]', "SystemExit")])
def test_errors_of_a_parameters_type_are_final_failures(payload: bytes, type_name: str) -> None:
    def take(picky: Picky) -> None: ...

    async def atake(picky: Picky) -> None: ...

    take.__annotations__ = atake.__annotations__ = {"picky": Picky}
    for settlement in (
        execute(function(take), payload, job()),
        asyncio.run(execute_coroutine(function(atake), payload, job())),
    ):
        described = msgspec.json.decode(settlement.detail)
        assert settlement.outcome == b"failed"
        assert described["final"] is True
        assert described["error"]["type"] == type_name


def test_tracebacks_begin_at_the_function() -> None:
    outcome, detail, _ = execute(function(fail(ValueError("no\0such \udcff"))), b"", job())
    described = msgspec.json.decode(detail)
    assert outcome == b"failed"
    assert "final" not in described
    assert described["error"]["type"] == "ValueError"
    assert described["error"]["message"] == "no\0such \\udcff"
    assert b"\0" not in detail
    assert "in failing" in described["error"]["traceback"]
    assert "worker/execution.py" not in described["error"]["traceback"]


class Unprepared(Snooze):
    def __init__(self) -> None: ...


class MisnamedError(Exception): ...


MisnamedError.__qualname__ = "caf\udce9"


@pytest.mark.parametrize("error", [Unprepared(), MisnamedError()])
def test_an_error_of_an_odd_class_is_a_failure(error: Exception) -> None:
    """Otherwise the thread of the executor would end, and the job would run for ever."""
    settlement = execute(function(fail(error)), b"", job())
    assert settlement.outcome == b"failed"
    assert msgspec.json.decode(settlement.detail)["error"]["type"] in {"AttributeError", f"{__name__}.caf\\udce9"}


class OwnError(Exception): ...


class UnshowableError(Exception):
    def __init__(self, worse: BaseException) -> None:
        self.worse = worse

    def __str__(self) -> str:
        raise self.worse


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        UnshowableError(RuntimeError()),
        UnshowableError(SystemExit()),
        JobStopped(),
        OwnError("x" * 10**6),
    ],
)
def test_every_raised_error_is_a_failure(error: BaseException) -> None:
    outcome, detail, _ = execute(function(fail(error)), b"", job())
    assert outcome == b"failed"
    assert len(detail) < 50_000


def test_the_tasks_policy_decides_which_failures_are_final() -> None:
    retry = Retry(on=(OSError,), never=(FileNotFoundError,))
    for error, final in [(OSError(), None), (FileNotFoundError(), True), (ValueError(), True)]:
        _, detail, _ = execute(function(fail(error), retry=retry), b"", job())
        assert msgspec.json.decode(detail).get("final") is final


def test_snooze_and_stops() -> None:
    assert execute(function(fail(Snooze(2.5))), b"", job()) == (b"snoozed", b'{"delay":2.5}', b"")
    cancelled, drained = job(), job()
    cancelled.ask_to_stop("cancelled")
    cancelled.ask_to_stop("timeout")
    assert cancelled.stop_reason == "cancelled"
    drained.ask_to_stop("drain")

    def beat() -> None:
        current_job().heartbeat()

    assert execute(function(beat), b"", cancelled) == CANCELLED
    assert execute(function(beat), b"", drained) == RELEASED
    assert execute(function(beat), b"", job())[0] == b"succeeded"


def test_a_coroutine_cancelled_on_request_is_a_cancelled_job() -> None:
    async def main() -> Any:
        async def wait() -> None:
            await asyncio.Event().wait()

        asked = job()
        task = asyncio.ensure_future(execute_coroutine(function(wait), b"", asked))
        await asyncio.sleep(0)
        asked.ask_to_stop("cancelled")
        task.cancel()
        return await task

    assert asyncio.run(main()) == CANCELLED


def test_attributes_of_the_current_job() -> None:
    info = b'{"attempt":3,"term":9,"deadline":1893456000.5,"later":"ignored"}'
    current = job(info)
    assert current.id == 1000000000007
    assert (current.handle, current.unique, current.attempt, current.term) == ("H:n:1000000000007", "u", 3, 9)
    assert current.deadline is not None
    assert current.deadline.isoformat() == "2030-01-01T00:00:00.500000+00:00"
    assert current.fire_time is None
    assert CurrentJob(b"odd", b"", "f", b"", NullReporter()).id is None


def test_the_text_of_progress_has_a_limit() -> None:
    with pytest.raises(UsageError, match="the text of progress has 257 characters; at most 256 are shown"):
        job().progress(1, 2, "x" * 257)
    with pytest.raises(UsageError, match="the text of progress must be text"):
        job().progress(1, 2, 5)  # type: ignore[arg-type]


def test_progress_requires_whole_numbers() -> None:
    for done, total in ((0.5, 1.0), ("1", 2), (None, 2), (-1, 2), (1, 2**63)):
        with pytest.raises(UsageError, match="progress takes whole numbers"):
            job().progress(done, total)  # type: ignore[arg-type]


def test_data_and_warnings_require_bytes() -> None:
    for send in (job().data, job().warning):
        with pytest.raises(UsageError, match="bytes"):
            send("text")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="bytes"):
            send(10**12)  # type: ignore[arg-type]


def test_outside_a_task_there_is_no_current_job() -> None:
    with pytest.raises(UsageError):
        contextvars.Context().run(current_job)


def test_two_tasks_cannot_have_one_name() -> None:
    def f() -> None: ...

    registry = Registry()
    registry.add(function(f))
    with pytest.raises(UsageError, match="two tasks are named 'f'"):
        registry.add(function(f))
    assert registry.get("f") is not None
    assert registry.get("g") is None
