"""What the store of a fleet with schedules must hold: jobs that it makes by itself, and what became of each fire time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.jobs.model import State
from mainspring.schedules import store as ops
from mainspring.storage.phases import Phase
from tests.simulation.fleet.history import FleetHistory

from .due import DueTimes
from .occasions import Occasions
from .rows import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.jobs.model import Job
    from mainspring.schedules.model import Schedule
    from mainspring.storage.operation import Operation
    from tests.simulation.fleet.content import Content

_WRITING = frozenset({Phase.SETTLE, Phase.CANCEL, Phase.WAKE, Phase.SWEEP, Phase.SLICES})
"""After these there may be other rows."""


class ScheduleHistory(FleetHistory):
    """A `FleetHistory` that knows of schedules. After each group all that has changed is looked at."""

    def __init__(self, content: Content) -> None:
        super().__init__(content.terms)
        self._content = content
        self.made: list[Job] = []
        """Jobs that the group under way has made by itself."""
        self.joining: list[Job] = []
        """Those that would have been, and joined others."""
        self.astray = 0.0
        """By how many seconds a node's clock may go wrong for want of a quick answer."""
        self.schedules: dict[str, Schedule] = {}
        self.rows = Rows(content.tables, self.redriven)
        self.due = DueTimes(content, self.schedules)
        self.occasions = Occasions(self.rows, self.schedules)

    def note(self, node: str, group: Sequence[Operation], outcomes: Sequence[Any]) -> None:
        """A group of a node was committed."""
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
        """Note the jobs that schedules have made, and whom they have joined."""
        made, self.made = self.made, []
        joining, self.joining = self.joining, []
        for job in made:
            self.rows.made(job)
            self._begin(job.id, (job.function, job.unique) if job.unique else None)
            if job.state == State.LEASED:
                self._lease(node, job.id, job.term)
        fires = self._content.tables.fires
        for job in joining:
            assert job.options is not None
            assert job.options.schedule is not None
            self.joined += 1
            self.foreground.discard(fires[job.options.schedule][job.options.fire_us].job)
