"""The activities of runs that a worker executes: which it has, and which ends wait for a fused decision."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mainspring.worker.workflows import fusing
from mainspring.worker.workflows.runs import EndedActivity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.worker.delivery import Delivery
    from mainspring.worker.execution import Settlement
    from mainspring.worker.link import Link
    from mainspring.worker.session import Key
    from mainspring.worker.workflows.node_clocks import NodeClocks
    from mainspring.worker.workflows.run_cache import RunCache
    from mainspring.worker.workflows.runs import Run


class Activities:
    """The activities of the runs in ``cache``, and of others whose decisions another worker makes."""

    def __init__(self, cache: RunCache, clocks: NodeClocks) -> None:
        self._cache = cache
        self._clocks = clocks
        self._held: dict[tuple[Link, Key], tuple[int, int]] = {}
        """The run and the scheduling event of each activity that the worker has."""
        self._ended: dict[Run, None] = {}
        """Runs to look at in this turn of the loop: activities of them have ended."""

    def accepted(self, delivery: Delivery) -> None:
        """Note an activity that the worker holds from now on."""
        number, ref = fusing.run_of(delivery)
        if number:
            self._held[delivery.link, delivery.key] = number, ref
            run = self._cache.get(delivery.link, number)
            if run is not None:
                run.activities.add(ref)

    def begun(self, run: Run) -> None:
        """Note the activities of a run that is in memory from now on."""
        run.activities.update(
            ref for (link, _), (number, ref) in self._held.items() if number == run.id and link is run.link
        )

    def ended(self, delivery: Delivery, settlement: Settlement | None) -> bool:
        """Take over the end of an activity; return False if it is settled alone. None: it is lost or given back."""
        activity_of = self._held.pop((delivery.link, delivery.key), None)
        if activity_of is None:
            return False
        number, ref = activity_of
        run = self._cache.get(delivery.link, number)
        if run is None:
            return False
        if settlement is None or settlement.outcome != b"succeeded":
            run.activities.discard(ref)
            return False
        now = asyncio.get_running_loop().time()
        latest = fusing.latest(delivery, now)
        if ref in run.close_by:
            latest = min(
                latest, now + (run.close_by[ref] - self._clocks.now_us(run.link)) / 1_000_000 - fusing.TIME_LEFT
            )
        if latest <= now or len(settlement.data) > _largest_fused(run):
            run.activities.discard(ref)
            return False
        run.ended.append(EndedActivity(delivery.key, ref, delivery.job.attempt, settlement))
        if run.reporting:
            self._settle_by(run, latest)
        self.look_at(run)
        return True

    def _settle_by(self, run: Run, latest: float) -> None:
        """Settle the ended activities of a run alone at a time of the loop, unless an answer comes before."""
        if run.unanswered is None or latest < run.unanswered.when():
            if run.unanswered is not None:
                run.unanswered.cancel()
            run.unanswered = asyncio.get_running_loop().call_at(latest, self.settle, run)

    def look_at(self, run: Run) -> None:
        """Look at the ended activities of a run with the next ``take_ended``."""
        self._ended[run] = None

    def take_ended(self) -> Sequence[Run]:
        """Return the runs with ended activities that wait for nothing else."""
        if not self._ended:
            return ()
        ended, self._ended = self._ended, {}
        return [run for run in ended if run.ended and not run.reporting]

    def settle(self, run: Run) -> None:
        """Settle the ended activities of a run alone."""
        for one in run.take_ended():
            run.activities.discard(one.ref)
            run.link.session.settle(one.key, one.settlement)
        run.link.flush()


def _largest_fused(run: Run) -> int:
    """Return the bytes of a result that a report may carry: with all open activities they fill half of its packet."""
    limits = run.instance.limits
    return limits.largest // (2 * limits.open_activities)
