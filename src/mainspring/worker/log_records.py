"""Records of `logging` and lines of structlog in tasks: they get the job's fields, and become lines of its log.

In the worker's own log, each line of a job has the job's function, handle and attempt. These are read when a line is logged, from
the context that logs it, so a job that logs nothing has no overhead.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from mainspring.client.inside import workflow_calls
from mainspring.worker.current import running_job
from mainspring.worker.job_log import (
    LogLine,
    formatted,
    index_of,
    line_time_us,
    shorten,
    text_of,
    traceback_of,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping
    from collections.abc import Set as AbstractSet

NO_JOB = "-"
"""The value of each field outside a task."""


def job_fields() -> dict[str, str | int]:
    """Return ``function``, ``handle`` and ``attempt`` of the job that is running here; empty outside a task."""
    job = running_job.get(None)
    return {} if job is None else {"function": job.function, "handle": job.handle, "attempt": job.attempt}


class JobLogFilter(logging.Filter):
    """Adds the attributes ``function``, ``handle`` and ``attempt`` of the running job to records of `logging`.

    Add it to a handler whose format contains ``%(handle)s`` or the other attributes; outside a task they are ``-``. It drops
    no record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes."""
        fields = job_fields()
        for name in ("function", "handle", "attempt"):
            setattr(record, name, fields.get(name, NO_JOB))
        return True


def add_job_fields(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Add ``function``, ``handle`` and ``attempt`` of the running job to a line: a processor for structlog."""
    for name, value in job_fields().items():
        event.setdefault(name, value)
    return event


_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes of every record of `logging`."""
_OF_JOBS: Final = frozenset({"function", "handle", "attempt"})
"""The attributes that ``JobLogFilter`` adds: the log of a job needs no such fields."""
_OF_RUNS: Final = _OF_JOBS | {"run", "workflow_id", "workflow"}
"""The same of ``workflow.log``."""


class JobLogHandler(logging.NullHandler):
    """Takes the records that are logged in a task or in the code of a workflow; the worker adds it to the root logger.

    It is a ``NullHandler``, so other code that looks for handlers does not take it for one that writes.
    """

    def handle(self, record: logging.LogRecord) -> bool:
        """Add a record to the log of the running job, or of the run whose code is running; elsewhere, do nothing."""
        with contextlib.suppress(Exception):  # as in every handler: a record must not end its task
            job = running_job.get(None)
            if job is not None:
                job.write_log(_line_of(record, _OF_JOBS))
            elif (calls := workflow_calls()) is not None:
                line = _line_of(record, _OF_RUNS)
                calls.log(line, line.size)
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and _is_alone(record.name, self):
            last.handle(record)
        return True


def _is_alone(name: str, handler: logging.Handler) -> bool:
    """Return whether no other handler gets the records of a logger: then `logging.lastResort` does, as without this one."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(other is not handler for other in logger.handlers):
            return False
        logger = logger.parent if logger.propagate else None
    return True


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Take the records of `logging` in tasks inside this block."""
    handler = JobLogHandler()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def _line_of(record: logging.LogRecord, left_out: AbstractSet[str]) -> LogLine:
    fields: dict[str, Any]
    if isinstance(record.msg, dict):  # of structlog
        fields = {
            str(name): value for name, value in record.msg.items() if name not in {"level", "timestamp", "logger"}
        }
        text = text_of(fields.pop("event", ""))
    else:
        text = formatted(record.msg, record.args)
        fields = {}
    for name, value in record.__dict__.items():
        if name not in _STANDARD and name not in left_out and not name.startswith("_"):
            fields[name] = value
    if record.exc_info:
        text += traceback_of(record.exc_info)
    if record.stack_info:
        text += f"\n{record.stack_info}"
    return LogLine(
        line_time_us(),
        index_of(record.levelno),
        text_of(record.name),
        shorten(text),
        dict(values_of(fields)) if fields else None,
    )
