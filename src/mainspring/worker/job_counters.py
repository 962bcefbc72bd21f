"""Counters of a worker process in shared memory: of its running jobs, and of the turns of its event loop.

Its supervisor reads them while the process lives, and after it has died.

The worker updates them at each start and end of a job, without a system call. A pipe would need system calls for each batch,
and would wake the supervisor.

::

    length of the names   4 bytes
    names                 JSON, an array of the functions' names, and padding to a multiple of 4 bytes
    jobs                  a counter of 4 bytes: all running jobs
    for each function     two such counters: its jobs in this process, its suspects that have crashed a process of their own
    turns                 rises with each turn of the loop; 0 while no loop runs
    stopping              1 once the supervisor stops the process; the supervisor writes it
    ends                  1 once the process ends because its loop is blocked
    by                    the number of the function that blocks the loop, from 1; 0 if it is unknown
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.worker.delivery import Delivery

_WORD: Final = 4
_MOST: Final = 2**32 - 2
_LAST_WORDS: Final = 4
"""The words about the loop."""


class Counts(NamedTuple):
    """The values of the counters."""

    jobs: int
    """The number of running jobs, in this process or in processes of their own."""
    running: frozenset[str]
    """The functions that run in the worker's process; if it has crashed, one of them is the cause."""
    crashers: frozenset[str]
    """The functions with a suspect that has crashed a process of its own."""
    turns: int = 0
    """Of the event loop; 0 while none runs."""
    ends: bool = False
    """Whether the process ends because its loop is blocked."""
    blocking: str = ""
    """The function that blocks it; empty if it is unknown."""


def create() -> int:
    """Return the descriptor of new counters.  Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mainspring-counters")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def read(descriptor: int) -> Counts | None:
    """Return the values of the counters; None if no worker has initialized them."""
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    length = int.from_bytes(data[:_WORD], "little")
    if not length:
        return None
    names: list[str] = msgspec.json.decode(data[_WORD : _WORD + length])
    counters = memoryview(data)[_padded(_WORD + length) :].cast("I")
    running = frozenset(name for at, name in enumerate(names) if counters[1 + 2 * at])
    crashers = frozenset(name for at, name in enumerate(names) if counters[2 + 2 * at])
    turns, _, ends, by = counters[-_LAST_WORDS:]
    return Counts(counters[0], running, crashers, turns, bool(ends), names[by - 1] if by else "")


def request_stop(descriptor: int) -> None:
    """Note for the process that it is stopped; do nothing if it has not initialized the counters."""
    size = os.fstat(descriptor).st_size
    if size:
        os.pwrite(descriptor, (1).to_bytes(_WORD, sys.byteorder), size - (_LAST_WORDS - 1) * _WORD)


class JobCounters:
    """The worker's side of the counters; its methods are called on the loop's thread."""

    def __init__(self, descriptor: int, functions: Sequence[str]) -> None:
        """Initialize the counters, and close the descriptor.  Raises OSError."""
        names = msgspec.json.encode(functions)
        begin = _padded(_WORD + len(names))
        os.ftruncate(descriptor, begin + _WORD * (1 + 2 * len(functions) + _LAST_WORDS))
        memory = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        memory[_WORD : _WORD + len(names)] = names
        self._counters = memoryview(memory)[begin:].cast("I")
        self._indexes = {name: 1 + 2 * at for at, name in enumerate(functions)}
        self._turns, self._stopping, self._ends, self._by = (
            1 + 2 * len(functions) + word for word in range(_LAST_WORDS)
        )
        memory[:_WORD] = len(names).to_bytes(_WORD, "little")

    def begun(self, deliveries: Sequence[Delivery]) -> None:
        """Count jobs that are about to start."""
        counters = self._counters
        counters[0] += len(deliveries)
        for delivery in deliveries:
            if delivery.executor != "process":
                counters[self._indexes[delivery.function.name]] += 1

    def ended(self, deliveries: Iterable[Delivery]) -> None:
        """Count jobs that have ended, after `begun` has counted them."""
        counters = self._counters
        for delivery in deliveries:
            counters[0] -= 1
            index = self._indexes[delivery.function.name]
            if delivery.executor != "process":
                counters[index] -= 1
            elif delivery.died and delivery.function.executor != "process":
                counters[index + 1] += 1

    # ---- the loop: `loop_watch.Turns` ----

    def turned(self) -> None:
        """Count a turn of the loop."""
        self._counters[self._turns] = self._counters[self._turns] % _MOST + 1

    def not_turning(self) -> None:
        """Note that the loop does not run."""
        self._counters[self._turns] = 0

    def ends(self, function: str) -> None:
        """Note that the process ends because it is frozen, by this function if it is known."""
        self._counters[self._by] = (self._indexes.get(function, -1) + 1) // 2
        self._counters[self._ends] = 1

    @property
    def stopping(self) -> bool:
        """Whether the supervisor stops the process."""
        return bool(self._counters[self._stopping])


def _padded(size: int) -> int:
    return -(-size // _WORD) * _WORD
