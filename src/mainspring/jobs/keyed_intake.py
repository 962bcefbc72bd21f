"""Submission of background jobs with a key of their client: they are stored once, in one transaction with the answer to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.access.once import KeyedAct
from mainspring.access.replies import Reservation
from mainspring.jobs.roots import Stored
from mainspring.jobs.store import SubmitOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mainspring.access.replies import KeptReply, RequestKey
    from mainspring.errors import MainspringError, StoreError
    from mainspring.jobs.context import Context
    from mainspring.jobs.held import Held
    from mainspring.jobs.intake import Intake
    from mainspring.jobs.model import Job
    from mainspring.jobs.roots import RootJobs
    from mainspring.jobs.store import Found
    from mainspring.storage.commit_queue import OperationWithCallbacks


class KeyedIntake:
    """Submits the jobs of requests with keys."""

    def __init__(self, context: Context, intake: Intake, roots: RootJobs) -> None:
        self._foreground, self._commits = context.table.foreground, context.commits
        self._intake = intake
        self._roots = roots

    def submit(
        self,
        jobs: list[Job],
        key: RequestKey,
        reply: Callable[[Stored], KeptReply],
        done: Callable[[Stored | Reservation], None],
        failed: Callable[[MainspringError], None],
    ) -> None:
        """Store a batch of new jobs, all of them or none, with the answer that ``reply`` returns.

        ``done`` is called with the earlier `Reservation` if a request with the key was made before; then nothing is stored.
        """
        starts = self._roots.due(jobs)
        began = {job.id for job in starts}
        others = [job for job in jobs if job.id not in began]
        self._adopt(others, [], lambda: self._put(others, starts, key, reply, _Answers(done, failed)), failed)

    def _adopt(
        self,
        jobs: list[Job],
        tried: list[Held],
        then: Callable[[], None],
        failed: Callable[[MainspringError], None],
    ) -> None:
        """Store the foreground jobs that new jobs join, so that these join them in their transaction."""
        for job in jobs:
            held = self._foreground.get((job.function, job.unique)) if job.unique else None
            if held is None or held in tried:
                continue
            if held.adopting:
                assert held.then is not None
                held.then.append(lambda: self._adopt(jobs, tried, then, failed))
            else:
                tried.append(held)
                self._intake.store_foreground(held, job, lambda: self._adopt(jobs, tried, then, failed), failed)
            return
        then()

    def _put(
        self,
        others: list[Job],
        starts: list[Job],
        key: RequestKey,
        reply: Callable[[Stored], KeptReply],
        answers: _Answers,
    ) -> None:
        readers: list[Callable[[Any], Stored]] = []
        act = KeyedAct(key, lambda outcomes: reply(_merged(map(_read, readers, outcomes))))
        operations: list[OperationWithCallbacks] = []
        if others or not starts:
            readers.append(_of_submit)
            operations.append(self._submission(SubmitOnce(others, act), answers))
        if starts:
            operation, reader = self._roots.beginning(starts, act)
            readers.append(reader)
            operations.append((operation, lambda outcome: answers.add(_read(reader, outcome)), answers.fail))
        answers.left = len(operations)
        self._commits.put_atomic(operations)

    def _submission(self, operation: SubmitOnce, answers: _Answers) -> OperationWithCallbacks:
        intake, jobs = self._intake, operation.jobs
        operation.size = intake.prepare(jobs)

        def stored(outcome: dict[int, Found] | Reservation) -> None:
            if isinstance(outcome, Reservation):
                intake.uncount(jobs)
                answers.add(outcome)
            else:
                new = intake.uncount(jobs, outcome) if outcome else jobs
                answers.add(_of_submit(outcome))
                intake.stored(new)

        def not_stored(error: StoreError) -> None:
            intake.uncount(jobs)
            answers.fail(error)

        return operation, stored, not_stored


class _Answers:
    """Gathers the answers of the operations of one group, and answers the request after the last one."""

    def __init__(self, done: Callable[[Stored | Reservation], None], failed: Callable[[MainspringError], None]) -> None:
        self._done = done
        self._failed = failed
        self._stored: list[Stored] = []
        self.left = 1
        """Operations that are not answered yet."""

    def add(self, outcome: Stored | Reservation) -> None:
        """Add an outcome. A repeated request is that in all of its operations."""
        self.left -= 1
        if not isinstance(outcome, Reservation):
            self._stored.append(outcome)
            outcome = _merged(self._stored)
        if not self.left:
            self._done(outcome)

    def fail(self, error: MainspringError) -> None:
        """Add the error of the group, which is that of all of its operations."""
        self.left -= 1
        if not self.left:
            self._failed(error)


def _read(reader: Callable[[Any], Stored], outcome: Any) -> Any:
    return outcome if isinstance(outcome, Reservation) else reader(outcome)


def _of_submit(joined: dict[int, Found]) -> Stored:
    return Stored(joined, {})


def _merged(parts: Iterable[Stored]) -> Stored:
    joined: dict[int, Found] = {}
    refused: dict[int, str] = {}
    for part in parts:
        joined |= part.joined
        refused |= part.refused
    return Stored(joined, refused)
