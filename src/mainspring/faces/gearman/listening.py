"""How a peer that waits for a job is told of it: in Gearman's words, or in the extension's.

A large body is sent apart from its head, by reference: however many peers wait for it, there is one copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.model import State
from mainspring.wire.gearman.packets import Type, response, response_head

if TYPE_CHECKING:
    from mainspring.faces.gearman.outbox import Outbox
    from mainspring.faces.gearman.outgoing import Outgoing
    from mainspring.jobs.model import Job

APART: Final = 65_536
"""Bodies of more bytes are not copied behind their heads."""

_SUCCEEDED = int(State.SUCCEEDED)
_WORK_COMPLETE = int(Type.WORK_COMPLETE)


class _Progress:
    """Progress goes to both kinds in the same packets; a peer that leaves more than ``most`` bytes unread is disconnected."""

    def __init__(self, outbox: Outbox, outgoing: Outgoing, most: int) -> None:
        self._outbox = outbox
        self._outgoing = outgoing
        self._most = most
        self.gone = False

    def has_room(self) -> bool:
        """Say whether the peer has not too much to read."""
        return not self._outgoing.full

    def data(self, handle: bytes, data: bytes) -> None:
        """Part of the result."""
        self._part(Type.WORK_DATA, handle, data)

    def warning(self, handle: bytes, data: bytes) -> None:
        """A warning."""
        self._part(Type.WORK_WARNING, handle, data)

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """How far the worker is."""
        self._push(response(Type.WORK_STATUS, handle, numerator, denominator))

    def _part(self, kind: int, handle: bytes, data: bytes) -> None:
        if len(data) > APART:
            self._push(response_head(kind, len(data), handle), data)
        else:
            self._push(response(kind, handle, data))

    def _push(self, data: bytes, body: bytes = b"") -> None:
        """Send what the peer did not ask for just now, unless it has left too much unread."""
        if self._outgoing.unread > self._most:
            self._outgoing.abort()
            return
        self._outbox.send(data)
        if body:
            self._outbox.send(body, body)

    def _send(self, job: Job, kind: int, *args: bytes) -> None:
        """Send a packet that ends with the job's result, which is kept as long as it is on its way."""
        outbox = self._outbox
        if len(job.result) > APART:
            outbox.send(response_head(kind, len(job.result), *args))
            outbox.send(job.result, job)
        else:
            outbox.send(response(kind, *args, job.result))


class PlainListener(_Progress):
    """A Gearman client in the foreground."""

    def __init__(self, outbox: Outbox, outgoing: Outgoing, most: int, *, exceptions: bool) -> None:
        super().__init__(outbox, outgoing, most)
        self.exceptions = exceptions
        """Send it WORK_EXCEPTION."""

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Tell the outcome in one of Gearman's three words."""
        if job.state == _SUCCEEDED:
            if len(job.result) > APART:
                self._send(job, Type.WORK_COMPLETE, handle)
            else:
                self._outbox.send(response(_WORK_COMPLETE, handle, job.result))
        elif job.state == State.FAILED and exception is not None and self.exceptions:
            self._outbox.send(response(Type.WORK_EXCEPTION, handle, exception))
        else:
            self._outbox.send(response(Type.WORK_FAIL, handle))

    def unknown(self, handle: bytes) -> None:
        """Gearman has no word for it."""
        self._outbox.send(response(Type.WORK_FAIL, handle))


class ResultListener(_Progress):
    """A client of the extension that waits for a result."""

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Send RESULT."""
        del exception
        state = State(job.state).name.lower().encode()
        self._send(job, Type.RESULT, handle, state, b"%d" % job.attempt, job.error)

    def unknown(self, handle: bytes) -> None:
        """Send RESULT."""
        self._outbox.send(response(Type.RESULT, handle, b"unknown", b"0", b"", b""))
