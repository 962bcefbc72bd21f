"""The jobs slice on PostgreSQL: a handler for each kind of operation, called with all of a group's operations of that kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.postgres import (
    cancelling,
    changing,
    claiming,
    inbox,
    keys,
    partitions,
    queries,
    settling,
    submitting,
    timing,
    waiting,
)
from mainspring.jobs import store as ops

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mainspring.engines.postgres.transaction import Transaction
    from mainspring.storage.operation import Operation

    Handler = Callable[[Transaction, Sequence[Any]], Awaitable[list[Any]]]

HANDLERS: Final[dict[type[Operation], Handler]] = {
    ops.Recover: settling.recover,
    ops.Settle: settling.settle,
    ops.Assign: claiming.assign,
    ops.Cancel: cancelling.cancel,
    ops.Redrive: cancelling.redrive,
    ops.Reschedule: changing.reschedule,
    ops.DeleteEnded: changing.delete_ended,
    ops.Sweep: partitions.sweep,
    ops.Wake: timing.wake,
    ops.DrainInbox: inbox.drain_inbox,
    ops.Submit: submitting.submit,
    ops.SubmitOnce: submitting.submit,
    ops.Unsubscribe: waiting.leave,
    ops.Claim: claiming.claim,
    ops.ClaimByKey: keys.claim_by_key,
    ops.Subscribe: waiting.wait,
    ops.Find: queries.find,
    ops.FindUnique: queries.find_unique,
    ops.FindSubscribers: waiting.find_subscribers,
    ops.ReadBacklog: queries.read_backlog,
    ops.Count: queries.count,
    ops.CountLive: queries.count_live,
}
