"""Tests a worker's log of failed attempts. (The log is not configured here, so the lines go through `logging`.)"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import structlog

from mainspring import App, Retry, Snooze
from mainspring.log_limit import AttemptLog
from mainspring.worker.current import CurrentJob
from mainspring.worker.execution import UNKNOWN_RETRY, FailedAttempts, failure
from mainspring.worker.places import Waits
from mainspring.worker.reports import Reports

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.client.extension_server import ExtensionServer
    from tests.unit.worker.conftest import Running

    from mainspring.worker.registry import Function


@pytest.fixture(autouse=True)
def _unconfigured() -> None:
    structlog.reset_defaults()


class RecordingLog(AttemptLog):
    """A log that records its lines."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, lambda _seconds, _function: None)
        self.written: list[tuple[object, ...]] = []

    def write(self, *values: object) -> None:
        self.written.append(values)


def a_function(retry: Retry | None) -> Function:
    app = App()

    @app.task(name="f", retry=retry)
    def f() -> None: ...

    (function,) = app.registry
    return function


def log_of(info: bytes, retry: Retry | None, *, final: bool = False, tracebacks: bool = False) -> tuple[object, ...]:
    lines = RecordingLog()
    job = CurrentJob(b"H:n:1", b"", "f", info, Reports(Waits(1, lambda: None)))
    settlement = failure("ValueError", "no", "Traceback …", final=final)
    FailedAttempts(lines, lambda: 1000.0, tracebacks=tracebacks).failed(job, a_function(retry), settlement)
    (written,) = lines.written
    return written


OWN = b'"retry":{"max_attempts":3,"initial":5,"factor":2,"maximum":60,"jitter":0.5,"news":1}'


@pytest.mark.parametrize(
    ("info", "retry", "next_retry"),
    [
        (b'{"attempt":1}', None, None),
        (b'{"attempt":1,"max_attempts":3}', Retry(3, initial=2, factor=3), 1002.0),
        (b'{"attempt":2,"max_attempts":3}', Retry(3, initial=2, factor=3), 1006.0),
        (b'{"attempt":3,"max_attempts":3}', Retry(3, initial=2, factor=3), None),
        (b'{"attempt":2,"max_attempts":3,' + OWN + b"}", Retry(9), 1010.0),
        (
            b'{"attempt":2,"max_attempts":3}',
            Retry(9),
            UNKNOWN_RETRY,
        ),  # a server that does not send the job's own policy
    ],
)
def test_the_line_has_the_time_of_the_next_retry(
    info: bytes, retry: Retry | None, next_retry: float | str | None
) -> None:
    how, function, handle, attempt, error, logged, traceback = log_of(info, retry)
    assert (how, function, handle, error, traceback) == ("failed", "f", "H:n:1", "ValueError: no", None)
    assert attempt == int(info[11:12])
    assert logged == next_retry


def test_a_final_failure_has_no_next_retry_and_tracebacks_are_optional() -> None:
    written = log_of(b'{"attempt":1,"max_attempts":3}', Retry(3), final=True, tracebacks=True)
    assert written[-2:] == (None, "Traceback …")


def test_only_failures_are_logged_and_each_once(
    server: ExtensionServer, run: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    @app.task
    def raises() -> None:
        raise ValueError("no")

    @app.task
    async def later() -> None:
        raise KeyError("k")

    @app.task
    def fine() -> int:
        return 1

    @app.task
    def snoozes() -> None:
        raise Snooze(100)

    running = run(app)
    jobs = [server.add(name) for name in ("raises", "later", "fine")]
    server.add("snoozes")
    unfit = server.add("fine", b"[1,2]")
    server.wait_for(lambda: unfit.ended and all(job.ended for job in jobs))
    running.stop()
    running.ended()
    lines = [record for record in caplog.records if record.name == "mainspring.attempts"]
    assert all(record.levelno == logging.WARNING for record in lines)
    messages = sorted(record.getMessage().partition(" next_retry")[0] for record in lines)
    assert [line.split()[2] for line in messages] == ["function=fine", "function=later", "function=raises"]
    assert (
        messages[2]
        == f'event="attempt failed" function=raises handle={jobs[0].handle.decode()} attempt=1 error="ValueError: no"'
    )


def test_times_in_lines_are_in_iso_format(caplog: pytest.LogCaptureFixture) -> None:
    AttemptLog(lambda: 0.0, lambda _seconds, _function: None).write("failed", "f", "H:n:1", 1, "x", 1000.0)
    time = caplog.records[0].getMessage().partition("next_retry=")[2]
    assert datetime.fromisoformat(time) == datetime.fromtimestamp(1000, UTC)
