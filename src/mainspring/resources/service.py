"""The definitions of resources, as a node declares and changes them in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.callbacks import CallInProgress, shielded
from mainspring.clock import to_us
from mainspring.errors import ConflictError
from mainspring.resources import definition_store
from mainspring.resources.definition_store import SaveResource, StoredResource, UnreadableResource
from mainspring.storage.reads import REMEDY

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.access.caller import Act
    from mainspring.clock import Clock
    from mainspring.resources.holds import Resource
    from mainspring.storage.commit_queue import CommitQueue

    Change = Callable[[StoredResource, int], StoredResource]
    """Takes the stored definitions and the wall time in microseconds; returns the new ones."""


class Resources:
    """Writes definitions. It remembers those that it has written or met, so that a repeated declaration costs nothing.

    ``changed`` is called with the key of a resource that has other slots now.
    """

    def __init__(self, commits: CommitQueue, clock: Clock, changed: Callable[[str], None]) -> None:
        self._commits = commits
        self._clock = clock
        self._changed = changed
        self._stored: dict[str, StoredResource] = {}

    def declare(self, name: str, resource: Resource) -> None:
        """Store the definition that a worker of this node declares for a resource, given by its key."""
        stored = self._stored.get(name)
        if stored is not None and not definition_store.is_stale(stored, resource, to_us(self._clock.wall())):
            return
        declaring = self._change(name, lambda stored, now_us: definition_store.declared(stored, resource, now_us), None)
        CallInProgress(declaring, lambda _: None, lambda _: None)

    def managed(self) -> list[str]:
        """Return the keys of the managed resources that workers of this node have declared."""
        return [name for name, one in self._stored.items() if any(other.resource.managed for other in one.declared)]

    @shielded
    async def change(
        self, name: str, change: Change, act: Callable[[StoredResource, StoredResource], Act] | None = None
    ) -> StoredResource:
        """Change the definitions of a resource. ``act`` returns the act for those before and after.

        Raises ConflictError for definitions that this node cannot read, StoreError, and what ``change`` raises.
        """
        return await self._change(name, change, act)

    async def _change(
        self, name: str, change: Change, act: Callable[[StoredResource, StoredResource], Act] | None
    ) -> StoredResource:
        while True:
            before = self._stored.get(name) or StoredResource(name)
            if isinstance(before, UnreadableResource):  # the write would lose what this version cannot read
                raise ConflictError(f"this version of Mainspring cannot read the resource; {REMEDY}")
            wanted = change(before, to_us(self._clock.wall()))
            operation = SaveResource(wanted, before)
            if act is not None:
                operation.act = act(before, wanted)
            stored: StoredResource = await self._commits.committed(operation)
            self._stored[name] = stored
            if operation.wrote(stored):
                self._changed(name)
                return stored
            # Another change was first: make this one of its result.
