"""Numbers of functions, and nodes of terms, as rows store them: each is read once and cached.

In a namespace other than ``default``, the stored name of a function is its whole key. Nodes of older versions take the name for
the function, and so they never take it for one of the default namespace: they count its jobs apart, recover them, and fire its
schedules, but none of their workers has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring import namespaces
from mainspring.engines.postgres.statements import load
from mainspring.ids import TERM_SPAN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpg import Connection, Record

_SQL = load("engine.sql")

CACHE_LIMIT = 20_000
"""The most functions whose numbers are cached between groups: any client can name new ones."""


def columns(key: bytes) -> tuple[str, bytes]:
    """Return the namespace and the name under which a function is stored."""
    namespace, name = namespaces.split(key)
    return (namespace, name) if namespace == namespaces.DEFAULT else (namespace, key)


def key_of(namespace: str, name: bytes) -> bytes:
    """Return the key of a stored function."""
    return namespaces.key(namespace, name) if namespace == namespaces.DEFAULT else name


class Functions:
    """A cache of the numbers of functions, which are given by their keys, in both directions.

    A number that a group allocates is final once the group is committed; until then `rolled_back` removes it.
    """

    def __init__(self) -> None:
        self._connection: Connection[Record]
        self.numbers: dict[bytes, int] = {}
        self.keys: dict[int, bytes] = {}
        self._allocated: list[int] = []

    def use(self, connection: Connection[Record]) -> None:
        """Read on a connection from now on: that of the group under way."""
        self._connection = connection

    async def ensure(self, keys: Iterable[bytes]) -> None:
        """Load the numbers of these functions, and allocate those that are missing."""
        missing = await self._load(keys)
        if not missing:
            return
        rows = await self._connection.fetch(_SQL["functions_new"], *_columns(missing))
        self._allocated += [row[0] for row in rows]
        self._cache(rows)
        # A new snapshot sees the numbers that another node has allocated since the first read.
        missing = await self._load(missing)
        assert not missing, "functions are never removed"

    async def load(self, keys: Iterable[bytes]) -> None:
        """Load the numbers of these functions, as far as they have one."""
        await self._load(keys)

    async def load_keys(self, numbers: Iterable[int]) -> None:
        """Load the keys for these numbers: rows of other nodes' jobs carry them."""
        missing = set(numbers) - self.keys.keys()
        if missing:
            self._cache(await self._connection.fetch(_SQL["functions_numbered"], sorted(missing)))

    async def _load(self, keys: Iterable[bytes]) -> list[bytes]:
        missing = sorted(set(keys) - self.numbers.keys())
        if missing:
            self._cache(await self._connection.fetch(_SQL["functions_named"], *_columns(missing)))
            missing = [key for key in missing if key not in self.numbers]
        return missing

    def _cache(self, rows: Iterable[Record]) -> None:
        for number, namespace, name in rows:
            key = key_of(namespace, name)
            self.numbers[key] = number
            self.keys[number] = key

    def committed(self) -> None:
        """Keep the numbers that the group allocated."""
        self._allocated.clear()
        if len(self.keys) > CACHE_LIMIT:
            self.keys.clear()
            self.numbers.clear()

    def rolled_back(self) -> None:
        """Remove the numbers that the group allocated: these functions will get others."""
        for number in self._allocated:
            del self.numbers[self.keys.pop(number)]
        self._allocated.clear()


class Nodes(dict[int, str]):
    """A cache of the nodes of terms; a job's handle needs both."""

    def __init__(self) -> None:
        super().__init__()
        self._connection: Connection[Record]

    def use(self, connection: Connection[Record]) -> None:
        """Read on a connection from now on: that of the group under way."""
        self._connection = connection

    async def load(self, ids: Iterable[int]) -> None:
        """Load the nodes of these jobs' terms; call it before a job is returned."""
        await self.load_terms({job_id // TERM_SPAN for job_id in ids})

    async def load_terms(self, terms: set[int]) -> None:
        """Load the nodes of terms."""
        missing = terms - self.keys()
        if missing:
            for term, node in await self._connection.fetch(_SQL["nodes_of"], sorted(missing)):
                self[term] = node


def _columns(keys: list[bytes]) -> tuple[list[str], list[bytes]]:
    stored = [columns(key) for key in keys]
    return [namespace for namespace, _ in stored], [name for _, name in stored]
