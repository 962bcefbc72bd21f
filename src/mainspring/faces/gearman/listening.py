"""How a peer that waits for a job hears of it: in Gearman's words, or in the extension's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainspring.jobs.model import State
from mainspring.wire.gearman.packets import Type, response

if TYPE_CHECKING:
    from mainspring.faces.gearman.peer import Peer
    from mainspring.jobs.model import Job


class _Progress:
    """Progress is told to both kinds in the same packets."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.gone = False

    def data(self, handle: bytes, data: bytes) -> None:
        """Part of the result."""
        self.peer.push(response(Type.WORK_DATA, handle, data))

    def warning(self, handle: bytes, data: bytes) -> None:
        """A warning."""
        self.peer.push(response(Type.WORK_WARNING, handle, data))

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """How far the worker is."""
        self.peer.push(response(Type.WORK_STATUS, handle, numerator, denominator))


class PlainListener(_Progress):
    """A Gearman client in the foreground."""

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Tell the outcome in one of Gearman's three words."""
        peer = self.peer
        if job.state == State.SUCCEEDED:
            peer.outbox.send(response(Type.WORK_COMPLETE, handle, job.result))
        elif job.state == State.FAILED and exception is not None and peer.exceptions:
            peer.outbox.send(response(Type.WORK_EXCEPTION, handle, exception))
        else:
            peer.outbox.send(response(Type.WORK_FAIL, handle))


class ResultListener(_Progress):
    """A client of the extension that waits for a result."""

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Send RESULT."""
        del exception
        state = State(job.state).name.lower().encode()
        attempt = b"%d" % job.attempt
        self.peer.outbox.send(response(Type.RESULT, handle, state, attempt, job.error, job.result))
