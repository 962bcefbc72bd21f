"""What a node asks of its store: operations, each made of many rows of one kind.

An operation is the unit that travels: a service makes it from whatever one read of a connection brought, the commit queue
puts it in a group, the engine runs the group in one transaction and gives each operation an outcome of its own.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final

from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable


class Deferred(Enum):
    """What a group's outcomes have in place of one that the engine gives apart from them."""

    DEFERRED = "deferred"
    """The engine has called the group's ``answer`` for this operation, or will do so later, on the node's thread."""


DEFERRED: Final = Deferred.DEFERRED


class Operation:
    """One request to the store: what is asked, and nothing of who is told what becomes of it (`CommitQueue.put`).

    ``size`` is about how many bytes the operation holds in memory, ``rows`` how many rows it touches at most.
    """

    __slots__ = ("open", "overtakes", "rows", "size", "urgent")

    phase: ClassVar[Phase] = Phase.READ
    """When a group runs it."""
    reads: ClassVar[bool] = False
    """Whether it changes nothing: a group of such operations needs no transaction, and no fence keeps it out."""
    brings_jobs: ClassVar[bool] = False
    """Whether each of its rows is a job that it brings to be written; ``rows`` of others is only a bound."""

    def __init__(self) -> None:
        self.rows = 1
        self.size = 64
        self.urgent = True
        """Whether somebody waits for the outcome. What nobody waits for goes with the next group, or after `PATIENCE`."""
        self.open = True
        """Whether rows may still be added: not once the operation is part of a group."""
        self.overtakes = False
        """Whether it may run before operations that were put earlier, where these wait for a locked store. It changes nothing,
        and nobody relies on it for what they do: a barrier, or a question about what may be on its way, must not overtake."""


class Probe(Operation):
    """Write what a submission writes, and leave nothing of it: once it is committed, the store takes what is written.

    Outcome: None. Each engine goes as far as it can without a job: rights are looked at, pages are written.
    """

    __slots__ = ()

    phase = Phase.PROBE


def unknown(engine: str, kinds: Iterable[type]) -> TypeError:
    """Return the error of an engine that was asked for what it has no handler for: a defect, and never passed over in silence."""
    return TypeError(
        f"{engine} cannot do {', '.join(sorted(kind.__name__ for kind in kinds))}: it has no handler for it"
    )
