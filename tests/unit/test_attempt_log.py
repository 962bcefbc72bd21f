from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from mainspring.log_limit import AttemptLog
from mainspring.server.log_writer import LogSettings
from mainspring.server.logs import start_logging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Loop:
    """The clock and timers of a loop, which the test advances."""

    def __init__(self) -> None:
        self.now = 100.0
        self.later: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        self.later.append((self.now + seconds, function))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [function for at, function in self.later if at <= self.now]
        self.later = [(at, function) for at, function in self.later if at > self.now]
        for function in due:
            function()


@pytest.fixture
def written() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    start_logging(LogSettings(format="json"), stream=stream)

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        for line in found:
            del line["timestamp"]
        stream.seek(0)
        stream.truncate()
        return found

    yield lines
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def fail(log: AttemptLog, function: str = "f") -> None:
    if log.allows(function):
        log.write("failed", function, "H:n:1", 1, "Error: x", 2.5)


def test_a_line_has_all_fields(written: Callable[[], list[dict[str, Any]]]) -> None:
    loop = Loop()
    log = AttemptLog(loop.time, loop.call_later)
    log.write("timed out", "f\x1b[1m", "H:n:1", 3, "Error: " + "x" * 5000, 2.5)
    log.write("failed", "f", "H:n:2", 1, "Error: x", None, "Traceback …\nError: x\n")
    first, second = written()
    assert len(first.pop("error")) == 1001
    assert first == {
        "event": "attempt timed out", "level": "warning", "function": "f\\x1b[1m", "handle": "H:n:1", "attempt": 3,
        "next_retry": "1970-01-01T00:00:02.500Z",
    }  # fmt: skip
    assert (second["next_retry"], second["exception"]) == (None, "Traceback …\nError: x")


def test_lines_left_out_are_counted_in_one_line_at_the_end_of_the_second(
    written: Callable[[], list[dict[str, Any]]],
) -> None:
    loop = Loop()
    log = AttemptLog(loop.time, loop.call_later)
    for _ in range(25):
        fail(log)
    fail(log, "g")
    assert [line["function"] for line in written()] == ["f"] * 10 + ["g"]
    assert len(loop.later) == 1
    loop.advance(1)
    assert written() == [
        {"event": "attempts failed that are not logged", "level": "warning", "function": "f", "left_out": 15}
    ]
    assert loop.later == []
    fail(log)
    assert len(written()) == 1


def test_closing_logs_the_number_of_lines_left_out(written: Callable[[], list[dict[str, Any]]]) -> None:
    loop = Loop()
    log = AttemptLog(loop.time, loop.call_later)
    for _ in range(11):
        fail(log)
    written()
    log.close()
    assert [line["left_out"] for line in written()] == [1]


def test_in_an_application_that_embeds_a_worker_the_lines_go_to_its_own_logging(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    structlog.reset_defaults()
    loop = Loop()
    fail(AttemptLog(loop.time, loop.call_later))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("mainspring.attempts", "WARNING")
    assert record.getMessage().startswith('event="attempt failed" function=f handle=H:n:1 attempt=1')
    assert capsys.readouterr() == ("", "")
