"""The transitions of a machine, and their guard.

A machine's table has, for each phase and event that may meet, the next phase. Everything else is a defect of Mainspring itself
and raises. A late but harmless request is no event: the rules in ``decisions`` and ``completing`` list these with the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeVar

from mainspring.errors import IllegalTransitionError
from mainspring.workflows.history import EventBase

P = TypeVar("P", bound=Enum)
Folds = Mapping[type[EventBase], Callable[..., None]]
"""The effects of a machine's events on a state, by the events' classes."""


def transition(table: Mapping[tuple[P, type[EventBase]], P], phase: P, event: EventBase) -> P:
    """Return the phase after an event; raise IllegalTransitionError if the table has no such transition."""
    following = table.get((phase, event.__class__))
    if following is None:
        raise illegal(event, f"is not possible in the phase {phase.name}")
    return following


def illegal(event: EventBase, why: str) -> IllegalTransitionError:
    """Return the error for an event that the state does not allow."""
    return IllegalTransitionError(f"{type(event).__name__} (event {event.id}) {why}")
