"""The resources slice on SQLite, and claims in turns of keys.

There are no leased tokens: a file has one node, which has all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.engines.sqlite import rows
from mainspring.engines.sqlite.statements import SQL
from mainspring.jobs import store as job_ops
from mainspring.jobs.model import Job, State
from mainspring.resources import store as ops
from mainspring.resources.model import FunctionLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mainspring.engines.sqlite.transaction import Transaction
    from mainspring.storage.operation import Operation

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FunctionLimits).decode
_PENDING, _LEASED = int(State.PENDING), int(State.LEASED)


def list_limits(tx: Transaction, operations: Sequence[ops.ListLimits]) -> list[list[FunctionLimits]]:
    """Read what is said of functions; see ``ListLimits``."""
    return [[_decode(said) for _, said in tx.cursor.execute(SQL["limits"])] for _ in operations]


def save_limits(tx: Transaction, operations: Sequence[ops.SaveLimits]) -> list[FunctionLimits]:
    """Write what is said of a function; see ``SaveLimits``."""
    return [_save_limits(tx, operation.said) for operation in operations]


def _save_limits(tx: Transaction, said: FunctionLimits) -> FunctionLimits:
    for version, stored in tx.cursor.execute(SQL["limits_of"], (said.function,)):
        if version != said.version:
            return _decode(stored)
    said = msgspec.structs.replace(said, version=said.version + 1)
    tx.cursor.execute(SQL["save_limits"], (said.function, said.version, _encode(said)))
    return said


# ---- claims ----


def claim_by_key(tx: Transaction, operations: Sequence[job_ops.ClaimByKey]) -> list[job_ops.ClaimedByKey]:
    """Lease due jobs in turns of their keys; see ``ClaimByKey``."""
    return [_claim_by_key(tx, operation) for operation in operations]


def _claim_by_key(tx: Transaction, operation: job_ops.ClaimByKey) -> job_ops.ClaimedByKey:
    function = tx.functions.numbers.get(("default", operation.function))
    claimed: list[Job] = []
    after = list(operation.after)
    more = False
    if function is None:
        return job_ops.ClaimedByKey([], operation.after, more)
    for priority in range(3):
        for met, key in enumerate(_keys(tx, function, priority, after[priority])):
            if len(claimed) >= operation.limit or met >= job_ops.KEYS_AT_MOST:
                more = True
                break
            if key not in operation.enough:
                most = min(operation.limit - len(claimed), operation.per_key)
                values = (operation.term, function, priority, key or None, most)
                of_key = rows.stored(tx.cursor.execute(SQL["claim_of_key"], values), tx.functions.names)
                of_key.sort(key=lambda job: job.id)
                claimed += of_key
                tx.count(function, _PENDING, priority, -len(of_key))
                tx.count(function, _LEASED, priority, len(of_key))
            after[priority] = key
    more = more or len(claimed) >= operation.limit
    return job_ops.ClaimedByKey(claimed, (after[0], after[1], after[2]), more)


def _keys(tx: Transaction, function: int, priority: int, after: bytes | None) -> Iterator[bytes]:
    """Give the keys that have jobs, from the first behind one round to that one; the empty one also where it has none."""
    yield from _rising(tx, function, priority, after)
    if after is not None:
        for key in _rising(tx, function, priority, None):
            if key > after:
                return
            yield key


def _rising(tx: Transaction, function: int, priority: int, after: bytes | None) -> Iterator[bytes]:
    if after is None:
        yield b""
    key = after or b""
    while found := list(tx.cursor.execute(SQL["next_key"], (function, priority, key))):
        ((key,),) = found
        yield key


HANDLERS: dict[type[Operation], Callable[[Transaction, Sequence[Any]], list[Any]]] = {
    ops.ListLimits: list_limits,
    ops.SaveLimits: save_limits,
    job_ops.ClaimByKey: claim_by_key,
}
