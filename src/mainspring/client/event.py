"""Events as the functions of listeners get them."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - msgspec reads the annotations

import msgspec


class EventData(msgspec.Struct, omit_defaults=True, kw_only=True, frozen=True):
    """The fields of all types of events. Each type has some of them; the others have their defaults.

    ``mainspring events types`` and OpenAPI show which type has which, and what they mean.
    """

    attempt: int = 0
    tags: tuple[str, ...] = ()
    key: str = ""
    schedule: str = ""
    run: str = ""
    parent: str = ""
    version: str = ""
    error_type: str = ""
    error: str = ""
    worker: str = ""
    node: str = ""
    duration: float = 0.0
    due_at: datetime | None = None
    fire_at: datetime | None = None
    until: datetime | None = None
    depth: int = 0
    lost: bool = False
    running: bool = False
    cause: str = ""
    reason: str = ""
    why: str = ""
    action: str = ""
    status: str = ""
    what: str = ""
    by: str = ""
    number: int = 0
    done: int = 0
    jobs: int = 0
    runs: int = 0
    kind: str = ""
    items: tuple[str, ...] = ()
    slots: int = 0
    hold: str = ""
    instance: str = ""
    state: str = ""


class Event(msgspec.Struct, kw_only=True, frozen=True):
    """Something that has happened to a job, a run, a schedule or another object."""

    id: str
    """Its number. A listener gets an event again under the same one, if a delivery is tried again."""
    type: str
    """Such as ``job.failed``."""
    time: datetime | None = None
    """When its cause happened, by the clock of the store."""
    namespace: str = ""
    """Empty for events outside of namespaces, such as about nodes."""
    function: str | None = None
    """The function or the workflow that it is about."""
    subject: str | None = None
    """The schedule, run or other object that it is about; None for a job."""
    job: str | None = None
    """The handle of the job that it is about: ``app.job(event.job)`` is the job."""
    data: EventData = EventData()
