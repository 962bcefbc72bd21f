"""The order of related schedules: a child runs for an occasion exactly when all of its parents have succeeded for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.schedules.model import FireState, Reason

from .plan import takes_part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mainspring.schedules.model import Fire, Schedule
    from mainspring.schedules.store import Key

    from .rows import Changed, Rows


class Occasions:
    """The ended parents, with their outcomes, of each child and occasion."""

    def __init__(self, rows: Rows, schedules: Mapping[str, Schedule]) -> None:
        self._rows = rows
        self._schedules = schedules
        self._arrived: dict[Key, dict[str, bool]] = {}

    def look(self, changed: Sequence[Changed]) -> None:
        """Check that exactly the right children were started or stopped in the same transaction."""
        touched: dict[Key, Fire] = {}
        for one in changed:
            row = one.now
            if self._parents(row.schedule):
                touched[row.schedule, row.fire_us] = row
            if one.arrived is None:
                continue
            for child in self._children(row):
                self._arrived.setdefault((child, row.fire_us), {})[row.schedule] = one.arrived
                touched[child, row.fire_us] = row
        for (child, fire_us), row in touched.items():
            self._check(child, fire_us, row)
        for one in changed:
            self._check_finished(one.now)

    def _parents(self, name: str) -> tuple[str, ...]:
        return self._schedules[name].parents if name in self._schedules else ()

    def _children(self, row: Fire) -> list[str]:
        return [
            name
            for name, schedule in self._schedules.items()
            if row.schedule in schedule.parents and takes_part(name, row.root, row.fire_us, self._schedules)
        ]

    def _check(self, child: str, fire_us: int, of: Fire) -> None:
        row = self._rows.rows.get(child, {}).get(fire_us)
        if row is not None and row.schedule == row.root:
            return  # it was triggered
        parents = self._parents(child)
        arrived = self._arrived.get((child, fire_us), {})
        if not all(arrived.values()):
            assert row is not None, f"{child} was not stopped by {of}"
            assert row.reason is Reason.PARENT, f"a parent has failed: {row}"
        elif len(arrived) == len(parents):
            assert row is not None, f"{child} does not follow {of}"
            assert row.reason is not Reason.PARENT, f"its parents have all succeeded: {row}"
        else:
            assert row is None, f"{sorted(arrived)} of {parents} have succeeded: {row}"

    def _check_finished(self, row: Fire) -> None:
        """Check that a run with ``wait_for_children`` is finished when its children are."""
        schedule = self._schedules.get(row.schedule)
        if schedule is None or not schedule.wait_for_children or not row.outcome:
            return
        rows = [self._rows.rows.get(child, {}).get(row.fire_us) for child in self._children(row)]
        left = sum(child is None or not child.finished for child in rows)
        assert row.children_left == left, f"{left} children go on: {row}"
        assert row.state is not FireState.SKIPPED
