"""The rows of completion tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.jobs.completion_rules import decode_completion, encode_completion
from mainspring.jobs.store import completions as ops
from mainspring.sizes import CANNOT_READ

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from mainspring.engines.sql.statements import Handlers, Readers, Statements
    from mainspring.jobs.completion_rules import Completion
    from mainspring.jobs.store.completions import CompletionTables
    from mainspring.storage.engine import Meter


class CompletionRows:
    """``CompletionTables`` but for the jobs."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self._sql: Statements = tx.sql

    async def lock(self, digest: bytes) -> Completion | None:
        found = _read(await self._sql.fetch("lock_completion", digest))
        return found[0] if found else None

    async def lock_of_job(self, job_id: int) -> Sequence[Completion]:
        return _read(await self._sql.fetch("lock_completions_of", job_id))

    async def with_digests(self, digests: Collection[bytes]) -> Sequence[Completion]:
        return [one for digest in digests for one in _read(await self._sql.fetch("completions_with", digest))]

    async def of_jobs(self, jobs: Collection[int]) -> Sequence[Completion]:
        return _read(await self._sql.fetch("completions_of", self._sql.among(jobs)))

    async def due(self, limit: int) -> Sequence[tuple[bytes, int]]:
        return [(digest, look_us) for digest, look_us in await self._sql.fetch("due_completions", limit)]

    async def save(self, completion: Completion) -> None:
        content = encode_completion(completion)
        row = (completion.digest, completion.job, completion.look_us, completion.version, content)
        await self._sql.execute("save_completion", *row)

    async def remove(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            await self._sql.execute("remove_completion", digest)

    async def begin(self, job_id: int, term: int) -> bool:
        return await self._sql.execute("begin_completion", job_id, term) == 1


def _read(rows: Iterable[Sequence[Any]]) -> list[Completion]:
    """Return the tokens of rows, without those that this version cannot read: another node looks at them."""
    found = []
    for version, content in rows:
        try:
            found.append(decode_completion(content, version))
        except CANNOT_READ:
            continue
    return found


def handlers(tables: Callable[[Any], CompletionTables]) -> Handlers:
    """Return the handlers of an engine with these tables."""

    async def open_all(tx: Any, operations: Sequence[ops.OpenCompletion]) -> list[Completion | None]:
        return [await ops.open_completion(tables(tx), one) for one in operations]

    async def change(tx: Any, operations: Sequence[ops.ChangeCompletion]) -> list[bool]:
        return [await ops.change_completion(tables(tx), one) for one in operations]

    async def find(tx: Any, operations: Sequence[ops.FindCompletions]) -> list[list[ops.Dated]]:
        return [await ops.find_completions(tables(tx), one) for one in operations]

    async def due(tx: Any, operations: Sequence[ops.FindDueCompletions]) -> list[ops.DueCompletions]:
        return [await ops.find_due(tables(tx), one) for one in operations]

    async def forget(tx: Any, operations: Sequence[ops.ForgetCompletions]) -> list[None]:
        for one in operations:
            await tables(tx).remove(one.digests)
        return [None] * len(operations)

    return {
        ops.OpenCompletion: open_all,
        ops.ChangeCompletion: change,
        ops.FindCompletions: find,
        ops.FindDueCompletions: due,
        ops.ForgetCompletions: forget,
    }


async def _show(tx: Any, query: ops.ShowCompletions, _: Meter) -> list[Completion]:
    rows = CompletionRows(tx)
    of_jobs = await rows.of_jobs(query.jobs) if query.jobs else ()
    return [*of_jobs, *await rows.with_digests(query.digests)]


READERS: Readers = {ops.ShowCompletions: _show}
