"""The running job in lines of the log: its function, its handle and its attempt.

They are looked up when a line is written, in the context that it is written in: a job that logs nothing pays nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mainspring.worker.current import running_job

if TYPE_CHECKING:
    from collections.abc import MutableMapping

NONE = "-"
"""What stands for each of them where no job runs."""


def job_fields() -> dict[str, str | int]:
    """Return ``function``, ``handle`` and ``attempt`` of the job that is running here; nothing outside a task."""
    job = running_job.get(None)
    return {} if job is None else {"function": job.function, "handle": job.handle, "attempt": job.attempt}


class JobLogFilter(logging.Filter):
    """Gives records of `logging` the attributes ``function``, ``handle`` and ``attempt`` of the running job.

    It belongs on a handler whose format has ``%(handle)s`` and the like; outside a task each is ``-``. It leaves out no line.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes."""
        fields = job_fields()
        for name in ("function", "handle", "attempt"):
            setattr(record, name, fields.get(name, NONE))
        return True


def add_job_fields(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Add ``function``, ``handle`` and ``attempt`` of the running job to a line: a processor for a structlog configuration."""
    for name, value in job_fields().items():
        event.setdefault(name, value)
    return event
