"""Progress reports of workers, for waiting clients here and at other nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mainspring.events.relay import Progress, ProgressText
from mainspring.jobs.held import ProgressSubscribers
from mainspring.jobs.store import FindSubscribers

if TYPE_CHECKING:
    from mainspring.errors import StoreError
    from mainspring.events.relay import Relay
    from mainspring.jobs.context import Context
    from mainspring.jobs.held import Held

MOST_TEXTS: Final = 1000
"""Texts of jobs that do not run here; the oldest is dropped."""
SUBSCRIBERS_TTL: Final = 1.0
"""Seconds for which the subscribers of a job's progress are cached."""


class Reports:
    """Forwards progress reports. ``relay`` is given if the store is shared."""

    def __init__(self, context: Context, relay: Relay | None) -> None:
        self._table, self._commits, self._clock = context.table, context.commits, context.clock
        self._handles, self._listeners = context.handles, context.listeners
        self._relay = relay
        self._texts: dict[int, bytes] = {}
        """The texts of the progress of jobs that run at other nodes, or are root jobs."""

    def data(self, held: Held, data: bytes) -> None:
        """Part of a result."""
        self._report(held, Progress(held.job.id, "data", data, b""))

    def warning(self, held: Held, data: bytes) -> None:
        """A warning."""
        self._report(held, Progress(held.job.id, "warning", data, b""))

    def status(self, held: Held, numerator: bytes, denominator: bytes) -> None:
        """The progress of a worker."""
        held.numerator, held.denominator = numerator, denominator
        held.reported = True
        if held.text:
            self._send_text(held, held.text)
        self._report(held, Progress(held.job.id, "status", numerator, denominator))

    def text(self, held: Held, text: bytes) -> None:
        """The text of the next progress of a worker."""
        if held.text and not text:
            self._send_text(held, text)  # later reports have none, and would leave the last one
        held.text = text

    def _send_text(self, held: Held, text: bytes) -> None:
        if self._relay is not None and held.stored:
            self._send(self._relay, held, ProgressText(held.job.id, text.decode()))

    def text_of(self, job_id: int) -> bytes:
        """Return the text of the last progress of a job that runs; empty for none."""
        held = self._table.find(job_id)
        return self._texts.get(job_id, b"") if held is None else held.text

    def text_elsewhere(self, message: ProgressText) -> None:
        """Keep the text of the next progress of a job that runs at another node."""
        self._keep_text(message.id, message.text.encode())

    def _keep_text(self, job_id: int, text: bytes) -> None:
        self._texts.pop(job_id, None)
        self._texts[job_id] = text
        if len(self._texts) > MOST_TEXTS:
            del self._texts[next(iter(self._texts))]

    def _report(self, held: Held, progress: Progress) -> None:
        held.beat = self._clock.monotonic()
        self._tell(held.handle, progress)
        if self._relay is not None and held.stored:
            self._send(self._relay, held, progress)

    def reported_elsewhere(self, progress: Progress) -> None:
        """Notify listeners of a job that runs at another node."""
        self._tell(self._handles.of(progress.id), progress)

    def report_root(self, job_id: int, numerator: bytes, denominator: bytes, text: str) -> None:
        """Notify listeners of a root job of the progress of its run."""
        if self._listeners.of(job_id):
            self._keep_text(job_id, text.encode())
        self.reported_elsewhere(Progress(job_id, "status", numerator, denominator))

    def _tell(self, handle: bytes, progress: Progress) -> None:
        for listener in self._listeners.of(progress.id):
            if progress.kind == "status":
                listener.status(handle, progress.first, progress.second)
            elif progress.kind == "data":
                listener.data(handle, progress.first)
            else:
                listener.warning(handle, progress.first)

    def _send(self, relay: Relay, held: Held, message: Progress | ProgressText) -> None:
        """Send a job's progress to the other nodes whose clients wait for it."""
        now = self._clock.monotonic()
        subscribers = held.subscribers
        if subscribers is None:
            subscribers = held.subscribers = ProgressSubscribers(now)
            self._find_subscribers(relay, held, subscribers)
        elif now - subscribers.read_at >= SUBSCRIBERS_TTL:
            subscribers.read_at = now
            self._find_subscribers(relay, held, subscribers)
        if subscribers.unsent is not None:
            subscribers.unsent.append(message)
            return
        for term in subscribers.terms:
            relay.send(term, message)

    def _find_subscribers(self, relay: Relay, held: Held, subscribers: ProgressSubscribers) -> None:
        def found(terms: dict[int, list[int]]) -> None:
            subscribers.terms = terms.get(held.job.id, [])
            unsent, subscribers.unsent = subscribers.unsent, None
            for message in unsent or ():
                for term in subscribers.terms:
                    relay.send(term, message)

        def failed(error: StoreError) -> None:
            del error
            subscribers.unsent = None

        self._commits.put(FindSubscribers(self._table.term, [held.job.id]), found, failed)
