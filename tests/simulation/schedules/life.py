"""One life of a node of a fleet that has schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreError, StoreFencedError
from mainspring.schedules.service import ScheduleService
from tests.simulation.fleet.attended import Attended
from tests.simulation.fleet.life import FleetLife
from tests.simulation.fleet.store import Way

from .history import ScheduleHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.ids import NodeId
    from mainspring.jobs.model import Job
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.storage.engine import Committed, Opened


class ScheduleWay(Way):
    """A way to the store that notifies a node of created jobs together with the group that created them."""

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: JobLifecycle | None = None
    ) -> Opened:
        assert lifecycle is not None
        self._attended = _Attended(lifecycle, self)
        return await super().open(node, deliver, self._attended)

    async def now(self) -> float:
        """Return the store's time, which the node assumes for the middle of its request."""
        asked = self._content.wall()
        now = await super().now()
        self._history_of_schedules.astray = max((self._content.wall() - asked) / 2, self._history_of_schedules.astray)
        return now

    @property
    def _history_of_schedules(self) -> ScheduleHistory:
        history = self._history
        assert isinstance(history, ScheduleHistory)
        return history

    def _answer(self, committed: Committed, outcomes: Sequence[Any] | StoreError) -> None:
        if (
            self._of in self._history_of_schedules.ended_terms
            and not isinstance(outcomes, StoreError)
            and self._chance.random() < 0.5
        ):
            # The connection broke, and the outcome can no longer be determined.
            outcomes = StoreFencedError(f"term {self._of} was ended by another node")
        self._attended.notify(committed=not isinstance(outcomes, StoreError))
        committed(outcomes)


class _Attended(Attended):
    """Passes the effects of groups to the history at once."""

    def __init__(self, following: JobLifecycle, way: ScheduleWay) -> None:
        super().__init__(following)
        self._way = way

    def stored(self, jobs: Sequence[Job]) -> None:
        self._way._history_of_schedules.created += jobs
        super().stored(jobs)

    def dropped(self, jobs: Sequence[Job]) -> None:
        self._way._history_of_schedules.joining += jobs
        super().dropped(jobs)


class ScheduleLife(FleetLife):
    """A `FleetLife` with the slice of schedules, as in the server."""

    schedules: ScheduleService

    def _add(self) -> None:
        service = self.service
        self.schedules = ScheduleService(
            self.commits,
            self.reads,
            self.store_clock,
            service.timers,
            lambda: service.dispatch.paused,
            first=self.fleet.first_in_line,
        )

    def _begin(self) -> None:
        self.schedules.fetch()

    def _tick(self) -> float:
        self.schedules.tick()
        return super()._tick()
