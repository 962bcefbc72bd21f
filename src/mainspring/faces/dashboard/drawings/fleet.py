"""The nodes of a fleet: a row of cells for the slots of each, and a bar for what is left of its lease.

Arrows lead from ended nodes to the pool of all nodes, with the number of the jobs that were given back, and the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from mainspring.faces.dashboard import words

if TYPE_CHECKING:
    from collections.abc import Sequence

TOP: Final = 22
ROW: Final = 28
LEFT: Final = 190
CELLS: Final = 380
"""The width of all cells of a node."""
LEASE: Final = 680
"""Where the bars of leases begin."""
LEASE_WIDTH: Final = 200
MOST_NODES: Final = 40
MOST_CELLS: Final = 300
"""Of all nodes together."""
MOST_ARROWS: Final = 4
WIDEST: Final = 32
"""Cells of a node; with more slots, a cell stands for several."""


class Node(NamedTuple):
    """The shown values of a node."""

    name: str
    term: int
    state: str
    address: str | None
    version: str
    jobs: int
    slots: int | None
    lease: float
    lease_left: float | None
    started_at: str | None
    share: str
    """Its strategy and weight in words; empty where they are not shown."""
    prefetch: int | None

    @property
    def silent(self) -> float | None:
        """The seconds since its last heartbeat; None if the lease has ended, or nothing is known."""
        return self.lease - self.lease_left if self.lease_left else None

    @property
    def key(self) -> str:
        """Its name in calls. Of a dead node it is the term: a live one may have the same name."""
        return str(self.term) if self.state == "dead" else self.name


class Recovery(NamedTuple):
    """Jobs of ended terms that a node gave back to all nodes."""

    ended: str
    """The nodes and their terms in words."""
    jobs: int
    at: str
    by: str


class Arrow(NamedTuple):
    """A drawn recovery."""

    y: int
    recovery: Recovery


class Cell(NamedTuple):
    """One slot, or several."""

    x: float
    width: float
    is_busy: bool


class Line(NamedTuple):
    """A node."""

    y: int
    name: str
    state: str
    cells: list[Cell]
    load: str
    """Its jobs and slots in words."""
    lease: float
    """The width of the bar; 0: nothing is left."""
    has_lease: bool
    """Whether it is known what is left."""


class Fleet(NamedTuple):
    """The drawing."""

    lines: list[Line]
    per_cell: int
    """The slots of a cell."""
    jobs: int
    slots: int
    unlimited: int
    """The number of nodes without a limit, which have no slots."""
    left_out: int
    arrows: list[Arrow]

    @property
    def all_slots(self) -> str:
        """The slots of all nodes in words."""
        if not self.unlimited:
            return words.number(self.slots)
        return f"{words.number(self.slots)} and more" if self.slots else "no limit"

    @property
    def states(self) -> list[str]:
        """Those of the drawn nodes."""
        return list(dict.fromkeys(line.state for line in self.lines))

    @property
    def height(self) -> int:
        """The height of all."""
        return TOP + ROW * len(self.lines) + (TOP + ROW * len(self.arrows) if self.arrows else 0) + 6


def by_need(node: Node) -> tuple[bool, str]:
    """Return a key that sorts nodes: those that need somebody come first."""
    return node.state == "live", node.name


def fleet(nodes: Sequence[Node], recoveries: Sequence[Recovery] = ()) -> Fleet:
    """Return the drawing of nodes and recoveries: nodes that are not live come first, and so do the newest recoveries."""
    shown = sorted(nodes, key=by_need)[:MOST_NODES]
    most = max((node.slots or node.jobs for node in shown), default=0)
    number = max(1, min(WIDEST, MOST_CELLS // max(len(shown), 1)))
    per_cell = max(1, -(-most // number))
    width = round(CELLS / number, 1)
    lines = []
    for row, node in enumerate(shown):
        slots = node.slots if node.slots is not None else node.jobs
        busy = -(-min(node.jobs, slots) // per_cell)
        cells = [Cell(round(LEFT + at * width, 1), width - 2, at < busy) for at in range(-(-slots // per_cell))]
        load = words.number(node.jobs) + ("" if node.slots is None else f" of {words.number(node.slots)}")
        part = 0.0 if not node.lease_left or not node.lease else min(node.lease_left / node.lease, 1.0)
        has_lease = node.lease_left is not None
        lines.append(Line(TOP + ROW * row, node.name, node.state, cells, load, round(part * LEASE_WIDTH, 1), has_lease))
    below = TOP + ROW * len(lines) + TOP
    arrows = [Arrow(below + ROW * row, one) for row, one in enumerate(recoveries[:MOST_ARROWS])]
    return Fleet(
        lines,
        per_cell,
        sum(node.jobs for node in nodes),
        sum(node.slots or 0 for node in nodes),
        sum(node.slots is None for node in nodes),
        len(nodes) - len(shown),
        arrows,
    )
