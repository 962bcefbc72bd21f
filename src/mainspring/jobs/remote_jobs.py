"""Queries between nodes about held jobs: the worker of a job and its progress, which are not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.events.relay import Ask, ProgressText, Running, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.events.relay import Relay
    from mainspring.jobs.context import Context
    from mainspring.jobs.model import Job

ANSWER_TIMEOUT: Final = 1.0
"""Seconds to wait for the answer of a node."""


class RemoteJobs:
    """Queries the nodes that hold jobs, and answers queries about jobs that this node holds."""

    def __init__(self, context: Context, relay: Relay) -> None:
        self._table, self._timers, self._clock = context.table, context.timers, context.clock
        self._relay = relay
        self._answers: dict[int, list[Callable[[Running | None], None]]] = {}
        """By job id, the functions to call with the answer."""

    def ask(self, job: Job, then: Callable[[Running | None], None]) -> None:
        """Ask the node that holds a job for its worker and progress.

        ``then`` is called with None if that node does not hold the job any more, or does not answer in time.
        """
        answers = self._answers.setdefault(job.id, [])

        def answer(running: Running | None) -> None:
            self._timers.cancel(timer)
            then(running if running is not None and running.started_us else None)

        def give_up() -> None:
            waiting = self._answers.get(job.id, [])
            if answer in waiting:
                waiting.remove(answer)
                if not waiting:
                    del self._answers[job.id]
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
        seen = held.seen()
        self._relay.send(by, Running(job_id, seen.started_us, seen.attempt, name, held.numerator, held.denominator))

    def answered(self, running: Running) -> None:
        """Pass an answer to its callers."""
        for answer in self._answers.pop(running.id, ()):
            answer(running)

    def stop(self, term: int, job_id: int, reason: str) -> None:
        """Ask the node that holds a job to cancel it."""
        self._relay.send(term, Stop(job_id, reason))
