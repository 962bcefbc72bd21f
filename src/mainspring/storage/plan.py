"""The operations of a group by their kinds, in the order in which an engine runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.storage.operation import Operation

    Plan = dict[type[Operation], list[tuple[int, Any]]]
    """Each operation with its place in the group; the kinds in the order of their phases."""


def plan_of(group: Sequence[Operation]) -> Plan:
    """Return a group by kinds; kinds of one phase in the order in which they come."""
    plan: Plan = {}
    for place, operation in enumerate(group):
        plan.setdefault(type(operation), []).append((place, operation))
    if len(plan) > 1:
        return {kind: plan[kind] for kind in sorted(plan, key=_phase)}
    return plan


def _phase(kind: type[Operation]) -> int:
    return kind.phase


def only_reads(plan: Plan) -> bool:
    """Say whether a group changes nothing: no fence keeps it out, and it needs no transaction."""
    return all(kind.reads for kind in plan)
