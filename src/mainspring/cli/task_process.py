"""A process for tasks with ``executor="process"``.

Its command is ``python -m mainspring.cli.task_process LOG DIRECTORY FD PARENT SELECTOR``. It logs with its worker's settings:
LOG is `LogSettings` as JSON. It runs in DIRECTORY. `mainspring.worker.executors.child` reads the other arguments.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import msgspec

from mainspring.server.log_writer import LogSettings, unblock_standard_error
from mainspring.server.logs import importing, start_logging
from mainspring.worker.executors import child
from mainspring.worker.log_records import add_job_fields
from mainspring.worker.processes import python


def task_process(log: LogSettings) -> list[str]:
    """Return the command of a task process, without the arguments that its worker adds.

    The process will run in the present working directory, even if a task changes that of its worker.
    """
    settings = msgspec.json.encode(log, enc_hook=str).decode()
    return python("-m", "mainspring.cli.task_process", settings, str(Path.cwd()))


def start_task_logging(log: LogSettings) -> None:
    """Start the log of a process that runs tasks: its lines carry the job. Raises SettingsError if the file cannot be opened.

    Standard error does not block either: tasks may have handlers of `logging` that write there.
    """
    unblock_standard_error()
    start_logging(log, context=[add_job_fields], follow=True)


def read_path(kind: type, value: object) -> object:
    """Decode types that JSON does not have: a hook of `msgspec`."""
    if kind is Path:
        return Path(str(value))
    raise NotImplementedError(kind)


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the directory was removed
        os.chdir(sys.argv[2])
    start_task_logging(msgspec.json.decode(sys.argv[1], type=LogSettings, dec_hook=read_path))
    child.main(sys.argv[3:], importing)
