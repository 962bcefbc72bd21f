"""Operations: the requests of a node to its store, each with many rows of one kind.

A service builds an operation from one read of a connection, the commit queue adds it to a group, and the engine runs the group in
one transaction and returns an outcome for each operation.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final

from mainspring.storage.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable


class Deferred(Enum):
    """The outcome, in a group's outcomes, of an operation that the engine answers separately."""

    DEFERRED = "deferred"
    """The engine has called the group's ``answer`` for this operation, or will call it later, on the node's thread."""


DEFERRED: Final = Deferred.DEFERRED


class Operation:
    """One request to the store. The functions that receive its outcome are given to `CommitQueue.put`.

    ``size`` is about how many bytes the operation holds in memory; ``rows`` is the largest number of rows that it may touch.
    """

    __slots__ = ("open", "overtakes", "rows", "size", "urgent")

    phase: ClassVar[Phase] = Phase.READ
    """The phase of a group in which it runs."""
    reads: ClassVar[bool] = False
    """Whether it changes nothing: a group of such operations needs no transaction, and no fence rejects it."""
    brings_jobs: ClassVar[bool] = False
    """Whether each of its rows is a job to be written; for other operations ``rows`` is only a bound."""
    is_request: ClassVar[bool] = False
    """Whether a request of a client has brought it, or it goes on with one: the node's own work makes way for such operations.
    Starts and ends of jobs do not count, because they may follow from the node's own work, such as fires of schedules."""
    acts: ClassVar[bool] = False
    """Whether it may be an act of a caller that the audit records (`access.audit.Acting`)."""

    keyed: ClassVar[bool] = False
    """Whether it has an attribute ``keyed_act``: the key of the client's request, or None (`access.once.KeyedAct`)."""

    def __init__(self) -> None:
        self.rows = 1
        self.size = 64
        self.urgent = True
        """Whether a caller waits for the outcome. Other operations go with the next group, or after `GATHER_DELAY`."""
        self.open = True
        """Whether rows may still be added: only until the operation is part of a group."""
        self.overtakes = False
        """Whether it may run before earlier operations that wait for a locked store. Such an operation changes nothing, and no
        caller relies on its order: a barrier, or a query for uncommitted changes, must not overtake."""


class Probe(Operation):
    """Write what a submission writes and undo it. If the probe is committed, the store accepts writes.

    Outcome: None. Each engine goes as far as it can without a job: it checks permissions and writes pages.
    """

    __slots__ = ()

    phase = Phase.PROBE


def unknown(engine: str, kinds: Iterable[type]) -> TypeError:
    """Return the error of an engine that has no handler for an operation or a query, which is a defect."""
    return TypeError(
        f"{engine} cannot do {', '.join(sorted(kind.__name__ for kind in kinds))}: it has no handler for it"
    )
