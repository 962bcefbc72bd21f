"""The log of a job, and the handler for the records of `logging`."""

from __future__ import annotations

import contextvars
import logging
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from mainspring.worker.current import CurrentJob, running_job
from mainspring.worker.job_log import MAX_MESSAGE, JobLog, LogLine
from mainspring.worker.log_records import JobLogFilter, JobLogHandler, capturing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


NOTHING: dict[str, int] = {}


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError

    __str__ = __repr__


@pytest.fixture
def written() -> list[LogLine]:
    return []


@pytest.fixture
def log(written: list[LogLine]) -> JobLog:
    return JobLog(written.append)


def shown(lines: list[LogLine]) -> list[tuple[int, str, dict[str, Any] | None]]:
    return [(line.level, line.message, line.fields) for line in lines]


def test_levels_arguments_and_fields(log: JobLog, written: list[LogLine]) -> None:
    log.debug("a")
    log.info("%d of %s", 1, "b", x=2)
    bound = log.bind(order=7)
    bound.warning("c", x=1)
    bound.error(ValueError("d"))
    bound.critical("e")
    log.log(logging.WARNING, "f")
    log.log(25, "g")
    assert shown(written) == [
        (0, "a", None),
        (1, "1 of b", {"x": 2}),
        (2, "c", {"order": 7, "x": 1}),
        (3, "d", {"order": 7}),
        (4, "e", {"order": 7}),
        (2, "f", None),
        (1, "g", None),
    ]


def test_a_line_never_raises(log: JobLog, written: list[LogLine]) -> None:
    log.info("%d %d", "x")  # noqa: PLE1206 - that is the point
    log.info("100 %")
    log.info(Unprintable(), y=Unprintable())
    log.info("\ud800")
    log.info("m" * 10**6)
    log.info("v", big=2**70, nan=float("nan"), flag=True, none=None, half=0.5, many=[1, 2], long="x" * 10**6)
    assert shown(written)[:4] == [
        (1, "%d %d ('x',)", None),
        (1, "100 %", None),
        (1, "(no text: ValueError)", {"y": "(no text: ValueError)"}),
        (1, "\\ud800", None),
    ]
    assert len(written[4].message) < MAX_MESSAGE + 50
    fields = written[5].fields
    assert fields is not None
    assert len(str(fields.pop("long"))) < 1100
    assert fields == {"big": str(2**70), "nan": "nan", "flag": True, "none": None, "half": 0.5, "many": "[1, 2]"}


def test_the_traceback_of_an_exception(log: JobLog, written: list[LogLine]) -> None:
    try:
        NOTHING["k"]
    except KeyError as error:
        log.exception("failed")
        caught = error
    log.warning("later", exc_info=caught)
    for line in written:
        assert line.message.splitlines()[1] == "Traceback (most recent call last):"
        assert line.message.splitlines()[-1] == "KeyError: 'k'"


class Reporter:
    def __init__(self, lines: list[LogLine]) -> None:
        self._lines = lines

    def write_log(self, job: CurrentJob, line: LogLine) -> None:
        self._lines.append(line)


@pytest.fixture
def in_task(written: list[LogLine]) -> Iterator[Callable[[Callable[[], object]], None]]:
    job = CurrentJob(b"H:n:1", b"", "f", b"", Reporter(written))  # type: ignore[arg-type]

    def run(function: Callable[[], object]) -> None:
        def inside() -> None:
            running_job.set(job)
            function()

        contextvars.copy_context().run(inside)

    with capturing():
        yield run


def test_records_of_a_task_are_taken(in_task: Callable[[Callable[[], object]], None], written: list[LogLine]) -> None:
    logger = logging.getLogger("my.module")
    in_task(lambda: logger.warning("%s!", "now", extra={"k": [1]}))
    logger.warning("outside")
    assert shown(written) == [(2, "now!", {"k": "[1]"})]
    assert written[0].logger == "my.module"


def test_records_keep_their_errors_but_not_the_fields_of_the_job(
    in_task: Callable[[Callable[[], object]], None], written: list[LogLine]
) -> None:
    logger = logging.getLogger("my.module")
    job_fields = JobLogFilter()
    logger.addFilter(job_fields)

    def fail() -> None:
        try:
            NOTHING["k"]
        except KeyError:
            logger.exception("bad")

    try:
        in_task(fail)
    finally:
        logger.removeFilter(job_fields)
    (line,) = written
    assert line.fields is None
    assert line.message.splitlines()[0] == "bad"
    assert line.message.splitlines()[-1] == "KeyError: 'k'"


def test_events_of_structlog(in_task: Callable[[Callable[[], object]], None], written: list[LogLine]) -> None:
    logger = logging.getLogger("my.module")
    in_task(lambda: logger.error({"event": "charged", "amount": 3, "level": "error"}))
    assert shown(written) == [(3, "charged", {"amount": 3})]


def test_a_record_that_cannot_be_formatted_does_no_harm(
    in_task: Callable[[Callable[[], object]], None], written: list[LogLine], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [one for one in logging.getLogger().handlers if isinstance(one, JobLogHandler)]
    monkeypatch.setattr(logging.getLogger(), "handlers", ours)  # not those of pytest
    in_task(lambda: logging.getLogger("my.module").warning("%d", Unprintable()))
    assert shown(written) == [(2, "%d (no text: ValueError)", None)]


def test_every_line_can_be_encoded(
    in_task: Callable[[Callable[[], object]], None],
    written: list[LogLine],
    log: JobLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines of all jobs are sent together."""
    root = logging.getLogger()
    # pytest's own handlers would put the lines into its report, which takes no lone surrogates.
    monkeypatch.setattr(root, "handlers", [one for one in root.handlers if type(one).__module__ != "_pytest.logging"])
    error = ValueError("no such file caf\udce9")
    in_task(
        lambda: logging.getLogger("my.caf\udce9").warning("caf\udce9", exc_info=error, extra={"caf\udce9": "\udce9"})
    )
    in_task(lambda: logging.getLogger("my").warning("failed", exc_info=error))
    log.warning("failed", exc_info=error)
    assert all("no such file caf\\udce9" in line.message for line in written)
    assert len(written) == 3
    msgspec.msgpack.encode(written)


def test_standard_error_gets_what_it_would_get_without_the_handler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    with capturing():
        logging.getLogger("my.module").warning("seen")
        root.addHandler(other := logging.NullHandler())
        logging.getLogger("my.module").warning("written by the other handler")
        root.removeHandler(other)
    assert capsys.readouterr().err == "seen\n"
