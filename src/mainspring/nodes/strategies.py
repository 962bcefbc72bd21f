"""Strategies: rules by which nodes share work without messages to each other.

Each node computes its own share from the rows of all nodes' last heartbeats. Nodes that see the same rows compute shares that
fit together. For some seconds after a node joined, left or died the shares may not fit. Then two nodes try to claim the same job
and the store gives it to one of them; or no node tries until ``overdue`` seconds have passed, when all do. So a strategy can
delay a job by ``overdue`` seconds. It can neither lose a job nor run it twice.

Only nodes that serve the function and do not drain count. A single node may claim everything.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from abc import ABC, abstractmethod
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from mainspring.errors import SettingsError
from mainspring.ids import SLOTS
from mainspring.nodes.model import EVERYTHING, NOTHING, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.nodes.model import NodeRow


class Strategy(Protocol):
    """A rule for sharing: the same rows give the same result on every node, independent of earlier calls."""

    def share(self, function: bytes, me: NodeRow, live_rows: tuple[NodeRow, ...]) -> Share:
        """Return the node ``me``'s share of the function's jobs.

        ``me`` is current. ``live_rows`` are as old as the others' last heartbeats; a row with the term of ``me`` is ignored.
        The node calls this before each claim, with the same tuple until a new observation.
        """


class _AmongOthers(ABC):
    """A strategy with a rule for functions that several nodes serve.

    The nodes of each function are computed once for each tuple of rows, because nodes claim every few milliseconds.
    """

    def __init__(self) -> None:
        self._rows: tuple[NodeRow, ...] = ()
        self._serving: dict[bytes, list[NodeRow]] = {}

    def share(self, function: bytes, me: NodeRow, live_rows: tuple[NodeRow, ...]) -> Share:
        """Return no share for a node that does not count, the full share for a single node, and otherwise the rule's."""
        if me.draining or function not in me.functions:
            return NOTHING
        others = self._others(function, me, live_rows)
        return self._among(me, others) if others else EVERYTHING

    @abstractmethod
    def _among(self, me: NodeRow, others: Sequence[NodeRow]) -> Share:
        """Return the share of the node ``me`` in a function that others serve too."""

    def _others(self, function: bytes, me: NodeRow, live_rows: tuple[NodeRow, ...]) -> list[NodeRow]:
        if live_rows is not self._rows:
            self._rows, self._serving = live_rows, {}
            for row in live_rows:
                if not row.draining:
                    for served in row.functions:
                        self._serving.setdefault(served, []).append(row)
        return [row for row in self._serving.get(function, ()) if row.term != me.term]


class Default:
    """Each node claims as many jobs as its workers have room for.

    For nearly all fleets. Busy nodes claim less often and fewer jobs, so jobs go to nodes with room, and no job waits for a slow
    node. Nodes may claim at the same moment; the store lets each skip jobs that another one is claiming.
    """

    def share(self, function: bytes, me: NodeRow, live_rows: tuple[NodeRow, ...]) -> Share:  # noqa: ARG002
        """Return the full share if this node counts."""
        return NOTHING if me.draining or function not in me.functions else EVERYTHING


class IdHash(_AmongOthers):
    """Each slot belongs to one node and stays there while other nodes join and leave.

    For jobs that run faster on a node that has run similar jobs (files on a local disk, caches, connections to one customer's
    system): all jobs of one unique go to one node. Weighted rendezvous hashing of the nodes' names assigns the slots: each node
    draws a number for each slot, and the lowest wins. So only about 1/n of the slots move: a joining node gets its part from
    all others, and a leaving node gives its part to all others. A restarted node has its old slots again.

    Shares are only roughly even: each of 3 nodes has a third of the slots, give or take a tenth of that. A job whose node is busy
    for longer than ``overdue`` seconds goes to any other node. Raise ``overdue`` if locality matters more than delay.
    """

    def __init__(self, *, overdue: float = 2.0) -> None:
        """Reserve a job for its own node for ``overdue`` seconds."""
        super().__init__()
        self._overdue = _checked(overdue)

    def _among(self, me: NodeRow, others: Sequence[NodeRow]) -> Share:
        """Return the slots for which this node drew the lowest number."""
        # Hash names, not terms, so that a restart changes nothing. If two rows have one name, the newest comes first: the
        # older one is ending, or two nodes share a name by mistake, and then each still has its own slots.
        draws, names = [], Counter[str]()
        for row in sorted([me, *others], key=lambda row: -row.term):
            draws.append((row.name, names[row.name], row.weight))
            if row is me:
                mine = draws[-1]
            names[row.name] += 1
        draws.sort()
        return _of_slots(_rendezvous(tuple(draws))[draws.index(mine)], self._overdue)


