"""One life of a node of a fleet that has schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mainspring.errors import StoreError, StoreFencedError
from mainspring.schedules.service import ScheduleService
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
    """A way to the store on which a node hears of jobs that the store has made when it hears of the group that made them."""

    async def open(
        self, node: NodeId, deliver: Callable[[Callable[[], None]], object], lifecycle: JobLifecycle | None = None
    ) -> Opened:
        assert lifecycle is not None
        self._attended = _Attended(lifecycle, self)
        return await super().open(node, deliver, self._attended)

    async def now(self) -> float:
        """Return the store's time, which the node takes to be that of the middle of the way."""
        asked = self._content.wall()
        now = await super().now()
        self._noting.astray = max((self._content.wall() - asked) / 2, self._noting.astray)
        return now

    @property
    def _noting(self) -> ScheduleHistory:
        history = self._history
        assert isinstance(history, ScheduleHistory)
        return history

    def _answer(self, committed: Committed, outcomes: Sequence[Any] | StoreError) -> None:
        if (
            self._of in self._noting.ended_terms
            and not isinstance(outcomes, StoreError)
            and self._chance.random() < 0.5
        ):
            # The connection broke over it, and now nobody can tell any more.
            outcomes = StoreFencedError(f"term {self._of} was ended by another node")
        self._attended.tell(committed=not isinstance(outcomes, StoreError))
        committed(outcomes)


class _Attended:
    """The node's side of what its groups make, late; and whoever notes it, at once."""

    def __init__(self, following: JobLifecycle, way: ScheduleWay) -> None:
        self._following = following
        self._way = way
        self._coming: list[Job] = []
        self._untold: list[Callable[[], None]] = []

    def next_id(self) -> int:
        return self._following.next_id()

    def reserve(self, job: Job, term: int) -> bool:
        if not self._following.reserve(job, term):
            return False
        self._coming.append(job)
        return True

    def stored(self, jobs: Sequence[Job]) -> None:
        self._way._noting.made += jobs
        self._untold.append(lambda: self._following.stored(jobs))

    def dropped(self, jobs: Sequence[Job]) -> None:
        self._way._noting.joining += jobs
        self._untold.append(lambda: self._following.dropped(jobs))

    def stop(self, ids: Sequence[int], why: str) -> None:
        self._untold.append(lambda: self._following.stop(ids, why))

    def tell(self, *, committed: bool) -> None:
        """The node hears what has become of a group."""
        reserve, self._coming = self._coming, []
        untold, self._untold = self._untold, []
        if not committed:
            self._following.dropped(reserve)
            return
        for tell in untold:
            tell()


class ScheduleLife(FleetLife):
    """A `FleetLife` with the slice put in as the server does."""

    schedules: ScheduleService

    def _add(self) -> None:
        service = self.service
        self.schedules = ScheduleService(
            self.commits,
            self.reads,
            self.store_clock,
            service.timers,
            lambda: service.paused,
            first=self.fleet.first_in_line,
        )

    def _begin(self) -> None:
        self.schedules.look()

    def _tick(self) -> float:
        self.schedules.tick()
        return super()._tick()
