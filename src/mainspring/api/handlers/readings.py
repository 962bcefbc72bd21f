"""Values that several calls share: one of them reads the store, and all use its value for some seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from mainspring.callbacks import Callback
from mainspring.errors import MainspringError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mainspring.callbacks import Ask, Done, Failed

V = TypeVar("V")
K = TypeVar("K")


class _Reading(NamedTuple, Generic[V]):
    """A value, and the monotonic time at which its reading began."""

    read_at: float
    value: V


class _EndedError(Exception):
    """The call that was reading has ended, so another one has to read."""


class Readings(Generic[K, V]):
    """The newest values by key, at most ``most`` of them; ``seconds`` is for how long a value is used."""

    def __init__(self, monotonic: Callable[[], float], seconds: float, most: int) -> None:
        self._monotonic = monotonic
        self._seconds = seconds
        self._most = most
        self._kept: dict[K, _Reading[V]] = {}
        self._under_way: dict[K, list[tuple[Done, Failed]]] = {}
        """The calls that wait for a reading of another call."""

    async def get(self, key: K, read: Callable[[], Coroutine[Ask, Any, V]]) -> V:
        """Return a value, with ``read`` if it is too old and no other call reads it. Raises what ``read`` raises."""
        while True:
            kept = self._kept.get(key)
            if kept is not None and self._monotonic() - kept.read_at < self._seconds:
                return kept.value
            waiting = self._under_way.get(key)
            if waiting is None:
                return await self._read(key, read)
            try:
                return await Callback[V](lambda done, failed, calls=waiting: calls.append((done, failed)))  # type: ignore[misc]
            except _EndedError:
                continue

    def forget(self, key: K) -> None:
        """Read a value anew the next time."""
        self._kept.pop(key, None)

    async def _read(self, key: K, read: Callable[[], Coroutine[Ask, Any, V]]) -> V:
        waiting = self._under_way[key] = []
        began = self._monotonic()
        try:
            value = await read()
        except BaseException as error:
            del self._under_way[key]
            for _, failed in waiting:
                failed(error if isinstance(error, MainspringError) else _EndedError())
            raise
        del self._under_way[key]
        self._keep(key, _Reading(began, value))
        for done, _ in waiting:
            done(value)
        return value

    def _keep(self, key: K, kept: _Reading[V]) -> None:
        self._kept.pop(key, None)
        while len(self._kept) >= self._most:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = kept
