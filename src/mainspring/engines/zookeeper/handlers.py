"""The handlers of all kinds of operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.access.audit import RecordActs
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
from mainspring.storage.operation import Probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.session import Handlers, Session


async def drop_acts(session: Session, operations: Sequence[RecordActs]) -> list[None]:
    """Keep no audit."""
    del session
    return [None] * len(operations)


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
    RecordActs: drop_acts,
}
