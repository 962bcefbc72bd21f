"""The port of completion tokens: the operations on their rows, and how one of them ends the attempt that awaits it.

A row is written by compare-and-set on its version. The end of an attempt by its token is two operations of one atomic group:
`ChangeCompletion` closes the row and takes the job, as a claim does, and a `Settle` behind it settles the job, as it does that of
a worker. If the first one does nothing, neither does the second: the settlement has no term then, and so it is stale.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec.structs import replace

from mainspring.access.audit import Acting
from mainspring.event_log import types
from mainspring.jobs.completion_rules import Completion, Refusal, begun, is_valid
from mainspring.jobs.job_events import of_late_answer
from mainspring.storage.engine import Operation, Phase, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from mainspring.access.caller import Act
    from mainspring.event_log.interests import NewEvent
    from mainspring.jobs.model import Job
    from mainspring.jobs.rules import Settlement


class OpenCompletion(Operation):
    """Store a new token. Guard: the job is held under ``term``, and its attempt is that of the token.

    The job does not expire from then on: it has begun. The earlier tokens of the job are replaced (`completion_rules.begun`).
    Outcome: the stored `Completion`; None if the guard failed.
    """

    phase = Phase.RECOVER
    completion: Completion
    term: int

    def __post_init__(self) -> None:
        self.rows = 2


class Guard(Enum):
    """A condition on the job of a token that changes."""

    NONE = "none"
    VALID = "valid"
    """The attempt of the token is not over."""


class LateAnswer(NamedTuple):
    """An answer that was not accepted."""

    why: Refusal
    job: Job | None
    """The job of its token; None if it is deleted."""


class ChangeCompletion(Acting):
    """Write a token. Guard: the stored version is ``completion.version``, and ``guard``.

    With a ``settlement`` also: the job awaits this completion. Then it is taken under ``term`` for the `Settle` behind this
    operation. Outcome: whether it was written.
    """

    phase = Phase.RECOVER
    causes = frozenset({types.LATE_ANSWER})
    completion: Completion
    guard: Guard = Guard.NONE
    settlement: Settlement | None = None
    term: int = 0
    kept: Callable[[bytes], bytes | None] = lambda _: b""
    """Returns what a success leaves of the payload; None: all of it."""
    late: LateAnswer | None = None
    """The answer that the token notes, if it has an event."""

    def __post_init__(self) -> None:
        self.size += 200 + (0 if self.completion.answer is None else len(self.completion.answer.result))

    def taken(self, payload: bytes | None) -> None:
        """Let the settlement follow, if the job was taken, and had this payload; otherwise it is stale."""
        if self.settlement is not None:
            self.settlement.job.term = 0 if payload is None else self.term
            self.settlement.payload = self.kept(payload or b"")

    def recorded(self, outcome: bool) -> Act | None:
        """Return the act, if the token was written."""
        return self.act if outcome else None

    def caused(self, outcome: bool) -> Iterator[NewEvent | None]:
        """Yield the event of an answer that was not accepted."""
        if outcome and self.late is not None:
            yield of_late_answer(self.completion, self.late.job, self.late.why)


class ForgetCompletions(Operation):
    """Delete tokens. Outcome: None."""

    phase = Phase.SWEEP
    digests: Sequence[bytes]

    def __post_init__(self) -> None:
        self.rows = len(self.digests)


class Dated(NamedTuple):
    """A token, and its job as it was in the same read; None if there is none."""

    completion: Completion
    job: Job | None


class FindCompletions(Operation):
    """Read tokens with their jobs: some of them, or those of some jobs. Outcome: ``list[Dated]``."""

    phase = Phase.READ
    reads = True
    digests: Sequence[bytes] = ()
    jobs: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.rows = len(self.digests) + len(self.jobs)


class FindDueCompletions(Operation):
    """Read the digests of tokens to be looked at up to ``until_us``, the earliest first, at most ``limit``.

    Outcome: `DueCompletions`.
    """

    phase = Phase.READ
    reads = True
    until_us: int
    limit: int

    def __post_init__(self) -> None:
        self.rows = self.limit


class DueCompletions(NamedTuple):
    """The outcome of `FindDueCompletions`: see `storage.agenda.Upcoming`."""

    due: list[tuple[bytes, int]]
    next_us: int | None


class ShowCompletions(Query["list[Completion]"], frozen=True):
    """Read the tokens of jobs, or some tokens."""

    jobs: tuple[int, ...] = ()
    digests: tuple[bytes, ...] = ()


class CompletionTables(Protocol):
    """The rows in a transaction. Rows that this version cannot read are left out."""

    async def lock(self, digest: bytes) -> Completion | None:
        """Lock and return a token."""

    async def lock_of_job(self, job_id: int) -> Sequence[Completion]:
        """Lock and return the tokens of a job."""

    async def with_digests(self, digests: Collection[bytes]) -> Sequence[Completion]:
        """Return tokens."""

    async def of_jobs(self, jobs: Collection[int]) -> Sequence[Completion]:
        """Return the tokens of jobs."""

    async def due(self, limit: int) -> Sequence[tuple[bytes, int]]:
        """Return the digests of the tokens that are to be looked at first, with the times."""

    async def save(self, completion: Completion) -> None:
        """Write a token, in place of an earlier version."""

    async def remove(self, digests: Sequence[bytes]) -> None:
        """Delete tokens."""

    async def job(self, job_id: int) -> Job | None:
        """Return a job, without payload and result."""

    async def begin(self, job_id: int, term: int) -> bool:
        """Let a job that is held under a term expire no more; return whether it is."""

    async def take(self, completion: Completion, term: int) -> bytes | None:
        """Take the job that awaits a completion, as a claim does; return its payload, or None if no job awaits it."""


async def open_completion(tables: CompletionTables, operation: OpenCompletion) -> Completion | None:
    """Run an operation."""
    wanted = operation.completion
    job = await tables.job(wanted.job)
    if job is None or job.attempt != wanted.attempt or not await tables.begin(wanted.job, operation.term):
        return None
    # Locked, as an answer may be kept at the same time, and goes to the new token then. `begin` has locked the job: the next
    # request of the same function waits there, and sees the new token.
    new, changed, forgotten = begun(wanted, await tables.lock_of_job(wanted.job))
    if forgotten:
        await tables.remove([one.digest for one in forgotten])
    stored = [replace(one, version=one.version + 1) for one in (new, *changed)]
    for one in stored:
        await tables.save(one)
    return stored[0]


async def change_completion(tables: CompletionTables, operation: ChangeCompletion) -> bool:
    """Run an operation."""
    operation.taken(None)
    wanted = operation.completion
    stored = await tables.lock(wanted.digest)
    if stored is None or stored.version != wanted.version:
        return False
    if operation.settlement is not None:
        payload = await tables.take(stored, operation.term)
        if payload is None:
            return False
        operation.taken(payload)
    elif operation.guard is Guard.VALID and not is_valid(stored, await tables.job(stored.job)):
        return False
    await tables.save(replace(wanted, version=wanted.version + 1))
    return True


async def find_completions(tables: CompletionTables, operation: FindCompletions) -> list[Dated]:
    """Run an operation."""
    found: list[Completion] = []
    if operation.digests:
        found += await tables.with_digests(operation.digests)
    if operation.jobs:
        found += await tables.of_jobs(operation.jobs)
    return [Dated(one, await tables.job(one.job)) for one in found]


async def find_due(tables: CompletionTables, operation: FindDueCompletions) -> DueCompletions:
    """Run an operation."""
    first = await tables.due(operation.limit + 1)
    due = [(digest, look_us) for digest, look_us in first[: operation.limit] if look_us <= operation.until_us]
    rest = first[len(due) :]
    return DueCompletions(due, rest[0][1] if rest else None)
