"""Events about nodes and workers.

Those about nodes are the begins of their terms, and the ends that they have not written themselves. They belong to no namespace,
as acts on nodes do.
"""

from __future__ import annotations

from typing import Final

from mainspring.event_log.interests import NewEvent
from mainspring.event_log.types import NODE_DEAD, NODE_JOINED, WORKER_LOST, MemberFields
from mainspring.namespaces import ANY

TYPES: Final = frozenset({NODE_JOINED, NODE_DEAD})

SILENT: Final = "it has shown no sign of life"
LATE: Final = "it could not renew its lease in time"
REMOVED: Final = "an operator has removed it"
LEFT_OPEN: Final = "it has ended without closing its store"


def joined(node: str) -> NewEvent:
    """Return the event of a node that begins a term."""
    return NewEvent(NODE_JOINED, ANY, "", node, 0, MemberFields())


def dead(node: str, why: str, *, jobs: int, by: str = "") -> NewEvent:
    """Return the event of a node whose term ended without its goodbye. ``by`` is the node that has ended the term."""
    return NewEvent(NODE_DEAD, ANY, "", node, 0, MemberFields(node=by, jobs=jobs, why=why))


def worker_lost(worker: str, why: str, *, namespace: str, node: str, jobs: int) -> NewEvent:
    """Return the event of a worker that was lost to a node with a number of jobs."""
    return NewEvent(WORKER_LOST, namespace, "", worker, 0, MemberFields(node=node, jobs=jobs, why=why))
