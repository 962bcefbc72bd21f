"""The packets that assign a job to a worker, in plain Gearman and in the extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from mainspring.jobs import rules
from mainspring.wire.gearman.packets import Type, response
from mainspring.wire.gearman.uniques import original_unique

if TYPE_CHECKING:
    from mainspring.jobs.held import Held
    from mainspring.jobs.service import JobService

_JOB_ASSIGN = int(Type.JOB_ASSIGN)
_encode = msgspec.json.Encoder().encode


def plain_assignment(held: Held, kind: int, before: int) -> bytes:
    """Return the packet that assigns a job to a plain worker; ``kind`` is the packet type that its request selects.

    ``before`` is the number of bytes before the function's name in its key.
    """
    job = held.job
    function = job.function[before:] if before else job.function
    if kind == _JOB_ASSIGN:
        return response(_JOB_ASSIGN, held.handle, function, job.payload)
    unique = original_unique(job.unique)
    if kind == Type.JOB_ASSIGN_ALL and job.options is not None and job.options.reducer:
        return response(Type.JOB_ASSIGN_ALL, held.handle, function, unique, job.options.reducer, job.payload)
    return response(Type.JOB_ASSIGN_UNIQ, held.handle, function, unique, job.payload)


def extended_assignment(held: Held, service: JobService, before: int) -> bytes:
    """Return the packet that assigns a job to a worker of the extension; ``before`` is as above."""
    job = held.job
    function = job.function[before:] if before else job.function
    info: dict[str, object] = {
        "attempt": job.attempt + 1,
        "term": service.term,
        "submitted_at": job.created_us / 1_000_000,
    }
    ability = held.ability
    options = job.options
    for name in ("timeout", "heartbeat"):
        seconds = getattr(options, name) if options is not None else None
        if seconds is None and ability is not None:
            seconds = getattr(ability, name)
        if seconds is not None:
            info[name] = seconds
            if name == "timeout":
                info["deadline"] = held.started_us / 1_000_000 + seconds
    if options is not None and options.run is not None:
        info["run"], info["ref"] = str(options.run[0]), options.ref
    if options is not None and options.fire_us:
        info["fire_time"] = options.fire_us / 1_000_000
    if job.suspects and rules.may_kill_workers(job):
        info["alone"] = True
    policy = service.policy(held)
    if policy is not None:
        info["max_attempts"] = policy.max_attempts
        if options is not None and options.retry is not None:
            info["retry"] = policy  # the worker has its own policy already
    return response(Type.ASSIGN, held.handle, held.token, function, job.unique, _encode(info), job.payload)
