"""The values of the nodes slice: the row of a node, and its share of a function's jobs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.nodes.lease import LEASE

if TYPE_CHECKING:
    from collections.abc import Iterable


class WorkerRow(msgspec.Struct, frozen=True, array_like=True):
    """A worker that is connected to a node. Older versions write fewer fields: append new ones."""

    number: int
    """Unique among all that have connected to this node since its start."""
    name: str
    slots: int | None
    """How many jobs it runs at a time; None: it has not declared it."""
    running: int
    """How many jobs it has."""
    extended: bool
    """Whether it uses the protocol extension."""
    draining: bool
    stops: bool
    """Whether it stops on request."""
    connected_us: int
    version: str = ""
    """Its version of Mainspring; empty if unknown."""
    namespaces: tuple[str, ...] = ()
    """The namespaces of its functions."""
    silent_us: int = 0
    """Since when it has sent nothing although it should; 0 if it is not silent."""


class Recovery(msgspec.Struct, frozen=True, array_like=True):
    """Jobs of ended terms that a node gave back to all nodes. Older versions write fewer fields: append new ones."""

    terms: tuple[int, ...]
    names: tuple[str, ...]
    """The names of the nodes of these terms; empty texts for unknown ones."""
    jobs: int
    at_us: int
    """Wall time in microseconds."""


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node's description in the store, which each of its heartbeats writes and all nodes read.

    Each term that has not ended has one row. A node that stops gracefully deletes its row. A node that recovers a dead one ends
    its term and deletes its row.
    """

    term: int
    """The number of this run of the node: unique, and higher than all earlier ones."""
    name: str
    """The node's name. A restarted node has the same name and a new term, so two rows may have one name for a while."""
    counter: int
    """Rises with each heartbeat, and is the only sign of life."""
    lease: float = LEASE
    """Seconds without a heartbeat after which other nodes may recover its jobs."""
    weight: int = 1
    """Its size relative to others, for strategies that use it; 0: it claims only jobs that the others leave."""
    capacity: int = 0
    """How many jobs its workers hold and would accept now: running jobs, and brief jobs that they accept in advance. The
    node's API calls it ``prefetch``."""
    slots: int | None = None
    """How many jobs its workers can run at the same time; None: an older version wrote the row."""
    running: int = 0
    """How many jobs it holds."""
    functions: tuple[bytes, ...] = ()
    """The functions that its workers serve."""
    loads: tuple[tuple[int, int], ...] = ()
    """For each of these functions, how many workers serve it and how many of its jobs run."""
    foreground: tuple[int, ...] = ()
    """For each of these functions, how many jobs exist only in the node's memory; empty if an older version wrote the row."""
    address: str = ""
    """``host:port`` of its Gearman port, or empty."""
    version: str = ""
    """The version of Mainspring that it runs."""
    draining: bool = False
    """It claims no more jobs: it is about to stop, or an operator drains it."""
    started_us: int = 0
    """When this term began; microseconds of wall time, for people to read."""
    cluster: str = ""
    """The cluster that also tracks this node (`nodes.store.Cluster.id`); empty: none, only heartbeats do."""
    workers: tuple[WorkerRow, ...] = ()
    """Its first `WORKERS_LIMIT` workers."""
    lost: bool = False
    """Its session in that cluster has ended: it is dead now, however recent its last heartbeat is. Readers set it."""
    strategy: str = ""
    """The rule by which it shares stored jobs; empty: an older version wrote the row."""
    recoveries: tuple[Recovery, ...] = ()
    """The last ones since its start, the oldest first; empty also if an older version wrote the row."""
    mail: bool = False
    """On PostgreSQL: it takes messages from the store's mail; false: an older version wrote the row."""


def running_by_function(rows: Iterable[NodeRow]) -> dict[bytes, int]:
    """Return how many jobs run at some nodes, by function."""
    running: dict[bytes, int] = {}
    for row in rows:
        for name, (_, number) in zip(row.functions, row.loads, strict=False):
            running[name] = running.get(name, 0) + number
    return running


WORKERS_LIMIT: Final = 200
"""Workers in the row of a node, so that a heartbeat stays small."""


class Share(msgspec.Struct, frozen=True):
    """The pending jobs of one function that a node may claim now.

    It may claim up to ``limit`` jobs whose slots are among ``slots``. It may claim any number of jobs that have been due for
    ``overdue`` seconds, whatever their slots, so that no rule strands them. The free places of the node's workers bound both.

    A share balances load. It is not needed for safety: the claim itself prevents that two nodes hold one job.
    """

    slots: frozenset[int] | None = None
    """Numbers from 0 to SLOTS - 1; None: all."""
    limit: int | None = None
    """None: no limit."""
    overdue: float = 0.0
    """In seconds; infinite only in NOTHING."""

    def includes(self, slot: int, waited: float) -> bool:
        """Return whether the share has a job of this slot that has been due for ``waited`` seconds, without the limit."""
        return waited >= self.overdue or self.slots is None or slot in self.slots


EVERYTHING: Final = Share()
"""All jobs for which the node has room."""

NOTHING: Final = Share(slots=frozenset(), limit=0, overdue=math.inf)
"""No jobs: the node does not serve the function, or is draining."""
