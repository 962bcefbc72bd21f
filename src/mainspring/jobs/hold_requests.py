"""Requests of a node for the slots of resources that its jobs use.

A job of a function that uses resources leaves its admission queue when a worker has a place for it, with its tokens. It then
waits for its slots (`AdmissionQueue.awaiting`), and for a worker once it has them (`AdmissionQueue.equipped`). A job whose worker
has found other work in the meantime goes back to the store after a second, so that its slots are not idle.

One operation has all questions and all slots that are given back until its group closes. The end of a job with slots repeats the
questions about the same resources in that group; other nodes' ends are announced as pending jobs are. Every second the node
repeats all questions, in case an announcement was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.clock import to_us
from mainspring.errors import StoreBrokenError, StoreFencedError
from mainspring.jobs import rules
from mainspring.jobs.admission import UNBOUNDED
from mainspring.jobs.held import Slots
from mainspring.namespaces import key_of_text, namespace_of
from mainspring.resources.hold_store import AskHolds, Got
from mainspring.resources.holds import Holder, HolderKind, Line, Request, Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from mainspring.errors import StoreError
    from mainspring.jobs.admission import AdmissionQueue
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.jobs.table import Context
    from mainspring.resources.hold_store import Asked

REPEAT_INTERVAL: Final = 1.0
"""Seconds between repetitions of all questions."""
MIN_AWAITING: Final = 8
"""Jobs of a function that a node asks for in any case, however few slots are free."""
IDLE_LIMIT: Final = 1.0
"""Seconds for which a job with slots may wait for a worker."""


class _Batch:
    """An operation, and the jobs that it asks for."""

    def __init__(self, now_us: int) -> None:
        self.jobs: dict[int, Held] = {}
        """By id, in the order of the requests."""
        self.requests: list[Request] = []
        self.given_back: list[tuple[Holder, int]] = []
        self.queues: dict[FunctionQueue, None] = {}
        """The functions whose jobs give something back: others of them may have tokens now."""
        self.taken: set[Holder] = set()
        self.freed: set[str] = set()
        """Their resources. The node has repeated all questions about these in it."""
        self.operation = AskHolds(self.requests, now_us, self.given_back, self.freed, taken=self.taken)


class HoldRequests:
    """Asks for slots, and gives them back.

    ``serve`` hands out the jobs that have their slots. ``release`` gives a job back to the store. ``keep`` stores a foreground
    job, and then calls a function: holds belong to stored jobs. ``denied`` ends a job that has waited too long. ``lacking`` is
    called with the keys of resources for whose slots a job begins to wait.
    """

    def __init__(
        self,
        context: Context,
        serve: Callable[[FunctionQueue], None],
        release: Callable[[Held], None],
        keep: Callable[[Held, Callable[[], None]], None],
        denied: Callable[[Held, Waits], None],
        lacking: Callable[[Collection[str]], None],
    ) -> None:
        self._table, self._dispatch, self._commits = context.table, context.dispatch, context.commits
        self._clock = context.clock
        self._serve = serve
        self._release = release
        self._keep = keep
        self._denied = denied
        self._lacking = lacking
        self._turns = 0
        self.granted: dict[int, Held] = {}
        """By id, the jobs that have their slots."""
        self._queues: dict[FunctionQueue, float] = {}
        """The functions that use resources, with the time since which jobs with slots have waited there for a worker; 0: none."""
        self._lines_of: dict[FunctionQueue, tuple[tuple[Line, ...], tuple[Line, ...]]] = {}
        """The resources that a function uses, and the same lines with the keys of their names."""
        self._open: _Batch | None = None
        self._unreturned: list[_Batch] = []
        """Those with slots that could not be given back."""
        self._repeat_at = 0.0

    def serve(self, queue: FunctionQueue, admission: AdmissionQueue[Held]) -> None:
        """Ask for the slots of as many jobs as workers have places for."""
        if admission.returned:
            self._give_back(admission)
        if not admission.limits.uses or admission.paused or self._dispatch.paused:
            return
        self._queues.setdefault(queue, 0.0)
        awaiting = admission.awaiting
        most = queue.places() - len(admission.equipped)
        while len(awaiting) < most and (
            len(awaiting) < admission.most_awaiting or admission.overtakes() or self._goes_on(queue, admission)
        ):
            held = admission.take()
            if held is None:
                break
            if held.slots is not None:
                self.left(held)
            awaiting[held.job.id] = held
            if held.stored:
                self._ask(held, admission)
            else:
                self._keep(held, lambda held=held: self._kept(held))  # type: ignore[misc] # the loop's variable

    def _goes_on(self, queue: FunctionQueue, admission: AdmissionQueue[Held]) -> bool:
        """Return whether a waiting job may have work elsewhere, which keeps its slots: others may wait for these."""
        return bool(admission.tried) and queue.runs_elsewhere

    def _give_back(self, admission: AdmissionQueue[Held]) -> None:
        returned, admission.returned = admission.returned, []
        for held in returned:
            if held.slots is not None:
                self.left(held)

    def _kept(self, held: Held) -> None:
        admission = held.queue.admission
        if held.stored and held.slots is None and admission is not None and held.job.id in admission.awaiting:
            self._ask(held, admission)

    # ---- questions ----

    def _ask(self, held: Held, admission: AdmissionQueue[Held]) -> None:
        """Ask for a job's slots; with the same turn if it has asked before."""
        if held.slots is None:
            job, lines = held.job, self._lines(held.queue, admission.limits.uses)
            self._turns += 1
            holder = Holder(HolderKind.LEASE, job.id, self._table.term)
            since_us, limit_us = max(job.created_us, job.due_us), admission.limits.uses_timeout_us
            if limit_us:
                limit_us += rules.waits_since_us(job, to_us(self._clock.wall()))
            request = Request(holder, self._turns, lines, job.priority, since_us, job.function, limit_us=limit_us)
            held.slots = Slots(request)
        batch = self._batch()
        if held.job.id not in batch.jobs:
            batch.jobs[held.job.id] = held
            batch.requests.append(held.slots.request)

    def _lines(self, queue: FunctionQueue, uses: tuple[Line, ...]) -> tuple[Line, ...]:
        """Return what a job of a function asks for, with the keys of the resources."""
        found = self._lines_of.get(queue)
        if found is None or found[0] is not uses:
            namespace = namespace_of(queue.name)
            lines = tuple(Line(key_of_text(namespace, line.resource), line.units, line.labels) for line in uses)
            found = self._lines_of[queue] = uses, lines
        return found[1]

    def _batch(self) -> _Batch:
        batch = self._open
        if batch is None or not batch.operation.open:
            batch = self._open = _Batch(to_us(self._clock.wall()))
            self._commits.put(
                batch.operation,
                lambda asked: self._asked(batch, asked),
                lambda error: self._not_asked(batch, error),
            )
        return batch

    def _asked(self, batch: _Batch, asked: Asked) -> None:
        served = batch.queues
        granted: set[AdmissionQueue[Held]] = set()
        short: dict[AdmissionQueue[Held], FunctionQueue] = {}
        lacking: set[str] = set()
        freed = self._open.freed if self._open is not None and self._open.operation.open else set()
        for held, request, answer in zip(batch.jobs.values(), batch.requests, asked.answers, strict=True):
            slots, admission = held.slots, held.queue.admission
            if slots is None or slots.request.turn != request.turn or slots.holds is not None:
                continue  # it has left, and its slots are given back
            if isinstance(answer, Got):
                slots.holds, slots.metas, slots.waits = answer.holds, answer.metas, None
                self.granted[held.job.id] = held
                if admission is not None and admission.awaiting.pop(held.job.id, None) is held:
                    admission.equipped[held.job.id] = held
                    granted.add(admission)
                    served[held.queue] = None
            elif isinstance(answer, Waits):
                if slots.waits is None:
                    lacking.update(answer.lacking)
                    if admission is not None and not freed.isdisjoint(answer.lacking):
                        self._ask(held, admission)
                slots.waits = answer
                if admission is not None:
                    short[admission] = held.queue
                if answer.over:
                    self._denied(held, answer)
        for admission in granted:
            admission.most_awaiting = min(2 * admission.most_awaiting, UNBOUNDED)
        for admission, queue in short.items():  # about as many as may end at the same time
            admission.most_awaiting = max(MIN_AWAITING, queue.running + len(admission.equipped))
        for queue in served:
            self._serve(queue)
        if lacking:
            self._lacking(lacking)

    def _not_asked(self, batch: _Batch, error: StoreError) -> None:
        """Repeat the operation with the next tick, unless the term has ended, and all holds with it."""
        if not isinstance(error, (StoreFencedError, StoreBrokenError)):
            self._unreturned.append(batch)

    def _ask_again(self, names: Collection[str], *, answered: bool = False) -> None:
        """Repeat questions about resources; ``answered``: without those that have no answer yet."""
        for held, admission in list(self._awaiting()):
            slots = held.slots
            if slots is None or (answered and slots.waits is None):
                continue
            if any(line.resource in names for line in slots.request.lines):
                self._ask(held, admission)

    def _awaiting(self) -> Iterator[tuple[Held, AdmissionQueue[Held]]]:
        for queue in self._queues:
            if queue.admission is not None:
                for held in queue.admission.awaiting.values():
                    yield held, queue.admission

    # ---- ends ----

    def left(self, held: Held) -> None:
        """Give back the slots of a job whose attempt has ended, or its request, and repeat the questions of others."""
        slots, held.slots = held.slots, None
        self.granted.pop(held.job.id, None)
        if slots is None or not self._table.term:
            return
        batch = self._batch()
        batch.given_back.append((slots.request.holder, slots.request.turn))
        if slots.taken:
            batch.taken.add(slots.request.holder)
        batch.queues[held.queue] = None
        names = [line.resource for line in slots.request.lines if line.resource not in batch.freed]
        if names:
            batch.freed.update(names)
            self._ask_again(names, answered=True)

    def hint(self, queue: FunctionQueue) -> None:
        """Repeat a function's questions: another node has announced that slots are free."""
        if queue in self._queues and queue.admission is not None:
            for held in list(queue.admission.awaiting.values()):
                if held.slots is not None:
                    self._ask(held, queue.admission)

    def changed(self, name: str) -> None:
        """Repeat the questions about a resource that has other slots now."""
        self._ask_again({name})

    def repeat(self) -> None:
        """Repeat all questions: runs of workflows may have given slots back."""
        for held, admission in list(self._awaiting()):
            if held.slots is not None:
                self._ask(held, admission)

    # ---- time ----

    def tick(self, now: float) -> None:
        """Repeat questions, and release jobs with slots that wait for a worker for too long."""
        if now < self._repeat_at or not self._table.term:
            return
        self._repeat_at = now + REPEAT_INTERVAL
        if self._unreturned:
            failed, self._unreturned = self._unreturned, []
            batch = self._batch()
            for one in failed:
                batch.given_back.extend(one.given_back)
                batch.taken |= one.taken
                batch.freed.update(one.freed)
        for held, admission in list(self._awaiting()):
            if held.stored:
                self._ask(held, admission)
            elif not held.adopting:
                self._keep(held, lambda held=held: self._kept(held))  # type: ignore[misc] # the loop's variable
        for queue in list(self._queues):
            self._look_at(queue, now)

    def _look_at(self, queue: FunctionQueue, now: float) -> None:
        admission = queue.admission
        if admission is None or not (admission.equipped or admission.awaiting or admission.limits.uses):
            del self._queues[queue]
            self._lines_of.pop(queue, None)
        elif not admission.equipped or queue.places():
            self._queues[queue] = 0.0
        elif not self._queues[queue]:
            self._queues[queue] = now
        elif now - self._queues[queue] >= IDLE_LIMIT:
            self._queues[queue] = 0.0
            for held in list(admission.equipped.values()):
                self._release(held)
