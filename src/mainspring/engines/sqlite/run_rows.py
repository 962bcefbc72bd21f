"""Conversions of runs to rows and back, and their reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from mainspring.engines.sqlite.finding import find_job
from mainspring.engines.sqlite.rows import LARGEST_ID
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs.model import State
from mainspring.namespaces import ANY
from mainspring.workflows.model import Definition, Status
from mainspring.workflows.state import Parking
from mainspring.workflows.store import RunRow
from mainspring.workflows.tables import ALL, Snapshot, StoredRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.sqlite.rows import Row
    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.jobs.model import Job
    from mainspring.workflows.tables import Guarded

_encode = msgspec.msgpack.Encoder().encode
_decode_parking = msgspec.msgpack.Decoder(Parking).decode
_decode_definition = msgspec.msgpack.Decoder(Definition).decode
_NONE: Final = Parking()


def new_row(run: RunRow) -> Row:
    """Return the values of the statement ``new_run``."""
    return (
        run.id,
        run.root,
        run.namespace,
        run.workflow_id,
        run.type,
        run.version,
        int(run.status),
        run.started_us,
        run.closed_us,
        run.events,
        run.history_bytes,
        run.input_size,
        run.output_size,
        run.due_us or None,
        run.about or None,
        run.decision,
        run.slot,
        *_parking(run.parking),
    )


def appended(change: Guarded) -> Row:
    """Return the values of the statement ``append_run``."""
    run, events = change
    return (run.events, run.history_bytes, run.about or None, run.decision, run.id, events)


def rescheduled(change: Guarded) -> Row:
    """Return the values of the statement ``reschedule_run``."""
    run, events = change
    return (run.events, run.history_bytes, run.about or None, run.decision, run.due_us or None, run.id, events)


def changed(change: Guarded) -> Row:
    """Return the values of the statement ``change_run``."""
    run, events = change
    return (
        run.events,
        run.history_bytes,
        run.about or None,
        run.decision,
        run.due_us or None,
        int(run.status),
        run.closed_us,
        run.output_size,
        *_parking(run.parking),
        run.id,
        events,
    )


def _parking(parking: Parking) -> Row:
    return (parking.parked_us or None, "\n".join(parking.builds), None if parking == _NONE else _encode(parking))


def stored_row(row: Sequence[Any]) -> RunRow:
    """Return the run of a row; the statements ``load_run`` and ``closed_runs`` select the same columns in the same order."""
    (
        run, root, namespace, workflow_id, kind, version, status, started, closed, events, history_bytes, input_size,
        output_size, due, about, decision, slot, _, _, parking,
    ) = row  # fmt: skip
    unread = ""
    try:
        now = Status(status)
    except ValueError:
        now, unread = Status.OPEN, f"this version of Mainspring does not know the status {status} of runs"
    try:
        parked = Parking() if parking is None else _decode_parking(parking)
    except (ValueError, RecursionError) as error:  # a MsgspecError is a ValueError
        parked, unread = Parking(), f"this version of Mainspring cannot read why it is parked: {error}"
    return RunRow(
        run, root, namespace, workflow_id, kind, version, now, started, closed, events, history_bytes, input_size,
        output_size, due or 0, about or b"", decision, slot, parked, unread,
    )  # fmt: skip


def _definition(namespace: str, name: str, version: str, definition: bytes) -> Definition:
    """Return a stored definition; of one that this version cannot read, the key: the others are needed in each transaction.

    Each of its workers stores it when it registers.
    """
    try:
        return _decode_definition(definition)
    except (ValueError, RecursionError):  # a MsgspecError is a ValueError
        return Definition(name, version, namespace)


class SqliteRunReads:
    """``workflows.tables.Runs``: reads of runs, in a transaction or in a query."""

    _tx: Transaction

    async def load(self, run: int, namespace: str = ANY) -> StoredRun | None:
        """Return a run."""
        if run > LARGEST_ID:
            return None
        for row in self._tx.cursor.execute(SQL["load_run"], (run, namespace)):
            history_bytes, state = row[20:]
            snapshot = None if state is None else Snapshot(history_bytes, state)
            return StoredRun(stored_row(row[:20]), snapshot)
        return None

    async def has_run(self, run: int, namespace: str) -> bool:
        """Return whether a run exists in a namespace."""
        return run <= LARGEST_ID and bool(self._first("run_of_namespace", run, namespace))

    async def blocks(self, run: int, first: int, limit: int = ALL) -> list[bytes]:
        """Return the blocks of a history."""
        return [block for (block,) in self._tx.cursor.execute(SQL["blocks"], (run, first, limit))]

    async def open_run(self, namespace: str, workflow_id: str) -> int:
        """Return the open run of a workflow id."""
        return self._first("open_run", namespace, workflow_id)

    async def last_run(self, namespace: str, workflow_id: str) -> int:
        """Return the newest run of a workflow id."""
        return self._first("open_run", namespace, workflow_id) or self._first("last_run", namespace, workflow_id)

    async def last_link(self, root: int, namespace: str = ANY) -> int:
        """Return the newest run that continues another one of a root job."""
        return self._first("last_link", root, namespace)

    async def definitions(self, namespace: str = "", name: str = "") -> list[Definition]:
        """Return definitions."""
        cursor = self._tx.cursor
        found = cursor.execute(*((SQL["definitions_of"], (namespace, name)) if name else (SQL["definitions"],)))
        return [_definition(*row) for row in found]

    async def waiting_job(self, job_id: int, namespace: str = ANY) -> Job | None:
        """Return a waiting job."""
        job = find_job(self._tx, job_id, namespace)
        return job if job is not None and job.state <= State.PENDING else None

    async def waiting_named(self, namespace: str, unique: bytes) -> list[Job]:
        """Return waiting jobs by their unique."""
        ids = [job_id for (job_id,) in self._tx.cursor.execute(SQL["waiting_named"], (namespace, unique))]
        return [job for job_id in ids if (job := await self.waiting_job(job_id)) is not None]

    def _first(self, statement: str, *values: Any) -> int:
        for (run,) in self._tx.cursor.execute(SQL[statement], values):
            assert isinstance(run, int)
            return run
        return 0
