"""The expected content of the store of a fleet with schedules: the jobs that it creates, and the outcome of each fire time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.jobs.model import State
from mainspring.schedules import store as ops
from mainspring.storage.engine import Phase
from tests.simulation.fleet.history import FleetHistory

from .due import DueTimes
from .occasions import Occasions
from .rows import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.model import Job
    from mainspring.schedules.model import Schedule
    from mainspring.storage.engine import Operation
    from tests.simulation.fleet.content import Content

_WRITING = frozenset({Phase.SETTLE, Phase.CANCEL, Phase.WAKE, Phase.SWEEP, Phase.SLICES})
"""The phases that may change rows."""


class ScheduleHistory(FleetHistory):
    """A `FleetHistory` with schedules. It checks all changes after each group."""

    def __init__(self, content: Content) -> None:
        super().__init__(content.terms)
        self._content = content
        self.created: list[Job] = []
        """Jobs that the store has created in the current group."""
        self.joining: list[Job] = []
        """Jobs that joined others instead of being created."""
        self.astray = 0.0
        """Seconds by which a slow answer may put a node's clock wrong."""
        self.schedules: dict[str, Schedule] = {}
        self.rows = Rows(content.tables, self.redriven)
        self.due = DueTimes(content, self.schedules)
        self.occasions = Occasions(self.rows, self.schedules)

    def note(self, node: str, group: Sequence[Operation], outcomes: Sequence[Any]) -> None:
        """Record a committed group of a node."""
        super().note(node, group, outcomes)
        if _WRITING.isdisjoint(operation.phase for operation in group):
            return
        changed = self.rows.look()
        for operation, outcome in zip(group, outcomes, strict=True):
            if isinstance(operation, ops.FireSchedules):
                assert len(set(operation.due)) == len(operation.due), "a schedule is fired twice at once"
            if isinstance(operation, ops.SaveSchedules) and outcome.error is None:
                for change in operation.changes:
                    self.due.change(change, operation.now_us)
        self.due.look(changed, self.astray)
        self.occasions.look(changed)
        lone = {name: one for name, one in self.schedules.items() if name not in self.due.passed_over}
        self.rows.check_overlap(changed, lone)

    def follow(self, node: str) -> None:
        """Record the jobs that schedules have created, and the jobs that they have joined."""
        created, self.created = self.created, []
        joining, self.joining = self.joining, []
        for job in created:
            self.rows.created(job)
            self._begin(job.id, (job.function, job.unique) if job.unique else None)
            if job.state == State.LEASED:
                self._lease(node, job.id, job.term)
        fires = self._content.tables.fires
        for job in joining:
            assert job.options is not None
            assert job.options.schedule is not None
            self.joined += 1
            self.foreground.discard(fires[job.options.schedule][job.options.fire_us].job)
