"""The objects that all parts of the jobs slice share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mainspring.clock import Clock
    from mainspring.events.hub import Hub
    from mainspring.ids import Handles
    from mainspring.jobs.dispatch import Dispatch
    from mainspring.jobs.listeners import Listeners
    from mainspring.jobs.table import JobTable
    from mainspring.jobs.timers import Timers
    from mainspring.jobs.uniques import Uniques
    from mainspring.slices import Slices
    from mainspring.storage.commit_queue import CommitQueue


class Context(NamedTuple):
    """Passive objects without references to the parts that use them. Each part copies what it needs when it is created."""

    table: JobTable
    dispatch: Dispatch
    commits: CommitQueue
    timers: Timers
    clock: Clock
    handles: Handles
    listeners: Listeners
    hub: Hub
    uniques: Uniques
    slices: Slices
