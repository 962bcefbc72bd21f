"""The values of the nodes slice: what a node says of itself, and what it may take of a function's jobs."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from mainspring.nodes.lease import LEASE


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself with each heartbeat, and what the others know of it.

    There is one row per term that has not ended. A node that leaves politely takes its row away; whoever recovers a dead
    node's jobs ends its term and takes the row away with it.
    """

    term: int
    """The number of this run of the node: never used before, higher than all earlier ones."""
    name: str
    """The node's name. A node that starts again has its name back and a new term, so two rows may have one name for a while."""
    counter: int
    """Rises with each heartbeat; nothing else shows that a node is alive."""
    lease: float = LEASE
    """After how many seconds without a heartbeat the others may take its jobs."""
    weight: int = 1
    """Its size beside the others', for the strategies that share by it; 0: takes only what the others leave."""
    capacity: int = 0
    """How many jobs its workers hold and would take now: those that run, and what they take in advance where jobs are brief. The
    face of a node calls it ``prefetch``."""
    slots: int | None = None
    """How many jobs its workers can run at a time; None: its version does not say."""
    running: int = 0
    """How many jobs it holds."""
    functions: tuple[bytes, ...] = ()
    """The functions that its workers serve."""
    loads: tuple[tuple[int, int], ...] = ()
    """Of each of these functions, how many workers serve it and how many jobs of it run."""
    foreground: tuple[int, ...] = ()
    """Of each of these functions, how many jobs the node has in memory alone; empty where an older version wrote the row."""
    address: str = ""
    """``host:port`` of its Gearman port, or empty."""
    version: str = ""
    """The version of Mainspring that it runs."""
    draining: bool = False
    """It takes no more jobs: it is about to leave, or somebody asked it to."""
    started_us: int = 0
    """When this term began; microseconds of wall time, for people to read."""
    cluster: str = ""
    """Who else knows whether this node lives (`nodes.store.Cluster.id`); empty: nobody, only its heartbeats tell."""
    lost: bool = False
    """That one says that it does not: it is dead now, however young its last heartbeat is. Nobody writes this of himself."""


class Share(msgspec.Struct, frozen=True):
    """What a node may claim of one function's pending jobs now.

    A job that has been due for less than ``overdue`` seconds may be claimed where its slot is among ``slots``, at most
    ``limit`` of those. One that has been due for longer may be claimed whatever its slot and whatever the limit, so that no
    rule strands it. The node's own room bounds both.

    It is a rule for manners, not for safety: what keeps two nodes from holding one job is the claim itself.
    """

    slots: frozenset[int] | None = None
    """Of the 0 to SLOTS - 1; None: all."""
    limit: int | None = None
    """None: as many as it has room for."""
    overdue: float = 0.0
    """Infinite in NOTHING alone."""

    def takes(self, slot: int, waited: float) -> bool:
        """Whether a job of this slot that has been due for ``waited`` seconds may be claimed, the limit aside."""
        return waited >= self.overdue or self.slots is None or slot in self.slots


EVERYTHING: Final = Share()
"""Whatever it has room for."""

NOTHING: Final = Share(slots=frozenset(), limit=0, overdue=math.inf)
"""Not one job: the node does not serve the function, or is draining."""
