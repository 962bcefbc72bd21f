"""Faults at a certain byte: they wait until it passes the proxy, and end the connection that carries it.

A trap is asked about every piece of bytes before it is passed on, and springs once. Connections are to it
objects that it can distinguish, and nothing more.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from typing import NamedTuple

READY = b"Z\x00\x00\x00\x05I"
"""PostgreSQL's ReadyForQuery outside a transaction: the earlier request has been executed or refused."""


class Direction(enum.Enum):
    """The direction of bytes: to the server, or to the client."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class Verdict(NamedTuple):
    """The bytes that are passed on, and whether the connection ends after them."""

    passed: bytes
    ends: bool = False


class Trap(ABC):
    """One fault that waits for its byte."""

    def __init__(self) -> None:
        self._sprung = threading.Event()

    @property
    def has_sprung(self) -> bool:
        """Whether it has sprung; the connection is gone then."""
        return self._sprung.is_set()

    def wait(self, seconds: float = 30.0) -> None:
        """Wait until it has sprung. Raises AssertionError if it has not within ``seconds`` seconds."""
        assert self._sprung.wait(seconds), f"{type(self).__name__} has not sprung within {seconds} s"

    def spring(self) -> None:
        """Note that the connection is gone."""
        self._sprung.set()

    @abstractmethod
    def judge(self, connection: object, direction: Direction, data: bytes) -> Verdict:
        """Return what to do with bytes that are about to be passed on."""


class CutAfter(Trap):
    """Passes a number of bytes of a direction on, counted over all connections, and ends the connection of the next byte."""

    def __init__(self, count: int, direction: Direction) -> None:
        super().__init__()
        self._left = count
        self._direction = direction

    def judge(self, connection: object, direction: Direction, data: bytes) -> Verdict:
        if direction is not self._direction:
            return Verdict(data)
        passed = data[: self._left]
        self._left -= len(passed)
        return Verdict(passed, ends=len(passed) < len(data))


class LoseRequest(Trap):
    """Ends the connection instead of passing a request on that contains ``marker``: the server never receives it."""

    def __init__(self, marker: bytes) -> None:
        super().__init__()
        self._marker = _Marker(marker)

    def judge(self, connection: object, direction: Direction, data: bytes) -> Verdict:
        if direction is Direction.TO_SERVER and self._marker.is_in(connection, data):
            return Verdict(b"", ends=True)
        return Verdict(data)


class LoseAnswer(Trap):
    """Passes a request on that contains ``marker``, swallows its answer up to ``until``, and then ends the connection.

    So the server has done what was asked, and the client will never know.
    """

    def __init__(self, marker: bytes, until: bytes) -> None:
        super().__init__()
        self._marker = _Marker(marker)
        self._until = _Marker(until)
        self._connection: object | None = None

    def judge(self, connection: object, direction: Direction, data: bytes) -> Verdict:
        if self._connection is None:
            if direction is Direction.TO_SERVER and self._marker.is_in(connection, data):
                self._connection = connection
        elif connection is self._connection and direction is Direction.TO_CLIENT:
            return Verdict(b"", ends=self._until.is_in(connection, data))
        return Verdict(data)


class _Marker:
    """Finds bytes in a stream that arrives in pieces; an empty marker is in every piece."""

    def __init__(self, marker: bytes) -> None:
        self._marker = marker
        self._ends: dict[int, bytes] = {}

    def is_in(self, connection: object, data: bytes) -> bool:
        joined = self._ends.get(id(connection), b"") + data
        self._ends[id(connection)] = joined[-(len(self._marker) - 1) :] if len(self._marker) > 1 else b""
        return self._marker in joined
