"""Submissions of a peer: background jobs in batches, foreground jobs behind them, and the answers in their places.

A peer that waits for a job gets its progress and its end from a listener, in plain Gearman or in the extension. A large body
is sent separately from its head and by reference, so that there is one copy for any number of waiting peers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mainspring.access.caller import LOCAL
from mainspring.api.request import Code
from mainspring.api.submitting import submission_problem
from mainspring.callbacks import CallInProgress
from mainspring.errors import StoreError, UsageError
from mainspring.faces.gearman.peer_io import Outstanding
from mainspring.jobs.model import UNIQUE_LIMIT, Job, State, deepened
from mainspring.namespaces import DEFAULT, prefix
from mainspring.wire.gearman_protocol import Type, response, response_head, unique_of_empty_payload, unique_of_payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from mainspring.api.request import Problem
    from mainspring.conflicts.rules import Rule
    from mainspring.conflicts.service import ConflictService
    from mainspring.conflicts.store import Placed
    from mainspring.errors import MainspringError
    from mainspring.faces.gearman.face import GearmanFace
    from mainspring.faces.gearman.peer_io import Outbox, Outgoing, Reading
    from mainspring.jobs.store import Found, Submit

if TYPE_CHECKING:
    KeyedSubmit = Callable[[Callable[[str, bool], None], Callable[[Problem], None]], CallInProgress]
    """Submits a job, and calls one of two functions: with its handle and whether it was submitted before, or with a problem."""

_PENDING = int(State.PENDING)
_JOB_CREATED = int(Type.JOB_CREATED)
_PROBLEM_CODES = {Code.INVALID: b"INVALID_FUNCTION_NAME", Code.TOO_LARGE: b"ARGUMENT_TOO_LARGE"}
"""Gearman's error codes for an invalid submission."""
_KEYED_CODES = {
    Code.INVALID: b"INVALID_ARGUMENTS",
    Code.TOO_LARGE: b"ARGUMENT_TOO_LARGE",
    Code.UNSUPPORTED: b"UNSUPPORTED",
    Code.TOO_MANY_FUNCTIONS: b"TOO_MANY_FUNCTIONS",
    Code.CONFLICT: b"REQUEST_KEY_REUSED",
}
"""The error codes for a submission with a request key."""

DROP_DELAY: Final = 1.0
"""Seconds after which a job that waits for the store is dropped if its client disconnects."""


