"""The operations of a group by kind, in the order in which an engine runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.storage.operation import Operation

    Plan = dict[type[Operation], list[tuple[int, Any]]]
    """Each operation with its place in the group; the kinds are in the order of their phases."""


def plan_of(group: Sequence[Operation]) -> Plan:
    """Return a group by kinds. Kinds of one phase keep the order of their arrival."""
    plan: Plan = {}
    for place, operation in enumerate(group):
        plan.setdefault(type(operation), []).append((place, operation))
    if len(plan) > 1:
        return {kind: plan[kind] for kind in sorted(plan, key=_phase)}
    return plan


def _phase(kind: type[Operation]) -> int:
    return kind.phase


def only_reads(plan: Plan) -> bool:
    """Return whether a group changes nothing: it needs no transaction, and no fence rejects it."""
    return all(kind.reads for kind in plan)
