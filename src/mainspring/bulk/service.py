"""Operations on many jobs on a node: it begins them, works on its own ones, and takes over those of nodes that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from mainspring.access.replies import Reservation
from mainspring.bulk import rules
from mainspring.bulk.backfill_run import BackfillRun
from mainspring.bulk.model import PREFIX, Action, BulkOperation, Spec, Status
from mainspring.bulk.run import BulkRun
from mainspring.bulk.store import BeginBulk, EndBulk, FindBulk, SweepBulk, TakeBulk
from mainspring.clock import to_us
from mainspring.errors import ConflictError
from mainspring.namespaces import Turns, places_left
from mainspring.storage.set_aside import REMEDY, Kind, SetAside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.access.acts import Act
    from mainspring.access.once import KeyedAct
    from mainspring.bulk.run import Node
    from mainspring.errors import MainspringError, StoreError

FIND_INTERVAL: Final = 10.0
"""Seconds between two searches for operations of nodes that are gone."""
SWEEP_INTERVAL: Final = 60.0
OPEN: Final = 400
"""Operations that a node works on, with the shares of `namespaces.places_left`."""
OPEN_OF_CALLER: Final = 100
"""Operations of one caller that a node works on before it refuses another one."""
OPEN_OF_NAMESPACE: Final = 200
"""The same for one namespace."""
OPERATION: Final = Kind("operation", REMEDY)


class BulkService:
    """The slice of operations on many jobs on a node, which calls ``tick`` at least every quarter of a second.

    One step runs at a time. Namespaces take turns, and so do the operations of one. ``paused`` returns whether the node has no
    lease or ends: then it takes no step. ``retention`` is the number of seconds for which ended operations are kept.
    ``set_aside`` has those that this node cannot read. Each search tries them again.
    """

    def __init__(
        self,
        node: Node,
        next_id: Callable[[], int],
        term: Callable[[], int],
        paused: Callable[[], bool] = lambda: False,
        *,
        retention: float = 14 * 86_400.0,
        set_aside: SetAside | None = None,
    ) -> None:
        self._set_aside = SetAside(node.clock) if set_aside is None else set_aside
        self._node = node
        self._next_id = next_id
        self._term = term
        self._paused = paused
        self._retention = retention
        self._runs: dict[int, BulkRun] = {}
        self._ready: Turns[BulkRun] = Turns()
        self._beginning: dict[int, BulkOperation] = {}
        """New operations that the store does not have yet."""
        self._ends = False
        self._is_stepping = False
        self._is_finding = self._is_sweeping = False
        self._taking: set[int] = set()
        now = node.clock.monotonic()
        self._find_at = now
        self._sweep_at = now + SWEEP_INTERVAL

    # ---- requests ----

    def new(self, namespace: str, spec: Spec) -> BulkOperation:
        """Return a new operation, whose filter is fixed now. Raises UsageError for an invalid request."""
        rules.check(spec)
        now_us = self.now_us()
        if spec.where is not None:
            spec = replace(spec, where=rules.narrowed(spec.action, spec.where, now_us))
        return BulkOperation(id=self._next_id(), namespace=namespace, created_us=now_us, spec=spec)

    def now_us(self) -> int:
        """Return the time."""
        return to_us(self._node.clock.wall())

    def monotonic(self) -> float:
        """Return the seconds of a clock that is never set."""
        return self._node.clock.monotonic()

    def begin(
        self,
        bulk: BulkOperation,
        done: Callable[[Any], None],
        failed: Callable[[MainspringError], None],
        act: Act | None = None,
        keyed_act: KeyedAct | None = None,
    ) -> None:
        """Store an operation of `new` and begin it; ``done`` is called with the `BulkOperation`.

        It is called with the earlier `Reservation` if a request with the key was made before; then nothing begins.
        ``failed`` gets a StoreError, or a ConflictError if too many operations of the caller or the namespace are open.
        """

        def begun(stored: BulkOperation | Reservation) -> None:
            del self._beginning[bulk.id]
            done(stored)
            if not isinstance(stored, Reservation):
                self._start(stored)

        def not_begun(error: StoreError) -> None:
            del self._beginning[bulk.id]
            failed(error)

        why = self._too_many(bulk)
        if why:
            failed(ConflictError(why))
            return
        self._beginning[bulk.id] = bulk
        self._node.commits.put(BeginBulk(bulk, act, keyed_act), begun, not_begun)

    def _too_many(self, new: BulkOperation) -> str:
        """Return the reason for refusing a new operation; empty if it may begin. Those under way continue in any case."""
        running = [*(run.bulk for run in self._runs.values()), *self._beginning.values()]
        caller, namespace = new.spec.caller, new.namespace
        of_caller = sum(one.spec.caller.holder == caller.holder for one in running)
        of_namespace = sum(one.namespace == namespace for one in running)
        if of_caller >= OPEN_OF_CALLER:
            who, number = f"{caller.name!r} has", of_caller
        elif (
            of_namespace >= OPEN_OF_NAMESPACE
            or places_left(OPEN, len(running), of_namespace, spans=caller.spans_namespaces) <= 0
        ):
            who, number = f"the namespace {namespace} has", of_namespace
        else:
            return ""
        return f"{who} {number} operations under way on this node, and may begin no more: wait for some, or abort some"

    def abort(
        self,
        namespace: str,
        bulk_id: int,
        why: str,
        done: Callable[[BulkOperation | None], None],
        failed: Callable[[StoreError], None],
        act: Act | None = None,
    ) -> None:
        """End an operation early, whichever node works on it; ``done`` is called with it, or with None if there is none."""
        self._node.commits.put(EndBulk(namespace, bulk_id, Status.ABORTED, why, self.now_us(), act), done, failed)

    # ---- time ----

    def tick(self) -> None:
        """Search for operations to take over, and delete old ones, as due."""
        if self._ends or self._paused():
            return
        now = self._node.clock.monotonic()
        if now >= self._find_at and not self._is_finding:
            self._find_at = now + FIND_INTERVAL
            self._is_finding = True
            self._node.reads.ask(FindBulk(self._term()), self._found, self._not_found)
        if now >= self._sweep_at and not self._is_sweeping:
            self._sweep_at = now + SWEEP_INTERVAL
            self._sweep()

    def _found(self, bulks: Sequence[BulkOperation]) -> None:
        self._is_finding = False
        for bulk in bulks:
            if bulk.unread:
                self._set_aside.note(OPERATION, f"{PREFIX}{bulk.id}", bulk.unread)
                continue
            if not self._set_aside.is_empty:
                self._set_aside.handled(OPERATION, [f"{PREFIX}{bulk.id}"])
            if bulk.id not in self._runs and bulk.id not in self._taking:
                self._taking.add(bulk.id)
                self._take(bulk.id)

    def _not_found(self, error: StoreError) -> None:
        del error
        self._is_finding = False

    def _take(self, bulk_id: int) -> None:
        def taken(bulk: BulkOperation | None) -> None:
            self._taking.discard(bulk_id)
            if bulk is not None:
                self._start(bulk)

        def not_taken(error: StoreError) -> None:
            del error
            self._taking.discard(bulk_id)

        self._node.commits.put(TakeBulk(bulk_id), taken, not_taken)

    def _sweep(self) -> None:
        def swept(number: int) -> None:
            self._is_sweeping = False
            if number:
                self._sweep()

        def not_swept(error: StoreError) -> None:
            del error
            self._is_sweeping = False

        self._is_sweeping = True
        before_us = to_us(self._node.clock.wall() - self._retention)
        self._node.commits.put(SweepBulk(before_us), swept, not_swept)

    # ---- work ----

    def end(self) -> None:
        """Stop working for good: the node ends. Its next run, or another node, takes the operations over."""
        self._ends = True
        self.fenced()

    def fenced(self) -> None:
        """Stop working: the node's term has ended. The operations are taken over by the next term, of this or another node."""
        for run in self._runs.values():
            run.end()
        self._runs.clear()
        self._ready.clear()

    def _start(self, bulk: BulkOperation) -> None:
        if not self._ends and bulk.id not in self._runs and bulk.term == self._term():
            kind = BackfillRun if bulk.spec.action is Action.BACKFILL else BulkRun
            run = self._runs[bulk.id] = kind(self._node, bulk, self._add, self._remove)
            run.prepare()

    def _remove(self, run: BulkRun) -> None:
        if self._runs.get(run.bulk.id) is run:
            del self._runs[run.bulk.id]

    def _add(self, run: BulkRun) -> None:
        """Queue a run that is ready for its next step."""
        self._ready.add(run.bulk.namespace, run)
        self._serve()

    def _serve(self) -> None:
        if self._is_stepping or not self._ready:
            return
        if self._ends or self._paused():
            self.fenced()  # the next search takes them over, once the node works again
            return
        self._is_stepping = True
        self._ready.pop().step(self._finished)

    def _finished(self, pause: float) -> None:
        self._node.later(pause, self._served)

    def _served(self) -> None:
        self._is_stepping = False
        self._serve()
