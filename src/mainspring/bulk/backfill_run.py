"""One backfill of a schedule, on the node that works on it: each step fires the next times."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from mainspring.access.roles import Permission
from mainspring.bulk import rules
from mainspring.bulk.model import Status
from mainspring.bulk.run import BulkRun
from mainspring.bulk.store import StepBackfill, Stepped
from mainspring.clock import to_us

if TYPE_CHECKING:
    from collections.abc import Callable

ROOM_DELAY: Final = 1.0
"""Seconds until the next step, if the overlap rule of the schedule permits no more runs for now."""


class BackfillRun(BulkRun):
    """A backfill under way. Nothing is read ahead: a step computes its fire times from the schedule as it is then."""

    def prepare(self) -> None:
        """Check the rights of the caller; then report that the run is ready."""
        if not self._is_ended:
            self._node.rights(self.bulk.spec.caller, self._check_rights, self._not_read)

    def step(self, finished: Callable[[float], None]) -> None:
        """Fire the next times. ``finished`` is called with the seconds until the next step of any operation."""
        if self._is_ended:
            finished(0)
            return
        caller, namespace = self._caller, self.bulk.namespace
        assert caller is not None, "its rights were checked"
        permits = partial(caller.may, Permission.OPERATE, namespace)
        operation = StepBackfill(self.bulk, self._pace.size, to_us(self._node.clock.wall()), permits)
        self.begin(operation)
        self._node.commits.put(operation, partial(self._fired, finished), partial(self._not_stepped, None, finished))

    def _fired(self, finished: Callable[[float], None], outcome: Stepped) -> None:
        bulk = outcome.bulk
        number = 0 if bulk is None else rules.done(bulk.progress) - rules.done(self.bulk.progress)
        if outcome.stepped and bulk is not None and bulk.status is Status.RUNNING and not number:
            finished(0)
            self._node.later(ROOM_DELAY, self.prepare)
        else:
            self._stepped(number, None, finished, outcome)
