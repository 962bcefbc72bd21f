"""Strategies: the agreed rules by which nodes share work without talking to each other.

Each node works out its own share from what all nodes said with their last heartbeats. Nodes that see the same rows come to
shares that fit together. For some seconds after a node came, left or died they may not; then two nodes look for the same job,
and the store gives it to one, or none looks for it, and after ``overdue`` seconds everybody does. So a strategy can make a job
wait for as long as it says. It can neither lose a job nor run it twice.

Only nodes that serve the function and are not draining count. A node alone takes everything.
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
    """A rule for sharing: the same rows give the same answer on every node, whatever was asked before."""

    def share(self, function: bytes, me: NodeRow, live_rows: tuple[NodeRow, ...]) -> Share:
        """Return what the node ``me`` may claim of the function's jobs now.

        ``me`` is as of now. ``live_rows`` are as of the others' last heartbeats; a row in it with the term of ``me`` is of no
        account. It is called before each claim, with the same tuple as long as nothing is known anew.
        """


class _AmongOthers(ABC):
    """A strategy that has a rule for nodes beside others.

    Who counts for which function is worked out once for each tuple of rows, because there is a claim each few milliseconds.
    """

    def __init__(self) -> None:
        self._rows: tuple[NodeRow, ...] = ()
        self._crews: dict[bytes, list[NodeRow]] = {}

    def share(self, function: bytes, me: NodeRow, live_rows: tuple[NodeRow, ...]) -> Share:
        """Return nothing where this node does not count, everything where it is alone, and otherwise what the rule says."""
        if me.draining or function not in me.functions:
            return NOTHING
        others = self._others(function, me, live_rows)
        return self._among(me, others) if others else EVERYTHING

    @abstractmethod
    def _among(self, me: NodeRow, others: Sequence[NodeRow]) -> Share:
        """Return what the node ``me`` may claim of a function that others serve too."""

    def _others(self, function: bytes, me: NodeRow, live_rows: tuple[NodeRow, ...]) -> list[NodeRow]:
        if live_rows is not self._rows:
            self._rows, self._crews = live_rows, {}
            for row in live_rows:
                if not row.draining:
                    for served in row.functions:
                        self._crews.setdefault(served, []).append(row)
        return [row for row in self._crews.get(function, ()) if row.term != me.term]


class Default:
    """Everybody takes what he has room for.

    For nearly all fleets: busy nodes ask less often and for less, so the work goes where there is room, and nothing ever waits
    for a node that is slow. Nodes may ask for the same jobs at the same moment; the store lets each skip what another has.
    """

    def share(self, function: bytes, me: NodeRow, live_rows: tuple[NodeRow, ...]) -> Share:  # noqa: ARG002
        """Return everything, where this node counts."""
        return NOTHING if me.draining or function not in me.functions else EVERYTHING


class IdHash(_AmongOthers):
    """Every slot has one node, and keeps it while others come and go.

    For work that is quicker where its like was done before (files on a local disk, caches, connections to one customer's
    system): jobs of one unique go to one node. Slots go to nodes by weighted rendezvous hashing of the nodes' names: each node
    draws a number for each slot, and the least one wins. So a node that comes takes its part from all, one that leaves gives
    its part to all, and no other slot moves: about 1/n of them. A node that starts again has its old slots back.

    Shares are only about even: of 3 nodes each has a third of the slots give or take a tenth of that. A job whose node is busy
    for longer than ``overdue`` seconds goes to any other: raise it where the place matters more than the time.
    """

    def __init__(self, *, overdue: float = 2.0) -> None:
        """Leave a job to its own node for ``overdue`` seconds."""
        super().__init__()
        self._overdue = _checked(overdue)

    def _among(self, me: NodeRow, others: Sequence[NodeRow]) -> Share:
        """Return the slots for which this node drew the least number."""
        # By name, not by term, so that a restart changes nothing. The newest run comes first where a name is there twice: the
        # older one is ending, or somebody gave two nodes one name, and then each still has slots of its own.
        draws, names = [], Counter[str]()
        for row in sorted([me, *others], key=lambda row: -row.term):
            draws.append((row.name, names[row.name], row.weight))
            if row is me:
                mine = draws[-1]
            names[row.name] += 1
        draws.sort()
        return _of_slots(_rendezvous(tuple(draws))[draws.index(mine)], self._overdue)


class LeastCount(_AmongOthers):
    """A node takes only while it holds hardly more than the least loaded of the others.

    For long jobs of very different lengths, where some nodes would otherwise sit on many while others are idle. For jobs of
    less than some seconds it does nothing good: what is known of the others is as old as their last heartbeat.

    The rule: a node's load is the number of jobs that it holds, divided by its capacity. Let ``level`` be what it would hold
    with the load of the least loaded other, rounded down; then it may claim ``level - running + slack`` jobs, where ``slack`` is
    a share of its capacity and one job at least. So the least loaded node may always claim, and loads differ by about the slack.
    What nobody has taken for ``overdue`` seconds goes to whoever has room: balance is worth no more than that.
    """

    def __init__(self, *, overdue: float = 1.0, slack: float = 0.25) -> None:
        """Allow ``slack`` (share of a node's capacity) more than the least loaded has, and anything after ``overdue`` seconds."""
        super().__init__()
        self._overdue = _checked(overdue)
        self._slack = slack

    def _among(self, me: NodeRow, others: Sequence[NodeRow]) -> Share:
        """Return a limit: how far this node is below the others' level, and the slack."""
        capacity = max(1, me.capacity)
        level = min(row.running * capacity // max(1, row.capacity) for row in others)
        limit = level - me.running + max(1, int(capacity * self._slack))
        return Share(limit=max(0, limit), overdue=self._overdue)


class Weight(_AmongOthers):
    """Each node has a part of the slots in proportion to its weight, exact to one slot.

    For fleets whose nodes have very different sizes, or where one shall get a trickle (a new version, a machine with other
    duties): of three nodes with the weights 5, 5 and 1 the last one gets a job in eleven. It shares what comes in, not what
    runs: a node that is too slow for its part leaves it to the others after ``overdue`` seconds.

    When a node comes or goes, most slots move. Where that matters, take `IdHash`, which knows weights as well.
    """

    def __init__(self, *, overdue: float = 2.0) -> None:
        """Leave a job to its own node for ``overdue`` seconds."""
        super().__init__()
        self._overdue = _checked(overdue)

    def _among(self, me: NodeRow, others: Sequence[NodeRow]) -> Share:
        """Return this node's range of slots; the ranges follow each other in the order of names."""
        crew = sorted([me, *others], key=lambda row: (row.name, row.term))
        return _of_slots(_ranges(tuple(row.weight for row in crew))[crew.index(me)], self._overdue)


# ---- who has which slots ----


def _checked(overdue: float) -> float:
    if not 0 <= overdue < math.inf:
        raise SettingsError(f"a job cannot be overdue after {overdue:g} s: no job may wait for one node for ever")
    return overdue


def _of_slots(slots: frozenset[int], overdue: float) -> Share:
    return EVERYTHING if len(slots) == SLOTS else Share(slots=slots, overdue=overdue)


def _parts(weights: Sequence[int]) -> list[int]:
    """Return the weights without what is below 0; where all are 0, all are alike."""
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
    """Return each node's slots; a node is its name, its place among those of that name, and its weight.

    1,024 slots and 100 nodes take some milliseconds, so sets of nodes are remembered.
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

    They are exponentially distributed, because of such numbers, each divided by its node's weight, the least one belongs to each
    node as often as its weight says.
    """
    stream = hashlib.shake_128(f"{name}/{place}".encode()).digest(8 * SLOTS)
    return tuple(-math.log((number + 0.5) / 2**64) for number in struct.unpack(f">{SLOTS}Q", stream))


# ---- by name ----

_BUILT_IN: Final[dict[str, Callable[[], Strategy]]] = {
    "default": Default,
    "id_hash": IdHash,
    "least_count": LeastCount,
    "weight": Weight,
}
_registered: Final[dict[str, Callable[[], Strategy]]] = {}
"""Those of users. Names of a whole process, like codecs: they are registered by the module that the node is told to import."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def register(name: str, factory: Callable[[], Strategy]) -> None:
    """Let nodes of this process be told to share by the strategy ``name``; a name registered before is replaced.

    ``register("sticky", lambda: IdHash(overdue=60))`` is one of the built-in ones with another setting. All nodes of a fleet
    have to know it under the same name.

    Raises SettingsError where the name is that of a built-in one, or is not 1 to 32 lower case letters, digits, ``-`` and ``_``.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{name!r} is no name for a strategy: use lower case letters, digits, '-' and '_', a letter first"
        )
    if name in _BUILT_IN:
        raise SettingsError(f"the strategy {name!r} is built in: register yours under another name")
    _registered[name] = factory


def known() -> tuple[str, ...]:
    """Return the names of all strategies, the built-in ones first."""
    return (*_BUILT_IN, *sorted(_registered))


def strategy(name: str) -> Strategy:
    """Return a new strategy of that name. Raises SettingsError, which lists the known ones, where there is none."""
    factory = _BUILT_IN.get(name) or _registered.get(name)
    if factory is None:
        raise SettingsError(f"there is no strategy {name!r}: the known ones are {', '.join(known())}")
    return factory()
