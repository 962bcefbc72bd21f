"""Reading first and writing then, as if nobody else were there: what was read is checked in the multi that writes.

For what is rare, or depends on what others have written. What is frequent (new tasks, successes) knows what it expects, and
makes its entries without reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.engines.zookeeper.committer import Entry
from mainspring.engines.zookeeper.tree import Check, Create, Delete, Node, Write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.engines.zookeeper.journal import Count
    from mainspring.engines.zookeeper.tree import Change, Tree

PATIENCE: Final = 1000
"""Attempts after which it is a defect, not other people's writing, that keeps one from succeeding."""


class OvertakenError(Exception):
    """What an attempt has read was not all there at one moment: somebody writes it. It is to be repeated."""


class Transaction:
    """One attempt: reads remember versions, and writes are gathered.

    Of a node that was not there only its creation is guarded: where somebody else creates it first, the attempt fails. Children
    are not guarded at all.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._read: dict[str, Node | None] = {}
        self._written: dict[str, Node | None] = {}
        self._unchecked: set[str] = set()
        """What was read and may change: something else guards it, or nobody minds."""
        self._expected: dict[str, int] = {}
        self._first: dict[str, Change] = {}
        """What has to happen to each path, in the order in which they were written first."""
        self._undone: set[str] = set()
        """What was created here and deleted again: both are written, for the creation guards that it was not there."""
        self._counts: list[Count] = []

    # ---- reading ----

    async def get(self, path: str) -> Node | None:
        """Return a node as this transaction sees it."""
        return (await self.get_many([path]))[0]

    async def get_many(self, paths: Sequence[str], *, check: bool = True) -> list[Node | None]:
        """Return several nodes; without ``check``, others may write them meanwhile, unless they are written here."""
        missing = [path for path in dict.fromkeys(paths) if path not in self._written and path not in self._read]
        if missing:
            found = await self.tree.get_many(missing)
            self._read.update(zip(missing, found, strict=True))
            self._unchecked.update(missing)
        if check:
            self._unchecked.difference_update(paths)
        return [self._written[path] if path in self._written else self._read[path] for path in paths]

    def expect(self, path: str, version: int) -> None:
        """Demand that a node has a version that is known from before."""
        self._expected[path] = version

    # ---- writing ----

    def create(self, path: str, data: bytes) -> None:
        """Create a node that is not there."""
        before = self._read.get(path)
        self._first[path] = Create(path, data) if before is None else Write(path, data, before.version)
        self._written[path] = Node(data, 0, 0, 0, 0)
        self._undone.discard(path)

    def write(self, path: str, data: bytes) -> None:
        """Replace the data of a node that was read."""
        self.create(path, data)

    def delete(self, path: str) -> None:
        """Delete a node that was read or written, and is there."""
        before = self._read.get(path)
        if before is None:
            self._undone.add(path)
        else:
            self._first[path] = Delete(path, before.version)
        self._written[path] = None

    def touch(self, path: str) -> None:
        """Write what was read, so that of two who do this only one can be right."""
        if path not in self._first:
            node = self._read[path]
            assert node is not None, path
            self._first[path] = Write(path, node.data, node.version)

    def include(self, change: Change) -> None:
        """Make a change of a node that nothing else here is about, whatever is there."""
        self._first[change.path] = change

    def mark(self, path: str) -> None:
        """Create a node without data that stands for something that is written here too, and is not read for that."""
        if isinstance(self._first.get(path), Delete):
            del self._first[path]
        else:
            self._first[path] = Create(path)

    def unmark(self, path: str) -> None:
        """Delete what `mark` has created, here or before."""
        if isinstance(self._first.get(path), Create):
            del self._first[path]
        else:
            self._first[path] = Delete(path)

    def count(self, function: bytes, state: int, priority: int, number: int) -> None:
        """Add to a count."""
        self._counts.append((function, state, priority, number))

    def entry(self) -> Entry | None:
        """Return what is to be written, with checks of all that was only read; None where nothing is."""
        if not self._first:
            return None
        checks = [
            Check(path, node.version)
            for path, node in self._read.items()
            if node is not None and path not in self._first and path not in self._unchecked
        ]
        checks += [Check(path, version) for path, version in self._expected.items() if path not in self._first]
        return Entry([*checks, *self._first.values(), *map(Delete, sorted(self._undone))], self._counts)
