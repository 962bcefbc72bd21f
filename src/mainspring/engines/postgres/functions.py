"""Names that rows carry as numbers: functions, and the nodes of terms. Each is read once and remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.engines.postgres.statements import load
from mainspring.ids import TERM_SPAN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpg import Connection, Record

_SQL = load("engine.sql")

REMEMBERED = 20_000
"""Functions whose numbers are remembered from group to group at most: any client can name new ones."""

Key = tuple[str, bytes]
"""Namespace and name of a function."""


class Functions:
    """Function names to numbers and back, as far as this node has met them of late.

    A number that a group gives is known for good once the group is committed; until then `rolled_back` takes it back.
    """

    def __init__(self) -> None:
        self._connection: Connection[Record]
        self.numbers: dict[Key, int] = {}
        self.names: dict[int, Key] = {}
        self._given: list[int] = []

    def use(self, connection: Connection[Record]) -> None:
        """Ask on a connection from now on: that of the group under way."""
        self._connection = connection

    async def learn(self, keys: Iterable[Key]) -> None:
        """Know the numbers of these functions from now on; those that have none get one."""
        missing = await self._look_up(keys)
        if not missing:
            return
        rows = await self._connection.fetch(_SQL["functions_new"], *_columns(missing))
        self._given += [row[0] for row in rows]
        self._know(rows)
        # What another node has stored since the first look is there for a new snapshot.
        missing = await self._look_up(missing)
        assert not missing, "functions are never removed"

    async def find(self, keys: Iterable[Key]) -> None:
        """Know the numbers of these functions from now on, of those that have one."""
        await self._look_up(keys)

    async def meet(self, numbers: Iterable[int]) -> None:
        """Know the names of these numbers from now on: rows of other nodes' jobs carry them."""
        missing = set(numbers) - self.names.keys()
        if missing:
            self._know(await self._connection.fetch(_SQL["functions_numbered"], sorted(missing)))

    def number(self, namespace: str, name: bytes) -> int:
        """Return the number of a function that was learnt; KeyError for any other."""
        return self.numbers[namespace, name]

    async def _look_up(self, keys: Iterable[Key]) -> list[Key]:
        missing = sorted(set(keys) - self.numbers.keys())
        if missing:
            self._know(await self._connection.fetch(_SQL["functions_named"], *_columns(missing)))
            missing = [key for key in missing if key not in self.numbers]
        return missing

    def _know(self, rows: Iterable[Record]) -> None:
        for number, namespace, name in rows:
            self.numbers[namespace, name] = number
            self.names[number] = (namespace, name)

    def committed(self) -> None:
        """Keep the numbers that the group gave."""
        self._given.clear()
        if len(self.names) > REMEMBERED:
            self.names.clear()
            self.numbers.clear()

    def rolled_back(self) -> None:
        """Forget the numbers that the group gave: the next to name these functions gets others."""
        for number in self._given:
            del self.numbers[self.names.pop(number)]
        self._given.clear()


class Nodes(dict[int, str]):
    """The nodes of terms, as far as this node has met them; the handles of their jobs are made of both."""

    def __init__(self) -> None:
        super().__init__()
        self._connection: Connection[Record]

    def use(self, connection: Connection[Record]) -> None:
        """Ask on a connection from now on: that of the group under way."""
        self._connection = connection

    async def meet(self, ids: Iterable[int]) -> None:
        """Know the nodes of these jobs' terms from now on: to be called before a job is returned."""
        missing = {job_id // TERM_SPAN for job_id in ids} - self.keys()
        if missing:
            for term, node in await self._connection.fetch(_SQL["nodes_of"], sorted(missing)):
                self[term] = node


def _columns(keys: list[Key]) -> tuple[list[str], list[bytes]]:
    return [namespace for namespace, _ in keys], [name for _, name in keys]
