"""Schedules and their rows with names as users know them, and with the keys of a namespace, as they are stored.

Inside the slice a schedule's name, its parents and its function are keys (``mainspring.namespaces``). So schedules of different
namespaces never meet, whatever their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring import namespaces
from mainspring.namespaces import DEFAULT, key_of_text, split_text

if TYPE_CHECKING:
    from mainspring.schedules.model import Fire, Schedule
    from mainspring.schedules.reconcile import Stored


def with_keys(schedule: Schedule, namespace: str) -> Schedule:
    """Return a schedule of a namespace as it is stored."""
    if namespace == DEFAULT:
        for parent in schedule.parents:
            key_of_text(
                namespace, parent
            )  # refuses the key of another namespace; `registration` checks the other names
        return schedule
    return replace(
        schedule,
        name=key_of_text(namespace, schedule.name),
        function=namespaces.key(namespace, schedule.function),
        parents=tuple(key_of_text(namespace, parent) for parent in schedule.parents),
        namespace=namespace,
    )


def with_names(schedule: Schedule) -> Schedule:
    """Return a stored schedule without keys."""
    namespace, name = split_text(schedule.name)
    if namespace == DEFAULT:
        return schedule
    parents = tuple(split_text(parent)[1] for parent in schedule.parents)
    function = namespaces.name_of(schedule.function)
    return replace(schedule, name=name, function=function, parents=parents, namespace=DEFAULT)


def stored_with_names(stored: Stored) -> Stored:
    """Return a schedule as it is stored, without keys."""
    schedule = with_names(stored.schedule)
    if schedule is stored.schedule:
        return stored
    return stored._replace(schedule=schedule, state=replace(stored.state, app=split_text(stored.state.app)[1]))


def row_with_names(row: Fire) -> Fire:
    """Return a row without keys."""
    namespace, name = split_text(row.schedule)
    if namespace == DEFAULT:
        return row
    return replace(row, schedule=name, root=split_text(row.root)[1], parent=split_text(row.parent)[1])


def text_with_names(text: str, namespace: str) -> str:
    """Return a message about schedules of a namespace without keys."""
    return text.replace(f"{namespace}\x1f", "").replace(f"{namespace}\\x1f", "") if namespace != DEFAULT else text
