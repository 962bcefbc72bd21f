"""The default store: one SQLite file, in WAL mode with ``synchronous=FULL``, so that committed groups survive a power cut."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any

import apsw
import structlog

from mainspring.access.audit import event_of, recorded_acts
from mainspring.access.idempotency import KeyedGroup
from mainspring.engines.sql import access, completions, deadlines, events, holds, records, streams, values
from mainspring.engines.sql.completions import CompletionRows
from mainspring.engines.sql.deadlines import DeadlineRows
from mainspring.engines.sql.holds import HoldRows
from mainspring.engines.sqlite import (
    claiming,
    jobs,
    store_file,
)
from mainspring.engines.sqlite.queries import READERS, Reader
from mainspring.engines.sqlite.statements import SQL, synchronous
from mainspring.engines.sqlite.store_file import FileLock, Folding
from mainspring.engines.sqlite.transaction import Transaction, explain, full_at_start
from mainspring.errors import StoreBrokenError, StoreError, StoreFullError
from mainspring.event_log.interests import CurrentInterests
from mainspring.event_log.store import Numbered, NumberEvents
from mainspring.ids import Term
from mainspring.jobs.model import State
from mainspring.jobs.slices import TakesErrands, Units, concerns
from mainspring.nodes import node_events
from mainspring.resources.hold_store import AskHolds
from mainspring.storage.commit_queue import LOCK_RETRY_DELAYS
from mainspring.storage.engine import Opened, Phase, Probe, has_keys, plan_of, run_synchronously, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from mainspring.features import Feature
    from mainspring.ids import NodeId
    from mainspring.jobs.completion_rules import Completion
    from mainspring.jobs.model import Job
    from mainspring.jobs.slices import JobLifecycle, Slice
    from mainspring.storage.engine import Answer, Answered, Budget, Committed, Operation, Query


def probe(tx: Transaction, operations: Sequence[Probe]) -> list[None]:
    """Write a job and delete it again: its pages go to the log with the commit."""
    tx.cursor.execute(SQL["probe"])
    tx.cursor.execute(SQL["probed"])
    return [None] * len(operations)


def _number(_: Transaction, operations: Sequence[NumberEvents]) -> list[Numbered]:
    """Do nothing: events get their numbers as they are written."""
    return [Numbered(0, more=False)] * len(operations)


class SqliteDeadlines(DeadlineRows):
    """The rows of deadlines."""

    async def live_jobs(self, ids: Collection[int]) -> tuple[dict[int, Job], Collection[int]]:
        found = (jobs.find_job(self._tx, job_id) for job_id in ids)
        return {job.id: job for job in found if job is not None and job.state < State.SUCCEEDED}, ()


class SqliteHolds(HoldRows):
    """The rows of resources."""

    async def lock(self, names: Sequence[str]) -> None:
        """Lock nothing: groups run one after the other."""

    async def store_us(self, node_us: int) -> int:
        return node_us

    def announce(self, functions: Collection[bytes]) -> None:
        """Tell nobody: there is no other node."""


class SqliteCompletions(CompletionRows):
    """The rows of completion tokens."""

    async def job(self, job_id: int) -> Job | None:
        return jobs.find_job(self._tx, job_id)

    async def take(self, completion: Completion, term: int) -> bytes | None:
        return jobs.take_completed(self._tx, completion, term)


_HANDLERS: dict[type[Operation], Callable[[Any, Any], Sequence[Any]]] = {
    **jobs.HANDLERS,
    **claiming.RESOURCE_HANDLERS,
    **{kind: synchronous(handler) for kind, handler in (access.HANDLERS | records.HANDLERS | events.HANDLERS).items()},
    **{kind: synchronous(handler) for kind, handler in values.HANDLERS.items()},
    **{kind: synchronous(handler) for kind, handler in streams.HANDLERS.items()},
    **{kind: synchronous(handler) for kind, handler in deadlines.handlers(SqliteDeadlines).items()},
    **{kind: synchronous(handler) for kind, handler in holds.handlers(SqliteHolds).items()},
    **{kind: synchronous(handler) for kind, handler in completions.handlers(SqliteCompletions).items()},
    NumberEvents: _number,
    Probe: probe,
}
THREAD_ROWS = 64
"""The most rows of a group whose commit runs on the event loop. Larger groups wait for the disk in the engine's thread, so that
the loop continues to read; for smaller ones the switch to a thread and back takes as long as the disk."""

log = structlog.get_logger("mainspring.store")


async def _dead_letters_left(tx: Transaction, function: bytes) -> int:
    """Return the number of a function's dead letters, with those of the group under way."""
    tx.write_counts()
    ((number,),) = tx.cursor.execute(SQL["dead_letters"], (tx.functions.number(function),))
    return 0 if number is None else int(number)