class LeastCount(_AmongOthers):
    """A node claims only while it holds few more jobs than the least loaded other node.

    For long jobs of very different durations, where some nodes would otherwise hold many jobs while others are idle. For jobs of
    a few seconds it is useless, because the counts of other nodes are as old as their last heartbeat.

    The rule: a node's load is the number of jobs that it holds, divided by its capacity. Let ``level`` be the number of jobs that
    it would hold with the load of the least loaded other node, rounded down. It may claim ``level - running + slack`` jobs, where
    ``slack`` is a part of its capacity and at least one job. So the least loaded node may always claim, and loads differ by about
    the slack. Any node with room may claim jobs that have been due for ``overdue`` seconds: balance is worth no longer delay.
    """

    def __init__(self, *, overdue: float = 1.0, slack: float = 0.25) -> None:
        """Allow ``slack`` (a part of the node's capacity) above the level, and any job after ``overdue`` seconds."""
        super().__init__()
        self._overdue = _checked(overdue)
        self._slack = slack

    def _among(self, me: NodeRow, others: Sequence[NodeRow]) -> Share:
        """Return a limit: the distance of this node below the others' level, plus the slack."""
        capacity = max(1, me.capacity)
        level = min(row.running * capacity // max(1, row.capacity) for row in others)
        limit = level - me.running + max(1, int(capacity * self._slack))
        return Share(limit=max(0, limit), overdue=self._overdue)


class Weight(_AmongOthers):
    """Each node has a part of the slots in proportion to its weight, exact to one slot.

    For fleets whose nodes have very different sizes, or where one node shall get few jobs (a new version, a machine with other
    tasks): of three nodes with the weights 5, 5 and 1, the last one gets one job in eleven. The weights divide new jobs, not
    running ones: if a node is too slow for its part, other nodes claim its jobs after ``overdue`` seconds.

    When a node joins or leaves, most slots move. If that matters, use `IdHash`, which also uses weights.
    """

    def __init__(self, *, overdue: float = 2.0) -> None:
        """Reserve a job for its own node for ``overdue`` seconds."""
        super().__init__()
        self._overdue = _checked(overdue)

    def _among(self, me: NodeRow, others: Sequence[NodeRow]) -> Share:
        """Return this node's range of slots; the ranges are in the order of names."""
        nodes = sorted([me, *others], key=lambda row: (row.name, row.term))
        return _of_slots(_ranges(tuple(row.weight for row in nodes))[nodes.index(me)], self._overdue)


# ---- slots of nodes ----


def _checked(overdue: float) -> float:
    if not 0 <= overdue < math.inf:
        raise SettingsError(f"a job cannot be overdue after {overdue:g} s: give a finite number of seconds, 0 or more")
    return overdue


def _of_slots(slots: frozenset[int], overdue: float) -> Share:
    return EVERYTHING if len(slots) == SLOTS else Share(slots=slots, overdue=overdue)


def _parts(weights: Sequence[int]) -> list[int]:
    """Return the weights with 0 for negative ones; if all are 0, return equal weights."""
    parts = [max(0, weight) for weight in weights]
    return parts if any(parts) else [1] * len(parts)


@lru_cache(maxsize=256)
def _ranges(weights: tuple[int, ...]) -> tuple[frozenset[int], ...]:
    parts = _parts(weights)
    total, before, found = sum(parts), 0, []
    for part in parts:
        found.append(frozenset(range(SLOTS * before // total, SLOTS * (before + part) // total)))
        before += part
    return tuple(found)


@lru_cache(maxsize=256)
def _rendezvous(draws: tuple[tuple[str, int, int], ...]) -> tuple[frozenset[int], ...]:
    """Return each node's slots; a node is its name, its position among nodes of that name, and its weight.

    1,024 slots and 100 nodes take some milliseconds, so the results are cached.
    """
    parts = _parts([weight for _, _, weight in draws])
    scaled = [
        [number / part for number in _drawn(name, place)] if part else [math.inf] * SLOTS
        for (name, place, _), part in zip(draws, parts, strict=True)
    ]
    found: list[list[int]] = [[] for _ in draws]
    for slot, numbers in enumerate(zip(*scaled, strict=True)):
        found[numbers.index(min(numbers))].append(slot)
    return tuple(map(frozenset, found))


@lru_cache(maxsize=1024)
def _drawn(name: str, place: int) -> tuple[float, ...]:
    """Return a node's number for each slot.

    The numbers are exponentially distributed. If each is divided by its node's weight, each node has the lowest number with a
    probability in proportion to its weight.
    """
    stream = hashlib.shake_128(f"{name}/{place}".encode()).digest(8 * SLOTS)
    return tuple(-math.log((number + 0.5) / 2**64) for number in struct.unpack(f">{SLOTS}Q", stream))


# ---- names of strategies ----

_BUILT_IN: Final[dict[str, Callable[[], Strategy]]] = {
    "default": Default,
    "id_hash": IdHash,
    "least_count": LeastCount,
    "weight": Weight,
}
_registered: Final[dict[str, Callable[[], Strategy]]] = {}
"""Users' strategies, global to the process like codecs: the module that the node imports for its settings registers them."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def register(name: str, factory: Callable[[], Strategy]) -> None:
    """Make a strategy available to nodes of this process as ``name``; an earlier one of that name is replaced.

    ``register("sticky", lambda: IdHash(overdue=60))`` registers a built-in strategy with a different setting. All nodes of a
    fleet must register it under the same name.

    Raises SettingsError for a built-in name, and if the name is not 1 to 32 lower case letters, digits, ``-`` and ``_``.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is not a valid name for a strategy: use up to 32 lower case letters, digits, '-' and '_', a letter first"
        )
    if name in _BUILT_IN:
        raise SettingsError(f"the strategy {name!r} is built in: register yours under another name")
    _registered[name] = factory


def strategy_names() -> tuple[str, ...]:
    """Return the names of all strategies, the built-in ones first."""
    return (*_BUILT_IN, *sorted(_registered))


def strategy(name: str) -> Strategy:
    """Return a new strategy of that name. Raises SettingsError, which lists all names, if there is none."""
    factory = _BUILT_IN.get(name) or _registered.get(name)
    if factory is None:
        raise SettingsError(f"there is no strategy {name!r}: the known ones are {', '.join(strategy_names())}")
    return factory()
