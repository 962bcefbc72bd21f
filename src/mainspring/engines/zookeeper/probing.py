"""Finding out whether the ensemble takes what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.session import Session
    from mainspring.storage.operation import Probe


async def probe(session: Session, operations: Sequence[Probe]) -> list[None]:
    """Write the node's journal, as each batch does, with nothing else in it."""
    await session.write()
    return [None] * len(operations)