class SqliteEngine:
    """A store in one file, for one node at a time."""

    durable = True
    shared = False
    whole = True
    lacks: frozenset[Feature] = frozenset()
    step_secret = b""
    max_value = 900_000_000
    """SQLite's own limit of a row is 1,000,000,000 bytes."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: store_file.Synchronous = "full",
        cache_bytes: int = store_file.CACHE_BYTES,
        update: store_file.Update = store_file.UPDATE,
        thread_rows: int = THREAD_ROWS,
        slices: Sequence[Slice[Transaction]] = (),
    ) -> None:
        self._path = path = store_file.real_path(path)
        self._synchronous = synchronous
        self._cache_bytes = cache_bytes
        self._update = update
        self._lock = FileLock(path)
        self._thread_rows = thread_rows
        self.slices = slices
        self._handlers = dict(_HANDLERS)
        self._readers = {
            **READERS,
            **access.READERS,
            **records.READERS,
            **events.READERS,
            **values.READERS,
            **streams.READERS,
            **holds.readers(SqliteHolds),
            **completions.READERS,
        }
        for one in slices:
            self._handlers |= one.handlers
            self._readers |= one.readers
        self._kinds = self._handlers.keys() | {kind for one in slices for kind in one.writes}
        self.interests = CurrentInterests()
        self._connection: apsw.Connection | None = None
        self._work: queue.SimpleQueue[tuple[list[Any], Committed] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._broken: StoreBrokenError | None = None
        """The failure that ended all commits."""
        self._is_writing = False
        """Whether the open transaction may write."""
        self._must_forget = False
        """Whether the file could not be read after a transaction was rolled back."""
        self._is_in_thread = False
        """Whether the group under way is in the engine's thread."""
        self._reader: Reader | None = None

    # ---- opening ----

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: JobLifecycle | None = None
    ) -> Opened:
        """Open or create the file for a node and begin its next term."""
        self._deliver = deliver
        self._lifecycle = lifecycle
        self._broken = None
        store_file.check_file(self._path)
        self._lock.acquire()
        try:
            opened = await self._open_repeatedly(node)
            self._reader = Reader(self._path, self._folding, deliver, self._readers)
        except (apsw.Error, StoreFullError) as error:
            failure = self._explain(error) if isinstance(error, apsw.Error) else error
            self._close()
            raise full_at_start(self._path) if isinstance(failure, StoreFullError) else failure from error
        except BaseException:
            self._close()
            raise
        self._lock.record_pair()
        store_file.warn_of_readers(self._path)
        store_file.lay_out_log(self._tx.cursor.connection, self._path)
        self._thread = threading.Thread(target=self._run, name="sqlite", daemon=True)
        self._thread.start()
        # With CPython's default of 5 ms the engine's thread would wait that long for the interpreter, row by row, under a busy
        # loop.
        sys.setswitchinterval(1e-4)
        return opened

    async def _open_repeatedly(self, node: NodeId) -> Opened:
        """Open the file; wait a few seconds, without blocking the loop, if another program has locked it."""
        for number, pause in enumerate(LOCK_RETRY_DELAYS):
            try:
                return self._open(node)
            except apsw.BusyError as error:
                if not number:
                    log.warning("the store is locked: waiting for it", error=str(self._explain(error)))
                if self._connection is not None:
                    self._connection.close()
                await asyncio.sleep(pause)
        return self._open(node)

    def _open(self, node: NodeId) -> Opened:
        connection = self._connection = apsw.Connection(str(self._path))
        store_file.prepare(
            connection,
            self._path,
            synchronous=self._synchronous,
            cache_bytes=self._cache_bytes,
            update=self._update,
        )
        self._folding = Folding(connection, self._path)
        cursor = connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        dead: list[Any] = cursor.execute(SQL["end_open_terms"]).fetchall()
        ((term,),) = cursor.execute(SQL["next_term"], (node,))
        terms = dict(cursor.execute(SQL["terms"]))
        self._tx = Transaction(cursor, term, terms, self._lifecycle, self.interests)
        self.interests.use(run_synchronously(events.all_interests(self._tx.sql)).at(0))
        if not node_events.TYPES.isdisjoint(self.interests.now.types):
            self._record_begin(node, dead)
        cursor.execute("COMMIT")
        return Opened(Term(term), terms)

    def _record_begin(self, node: str, dead: Sequence[tuple[int, str]]) -> None:
        """Record that a term begins, and that earlier ones ended without a goodbye."""
        new = []
        for term, name in dead:
            ((jobs,),) = self._tx.cursor.execute(SQL["number_held"], (term,))
            new.append(node_events.dead(name, node_events.LEFT_OPEN, jobs=jobs, by=node))
        new.append(node_events.joined(node))
        if wanted := [one for one in new if self.interests.now.wants(one)]:
            run_synchronously(events.append(self._tx.sql, wanted))

    # ---- committing ----

    def commit(self, group: Sequence[Operation], committed: Committed, answer: Answer) -> None:
        """Run a group's statements at once; wait for the disk in the engine's thread, unless the group is tiny.

        If another program has locked the file, the group fails with StoreBusyError at once, without waiting.

        A statement takes less time than another thread needs to get the interpreter, row by row, under a busy loop; the wait for
        the disk does not need the interpreter. The thread reads large results, too.
        """
        del answer
        outcomes = self._try(lambda: self._execute(group))
        if self._tx.commits or self._tx.rollbacks:
            committed = self._with_callbacks(committed)
        if isinstance(outcomes, StoreError):
            committed(outcomes)
        elif self._tx.large or sum(operation.rows for operation in group) > self._thread_rows:
            self._is_in_thread = True
            self._work.put((outcomes, committed))
        else:
            committed(self._try(lambda: self._end(outcomes)))

    def _with_callbacks(self, committed: Committed) -> Committed:
        """Return a callback that first runs the group's own callbacks, on the node's thread."""
        commits, rollbacks = self._tx.pop_callbacks()

        def finish(outcomes: Sequence[Any] | StoreError) -> None:
            for function in rollbacks if isinstance(outcomes, StoreError) else commits:
                function()
            committed(outcomes)

        return finish

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            outcomes, committed = work
            ended = self._try(lambda outcomes=outcomes: self._end(outcomes))  # type: ignore[misc]
            self._deliver(lambda then=committed, what=ended: self._back_on_loop(then, what))  # type: ignore[misc]

    def _back_on_loop(self, committed: Committed, outcomes: list[Any] | StoreError) -> None:
        self._is_in_thread = False
        self._fold_after_read()
        committed(outcomes)

    def _execute(self, group: Sequence[Operation]) -> list[Any]:
        self._is_writing = False
        if all(operation.overtakes for operation in group):
            self._tx.cursor.execute("BEGIN")  # a read needs no lock, so a writer cannot block it
        else:
            self._tx.cursor.execute("BEGIN IMMEDIATE")
            self._is_writing = True
        if self._must_forget:
            self._tx.rolled_back()
            self._must_forget = False
        outcomes = self._handle(group)
        self._tx.write_counts()
        return outcomes

    def _end(self, outcomes: list[Any]) -> list[Any]:
        if self._tx.large:
            jobs.read_large(self._tx)
        self._lock.check()  # commits to a file that was moved away must not be acknowledged
        self._tx.cursor.execute("COMMIT")
        self._fold(self._folding.after_commit)
        return outcomes

    def _fold(self, fold: Callable[[], None]) -> None:
        try:
            fold()
        except StoreBrokenError as failure:
            self._break(failure)  # from the next group on: this group is on the disk

    # ---- reading ----

    def read(self, query: Query[Any], budget: Budget, answered: Answered) -> None:
        """Answer a query in a separate thread, concurrently with the groups."""
        if self._broken is not None:
            answered(self._broken)
            return
        assert self._reader is not None, "the store is open"
        if query.is_small:
            self._reader.read(query, budget, answered)
            return

        def after_read(answer: Any) -> None:
            self._fold_after_read()
            answered(answer)

        self._reader.read(query, budget, after_read)

    def _fold_after_read(self) -> None:
        if not self._is_in_thread:
            self._fold(self._folding.after_read)

    def _try(self, step: Callable[[], list[Any]]) -> list[Any] | StoreError:
        """Run a step of a transaction; if it fails, roll the transaction back and return the error."""
        if self._broken is not None:
            return self._broken
        try:
            return step()
        except apsw.Error as error:
            failure = self._explain(error)
            failure.__cause__ = error
            if isinstance(failure, StoreBrokenError):
                self._break(failure)
            self._roll_back()
            return failure
        except StoreError as refusal:
            self._roll_back()
            return refusal
        except Exception as error:  # noqa: BLE001 - a defect in this code costs one group, not the engine's thread
            self._roll_back()
            failure = StoreError(f"{self._path}: a defect in the store's code: {error!r}")
            failure.__cause__ = error
            return failure

    def _break(self, failure: StoreBrokenError) -> None:
        self._broken = failure
        # The log's content in memory may differ from the disk, so closing the connection must not fold it into the file: the next
        # start writes it to the disk first.
        self._tx.cursor.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _handle(self, group: Sequence[Operation]) -> list[Any]:
        plan = plan_of(group)
        if not plan.keys() <= self._kinds:
            raise unknown("SQLite", plan.keys() - self._kinds)
        outcomes: list[Any] = [None] * len(group)
        keyed = KeyedGroup(plan, access.ReplyRows(self._tx.sql), outcomes) if has_keys(plan) else None
        if keyed is not None:
            plan = run_synchronously(keyed.reserve(plan))
        for kind, placed in plan.items():
            if kind.phase < Phase.SLICES:
                self._run_kind(kind, placed, outcomes)
        if concerns(plan, self._tx.notices):
            run_synchronously(Units(self.slices, self._tx).run(plan, self._tx.notices, outcomes))
        if self._tx.asks_of_runs and AskHolds not in plan:
            self._run_kind(AskHolds, [], outcomes)
        for kind, placed in plan.items():
            if kind.phase > Phase.SLICES:
                self._run_kind(kind, placed, outcomes)
        if self._tx.answered_runs:
            self._tx.answered_runs.clear()
            self._tx.commits.extend(one.errands_stored for one in self.slices if isinstance(one, TakesErrands))
        if acts := recorded_acts(plan, outcomes):
            run_synchronously(access.record(self._tx.sql, acts))
        new_events = self._tx.events.take(plan, outcomes, map(event_of, acts))
        if self._tx.events.has_dead_letters:
            new_events += run_synchronously(events.count_dead_letters(self._tx, _dead_letters_left))
        if new_events:
            run_synchronously(events.append(self._tx.sql, new_events))
            self._tx.commits.append(lambda: self.interests.written(numbered=True))
        if keyed is not None:
            run_synchronously(keyed.keep())
        return outcomes

    def _run_kind(self, kind: type[Operation], placed: list[tuple[int, Operation]], outcomes: list[Any]) -> None:
        answers = self._handlers[kind](self._tx, [operation for _, operation in placed])
        for (place, _), outcome in zip(placed, answers, strict=True):
            outcomes[place] = outcome

    def _roll_back(self) -> None:
        connection = self._tx.cursor.connection
        # A broken connection fails again at the next group, with its own message.
        with contextlib.suppress(apsw.Error):
            if connection.in_transaction:
                self._tx.cursor.execute("ROLLBACK")
        if self._is_writing:
            try:
                self._tx.rolled_back()
            except apsw.Error:
                self._must_forget = True

    def _explain(self, error: apsw.Error) -> StoreError:
        return explain(error, self._path, self._connection.system_errno if self._connection is not None else 0)

    # ---- closing ----

    async def close(self) -> None:
        """End the thread, fold the log into the file and release the lock."""
        self._close()

    def _say_goodbye(self) -> None:
        """End the node's term, unless it still holds jobs. If that fails, the next run of the node counts this one as dead."""
        with contextlib.suppress(apsw.Error, StoreError):
            self._lock.check()
            self._tx.cursor.execute("BEGIN IMMEDIATE")
            self._tx.cursor.execute(SQL["leave"], (self._tx.term,))
            self._tx.cursor.execute("COMMIT")

    def _close(self) -> None:
        says_goodbye = self._thread is not None and self._broken is None
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None
        if self._reader is not None:
            self._folding.admit_reader()
            self._reader.close()
            self._reader = None
        try:
            if self._connection is not None:
                if says_goodbye:
                    self._say_goodbye()
                self._connection.close()
                self._connection = None
        finally:
            self._lock.release()
