"""Transactions that read first and write later; the multi that writes checks the versions that were read.

They are for rare operations, and for those that depend on other writes. Hot paths (new tasks, successes) write blind and rely
on version checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Node, Write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.journal import Count
    from mainspring.engines.zookeeper.tree import Change, Tree

WRITE_ATTEMPTS: Final = 1000
"""Attempts of a transaction; after that a defect is more likely than conflicts with other writers."""


class OvertakenError(Exception):
    """The reads of an attempt are inconsistent because of concurrent writes. The attempt has to be repeated."""


class Transaction:
    """One attempt: it stores the versions of reads, and collects writes.

    For a missing node only its creation is guarded: if another node creates it first, the attempt fails. Children are not
    guarded at all.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._read: dict[str, Node | None] = {}
        self._written: dict[str, Node | None] = {}
        self._unchecked: set[str] = set()
        """Nodes that were read and may change: they are guarded otherwise, or their changes do no harm."""
        self._expected: dict[str, int] = {}
        self._first: dict[str, Change] = {}
        """The change of each path, in the order of the first writes."""
        self._undone: set[str] = set()
        """Nodes that were created and deleted again: both are written, since the creation guards that the node was missing."""
        self._counts: list[Count] = []

    # ---- reading ----

    async def get(self, path: str) -> Node | None:
        """Return a node as this transaction sees it."""
        return (await self.get_many([path]))[0]

    async def get_many(self, paths: Sequence[str], *, check: bool = True) -> list[Node | None]:
        """Return several nodes; without ``check``, other nodes may change those that this transaction does not write."""
        missing = [path for path in dict.fromkeys(paths) if path not in self._written and path not in self._read]
        if missing:
            found = await self.tree.get_many(missing)
            self._read.update(zip(missing, found, strict=True))
            self._unchecked.update(missing)
        if check:
            self._unchecked.difference_update(paths)
        return [self._written[path] if path in self._written else self._read[path] for path in paths]

    def expect(self, path: str, version: int) -> None:
        """Require that a node has a version that was read before."""
        self._expected[path] = version

    # ---- writing ----

    def create(self, path: str, data: bytes) -> None:
        """Create a missing node."""
        before = self._read.get(path)
        self._first[path] = Create(path, data) if before is None else Write(path, data, before.version)
        self._written[path] = Node(data, 0, 0, 0, 0)
        self._undone.discard(path)

    def write(self, path: str, data: bytes) -> None:
        """Replace the data of a node that was read."""
        self.create(path, data)

    def delete(self, path: str) -> None:
        """Delete an existing node that was read or written."""
        before = self._read.get(path)
        if before is None:
            self._undone.add(path)
        else:
            self._first[path] = Delete(path, before.version)
        self._written[path] = None

    def touch(self, path: str) -> None:
        """Write a node with the data that was read: of two transactions that do so, only one commits."""
        if path not in self._first:
            node = self._read[path]
            assert node is not None, path
            self._first[path] = Write(path, node.data, node.version)

    def include(self, change: Change) -> None:
        """Add a change of a node that this transaction does not use otherwise."""
        self._first[change.path] = change

    def mark(self, path: str) -> None:
        """Create an index node without data for a record that is written too; the index node is not read."""
        if isinstance(self._first.get(path), Delete):
            del self._first[path]
        else:
            self._first[path] = Create(path)

    def unmark(self, path: str) -> None:
        """Delete an index node that `mark` has created, in this transaction or before."""
        if isinstance(self._first.get(path), Create):
            del self._first[path]
        else:
            self._first[path] = Delete(path)

    def count(self, function: bytes, state: int, priority: int, number: int) -> None:
        """Add to a count."""
        self._counts.append((function, state, priority, number))

    def entry(self) -> Entry | None:
        """Return the entry to write, with checks of the nodes that were only read; None if there is nothing to write."""
        if not self._first:
            return None
        checks = [
            Check(path, node.version)
            for path, node in self._read.items()
            if node is not None and path not in self._first and path not in self._unchecked
        ]
        checks += [Check(path, version) for path, version in self._expected.items() if path not in self._first]
        return Entry([*checks, *self._first.values(), *map(Delete, sorted(self._undone))], self._counts)
