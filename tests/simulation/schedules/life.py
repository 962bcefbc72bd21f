"""One life of a node of a fleet that has schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreError, StoreFencedError
from mainspring.schedules.service import ScheduleService
from tests.simulation.fleet.life import FleetLife
from tests.simulation.fleet.store import Way

from .history import ScheduleHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from mainspring.ids import NodeId
    from mainspring.jobs.model import Job
    from mainspring.jobs.slices import JobLifecycle
    from mainspring.jobs.store import Withdrawn
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


class _Attended:
    """Passes the effects of groups to the history at once, and to the node when it is notified of the group."""

    def __init__(self, following: JobLifecycle, way: ScheduleWay) -> None:
        self._following = following
        self._way = way
        self._reserved: list[Job] = []
        self._pending: list[Callable[[], None]] = []

    def next_id(self) -> int:
        return self._following.next_id()

    def reserve(self, job: Job, term: int) -> bool:
        if not self._following.reserve(job, term):
            return False
        self._reserved.append(job)
        return True

    def stored(self, jobs: Sequence[Job]) -> None:
        self._way._history_of_schedules.created += jobs
        self._pending.append(lambda: self._following.stored(jobs))

    def dropped(self, jobs: Sequence[Job]) -> None:
        self._way._history_of_schedules.joining += jobs
        self._pending.append(lambda: self._following.dropped(jobs))

    def cancel(self, ids: Sequence[int], why: str) -> None:
        self._pending.append(lambda: self._following.cancel(ids, why))

    def stop(self, ids: Collection[int], why: str) -> None:
        self._pending.append(lambda: self._following.stop(ids, why))

    def begun(self, new: Sequence[Job], taken: Sequence[Job] = ()) -> None:
        self._pending.append(lambda: self._following.begun(new, taken))

    def ended(self, jobs: Sequence[Job]) -> None:
        self._pending.append(lambda: self._following.ended(jobs))

    def withdrawn(self, jobs: Sequence[Withdrawn], *, stop: bool = True) -> None:
        self._pending.append(lambda: self._following.withdrawn(jobs, stop=stop))

    def notify(self, *, committed: bool) -> None:
        """Notify the node of the outcome of a group."""
        reserved, self._reserved = self._reserved, []
        pending, self._pending = self._pending, []
        if not committed:
            self._following.dropped(reserved)
            return
        for notify in pending:
            notify()


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
