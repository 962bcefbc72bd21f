"""Root jobs in memory, and jobs that slices withdraw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.engines.memory.jobs import PENDING, copy, delete, enter_end, forget_ended, submit
from mainspring.jobs import rules
from mainspring.jobs.model import RUNS, State
from mainspring.jobs.rules import Event
from mainspring.jobs.store import Submit, Withdrawn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mainspring.engines.memory.tables import Tables
    from mainspring.jobs.model import Job
    from mainspring.jobs.store import Found

_RUNNING = int(rules.target(Event.BEGIN))


def begin_roots(tables: Tables, jobs: list[Job]) -> dict[int, Found]:
    """Store new root jobs; see ``RunGround.begin_roots``."""
    roots = [replace(job, state=_RUNNING, term=RUNS, payload=b"") for job in jobs]
    return submit(tables, Submit(roots))


def take_pending(tables: Tables, function: bytes, limit: int, now_us: int) -> list[Job]:
    """Turn pending jobs into root jobs; see ``RunGround.take_pending``."""
    taken: list[Job] = []
    for pending in tables.pending.get(function, ()):
        while len(taken) < limit and (entry := pending.pop()) is not None:
            job = tables.jobs.get(entry[1])
            if job is not None and job.state == PENDING:
                taken.append(_take(tables, job, now_us))
    return taken


def take_waiting(tables: Tables, ids: Iterable[int], now_us: int) -> list[Job]:
    """Turn waiting jobs into root jobs; see ``RunGround.take_waiting``."""
    jobs = [tables.jobs[job_id] for job_id in ids if job_id in tables.jobs]
    return [_take(tables, job, now_us) for job in jobs if State(job.state) in rules.sources(Event.BEGIN)]


def _take(tables: Tables, job: Job, now_us: int) -> Job:
    before = copy(job)
    tables.counts.move(job.function, job.priority, job.state, _RUNNING)
    job.state, job.term, job.attempt, job.started_us = _RUNNING, RUNS, 0, now_us
    job.payload = job.error = b""
    return before


def end_roots(tables: Tables, jobs: Iterable[Job]) -> list[Job]:
    """End root jobs; see ``RunGround.end_roots``."""
    ended = []
    for given in jobs:
        job = tables.jobs.get(given.id)
        if job is not None and job.state == _RUNNING and job.term == RUNS:
            job.state, job.attempt, job.ended_us = given.state, 1, given.ended_us
            job.result, job.error, job.output_size = given.result, given.error, len(given.result)
            enter_end(tables, job, _RUNNING, "")
            ended.append(copy(job))
    return ended


def forget_roots(tables: Tables, ids: Iterable[int]) -> int:
    """Delete ended root jobs; see ``RunGround.forget_roots``."""
    number = 0
    for job_id in ids:
        job = tables.jobs.get(job_id)
        if job is not None and State(job.state).ended and job.term == RUNS:
            forget_ended(tables, job)
            number += 1
    return number


def withdraw(tables: Tables, ids: Iterable[int]) -> list[Withdrawn]:
    """Delete live jobs; see ``RunGround.withdraw``."""
    withdrawn = []
    for job_id in ids:
        job = tables.jobs.get(job_id)
        if job is not None and not State(job.state).ended:
            delete(tables, job, job.state)
            withdrawn.append(Withdrawn(job_id, job.term, job.state, job.function, job.priority))
    return withdrawn


def is_held(tables: Tables, job_id: int, term: int) -> bool:
    """Return whether a job is held under a term."""
    job = tables.jobs.get(job_id)
    return job is not None and State(job.state).held and job.term == term
