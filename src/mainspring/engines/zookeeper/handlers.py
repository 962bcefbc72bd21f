"""Which handler each kind of operation has."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

from mainspring.engines.zookeeper import (
    cancelling,
    claiming,
    queries,
    recovering,
    settling,
    submitting,
    timing,
    waiting,
)
from mainspring.engines.zookeeper.claiming import OpenClaim
from mainspring.errors import StoreError, StoreFencedError
from mainspring.jobs.store import Settle, Submit
from mainspring.storage.operation import DEFERRED, Operation, Probe
from mainspring.storage.phases import Phase
from mainspring.storage.plan import plan_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.session import Handlers, Session, Slice
    from mainspring.storage.engine import Answer


async def probe(session: Session, operations: Sequence[Probe]) -> list[None]:
    """Write the node's journal, as each batch does, with nothing else in it; see ``Probe``."""
    await session.write()
    return [None] * len(operations)


HANDLERS: Final[Handlers] = {
    **recovering.HANDLERS,
    **settling.HANDLERS,
    **submitting.HANDLERS,
    **cancelling.HANDLERS,
    **waiting.HANDLERS,
    **timing.HANDLERS,
    **queries.HANDLERS,
    **claiming.HANDLERS,
    Probe: probe,
}
_USUAL: Final = frozenset({Settle, Submit})


class Runner:
    """Runs groups, with the slices that are registered."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._handlers = dict(HANDLERS)
        for one in slices:
            self._handlers |= one.handlers

    def check(self, group: Sequence[Operation]) -> None:
        """Raise TypeError for what this store cannot do: limits, pauses and keys of functions among it."""
        for operation in group:
            if type(operation) not in self._handlers:
                raise TypeError(f"ZooKeeper cannot do {type(operation).__name__}: it has no handler for it")

    async def handle(self, session: Session, group: Sequence[Operation], answer: Answer) -> list[Any]:
        """Run the operations of a group; returns their outcomes in the group's order.

        Where a node's term has ended before anything was written, the
        whole group fails with StoreFencedError.
        """
        plan = plan_of(group)
        outcomes: list[Any] = [None] * len(group)

        async def run(kind: type[Operation]) -> None:
            placed = plan[kind]
            answers: Sequence[Any]
            try:
                answers = await self._handlers[kind](session, [operation for _, operation in placed])
            except StoreError as error:
                answers = [error] * len(placed)  # what other kinds have written has happened
            for (place, _), outcome in zip(placed, answers, strict=True):
                if isinstance(outcome, OpenClaim):
                    outcome.then(functools.partial(answer, place))
                    outcomes[place] = DEFERRED
                elif kind.phase is Phase.WATCH and not isinstance(outcome, StoreError):
                    answer(place, outcome)  # whoever waits for a job learns how far it was before it is settled
                    outcomes[place] = DEFERRED
                else:
                    outcomes[place] = outcome

        kinds = list(plan)
        if kinds and kinds[0].phase is Phase.WATCH:
            await run(kinds.pop(0))
        if _USUAL.issuperset(kinds):
            # What they write goes into one multi, for they are asked in one turn of the loop.
            await asyncio.gather(*map(run, kinds))
        else:
            for kind in kinds:
                await run(kind)
        if outcomes and all(isinstance(outcome, StoreFencedError) for outcome in outcomes):
            raise outcomes[0]
        return outcomes
