"""What a worker process has under way, in memory that its supervisor can read when the process is gone.

The worker counts there at each start and end of a job, which takes no call of the system. A pipe would: for each batch, and for
the supervisor to wake up.

::

    length of the names   4 bytes
    names                 JSON, an array of the functions' names, and padding to a multiple of 4 bytes
    jobs                  a counter of 4 bytes: all jobs under way
    for each function     two of them: its jobs that run in this process, its suspects that have ended a process of their own
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mainspring.worker.delivery import Delivery

_WORD: Final = 4


class Counts(NamedTuple):
    """What a slate says."""

    jobs: int
    """How many jobs are under way, in this process or in processes of their own."""
    running: frozenset[str]
    """The functions that run in the worker's process: one of them has ended it, where it ended."""
    crashers: frozenset[str]
    """Those of which a suspect has ended a process of its own."""


def make() -> int:
    """Return the descriptor of an empty slate.  Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mainspring-counters")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def read(descriptor: int) -> Counts | None:
    """Return what a slate says; None where no worker has got as far as to write on it."""
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    length = int.from_bytes(data[:_WORD], "little")
    if not length:
        return None
    names: list[str] = msgspec.json.decode(data[_WORD : _WORD + length])
    counters = memoryview(data)[_padded(_WORD + length) :].cast("I")
    running = frozenset(name for at, name in enumerate(names) if counters[1 + 2 * at])
    crashers = frozenset(name for at, name in enumerate(names) if counters[2 + 2 * at])
    return Counts(counters[0], running, crashers)


class JobCounters:
    """The worker's side; its functions are called on the loop's thread."""

    def __init__(self, descriptor: int, functions: Sequence[str]) -> None:
        """Take over the descriptor.  Raises OSError."""
        names = msgspec.json.encode(functions)
        begin = _padded(_WORD + len(names))
        os.ftruncate(descriptor, begin + _WORD * (1 + 2 * len(functions)))
        memory = mmap.mmap(descriptor, 0)
        os.close(descriptor)
        memory[_WORD : _WORD + len(names)] = names
        self._counters = memoryview(memory)[begin:].cast("I")
        self._places = {name: 1 + 2 * at for at, name in enumerate(functions)}
        memory[:_WORD] = len(names).to_bytes(_WORD, "little")

    def begun(self, deliveries: Sequence[Delivery]) -> None:
        """Count jobs that are about to start."""
        counters = self._counters
        counters[0] += len(deliveries)
        for delivery in deliveries:
            if delivery.executor != "process":
                counters[self._places[delivery.function.name]] += 1

    def ended(self, deliveries: Iterable[Delivery]) -> None:
        """Count jobs that have ended, of those that were counted before."""
        counters = self._counters
        for delivery in deliveries:
            counters[0] -= 1
            place = self._places[delivery.function.name]
            if delivery.executor != "process":
                counters[place] -= 1
            elif delivery.died and delivery.function.executor != "process":
                counters[place + 1] += 1


def _padded(size: int) -> int:
    return -(-size // _WORD) * _WORD
