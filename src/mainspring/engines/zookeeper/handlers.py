"""Which handler each kind of operation has, and in which order a group runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from mainspring.engines.zookeeper import (
    cancelling,
    claiming,
    probing,
    queries,
    settling,
    submitting,
    timing,
    waiting,
)
from mainspring.engines.zookeeper.master import recovering
from mainspring.engines.zookeeper.schedules import handlers as schedules
from mainspring.engines.zookeeper.session import Session
from mainspring.errors import StoreError, StoreFencedError
from mainspring.jobs.store import ENDING, PHASES, Settle, Submit, Watchers
from mainspring.queries.jobs import ListJobs
from mainspring.queries.schedules import READING as SCHEDULE_QUERIES
from mainspring.schedules.store import READING as SCHEDULES
from mainspring.schedules.store import WRITING
from mainspring.storage.operation import DEFERRED, Operation, Probe

Handler = Callable[[Session, Sequence[Any]], Awaitable[Sequence[Any]]]
"""Takes all operations of its kind that a group has, in their order, and returns their outcomes."""

HANDLERS: Final[dict[type[Operation], Handler]] = {
    **recovering.HANDLERS,
    **settling.HANDLERS,
    **submitting.HANDLERS,
    **cancelling.HANDLERS,
    **waiting.HANDLERS,
    **timing.HANDLERS,
    **queries.HANDLERS,
    **claiming.HANDLERS,
    **schedules.HANDLERS,
    Probe: probing.probe,
}
ORDER: Final[tuple[type[Operation], ...]] = (
    *ENDING,
    *WRITING,
    *PHASES[len(ENDING) :],
    ListJobs,
    *SCHEDULES,
    *SCHEDULE_QUERIES,
)
_USUAL: Final = frozenset({Settle, Submit})


def check(group: Sequence[Operation]) -> None:
    """Raise TypeError for what this store cannot do: limits, pauses and keys of functions among it."""
    for operation in group:
        if type(operation) not in HANDLERS:
            raise TypeError(f"ZooKeeper cannot do {type(operation).__name__}: it has no handler for it")


async def handle(session: Session, group: Sequence[Operation]) -> list[Any]:
    """Run the operations of a group; returns their outcomes in the group's order.

    Where a node's term has ended before anything was written, the
    whole group fails with StoreFencedError.
    """
    places: dict[type[Operation], list[int]] = {}
    for place, operation in enumerate(group):
        places.setdefault(type(operation), []).append(place)
    outcomes: list[Any] = [None] * len(group)

    async def run(kind: type[Operation]) -> None:
        answers: Sequence[Any]
        try:
            answers = await HANDLERS[kind](session, [group[place] for place in places[kind]])
        except StoreError as error:
            answers = [error] * len(places[kind])  # what other kinds have written has happened
        for place, answer in zip(places[kind], answers, strict=True):
            outcomes[place] = answer

    if Watchers in places:
        await run(Watchers)
        _answer(group, outcomes, places.pop(Watchers))
    kinds = sorted(places, key=lambda kind: ORDER.index(kind) if kind in ORDER else len(ORDER))
    if _USUAL.issuperset(kinds):
        # What they write goes into one multi, for they are asked in one turn of the loop.
        await asyncio.gather(*map(run, kinds))
    else:
        for kind in kinds:
            await run(kind)
    if outcomes and all(isinstance(outcome, StoreFencedError) for outcome in outcomes):
        raise outcomes[0]
    return outcomes


def _answer(group: Sequence[Operation], outcomes: list[Any], places: Sequence[int]) -> None:
    """Answer questions before the rest of the group: whoever waits for a job is told how far it was before it is settled."""
    for place in places:
        if not isinstance(outcomes[place], StoreError):
            group[place].done(outcomes[place])
            outcomes[place] = DEFERRED
