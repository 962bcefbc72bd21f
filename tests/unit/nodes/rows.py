"""Rows of nodes for the tests."""

from __future__ import annotations

from mainspring.nodes.model import LEASE, NodeRow


def row(
    term: int,
    counter: int = 1,
    *,
    name: str | None = None,
    lease: float = LEASE,
    weight: int = 1,
    capacity: int = 8,
    running: int = 0,
    functions: tuple[bytes, ...] = (b"f",),
    draining: bool = False,
) -> NodeRow:
    return NodeRow(
        term=term,
        name=f"n{term}" if name is None else name,
        counter=counter,
        lease=lease,
        weight=weight,
        capacity=capacity,
        running=running,
        functions=functions,
        draining=draining,
    )
