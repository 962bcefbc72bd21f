"""The messages to a peer that waits for a job, in plain Gearman and in the extension.

A large body is sent separately from its head and by reference, so that there is one copy for any number of waiting peers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.jobs.model import State
from mainspring.wire.gearman.packets import Type, response, response_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.faces.gearman.outbox import Outbox
    from mainspring.faces.gearman.outgoing import Outgoing
    from mainspring.jobs.model import Job

COPY_LIMIT: Final = 65_536
"""Bytes of a body above which it is not copied behind its head."""

_SUCCEEDED = int(State.SUCCEEDED)
_WORK_COMPLETE = int(Type.WORK_COMPLETE)


class _Progress:
    """Progress, in the same packets for both kinds of peers. Above ``unread_limit`` unread bytes a peer is disconnected."""

    def __init__(self, outbox: Outbox, outgoing: Outgoing, unread_limit: int) -> None:
        self._outbox = outbox
        self._outgoing = outgoing
        self._unread_limit = unread_limit
        self.gone = False

    def has_room(self) -> bool:
        """Return whether the peer has read enough of its data to get more."""
        return not self._outgoing.full

    def data(self, handle: bytes, data: bytes) -> None:
        """Send a part of the result."""
        self._part(Type.WORK_DATA, handle, data)

    def warning(self, handle: bytes, data: bytes) -> None:
        """Send a warning."""
        self._part(Type.WORK_WARNING, handle, data)

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """Send the progress of the worker."""
        self._push(response(Type.WORK_STATUS, handle, numerator, denominator))

    def _part(self, kind: int, handle: bytes, data: bytes) -> None:
        if len(data) > COPY_LIMIT:
            self._push(response_head(kind, len(data), handle), data)
        else:
            self._push(response(kind, handle, data))

    def _push(self, data: bytes, body: bytes = b"") -> None:
        """Send data that is no answer to a request, unless the peer has left too much unread."""
        if self._outgoing.unread > self._unread_limit:
            self._outgoing.abort()
            return
        self._outbox.send(data)
        if body:
            self._outbox.send(body, body)

    def _send(self, job: Job, kind: int, *args: bytes) -> None:
        """Send a packet that ends with the job's result, and keep the job until it is sent."""
        outbox = self._outbox
        if len(job.result) > COPY_LIMIT:
            outbox.send(response_head(kind, len(job.result), *args))
            outbox.send(job.result, job)
        else:
            outbox.send(response(kind, *args, job.result))


class PlainListener(_Progress):
    """A Gearman client that waits for a foreground job."""

    def __init__(self, outbox: Outbox, outgoing: Outgoing, unread_limit: int, *, exceptions: bool) -> None:
        super().__init__(outbox, outgoing, unread_limit)
        self.exceptions = exceptions
        """Whether it gets WORK_EXCEPTION."""

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Send the outcome in one of Gearman's three packets."""
        if job.state == _SUCCEEDED:
            if len(job.result) > COPY_LIMIT:
                self._send(job, Type.WORK_COMPLETE, handle)
            else:
                self._outbox.send(response(_WORK_COMPLETE, handle, job.result))
        elif job.state == State.FAILED and exception is not None and self.exceptions:
            self._outbox.send(response(Type.WORK_EXCEPTION, handle, exception))
        else:
            self._outbox.send(response(Type.WORK_FAIL, handle))

    def unknown(self, handle: bytes) -> None:
        """Send WORK_FAIL, because Gearman has no packet for an unknown job."""
        self._outbox.send(response(Type.WORK_FAIL, handle))


class ResultListener(_Progress):
    """A client of the extension that waits for a result."""

    _text_of: Callable[[bytes], bytes] | None = None

    def use_texts(self, text_of: Callable[[bytes], bytes]) -> None:
        """Send PROGRESS_TEXT, too. ``text_of`` returns the text of the progress of a handle's job."""
        self._text_of = text_of

    def status(self, handle: bytes, numerator: bytes, denominator: bytes) -> None:
        """Send the progress of the worker."""
        text = b"" if self._text_of is None else self._text_of(handle)
        if text:
            self._push(response(Type.PROGRESS_TEXT, handle, text))
        super().status(handle, numerator, denominator)

    def ended(self, handle: bytes, job: Job, exception: bytes | None) -> None:
        """Send RESULT with the job's outcome."""
        del exception
        state = State(job.state).name.lower().encode()
        self._send(job, Type.RESULT, handle, state, b"%d" % job.attempt, job.error)

    def unknown(self, handle: bytes) -> None:
        """Send RESULT with the state ``unknown``."""
        self._outbox.send(response(Type.RESULT, handle, b"unknown", b"0", b"", b""))
