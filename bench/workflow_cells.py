"""The cells of durable workflows."""

from __future__ import annotations

import workflow_peers
from measure import Cell


def cells() -> list[Cell]:
    """Return the cells of projects that Mainspring's workflows will be compared with."""
    loads = ((10, 1), (10, 32), (0, 1), (0, 32))
    return [_cell(steps, clients) for steps, clients in loads]


def _cell(steps: int, clients: int) -> Cell:
    content = f"{steps} steps, each recorded before the next" if steps else "no step"
    return Cell(
        key=f"workflow-{'steps' if steps else 'empty'}-{clients}",
        measure=f"durable workflows elsewhere: {content}; {clients} client{'s' if clients > 1 else ''}",
        required="",
        unit="runs/s",
        sides=workflow_peers.sides(steps, clients),
    )
