"""Mainspring runs durable background jobs and schedules, with a typed Python API.

The names below are imported at their first use, so that servers and commands start without loading the client and the worker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.app import App
    from mainspring.client.event import Event, EventData
    from mainspring.client.events import EventsMissedError
    from mainspring.client.external import Done, ExternalWork, Failed, Running, Throttled
    from mainspring.client.job import Job, LogLine
    from mainspring.client.json_types import register_type
    from mainspring.client.managed import Resource, Status
    from mainspring.client.options import Rate, Retry
    from mainspring.client.outcomes import Data, Missed, Progress, Warned
    from mainspring.client.providers import Provide
    from mainspring.client.resources import HeldSlots
    from mainspring.client.run import Run
    from mainspring.codecs import Codec, PayloadContext, Zlib
    from mainspring.definitions import CoroutineTask, ExternalTask, Task, Workflow
    from mainspring.errors import (
        CodecError,
        CompensationFailed,
        ConflictError,
        ConnectionLostError,
        HoldTimedOut,
        JobCancelled,
        JobError,
        JobExpired,
        JobFailed,
        JobLost,
        JobTimedOut,
        LostKeyError,
        MainspringError,
        MapFailed,
        NoAnswerError,
        NotFoundError,
        PayloadError,
        RefusedError,
        ServerError,
        SettingsError,
        UsageError,
        WorkerFullError,
        WorkerStartError,
        WorkflowUsageError,
    )
    from mainspring.stores import ZooKeeper
    from mainspring.worker.current import CurrentJob, JobStopped, Snooze, current_job
    from mainspring.worker.log_records import JobLogFilter, add_job_fields
    from mainspring.workflow_code.channels import Channel

_MODULES = {
    "mainspring.app": ("App",),
    "mainspring.client.event": ("Event", "EventData"),
    "mainspring.codecs": ("Codec", "PayloadContext", "Zlib"),
    "mainspring.client.events": ("EventsMissedError",),
    "mainspring.client.external": ("Done", "ExternalWork", "Failed", "Running", "Throttled"),
    "mainspring.client.job": ("Job", "LogLine"),
    "mainspring.client.json_types": ("register_type",),
    "mainspring.client.managed": ("Resource", "Status"),
    "mainspring.client.options": ("Rate", "Retry"),
    "mainspring.client.providers": ("Provide",),
    "mainspring.client.resources": ("HeldSlots",),
    "mainspring.client.run": ("Run",),
    "mainspring.client.outcomes": ("Data", "Missed", "Progress", "Warned"),
    "mainspring.workflow_code.channels": ("Channel",),
    "mainspring.errors": (
        "CodecError",
        "CompensationFailed",
        "ConflictError",
        "ConnectionLostError",
        "HoldTimedOut",
        "JobCancelled",
        "JobError",
        "JobExpired",
        "JobFailed",
        "JobLost",
        "JobTimedOut",
        "LostKeyError",
        "MainspringError",
        "MapFailed",
        "NoAnswerError",
        "NotFoundError",
        "PayloadError",
        "RefusedError",
        "ServerError",
        "SettingsError",
        "UsageError",
        "WorkerFullError",
        "WorkerStartError",
        "WorkflowUsageError",
    ),
    "mainspring.stores": ("ZooKeeper",),
    "mainspring.definitions": ("CoroutineTask", "ExternalTask", "Task", "Workflow"),
    "mainspring.worker.current": ("CurrentJob", "JobStopped", "Snooze", "current_job"),
    "mainspring.worker.log_records": ("JobLogFilter", "add_job_fields"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "App",
    "Channel",
    "Codec",
    "CodecError",
    "CompensationFailed",
    "ConflictError",
    "ConnectionLostError",
    "CoroutineTask",
    "CurrentJob",
    "Data",
    "Done",
    "Event",
    "EventData",
    "EventsMissedError",
    "ExternalTask",
    "ExternalWork",
    "Failed",
    "HeldSlots",
    "HoldTimedOut",
    "Job",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobLogFilter",
    "JobLost",
    "JobStopped",
    "JobTimedOut",
    "LogLine",
    "LostKeyError",
    "MainspringError",
    "MapFailed",
    "Missed",
    "NoAnswerError",
    "NotFoundError",
    "PayloadContext",
    "PayloadError",
    "Progress",
    "Provide",
    "Rate",
    "RefusedError",
    "Resource",
    "Retry",
    "Run",
    "Running",
    "ServerError",
    "SettingsError",
    "Snooze",
    "Status",
    "Task",
    "Throttled",
    "UsageError",
    "Warned",
    "WorkerFullError",
    "WorkerStartError",
    "Workflow",
    "WorkflowUsageError",
    "Zlib",
    "ZooKeeper",
    "add_job_fields",
    "current_job",
    "register_type",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
