"""Completion tokens on a node: jobs ask for them, answers end attempts, and expired ones fail them.

Any node may get the answer, and any node may look at a token: what happens is decided by its row and its job
(`completion_rules`), and written by compare-and-set (`store.completions`). So an answer, an expiry, a cancel and the return of
the function may come at once, at several nodes, and one of them counts.

An answer may come before the function has returned. Then it is kept, and two nodes look again: the one that has kept it, after
its commit, and the one that has the job, after the commit of its return. The later one of them sees both.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from mainspring.callbacks import Callback, CallInProgress, shielded
from mainspring.clock import to_us
from mainspring.errors import ConflictError, StoreError, UsageError
from mainspring.jobs import completion_rules
from mainspring.jobs.completion_rules import Answer, Completion, Deed, Refusal, Status
from mainspring.jobs.model import State
from mainspring.jobs.rules import Event, Outcome, target
from mainspring.jobs.settlement_records import record_of
from mainspring.jobs.store import Settle
from mainspring.jobs.store.completions import (
    ChangeCompletion,
    Dated,
    FindCompletions,
    FindDueCompletions,
    ForgetCompletions,
    Guard,
    LateAnswer,
    OpenCompletion,
    ShowCompletions,
)
from mainspring.storage.agenda import Agenda, FetchTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mainspring.access.caller import Act
    from mainspring.jobs.held import Held
    from mainspring.jobs.maintenance import DueJobs
    from mainspring.jobs.model import Job, Retry
    from mainspring.jobs.rules import Settlement
    from mainspring.jobs.settlement import Ends
    from mainspring.jobs.settlement_records import Acknowledge, ResultRetention
    from mainspring.jobs.table import Context
    from mainspring.jobs.user_data import ArgumentRules
    from mainspring.storage.reads import Reads

FETCHING: Final = FetchTimes(ahead=60.0, interval=20.0)
"""Tokens are added to the agenda as they are written here: other nodes need them only if this one is lost."""
ROUNDS: Final = 50
"""Attempts to change a token that others change at the same time."""
AT_ONCE: Final = 1000
"""Tokens that one fetch finds."""
BATCH: Final = 100
"""Tokens of one look."""


class Sign(NamedTuple):
    """A sign of life, with progress if ``total`` or ``text`` is given."""

    done: int = 0
    total: int = 0
    text: str = ""

    def of(self, completion: Completion, now_us: int) -> Completion:
        """Return a token after this sign."""
        completion = replace(completion, seen_us=now_us)
        if not self.done and not self.total and not self.text:
            return completion
        return replace(completion, done=self.done, total=self.total, text=self.text)


class Accepted(NamedTuple):
    """A token after an answer that was accepted."""

    completion: Completion
    repeated: bool = False
    """Whether the same answer was accepted before."""


class Refused(NamedTuple):
    """Why an answer was not accepted, with the token and its job as they are."""

    why: Refusal
    completion: Completion
    job: Job | None


class Completions:
    """The tokens of jobs. ``first`` and ``paused`` are as in `storage.agenda.Agenda`; ``policy`` returns the policy of a job."""

    def __init__(
        self,
        context: Context,
        reads: Reads,
        ends: Ends,
        due_jobs: DueJobs,
        *,
        policy: Callable[[Held], Retry | None],
        arguments: ArgumentRules,
        results: ResultRetention,
        first: Callable[[str], bool] | None,
        paused: Callable[[], bool],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._table, self._commits = context.table, context.commits
        self._clock, self._handles = context.clock, context.handles
        self._reads = reads
        self._ends = ends
        self._due_jobs = due_jobs
        self._policy = policy
        self._arguments = arguments
        self._results = results
        self._chance = chance
        self._looking: set[bytes] = set()
        """The tokens that are being looked at."""
        self._changed: set[bytes] = set()
        """Those of them that have changed meanwhile: they are looked at once more."""
        self._agenda: Agenda[bytes] = Agenda(
            context.clock,
            context.timers,
            lambda until_us, found, failed: self._commits.put(FindDueCompletions(until_us, AT_ONCE), found, failed),
            self._look_at,
            bytes.hex,
            first=first or (lambda _: True),
            paused=paused,
            fetching=FETCHING,
        )

    def _now_us(self) -> int:
        return to_us(self._clock.wall())

    def fetch(self) -> None:
        """Fetch the tokens of the next minute."""
        self._agenda.fetch()

    def tick(self) -> None:
        """Fetch, and look at tokens, as due."""
        self._agenda.tick()

    # ---- jobs ----

    @shielded
    async def open(self, held: Held, digest: bytes, expires: float, heartbeat: float | None) -> Completion:
        """Store a token for the running attempt of a job. Raises UsageError, ConflictError and StoreError.

        The attempt does not end when its function returns from then on (`returned`).
        """
        completion_rules.check_spans(expires, heartbeat)
        if not held.stored:
            raise UsageError(
                "a client waits for this job in the foreground, and it is not stored: submit it in the background, and wait for "
                "its result there"
            )
        now_us = self._now_us()
        job = held.job
        new = Completion(
            digest,
            job.id,
            job.function,
            0,
            job.attempt,
            now_us,
            now_us + to_us(expires),
            heartbeat_us=0 if heartbeat is None else to_us(heartbeat),
            started_us=held.started_us,
            worker=held.worker_name() or "",
            policy=self._policy(held),
        )
        stored: Completion | None = await self._commits.committed(OpenCompletion(new, job.term))
        if stored is None:
            raise ConflictError("the delivery of this job is over: another worker may have it")
        # Threads of a function may ask at the same time, and commits may end in another order.
        if held.completion is None or held.completion.number < stored.number:
            held.completion = stored
        job.expires_us = 0
        self._agenda.add([(digest, stored.look_us)])
        return stored

    def returned(self, held: Held, acknowledge: Acknowledge | None) -> None:
        """Settle a job whose function has returned, and has asked for a token: it awaits its completion from now on."""
        completion = held.completion
        assert completion is not None, "the caller has looked"

        def acknowledged(recorded: bool) -> None:
            if acknowledge is not None:
                acknowledge(recorded)
            if recorded:
                self._look_now([completion.digest])

        self._ends.await_completion(held, completion, acknowledged)

    # ---- answers ----

    async def find(self, digest: bytes) -> Dated | None:
        """Return a token with its job; None if there is none. Raises StoreError."""
        found: Sequence[Dated] = await self._commits.committed(FindCompletions([digest]))
        return found[0] if found else None

    async def of_token(self, token: str) -> Completion | None:
        """Return the row of a token; None for a text that is none, or unknown. Raises StoreError.

        It is a query: strangers may send any number of tokens, and take no place in the commits then.
        """
        if not completion_rules.is_token(token):
            return None
        found = await self._reads.read(ShowCompletions(digests=(completion_rules.digest_of(token),)))
        return found[0] if found else None

    @staticmethod
    def may_await(job: Job, now_us: int) -> bool:
        """Return whether a job may await a completion, by its row alone: most lists need no look at the tokens then."""
        return job.state == State.SCHEDULED and job.due_us > now_us + completion_rules.MARGIN_US // 2

    async def of_jobs(self, jobs: Iterable[int]) -> list[Completion]:
        """Return the tokens of jobs. Raises StoreError."""
        return await self._reads.read(ShowCompletions((*jobs,)))

    @shielded
    async def answer(
        self, digest: bytes, answer: Answer | Sign, act: Act | None, *, by_token: bool = True
    ) -> Accepted | Refused | None:
        """End the attempt of a token, or note a sign of life; None: there is no such token. Raises StoreError.

        Once this returns, what it says is on disk. ``act`` is recorded with an answer. If late answers come ``by_token``,
        the first ones are recorded: the holder of a token may send any number.
        """
        for _ in range(ROUNDS):
            found = await self.find(digest)
            if found is None:
                return None
            completion, job = found
            if isinstance(answer, Answer) and completion_rules.is_repeated(completion, answer):
                return Accepted(completion, repeated=True)
            why = completion_rules.refusal(completion, job, self._now_us())
            if why is not None:
                refused = Refused(why, completion, job)
                if not isinstance(answer, Answer) or await self._came_late(refused, act, by_token=by_token):
                    return refused
                continue
            changed = await self._accept(completion, job, answer, act)
            if changed is not None:
                return Accepted(changed)
        raise StoreError("the job of this token changes too fast: try again")

    async def _accept(
        self, completion: Completion, job: Job | None, answer: Answer | Sign, act: Act | None
    ) -> Completion | None:
        """Write an answer; return the token after it, or None if something has changed meanwhile."""
        now_us = self._now_us()
        if isinstance(answer, Sign):
            changed = answer.of(completion, now_us)
            if not await self._change(ChangeCompletion(changed, guard=Guard.VALID)):
                return None
            self._agenda.add([(changed.digest, changed.look_us)])
            return changed
        if job is not None and completion_rules.is_awaited(completion, job):
            changed = completion_rules.used(completion, answer, now_us)
            return changed if await self._end(completion, changed, job, answer, act=act) else None
        changed = completion_rules.kept(completion, answer, now_us)
        operation = ChangeCompletion(changed, guard=Guard.VALID)
        operation.act = act
        if not await self._change(operation):
            return None
        self._look_now([changed.digest])
        return changed

    async def _change(self, operation: ChangeCompletion) -> bool:
        changed: bool = await self._commits.committed(operation)
        return changed

    async def _came_late(self, refused: Refused, act: Act | None, *, by_token: bool) -> bool:
        """Note an answer that is not accepted; return False if something has changed meanwhile."""
        why, completion, job = refused
        operation = ChangeCompletion(completion_rules.came_late(completion, self._now_us()))
        is_told = completion.late < completion_rules.MOST_LATE
        if is_told:
            operation.late = LateAnswer(why, job)
        if act is not None and (is_told or not by_token):
            operation.act = replace(act, refused=f"the answer came too late: {why.value}")
        return await self._change(operation)

    async def _end(
        self,
        before: Completion,
        after: Completion,
        job: Job,
        answer: Answer,
        *,
        act: Act | None = None,
        outcome: Outcome | None = None,
    ) -> bool:
        """End the attempt that awaits a completion; return False if something has changed meanwhile. Raises StoreError."""
        now_us = self._now_us()
        # The term is set when the job is taken in the transaction, see `ChangeCompletion.taken`.
        settlement = completion_rules.settled(
            before, answer, replace(job, term=0), now_us, chance=self._chance(), outcome=outcome
        )
        if job.options is None or not job.options.forget:
            node = self._handles.node(self._table.term)
            settlement.record = record_of(settlement, before.started_us, now_us, node, before.worker)
        change = ChangeCompletion(
            after, settlement=settlement, term=self._table.term, kept=self._arguments[job.function].kept
        )
        change.act = act

        def ask(done: Callable[[bool], None], failed: Callable[[Exception], None]) -> None:
            self._commits.put_atomic(
                [
                    (change, lambda _: None, lambda _: None),
                    (Settle([settlement]), lambda stale: done(not stale), failed),
                ]
            )

        if not await Callback[bool](ask):
            return False
        self._ended(settlement)
        return True

    def _ended(self, settlement: Settlement) -> None:
        """Count and announce what has become of a job that awaited its completion."""
        if settlement.event is Event.SUCCEED:
            self._results.note(settlement.job)
        self._ends.completed(settlement)
        if target(settlement.event) is State.SCHEDULED:
            self._due_jobs.wake_at(settlement.due_us)

    # ---- looks ----

    def _look_now(self, digests: Iterable[bytes]) -> None:
        now_us = self._now_us()
        self._changed.update(digest for digest in digests if digest in self._looking)
        self._agenda.add([(digest, now_us) for digest in digests])

    def _look_at(self, digests: Iterable[bytes]) -> None:
        due = [*digests]
        self._looking.update(due)
        for start in range(0, len(due), BATCH):
            part = due[start : start + BATCH]
            CallInProgress(self._look(part), partial(self._looked, part), partial(self._failed, part))

    def _looked(self, digests: Sequence[bytes], _: object) -> None:
        self._agenda.done(map(bytes.hex, digests))
        self._looking.difference_update(digests)
        if changed := self._changed.intersection(digests):
            self._changed -= changed
            self._look_now(changed)

    def _failed(self, digests: Sequence[bytes], error: object) -> None:
        self._looked(digests, error)
        self._agenda.fetch_later()

    async def _look(self, digests: Sequence[bytes]) -> None:
        """Do what is due with some tokens. Raises StoreError.

        One that another node changes at the same time is looked at once more: that node may have seen its job before the return.
        """
        later: list[tuple[bytes, int]] = []
        left = digests
        for _ in range(ROUNDS):
            left = await self._look_once(left, later)
            if not left:
                break
        at_us = self._now_us() + completion_rules.LOOK_AGAIN_US
        self._agenda.done(map(bytes.hex, digests))
        self._agenda.add([*later, *((digest, at_us) for digest in left)])

    async def _look_once(self, digests: Sequence[bytes], later: list[tuple[bytes, int]]) -> list[bytes]:
        """Do what is due, add the times of the next looks, and return the tokens that have changed meanwhile."""
        found: Sequence[Dated] = await self._commits.committed(FindCompletions(digests))
        changed: list[bytes] = []
        forgotten: list[bytes] = []
        for one in found:
            digest = one.completion.digest
            deed, after, answer = completion_rules.look(*one, self._now_us())
            if deed is Deed.FORGET:
                forgotten.append(digest)
                continue
            is_done = True
            if deed in {Deed.APPLY, Deed.EXPIRE}:
                assert one.job is not None, "it awaits this completion"
                assert answer is not None, "the deed has one"
                outcome = Outcome.TIMED_OUT if deed is Deed.EXPIRE else None
                is_done = await self._end(one.completion, after, one.job, answer, outcome=outcome)
            elif deed in {Deed.CLOSE, Deed.LATER}:
                is_done = await self._change(ChangeCompletion(after))
            if is_done:
                later.append((digest, after.look_us))
            else:
                changed.append(digest)
        if forgotten:
            await Callback(lambda done, failed: self._commits.put(ForgetCompletions(forgotten), done, failed))
        return changed


def state_of(completion: Completion, job: Job | None, now_us: int) -> str:
    """Return the state of a token for people: ``open``, ``kept``, ``completed``, ``expired`` or ``void``."""
    if completion.status == Status.USED:
        return "completed"
    why = completion_rules.refusal(completion, job, now_us)
    if why is Refusal.EXPIRED:
        return "expired"
    if why is Refusal.OVER or not completion_rules.is_valid(completion, job):
        return "void"
    return "kept" if completion.status == Status.KEPT else "open"
