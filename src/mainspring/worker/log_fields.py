"""Log fields of the running job: its function, its handle and its attempt.

They are read when a line is logged, from the context that logs it, so a job that logs nothing has no overhead.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mainspring.worker.current import running_job

if TYPE_CHECKING:
    from collections.abc import MutableMapping

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
