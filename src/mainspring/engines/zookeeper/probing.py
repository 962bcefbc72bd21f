"""Finding out whether the ensemble takes what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.zookeeper.committer import Entry
from mainspring.errors import StoreFencedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.session import Session
    from mainspring.storage.operation import Probe


async def probe(session: Session, operations: Sequence[Probe]) -> list[None]:
    """Write the node's journal, as each batch does, with nothing else in it."""
    (verdict,) = await session.committer.commit([Entry(())])
    if verdict is not None:
        raise StoreFencedError(f"term {session.term} was ended by another node")
    return [None] * len(operations)
