"""How the methods of `acts` and `operating` ask a server: with declared requests, blocking or for asyncio."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from mainspring.client.connections import Connections

PAGE: Final = 1000
"""Rows of a page."""


class Named(Protocol):
    """A task, a workflow, or a function in any language."""

    @property
    def name(self) -> str:
        """Return its name on the wire."""


def _declared() -> Any:
    """Return the module of declared requests, which programs that only submit jobs do not load."""
    return importlib.import_module("mainspring.client.declared")


class Asking:
    """Sends declared requests by their names, and returns their answers."""

    __slots__ = ()
    _connections: Connections

    def _ask(self, call: str, given: Mapping[str, Any]) -> Any:
        declared = _declared()
        params = declared.params(call, given)
        return declared.answer(call, self._connections.blocking().call(call, params))

    async def _aask(self, call: str, given: Mapping[str, Any]) -> Any:
        declared = _declared()
        params = declared.params(call, given)
        return declared.answer(call, await self._connections.aio().call(call, params))

    def _pages(self, call: str, given: Mapping[str, Any], most: int | None) -> Iterator[Any]:
        """Yield the rows of a list, page by page, at most ``most``."""
        pages = _Pages(given, most)
        while pages.given is not None:
            yield from pages.rows(self._ask(call, pages.given))

    async def _apages(self, call: str, given: Mapping[str, Any], most: int | None) -> AsyncIterator[Any]:
        pages = _Pages(given, most)
        while pages.given is not None:
            for row in pages.rows(await self._aask(call, pages.given)):
                yield row

    def _first(self, call: str, given: Mapping[str, Any]) -> Any:
        return next(self._pages(call, given, 1), None)

    async def _afirst(self, call: str, given: Mapping[str, Any]) -> Any:
        return await anext(self._apages(call, given, 1), None)


class _Pages:
    """The parameters of the next page of a list, as ``given``; None after the last one."""

    def __init__(self, given: Mapping[str, Any], most: int | None) -> None:
        self._left = most
        self.given: dict[str, Any] | None = dict(given)
        self._limit()

    def rows(self, answer: Any) -> list[Any]:
        """Return the rows of a page."""
        found: list[Any] = answer.items
        if self._left is not None:
            found = found[: self._left]
            self._left -= len(found)
        if answer.next is None or self._left == 0 or self.given is None:
            self.given = None
        else:
            self.given["cursor"] = answer.next
            self._limit()
        return found

    def _limit(self) -> None:
        if self.given is not None:
            self.given["limit"] = PAGE if self._left is None else max(1, min(PAGE, self._left))


class OnServers(Asking):
    """Asks the servers of an App."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections


class OfJob(Asking):
    """Asks about one job."""

    __slots__ = ()
    handle: str

    async def _find(self) -> None:
        """Request the handle if it is not known yet, so that it can be read on an event loop."""

    def _ask_of_handle(self, call: str, given: Mapping[str, Any]) -> Any:
        return self._ask(call, {"handle": self.handle, **given})

    async def _aask_of_handle(self, call: str, given: Mapping[str, Any]) -> Any:
        await self._find()
        return await self._aask(call, {"handle": self.handle, **given})


class OfRun(Asking):
    """Asks about one run of a workflow."""

    __slots__ = ()
    key: str

    def _ask_of_key(self, call: str, given: Mapping[str, Any]) -> Any:
        return self._ask(call, {"key": self.key, **given})

    async def _aask_of_key(self, call: str, given: Mapping[str, Any]) -> Any:
        return await self._aask(call, {"key": self.key, **given})
