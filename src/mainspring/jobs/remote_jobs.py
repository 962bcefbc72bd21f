"""Queries between nodes about held jobs: the worker of a job and its progress, which are not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.events.relay import Ask, ProgressText, Running, Stop, StopRequested

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.events.relay import Relay
    from mainspring.jobs.context import Context
    from mainspring.jobs.model import Job

ANSWER_TIMEOUT: Final = 1.0
"""Seconds to wait for the answer of a node."""


class RemoteAttempt(NamedTuple):
    """An attempt under way at another node."""

    started_us: int
    number: int
    worker: str
    numerator: bytes
    denominator: bytes
    stop_us: int
    """When its worker was asked to stop; 0 if it was not, and at a node of an older version."""


class RemoteJobs:
    """Queries the nodes that hold jobs, and answers queries about jobs that this node holds."""

    def __init__(self, context: Context, relay: Relay) -> None:
        self._table, self._timers, self._clock = context.table, context.timers, context.clock
        self._relay = relay
        self._answers: dict[int, list[Callable[[RemoteAttempt | None], None]]] = {}
        """By job id, the functions to call with the answer."""
        self._stops: dict[int, int] = {}
        """By job id, the first part of an answer: when the worker was asked to stop."""

    def ask(self, job: Job, then: Callable[[RemoteAttempt | None], None]) -> None:
        """Ask the node that holds a job for its worker and progress.

        ``then`` is called with None if that node does not hold the job any more, or does not answer in time.
        """
        answers = self._answers.setdefault(job.id, [])

        def answer(attempt: RemoteAttempt | None) -> None:
            self._timers.cancel(timer)
            then(attempt)

        def give_up() -> None:
            waiting = self._answers.get(job.id, [])
            if answer in waiting:
                waiting.remove(answer)
                if not waiting:
                    del self._answers[job.id]
                    self._stops.pop(job.id, None)
                then(None)

        timer = self._timers.at(self._clock.monotonic() + ANSWER_TIMEOUT, give_up)
        answers.append(answer)
        if len(answers) == 1:
            self._relay.send(job.term, Ask(job.id, self._table.term))

    def asked(self, job_id: int, by: int) -> None:
        """Answer the node with the term ``by``."""
        held = self._table.find(job_id)
        name = held.worker_name() if held is not None else None
        if held is None or name is None:
            self._relay.send(by, Running(job_id, 0))
            return
        self._relay.send(by, ProgressText(job_id, held.text.decode()))
        if held.stop_us:
            self._relay.send(by, StopRequested(job_id, held.stop_us))
        seen = held.seen()
        self._relay.send(by, Running(job_id, seen.started_us, seen.attempt, name, held.numerator, held.denominator))

    def stop_requested(self, message: StopRequested) -> None:
        """Keep the first part of an answer for which somebody waits."""
        if message.id in self._answers:
            self._stops[message.id] = message.at_us

    def answered(self, running: Running) -> None:
        """Pass an answer to its callers."""
        stop_us = self._stops.pop(running.id, 0)
        attempt = RemoteAttempt(*running[1:], stop_us) if running.started_us else None
        for answer in self._answers.pop(running.id, ()):
            answer(attempt)

    def stop(self, term: int, job_id: int, reason: str) -> None:
        """Ask the node that holds a job to cancel it."""
        self._relay.send(term, Stop(job_id, reason))
