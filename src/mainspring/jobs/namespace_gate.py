"""The first use of a namespace at a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring import namespaces
from mainspring.errors import UsageError

if TYPE_CHECKING:
    from mainspring.jobs.listeners import Listeners

NOT_KEPT: Final = (
    f"this node's store has the namespace {namespaces.DEFAULT!r} alone: SQLite, PostgreSQL and memory keep others, and ZooKeeper"
    " does not"
)


class NamespaceGate:
    """Prepares a node for namespaces; ``kept`` is whether the store keeps others than ``default``."""

    def __init__(self, listeners: Listeners, *, kept: bool) -> None:
        self._listeners = listeners
        self._kept = kept

    def enter(self, namespace: str) -> None:
        """Prepare for jobs, clients and workers of a namespace. Raises UsageError if that is impossible."""
        if namespace == namespaces.DEFAULT:
            return
        namespaces.check(namespace)
        if not self._kept:
            raise UsageError(NOT_KEPT)
        self._listeners.expect_namespaces()
