"""Histories of runs that a worker does not have in memory: it requests them page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.wire.gearman.packets import Type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.worker.workflows.runs import Run
    from mainspring.workflows.history import Event


class _Request(NamedTuple):
    last: int
    now_us: int
    events: list[Event]


class Histories:
    """The requests for histories under way. ``read`` is called with a run, its missing events, and the time of its decision."""

    def __init__(self, read: Callable[[Run, Sequence[Event], int], None]) -> None:
        self._read = read
        self._requests: dict[Run, _Request] = {}

    def ask(self, run: Run, first: int, last: int, now_us: int) -> None:
        """Request the events of a run from ``first`` on, at least up to ``last``."""
        self._requests[run] = _Request(last, now_us, [])
        run.reading = True
        self._send(run, first)

    @staticmethod
    def _send(run: Run, first: int) -> None:
        run.link.session.send(Type.HISTORY, b"%d" % run.id, b"%d" % first)
        run.link.flush()

    def received(self, run: Run, events: Sequence[Event]) -> None:
        """Take a page."""
        request = self._requests.get(run)
        if request is None:
            return
        last_read = request.events[-1].id if request.events else run.instance.position
        if events and events[0].id != last_read + 1:
            return  # the answer to an earlier request
        request.events.extend(events)
        if events and events[-1].id < request.last:
            self._send(run, events[-1].id + 1)
        else:
            self.drop(run)
            self._read(run, request.events, request.now_us)

    def drop(self, run: Run) -> None:
        """Forget the request for a run."""
        if self._requests.pop(run, None) is not None:
            run.reading = False
