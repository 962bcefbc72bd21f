"""The ways in: background jobs to the store, foreground jobs to memory, and the joins between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mainspring.errors import RefusedError
from mainspring.jobs.model import Job, State
from mainspring.jobs.store import FindUnique, Found, Submit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mainspring.errors import MainspringError, StoreError
    from mainspring.events.hub import Hub
    from mainspring.jobs.held import FunctionQueue, Held
    from mainspring.jobs.listeners import Listener, Listeners
    from mainspring.jobs.window import Window

    Accepted = Callable[[list[int], "dict[int, Found]"], None]
    """Takes the ids that the jobs of a batch have, in order, and what is known of those that were joined."""
    Refused = Callable[[MainspringError], None]

_LEASED, _PENDING, _SCHEDULED = int(State.LEASED), int(State.PENDING), int(State.SCHEDULED)


class _Asking(NamedTuple):
    """A foreground job on its way in."""

    job: Job
    listener: Listener
    accepted: Callable[[int], None]
    refused: Refused


class _Resolving:
    """Foreground jobs of one function and unique that wait to hear whether the store has a live job of it."""

    __slots__ = ("asking", "overtaken")

    def __init__(self, asking: list[_Asking]) -> None:
        self.asking = asking
        self.overtaken = False
        """A background job of this unique was sent to the store after the question."""


class Intake:
    """Takes jobs into a window and its store."""

    def __init__(self, window: Window, listeners: Listeners, hub: Hub, *, foreground_bytes: int) -> None:
        self._window = window
        self._listeners = listeners
        self._hub = hub
        self._foreground_bytes = foreground_bytes
        """Payloads of foreground jobs that may be in memory."""
        self._resolving: dict[tuple[bytes, bytes], _Resolving] = {}
        self.wake_at: Callable[[int], None] = lambda _: None
        """Set by the service: a job becomes due or expires at this time."""
        self.look: Callable[[int], None] = lambda _: None
        """Set by the service: look an ended job up and tell who waits for it."""
        self.left: Callable[[list[int]], None] = lambda _: None
        """Set where the store is shared: nobody at this node waits for these jobs any more."""
        self.waited: Callable[[int, int], None] = lambda _job_id, _term: None
        """Set where the store is shared: somebody at this node waits for a job, and that was noted under a term."""
        self.on_the_way: set[int] = set()
        """Foreground jobs that have left this node's memory and are not in the store yet."""

    # ---- background ----

    def submit(self, jobs: list[Job], accepted: Accepted, refused: Refused) -> None:
        """Store a batch of new jobs (in the state SCHEDULED where ``due_us`` is set), all of them or none.

        A job that joins a foreground one has to come alone; ``joins`` tells.
        """
        window = self._window
        dispatch, claiming = window.dispatch, window.claiming
        foreground, term = window.foreground, window.term
        queues, resolving = dispatch.queues, self._resolving
        size = 0
        for job in jobs:
            name = job.function
            queue = queues.get(name)
            if queue is None:
                queue = dispatch.queue(name)
            if foreground and job.unique and (name, job.unique) in foreground:
                assert len(jobs) == 1, "batches are taken apart before, see joins()"
                held = foreground[name, job.unique]
                self._adopt(held, job, lambda job_id, joined: accepted([job_id], joined), refused)
                return
        if resolving:
            for job in jobs:
                self.overtake((job.function, job.unique))
        for job in jobs:
            queue = queues[job.function]
            length = job.input_size = len(job.payload)
            size += length + 300
            queue.live += 1
            if job.due_us:
                job.state = _SCHEDULED
            elif claiming.admits(queue, job):
                job.state = _LEASED
                job.term = term
                queue.inflight += 1
                if queue.gate is not None:
                    queue.gate.expect(job.key)
                queue.mean_size += (length - queue.mean_size) / 64
            else:
                job.state = _PENDING
                queue.backlog[job.priority] += 1
        self._put(jobs, size, accepted, refused)

    def _put(self, jobs: list[Job], size: int, accepted: Accepted, refused: Refused) -> None:
        window = self._window
        operation = Submit(
            jobs,
            lambda joined: self._submitted(jobs, joined, accepted),
            lambda error: self._not_submitted(jobs, error, refused),
        )
        operation.size = size
        window.commits.put(operation)

    def _submitted(self, jobs: list[Job], joined: dict[int, Found], accepted: Accepted) -> None:
        ids = [job.id for job in jobs]
        if joined:
            ids = [joined[job_id].id if job_id in joined else job_id for job_id in ids]
            jobs = self.uncount(jobs, joined)
        accepted(ids, joined)
        self.stored(jobs)

    def stored(self, jobs: Sequence[Job]) -> None:
        """Do what new rows are for: hand out those that are leased to this node, look for the others in time."""
        window = self._window
        queues = window.dispatch.queues
        if self._hub.active:
            for job in jobs:
                self._hub.publish(job)
        touched: dict[FunctionQueue, None] = {}
        for job in jobs:
            state = job.state
            if state == _LEASED:
                queue = queues[job.function]
                queue.inflight -= 1
                if queue.gate is not None:
                    queue.gate.arrived(job.key)
                if (
                    job.term == window.term
                ):  # otherwise the term has ended since, and whoever ended it gives the job back
                    window.dispatch.push(window.hold(job, stored=True))
                touched[queue] = None
            elif state == _SCHEDULED:
                self.wake_at(job.due_us)
            else:
                touched[queues[job.function]] = None
            if job.expires_us:
                self.wake_at(job.expires_us)
        for queue in touched:
            window.serve(queue)
            if queue.backlog[0] + queue.backlog[1] + queue.backlog[2]:
                window.claiming.refill(queue)

    def uncount(self, jobs: Sequence[Job], gone: dict[int, Found] | None = None) -> list[Job]:
        """Take back what was counted for jobs that were not stored; returns the others."""
        stored = []
        for job in jobs:
            if gone is not None and job.id not in gone:
                stored.append(job)
                continue
            queue = self._window.dispatch.queues[job.function]
            queue.live -= 1
            if job.state == _LEASED:
                queue.inflight -= 1
                if queue.gate is not None:
                    queue.gate.arrived(job.key)
            elif job.state == _PENDING:
                queue.backlog[job.priority] -= 1
        return stored

    def _not_submitted(self, jobs: list[Job], error: StoreError, refused: Refused) -> None:
        self.uncount(jobs, None)
        refused(error)

    # ---- foreground jobs that other nodes may run, or others may join ----

    def _store_foreground(self, asking: _Asking) -> None:
        """Store a foreground job of a client of this node: a worker of any node may run it, and clients of any node join it."""
        window, job = self._window, asking.job
        queue = window.dispatch.queue(job.function)
        job.foreground = True
        job.input_size = len(job.payload)
        queue.live += 1
        if window.claiming.admits(queue, job):
            job.state, job.term = _LEASED, window.term
            queue.inflight += 1
            if queue.gate is not None:
                queue.gate.expect(job.key)
        else:
            job.state = _PENDING
            queue.backlog[job.priority] += 1
        term = window.term

        def stored(joined: dict[int, Found]) -> None:
            other = joined.get(job.id)
            job_id = job.id
            if other is not None:
                job_id = other.id
                self.uncount([job], joined)
            self._listeners.add(job_id, asking.listener, again=True)
            asking.accepted(job_id)
            if other is None:
                self.stored([job])
            elif State(other.state).ended:
                self.look(job_id)
            if self._listeners.of(job_id):
                self.waited(job_id, term)
            elif asking.listener.gone:
                self.left([job_id])

        operation = Submit([job], stored, lambda error: self._not_submitted([job], error, asking.refused), term)
        operation.size = len(job.payload) + 300
        window.commits.put(operation)

    def pass_on(self, held: Held) -> None:
        """Store a foreground job that waits in memory: nobody here can run it any more, others may."""
        window, job = self._window, held.job
        window.release(held)
        self.on_the_way.add(job.id)
        queue = held.queue
        job.foreground, job.state = True, _PENDING
        queue.live += 1
        queue.backlog[job.priority] += 1
        term = window.term

        def stored(joined: dict[int, Found]) -> None:
            del joined  # it has no unique, or it would not have been in memory
            self.on_the_way.discard(job.id)
            if self._listeners.of(job.id):
                self.stored([job])
                self.waited(job.id, term)
            else:
                self.left([job.id])

        def failed(error: StoreError) -> None:
            del error
            self.on_the_way.discard(job.id)
            self.uncount([job], None)
            self._back(job)

        window.commits.put(Submit([job], stored, failed, term))

    def _back(self, job: Job) -> None:
        """The store could not take a foreground job: it waits here as before."""
        window = self._window
        job.foreground = False
        if self._listeners.of(job.id):
            held = window.hold(job, stored=False)
            window.dispatch.push(held)
            window.serve(held.queue)

    # ---- foreground ----

    def asks_the_store(self, job: Job) -> bool:
        """Say whether the store has to hear of a foreground job before it is accepted: it may join one, or run elsewhere."""
        window = self._window
        return bool(job.unique) or (window.claiming.shared and not window.dispatch.queue(job.function).workers)

    def submit_foreground(
        self, job: Job, listener: Listener, accepted: Callable[[int], None], refused: Refused
    ) -> None:
        """Take a job that lives as long as somebody waits for it.

        ``accepted`` is called with its id, or the id of the live job of the same unique that it joins, before the listener
        hears anything.
        """
        window = self._window
        if window.claiming.shared and self.asks_the_store(job):
            self._store_foreground(_Asking(job, listener, accepted, refused))
            return
        if job.unique:
            key = (job.function, job.unique)
            known = window.foreground.get(key)
            if known is not None:
                self._listeners.add(known.job.id, listener, again=True)
                accepted(known.job.id)
                return
            if key in self._resolving or window.dispatch.queue(job.function).live:
                self._resolve(key, _Asking(job, listener, accepted, refused))
                return
        self._hold_foreground(_Asking(job, listener, accepted, refused))

    def _hold_foreground(self, asking: _Asking) -> None:
        window, job = self._window, asking.job
        if window.foreground_bytes + len(job.payload) > self._foreground_bytes:
            message = "the foreground jobs that wait here fill the memory given to them"
            asking.refused(RefusedError("QUEUE_ERROR", message))
            return
        if asking.listener.gone:
            asking.accepted(job.id)
            return
        job.input_size = len(job.payload)
        held = window.hold(job, stored=False)
        if job.unique:
            window.foreground[job.function, job.unique] = held
        self._listeners.add(job.id, asking.listener)
        asking.accepted(job.id)
        if self._hub.active:
            self._hub.publish(job)
        window.dispatch.push(held)
        window.serve(held.queue)

    def _resolve(self, key: tuple[bytes, bytes], asking: _Asking) -> None:
        """Ask the store whether a background job has the unique; those who come meanwhile with the same one wait."""
        resolving = self._resolving.get(key)
        if resolving is None:
            self._resolving[key] = _Resolving([asking])
            self._ask(key)
        else:
            resolving.asking.append(asking)

    def _ask(self, key: tuple[bytes, bytes]) -> None:
        def found(outcome: list[Found | None]) -> None:
            other = outcome[0]
            resolving = self._resolving[key]
            if other is None and resolving.overtaken:
                resolving.overtaken = False
                self._ask(key)
                return
            del self._resolving[key]
            for asking in resolving.asking:
                if other is not None:
                    self._listeners.add(other.id, asking.listener, again=True)
                    asking.accepted(other.id)
                elif key in self._window.foreground:
                    self.submit_foreground(*asking)
                else:
                    self._hold_foreground(asking)

        def failed(error: StoreError) -> None:
            for asking in self._resolving.pop(key).asking:
                asking.refused(error)

        self._window.commits.put(FindUnique([key], found, failed))

    def overtake(self, key: tuple[bytes, bytes]) -> None:
        """A background job of this function and unique is on its way to the store; it counts among the live ones already.

        Whoever is asking the store for that unique has to ask again: the answer may be from before.
        """
        resolving = self._resolving.get(key)
        if resolving is not None:
            resolving.overtaken = True

    def join(
        self,
        function: bytes,
        unique: bytes,
        listener: Listener | None,
        accepted: Callable[[int], None],
        refused: Refused,
    ) -> None:
        """Join a live job where there is one, and be refused where a new one would be needed: the queue is full.

        Without a listener the request is a background one, and joins stored jobs only.
        """
        held = self._window.foreground.get((function, unique))
        if held is not None and listener is not None:
            self._listeners.add(held.job.id, listener, again=True)
            accepted(held.job.id)
            return

        def found(outcome: list[Found | None]) -> None:
            other = outcome[0]
            if other is None:
                refused(RefusedError("QUEUE_ERROR", "Job queue is full"))
                return
            if listener is not None:
                self._listeners.add(other.id, listener, again=True)
            accepted(other.id)

        self._window.commits.put(FindUnique([(function, unique)], found, refused))

    # ---- background submits that join foreground jobs ----

    def joins(self, jobs: list[Job]) -> bool:
        """Say whether any of some background jobs joins a foreground one: then they have to be submitted one by one.

        Such a job may have to wait for more than one commit, and be refused although the others of its batch are stored.
        """
        foreground = self._window.foreground
        return bool(foreground) and any(job.unique and (job.function, job.unique) in foreground for job in jobs)

    def _adopt(
        self, held: Held, joining: Job, accepted: Callable[[int, dict[int, Found]], None], refused: Refused
    ) -> None:
        """Store a foreground job because a background submit has joined it: from now on it outlives its clients."""
        window = self._window
        if held.adopting:
            assert held.then is not None
            held.then.append(lambda: self._adopt(held, joining, accepted, refused))
            return
        if held.stored or window.held.get(held.handle) is not held:
            # It was stored, or has ended meanwhile: the store knows.
            self.submit([joining], lambda ids, found: accepted(ids[0], found), refused)
            return
        job, options = held.job, held.job.options
        job.state, job.term = _LEASED, window.term
        if options is None:
            job.options = joining.options
        held.adopting = True
        held.then = []

        def stored(kept: dict[int, Found]) -> None:
            if kept:
                # A job that has succeeded has the unique as well, and its result is kept: it is joined instead.
                other = kept[job.id]
                job.term, job.options = 0, options
                accepted(other.id, {joining.id: other})
            else:
                del window.foreground[job.function, job.unique]
                held.stored = True
                held.queue.live += 1
                held.queue.foreground -= 1
                window.foreground_bytes -= len(job.payload)
                accepted(job.id, {joining.id: Found(job.id, _LEASED, job.attempt)})
            self._continue(held)

        def failed(error: StoreError) -> None:
            job.term, job.options = 0, options
            refused(error)
            self._continue(held)

        window.commits.put(Submit([job], stored, failed))

    def _continue(self, held: Held) -> None:
        """Do what had to wait until the row was stored, or was not."""
        held.adopting = False
        then, held.then = held.then, None
        for function in then or ():
            function()
        window = self._window
        if (
            window.held.get(held.handle) is held
            and not (held.stored or held.adopting or held.worker)
            and not self._listeners.of(held.job.id)
        ):
            window.release(held)  # its client left meanwhile