class Submits:
    """The submissions of one peer, which waits for jobs through the listeners ``plain`` and ``results``."""

    __slots__ = (
        "_ahead",
        "_face",
        "_outbox",
        "_pending",
        "_plain",
        "_results",
        "_service",
        "_unanswered",
        "_unstored",
        "_waits",
        "batch",
        "caller",
        "depth",
        "namespace",
        "prefix",
    )

    def __init__(
        self,
        face: GearmanFace,
        reading: Reading,
        outbox: Outbox,
        unanswered: Outstanding,
        plain: PlainListener,
        results: ResultListener,
    ) -> None:
        self._face = face
        self._service = face.service
        self._outbox = outbox
        self._unanswered = unanswered
        self._plain = plain
        self._results = results
        self.batch: list[Job] = []
        """The next batch for the store."""
        self.caller = LOCAL
        """The origin of its requests."""
        self.depth = 0
        """The depth of the job whose code makes its requests; see `jobs.model.Options`."""
        self.namespace = DEFAULT
        self.prefix = b""
        """The bytes before the names of functions in their keys; see ``namespaces``."""
        self._waits: list[bool] = []
        """For a batch of the extension: whether each submission waits for its result."""
        self._unstored = Outstanding(
            face.settings.queued_jobs,
            face.settings.queued_bytes,
            lambda full: reading.pause("unstored", paused=full),
        )
        self._pending: dict[Submit, float] = {}
        """The operations that are not answered, with the monotonic times at which they were put."""
        self._ahead = 0
        """Submissions that later foreground ones must follow: background ones, and foreground ones that wait for these."""

    def use_namespace(self, namespace: str) -> None:
        """Take the names of functions for names of a namespace from now on."""
        self.namespace, self.prefix = namespace, prefix(namespace)

    # ---- checks ----

    def check(
        self, function: bytes, unique: bytes, payload: bytes, priority: int, listener: PlainListener | None = None
    ) -> bytes | None:
        """Return the unique to use. If the submission is invalid or joins a job, answer it and return None.

        ``function`` is a name.

        ``listener`` is given for a foreground job.
        """
        if len(unique) > UNIQUE_LIMIT:
            self.refuse(b"ARGUMENT_TOO_LARGE", b"Unique value too large")  # gearmand's message
            return None
        problem = submission_problem(function, unique, payload, self._face.settings.max_value)
        if problem is not None:
            self.refuse(_PROBLEM_CODES[problem.code], problem.message.encode())
            return None
        if self.prefix:
            function = self.prefix + function
        queue = self._service.dispatch.queues.get(function)
        if queue is None:
            if not self._service.dispatch.admits(function, self.caller):
                self.refuse(b"TOO_MANY_FUNCTIONS", self._service.roster.too_many(function, self.caller).encode())
                return None
            queue = self._service.dispatch.tracked(function)  # the function counts from now on
        if unique == b"-":
            unique = unique_of_payload(payload) if payload else unique_of_empty_payload(self._service.table.next_id())
        if queue is not None and queue.maximum is not None and queue.is_full(priority):
            # A foreground job of this unique can be joined without the store, which does not contain it.
            if unique and self._service.table.has_foreground(function, unique):
                return unique
            if not unique:
                self.refuse(b"QUEUE_ERROR", b"Job queue is full")
                return None
            self._join(function, unique, listener)
            return None
        return unique

    def refuse(self, code: bytes, message: bytes) -> None:
        """Answer a submission with an error, in the order of its submission."""
        self.flush()
        self._outbox.send(response(Type.ERROR, code, message))

    def _join(self, function: bytes, unique: bytes, listener: PlainListener | None) -> None:
        """Join a job of a full queue, which accepts no new job."""
        self.flush()
        slot = self._outbox.reserve()
        handle = self._service.handles.of
        self._service.intake.join(
            function,
            unique,
            listener,
            lambda job_id: self._outbox.fill(slot, response(_JOB_CREATED, handle(job_id))),
            lambda error: self._outbox.fill(slot, response(Type.ERROR, b"QUEUE_ERROR", str(error).encode())),
        )

    # ---- background ----

    def background(self, priority: int, args: list[bytes]) -> None:
        """Add a plain background submission to the batch, or refuse it."""
        if self._waits:
            self.flush()
        function, unique, payload = args
        checked = self.check(function, unique, payload, priority)
        if checked is not None:
            if self.prefix:
                function = self.prefix + function
            self.batch.append(Job(self._service.table.next_id(), function, payload, checked, priority, _PENDING))

    def gather(self, job: Job, *, wait: bool) -> None:
        """Add a submission of the extension to the batch. Call ``flush_plain`` first."""
        self.batch.append(job)
        self._waits.append(wait)

    def flush_plain(self) -> None:
        """Send the batch to the store if it has plain submissions, which are answered differently from the extension's."""
        if not self._waits:
            self.flush()

    def flush(self) -> None:
        """Send the batch to the store; its submissions are either all plain or all of the extension."""
        batch = self.batch
        if not batch:
            return
        self.batch = []
        joins = self._service.intake.joins(batch)
        if self._waits:
            waits, self._waits = self._waits, []
            if joins:
                for job, wait in zip(batch, waits, strict=True):
                    self._submit_batch([job], self._submitted([job], [wait]))
            else:
                self._submit_batch(batch, self._submitted(batch, waits))
            return
        now_us = round(self._service.clock.wall() * 1_000_000)
        for job in batch:
            job.created_us = now_us
        if joins:
            for job in batch:
                self._submit_batch([job], self._created)
        else:
            self._submit_batch(batch, self._created)

    def use_depth(self, depth: int) -> None:
        """Take a depth for that of all later requests."""
        self.depth = depth

    def submit(self, job: Job) -> None:
        """Submit a plain background job."""
        self._submit_batch([job], self._created)

    def _submit_batch(self, jobs: list[Job], answer: Callable[[list[int], dict[int, Any]], bytes]) -> None:
        """Submit background jobs, and reserve the place of their answers."""
        if self.depth:
            for job in jobs:
                job.options = deepened(job.options, self.depth)
        slot = self._outbox.reserve()
        number = len(jobs)
        size = sum([len(job.function) + len(job.payload) for job in jobs])
        self._ahead += number
        self._unstored.add(number, size)

        def stored(data: bytes) -> None:
            if operation is not None:
                self._pending.pop(operation, None)
            self._ahead -= number
            self._unstored.remove(number, size)
            self._outbox.fill(slot, data)

        def refused(error: Exception) -> None:
            stored(response(Type.ERROR, b"QUEUE_ERROR", str(error).encode()) * number)

        operation: Submit | None = None
        operation = self._service.intake.submit(jobs, lambda ids, joined: stored(answer(ids, joined)), refused)
        if operation is not None:
            self._pending[operation] = self._service.clock.monotonic()

    def lost(self) -> None:
        """Drop the jobs that have waited for the store for `DROP_DELAY`, because their client has given them up.

        Younger ones are stored as before: some programs send jobs and close the connection without reading the answers.
        """
        if self._pending:
            before = self._service.clock.monotonic() - DROP_DELAY
            late = {operation for operation, at in self._pending.items() if at <= before}
            self._service.commits.withdraw(late, StoreError("the client has disconnected"))

    def _created(self, ids: list[int], joined: dict[int, Any]) -> bytes:
        if not joined:
            return (self._face.created(ids[0]) * len(ids)) % tuple(ids)
        handle = self._service.handles.of
        return b"".join([response(_JOB_CREATED, handle(job_id)) for job_id in ids])

    def _submitted(self, jobs: list[Job], waits: list[bool]) -> Callable[[list[int], dict[int, Found]], bytes]:
        """Return a function that answers a batch of SUBMIT with one SUBMITTED each, and registers the waiting submitters."""

        def answer(ids: list[int], joined: dict[int, Found]) -> bytes:
            handle = self._service.handles.of
            packets = []
            for job, job_id, wait in zip(jobs, ids, waits, strict=True):
                packets.append(response(Type.SUBMITTED, handle(job_id), b"1" if job.id in joined else b"0"))
                if wait:
                    if job.id in joined:
                        self.wait_for(job_id, handle(job_id))
                    else:
                        self._service.listeners.add(job_id, self._results)
            return b"".join(packets)

        return answer

    def keyed(self, submit: KeyedSubmit, args: list[bytes], *, wait: bool) -> CallInProgress:
        """Submit a job with a request key; ``args`` are those of its SUBMIT."""
        self.flush()
        slot = self._outbox.reserve()
        size = sum(map(len, args))
        self._ahead += 1
        self._unstored.add(1, size)

        def answer(data: bytes) -> None:
            self._ahead -= 1
            self._unstored.remove(1, size)
            self._outbox.fill(slot, data)

        def done(handle: str, joined: bool) -> None:
            encoded = handle.encode()
            answer(response(Type.SUBMITTED, encoded, b"1" if joined else b"0"))
            job_id = self._service.handles.parse(encoded)
            if wait and job_id is not None:
                self.wait_for(job_id, encoded)

        def failed(problem: Problem) -> None:
            code = _KEYED_CODES.get(problem.code, b"QUEUE_ERROR")
            answer(response(Type.ERROR, code, problem.message.encode("utf-8", "replace")))

        return submit(done, failed)

    def by_rule(self, conflicts: ConflictService, job: Job, rule: Rule, *, wait: bool) -> None:
        """Submit a job by a rule about the live job of its unique. The answer has the second argument 2 if it was skipped."""
        self.flush()
        job.options = deepened(job.options, self.depth)
        slot = self._outbox.reserve()
        size = len(job.function) + len(job.payload)
        self._ahead += 1
        self._unstored.add(1, size)

        def answer(data: bytes) -> None:
            self._ahead -= 1
            self._unstored.remove(1, size)
            self._outbox.fill(slot, data)

        def done(placed: Placed) -> None:
            handle = self._service.handles.of(placed.id)
            flag = b"0" if placed.is_new else b"2" if placed.skipped else b"1"
            answer(response(Type.SUBMITTED, handle, flag))
            if wait:
                self.wait_for(placed.id, handle)

        def failed(error: MainspringError) -> None:
            code = b"INVALID_ARGUMENTS" if isinstance(error, UsageError) else b"QUEUE_ERROR"
            answer(response(Type.ERROR, code, str(error).encode("utf-8", "replace")))

        CallInProgress(conflicts.submit(job, rule), done, failed)

    def wait_for(self, job_id: int, handle: bytes) -> None:
        """Send the RESULT of a job to the peer once the job has ended."""
        self._unanswered.add(1)
        self._service.waits.wait(
            job_id,
            self._results,
            lambda: self._results.unknown(handle),
            lambda: self._unanswered.remove(1),
            self.namespace,
        )

    # ---- foreground ----

    def foreground(self, job: Job) -> None:
        """Submit a foreground job after the earlier background jobs of this peer, so that workers receive them in this order."""
        job.created_us = round(self._service.clock.wall() * 1_000_000)
        job.options = deepened(job.options, self.depth)
        outbox = self._outbox
        if outbox or self._service.foreground.asks_the_store(job):
            self._queue_foreground(job)
            return
        # No answer is pending, and the store is not needed.
        self._service.foreground.submit(
            job,
            self._plain,
            lambda job_id: outbox.send(self._face.created(job_id) % job_id),
            lambda error: outbox.send(response(Type.ERROR, b"QUEUE_ERROR", str(error).encode())),
        )

    def _queue_foreground(self, job: Job) -> None:
        slot = self._outbox.reserve()
        size = len(job.function) + len(job.payload)
        self._unstored.add(1, size)

        def answer(data: bytes) -> None:
            self._unstored.remove(1, size)
            self._outbox.fill(slot, data)

        def submit() -> None:
            self._service.foreground.submit(
                job,
                self._plain,
                lambda job_id: answer(response(_JOB_CREATED, self._service.handles.of(job_id))),
                lambda error: answer(response(Type.ERROR, b"QUEUE_ERROR", str(error).encode())),
            )

        if not self._ahead:
            submit()
            return
        self._ahead += 1

        def stored() -> None:
            self._ahead -= 1
            submit()

        self._service.ends.when_stored(stored)


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
